//! FUSE passthrough: the kernel itself reads a file from another file with the same bytes.
//!
//! The other file is the tier's own file, if a tier keeps the whole file as one; the file of a plain folder,
//! if there are no tiers; or memory that the file was read into, whole and verified, at its open. The memory
//! is kept for the next open while there is room. A file up to 1 MiB, or without such another file, is read by
//! requests.
//!
//! The kernel reads all open handles of an inode in one mode, from the first open until the last close.
//!
//! # Memory
//!
//! The kernel reads memory in large pages nearly twice as fast as in pages of 4 KiB. A memfd gets large pages
//! only if `/sys/kernel/mm/transparent_hugepage/shmem_enabled` allows it, and by default it does not. A private
//! tmpfs has its own setting. The tmpfs is not mounted at any path, so other processes have no path to its
//! files, and it ends when nobody has it or one of its files open.

use std::collections::HashMap;
use std::fs::File as Opened;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::{io, thread};

use dlfs::dataset::Files;
use dlfs::posix::{File, Node};
use fuser::{BackingId, FileHandle, FopenFlags, ReplyOpen};
use parking_lot::Mutex;
use rustix::fd::OwnedFd;
use rustix::fs::{OFlags, openat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen,
};

/// The files of a mount, and the mode of the open ones.
pub(crate) struct Passthrough {
    files: Arc<Files>,
    /// Memory limit for whole files.
    memory_bytes: u64,
    memory: Memory,
    state: Mutex<State>,
    /// Opens that are reading a file whole, and their limit.
    num_reading: AtomicUsize,
    most_reading: usize,
    /// Set after the kernel has refused, as it does without CAP_SYS_ADMIN.
    is_refused: AtomicBool,
    /// Opens of files that the kernel reads itself.
    opened: Arc<AtomicU64>,
}

#[derive(Default)]
struct State {
    inodes: HashMap<u64, Inode>,
    /// Memory of all files, including files being read.
    bytes: u64,
    /// Counts opens.
    now: u64,
}

#[derive(Default)]
struct Inode {
    handles: u64,
    mode: Mode,
    memory: Option<Whole>,
    /// Time of the last open, as a count of opens.
    used: u64,
}

#[derive(Default)]
enum Mode {
    /// No handle is open, or the first open is not yet answered.
    #[default]
    Undecided,
    /// The kernel sends requests, and has a page cache.
    Requests,
    Kernel(BackingId),
}

/// A file in memory that has all bytes of a file of the data set.
struct Whole {
    file: Opened,
    len: u64,
}

impl Passthrough {
    pub(crate) fn new(
        files: Arc<Files>,
        memory_bytes: u64,
        most_reading: usize,
        opened: Arc<AtomicU64>,
    ) -> Passthrough {
        let memory = Memory::new();
        let (state, num_reading, is_refused) = Default::default();
        Passthrough {
            files,
            memory_bytes,
            memory,
            state,
            num_reading,
            most_reading,
            is_refused,
            opened,
        }
    }

    /// Answers an open of `file`.
    pub(crate) fn open(&self, inode: u64, file: File, reply: ReplyOpen) {
        let len = self.files.tree().attributes(Node::File(file), None).len_bytes;
        let is_first = self.begin(inode);
        let may_pass = len > SHORT_BYTES && !self.is_refused.load(Ordering::Relaxed);
        let source = if is_first && may_pass { self.source(inode, file, len) } else { None };
        self.answer(inode, source.as_ref(), reply);
    }

    /// Counts a handle; returns whether it is the only one.
    fn begin(&self, inode: u64) -> bool {
        let mut state = self.state.lock();
        state.now += 1;
        let used = state.now;
        let known = state.inodes.entry(inode).or_default();
        (known.handles, known.used) = (known.handles + 1, used);
        if known.handles == 1 {
            return true;
        }
        if matches!(known.mode, Mode::Undecided) {
            known.mode = Mode::Requests; // the first open has no answer yet: it, too, must use requests
        }
        false
    }

    /// Another file with the bytes of `file`, for its first handle; `None`: the file is read by requests.
    fn source(&self, inode: u64, file: File, len: u64) -> Option<Opened> {
        if let Some((_, Ok(copy))) = self.files.open_copy(file, |path| Opened::open(path)) {
            return Some(copy);
        }
        if self.files.dataset().image().tiers().is_none()
            && let Some((folder, index)) = self.files.listed(file)
            && let Some(own) = folder.open_listed(index)
        {
            return Some(own);
        }
        {
            let mut state = self.state.lock();
            let known = state.inodes.get(&inode).and_then(|known| known.memory.as_ref());
            if let Some(memory) = known {
                return memory.file.try_clone().ok();
            }
            if !state.make_room(len, self.memory_bytes) {
                return None;
            }
            state.bytes += len;
        }
        let may_read = self.num_reading.fetch_add(1, Ordering::AcqRel) < self.most_reading;
        let read = if may_read { self.read(file, len) } else { None };
        self.num_reading.fetch_sub(1, Ordering::AcqRel);
        let mut state = self.state.lock();
        let kept = read.as_ref().and_then(|read| read.try_clone().ok());
        match (kept, state.inodes.get_mut(&inode)) {
            (Some(file), Some(known)) => known.memory = Some(Whole { file, len }),
            _ => state.bytes -= len,
        }
        read
    }

    /// Reads a file whole; `None` if that fails: reads by request then report the error.
    fn read(&self, file: File, len: u64) -> Option<Opened> {
        let memory = self.memory.file(len).ok()?;
        let next = AtomicU64::new(0);
        let copy = || self.copy(file, len, &next, &memory);
        let is_whole = thread::scope(|scope| {
            let second = thread::Builder::new().name("dlfs-whole".into());
            let second = second.spawn_scoped(scope, copy).ok(); // without it this thread reads all
            let first = copy();
            first && second.is_none_or(|second| second.join().unwrap_or(false))
        });
        is_whole.then_some(memory)
    }

    /// Copies pieces of a file to `memory`. Threads share `next`, the offset of the next piece. Returns whether
    /// all of this thread's reads and writes succeeded.
    fn copy(&self, file: File, len: u64, next: &AtomicU64, memory: &Opened) -> bool {
        loop {
            let at = next.fetch_add(PIECE_BYTES, Ordering::Relaxed);
            if at >= len {
                return true;
            }
            let end = len.min(at + PIECE_BYTES);
            let Ok(read) = self.files.dataset().read_range(file.id, at..end, &mut ()) else {
                return false;
            };
            let bytes = read.bytes(0);
            if bytes.len() as u64 != end - at || memory.write_all_at(bytes, at).is_err() {
                return false;
            }
        }
    }

    /// Answers in the mode of the inode, which the first open decides.
    fn answer(&self, inode: u64, source: Option<&Opened>, reply: ReplyOpen) {
        let mut state = self.state.lock();
        let Some(known) = state.inodes.get_mut(&inode) else {
            return reply.error(fuser::Errno::EIO); // cannot happen: the inode has a handle
        };
        if matches!(known.mode, Mode::Undecided) {
            known.mode = match source.map(|source| reply.open_backing(source)) {
                Some(Ok(backing)) => Mode::Kernel(backing),
                Some(Err(_)) => {
                    self.is_refused.store(true, Ordering::Relaxed);
                    Mode::Requests
                }
                None => Mode::Requests,
            };
        }
        match &known.mode {
            Mode::Kernel(backing) => {
                self.opened.fetch_add(1, Ordering::Relaxed);
                reply.opened_passthrough(FileHandle(0), FopenFlags::empty(), backing);
            }
            _ => reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE),
        }
    }

    /// Notes that a handle was closed.
    pub(crate) fn release(&self, inode: u64) {
        let mut state = self.state.lock();
        let Some(known) = state.inodes.get_mut(&inode) else { return };
        known.handles = known.handles.saturating_sub(1);
        if known.handles == 0 {
            known.mode = Mode::Undecided;
            if known.memory.is_none() {
                state.inodes.remove(&inode);
            }
        }
    }
}

impl State {
    /// Drops files without open handles, the least recently opened first, until `more` bytes fit within
    /// `most`. Returns whether they fit; if not, it drops no file.
    fn make_room(&mut self, more: u64, most: u64) -> bool {
        let is_idle = |inode: &Inode| inode.handles == 0;
        let len = |inode: &Inode| inode.memory.as_ref().map_or(0, |memory| memory.len);
        let idle: u64 = self.inodes.values().filter(|inode| is_idle(inode)).map(len).sum();
        if self.bytes - idle + more > most {
            return false;
        }
        while self.bytes + more > most {
            let oldest = self.inodes.iter().filter(|(_, inode)| is_idle(inode));
            let Some((&number, _)) = oldest.min_by_key(|(_, inode)| inode.used) else {
                return false;
            };
            self.bytes -= self.inodes.remove(&number).map_or(0, |inode| len(&inode));
        }
        true
    }
}

/// Files up to this length are read by requests: their samples are not verified in pieces.
const SHORT_BYTES: u64 = 1 << 20;
/// The size of a thread's reads: a multiple of a large page.
const PIECE_BYTES: u64 = 4 << 20;

/// Allocator of in-memory files.
pub(crate) struct Memory {
    /// The root of the tmpfs; `None` if the kernel refuses one.
    top: Option<OwnedFd>,
}

impl Memory {
    pub(crate) fn new() -> Memory {
        Memory { top: tmpfs().ok() }
    }

    /// A file of length `len` that takes no memory yet.
    ///
    /// Its length is set at the start, because only pages within the length can be large. Writes in multiples
    /// of 2 MiB fill whole large pages, which the kernel then need not clear.
    pub(crate) fn file(&self, len: u64) -> io::Result<Opened> {
        let large = self.top.as_ref().and_then(|top| {
            let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::EXCL | OFlags::CLOEXEC;
            openat(top, c".", flags, rustix::fs::Mode::RUSR).ok()
        });
        let file = match large {
            Some(file) => file,
            None => rustix::fs::memfd_create(c"dlfs-mount", rustix::fs::MemfdFlags::CLOEXEC)?,
        };
        let file = Opened::from(file);
        file.set_len(len)?;
        Ok(file)
    }
}

/// A tmpfs that is not mounted at any path. Needs CAP_SYS_ADMIN, as passthrough does.
fn tmpfs() -> rustix::io::Result<OwnedFd> {
    let made = fsopen(c"tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    // A size of 0 is no limit: `Passthrough` enforces one. The default would be half of the machine's memory.
    for (key, value) in [(c"huge", c"within_size"), (c"mode", c"0700"), (c"size", c"0")] {
        fsconfig_set_string(&made, key, value)?;
    }
    fsconfig_create(&made)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    fsmount(&made, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::{FileExt, MetadataExt};

    use super::*;

    fn holds_what_is_written(memory: &Memory) {
        let bytes: Vec<u8> = (0..5_000_001u32).map(|at| (at ^ (at >> 9)) as u8).collect();
        let mut file = memory.file(bytes.len() as u64).unwrap();
        assert_eq!(
            file.metadata().unwrap().blocks(),
            0,
            "nothing is allocated before it is written"
        );
        for (nth, piece) in bytes.chunks(2 << 20).enumerate() {
            file.write_all_at(piece, (nth as u64) << 21).unwrap();
        }
        let mut found = Vec::new();
        let meta = file.metadata().unwrap();
        file.read_to_end(&mut found).unwrap();
        assert!(found == bytes);
        let taken = meta.blocks() * 512;
        assert_eq!(
            taken,
            (bytes.len() as u64).next_multiple_of(4096),
            "no more than its bytes take"
        );
        assert_eq!(meta.nlink(), 0, "nobody else can open it");
    }

    #[test]
    fn a_file_holds_what_is_written_whether_or_not_there_is_a_tmpfs() {
        holds_what_is_written(&Memory { top: None });
        let memory = Memory::new();
        if memory.top.is_none() {
            eprintln!("SKIPPED: the kernel refuses a tmpfs (it takes CAP_SYS_ADMIN)");
            return;
        }
        holds_what_is_written(&memory);
    }

    #[test]
    fn the_kernel_is_asked_for_large_pages() {
        let memory = Memory::new();
        if memory.top.is_none() || !has_large_pages() {
            eprintln!("SKIPPED: no tmpfs of our own (it takes CAP_SYS_ADMIN), or no large pages");
            return;
        }
        let bytes = vec![7; 4 << 20];
        let before = large_pages();
        let file = memory.file(bytes.len() as u64).unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        let asked = large_pages() - before;
        assert!(asked >= 2, "{asked} large pages for 4 MiB");
    }

    fn has_large_pages() -> bool {
        let read = |name: &str| {
            let path = format!("/sys/kernel/mm/transparent_hugepage/{name}");
            std::fs::read_to_string(path).unwrap_or_default()
        };
        read("hpage_pmd_size").trim() == "2097152" && !read("shmem_enabled").contains("[deny]")
    }

    /// Large pages of files that the kernel has allocated, or failed to allocate, since it started.
    fn large_pages() -> u64 {
        let counters = std::fs::read_to_string("/proc/vmstat").unwrap();
        let counted = counters.lines().filter_map(|line| {
            let (name, count) = line.split_once(' ')?;
            let counts = matches!(name, "thp_file_alloc" | "thp_file_fallback");
            counts.then(|| count.parse::<u64>().unwrap())
        });
        counted.sum()
    }
}
