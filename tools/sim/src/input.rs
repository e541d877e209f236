//! Input on the command line: the machines' file, measured tiers, and the sizes of real samples.

use std::path::{Path, PathBuf};

use clap::Args;
use dlfs::address::Address;
use dlfs::dataset::{Image, OpenOptions};
use dlfs_sim::environment::Config;

use crate::Failure;

/// The source of machines and sizes, beside the configuration.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct InputArgs {
    /// Take the tiers, and the origin if it was measured, from FILE, as written by `dlfs probe`
    #[arg(long, value_name = "FILE")]
    tiers: Option<PathBuf>,
    /// Take the sizes of the samples of this data set instead of random ones: ADDRESS[,ADDRESS...], or a plain folder
    #[arg(long, value_name = "IMAGE")]
    pub(crate) dataset: Option<String>,
}

impl InputArgs {
    /// `config` with the measured tiers and, if measured, the origin.
    pub(crate) fn machines(&self, config: Config) -> Result<Config, Failure> {
        let Some(file) = &self.tiers else { return Ok(config) };
        let probed = dlfs::cache::Environment::parse(&read(file)?)
            .map_err(|error| format!("{}: {}", file.display(), error.report()))?;
        if probed.copy_bandwidth.is_some() {
            eprintln!("dlfs-sim: copy_bandwidth is not simulated: copying takes what is free");
        }
        let environment = config.environment.with_probed(&probed)?;
        Ok(Config { environment, ..config })
    }

    /// Returns whether any input was given.
    pub(crate) fn is_given(&self) -> bool {
        self.tiers.is_some() || self.dataset.is_some()
    }

    /// The sizes of all samples in bytes: real sizes, or sizes drawn by `config`.
    pub(crate) fn sizes(&self, config: &Config) -> Result<Vec<u32>, Failure> {
        let Some(dataset) = &self.dataset else {
            return Ok(config.dataset.sizes(config.training.seed)?);
        };
        let sizes = sizes_of_image(dataset)?;
        if sizes.is_empty() { Err(format!("{dataset} has no sample").into()) } else { Ok(sizes) }
    }
}

/// Reads a configuration file.
pub(crate) fn read_config(path: &Path) -> Result<Config, Failure> {
    let text = read(path)?;
    Ok(toml::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?)
}

fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()).into())
}

/// Sizes of the live samples of an image, in the order of their ids.
fn sizes_of_image(addresses: &str) -> Result<Vec<u32>, Failure> {
    let fail = |error: dlfs::Error| format!("{addresses}: {}", error.report());
    let image =
        Image::open(&Address::parse_list(addresses)?, &OpenOptions::default()).map_err(fail)?;
    let directory = image.directory();
    let ids = (0..directory.num_live()).map(|rank| directory.id_of_live(rank));
    Ok(ids.map(|id| directory.len_bytes(id).unwrap_or(0)).collect())
}
