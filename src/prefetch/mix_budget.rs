//! Batches of a mixture by a budget of tokens: what its positions draw, and how long that is.
//!
//! Positions of the mixture take the place of those of one order: a window of them is sorted by length, whichever
//! sources they draw from, so a batch has samples of several. What an epoch has of each source stays exact.

use std::ops::Range;
use std::sync::Arc;

use crate::directory::Directory;
use crate::error::{Error, ErrorKind, Result};
use crate::order::budget::{Budget, Deal, Dealt, TooLong, count_batches};
use crate::order::mixture::{Batching as DealtBy, Mixture};
use crate::order::{OrderSpec, Shard};
use crate::units::{Epoch, SampleId};

use super::LoaderOptions;
use super::budgeted::{TokenLengths, samples_of_batch};
use super::fed::{Fed, Piece, Placed};
use super::mix::{Drawn, Mix, drawn};

/// The tokens of each sample of each source.
#[derive(Debug, Clone)]
pub(super) struct SourceLengths {
    pub(super) budget: Arc<Budget>,
    of_source: Arc<[TokenLengths]>,
}

impl SourceLengths {
    /// The lengths that `budget` counts. Constant time for each source.
    ///
    /// # Errors
    /// `InvalidArgument`: a source has no such column, and which; numbers of the budget that are out of range.
    pub(super) fn new(mix: &Mix, budget: &Arc<Budget>, too_long: TooLong) -> Result<SourceLengths> {
        budget.check()?;
        let lengths = mix.directories().iter().enumerate().map(|(source, directory)| {
            TokenLengths::new(directory, budget, too_long)
                .map_err(|error| of_source(mix, source, error.into()))
        });
        let of_source = lengths.collect::<Result<Vec<TokenLengths>>>()?.into();
        Ok(SourceLengths { budget: Arc::clone(budget), of_source })
    }

    /// The lengths that the options' budget counts, if they have one.
    ///
    /// # Errors
    /// As [`SourceLengths::new`].
    pub(super) fn of(mix: &Mix, options: &LoaderOptions) -> Result<Option<SourceLengths>> {
        let Some(budget) = &options.budget else { return Ok(None) };
        SourceLengths::new(mix, budget, options.too_long).map(Some)
    }
}

impl Mix {
    /// `options` with an estimate of the samples of a batch, if batches have a budget: all lengths are looked at.
    ///
    /// # Errors
    /// `InvalidArgument`: a sample has no length, or is longer than the budget, and of which source it is.
    pub(crate) fn measured(&self, options: LoaderOptions) -> Result<LoaderOptions> {
        let Some(SourceLengths { budget, of_source: lengths }) = SourceLengths::of(self, &options)?
        else {
            return Ok(options);
        };
        if let DealtBy::PerSource { .. } = self.spec().batching {
            let text =
                "batches by tokens have samples of all sources, and batches per source of one";
            return Err(Error::new(ErrorKind::InvalidArgument, text).hint(
                "take the stratified or the random batching, or batch_size instead of batch_tokens",
            ));
        }
        let counts = self.mixture().counts(Epoch(options.epochs.start));
        let mut tokens = 0_u128;
        for (source, (lengths, count)) in lengths.iter().zip(counts).enumerate() {
            let all = lengths.measure().map_err(|error| of_source(self, source, error.into()))?;
            tokens += u128::from(count) * u128::from(all.mean_tokens());
        }
        let mean = tokens / u128::from(self.mixture().epoch_size().max(1));
        let batch_size = samples_of_batch(&budget, mean as u64); // at most the u64 of a source
        Ok(LoaderOptions { batch_size, ..options })
    }
}

/// `error`, which is of this source.
fn of_source(mix: &Mix, source: usize, error: Error) -> Error {
    match mix.spec().sources.get(source) {
        Some(source) => error.target(source.name.clone()),
        None => error,
    }
}

/// The batches of a rank in the current epoch of a mixture.
pub(super) struct MixDealing {
    seed: u64,
    lengths: SourceLengths,
    /// The order of each source that was drawn.
    orders: Vec<Option<Fed>>,
    specs: Vec<OrderSpec>,
    directories: Arc<[Arc<Directory>]>,
    deal: Option<Deal<Drawn>>,
    /// Set once this epoch has had a batch.
    has_dealt: bool,
    /// For sorting what is drawn by source and epoch.
    by_source: Vec<u32>,
    ids: Vec<SampleId>,
}

impl MixDealing {
    /// The batches of a run along `order`.
    pub(super) fn new(mix: &Mix, lengths: SourceLengths, order: &OrderSpec) -> MixDealing {
        let sources = 0..mix.sources().len();
        MixDealing {
            seed: order.seed,
            lengths,
            orders: sources.clone().map(|_| None).collect(),
            specs: sources.map(|source| mix.order_of(source, order)).collect(),
            directories: Arc::clone(mix.directories()),
            deal: None,
            has_dealt: false,
            by_source: Vec::new(),
            ids: Vec::new(),
        }
    }

    /// Appends the samples of the next batch in `epoch` of the rank of `shard` to `out`. `None`: it has no other.
    ///
    /// # Errors
    /// `InvalidArgument`: what is consumed does not end with a batch.
    pub(super) fn next(
        &mut self,
        mixture: &mut Mixture,
        (epoch, shard): (u64, Shard),
        out: &mut Vec<Drawn>,
    ) -> Result<Option<Dealt>> {
        let len = mixture.epoch_size();
        let first = epoch * len;
        let budget = &self.lengths.budget;
        let mut deal = self
            .deal
            .take()
            .unwrap_or_else(|| Deal::new(budget, self.seed, Epoch(epoch), len, shard));
        let mut draw = |range: Range<u64>, samples: &mut Vec<Drawn>, tokens: &mut Vec<u32>| {
            let from = samples.len();
            samples.extend(range.map(|at| drawn(mixture, first + at)));
            self.measure(&samples[from..], tokens)
        };
        let dealt = deal.next(&mut draw, out)?;
        self.has_dealt |= dealt.is_some();
        self.deal = Some(deal);
        Ok(dealt)
    }

    /// Forgets the epoch; whether it had a batch.
    pub(super) fn end_epoch(&mut self) -> bool {
        self.deal = None;
        std::mem::take(&mut self.has_dealt)
    }

    /// Appends the tokens of each of `samples`.
    fn measure(&mut self, samples: &[Drawn], tokens: &mut Vec<u32>) -> Result<()> {
        let MixDealing { lengths, orders, specs, directories, by_source, ids, .. } = self;
        let from = tokens.len();
        tokens.resize(from + samples.len(), 0);
        let place = |at: &u32| {
            let Drawn { source, epoch, .. } = samples[*at as usize];
            (source, epoch)
        };
        by_source.clear();
        by_source.extend(0..samples.len() as u32);
        by_source.sort_by_key(place);
        for group in by_source.chunk_by(|one, other| place(one) == place(other)) {
            let (source, epoch) = place(&group[0]);
            let source = source as usize;
            let order = orders[source]
                .get_or_insert_with(|| Fed::new(Arc::clone(&directories[source]), specs[source]));
            let mut positions = order.free_positions();
            positions.extend(group.iter().map(|&at| {
                let position = samples[at as usize].position;
                Placed { position, alone: false }
            }));
            order.push(Piece { epoch, positions, is_last: true });
            ids.clear();
            order.next_ids(ids)?;
            for (&at, &id) in group.iter().zip(&*ids) {
                tokens[from + at as usize] = lengths.of_source[source].of(id)?;
            }
        }
        Ok(())
    }
}

/// The batches that the budget cuts each window of an epoch into, of all ranks, as their numbers.
///
/// Draws and sorts the whole epoch.
pub(super) fn count_batches_of_mixture(
    mix: &Mix,
    lengths: &SourceLengths,
    order: &OrderSpec,
    epoch: Epoch,
) -> Result<Vec<u32>> {
    let mut mixture = mix.mixture().clone();
    let mut dealing = MixDealing::new(mix, lengths.clone(), order);
    let len = mixture.epoch_size();
    let mut samples = Vec::new();
    let first = epoch.0 * len;
    count_batches(
        &lengths.budget,
        order.seed,
        epoch,
        len,
        |range: Range<u64>, tokens: &mut Vec<u32>| {
            samples.clear();
            samples.extend(range.map(|at| drawn(&mut mixture, first + at)));
            dealing.measure(&samples, tokens)
        },
    )
}
