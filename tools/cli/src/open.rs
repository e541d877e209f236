//! Opens the image that a command line names.

use std::collections::BTreeSet;

use clap::Args;

use dlfs::Error;
use dlfs::cache::TierOptions;
use dlfs::dataset::{Image, OpenOptions};
use dlfs::options::Open;

use crate::args::{ConnectionArgs, ImageAddress};

/// The image argument of commands that read.
#[derive(Debug, Clone, Args)]
pub(crate) struct ImageArgs {
    /// The image: ADDRESS[,ADDRESS...], in any order
    #[arg(value_name = "IMAGE", value_parser = ImageAddress::parser())]
    pub(crate) image: ImageAddress,
    #[command(flatten)]
    open: Open,
}

impl ImageArgs {
    /// Opens the image for reading.
    ///
    /// # Errors
    /// Errors of [`Image::open`].
    pub(crate) fn open(&self, connection: &ConnectionArgs) -> Result<Image, Error> {
        self.open_with_tiers(connection, TierOptions::default())
    }

    /// Opens the image for reading through `tiers`.
    ///
    /// # Errors
    /// Errors of [`Image::open`].
    pub(crate) fn open_with_tiers(
        &self,
        connection: &ConnectionArgs,
        tiers: TierOptions,
    ) -> Result<Image, Error> {
        Image::open(&self.image.0, &self.options(connection, tiers)?)
    }

    /// The options of opening the image for reading.
    ///
    /// # Errors
    /// Options of the connection that contradict each other.
    pub(crate) fn options(
        &self,
        connection: &ConnectionArgs,
        tiers: TierOptions,
    ) -> Result<OpenOptions, Error> {
        Ok(self.open.options(connection.options(false)?, tiers))
    }

    /// Returns whether the image is shards whose index is kept.
    pub(crate) fn keeps_index(&self) -> bool {
        self.open.shards && self.open.index.is_some()
    }

    /// Opens the image for reading, and loads the samples' names.
    ///
    /// # Errors
    /// Errors of [`Image::open`] and [`Image::load_names`].
    pub(crate) fn open_with_names(&self, connection: &ConnectionArgs) -> Result<Image, Error> {
        let image = self.open(connection)?;
        image.load_names()?;
        Ok(image)
    }
}

/// The engines in use, each named once: `tcp`, `file (io_uring)`.
pub(crate) fn engines<'a>(images: impl Iterator<Item = &'a Image>) -> String {
    let devices = images.flat_map(|image| image.devices());
    let engines: BTreeSet<String> = devices.map(|device| device.namespace().engine).collect();
    engines.into_iter().collect::<Vec<_>>().join(", ")
}
