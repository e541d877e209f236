//! An open image: its namespaces in order, and its directory. It connects other modules and decides nothing.
//!
//! [`Image::open`] (`open.rs`) connects to every address, reads the superblocks, lets [`crate::format::superblock_set`]
//! select the generation, reads the snapshot and keeps the directory. [`Image::reader`] and
//! [`Image::prefetcher`] make readers of its samples. [`Image::verify`] reads the whole image and reports damage.
//!
//! The directory is read from the snapshot: the columns at once, the lookup tree, the names and the origins on demand.
//! Worker processes can map the bytes of the snapshot instead of reading them again ([`Image::share_snapshot`]).

use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use crate::buf::{SealedBytes, SealedLocation, SharedBuf};
use crate::cache::Cache;
use crate::directory::{Bytes, Directory};
use crate::error::{Error, ErrorKind, Result};
use crate::format::record::{Origin, visit_origins};
use crate::format::snapshot::{SNAPSHOT_HEAD_BYTES, SnapshotHead};
use crate::format::superblock::SnapshotLocation;
use crate::format::superblock_set::{BadCopy, SuperblockSet};
use crate::format::{FormatError, Superblock};
use crate::peers::Peers;
use crate::prefetch::{LoaderOptions, Prefetcher, Window};
use crate::qpair::Device;
use crate::qpair::folder::FolderNamespace;
use crate::reader::{CHECK_LIMIT, Pump, RangeReader, Reader, ReaderOptions, stale_error};
use crate::store::Store;
use crate::units::{ALIGN_BYTES, SampleId};

/// An open image: one generation of a data set, and its namespaces.
#[derive(Clone)]
pub struct Image {
    /// A device for each namespace, by the index in its superblock. With tiers or peers, the device reads through them.
    pub(super) devices: Vec<Arc<dyn Device>>,
    /// The plain folder, if the image is one.
    pub(super) folder: Option<Arc<FolderNamespace>>,
    /// The superblock of each namespace.
    pub(super) superblocks: Vec<Superblock>,
    /// Superblock copies that were unusable at opening.
    pub(super) bad_copies: Vec<BadCopy>,
    /// The directory of the samples: all, or those of a view.
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
    /// dropped. `None`: the image is a plain folder or shards, which have no snapshot.
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
        // A later generation may have overwritten the snapshot. The checksums detect that, unless its tree and names
        // are the same.
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
    /// Errors of [`Prefetcher::new`]. `InvalidArgument`, `Unsupported`: peers, tiers or the store do not suit the
    /// options.
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

/// Reads the columns of the directory, which reads by id need. The lookup tree, the names and what lies behind them in
/// the snapshot are read later, if at all. Also returns the bytes that the directory was decoded from.
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

/// Decodes the directory of a snapshot, and checks that the image has committed the snapshot.
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

/// The hint for a damaged directory.
pub(super) const REBUILD: &str = "dlfs rebuild restores the directory from the chunks";
