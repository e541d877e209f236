//! The attributes and extended attributes of files and folders.

use super::{File, FileTree, Node};

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
