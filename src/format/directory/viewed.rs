//! The directory of a view: all samples outside the view are marked as deleted, and everything else is shared.

use crate::directory::{Directory, IdSet};
use dlfs_base::units::SampleId;

/// Identifies the view that a directory belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ViewMark {
    /// The hash of the view's set of samples.
    pub hash: [u8; 16],
    /// The number of keyed splits that led to the view.
    pub splits: u32,
}

impl Directory {
    /// The directory of the live samples that are in `members`. Shares the columns with this one.
    pub(crate) fn viewed(&self, members: &IdSet, mark: ViewMark) -> Directory {
        let len = self.num_samples();
        let mut absent = IdSet::full(len);
        absent.remove_all(members);
        let slot = |id| self.slot_of(SampleId(id)).expect("all ids below the end have a slot").0;
        // Compute the slots of the smaller set: absent ids or members.
        let mut slots = IdSet::new(len);
        if absent.count() <= members.count() {
            absent.iter().for_each(|id| _ = slots.insert(slot(id)));
        } else {
            slots = IdSet::full(len);
            members.iter().for_each(|id| slots.remove(slot(id)));
        }
        Directory {
            deleted_ids: absent.into(),
            deleted_slots: slots.into(),
            view: Some(mark),
            ..self.clone()
        }
    }

    /// The ids of the live samples.
    pub(crate) fn live_ids(&self) -> IdSet {
        let mut live = IdSet::full(self.num_samples());
        live.remove_all(&self.deleted_ids.to_ids(self.num_samples()));
        live
    }
}
