//! `dlfs snapshot`: saves the directory to a file, so that jobs need not read it from the image.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use dlfs::address::Address;
use dlfs::import::{snapshot_check, snapshot_save};
use dlfs::qpair::ConnectOptions;

use crate::args::{ConnectionArgs, ImageAddress};
use crate::exit::{Failure, Outcome};
use crate::out::Out;
use crate::text;

/// Save the directory to a file, or check a saved one
///
/// Commands that read an image accept such a file with --snapshot, and then do not read the
/// directory from the image. A file of another generation is refused.
#[derive(Debug, Args)]
pub(crate) struct SnapshotArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Write the directory to FILE, atomically
    Save(FileArgs),
    /// Check that FILE is the directory of the image's current generation
    Check(FileArgs),
}

#[derive(Debug, Args)]
struct FileArgs {
    /// The image: ADDRESS[,ADDRESS...], in any order
    #[arg(value_name = "IMAGE", value_parser = ImageAddress::parser())]
    image: ImageAddress,
    /// The file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print the result as one line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: ConnectionArgs,
}

pub(crate) fn run(args: SnapshotArgs) -> Result<Outcome, Failure> {
    let (args, what, act): (_, _, fn(&[Address], &Path, &ConnectOptions) -> _) = match args.action {
        Action::Save(args) => (args, "saved", snapshot_save),
        Action::Check(args) => (args, "current", snapshot_check),
    };
    let report = act(&args.image.0, &args.file, &args.connection.options(false)?)?;
    let mut out = Out::new();
    if args.json {
        out.json(&report)?;
    } else {
        out.line(format!(
            "{what}: {} is generation {}, {}, {}",
            args.file.display(),
            report.generation,
            text::counted(report.live_samples, "sample"),
            text::bytes(report.len_bytes),
        ))?;
    }
    out.end(Outcome::Done)
}
