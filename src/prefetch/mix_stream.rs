//! The batches of a mixture: the sources and samples of each batch of this rank.
//!
//! A global batch is a range of the mixture's positions. In orders other than the grouped one, a rank takes every W-th
//! position (W: world size), as in one data set. In grouped order, every rank would then draw from all lanes of each
//! source, since positions of a mixture do not alternate between lanes: all ranks would read all chunks. So each sample
//! goes to the rank of its lane, within equal shares; the few remaining samples are read alone. This changes neither
//! the samples of a global batch nor the number of samples of each rank.
//!
//! If batches are to be of one source each, consecutive positions draw from one source (a *unit*). The ranks then share
//! the units of a global batch so that each rank's batch is of one source, if the numbers allow it.
//!
//! In batches by a token budget, positions of the mixture take the place of positions of one order. A window of them is
//! sorted by length across all sources, so a batch has samples of several sources. The share of each source in an epoch
//! stays exact.

use std::ops::Range;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::order::budget::{Budget, Dealt, RowPlace, TooLong};
use crate::order::mixture::{Batching as DealtBy, Mixture};
use crate::order::{OrderKind, Positions, Shard, Sharding, State};
use crate::units::{Epoch, Generation, SampleId};

use super::LoaderOptions;
use super::dealing::{Dealing, LayoutSink};
use super::mix::{Drawn, Mix, SourceIds, drawn};
use super::token_lengths::{TokenLengths, samples_of_batch};
use super::walk::{FixedBatch, Head, Walk};

impl Mix {
    /// The state in which a run with these options begins. Its image is the hash of the mixture's definition.
    ///
    /// # Errors
    /// `InvalidArgument`: options that a mixture cannot have, an epoch that no order has, or a state of another
    /// mixture; the error names the difference.
    pub(crate) fn start_state(&self, options: &LoaderOptions) -> Result<State> {
        check(options)?;
        let order = options.order.started(options.world_size);
        let start = State {
            epoch: Epoch(options.epochs.start),
            mixture: Some(Arc::clone(&self.spec)),
            ..State::start(self.hash().0, Generation(0), order).by_budget(options.budget.clone())
        };
        let start = match &options.resume {
            Some(state) => {
                self.check_state(state, options)?;
                let State { image, mixture, budget, .. } = start;
                State { image, mixture, budget, ..state.clone() }
            }
            None => start,
        };
        start.order.check_epoch(start.epoch)?;
        Ok(start)
    }

    /// Checks that a run with these options can resume from `state`.
    ///
    /// # Errors
    /// `InvalidArgument`: the state belongs to another mixture or order; the error names the difference.
    pub(crate) fn check_state(&self, state: &State, options: &LoaderOptions) -> Result<()> {
        let Some(spec) = &state.mixture else {
            let text = format!("the state belongs to image {}, and this is a mixture", state.image);
            return Err(Error::invalid(text, "start anew, without the state"));
        };
        let len = self.mixture.epoch_size();
        // Rows do not tell how many positions they took: the whole epoch counts as consumed.
        let is_begun = options.has_rows() && state.consumed > 0;
        let of_epoch = if is_begun { len } else { state.consumed };
        let consumed = state.epoch.0.saturating_mul(len).saturating_add(of_epoch);
        self.spec.check_resumed(spec, consumed)?;
        state.check_budget(options.budget.as_deref())?;
        state.check_order(&options.order, options.world_size, len)
    }

    /// `options` with an estimate of the samples per batch, if batches have a budget. Reads all lengths.
    ///
    /// # Errors
    /// `InvalidArgument`: a sample has no length, or is longer than the budget (the error names its source); or batches
    /// are to be of one source each.
    pub(crate) fn measured(&self, options: LoaderOptions) -> Result<LoaderOptions> {
        let Some(budget) = &options.budget else { return Ok(options) };
        let SourceLengths(lengths) = SourceLengths::new(self, budget, options.too_long)?;
        if let DealtBy::PerSource { .. } = self.spec.batching {
            let text =
                "batches by tokens have samples of all sources, and batches per source of one";
            let hint = if options.has_rows() {
                "take the stratified or the random batching"
            } else {
                "take the stratified or the random batching, or batch_size instead of batch_tokens"
            };
            return Err(Error::new(ErrorKind::InvalidArgument, text).hint(hint));
        }
        let counts = self.mixture.counts(Epoch(options.epochs.start));
        let mut tokens = 0_u128;
        for (source, (lengths, count)) in lengths.iter().zip(counts).enumerate() {
            let all = lengths.measure().map_err(|error| of_source(self, source, error))?;
            tokens += u128::from(count) * u128::from(all.mean_tokens());
        }
        let mean = tokens / u128::from(self.mixture.epoch_size().max(1));
        // The mean is at most the largest mean of a source, which is a u64.
        let batch_size = samples_of_batch(budget, &options.rows, mean as u64);
        Ok(LoaderOptions { batch_size, ..options })
    }
}

/// Checks that the options have a meaning for several data sets: a mixture has no weights of samples, no order that
/// gives ranks samples of their own, and no local shares.
fn check(options: &LoaderOptions) -> Result<()> {
    options.order.started(options.world_size).check()?;
    if options.weights.is_some() {
        return Err(Error::invalid(
            "weights are of the samples of one data set, not of a mixture",
            "weigh its data sets, or views of them by label",
        ));
    }
    match options.order.kind {
        OrderKind::Sequential { .. } | OrderKind::Global | OrderKind::Grouped { .. } => {}
        kind => {
            let text = format!("a mixture has no order of shares: {kind:?}");
            let hint = "take the grouped, the global or the sequential order";
            return Err(Error::invalid(text, hint));
        }
    }
    if options.sharding == Sharding::Local {
        let text = "a mixture has no local shares: its data sets may lie on different nodes";
        return Err(Error::invalid(text, "leave the shares out"));
    }
    Ok(())
}

/// The batches of a mixture that are still to be planned.
pub(super) struct MixStream {
    mixture: Mixture,
    /// The lanes of each source; empty unless samples go to ranks by lane.
    lanes: Vec<u32>,
    walk: Walk,
    /// The number of consecutive positions that draw from one source.
    unit: u64,
    by_lane: ByLane,
    /// Cuts batches by a token budget; `None` if batches have a fixed number of samples.
    dealing: Option<Box<MixDealing>>,
}

impl MixStream {
    pub(super) fn new(mix: &Mix, options: &LoaderOptions, start: &State) -> Result<MixStream> {
        let lanes_of = |source| mix.order_of(source, &start.order).kind.lanes_and_group();
        let lanes: Option<Vec<u32>> = match options.shard()?.num_ranks() {
            1 => None,
            _ => {
                (0..mix.directories.len()).map(|at| lanes_of(at).map(|(lanes, _)| lanes)).collect()
            }
        };
        let dealing = match &options.budget {
            Some(budget) => Some(Box::new(MixDealing {
                lengths: SourceLengths::new(mix, budget, options.too_long)?,
                ids: SourceIds::new(mix, &start.order),
                deal: Dealing::new(budget, &options.rows, start.order.seed),
                layouts: options.layouts.as_ref().map(LayoutSink::new),
            })),
            None => None,
        };
        Ok(MixStream {
            mixture: mix.mixture.clone(),
            lanes: lanes.unwrap_or_default(),
            walk: Walk::new(mix.mixture.epoch_size(), options, start)?,
            unit: match mix.spec.batching {
                DealtBy::PerSource { batch } => batch,
                DealtBy::Stratified | DealtBy::Random => 1,
            },
            by_lane: ByLane::default(),
            dealing,
        })
    }

    /// Returns whether there are no more batches. After the last batch, only the call that returns `None` sets this.
    pub(super) fn is_done(&self) -> bool {
        self.walk.is_done()
    }

    /// Replaces `out` with the samples of the next batch.
    ///
    /// # Errors
    /// `InvalidArgument`: the positions consumed before do not end with a batch by the budget; the first call
    /// checks it.
    pub(super) fn next(&mut self, out: &mut Vec<Drawn>) -> Result<Option<Head>> {
        out.clear();
        let MixStream { mixture, walk, dealing, .. } = self;
        match dealing {
            Some(dealing) => walk.next_dealt(|epoch, shard, place| {
                dealing.next(mixture, (epoch, shard, place), out)
            }),
            None => Ok(self.next_fixed(out)),
        }
    }

    /// The next batch of a fixed number of samples.
    fn next_fixed(&mut self, out: &mut Vec<Drawn>) -> Option<Head> {
        let FixedBatch { head, positions, shard, batch, is_partly_dropped } =
            self.walk.next_fixed()?;
        let MixStream { mixture, lanes, walk, unit, by_lane, .. } = self;
        let len = mixture.epoch_size();
        let first = head.epoch.0 * len;
        let is_padded = batch.first + batch.count > len;
        let batch_size = walk.batch_size / u64::from(shard.seats);
        let units = units_of(shard.num_ranks(), batch_size, batch.count, *unit);
        if let (Some(units), false) = (units, is_padded) {
            let own = |rank| own_of_units((rank, shard.num_ranks()), batch.first, *unit, units);
            let mut each: Vec<Positions> = shard.ranks().map(own).collect();
            for _ in 0..batch_size {
                let next = each.iter_mut().filter_map(Positions::next);
                out.extend(next.map(|at| drawn(mixture, first + at)));
            }
        } else if lanes.is_empty() || is_partly_dropped || is_padded {
            out.extend(positions.map(|at| drawn(mixture, first + at % len)));
        } else {
            by_lane.share(mixture, lanes, &shard, (first + batch.first, batch.count), out);
        }
        Some(head)
    }
}

/// The number of units in a global batch of `count` positions, if there are several and each rank can take its batch
/// out of one of them. `None` otherwise, and for a global batch that is not whole.
fn units_of(ranks: u64, batch_size: u64, count: u64, unit: u64) -> Option<u64> {
    let is_whole = unit > 1 && count == ranks * batch_size && count.is_multiple_of(unit);
    let units = count.checked_div(unit).filter(|&units| is_whole && units > 1)?;
    ranks.is_multiple_of(units).then_some(units)
}

/// The positions of a rank in a global batch of `units` units: its part of one unit.
fn own_of_units((rank, ranks): (u64, u64), first: u64, unit: u64, units: u64) -> Positions {
    let sharing = ranks / units;
    let number = rank / sharing;
    let rank = rank % sharing;
    Positions::new(first + number * unit + rank, sharing, unit / sharing)
}

/// The batches of a mixture as ids.
pub(crate) struct MixIds {
    stream: MixStream,
    /// Memory for the samples of one batch.
    drawn: Vec<Drawn>,
    ids: SourceIds,
}

impl MixIds {
    pub(crate) fn new(mix: &Mix, options: &LoaderOptions, start: &State) -> Result<MixIds> {
        let stream = MixStream::new(mix, options, start)?;
        Ok(MixIds { stream, drawn: Vec::new(), ids: SourceIds::new(mix, &start.order) })
    }

    /// Replaces `ids` and `sources` with the id and the source of each sample of the next batch.
    pub(crate) fn next(
        &mut self,
        ids: &mut Vec<SampleId>,
        sources: &mut Vec<u32>,
    ) -> Result<Option<Head>> {
        ids.clear();
        sources.clear();
        let Some(head) = self.stream.next(&mut self.drawn)? else { return Ok(None) };
        sources.extend(self.drawn.iter().map(|drawn| drawn.source));
        ids.resize(self.drawn.len(), SampleId(0));
        self.ids.each(&self.drawn, |at, id| {
            ids[at] = id;
            Ok(())
        })?;
        Ok(Some(head))
    }
}

/// Gives each sample of a global batch to the rank that has its lane. The fields are memory for one batch.
#[derive(Default)]
struct ByLane {
    /// For each rank: the number of samples that it still takes.
    room: Vec<u64>,
    /// Samples whose rank takes no more, with their indices in the batch.
    left: Vec<(u64, Drawn)>,
    /// The samples of this share.
    own: Vec<OwnSample>,
}

/// A sample of a share, which is of one rank, or of all ranks of a node.
struct OwnSample {
    rank: u64,
    /// The index in the global batch; once samples are sorted for a node, the index among those of the rank.
    index: u64,
    drawn: Drawn,
}

impl ByLane {
    /// Appends the share of `shard` in the `count` positions from `first` on, in the order of positions. The share has
    /// as many samples as every W-th position would give. If the shard is that of all ranks of a node, the samples of
    /// these ranks come in turn.
    fn share(
        &mut self,
        mixture: &mut Mixture,
        lanes: &[u32],
        shard: &Shard,
        (first, count): (u64, u64),
        out: &mut Vec<Drawn>,
    ) {
        let ranks = shard.num_ranks();
        let is_own = |rank| rank % u64::from(shard.world_size.max(1)) == u64::from(shard.rank);
        self.room.clear();
        self.room.extend((0..ranks).map(|rank| count / ranks + u64::from(rank < count % ranks)));
        self.left.clear();
        self.own.clear();
        for at in 0..count {
            let draw = drawn(mixture, first + at);
            let rank = rank_of(draw.position, lanes[draw.source as usize].into(), ranks);
            let room = &mut self.room[rank as usize];
            if *room == 0 {
                self.left.push((at, draw));
                continue;
            }
            *room -= 1;
            if is_own(rank) {
                self.own.push(OwnSample { rank, index: at, drawn: draw });
            }
        }
        let mut rank = 0;
        for &(at, draw) in &self.left {
            while self.room[rank] == 0 {
                rank += 1; // all ranks together have room for all samples
            }
            self.room[rank] -= 1;
            if is_own(rank as u64) {
                let drawn = Drawn { alone: true, ..draw };
                self.own.push(OwnSample { rank: rank as u64, index: at, drawn });
            }
        }
        self.own.sort_unstable_by_key(|own| (own.rank, own.index));
        if shard.seats > 1 {
            for of_rank in self.own.chunk_by_mut(|one, other| one.rank == other.rank) {
                (0..).zip(of_rank).for_each(|(nth, own)| own.index = nth);
            }
            self.own.sort_unstable_by_key(|own| (own.index, own.rank));
        }
        out.extend(self.own.iter().map(|own| own.drawn));
    }
}

/// The rank that has the lane of `position` of a source with `lanes` lanes. If ranks outnumber lanes, several ranks
/// share a lane.
fn rank_of(position: u64, lanes: u64, ranks: u64) -> u64 {
    let lane = position % lanes;
    if lanes >= ranks {
        return lane % ranks;
    }
    let sharing = (ranks - lane).div_ceil(lanes);
    lane + position / lanes % sharing * lanes
}

/// The tokens of each sample of each source.
#[derive(Debug, Clone)]
pub(super) struct SourceLengths(Arc<[TokenLengths]>);

impl SourceLengths {
    /// The lengths that `budget` counts. Constant time for each source.
    ///
    /// # Errors
    /// `InvalidArgument`: a source has no such column (the error names it), or a number of the budget is out of
    /// range.
    pub(super) fn new(mix: &Mix, budget: &Arc<Budget>, too_long: TooLong) -> Result<SourceLengths> {
        budget.check()?;
        let lengths = mix.directories.iter().enumerate().map(|(source, directory)| {
            TokenLengths::new(directory, budget, too_long)
                .map_err(|error| of_source(mix, source, error))
        });
        Ok(SourceLengths(lengths.collect::<Result<_>>()?))
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
            tokens[from + at] = self.0[samples[at].source as usize].of(id)?;
            Ok(())
        })
    }
}

/// The error of a source: adds the source's name to `error`.
fn of_source(mix: &Mix, source: usize, error: Error) -> Error {
    match mix.spec.sources.get(source) {
        Some(source) => error.target(source.name.clone()),
        None => error,
    }
}

/// Deals batches of a mixture by a token budget.
struct MixDealing {
    lengths: SourceLengths,
    ids: SourceIds,
    deal: Dealing<Drawn>,
    layouts: Option<LayoutSink>,
}

impl MixDealing {
    /// See [`Dealing::next`].
    fn next(
        &mut self,
        mixture: &mut Mixture,
        at: (Epoch, Shard, Option<RowPlace>),
        out: &mut Vec<Drawn>,
    ) -> Result<Option<Dealt>> {
        let MixDealing { lengths, ids, deal, layouts } = self;
        let len = mixture.epoch_size();
        let first = at.0.0 * len;
        let mut draw = |range: Range<u64>, samples: &mut Vec<Drawn>, tokens: &mut Vec<u32>| {
            let from = samples.len();
            samples.extend(range.map(|at| drawn(mixture, first + at)));
            lengths.of_drawn(ids, &samples[from..], tokens)
        };
        deal.next(layouts.as_ref(), at, len, &mut draw, out)
    }
}
