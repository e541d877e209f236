//! FUSE passthrough: the kernel itself reads a file from another file with the same bytes.
//!
//! The other file, the *backing file*, is the first of these that exists:
//!
//! 1. the tier's file, if a tier keeps the whole file as one;
//! 2. the file of the plain folder, if there are no tiers;
//! 3. a file in memory ([`MemoryFiles`]), into which the first open reads the whole file, and verifies it. The memory
//!    is kept for later opens until other files need the room.
//!
//! Files up to 1 MiB, and files without a backing file, are read by requests (`reads.rs`).
//!
//! The kernel reads all open handles of an inode in one mode, from the first open until the last close.

use std::collections::HashMap;
use std::fs::File as BackingFile;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;

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

/// Passthrough of one mount.
pub(crate) struct Passthrough {
    files: Arc<Files>,
    /// Limit of the bytes of all files in memory.
    max_memory_bytes: u64,
    memory_files: MemoryFiles,
    /// The open files. Not locked while a file is read whole.
    state: Mutex<PassthroughState>,
    /// Opens that want to read a file whole now. At most `max_reading` of them do; further opens use requests.
    num_reading: AtomicUsize,
    max_reading: usize,
    /// Set after the kernel has refused, as it does without CAP_SYS_ADMIN.
    is_refused: AtomicBool,
    /// Opens of files that the kernel reads itself.
    opened: Arc<AtomicU64>,
}

/// The state of all files.
#[derive(Default)]
struct PassthroughState {
    /// By inode number: the files with open handles, and those that are kept in memory.
    inodes: HashMap<u64, InodeState>,
    /// Bytes of all files in memory, including those being read.
    memory_bytes: u64,
    /// Opens of all files so far: the clock of [`InodeState::last_open`].
    num_opens: u64,
}

/// The state of one file.
#[derive(Default)]
struct InodeState {
    /// Open handles.
    handles: u64,
    mode: ReadMode,
    in_memory: Option<CachedFile>,
    /// The value of `num_opens` at the last open of this file.
    last_open: u64,
}

/// The way in which the kernel reads all handles of an inode.
#[derive(Default)]
enum ReadMode {
    /// No handle is open, or the first open is not yet answered.
    #[default]
    Undecided,
    /// The kernel sends requests, and caches their pages.
    Requests,
    /// The kernel reads the backing file.
    Passthrough(BackingId),
}

/// A file in memory with all bytes of a file of the data set.
struct CachedFile {
    file: BackingFile,
    len_bytes: u64,
}

impl Passthrough {
    pub(crate) fn new(
        files: Arc<Files>,
        max_memory_bytes: u64,
        max_reading: usize,
        opened: Arc<AtomicU64>,
    ) -> Passthrough {
        Passthrough {
            files,
            max_memory_bytes,
            memory_files: MemoryFiles::new(),
            state: Mutex::default(),
            num_reading: AtomicUsize::new(0),
            max_reading,
            is_refused: AtomicBool::new(false),
            opened,
        }
    }

    /// Answers an open of `file`. The first open of an inode may read the whole file before it answers.
    pub(crate) fn open(&self, inode: u64, file: File, reply: ReplyOpen) {
        let len = self.files.tree().attributes(Node::File(file), None).len_bytes;
        let is_first = self.begin(inode);
        let may_pass = len > MAX_REQUEST_LEN_BYTES && !self.is_refused.load(Ordering::Relaxed);
        let backing_file =
            if is_first && may_pass { self.backing_file(inode, file, len) } else { None };
        self.answer(inode, backing_file.as_ref(), reply);
    }

    /// Counts a handle; returns whether it is the only one of the inode.
    fn begin(&self, inode: u64) -> bool {
        let mut state = self.state.lock();
        state.num_opens += 1;
        let last_open = state.num_opens;
        let inode_state = state.inodes.entry(inode).or_default();
        (inode_state.handles, inode_state.last_open) = (inode_state.handles + 1, last_open);
        if inode_state.handles == 1 {
            return true;
        }
        if matches!(inode_state.mode, ReadMode::Undecided) {
            inode_state.mode = ReadMode::Requests; // the first open has no answer yet: it, too, must use requests
        }
        false
    }

    /// The backing file of `file`, for its first handle; `None`: the file is read by requests.
    fn backing_file(&self, inode: u64, file: File, len: u64) -> Option<BackingFile> {
        if let Some((_, Ok(copy))) = self.files.open_copy(file, |path| BackingFile::open(path)) {
            return Some(copy);
        }
        if self.files.dataset().image().tiers().is_none()
            && let Some((folder, index)) = self.files.listed(file)
            && let Some(listed) = folder.open_listed(index)
        {
            return Some(listed);
        }
        {
            let mut state = self.state.lock();
            let inode_state = state.inodes.get(&inode);
            if let Some(cached) = inode_state.and_then(|inode_state| inode_state.in_memory.as_ref())
            {
                return cached.file.try_clone().ok();
            }
            if !state.evict_for(len, self.max_memory_bytes) {
                return None;
            }
            state.memory_bytes += len;
        }
        let may_read = self.num_reading.fetch_add(1, Ordering::AcqRel) < self.max_reading;
        let read = if may_read { self.read(file, len) } else { None };
        self.num_reading.fetch_sub(1, Ordering::AcqRel);
        let mut state = self.state.lock();
        let kept = read.as_ref().and_then(|read| read.try_clone().ok());
        match (kept, state.inodes.get_mut(&inode)) {
            (Some(file), Some(inode_state)) => {
                inode_state.in_memory = Some(CachedFile { file, len_bytes: len });
            }
            _ => state.memory_bytes -= len,
        }
        read
    }

    /// Reads a file whole into memory, with two threads. `None` if that fails: reads by request then report the error.
    fn read(&self, file: File, len: u64) -> Option<BackingFile> {
        let memory = self.memory_files.create(len).ok()?;
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

    /// Copies a file to `memory`, in steps of [`STEP_BYTES`]. Threads share `next`, the offset of the next step.
    /// Returns whether all reads and writes of this thread succeeded.
    fn copy(&self, file: File, len: u64, next: &AtomicU64, memory: &BackingFile) -> bool {
        loop {
            let at = next.fetch_add(STEP_BYTES, Ordering::Relaxed);
            if at >= len {
                return true;
            }
            let end = len.min(at + STEP_BYTES);
            let Ok(read) = self.files.dataset().read_range(file.id, at..end, &mut ()) else {
                return false;
            };
            let bytes = read.bytes(0);
            if bytes.len() as u64 != end - at || memory.write_all_at(bytes, at).is_err() {
                return false;
            }
        }
    }

    /// Answers an open in the mode of the inode. If the mode is undecided, `backing_file` decides it.
    fn answer(&self, inode: u64, backing_file: Option<&BackingFile>, reply: ReplyOpen) {
        let mut state = self.state.lock();
        let Some(inode_state) = state.inodes.get_mut(&inode) else {
            return reply.error(fuser::Errno::EIO); // cannot happen: the inode has a handle
        };
        if matches!(inode_state.mode, ReadMode::Undecided) {
            inode_state.mode = match backing_file.map(|file| reply.open_backing(file)) {
                Some(Ok(backing)) => ReadMode::Passthrough(backing),
                Some(Err(_)) => {
                    self.is_refused.store(true, Ordering::Relaxed);
                    ReadMode::Requests
                }
                None => ReadMode::Requests,
            };
        }
        match &inode_state.mode {
            ReadMode::Passthrough(backing) => {
                self.opened.fetch_add(1, Ordering::Relaxed);
                reply.opened_passthrough(FileHandle(0), FopenFlags::empty(), backing);
            }
            _ => reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE),
        }
    }

    /// Counts a handle as closed. After the last one, the next open decides the mode again.
    pub(crate) fn release(&self, inode: u64) {
        let mut state = self.state.lock();
        let Some(inode_state) = state.inodes.get_mut(&inode) else { return };
        inode_state.handles = inode_state.handles.saturating_sub(1);
        if inode_state.handles == 0 {
            inode_state.mode = ReadMode::Undecided;
            if inode_state.in_memory.is_none() {
                state.inodes.remove(&inode);
            }
        }
    }
}

impl PassthroughState {
    /// Drops files in memory without open handles, the least recently opened first, until `more` bytes fit within
    /// `most`. Returns whether they fit; if not, no file is dropped.
    fn evict_for(&mut self, more: u64, most: u64) -> bool {
        let is_idle = |inode: &InodeState| inode.handles == 0;
        let len = |inode: &InodeState| inode.in_memory.as_ref().map_or(0, |file| file.len_bytes);
        let idle: u64 = self.inodes.values().filter(|inode| is_idle(inode)).map(len).sum();
        if self.memory_bytes - idle + more > most {
            return false;
        }
        while self.memory_bytes + more > most {
            let oldest = self.inodes.iter().filter(|(_, inode)| is_idle(inode));
            let Some((&number, _)) = oldest.min_by_key(|(_, inode)| inode.last_open) else {
                return false;
            };
            self.memory_bytes -= self.inodes.remove(&number).map_or(0, |inode| len(&inode));
        }
        true
    }
}

/// Creates files in memory: in a private tmpfs, or as memfds.
///
/// The kernel reads memory in large pages nearly twice as fast as in pages of 4 KiB. A memfd gets large pages only if
/// `/sys/kernel/mm/transparent_hugepage/shmem_enabled` allows it, and by default it does not. A private tmpfs has a
/// setting for itself. It is not mounted at any path, so other processes cannot open its files, and it ends when its
/// descriptor and all its files are closed.
struct MemoryFiles {
    /// The root of the tmpfs; `None` if the kernel refuses one.
    tmpfs_root: Option<OwnedFd>,
}

impl MemoryFiles {
    fn new() -> MemoryFiles {
        MemoryFiles { tmpfs_root: tmpfs().ok() }
    }

    /// Creates a file of `len` bytes that takes no memory yet.
    ///
    /// The length is set at the start, because only pages within the length can be large. Writes in multiples of 2 MiB
    /// fill whole large pages, which the kernel then need not clear.
    fn create(&self, len: u64) -> io::Result<BackingFile> {
        let in_tmpfs = self.tmpfs_root.as_ref().and_then(|tmpfs_root| {
            let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::EXCL | OFlags::CLOEXEC;
            openat(tmpfs_root, c".", flags, rustix::fs::Mode::RUSR).ok()
        });
        let file = match in_tmpfs {
            Some(file) => file,
            None => rustix::fs::memfd_create(c"dlfs-mount", rustix::fs::MemfdFlags::CLOEXEC)?,
        };
        let file = BackingFile::from(file);
        file.set_len(len)?;
        Ok(file)
    }
}

/// Creates a tmpfs that is not mounted at any path, and opens its root. Needs CAP_SYS_ADMIN, as passthrough does.
fn tmpfs() -> rustix::io::Result<OwnedFd> {
    let tmpfs = fsopen(c"tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    // Size 0 means no limit: `Passthrough` enforces one. The default limit is half of the machine's memory.
    for (key, value) in [(c"huge", c"within_size"), (c"mode", c"0700"), (c"size", c"0")] {
        fsconfig_set_string(&tmpfs, key, value)?;
    }
    fsconfig_create(&tmpfs)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    fsmount(&tmpfs, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// Files up to this length are read by requests: their samples are not verified in pieces.
const MAX_REQUEST_LEN_BYTES: u64 = 1 << 20;
/// Length of one read into memory: a multiple of a large page (2 MiB).
const STEP_BYTES: u64 = 4 << 20;

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn holds_what_is_written(memory_files: &MemoryFiles) {
        let bytes: Vec<u8> = (0..5_000_001u32).map(|at| (at ^ (at >> 9)) as u8).collect();
        let mut file = memory_files.create(bytes.len() as u64).unwrap();
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
        holds_what_is_written(&MemoryFiles { tmpfs_root: None });
        let memory_files = MemoryFiles::new();
        if memory_files.tmpfs_root.is_none() {
            eprintln!("SKIPPED: the kernel refuses a tmpfs (it takes CAP_SYS_ADMIN)");
            return;
        }
        holds_what_is_written(&memory_files);
    }

    #[test]
    fn the_kernel_is_asked_for_large_pages() {
        let memory_files = MemoryFiles::new();
        if memory_files.tmpfs_root.is_none() || !has_large_pages() {
            eprintln!("SKIPPED: no tmpfs of our own (it takes CAP_SYS_ADMIN), or no large pages");
            return;
        }
        let bytes = vec![7; 4 << 20];
        let before = large_pages();
        let file = memory_files.create(bytes.len() as u64).unwrap();
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
