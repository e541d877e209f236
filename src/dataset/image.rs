//! An open image: its namespaces in order, and its directory. It connects other modules and decides nothing.
//!
//! [`Image::open`] connects to every address, reads the superblocks, lets [`crate::format::superblock_set`]
//! select the generation, reads the snapshot and keeps the directory. [`Image::reader`] and
//! [`Image::prefetcher`] make readers of its samples. `verify` reads the whole image and reports damage.
//!
//! The directory is read from the snapshot: the columns at once, the lookup tree and the names on demand. Workers of
//! this process map the memory of the snapshot.
//!
//! Views of it are selected, split, saved to a file and opened here, too.

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use super::Dataset;
use crate::buf::{SealedBytes, SealedLocation, SharedBuf};
use crate::cache::Cache;
use crate::directory::{Bytes, Directory};
use crate::error::{Error, ErrorKind, Result, invalid};
use crate::format::record::{Origin, visit_origins};
use crate::format::snapshot::{SNAPSHOT_HEAD_BYTES, SnapshotHead};
use crate::format::superblock::SnapshotLocation;
use crate::format::superblock_set::{BadCopy, SuperblockSet};
use crate::format::{FormatError, Superblock};
use crate::peers::Peers;
use crate::prefetch::{LoaderOptions, Prefetcher, Window};
use crate::qpair::Device;
use crate::qpair::folder::FolderNamespace;
use crate::reader::{CHECK_LIMIT, Pump, RangeReader, Reader, ReaderOptions, Watch, stale_error};
use crate::replace_file::{NewMode, replace_file};
use crate::store::Store;
use crate::units::{ALIGN_BYTES, SampleId};
use crate::view::{Filter, NamedView, Split, SplitBy, VIEW_HEADER_BYTES, View, ViewFile};

/// An open image: one generation of a data set, and its namespaces.
#[derive(Clone)]
pub struct Image {
    /// Sorted by the index in their superblocks.
    pub(super) devices: Vec<Arc<dyn Device>>,
    /// The plain folder, if the image is one.
    pub(super) folder: Option<Arc<FolderNamespace>>,
    pub(super) superblocks: Vec<Superblock>,
    pub(super) bad_copies: Vec<BadCopy>,
    pub(super) directory: Arc<Directory>,
    /// The directory of all samples; equal to `directory` unless this is a view. Tiers and peers serve all samples.
    pub(super) whole: Arc<Directory>,
    /// The snapshot that the directory was decoded from; `None` for a plain folder and for shards.
    pub(super) snapshot: Option<Arc<SharedSnapshot>>,
    /// The cache that the devices are read through, if there are tiers.
    pub(super) cache: Option<Arc<Cache>>,
    /// The other nodes of the job, if the image is read through their caches.
    pub(super) peers: Option<Arc<Peers>>,
    /// The store of this rank, from which its loaders read, if it has one.
    pub(super) store: Option<Arc<Store>>,
}

impl Image {
    /// Makes an image on `devices`, without cache, peers or store.
    pub(super) fn new(
        devices: Vec<Arc<dyn Device>>,
        superblocks: Vec<Superblock>,
        directory: Directory,
    ) -> Image {
        let directory = Arc::new(directory);
        Image {
            devices,
            folder: None,
            superblocks,
            bad_copies: Vec::new(),
            whole: Arc::clone(&directory),
            directory,
            snapshot: None,
            cache: None,
            peers: None,
            store: None,
        }
    }

    /// The namespaces, in the order of the image.
    pub fn devices(&self) -> &[Arc<dyn Device>] {
        &self.devices
    }

    /// The same image on other devices that hold the same bytes in the same order: for benches and tests.
    #[must_use]
    pub fn with_devices(self, devices: Vec<Arc<dyn Device>>) -> Image {
        Image { devices, cache: None, peers: None, store: None, ..self }
    }

    /// The plain folder that the image is, if it is one.
    pub fn folder(&self) -> Option<&FolderNamespace> {
        self.folder.as_deref()
    }

    /// The superblock of each namespace, of the generation that was opened.
    pub fn superblocks(&self) -> &[Superblock] {
        &self.superblocks
    }

    /// Superblock copies that were unusable when the image was opened, even when read again. If one [may be
    /// newer](BadCopy::may_be_newer), a newer generation than this one may exist.
    pub fn bad_superblock_copies(&self) -> &[BadCopy] {
        &self.bad_copies
    }

    /// The directory of the samples.
    pub fn directory(&self) -> &Arc<Directory> {
        &self.directory
    }

    /// Shares the bytes of the directory with other processes of this user on this machine. They open the
    /// image with [`OpenOptions::shared_snapshot`](super::OpenOptions) and map the bytes instead of holding a
    /// copy. The first call copies the bytes; they stay shared until the last handle to this image is
    /// dropped. `None`: the image is a plain folder, which has no snapshot.
    ///
    /// # Errors
    /// Errors of the operating system: no memory, no file descriptor.
    pub fn share_snapshot(&self) -> Result<Option<SealedLocation>> {
        self.snapshot.as_ref().map(|snapshot| snapshot.share()).transpose()
    }

    /// Loads the names, if they are not loaded yet. Lookups and listings need them; training does not.
    ///
    /// # Errors
    /// Errors of reading; `Corrupt`: the names are damaged. `Stale`: the image has a newer generation.
    pub fn load_names(&self) -> Result<()> {
        if self.directory.has_names() {
            return Ok(());
        }
        let directory = &self.directory;
        let location = &self.superblocks[0].snapshot;
        // A later generation may lie here by now; the checksums detect it, unless its tree and names are the same.
        let read = with_head(&self.superblocks[0], &self.devices, |reader, head, damaged| {
            if !directory.has_tree() {
                directory
                    .attach_tree(read_part(reader, location, head.tree_range())?)
                    .map_err(damaged)?;
            }
            directory
                .attach_names(read_part(reader, location, head.names_range())?)
                .map_err(damaged)
        });
        read.map_err(|error| self.or_stale(error))
    }

    /// Calls `visit` with each store object that the image was imported from, including objects whose samples
    /// were deleted. The first call reads them from the image.
    ///
    /// # Errors
    /// Errors of reading, as [`load_names`](Self::load_names).
    pub fn origins(&self, visit: &mut dyn FnMut(Origin)) -> Result<()> {
        let directory = &self.directory;
        if directory.origins().is_err() {
            let location = &self.superblocks[0].snapshot;
            let read = with_head(&self.superblocks[0], &self.devices, |reader, head, damaged| {
                directory
                    .attach_origins(read_part(reader, location, head.origins_range())?)
                    .map_err(damaged)
            });
            read.map_err(|error| self.or_stale(error))?;
        }
        visit_origins(directory.origins()?, |origin| {
            visit(origin);
            Ok(())
        })?;
        Ok(())
    }

    /// `Stale` instead of `Corrupt` if the superblocks are readable and show a newer generation than the open
    /// one.
    fn or_stale(&self, error: Error) -> Error {
        let stale = || {
            let mut pump = Pump::new(&self.devices[..1], 1, false).ok()?;
            stale_error(&mut pump, &self.directory, Instant::now() + CHECK_LIMIT)
        };
        if error.kind() == ErrorKind::Corrupt { stale().unwrap_or(error) } else { error }
    }

    /// The id of the sample called `name`. Loads the names first, if they are not loaded yet.
    ///
    /// # Errors
    /// `NotFound`: there is no such sample. Errors of [`Image::load_names`].
    pub fn lookup(&self, name: &[u8]) -> Result<SampleId> {
        self.load_names()?;
        self.directory.lookup(name)?.ok_or_else(|| {
            let text = format!("there is no sample called {}", name.escape_ascii());
            Error::new(ErrorKind::NotFound, text).hint("dlfs ls lists the names")
        })
    }

    /// A reader of batches by id, which runs on the caller's thread.
    ///
    /// # Errors
    /// Errors of [`Reader::new`].
    pub fn reader(&self, options: ReaderOptions) -> Result<Reader> {
        Reader::new(Arc::clone(&self.directory), self.devices.clone(), options)
    }

    /// Batches along an order, read ahead by a thread of the prefetcher.
    ///
    /// # Errors
    /// Errors of [`Prefetcher::new`].
    pub fn prefetcher(&self, options: LoaderOptions) -> Result<Prefetcher> {
        self.prefetcher_in(options, None)
    }

    /// As [`Image::prefetcher`], in a window that is already allocated for these options.
    pub(crate) fn prefetcher_in(
        &self,
        options: LoaderOptions,
        window: Option<Arc<Window>>,
    ) -> Result<Prefetcher> {
        let options = self.located(options)?;
        self.plan_tiers(&options)?;
        let devices = self.devices_of_run(&options)?;
        Prefetcher::in_window(Arc::clone(&self.directory), devices, options, window)
    }
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Image").field("superblocks", &self.superblocks).finish_non_exhaustive()
    }
}

/// Reads the part of the directory that reads by id need: all but the lookup tree and the names, which are
/// most of the snapshot and which training never needs. Also returns the bytes that the directory was decoded
/// from.
pub(super) fn read_directory(
    opened: &SuperblockSet,
    devices: &[Arc<dyn Device>],
) -> Result<(Directory, Bytes)> {
    let superblock = opened.superblock();
    with_head(superblock, devices, |reader, head, damaged| {
        head.check_committed(superblock).map_err(damaged)?;
        let location = superblock.snapshot;
        let ranges = head.ranges_by_id().map(|range| {
            let clip = |at: u64| at.min(location.len_bytes);
            location.offset_bytes + clip(range.start)..location.offset_bytes + clip(range.end)
        });
        let columns = Bytes::from(reader.read_joined(&ranges)?);
        Ok((Directory::from_ranges_by_id(columns.clone()).map_err(damaged)?, columns))
    })
}

/// Calls `work` with a reader of the snapshot, its head, and a function that turns damaged bytes into errors.
/// Calls it a second time if the data is corrupt, since the damage may be one of transit.
fn with_head<T>(
    superblock: &Superblock,
    devices: &[Arc<dyn Device>],
    mut work: impl FnMut(&mut RangeReader, SnapshotHead, &dyn Fn(FormatError) -> Error) -> Result<T>,
) -> Result<T> {
    let location = superblock.snapshot;
    let device = &devices[usize::from(location.namespace)];
    let damaged =
        |error: FormatError| Error::from(error).target(device.namespace().address).hint(REBUILD);
    let mut read = || {
        let mut reader = RangeReader::new(device)?;
        let head = reader.read(location.offset_bytes, SNAPSHOT_HEAD_BYTES as u64)?;
        work(&mut reader, SnapshotHead::parse(&head).map_err(damaged)?, &damaged)
    };
    match read() {
        Err(error) if error.kind() == ErrorKind::Corrupt => read(),
        result => result,
    }
}

/// Reads a part of a snapshot at any byte offset.
fn read_part(
    reader: &mut RangeReader,
    location: &SnapshotLocation,
    range: Range<u64>,
) -> Result<SharedBuf> {
    let from = range.start.min(location.len_bytes);
    let skip = from % ALIGN_BYTES as u64;
    let len = range.end.min(location.len_bytes).saturating_sub(from - skip);
    Ok(reader.read(location.offset_bytes + from - skip, len)?.slice(skip as usize..))
}

/// The bytes that a directory was decoded from. Sharing copies them once, so that workers need no copies.
#[derive(Debug)]
pub(super) struct SharedSnapshot {
    bytes: Bytes,
    sealed: OnceLock<Arc<SealedBytes>>,
}

impl SharedSnapshot {
    pub(super) fn new(bytes: Bytes) -> SharedSnapshot {
        SharedSnapshot { bytes, sealed: OnceLock::new() }
    }

    /// The directory in the snapshot that another process shares at `location`; `None` unless it is the
    /// snapshot that the image has committed. The snapshot is verified as if it was read from the image, so the
    /// sharing process need not be trusted.
    pub(super) fn open(
        location: &SealedLocation,
        opened: &SuperblockSet,
    ) -> Option<(Directory, SharedSnapshot)> {
        let unused = |error: &dyn std::fmt::Display| {
            tracing::debug!(
                "reading the snapshot from the image, since the shared one is unusable: {error}"
            );
        };
        let sealed = SealedBytes::open(location).map_err(|error| unused(&error)).ok()?;
        let sealed = Arc::new(sealed);
        let bytes = Bytes::from(Arc::clone(&sealed));
        let directory = decode(&bytes, opened).map_err(|error| unused(&error)).ok()?;
        Some((directory, SharedSnapshot { bytes, sealed: sealed.into() }))
    }

    /// Returns the location where other processes find the snapshot, which the first call shares.
    pub(super) fn share(&self) -> Result<SealedLocation> {
        if let Some(sealed) = self.sealed.get() {
            return Ok(sealed.location()?);
        }
        let copy = Arc::new(SealedBytes::of(&self.bytes)?);
        // Another thread may have shared it first.
        Ok(self.sealed.get_or_init(|| copy).location()?)
    }
}

fn decode(bytes: &Bytes, opened: &SuperblockSet) -> Result<Directory, FormatError> {
    let superblock = opened.superblock();
    let head = SnapshotHead::parse(bytes)?;
    head.check_committed(superblock)?;
    // The whole snapshot if it was read from a file, otherwise the part that reads by id need.
    let directory = if bytes.len() as u64 >= head.len_bytes {
        Directory::from_snapshot(bytes.clone())?
    } else {
        Directory::from_ranges_by_id(bytes.clone())?
    };
    directory.check_current(superblock)?;
    Ok(directory)
}

/// A view in a file: `PATH`, or `PATH:NAME` if the file has several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ViewSource {
    /// A file and the name of a view in it; without a name, the file's only view.
    File {
        /// The file.
        path: PathBuf,
        /// The name of the view.
        name: Option<String>,
    },
    /// The bytes of a file with one view.
    Bytes(Vec<u8>),
}

impl ViewSource {
    /// The view that `text` names: a path, optionally followed by a colon and the name of a view in the file.
    /// If `text` is an existing path, the whole of it is the path.
    pub fn of_text(text: &Path) -> ViewSource {
        let split = || {
            let (path, name) = text.to_str()?.rsplit_once(':')?;
            Some((PathBuf::from(path), Some(name.to_owned())))
        };
        let whole = || (text.to_owned(), None);
        let (path, name) = if text.exists() { whole() } else { split().unwrap_or_else(whole) };
        ViewSource::File { path, name }
    }

    /// Opens the view of `image`, which has all samples.
    ///
    /// # Errors
    /// `NotFound`: the file does not exist. `InvalidArgument`: the file has no such view, or a view of
    /// another image. `Stale`: its views belong to another generation. `Corrupt`: the file is damaged.
    /// `Unsupported`: a later release wrote the file.
    pub(super) fn open(&self, image: &Image) -> Result<Image> {
        let view = |bytes: &[u8], name: Option<&str>| {
            let file = ViewFile::from_bytes(bytes, image.directory())?;
            image.viewed(&file.view(name)?.view)
        };
        match self {
            ViewSource::Bytes(bytes) => view(bytes, None),
            ViewSource::File { path, name } => {
                view(&read_file(path)?, name.as_deref()).map_err(|error| error.path(path))
            }
        }
    }
}

impl FromStr for ViewSource {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> std::result::Result<ViewSource, Self::Err> {
        Ok(ViewSource::of_text(Path::new(text)))
    }
}

impl fmt::Display for ViewSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ViewSource::Bytes(bytes) => write!(f, "a view of {} bytes", bytes.len()),
            ViewSource::File { path, name: None } => path.display().fmt(f),
            ViewSource::File { path, name: Some(name) } => write!(f, "{}:{name}", path.display()),
        }
    }
}

/// Writes `views` to a file, atomically: a crash leaves the old file or the new one.
///
/// # Errors
/// `InvalidArgument`: the views differ in image or generation, or a name is invalid; `path` is not a regular
/// file. Errors of the file system.
pub fn save_views(path: &Path, views: Vec<NamedView>) -> Result<()> {
    let file = ViewFile::new(views).map_err(|error| error.path(path))?;
    replace_file(path, NewMode::ByUmask, &file.to_bytes())
}

impl Image {
    /// The samples of `view` alone. Namespaces, tiers and peers are shared with this image, which may itself
    /// be a view. A store is not shared, since it holds the share of other samples.
    ///
    /// # Errors
    /// `InvalidArgument`: the view belongs to another image, or has samples that this image lacks. `Stale`:
    /// the view belongs to another generation.
    pub fn viewed(&self, view: &View) -> Result<Image> {
        let directory = Arc::new(view.directory(&self.directory)?);
        Ok(Image { directory, store: None, ..self.clone() })
    }

    /// The image with all samples: this one, unless it is a view.
    #[must_use]
    pub fn unviewed(&self) -> Image {
        if self.directory.view().is_none() {
            return self.clone();
        }
        Image { directory: Arc::clone(&self.whole), store: None, ..self.clone() }
    }
}

impl Dataset {
    /// The samples that match the expression `text`, as a data set that shares connections, tiers and peers
    /// with this one. [`crate::view`] describes the language. Loads the names if the expression compares
    /// names.
    ///
    /// # Errors
    /// `InvalidArgument`: `text` is not an expression over the columns of this data set (the message gives
    /// the character), or no sample matches. As [`Dataset::load_names`].
    pub fn select(&self, text: &str, watch: &mut dyn Watch) -> Result<Dataset> {
        self.viewed(&self.view_of(text, watch)?)
    }

    /// The view of the samples that match the expression `text`.
    ///
    /// # Errors
    /// As [`Dataset::select`].
    pub(crate) fn view_of(&self, text: &str, watch: &mut dyn Watch) -> Result<View> {
        let filter = Filter::parse(text, self.directory())?;
        if filter.needs_names() {
            self.load_names(watch)?;
        }
        View::select(self.directory(), &filter)
    }

    /// The samples with these ids, which may be in any order and may repeat.
    ///
    /// # Errors
    /// `InvalidArgument`: there are no ids. `NotFound`: the data set has no sample with one of the ids.
    pub fn select_ids(&self, ids: impl IntoIterator<Item = SampleId>) -> Result<Dataset> {
        self.viewed(&View::of_ids(self.directory(), ids)?)
    }

    /// The parts of a keyed split, in the order of its shares. Loads the names if the key is the name.
    ///
    /// # Errors
    /// `InvalidArgument`: a part has no sample. As [`Dataset::load_names`].
    pub fn split(&self, split: &Split, watch: &mut dyn Watch) -> Result<Vec<NamedView>> {
        if split.by() != SplitBy::Id {
            self.load_names(watch)?;
        }
        let views = View::split(self.directory(), split)?;
        let named = views.into_iter().zip(split.shares()).map(|(view, (name, _))| NamedView {
            name: name.clone(),
            made: split.describe(name),
            view,
        });
        Ok(named.collect())
    }

    /// The samples of `view`, as a data set that shares connections, tiers and peers with this one.
    ///
    /// # Errors
    /// As [`Image::viewed`].
    pub fn viewed(&self, view: &View) -> Result<Dataset> {
        Ok(Dataset::from_image(self.image().viewed(view)?, self.0.options.clone()))
    }

    /// All samples of this data set, as a view that can be saved.
    ///
    /// # Errors
    /// `InvalidArgument`: the data set is empty.
    pub fn as_view(&self) -> Result<View> {
        View::whole(self.directory())
    }
}

fn read_file(path: &Path) -> Result<Vec<u8>> {
    let about = |error| Error::of_file("cannot read the views", path, error);
    // Checked before opening, since opening a FIFO waits for its other end.
    if std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        return Err(invalid("views lie in a regular file, and this is not one").path(path));
    }
    let mut file = File::open(path).map_err(about)?;
    let mut bytes = Vec::new();
    file.by_ref().take(VIEW_HEADER_BYTES as u64).read_to_end(&mut bytes).map_err(about)?;
    // The first bytes tell views from a large file named by mistake.
    let len = ViewFile::len_of(&bytes).map_err(|error| error.path(path))?;
    file.take(len.saturating_add(1) - bytes.len() as u64).read_to_end(&mut bytes).map_err(about)?;
    Ok(bytes)
}

/// The hint for a damaged directory.
pub(super) const REBUILD: &str = "dlfs rebuild restores the directory from the chunks";
