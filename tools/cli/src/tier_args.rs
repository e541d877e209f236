//! Options for tiers.

use std::path::Path;

use dlfs::cache::{Probe, TierOptions, probe};
use dlfs::options::Tiers;
use dlfs::{Error, ErrorKind};

/// The tiers in `given`, on `node`.
///
/// # Errors
/// The file of `--tiers-file` cannot be read or is invalid; a tier cannot be measured.
pub(crate) fn tiers(given: &Tiers, node: Option<String>) -> Result<TierOptions, Error> {
    if given.tiers_file.as_deref() != Some(Path::new("auto")) {
        if given.tiers_file.is_some() && !given.tiers.is_empty() {
            let text = "--tiers-file names the tiers, and so does --tier: give one of both";
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        return given.options(node);
    }
    let mut specs = given.specs()?;
    if specs.is_empty() {
        specs.push(format!("ram:{}", free_memory_bytes()? / 2).parse()?);
    }
    given.with(probe(&specs, &[], &Probe::default())?.options()?, node)
}

/// The memory that programs can get without swapping.
pub(crate) fn free_memory_bytes() -> Result<u64, Error> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.map(|kib| kib * 1024).ok_or_else(|| {
        Error::new(ErrorKind::Unsupported, "the system does not say how much memory is free")
            .hint("name the tiers: --tier ram:4G")
    })
}
