//! The destinations of an export: a folder ([`FolderSink`]), or a tar archive ([`TarSink`]).
//!
//! Folders below the destination are opened one component at a time, so that neither a link nor a race leads out of it.
//! Several threads write files at once. The folder of a file selects the thread.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::io::{self, BufWriter, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::thread;

use rustix::fs::{AtFlags, Mode, OFlags, mkdirat, openat, unlinkat};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use dlfs::units::SampleId;
use dlfs::{Error, ErrorKind};

use super::names::check;
use crate::exit::{Failure, about_file};
use crate::out;

/// A destination of samples.
pub(super) trait Sink {
    /// Writes files, whose paths have passed [`check`]. Returns those that conflict, in their order; no file is left
    /// behind of them, but their folders may be.
    ///
    /// # Errors
    /// No further file can be written.
    fn write_all(&mut self, files: &[NewFile<'_>]) -> Result<Vec<Conflict>, Failure>;

    /// Ends the export; all data has then been passed to the operating system.
    fn finish(&mut self) -> Result<(), Failure>;
}

/// A file to write.
pub(super) struct NewFile<'a> {
    pub(super) sample: SampleId,
    /// The file's name in the image.
    pub(super) name: Vec<u8>,
    /// The escaped name to use instead, if [`check`] refuses the name.
    pub(super) escaped: Option<Vec<u8>>,
    pub(super) bytes: Cow<'a, [u8]>,
}

impl NewFile<'_> {
    /// The file's path below the destination.
    pub(super) fn path(&self) -> &[u8] {
        self.escaped.as_ref().unwrap_or(&self.name)
    }
}

/// The index of a file that was not written, and the reason: something is in the way of the file or of one of its
/// folders, or the file system refuses the name.
type Conflict = (usize, &'static str);

/// Writes files below a folder that was empty or absent.
///
/// Each component of a name is opened relative to the folder above it, never through a link; files are
/// created, never opened. So another process cannot redirect writes by replacing a folder with a link.
pub(super) struct FolderSink {
    path: PathBuf,
    /// Each runs on a thread. The folder of a file selects the writer: the file system would serialise the creation of
    /// files in one folder anyway.
    writers: Vec<FolderWriter>,
}

/// Writes the files of some of the folders.
struct FolderWriter {
    root: OwnedFd,
    /// Folders that stay open, by their paths: samples lie on the media in a shuffled order, so successive
    /// files are in different folders.
    open: HashMap<Vec<u8>, OwnedFd>,
    /// The most folders that stay open.
    max_open: usize,
}

impl FolderSink {
    /// Opens the folder at `path`, creating it if it does not exist.
    ///
    /// # Errors
    /// `Refused`: the folder is not empty. Otherwise errors of the operating system.
    pub(super) fn create(path: &Path) -> Result<FolderSink, Error> {
        std::fs::create_dir_all(path).map_err(|e| about_file("cannot make the folder", path, e))?;
        let mut entries =
            std::fs::read_dir(path).map_err(|e| about_file("cannot read the folder", path, e))?;
        if entries.next().is_some() {
            return Err(Error::new(ErrorKind::Refused, "the folder to export to is not empty")
                .path(path)
                .hint("name a new folder: export writes over nothing"));
        }
        let root = rustix::fs::open(path, DIRECTORY - OFlags::NOFOLLOW, Mode::empty())
            .map_err(|e| about_file("cannot open the folder", path, e.into()))?;
        let threads = thread::available_parallelism().map_or(1, usize::from).min(MAX_WRITERS);
        let writers = (0..threads).map(|_| {
            let root =
                root.try_clone().map_err(|e| about_file("cannot open the folder", path, e))?;
            Ok(FolderWriter { root, open: HashMap::new(), max_open: max_kept_open() / threads })
        });
        Ok(FolderSink { path: path.to_path_buf(), writers: writers.collect::<Result<_, Error>>()? })
    }

    /// The index of the writer for the folder of the file `name`.
    fn writer_of(&self, name: &[u8]) -> usize {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(split(name).0);
        (hash % self.writers.len() as u64) as usize
    }
}

impl FolderWriter {
    /// Writes one file, whose name is a path below the root.
    fn write(&mut self, name: &[u8], bytes: &[u8]) -> Result<(), Errno> {
        debug_assert_eq!(check(name), Ok(()), "the caller checks names");
        let (folder, file_name) = split(name);
        write_file(self.folder(folder)?, file_name, bytes)
    }

    /// Writes the files at `indices`, up to the first error that ends the export. `path` is the folder to export to.
    fn write_files(
        &mut self,
        path: &Path,
        files: &[NewFile<'_>],
        indices: &[usize],
    ) -> Result<Vec<Conflict>, Failure> {
        let mut conflicts = Vec::new();
        for &index in indices {
            let file = &files[index];
            if let Err(error) = self.write(file.path(), &file.bytes) {
                conflicts.push((index, conflict(path, file.path(), error)?));
            }
        }
        Ok(conflicts)
    }

    /// The folder `path`, created if it does not exist. The empty path is the root.
    fn folder(&mut self, path: &[u8]) -> Result<BorrowedFd<'_>, Errno> {
        if path.is_empty() {
            return Ok(self.root.as_fd());
        }
        if !self.open.contains_key(path) {
            let folder = self.open_or_create_all(path)?;
            if self.open.len() >= self.max_open {
                self.open.clear();
            }
            self.open.insert(path.to_vec(), folder);
        }
        self.open.get(path).map(AsFd::as_fd).ok_or(Errno::NOENT)
    }

    /// Opens `path` component by component, one folder at a time: a name may have 2,048 components, more than
    /// the usual limit of open files.
    fn open_or_create_all(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        let mut names = path.split(|&byte| byte == b'/');
        let first = open_or_create(self.root.as_fd(), names.next().unwrap_or_default())?;
        names.try_fold(first, |folder, name| open_or_create(folder.as_fd(), name))
    }
}

impl Sink for FolderSink {
    fn write_all(&mut self, files: &[NewFile<'_>]) -> Result<Vec<Conflict>, Failure> {
        let mut shares = vec![Vec::new(); self.writers.len()];
        for (index, file) in files.iter().enumerate() {
            shares[self.writer_of(file.path())].push(index);
        }
        let path = &*self.path;
        let conflicts: Result<Vec<_>, Failure> = thread::scope(|scope| {
            let work = self.writers.iter_mut().zip(&shares).filter(|(_, share)| !share.is_empty());
            let running: Vec<_> = work
                .map(|(writer, share)| scope.spawn(|| writer.write_files(path, files, share)))
                .collect();
            // Passes on a writer's panic.
            let ended =
                running.into_iter().map(|one| one.join().unwrap_or_else(|p| resume_unwind(p)));
            ended.collect()
        });
        let mut conflicts = conflicts?.concat();
        conflicts.sort_unstable();
        Ok(conflicts)
    }

    fn finish(&mut self) -> Result<(), Failure> {
        Ok(())
    }
}

/// The reason of a conflict of the file `name` below `path`, which was not written.
///
/// # Errors
/// The error is of another kind, and ends the export.
fn conflict(path: &Path, name: &[u8], error: Errno) -> Result<&'static str, Failure> {
    Ok(match error {
        Errno::EXIST => "a file or folder of that name is already there",
        Errno::NOTDIR => "a file lies where one of its folders should be",
        Errno::LOOP => "a link lies where one of its folders should be",
        Errno::NAMETOOLONG => "too long for this file system",
        Errno::INVAL | Errno::ILSEQ => "not a name on this file system",
        error => {
            let path = path.join(out::safe_name(name));
            return Err(about_file("cannot write", path, error.into()).into());
        }
    })
}

/// The folder of the file `name`, and the file's name in it. The empty path is the root.
fn split(name: &[u8]) -> (&[u8], &[u8]) {
    match name.iter().rposition(|&byte| byte == b'/') {
        Some(at) => (&name[..at], &name[at + 1..]),
        None => (b"", name),
    }
}

/// The number of folders that all writers together may keep open: half of this process's limit of open files, at most
/// [`MAX_KEPT_OPEN`].
fn max_kept_open() -> usize {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(files / 2).unwrap_or(usize::MAX).min(MAX_KEPT_OPEN)
}

/// Opens the folder `name` of `parent`, creating it if it does not exist; never through a link.
fn open_or_create(parent: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    let name = c_string(name)?;
    match openat(parent, &*name, DIRECTORY, Mode::empty()) {
        Err(Errno::NOENT) => {}
        result => return result,
    }
    match mkdirat(parent, &*name, Mode::from_raw_mode(0o777)) {
        Ok(()) | Err(Errno::EXIST) => openat(parent, &*name, DIRECTORY, Mode::empty()),
        Err(error) => Err(error),
    }
}

/// Creates a file in an open folder, and writes it.
fn write_file(folder: BorrowedFd<'_>, name: &[u8], bytes: &[u8]) -> Result<(), Errno> {
    let name = c_string(name)?;
    let fd = openat(folder, &*name, NEW_FILE, Mode::from_raw_mode(0o666))?;
    File::from(fd).write_all(bytes).map_err(|error| {
        // Remove it: a truncated file would look like a sample. An error of the removal adds nothing.
        let _ = unlinkat(folder, &*name, AtFlags::empty());
        Errno::from_io_error(&error).unwrap_or(Errno::IO)
    })
}

fn c_string(name: &[u8]) -> Result<CString, Errno> {
    CString::new(name).map_err(|_| Errno::INVAL)
}

/// A tar archive. An unfinished one gets no end mark, by which a reader would take it for whole.
pub(super) struct TarSink {
    /// The path for messages.
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
        if !self.finished {
            // The builder writes the end mark when it is dropped.
            *self.archive.get_mut() = BufWriter::new(Box::new(io::sink()));
        }
    }
}

/// Flags that open a folder, never through a link.
const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Flags that create a file, and fail if the name exists, even as a link.
const NEW_FILE: OFlags = OFlags::WRONLY
    .union(OFlags::CREATE)
    .union(OFlags::EXCL)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
/// The most folders that stay open, even if the process may open more files.
const MAX_KEPT_OPEN: usize = 4096;
/// The most threads that write at once.
const MAX_WRITERS: usize = 8;

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn sink() -> (tempfile::TempDir, PathBuf, FolderSink) {
        let outer = tempfile::tempdir().unwrap();
        let inner = outer.path().join("out");
        let sink = FolderSink::create(&inner).unwrap();
        (outer, inner, sink)
    }

    impl FolderSink {
        /// Writes one file; the error is the reason of a conflict, or [`FAILED`].
        fn write(&mut self, name: &[u8], bytes: &[u8]) -> Result<(), &'static str> {
            let sample = SampleId(0);
            let file = NewFile { sample, name: name.to_vec(), escaped: None, bytes: bytes.into() };
            let mut conflicts = self.write_all(&[file]).map_err(|_| FAILED)?;
            conflicts.pop().map_or(Ok(()), |(_, reason)| Err(reason))
        }
    }

    const FAILED: &str = "failed";

    #[test]
    fn files_land_in_folders_that_are_made_on_the_way() {
        let (_outer, root, mut sink) = sink();
        for (name, bytes) in [("a/b/1", "one"), ("a/b/2", "two"), ("a/3", ""), ("4", "four")] {
            sink.write(name.as_bytes(), bytes.as_bytes()).unwrap();
            assert_eq!(std::fs::read_to_string(root.join(name)).unwrap(), bytes);
        }
    }

    #[test]
    fn a_name_of_4096_bytes_is_written_folder_by_folder() {
        let (_outer, root, mut sink) = sink();
        for depth in [63, 64, 65, 66, 2047] {
            let name = [b"d/".repeat(depth), b"f".to_vec()].concat();
            sink.write(&name, b"deep").unwrap();
            sink.write(&[&name[..], b"2"].concat(), b"beside").unwrap();
        }
        assert_eq!(std::fs::read(root.join("d/".repeat(66)).join("f2")).unwrap(), b"beside");
        // The path as a whole is too long for one call, so walk down the folders.
        let mut folder = rustix::fs::open(&root, DIRECTORY, Mode::empty()).unwrap();
        for _ in 0..2047 {
            folder = openat(&folder, "d", DIRECTORY, Mode::empty()).unwrap();
        }
        openat(&folder, "f", OFlags::RDONLY, Mode::empty()).unwrap();
        openat(&folder, "f2", OFlags::RDONLY, Mode::empty()).unwrap();
    }

    #[test]
    fn more_folders_than_stay_open_are_opened_again() {
        for most in [1, 2, 7] {
            let (_outer, root, mut sink) = sink();
            for writer in &mut sink.writers {
                writer.max_open = most;
            }
            let name = |folder: u32, file: u32| format!("{}/{folder}/deep/{file}", folder % 5);
            // 37 has no divisor with 40 in common: each round visits all folders, never in order.
            for file in 0..10 {
                for folder in (0..40).map(|step| step * 37 % 40) {
                    sink.write(name(folder, file).as_bytes(), &[folder as u8]).unwrap();
                    assert!(sink.writers.iter().all(|writer| writer.open.len() <= most));
                }
            }
            for (folder, file) in (0..40).flat_map(|folder| (0..10).map(move |f| (folder, f))) {
                let bytes = std::fs::read(root.join(name(folder, file))).unwrap();
                assert_eq!(bytes, [folder as u8], "{folder} {file}");
            }
        }
    }

    #[test]
    fn files_written_at_once_have_their_results_in_their_order() {
        let (_outer, root, mut sink) = sink();
        sink.write(b"0/taken", b"before").unwrap();
        let bytes: Vec<_> = (0..1_000u32).map(u32::to_le_bytes).collect();
        let name = |index: usize| match index % 100 {
            7 => b"0/taken".to_vec(),
            _ => format!("{}/{}/{index}", index % 11, index % 3).into_bytes(),
        };
        let file = |(index, bytes): (usize, &'_ [u8; 4])| (name(index), *bytes);
        let named: Vec<_> = bytes.iter().enumerate().map(file).collect();
        let files: Vec<_> = named
            .iter()
            .map(|(name, bytes)| {
                let sample = SampleId(0);
                NewFile { sample, name: name.clone(), escaped: None, bytes: bytes.into() }
            })
            .collect();
        let conflicts = sink.write_all(&files).unwrap();
        let conflicts: Vec<usize> = conflicts.into_iter().map(|(index, _)| index).collect();
        assert_eq!(conflicts, (7..1_000).step_by(100).collect::<Vec<_>>());
        for (index, file) in files.iter().enumerate() {
            if index % 100 != 7 {
                let path = root.join(std::str::from_utf8(&file.name).unwrap());
                assert_eq!(std::fs::read(path).unwrap(), *file.bytes);
            }
        }
        assert_eq!(std::fs::read(root.join("0/taken")).unwrap(), b"before");
    }

    #[test]
    fn names_of_any_bytes_are_written_as_they_are() {
        let (_outer, root, mut sink) = sink();
        sink.write(b"a\nb/\xff\xfe", b"x").unwrap();
        let path = root.join(OsStr::from_bytes(b"a\nb/\xff\xfe"));
        assert_eq!(std::fs::read(path).unwrap(), b"x");
    }

    #[test]
    fn nothing_is_overwritten_and_files_and_folders_do_not_mix() {
        let (_outer, root, mut sink) = sink();
        sink.write(b"a", b"1").unwrap();
        assert_ne!(sink.write(b"a", b"2").unwrap_err(), FAILED);
        assert_ne!(sink.write(b"a/b", b"2").unwrap_err(), FAILED);
        sink.write(b"d/x", b"1").unwrap();
        assert_ne!(sink.write(b"d", b"2").unwrap_err(), FAILED);
        assert_eq!(std::fs::read(root.join("a")).unwrap(), b"1");
    }

    #[test]
    fn links_planted_in_the_folder_lead_nowhere() {
        let (outer, root, mut sink) = sink();
        let secret = outer.path().join("secret");
        std::fs::create_dir(&secret).unwrap();
        symlink(&secret, root.join("link")).unwrap();
        symlink(secret.join("new"), root.join("file")).unwrap();
        symlink("../secret", root.join("relative")).unwrap();
        for name in ["link/x", "link", "file", "relative/x"] {
            assert_ne!(sink.write(name.as_bytes(), b"x").unwrap_err(), FAILED, "{name}");
        }
        assert_eq!(std::fs::read_dir(&secret).unwrap().count(), 0);
    }

    #[test]
    fn a_process_that_swaps_folders_for_links_gains_nothing() {
        let (outer, root, mut sink) = sink();
        // With a limit of one, each file opens its folder again, which is the step under attack.
        for writer in &mut sink.writers {
            writer.max_open = 1;
        }
        let secret = outer.path().join("secret");
        std::fs::create_dir(&secret).unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let folder = root.join("swap");
                    let aside = root.join("aside");
                    // Each of these fails whenever the sink is in the same folder: that is the race.
                    let _ = std::fs::rename(&folder, &aside);
                    let _ = symlink(&secret, &folder);
                    let _ = std::fs::remove_file(&folder);
                    let _ = std::fs::rename(&aside, &folder);
                }
            });
            for index in 0..2_000 {
                let name = format!("swap/{index}");
                // A conflict is acceptable here; an escape is not.
                let _ = sink.write(name.as_bytes(), b"x");
                let _ = sink.write(format!("other/{index}").as_bytes(), b"x");
            }
            over.store(true, Ordering::Relaxed);
        });
        assert_eq!(std::fs::read_dir(&secret).unwrap().count(), 0, "a file escaped");
    }

    #[test]
    fn a_folder_with_something_in_it_is_refused() {
        let outer = tempfile::tempdir().unwrap();
        std::fs::write(outer.path().join("mine"), b"precious").unwrap();
        let error = FolderSink::create(outer.path()).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Refused);
        assert!(error.report().contains("new folder"));
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
    fn an_archive_that_was_not_finished_has_no_end_mark_and_an_old_one_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.tar");
        let mut sink = TarSink::create(&path).unwrap();
        sink.write(b"a", b"1").unwrap();
        drop(sink);
        assert_eq!(std::fs::read(&path).unwrap().len(), 1024, "a header and a block");
        std::fs::write(&path, b"old").unwrap();
        assert!(TarSink::create(&path).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
    }
}
