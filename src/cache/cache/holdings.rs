//! The chunks that processes which share tiers hold for the other nodes of their jobs.

use std::collections::BTreeMap;

use super::OWN;
use dlfs_order::tier::Holding;

/// The chunks that one process holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) chunks: Holding,
    /// Set if the copier fetches all of them by itself, and not only the rest of what somebody begins to read.
    pub(super) fills: bool,
}

/// The chunks for which the owner of the tiers keeps room: those that any of these processes holds.
#[derive(Debug, Default)]
pub(super) struct Holdings {
    /// By the number of their connection.
    pub(super) held: BTreeMap<u64, Held>,
    /// The chunks that were applied last.
    applied: Option<Held>,
}

impl Holdings {
    /// Those of a new owner, which has applied them.
    pub(super) fn of_owner(own: Option<Held>) -> Holdings {
        Holdings { applied: own.clone(), held: own.into_iter().map(|own| (OWN, own)).collect() }
    }

    /// Returns the chunks that all of them hold together, if those have changed.
    pub(super) fn changed(&mut self) -> Option<Held> {
        let together = self.held.values().cloned().reduce(|some, more| Held {
            chunks: some.chunks.with(&more.chunks),
            fills: some.fills || more.fills,
        });
        let is_new = together.is_some() && together != self.applied;
        is_new.then(|| self.applied.insert(together.expect("just seen")).clone())
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
