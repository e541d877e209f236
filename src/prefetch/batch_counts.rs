//! Counts the batches by a budget of tokens, of which epochs have different numbers.

use std::sync::Arc;

use crate::directory::Directory;
use crate::error::Result;
use crate::order::budget::{BudgetError, Dealt, count_batches};
use crate::order::mixture::Mixture;
use crate::order::{EpochOrder, OrderSpec, Pick, Shard};
use crate::units::{Epoch, SampleId};

use super::LoaderOptions;
use super::budgeted::{Dealing, TokenLengths, each, order_of, positions};
use super::mix::{Drawn, Mix};
use super::mix_budget::{MixDealing, SourceLengths, count_batches_of_mixture};

/// Counts the batches of epochs.
#[derive(Debug, Clone)]
pub(crate) struct BatchCounts {
    over: Over,
    options: LoaderOptions,
    /// Positions that are cut together.
    window: u64,
}

/// The data set or the mixture that batches are cut from.
#[derive(Debug, Clone)]
enum Over {
    Dataset(Arc<Directory>, TokenLengths),
    Mixture(Arc<Mix>, SourceLengths),
}

impl BatchCounts {
    /// Those of a run with these options; `None` if its batches have no budget.
    pub(crate) fn new(
        directory: &Arc<Directory>,
        options: &LoaderOptions,
    ) -> Result<Option<BatchCounts>> {
        let Some(budget) = &options.budget else { return Ok(None) };
        let lengths = TokenLengths::new(directory, budget, options.too_long)?;
        let over = Over::Dataset(Arc::clone(directory), lengths);
        Ok(Some(BatchCounts { over, options: options.clone(), window: budget.window.into() }))
    }

    /// The same, of a mixture.
    pub(crate) fn of_mixture(
        mix: &Arc<Mix>,
        options: &LoaderOptions,
    ) -> Result<Option<BatchCounts>> {
        let Some(lengths) = SourceLengths::of(mix, options)? else { return Ok(None) };
        let window = lengths.budget.window.into();
        let over = Over::Mixture(Arc::clone(mix), lengths);
        Ok(Some(BatchCounts { over, options: options.clone(), window }))
    }

    /// The batches in each window of an epoch along `order`, of all ranks.
    ///
    /// Draws and sorts the whole epoch, in some 100 ns a sample.
    pub(crate) fn of_windows(&self, order: &OrderSpec, epoch: Epoch) -> Result<Vec<u32>> {
        let (directory, lengths) = match &self.over {
            Over::Dataset(directory, lengths) => (directory, lengths),
            Over::Mixture(mix, lengths) => {
                return count_batches_of_mixture(mix, lengths, order, epoch);
            }
        };
        let mut sequence = order_of(order, epoch, directory, self.options.weights.as_ref())?;
        let mut ids = Vec::new();
        let len = sequence.len();
        let counts = count_batches(lengths.budget(), order.seed, epoch, len, |range, tokens| {
            ids.clear();
            sequence.ids(&**directory, positions(range), &mut ids);
            each(&ids, tokens, |&id| lengths.of(id))
        });
        Ok(counts?)
    }

    /// The batches of an epoch that are before position `consumed`, of all ranks.
    ///
    /// # Errors
    /// `Between`: no batch ends there.
    pub(crate) fn before(
        &self,
        order: &OrderSpec,
        epoch: Epoch,
        consumed: u64,
        of_windows: &[u32],
    ) -> Result<u64> {
        let window = consumed / self.window;
        let whole = of_windows.iter().take(window as usize).map(|&count| u64::from(count)).sum();
        let start = window * self.window;
        if start == consumed {
            return Ok(whole);
        }
        let shard = Shard { rank: 0, world_size: 1, consumed: start, ..self.shard()? };
        let mut batches = self.deal(order, epoch, shard)?;
        let mut before = whole;
        let mut at = start;
        while at < consumed {
            let Some((_, dealt)) = batches.next()? else { break };
            (before, at) = (before + 1, dealt.consumed);
        }
        if at == consumed { Ok(before) } else { Err(BudgetError::Between { consumed }.into()) }
    }

    /// The samples of this rank in an epoch, behind the consumed ones. Cuts all that is left of the epoch.
    pub(crate) fn samples_after(
        &self,
        order: &OrderSpec,
        epoch: Epoch,
        consumed: u64,
    ) -> Result<u64> {
        let mut batches = self.deal(order, epoch, self.shard()?.after(consumed))?;
        let mut samples = 0;
        while let Some((count, _)) = batches.next()? {
            samples += count;
        }
        Ok(samples)
    }

    /// Returns whether this rank has another batch in an epoch after `consumed` positions. Cuts the windows of two
    /// rounds.
    pub(crate) fn has_batch(&self, order: &OrderSpec, epoch: Epoch, consumed: u64) -> Result<bool> {
        let mut batches = self.deal(order, epoch, self.shard()?.after(consumed))?;
        Ok(batches.next()?.is_some())
    }

    /// This rank's share, from the start of an epoch.
    pub(crate) fn shard(&self) -> Result<Shard> {
        let LoaderOptions { rank, world_size, tail, .. } = self.options;
        Ok(Shard::new(rank, world_size, tail)?)
    }

    fn deal(&self, spec: &OrderSpec, epoch: Epoch, shard: Shard) -> Result<Batches<'_>> {
        match &self.over {
            Over::Dataset(directory, lengths) => {
                let order = order_of(spec, epoch, directory, self.options.weights.as_ref())?;
                let dealing = Dealing::new(lengths.budget(), spec.seed, &order, shard);
                let ids = Vec::new();
                let picks = Vec::new();
                let order = Box::new(order);
                let dealing = Box::new(dealing);
                Ok(Batches::OfDataset { order, dealing, lengths, ids, picks })
            }
            Over::Mixture(mix, lengths) => Ok(Batches::OfMixture {
                mixture: Box::new(mix.mixture().clone()),
                dealing: Box::new(MixDealing::new(mix, lengths.clone(), spec)),
                at: (epoch.0, shard),
                samples: Vec::new(),
            }),
        }
    }
}

/// The batches of one epoch, by their numbers of samples.
enum Batches<'a> {
    OfDataset {
        order: Box<EpochOrder>,
        dealing: Box<Dealing>,
        lengths: &'a TokenLengths,
        ids: Vec<SampleId>,
        picks: Vec<Pick>,
    },
    OfMixture {
        mixture: Box<Mixture>,
        dealing: Box<MixDealing>,
        /// The epoch, and the rank's share of it.
        at: (u64, Shard),
        samples: Vec<Drawn>,
    },
}

impl Batches<'_> {
    fn next(&mut self) -> Result<Option<(u64, Dealt)>> {
        match self {
            Batches::OfDataset { order, dealing, lengths, ids, picks } => {
                ids.clear();
                picks.clear();
                let dealt = dealing.next(order, lengths, ids, picks)?;
                Ok(dealt.map(|dealt| ((ids.len() + picks.len()) as u64, dealt)))
            }
            Batches::OfMixture { mixture, dealing, at, samples } => {
                samples.clear();
                let dealt = dealing.next(mixture, *at, samples)?;
                Ok(dealt.map(|dealt| (samples.len() as u64, dealt)))
            }
        }
    }
}
