//! A catalogue in a folder, on any file system: no server, no lock.
//!
//! ```text
//! dlfs-catalog.json              marks the folder as a catalogue
//! NAME/versions/1.json           an entry of the log of versions
//! NAME/aliases/ALIAS/1.json      an entry of an alias's log
//! NAME/index.json                the index of chunks
//! ```
//!
//! Other users who can write to the folder are not trusted: all paths are opened beneath the
//! folder, no symbolic link is followed, and only regular files are read. New files and folders get
//! their mode from the umask, since a catalogue may be shared.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::Instant;

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::catalog::Index;
use crate::catalog::record::{decode, encode};
use crate::catalog::store::{Log, MAX_ENTRY_BYTES, MAX_INDEX_BYTES, MAX_LISTED, Store, number_of};
use dlfs_base::beneath::{components, open_beneath};
use dlfs_base::error::{Error, ErrorKind, Result};
use dlfs_base::random;
use dlfs_io::address::catalog_name::is_catalog_word;

/// A catalogue in a folder.
#[derive(Debug, Clone)]
pub struct FolderStore {
    root: PathBuf,
    /// The deadline of the current call. `None`: it has none.
    until: Option<Instant>,
}

impl FolderStore {
    /// The catalogue in the folder `root`, which need not exist yet.
    pub fn new(root: impl Into<PathBuf>) -> FolderStore {
        FolderStore { root: root.into(), until: None }
    }

    /// Opens the folder itself. Symbolic links on the path to it are followed: the user named that
    /// path.
    fn open_root(&self) -> Result<OwnedFd> {
        if self.until.is_some_and(|until| Instant::now() > until) {
            return Err(Error::new(ErrorKind::TimedOut, "the call has ended").path(&self.root));
        }
        let opened = fs::open(&self.root, FOLDER, Mode::empty());
        opened.map_err(|errno| match errno {
            Errno::NOENT => self.no_catalog(),
            errno => Error::from(io::Error::from(errno)).path(&self.root),
        })
    }

    /// Opens the file or folder at `path`. `None`: it does not exist.
    fn open(&self, path: &str, flags: OFlags) -> Result<Option<OwnedFd>> {
        match open_beneath(self.open_root()?.as_fd(), path.as_bytes(), flags, Mode::empty()) {
            Ok(fd) => Ok(Some(fd)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.failed(path, errno)),
        }
    }

    /// Opens the folder at `path`, and creates it if it does not exist.
    fn make_folder(&self, path: &str) -> Result<OwnedFd> {
        let failed = |errno| self.failed(path, errno);
        let mut at = self.open_root()?;
        for name in components(path.as_bytes()) {
            match fs::mkdirat(&at, name, Mode::RWXU | Mode::RWXG | Mode::RWXO) {
                // The new folder's own entry must be durable before anything in it can be.
                Ok(()) => fs::fsync(&at).map_err(failed)?,
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(failed(errno)),
            }
            at = open_beneath(at.as_fd(), name, FOLDER, Mode::empty()).map_err(failed)?;
        }
        Ok(at)
    }

    /// Calls `wanted` with name and type of each entry of the folder at `path`, `.` and `..` included, and collects
    /// its results. Empty if the folder does not exist.
    ///
    /// # Errors
    /// `NotFound`: the catalogue does not exist. `Corrupt`: more than [`MAX_LISTED`] results.
    fn list<T>(&self, path: &str, wanted: impl Fn(&str, FileType) -> Option<T>) -> Result<Vec<T>> {
        let Some(folder) = self.open(path, FOLDER)? else {
            return if self.is_there()? { Ok(Vec::new()) } else { Err(self.no_catalog()) };
        };
        let failed = |errno| self.failed(path, errno);
        let mut found = Vec::new();
        for entry in fs::Dir::new(folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_string_lossy();
            found.extend(wanted(&name, entry.file_type()));
            if found.len() > MAX_LISTED {
                let message = format!("a folder of the catalogue has more than {MAX_LISTED} files");
                return Err(Error::new(ErrorKind::Corrupt, message).path(self.root.join(path)));
            }
        }
        Ok(found)
    }

    /// The content of the file at `path`. `None`: the file does not exist.
    ///
    /// # Errors
    /// `Corrupt`: the content has more than `most` bytes, or there is no regular file at `path`.
    fn read_at_most(&self, path: &str, most: u64) -> Result<Option<Vec<u8>>> {
        let corrupt =
            |message: String| Error::new(ErrorKind::Corrupt, message).path(self.root.join(path));
        let failed = |error: io::Error| Error::from(error).path(self.root.join(path));
        let Some(file) = self.open(path, FILE)?.map(File::from) else { return Ok(None) };
        if !file.metadata().map_err(failed)?.is_file() {
            return Err(corrupt(NO_FILE.to_owned()));
        }
        let mut bytes = Vec::new();
        file.take(most + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > most {
            return Err(corrupt(format!("this is longer than {most} bytes and no record of dlfs")));
        }
        Ok(Some(bytes))
    }

    /// Returns whether the folder is marked as a catalogue.
    fn is_there(&self) -> Result<bool> {
        Ok(self.open(MARK, OFlags::PATH)?.is_some())
    }

    /// Returns whether there is a regular file at `path`.
    fn is_regular_file(&self, path: &str) -> bool {
        let opened = self.open(path, OFlags::PATH).ok().flatten();
        let found = opened.and_then(|fd| fs::fstat(fd).ok());
        found.is_some_and(|it| FileType::from_raw_mode(it.st_mode) == FileType::RegularFile)
    }

    fn no_catalog(&self) -> Error {
        Error::new(ErrorKind::NotFound, "there is no catalogue in this folder")
            .path(&self.root)
            .hint("dlfs catalog add makes one in a new or empty folder")
    }

    /// The error of an operation on `path`. A link, or something else than a file, is damage.
    fn failed(&self, path: &str, errno: Errno) -> Error {
        let corrupt = |message| Error::new(ErrorKind::Corrupt, message);
        let error = match errno {
            Errno::LOOP => corrupt("this is a link, and none is followed in a catalogue")
                .hint("put what it leads to in its place"),
            Errno::NOTDIR | Errno::ISDIR | Errno::NXIO => corrupt(NO_FILE),
            errno => Error::from(io::Error::from(errno)),
        };
        error.path(self.root.join(path))
    }
}

impl Store for FolderStore {
    fn create(&self) -> Result<()> {
        std::fs::create_dir_all(&self.root).map_err(|error| Error::from(error).path(&self.root))?;
        if self.is_there()? {
            return Ok(());
        }
        // Drafts begin with a dot. They may come from another process that creates the catalogue
        // now.
        let others = self.list("", |name, _| (!name.starts_with('.')).then_some(()))?;
        if !others.is_empty() && !self.is_there()? {
            let message = "this folder has other files and is no catalogue";
            return Err(Error::new(ErrorKind::Refused, message)
                .path(&self.root)
                .hint("name a new or empty folder"));
        }
        // Another process may create the same file at the same time: its file is as good as ours.
        create_new(&self.open_root()?, MARK, b"{\"catalogue of dlfs\": 1}\n")
            .map(drop)
            .map_err(|error| error.path(self.root.join(MARK)))
    }

    fn names(&self) -> Result<Vec<String>> {
        if !self.is_there()? {
            return Err(self.no_catalog());
        }
        let found = self.list("", |name, kind| {
            let is_name = is_catalog_word(name) && kind != FileType::RegularFile;
            is_name.then(|| (name.to_owned(), kind))
        })?;
        // A listing need not tell kinds: that of NFS does not always, and old XFS has none.
        let is_folder = |(name, kind): &(String, FileType)| {
            *kind != FileType::Unknown || !self.is_regular_file(name)
        };
        Ok(found.into_iter().filter(is_folder).map(|(name, _)| name).collect())
    }

    fn aliases(&self, name: &str) -> Result<Vec<String>> {
        let path = format!("{name}/aliases");
        self.list(&path, |name, _| is_catalog_word(name).then(|| name.to_owned()))
    }

    fn numbers(&self, log: &Log) -> Result<Vec<u64>> {
        self.list(&folder_of(log), |name, _| number_of(name.strip_suffix(".json")?))
    }

    fn read(&self, log: &Log, number: u64) -> Result<Option<Vec<u8>>> {
        let path = format!("{}/{}", folder_of(log), file_name(number));
        self.read_at_most(&path, MAX_ENTRY_BYTES)
    }

    fn append(&self, log: &Log, number: u64, bytes: &[u8]) -> Result<bool> {
        let folder = folder_of(log);
        create_new(&self.make_folder(&folder)?, &file_name(number), bytes)
            .map_err(|error| error.path(self.root.join(folder).join(file_name(number))))
    }

    fn read_index(&self, name: &str) -> Result<Option<Index>> {
        let bytes = self.read_at_most(&format!("{name}/{INDEX}"), MAX_INDEX_BYTES)?;
        bytes.map(|bytes| decode(&bytes, "the index of chunks")).transpose()
    }

    fn write_index(&self, name: &str, index: Option<&Index>) -> Result<()> {
        let folder = self.make_folder(name)?;
        let written = match index {
            // Replaces the file atomically; a symbolic link of that name is replaced, not followed.
            Some(index) => write_draft(&folder, &encode(index)?, |draft, _| {
                Ok(fs::renameat(&folder, draft, &folder, INDEX)?)
            }),
            None => match fs::unlinkat(&folder, INDEX, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => Ok(()),
                Err(errno) => Err(io::Error::from(errno).into()),
            },
        };
        written.map_err(|error| error.path(self.root.join(name).join(INDEX)))
    }

    fn until(&self, until: Instant) -> Option<Box<dyn Store>> {
        Some(Box::new(FolderStore { until: Some(until), ..self.clone() }))
    }
}

/// Creates the file `name` with all of `bytes`, durably. Returns false if the file exists.
///
/// The bytes are written to a draft first, which is then linked to `name`. A link never replaces a
/// file, even on NFS, and readers never see a partial file.
fn create_new(folder: &OwnedFd, name: &str, bytes: &[u8]) -> Result<bool> {
    write_draft(folder, bytes, |draft, file| {
        match fs::linkat(folder, draft, folder, name, AtFlags::empty()) {
            Ok(()) => Ok(true),
            // If NFS loses the answer to a link request, it sends the request again, which fails
            // with EEXIST. The draft then has two links.
            Err(_) if file.metadata().is_ok_and(|found| found.nlink() == 2) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    })
}

/// Writes `bytes` to a draft, lets `place` give it its final name, durably, and removes the draft's name.
fn write_draft<T>(
    folder: &OwnedFd,
    bytes: &[u8],
    place: impl FnOnce(&str, &File) -> io::Result<T>,
) -> Result<T> {
    let draft = format!(".{:016x}", random::number()?);
    let write = || -> io::Result<T> {
        let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP | Mode::ROTH | Mode::WOTH;
        let mut file = File::from(fs::openat(folder, &draft, DRAFT, mode)?);
        file.write_all(bytes)?;
        file.sync_all()?;
        let placed = place(&draft, &file)?;
        fs::fsync(folder)?;
        Ok(placed)
    };
    let written = write();
    let _ = fs::unlinkat(folder, &draft, AtFlags::empty()); // a draft that stays is ignored
    Ok(written?)
}

fn folder_of(log: &Log) -> String {
    match log {
        Log::Versions(name) => format!("{name}/versions"),
        Log::Alias(name, alias) => format!("{name}/aliases/{alias}"),
    }
}

fn file_name(number: u64) -> String {
    format!("{number}.json")
}

const MARK: &str = "dlfs-catalog.json";
const INDEX: &str = "index.json";
const NO_FILE: &str = "this is no file of a catalogue";
const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// `NONBLOCK`: opening a FIFO must not wait for a writer.
const FILE: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY);
const DRAFT: OFlags = OFlags::WRONLY
    .union(OFlags::CREATE)
    .union(OFlags::EXCL)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
