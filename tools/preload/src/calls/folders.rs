//! Calls that open, list and close folders.
//!
//! The first 8 bytes tell a `DIR` of this library from one of the C library: the C library's begins with its
//! descriptor, which is never negative; ours with -1.

use std::ffi::{c_int, c_long, c_void};
use std::ptr::null_mut;
use std::sync::atomic::Ordering;

use libc::{AT_FDCWD, DIR, dirent};

use dlfs::posix::{FIRST, Folder, Node};

use super::{Filter, Order, Text, mounted, returned};
use crate::mounts::{Mount, Opened};
use crate::paths::MountedPath;
use crate::{files, inside, syscalls};

instead! {
    fn fdopendir(fd: c_int) -> *mut DIR {
        match files::node_behind(fd) {
            Some((mount, Node::Folder(folder))) => returned(inside::run(|| {
                Ok(OpenFolder::open(mount, mount.opened()?, folder, fd))
            })),
            Some((_, Node::File(_))) => returned(Err(libc::ENOTDIR)),
            None => real(fd),
        }
    }

    fn closedir(folder: *mut DIR) -> c_int {
        if OpenFolder::of(folder).is_none() {
            return real(folder);
        }
        let fd = OpenFolder::close(folder);
        if fd >= 0 {
            syscalls::close(fd);
        }
        0
    }
}

answers! {
    opendir(path: Text) -> *mut DIR,
        mounted(AT_FDCWD, path), found => returned(inside::run(|| open(&found)));
    rewinddir(folder: *mut DIR) -> (), OpenFolder::of(folder), ours => ours.seek(0);
    telldir(folder: *mut DIR) -> c_long, OpenFolder::of(folder), ours => ours.position();
    seekdir(folder: *mut DIR, position: c_long) -> (), OpenFolder::of(folder), ours => ours.seek(position);
    dirfd(folder: *mut DIR) -> c_int,
        OpenFolder::of(folder), ours => returned(inside::run(|| ours.descriptor()));
    readdir | readdir64(folder: *mut DIR) -> *mut dirent, OpenFolder::of(folder), ours => {
        let next = inside::run(|| ours.next());
        returned(next.map(|entry| entry.unwrap_or(null_mut())))
    };
}

/// Opens a folder.
fn open(mounted: &MountedPath) -> Result<*mut DIR, c_int> {
    match mounted.node()? {
        (opened, Node::Folder(folder)) => Ok(OpenFolder::open(mounted.mount, opened, folder, -1)),
        (_, Node::File(_)) => Err(libc::ENOTDIR),
    }
}

instead! {
    fn readdir_r | readdir64_r(folder: *mut DIR, entry: *mut dirent, result: *mut *mut dirent) -> c_int {
        let Some(ours) = OpenFolder::of(folder) else {
            return real(folder, entry, result);
        };
        match inside::run(|| ours.next()) {
            Ok(Some(next)) => {
                let len = usize::from((*next).d_reclen);
                next.cast::<u8>().copy_to_nonoverlapping(entry.cast(), len);
                result.write(entry);
                0
            }
            Ok(None) => {
                result.write(null_mut());
                0
            }
            Err(errno) => errno,
        }
    }

    fn scandir | scandir64(
        path: Text,
        out: *mut *mut *mut dirent,
        filter: Filter,
        order: Order,
    ) -> c_int {
        match mounted(AT_FDCWD, path) {
            Some(mounted) => match inside::run(|| open(&mounted)) {
                Ok(folder) => {
                    let scanned = scan(folder, out, filter, order);
                    closedir(folder);
                    returned(scanned)
                }
                Err(errno) => returned(Err(errno)),
            },
            None => real(path, out, filter, order),
        }
    }
}

/// Copies the entries that `filter` accepts, sorted by `order`, into memory from `malloc`.
///
/// # Safety
/// As for `scandir`; `folder` is one of ours.
unsafe fn scan(
    folder: *mut DIR,
    out: *mut *mut *mut dirent,
    filter: Filter,
    order: Order,
) -> Result<c_int, c_int> {
    // SAFETY: `folder` is one of ours, and only the caller uses it.
    let ours = unsafe { OpenFolder::of(folder) }.ok_or(libc::EBADF)?;
    let mut found = Vec::new();
    while let Some(entry) = inside::run(|| ours.next())? {
        // Not called inside of `inside::run`, since the filter may call functions that this library answers.
        // SAFETY: the caller passed a filter of this type; the entry is valid until the next call of `next`.
        if filter.is_none_or(|takes| unsafe { takes(entry) } != 0) {
            // SAFETY: the entry is still valid, and `d_reclen` is its length in bytes.
            found.push(unsafe { Malloced::copy_of(entry.cast(), (*entry).d_reclen.into()) }?);
        }
    }
    let entries: Vec<*mut c_void> = found.iter().map(|copy| copy.0).collect();
    // SAFETY: `entries` has this many bytes.
    let list = unsafe { Malloced::copy_of(entries.as_ptr().cast(), size_of_val(&*entries)) }?;
    if order.is_some() {
        // SAFETY: the list has `entries.len()` pointers, each to an entry, and `order` compares two such pointers.
        unsafe { libc::qsort(list.0, entries.len(), size_of::<*mut dirent>(), order) };
    }
    // SAFETY: the caller of `scandir` provides `out`, and frees the list and its entries.
    unsafe { out.write(list.into_raw().cast()) };
    found.into_iter().for_each(|copy| _ = copy.into_raw());
    Ok(entries.len() as c_int)
}

/// Memory from `malloc`, which is freed on drop unless it is handed on.
struct Malloced(*mut c_void);

impl Malloced {
    /// Copies `len` bytes; `ENOMEM` if there is no memory for them.
    ///
    /// # Safety
    /// `bytes` has `len` bytes.
    unsafe fn copy_of(bytes: *const u8, len: usize) -> Result<Malloced, c_int> {
        // SAFETY: any length is allowed.
        let copy = unsafe { libc::malloc(len.max(1)) };
        if copy.is_null() {
            return Err(libc::ENOMEM);
        }
        // SAFETY: the caller promises `len` readable bytes, and `copy` has just been allocated with at least
        // `len`.
        unsafe { bytes.copy_to_nonoverlapping(copy.cast(), len) };
        Ok(Malloced(copy))
    }

    fn into_raw(self) -> *mut c_void {
        std::mem::ManuallyDrop::new(self).0
    }
}

impl Drop for Malloced {
    fn drop(&mut self) {
        // SAFETY: the memory is from `malloc`, and only this value owns it.
        unsafe { libc::free(self.0) };
    }
}

/// The object behind our `DIR` pointers.
#[repr(C)]
pub(crate) struct OpenFolder {
    /// [`MAGIC`]; must be the first field.
    magic: u64,
    mount: &'static Mount,
    opened: &'static Opened,
    folder: Folder,
    /// Descriptor of the folder; -1 until it is requested.
    fd: c_int,
    /// Entries that were listed and not yet returned; the next entry is last.
    ready: Vec<Entry>,
    /// The position at which the listing continues after `ready`.
    next: u64,
    /// The position after the entry that was returned last.
    position: u64,
    /// The entry that was returned last.
    current: dirent,
}

/// An entry of a folder.
struct Entry {
    name: Vec<u8>,
    node: Node,
    /// The position after the entry.
    next: u64,
}

impl OpenFolder {
    /// Opens a folder; `fd` is its descriptor, or -1.
    pub(crate) fn open(
        mount: &'static Mount,
        opened: &'static Opened,
        folder: Folder,
        fd: c_int,
    ) -> *mut DIR {
        mount.counters().folders.fetch_add(1, Ordering::Relaxed);
        // SAFETY: a `dirent` of zeroes is valid.
        let current = unsafe { std::mem::zeroed() };
        let ready = Vec::new();
        let next = FIRST;
        let position = FIRST;
        let open =
            OpenFolder { magic: MAGIC, mount, opened, folder, fd, ready, next, position, current };
        Box::into_raw(Box::new(open)).cast()
    }

    /// The folder behind `pointer`, if it is one of ours.
    ///
    /// # Safety
    /// `pointer` is NULL, or an open folder of ours or of the C library; nobody else uses it while the result
    /// lives.
    pub(crate) unsafe fn of<'a>(pointer: *mut DIR) -> Option<&'a mut OpenFolder> {
        if pointer.is_null() || crate::mounts::all().is_empty() {
            return None;
        }
        // SAFETY: the C library's DIR is longer than a `u64` and aligned to one; so is ours.
        let magic = unsafe { pointer.cast::<u64>().read() };
        // SAFETY: only ours begins with a negative descriptor, and nobody else uses it, as the caller promises.
        (magic == MAGIC).then(|| unsafe { &mut *pointer.cast::<OpenFolder>() })
    }

    /// Closes the folder; returns its descriptor, or -1.
    ///
    /// # Safety
    /// `of` returned a folder for this pointer, and nobody uses the folder any more.
    pub(crate) unsafe fn close(pointer: *mut DIR) -> c_int {
        // SAFETY: it is one of ours, so `open` made it with `Box::into_raw`; nobody uses it any more.
        unsafe { Box::from_raw(pointer.cast::<OpenFolder>()) }.fd
    }

    /// The next entry; `None` at the end. The entry is valid until the next call.
    pub(crate) fn next(&mut self) -> Result<Option<*mut dirent>, c_int> {
        if self.ready.is_empty() {
            let tree = self.opened.files.tree();
            let mut ready = Vec::with_capacity(AT_A_TIME);
            let listed = tree.list(self.folder, self.next, &mut |found| {
                ready.push(Entry { name: found.name.to_vec(), node: found.node, next: found.next });
                ready.len() < AT_A_TIME
            });
            listed.map_err(|_| libc::EIO)?;
            ready.reverse();
            self.ready = ready;
        }
        let Some(entry) = self.ready.pop() else { return Ok(None) };
        (self.next, self.position) = match self.ready.first() {
            Some(last) => (last.next, entry.next),
            None => (entry.next, entry.next),
        };
        let current = &mut self.current;
        current.d_ino = self.opened.files.tree().inode(entry.node);
        current.d_off = entry.next as i64;
        current.d_type = match entry.node {
            Node::Folder(_) => libc::DT_DIR,
            Node::File(_) => libc::DT_REG,
        };
        let name = &entry.name[..entry.name.len().min(current.d_name.len() - 1)];
        let bytes = name.iter().chain([&0]);
        bytes.zip(&mut current.d_name).for_each(|(byte, slot)| *slot = *byte as _);
        let before = std::mem::offset_of!(dirent, d_name);
        current.d_reclen = (before + name.len() + 1).next_multiple_of(8) as u16;
        Ok(Some(current))
    }

    /// As `telldir`.
    pub(crate) fn position(&self) -> c_long {
        self.position as c_long
    }

    /// As `seekdir` and, to 0, `rewinddir`.
    pub(crate) fn seek(&mut self, position: c_long) {
        self.ready.clear();
        self.next = position as u64;
        self.position = self.next;
    }

    /// The folder's descriptor, which the first call makes.
    fn descriptor(&mut self) -> Result<c_int, c_int> {
        if self.fd < 0 {
            let node = Node::Folder(self.folder);
            self.fd = self.mount.folder_descriptor(node, libc::O_CLOEXEC)?;
        }
        Ok(self.fd)
    }
}

/// A descriptor of -1 in the first 4 bytes, and a marker of ours.
const MAGIC: u64 = 0xd1f5_0d1f_ffff_ffff;
/// Entries that are listed in one go.
const AT_A_TIME: usize = 256;
