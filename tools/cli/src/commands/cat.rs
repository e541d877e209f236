//! `dlfs cat`: writes samples to standard output.

use std::ops::Range;

use clap::Args;

use dlfs::dataset::Dataset;
use dlfs::directory::Directory;
use dlfs::reader::{Batch, ReaderOptions};
use dlfs::units::{SampleId, parse_size};
use dlfs::{Error, ErrorKind};

use crate::args::{ConnectionArgs, Name};
use crate::exit::{Failure, Outcome};
use crate::open::ImageArgs;
use crate::out::Out;
use crate::text::safe_name;

/// Write the bytes of samples to standard output
#[derive(Debug, Args)]
pub(crate) struct CatArgs {
    #[command(flatten)]
    image: ImageArgs,
    /// The samples' names, or their ids with --id
    #[arg(value_name = "NAME", required = true, value_parser = Name::parser())]
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

pub(crate) fn run(args: CatArgs) -> Result<Outcome, Failure> {
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

/// Writes `range` of each sample, at most `AT_ONCE` bytes at a time.
fn write_ranges(
    dataset: Dataset,
    ids: &[SampleId],
    field: Option<usize>,
    range: Range<u64>,
) -> Result<Outcome, Failure> {
    let mut out = Out::new();
    let mut bytes = vec![0; AT_ONCE];
    for &id in ids {
        let file = dataset.open_file(id, field, &mut ())?;
        let mut at = range.start;
        let end = range.end.min(file.len_bytes());
        while at < end {
            let len = (end - at).min(AT_ONCE as u64) as usize;
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

/// The most bytes of a sample that are read and written at a time.
const AT_ONCE: usize = 4 << 20;

/// The index of the selected field.
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
/// `NotFound`: there is no such sample.
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
