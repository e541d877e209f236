//! Counts the batches of an epoch by a token budget: their number differs from epoch to epoch.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::directory::Directory;
use crate::error::Result;
use crate::order::budget::{Budget, Dealt, RowPlace, count_batches, within_batch};
use crate::order::{OrderSpec, Shard, State};
use crate::units::Epoch;
use dlfs_tokens::{RowCounts, count_rows};

use super::LoaderOptions;
use super::dealing::{Dealing, append_tokens};
use super::mix::{Mix, SourceIds, drawn};
use super::mix_stream::SourceLengths;
use super::run_order::order_of;
use super::token_lengths::TokenLengths;

/// Counts the batches of the epochs of a run.
#[derive(Debug)]
pub(crate) struct BatchCounts {
    source: BatchSource,
    options: LoaderOptions,
    budget: Arc<Budget>,
    /// The number of positions of an epoch.
    len: u64,
    /// The counts of the last epoch that was counted, since counting takes long.
    last: Mutex<Option<Counted>>,
}

/// An epoch along an order, and the number of its batches in each window; if batches are of rows, of its rows in each
/// phase.
type Counted = ((OrderSpec, Epoch), Arc<[u64]>);

/// The data set or the mixture that batches are cut from.
#[derive(Debug)]
enum BatchSource {
    Dataset(Arc<Directory>, TokenLengths),
    Mixture(Arc<Mix>, SourceLengths),
}

/// Appends the tokens of the samples at consecutive positions of an epoch.
type TokensAt<'a> = Box<dyn FnMut(Range<u64>, &mut Vec<u32>) -> Result<()> + 'a>;

impl BatchCounts {
    /// The counts for a run with these options, over a data set or over the mixture `mix`; `None` if its batches
    /// have no budget.
    pub(crate) fn new(
        directory: &Arc<Directory>,
        mix: Option<&Arc<Mix>>,
        options: &LoaderOptions,
    ) -> Result<Option<BatchCounts>> {
        let Some(budget) = &options.budget else { return Ok(None) };
        let (source, len) = match mix {
            None => {
                let lengths = TokenLengths::new(directory, budget, options.too_long)?;
                let len = options.epoch_len(directory.num_live());
                (BatchSource::Dataset(Arc::clone(directory), lengths), len)
            }
            Some(mix) => {
                let lengths = SourceLengths::new(mix, budget, options.too_long)?;
                (BatchSource::Mixture(Arc::clone(mix), lengths), mix.mixture.epoch_size())
            }
        };
        let budget = Arc::clone(budget);
        let last = Mutex::default();
        Ok(Some(BatchCounts { source, options: options.clone(), budget, len, last }))
    }

    /// Returns whether batches are of rows, which [`BatchCounts::rows`] counts.
    pub(crate) fn has_rows(&self) -> bool {
        self.budget.rows.is_some()
    }

    /// The rows of an epoch along `order`, over all ranks. Packs the whole epoch.
    ///
    /// # Errors
    /// A document has no length.
    pub(crate) fn rows(&self, order: &OrderSpec, epoch: Epoch) -> Result<RowCounts> {
        let tokens_at = self.tokens_at(order, epoch)?;
        count_rows(&self.budget, order.seed, epoch, self.len, tokens_at)
    }

    /// For each source of a mixture, the documents with tokens that an epoch takes of it, and their tokens with
    /// separators. Empty for a data set.
    ///
    /// # Errors
    /// A document has no length.
    pub(crate) fn of_sources(&self, order: &OrderSpec, epoch: Epoch) -> Result<Vec<(u64, u64)>> {
        let BatchSource::Mixture(mix, lengths) = &self.source else { return Ok(Vec::new()) };
        let mut mixture = mix.mixture.clone();
        let mut ids = SourceIds::new(mix, order);
        let mut samples = Vec::new();
        let mut tokens = Vec::new();
        let mut sums = vec![(0, 0); mix.directories.len()];
        let separator = u64::from(self.budget.rows.is_some_and(|rows| rows.separated));
        let first = epoch.0 * self.len;
        for at in (first..first + self.len).step_by(self.budget.window as usize) {
            let end = (first + self.len).min(at + u64::from(self.budget.window));
            samples.clear();
            tokens.clear();
            samples.extend((at..end).map(|at| drawn(&mut mixture, at)));
            lengths.of_drawn(&mut ids, &samples, &mut tokens)?;
            for (sample, &count) in samples.iter().zip(&tokens).filter(|(_, count)| **count > 0) {
                let (documents, tokens): &mut (u64, u64) = &mut sums[sample.source as usize];
                *documents += 1;
                *tokens += u64::from(count) + separator;
            }
        }
        Ok(sums)
    }

    /// The number of batches of all ranks from `at` to the end of its epoch.
    ///
    /// Draws and sorts the whole epoch, in some 100 ns a sample, unless the last call was for the same epoch. If
    /// batches are of rows, counts whole global batches only.
    ///
    /// # Errors
    /// No batch begins there; or a sample has no length.
    pub(crate) fn batches_after(&self, at: &State) -> Result<u64> {
        let counted = self.counted(&at.order, at.epoch)?;
        if self.has_rows() {
            return Ok(self.whole_batches(&counted, at.consumed).saturating_mul(self.num_ranks()));
        }
        Ok(counted.iter().sum::<u64>() - self.before(at, &counted)?)
    }

    /// The batches of each window of an epoch, over all ranks, or the rows of each phase.
    fn counted(&self, order: &OrderSpec, epoch: Epoch) -> Result<Arc<[u64]>> {
        let mut last = self.last.lock();
        if let Some((of, counted)) = &*last
            && *of == (*order, epoch)
        {
            return Ok(Arc::clone(counted));
        }
        let counted: Arc<[u64]> = if self.has_rows() {
            self.rows(order, epoch)?.phases.into()
        } else {
            let tokens_at = self.tokens_at(order, epoch)?;
            let windows = count_batches(&self.budget, order.seed, epoch, self.len, tokens_at)?;
            windows.into_iter().map(u64::from).collect()
        };
        *last = Some(((*order, epoch), Arc::clone(&counted)));
        Ok(counted)
    }

    /// The number of whole global batches of rows after row `consumed` of an epoch; `of_phases` has the rows of each
    /// phase.
    fn whole_batches(&self, of_phases: &[u64], consumed: u64) -> u64 {
        let last = self.options.rows.last().copied().unwrap_or(1);
        let rows = self.options.rows.iter().copied().chain(std::iter::repeat(last));
        let mut start = 0;
        let whole = of_phases.iter().zip(rows).map(|(count, rows)| {
            let end = start + count;
            let left = end.saturating_sub(consumed.max(start));
            start = end;
            left / (u64::from(rows.max(1)) * self.num_ranks())
        });
        whole.sum()
    }

    /// The number of ranks, at least 1.
    fn num_ranks(&self) -> u64 {
        u64::from(self.options.world_size.max(1))
    }

    /// The number of batches of an epoch before the position of `at`, over all ranks.
    fn before(&self, at: &State, of_windows: &[u64]) -> Result<u64> {
        let consumed = at.consumed;
        let size = u64::from(self.budget.window);
        let window = consumed / size;
        let mut before = of_windows.iter().take(window as usize).sum();
        let mut end = window * size;
        if end == consumed {
            return Ok(before);
        }
        let shard = Shard { rank: 0, world_size: 1, consumed: end, ..self.shard()? };
        let mut batches = self.deal(&at.order, at.epoch, (shard, None))?;
        while end < consumed {
            let Some((_, dealt)) = batches.next()? else { break };
            (before, end) = (before + 1, dealt.consumed);
        }
        if end == consumed { Ok(before) } else { Err(within_batch(consumed)) }
    }

    /// The number of this rank's samples from `at` to the end of its epoch. Cuts the rest of the epoch into batches.
    pub(crate) fn samples_after(&self, at: &State) -> Result<u64> {
        let mut batches = self.own_batches(at)?;
        let mut samples = 0;
        while let Some((count, _)) = batches.next()? {
            samples += count;
        }
        Ok(samples)
    }

    /// Returns whether this rank has another batch from `at` to the end of its epoch. Cuts only the next windows.
    pub(crate) fn has_batch(&self, at: &State) -> Result<bool> {
        Ok(self.own_batches(at)?.next()?.is_some())
    }

    /// This rank's batches from `at` to the end of its epoch.
    fn own_batches(&self, at: &State) -> Result<Batches<'_>> {
        self.deal(&at.order, at.epoch, (self.shard()?.after(at.consumed), at.place))
    }

    /// This rank's share of an epoch, from its start.
    fn shard(&self) -> Result<Shard> {
        let LoaderOptions { rank, world_size, tail, .. } = self.options;
        Shard::new(rank, world_size, tail)
    }

    /// The batches that a rank has of an epoch. `from` is the rank's share after the consumed positions, and the place
    /// of these positions in rows.
    fn deal(
        &self,
        order: &OrderSpec,
        epoch: Epoch,
        from: (Shard, Option<RowPlace>),
    ) -> Result<Batches<'_>> {
        Ok(Batches {
            dealing: Dealing::new(&self.budget, &self.options.rows, order.seed),
            at: (epoch, from.0, from.1),
            len: self.len,
            tokens_at: self.tokens_at(order, epoch)?,
            samples: Vec::new(),
        })
    }

    /// The tokens at the positions of an epoch.
    fn tokens_at(&self, spec: &OrderSpec, epoch: Epoch) -> Result<TokensAt<'_>> {
        match &self.source {
            BatchSource::Dataset(directory, lengths) => {
                let mut order = order_of(spec, epoch, directory, self.options.weights.as_ref())?;
                let mut ids = Vec::new();
                Ok(Box::new(move |range, tokens| {
                    ids.clear();
                    order.ids(&**directory, range, &mut ids);
                    append_tokens(&ids, tokens, |&id| lengths.of(id))
                }))
            }
            BatchSource::Mixture(mix, lengths) => {
                let mut mixture = mix.mixture.clone();
                let mut ids = SourceIds::new(mix, spec);
                let mut samples = Vec::new();
                let first = epoch.0 * self.len;
                Ok(Box::new(move |range, tokens| {
                    samples.clear();
                    samples.extend(range.map(|at| drawn(&mut mixture, first + at)));
                    lengths.of_drawn(&mut ids, &samples, tokens)
                }))
            }
        }
    }
}

/// The batches of a rank in one epoch, as numbers of samples.
struct Batches<'a> {
    dealing: Dealing<()>,
    /// Epoch, share and place: see [`Dealing::next`].
    at: (Epoch, Shard, Option<RowPlace>),
    len: u64,
    tokens_at: TokensAt<'a>,
    /// Memory for one batch: only the number of samples counts.
    samples: Vec<()>,
}

impl Batches<'_> {
    /// The number of samples of the next batch.
    fn next(&mut self) -> Result<Option<(u64, Dealt)>> {
        let Batches { dealing, at, len, tokens_at, samples } = self;
        samples.clear();
        let mut draw = |range: Range<u64>, samples: &mut Vec<()>, tokens: &mut Vec<u32>| {
            samples.resize(samples.len() + (range.end - range.start) as usize, ());
            tokens_at(range, tokens)
        };
        let dealt = dealing.next(None, *at, *len, &mut draw, samples)?;
        Ok(dealt.map(|dealt| (samples.len() as u64, dealt)))
    }
}
