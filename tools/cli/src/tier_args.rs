//! Tiers on a command line.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use dlfs::cache::{Environment, Probe, TierOptions, TierSpec, probe};
use dlfs::tier::{Policy, Stop};
use dlfs::{Error, ErrorKind};

use crate::help::opening;
use crate::size::parse_size;

/// Options of tiers: where copies of samples are kept, and which.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Tiers")]
pub(crate) struct TierArgs {
    #[arg(long = "tier", value_name = "TIER")]
    #[arg(help = opening(
        "tiers",
        ": ram:SIZE, or file:PATH:SIZE for a folder, file or block device that is empty or an \
         earlier tier, with :overwrite behind it for any other; may be repeated"
    ))]
    tier: Vec<TierSpec>,
    #[arg(long, value_name = "FILE|auto")]
    #[arg(help = opening(
        "tiers_file",
        "; auto: measure those of --tier and put them in order of speed, or without any use half \
         of the free memory"
    ))]
    tiers: Option<PathBuf>,
    #[arg(long, value_enum, value_name = "POLICY")]
    #[arg(help = opening(
        "policy",
        ": what is read first, or what the plan of the whole run names [default: first-touch]"
    ))]
    policy: Option<PolicyArg>,
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    #[arg(help = opening("copy_bandwidth", ", a second"))]
    copy_bandwidth: Option<u64>,
    #[arg(long)]
    #[arg(help = opening("stop_at_first_failure", ", as Monarch does"))]
    stop_at_first_failure: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PolicyArg {
    None,
    FirstTouch,
    Clairvoyant,
}

impl TierArgs {
    /// The library's options for these arguments.
    ///
    /// # Errors
    /// The file of `--tiers` cannot be read or is invalid; a tier cannot be measured.
    pub(crate) fn options(&self) -> Result<TierOptions, Error> {
        let mut options = match &self.tiers {
            None => TierOptions { tiers: self.tier.clone(), ..TierOptions::default() },
            Some(file) if file.as_os_str() == "auto" => {
                probe(&self.tiers_or_memory()?, &[], &Probe::default())?.options()?
            }
            Some(file) => {
                if !self.tier.is_empty() {
                    let text = "--tiers FILE names the tiers, and so does --tier";
                    return Err(Error::new(ErrorKind::InvalidArgument, text));
                }
                Environment::read(file)?.options().map_err(|error| error.path(file))?
            }
        };
        match self.policy {
            None => {}
            Some(PolicyArg::None) => options.policy = Policy::None,
            Some(PolicyArg::FirstTouch) => options.policy = Policy::FirstTouch,
            Some(PolicyArg::Clairvoyant) => options.policy = Policy::Clairvoyant,
        }
        options.bandwidth_bytes_per_s = self.copy_bandwidth.or(options.bandwidth_bytes_per_s);
        if self.stop_at_first_failure {
            options.stop = Stop::AtFirstFailure;
        }
        options.check()?;
        Ok(options)
    }

    fn tiers_or_memory(&self) -> Result<Vec<TierSpec>, Error> {
        if !self.tier.is_empty() {
            return Ok(self.tier.clone());
        }
        Ok(vec![format!("ram:{}", free_memory_bytes()? / 2).parse()?])
    }
}

/// The memory that is available without evicting anything.
pub(crate) fn free_memory_bytes() -> Result<u64, Error> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.map(|kib| kib * 1024).ok_or_else(|| {
        Error::new(ErrorKind::Unsupported, "the system does not say how much memory is free")
            .hint("name the tiers: --tier ram:4G")
    })
}
