//! A data set as a tree of files: computes paths, inode numbers, listings and attributes from the directory. Pure.
//!
//! # What it is
//! The common part of all interfaces for programs that know only files. It keeps no inode table: a node is computed
//! from its inode number, so no entry ever needs to be freed.
//!
//! | node           | inode number                                            |
//! |----------------|---------------------------------------------------------|
//! | the top folder | 1                                                       |
//! | a file         | 2^32 + id x fields + field                              |
//! | another folder | 2^62 + (rank of the first name below it) x 2^12 + depth |
//!
//! Ranks count all names, also of deleted samples, in the order of names. So inode numbers stay the same within a
//! generation.
//!
//! A sample is one file with the sample's name. If samples have fields, each field is a file `NAME.FIELD`, as
//! `dlfs export` writes them; a slash in FIELD becomes `%2F` ([`in_file_name`]). The length of a field's file is
//! stored in the sample's record, so it is unknown until the sample is read. An absent field is an empty file.
//!
//! # What it is not
//! It reads no samples and makes no system calls. It does not change names: a sample whose name is not a valid path
//! (an empty component, `.`, `..`, a component of more than 255 bytes) is not in the tree, and can be read only
//! by its id. If a file and a folder have the same path, only the file is listed. If several samples have the same
//! name, only the newest is listed.
//!
//! # Invariants
//! Every listed entry can be looked up, with the same inode number. A position in a listing (a *cookie*) stays valid
//! within a generation: a listing that continues there returns exactly the entries that were not returned before.
//!
//! Read this file first, then `listing.rs` (the entries of a folder). `epochs.rs` detects the epochs of a program from
//! the files that it opens.

mod epochs;
mod listing;

use std::borrow::Cow;
use std::sync::Arc;

use crate::directory::Directory;
use crate::format::FormatError;
use dlfs_base::error::{Error, ErrorKind};
use dlfs_base::units::SampleId;

pub use epochs::Epochs;
pub use listing::{FIRST, Found};

/// A generation of a data set as a tree of files.
#[derive(Debug, Clone)]
pub struct FileTree {
    directory: Arc<Directory>,
    /// The first id of each part and the time at which its import began, in ns since 1970.
    times: Vec<(u64, u64)>,
}

/// A file or a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Node {
    /// A folder with at least one live sample below it, or the top folder.
    Folder(Folder),
    /// A sample, or one field of it.
    File(File),
}

/// A folder, identified by the first name below it, and by the number of that name's components in the folder's path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Folder {
    /// Rank of the first name below the folder, in the order of names; 0 for the top folder.
    rank: u64,
    /// Components of the folder's path; 0 for the top folder.
    depth: u32,
}

/// A file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct File {
    /// The sample.
    pub id: SampleId,
    /// 0-based index of the field; 0 if samples have no fields.
    pub field: u16,
}

/// The attributes of a node that `stat` reports, except the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// The inode number.
    pub inode: u64,
    /// Length in bytes; 0 for a folder.
    pub len_bytes: u64,
    /// In ns since 1970: the time at which the import of the file's sample began; for a folder, and for the files of a
    /// plain folder, the time of the generation.
    pub modified_ns: u64,
    /// Type and permissions: 0100444 or 040555.
    pub mode: u32,
}

impl Attributes {
    /// Length in blocks of 512 bytes, as `du` counts it.
    pub fn blocks(&self) -> u64 {
        self.len_bytes.div_ceil(512)
    }
}

/// The error if a path does not lead to a node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// There is no file or folder with this name.
    #[error("no such file or folder")]
    NotFound,
    /// A component that must be a folder is a file: a slash or another component follows it.
    #[error("not a folder")]
    NotFolder,
    /// A component has more than 255 bytes, or the path more than 4,096.
    #[error("the name is too long")]
    NameTooLong,
    /// The names are damaged, or not loaded.
    #[error(transparent)]
    Names(#[from] FormatError),
}

impl From<PathError> for Error {
    fn from(error: PathError) -> Error {
        match error {
            PathError::Names(error) => error.into(),
            PathError::NameTooLong => Error::new(ErrorKind::InvalidArgument, error.to_string()),
            PathError::NotFound | PathError::NotFolder => {
                Error::new(ErrorKind::NotFound, error.to_string())
            }
        }
    }
}

impl FileTree {
    /// The tree of `directory`.
    ///
    /// # Errors
    /// `NotLoaded`: the names are still on media. Other errors: a name is damaged.
    pub fn new(directory: Arc<Directory>) -> Result<FileTree, FormatError> {
        directory.rank_by_name(0, b"")?;
        let record = directory.record();
        let times = record.parts.iter().map(|part| part.first).zip(record.started_ns);
        Ok(FileTree { times: times.collect(), directory })
    }

    /// The directory that the tree shows.
    pub fn directory(&self) -> &Arc<Directory> {
        &self.directory
    }

    /// The inode number of a node: never 0.
    pub fn inode(&self, node: Node) -> u64 {
        match node {
            Node::Folder(Folder { depth: 0, .. }) => ROOT,
            Node::Folder(Folder { rank, depth }) => {
                FOLDERS + (rank << DEPTH_BITS) + u64::from(depth)
            }
            Node::File(file) => FILES + self.number(file),
        }
    }

    /// The 0-based number of a file among all files of live and deleted samples.
    pub fn number(&self, File { id, field }: File) -> u64 {
        id.0 * self.num_fields() + u64::from(field)
    }

    /// Number of files of live samples.
    pub fn num_files(&self) -> u64 {
        self.directory.num_live() * self.num_fields()
    }

    /// The node with this inode number; `None` if there is no such node. Only for numbers of [`inode`](Self::inode):
    /// some others lead to folders that are not listed.
    pub fn node(&self, inode: u64) -> Option<Node> {
        if inode == ROOT {
            return Some(Node::Folder(Folder::TOP));
        }
        if inode >= FOLDERS {
            let number = inode - FOLDERS;
            let depth = (number & ((1 << DEPTH_BITS) - 1)) as u32;
            let folder = Folder { rank: number >> DEPTH_BITS, depth };
            return (depth > 0 && self.prefix(folder).is_ok()).then_some(Node::Folder(folder));
        }
        let number = inode.checked_sub(FILES)?;
        let id = number / self.num_fields();
        let field = number % self.num_fields();
        let file = File { id: SampleId(id), field: field as u16 };
        self.directory.is_live(file.id).then_some(Node::File(file))
    }

    /// The node called `name` in `folder`.
    ///
    /// # Errors
    /// See [`PathError`].
    pub fn child(&self, folder: Folder, name: &[u8]) -> Result<Node, PathError> {
        match name {
            b"." => return Ok(Node::Folder(folder)),
            b".." => return Ok(Node::Folder(self.parent(folder)?)),
            _ if name.len() > MAX_COMPONENT_BYTES => return Err(PathError::NameTooLong),
            _ if !is_component(name) => return Err(PathError::NotFound),
            _ => {}
        }
        let mut path = self.prefix(folder)?;
        path.extend_from_slice(name);
        self.find(&path)?.ok_or(PathError::NotFound)
    }

    /// Resolves `path` from the top folder as the kernel does, but ignores leading slashes.
    ///
    /// # Errors
    /// See [`PathError`].
    pub fn resolve(&self, path: &[u8]) -> Result<Node, PathError> {
        if path.len() > MAX_PATH_BYTES {
            return Err(PathError::NameTooLong);
        }
        let mut clean = Vec::with_capacity(path.len());
        for component in path.split(|byte| *byte == b'/') {
            match component {
                b"" | b"." => {}
                b".." => {
                    self.folder_at(&clean)?;
                    clean.truncate(clean.iter().rposition(|byte| *byte == b'/').unwrap_or(0));
                }
                _ if component.len() > MAX_COMPONENT_BYTES => return Err(PathError::NameTooLong),
                _ => {
                    if !clean.is_empty() {
                        clean.push(b'/');
                    }
                    clean.extend_from_slice(component);
                }
            }
        }
        let wants_folder = path.ends_with(b"/") || path.ends_with(b"/.");
        match self.find(&clean)? {
            Some(Node::File(_)) if wants_folder => Err(PathError::NotFolder),
            Some(node) => Ok(node),
            None => Err(self.missing(&clean)),
        }
    }

    /// The parent of `folder`; the top folder is its own parent.
    ///
    /// # Errors
    /// `Names`: the names are damaged. `NotFound`: there is no such folder.
    pub fn parent(&self, folder: Folder) -> Result<Folder, PathError> {
        if folder.depth <= 1 {
            return Ok(Folder::TOP);
        }
        let prefix = self.prefix(folder)?;
        let slash = prefix[..prefix.len() - 1].iter().rposition(|byte| *byte == b'/');
        let parent = &prefix[..slash.map_or(0, |at| at + 1)];
        let rank = self.directory.rank_by_name(0, parent)?;
        Ok(Folder { rank, depth: folder.depth - 1 })
    }

    /// The path of a node, without leading or trailing slash; empty for the top folder.
    ///
    /// # Errors
    /// `Names`: the names are damaged; `NotFound`: there is no such sample or folder.
    pub fn path(&self, node: Node) -> Result<Vec<u8>, PathError> {
        match node {
            Node::Folder(folder) => {
                let mut path = self.prefix(folder)?;
                path.pop();
                Ok(path)
            }
            Node::File(File { id, field }) => {
                let mut path = self.directory.name(id)?.ok_or(PathError::NotFound)?;
                if let Some(field) = self.directory.fields().get(usize::from(field)) {
                    path.push(b'.');
                    path.extend_from_slice(&in_file_name(field));
                }
                Ok(path)
            }
        }
    }

    /// The attributes of a node. If samples have fields, the caller reads the length of the node's field from the
    /// sample's record and passes it as `field_len_bytes`.
    pub fn attributes(&self, node: Node, field_len_bytes: Option<u64>) -> Attributes {
        let directory = self.directory();
        let (len_bytes, modified_ns, mode) = match node {
            Node::Folder(_) => (0, directory.time_ns(), 0o040_555),
            Node::File(file) => {
                let whole = || u64::from(directory.len_bytes(file.id).unwrap_or(0));
                (field_len_bytes.unwrap_or_else(whole), self.modified_ns(file), 0o100_444)
            }
        };
        Attributes { inode: self.inode(node), len_bytes, modified_ns, mode }
    }

    /// The value of an extended attribute as a string; `None` if the node does not have this attribute.
    pub fn xattr(&self, node: Node, name: &[u8]) -> Option<String> {
        let directory = self.directory();
        let file = match node {
            Node::File(file) => Some(file),
            Node::Folder(_) => None,
        };
        match name {
            b"user.dlfs.id" => Some(file?.id.0.to_string()),
            b"user.dlfs.label" => Some(directory.label(file?.id)?.to_string()),
            b"user.dlfs.crc32c" => {
                let id = file?.id;
                let crc = match directory.learned() {
                    Some(learned) => learned.get(id)?,
                    None => directory.extent(id)?.crc32c,
                };
                Some(format!("{crc:08x}"))
            }
            b"user.dlfs.generation" => Some(directory.generation().0.to_string()),
            _ => None,
        }
    }

    /// The names of a node's extended attributes, each terminated by a NUL byte, as `listxattr` returns them.
    pub fn xattr_names(&self, node: Node) -> Vec<u8> {
        let there = XATTRS.iter().filter(|name| self.xattr(node, name.as_bytes()).is_some());
        there.flat_map(|name| [name.as_bytes(), b"\0"].concat()).collect()
    }

    /// Time at which the import of the file's sample began. A plain folder that was opened without an import has no
    /// such time: for its files, the time of the generation, when the newest file was written.
    fn modified_ns(&self, file: File) -> u64 {
        let part = self.times.partition_point(|(first, _)| *first <= file.id.0);
        let time = part.checked_sub(1).map_or(0, |part| self.times[part].1);
        if time > 0 { time } else { self.directory().time_ns() }
    }

    /// The path of the folder with a trailing slash: the prefix of all names below it. Empty for the top folder.
    fn prefix(&self, folder: Folder) -> Result<Vec<u8>, PathError> {
        let mut name = Vec::new();
        if folder.depth == 0 {
            return Ok(name);
        }
        self.directory.at_rank_by_name(folder.rank, &mut name)?.ok_or(PathError::NotFound)?;
        let slashes = name.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        let end = slashes.into_iter().nth(folder.depth as usize - 1).ok_or(PathError::NotFound)?;
        name.truncate(end + 1);
        Ok(name)
    }

    /// The node of a normalized path, which has no superfluous slashes or dots. `None` if there is none.
    fn find(&self, path: &[u8]) -> Result<Option<Node>, PathError> {
        if path.is_empty() {
            return Ok(Some(Node::Folder(Folder::TOP)));
        }
        if let Some(file) = self.file(path)? {
            return Ok(Some(Node::File(file)));
        }
        Ok(self.folder(path)?.map(Node::Folder))
    }

    /// The file with exactly this path.
    fn file(&self, path: &[u8]) -> Result<Option<File>, PathError> {
        let fields = self.directory.fields();
        if fields.is_empty() {
            let found = self.directory.lookup(path)?;
            return Ok(found.map(|id| File { id, field: 0 }));
        }
        for (number, field) in (0..).zip(fields) {
            let name = path.strip_suffix(&in_file_name(field)[..]);
            let name = name.and_then(|name| name.strip_suffix(b"."));
            if let Some(name) = name
                && let Some(id) = self.directory.lookup(name)?
            {
                return Ok(Some(File { id, field: number }));
            }
        }
        Ok(None)
    }

    /// The folder with exactly this path, if a live sample is below it.
    fn folder(&self, path: &[u8]) -> Result<Option<Folder>, PathError> {
        let inside = [path, b"/"].concat();
        let rank = self.directory.rank_by_name(0, &inside)?;
        let mut name = Vec::new();
        let first = self.directory.at_rank_by_name(rank, &mut name)?;
        if first.is_none() || !name.starts_with(&inside) {
            return Ok(None);
        }
        let end = self.past(rank, path)?;
        let depth = inside.iter().filter(|byte| **byte == b'/').count() as u32;
        let is_live = self.directory.any_live_by_name(rank..end)?;
        Ok((is_live && depth < 1 << DEPTH_BITS).then_some(Folder { rank, depth }))
    }

    /// The first rank after all names below the folder `path`. `rank` is the rank of a name below it.
    fn past(&self, rank: u64, path: &[u8]) -> Result<u64, PathError> {
        // No name contains NUL, and a slash sorts before all other bytes, so \x01 is the next byte after a slash.
        Ok(self.directory.rank_by_name(rank + 1, &[path, b"\x01"].concat())?)
    }

    /// The folder with this path, which must be one.
    fn folder_at(&self, path: &[u8]) -> Result<Folder, PathError> {
        match self.find(path)? {
            Some(Node::Folder(folder)) => Ok(folder),
            Some(Node::File(_)) => Err(PathError::NotFolder),
            None => Err(self.missing(path)),
        }
    }

    /// The error for a `path` that does not exist.
    fn missing(&self, path: &[u8]) -> PathError {
        let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        for (at, _) in slashes {
            match self.file(&path[..at]) {
                Ok(None) => {}
                Ok(Some(_)) => return PathError::NotFolder,
                Err(error) => return error,
            }
        }
        PathError::NotFound
    }

    /// The number of files per sample.
    fn num_fields(&self) -> u64 {
        self.directory.fields().len().max(1) as u64
    }
}

impl Folder {
    /// The top folder.
    pub const TOP: Folder = Folder { rank: 0, depth: 0 };
}

/// Returns whether `name` is a valid component of a path: not empty, `.` or `..`, without `/`, at most 255 bytes.
fn is_component(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..")
        && name.len() <= MAX_COMPONENT_BYTES
        && !name.contains(&b'/')
}

/// A field's name as the end of a file's name. A slash in the field's name, as in `image/encoded`, would make a folder,
/// and becomes `%2F`.
pub fn in_file_name(field: &[u8]) -> Cow<'_, [u8]> {
    if !field.contains(&b'/') {
        return field.into();
    }
    let parts: Vec<&[u8]> = field.split(|byte| *byte == b'/').collect();
    parts.join(&b"%2F"[..]).into()
}

/// Names of the extended attributes. A folder has only the last one. A sample without a label has no
/// `user.dlfs.label`; a file of a plain folder has no `user.dlfs.crc32c` before it was read.
const XATTRS: [&str; 4] =
    ["user.dlfs.id", "user.dlfs.label", "user.dlfs.crc32c", "user.dlfs.generation"];
/// The inode number of the top folder, as FUSE requires.
pub const ROOT: u64 = 1;
/// The first inode number of a file.
const FILES: u64 = 1 << 32;
/// The first inode number of a folder other than the top folder. Inode numbers of files are smaller: there are at most
/// 2^40 samples of 2^16 fields.
const FOLDERS: u64 = 1 << 62;
/// Bits for the depth of a folder. It fits: a name has at most 4,096 bytes, and each folder takes two of them or more.
const DEPTH_BITS: u32 = 12;
/// Maximum bytes of a path component: `NAME_MAX` of Linux.
pub const MAX_COMPONENT_BYTES: usize = 255;
/// Maximum bytes of a path: `PATH_MAX` of Linux.
const MAX_PATH_BYTES: usize = 4096;
