//! Samples by name: `dlfs ls` lists the samples and folders of an image, and `cat` writes samples to standard output.
//!
//! `stat.rs` uses the look-up of samples by name or id, and the form of names and values in JSON.

use std::ops::Range;

use clap::Args;
use serde_json::json;

use dlfs::dataset::Dataset;
use dlfs::directory::{Directory, EntryKind};
use dlfs::format::columns::Value;
use dlfs::reader::{Batch, ReaderOptions};
use dlfs::units::{SampleId, parse_size};
use dlfs::{Error, ErrorKind};

use crate::args::{ConnectionArgs, ImageArgs, Name};
use crate::exit::{Failure, Outcome};
use crate::out::{Out, known, safe_name};

/// List samples and folders
///
/// Prints one name per line; folders end with a slash. Control characters and bytes that are not
/// UTF-8 are escaped (\n, \u{1b}, \xff) and backslashes are doubled, so that each line is one name
/// and safe for a terminal; -0 prints names unescaped.
#[derive(Debug, Args)]
#[command(after_help = LS_EXAMPLES)]
pub(crate) struct LsArgs {
    #[command(flatten)]
    image: ImageArgs,
    /// The folder to list, or a sample [default: the top]
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

pub(crate) fn ls(args: LsArgs) -> Result<Outcome, Failure> {
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

/// A listing in progress.
struct Listing<'a> {
    args: &'a LsArgs,
    directory: &'a Directory,
    out: Out,
    /// Entries so far.
    lines: u64,
    /// The error of writing, which ends the listing.
    failed: Option<Failure>,
}

impl Listing<'_> {
    /// Prints a sample or, without an id, a folder. Returns `false` if writing failed: `failed` then has the error.
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

/// The values of a sample in the typed columns; null for a missing value.
pub(crate) fn json_values(
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

/// A name for JSON. If it is not UTF-8, it is escaped, and the second value is its bytes in hexadecimal.
pub(crate) fn json_name(name: &[u8]) -> (String, Option<String>) {
    match std::str::from_utf8(name) {
        Ok(text) => (text.to_owned(), None),
        Err(_) => {
            let hex = name.iter().map(|byte| format!("{byte:02x}")).collect();
            (safe_name(name), Some(hex))
        }
    }
}

const LS_EXAMPLES: &str = "\
Examples:
  dlfs ls train.dlfs
  dlfs ls -l train.dlfs otter
  dlfs ls -R0 train.dlfs | xargs -0 -n 100 dlfs cat train.dlfs > /dev/null";

/// Write the bytes of samples to standard output
#[derive(Debug, Args)]
pub(crate) struct CatArgs {
    #[command(flatten)]
    image: ImageArgs,
    /// The samples' names, or their ids with --id
    #[arg(value_name = "NAME", required = true)]
    names: Vec<Name>,
    /// The field to write, if samples have several
    #[arg(long, value_name = "FIELD")]
    field: Option<String>,
    /// Only these bytes of each sample: START..END, where one may be left out, as in 64M..65M
    #[arg(long, value_name = "RANGE", value_parser = parse_range)]
    range: Option<(u64, u64)>,
    /// The names are ids, counted from 0
    #[arg(long)]
    id: bool,
    #[command(flatten)]
    connection: ConnectionArgs,
}

pub(crate) fn cat(args: CatArgs) -> Result<Outcome, Failure> {
    let image = args.image.open_with_names(&args.connection)?;
    let directory = image.directory();
    let field = choose_field(directory, args.field.as_deref())?;
    let find = |name: &Name| find(directory, &name.0, args.id);
    let ids = args.names.iter().map(find).collect::<Result<Vec<_>, _>>()?;
    if let Some((start, end)) = args.range {
        let field = (!directory.fields().is_empty()).then_some(field);
        return write_ranges(
            Dataset::from_image(image, ReaderOptions::default()),
            &ids,
            field,
            start..end,
        );
    }
    let mut reader = image.reader(ReaderOptions::default())?;
    let mut batch = Batch::new();
    let mut out = Out::new();
    for id in ids {
        reader.read_batch(&[id], &mut batch)?;
        let Some(bytes) = batch.field(0, field)? else {
            let text = "the sample has no such field";
            return Err(Error::new(ErrorKind::NotFound, text).sample(id).into());
        };
        match directory.field_types().of(field) {
            Some(kind) => out.bytes(&kind.to_file(bytes))?,
            None => out.bytes(bytes)?,
        }
    }
    out.end(Outcome::Done)
}

/// Writes `range` of each sample, at most [`MAX_READ_BYTES`] at a time.
fn write_ranges(
    dataset: Dataset,
    ids: &[SampleId],
    field: Option<usize>,
    range: Range<u64>,
) -> Result<Outcome, Failure> {
    let mut out = Out::new();
    let mut bytes = vec![0; MAX_READ_BYTES];
    for &id in ids {
        let file = dataset.open_file(id, field, &mut ())?;
        let mut at = range.start;
        let end = range.end.min(file.len_bytes());
        while at < end {
            let len = (end - at).min(MAX_READ_BYTES as u64) as usize;
            let got = file.read_at(at, &mut bytes[..len], &mut ())?;
            out.bytes(&bytes[..got])?;
            at += got as u64;
        }
    }
    out.end(Outcome::Done)
}

/// Parses START..END, in bytes or with a unit.
fn parse_range(text: &str) -> Result<(u64, u64), String> {
    let Some((start, end)) = text.split_once("..") else {
        return Err("a range is START..END, START.. or ..END".to_owned());
    };
    let side = |text: &str, absent| match text {
        "" => Ok(absent),
        text => parse_size(text),
    };
    Ok((side(start, 0)?, side(end, u64::MAX)?))
}

/// The most bytes of a sample that one read of `cat --range` takes.
const MAX_READ_BYTES: usize = 4 << 20;

/// The index of the field of `--field`, which may be left out if samples have one field.
fn choose_field(directory: &Directory, field: Option<&str>) -> Result<usize, Failure> {
    let fields: Vec<String> = directory.fields().iter().map(|name| safe_name(name)).collect();
    match field {
        None if fields.len() <= 1 => Ok(0),
        None => Err(Failure::Usage(format!(
            "samples have several fields, choose one with --field: {}",
            fields.join(", ")
        ))),
        Some(field) => fields.iter().position(|name| name == field).ok_or_else(|| {
            let known = match fields.as_slice() {
                [] => "samples have one field, without a name".to_owned(),
                fields => format!("there are: {}", fields.join(", ")),
            };
            let text = format!("there is no field {field:?}");
            Error::new(ErrorKind::NotFound, text).hint(known).into()
        }),
    }
}

/// The live sample with this name, or with this id as a decimal string.
///
/// # Errors
/// `NotFound`: there is no such sample. `Usage`: the id is not a number.
pub(crate) fn find(directory: &Directory, name: &[u8], is_id: bool) -> Result<SampleId, Failure> {
    if !is_id {
        return directory.lookup(name)?.ok_or_else(|| {
            let text = format!("no sample is named {}", safe_name(name));
            Error::new(ErrorKind::NotFound, text)
                .hint("dlfs ls IMAGE [FOLDER] lists the names; ids go with --id")
                .into()
        });
    }
    let number = std::str::from_utf8(name).ok().and_then(|text| text.parse().ok());
    let id = number.map(SampleId).ok_or_else(|| {
        Failure::Usage(format!("{} is not an id: ids are numbers from 0", safe_name(name)))
    })?;
    if !directory.is_live(id) {
        let text = format!("there is no sample {id}");
        let hint = format!("ids are below {}, and deleted ones are gone", directory.num_samples());
        return Err(Error::new(ErrorKind::NotFound, text).hint(hint).into());
    }
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_not_utf8_has_its_bytes_in_json_too() {
        assert_eq!(json_name(b"a\nb"), ("a\nb".to_owned(), None));
        assert_eq!(json_name(b"a\xff"), ("a\\xff".to_owned(), Some("61ff".to_owned())));
    }
}
