//! `dlfs delete`: commits a new generation without some samples.

use std::path::PathBuf;

use clap::Args;

use dlfs::dataset::cataloging;
use dlfs::import::EditOptions;
use dlfs::units::SampleId;

use crate::args::{ConnectionArgs, ImageAddress, Name};
use crate::exit::{Failure, Outcome, read_or_stdin};
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
    #[arg(value_name = "NAME", required_unless_present = "from", value_parser = Name::parser())]
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

pub(crate) fn run(args: DeleteArgs) -> Result<Outcome, Failure> {
    let mut names: Vec<Vec<u8>> = args.names.into_iter().map(|name| name.0).collect();
    if let Some(from) = &args.from {
        names.extend(listed(
            &read_or_stdin("cannot read the names in", from)?,
            if args.null { 0 } else { b'\n' },
        ));
    }
    let options = EditOptions { accept_older_generation: args.accept_older_generation };
    let connect = args.connection.options(true)?;
    let image = &args.image.0;
    let report = if args.ids {
        dlfs::import::delete_ids(image, &ids(&names)?, &options, &connect)?
    } else {
        dlfs::import::delete(image, &names, &options, &connect)?
    };
    cataloging::committed(image, report.generation, &connect, "delete");
    let mut out = Out::new();
    if args.json {
        out.json(&report)?;
    } else {
        out.line(format!(
            "deleted {}: {} is at generation {}, with {}",
            out.bold(&text::counted(report.samples, "sample")),
            args.image.in_short(),
            report.generation,
            text::counted(report.live_samples, "sample"),
        ))?;
    }
    out.end(Outcome::Done)
}

/// The names in `bytes`, each terminated by `end`; the last name may lack the terminator.
fn listed(bytes: &[u8], end: u8) -> impl Iterator<Item = Vec<u8>> {
    let names = bytes.strip_suffix(&[end]).unwrap_or(bytes);
    let is_empty = names.is_empty();
    names.split(move |&byte| byte == end).filter(move |_| !is_empty).map(<[u8]>::to_vec)
}

fn ids(names: &[Vec<u8>]) -> Result<Vec<SampleId>, Failure> {
    let id = |name: &Vec<u8>| {
        let number = std::str::from_utf8(name).ok().and_then(|name| name.trim().parse().ok());
        let wrong = || Failure::Usage(format!("{:?} is not an id", text::safe_name(name)));
        number.map(SampleId).ok_or_else(wrong)
    };
    names.iter().map(id).collect()
}

const EXAMPLES: &str = "\
Examples:
  dlfs delete train.dlfs otter/0001.jpg otter/0002.jpg
  dlfs ls -R0 train.dlfs otter | dlfs delete train.dlfs --from - -0
  dlfs delete train.dlfs --from ids.txt --ids";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_end_with_their_line_and_the_last_one_may_lack_it() {
        let of = |text: &str| listed(text.as_bytes(), b'\n').collect::<Vec<_>>();
        assert_eq!(of(""), Vec::<Vec<u8>>::new());
        assert_eq!(of("a\nb c\n"), [b"a".to_vec(), b"b c".to_vec()]);
        assert_eq!(of("a\n\nb"), [b"a".to_vec(), b"".to_vec(), b"b".to_vec()]);
        assert_eq!(ids(&[b"7".to_vec(), b" 8".to_vec()]).unwrap(), [SampleId(7), SampleId(8)]);
        assert!(ids(&[b"-1".to_vec()]).is_err());
    }
}
