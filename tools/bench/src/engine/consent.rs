//! Consent of the user: a job may overwrite or remove no data set, and no block device in use,
//! unless the user names it.

use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;

use dlfs::format::superblock::{COPY_OFFSETS, SUPERBLOCK_BYTES};
use dlfs::format::superblock_set::SuperblockCopies;
use dlfs::qpair::Device;
use dlfs::qpair::blocking::Blocking;

use super::target::{removes, split_names};
use crate::options::Job;

/// Checks a file or block device before it is opened for writing, extended or removed.
///
/// # Errors
/// A sentence that names the target and the option that consents.
pub(super) fn check_file(job: &Job, name: &str, path: &Path) -> Result<(), String> {
    let Ok(metadata) = std::fs::metadata(path) else { return Ok(()) }; // not created yet
    if metadata.file_type().is_block_device() && !job.allow_mounted_write {
        // The kernel refuses O_EXCL while a device is mounted or part of a volume: open(2).
        let claim = OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(path);
        if claim.is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY)) {
            return Err(format!(
                "{name} is mounted, or part of a volume; allow_mounted_write=1 writes all the same"
            ));
        }
    }
    if !(metadata.is_file() || metadata.file_type().is_block_device()) {
        return Ok(()); // other kinds are refused elsewhere
    }
    let file = std::fs::File::open(path).map_err(|error| format!("cannot open {name}: {error}"))?;
    let removes = removes(job, path);
    check_blocks(job, name, removes, |offset, block| file.read_exact_at(block, offset).is_ok())
}

/// Checks an open namespace before anything is written to it.
///
/// # Errors
/// As [`check_file`]; those of reading.
pub(super) fn check_device(job: &Job, name: &str, device: &Arc<dyn Device>) -> Result<(), String> {
    let len = device.namespace().len_bytes();
    let pair = device.queue_pair().map_err(|error| error.report())?;
    let mut blocking = Blocking::new(pair).map_err(|error| error.report())?;
    let mut failed = None;
    let checked = check_blocks(job, name, false, |offset, block| {
        offset + block.len() as u64 <= len
            && blocking.read_at(offset, block).map_err(|error| failed = Some(error)).is_ok()
    });
    match failed {
        // An unreadable namespace may hold a data set, too.
        Some(error) if !consents(job, name) => Err(error.report()),
        _ => checked,
    }
}

fn check_blocks(
    job: &Job,
    name: &str,
    removes: bool,
    mut read: impl FnMut(u64, &mut [u8]) -> bool,
) -> Result<(), String> {
    let mut blocks = [const { [0; SUPERBLOCK_BYTES] }; 2];
    for (block, offset) in blocks.iter_mut().zip(COPY_OFFSETS) {
        if !read(offset, block) {
            block.fill(0);
        }
    }
    if SuperblockCopies::parse(&blocks[0], &blocks[1]).is_blank() || consents(job, name) {
        return Ok(());
    }
    let does = if removes { "unlink=1 removes" } else { "the job overwrites" };
    Err(format!("{name} holds a dlfs data set, and {does} it; overwrite_data_set={name} consents"))
}

fn consents(job: &Job, name: &str) -> bool {
    let named = job.overwrite_data_set.as_deref().map(split_names).unwrap_or_default();
    named.iter().any(|consent| consent == name)
}
