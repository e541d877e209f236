//! `dlfs ls`: the samples and folders of an image, from the directory in memory.

use clap::Args;
use serde_json::json;

use dlfs::directory::{Directory, EntryKind};
use dlfs::format::columns::Value;
use dlfs::units::SampleId;
use dlfs::{Error, ErrorKind};

use crate::args::{ConnectionArgs, Name};
use crate::exit::{Failure, Outcome};
use crate::open::ImageArgs;
use crate::out::{Out, known};
use crate::text::safe_name;

/// List samples and folders
///
/// Prints one name per line; folders end with a slash. Control characters and bytes that are not
/// UTF-8 are escaped (\n, \u{1b}, \xff) and backslashes are doubled, so that each line is one name
/// and safe for a terminal; -0 prints names unescaped.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct LsArgs {
    #[command(flatten)]
    image: ImageArgs,
    /// The folder to list, or a sample [default: the top]
    #[arg(value_name = "FOLDER", value_parser = Name::parser())]
    folder: Option<Name>,
    /// Also print id, length in bytes and label
    #[arg(short, long)]
    long: bool,
    /// List all samples below the folder, by their full names
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Print names unescaped, each followed by a NUL byte
    #[arg(short = '0', long, conflicts_with_all = ["long", "json"])]
    null: bool,
    /// Print one line of JSON for each entry
    ///
    /// A name that is not UTF-8 is escaped; name_hex then has its bytes.
    #[arg(long, conflicts_with = "long")]
    json: bool,
    #[command(flatten)]
    connection: ConnectionArgs,
}

pub(crate) fn run(args: LsArgs) -> Result<Outcome, Failure> {
    let image = args.image.open_with_names(&args.connection)?;
    let directory = image.directory();
    let folder = args.folder.as_ref().map_or(&b""[..], |name| &name.0);
    let mut listing = Listing { args: &args, directory, out: Out::new(), lines: 0, failed: None };
    if args.recursive {
        directory.for_each_below(folder, &mut |id, name| listing.entry(name, Some(id)))?;
    } else {
        directory.for_each_in(folder, &mut |entry| match entry.kind {
            EntryKind::Folder => listing.entry(&entry.name, None),
            EntryKind::Sample(id) => listing.entry(&entry.name, Some(id)),
        })?;
    }
    listing.finish(folder)
}

struct Listing<'a> {
    args: &'a LsArgs,
    directory: &'a Directory,
    out: Out,
    lines: u64,
    failed: Option<Failure>,
}

/// The values of a sample in the typed columns; null for a missing value.
pub(super) fn json_values(
    directory: &Directory,
    id: SampleId,
) -> serde_json::Map<String, serde_json::Value> {
    let json = |value: Value<'_>| match value {
        Value::None => serde_json::Value::Null,
        Value::Int(number) => number.into(),
        // JSON has no infinity, so it becomes a string.
        Value::Float(number) if number.is_infinite() => number.to_string().into(),
        Value::Float(number) => number.into(),
        Value::Bool(is_true) => is_true.into(),
        Value::Text(text) => text.into(),
    };
    let columns = directory.columns().iter();
    columns.map(|column| (column.name().to_owned(), json(column.get(id.0)))).collect()
}

impl Listing<'_> {
    /// Prints a sample or a folder. Returns whether to go on: not if writing failed, and `failed` then says why.
    fn entry(&mut self, name: &[u8], sample: Option<SampleId>) -> bool {
        self.lines += 1;
        self.failed = self.print(name, sample).err();
        self.failed.is_none()
    }

    fn print(&mut self, name: &[u8], sample: Option<SampleId>) -> Result<(), Failure> {
        let slash = if sample.is_some() { "" } else { "/" };
        if self.args.null {
            return [name, slash.as_bytes(), b"\0"].into_iter().try_for_each(|p| self.out.bytes(p));
        }
        let directory = self.directory;
        let bytes = sample.and_then(|id| directory.len_bytes(id));
        let label = sample.and_then(|id| directory.label(id));
        if self.args.json {
            let kind = if sample.is_some() { "sample" } else { "folder" };
            let (name, name_hex) = json_name(name);
            let columns = sample.map(|id| json_values(directory, id));
            return self.out.json(&known(json!({
                "name": name, "name_hex": name_hex, "kind": kind, "id": sample, "bytes": bytes,
                "label": label, "columns": columns.filter(|columns| !columns.is_empty()),
            })));
        }
        let name = safe_name(name) + slash;
        if !self.args.long {
            return self.out.line(name);
        }
        let cells = [sample.map(|id| id.0 as i64), bytes.map(i64::from), label];
        let [id, bytes, label] =
            cells.map(|number| number.map_or("-".to_owned(), |number| number.to_string()));
        self.out.line(format!("{id:>10} {bytes:>12} {label:>6}  {name}"))
    }

    /// Ends the listing. If a folder was given and nothing is below it, it may itself be a sample, which is then
    /// listed; otherwise it does not exist, which is an error.
    fn finish(mut self, folder: &[u8]) -> Result<Outcome, Failure> {
        if self.lines == 0 && !folder.is_empty() {
            let Some(id) = self.directory.lookup(folder)? else {
                let text = format!("there is no folder or sample {}", safe_name(folder));
                let hint = "dlfs ls IMAGE lists what there is";
                return Err(Error::new(ErrorKind::NotFound, text).hint(hint).into());
            };
            self.entry(folder, Some(id));
        }
        self.failed.map_or_else(|| self.out.end(Outcome::Done), Err)
    }
}

/// A name for JSON: unchanged if it is UTF-8; otherwise escaped, with its bytes in hexadecimal.
pub(crate) fn json_name(name: &[u8]) -> (String, Option<String>) {
    match std::str::from_utf8(name) {
        Ok(text) => (text.to_owned(), None),
        Err(_) => {
            let hex = name.iter().map(|byte| format!("{byte:02x}")).collect();
            (safe_name(name), Some(hex))
        }
    }
}

const EXAMPLES: &str = "\
Examples:
  dlfs ls train.dlfs
  dlfs ls -l train.dlfs otter
  dlfs ls -R0 train.dlfs | xargs -0 -n 100 dlfs cat train.dlfs > /dev/null";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_not_utf8_has_its_bytes_in_json_too() {
        assert_eq!(json_name(b"a\nb"), ("a\nb".to_owned(), None));
        assert_eq!(json_name(b"a\xff"), ("a\\xff".to_owned(), Some("61ff".to_owned())));
    }
}
