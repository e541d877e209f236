//! A directory of some samples of a generation: the others are absent, as deleted ones are.

use crate::directory::Directory;
use crate::directory::deleted::DeletedSet;
use dlfs_base::units::SampleId;

/// A directory's mark of the view that it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ViewMark {
    /// The hash of the view: that of its samples.
    pub hash: [u8; 16],
    /// How many keyed splits led to it.
    pub splits: u32,
}

impl Directory {
    /// The directory of those live samples whose bit is set in `members`, 64 ids a word. Shares the columns with
    /// this one.
    pub(crate) fn viewed(&self, members: &[u64], mark: ViewMark) -> Directory {
        let len = self.num_samples();
        let words = members.iter().enumerate().flat_map(|(index, word)| {
            let ids = len.saturating_sub(index as u64 * 64).min(64);
            let all = if ids == 64 { !0 } else { !(!0 << ids) };
            (!word & all).to_le_bytes()
        });
        let words: Vec<u8> = words.collect();
        let absent = DeletedSet::from_bits(words.into(), len).expect("one bit for each id");
        let absent = self.deleted_ids.joined(&absent, len);
        // Slots of the fewer: of those that are there, or of those that are not.
        let num_members = len - absent.count();
        let mut slots = DeletedSet::default().to_bits(len);
        let slot = |id| self.slot_of(SampleId(id)).expect("all ids below the end have a slot");
        if absent.count() <= num_members {
            absent.ranges().into_iter().flat_map(|(first, n)| first..first + n).for_each(|id| {
                slots.set(slot(id).0);
            });
        } else {
            slots.fill(len);
            (0..num_members).for_each(|rank| slots.clear(slot(absent.select_live(rank, len)).0));
        }
        Directory {
            deleted_ids: absent,
            deleted_slots: slots.finish(),
            view: Some(mark),
            ..self.clone()
        }
    }
}
