//! An image, opened: its namespaces in order, and its directory. Wires the parts; decides nothing.
//!
//! [`Image::open`] connects to every address, reads the superblocks, lets [`crate::format::superblock_set`]
//! judge them, reads the snapshot and keeps the directory. [`Image::reader`] and [`Image::prefetcher`]
//! make what reads samples from it. `verify` reads everything there is and says what is damaged.

use std::sync::Arc;
use std::time::Instant;

use crate::cache::Cache;
use crate::directory::Directory;
use crate::error::{Error, ErrorKind, Result};
use crate::format::Superblock;
use crate::format::superblock_copies::BadCopy;
use crate::prefetch::{LoaderOptions, Prefetcher, Window};
use crate::qpair::Device;
use crate::reader::{CHECK_LIMIT, Pump, Reader, ReaderOptions, stale_error};
use crate::units::SampleId;

use super::directory::read_names;

/// An opened image: one generation of a data set, and the namespaces that it lies on.
#[derive(Clone)]
pub struct Image {
    /// By the index that the superblocks give them.
    pub(super) devices: Vec<Arc<dyn Device>>,
    pub(super) superblocks: Vec<Superblock>,
    pub(super) bad_copies: Vec<BadCopy>,
    pub(super) directory: Arc<Directory>,
    /// What the devices are read through, if there are tiers.
    pub(super) cache: Option<Arc<Cache>>,
}

impl Image {
    /// The namespaces, in the order of the image.
    pub fn devices(&self) -> &[Arc<dyn Device>] {
        &self.devices
    }

    /// The same image on other devices with the same bytes, for benches and tests: in the same order.
    #[must_use]
    pub fn with_devices(self, devices: Vec<Arc<dyn Device>>) -> Image {
        Image { devices, cache: None, ..self }
    }

    /// The superblock of each namespace, of the generation that was opened.
    pub fn superblocks(&self) -> &[Superblock] {
        &self.superblocks
    }

    /// Superblock copies that could not be used when the image was opened, also when they were read
    /// again. With one that [may be newer](BadCopy::may_be_newer), this may not be the newest
    /// generation.
    pub fn bad_superblock_copies(&self) -> &[BadCopy] {
        &self.bad_copies
    }

    /// Where every sample lies.
    pub fn directory(&self) -> &Arc<Directory> {
        &self.directory
    }

    /// Reads the names, if they were left on the media: they are needed to look samples up and to
    /// list folders, not to train.
    ///
    /// # Errors
    /// Those of reading; `Corrupt`: the names are damaged. `Stale`: the image has moved on.
    pub fn load_names(&self) -> Result<()> {
        if self.directory.has_names() {
            return Ok(());
        }
        let read = read_names(&self.directory, &self.superblocks[0], &self.devices);
        read.map_err(|error| match error.kind() {
            ErrorKind::Corrupt => self.stale().unwrap_or(error),
            _ => error,
        })
    }

    /// `Stale` where the image has moved on since it was opened, if that can be seen.
    fn stale(&self) -> Option<Error> {
        let mut pump = Pump::new(&self.devices[..1], 1, false).ok()?;
        stale_error(&mut pump, &self.directory, Instant::now() + CHECK_LIMIT)
    }

    /// The sample called `name`, whose names are loaded for it if need be.
    ///
    /// # Errors
    /// `NotFound`: there is no such sample. Those of [`Image::load_names`].
    pub fn lookup(&self, name: &[u8]) -> Result<SampleId> {
        self.load_names()?;
        self.directory.lookup(name)?.ok_or_else(|| {
            let text = format!("there is no sample called {}", name.escape_ascii());
            Error::new(ErrorKind::NotFound, text).hint("dlfs ls shows what there is")
        })
    }

    /// A reader of batches by id, on the caller's thread.
    ///
    /// # Errors
    /// Those of [`Reader::new`].
    pub fn reader(&self, options: ReaderOptions) -> Result<Reader> {
        Reader::new(Arc::clone(&self.directory), self.devices.clone(), options)
    }

    /// Batches along an order, read ahead by a thread of their own.
    ///
    /// # Errors
    /// Those of [`Prefetcher::new`].
    pub fn prefetcher(&self, options: LoaderOptions) -> Result<Prefetcher> {
        self.prefetcher_in(options, None)
    }

    /// As [`Image::prefetcher`], in a window that was made for these options.
    pub(crate) fn prefetcher_in(
        &self,
        options: LoaderOptions,
        window: Option<Arc<Window>>,
    ) -> Result<Prefetcher> {
        self.plan_tiers(&options)?;
        Prefetcher::in_window(Arc::clone(&self.directory), self.devices.clone(), options, window)
    }
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Image").field("superblocks", &self.superblocks).finish_non_exhaustive()
    }
}
