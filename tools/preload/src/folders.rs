//! Open folders. A `DIR` of ours is told from the C library's by its first 8 bytes. The C library's begins with
//! its descriptor, which is never negative; ours begins with -1.

use std::ffi::{c_int, c_long};
use std::sync::atomic::Ordering;

use dlfs::posix::{FIRST, Folder, Node};
use libc::{DIR, dirent};

use crate::mounts::{Mount, Opened};

/// The object behind our `DIR` pointers.
#[repr(C)]
pub(crate) struct OpenFolder {
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
    current: dirent,
}

struct Entry {
    name: Vec<u8>,
    node: Node,
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
        mount.counters.folders.fetch_add(1, Ordering::Relaxed);
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
        bytes.zip(&mut current.d_name).for_each(|(byte, place)| *place = *byte as _);
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
    pub(crate) fn descriptor(&mut self) -> Result<c_int, c_int> {
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
