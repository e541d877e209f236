//! `dlfs purge`: frees the space of deleted samples.

use clap::Args;

use dlfs::dataset::cataloging;
use dlfs::import::EditOptions;

use super::import::ImportProgress;
use crate::args::{ConnectionArgs, ImageAddress};
use crate::exit::{Failure, Outcome};
use crate::out::Out;
use crate::text;

/// Free the space of deleted samples, as one or more new generations
///
/// Chunks with deleted samples are rewritten without them, into free space. Space is reused two
/// generations later at the earliest; where the new chunks do not fit beside the old ones, the purge
/// commits several generations, and an image file grows by little meanwhile.
///
/// In the end an image file gives back what it no longer needs: its end is cut, and the rest becomes
/// holes. A reader of an earlier generation then has to open the image again.
#[derive(Debug, Args)]
pub(crate) struct PurgeArgs {
    /// The image: ADDRESS[,ADDRESS...], in any order
    #[arg(value_name = "IMAGE", value_parser = ImageAddress::parser())]
    image: ImageAddress,
    /// Overwrite a bad superblock copy even if that may lose a newer generation
    #[arg(long)]
    accept_older_generation: bool,
    /// Print the report as one line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: ConnectionArgs,
}

pub(crate) fn run(args: PurgeArgs, quiet: bool) -> Result<Outcome, Failure> {
    let mut progress = ImportProgress::start(quiet)?;
    let connect = args.connection.options(true)?;
    let options = EditOptions { accept_older_generation: args.accept_older_generation };
    let report = dlfs::import::purge(&args.image.0, &options, &connect, &mut progress)?;
    drop(progress);
    cataloging::committed(&args.image.0, report.generation, &connect, "purge");
    let mut out = Out::new();
    if args.json {
        out.json(&report)?;
    } else if report.chunks == 0 && report.samples == 0 {
        out.line(format!("nothing to purge: {} has no deleted samples", args.image))?;
    } else {
        out.line(format!(
            "purged {} from {}: {} written, {} will be free; generation {}",
            out.bold(&text::counted(report.samples, "sample")),
            args.image,
            text::counted(report.chunks, "chunk"),
            text::bytes(report.freed_bytes),
            report.generation,
        ))?;
    }
    out.end(Outcome::Done)
}
