//! Writes samples into a tar archive.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use dlfs::Error;

use super::names::check;
use super::{Conflict, NewFile, Sink};
use crate::exit::{Failure, about_file};

/// A tar archive. Dropping an unfinished one removes its file.
pub(super) struct TarSink {
    /// The path for messages, and to remove the file.
    path: PathBuf,
    archive: ::tar::Builder<BufWriter<Box<dyn Write>>>,
    finished: bool,
    to_stdout: bool,
}

impl TarSink {
    /// Creates an archive in a new file at `path`.
    ///
    /// # Errors
    /// Errors of the operating system, also if the file exists.
    pub(super) fn create(path: &Path) -> Result<TarSink, Error> {
        let file = File::create_new(path)
            .map_err(|error| about_file("cannot make the archive", path, error))?;
        Ok(TarSink::new(path.to_path_buf(), Box::new(file), false))
    }

    /// Writes an archive to standard output.
    pub(super) fn stdout() -> TarSink {
        TarSink::new(PathBuf::from("standard output"), Box::new(io::stdout()), true)
    }

    fn new(path: PathBuf, writer: Box<dyn Write>, to_stdout: bool) -> TarSink {
        let archive = ::tar::Builder::new(BufWriter::with_capacity(1 << 20, writer));
        TarSink { path, archive, finished: false, to_stdout }
    }

    /// The failure for an error of writing.
    fn failed(&self, error: io::Error) -> Failure {
        if self.to_stdout && error.kind() == io::ErrorKind::BrokenPipe {
            return Failure::OutputClosed;
        }
        about_file("cannot write", &self.path, error).into()
    }

    fn write(&mut self, name: &[u8], bytes: &[u8]) -> Result<(), Failure> {
        debug_assert_eq!(check(name), Ok(()), "the caller checks names");
        let mut header = ::tar::Header::new_gnu();
        header.set_entry_type(::tar::EntryType::Regular);
        header.set_mode(0o644);
        header.set_mtime(0);
        header.set_size(bytes.len() as u64);
        let path = Path::new(OsStr::from_bytes(name));
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
        let mut archive = ::tar::Archive::new(File::open(&path).unwrap());
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
