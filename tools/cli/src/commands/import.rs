//! `dlfs import`: writes a data set to an image.
//!
//! This file turns arguments into `ImportOptions`, shows the progress and prints the report. The import itself is in
//! `src/import/import/`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde_json::{Map, Value, json};

use dlfs::address::Address;
use dlfs::dataset::cataloging::{self, Origin};
use dlfs::dataset::class_names;
use dlfs::format::Pack;
use dlfs::format::columns::ColumnType;
use dlfs::format::field_type::Element;
use dlfs::import::sources::expansion::DEFAULT_MAX_EXPANSION;
use dlfs::import::sources::{BadEntry, FileCount, Role, SourceKind};
use dlfs::import::{
    ColumnsFrom, FieldColumn, FieldSpec, ImportOptions, ImportReport, OnError, Onto,
    PlacementOrder, Progress, RowOptions, Stage,
};
use dlfs::places::{Cancel, Place, PlaceOptions};
use dlfs::qpair::ConnectOptions;
use dlfs::units::{parse_size, total};
use dlfs::{Error, ErrorKind};

use crate::args::{ConnectionArgs, DatasetName, ImageAddress};
use crate::exit::{Failure, GRACE_FOR_WRITERS, Outcome, Stop};
use crate::out::{self, Meter, Out, known};

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
    Out::answer(args.json, &as_json(&report, time), |out| print_report(out, &image, &report, time))
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

/// Shows the progress of an import on stderr, and stops the import on Ctrl-C.
pub(crate) struct ImportProgress {
    /// The bar of the current stage; `None` before the first.
    meter: Option<Meter>,
    stop: Stop,
    /// Samples and bytes of the current stage so far.
    samples: u64,
    bytes: u64,
    quiet: bool,
}

/// Progress of a command that writes an image and can be continued after a signal.
pub(crate) fn progress(quiet: bool) -> Result<ImportProgress, Error> {
    let stop = Stop::on_signals(GRACE_FOR_WRITERS, || Outcome::Stopped)?;
    Ok(ImportProgress::new(quiet, stop))
}

impl ImportProgress {
    /// The cancellation of waits for object stores, when the command is stopped.
    pub(crate) fn cancel(&self) -> Cancel {
        let stop = self.stop.clone();
        Cancel::when(move || stop.is_set())
    }

    /// Progress that ends when `stop` is set.
    pub(crate) fn new(quiet: bool, stop: Stop) -> ImportProgress {
        ImportProgress { meter: None, stop, samples: 0, bytes: 0, quiet }
    }
}

impl Progress for ImportProgress {
    fn stage(&mut self, stage: Stage, samples: u64, _bytes: u64) {
        let label = match stage {
            Stage::Indexing => "indexing",
            Stage::Committing => "committing",
            _ => "writing",
        };
        (self.samples, self.bytes) = (0, 0);
        self.meter = None; // clears its bar before the next is drawn
        self.meter = Some(Meter::new(label, samples, self.quiet));
    }

    fn advance(&mut self, samples: u64, bytes: u64) {
        self.samples += samples;
        self.bytes = self.bytes.saturating_add(bytes);
        if let Some(meter) = &mut self.meter {
            meter.update(self.samples, self.bytes);
        }
    }

    fn stop(&mut self) -> bool {
        self.stop.is_set()
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

/// The report as JSON.
fn as_json(report: &ImportReport, time: Duration) -> Value {
    let bad = |entry: &BadEntry| {
        known(json!({
            "name": out::safe_name(&entry.name), "reason": entry.why(), "within": within(entry),
        }))
    };
    let taken = |taken: &FileCount| {
        json!({
            "what": taken.what, "as": taken.role.to_string(), "files": taken.files,
            "bytes": taken.bytes, "example": out::safe_name(&taken.example),
        })
    };
    let columns = report.columns.map(|counts| {
        json!({
            "samples": counts.samples,
            "samples_without": counts.samples_without,
            "rows_without": counts.rows_without,
        })
    });
    let field_types: Map<_, _> =
        field_types(report).map(|(name, kind)| (name, kind.into())).collect();
    known(json!({
        "samples": report.samples,
        "bytes": report.sample_bytes,
        "seconds": time.as_secs_f64(),
        "uuid": report.uuid.to_string(),
        "generation": report.generation.0,
        "from": report.kind.to_string(),
        "decided": report.decided.as_ref().map(ToString::to_string),
        "live_samples": report.live_samples,
        "chunks": report.chunks,
        "chunks_found": report.chunks_found,
        "image_bytes": report.image_bytes,
        "media": {
            "samples": report.media.sample_bytes,
            "headers": report.media.header_bytes,
            "padding": report.media.padding_of(report.pack),
            "directory": report.media.directory_bytes,
            "tight_saves": report.media.alignment_bytes, // whether --pack tight was given or not
        },
        "columns": columns,
        "field_types": (!field_types.is_empty()).then_some(field_types),
        "taken": report.file_counts.iter().map(taken).collect::<Vec<_>>(),
        "bad": report.bad.iter().map(bad).collect::<Vec<_>>(),
    }))
}

/// Names and types of the fields with a type.
fn field_types(report: &ImportReport) -> impl Iterator<Item = (String, String)> {
    report.field_types.iter().map(|(name, kind)| (out::safe_name(name), kind.to_string()))
}

/// Prints the report as text.
fn print_report(
    out: &mut Out,
    image: &ImageAddress,
    report: &ImportReport,
    time: Duration,
) -> Result<(), Failure> {
    out.line(format!(
        "imported {} ({}) from {} in {}: {}",
        out.bold(&out::counted(report.samples, "sample")),
        out::bytes(report.sample_bytes),
        report.kind,
        out::duration(time),
        out.bold(&out::rate(report.sample_bytes, time)),
    ))?;
    out.line(format!(
        "  image      {}: generation {}, {} in {}",
        image.in_short(),
        report.generation,
        out::bytes(report.image_bytes),
        out::counted(report.chunks, "chunk"),
    ))?;
    if let Some(decided) = &report.decided {
        out.line(format!("  decided    {decided}"))?;
    }
    if let Some(counts) = &report.columns {
        let some = |count: u64, what: &str| match count {
            0 => String::new(),
            count => format!("; {} {what}", out::count(count)),
        };
        out.line(format!(
            "  columns    values of {}{}{}",
            out::counted(counts.samples, "sample"),
            some(counts.samples_without, "samples have none"),
            some(counts.rows_without, "rows name no sample of this import"),
        ))?;
    }
    if !report.field_types.is_empty() {
        let shown: Vec<String> =
            field_types(report).map(|(name, kind)| format!("{name} {kind}")).collect();
        out.line(format!("  types      {}", shown.join(", ")))?;
    }
    print_media(out, report)?;
    if report.chunks_found > 0 {
        out.line(format!("  resumed    {} chunks were in place", out::count(report.chunks_found)))?;
    }
    if report.live_samples != report.samples {
        out.line(format!("  in all     {}", out::counted(report.live_samples, "sample")))?;
    }
    print_taken(out, &report.file_counts)?;
    if !report.bad.is_empty() {
        out.line(format!("  left out   {}:", out::counted(report.bad.len() as u64, "entry")))?;
        for entry in &report.bad {
            let within = within(entry).map_or_else(String::new, |within| within + ": ");
            out.line(format!("    {within}{}: {}", out::safe_name(&entry.name), entry.why()))?;
        }
    }
    let image = image.as_argument();
    out.line(out.dim(&format!("  next       dlfs read {image}   or   dlfs serve {image}")))
}

/// Prints the share of the media that is not samples, and a note if tight packing saves little.
fn print_media(out: &mut Out, report: &ImportReport) -> Result<(), Failure> {
    let media = &report.media;
    let pack = report.pack;
    let overhead = media.overhead_bytes(pack);
    let written = media.sample_bytes + overhead;
    if written == 0 {
        return Ok(()); // the resumed import was already complete
    }
    let percent = |bytes: u64| format!("{:.1} %", bytes as f64 * 100.0 / written as f64);
    out.line(format!(
        "  media      {} of {} written are not samples: headers {}, padding {}, directory {}",
        percent(overhead),
        out::bytes(written),
        out::bytes(media.header_bytes),
        out::bytes(media.padding_of(pack)),
        out::bytes(media.directory_bytes),
    ))?;
    if pack == Pack::Tight && media.alignment_bytes < written / 100 {
        out.line(format!(
            "  pack       tight saves {}: without it, reads of single samples touch fewer blocks",
            percent(media.alignment_bytes)
        ))?;
    }
    Ok(())
}

/// Prints the kinds of files, those with the most bytes first if each file is a sample.
fn print_taken(out: &mut Out, taken: &[FileCount]) -> Result<(), Failure> {
    let (shown, others) = match taken.split_at_checked(MAX_SHOWN) {
        Some((shown, [_, _, ..])) if shown[0].role == Role::Sample => (shown, &taken[MAX_SHOWN..]),
        _ => (taken, &[][..]),
    };
    for taken in shown {
        let (label, end) = match taken.role {
            Role::Sample if taken.files == 1 => ("taken", " as a sample"),
            Role::Sample => ("taken", ", each as a sample"),
            Role::Shard => ("taken", " for the samples within"),
            Role::Appended => ("taken", " in the same file"),
            Role::List => ("taken", " for the files named there"),
            Role::SetAside => ("set aside", ""),
            Role::Followed => ("followed", ""),
        };
        let example = out::safe_name(&taken.example);
        let example = match taken.files {
            1 => format!(": {example}"),
            _ => format!(", such as {example}"),
        };
        out.line(format!(
            "  {label:<10} {} {} ({}){end}{}{}",
            out::count(taken.files),
            taken.noun(),
            out::bytes(taken.bytes),
            if taken.role == Role::Sample { "" } else { &example },
            taken.option().map(|option| format!("; {option}")).unwrap_or_default(),
        ))?;
    }
    if !others.is_empty() {
        let files = others.iter().map(|taken| taken.files).sum();
        let bytes = total(others.iter().map(|taken| taken.bytes));
        out.line(format!(
            "  taken      {} ({}) of {} more extensions, each as a sample",
            out::counted(files, "file"),
            out::bytes(bytes),
            others.len()
        ))?;
    }
    Ok(())
}

/// The archive or file that holds an entry, if the entry is within one.
fn within(entry: &BadEntry) -> Option<String> {
    let path = entry.within.as_ref()?;
    Some(out::safe_name(path.as_os_str().as_bytes()))
}

/// The most lines for extensions of files that are samples; one more line sums up the others.
const MAX_SHOWN: usize = 6;
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
