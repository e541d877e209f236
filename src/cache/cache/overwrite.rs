//! Checks whether a tier may overwrite its storage: a tier destroys no data that anybody could need.
//!
//! The check comes before anything is written. A file without data, a device with zeroes at both
//! ends and an earlier tier may be used. Anything else needs the user's consent for this path
//! (`file:PATH:SIZE:overwrite`). Storage that a file system uses, and the data set itself, are always refused.
//! The same holds for a remote namespace, except that its use by a file system cannot be seen from here.

use std::fs::{File, Metadata, OpenOptions};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::Identity;
use super::options::TierSpec;
use dlfs_base::error::{Error, ErrorKind, Result};
use dlfs_format::format::superblock::{COPY_OFFSETS, SUPERBLOCK_BYTES};
use dlfs_format::format::superblock_set::SuperblockCopies;
use dlfs_io::qpair::Device;
use dlfs_io::qpair::blocking::Blocking;
use dlfs_order::tier::Index;

/// Checks whether a tier may use `path`: a folder (for the file `name` in it), a file, or a block device. Returns the
/// path of the file or block device, without symbolic links; a file in a folder need not exist yet. For a block device
/// also returns an exclusively opened file, which prevents mounting and other exclusive use.
///
/// # Errors
/// `NotFound`: the path is missing. `InvalidArgument`: it is the data set itself, lies within it,
/// or is not a folder, file or block device. `Busy`: the block device is mounted or in use.
/// `Refused`: it contains other data, and `overwrite` is not set.
pub(super) fn take_over(
    path: &Path,
    name: &str,
    overwrite: bool,
    origins: &[Arc<dyn Device>],
) -> Result<(PathBuf, Option<File>)> {
    let io = |error: std::io::Error| {
        Error::from(error).path(path).hint("make the folder of a tier before it is used")
    };
    let named = path;
    let mut path = std::fs::canonicalize(named).map_err(io)?;
    if path.is_dir() {
        path = path.join(name);
        match std::fs::canonicalize(&path) {
            Ok(resolved) => path = resolved,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                refuse_own_data(&path, None, origins)?;
                // A dangling symbolic link is not an empty file: opening it would create the link's target.
                if path.is_symlink() {
                    return Err(occupied(named, &path, "a symbolic link that leads nowhere"));
                }
                return Ok((path, None));
            }
            Err(error) => return Err(io(error)),
        }
    }
    let metadata = std::fs::metadata(&path).map_err(io)?;
    refuse_own_data(&path, Some(&metadata), origins)?;
    let exclusive = match metadata.file_type() {
        kind if kind.is_file() => None,
        kind if kind.is_block_device() => Some(open_exclusively(&path)?),
        _ => {
            let text = "a tier is a folder, a file or a block device, and this is none of them";
            return Err(Error::new(ErrorKind::InvalidArgument, text).path(path));
        }
    };
    if !overwrite && let Some(found) = content(&path, &metadata).map_err(io)? {
        return Err(occupied(named, &path, found));
    }
    Ok((path, exclusive))
}

fn occupied(named: &Path, path: &Path, found: &str) -> Error {
    let text = format!("a tier would destroy what lies here: {found}");
    let hint = format!("use another path, or say file:{}:SIZE:overwrite", named.display());
    Error::new(ErrorKind::Refused, text).path(path).hint(hint)
}

/// Refuses a path that is the data set itself or lies within it, through any link: a tier must not overwrite its own
/// origin.
fn refuse_own_data(
    path: &Path,
    found: Option<&Metadata>,
    origins: &[Arc<dyn Device>],
) -> Result<()> {
    for origin in origins {
        let Some(data) = origin.capabilities().local_path else { continue };
        let Ok(of_data) = std::fs::metadata(&data) else { continue };
        let is_data = found.is_some_and(|found| is_same(found, &of_data));
        let is_within = of_data.is_dir()
            && std::fs::canonicalize(&data).is_ok_and(|data| path.starts_with(data));
        if is_data || is_within {
            let verb = if is_within { "lies within" } else { "is" };
            let text = format!("the tier {verb} the data set that it caches");
            let hint = "a tier needs a folder, file or device of its own";
            return Err(Error::new(ErrorKind::InvalidArgument, text).path(path).hint(hint));
        }
    }
    Ok(())
}

/// Returns whether both are the same file, or device nodes of the same device.
fn is_same(a: &Metadata, b: &Metadata) -> bool {
    let devices = a.file_type().is_block_device() && b.file_type().is_block_device();
    if devices { a.rdev() == b.rdev() } else { (a.dev(), a.ino()) == (b.dev(), b.ino()) }
}

/// Opens a block device exclusively. The kernel refuses this if the device is mounted or part of a volume,
/// and prevents both while it is open (`open(2)`, O_EXCL).
fn open_exclusively(path: &Path) -> Result<File> {
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(path);
    opened.map_err(|error| match error.raw_os_error() {
        Some(libc::EBUSY) => {
            let text = "the block device is mounted, or part of a volume";
            Error::new(ErrorKind::Busy, text).path(path).hint("use a device that nobody else uses")
        }
        _ => Error::from(error).path(path),
    })
}

/// Describes data at `path` that somebody could need; `None`: there are no data, or an earlier tier.
fn content(path: &Path, metadata: &Metadata) -> std::io::Result<Option<&'static str>> {
    let mut file = File::open(path)?;
    let len = std::io::Seek::seek(&mut file, std::io::SeekFrom::End(0))?;
    let mut head = vec![0; len.min(LOOK_BYTES) as usize];
    file.read_exact_at(&mut head, 0)?;
    if Index::is_tier(&head) {
        return Ok(None);
    }
    if !superblocks(&head).is_blank() {
        return Ok(Some("a dlfs image"));
    }
    if metadata.is_file() {
        // A tier that was created but not written yet has a length, but no data.
        let has_data = match rustix::fs::seek(&file, SeekFrom::Data(0)) {
            Ok(_) => true,
            Err(Errno::NXIO) => false,
            Err(_) => len > 0,
        };
        return Ok(has_data.then_some("a file with content"));
    }
    // File systems, partition tables and volumes have their labels at either end.
    let mut tail = vec![0; head.len()];
    file.read_exact_at(&mut tail, len - head.len() as u64)?;
    let is_blank = head.iter().chain(&tail).all(|&byte| byte == 0);
    Ok((!is_blank).then_some("a block device with content"))
}

/// Checks whether the tier `named` of the image of `identity` may use the remote namespace that `io` reads.
///
/// # Errors
/// `InvalidArgument`: the namespace holds the data set itself. `Refused`: it contains other data, and
/// `named.overwrite` is not set. Errors of reading.
pub(super) fn take_over_namespace(
    io: &mut Blocking,
    named: &TierSpec,
    identity: Identity,
) -> Result<()> {
    let len = io.namespace().len_bytes();
    let look = len.min(LOOK_BYTES);
    let head = io.read(0, look as usize)?;
    if Index::is_tier(&head) {
        return Ok(());
    }
    let copies = superblocks(&head);
    let is_data = copies.copies.iter().flatten().any(|found| found.layout.uuid == identity.uuid);
    if is_data {
        let text = format!("the tier {named} is the data set that it caches");
        let hint = "a tier needs a namespace of its own";
        return Err(Error::new(ErrorKind::InvalidArgument, text).hint(hint));
    }
    let tail = io.read(len - look, look as usize)?;
    let is_blank = head.iter().chain(&tail[..]).all(|&byte| byte == 0);
    if is_blank || named.overwrite {
        return Ok(());
    }
    let found = if copies.is_blank() { "a namespace with content" } else { "a dlfs image" };
    let text = format!("the tier {named} would destroy what lies there: {found}");
    let hint = "use another namespace, or put :overwrite behind the size";
    Err(Error::new(ErrorKind::Refused, text).hint(hint))
}

/// The copies of the superblock in the first bytes of a namespace.
fn superblocks(head: &[u8]) -> SuperblockCopies {
    let copy = |offset: u64| head.get(offset as usize..offset as usize + SUPERBLOCK_BYTES);
    let [a, b] = COPY_OFFSETS.map(|offset| copy(offset).unwrap_or_default());
    SuperblockCopies::parse(a, b)
}

/// Bytes that must be zero at either end of a block device or namespace.
const LOOK_BYTES: u64 = 1 << 20;
