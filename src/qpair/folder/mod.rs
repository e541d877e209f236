//! A plain folder as a read-only namespace: the parallel file system case, without an import.
//!
//! Files lie at addresses that follow from the sorted listing ([`FolderFile`]); behind a file's end,
//! and between files, are zeroes. Directory, tiers and target work on it as on any namespace.
//!
//! A file is opened when a read needs it and closed when the read has come to its end; only those read
//! piece by piece stay open, a few at a time. Reads are `pread`: each blocks the thread that polls, as
//! those of the file engine do where io_uring is refused. A file that is not the one that was listed
//! fails its read with [`IoError::Changed`]: what it is now has no place on the namespace.
//!
//! Read `listing.rs` first.

mod listing;

use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

pub use listing::{FOLDER_CELL_BYTES, FolderFile};

use super::{Completion, Device, Io, IoError, IoOp, Namespace, QueuePair};
use crate::error::Result;
use listing::{Listing, Stamp};

/// An opened folder. Its listing is that of the moment when it was opened.
pub struct FolderNamespace {
    folder: Arc<Folder>,
    namespace: Namespace,
}

/// What was asked of the file system so far, by all queue pairs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FolderStats {
    /// Files opened.
    pub opens: u64,
    /// `pread` calls.
    pub reads: u64,
    /// Bytes that they brought.
    pub bytes: u64,
}

struct Folder {
    root: PathBuf,
    listing: Listing,
    opens: AtomicU64,
    reads: AtomicU64,
    bytes: AtomicU64,
}

impl FolderNamespace {
    /// Lists the folder `path` and all beneath it. Costs one `stat` a file.
    ///
    /// # Errors
    /// `NotFound`, `Refused`: as the operating system says. `Unsupported`: a file of 4 GiB or more.
    pub fn open(path: impl AsRef<Path>) -> Result<FolderNamespace> {
        let root = path.as_ref().to_owned();
        let listing = Listing::of(&root)?;
        let namespace = Namespace {
            address: root.display().to_string(),
            block_len_bytes: BLOCK_LEN_BYTES,
            num_blocks: listing.len_bytes / u64::from(BLOCK_LEN_BYTES),
            max_transfer_bytes: MAX_TRANSFER_BYTES,
            queue_depth: QUEUE_DEPTH,
            nguid: listing.identity,
            read_only: true,
            engine: "folder (pread)".into(),
        };
        let (opens, reads, bytes) = Default::default();
        Ok(FolderNamespace {
            folder: Arc::new(Folder { root, listing, opens, reads, bytes }),
            namespace,
        })
    }

    /// The files in the order of their addresses.
    pub fn files(&self) -> &[FolderFile] {
        &self.folder.listing.files
    }

    /// Names of the class folders: the index of each is the class of its files.
    pub fn classes(&self) -> &[Vec<u8>] {
        &self.folder.listing.classes
    }

    /// What was asked of the file system so far.
    pub fn stats(&self) -> FolderStats {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Folder { opens, reads, bytes, .. } = &*self.folder;
        FolderStats { opens: load(opens), reads: load(reads), bytes: load(bytes) }
    }
}

impl Device for FolderNamespace {
    fn namespace(&self) -> Namespace {
        self.namespace.clone()
    }

    fn queue_pair(&self) -> Result<Box<dyn QueuePair>> {
        let (folder, namespace) = (Arc::clone(&self.folder), self.namespace.clone());
        Ok(Box::new(FolderPair {
            folder,
            namespace,
            taken: VecDeque::new(),
            open: VecDeque::new(),
        }))
    }
}

struct FolderPair {
    folder: Arc<Folder>,
    namespace: Namespace,
    taken: VecDeque<Io>,
    /// Files of which more is expected to be read, by index, the newest last.
    open: VecDeque<(usize, File)>,
}

impl FolderPair {
    fn run(&mut self, io: &mut Io) -> Result<(), IoError> {
        self.namespace.check(io)?;
        if io.op != IoOp::Read {
            return Ok(());
        }
        let start = io.slba.0 * u64::from(BLOCK_LEN_BYTES);
        let end = start + io.buf.len() as u64;
        let folder = Arc::clone(&self.folder);
        let files = &folder.listing.files;
        let first = files.partition_point(|file| file.offset_bytes + file.len_bytes <= start);
        let mut done = 0;
        for (index, file) in (first..).zip(&files[first..]) {
            if file.offset_bytes >= end {
                break;
            }
            if file.len_bytes == 0 {
                continue;
            }
            let from = file.offset_bytes.saturating_sub(start) as usize;
            let skip = start.saturating_sub(file.offset_bytes);
            let len = (file.len_bytes - skip).min(end - start - from as u64) as usize;
            io.buf[done..from].fill(0);
            self.read(index, skip, &mut io.buf[from..from + len])?;
            done = from + len;
        }
        io.buf[done..].fill(0);
        Ok(())
    }

    /// Reads bytes of one file, which must be the one that was listed, before and after.
    fn read(&mut self, index: usize, skip: u64, bytes: &mut [u8]) -> Result<(), IoError> {
        let folder = Arc::clone(&self.folder);
        let listed = &folder.listing.files[index];
        let file = self.take_open(index)?;
        let result = file.read_exact_at(bytes, skip);
        folder.reads.fetch_add(1, Ordering::Relaxed);
        let same = file.metadata().is_ok_and(|metadata| Stamp::of(&metadata) == listed.stamp);
        match result {
            Ok(()) if same => {}
            Err(error) if same => return Err(os_error(&error)),
            _ => return Err(changed(&folder.path_of(index))),
        }
        folder.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        if skip + (bytes.len() as u64) < listed.len_bytes {
            if self.open.len() == MAX_OPEN {
                self.open.pop_front();
            }
            self.open.push_back((index, file));
        }
        Ok(())
    }

    fn take_open(&mut self, index: usize) -> Result<File, IoError> {
        if let Some(at) = self.open.iter().position(|(open, _)| *open == index) {
            return Ok(self.open.remove(at).expect("found above").1);
        }
        let path = self.folder.path_of(index);
        self.folder.opens.fetch_add(1, Ordering::Relaxed);
        File::open(&path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => changed(&path),
            _ => os_error(&error),
        })
    }
}

impl Folder {
    fn path_of(&self, index: usize) -> PathBuf {
        self.root.join(std::ffi::OsStr::from_bytes(&self.listing.files[index].name))
    }
}

fn changed(path: &Path) -> IoError {
    IoError::Changed(path.display().to_string())
}

fn os_error(error: &std::io::Error) -> IoError {
    IoError::Os(error.raw_os_error().unwrap_or(libc::EIO))
}

impl QueuePair for FolderPair {
    fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    fn submit(&mut self, pending: &mut VecDeque<Io>) -> usize {
        let room = usize::from(QUEUE_DEPTH) - self.taken.len();
        let count = room.min(pending.len());
        self.taken.extend(pending.drain(..count));
        count
    }

    fn poll(&mut self, _now: Instant, max: usize, done: &mut Vec<Completion>) -> usize {
        let count = max.min(self.taken.len()).min(BURST);
        for _ in 0..count {
            let mut io = self.taken.pop_front().expect("counted above");
            let result = self.run(&mut io);
            done.push(Completion { tag: io.tag, buf: io.buf, result });
        }
        count
    }

    fn outstanding(&self) -> usize {
        self.taken.len()
    }
}

const BLOCK_LEN_BYTES: u32 = 4096;
const MAX_TRANSFER_BYTES: u32 = 1 << 20;
const QUEUE_DEPTH: u16 = 128;

/// I/Os of one `poll`, so that the caller's clock goes on between slow ones.
const BURST: usize = 8;

/// Files that a queue pair keeps open, of those that it has not read to their end.
const MAX_OPEN: usize = 16;
