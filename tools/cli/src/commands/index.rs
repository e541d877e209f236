//! `dlfs index`: makes the indexes of shards beforehand.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use dlfs::dataset::shard_set;
use dlfs::shards::{Indexed, ShardOptions};

use super::import::ImportProgress;
use crate::args::{ConnectionArgs, ImageAddress};
use crate::exit::{Failure, Outcome};
use crate::out::Out;
use crate::text;

/// Index shards, so that they can be read as they are at once
///
/// Reads tar archives, tables and other shards to their end and keeps an index of each, which --shards then takes.
/// Processes on several machines that index into one place share the work, and each index is made once. A shard that
/// changes later is indexed again.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct IndexArgs {
    /// The shards, or folders and prefixes of shards: ADDRESS[,ADDRESS...]
    #[arg(value_name = "SOURCE", value_parser = ImageAddress::parser())]
    source: ImageAddress,
    /// The place that keeps the indexes: a folder, or a prefix of a store
    #[arg(long, value_name = "PLACE")]
    index: PathBuf,
    /// Print the report as one line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: ConnectionArgs,
}

pub(crate) fn run(args: IndexArgs, quiet: bool) -> Result<Outcome, Failure> {
    let mut progress = ImportProgress::start(quiet)?;
    let mut connect = args.connection.options(false)?;
    connect.places.cancel = progress.cancel();
    let options = ShardOptions { index: Some(args.index), ..ShardOptions::default() };
    let set = shard_set(&args.source.0, &options, &connect, &mut progress)?;
    let Indexed { indexes, made } = set.index(&mut progress)?;
    drop(progress);
    let shards = indexes.len() as u64;
    let samples = indexes.iter().map(|index| index.len() as u64).sum::<u64>();
    let bad: Vec<&str> =
        indexes.iter().flat_map(|index| &index.bad).map(|bad| &*bad.text).collect();
    let mut out = Out::new();
    if args.json {
        out.json(&json!({ "shards": shards, "made": made, "samples": samples, "bad": bad }))?;
    } else {
        out.line(format!(
            "{} with {}; {made} indexed now",
            text::counted(shards, "shard"),
            text::counted(samples, "sample"),
        ))?;
        for bad in bad {
            out.line(format!("  cannot be read: {bad}"))?;
        }
    }
    out.end(Outcome::Done)
}

const EXAMPLES: &str = "\
Examples:
  dlfs index s3://bucket/shards/ --index /shared/index
  dlfs read s3://bucket/shards/ --shards --index /shared/index --order grouped --seed 7";
