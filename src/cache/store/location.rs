//! Location of a rank's store: its node, and the folder or memory there.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use xxhash_rust::xxh3::xxh3_64;

use crate::cache::{TierKind, TierSpec};
use dlfs_io::qpair::machine_uuid;

/// The node of a rank, and the folder or memory of its store there. Each rank encodes it in `Record::host`, the
/// name of its node in the round, so that the other ranks learn it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StoreLocation {
    /// The name that the user gave the node; otherwise the host's name and a hash of the machine's id.
    node: String,
    /// A hash that identifies the folder on its node, never 0; 0: memory.
    folder: u64,
}

impl StoreLocation {
    /// The location of the store `spec` on this machine, or on the node of this machine that is called `node`.
    pub(super) fn here(node: Option<&str>, spec: &TierSpec) -> StoreLocation {
        let folder = match &spec.kind {
            TierKind::File(folder) => id_of(folder),
            TierKind::Ram | TierKind::Namespace(_) => 0,
        };
        let node = match node {
            Some(name) => name.to_owned(),
            None => {
                let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
                let machine = format!("{:?}", machine_uuid());
                format!("{} {:08x}", host.trim(), xxh3_64(machine.as_bytes()) as u32)
            }
        };
        StoreLocation { node, folder }
    }

    /// The name of `rank`'s node in the round: each rank serves a store of its own, so each rank counts as a
    /// node there.
    pub(super) fn name(&self, rank: u32) -> String {
        format!("rank {rank} on {} {:016x}", self.node, self.folder)
    }

    /// Parses a name that [`StoreLocation::name`] has formatted; `None` if `name` is another one.
    pub(super) fn from_name(name: &str) -> Option<StoreLocation> {
        let (_, rest) = name.strip_prefix("rank ")?.split_once(" on ")?;
        let (node, folder) = rest.rsplit_once(' ')?;
        Some(StoreLocation { node: node.to_owned(), folder: u64::from_str_radix(folder, 16).ok()? })
    }

    /// Returns whether both are on one node, so that bytes between them cross no network.
    pub(super) fn is_on_node_of(&self, other: &StoreLocation) -> bool {
        self.node == other.node
    }
}

/// Hash that is the same for all paths to a folder. If the folder is missing, each path has its own hash.
fn id_of(folder: &Path) -> u64 {
    let text = match std::fs::metadata(folder) {
        Ok(found) => format!("{} {}", found.dev(), found.ino()),
        Err(_) => folder.display().to_string(),
    };
    xxh3_64(text.as_bytes()) | 1 // 0 means memory
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_survives_its_name_and_paths_to_one_folder_are_one_place() {
        let folder = tempfile::tempdir().unwrap();
        let place = |node, path: &Path| {
            StoreLocation::here(node, &format!("file:{}:1G", path.display()).parse().unwrap())
        };
        let here = place(None, folder.path());
        assert_eq!(StoreLocation::from_name(&here.name(17)), Some(here.clone()));
        assert_eq!(place(None, &folder.path().join(".")), here);
        let ram = StoreLocation::here(None, &"ram:1G".parse().unwrap());
        assert!(ram != here && ram.is_on_node_of(&here));
        let other = place(Some("the other one on a rack"), folder.path());
        assert_eq!(StoreLocation::from_name(&other.name(0)), Some(other.clone()));
        assert!(other != here && !other.is_on_node_of(&here));
        for name in ["", "node", "rank 1 on", "rank 1 on a", "rank 1 on a g"] {
            assert_eq!(StoreLocation::from_name(name), None, "{name}");
        }
    }
}
