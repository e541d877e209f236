//! A catalogue in a folder, which any file system will do for: no server, no lock.
//!
//! ```text
//! dlfs-catalog.json              that this is a catalogue
//! NAME/versions/1.json           an entry of the log of versions
//! NAME/aliases/ALIAS/1.json      an entry of an alias's log
//! NAME/index.json                the index of chunks
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use super::Index;
use super::json::{decode, encode};
use super::store::{Log, MAX_ENTRY_BYTES, MAX_INDEX_BYTES, Store};
use crate::error::{Error, ErrorKind, Result};
use crate::nvme::catalog_name::is_catalog_word;
use crate::random;
use crate::replace_file::replace_file;

/// A catalogue in a folder.
#[derive(Debug, Clone)]
pub struct FolderStore {
    root: PathBuf,
}

impl FolderStore {
    /// The catalogue in the folder `root`, which need not exist yet.
    pub fn new(root: impl Into<PathBuf>) -> FolderStore {
        FolderStore { root: root.into() }
    }

    /// The entries of a folder of the catalogue; none if there is no such folder.
    fn list(&self, folder: &Path) -> Result<Vec<String>> {
        let entries = match fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.check_there()?;
                return Ok(Vec::new());
            }
            Err(error) => return Err(Error::from(error).path(folder)),
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| Error::from(error).path(folder))?;
            names.extend(entry.file_name().into_string().ok());
        }
        Ok(names)
    }

    fn check_there(&self) -> Result<()> {
        match fs::metadata(self.root.join(MARK)) {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let message = "there is no catalogue in this folder";
                Err(Error::new(ErrorKind::NotFound, message)
                    .path(&self.root)
                    .hint("dlfs catalog add makes one in a new or empty folder"))
            }
            Err(error) => Err(Error::from(error).path(&self.root)),
        }
    }

    fn folder_of(&self, log: &Log) -> PathBuf {
        match log {
            Log::Versions(name) => self.root.join(name).join("versions"),
            Log::Alias(name, alias) => self.root.join(name).join("aliases").join(alias),
        }
    }
}

impl Store for FolderStore {
    fn create(&self) -> Result<()> {
        let at = |error: io::Error| Error::from(error).path(&self.root);
        if self.root.join(MARK).exists() {
            return Ok(());
        }
        fs::create_dir_all(&self.root).map_err(at)?;
        let is_other = |entry: io::Result<fs::DirEntry>| {
            // Drafts begin with a dot: another process may be making the catalogue.
            entry.is_ok_and(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."))
        };
        let has_others = fs::read_dir(&self.root).map_err(at)?.any(is_other);
        if has_others && !self.root.join(MARK).exists() {
            let message = "this folder has other files and is no catalogue";
            return Err(Error::new(ErrorKind::Refused, message)
                .path(&self.root)
                .hint("name a new or empty folder"));
        }
        // Another process may make it at the same time: either is right.
        create_new(&self.root.join(MARK), b"{\"catalogue of dlfs\": 1}\n").map(drop)
    }

    fn names(&self) -> Result<Vec<String>> {
        self.check_there()?;
        let mut names = self.list(&self.root)?;
        names.retain(|name| is_catalog_word(name) && name != MARK);
        Ok(names)
    }

    fn aliases(&self, name: &str) -> Result<Vec<String>> {
        let mut names = self.list(&self.root.join(name).join("aliases"))?;
        names.retain(|name| is_catalog_word(name));
        Ok(names)
    }

    fn numbers(&self, log: &Log) -> Result<Vec<u64>> {
        let names = self.list(&self.folder_of(log))?;
        let number = |name: String| name.strip_suffix(".json")?.parse().ok();
        Ok(names.into_iter().filter_map(number).collect())
    }

    fn read(&self, log: &Log, number: u64) -> Result<Option<Vec<u8>>> {
        read_at_most(&self.folder_of(log).join(file_name(number)), MAX_ENTRY_BYTES)
    }

    fn append(&self, log: &Log, number: u64, bytes: &[u8]) -> Result<bool> {
        let folder = self.folder_of(log);
        fs::create_dir_all(&folder).map_err(|error| Error::from(error).path(&folder))?;
        create_new(&folder.join(file_name(number)), bytes)
    }

    fn read_index(&self, name: &str) -> Result<Option<Index>> {
        let bytes = read_at_most(&self.root.join(name).join(INDEX), MAX_INDEX_BYTES)?;
        bytes.map(|bytes| decode(&bytes, "the index of chunks")).transpose()
    }

    fn write_index(&self, name: &str, index: Option<&Index>) -> Result<()> {
        let path = self.root.join(name).join(INDEX);
        let Some(index) = index else {
            return match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    Err(Error::from(error).path(path))
                }
                _ => Ok(()),
            };
        };
        let folder = self.root.join(name);
        fs::create_dir_all(&folder).map_err(|error| Error::from(error).path(&folder))?;
        replace_file(&path, &encode(index)?)
    }
}

/// Creates the file at `path` with all of `bytes`, durably; false if there is one already.
///
/// The bytes are written to another file first, which then gets this name too: linking never replaces a file, also
/// on NFS, and nobody sees a part of it.
fn create_new(path: &Path, bytes: &[u8]) -> Result<bool> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut number = [0; 8];
    random::draw(&mut number)?;
    let number = u64::from_le_bytes(number);
    let draft = folder.join(format!(".{number:016x}"));
    let write = || -> io::Result<bool> {
        let mut file = OpenOptions::new().write(true).create_new(true).open(&draft)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        let is_new = match fs::hard_link(&draft, path) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            // An answer that was lost on its way looks like a failure; the number of links knows.
            Err(_) if has_two_links(&file) => true,
            Err(error) => return Err(error),
        };
        File::open(folder)?.sync_all()?;
        Ok(is_new)
    };
    let written = write();
    let _ = fs::remove_file(&draft); // a draft that stays is ignored
    written.map_err(|error| Error::from(error).path(path))
}

fn has_two_links(file: &File) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    file.metadata().is_ok_and(|found| found.nlink() == 2)
}

fn read_at_most(path: &Path, most: u64) -> Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::from(error).path(path)),
    };
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes).map_err(|error| Error::from(error).path(path))?;
    if bytes.len() as u64 > most {
        let message = format!("this is longer than {most} bytes and no record of dlfs");
        return Err(Error::new(ErrorKind::Corrupt, message).path(path));
    }
    Ok(Some(bytes))
}

fn file_name(number: u64) -> String {
    format!("{number}.json")
}

const MARK: &str = "dlfs-catalog.json";
const INDEX: &str = "index.json";
