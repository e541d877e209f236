//! Maintenance of images and shards.
//!
//! - `dlfs delete` commits a new generation without some samples, and `purge` frees their space.
//! - `rebuild` makes the directory of a damaged image from chunk headers.
//! - `snapshot` saves the directory to a file, so that jobs need not read it from the image, and checks such a file.
//! - `index` makes the indexes of shards before jobs read them.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::json;

use dlfs::address::Address;
use dlfs::dataset::{cataloging, shard_set};
use dlfs::import::{EditOptions, snapshot_check, snapshot_save};
use dlfs::qpair::ConnectOptions;
use dlfs::shards::{Indexed, ShardOptions};
use dlfs::units::{Generation, SampleId};

use crate::args::{ConnectionArgs, ImageAddress, Name};
use crate::exit::{Failure, Outcome, read_or_stdin};
use crate::out::{self, Out, progress};

/// Delete samples, as a new generation
///
/// Their bytes stay until `dlfs purge`, so readers of the previous generation are not disturbed. If
/// a name is not in the image, nothing is deleted.
#[derive(Debug, Args)]
#[command(after_help = DELETE_EXAMPLES)]
pub(crate) struct DeleteArgs {
    /// The image: ADDRESS[,ADDRESS...], in any order
    image: ImageAddress,
    /// The samples' names
    #[arg(value_name = "NAME", required_unless_present = "from")]
    names: Vec<Name>,
    /// A file with more names, one on each line, or - for standard input; their number is not limited
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Names in FILE end with NUL instead of a line feed, as printed by dlfs ls -0
    #[arg(long, short = '0', requires = "from")]
    null: bool,
    /// The names are ids, as dlfs stat prints them
    #[arg(long)]
    ids: bool,
    /// Overwrite a bad superblock copy even if that may lose a newer generation
    #[arg(long)]
    accept_older_generation: bool,
    /// Print the report as one line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: ConnectionArgs,
}

pub(crate) fn delete(args: DeleteArgs) -> Result<Outcome, Failure> {
    let mut names: Vec<Vec<u8>> = args.names.into_iter().map(|name| name.0).collect();
    if let Some(from) = &args.from {
        names.extend(split_names(
            &read_or_stdin("cannot read the names in", from)?,
            if args.null { 0 } else { b'\n' },
        ));
    }
    let options = EditOptions { accept_older_generation: args.accept_older_generation };
    let connect = args.connection.options(true)?;
    let image = &args.image.0;
    let report = if args.ids {
        dlfs::import::delete_ids(image, &parse_ids(&names)?, &options, &connect)?
    } else {
        dlfs::import::delete(image, &names, &options, &connect)?
    };
    cataloging::committed(image, report.generation, &connect, "delete");
    Out::answer(args.json, &report, |out| {
        out.line(format!(
            "deleted {}: {} is at generation {}, with {}",
            out.bold(&out::counted(report.samples, "sample")),
            args.image.in_short(),
            report.generation,
            out::counted(report.live_samples, "sample"),
        ))
    })
}

/// The names in `bytes`, each terminated by `end`; the last name may lack the terminator.
fn split_names(bytes: &[u8], end: u8) -> impl Iterator<Item = Vec<u8>> {
    let names = bytes.strip_suffix(&[end]).unwrap_or(bytes);
    let is_empty = names.is_empty();
    names.split(move |&byte| byte == end).filter(move |_| !is_empty).map(<[u8]>::to_vec)
}

/// Parses names as ids.
fn parse_ids(names: &[Vec<u8>]) -> Result<Vec<SampleId>, Failure> {
    let id = |name: &Vec<u8>| {
        let number = std::str::from_utf8(name).ok().and_then(|name| name.trim().parse().ok());
        let wrong = || Failure::Usage(format!("{:?} is not an id", out::safe_name(name)));
        number.map(SampleId).ok_or_else(wrong)
    };
    names.iter().map(id).collect()
}

const DELETE_EXAMPLES: &str = "\
Examples:
  dlfs delete train.dlfs otter/0001.jpg otter/0002.jpg
  dlfs ls -R0 train.dlfs otter | dlfs delete train.dlfs --from - -0
  dlfs delete train.dlfs --from ids.txt --ids";

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

pub(crate) fn purge(args: PurgeArgs, quiet: bool) -> Result<Outcome, Failure> {
    let connect = args.connection.options(true)?;
    let options = EditOptions { accept_older_generation: args.accept_older_generation };
    let report = dlfs::import::purge(&args.image.0, &options, &connect, &mut progress(quiet)?)?;
    cataloging::committed(&args.image.0, report.generation, &connect, "purge");
    Out::answer(args.json, &report, |out| {
        if report.chunks == 0 && report.samples == 0 {
            let text = format!("nothing to purge: {} has no deleted samples", args.image);
            return out.line(text);
        }
        out.line(format!(
            "purged {} from {}: {} written, {} will be free; generation {}",
            out.bold(&out::counted(report.samples, "sample")),
            args.image,
            out::counted(report.chunks, "chunk"),
            out::bytes(report.freed_bytes),
            report.generation,
        ))
    })
}

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

pub(crate) fn rebuild(args: RebuildArgs, quiet: bool) -> Result<Outcome, Failure> {
    let connect = args.connection.options(true)?;
    let since = args.since.map(Generation);
    let report = dlfs::import::rebuild(&args.image.0, since, &connect, &mut progress(quiet)?)?;
    Out::answer(args.json, &report, |out| {
        out.line(format!(
            "rebuilt {}: generation {}, {} from {}",
            args.image,
            report.generation,
            out.bold(&out::counted(report.live_samples, "sample")),
            out::counted(report.chunks, "chunk header"),
        ))?;
        if args.since.is_some() {
            let base = report.base.map(|base| format!("the directory of generation {base}"));
            let none = "none: no directory that old is left, so all headers were read";
            out.line(format!("  base       {}", base.as_deref().unwrap_or(none)))?;
        }
        for (label, count, noun, what) in [
            ("mended", report.mended_copies, "superblock copy", ""),
            ("unreadable", report.unreadable_cells, "cell", ": a chunk that begins there is lost"),
            ("lost", report.lost_samples, "sample", ": their chunks were not found"),
        ] {
            if count > 0 {
                out.line(format!("  {label:<10} {}{what}", out::counted(count, noun)))?;
            }
        }
        if report.deletions_known {
            return Ok(());
        }
        out.line("  deletions  unknown: deleted samples are back, classes have no names")
    })?;
    let is_whole = report.lost_samples == 0 && report.deletions_known;
    Ok(if is_whole { Outcome::Done } else { Outcome::Damaged })
}

/// Save the directory to a file, or check a saved one
///
/// Commands that read an image accept such a file with --snapshot, and then do not read the
/// directory from the image. A file of another generation is refused.
#[derive(Debug, Subcommand)]
pub(crate) enum SnapshotAction {
    /// Write the directory to FILE, atomically
    Save(FileArgs),
    /// Check that FILE is the directory of the image's current generation
    Check(FileArgs),
}

#[derive(Debug, Args)]
pub(crate) struct FileArgs {
    /// The image: ADDRESS[,ADDRESS...], in any order
    image: ImageAddress,
    /// The file
    file: PathBuf,
    /// Print the result as one line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: ConnectionArgs,
}

pub(crate) fn snapshot(action: SnapshotAction) -> Result<Outcome, Failure> {
    let (args, what, act): (_, _, fn(&[Address], &Path, &ConnectOptions) -> _) = match action {
        SnapshotAction::Save(args) => (args, "saved", snapshot_save),
        SnapshotAction::Check(args) => (args, "current", snapshot_check),
    };
    let report = act(&args.image.0, &args.file, &args.connection.options(false)?)?;
    Out::answer(args.json, &report, |out| {
        out.line(format!(
            "{what}: {} is generation {}, {}, {}",
            args.file.display(),
            report.generation,
            out::counted(report.live_samples, "sample"),
            out::bytes(report.len_bytes),
        ))
    })
}

/// Index shards, so that they can be read as they are at once
///
/// Reads tar archives, tables and other shards to their end and keeps an index of each, which --shards then takes.
/// Processes on several machines that index into one place share the work, and each index is made once. A shard that
/// changes later is indexed again.
#[derive(Debug, Args)]
#[command(after_help = INDEX_EXAMPLES)]
pub(crate) struct IndexArgs {
    /// The shards, or folders and prefixes of shards: ADDRESS[,ADDRESS...]
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

pub(crate) fn index(args: IndexArgs, quiet: bool) -> Result<Outcome, Failure> {
    let mut progress = progress(quiet)?;
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
    let report = json!({ "shards": shards, "made": made, "samples": samples, "bad": bad });
    Out::answer(args.json, &report, |out| {
        out.line(format!(
            "{} with {}; {made} indexed now",
            out::counted(shards, "shard"),
            out::counted(samples, "sample"),
        ))?;
        bad.iter().try_for_each(|bad| out.line(format!("  cannot be read: {bad}")))
    })
}

const INDEX_EXAMPLES: &str = "\
Examples:
  dlfs index s3://bucket/shards/ --index /shared/index
  dlfs read s3://bucket/shards/ --shards --index /shared/index --order grouped --seed 7";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_end_with_their_line_and_the_last_one_may_lack_it() {
        let of = |text: &str| split_names(text.as_bytes(), b'\n').collect::<Vec<_>>();
        assert_eq!(of(""), Vec::<Vec<u8>>::new());
        assert_eq!(of("a\nb c\n"), [b"a".to_vec(), b"b c".to_vec()]);
        assert_eq!(of("a\n\nb"), [b"a".to_vec(), b"".to_vec(), b"b".to_vec()]);
        assert_eq!(
            parse_ids(&[b"7".to_vec(), b" 8".to_vec()]).unwrap(),
            [SampleId(7), SampleId(8)]
        );
        assert!(parse_ids(&[b"-1".to_vec()]).is_err());
    }
}
