//! Rows of tokens instead of batches of samples: the deal of either, and the layouts of rows for the consumer.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dlfs_tokens::{Layout, RowDeal};
use parking_lot::Mutex;

use crate::error::Result;
use crate::order::Shard;
use crate::order::budget::{Budget, Deal, Dealt, RowPlace};
use crate::process::Forked;
use crate::units::Epoch;

/// The layouts of a run's batches that its consumer has not taken, in the order of batches. A loader that moves begins
/// another run, and the one before may plan for a while longer.
///
/// A forked child has its own, since it may inherit a lock that a thread of its parent holds.
#[derive(Debug, Default)]
pub struct Layouts {
    queue: Forked<Mutex<Queue>>,
    /// The positions that were drawn so far, in all runs of a loader.
    drawn: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct Queue {
    /// The number of the current run, if several take one after the other.
    run: u64,
    planned: VecDeque<Layout>,
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

    /// The positions that were drawn so far. It tells a run that passes over the rows before its state, which may be
    /// many, from one that waits.
    pub(crate) fn drawn(&self) -> u64 {
        self.drawn.load(Ordering::Relaxed)
    }
}

/// The end of [`Layouts`] at which a run plans its batches.
#[derive(Debug)]
pub(super) struct LayoutSink {
    layouts: Arc<Layouts>,
    run: u64,
}

impl LayoutSink {
    /// Begins a run: layouts of earlier ones are dropped.
    pub(super) fn new(layouts: &Arc<Layouts>) -> LayoutSink {
        let mut queue = layouts.queue().lock();
        queue.run += 1;
        queue.planned.clear();
        LayoutSink { run: queue.run, layouts: Arc::clone(layouts) }
    }

    /// Swaps the planned `layout` for one whose memory is free.
    fn push(&self, layout: &mut Layout) {
        let mut queue = self.layouts.queue().lock();
        if queue.run == self.run {
            let free = queue.free.pop().unwrap_or_default();
            queue.planned.push_back(std::mem::replace(layout, free));
        }
    }
}

/// The batches of a rank in an epoch.
#[derive(Debug, Clone)]
pub(super) enum Deals<T> {
    /// Samples by a budget.
    Samples(Deal<T>),
    /// The documents of rows.
    Rows { deal: Box<RowDeal<T>>, layout: Layout },
}

impl<T: Copy> Deals<T> {
    /// The batches of the rank of `shard` in an epoch of `len` positions. `rows`: those of a batch in each phase, if
    /// the budget is of rows, which begin at `place`.
    pub(super) fn new(
        budget: &Arc<Budget>,
        rows: &[u32],
        (seed, epoch): (u64, Epoch),
        len: u64,
        (shard, place): (Shard, Option<RowPlace>),
    ) -> Deals<T> {
        if budget.rows.is_none() {
            return Deals::Samples(Deal::new(budget, seed, epoch, len, shard));
        }
        let deal = Box::new(RowDeal::new(budget, rows, (seed, epoch), len, shard, place));
        Deals::Rows { deal, layout: Layout::default() }
    }

    /// Appends the samples of the next batch to `out`, as [`Deal::next`]; the layout of its rows goes to `sink`.
    ///
    /// # Errors
    /// As [`Deal::next`].
    pub(super) fn next(
        &mut self,
        sink: Option<&LayoutSink>,
        draw: &mut impl FnMut(Range<u64>, &mut Vec<T>, &mut Vec<u32>) -> Result<()>,
        out: &mut Vec<T>,
    ) -> Result<Option<Dealt>> {
        match self {
            Deals::Samples(deal) => deal.next(draw, out),
            Deals::Rows { deal, layout } => {
                let mut draw = |range: Range<u64>,
                                documents: &mut Vec<T>,
                                tokens: &mut Vec<u32>| {
                    if let Some(sink) = sink {
                        sink.layouts.drawn.fetch_add(range.end - range.start, Ordering::Relaxed);
                    }
                    draw(range, documents, tokens)
                };
                let dealt = deal.next(&mut draw, out, layout)?;
                if let (Some(sink), Some(_)) = (sink, dealt) {
                    sink.push(layout);
                }
                Ok(dealt)
            }
        }
    }
}

/// The most layouts kept for reuse.
const MAX_FREE: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::budget::{Cost, Pack, RowSpec};

    #[test]
    fn positions_that_a_run_passes_over_count_and_layouts_of_earlier_runs_are_dropped() {
        let rows = Some(RowSpec { pack: Pack::Concat, separated: false, cuts: true });
        let budget = Arc::new(Budget { cost: Cost::Sum, rows, ..Budget::new(11) });
        let shard = Shard::new(0, 1, crate::order::Tail::Keep).unwrap().after(900);
        let layouts: Arc<Layouts> = Arc::default();
        let next = layouts.renewed();
        let sink = LayoutSink::new(&next);
        let mut deals = Deals::new(&budget, &[1], (7, Epoch(0)), 10_000, (shard, None));
        let mut draw = |range: Range<u64>, documents: &mut Vec<u64>, tokens: &mut Vec<u32>| {
            documents.extend(range.clone());
            tokens.extend(range.map(|_| 1));
            Ok(())
        };
        let mut documents = Vec::new();
        deals.next(Some(&sink), &mut draw, &mut documents).unwrap().unwrap();
        assert_eq!(documents, (9_000..9_011).collect::<Vec<u64>>());
        assert!(layouts.drawn() >= 9_011, "{}", layouts.drawn());
        assert_eq!(next.take().unwrap().segments.len(), 11);
        deals.next(Some(&sink), &mut draw, &mut documents).unwrap().unwrap();
        let later = LayoutSink::new(&next);
        assert!(next.take().is_none());
        deals.next(Some(&sink), &mut draw, &mut documents).unwrap().unwrap();
        assert!(next.take().is_none(), "of the run before");
        let dealt = deals.next(Some(&later), &mut draw, &mut documents).unwrap().unwrap();
        assert!(next.take().is_some());

        // From a place on, nothing is passed over.
        let before = layouts.drawn();
        let from = (shard.after(dealt.consumed), dealt.place);
        let mut deals = Deals::new(&budget, &[1], (7, Epoch(0)), 10_000, from);
        documents.clear();
        deals.next(Some(&later), &mut draw, &mut documents).unwrap().unwrap();
        assert_eq!(documents, (9_040..9_051).collect::<Vec<u64>>());
        assert!(layouts.drawn() < before + 2000, "{} of {before}", layouts.drawn());
    }
}
