//! `dlfs delete`: commits a new generation without some samples.

use clap::Args;
use serde::Serialize;

use dlfs::import::{EditOptions, EditReport};

use crate::args::{ConnectionArgs, ImageAddress, Name};
use crate::exit::{Failure, Outcome};
use crate::out::Out;
use crate::text;

/// Delete samples, as a new generation
///
/// Their bytes stay until `dlfs purge`, so readers of the previous generation are not disturbed. If
/// a name is not in the image, nothing is deleted.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DeleteArgs {
    /// The image: ADDRESS[,ADDRESS...], in any order
    #[arg(value_name = "IMAGE", value_parser = ImageAddress::parser())]
    image: ImageAddress,
    /// The samples' names
    #[arg(value_name = "NAME", required = true, value_parser = Name::parser())]
    names: Vec<Name>,
    /// Overwrite a bad superblock copy even if that may lose a newer generation
    #[arg(long)]
    accept_older_generation: bool,
    /// Print the report as one line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: ConnectionArgs,
}

pub(crate) fn run(args: DeleteArgs) -> Result<Outcome, Failure> {
    let names: Vec<Vec<u8>> = args.names.into_iter().map(|name| name.0).collect();
    let options = EditOptions { accept_older_generation: args.accept_older_generation };
    let connect = args.connection.options(true)?;
    let report = dlfs::import::delete(&args.image.0, &names, &options, &connect)?;
    let mut out = Out::new();
    if args.json {
        out.json(&JsonReport::new(&report))?;
    } else {
        out.line(format!(
            "deleted {}: {} is at generation {}, with {}",
            out.bold(&text::counted(report.samples, "sample")),
            args.image,
            report.generation,
            text::counted(report.live_samples, "sample"),
        ))?;
    }
    out.flush()?;
    Ok(Outcome::Done)
}

/// The JSON report of `delete` and `purge`.
#[derive(Serialize)]
pub(super) struct JsonReport {
    uuid: String,
    generation: u64,
    samples: u64,
    live_samples: u64,
    chunks: u64,
    freed_bytes: u64,
}

impl JsonReport {
    pub(super) fn new(report: &EditReport) -> JsonReport {
        JsonReport {
            uuid: report.uuid.to_string(),
            generation: report.generation.0,
            samples: report.samples,
            live_samples: report.live_samples,
            chunks: report.chunks,
            freed_bytes: report.freed_bytes,
        }
    }
}

const EXAMPLES: &str = "\
Examples:
  dlfs delete train.dlfs otter/0001.jpg otter/0002.jpg
  dlfs ls -R0 train.dlfs otter | xargs -0 dlfs delete train.dlfs";
