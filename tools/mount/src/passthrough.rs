//! Files that the kernel reads by itself (FUSE passthrough): each from a file that has its bytes.
//!
//! That is the tier's own file, where a tier keeps the whole file as one; that of a plain folder, where no tier is in
//! front of it; or memory that the file was read into, whole and verified, when it was opened. The memory stays while
//! there is room, for the next open.
//!
//! The kernel reads all open handles of an inode in one way: from the first open until the last is closed, an inode has
//! one mode.

use std::collections::HashMap;
use std::fs::File as Opened;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;

use dlfs::posix::{File, Node};
use fuser::{BackingId, FileHandle, FopenFlags, ReplyOpen};
use parking_lot::Mutex;

use dlfs::dataset::Files;

use crate::memory::Memory;

/// The files of a mount, and how the open ones are read.
pub(crate) struct Passthrough {
    files: Arc<Files>,
    /// The most memory for whole files.
    memory_bytes: u64,
    memory: Memory,
    state: Mutex<State>,
    /// Threads that read a file whole, and how many may.
    num_reading: AtomicUsize,
    most_reading: usize,
    /// Set once the kernel has refused, as it does without CAP_SYS_ADMIN.
    is_refused: AtomicBool,
    /// Opens of files that the kernel reads by itself.
    opened: Arc<AtomicU64>,
}

#[derive(Default)]
struct State {
    inodes: HashMap<u64, Inode>,
    /// Memory of all files, also of those that are being read.
    bytes: u64,
    /// Counts opens.
    now: u64,
}

#[derive(Default)]
struct Inode {
    handles: u64,
    mode: Mode,
    memory: Option<Whole>,
    /// When it was opened last.
    used: u64,
}

#[derive(Default)]
enum Mode {
    /// Nobody has it open, or the first open is not answered yet.
    #[default]
    Undecided,
    /// Through requests, and the kernel's cache.
    Requests,
    Kernel(BackingId),
}

/// The bytes of a file.
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
        let source = match self.begin(inode) {
            Begun::First if len <= SHORT_BYTES || self.is_refused.load(Ordering::Relaxed) => None,
            Begun::First => self.source(inode, file, len),
            Begun::Again => None,
        };
        self.answer(inode, source.as_ref(), reply);
    }

    fn begin(&self, inode: u64) -> Begun {
        let mut state = self.state.lock();
        state.now += 1;
        let used = state.now;
        let known = state.inodes.entry(inode).or_default();
        (known.handles, known.used) = (known.handles + 1, used);
        if known.handles == 1 {
            return Begun::First;
        }
        if matches!(known.mode, Mode::Undecided) {
            known.mode = Mode::Requests; // the first one is still looking for its bytes
        }
        Begun::Again
    }

    /// A file with the bytes of `file`.
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

    /// Reads a file whole; `None` if that fails: reads by request then say why.
    fn read(&self, file: File, len: u64) -> Option<Opened> {
        let memory = self.memory.file(len).ok()?;
        let next = AtomicU64::new(0);
        let copy = || self.copy(file, len, &next, &memory);
        let is_whole = thread::scope(|scope| {
            let second = thread::Builder::new().name("dlfs-whole".into());
            let second = second.spawn_scoped(scope, copy).ok(); // or this thread reads all
            let first = copy();
            first && second.is_none_or(|second| second.join().unwrap_or(false))
        });
        is_whole.then_some(memory)
    }

    /// Copies pieces of a file from `next` on, which other threads move on too; whether all could be read.
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
            return reply.error(fuser::Errno::EIO); // cannot happen: it has a handle
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

    /// A handle was closed.
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

enum Begun {
    First,
    Again,
}

impl State {
    /// Drops files that nobody has open, the oldest first, until `more` bytes of memory stay within `most`. Returns
    /// whether they can; if not, it drops none.
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

/// Files up to this length are read by requests: the samples up to it are not verified in pieces.
const SHORT_BYTES: u64 = 1 << 20;
/// The size of a thread's reads: a multiple of a large page.
const PIECE_BYTES: u64 = 4 << 20;
