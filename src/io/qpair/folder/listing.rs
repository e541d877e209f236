//! The listing of a folder: its files in a deterministic order, and their offsets in the namespace.
//!
//! The order is the order of torchvision's ImageFolder: class folders by name; within a class folder, folders
//! by path; within a folder, files by name; files outside class folders last. [`FolderOptions`] select the
//! links to follow. A link to a folder that contains the link is never followed, nor a path through more than
//! [`MAX_LINKED_FOLDERS`] linked folders. Objects of a store are listed in the same order.

use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3;

use dlfs_base::error::{Error, ErrorKind, Result};
use dlfs_base::folders::{FolderOptions, Links, MAX_LINKED_FOLDERS, is_dropping};
use dlfs_places::{Client, Object};

/// One file of a folder, and the offset of its first byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FolderFile {
    /// Its path beneath the folder.
    pub name: Vec<u8>,
    /// The index of its class folder, in the order of names; `None` outside class folders.
    pub class: Option<u32>,
    /// Its length.
    pub len_bytes: u64,
    /// Its offset in the namespace: a multiple of 4,096.
    pub offset_bytes: u64,
    /// Metadata by which a read detects that the file has changed.
    pub(super) stamp: Stamp,
}

impl FolderFile {
    /// The modification time in ns since 1970; 0 before that.
    pub fn modified_ns(&self) -> u64 {
        let seconds = u64::try_from(self.stamp.modified_s).unwrap_or(0);
        seconds.saturating_mul(1_000_000_000).saturating_add(self.stamp.modified_ns.unsigned_abs())
    }
}

/// Metadata that identify one version of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    device: u64,
    /// The file's, or the store's stamp of an object.
    pub(super) inode: u64,
    len_bytes: u64,
    modified_s: i64,
    modified_ns: i64,
}

impl Stamp {
    pub(super) fn of(metadata: &std::fs::Metadata) -> Stamp {
        Stamp {
            device: metadata.dev(),
            inode: metadata.ino(),
            len_bytes: metadata.len(),
            modified_s: metadata.mtime(),
            modified_ns: metadata.mtime_nsec(),
        }
    }

    /// The store's stamp alone identifies the content of an object.
    fn of_object(object: &Object) -> Stamp {
        let inode = object.stamp();
        Stamp { device: 0, inode, len_bytes: object.len_bytes, modified_s: 0, modified_ns: 0 }
    }
}

/// The files of a folder in order, and values derived from them.
#[derive(Debug)]
pub(super) struct Listing {
    pub(super) files: Vec<FolderFile>,
    /// The names of the class folders, in order.
    pub(super) classes: Vec<Vec<u8>>,
    /// The end of the last file, which is the length of the namespace.
    pub(super) len_bytes: u64,
    /// A hash of names, lengths, inodes and times; a different listing has a different hash.
    pub(super) identity: [u8; 16],
}

impl Listing {
    /// Lists `root`.
    ///
    /// # Errors
    /// `NotFound`, `Refused`: the operating system cannot read a folder. `NotFound`: there is no sample.
    /// `Refused`: a link that must not be followed. `Unsupported`: a file of 4 GiB or more.
    pub(super) fn of(root: &Path, options: FolderOptions) -> Result<Listing> {
        let (real, metadata) = root
            .canonicalize()
            .and_then(|real| std::fs::metadata(&real).map(|metadata| (real, metadata)))
            .map_err(|error| Error::from(error).path(root))?;
        let mut found = Found::default();
        let mut way = Way { around: vec![(metadata.dev(), metadata.ino())], links: 0 };
        let mut walk = Walk { options, real, found: &mut found, told: Told::default() };
        walk.folder(root, b"", &mut way)?;
        let told = walk.told;
        if found.files.is_empty() {
            return Err(told.of_nothing("there is no sample in this folder").path(root));
        }
        told.tell();
        Ok(Listing::of_found(found))
    }

    /// Lists the objects of a store under `prefix`, which is empty or ends with a slash.
    ///
    /// # Errors
    /// Errors of the store. `NotFound`: there is no object. `Unsupported`: an object of 4 GiB or more.
    pub(super) fn of_objects(client: &Client, prefix: &str, hidden: bool) -> Result<Listing> {
        let mut found = Found::default();
        let mut told = Told::default();
        let left_out = client.list(prefix, &mut |object| {
            let beneath = object.key.strip_prefix(prefix).unwrap_or_default();
            if !hidden && is_dropping(beneath.as_bytes()) {
                told.add(HIDDEN, &object.key);
                return Ok(());
            }
            found.object(prefix, &object)
        })?;
        left_out.iter().for_each(|key| told.add(ODD_KEY, key));
        if found.files.is_empty() {
            let text = "there is no object with this prefix";
            let place = client.place().with_key(prefix).to_string();
            return Err(told.of_nothing(text).target(place));
        }
        told.tell();
        Ok(Listing::of_found(found))
    }

    fn of_found(mut found: Found) -> Listing {
        found.classes.sort_unstable();
        found.classes.dedup();
        let class_of = |top: &[u8]| found.classes.binary_search_by(|class| class[..].cmp(top)).ok();
        let mut files = Vec::with_capacity(found.files.len());
        for (folder, name, stamp) in found.files {
            let top = folder.split(|byte| *byte == b'/').next().unwrap_or_default();
            let class = class_of(top).map(|class| class as u32);
            files.push((class.unwrap_or(u32::MAX), folder, name, stamp));
        }
        files.sort_unstable_by(|a, b| (a.0, &a.1, &a.2).cmp(&(b.0, &b.1, &b.2)));
        let mut listing =
            Listing { files: Vec::new(), classes: found.classes, len_bytes: 0, identity: [0; 16] };
        listing.assign_addresses(files);
        listing
    }

    /// Assigns each file its offset.
    fn assign_addresses(&mut self, files: Vec<(u32, Vec<u8>, Vec<u8>, Stamp)>) {
        let mut hash = Xxh3::new();
        let mut addresses = Addresses::default();
        for (class, folder, name, stamp) in files {
            let name = [folder, name].concat();
            for number in [name.len() as u64, stamp.len_bytes, stamp.inode] {
                hash.update(&number.to_le_bytes());
            }
            hash.update(&stamp.modified_s.to_le_bytes());
            hash.update(&stamp.modified_ns.to_le_bytes());
            hash.update(&name);
            self.files.push(FolderFile {
                name,
                class: (class != u32::MAX).then_some(class),
                len_bytes: stamp.len_bytes,
                offset_bytes: addresses.next(stamp.len_bytes),
                stamp,
            });
        }
        self.len_bytes = addresses.end.next_multiple_of(FOLDER_CELL_BYTES);
        self.identity = hash.digest128().to_le_bytes();
    }
}

/// Assigns offsets: files follow each other at multiples of 4,096. A file that fits a cell lies within one; a
/// longer file gets whole cells of its own. Cell 0 stays empty.
#[derive(Debug)]
struct Addresses {
    end: u64,
    /// The cell of the last file, and the number of files that begin in it.
    cell: u64,
    in_cell: u32,
}

impl Default for Addresses {
    fn default() -> Addresses {
        Addresses { end: FOLDER_CELL_BYTES, cell: 0, in_cell: 0 }
    }
}

impl Addresses {
    fn next(&mut self, len_bytes: u64) -> u64 {
        let len = len_bytes.next_multiple_of(ALIGN);
        if self.end / FOLDER_CELL_BYTES == self.cell {
            let crosses = self.end % FOLDER_CELL_BYTES + len > FOLDER_CELL_BYTES;
            if crosses || self.in_cell == MAX_FILES_OF_CELL {
                self.end = (self.cell + 1) * FOLDER_CELL_BYTES;
            }
        }
        let cell = self.end / FOLDER_CELL_BYTES;
        self.in_cell = if cell == self.cell { self.in_cell + 1 } else { 1 };
        self.cell = cell;
        let at = self.end;
        self.end += len;
        if len > FOLDER_CELL_BYTES {
            self.end = self.end.next_multiple_of(FOLDER_CELL_BYTES);
        }
        at
    }
}

/// Files and classes that the walk has found.
#[derive(Default)]
struct Found {
    /// Folder (with a slash at its end, or empty), name and stamp.
    files: Vec<(Vec<u8>, Vec<u8>, Stamp)>,
    classes: Vec<Vec<u8>>,
}

impl Found {
    fn object(&mut self, prefix: &str, object: &Object) -> Result<()> {
        let Some(beneath) = object.key.strip_prefix(prefix).filter(|name| !name.is_empty()) else {
            return Ok(()); // a web server may list more
        };
        if object.len_bytes > u64::from(u32::MAX) {
            let text = "an object of 4 GiB or more is too long for a sample";
            return Err(Error::new(ErrorKind::Unsupported, text).target(object.key.clone()));
        }
        let (folder, name) = beneath.split_at(beneath.rfind('/').map_or(0, |slash| slash + 1));
        if let Some((class, _)) = folder.split_once('/')
            && self.classes.last().is_none_or(|last| last != class.as_bytes())
        {
            self.classes.push(class.into());
        }
        let stamp = Stamp::of_object(object);
        self.files.push((folder.into(), name.into(), stamp));
        Ok(())
    }
}

/// The walk through a folder of the file system.
struct Walk<'a> {
    options: FolderOptions,
    /// The path of the folder, with all links resolved.
    real: PathBuf,
    found: &'a mut Found,
    told: Told,
}

/// The way from the root to a folder: device and inode of each folder, and the number of links.
#[derive(Default)]
struct Way {
    around: Vec<(u64, u64)>,
    links: usize,
}

impl Walk<'_> {
    fn folder(&mut self, path: &Path, beneath: &[u8], way: &mut Way) -> Result<()> {
        let failed = |error: std::io::Error| Error::from(error).path(path);
        for entry in std::fs::read_dir(path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().as_bytes().to_vec();
            let at = entry.path();
            if !self.options.hidden && is_dropping(&name) {
                self.told.add(HIDDEN, &at);
                continue;
            }
            let is_link = entry.file_type().map_err(failed)?.is_symlink();
            if is_link {
                self.link(&at)?;
            }
            match std::fs::metadata(&at) {
                Ok(found) if found.is_dir() => {
                    self.enter(&at, beneath, &name, &found, is_link, way)?
                }
                Ok(found) if found.is_file() => self.file(&at, beneath, name, &found)?,
                _ => self.told.add(NO_FILE, &at),
            }
        }
        Ok(())
    }

    /// Lists the folder `name`, unless links form a loop or a long chain.
    fn enter(
        &mut self,
        path: &Path,
        beneath: &[u8],
        name: &[u8],
        found: &Metadata,
        is_link: bool,
        way: &mut Way,
    ) -> Result<()> {
        let identity = (found.dev(), found.ino());
        let links = way.links + usize::from(is_link);
        if way.around.contains(&identity) || links > MAX_LINKED_FOLDERS {
            self.told.add(LOOP, path);
            return Ok(());
        }
        if beneath.is_empty() {
            self.found.classes.push(name.to_vec());
        }
        way.around.push(identity);
        let before = std::mem::replace(&mut way.links, links);
        let result = self.folder(path, &[beneath, name, b"/"].concat(), way);
        way.around.pop();
        way.links = before;
        result
    }

    fn file(&mut self, path: &Path, beneath: &[u8], name: Vec<u8>, found: &Metadata) -> Result<()> {
        if found.len() > u64::from(u32::MAX) {
            let text = "a file of 4 GiB or more is too long for a sample";
            return Err(Error::new(ErrorKind::Unsupported, text).path(path));
        }
        self.found.files.push((beneath.to_vec(), name, Stamp::of(found)));
        Ok(())
    }

    /// Refuses a link that must not be followed.
    fn link(&mut self, path: &Path) -> Result<()> {
        let leaves = || path.canonicalize().is_ok_and(|real| !real.starts_with(&self.real));
        let refused = |text: &'static str| Err(Error::new(ErrorKind::Refused, text).path(path));
        match self.options.links {
            Links::Refuse => refused("this is a link, and links are not followed"),
            Links::Inside if leaves() => refused("this link leads out of the folder"),
            Links::Follow if leaves() => {
                self.told.add(LINK_OUT, path);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// Entries that are not samples, or lie outside the folder. Those with the same reason share a log message.
#[derive(Default)]
struct Told(Vec<(&'static str, u64, String)>);

impl Told {
    fn add(&mut self, what: &'static str, example: impl AsRef<Path>) {
        match self.0.iter_mut().find(|(known, ..)| *known == what) {
            Some((_, count, _)) => *count += 1,
            None => self.0.push((what, 1, example.as_ref().display().to_string())),
        }
    }

    /// The error for a folder without samples; its source lists these entries.
    fn of_nothing(self, text: &'static str) -> Error {
        let error = Error::new(ErrorKind::NotFound, text);
        let all = self.0.iter();
        let all = all.map(|(what, count, example)| format!("{count}, such as {example}, {what}"));
        match all.collect::<Vec<_>>().join("; ") {
            none if none.is_empty() => error,
            told => error.source(std::io::Error::other(told)),
        }
    }

    fn tell(self) {
        for (what, count, example) in self.0 {
            tracing::warn!(count, example, "{what}");
        }
    }
}

const HIDDEN: &str =
    "left out: hidden files, and what file systems and tools leave behind (--hidden takes them)";
const NO_FILE: &str = "left out: they are no files";
const LOOP: &str = "left out: links that lead back to a folder around them";
const LINK_OUT: &str =
    "links lead out of the folder, and are followed (--links inside refuses them)";
const ODD_KEY: &str = "left out: the key has empty, . or .. parts";

/// The length of a cell of a folder, unlike the cells of an image. The files of a cell form one chunk of the
/// directory that is made from the listing.
pub const FOLDER_CELL_BYTES: u64 = 4 << 20;

/// The most samples in a chunk (`format`).
const MAX_FILES_OF_CELL: u32 = 65_535;

const ALIGN: u64 = dlfs_base::units::ALIGN_BYTES as u64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_follow_each_other_at_multiples_of_4096_and_none_but_long_ones_crosses_a_cell() {
        let mut addresses = Addresses::default();
        let cell = FOLDER_CELL_BYTES;
        let mut next = |len| addresses.next(len);
        let first = [next(1), next(4096), next(4097), next(0), next(1)];
        assert_eq!(first, [0, 4096, 8192, 16384, 16384].map(|at| cell + at));
        assert_eq!(next(cell - 20_480), cell + 20_480, "ends with the cell");
        assert_eq!(next(cell - 1), 2 * cell);
        assert_eq!(next(cell + 1), 3 * cell, "has two cells alone");
        assert_eq!(
            [next(0), next(cell + 5)],
            [5 * cell, 6 * cell],
            "alone, also without the empty"
        );
        assert_eq!([next(5), next(cell)], [8 * cell, 9 * cell]);
    }
}
