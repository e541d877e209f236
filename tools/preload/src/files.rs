//! Opens files and folders below a mount, and recognises the descriptors.
//!
//! A file's descriptor is a sealed memfd with the content; the name of the memfd identifies the node. A cache keeps the
//! nodes behind the newest descriptors. Some files are opened in place instead: see `in_place.rs`.

use std::ffi::{CString, c_int};
use std::os::unix::ffi::OsStrExt;
use std::sync::Mutex;

use dlfs::posix::{File, Node, PathError};

use crate::inside;
use crate::memfd::Memory;
use crate::mounts::{self, Mount, Opened, errno_of};
use crate::paths::MountedPath;
use crate::syscalls::{
    errno, file_of, name_of_descriptor, open_again, set_errno, stat_of, write_at,
};

impl MountedPath {
    /// The data set and the node of this path. The caller is [inside](inside::run), as for all methods in this file.
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

    /// A descriptor of a file: of a copy in memory, or of the file in another place.
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
        if (is_long || opened.is_bare_folder())
            && !self.is_copied(opened, file, len, whole)
            && let Some(fd) = self.open_in_place(opened, file, flags)?
        {
            self.remember(opened, fd, file, flags);
            return Ok(fd);
        }
        let most = self.setting.copy_bytes;
        if len > most {
            self.say(&format!(
                "sample {} has {len} bytes, more than the {most} that are copied into memory; \
                 raise ;copy=, or name a folder where FUSE shows the data set with ;fuse=",
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

    /// Returns whether a file of a plain folder with tiers is copied into memory rather than opened in place: if the
    /// tiers have the whole file or the C library will read it (`whole`), and `;copy=` allows its length `len` in
    /// bytes.
    fn is_copied(&self, opened: &Opened, file: File, len: u64, whole: bool) -> bool {
        let is_in_tiers = || opened.files.kept_bytes(file) == len;
        opened.is_tiered_folder() && len <= self.setting.copy_bytes && (whole || is_in_tiers())
    }

    /// Copies a file into `memory`, and seals it.
    fn fill(&self, memory: &Memory, opened: &Opened, file: File) -> Result<(), c_int> {
        let copied = copy(memory, opened, file);
        let len = copied.map_err(|error| {
            let prefix = self.setting.prefix.escape_ascii();
            inside::say_once(|| format!("{prefix}: {}", error.report()));
            errno_of(&error)
        })??;
        opened.files.counters().read(len);
        memory.seal()
    }

    /// A descriptor of the same file in another place: in the plain folder that is the data set, or otherwise in
    /// the FUSE mount. `None`: there is neither, or the file in the folder has changed.
    fn open_in_place(
        &self,
        opened: &Opened,
        file: File,
        flags: c_int,
    ) -> Result<Option<c_int>, c_int> {
        let Some(folder) = opened.folder.as_ref().or(self.setting.fuse.as_ref()) else {
            return Ok(None);
        };
        let path = opened.files.tree().path(Node::File(file)).map_err(|_| libc::EIO)?;
        let path = [folder.as_os_str().as_bytes(), b"/", &path].concat();
        let found = Memory::open(&CString::new(path).map_err(|_| libc::EIO)?, flags)?;
        if opened.folder.is_some() {
            opened.origin().opened();
            let in_folder = file_of(found.0);
            let listed = opened.files.listed(file);
            if !listed.is_some_and(|(folder, index)| folder.is_listed(index, &in_folder)) {
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
pub(crate) fn node_behind(fd: c_int) -> Option<(&'static Mount, Node)> {
    let mounts = mounts::all();
    if mounts.is_empty() || fd < 0 || inside::is_inside() {
        return None;
    }
    let before = errno();
    let found = crate::in_place::node_behind(fd).or_else(|| {
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
        let node = inside::run(|| mount.opened()?.files.tree().node(inode).ok_or(libc::ENOENT));
        let node = node.ok()?;
        note_node(fd, &stat, mount, node);
        Some((mount, node))
    });
    set_errno(before);
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

/// The node behind a descriptor, which a cache keeps.
///
/// Asking the kernel for the name of a memfd takes longer than the rest of an `fstat`, and programs often ask for a
/// file's attributes more than once. An entry need not be removed when its descriptor is closed: a file that reuses the
/// number has another inode or a later change time, so the entry does not match it.
#[derive(Clone, Copy)]
struct Known {
    fd: c_int,
    content: Content,
    mount: &'static Mount,
    node: Node,
}

/// The identity of a file's content: device, inode number, and time of the last change.
type Content = (libc::dev_t, libc::ino_t, i64, i64);

/// The cache, by descriptor modulo [`CACHED`]. Locks are only tried: a signal or a fork may have interrupted their
/// holder.
static KNOWN: [Mutex<Option<Known>>; CACHED] = [const { Mutex::new(None) }; CACHED];

/// Notes the node behind `fd`; `stat` is the kernel's for `fd`.
pub(crate) fn note_node(fd: c_int, stat: &libc::stat, mount: &'static Mount, node: Node) {
    if let Some(Ok(mut slot)) = slot_of(fd).map(Mutex::try_lock) {
        *slot = Some(Known { fd, content: content_of(stat), mount, node });
    }
}

/// The mount and the node behind `fd`, if they were noted. `stat` is the kernel's for `fd`.
fn find_node(fd: c_int, stat: &libc::stat) -> Option<(&'static Mount, Node)> {
    let slot = slot_of(fd)?.try_lock().ok()?;
    let known = slot.filter(|known| known.fd == fd && known.content == content_of(stat))?;
    Some((known.mount, known.node))
}

/// The place of a descriptor in the cache.
fn slot_of(fd: c_int) -> Option<&'static Mutex<Option<Known>>> {
    usize::try_from(fd).ok().map(|fd| &KNOWN[fd % CACHED])
}

fn content_of(stat: &libc::stat) -> Content {
    (stat.st_dev, stat.st_ino, stat.st_ctime, stat.st_ctime_nsec)
}

/// Entries of the cache; descriptors whose numbers differ by this share one.
const CACHED: usize = 256;
/// Prefix of the names of memfds.
const NAME: &str = "dlfs:";
/// Files up to this length are copied into memory, unless they are of a plain folder without tiers.
const IN_MEMORY_BYTES: u64 = 16 << 20;
