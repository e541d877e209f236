//! Lists the entries of a folder: samples and subfolders, in the order of names.

use super::{File, FileTree, Folder, Node, PathError, in_file_name, is_component};
use crate::directory::Directory;
use dlfs_base::units::SampleId;

/// One entry of a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found<'a> {
    /// Name of the entry in the folder.
    pub name: &'a [u8],
    /// File or folder.
    pub node: Node,
    /// The position (cookie) after this entry, to continue the listing.
    pub next: u64,
}

/// The position (cookie) before the first entry.
pub const FIRST: u64 = 0;

/// Position of a listing.
struct Position {
    /// The next sample's rank in the order of names.
    rank: u64,
    /// The next field of that sample.
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
        // Without a cookie the listing begins at the first name of the folder, whose rank is `folder.rank`: 0 for the
        // top folder.
        let position = match cookie.saturating_sub(BEFORE) {
            0 => Position { rank: folder.rank, field: 0 },
            at => Position { rank: at / self.num_fields(), field: at % self.num_fields() },
        };
        self.list_below(&prefix, position, visit)
    }

    /// Visits the entries below `prefix`, the path of a folder with a trailing slash, from `position` on.
    fn list_below(
        &self,
        prefix: &[u8],
        mut position: Position,
        visit: &mut dyn FnMut(Found<'_>) -> bool,
    ) -> Result<(), PathError> {
        let directory: &Directory = self.directory();
        let depth = prefix.iter().filter(|byte| **byte == b'/').count() as u32 + 1;
        let mut name = Vec::new();
        let mut may_be_inside = true; // the first position is the caller's
        while let Some(id) = directory.at_rank_by_name(position.rank, &mut name)? {
            let Some(within) = name.strip_prefix(prefix) else { break };
            let Some(slash) = within.iter().position(|byte| *byte == b'/') else {
                if !self.list_sample(id, prefix.len(), &mut name, &mut position, visit)? {
                    break;
                }
                may_be_inside = false;
                continue;
            };
            let component = &within[..slash];
            let path = &name[..prefix.len() + slash];
            // A cookie that no listing returned may point into the middle of a subfolder, whose rank is that of its
            // first name.
            let rank = if std::mem::take(&mut may_be_inside) {
                directory.rank_by_name(0, &name[..prefix.len() + slash + 1])?
            } else {
                position.rank
            };
            let past = self.past(position.rank, path)?;
            // A subfolder is listed if it has a live sample, and if no file has its path.
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
        for field in position.field..self.num_fields() {
            name.truncate(name_len);
            if let Some(field_name) = fields.get(field as usize) {
                name.push(b'.');
                name.extend_from_slice(&in_file_name(field_name));
            }
            *position = if field + 1 < self.num_fields() {
                Position { rank: position.rank, field: field + 1 }
            } else {
                Position { rank: position.rank + 1, field: 0 }
            };
            let file = File { id, field: field as u16 };
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

    /// The position as a number for the caller: a cookie of [`FileTree::list`].
    fn cookie(&self, position: &Position) -> u64 {
        BEFORE + position.rank * self.num_fields() + position.field
    }
}

/// Number of positions of `.` and `..`. All other positions are offset by it.
const BEFORE: u64 = 2;
