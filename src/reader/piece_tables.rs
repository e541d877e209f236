//! Checksums of the pieces of large samples, which the readers of a data set share.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use crate::units::SampleId;

/// Checksums of pieces, shared by the readers of one data set. At most [`MAX_SUMS`] are kept: the oldest tables are
/// evicted first, and the newest stays even if it alone is longer.
#[derive(Default)]
pub(crate) struct PieceTables {
    known: Mutex<Known>,
    /// Notified when a [`PieceTask`] ends.
    ended: Condvar,
}

#[derive(Default)]
struct Known {
    /// The checksums of the pieces of each sample, in order.
    tables: HashMap<SampleId, Arc<[u32]>>,
    /// The samples of `tables`, in the order of insertion.
    order: VecDeque<SampleId>,
    /// The number of checksums in all of `tables`.
    num_sums: usize,
    /// Samples that a thread is reading whole, since their chunks have no checksums of pieces.
    computing: HashSet<SampleId>,
}

/// The exclusive task to compute the checksums of a sample's pieces; other threads wait until it is dropped.
pub(super) struct PieceTask<'a> {
    tables: &'a PieceTables,
    id: SampleId,
}

impl PieceTables {
    /// The checksums of the pieces of a sample, if they are known.
    pub(super) fn get(&self, id: SampleId) -> Option<Arc<[u32]>> {
        self.known.lock().tables.get(&id).cloned()
    }

    /// Adds or replaces the checksums of the pieces of a sample.
    pub(super) fn insert(&self, id: SampleId, table: Arc<[u32]>) {
        let mut known = self.known.lock();
        known.num_sums += table.len();
        match known.tables.insert(id, table) {
            Some(before) => known.num_sums -= before.len(),
            None => known.order.push_back(id),
        }
        while known.num_sums > MAX_SUMS && known.order.len() > 1 {
            let oldest = known.order.pop_front().expect("there are two");
            let table = known.tables.remove(&oldest).expect("it is listed once, while it is there");
            known.num_sums -= table.len();
        }
    }

    /// Begins the task for a sample, unless another thread has begun it.
    pub(super) fn begin(&self, id: SampleId) -> Option<PieceTask<'_>> {
        // Two statements, since dropping a `PieceTask` takes the same lock.
        let begins = self.known.lock().computing.insert(id);
        begins.then(|| PieceTask { tables: self, id })
    }

    /// Waits until the task for this sample ends, or until the deadline `until`. Returns early when the task for
    /// another sample ends, so the caller looks again.
    pub(super) fn wait(&self, id: SampleId, until: Instant) {
        let mut known = self.known.lock();
        if known.computing.contains(&id) {
            self.ended.wait_until(&mut known, until);
        }
    }
}

impl Drop for PieceTask<'_> {
    fn drop(&mut self) {
        self.tables.known.lock().computing.remove(&self.id);
        self.tables.ended.notify_all();
    }
}

/// Limit of the checksums: 4 MiB of memory, for 256 GiB of samples.
const MAX_SUMS: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_tables_go_when_there_are_too_many_checksums() {
        let tables = PieceTables::default();
        for id in 0..3 {
            tables.insert(SampleId(id), vec![id as u32; MAX_SUMS / 2].into());
            tables.insert(SampleId(id), vec![id as u32; MAX_SUMS / 2].into());
        }
        let is_there = |id| tables.get(SampleId(id)).is_some();
        assert_eq!([0, 1, 2].map(is_there), [false, true, true]);
        tables.insert(SampleId(9), vec![0; 2 * MAX_SUMS].into());
        assert!(is_there(9), "the newest one stays, however long it is");
    }

    #[test]
    fn one_thread_learns_a_sample_and_a_lesson_that_fails_goes_to_another() {
        let tables = PieceTables::default();
        let task = tables.begin(SampleId(1)).expect("nobody has begun");
        assert!(tables.begin(SampleId(1)).is_none() && tables.begin(SampleId(2)).is_some());
        drop(task);
        assert!(tables.begin(SampleId(1)).is_some());
    }
}
