//! `dlfs export`: writes samples as files of a folder or entries of a tar archive.
//!
//! Names come from the image, and an image may be hostile. Nothing is written outside the folder that the
//! user named, nothing that exists is overwritten, and no link is followed. A name that is not a plain
//! relative path is refused, or escaped if the user asks for it; the caller learns which names these are.
//!
//! File attributes are not exported: an image has names and bytes, but no times or owners.
//!
//! # Names
//!
//! A name is used unchanged if every component between slashes is an ordinary file name: not empty, not `.`
//! or `..`, at most 255 bytes, without NUL. Other bytes are left to the file system: newlines and invalid
//! UTF-8 are exported unchanged.
//!
//! An escaped name is built one component at a time, so that it always passes the rule:
//! - `%` and NUL become `%25` and `%00`;
//! - `.` and `..` become `%2E` and `%2E%2E`;
//! - an empty component becomes `%-`;
//! - a component that is then longer than 255 bytes keeps its first 200, followed by `%~` and the
//!   CRC32C of the whole component in hexadecimal.

mod folder;

use std::borrow::Cow;
use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use serde::Serialize;
use serde_json::json;

use dlfs::dataset::{Image, OnError};
use dlfs::directory::Directory;
use dlfs::order::{OrderKind, OrderSpec, SequentialBy};
use dlfs::posix::in_file_name;
use dlfs::prefetch::{LoaderOptions, Prefetcher};
use dlfs::reader::Batch;
use dlfs::units::SampleId;
use dlfs::{Error, ErrorKind};

use self::folder::FolderSink;
use crate::args::{ConnectionArgs, ImageArgs};
use crate::commands::samples::json_name;
use crate::exit::{Failure, GRACE, Outcome, Stop, about_file, complain};
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
    let stop = Stop::on_signals(GRACE, || Outcome::Incomplete)?;
    let image = args.image.open_with_names(&args.connection)?;
    check_some(image.directory())?;
    let began = Instant::now();
    if let Some(path) = &args.columns {
        write_table(image.directory(), path)?;
    }
    let mut sink = open_sink(&args.dest)?;
    let mut export = Export {
        directory: image.directory(),
        sink: &mut *sink,
        escape: args.escape,
        checked_folders: HashSet::new(),
        done: Done::default(),
    };
    let stopped = export.all(&image, &stop, quiet)?;
    let done = export.done;
    if stopped {
        eprintln!("dlfs: stopped; {} were written", out::counted(done.files, "file"));
        return Ok(Outcome::Incomplete);
    }
    sink.finish()?;
    print_result(&args, &done, began.elapsed())?;
    Ok(match done {
        Done { damaged: 1.., .. } => Outcome::Damaged,
        Done { refused, .. } if !refused.is_empty() => Outcome::Incomplete,
        _ => Outcome::Done,
    })
}

fn open_sink(dest: &Path) -> Result<Box<dyn Sink>, Error> {
    if dest == Path::new("-") {
        return Ok(Box::new(TarSink::stdout()));
    }
    match dest.extension() {
        Some(extension) if extension == "tar" && !dest.is_dir() => {
            Ok(Box::new(TarSink::create(dest)?))
        }
        _ => Ok(Box::new(FolderSink::create(dest)?)),
    }
}

/// Fills `batches` with the next batches until a limit is reached; returns the number of samples in them.
fn read_some(loader: &mut Prefetcher, batches: &mut Vec<Batch>) -> Result<usize, Failure> {
    let mut samples = 0;
    let mut bytes = 0;
    let mut filled = 0;
    while samples < MOST_SAMPLES && bytes < MOST_BYTES {
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

/// A running export.
struct Export<'a> {
    directory: &'a Directory,
    sink: &'a mut dyn Sink,
    escape: bool,
    /// Folders already checked: neither they nor the folders above them are names of samples.
    checked_folders: HashSet<Vec<u8>>,
    done: Done,
}

/// The result of an export.
#[derive(Default)]
struct Done {
    /// Samples that were read, including those with refused files.
    read: u64,
    files: u64,
    bytes: u64,
    /// Samples that could not be read; each was reported as a warning.
    damaged: u64,
    refused: Vec<Refused>,
}

impl Done {
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
    #[serde(skip)]
    raw: Vec<u8>,
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
        let batch_size = samples_within(self.directory, 1, MOST_SAMPLES, MOST_BYTES);
        let options =
            LoaderOptions { on_error: OnError::Skip, ..LoaderOptions::new(order, batch_size, 1) };
        let mut loader = image.prefetcher(options)?;
        let mut meter = Meter::new("exporting", self.directory.num_live(), quiet);
        let mut batches = Vec::new();
        while read_some(&mut loader, &mut batches)? > 0 {
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

    /// Adds the files of one sample to `files`; a file that cannot be written is recorded in `done.refused`.
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
            return self.file(id, name, batch.bytes(index).into(), files);
        }
        for (number, field) in fields.iter().enumerate() {
            if let Some(bytes) = batch.field(index, number)? {
                let kind = directory.field_types().of(number);
                let bytes = kind.map_or(Cow::Borrowed(bytes), |kind| kind.to_file(bytes));
                self.file(id, [&name[..], b".", &in_file_name(field)].concat(), bytes, files)?;
            }
        }
        Ok(())
    }

    fn file<'b>(
        &mut self,
        sample: SampleId,
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
            let reason = format!("{} is a sample and cannot be a folder", safe_name(folder));
            self.refuse(sample, &file.name, reason);
            return Ok(());
        }
        files.push(file);
        Ok(())
    }

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

    /// The first folder in `name` that is also the name of a sample. A path cannot be both, so the sample is exported
    /// and `name` is refused, even if `name` comes first.
    fn sample_in_the_way<'n>(&mut self, name: &'n [u8]) -> Result<Option<&'n [u8]>, Error> {
        let Some(end) = name.iter().rposition(|&byte| byte == b'/') else { return Ok(None) };
        if self.checked_folders.contains(&name[..end]) {
            return Ok(None);
        }
        for (at, _) in name.iter().enumerate().filter(|(_, byte)| **byte == b'/') {
            if self.directory.lookup(&name[..at])?.is_some() {
                return Ok(Some(&name[..at]));
            }
        }
        if self.checked_folders.len() >= CHECKED_FOLDERS {
            self.checked_folders.clear();
        }
        self.checked_folders.insert(name[..end].to_vec());
        Ok(None)
    }

    fn refuse(&mut self, sample: SampleId, name: &[u8], reason: String) {
        let raw = name.to_vec();
        let (name, name_hex) = json_name(name);
        self.done.refused.push(Refused { sample, raw, name, name_hex, reason });
    }
}

fn print_result(args: &ExportArgs, done: &Done, time: std::time::Duration) -> Result<(), Failure> {
    for refused in &done.refused {
        complain(&format!("not exported: {}: {}", safe_name(&refused.raw), refused.reason));
    }
    if !done.refused.is_empty() && !args.escape {
        eprintln!("dlfs: --escape writes such names in an escaped form");
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

/// Batches are collected until they have this many samples, so that files are written in large groups. A batch has
/// at most as many, too.
const MOST_SAMPLES: usize = 256;
/// Batches are collected until they have this many bytes. A batch has at most as many, unless it is one longer sample.
const MOST_BYTES: u64 = 32 << 20;
/// The most checked folders to remember: a name may have 4 KiB.
const CHECKED_FOLDERS: usize = 4096;
const AFTER: &str = "\
With --escape a refused name is written part by part: % and NUL become %25 and %00, . and .. become
%2E and %2E%2E, an empty part becomes %-, and a part that is still longer than 255 bytes keeps its
first 200, followed by %~ and its CRC32C in hexadecimal.

Examples:
  dlfs export train.dlfs pictures/
  dlfs export nvme-tcp://node1/nqn.2026-11.io.dlfs:train - | tar tv";

/// A destination of samples.
trait Sink {
    /// Writes files, whose paths have passed [`check`]. Returns those that conflict, in their order; nothing is left
    /// behind of them.
    ///
    /// # Errors
    /// No further file can be written.
    fn write_all(&mut self, files: &[NewFile<'_>]) -> Result<Vec<Conflict>, Failure>;

    /// Ends the export; all data has then been passed to the operating system.
    fn finish(&mut self) -> Result<(), Failure>;
}

/// A file to write.
#[derive(Debug)]
struct NewFile<'a> {
    sample: SampleId,
    /// The file's name in the image.
    name: Vec<u8>,
    /// The escaped name to use instead, if [`check`] refuses the name.
    escaped: Option<Vec<u8>>,
    bytes: Cow<'a, [u8]>,
}

impl NewFile<'_> {
    /// The file's path below the destination.
    fn path(&self) -> &[u8] {
        self.escaped.as_ref().unwrap_or(&self.name)
    }
}

/// The index of a file that was not written, and the reason: something is in the way of the file or of one of its
/// folders, or the file system refuses the name.
type Conflict = (usize, &'static str);

/// Checks that `name` may be written unchanged.
fn check(name: &[u8]) -> Result<(), String> {
    if name.starts_with(b"/") {
        return Err("an absolute path".to_owned());
    }
    name.split(|&byte| byte == b'/').try_for_each(check_part)
}

fn check_part(part: &[u8]) -> Result<(), String> {
    match part {
        b"" => Err("an empty part in the path".to_owned()),
        b"." | b".." => Err("`.` or `..` as a part of the path".to_owned()),
        part if part.contains(&0) => Err("a NUL byte in the path".to_owned()),
        part if part.len() > MAX_PART_BYTES => {
            Err(format!("a part of {} bytes, and {MAX_PART_BYTES} is the most", part.len()))
        }
        _ => Ok(()),
    }
}

/// Escapes `name` by the rule at the top of this file; the result passes [`check`].
fn escape(name: &[u8]) -> Vec<u8> {
    let parts = name.split(|&byte| byte == b'/').map(escape_part);
    parts.collect::<Vec<_>>().join(&b'/')
}

fn escape_part(part: &[u8]) -> Vec<u8> {
    let mut escaped = Vec::with_capacity(part.len());
    match part {
        b"" => escaped.extend(b"%-"),
        b"." => escaped.extend(b"%2E"),
        b".." => escaped.extend(b"%2E%2E"),
        part => {
            for &byte in part {
                match byte {
                    b'%' => escaped.extend(b"%25"),
                    0 => escaped.extend(b"%00"),
                    byte => escaped.push(byte),
                }
            }
        }
    }
    if escaped.len() > MAX_PART_BYTES {
        escaped.truncate(KEPT_BYTES);
        escaped.extend(format!("%~{:08x}", dlfs::checksum::crc32c(part)).bytes());
    }
    escaped
}

/// The longest file name on Linux's file systems, in bytes.
const MAX_PART_BYTES: usize = 255;
/// The length of the prefix that an escaped component keeps, in bytes.
const KEPT_BYTES: usize = 200;

/// Writes a line for each sample into a new file, its name and its values, after a line with the names and types of
/// the columns.
///
/// # Errors
/// The file exists or cannot be written. `InvalidArgument`: the image has no typed columns, or a name is not
/// UTF-8.
fn write_table(directory: &Directory, path: &Path) -> Result<(), Error> {
    if directory.columns().is_empty() {
        let text = "the image has no typed columns: export without --columns";
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    let of_path = |error: std::io::Error| Error::from(error).path(path);
    let file = OpenOptions::new().write(true).create_new(true).open(path).map_err(of_path)?;
    let mut out = BufWriter::new(file);
    let mut line = String::from("name");
    for column in directory.columns() {
        line.push(',');
        quote(&format!("{}:{}", column.name(), column.kind()), &mut line);
    }
    let mut name = Vec::new();
    for rank in 0..directory.num_live() {
        writeln!(out, "{line}").map_err(of_path)?;
        line.clear();
        let id = directory.id_of_live(rank);
        directory.name_into(id, &mut name)?;
        let name = std::str::from_utf8(&name).map_err(|_| {
            let text = format!("the name {} is no UTF-8", name.escape_ascii());
            Error::new(ErrorKind::InvalidArgument, text).sample(id)
        })?;
        quote(name, &mut line);
        for column in directory.columns() {
            line.push(',');
            quote(&column.get(id.0).to_string(), &mut line);
        }
    }
    writeln!(out, "{line}").map_err(of_path)?;
    out.flush().map_err(of_path)
}

fn quote(text: &str, line: &mut String) {
    if text.contains([',', '"', '\n', '\r']) || text.trim() != text {
        line.push('"');
        line.push_str(&text.replace('"', "\"\""));
        line.push('"');
    } else {
        line.push_str(text);
    }
}

/// Writes a tar archive; an unfinished file is removed on drop.
struct TarSink {
    path: PathBuf,
    archive: tar::Builder<BufWriter<Box<dyn Write>>>,
    finished: bool,
    to_stdout: bool,
}

impl TarSink {
    /// Creates an archive in a new file at `path`.
    ///
    /// # Errors
    /// Errors of the operating system, also if the file exists.
    fn create(path: &Path) -> Result<TarSink, Error> {
        let file = File::create_new(path)
            .map_err(|error| about_file("cannot make the archive", path, error))?;
        Ok(TarSink::new(path.to_path_buf(), Box::new(file), false))
    }

    /// Writes an archive to standard output.
    fn stdout() -> TarSink {
        TarSink::new(PathBuf::from("standard output"), Box::new(io::stdout()), true)
    }

    fn new(path: PathBuf, writer: Box<dyn Write>, to_stdout: bool) -> TarSink {
        let archive = tar::Builder::new(BufWriter::with_capacity(1 << 20, writer));
        TarSink { path, archive, finished: false, to_stdout }
    }

    fn failed(&self, error: io::Error) -> Failure {
        if self.to_stdout && error.kind() == io::ErrorKind::BrokenPipe {
            return Failure::OutputClosed;
        }
        about_file("cannot write", &self.path, error).into()
    }

    fn write(&mut self, name: &[u8], bytes: &[u8]) -> Result<(), Failure> {
        use std::os::unix::ffi::OsStrExt;
        debug_assert_eq!(check(name), Ok(()), "the caller checks names");
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Regular);
        header.set_mode(0o644);
        header.set_mtime(0);
        header.set_size(bytes.len() as u64);
        let path = Path::new(std::ffi::OsStr::from_bytes(name));
        let result = self.archive.append_data(&mut header, path, bytes);
        result.map_err(|error| self.failed(error))
    }
}

impl Sink for TarSink {
    fn write_all(&mut self, files: &[NewFile<'_>]) -> Result<Vec<Conflict>, Failure> {
        files.iter().try_for_each(|file| self.write(file.path(), &file.bytes))?;
        Ok(Vec::new())
    }

    fn finish(&mut self) -> Result<(), Failure> {
        let end = self.archive.finish().and_then(|()| self.archive.get_mut().flush());
        end.map_err(|error| self.failed(error))?;
        self.finished = true;
        Ok(())
    }
}

impl Drop for TarSink {
    fn drop(&mut self) {
        if !self.finished && !self.to_stdout {
            // The export was stopped, or has failed with its own error: an error of the removal adds nothing.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn ordinary_names_are_taken_as_they_are() {
        let long = vec![b'x'; 255];
        for name in [&b"a"[..], b"cat/1.jpg", b"a\nb", b"\xff", b"...", b".hidden", b"50%", &long] {
            assert_eq!(check(name), Ok(()), "{}", name.escape_ascii());
        }
    }

    #[test]
    fn names_that_are_no_path_below_a_folder_are_refused_with_the_reason() {
        let long = vec![b'x'; 256];
        let cases: [(&[u8], &str); 11] = [
            (b"", "empty part"),
            (b"/etc/passwd", "absolute"),
            (b"../x", "`..`"),
            (b"a/../../x", "`..`"),
            (b"a/..", "`..`"),
            (b"a/./b", "`..`"),
            (b"a//b", "empty part"),
            (b"a/", "empty part"),
            (b"a\0b", "NUL"),
            (b"a/\0", "NUL"),
            (&long, "a part of 256 bytes"),
        ];
        for (name, fault) in cases {
            let found = check(name).unwrap_err();
            assert!(found.contains(fault), "{}: {found}", name.escape_ascii());
        }
    }

    #[test]
    fn escaped_names_follow_the_rule_in_the_heading() {
        assert_eq!(escape(b"/etc/passwd"), b"%-/etc/passwd");
        assert_eq!(escape(b"../50%"), b"%2E%2E/50%25");
        assert_eq!(escape(b"a//b/"), b"a/%-/b/%-");
        assert_eq!(escape(b"a\0b"), b"a%00b");
        let long = escape(&[b'x'; 300]);
        assert_eq!(long.len(), KEPT_BYTES + 10);
        assert_ne!(long, escape(&[b'x'; 301]));
    }

    /// Every name of up to six of the significant bytes.
    #[test]
    fn every_short_hostile_name_is_safe_once_escaped() {
        let alphabet = b"./\0%a";
        let mut names = vec![Vec::new()];
        for _ in 0..6 {
            let longer: Vec<Vec<u8>> = names
                .iter()
                .flat_map(|name| alphabet.iter().map(|&byte| [&name[..], &[byte]].concat()))
                .collect();
            names = longer;
            for name in &names {
                assert_eq!(check(&escape(name)), Ok(()), "{}", name.escape_ascii());
            }
        }
    }

    #[test]
    fn an_archive_gives_back_names_and_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.tar");
        let long = [b"d/".repeat(150), b"f".to_vec()].concat();
        let files: [(&[u8], &[u8]); 4] =
            [(b"a/1.jpg", b"one"), (b"empty", b""), (b"new\nline\xff", b"x"), (&long, b"deep")];
        let mut sink = TarSink::create(&path).unwrap();
        for (name, bytes) in files {
            sink.write(name, bytes).unwrap();
        }
        sink.finish().unwrap();
        drop(sink);
        let mut archive = tar::Archive::new(File::open(&path).unwrap());
        let mut found = Vec::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let name = entry.path_bytes().to_vec();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            found.push((name, bytes));
        }
        let expected: Vec<_> =
            files.iter().map(|(name, bytes)| (name.to_vec(), bytes.to_vec())).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn an_archive_that_was_not_finished_is_removed_and_an_old_one_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.tar");
        let mut sink = TarSink::create(&path).unwrap();
        sink.write(b"a", b"1").unwrap();
        drop(sink);
        assert!(!path.exists());
        std::fs::write(&path, b"old").unwrap();
        assert!(TarSink::create(&path).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
    }
}
