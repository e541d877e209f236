//! `dlfs rebuild`: rebuilds the directory from chunk headers alone.

use clap::Args;

use dlfs::units::Generation;

use super::import::ImportProgress;
use crate::args::{ConnectionArgs, ImageAddress};
use crate::exit::{Failure, Outcome};
use crate::out::Out;
use crate::text;

/// Rebuild the directory from the headers of the chunks
///
/// For an image whose superblock or directory is damaged. If a bad superblock copy may have
/// committed a newer generation, rebuild searches for that generation; bad copies are repaired.
/// Exit code 3 means that something is lost: samples whose chunks were not found; or, if neither
/// record nor snapshot of the generation is intact, the list of deleted samples (they reappear) and
/// the names of classes.
#[derive(Debug, Args)]
pub(crate) struct RebuildArgs {
    /// The image: ADDRESS[,ADDRESS...], in any order
    #[arg(value_name = "IMAGE", value_parser = ImageAddress::parser())]
    image: ImageAddress,
    /// Read only the headers of chunks newer than GENERATION, where its directory can still be read; else of all
    #[arg(long, value_name = "GENERATION")]
    since: Option<u64>,
    /// Print the report as one line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: ConnectionArgs,
}

pub(crate) fn run(args: RebuildArgs, quiet: bool) -> Result<Outcome, Failure> {
    let mut progress = ImportProgress::start(quiet)?;
    let connect = args.connection.options(true)?;
    let since = args.since.map(Generation);
    let report = dlfs::import::rebuild(&args.image.0, since, &connect, &mut progress)?;
    drop(progress);
    let mut out = Out::new();
    if args.json {
        out.json(&report)?;
    } else {
        out.line(format!(
            "rebuilt {}: generation {}, {} from {}",
            args.image,
            report.generation,
            out.bold(&text::counted(report.live_samples, "sample")),
            text::counted(report.chunks, "chunk header"),
        ))?;
        if args.since.is_some() {
            let base = report.base.map(|base| format!("the directory of generation {base}"));
            let none = "none: no directory that old is left, so all headers were read";
            out.line(format!("  base       {}", base.as_deref().unwrap_or(none)))?;
        }
        if report.mended_copies > 0 {
            let copies = text::counted(report.mended_copies, "superblock copy");
            out.line(format!("  mended     {copies}"))?;
        }
        if report.unreadable_cells > 0 {
            let cells = text::counted(report.unreadable_cells, "cell");
            out.line(format!("  unreadable {cells}: a chunk that begins there is lost"))?;
        }
        if report.lost_samples > 0 {
            let lost = text::counted(report.lost_samples, "sample");
            out.line(format!("  lost       {lost}: their chunks were not found"))?;
        }
        if !report.deletions_known {
            out.line("  deletions  unknown: deleted samples are back, classes have no names")?;
        }
    }
    let is_whole = report.lost_samples == 0 && report.deletions_known;
    out.end(if is_whole { Outcome::Done } else { Outcome::Damaged })
}
