//! A data set as a tree of files: computes paths, inode numbers, listings and attributes from the directory. Pure.
//!
//! # What it is
//! The common part of all interfaces for programs that know only files. It keeps no inode table: the node is computed
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
//! # Epochs
//! [`Epochs`] detects the epochs of a program that knows only files, from the files that it opens.
//!
//! A new epoch begins when the program opens files again that it has opened in the current epoch. A program may open
//! each file twice, and from several threads, so one repeated file is not enough. A new epoch is detected after
//! `IN_A_ROW` repeated files in a row, or after all files of a shorter epoch; it began with the first of them.
//!
//! If the program follows a known order, the epoch number in that order decides instead.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;

use crate::directory::Directory;
use crate::format::FormatError;
use dlfs_base::error::{Error, ErrorKind};
use dlfs_base::units::{Epoch, SampleId};

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
    /// Rank of the first name below the folder, in the order of names.
    pub(crate) rank: u64,
    pub(crate) depth: u32,
}

/// A file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct File {
    /// The sample.
    pub id: SampleId,
    /// 0-based index of the field; 0 if samples have no fields.
    pub field: u16,
}

/// The error if a path does not lead to a node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// There is no file or folder with this name.
    #[error("no such file or folder")]
    NotFound,
    /// A component that must be a folder is a file: it is not the last one, or a slash follows it.
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
    /// `NotLoaded`: the names are still on media.
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

    /// The node of a normalized path: one without superfluous slashes or dots.
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

/// The inode number of the top folder, as FUSE requires.
pub const ROOT: u64 = 1;
/// The first inode number of a file.
const FILES: u64 = 1 << 32;
/// A field's name as the end of a file's name. A slash in the field's name, as in `image/encoded`, would make a folder,
/// and becomes `%2F`.
pub fn in_file_name(field: &[u8]) -> Cow<'_, [u8]> {
    if !field.contains(&b'/') {
        return field.into();
    }
    let parts: Vec<&[u8]> = field.split(|byte| *byte == b'/').collect();
    parts.join(&b"%2F"[..]).into()
}

/// The attributes of a node that `stat` reports, except the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// The inode number.
    pub inode: u64,
    /// Length in bytes; 0 for a folder.
    pub len_bytes: u64,
    /// Time of the sample's import; for a folder, of the generation's commit. In ns since 1970.
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

/// Names of the extended attributes. A folder has only the last one. A sample without a label has no
/// `user.dlfs.label`; a file of a plain folder has no `user.dlfs.crc32c` before it was read.
const XATTRS: [&str; 4] =
    ["user.dlfs.id", "user.dlfs.label", "user.dlfs.crc32c", "user.dlfs.generation"];

impl FileTree {
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

    /// Time at which the import of the file's sample began. For a folder opened without an import, which has no such
    /// time: the time of the generation, when the folder's newest file was written.
    fn modified_ns(&self, file: File) -> u64 {
        let part = self.times.partition_point(|(first, _)| *first <= file.id.0);
        let time = part.checked_sub(1).map_or(0, |part| self.times[part].1);
        if time > 0 { time } else { self.directory().time_ns() }
    }
}

/// One entry of a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found<'a> {
    /// Name of the entry in the folder.
    pub name: &'a [u8],
    /// File or folder.
    pub node: Node,
    /// The position after this entry, to continue the listing.
    pub next: u64,
}

/// The position before the first entry.
pub const FIRST: u64 = 0;

/// Position of a listing: a rank in the order of names, and a field of that sample.
struct Position {
    rank: u64,
    field: u64,
}

impl FileTree {
    /// Calls `visit` with the entries of `folder` from position `cookie` on, `.` and `..` first, until `visit` returns
    /// false. Begin with [`FIRST`] and continue with [`Found::next`]. Costs a lookup per entry; and per subfolder a
    /// search, and a look at its samples up to the first live one.
    ///
    /// # Errors
    /// The names are damaged.
    pub fn list(
        &self,
        folder: Folder,
        cookie: u64,
        visit: &mut dyn FnMut(Found<'_>) -> bool,
    ) -> Result<(), PathError> {
        for (at, name) in [(0, &b"."[..]), (1, b"..")] {
            let node = if at == 0 { folder } else { self.parent(folder)? };
            let found = Found { name, node: Node::Folder(node), next: at + 1 };
            if cookie <= at && !visit(found) {
                return Ok(());
            }
        }
        let prefix = self.prefix(folder)?;
        // `folder.rank` is the rank of its first name; it is 0 for the top folder.
        let position = match cookie.saturating_sub(BEFORE) {
            0 => Position { rank: folder.rank, field: 0 },
            at => Position { rank: at / self.num_fields(), field: at % self.num_fields() },
        };
        self.list_below(&prefix, position, visit)
    }

    fn list_below(
        &self,
        prefix: &[u8],
        mut position: Position,
        visit: &mut dyn FnMut(Found<'_>) -> bool,
    ) -> Result<(), PathError> {
        let directory: &Directory = self.directory();
        let depth = prefix.iter().filter(|byte| **byte == b'/').count() as u32 + 1;
        let mut name = Vec::new();
        let mut is_first = true;
        while let Some(id) = directory.at_rank_by_name(position.rank, &mut name)? {
            let Some(within) = name.strip_prefix(prefix) else { break };
            let Some(slash) = within.iter().position(|byte| *byte == b'/') else {
                if !self.list_sample(id, prefix.len(), &mut name, &mut position, visit)? {
                    break;
                }
                is_first = false;
                continue;
            };
            let component = &within[..slash];
            let path = &name[..prefix.len() + slash];
            // A cookie that no listing returned may point into the middle of a subfolder.
            let rank = if std::mem::take(&mut is_first) {
                directory.rank_by_name(0, &name[..prefix.len() + slash + 1])?
            } else {
                position.rank
            };
            let past = self.past(position.rank, path)?;
            let is_there = is_component(component)
                && directory.any_live_by_name(rank..past)?
                && self.file(path)?.is_none();
            position = Position { rank: past, field: 0 };
            let node = Node::Folder(Folder { rank, depth });
            if is_there && !visit(Found { name: component, node, next: self.cookie(&position) }) {
                break;
            }
        }
        Ok(())
    }

    /// Visits the entries of one sample and moves `position` past them. Returns false if `visit` did.
    fn list_sample(
        &self,
        id: SampleId,
        folder_len: usize,
        name: &mut Vec<u8>,
        position: &mut Position,
        visit: &mut dyn FnMut(Found<'_>) -> bool,
    ) -> Result<bool, PathError> {
        let fields = self.directory().fields();
        let name_len = name.len();
        let is_live = self.directory().is_live(id);
        for number in position.field..self.num_fields() {
            name.truncate(name_len);
            if let Some(field) = fields.get(number as usize) {
                name.push(b'.');
                name.extend_from_slice(&in_file_name(field));
            }
            *position = if number + 1 < self.num_fields() {
                Position { rank: position.rank, field: number + 1 }
            } else {
                Position { rank: position.rank + 1, field: 0 }
            };
            let file = File { id, field: number as u16 };
            // If a newer sample has the same name, only that one is listed.
            let is_there =
                is_live && is_component(&name[folder_len..]) && self.file(name)? == Some(file);
            let found = Found {
                name: &name[folder_len..],
                node: Node::File(file),
                next: self.cookie(position),
            };
            if is_there && !visit(found) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn cookie(&self, position: &Position) -> u64 {
        BEFORE + position.rank * self.num_fields() + position.field
    }
}

/// The epochs of one program, each with the caller's value `M` at its beginning. Keeps the last 100 epochs.
#[derive(Debug)]
pub struct Epochs<M> {
    begins: VecDeque<M>,
    /// Number of epochs that are no longer in `begins`.
    forgotten: u64,
    num_files: u64,
    /// One bit per file, set if the file was opened in this epoch.
    seen: Vec<u64>,
    num_seen: u64,
    /// Files of this epoch that were opened again in a row.
    again: Vec<u64>,
    /// The value of `M` before the first file of `again`.
    at_again: Option<M>,
    /// The latest epoch of the known order that a file has had.
    along: Option<Epoch>,
    /// Set if the next file begins an epoch.
    is_over: bool,
    /// Set if repeated files began an epoch since the last file that was in the known order.
    has_begun: bool,
}

impl<M> Epochs<M> {
    /// For a program that has not opened any of `num_files` files yet.
    pub fn new(num_files: u64) -> Epochs<M> {
        Epochs {
            begins: VecDeque::new(),
            forgotten: 0,
            num_files,
            seen: Vec::new(),
            num_seen: 0,
            again: Vec::new(),
            at_again: None,
            along: None,
            is_over: false,
            has_begun: false,
        }
    }

    /// Records that the program opens the file with number `file`. `along` is the file's epoch in the known order that
    /// the program follows. `now` returns the value of `M` before this open; it is called only if an epoch may begin.
    pub fn opened(&mut self, file: u64, along: Option<Epoch>, now: impl FnOnce() -> M) {
        let is_next = along.is_some_and(|epoch| self.goes_along(epoch));
        if is_next || self.begins.is_empty() || std::mem::take(&mut self.is_over) {
            return self.begin(now(), &[file]);
        }
        if self.see(file) || along.is_some() {
            (self.again, self.at_again) = (Vec::new(), None);
        } else if !self.again.contains(&file) {
            self.at_again.get_or_insert_with(now);
            self.again.push(file);
            let enough = self.num_seen.max(2).min(self.num_files).min(IN_A_ROW);
            if self.again.len() as u64 >= enough
                && let Some(then) = self.at_again.take()
            {
                let again = std::mem::take(&mut self.again);
                self.begin(then, &again);
                self.has_begun = true;
            }
        }
    }

    /// Records that the program starts another known order, or the same one again. The next file begins an epoch.
    pub fn order_begins(&mut self) {
        (self.along, self.is_over) = (None, !self.begins.is_empty());
    }

    /// The epochs that are kept: the number of each, and the value of `M` at its beginning.
    pub fn begins(&self) -> impl Iterator<Item = (u64, &M)> {
        (self.forgotten..).zip(&self.begins)
    }

    /// Records a file of `epoch` in the known order. Returns whether it begins an epoch: it is of a later epoch than
    /// all files before, and repeated files have not begun that epoch already.
    fn goes_along(&mut self, epoch: Epoch) -> bool {
        let has_begun = std::mem::take(&mut self.has_begun);
        let before = self.along.replace(self.along.map_or(epoch, |before| before.max(epoch)));
        before.is_some_and(|before| epoch > before) && !has_begun
    }

    fn begin(&mut self, then: M, files: &[u64]) {
        if self.begins.len() == MOST_KEPT {
            self.begins.pop_front();
            self.forgotten += 1;
        }
        self.begins.push_back(then);
        self.seen.fill(0);
        self.num_seen = 0;
        (self.again, self.at_again) = (Vec::new(), None);
        files.iter().for_each(|file| _ = self.see(*file));
    }

    /// Adds a file to the current epoch; returns whether it is new there.
    fn see(&mut self, file: u64) -> bool {
        let word = (file / 64) as usize;
        let bit = 1 << (file % 64);
        if word >= self.seen.len() {
            self.seen.resize(word + 1, 0);
        }
        let is_new = self.seen[word] & bit == 0;
        self.seen[word] |= bit;
        self.num_seen += u64::from(is_new);
        is_new
    }
}

impl FileTree {
    /// The 0-based number of a file among all files of live and deleted samples.
    pub fn number(&self, File { id, field }: File) -> u64 {
        id.0 * self.num_fields() + u64::from(field)
    }

    /// Number of files of live samples.
    pub fn num_files(&self) -> u64 {
        self.directory.num_live() * self.num_fields()
    }
}

/// The first inode number of a folder. Those of files are smaller: there are at most 2^40 samples of 2^16 fields.
const FOLDERS: u64 = 1 << 62;
/// Bits for the depth of a folder. It fits: a name has at most 4,096 bytes, and each folder takes two of them or more.
const DEPTH_BITS: u32 = 12;
/// Maximum bytes of a path component: `NAME_MAX` of Linux.
pub const MAX_COMPONENT_BYTES: usize = 255;
/// Maximum bytes of a path: `PATH_MAX` of Linux.
const MAX_PATH_BYTES: usize = 4096;

/// Number of positions of `.` and `..`. All other positions are offset by it.
const BEFORE: u64 = 2;

/// Number of repeated files in a row that begin a new epoch.
const IN_A_ROW: u64 = 8;
/// Maximum number of epochs that are kept.
const MOST_KEPT: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    /// For each epoch, the number of opens before it began. The program opens `opens`, of `num_files` files.
    fn begins(num_files: u64, opens: impl IntoIterator<Item = (u64, Option<u64>)>) -> Vec<usize> {
        let mut epochs = Epochs::new(num_files);
        for (nth, (file, along)) in opens.into_iter().enumerate() {
            epochs.opened(file, along.map(Epoch), || nth);
        }
        epochs.begins().map(|(_, begin)| *begin).collect()
    }

    fn plain(opens: impl IntoIterator<Item = u64>) -> Vec<(u64, Option<u64>)> {
        opens.into_iter().map(|file| (file, None)).collect()
    }

    /// The files of epoch `nth`, of `len` files; each epoch has its own order.
    fn shuffled(nth: u64, len: u64) -> impl Iterator<Item = u64> {
        let step = [7, 11, 13][nth as usize % 3]; // coprime to the lengths below
        (0..len).map(move |at| (at * step + nth) % len)
    }

    #[test]
    fn an_epoch_begins_with_the_first_file_that_is_opened_again() {
        for len in [1, 2, 5, 16, 17, 1000] {
            let opens: Vec<u64> = (0..3).flat_map(|nth| shuffled(nth, len)).collect();
            let expected = [0, len as usize, 2 * len as usize];
            assert_eq!(begins(len, plain(opens.clone())), expected, "all {len}");
            if len > 1 {
                assert_eq!(begins(2000, plain(opens)), expected, "{len} of more");
            }
        }
    }

    #[test]
    fn a_program_that_opens_each_file_twice_begins_no_epoch_with_that() {
        let twice = |nth| shuffled(nth, 100).flat_map(|file| [file, file]);
        // The last file of the first epoch was opened again just before, so it counts as the first repeated file.
        assert_eq!(begins(100, plain(twice(0).chain(twice(1)))), [0, 199]);
        // Four threads, each of which opens its file twice.
        let files: Vec<u64> = (0..2).flat_map(|nth| shuffled(nth, 100)).collect();
        let by_threads = files.chunks(4).flat_map(|files| [files, files]).flatten().copied();
        assert_eq!(begins(2000, plain((100..108).chain(by_threads))), [0, 204]);
        assert_eq!(begins(2000, plain((0..50).chain([3, 4, 5]).chain(50..99))), [0], "some again");
    }

    #[test]
    fn a_file_that_is_left_out_or_added_changes_nothing() {
        let first = shuffled(0, 100).filter(|file| file % 37 > 0);
        let second = shuffled(1, 100).filter(|file| file % 17 > 0);
        let opens: Vec<u64> = first.chain(second).collect();
        let found = begins(100, plain(opens));
        assert_eq!((found.len(), found[0]), (2, 0), "{found:?}");
        assert!((90..130).contains(&found[1]), "{found:?}");
    }

    #[test]
    fn along_an_order_its_epochs_count_also_where_some_files_were_not_read_ahead() {
        let epoch = |nth: u64| shuffled(nth, 100).map(move |file| (file, Some(nth)));
        let misses = |nth: u64| epoch(nth).enumerate();
        // An order that contains files more than once.
        let weighted = (0..300).map(|at| (at % 10, Some(5 + at / 100)));
        assert_eq!(begins(100, weighted), [0, 100, 200]);
        let some =
            (0..3).flat_map(misses).map(|(at, (file, nth))| (file, nth.filter(|_| at % 3 > 0)));
        let found = begins(100, some);
        assert_eq!(found.len(), 3, "{found:?}");
        // Many misses in a row: the repeated files show the new epoch before the known order does.
        let late = (0..3).flat_map(misses).map(|(at, (file, nth))| (file, nth.filter(|_| at > 60)));
        assert_eq!(begins(100, late), [0, 100, 200]);
        // Two threads at the end of an epoch.
        let mixed = [(0, 0), (1, 0), (2, 1), (3, 0), (0, 1), (1, 1)];
        assert_eq!(begins(100, mixed.map(|(file, nth)| (file, Some(nth)))), [0, 2]);
    }

    #[test]
    fn an_order_that_begins_again_begins_an_epoch_and_old_ones_are_forgotten() {
        let mut epochs = Epochs::new(10);
        epochs.order_begins();
        for nth in 0..=MOST_KEPT {
            epochs.opened(3, Some(Epoch(0)), || nth);
            epochs.order_begins();
        }
        let kept: Vec<_> = epochs.begins().map(|(number, begin)| (number, *begin)).collect();
        assert_eq!((kept.len(), kept[0], kept[99]), (MOST_KEPT, (1, 1), (100, 100)));
    }
}
