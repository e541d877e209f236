//! Exports samples as files of a folder or entries of a tar archive.
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

pub(crate) use self::folder::FolderSink;

use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use dlfs::directory::Directory;
use dlfs::units::SampleId;
use dlfs::{Error, ErrorKind};

use crate::exit::{Failure, about_file};

/// A destination of samples.
pub(crate) trait Sink {
    /// Writes one file of `bytes` under `name`, which has passed [`check`].
    ///
    /// # Errors
    /// After [`SinkError::Conflict`], which concerns only this name, nothing is left behind; after
    /// [`SinkError::Failed`] the export is over.
    fn write(&mut self, name: &[u8], bytes: &[u8]) -> Result<(), SinkError>;

    /// Writes several files, each as [`Sink::write`]; returns their results in order, up to and including the
    /// first [`SinkError::Failed`].
    fn write_all(&mut self, files: &[NewFile<'_>]) -> Vec<Result<(), SinkError>> {
        let mut results = Vec::with_capacity(files.len());
        for file in files {
            results.push(self.write(file.path(), &file.bytes));
            if matches!(results.last(), Some(Err(SinkError::Failed(_)))) {
                break;
            }
        }
        results
    }

    /// Ends the export; all data has then been passed to the operating system.
    fn finish(&mut self) -> Result<(), Failure>;
}

/// A file to write.
#[derive(Debug)]
pub(crate) struct NewFile<'a> {
    pub(crate) sample: SampleId,
    /// The file's name in the image.
    pub(crate) name: Vec<u8>,
    /// The escaped name to use instead, if [`check`] refuses the name.
    pub(crate) escaped: Option<Vec<u8>>,
    pub(crate) bytes: Cow<'a, [u8]>,
}

impl NewFile<'_> {
    /// The file's path below the destination.
    pub(crate) fn path(&self) -> &[u8] {
        self.escaped.as_ref().unwrap_or(&self.name)
    }
}

/// The reason why a file was not written.
#[derive(Debug)]
pub(crate) enum SinkError {
    /// Something is in the way of the file or of one of its folders, or the file system refuses the name.
    Conflict(&'static str),
    /// No further file can be written.
    Failed(Failure),
}

/// Checks that `name` may be written unchanged.
pub(crate) fn check(name: &[u8]) -> Result<(), String> {
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
pub(crate) fn escape(name: &[u8]) -> Vec<u8> {
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
pub(crate) fn write_table(directory: &Directory, path: &Path) -> Result<(), Error> {
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
pub(crate) struct TarSink {
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
    pub(crate) fn create(path: &Path) -> Result<TarSink, Error> {
        let file = File::create_new(path)
            .map_err(|error| about_file("cannot make the archive", path, error))?;
        Ok(TarSink::new(path.to_path_buf(), Box::new(file), false))
    }

    /// Writes an archive to standard output.
    pub(crate) fn stdout() -> TarSink {
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
}

impl Sink for TarSink {
    fn write(&mut self, name: &[u8], bytes: &[u8]) -> Result<(), SinkError> {
        use std::os::unix::ffi::OsStrExt;
        debug_assert_eq!(check(name), Ok(()), "the caller checks names");
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Regular);
        header.set_mode(0o644);
        header.set_mtime(0);
        header.set_size(bytes.len() as u64);
        let path = Path::new(std::ffi::OsStr::from_bytes(name));
        let result = self.archive.append_data(&mut header, path, bytes);
        result.map_err(|error| SinkError::Failed(self.failed(error)))
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
