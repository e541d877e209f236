//! `dlfs select` chooses samples by an expression, by ids and by keyed splits, and saves them as views.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;

use dlfs::dataset::{Dataset, save_views};
use dlfs::units::SampleId;
use dlfs::view::{NamedView, Split, SplitBy};

use crate::args::{ConnectionArgs, ImageArgs};
use crate::exit::{Failure, Outcome, read_or_stdin};
use crate::out::{self, Out};

/// Choose samples, and save them as a view
///
/// A view is a part of one generation of an image: `dlfs read --view FILE` reads it as a data set of its
/// own, as do ls, cat, export, mount and others, Python and C. Only the directory is read.
///
/// EXPR compares the columns id, label, len (in bytes), name and those of dlfs import --columns, such as
/// 'label in (3, 7) and len < 4K', 'name glob "train/*.jpg"' or 'width >= 512 and lang == "de"'; a label is a
/// number or, in quotes, the name of a class. With and, or, not, parentheses; == != < <= > >= in glob. Without
/// EXPR and --ids: all samples.
///
/// --split divides the samples by a keyed hash of each, so that a sample stays in its part when others
/// are appended or deleted.
#[derive(Debug, Args)]
#[command(after_help = SELECT_EXAMPLES)]
pub(crate) struct SelectArgs {
    #[command(flatten)]
    image: ImageArgs,
    /// The samples to select: an expression over id, label, len, name and typed columns
    #[arg(value_name = "EXPR")]
    expression: Option<String>,
    /// A file with ids to select, one on each line, or - for standard input; those that fit EXPR
    #[arg(long, value_name = "FILE")]
    ids: Option<PathBuf>,
    /// Divide the selected samples: NAME=SHARE,... with shares that sum to 1; of a single one, the others
    /// are called rest
    #[arg(long, value_name = "SHARES")]
    split: Option<String>,
    /// The same seed splits in the same way
    #[arg(long, value_name = "S", default_value_t = 0, requires = "split")]
    seed: u64,
    /// The property that is hashed
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = SplitBy::Id, requires = "split")]
    by: SplitBy,
    /// Save the views in FILE
    #[arg(long, short, value_name = "FILE")]
    out: Option<PathBuf>,
    /// The name of the view in FILE
    #[arg(long, value_name = "NAME", default_value = "selected", conflicts_with = "split")]
    name: String,
    /// Print the report as one line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: ConnectionArgs,
}

pub(crate) fn select(args: SelectArgs) -> Result<Outcome, Failure> {
    let split = args.split.as_deref().map(|text| Split::parse(text, args.seed, args.by));
    let split = split.transpose().map_err(|error| Failure::Usage(format!("--split: {error}")))?;
    let whole = args.image.open_dataset(&args.connection)?;
    let mut selected = whole.clone();
    let mut made = Vec::new();
    if let Some(from) = &args.ids {
        selected = selected.select_ids(read_ids(from)?)?;
        made.push("listed ids".to_owned());
    }
    if let Some(expression) = &args.expression {
        selected = selected.select(expression, &mut ())?;
        made.push(expression.clone());
    }
    let made = made.join(" and ");
    let views = match &split {
        None => vec![NamedView { name: args.name.clone(), made, view: selected.as_view()? }],
        Some(split) => {
            let mut parts = selected.split(split, &mut ())?;
            if !made.is_empty() {
                parts.iter_mut().for_each(|part| part.made = format!("{made}; {}", part.made));
            }
            parts
        }
    };
    if let Some(path) = &args.out {
        save_views(path, views.clone())?;
    }
    print(&args, &whole, &views)
}

/// Prints the views, with the number of samples and the hash of each.
fn print(args: &SelectArgs, whole: &Dataset, views: &[NamedView]) -> Result<Outcome, Failure> {
    let hash = |named: &NamedView| format!("{:032x}", u128::from_be_bytes(named.view.hash()));
    let facts = |named: &NamedView| {
        json!({
            "name": named.name,
            "samples": named.view.len(),
            "hash": hash(named),
            "made": out::safe_name(named.made.as_bytes()),
        })
    };
    let facts = json!({
        "uuid": whole.directory().uuid().to_string(),
        "generation": whole.directory().generation().0,
        "samples": whole.len(), // the samples to select from
        "views": views.iter().map(facts).collect::<Vec<_>>(),
    });
    Out::answer(args.json, &facts, |out| {
        let all = out::counted(whole.len(), "sample");
        for named in views {
            let samples = out::count(named.view.len());
            let name = out.bold(&named.name);
            out.line(format!("{name}: {samples} of {all}, view {}", hash(named)))?;
        }
        match &args.out {
            Some(path) => out.line(format!("saved in {}", path.display())),
            None => out.line("not saved: --out FILE saves them"),
        }
    })
}

/// The ids in a file, one on each line. Empty lines are skipped.
fn read_ids(from: &Path) -> Result<Vec<SampleId>, Failure> {
    let bytes = read_or_stdin("cannot read the ids in", from)?;
    let text = String::from_utf8_lossy(&bytes); // a line that is not UTF-8 is not an id
    let id = |(at, line): (usize, &str)| {
        let wrong = || {
            let line = out::safe_name(line.as_bytes());
            let from = from.display();
            Failure::Usage(format!("{from}, line {}: {line:?} is not an id", at + 1))
        };
        line.trim().parse().map(SampleId).map_err(|_| wrong())
    };
    text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).map(id).collect()
}

const SELECT_EXAMPLES: &str = "\
Examples:
  dlfs select train.dlfs 'label in (3, 7) and len < 4096' --out few.view
  dlfs select train.dlfs --split train=0.9,val=0.1 --seed 1 --out parts.view
  dlfs read train.dlfs --view parts.view:train --order global
  dlfs select train.dlfs 'name glob \"n01*\"' --view parts.view:val --out some.view";
