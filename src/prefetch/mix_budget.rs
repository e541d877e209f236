//! Batches of a mixture by a token budget: the samples that its positions draw, and their lengths.
//!
//! Positions of the mixture take the place of positions of one order. A window of them is sorted by length across
//! all sources, so a batch has samples of several sources. The share of each source in an epoch stays exact.

use std::ops::Range;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::order::budget::{Budget, Dealt, RowPlace, TooLong};
use crate::order::mixture::{Batching as DealtBy, Mixture};
use crate::order::{OrderSpec, Shard};
use crate::units::Epoch;

use super::LoaderOptions;
use super::budgeted::{TokenLengths, samples_of_batch};
use super::mix::{Drawn, Mix, drawn};
use super::rows::{Deals, LayoutSink, Layouts};
use super::source_ids::SourceIds;

/// The tokens of each sample of each source.
#[derive(Debug, Clone)]
pub(super) struct SourceLengths {
    budget: Arc<Budget>,
    of_source: Arc<[TokenLengths]>,
}

impl SourceLengths {
    /// The lengths that `budget` counts. Constant time for each source.
    ///
    /// # Errors
    /// `InvalidArgument`: a source has no such column (the error names it), or a number of the budget is out of
    /// range.
    pub(super) fn new(mix: &Mix, budget: &Arc<Budget>, too_long: TooLong) -> Result<SourceLengths> {
        budget.check()?;
        let lengths = mix.directories().iter().enumerate().map(|(source, directory)| {
            TokenLengths::new(directory, budget, too_long)
                .map_err(|error| of_source(mix, source, error))
        });
        let of_source = lengths.collect::<Result<Vec<TokenLengths>>>()?.into();
        Ok(SourceLengths { budget: Arc::clone(budget), of_source })
    }

    /// Appends the tokens of each of `samples`; `ids` maps them to ids.
    pub(super) fn of_drawn(
        &self,
        ids: &mut SourceIds,
        samples: &[Drawn],
        tokens: &mut Vec<u32>,
    ) -> Result<()> {
        let from = tokens.len();
        tokens.resize(from + samples.len(), 0);
        ids.each(samples, |at, id| {
            tokens[from + at] = self.of_source[samples[at].source as usize].of(id)?;
            Ok(())
        })
    }
}

impl Mix {
    /// `options` with an estimate of the samples per batch, if batches have a budget. Reads all lengths.
    ///
    /// # Errors
    /// `InvalidArgument`: a sample has no length, or is longer than the budget; the error names its source.
    pub(crate) fn measured(&self, options: LoaderOptions) -> Result<LoaderOptions> {
        let Some(budget) = &options.budget else { return Ok(options) };
        let SourceLengths { of_source: lengths, .. } =
            SourceLengths::new(self, budget, options.too_long)?;
        if let DealtBy::PerSource { .. } = self.spec().batching {
            let text =
                "batches by tokens have samples of all sources, and batches per source of one";
            let hint = if options.has_rows() {
                "take the stratified or the random batching"
            } else {
                "take the stratified or the random batching, or batch_size instead of batch_tokens"
            };
            return Err(Error::new(ErrorKind::InvalidArgument, text).hint(hint));
        }
        let counts = self.mixture().counts(Epoch(options.epochs.start));
        let mut tokens = 0_u128;
        for (source, (lengths, count)) in lengths.iter().zip(counts).enumerate() {
            let all = lengths.measure().map_err(|error| of_source(self, source, error))?;
            tokens += u128::from(count) * u128::from(all.mean_tokens());
        }
        let mean = tokens / u128::from(self.mixture().epoch_size().max(1));
        // At most the u64 of a source.
        let batch_size = samples_of_batch(budget, &options.rows, mean as u64);
        Ok(LoaderOptions { batch_size, ..options })
    }
}

/// `error`, with the name of this source.
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
    ids: SourceIds,
    deal: Option<(Epoch, Deals<Drawn>)>,
    /// The rows of a batch in each phase, if the budget is of rows, and the taker of their layouts.
    rows: Vec<u32>,
    layouts: Option<LayoutSink>,
}

impl MixDealing {
    /// The batches of a run along `order`.
    pub(super) fn new(
        mix: &Mix,
        lengths: SourceLengths,
        order: &OrderSpec,
        rows: &[u32],
    ) -> MixDealing {
        let ids = SourceIds::new(mix, order);
        let rows = rows.to_vec();
        MixDealing { seed: order.seed, lengths, ids, deal: None, rows, layouts: None }
    }

    /// Gives the layouts of rows to `layouts` from now on.
    pub(super) fn give_layouts_to(&mut self, layouts: &Arc<Layouts>) {
        self.layouts = Some(LayoutSink::new(layouts));
    }

    /// Appends the samples of the next batch in `epoch` for the rank of `shard` to `out`; rows begin at `place`.
    /// `None`: it has no more.
    ///
    /// # Errors
    /// `InvalidArgument`: the consumed positions do not end with a batch, or the place is not theirs.
    pub(super) fn next(
        &mut self,
        mixture: &mut Mixture,
        (epoch, shard, place): (Epoch, Shard, Option<RowPlace>),
        out: &mut Vec<Drawn>,
    ) -> Result<Option<Dealt>> {
        let MixDealing { seed, lengths, ids, deal, rows, layouts } = self;
        let len = mixture.epoch_size();
        let first = epoch.0 * len;
        let deal = match deal {
            Some((at, deal)) if *at == epoch => deal,
            other => {
                let new = Deals::new(&lengths.budget, rows, (*seed, epoch), len, (shard, place));
                &mut other.insert((epoch, new)).1
            }
        };
        let mut draw = |range: Range<u64>, samples: &mut Vec<Drawn>, tokens: &mut Vec<u32>| {
            let from = samples.len();
            samples.extend(range.map(|at| drawn(mixture, first + at)));
            lengths.of_drawn(ids, &samples[from..], tokens)
        };
        deal.next(layouts.as_ref(), &mut draw, out)
    }
}
