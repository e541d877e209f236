//! Attributes in the C library's structs.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use dlfs::posix::{Attributes, Node};

use crate::mounts::{Mount, Opened, errno_of};

/// The attributes of a node, and what the file tree does not know: device and owner.
pub(crate) struct Full {
    attributes: Attributes,
    device: libc::dev_t,
    owner: libc::uid_t,
    group: libc::gid_t,
}

/// A device number that no real device has: major numbers end at 4,095.
fn device(mount: &Mount) -> libc::dev_t {
    libc::makedev(MAJOR, mount.index() as u32 + 1)
}

impl Full {
    /// The attributes of `node`. The caller is [inside](crate::own::inside).
    pub(crate) fn of(mount: &Mount, opened: &Opened, node: Node) -> Result<Full, c_int> {
        mount.counters.stats.fetch_add(1, Ordering::Relaxed);
        let attributes =
            opened.files.attributes(node, &mut ()).map_err(|error| errno_of(&error))?;
        // SAFETY: the two calls touch no memory.
        let (owner, group) = unsafe { (libc::getuid(), libc::getgid()) };
        Ok(Full { attributes, device: device(mount), owner, group })
    }

    pub(crate) fn stat(&self) -> libc::stat {
        // SAFETY: a `stat` of zeroes is valid.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        stat.st_dev = self.device;
        stat.st_ino = self.attributes.inode;
        stat.st_mode = self.attributes.mode;
        stat.st_nlink = 1; // also of folders: subfolders are not counted
        stat.st_uid = self.owner;
        stat.st_gid = self.group;
        stat.st_size = self.attributes.len_bytes as i64;
        stat.st_blksize = BLOCK_BYTES as _;
        stat.st_blocks = self.attributes.blocks() as i64;
        let (seconds, nanoseconds) = self.modified();
        (stat.st_atime, stat.st_mtime, stat.st_ctime) = (seconds, seconds, seconds);
        (stat.st_atime_nsec, stat.st_mtime_nsec, stat.st_ctime_nsec) =
            (nanoseconds, nanoseconds, nanoseconds);
        stat
    }

    pub(crate) fn statx(&self) -> libc::statx {
        // SAFETY: a `statx` of zeroes is valid.
        let mut stat: libc::statx = unsafe { std::mem::zeroed() };
        stat.stx_mask = libc::STATX_BASIC_STATS;
        stat.stx_blksize = BLOCK_BYTES;
        stat.stx_nlink = 1;
        stat.stx_uid = self.owner;
        stat.stx_gid = self.group;
        stat.stx_mode = self.attributes.mode as u16;
        stat.stx_ino = self.attributes.inode;
        stat.stx_size = self.attributes.len_bytes;
        stat.stx_blocks = self.attributes.blocks();
        let (tv_sec, nanoseconds) = self.modified();
        for time in [&mut stat.stx_atime, &mut stat.stx_mtime, &mut stat.stx_ctime] {
            time.tv_sec = tv_sec;
            time.tv_nsec = nanoseconds as u32;
        }
        stat.stx_dev_major = libc::major(self.device);
        stat.stx_dev_minor = libc::minor(self.device);
        stat
    }

    fn modified(&self) -> (i64, i64) {
        let time = self.attributes.modified_ns;
        ((time / 1_000_000_000) as i64, (time % 1_000_000_000) as i64)
    }
}

/// As `statfs(2)` for the mount.
pub(crate) fn statfs(mount: &Mount, opened: &Opened, _: Node) -> Result<libc::statfs, c_int> {
    // SAFETY: a `statfs` of zeroes is valid.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    let vfs = vfs(mount, opened);
    stat.f_type = TYPE;
    stat.f_bsize = vfs.f_bsize as _;
    stat.f_frsize = vfs.f_frsize as _;
    stat.f_blocks = vfs.f_blocks;
    stat.f_files = vfs.f_files;
    stat.f_namelen = vfs.f_namemax as _;
    Ok(stat)
}

/// As `statvfs(3)` for the mount.
pub(crate) fn statvfs(mount: &Mount, opened: &Opened, _: Node) -> Result<libc::statvfs, c_int> {
    Ok(vfs(mount, opened))
}

fn vfs(mount: &Mount, opened: &Opened) -> libc::statvfs {
    // SAFETY: a `statvfs` of zeroes is valid.
    let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
    stat.f_bsize = BLOCK_BYTES.into();
    stat.f_frsize = 4096;
    stat.f_blocks = opened.len_bytes.div_ceil(4096);
    stat.f_files = opened.files.tree().directory().num_live();
    stat.f_fsid = device(mount);
    stat.f_flag = libc::ST_RDONLY | libc::ST_NOSUID;
    stat.f_namemax = dlfs::posix::MAX_COMPONENT_BYTES as u64;
    stat
}

/// The block size in attributes: the size that programs are told to read in.
const BLOCK_BYTES: u32 = 128 << 10;
/// The major number of the mounts' devices.
const MAJOR: u32 = 0xd1f5;
/// The type of the file system: "dlfs" in ASCII.
const TYPE: libc::__fsword_t = 0x646c_6673;
