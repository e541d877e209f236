//! `dlfs export`: writes samples as files of a folder or entries of a tar archive.
//!
//! Names come from the image, and an image may be hostile. Samples are written only below the folder, or into the
//! archive, that the user named; nothing that exists is overwritten, and no link is followed. A name that is not a
//! plain relative path is refused, or escaped if the user asks for it (`names.rs`); all refused names are reported.
//!
//! File attributes are not exported: an image has names and bytes, but no times or owners.
//!
//! `destination.rs` writes the files, `columns.rs` the table of typed columns.

mod columns;
mod destination;
mod names;

use std::borrow::Cow;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::json;

use dlfs::Error;
use dlfs::dataset::{Image, OnError};
use dlfs::directory::Directory;
use dlfs::order::{OrderKind, OrderSpec, SequentialBy};
use dlfs::posix::in_file_name;
use dlfs::prefetch::{LoaderOptions, Prefetcher};
use dlfs::reader::Batch;
use dlfs::units::SampleId;

use self::columns::write_columns;
use self::destination::{FolderSink, NewFile, Sink, TarSink};
use self::names::{check, escape};
use crate::args::{ConnectionArgs, ImageArgs};
use crate::commands::samples::json_name;
use crate::exit::{Failure, GRACE, Outcome, Stop, complain};
use crate::out::{self, Meter, Out, safe_name};
use crate::reading::{check_complete, check_some, samples_within};

/// Write all samples into a folder or a tar archive
///
/// DEST is an empty or new folder, or an archive: FILE.tar, or - for standard output. Each sample
/// becomes a file with its name; a sample with several fields becomes a file NAME.FIELD for each of
/// them, with %2F for a slash in FIELD. Nothing is written outside DEST, nothing is overwritten, and
/// no link is followed. Names that cannot be files below DEST are refused and listed, and the exit
/// code is then 1: absolute names, names with . or .. or empty components, NUL bytes, components
/// longer than 255 bytes, and names that need a folder where a sample is.
#[derive(Debug, Args)]
#[command(after_help = AFTER)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    image: ImageArgs,
    /// A new or empty folder, FILE.tar, or - for an archive on standard output
    #[arg(value_name = "DEST")]
    dest: PathBuf,
    /// Write refused names in an escaped form instead, as described below
    #[arg(long)]
    escape: bool,
    /// Write names and typed columns of the samples into a new file FILE.csv, for dlfs import --columns
    #[arg(long, value_name = "FILE")]
    columns: Option<PathBuf>,
    /// Print the result as one line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: ConnectionArgs,
}

pub(crate) fn run(args: ExportArgs, quiet: bool) -> Result<Outcome, Failure> {
    if args.json && args.dest == Path::new("-") {
        return Err(Failure::Usage("with DEST - the archive is the output: no --json".to_owned()));
    }
    let unfinished = Unfinished::default();
    let last_resort = unfinished.files.clone();
    let stop = Stop::on_signals(GRACE, move || {
        remove_all(&last_resort);
        Outcome::Incomplete
    })?;
    let image = args.image.open_with_names(&args.connection)?;
    check_some(image.directory())?;
    let began = Instant::now();
    if let Some(path) = &args.columns {
        write_columns(image.directory(), path, &unfinished)?;
    }
    let mut sink = open_sink(&args.dest, &unfinished)?;
    let mut export = Export {
        directory: image.directory(),
        sink: &mut *sink,
        escape: args.escape,
        checked_folders: HashSet::new(),
        shared_paths: HashSet::new(),
        done: ExportResult::default(),
    };
    let stopped = export.all(&image, &stop, quiet)?;
    let done = export.done;
    if stopped {
        complain(&format!("stopped; {} were written", out::counted(done.files, "file")));
        return Ok(Outcome::Incomplete);
    }
    sink.finish()?;
    unfinished.keep();
    print_result(&args, &done, began.elapsed())?;
    Ok(match done {
        ExportResult { damaged: 1.., .. } => Outcome::Damaged,
        ExportResult { refused, .. } if !refused.is_empty() => Outcome::Incomplete,
        _ => Outcome::Done,
    })
}

fn open_sink(dest: &Path, unfinished: &Unfinished) -> Result<Box<dyn Sink>, Error> {
    if dest == Path::new("-") {
        return Ok(Box::new(TarSink::stdout()));
    }
    match dest.extension() {
        Some(extension) if extension == "tar" && !dest.is_dir() => {
            let sink = TarSink::create(dest)?;
            unfinished.add(dest);
            Ok(Box::new(sink))
        }
        _ => Ok(Box::new(FolderSink::create(dest)?)),
    }
}

/// The files of an export that has not finished: the table of columns and the archive. Dropping it removes them, and so
/// does the thread that ends a stopped process.
#[derive(Default)]
struct Unfinished {
    files: Arc<Mutex<Vec<PathBuf>>>,
}

impl Unfinished {
    /// Adds a file that this export has made.
    fn add(&self, path: &Path) {
        self.files.lock().push(path.to_path_buf());
    }

    /// Keeps the files: the export has finished.
    fn keep(&self) {
        self.files.lock().clear();
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        remove_all(&self.files);
    }
}

/// Removes the files. The export was stopped, or has failed with its own error: an error of a removal adds nothing.
fn remove_all(files: &Mutex<Vec<PathBuf>>) {
    files.lock().drain(..).for_each(|path| _ = std::fs::remove_file(path));
}

/// A running export.
struct Export<'a> {
    directory: &'a Directory,
    sink: &'a mut dyn Sink,
    escape: bool,
    /// Folders already checked: neither they nor the folders above them are files of samples.
    checked_folders: HashSet<Vec<u8>>,
    /// The paths so far that another file may have, too.
    shared_paths: HashSet<Vec<u8>>,
    done: ExportResult,
}

/// The counters of an export, and the refused files.
#[derive(Default)]
struct ExportResult {
    /// Samples that were read, including those with refused files.
    read: u64,
    files: u64,
    bytes: u64,
    /// Samples that could not be read; a warning has named each.
    damaged: u64,
    refused: Vec<Refused>,
}

impl ExportResult {
    /// Samples of which no file was refused.
    fn samples(&self) -> u64 {
        let refused: HashSet<SampleId> = self.refused.iter().map(|file| file.sample).collect();
        self.read - refused.len() as u64
    }
}

/// A file that was not written.
#[derive(Serialize)]
struct Refused {
    #[serde(skip)]
    sample: SampleId,
    /// The name in the image, as bytes.
    #[serde(skip)]
    raw: Vec<u8>,
    /// The name for JSON: escaped if it is not UTF-8; `name_hex` then has the bytes.
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    name_hex: Option<String>,
    reason: String,
}

impl Export<'_> {
    /// Writes all live samples in the order of the media; returns whether it was stopped.
    fn all(&mut self, image: &Image, stop: &Stop, quiet: bool) -> Result<bool, Failure> {
        let kind = OrderKind::Sequential { by: SequentialBy::Slot };
        let order = OrderSpec { kind, seed: 0 };
        let batch_size = samples_within(self.directory, 1, MAX_GROUP_SAMPLES, MAX_GROUP_BYTES);
        let options =
            LoaderOptions { on_error: OnError::Skip, ..LoaderOptions::new(order, batch_size, 1) };
        let mut loader = image.prefetcher(options)?;
        let mut meter = Meter::new("exporting", self.directory.num_live(), quiet);
        let mut batches = Vec::new();
        while read_group(&mut loader, &mut batches)? > 0 {
            let mut files = Vec::new();
            for batch in &batches {
                for index in 0..batch.len() {
                    self.sample(batch, index, &mut files)?;
                }
            }
            self.write(&files)?;
            meter.update(self.done.read, self.done.bytes);
            if stop.is_set() {
                return Ok(true);
            }
        }
        self.done.damaged = loader.stats().skipped;
        check_complete(self.done.read + self.done.damaged, self.directory.num_live())?;
        Ok(false)
    }

    /// Adds the files of one sample to `files`; a file whose name is refused goes to `done.refused` instead.
    fn sample<'b>(
        &mut self,
        batch: &'b Batch,
        index: usize,
        files: &mut Vec<NewFile<'b>>,
    ) -> Result<(), Failure> {
        let directory = self.directory;
        let id = batch.id(index);
        let name = directory.name(id)?.unwrap_or_default();
        self.done.read += 1;
        if directory.lookup(&name)? != Some(id) {
            self.refuse(id, &name, format!("sample {id}: a newer sample has the same name"));
            return Ok(());
        }
        let fields = directory.fields();
        if fields.is_empty() {
            return self.file((id, 0), name, batch.bytes(index).into(), files);
        }
        for (number, field) in fields.iter().enumerate() {
            if let Some(bytes) = batch.field(index, number)? {
                let kind = directory.field_types().of(number);
                let bytes = kind.map_or(Cow::Borrowed(bytes), |kind| kind.to_file(bytes));
                let name = [&name[..], b".", &in_file_name(field)].concat();
                self.file((id, number), name, bytes, files)?;
            }
        }
        Ok(())
    }

    /// Adds the file of a field of a sample to `files`, unless its name is refused.
    fn file<'b>(
        &mut self,
        (sample, field): (SampleId, usize),
        name: Vec<u8>,
        bytes: Cow<'b, [u8]>,
        files: &mut Vec<NewFile<'b>>,
    ) -> Result<(), Failure> {
        let escaped = match check(&name) {
            Err(fault) if !self.escape => {
                self.refuse(sample, &name, fault);
                return Ok(());
            }
            Err(_) => Some(escape(&name)),
            Ok(()) => None,
        };
        let file = NewFile { sample, name, escaped, bytes };
        if let Some(folder) = self.sample_in_the_way(file.path())? {
            let has_fields = !self.directory.fields().is_empty();
            let what = if has_fields { "a file of a sample" } else { "a sample" };
            let reason = format!("{} is {what} and cannot be a folder", safe_name(folder));
            self.refuse(sample, &file.name, reason);
            return Ok(());
        }
        let path = file.path();
        if self.may_be_shared(path, field)? && !self.shared_paths.insert(path.to_vec()) {
            self.refuse(sample, &file.name, "a file of that name is already there".to_owned());
            return Ok(());
        }
        files.push(file);
        Ok(())
    }

    /// Writes the files, and counts those that were written.
    fn write(&mut self, files: &[NewFile<'_>]) -> Result<(), Failure> {
        let mut conflicts = self.sink.write_all(files)?.into_iter().peekable();
        for (index, file) in files.iter().enumerate() {
            match conflicts.next_if(|(at, _)| *at == index) {
                Some((_, reason)) => self.refuse(file.sample, &file.name, reason.to_owned()),
                None => {
                    self.done.files += 1;
                    self.done.bytes += file.bytes.len() as u64;
                }
            }
        }
        Ok(())
    }

    /// The first folder in `name` that is also a file of a sample. A path cannot be both, so the sample is exported
    /// and `name` is refused, even if `name` comes first.
    fn sample_in_the_way<'n>(&mut self, name: &'n [u8]) -> Result<Option<&'n [u8]>, Error> {
        let Some(end) = name.iter().rposition(|&byte| byte == b'/') else { return Ok(None) };
        if self.checked_folders.contains(&name[..end]) {
            return Ok(None);
        }
        for (at, _) in name.iter().enumerate().filter(|(_, byte)| **byte == b'/') {
            if self.is_file(&name[..at])? {
                return Ok(Some(&name[..at]));
            }
        }
        if self.checked_folders.len() >= MAX_CHECKED_FOLDERS {
            self.checked_folders.clear();
        }
        self.checked_folders.insert(name[..end].to_vec());
        Ok(None)
    }

    /// Returns whether a sample has a file of this path. With fields, also if the sample lacks the field.
    fn is_file(&self, path: &[u8]) -> Result<bool, Error> {
        if self.directory.fields().is_empty() {
            return Ok(self.directory.lookup(path)?.is_some());
        }
        self.is_file_of_field(path, |_| true)
    }

    /// Returns whether the file of a field at `path` may have the path of another file: the name of another field may
    /// end with that of this one, or begin in the other sample's name, and an escaped name may be another one's.
    fn may_be_shared(&self, path: &[u8], field: usize) -> Result<bool, Error> {
        Ok(self.escape && path.contains(&b'%') || self.is_file_of_field(path, |it| it != field)?)
    }

    /// Returns whether `path` is that of one of these fields of a sample, by the fields' numbers.
    fn is_file_of_field(
        &self,
        path: &[u8],
        is_meant: impl Fn(usize) -> bool,
    ) -> Result<bool, Error> {
        let fields = self.directory.fields().iter().enumerate();
        for (_, field) in fields.filter(|(number, _)| is_meant(*number)) {
            let name = path.strip_suffix(&in_file_name(field)[..]);
            if let Some(name) = name.and_then(|name| name.strip_suffix(b"."))
                && self.directory.lookup(name)?.is_some()
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn refuse(&mut self, sample: SampleId, name: &[u8], reason: String) {
        let raw = name.to_vec();
        let (name, name_hex) = json_name(name);
        self.done.refused.push(Refused { sample, raw, name, name_hex, reason });
    }
}

/// Fills `batches` with the next batches, until they have [`MAX_GROUP_SAMPLES`] samples or [`MAX_GROUP_BYTES`] bytes.
/// Returns the number of samples; 0 at the end.
fn read_group(loader: &mut Prefetcher, batches: &mut Vec<Batch>) -> Result<usize, Failure> {
    let mut samples = 0;
    let mut bytes = 0;
    let mut filled = 0;
    while samples < MAX_GROUP_SAMPLES && bytes < MAX_GROUP_BYTES {
        if filled == batches.len() {
            batches.push(Batch::new());
        }
        if !loader.next_into(&mut batches[filled])? {
            break;
        }
        samples += batches[filled].len();
        bytes += batches[filled].len_bytes();
        filled += 1;
    }
    batches.truncate(filled);
    Ok(samples)
}

/// Prints refused names, and the totals unless the archive is standard output.
fn print_result(args: &ExportArgs, done: &ExportResult, time: Duration) -> Result<(), Failure> {
    for refused in &done.refused {
        complain(&format!("not exported: {}: {}", safe_name(&refused.raw), refused.reason));
    }
    if !done.refused.is_empty() && !args.escape {
        complain("--escape writes such names in an escaped form");
    }
    if args.dest == Path::new("-") {
        return Ok(());
    }
    let facts = json!({
        "samples": done.samples(),
        "files": done.files,
        "bytes": done.bytes,
        "seconds": time.as_secs_f64(),
        "damaged": done.damaged,
        "refused": done.refused,
    });
    let printed = Out::answer(args.json, &facts, |out| {
        out.line(format!(
            "exported {} to {}: {}, {} in {} ({})",
            out.bold(&out::counted(done.samples(), "sample")),
            args.dest.display(),
            out::counted(done.files, "file"),
            out::bytes(done.bytes),
            out::duration(time),
            out::rate(done.bytes, time),
        ))?;
        if done.damaged == 0 {
            return Ok(());
        }
        out.line(format!("  damaged    {} were left out", out::counted(done.damaged, "sample")))
    });
    printed.map(drop)
}

/// Batches are collected until they have this many samples, so that files are written in large groups. A batch has at
/// most this many, too.
const MAX_GROUP_SAMPLES: usize = 256;
/// Batches are collected until they have this many bytes. A batch has at most this many, unless it is one longer
/// sample.
const MAX_GROUP_BYTES: u64 = 32 << 20;
/// The most folders in [`Export::checked_folders`]: the name of each may have 4 KiB.
const MAX_CHECKED_FOLDERS: usize = 4096;
const AFTER: &str = "\
With --escape a refused name is written part by part: % and NUL become %25 and %00, . and .. become
%2E and %2E%2E, an empty part becomes %-, and a part that is still longer than 255 bytes keeps its
first 200, followed by %~ and its CRC32C in hexadecimal.

Examples:
  dlfs export train.dlfs pictures/
  dlfs export nvme-tcp://node1/nqn.2026-11.io.dlfs:train - | tar tv";
