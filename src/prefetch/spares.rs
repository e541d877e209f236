//! Empty batches of a loader, whose vectors are used again.

use std::sync::Arc;

use parking_lot::Mutex;

use super::READY_BATCHES;
use crate::reader::Batch;

/// Empty batches, whose vectors are used again.
#[derive(Clone, Default)]
pub(super) struct Spares(Arc<Mutex<Vec<Batch>>>);

impl Spares {
    pub(super) fn take(&self) -> Batch {
        self.0.lock().pop().unwrap_or_default()
    }

    /// Returns the memory of a batch, and keeps its vectors, unless enough are kept.
    pub(super) fn keep(&self, mut batch: Batch) {
        batch.clear();
        let mut kept = self.0.lock();
        if kept.len() < MAX_SPARES {
            kept.push(batch);
        }
    }
}

/// The most empty batches kept for reuse: as many as can be in flight and ready, and one per thread.
const MAX_SPARES: usize = 2 * READY_BATCHES + 2;
