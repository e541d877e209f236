//! A plain folder as a read-only namespace: data on a parallel file system, or in an object store, without an import.
//!
//! The offsets of files follow from the sorted listing ([`FolderFile`]); the gaps between files read as zeroes.
//! Directories, tiers and targets use a folder like any other namespace.
//!
//! A file is opened when a read needs it, unless the caller has lent an open one, and closed after its last byte was
//! read. Only files that are read in pieces stay open, a few at a time. Opening, `pread` and closing may block for long
//! on a parallel file system, so threads of the queue pair make these calls (`helpers.rs`), never the polling thread. A
//! read of a file that has changed since it was listed fails with [`IoError::Changed`](super::IoError).
//!
//! Objects under a prefix of a store form a folder, too (`Store`). The same threads wait for the store, and one I/O
//! requests all its byte ranges at once.
//!
//! Read `listing.rs` first, then `FolderReader`, which runs the I/Os.

pub(super) mod helpers;
mod listing;

pub use helpers::helped_pair;
pub use listing::{FOLDER_CELL_BYTES, FolderFile};

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::{
    Capabilities, ConnectOptions, Device, Io, IoError, IoOp, Namespace, PairScope, QueuePair,
};
use dlfs_base::error::{Error, ErrorKind, Result};
use dlfs_base::folders::FolderOptions;
use dlfs_base::metrics::{self, Measured, Snapshot};
use dlfs_base::process::{Forked, mark_ours};
use dlfs_base::registry::Registration;
use dlfs_places::{Client, Pending, Place, PlaceOptions};
use helpers::MAX_THREADS;
use listing::{Listing, Stamp};

/// An open folder, with its listing at the time of opening.
pub struct FolderNamespace {
    folder: Arc<Folder>,
    namespace: Namespace,
    _metered: Registration,
}

/// Counts of files opened and read so far, by all queue pairs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FolderStats<N = u64> {
    /// Files opened.
    pub opens: N,
    /// Reads of files and of objects.
    pub reads: N,
    /// Bytes that these reads returned.
    pub bytes: N,
}

type Counters = FolderStats<AtomicU64>;

/// The state of an open folder that its queue pairs share.
struct Folder {
    /// The absolute path of the folder; of objects their address, for display.
    root: PathBuf,
    /// The store, if the files are objects.
    store: Option<Store>,
    listing: Listing,
    counters: Arc<Counters>,
    /// Files that callers have lent, each with its index; the most recently lent last. Empty in a forked child.
    lent: Forked<Mutex<LentFiles>>,
}

type LentFiles = VecDeque<(usize, Arc<dyn LentFile>)>;

impl FolderNamespace {
    /// Lists the folder `path` and its subfolders. Costs one `stat` for each entry, besides reading the folders.
    ///
    /// # Errors
    /// `NotFound`: the folder does not exist, or has no sample. `Refused`: a folder cannot be read, or a link
    /// must not be followed. `Unsupported`: a file of 4 GiB or more.
    pub fn open(path: impl AsRef<Path>, options: FolderOptions) -> Result<FolderNamespace> {
        let path = path.as_ref();
        let listing = Listing::of(path, options)?;
        // The program may change its working directory.
        let root = std::path::absolute(path).map_err(|error| Error::from(error).path(path))?;
        let address = path.display().to_string();
        Ok(FolderNamespace::of(root, None, listing, address, "folder (pread)".to_owned()))
    }

    /// Lists the objects of a store under `place`, which are then read as files of a folder.
    ///
    /// # Errors
    /// `NotFound`: there is no object. `Refused`, `Disconnected`: errors of the store. `Unsupported`: an object
    /// of 4 GiB or more, or a build without stores.
    pub fn open_objects(place: &Place, options: &ConnectOptions) -> Result<FolderNamespace> {
        let ConnectOptions { places: options, folders, .. } = options;
        let client = Client::open(place, options)?;
        let prefix = match place.key() {
            "" => String::new(),
            key => format!("{}/", key.trim_end_matches('/')),
        };
        let listing = Listing::of_objects(&client, &prefix, folders.hidden)?;
        let address = place.to_string();
        let engine = format!("objects ({})", place.scheme().name());
        let store = Some(Store::new(client, prefix, options));
        Ok(FolderNamespace::of(address.clone().into(), store, listing, address, engine))
    }

    /// The namespace of a listing.
    fn of(
        root: PathBuf,
        store: Option<Store>,
        listing: Listing,
        address: String,
        engine: String,
    ) -> FolderNamespace {
        let max_transfer_bytes =
            if store.is_some() { MAX_OBJECT_TRANSFER_BYTES } else { MAX_TRANSFER_BYTES };
        let namespace = Namespace {
            address,
            block_len_bytes: BLOCK_LEN_BYTES,
            num_blocks: listing.len_bytes / u64::from(BLOCK_LEN_BYTES),
            max_transfer_bytes,
            queue_depth: QUEUE_DEPTH,
            nguid: listing.identity,
            read_only: true,
            engine,
        };
        let counters = Arc::<Counters>::default();
        let metered = Registration::new(&counters);
        let folder = Folder { root, store, listing, counters, lent: Forked::empty() };
        FolderNamespace { folder: Arc::new(folder), namespace, _metered: metered }
    }

    /// The files by ascending offset.
    pub fn files(&self) -> &[FolderFile] {
        &self.folder.listing.files
    }

    /// The names of the class folders; the index of a name is the class of its files.
    pub fn classes(&self) -> &[Vec<u8>] {
        &self.folder.listing.classes
    }

    /// The index of the file whose first byte is at this offset; `None`: no file begins there.
    pub fn index_at(&self, offset_bytes: u64) -> Option<usize> {
        let files = &self.folder.listing.files;
        let first = files.partition_point(|file| file.offset_bytes < offset_bytes);
        // Empty files have the offset of the next file.
        let at = files[first..].iter().position(|file| file.len_bytes > 0)? + first;
        (files[at].offset_bytes == offset_bytes).then_some(at)
    }

    /// Opens the file with this index for reading. `None`: opening failed, the file no longer matches the
    /// listing, or the files are objects.
    pub fn open_listed(&self, index: usize) -> Option<File> {
        let is_folder = self.folder.store.is_none();
        let file = is_folder.then(|| open(&self.folder.path_of(index)).ok()).flatten()?;
        self.is_listed(index, &file).then_some(file)
    }

    /// Returns whether `file` still matches the listing at this index: the same file, length and modification
    /// time.
    pub fn is_listed(&self, index: usize, file: &File) -> bool {
        let listed = &self.folder.listing.files[index];
        file.metadata().is_ok_and(|metadata| Stamp::of(&metadata) == listed.stamp)
    }

    /// Takes a file that the caller has open and lends, so that reads need not open it again: opening is expensive on
    /// a parallel file system. Keeps the last `MAX_LENT` files, each until [`FolderNamespace::take_back`], or until a
    /// read of the file fails or finds that the file no longer matches the listing.
    pub fn lend(&self, index: usize, file: Arc<dyn LentFile>) {
        let mut lent = self.folder.lent.get_or_init(Mutex::default).lock();
        lent.retain(|(other, _)| *other != index);
        if lent.len() == MAX_LENT {
            lent.pop_front();
        }
        lent.push_back((index, file));
    }

    /// Drops the file that was lent for this index.
    pub fn take_back(&self, index: usize) {
        self.folder.drop_lent(index);
    }

    /// Counts of files opened and read so far.
    pub fn stats(&self) -> FolderStats {
        self.folder.counters.read()
    }
}

impl Counters {
    fn read(&self) -> FolderStats {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counters { opens, reads, bytes } = self;
        FolderStats { opens: load(opens), reads: load(reads), bytes: load(bytes) }
    }
}

impl Measured for Counters {
    fn measure(&self, snapshot: &mut Snapshot) {
        let FolderStats { opens, reads, bytes } = self.read();
        snapshot.count(&metrics::FOLDER_OPENS, &[], opens);
        snapshot.count(&metrics::FOLDER_READS, &[], reads);
        snapshot.count(&metrics::FOLDER_READ_BYTES, &[], bytes);
    }
}

impl Device for FolderNamespace {
    fn namespace(&self) -> Namespace {
        self.namespace.clone()
    }

    fn queue_pair_in(&self, _: &PairScope) -> Result<Box<dyn QueuePair>> {
        let folder = Arc::clone(&self.folder);
        let max_threads = if folder.store.is_some() { MAX_STORE_THREADS } else { MAX_THREADS };
        let namespace = self.namespace.clone();
        let reader = FolderReader { folder, namespace, open: Mutex::default() };
        helped_pair(self.namespace.clone(), move |io| reader.run(io), max_threads)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            local_path: self.folder.store.is_none().then(|| self.folder.root.clone()),
            ..Capabilities::default()
        }
    }
}

impl Folder {
    fn path_of(&self, index: usize) -> PathBuf {
        self.root.join(std::ffi::OsStr::from_bytes(&self.listing.files[index].name))
    }

    /// The file that was lent for this index.
    fn lent(&self, index: usize) -> Option<Arc<dyn LentFile>> {
        let lent = self.lent.get()?.lock();
        lent.iter().find(|(other, _)| *other == index).map(|(_, file)| Arc::clone(file))
    }

    fn drop_lent(&self, index: usize) {
        if let Some(lent) = self.lent.get() {
            lent.lock().retain(|(other, _)| *other != index);
        }
    }
}

/// An open file that its owner lends: see [`FolderNamespace::lend`].
pub trait LentFile: Send + Sync {
    /// Calls `work` with the file, unless the owner has closed it. The owner may have replaced the file, so
    /// `work` must check it.
    fn with(&self, work: &mut dyn FnMut(&File));
}

/// Runs the I/Os of one queue pair, on all of its threads.
struct FolderReader {
    folder: Arc<Folder>,
    namespace: Namespace,
    /// Open files that were not read to their end, each with its index; the most recently used last.
    open: Mutex<VecDeque<(usize, Arc<File>)>>,
}

impl FolderReader {
    /// Runs `io`; blocks until the file system or the store has answered.
    fn run(&self, io: &mut Io) -> Result<(), IoError> {
        self.namespace.check(io)?;
        if io.op != IoOp::Read {
            return Ok(());
        }
        let start = io.slba.0 * u64::from(self.namespace.block_len_bytes);
        let end = start + io.buf.len() as u64;
        let files = &self.folder.listing.files;
        // From a store, a pending read for each of the files below.
        let mut requested = match &self.folder.store {
            Some(store) => store.request(files, start..end)?,
            None => VecDeque::new(),
        };
        let first = files.partition_point(|file| file.offset_bytes + file.len_bytes <= start);
        // The end of the bytes of the buffer that are done; those between files become zeroes.
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
            let into = &mut io.buf[from..from + len];
            match requested.pop_front() {
                Some(pending) => self.receive(index, pending, into)?,
                None => self.read(index, skip, into)?,
            }
            done = from + len;
        }
        io.buf[done..].fill(0);
        Ok(())
    }

    /// Waits for the requested bytes of one object.
    fn receive(&self, index: usize, pending: Pending, into: &mut [u8]) -> Result<(), IoError> {
        self.folder.counters.reads.fetch_add(1, Ordering::Relaxed);
        let read = pending.read_into(into);
        read.map_err(|error| store_error(&error, &self.folder.path_of(index)))?;
        self.folder.counters.bytes.fetch_add(into.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Reads bytes of one file from its offset `skip` on: from a lent file, or from one of ours.
    fn read(&self, index: usize, skip: u64, bytes: &mut [u8]) -> Result<(), IoError> {
        if let Some(lent) = self.folder.lent(index) {
            let mut result = Err(IoError::Os(libc::EBADF));
            lent.with(&mut |file| result = self.read_from(file, index, skip, bytes));
            if result.is_ok() {
                return Ok(());
            }
            self.folder.drop_lent(index); // its owner may have closed it
        }
        let file = self.file(index)?;
        self.read_from(&file, index, skip, bytes)?;
        let len = self.folder.listing.files[index].len_bytes;
        let whole = skip == 0 && bytes.len() as u64 == len;
        if !whole {
            let is_at_end = skip + (bytes.len() as u64) == len;
            self.keep(index, (!is_at_end).then_some(file));
        }
        Ok(())
    }

    /// Reads bytes of an open file, which must match the listing after the read.
    fn read_from(
        &self,
        file: &File,
        index: usize,
        skip: u64,
        bytes: &mut [u8],
    ) -> Result<(), IoError> {
        let listed = &self.folder.listing.files[index];
        let result = file.read_exact_at(bytes, skip);
        self.folder.counters.reads.fetch_add(1, Ordering::Relaxed);
        let same = file.metadata().is_ok_and(|metadata| Stamp::of(&metadata) == listed.stamp);
        match result {
            Ok(()) if same => {}
            Err(error) if same => return Err(os_error(&error)),
            _ => return Err(changed(&self.folder.path_of(index))),
        }
        self.folder.counters.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// The file at this index: the one that was kept open, or else one that is opened now.
    fn file(&self, index: usize) -> Result<Arc<File>, IoError> {
        if let Some((_, file)) = self.open.lock().iter().find(|(open, _)| *open == index) {
            return Ok(Arc::clone(file));
        }
        let path = self.folder.path_of(index);
        self.folder.counters.opens.fetch_add(1, Ordering::Relaxed);
        let file = open(&path).map_err(|error| match error.raw_os_error() {
            // The listed file is gone, or something else has taken its place.
            Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP | libc::ENXIO | libc::ENODEV) => {
                changed(&path)
            }
            _ => os_error(&error),
        })?;
        mark_ours(&file);
        Ok(Arc::new(file))
    }

    /// Keeps a file open as the most recently used one. `None`: closes the one that is kept.
    fn keep(&self, index: usize, file: Option<Arc<File>>) {
        let mut open = self.open.lock();
        open.retain(|(other, _)| *other != index);
        let Some(file) = file else { return };
        if open.len() == MAX_OPEN {
            open.pop_front();
        }
        open.push_back((index, file));
    }
}

/// Opens a file. Does not block if a FIFO has replaced the file, whose stamp then differs.
fn open(path: &Path) -> std::io::Result<File> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        // Another process has a lease on the file; a blocking open breaks the lease.
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => File::open(path),
        opened => opened,
    }
}

fn changed(path: &Path) -> IoError {
    IoError::Changed(path.display().to_string())
}

fn os_error(error: &std::io::Error) -> IoError {
    IoError::Os(error.raw_os_error().unwrap_or(libc::EIO))
}

/// The store of a folder of objects.
struct Store {
    place: Place,
    options: PlaceOptions,
    /// The prefix of all files' keys.
    prefix: String,
    /// A forked child has none of the client's threads, so it creates another client.
    client: Forked<Client>,
}

impl Store {
    fn new(client: Client, prefix: String, options: &PlaceOptions) -> Store {
        let place = client.place().clone();
        let options = options.clone();
        Store { place, options, prefix, client: Forked::new(client) }
    }

    /// Requests all bytes of `files` in the range `wanted` of the namespace. Returns a pending read for each file in
    /// the range that is not empty, in order.
    fn request(
        &self,
        files: &[FolderFile],
        wanted: Range<u64>,
    ) -> Result<VecDeque<Pending>, IoError> {
        let client = self.client.get_or_try_init(|| Client::open(&self.place, &self.options));
        let client = client.map_err(|error| IoError::Disconnected(error.report()))?;
        let first =
            files.partition_point(|file| file.offset_bytes + file.len_bytes <= wanted.start);
        let inside = files[first..].iter().take_while(|file| file.offset_bytes < wanted.end);
        let request = |file: &FolderFile| {
            let key = format!("{}{}", self.prefix, String::from_utf8_lossy(&file.name));
            let skip = wanted.start.saturating_sub(file.offset_bytes);
            let end = file.len_bytes.min(wanted.end - file.offset_bytes);
            client.fetch_stamped(&key, file.len_bytes, file.stamp.inode, skip..end)
        };
        Ok(inside.filter(|file| file.len_bytes > 0).map(request).collect())
    }
}

/// The error of an I/O for an error of a store; `name` is the object's name for display.
fn store_error(error: &Error, name: &Path) -> IoError {
    match error.kind() {
        ErrorKind::BadSource | ErrorKind::NotFound => IoError::Changed(name.display().to_string()),
        ErrorKind::Refused => IoError::Os(libc::EACCES),
        ErrorKind::TimedOut => IoError::Os(libc::ETIMEDOUT),
        ErrorKind::OutOfMemory => IoError::Os(libc::ENOMEM),
        _ => IoError::Disconnected(error.report()),
    }
}

const BLOCK_LEN_BYTES: u32 = 4096;
const MAX_TRANSFER_BYTES: u32 = 1 << 20;

/// The transfer limit of objects, higher than that of files: a request to a store takes long, whatever its length.
const MAX_OBJECT_TRANSFER_BYTES: u32 = 4 << 20;

/// The most threads of a queue pair on a store, each of which waits for one I/O.
const MAX_STORE_THREADS: usize = 32;

const QUEUE_DEPTH: u16 = 128;

/// The most lent files that are kept.
const MAX_LENT: usize = 64;

/// The most files that a queue pair keeps open because it has not read them to their end.
const MAX_OPEN: usize = 16;
