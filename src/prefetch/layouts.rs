//! The layouts of rows of tokens, on their way from the thread that plans batches to the consumer.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dlfs_tokens::Layout;
use parking_lot::Mutex;

use crate::process::Forked;

/// Queue of the layouts of a run's batches that its consumer has not taken, in the order of batches. If a loader moves
/// to another position, it begins another run; layouts of the earlier run are then ignored.
///
/// A forked child has a queue of its own, since it may inherit a lock that a thread of its parent holds.
#[derive(Debug, Default)]
pub struct Layouts {
    queue: Forked<Mutex<Queue>>,
    /// The number of positions that were drawn so far, in all runs of a loader.
    drawn: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct Queue {
    /// The number of the current run.
    run: u64,
    /// The layouts that the consumer has not taken.
    planned: VecDeque<Layout>,
    /// Layouts whose memory may be used again.
    free: Vec<Layout>,
}

impl Layouts {
    /// The layout of the batch that the loader delivered last. Call it once for each batch.
    pub fn take(&self) -> Option<Layout> {
        self.queue().lock().planned.pop_front()
    }

    /// Takes a layout back, to reuse its memory.
    pub fn recycle(&self, layout: Layout) {
        let mut queue = self.queue().lock();
        if queue.free.len() < MAX_FREE {
            queue.free.push(layout);
        }
    }

    fn queue(&self) -> &Mutex<Queue> {
        self.queue.get_or_init(Mutex::default)
    }

    /// Empty layouts for the next run of the same loader.
    pub(crate) fn renewed(&self) -> Arc<Layouts> {
        Arc::new(Layouts { queue: Forked::default(), drawn: Arc::clone(&self.drawn) })
    }

    /// The number of positions that were drawn so far. It grows while a run passes over the rows before its state,
    /// which may be many, and stays while a run waits.
    pub(crate) fn drawn(&self) -> u64 {
        self.drawn.load(Ordering::Relaxed)
    }
}

/// The side of [`Layouts`] to which one run adds.
#[derive(Debug)]
pub(super) struct LayoutSink {
    layouts: Arc<Layouts>,
    /// The number of the run.
    run: u64,
}

impl LayoutSink {
    /// Begins a run; drops the layouts of earlier runs.
    pub(super) fn new(layouts: &Arc<Layouts>) -> LayoutSink {
        let mut queue = layouts.queue().lock();
        queue.run += 1;
        queue.planned.clear();
        LayoutSink { run: queue.run, layouts: Arc::clone(layouts) }
    }

    /// Counts positions that were drawn.
    pub(super) fn count_drawn(&self, positions: u64) {
        self.layouts.drawn.fetch_add(positions, Ordering::Relaxed);
    }

    /// Adds `layout`, and replaces it by one whose memory may be used again. Ignores it if another run has begun.
    pub(super) fn push(&self, layout: &mut Layout) {
        let mut queue = self.layouts.queue().lock();
        if queue.run == self.run {
            let free = queue.free.pop().unwrap_or_default();
            queue.planned.push_back(std::mem::replace(layout, free));
        }
    }
}

/// The most layouts kept for reuse.
const MAX_FREE: usize = 64;
