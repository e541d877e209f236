//! The user's consent: without it, a job overwrites neither a data set nor a block device in use.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;

use dlfs::format::superblock::{COPY_OFFSETS, SUPERBLOCK_BYTES};
use dlfs::format::superblock_set::SuperblockCopies;
use dlfs::qpair::Device;
use dlfs::qpair::blocking::Blocking;

use super::target::unescaped;
use crate::options::Job;

/// Checks that a block device is not in use, unless the job consents.
///
/// # Errors
/// A sentence that names the option for consent.
pub(super) fn check_unmounted(job: &Job, name: &str, path: &Path) -> Result<(), String> {
    // The kernel refuses O_EXCL while a device is mounted or part of a volume: open(2). For a regular file,
    // O_EXCL without O_CREAT has no effect.
    let claim = OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(path);
    let is_busy = claim.is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY));
    if !is_busy || job.allow_mounted_write {
        return Ok(());
    }
    Err(format!(
        "{name} is mounted, or part of a volume; allow_mounted_write=1 writes all the same"
    ))
}

/// Checks that a namespace, open for reading, holds no data set, unless the job consents.
///
/// # Errors
/// A sentence that names the option for consent; errors of reading, since unreadable blocks may hold a data
/// set.
pub(super) fn check_blank(job: &Job, name: &str, device: &Arc<dyn Device>) -> Result<(), String> {
    if job.overwrite_data_set.as_deref().map(unescaped).is_some_and(|consent| consent == name) {
        return Ok(());
    }
    let len = device.namespace().len_bytes();
    let pair = device.queue_pair().map_err(|error| error.report())?;
    let mut blocking = Blocking::new(pair).map_err(|error| error.report())?;
    let mut copies = [const { [0; SUPERBLOCK_BYTES] }; 2];
    for (copy, offset) in copies.iter_mut().zip(COPY_OFFSETS) {
        if offset + copy.len() as u64 <= len {
            blocking.read_at(offset, copy).map_err(|error| error.report())?;
        }
    }
    if SuperblockCopies::parse(&copies[0], &copies[1]).is_blank() {
        return Ok(());
    }
    Err(format!(
        "{name} holds a dlfs data set, and the job overwrites it; overwrite_data_set={name} consents"
    ))
}
