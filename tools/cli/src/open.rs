//! Opens the image that a command line names.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::Args;

use dlfs::Error;
use dlfs::cache::TierOptions;
use dlfs::dataset::{Image, OpenOptions, ViewSource};

use crate::args::{ConnectionArgs, ImageAddress};
use crate::help::opening;

/// The image argument of commands that read.
#[derive(Debug, Clone, Args)]
pub(crate) struct ImageArgs {
    /// The image: ADDRESS[,ADDRESS...], in any order
    #[arg(value_name = "IMAGE", value_parser = ImageAddress::parser())]
    pub(crate) image: ImageAddress,
    #[arg(long, value_name = "FILE")]
    #[arg(help = opening("snapshot", "; one of another generation is refused"))]
    pub(crate) snapshot: Option<PathBuf>,
    #[arg(long, value_name = "FILE[:NAME]")]
    #[arg(help = opening("view", "; NAME: which of several views in FILE"))]
    pub(crate) view: Option<PathBuf>,
}

impl ImageArgs {
    /// Opens the image for reading.
    ///
    /// # Errors
    /// Those of [`Image::open`].
    pub(crate) fn open(&self, connection: &ConnectionArgs) -> Result<Image, Error> {
        self.open_with_tiers(connection, TierOptions::default())
    }

    /// Opens the image for reading through `tiers`.
    ///
    /// # Errors
    /// Those of [`Image::open`].
    pub(crate) fn open_with_tiers(
        &self,
        connection: &ConnectionArgs,
        tiers: TierOptions,
    ) -> Result<Image, Error> {
        let connect = connection.options(false)?;
        let snapshot = self.snapshot.clone();
        let view = self.view.as_deref().map(ViewSource::of_text);
        let options = OpenOptions { connect, snapshot, tiers, view, ..OpenOptions::default() };
        Image::open(&self.image.0, &options)
    }

    /// Opens the image for reading, and reads the samples' names, too.
    ///
    /// # Errors
    /// Those of [`Image::open`] and [`Image::load_names`].
    pub(crate) fn open_with_names(&self, connection: &ConnectionArgs) -> Result<Image, Error> {
        let image = self.open(connection)?;
        image.load_names()?;
        Ok(image)
    }
}

/// The engines in use, each once: `tcp`, `file (io_uring)`.
pub(crate) fn engine(image: &Image) -> String {
    engines(std::iter::once(image))
}

/// The same, of several images.
pub(crate) fn engines<'a>(images: impl Iterator<Item = &'a Image>) -> String {
    let devices = images.flat_map(|image| image.devices());
    let engines: BTreeSet<String> = devices.map(|device| device.namespace().engine).collect();
    engines.into_iter().collect::<Vec<_>>().join(", ")
}
