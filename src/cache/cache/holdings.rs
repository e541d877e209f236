//! Chunks that the processes of one node hold for other nodes, and their union, for which the owner keeps room.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::OWN;
use dlfs_order::tier::Holding;

/// The chunks that one process holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Held {
    pub(super) chunks: Holding,
    /// Set if the copier fetches all of the chunks by itself. Otherwise it fetches the rest of a chunk once somebody
    /// has begun to read the chunk.
    pub(super) fills: bool,
}

/// The chunks for which the owner of the tiers keeps room: all chunks that any process holds.
#[derive(Debug, Default)]
pub(super) struct Holdings {
    /// The chunks of each process, by connection number.
    pub(super) held: BTreeMap<u64, Held>,
    /// The chunks for which room was last reserved.
    applied: Option<Held>,
}

impl Holdings {
    /// The holdings of a new owner, which has already reserved room for its own chunks.
    pub(super) fn of_owner(own: Option<Held>) -> Holdings {
        Holdings { applied: own.clone(), held: own.into_iter().map(|own| (OWN, own)).collect() }
    }

    /// Returns the chunks that all processes hold together, if they have changed since the last call.
    pub(super) fn changed(&mut self) -> Option<Held> {
        let together = self.held.values().cloned().reduce(|some, more| Held {
            chunks: some.chunks.with(&more.chunks),
            fills: some.fills || more.fills,
        })?;
        let is_new = self.applied.as_ref() != Some(&together);
        is_new.then(|| self.applied.insert(together).clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(which: [bool; 2], fills: bool) -> Held {
        Held { chunks: Holding::new([(0..2, 8, which[0]), (2..5, 9, which[1])]), fills }
    }

    #[test]
    fn chunks_that_any_process_holds_are_held_and_nothing_is_applied_twice() {
        let mut holdings = Holdings::of_owner(None);
        assert_eq!(holdings.changed(), None);
        holdings.held.insert(1, held([true, false], false));
        assert_eq!(holdings.changed(), Some(held([true, false], false)));
        holdings.held.insert(2, held([true, false], false));
        assert_eq!(holdings.changed(), None, "another rank of the same node");
        holdings.held.insert(OWN, held([false, true], true));
        assert_eq!(holdings.changed(), Some(held([true, true], true)));
        holdings.held.retain(|connection, _| *connection == OWN);
        assert_eq!(holdings.changed(), Some(held([false, true], true)));
    }
}
