//! `dlfs probe` measures tiers and, if one is given, an image, and writes the table that plans use.

use std::path::PathBuf;

use clap::Args;

use dlfs::cache::{self, Probe, TierSpec};
use dlfs::dataset::{Image, OpenOptions};

use crate::args::{ConnectionArgs, ImageAddress, default_tier};
use crate::exit::{Failure, Outcome, about_file};
use crate::out::Out;

/// Measure tiers and an image for a few seconds, and write the results as TOML
///
/// `dlfs read --tiers-file FILE` reads this file; you may edit it.
#[derive(Debug, Args)]
#[command(after_help = PROBE_EXAMPLES)]
pub(crate) struct ProbeArgs {
    /// The image to measure as the origin: ADDRESS[,ADDRESS...]
    image: Option<ImageAddress>,
    /// A tier to measure: ram:SIZE or file:PATH:SIZE; may be repeated [default: half of the free
    /// memory]
    #[arg(long = "tier", value_name = "TIER")]
    tier: Vec<TierSpec>,
    /// Numbers of threads to measure with, ascending
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values_t = [1, 2, 4],
          value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: Vec<u32>,
    /// Write to FILE instead of standard output
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    connection: ConnectionArgs,
}

pub(crate) fn probe(args: ProbeArgs) -> Result<Outcome, Failure> {
    if !args.threads.is_sorted_by(|a, b| a < b) {
        return Err(Failure::Usage("the numbers of --threads must rise".to_owned()));
    }
    let mut tiers = args.tier;
    if tiers.is_empty() {
        tiers.push(default_tier()?);
    }
    let connect = args.connection.options(false)?;
    let options = OpenOptions { connect, ..OpenOptions::default() };
    let image = args.image.map(|image| Image::open(&image.0, &options)).transpose()?;
    let origin = image.as_ref().map_or(&[][..], Image::devices);
    let environment =
        cache::probe(&tiers, origin, &Probe { threads: args.threads, ..Probe::default() })?;
    let text = environment.to_toml();
    let mut out = Out::new();
    match &args.output {
        Some(file) => {
            std::fs::write(file, text).map_err(|error| about_file("cannot write", file, error))?;
        }
        None => out.line(text.trim_end())?,
    }
    out.end(Outcome::Done)
}

const PROBE_EXAMPLES: &str = "\
Examples:
  dlfs probe --tier ram:4G --tier file:/fast/cache:20G train.dlfs -o tiers.toml
  dlfs read train.dlfs --tiers-file tiers.toml --policy clairvoyant";
