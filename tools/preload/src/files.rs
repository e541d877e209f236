//! Descriptors: a file is a sealed memfd with its bytes; what a descriptor stands for is its memfd's name.

use std::ffi::{CStr, CString, c_int, c_long};
use std::io::Write as _;
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering};

use dlfs::posix::{File, Node, PathError};

use crate::known;
use crate::mounts::{self, Mount, Opened, errno_of};
use crate::own::{self, called};
use crate::paths::Place;

impl Place {
    /// The node that lies here. The caller is [inside](own::inside), as of all methods here.
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

    /// As `open(2)` of a file system that is mounted read-only. `whole`: for a stream; the C library's own reads are
    /// not seen, so a long file is copied whole.
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
    /// A memfd that stands for a folder. Through `O_PATH`, so that reading from it fails.
    pub(crate) fn folder_descriptor(&self, node: Node, flags: c_int) -> Result<c_int, c_int> {
        let opened = self.opened()?;
        let memory = Memory::new(&self.name_of(opened, node), libc::O_CLOEXEC)?;
        open_again(memory.fd(), libc::O_PATH | (flags & libc::O_CLOEXEC))
    }

    fn file_descriptor(
        &'static self,
        opened: &'static Opened,
        file: File,
        flags: c_int,
        whole: bool,
    ) -> Result<c_int, c_int> {
        let so_far = self.counters.of_files();
        self.counters.opens.fetch_add(1, Ordering::Relaxed);
        if let Some((fd, epoch)) = self.read_ahead(opened, file, flags) {
            opened.files.opened(file, Some(epoch), so_far);
            return Ok(fd);
        }
        opened.files.opened(file, None, so_far);
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
                self.prefix().escape_ascii(),
                file.id.0
            ));
            return Err(libc::EFBIG);
        }
        // First, so that a program without descriptors reads nothing.
        let memory = Memory::new(&self.name_of(opened, node), flags)?;
        self.fill(&memory, opened, file)?;
        if let Some(stat) = stat_of(memory.fd()) {
            known::note(memory.fd(), &stat, self, node);
        }
        Ok(memory.into_fd())
    }

    /// Returns whether a long file of a plain folder with tiers is copied into memory rather than opened where it
    /// lies: if a tier has all of it, or the C library will read it.
    fn is_copied(&self, opened: &Opened, file: File, len: u64, whole: bool) -> bool {
        let is_there = || opened.files.kept_bytes(file) == len;
        opened.has_tiers() && len <= self.setting.copy_bytes && (whole || is_there())
    }

    fn fill(&self, memory: &Memory, opened: &Opened, file: File) -> Result<(), c_int> {
        let copied = copy(memory, opened, file);
        let len = copied.map_err(|error| {
            if SAYS.swap(false, Ordering::Relaxed) {
                own::say(&format!("{}: {}", self.prefix().escape_ascii(), error.report()));
            }
            errno_of(&error)
        })??;
        self.counters.count_read(len);
        memory.seal()
    }

    /// A descriptor of the same file in another place: in the plain folder that the data set is, unless another file
    /// is there by now, or where FUSE shows it.
    fn elsewhere(&self, opened: &Opened, file: File, flags: c_int) -> Result<Option<c_int>, c_int> {
        let Some(place) = opened.folder.as_ref().or(self.setting.fuse.as_ref()) else {
            return Ok(None);
        };
        let path = opened.files.tree().path(Node::File(file)).map_err(|_| libc::EIO)?;
        let path = [place.as_os_str().as_bytes(), b"/", &path].concat();
        let found = Memory::open(&CString::new(path).map_err(|_| libc::EIO)?, flags)?;
        if opened.folder.is_some() {
            opened.origin.opens.fetch_add(1, Ordering::Relaxed);
            let there = file_of(found.fd());
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

/// Reads a file into `memory`, in pieces that stay in a processor's cache if it can be verified so; its length.
fn copy(memory: &Memory, opened: &Opened, file: File) -> dlfs::Result<Result<u64, c_int>> {
    // A folder has no checksums of pieces.
    let is_folder = opened.files.dataset().image().folder().is_some();
    let reads = if is_folder { None } else { opened.files.open_in_pieces(file, &mut ())? };
    let Some(reads) = reads else {
        let bytes = opened.files.read(file, &mut ())?;
        return Ok(write_at(memory.fd(), &bytes, 0).map(|()| bytes.len() as u64));
    };
    let mut at = 0;
    loop {
        let written = reads.with_bytes_at(at, &mut (), |bytes| {
            write_at(memory.fd(), bytes, at).map(|()| bytes.len() as u64)
        })?;
        match written {
            Ok(0) => return Ok(Ok(at)),
            Ok(len) => at += len,
            Err(errno) => return Ok(Err(errno)),
        }
    }
}

/// The mount and the node that the descriptor stands for, if it is one of ours, of this program or of one that has
/// started it.
pub(crate) fn identity(fd: c_int) -> Option<(&'static Mount, Node)> {
    let mounts = mounts::all();
    if mounts.is_empty() || fd < 0 || own::is_inside() {
        return None;
    }
    let before = own::errno();
    let found = crate::long::identity(fd).or_else(|| {
        let stat = stat_of(fd)?;
        // A memfd is a file without a name; nearly all other descriptors are told from it here.
        if stat.st_nlink != 0 || stat.st_mode & libc::S_IFMT != libc::S_IFREG {
            return None;
        }
        if let Some(found) = known::find(fd, &stat) {
            return Some(found);
        }
        let (hash, mount, inode) = name_of_memory(fd)?;
        let mount = mounts.get(mount).filter(|_| hash == mounts::settings_hash())?;
        let node = own::inside(|| mount.opened()?.files.tree().node(inode).ok_or(libc::ENOENT));
        let node = node.ok()?;
        known::note(fd, &stat, mount, node);
        Some((mount, node))
    });
    own::set_errno(before);
    found
}

/// The settings' hash, the mount and the inode number in the name of a memfd.
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

/// The path that the kernel knows for a descriptor; its length.
pub(crate) fn name_of_descriptor(fd: c_int, name: &mut [u8]) -> Option<usize> {
    let path = path_of(fd);
    // SAFETY: the path ends with NUL, and the buffer has its length.
    let len = called(unsafe {
        libc::syscall(libc::SYS_readlink, path.as_ptr(), name.as_mut_ptr(), name.len())
    });
    len.ok().map(|len| len as usize).filter(|len| *len > 0)
}

/// `/proc/self/fd/N`, with NUL behind it. Allocates nothing.
pub(crate) fn path_of(fd: c_int) -> [u8; 26] {
    let mut path = [0; 26];
    let _ = write!(&mut path[..], "/proc/self/fd/{fd}"); // 14 bytes and at most 11
    path
}

/// Another descriptor of what `fd` is open on, with a position of its own.
pub(crate) fn open_again(fd: c_int, flags: c_int) -> Result<c_int, c_int> {
    let path = path_of(fd);
    let path = CStr::from_bytes_until_nul(&path).map_err(|_| libc::EIO)?;
    own::open(path, flags)
}

/// A descriptor that nobody has yet, mostly of a memfd.
pub(crate) struct Memory(c_int);

impl Memory {
    /// An empty one.
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

    /// An existing file, for reading.
    pub(crate) fn open(path: &CStr, flags: c_int) -> Result<Memory, c_int> {
        own::open(path, flags & !(libc::O_CREAT | libc::O_EXCL)).map(Memory)
    }

    /// Its descriptor.
    pub(crate) fn fd(&self) -> c_int {
        self.0
    }

    /// Writes all of the file, and seals it.
    pub(crate) fn fill(&self, bytes: &[u8]) -> Result<(), c_int> {
        write_at(self.0, bytes, 0)?;
        self.seal()
    }

    /// Keeps everybody from changing it.
    pub(crate) fn seal(&self) -> Result<(), c_int> {
        // Without F_SEAL_WRITE: kernels before 6.7 then refuse to map the file shared, read-only too.
        let seals =
            libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_GROW | libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL;
        // SAFETY: sealing touches no memory.
        called(unsafe { libc::syscall(libc::SYS_fcntl, self.0, libc::F_ADD_SEALS, seals) })?;
        Ok(())
    }

    /// The descriptor, which is then the caller's.
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

/// The kernel's `stat` of a descriptor.
pub(crate) fn stat_of(fd: c_int) -> Option<libc::stat> {
    // SAFETY: all zeroes are a `stat`, and `stat` is one.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        called(libc::syscall(libc::SYS_fstat, fd, &raw mut stat)).ok()?;
        Some(stat)
    }
}

/// The file that an open descriptor is of; the descriptor stays open.
pub(crate) fn file_of(fd: c_int) -> ManuallyDrop<std::fs::File> {
    // SAFETY: the callers keep it open, and the `File` closes nothing.
    ManuallyDrop::new(unsafe { std::fs::File::from_raw_fd(fd) })
}

/// Writes all of `bytes` at `at`, by a call that no library can interpose. The descriptor's position stays at 0.
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
    // SAFETY: a descriptor that this library has made and given to nobody.
    unsafe { libc::syscall(libc::SYS_close, fd) };
}

/// How the names of memfds begin.
const NAME: &str = "dlfs:";
/// Files up to this length are always copied.
const IN_MEMORY_BYTES: u64 = 16 << 20;
/// Cleared once the kernel does not know MFD_NOEXEC_SEAL.
static NO_EXEC: AtomicBool = AtomicBool::new(true);
/// Set until a failure to read or to make memory was reported: only the first one is.
static SAYS: AtomicBool = AtomicBool::new(true);
