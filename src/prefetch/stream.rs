//! Divides an order into this rank's batches, epoch after epoch: the samples of each batch, along the positions of
//! `walk.rs`.
//!
//! The stream of a source of a mixture is [`Fed`] with positions instead, in any of its epochs.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use crate::directory::Directory;
use crate::error::{Error, ErrorKind, Result};
use crate::order::weighted::not_one_each;
use crate::order::{
    Aligner, ByNode, EpochOrder, Locality, OrderSpec, Pick, Shard, Sharding, State,
};
use crate::units::{Epoch, SampleId};

use super::dealing::{Dealing, LayoutSink, append_tokens};
use super::run_order::RunOrder;
use super::token_lengths::TokenLengths;
use super::walk::{FixedBatch, Head, Walk};
use super::{LoaderOptions, Spares, gone};

/// The batches that are still to be planned.
pub(crate) struct Stream {
    directory: Arc<Directory>,
    order: RunOrder,
    walk: Walk,
    shares: Shares,
    /// Memory for the samples of one batch.
    picks: Vec<Pick>,
    ids: Vec<SampleId>,
    /// Empty batches for the driver that plans the stream.
    pub(super) spares: Spares,
    /// `None` if batches have a fixed number of samples.
    budgeted: Option<Box<Budgeted>>,
    /// For a source of a mixture: supplies positions instead of `walk`.
    pub(super) fed: Option<Fed>,
}

/// The deal of batches by a token budget.
struct Budgeted {
    lengths: TokenLengths,
    /// The deal of an order that does not visit whole chunks.
    ids: Dealing<SampleId>,
    /// The deal of an order that visits whole chunks.
    picks: Dealing<Pick>,
    /// Takes the layouts of rows.
    layouts: Option<LayoutSink>,
}

/// The rule by which this rank's share of a global batch is computed: see [`Sharding`].
enum Shares {
    /// Every W-th position (W: world size).
    Strided,
    Aligned(Aligner),
    Local(ByNode),
}

impl Stream {
    /// The state in which a run with these options begins. Its order has the number of lanes that the run uses,
    /// even if the options leave it open.
    ///
    /// # Errors
    /// `InvalidArgument`, `Stale`: the state to resume from does not fit the image or the
    /// options.
    pub(crate) fn start_state(directory: &Directory, options: &LoaderOptions) -> Result<State> {
        let start = match &options.resume {
            Some(state) => {
                Stream::check_state(directory, state, options)?;
                state.clone()
            }
            None => {
                let order = options.order.started(options.world_size);
                let start = State::start(directory.uuid().0, directory.generation(), order);
                let view = directory.view().map(|mark| mark.hash);
                State { epoch: Epoch(options.epochs.start), ..start }.of_view(view)
            }
        };
        // Later phases of rows may differ from those of the state.
        Ok(start.by_budget(options.budget.clone()))
    }

    /// Checks that a run with these options can resume from `state`.
    ///
    /// # Errors
    /// As [`Stream::start_state`].
    pub(crate) fn check_state(
        directory: &Directory,
        state: &State,
        options: &LoaderOptions,
    ) -> Result<()> {
        state.check_budget(options.budget.as_deref())?;
        let image = (directory.uuid().0, directory.view().map(|mark| mark.hash));
        let len = options.epoch_len(directory.num_live());
        state.check(image, directory.generation(), &options.order, options.world_size, len)
    }

    pub(crate) fn new(
        directory: Arc<Directory>,
        options: &LoaderOptions,
        start: &State,
    ) -> Result<Stream> {
        let len = start.order.kind.epoch_len(directory.num_live());
        let walk = Walk::new(len, options, start)?;
        let shares = Shares::new(options, &start.order)?;
        if let Some(world_size) = options.order.kind.world_size()
            && (world_size == 0 || !options.world_size.is_multiple_of(world_size))
        {
            // A multiple is allowed: several processes then share the batches of each rank.
            let text = format!(
                "the order gives each of {world_size} ranks a share, and the world size is {}",
                options.world_size
            );
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        start.order.check()?;
        let samples = directory.num_live();
        if let Some(weighed) = options.weights.as_ref().map(|weights| weights.num_samples())
            && weighed != samples
        {
            return Err(not_one_each(weighed, samples));
        }
        let budgeted = match &options.budget {
            Some(budget) => Some(Box::new(Budgeted {
                lengths: TokenLengths::new(&directory, budget, options.too_long)?,
                ids: Dealing::new(budget, &options.rows, start.order.seed),
                picks: Dealing::new(budget, &options.rows, start.order.seed),
                layouts: options.layouts.as_ref().map(LayoutSink::new),
            })),
            None => None,
        };
        let order = RunOrder::new(Arc::clone(&directory), start.order, options.weights.clone());
        Ok(Stream {
            directory,
            order,
            walk,
            shares,
            picks: Vec::new(),
            ids: Vec::new(),
            spares: Spares::default(),
            budgeted,
            fed: None,
        })
    }

    /// A source's part of a mixture: positions from [`Fed::pieces`], along `spec`, which is an order of this data set.
    pub(super) fn fed(directory: Arc<Directory>, spec: OrderSpec) -> Stream {
        let order = RunOrder::of_source(Arc::clone(&directory), spec);
        let start = State::start(directory.uuid().0, directory.generation(), spec);
        let without_epochs = LoaderOptions::new(spec, 1, 0);
        let stream = Stream::new(directory, &without_epochs, &start).expect("a checked order");
        Stream { order, fed: Some(Fed::default()), ..stream }
    }

    /// Returns whether a consumer that waits (`starving`) waits for the next read of this stream, of whichever batch.
    /// Only of a fed stream: it gets its part of the next span after all parts of the span before were requested.
    pub(super) fn is_awaited(&self, starving: bool) -> bool {
        starving && self.fed.is_some()
    }

    /// Returns whether the stream was fed with batches that it has not returned yet.
    pub(super) fn has_pieces(&self) -> bool {
        self.fed.as_ref().is_some_and(|fed| !fed.pieces.is_empty())
    }

    /// The number of samples that this rank reads from `start` on in a run with these options, if epochs have `len`
    /// positions. Counted independently of the stream. `None`: batches are of rows, or are dealt by a budget to several
    /// ranks, so only reading tells the number.
    ///
    /// # Errors
    /// `InvalidArgument`: the rank does not exist.
    pub(super) fn owed(len: u64, options: &LoaderOptions, start: &State) -> Result<Option<u64>> {
        let shard = options.shard()?;
        if options.budget.is_some() && shard.num_ranks() > 1 || options.has_rows() {
            return Ok(None);
        }
        let batch_size = (options.batch_size as u64).max(1);
        let of_epoch = |shard: Shard| {
            let samples = shard.positions(len).remaining();
            let drops_short = options.drop_short && options.budget.is_none();
            if drops_short { shard.in_whole_batches(samples, batch_size) } else { samples }
        };
        let epochs = options.epochs.end.saturating_sub(start.epoch.0);
        let Some(epochs_after) = epochs.checked_sub(1) else { return Ok(Some(0)) };
        let first = of_epoch(shard.after(start.consumed));
        Ok(Some(first.saturating_add(epochs_after.saturating_mul(of_epoch(shard)))))
    }

    /// Returns whether there are no more batches. After the last batch, only the call that returns `None` sets this.
    /// Always true for a fed stream, which has no epochs of its own.
    pub(super) fn is_done(&self) -> bool {
        self.walk.is_done()
    }

    /// Replaces `ids` with the ids of the next batch.
    pub(crate) fn next_ids(&mut self, ids: &mut Vec<SampleId>) -> Result<Option<Head>> {
        let mut picks = std::mem::take(&mut self.picks);
        let head = self.next(ids, &mut picks);
        ids.extend(picks.iter().map(|pick| self.directory.id_in_chunk(pick.chunk, pick.nth)));
        self.picks = picks;
        head
    }

    /// Replaces `picks` with the samples of the next batch. Their groups are 0 unless the order visits whole chunks.
    pub(super) fn next_picks(&mut self, picks: &mut Vec<Pick>) -> Result<Option<Head>> {
        let mut ids = std::mem::take(&mut self.ids);
        let head = self.next(&mut ids, picks)?;
        for &id in &ids {
            let (chunk, nth) = self.directory.place_in_chunk(id).ok_or_else(|| gone(id))?;
            picks.push(Pick { chunk, nth, group: 0, alone: false });
        }
        self.ids = ids;
        Ok(head)
    }

    /// Replaces `ids` and `picks` with the samples of the next batch: they are in `picks` if the order visits whole
    /// chunks, else in `ids`.
    fn next(&mut self, ids: &mut Vec<SampleId>, picks: &mut Vec<Pick>) -> Result<Option<Head>> {
        ids.clear();
        picks.clear();
        if let Some(fed) = &mut self.fed {
            return fed.next(&mut self.order, |order, directory, placed| {
                let positions = placed.iter().map(|placed| placed.position);
                if !order.is_chunked() {
                    return order.ids(directory, positions, ids);
                }
                order.picks(positions, picks);
                for (pick, placed) in picks.iter_mut().zip(placed) {
                    pick.alone = placed.alone;
                }
            });
        }
        if self.budgeted.is_some() {
            return self.next_dealt(ids, picks);
        }
        let Stream { order, shares, walk, .. } = self;
        let Some(taken) = walk.next_fixed() else { return Ok(None) };
        let FixedBatch { head, positions, shard, batch, is_partly_dropped } = taken;
        let (order, directory) = order.enter(head.epoch)?;
        match shares {
            Shares::Aligned(aligner) if !is_partly_dropped => {
                order.aligned_picks(directory, aligner, &shard, batch, picks);
            }
            Shares::Local(by_node) if !is_partly_dropped => {
                let batch = (batch, walk.batch_size);
                if order.is_chunked() {
                    order.local_picks(by_node, &shard, batch, picks);
                } else {
                    order.local_ids(directory, by_node, &shard, batch, ids);
                }
            }
            Shares::Aligned(_) => {
                order.picks(positions, picks);
                for pick in picks {
                    let own = order.aligned_samples_in_group(&shard, pick.group, pick.chunk);
                    pick.alone = !own.contains(&pick.nth);
                }
            }
            _ if order.is_chunked() => order.picks(positions, picks),
            _ => order.ids(directory, positions, ids),
        }
        Ok(Some(head))
    }

    /// The lane of `group`, a group of the current epoch.
    pub(super) fn lane_of(&self, group: u32) -> u32 {
        self.order.current.as_ref().map_or(0, |order| order.lane_of(group))
    }

    /// The samples of `chunk` in `group`, a group of the current epoch, that this rank reads together.
    pub(super) fn samples_in_group(&self, group: u32, chunk: u32) -> Range<u32> {
        let Some(order) = &self.order.current else { return 0..0 };
        match (&self.shares, self.walk.shard()) {
            (Shares::Aligned(_), Some(shard)) => {
                order.aligned_samples_in_group(shard, group, chunk)
            }
            _ => order.samples_in_group(group, chunk),
        }
    }

    /// Appends the samples of the next batch by budget to `ids`, or to `picks` if the order visits whole chunks.
    fn next_dealt(
        &mut self,
        ids: &mut Vec<SampleId>,
        picks: &mut Vec<Pick>,
    ) -> Result<Option<Head>> {
        let Stream { walk, order, budgeted, .. } = self;
        let Some(budgeted) = budgeted else { return Ok(None) };
        let Budgeted { lengths, ids: of_ids, picks: of_picks, layouts } = &mut **budgeted;
        let sink = layouts.as_ref();
        walk.next_dealt(|epoch, shard, place| {
            let (order, directory) = order.enter(epoch)?;
            let at = (epoch, shard, place);
            let len = order.len();
            if order.is_chunked() {
                let mut draw = |range: Range<u64>, picks: &mut Vec<Pick>, tokens: &mut Vec<u32>| {
                    let start = picks.len();
                    order.picks(range, picks);
                    append_tokens(&picks[start..], tokens, |pick| lengths.in_chunk(pick))
                };
                return of_picks.next(sink, at, len, &mut draw, picks);
            }
            let mut draw = |range: Range<u64>, ids: &mut Vec<SampleId>, tokens: &mut Vec<u32>| {
                let start = ids.len();
                order.ids(directory, range, ids);
                append_tokens(&ids[start..], tokens, |&id| lengths.of(id))
            };
            of_ids.next(sink, at, len, &mut draw, ids)
        })
    }
}

impl Shares {
    fn new(options: &LoaderOptions, order: &OrderSpec) -> Result<Shares> {
        let refused = |text: &'static str, hint| Err(Error::invalid(text, hint));
        match options.sharding {
            Sharding::Strided => Ok(Shares::Strided),
            Sharding::Aligned if order.kind.lanes_and_group().is_some() => {
                Ok(Shares::Aligned(Aligner::default()))
            }
            Sharding::Aligned => refused(
                "aligned shares are shares of whole chunks, which only a grouped order goes through",
                "take the grouped order, or strided shares",
            ),
            Sharding::Local if order.kind.world_size().is_some() => refused(
                "this order gives each rank samples of its own, which local shares would give to others",
                "take the global or the grouped order, or strided shares",
            ),
            Sharding::Local => Ok(Shares::Local(ByNode::new(locality_of(options)?))),
        }
    }
}

/// The nodes of ranks and chunks, for local shares.
fn locality_of(options: &LoaderOptions) -> Result<Arc<Locality>> {
    let Some(locality) = &options.locality else {
        let text =
            "local shares go to the nodes that hold the samples, and no node is known to hold any";
        return Err(Error::invalid(text, "name the job's peers, or take strided shares"));
    };
    let ranks = locality.num_ranks();
    let world_size = options.world_size;
    if !world_size.is_multiple_of(ranks) {
        let text =
            format!("{ranks} ranks have joined as peers, and the world size is {world_size}");
        let hint = "local shares need one rank for each peer, or equally many processes";
        return Err(Error::invalid(text, hint));
    }
    Ok(Arc::clone(locality))
}

/// The positions of one epoch of a source that one span of a mixture needs.
pub(super) struct Piece {
    pub(super) epoch: Epoch,
    pub(super) positions: Vec<Placed>,
}

/// A position of a source's epoch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Placed {
    pub(super) position: u64,
    /// Its sample is read alone, since another rank reads its chunk.
    pub(super) alone: bool,
}

/// The batches that a source was fed with.
#[derive(Default)]
pub(super) struct Fed {
    pub(super) pieces: VecDeque<Piece>,
    /// Empty lists of positions, for new pieces.
    pub(super) free: Vec<Vec<Placed>>,
}

impl Fed {
    /// The next batch: calls `visit` with its positions and the order of its epoch.
    fn next(
        &mut self,
        order: &mut RunOrder,
        visit: impl FnOnce(&mut EpochOrder, &Directory, &[Placed]),
    ) -> Result<Option<Head>> {
        let Some(Piece { epoch, mut positions }) = self.pieces.pop_front() else { return Ok(None) };
        let (order, directory) = order.enter(epoch)?;
        visit(order, directory, &positions);
        positions.clear();
        self.free.push(positions);
        // Chunks of the next piece may belong to another epoch.
        Ok(Some(Head { epoch, ends_epoch: true, after: (epoch, 0), place: None, left: 0 }))
    }
}
