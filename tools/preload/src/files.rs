//! Descriptors of the program: a sealed memfd with the content of a file. The name of the memfd identifies the
//! node. For files that are opened in place instead, see `long.rs`.
//!
//! A cache has the nodes behind the newest descriptors: asking the kernel for the name of a memfd takes longer than
//! the rest of an `fstat`, and programs often ask for a file's attributes more than once. An entry need not be removed
//! when its descriptor is closed: a file that reuses the number has another inode or a later change time, so the entry
//! does not match it.

use std::ffi::{CStr, CString, c_int, c_long};
use std::io::Write as _;
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use dlfs::posix::{File, Node, PathError};

use crate::mounts::{self, Mount, Opened, errno_of};
use crate::own::{self, called};
use crate::paths::Place;

impl Place {
    /// The node at this place. The caller is [inside](own::inside), as for all methods in this file.
    pub(crate) fn node(&self) -> Result<(&'static Opened, Node), c_int> {
        let opened = self.mount.opened()?;
        let path = self.path.strip_prefix(b"/").unwrap_or(&self.path);
        match opened.files.tree().resolve(path) {
            Ok(node) => Ok((opened, node)),
            Err(PathError::NotFound) => Err(libc::ENOENT),
            Err(PathError::NotFolder) => Err(libc::ENOTDIR),
            Err(PathError::NameTooLong) => Err(libc::ENAMETOOLONG),
            Err(PathError::Names(_)) => Err(libc::EIO),
        }
    }

    /// As `open(2)` on a file system mounted read-only. `whole`: the descriptor is for a stream. The C
    /// library's own reads cannot be intercepted, so a long file behind tiers is then copied into memory, if
    /// `;copy=` allows its length.
    pub(crate) fn open(&self, flags: c_int, whole: bool) -> Result<c_int, c_int> {
        let writes = flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_TRUNC != 0;
        let is_path = flags & libc::O_PATH != 0;
        if flags & libc::O_TMPFILE == libc::O_TMPFILE {
            return Err(libc::EROFS);
        }
        let (opened, node) = match self.node() {
            Err(libc::ENOENT) if flags & libc::O_CREAT != 0 && !is_path => return Err(libc::EROFS),
            result => result?,
        };
        if flags & libc::O_CREAT != 0 && flags & libc::O_EXCL != 0 && !is_path {
            return Err(libc::EEXIST);
        }
        match node {
            Node::Folder(_) if !is_path && (writes || flags & libc::O_CREAT != 0) => {
                Err(libc::EISDIR)
            }
            Node::Folder(_) => self.mount.folder_descriptor(node, flags),
            Node::File(_) if flags & libc::O_DIRECTORY != 0 => Err(libc::ENOTDIR),
            Node::File(_) if writes && !is_path => Err(libc::EROFS),
            Node::File(file) => self.mount.file_descriptor(opened, file, flags, whole),
        }
    }
}

impl Mount {
    /// A memfd that stands for a folder, opened with `O_PATH` so that reads from it fail.
    pub(crate) fn folder_descriptor(&self, node: Node, flags: c_int) -> Result<c_int, c_int> {
        let opened = self.opened()?;
        let memory = Memory::new(&self.name_of(opened, node), libc::O_CLOEXEC)?;
        open_again(memory.0, libc::O_PATH | (flags & libc::O_CLOEXEC))
    }

    fn file_descriptor(
        &'static self,
        opened: &'static Opened,
        file: File,
        flags: c_int,
        whole: bool,
    ) -> Result<c_int, c_int> {
        if let Some(fd) = self.read_ahead(opened, file, flags) {
            return Ok(fd);
        }
        opened.files.opened(file, None);
        let node = Node::File(file);
        let len = opened.files.tree().attributes(node, None).len_bytes;
        let is_long = len > IN_MEMORY_BYTES;
        if is_long && let Some(fd) = self.open_copy(opened, file, flags) {
            return Ok(fd);
        }
        if (is_long || opened.is_bare())
            && !self.is_copied(opened, file, len, whole)
            && let Some(fd) = self.elsewhere(opened, file, flags)?
        {
            self.remember(opened, fd, file, flags);
            return Ok(fd);
        }
        let most = self.setting.copy_bytes;
        if len > most {
            own::say(&format!(
                "{}: sample {} has {len} bytes, more than the {most} that are copied into memory; \
                 raise ;copy=, or name a folder where FUSE shows the data set with ;fuse=",
                self.setting.prefix.escape_ascii(),
                file.id.0
            ));
            return Err(libc::EFBIG);
        }
        // Made before the file is read: if the program has no descriptors left, the read would be wasted.
        let memory = Memory::new(&self.name_of(opened, node), flags)?;
        self.fill(&memory, opened, file)?;
        if let Some(stat) = stat_of(memory.0) {
            note_node(memory.0, &stat, self, node);
        }
        Ok(memory.into_fd())
    }

    /// Returns whether a long file of a plain folder with tiers is copied into memory rather than opened in
    /// place: if the tiers have all of it, or the C library will read it, and `;copy=` allows its length.
    fn is_copied(&self, opened: &Opened, file: File, len: u64, whole: bool) -> bool {
        let is_there = || opened.files.kept_bytes(file) == len;
        opened.has_tiers() && len <= self.setting.copy_bytes && (whole || is_there())
    }

    fn fill(&self, memory: &Memory, opened: &Opened, file: File) -> Result<(), c_int> {
        let copied = copy(memory, opened, file);
        let len = copied.map_err(|error| {
            if SAYS.swap(false, Ordering::Relaxed) {
                own::say(&format!("{}: {}", self.setting.prefix.escape_ascii(), error.report()));
            }
            errno_of(&error)
        })??;
        opened.files.counters().read(len);
        memory.seal()
    }

    /// A descriptor of the same file in another place: in the plain folder that is the data set, or otherwise in
    /// the FUSE mount. `None`: there is neither, or the file in the folder has changed.
    fn elsewhere(&self, opened: &Opened, file: File, flags: c_int) -> Result<Option<c_int>, c_int> {
        let Some(place) = opened.folder.as_ref().or(self.setting.fuse.as_ref()) else {
            return Ok(None);
        };
        let path = opened.files.tree().path(Node::File(file)).map_err(|_| libc::EIO)?;
        let path = [place.as_os_str().as_bytes(), b"/", &path].concat();
        let found = Memory::open(&CString::new(path).map_err(|_| libc::EIO)?, flags)?;
        if opened.folder.is_some() {
            opened.origin.opened();
            let there = file_of(found.0);
            let listed = opened.files.listed(file);
            if !listed.is_some_and(|(folder, index)| folder.is_listed(index, &there)) {
                return Ok(None);
            }
        }
        Ok(Some(found.into_fd()))
    }

    /// The name of the memfd that stands for `node`.
    pub(crate) fn name_of(&self, opened: &Opened, node: Node) -> CString {
        let inode = opened.files.tree().inode(node);
        let name = format!("{NAME}{:08x}:{:x}:{inode:x}", mounts::settings_hash(), self.index());
        CString::new(name).unwrap_or_default() // digits and colons
    }
}

/// Reads a file into `memory` and returns its length; the inner error is that of a write. If the sample is
/// verified in pieces, reads it in steps that stay in the processor's cache.
fn copy(memory: &Memory, opened: &Opened, file: File) -> dlfs::Result<Result<u64, c_int>> {
    // A plain folder has no checksums of pieces.
    let is_folder = opened.files.dataset().image().folder().is_some();
    let reads = if is_folder { None } else { opened.files.open_in_pieces(file, &mut ())? };
    let Some(reads) = reads else {
        let bytes = opened.files.read(file, &mut ())?;
        return Ok(write_at(memory.0, &bytes, 0).map(|()| bytes.len() as u64));
    };
    let mut at = 0;
    loop {
        let written = reads.with_bytes_at(at, &mut (), |bytes| {
            write_at(memory.0, bytes, at).map(|()| bytes.len() as u64)
        })?;
        match written {
            Ok(0) => return Ok(Ok(at)),
            Ok(len) => at += len,
            Err(errno) => return Ok(Err(errno)),
        }
    }
}

/// The mount and the node behind the descriptor, if this library made it, in this program or in another one
/// with the same settings.
pub(crate) fn identity(fd: c_int) -> Option<(&'static Mount, Node)> {
    let mounts = mounts::all();
    if mounts.is_empty() || fd < 0 || own::is_inside() {
        return None;
    }
    let before = own::errno();
    let found = crate::long::identity(fd).or_else(|| {
        let stat = stat_of(fd)?;
        // A memfd is a file without links; this check rules out nearly all other descriptors.
        if stat.st_nlink != 0 || stat.st_mode & libc::S_IFMT != libc::S_IFREG {
            return None;
        }
        if let Some(found) = find_node(fd, &stat) {
            return Some(found);
        }
        let (hash, mount, inode) = name_of_memory(fd)?;
        let mount = mounts.get(mount).filter(|_| hash == mounts::settings_hash())?;
        let node = own::inside(|| mount.opened()?.files.tree().node(inode).ok_or(libc::ENOENT));
        let node = node.ok()?;
        note_node(fd, &stat, mount, node);
        Some((mount, node))
    });
    own::set_errno(before);
    found
}

/// The hash of settings, the mount and the inode number from the name of a memfd.
fn name_of_memory(fd: c_int) -> Option<(u32, usize, u64)> {
    let mut name = [0; 96];
    let len = name_of_descriptor(fd, &mut name)?;
    let text = std::str::from_utf8(&name[..len]).ok()?;
    let text = text.strip_prefix("/memfd:")?.strip_prefix(NAME)?.strip_suffix(" (deleted)")?;
    let mut parts = text.split(':');
    let hash = u32::from_str_radix(parts.next()?, 16).ok()?;
    let mount = usize::from_str_radix(parts.next()?, 16).ok()?;
    Some((hash, mount, u64::from_str_radix(parts.next()?, 16).ok()?))
}

/// Reads the kernel's path of a descriptor into `name`; returns the path's length.
pub(crate) fn name_of_descriptor(fd: c_int, name: &mut [u8]) -> Option<usize> {
    let path = path_of(fd);
    // SAFETY: the path ends with NUL, and the buffer has its length.
    let len = called(unsafe {
        libc::syscall(libc::SYS_readlink, path.as_ptr(), name.as_mut_ptr(), name.len())
    });
    len.ok().map(|len| len as usize).filter(|len| *len > 0)
}

/// `/proc/self/fd/N`, terminated by NUL. Allocates nothing.
pub(crate) fn path_of(fd: c_int) -> [u8; 26] {
    let mut path = [0; 26];
    let _ = write!(&mut path[..], "/proc/self/fd/{fd}"); // 14 bytes, and at most 11 more
    path
}

/// Another descriptor of the file behind `fd`, with its own position.
pub(crate) fn open_again(fd: c_int, flags: c_int) -> Result<c_int, c_int> {
    let path = path_of(fd);
    let path = CStr::from_bytes_until_nul(&path).map_err(|_| libc::EIO)?;
    own::open(path, flags)
}

/// A descriptor that is not yet given to the program, mostly of a memfd. Dropping it closes it.
pub(crate) struct Memory(pub(crate) c_int);

impl Memory {
    /// An empty memfd.
    pub(crate) fn new(name: &CStr, flags: c_int) -> Result<Memory, c_int> {
        let close_on_exec = if flags & libc::O_CLOEXEC != 0 { libc::MFD_CLOEXEC } else { 0 };
        let make = |flags: u32| {
            let flags = flags | libc::MFD_ALLOW_SEALING | close_on_exec;
            // SAFETY: the name ends with NUL.
            called(unsafe { libc::syscall(libc::SYS_memfd_create, name.as_ptr(), flags) })
        };
        let no_exec = if NO_EXEC.load(Ordering::Relaxed) { libc::MFD_NOEXEC_SEAL } else { 0 };
        let made = match make(no_exec) {
            // A kernel before 6.3 does not know the flag.
            Err(libc::EINVAL) if NO_EXEC.swap(false, Ordering::Relaxed) => make(0),
            made => made,
        };
        made.map(|fd| Memory(fd as c_int)).inspect_err(|errno| {
            if matches!(*errno, libc::EPERM | libc::ENOSYS) && SAYS.swap(false, Ordering::Relaxed) {
                own::say("memfd_create is refused here (seccomp?), and files are such memory");
            }
        })
    }

    /// Opens an existing file for reading.
    pub(crate) fn open(path: &CStr, flags: c_int) -> Result<Memory, c_int> {
        own::open(path, flags & !(libc::O_CREAT | libc::O_EXCL)).map(Memory)
    }

    /// Writes all of the file's content, and seals it.
    pub(crate) fn fill(&self, bytes: &[u8]) -> Result<(), c_int> {
        write_at(self.0, bytes, 0)?;
        self.seal()
    }

    /// Seals the file against any change.
    fn seal(&self) -> Result<(), c_int> {
        // Without F_SEAL_WRITE: with it, kernels before 6.7 refuse shared mappings, even read-only ones.
        let seals =
            libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_GROW | libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL;
        // SAFETY: sealing touches no memory.
        called(unsafe { libc::syscall(libc::SYS_fcntl, self.0, libc::F_ADD_SEALS, seals) })?;
        Ok(())
    }

    /// Gives the descriptor to the caller.
    pub(crate) fn into_fd(self) -> c_int {
        let fd = self.0;
        std::mem::forget(self);
        fd
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        close(self.0);
    }
}

/// A duplicate of a descriptor, above the low numbers that programs use. The program could close it and reuse the
/// number, so the file's identity is stored too.
pub(crate) struct Kept {
    pub(crate) fd: c_int,
    pub(crate) identity: (u64, u64),
}

impl Kept {
    /// Duplicates `fd` to a number of `least` or more, or from half of the limit.
    pub(crate) fn new(fd: c_int, least: usize) -> Option<Kept> {
        let least = (own::most_descriptors() / 2).min(least) as c_long;
        // SAFETY: the command touches no memory.
        let fd = unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, least) };
        let fd = called(fd).ok()? as c_int;
        Some(Kept { fd, identity: stat_of(fd).as_ref().map_or((0, 0), identity_of) })
    }

    /// Its number, while it is still the same file.
    pub(crate) fn descriptor(&self) -> Option<c_int> {
        let stat = stat_of(self.fd)?;
        (identity_of(&stat) == self.identity).then_some(self.fd)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.descriptor().into_iter().for_each(close);
    }
}

/// Device and inode number.
pub(crate) fn identity_of(stat: &libc::stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

/// The kernel's `stat` of a descriptor.
pub(crate) fn stat_of(fd: c_int) -> Option<libc::stat> {
    // SAFETY: a `stat` of zeroes is valid, and the kernel writes one.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        called(libc::syscall(libc::SYS_fstat, fd, &raw mut stat)).ok()?;
        Some(stat)
    }
}

/// The file behind an open descriptor; the descriptor stays open.
pub(crate) fn file_of(fd: c_int) -> ManuallyDrop<std::fs::File> {
    // SAFETY: the callers keep the descriptor open, and `ManuallyDrop` never closes it.
    ManuallyDrop::new(unsafe { std::fs::File::from_raw_fd(fd) })
}

/// Writes all of `bytes` at `at`, by a system call that no library can interpose. The descriptor's position
/// stays at 0.
fn write_at(fd: c_int, bytes: &[u8], at: u64) -> Result<(), c_int> {
    let mut written = 0;
    while written < bytes.len() {
        let rest = &bytes[written..];
        let place = at as c_long + written as c_long;
        // SAFETY: `rest` has its length.
        let result = called(unsafe {
            libc::syscall(libc::SYS_pwrite64, fd, rest.as_ptr(), rest.len(), place)
        });
        match result {
            Ok(0) => return Err(libc::EIO),
            Ok(len) => written += len as usize,
            Err(libc::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

pub(crate) fn close(fd: c_int) {
    // SAFETY: the call touches no memory. The callers pass a descriptor that only this library uses, or one that
    // the program has asked to close.
    unsafe { libc::syscall(libc::SYS_close, fd) };
}

/// Prefix of the names of memfds.
const NAME: &str = "dlfs:";
/// Files up to this length are copied into memory, unless they are of a plain folder without tiers.
const IN_MEMORY_BYTES: u64 = 16 << 20;
/// Cleared when the kernel turns out not to know MFD_NOEXEC_SEAL.
static NO_EXEC: AtomicBool = AtomicBool::new(true);
/// Cleared after the first report of a failed read or a refused memfd; later failures are not reported.
static SAYS: AtomicBool = AtomicBool::new(true);

#[derive(Clone, Copy)]
struct Known {
    fd: c_int,
    inode: Inode,
    mount: &'static Mount,
    node: Node,
}

/// Device, inode number, and time of the last change.
type Inode = (libc::dev_t, libc::ino_t, i64, i64);

/// Slots by descriptor. Locks are only tried: a signal or a fork may have interrupted their holder.
static KNOWN: [Mutex<Option<Known>>; SLOTS] = [const { Mutex::new(None) }; SLOTS];

/// Notes the node behind `fd`; `stat` is the kernel's for `fd`.
pub(crate) fn note_node(fd: c_int, stat: &libc::stat, mount: &'static Mount, node: Node) {
    if let Some(Ok(mut slot)) = slot_of(fd).map(Mutex::try_lock) {
        *slot = Some(Known { fd, inode: inode_of(stat), mount, node });
    }
}

/// The mount and the node behind `fd`, if they were noted. `stat` is the kernel's for `fd`.
fn find_node(fd: c_int, stat: &libc::stat) -> Option<(&'static Mount, Node)> {
    let slot = slot_of(fd)?.try_lock().ok()?;
    let known = slot.filter(|known| known.fd == fd && known.inode == inode_of(stat))?;
    Some((known.mount, known.node))
}

fn slot_of(fd: c_int) -> Option<&'static Mutex<Option<Known>>> {
    usize::try_from(fd).ok().map(|fd| &KNOWN[fd % SLOTS])
}

fn inode_of(stat: &libc::stat) -> Inode {
    (stat.st_dev, stat.st_ino, stat.st_ctime, stat.st_ctime_nsec)
}

const SLOTS: usize = 256;
