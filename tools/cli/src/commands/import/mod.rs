//! `dlfs import`: writes a data set to an image.
//!
//! This file turns arguments into `ImportOptions` and runs the import, which is in `src/import/import/`.
//! `report.rs` prints the report.

mod report;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use dlfs::address::Address;
use dlfs::dataset::cataloging::{self, Origin};
use dlfs::dataset::class_names;
use dlfs::format::Pack;
use dlfs::format::columns::ColumnType;
use dlfs::format::field_type::Element;
use dlfs::import::sources::SourceKind;
use dlfs::import::sources::expansion::DEFAULT_MAX_EXPANSION;
use dlfs::import::{
    ColumnsFrom, FieldColumn, FieldSpec, ImportOptions, ImportReport, OnError, Onto,
    PlacementOrder, RowOptions,
};
use dlfs::places::{Place, PlaceOptions};
use dlfs::qpair::ConnectOptions;
use dlfs::units::parse_size;
use dlfs::{Error, ErrorKind};

use crate::args::{ConnectionArgs, DatasetName, ImageAddress};
use crate::exit::{Failure, Outcome};
use crate::out::{Out, progress};

/// Import folders, tar or WebDataset shards, TFRecords, a list or rows into an image
///
/// Rows are those of Parquet and Arrow files, of the shards of MosaicML Streaming (mds) and LitData, given as their
/// folder or index.json, and lines of JSON Lines (jsonl). Columns become fields: text and bytes as they are, numbers
/// and lists of numbers with their type.
///
/// Documents of tokens are rows with one field, tok: those of Megatron-LM (megatron), given as PREFIX, PREFIX.idx or
/// their folder, and those of raw .bin and .npy files (tokens), with --end-of-document. With --tokenizer, texts of rows
/// become such documents.
///
/// The kind of each source is detected from its content. Files that describe the shards of a folder
/// (README, *.json, *.md, *.idx, _SUCCESS) are set aside, and so are hidden files and what file systems and tools leave
/// behind, of any source, unless --hidden takes them. If a folder mixes shards
/// with other files, or has shards in subfolders, nothing is imported until --from says what to do.
/// The report lists the number of files and bytes of each kind. Shards may be compressed with gzip
/// or zstd (see --spool).
///
/// The image must be a new file or contain only zeroes, unless --append, --resume or --force is
/// given. If some entries cannot be imported, all of them are listed and nothing is imported;
/// --on-error skip imports the rest. Committed samples are durable when the command ends.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, override_usage = "dlfs import [OPTIONS] <SOURCE>... <IMAGE>")]
pub(crate) struct ImportArgs {
    #[command(flatten)]
    spec: ImportSpec,
}

/// The sources, the destination and the options of an import, which `dlfs import-parts plan` takes, too.
#[derive(Debug, Args)]
pub(crate) struct ImportSpec {
    /// The sources, then the image. Sources are folders of class folders, tar or TFRecord shards or files of rows (or
    /// a folder of them), or list files with path<TAB>label on each line; `-` is a pipe with a tar archive. Files,
    /// folders and lists may be in a store: s3://BUCKET/KEY, gs://, az://, https://,
    /// hf://datasets/OWNER/NAME[@REVISION][/PATH]. The image is ADDRESS[,ADDRESS...]; data is striped over all of them
    #[arg(value_names = ["SOURCE", "IMAGE"], required = true, num_args = 1..)]
    places: Vec<PathBuf>,
    /// The kind of the sources. In a folder with other files, a kind of shards or rows selects the files of
    /// that kind, also in subfolders; folder imports each file as one sample
    #[arg(long, value_name = "KIND", default_value = "auto", value_parser = source_kind())]
    from: SourceKind,
    #[command(flatten)]
    onto: OntoArgs,
    /// The order of samples on the media
    #[arg(long, value_enum, default_value_t = PlacementOrder::Shuffled)]
    placement: PlacementOrder,
    /// Seed of the shuffled placement
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Chunk size, a power of two from 64K to 256M
    #[arg(long, value_name = "SIZE", default_value = "4M", value_parser = parse_chunk_size)]
    chunk_size: u32,
    /// Layout of small samples: whether they avoid crossing blocks, at the cost of some padding
    #[arg(long, value_enum, default_value_t = Pack::Aligned)]
    pack: Pack,
    /// Add the image to a catalogue, under this name: dlfs://CATALOGUE/NAME
    #[arg(long, value_name = "NAME")]
    pub(crate) catalog: Option<DatasetName>,
    /// Action on entries that cannot be imported
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = OnError::Stop)]
    on_error: OnError,
    /// Values of the samples, by their names: FILE.csv or .tsv, whose first line names the columns, or .jsonl with an
    /// object on each line. They become typed columns, which dlfs select compares. Of rows also union: files may have
    /// columns that others of them do not have
    #[arg(long, value_name = "FILE")]
    columns: Option<PathBuf>,
    /// The column of FILE with the names of the samples; by default name, file, filename, file_name, path, key or
    /// __key__, or the first one
    #[arg(long, value_name = "NAME", requires = "columns")]
    columns_key: Option<String>,
    /// Take only this column of FILE, with TYPE int, float, f32, bool or str, or that of its values; several times
    #[arg(long, value_name = "NAME[:TYPE]", requires = "columns", value_parser = parse_column)]
    column: Vec<ColumnChoice>,
    /// The type of a field, for example emb:f32[768], tokens:u16[*], cls:i64; several times. Files of the field hold
    /// its elements, little-endian, or what =npy or =text behind TYPE says, as the names of .npy and .cls files do.
    /// FIELD:npy takes the type from the first file
    #[arg(long, value_name = "FIELD:TYPE", value_parser = str::parse::<FieldSpec>)]
    field_type: Vec<FieldSpec>,
    /// A typed column with the values of a field, which is a number or a text: int, float, f32, bool or str; several
    /// times. Without TYPE, that of the field
    #[arg(long, value_name = "[NAME=]FIELD[:TYPE]", value_parser = str::parse::<FieldColumn>)]
    field_column: Vec<FieldColumn>,
    /// The column of the names of the samples, for rows; otherwise a row is called as its file, and its number in it
    #[arg(long, value_name = "COLUMN")]
    name: Option<String>,
    /// The column of the labels, for rows: integers or names of classes; otherwise the only one that the files say to
    /// hold classes, as those of Hugging Face do
    #[arg(long, value_name = "COLUMN")]
    label: Option<String>,
    /// The names of all classes in the order of their numbers, so that several imports number them alike: a text file
    /// with a name on each line, or another image, such as that of the training set. Otherwise those of the source, by
    /// name
    #[arg(long, value_name = "FILE|IMAGE")]
    classes: Option<OsString>,
    /// The columns to take as fields, for rows; otherwise all others, or with the tokens of a text none
    #[arg(long, value_name = "COLUMN", value_delimiter = ',')]
    fields: Vec<String>,
    /// The key that names files beside JSON Lines, which become the field `file`; otherwise file_name, unless
    /// --fields leave it out
    #[arg(long, value_name = "KEY")]
    files: Option<String>,
    /// The type of the tokens in raw files of tokens, such as u16; .npy files say it themselves
    #[arg(long, value_name = "TYPE", requires = "end_of_document", value_parser = parse_element)]
    tokens: Option<Element>,
    /// The token behind each document in raw and .npy files of tokens, which is left out; they are then --from tokens
    #[arg(long, value_name = "TOKEN")]
    end_of_document: Option<u32>,
    /// A tokenizer.json of Hugging Face: the text of each row becomes a document of its tokens, the field tok. Sources
    /// of tokens are only checked: no token may be beyond its vocabulary. The type of the field names it
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// The column of the texts for --tokenizer, of rows; by default text
    #[arg(long, value_name = "COLUMN", requires = "tokenizer")]
    text_field: Option<String>,
    /// The splits to take of hf://datasets/OWNER/NAME, such as train, as the paths of the files say; otherwise all
    /// files
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    split: Vec<String>,
    /// Copy pipes and compressed archives to DIR first, so that they can be read in placement order
    #[arg(long, value_name = "DIR")]
    spool: Option<PathBuf>,
    /// Put the folder, list or shard in front of each name; otherwise a shard comes in front of names that an earlier
    /// one has, and such names of folders are refused
    #[arg(long)]
    prefix: bool,
    /// Take the files of archives within archives as samples, below a folder called as the archive: a class each in
    /// that of ImageNet
    #[arg(long)]
    nested: bool,
    /// The most bytes to make of each that is read, by decompression, by links to a file that was taken already, or of
    /// rows that share values; each of these may make 256 MiB in any case
    #[arg(long, value_name = "TIMES", default_value_t = DEFAULT_MAX_EXPANSION)]
    max_expansion: u64,
    /// Places that lists in a store may name beside their own store, such as s3://BUCKET or https://HOST
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', value_parser = Place::parse)]
    list_hosts: Vec<Place>,
    /// Overwrite a bad superblock copy even if that may lose a newer generation (with --append or
    /// --resume)
    #[arg(long)]
    accept_older_generation: bool,
    /// Print the report as one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) connection: ConnectionArgs,
}

#[derive(Debug, Args)]
#[group(multiple = false)]
struct OntoArgs {
    /// Add the samples to the image, as a new generation
    #[arg(long)]
    append: bool,
    /// Continue an interrupted import, with the options that it began with
    #[arg(long)]
    resume: bool,
    /// Discard whatever the image contains
    #[arg(long)]
    force: bool,
}

/// A column of the file of `--columns`, and the type that it is to have.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ColumnChoice(String, Option<ColumnType>);

pub(crate) fn run(args: ImportArgs, quiet: bool) -> Result<Outcome, Failure> {
    let ImportArgs { spec: args } = args;
    let (sources, image) = args.places()?;
    let mut progress = progress(quiet)?;
    let began = Instant::now();
    let connect = args.connection.options(true)?;
    let mut options = args.options(&connect)?;
    options.places.cancel = progress.cancel();
    let report = dlfs::import::import(sources, &image.0, &options, &connect, &mut progress)
        .map_err(hint_at_resume)?;
    let time = began.elapsed();
    drop(progress);
    args.add_to_catalog(sources, &image, &report, &connect)?;
    Out::answer(args.json, &report::as_json(&report, time), |out| {
        report::print(out, &image, &report, time)
    })
}

/// Adds a hint how to continue an import that has failed: the written data is kept.
fn hint_at_resume(error: Error) -> Error {
    match error.kind() {
        ErrorKind::NoSpace => error.hint(
            "make room, or raise the limit on files (ulimit -f), then run it again with --resume; or begin on a larger \
             namespace",
        ),
        ErrorKind::Disconnected | ErrorKind::TimedOut => {
            error.hint("run it again with --resume when the target is back")
        }
        _ => error,
    }
}

impl ImportSpec {
    /// The sources, and the image, which is the last of the places: clap cannot separate them if options
    /// stand between them.
    ///
    /// # Errors
    /// `Usage`: there is only one place, or the last place is not an address.
    pub(crate) fn places(&self) -> Result<(&[PathBuf], ImageAddress), Failure> {
        let Some((image, sources @ [_, ..])) = self.places.split_last() else {
            return Err(Failure::Usage("name a SOURCE, and behind it the IMAGE".to_owned()));
        };
        let wrong = |error| Failure::Usage(format!("IMAGE {}: {error}", image.display()));
        let addresses = Address::parse_list_os(image.as_os_str()).map_err(wrong)?;
        Ok((sources, ImageAddress(addresses)))
    }

    /// Adds the new generation to the catalogue given by `--catalog`, and to the catalogue of the image's
    /// name.
    fn add_to_catalog(
        &self,
        sources: &[PathBuf],
        image: &ImageAddress,
        report: &ImportReport,
        connect: &ConnectOptions,
    ) -> Result<(), Failure> {
        let made_by = if self.onto.append { "append" } else { "import" };
        cataloging::committed(&image.0, report.generation, connect, made_by);
        let Some(name) = &self.catalog else { return Ok(()) };
        let sources = sources.iter().map(|source| dlfs::places::shown(source)).collect();
        let origin = Origin { made_by: made_by.to_owned(), sources, ..Origin::default() };
        let added = cataloging::add(&name.0, &image.0, connect, origin);
        added.map(drop).map_err(|error| {
            let hint =
                format!("the import is done: add it with dlfs catalog add {} {image}", name.0);
            error.hint(hint).into()
        })
    }

    /// Returns whether `--columns` is `union`, which is not a file name.
    fn is_union(&self) -> bool {
        self.columns.as_deref() == Some(Path::new("union"))
    }

    /// The library's options for these arguments.
    ///
    /// # Errors
    /// The names of classes cannot be read.
    pub(crate) fn options(&self, connect: &ConnectOptions) -> Result<ImportOptions, Error> {
        let classes = self.classes.as_ref().map(|from| class_names(from, connect)).transpose()?;
        Ok(ImportOptions {
            classes: classes.unwrap_or_default(),
            from: self.from,
            onto: match (self.onto.append, self.onto.resume, self.onto.force) {
                (true, _, _) => Onto::Append,
                (_, true, _) => Onto::Resume,
                (_, _, true) => Onto::Force,
                _ => Onto::Empty,
            },
            placement: self.placement,
            seed: self.seed,
            chunk_size_bytes: self.chunk_size,
            pack: self.pack,
            on_error: self.on_error,
            columns: self.columns.as_ref().filter(|_| !self.is_union()).map(|path| ColumnsFrom {
                path: path.clone(),
                key: self.columns_key.clone(),
                only: self
                    .column
                    .iter()
                    .map(|ColumnChoice(name, kind)| (name.clone(), *kind))
                    .collect(),
            }),
            field_columns: self.field_column.clone(),
            field_types: self.field_type.clone(),
            rows: RowOptions {
                name: self.name.clone(),
                label: self.label.clone(),
                fields: self.fields.clone(),
                files: self.files.clone(),
                tokens: self.tokens,
                end_of_document: self.end_of_document,
                tokenizer: self.tokenizer.clone(),
                text: self.text_field.clone(),
                union: self.is_union(),
            },
            splits: self.split.clone(),
            spool: self.spool.clone(),
            folders: self.connection.folders(),
            prefix: self.prefix,
            nested: self.nested,
            max_expansion: self.max_expansion,
            places: PlaceOptions { list_hosts: self.list_hosts.clone(), ..PlaceOptions::default() },
            accept_older_generation: self.accept_older_generation,
            ..ImportOptions::default()
        })
    }
}

/// The parser of a kind of sources.
fn source_kind() -> impl TypedValueParser<Value = SourceKind> {
    PossibleValuesParser::new(SourceKind::ALL.map(SourceKind::name))
        .map(|text| text.parse().expect("these are the names that the library knows"))
}

fn parse_column(text: &str) -> Result<ColumnChoice, String> {
    match text.rsplit_once(':') {
        Some((name, kind)) => Ok(ColumnChoice(name.to_owned(), Some(kind.parse()?))),
        None => Ok(ColumnChoice(text.to_owned(), None)),
    }
}

fn parse_element(text: &str) -> Result<Element, String> {
    Element::named(text)
        .ok_or_else(|| format!("one of {}", Element::ALL.map(Element::name).join(", ")))
}

fn parse_chunk_size(text: &str) -> Result<u32, String> {
    let size = parse_size(text)?;
    u32::try_from(size)
        .ok()
        .filter(|size| size.is_power_of_two() && CHUNK_SIZES.contains(size))
        .ok_or_else(|| "not a power of two from 64K to 256M".to_owned())
}

/// The range of `--chunk-size`, in bytes.
const CHUNK_SIZES: std::ops::RangeInclusive<u32> = (64 << 10)..=(256 << 20);
const EXAMPLES: &str = "\
Examples:
  dlfs import ~/pictures train.dlfs
  dlfs import shards/*.tar train.dlfs --from webdataset
  dlfs import shards/*.tar train.dlfs --field-type emb.npy:f32[768] --field-column class=cls:int
  dlfs import ~/pictures a.dlfs,b.dlfs                                  # striped
  dlfs import ~/pictures nvme-tcp://node1/nqn.2026-11.io.dlfs:train     # of dlfs serve --writable
  dlfs import train-*.parquet train.dlfs --label label
  dlfs import corpus_text_document.idx tokens.dlfs                      # of Megatron-LM
  dlfs import train.bin tokens.dlfs --tokens u16 --end-of-document 50256
  dlfs import c4-*.json.gz tokens.dlfs --from jsonl --tokenizer tokenizer.json
  dlfs import s3://bucket/train train.dlfs                              # credentials as for aws
  dlfs import more/ train.dlfs --append
  dlfs import-parts plan ~/pictures a.dlfs,b.dlfs                       # by many processes";

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: ImportArgs,
    }

    #[test]
    fn options_stand_anywhere_and_the_last_place_is_the_image() {
        for (line, expected) in [
            ("a --force o.dlfs", "a | o.dlfs"),
            ("a b --seed 3 o.dlfs", "a b | o.dlfs"),
            ("a --seed=3 o.dlfs --json", "a | o.dlfs"),
            ("--seed 3 - o.dlfs", "- | o.dlfs"),
            ("a --force -- --b o.dlfs", "a --b | o.dlfs"),
        ] {
            let Line { args } = Line::parse_from(["dlfs"].into_iter().chain(line.split(' ')));
            let Ok((sources, image)) = args.spec.places() else { panic!("{line}") };
            let sources: Vec<_> = sources.iter().map(|source| source.to_string_lossy()).collect();
            assert_eq!(format!("{} | {image}", sources.join(" ")), expected);
        }
        assert!(Line::parse_from(["dlfs", "a"]).args.spec.places().is_err());
        assert!(Line::try_parse_from(["dlfs", "a", "--no-such", "o.dlfs"]).is_err());
    }
}
