//! Deals the samples of an epoch into the batches of a rank: by a token budget, or as rows of tokens. The layouts of
//! the rows go to the consumer through [`Layouts`].

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

/// Deals batches to a rank, epoch after epoch. `T` stands for a sample.
pub(super) struct Dealing<T> {
    budget: Arc<Budget>,
    /// The rows of a batch in each phase, if the budget is of rows.
    rows: Vec<u32>,
    /// The seed of the order.
    seed: u64,
    /// The current epoch, and its deal.
    current: Option<(Epoch, EpochDeal<T>)>,
}

impl<T: Copy> Dealing<T> {
    pub(super) fn new(budget: &Arc<Budget>, rows: &[u32], seed: u64) -> Dealing<T> {
        Dealing { budget: Arc::clone(budget), rows: rows.to_vec(), seed, current: None }
    }

    /// Appends the samples of the next batch in `epoch` for the rank of `shard` to `out`. The first call for an epoch
    /// begins after the consumed positions of `shard`, at `place` in rows; later calls go on from there. The layout of
    /// rows goes to `sink`. The epoch has `len` positions; `draw` appends the samples of a range of positions, and
    /// their lengths in tokens. `None`: the epoch has no more batches for the rank.
    ///
    /// # Errors
    /// Errors of `draw`; the consumed positions do not end with a batch, or `place` does not belong to them.
    pub(super) fn next(
        &mut self,
        sink: Option<&LayoutSink>,
        (epoch, shard, place): (Epoch, Shard, Option<RowPlace>),
        len: u64,
        draw: &mut impl FnMut(Range<u64>, &mut Vec<T>, &mut Vec<u32>) -> Result<()>,
        out: &mut Vec<T>,
    ) -> Result<Option<Dealt>> {
        let Dealing { budget, rows, seed, current } = self;
        let deals = match current {
            Some((at, deals)) if *at == epoch => deals,
            other => {
                let new = if budget.rows.is_none() {
                    EpochDeal::Samples(Deal::new(budget, *seed, epoch, len, shard))
                } else {
                    let deal = RowDeal::new(budget, rows, (*seed, epoch), len, shard, place);
                    EpochDeal::Rows { deal: Box::new(deal), layout: Layout::default() }
                };
                &mut other.insert((epoch, new)).1
            }
        };
        match deals {
            EpochDeal::Samples(deal) => deal.next(draw, out),
            EpochDeal::Rows { deal, layout } => {
                let mut draw = |range: Range<u64>, to: &mut Vec<T>, tokens: &mut Vec<u32>| {
                    if let Some(sink) = sink {
                        sink.count_drawn(range.end - range.start);
                    }
                    draw(range, to, tokens)
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

/// The deal of one epoch.
enum EpochDeal<T> {
    /// Deals samples by a budget.
    Samples(Deal<T>),
    /// Deals documents as rows of tokens.
    Rows { deal: Box<RowDeal<T>>, layout: Layout },
}

/// Appends the tokens of each sample, as `of` gives them.
pub(super) fn append_tokens<T>(
    samples: &[T],
    tokens: &mut Vec<u32>,
    of: impl Fn(&T) -> Result<u32>,
) -> Result<()> {
    for sample in samples {
        tokens.push(of(sample)?);
    }
    Ok(())
}

/// Queue of the layouts of a run's batches that its consumer has not taken, in the order of batches. If a loader moves
/// to another position, it begins another run; layouts of the earlier run are then ignored.
///
/// A forked child has a queue of its own, since it may inherit a lock that a thread of its parent holds.
#[derive(Debug, Default)]
pub struct Layouts {
    queue: Forked<Mutex<LayoutQueue>>,
    /// The number of positions that were drawn so far, in all runs of a loader.
    drawn: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct LayoutQueue {
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

    fn queue(&self) -> &Mutex<LayoutQueue> {
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
        let at = (Epoch(0), shard, None);
        let mut deals = Dealing::new(&budget, &[1], 7);
        let mut draw = |range: Range<u64>, documents: &mut Vec<u64>, tokens: &mut Vec<u32>| {
            documents.extend(range.clone());
            tokens.extend(range.map(|_| 1));
            Ok(())
        };
        let mut documents = Vec::new();
        deals.next(Some(&sink), at, 10_000, &mut draw, &mut documents).unwrap().unwrap();
        assert_eq!(documents, (9_000..9_011).collect::<Vec<u64>>());
        assert!(layouts.drawn() >= 9_011, "{}", layouts.drawn());
        assert_eq!(next.take().unwrap().segments.len(), 11);
        deals.next(Some(&sink), at, 10_000, &mut draw, &mut documents).unwrap().unwrap();
        let later = LayoutSink::new(&next);
        assert!(next.take().is_none());
        deals.next(Some(&sink), at, 10_000, &mut draw, &mut documents).unwrap().unwrap();
        assert!(next.take().is_none(), "of the run before");
        let dealt = deals.next(Some(&later), at, 10_000, &mut draw, &mut documents);
        let dealt = dealt.unwrap().unwrap();
        assert!(next.take().is_some());

        // From a place on, nothing is passed over.
        let before = layouts.drawn();
        let at = (Epoch(0), shard.after(dealt.consumed), dealt.place);
        let mut deals = Dealing::new(&budget, &[1], 7);
        documents.clear();
        deals.next(Some(&later), at, 10_000, &mut draw, &mut documents).unwrap().unwrap();
        assert_eq!(documents, (9_040..9_051).collect::<Vec<u64>>());
        assert!(layouts.drawn() < before + 2000, "{} of {before}", layouts.drawn());
    }
}
