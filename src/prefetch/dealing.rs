//! Deals the samples of an epoch into the batches of a rank: by a token budget, or as rows of tokens.

use std::ops::Range;
use std::sync::Arc;

use dlfs_tokens::{Layout, RowDeal};

use super::layouts::LayoutSink;
use crate::error::Result;
use crate::order::Shard;
use crate::order::budget::{Budget, Deal, Dealt, RowPlace};
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

    /// Appends the samples of the next batch in `epoch` for the rank of `shard` to `out`. Rows begin at `place`, and
    /// their layout goes to `sink`. The epoch has `len` positions; `draw` appends the samples and the lengths of a
    /// range of positions. `None`: the epoch has no more batches for the rank.
    ///
    /// # Errors
    /// Errors of `draw`; the consumed positions do not end with a batch, or the place is not theirs.
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

#[cfg(test)]
mod tests {
    use super::super::layouts::Layouts;
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
