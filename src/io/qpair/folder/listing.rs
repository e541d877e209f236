//! The listing of a folder: its files in a deterministic order, and their offsets in the namespace.
//!
//! The order is the order of torchvision's ImageFolder: class folders, the top-level folders, by name; within a class
//! folder, folders by path; within a folder, files by name; files outside class folders last. [`FolderOptions`] say
//! which links to follow. A link to a folder that contains the link is never followed, nor a path through more than
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
    /// The path beneath the folder.
    pub name: Vec<u8>,
    /// The index of the class folder, in the order of names; `None` outside class folders.
    pub class: Option<u32>,
    /// The length in bytes, less than 4 GiB.
    pub len_bytes: u64,
    /// The offset in the namespace, in bytes: a multiple of 4,096.
    pub offset_bytes: u64,
    /// Metadata by which a read detects that the file has changed.
    pub(super) stamp: Stamp,
}

impl FolderFile {
    /// The modification time in ns since 1970; for an earlier time the fraction of its second alone, for an object 0.
    pub fn modified_ns(&self) -> u64 {
        let seconds = u64::try_from(self.stamp.modified_s).unwrap_or(0);
        seconds.saturating_mul(1_000_000_000).saturating_add(self.stamp.modified_ns.unsigned_abs())
    }
}

/// Metadata that identify one version of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    device: u64,
    /// The inode number of a file, or the store's stamp of an object.
    pub(super) inode: u64,
    len_bytes: u64,
    /// Modification time since 1970: whole seconds.
    modified_s: i64,
    /// The rest of the modification time, below a second.
    modified_ns: i64,
}

impl Stamp {
    /// The stamp of a file.
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
    /// By ascending offset.
    pub(super) files: Vec<FolderFile>,
    /// The names of the class folders, in order.
    pub(super) classes: Vec<Vec<u8>>,
    /// The length of the namespace: the end of the last file, rounded up to whole cells.
    pub(super) len_bytes: u64,
    /// A hash of names, lengths, inodes (of objects their stamps) and times; another listing has another hash.
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
        let mut ancestors =
            Ancestors { folders: vec![(metadata.dev(), metadata.ino())], num_links: 0 };
        let mut walk = Walk { options, real, found: &mut found, remarks: Remarks::default() };
        walk.folder(root, b"", &mut ancestors)?;
        let remarks = walk.remarks;
        if found.files.is_empty() {
            return Err(remarks.not_found("there is no sample in this folder").path(root));
        }
        remarks.log();
        Ok(Listing::of_found(found))
    }

    /// Lists the objects of a store under `prefix`, which is empty or ends with a slash.
    ///
    /// # Errors
    /// Errors of the store. `NotFound`: there is no object. `Unsupported`: an object of 4 GiB or more.
    pub(super) fn of_objects(client: &Client, prefix: &str, hidden: bool) -> Result<Listing> {
        let mut found = Found::default();
        let mut remarks = Remarks::default();
        let left_out = client.list(prefix, &mut |object| {
            let beneath = object.key.strip_prefix(prefix).unwrap_or_default();
            if !hidden && is_dropping(beneath.as_bytes()) {
                remarks.add(HIDDEN, &object.key);
                return Ok(());
            }
            found.add_object(prefix, &object)
        })?;
        left_out.iter().for_each(|key| remarks.add(ODD_KEY, key));
        if found.files.is_empty() {
            let text = "there is no object with this prefix";
            let place = client.place().with_key(prefix).to_string();
            return Err(remarks.not_found(text).target(place));
        }
        remarks.log();
        Ok(Listing::of_found(found))
    }

    /// Sorts the files that were found, and assigns each its class and its offset.
    fn of_found(Found { files, mut classes }: Found) -> Listing {
        classes.sort_unstable();
        classes.dedup();
        let with_class = |file: FoundFile| {
            let top = file.folder.split(|byte| *byte == b'/').next().unwrap_or_default();
            let class = classes.binary_search_by(|class| class[..].cmp(top)).ok();
            (class.map_or(u32::MAX, |class| class as u32), file)
        };
        let mut files: Vec<(u32, FoundFile)> = files.into_iter().map(with_class).collect();
        files.sort_unstable_by(|(class, a), (other, b)| {
            (class, &a.folder, &a.name).cmp(&(other, &b.folder, &b.name))
        });
        let mut hash = Xxh3::new();
        let mut offsets = Offsets::default();
        let mut list = Vec::with_capacity(files.len());
        for (class, FoundFile { folder, name, stamp }) in files {
            let name = [folder, name].concat();
            for number in [name.len() as u64, stamp.len_bytes, stamp.inode] {
                hash.update(&number.to_le_bytes());
            }
            hash.update(&stamp.modified_s.to_le_bytes());
            hash.update(&stamp.modified_ns.to_le_bytes());
            hash.update(&name);
            list.push(FolderFile {
                name,
                class: (class != u32::MAX).then_some(class),
                len_bytes: stamp.len_bytes,
                offset_bytes: offsets.next(stamp.len_bytes),
                stamp,
            });
        }
        Listing {
            files: list,
            classes,
            len_bytes: offsets.end.next_multiple_of(FOLDER_CELL_BYTES),
            identity: hash.digest128().to_le_bytes(),
        }
    }
}

/// Assigns offsets: files follow each other at multiples of 4,096. A file that fits a cell lies within one; a
/// longer file gets whole cells of its own. Cell 0 stays empty.
#[derive(Debug)]
struct Offsets {
    /// The end of the last file in the namespace, in bytes; of cell 0 before the first file.
    end: u64,
    /// The cell in which the last file begins.
    cell: u64,
    /// The number of files that begin in that cell.
    in_cell: u32,
}

impl Default for Offsets {
    fn default() -> Offsets {
        Offsets { end: FOLDER_CELL_BYTES, cell: 0, in_cell: 0 }
    }
}

impl Offsets {
    /// The offset of the next file, which has this length.
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

/// Files and classes that were found, in any order.
#[derive(Default)]
struct Found {
    files: Vec<FoundFile>,
    /// Names of class folders; a name may be repeated.
    classes: Vec<Vec<u8>>,
}

/// A file or an object that was found.
struct FoundFile {
    /// The path of the file's folder beneath the listed one, with a slash at the end; empty for the listed one.
    folder: Vec<u8>,
    name: Vec<u8>,
    stamp: Stamp,
}

impl Found {
    /// Adds an object, unless its key does not begin with `prefix` or has nothing behind it.
    fn add_object(&mut self, prefix: &str, object: &Object) -> Result<()> {
        let Some(beneath) = object.key.strip_prefix(prefix).filter(|name| !name.is_empty()) else {
            return Ok(()); // a web server may list such objects
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
        self.files.push(FoundFile { folder: folder.into(), name: name.into(), stamp });
        Ok(())
    }
}

/// A walk through a folder of the file system.
struct Walk<'a> {
    options: FolderOptions,
    /// The path of the listed folder, with all links resolved.
    real: PathBuf,
    found: &'a mut Found,
    remarks: Remarks,
}

/// The folders from the listed one to the one that is being read.
struct Ancestors {
    /// Device and inode of each.
    folders: Vec<(u64, u64)>,
    /// The number of links to folders among them.
    num_links: usize,
}

impl Walk<'_> {
    /// Lists the folder `path`; `beneath` is its path beneath the listed one, with a slash at the end.
    fn folder(&mut self, path: &Path, beneath: &[u8], ancestors: &mut Ancestors) -> Result<()> {
        let failed = |error: std::io::Error| Error::from(error).path(path);
        for entry in std::fs::read_dir(path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().as_bytes().to_vec();
            let entry_path = entry.path();
            if !self.options.hidden && is_dropping(&name) {
                self.remarks.add(HIDDEN, &entry_path);
                continue;
            }
            let is_link = entry.file_type().map_err(failed)?.is_symlink();
            if is_link {
                self.check_link(&entry_path)?;
            }
            match std::fs::metadata(&entry_path) {
                Ok(found) if found.is_dir() => {
                    self.enter(&entry_path, beneath, &name, &found, is_link, ancestors)?
                }
                Ok(found) if found.is_file() => {
                    self.add_file(&entry_path, beneath, name, &found)?
                }
                _ => self.remarks.add(NO_FILE, &entry_path),
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
        ancestors: &mut Ancestors,
    ) -> Result<()> {
        let identity = (found.dev(), found.ino());
        let num_links = ancestors.num_links + usize::from(is_link);
        if ancestors.folders.contains(&identity) || num_links > MAX_LINKED_FOLDERS {
            self.remarks.add(LOOP, path);
            return Ok(());
        }
        if beneath.is_empty() {
            self.found.classes.push(name.to_vec());
        }
        ancestors.folders.push(identity);
        let before = std::mem::replace(&mut ancestors.num_links, num_links);
        let result = self.folder(path, &[beneath, name, b"/"].concat(), ancestors);
        ancestors.folders.pop();
        ancestors.num_links = before;
        result
    }

    /// Adds the file at `path`.
    fn add_file(
        &mut self,
        path: &Path,
        beneath: &[u8],
        name: Vec<u8>,
        found: &Metadata,
    ) -> Result<()> {
        if found.len() > u64::from(u32::MAX) {
            let text = "a file of 4 GiB or more is too long for a sample";
            return Err(Error::new(ErrorKind::Unsupported, text).path(path));
        }
        let stamp = Stamp::of(found);
        self.found.files.push(FoundFile { folder: beneath.to_vec(), name, stamp });
        Ok(())
    }

    /// Refuses a link that must not be followed.
    fn check_link(&mut self, path: &Path) -> Result<()> {
        let leaves = || path.canonicalize().is_ok_and(|real| !real.starts_with(&self.real));
        let refused = |text: &'static str| Err(Error::new(ErrorKind::Refused, text).path(path));
        match self.options.links {
            Links::Refuse => refused("this is a link, and links are not followed"),
            Links::Inside if leaves() => refused("this link leads out of the folder"),
            Links::Follow if leaves() => {
                self.remarks.add(LINK_OUT, path);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// Remarks about entries that were left out, or that lie outside the folder; one for each text.
#[derive(Default)]
struct Remarks(Vec<Remark>);

/// A remark about entries.
struct Remark {
    text: &'static str,
    /// The number of entries.
    count: u64,
    /// The path of the first entry.
    example: String,
}

impl Remarks {
    /// Adds an entry to the remark with this text.
    fn add(&mut self, text: &'static str, path: impl AsRef<Path>) {
        match self.0.iter_mut().find(|remark| remark.text == text) {
            Some(remark) => remark.count += 1,
            None => {
                let example = path.as_ref().display().to_string();
                self.0.push(Remark { text, count: 1, example });
            }
        }
    }

    /// The error for a folder without samples; its source lists the remarks.
    fn not_found(self, message: &'static str) -> Error {
        let error = Error::new(ErrorKind::NotFound, message);
        if self.0.is_empty() {
            return error;
        }
        let remarks = self.0.iter();
        let remarks: Vec<String> = remarks
            .map(|Remark { text, count, example }| format!("{count}, such as {example}, {text}"))
            .collect();
        error.source(std::io::Error::other(remarks.join("; ")))
    }

    fn log(self) {
        for Remark { text, count, example } in self.0 {
            tracing::warn!(count, example, "{text}");
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

/// The length of a cell of a folder, which differs from that of an image. The files of a cell form one chunk of the
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
        let mut offsets = Offsets::default();
        let cell = FOLDER_CELL_BYTES;
        let mut next = |len| offsets.next(len);
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
