//! An open image: its namespaces in order, and its directory. It connects other modules and decides nothing.
//!
//! [`Image::open`] connects to every address, reads the superblocks, lets [`crate::format::superblock_set`]
//! select the generation, reads the snapshot and keeps the directory. [`Image::reader`] and
//! [`Image::prefetcher`] make readers of its samples. `verify` reads the whole image and reports damage.

use std::sync::Arc;
use std::time::Instant;

use crate::buf::SealedLocation;
use crate::cache::Cache;
use crate::directory::Directory;
use crate::error::{Error, ErrorKind, Result};
use crate::format::Superblock;
use crate::format::origins::{Origin, visit_origins};
use crate::format::superblock_copies::BadCopy;
use crate::peers::Peers;
use crate::prefetch::{LoaderOptions, Prefetcher, Window};
use crate::qpair::Device;
use crate::qpair::folder::FolderNamespace;
use crate::reader::{CHECK_LIMIT, Pump, Reader, ReaderOptions, stale_error};
use crate::store::Store;
use crate::units::SampleId;

use super::directory::{read_names, read_origins};
use super::shared_snapshot::SharedSnapshot;

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
        let read = read_names(&self.directory, &self.superblocks[0], &self.devices);
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
            let read = read_origins(directory, &self.superblocks[0], &self.devices);
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
