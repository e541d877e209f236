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
    /// Take the sizes of the files below this folder instead of random ones
    #[arg(long)]
    folder: Option<PathBuf>,
    /// Take the sizes of the samples of this data set from its directory: ADDRESS[,ADDRESS...]
    #[arg(long, value_name = "IMAGE", conflicts_with = "folder")]
    dataset: Option<String>,
}

impl InputArgs {
    /// `config` with the measured tiers.
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
        self.tiers.is_some() || self.has_sizes()
    }

    /// Returns whether real samples were given.
    pub(crate) fn has_sizes(&self) -> bool {
        self.folder.is_some() || self.dataset.is_some()
    }

    /// The sizes of all samples in bytes: real ones, or those that `config` draws.
    pub(crate) fn sizes(&self, config: &Config) -> Result<Vec<u32>, Failure> {
        let (sizes, place) = match (&self.folder, &self.dataset) {
            (Some(folder), _) => (sizes_below(folder)?, folder.display().to_string()),
            (_, Some(dataset)) => (sizes_of_image(dataset)?, dataset.clone()),
            (None, None) => return Ok(config.dataset.sizes(config.training.seed)?),
        };
        if sizes.is_empty() { Err(format!("{place} has no sample").into()) } else { Ok(sizes) }
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

/// Sizes of all files below `folder`, in the order of their paths.
fn sizes_below(folder: &Path) -> Result<Vec<u32>, Failure> {
    let mut sizes = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let fail = |error: std::io::Error| format!("{}: {error}", folder.display());
        for entry in std::fs::read_dir(&folder).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let metadata = entry.metadata().map_err(fail)?;
            if metadata.is_dir() {
                folders.push(entry.path());
            } else if metadata.is_file() {
                let size = u32::try_from(metadata.len())
                    .map_err(|_| format!("{} is larger than 4 GiB", entry.path().display()))?;
                sizes.push((entry.path(), size));
            }
        }
    }
    sizes.sort();
    Ok(sizes.into_iter().map(|(_, size)| size).collect())
}
