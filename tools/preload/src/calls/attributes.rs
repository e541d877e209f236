//! Attributes of paths and descriptors, in the C library's structs: `stat` and its forms, `statfs`, `access`, and
//! extended attributes.
//!
//! Each call finds its [`Subject`]; without one, the C library's function answers. `stat` and
//! `statx` are filled from a [`NodeStat`].

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::Ordering;

use libc::{AT_EMPTY_PATH, AT_FDCWD, size_t, ssize_t};

use dlfs::posix::{Attributes, Node};

use super::{Stat, StatFs, StatVfs, Statx, Text, returned, text};
use crate::mounts::{Mount, Opened, errno_of};
use crate::paths::{self, MountedPath};
use crate::{files, inside};

/// The subject of a call: a path below a mount, or the node behind a descriptor.
enum Subject {
    Path(MountedPath),
    Node(&'static Mount, Node),
}

impl Subject {
    /// The subject of `path` relative to `folder`; with AT_EMPTY_PATH in `flags` and an empty path, of the
    /// descriptor `folder` itself.
    fn of(folder: c_int, path: Option<&CStr>, flags: c_int) -> Option<Subject> {
        if flags & AT_EMPTY_PATH != 0 && path.is_none_or(CStr::is_empty) {
            Subject::of_descriptor(folder)
        } else {
            paths::mounted(folder, path?).map(Subject::Path)
        }
    }

    /// The subject of a descriptor of this library.
    fn of_descriptor(fd: c_int) -> Option<Subject> {
        files::node_behind(fd).map(|(mount, node)| Subject::Node(mount, node))
    }

    /// The mount, its data set and the node.
    fn node(&self) -> Result<(&'static Mount, &'static Opened, Node), c_int> {
        match self {
            Subject::Path(mounted) => {
                mounted.node().map(|(opened, node)| (mounted.mount, opened, node))
            }
            Subject::Node(mount, node) => Ok((mount, mount.opened()?, *node)),
        }
    }

    /// Answers the call: gets the attributes by `read`, and passes them to `write`, which writes the caller's struct.
    fn answer<T>(
        &self,
        read: impl FnOnce(&Mount, &Opened, Node) -> Result<T, c_int>,
        write: impl FnOnce(T),
    ) -> c_int {
        returned(inside::run(|| {
            let (mount, opened, node) = self.node()?;
            write(read(mount, opened, node)?);
            Ok(0)
        }))
    }

    /// As `access`: every node may be read, none written, and only folders may be entered.
    fn access(&self, mode: c_int) -> c_int {
        returned(inside::run(|| match self.node()?.2 {
            _ if mode & libc::W_OK != 0 => Err(libc::EROFS),
            Node::File(_) if mode & libc::X_OK != 0 => Err(libc::EACCES),
            _ => Ok(0),
        }))
    }

    fn xattr(&self, name: &CStr) -> Result<Vec<u8>, c_int> {
        inside::run(|| {
            let (_, opened, node) = self.node()?;
            let value = opened.files.xattr(node, name.to_bytes()).ok_or(libc::ENODATA)?;
            Ok(value.into_bytes())
        })
    }

    fn xattr_names(&self) -> Result<Vec<u8>, c_int> {
        inside::run(|| {
            let (_, opened, node) = self.node()?;
            Ok(opened.files.xattr_names(node))
        })
    }
}

answers! {
    stat | stat64 | lstat | lstat64(path: Text, out: *mut Stat) -> c_int,
        at(path), found => found.answer(NodeStat::of, |full| out.write(full.stat()));
    __xstat | __xstat64 | __lxstat | __lxstat64(version: c_int, path: Text, out: *mut Stat) -> c_int,
        at(path), found => found.answer(NodeStat::of, |full| out.write(full.stat()));
    fstat | fstat64(fd: c_int, out: *mut Stat) -> c_int,
        Subject::of_descriptor(fd), found => found.answer(NodeStat::of, |full| out.write(full.stat()));
    __fxstat | __fxstat64(version: c_int, fd: c_int, out: *mut Stat) -> c_int,
        Subject::of_descriptor(fd), found => found.answer(NodeStat::of, |full| out.write(full.stat()));
    fstatat | fstatat64(folder: c_int, path: Text, out: *mut Stat, flags: c_int) -> c_int,
        Subject::of(folder, text(path), flags), found => found.answer(NodeStat::of, |full| out.write(full.stat()));
    __fxstatat | __fxstatat64(version: c_int, folder: c_int, path: Text, out: *mut Stat, flags: c_int) -> c_int,
        Subject::of(folder, text(path), flags), found => found.answer(NodeStat::of, |full| out.write(full.stat()));
    statx(folder: c_int, path: Text, flags: c_int, mask: c_uint, out: *mut Statx) -> c_int,
        Subject::of(folder, text(path), flags), found => found.answer(NodeStat::of, |full| out.write(full.statx()));
    faccessat(folder: c_int, path: Text, mode: c_int, flags: c_int) -> c_int,
        Subject::of(folder, text(path), flags), found => found.access(mode);
    access | eaccess | euidaccess(path: Text, mode: c_int) -> c_int,
        at(path), found => found.access(mode);
    statfs | statfs64(path: Text, out: *mut StatFs) -> c_int,
        at(path), found => found.answer(statfs_of, |stat| out.write(stat));
    fstatfs | fstatfs64(fd: c_int, out: *mut StatFs) -> c_int,
        Subject::of_descriptor(fd), found => found.answer(statfs_of, |stat| out.write(stat));
    statvfs | statvfs64(path: Text, out: *mut StatVfs) -> c_int,
        at(path), found => found.answer(statvfs_of, |stat| out.write(stat));
    fstatvfs | fstatvfs64(fd: c_int, out: *mut StatVfs) -> c_int,
        Subject::of_descriptor(fd), found => found.answer(statvfs_of, |stat| out.write(stat));
    getxattr | lgetxattr(path: Text, name: Text, out: *mut c_void, len: size_t) -> ssize_t,
        at(path), found => copy_out(found.xattr(CStr::from_ptr(name)), out, len);
    fgetxattr(fd: c_int, name: Text, out: *mut c_void, len: size_t) -> ssize_t,
        Subject::of_descriptor(fd), found => copy_out(found.xattr(CStr::from_ptr(name)), out, len);
    listxattr | llistxattr(path: Text, out: *mut c_char, len: size_t) -> ssize_t,
        at(path), found => copy_out(found.xattr_names(), out.cast(), len);
    flistxattr(fd: c_int, out: *mut c_char, len: size_t) -> ssize_t,
        Subject::of_descriptor(fd), found => copy_out(found.xattr_names(), out.cast(), len);
}

/// The subject of a path that, if it is relative, starts at the working directory.
///
/// # Safety
/// As [`text`].
unsafe fn at(path: Text) -> Option<Subject> {
    // SAFETY: the caller's promise; the string is used only until this returns.
    Subject::of(AT_FDCWD, unsafe { text(path) }, 0)
}

/// Copies bytes to the caller, and returns their number; with a length of 0, only returns it. As `getxattr(2)`, fails
/// with ERANGE if there are more than `len` bytes; nothing is copied then.
///
/// # Safety
/// `out` has `len` bytes.
unsafe fn copy_out(bytes: Result<Vec<u8>, c_int>, out: *mut c_void, len: size_t) -> ssize_t {
    returned(bytes.and_then(|bytes| {
        if len != 0 {
            let enough = bytes.len() <= len;
            // SAFETY: `bytes` fits into the `len` bytes at `out`, and is memory of its own, so they do not overlap.
            let copy = || unsafe {
                out.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
            };
            enough.then(copy).ok_or(libc::ERANGE)?;
        }
        Ok(bytes.len() as isize)
    }))
}

/// The attributes of a node, and those that the file tree does not know: device and owner.
pub(crate) struct NodeStat {
    attributes: Attributes,
    device: libc::dev_t,
    owner: libc::uid_t,
    group: libc::gid_t,
}

/// The device number of a mount, which no real device has: major numbers end at 4,095.
fn device(mount: &Mount) -> libc::dev_t {
    libc::makedev(MAJOR, mount.index() as u32 + 1)
}

impl NodeStat {
    /// The attributes of `node`. The caller is [inside](crate::inside::run).
    pub(crate) fn of(mount: &Mount, opened: &Opened, node: Node) -> Result<NodeStat, c_int> {
        mount.counters().stats.fetch_add(1, Ordering::Relaxed);
        let attributes =
            opened.files.attributes(node, &mut ()).map_err(|error| errno_of(&error))?;
        // SAFETY: the two calls touch no memory.
        let (owner, group) = unsafe { (libc::getuid(), libc::getgid()) };
        Ok(NodeStat { attributes, device: device(mount), owner, group })
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
fn statfs_of(mount: &Mount, opened: &Opened, node: Node) -> Result<libc::statfs, c_int> {
    // SAFETY: a `statfs` of zeroes is valid.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    let vfs = statvfs_of(mount, opened, node)?;
    stat.f_type = TYPE;
    stat.f_bsize = vfs.f_bsize as _;
    stat.f_frsize = vfs.f_frsize as _;
    stat.f_blocks = vfs.f_blocks;
    stat.f_files = vfs.f_files;
    stat.f_namelen = vfs.f_namemax as _;
    Ok(stat)
}

/// As `statvfs(3)` for the mount.
fn statvfs_of(mount: &Mount, opened: &Opened, _: Node) -> Result<libc::statvfs, c_int> {
    // SAFETY: a `statvfs` of zeroes is valid.
    let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
    stat.f_bsize = BLOCK_BYTES.into();
    stat.f_frsize = 4096;
    stat.f_blocks = opened.len_bytes.div_ceil(4096);
    stat.f_files = opened.files.tree().num_files();
    stat.f_fsid = device(mount);
    stat.f_flag = libc::ST_RDONLY | libc::ST_NOSUID;
    stat.f_namemax = dlfs::posix::MAX_COMPONENT_BYTES as u64;
    Ok(stat)
}

/// The block size in attributes: the size that programs are told to read in.
const BLOCK_BYTES: u32 = 128 << 10;
/// The major number of the mounts' devices.
const MAJOR: u32 = 0xd1f5;
/// The type of the file system: "dlfs" in ASCII.
const TYPE: libc::__fsword_t = 0x646c_6673;
