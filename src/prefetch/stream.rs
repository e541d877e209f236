//! Divides an order into batches: epoch after epoch, this rank's positions.

use std::ops::Range;
use std::sync::Arc;

use crate::directory::Directory;
use crate::error::{Error, ErrorKind, Result};
use crate::order::budget::Budget;
use crate::order::weighted::{Weights, WeightsError};
use crate::order::{
    Aligner, ByNode, EpochOrder, GlobalBatch, Locality, OrderSpec, Pick, Positions, Shard,
    Sharding, State, Tail,
};
use crate::units::{Epoch, SampleId};

use super::LoaderOptions;
use super::budgeted::{Dealing, TokenLengths, most_empty_epochs, order_of};
use super::fed::{Fed, Piece, Placed};
use super::head::Head;

/// The batches that are still to be planned.
pub(crate) struct Stream {
    directory: Arc<Directory>,
    spec: OrderSpec,
    shard: Shard,
    shares: Shares,
    aligned: Vec<Pick>,
    ids: Vec<SampleId>,
    batch_size: u64,
    drop_short: bool,
    epochs: Range<u64>,
    /// Positions of the first epoch that all ranks had consumed before.
    consumed: u64,
    current: Option<Current>,
    /// Epochs without a batch for this rank, in a row.
    empty_epochs: u64,
    /// The order of the previous epoch, whose memory the next one reuses.
    free_order: Option<EpochOrder>,
    /// The number of batches that it may still return.
    left: u64,
    /// The weights that a weighted order draws by.
    weights: Option<Arc<Weights>>,
    /// How batches are cut, unless they have `batch_size` samples.
    budget: Option<(Arc<Budget>, TokenLengths)>,
    /// The source of positions in a mixture, instead of the order.
    fed: Option<Box<Fed>>,
}

/// How the shares of batches are computed.
#[derive(Clone)]
enum Shares {
    /// Every W-th position.
    Strided,
    Aligned(Aligner),
    Local(ByNode),
}

/// The current epoch.
#[derive(Clone)]
struct Current {
    order: EpochOrder,
    shard: Shard,
    rest: Positions,
    taken: u64,
    /// Batches by a budget, instead of `rest`.
    dealing: Option<Dealing>,
}

/// The positions of a batch.
struct BatchPositions {
    /// Every W-th position.
    positions: Positions,
    /// The global batch to divide instead, unless shares are strided.
    shared: Option<(Shard, GlobalBatch)>,
}

impl Stream {
    /// The state in which a run with these options begins. Its order is the run's: it has a number
    /// of lanes also if the options leave that open.
    ///
    /// # Errors
    /// `InvalidArgument`, `Stale`: the state to resume from does not fit the image or the
    /// options.
    pub(crate) fn start_state(directory: &Directory, options: &LoaderOptions) -> Result<State> {
        let image = directory.uuid().0;
        let generation = directory.generation();
        let view = directory.view().map(|mark| mark.hash);
        let Some(state) = &options.resume else {
            let start = State::start(image, generation, options.order.started(options.world_size));
            let start = State { epoch: Epoch(options.epochs.start), ..start };
            return Ok(start.of_view(view).by_budget(options.budget.clone()));
        };
        state.check_budget(options.budget.as_deref())?;
        let len = options.epoch_len(directory.num_live());
        state.check((image, view), generation, &options.order, options.world_size, len)?;
        Ok(state.clone())
    }

    pub(crate) fn new(
        directory: Arc<Directory>,
        options: &LoaderOptions,
        start: &State,
    ) -> Result<Stream> {
        if options.batch_size == 0 {
            let text = "a batch has at least one sample";
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let shard = Shard::new(options.rank, options.world_size, options.tail)?;
        let shares = Shares::new(options, &start.order)?;
        if let Some(world_size) = options.order.kind.world_size()
            && (world_size == 0 || !options.world_size.is_multiple_of(world_size))
        {
            // A multiple: several processes share the batches of each rank.
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
            return Err(WeightsError::Len { given: weighed, samples }.into());
        }
        let lengths = match &options.budget {
            Some(budget) => Some(TokenLengths::new(&directory, budget, options.too_long)?),
            None => None,
        };
        Ok(Stream {
            budget: options.budget.clone().zip(lengths),
            directory,
            spec: start.order,
            shard,
            shares,
            aligned: Vec::new(),
            ids: Vec::new(),
            batch_size: options.batch_size as u64,
            drop_short: options.drop_short,
            epochs: start.epoch.0..options.epochs.end,
            consumed: start.consumed,
            current: None,
            empty_epochs: 0,
            free_order: None,
            left: u64::MAX,
            weights: options.weights.clone(),
            fed: None,
        })
    }

    /// A source's part of a mixture: what [`Stream::feed`] gives it, along `spec`.
    pub(super) fn fed(directory: Arc<Directory>, spec: OrderSpec) -> Stream {
        let fed = Some(Box::new(Fed::new(Arc::clone(&directory), spec)));
        Stream {
            directory,
            spec,
            shard: Shard { rank: 0, world_size: 1, consumed: 0, tail: Tail::Keep },
            shares: Shares::Strided,
            aligned: Vec::new(),
            ids: Vec::new(),
            batch_size: 1,
            drop_short: false,
            epochs: 0..0,
            consumed: 0,
            current: None,
            empty_epochs: 0,
            free_order: None,
            left: u64::MAX,
            weights: None,
            budget: None,
            fed,
        }
    }

    /// Appends a batch to a stream that is fed.
    pub(super) fn feed(&mut self, piece: Piece) {
        if let Some(fed) = &mut self.fed {
            fed.push(piece);
        }
    }

    /// An empty list of positions, for [`Stream::feed`].
    pub(super) fn free_positions(&mut self) -> Vec<Placed> {
        self.fed.as_mut().map(|fed| fed.free_positions()).unwrap_or_default()
    }

    /// Returns whether its batches are fed to it.
    pub(super) fn is_fed(&self) -> bool {
        self.fed.is_some()
    }

    /// Returns whether a consumer that waits (`starving`) waits for whatever is to be read next. Streams are fed with
    /// the parts of the next span only when all parts of the span before were requested.
    pub(super) fn is_awaited(&self, starving: bool) -> bool {
        starving && self.is_fed()
    }

    /// Returns whether it was fed with batches that it has not returned yet.
    pub(super) fn has_pieces(&self) -> bool {
        self.fed.as_ref().is_some_and(|fed| fed.has_pieces())
    }

    /// The number of samples that a run with these options over epochs of `len` has for this rank from
    /// `start` on, counted independently of the stream. `None`: ranks have batches of different sizes.
    ///
    /// # Errors
    /// `InvalidArgument`: there is no such rank.
    pub(super) fn owed(len: u64, options: &LoaderOptions, start: &State) -> Result<Option<u64>> {
        if options.budget.is_some() && options.world_size > 1 {
            return Ok(None);
        }
        let shard = Shard::new(options.rank, options.world_size, options.tail)?;
        let batch_size = (options.batch_size as u64).max(1);
        let of_epoch = |shard: Shard| {
            let samples = shard.positions(len).remaining();
            let drops_short = options.drop_short && options.budget.is_none();
            if drops_short { samples / batch_size * batch_size } else { samples }
        };
        let epochs = options.epochs.end.saturating_sub(start.epoch.0);
        let Some(epochs_after) = epochs.checked_sub(1) else { return Ok(Some(0)) };
        let first = of_epoch(shard.after(start.consumed));
        Ok(Some(first.saturating_add(epochs_after.saturating_mul(of_epoch(shard)))))
    }

    /// Splits off the next batch as a stream of its own.
    pub(super) fn split_first(&mut self) -> Result<Stream> {
        if self.current.is_none() && !self.is_done() {
            self.enter_epoch()?;
        }
        let first = Stream {
            directory: Arc::clone(&self.directory),
            spec: self.spec,
            shard: self.shard,
            shares: self.shares.clone(),
            aligned: Vec::new(),
            ids: Vec::new(),
            batch_size: self.batch_size,
            epochs: self.epochs.clone(),
            consumed: self.consumed,
            current: self.current.clone(),
            empty_epochs: 0,
            free_order: None,
            drop_short: self.drop_short,
            left: 1,
            weights: self.weights.clone(),
            budget: None, // see `reads_first_batch_apart`
            fed: None,
        };
        self.next_taken()?;
        Ok(first)
    }

    /// Returns whether all batches have been planned.
    pub(super) fn is_done(&self) -> bool {
        self.epochs.is_empty() || self.left == 0
    }

    /// Replaces `ids` by the ids of the next batch.
    pub(crate) fn next_ids(&mut self, ids: &mut Vec<SampleId>) -> Result<Option<Head>> {
        ids.clear();
        if let Some(fed) = &mut self.fed {
            return Ok(fed.next_ids(ids)?);
        }
        if self.budget.is_some() {
            let mut picks = std::mem::take(&mut self.aligned);
            picks.clear();
            let head = self.next_dealt(ids, &mut picks);
            ids.extend(picks.iter().map(|pick| self.directory.id_in_chunk(pick.chunk, pick.nth)));
            self.aligned = picks;
            return head;
        }
        let Some((head, taken)) = self.next_taken()? else { return Ok(None) };
        let Stream { directory, current: Some(current), shares, aligned, batch_size, .. } = self
        else {
            return Ok(Some(head));
        };
        let order = &mut current.order;
        match (taken.shared, shares) {
            (Some((shard, batch)), Shares::Aligned(aligner)) => {
                aligned.clear();
                order.aligned_picks(&**directory, aligner, &shard, batch, aligned);
                ids.extend(aligned.iter().map(|pick| directory.id_in_chunk(pick.chunk, pick.nth)));
            }
            (Some((shard, batch)), Shares::Local(by_node)) => {
                order.local_ids(&**directory, by_node, &shard, (batch, *batch_size), ids);
            }
            _ => order.ids(&**directory, taken.positions, ids),
        }
        Ok(Some(head))
    }

    /// Replaces `picks` by the samples of the next batch as samples of chunks, whatever the order.
    pub(super) fn next_places(&mut self, picks: &mut Vec<Pick>) -> Result<Option<Head>> {
        if self.spec.kind.lanes_and_group().is_some() {
            return self.next_picks(picks);
        }
        picks.clear();
        let mut ids = std::mem::take(&mut self.ids);
        let head = self.next_ids(&mut ids)?;
        for &id in &ids {
            let (chunk, nth) = self.directory.place_in_chunk(id).ok_or_else(|| {
                Error::new(ErrorKind::NotFound, "the order names a sample that is gone").sample(id)
            })?;
            picks.push(Pick { chunk, nth, group: 0, alone: false });
        }
        self.ids = ids;
        Ok(head)
    }

    /// Replaces `picks` by the picks of the next batch of a grouped order.
    pub(super) fn next_picks(&mut self, picks: &mut Vec<Pick>) -> Result<Option<Head>> {
        picks.clear();
        if let Some(fed) = &mut self.fed {
            return Ok(fed.next_picks(picks)?);
        }
        if self.budget.is_some() {
            return self.next_dealt(&mut Vec::new(), picks);
        }
        let Some((head, taken)) = self.next_taken()? else { return Ok(None) };
        let Stream { directory, current: Some(current), shares, batch_size, .. } = self else {
            return Ok(Some(head));
        };
        match (taken.shared, shares) {
            (Some((shard, batch)), Shares::Aligned(aligner)) => {
                current.order.aligned_picks(&**directory, aligner, &shard, batch, picks);
            }
            (Some((shard, batch)), Shares::Local(by_node)) => {
                current.order.local_picks(by_node, &shard, (batch, *batch_size), picks);
            }
            (None, Shares::Aligned(_)) => {
                let Current { order, shard, .. } = current;
                order.picks(taken.positions, picks);
                for pick in picks {
                    let own = order.aligned_samples_in_group(shard, pick.group, pick.chunk);
                    pick.alone = !own.contains(&pick.nth);
                }
            }
            _ => current.order.picks(taken.positions, picks),
        }
        Ok(Some(head))
    }

    /// The lane of `group`, a group of the current epoch.
    pub(super) fn lane_of(&self, group: u32) -> u32 {
        self.order().map_or(0, |order| order.lane_of(group))
    }

    /// The samples of `chunk` that belong to `group`, a group of the current epoch, and that this rank reads together.
    pub(super) fn samples_in_group(&self, group: u32, chunk: u32) -> Range<u32> {
        if let (Shares::Aligned(_), Some(Current { order, shard, .. })) =
            (&self.shares, &self.current)
        {
            return order.aligned_samples_in_group(shard, group, chunk);
        }
        self.order().map_or(0..0, |order| order.samples_in_group(group, chunk))
    }

    /// The order of the current epoch.
    fn order(&self) -> Option<&EpochOrder> {
        match &self.fed {
            Some(fed) => fed.order(),
            None => self.current.as_ref().map(|current| &current.order),
        }
    }

    /// Appends the samples of the next batch by budget to `ids`, or to `picks` if the order visits whole chunks.
    fn next_dealt(
        &mut self,
        ids: &mut Vec<SampleId>,
        picks: &mut Vec<Pick>,
    ) -> Result<Option<Head>> {
        while !self.is_done() {
            if self.current.is_none() {
                self.enter_epoch()?;
            }
            let Stream { current: Some(current), budget: Some((_, lengths)), .. } = self else {
                return Ok(None);
            };
            let Current { order, dealing: Some(dealing), taken, .. } = current else {
                return Ok(None);
            };
            let epoch = order.epoch();
            let len = order.len();
            if let Some(dealt) = dealing.next(order, lengths, ids, picks)? {
                *taken += 1;
                let ends_epoch = dealt.ends_epoch;
                let after =
                    if ends_epoch { (Epoch(epoch.0 + 1), 0) } else { (epoch, dealt.consumed) };
                self.left -= 1;
                return Ok(Some(Head { epoch, ends_epoch, after }));
            }
            let is_empty = *taken == 0 && self.consumed == 0;
            self.empty_epochs = if is_empty { self.empty_epochs + 1 } else { 0 };
            if self.empty_epochs >= most_empty_epochs(len) {
                self.epochs.start = self.epochs.end;
                return Ok(None);
            }
            self.end_epoch();
        }
        Ok(None)
    }

    fn end_epoch(&mut self) {
        self.epochs.start += 1;
        self.consumed = 0;
        self.free_order = self.current.take().map(|current| current.order);
    }

    fn next_taken(&mut self) -> Result<Option<(Head, BatchPositions)>> {
        let batch_size = self.batch_size;
        let drop_short = self.drop_short;
        let is_strided = matches!(self.shares, Shares::Strided);
        while !self.is_done() {
            let current = match &mut self.current {
                Some(current) => current,
                None => self.enter_epoch()?,
            };
            if current.rest.remaining() == 0 {
                if current.taken == 0 && self.consumed == 0 {
                    self.epochs.start = self.epochs.end; // no epoch has anything for this rank
                    return Ok(None);
                }
                self.end_epoch();
                continue;
            }
            let batch = current.shard.global_batch(current.order.len(), current.taken, batch_size);
            // Only some ranks read this tail, so there is no whole global batch to divide.
            let is_partly_dropped = drop_short && !current.shard.is_whole(batch, batch_size);
            let shared = (!is_strided && !is_partly_dropped).then_some((current.shard, batch));
            let positions = current.rest.split_front(batch_size);
            current.taken += positions.remaining();
            let len = current.order.len();
            let epoch = current.order.epoch();
            let consumed = current.shard.consumed_after(len, current.taken);
            let ends_epoch = current.rest.remaining() == 0;
            self.left -= 1;
            let after = if ends_epoch { (Epoch(epoch.0 + 1), 0) } else { (epoch, consumed) };
            return Ok(Some((
                Head { epoch, ends_epoch, after },
                BatchPositions { positions, shared },
            )));
        }
        Ok(None)
    }

    fn enter_epoch(&mut self) -> Result<&mut Current> {
        let spec = &self.spec;
        let epoch = Epoch(self.epochs.start);
        let directory = &*self.directory;
        let order = match self.free_order.take() {
            Some(mut order) => order.begin_epoch(spec, epoch, directory).map(|()| order)?,
            None => order_of(spec, epoch, directory, self.weights.as_ref())?,
        };
        let shard = self.shard.after(self.consumed);
        let mut rest = shard.positions(order.len());
        if self.drop_short {
            rest = rest.split_front(rest.remaining() / self.batch_size * self.batch_size);
        }
        let dealing = self.budget.as_ref();
        let dealing = dealing.map(|(budget, _)| Dealing::new(budget, spec.seed, &order, shard));
        Ok(self.current.insert(Current { order, shard, rest, taken: 0, dealing }))
    }
}

impl Shares {
    fn new(options: &LoaderOptions, order: &OrderSpec) -> Result<Shares> {
        let refused = |text: &'static str, hint: &'static str| {
            Err(Error::new(ErrorKind::InvalidArgument, text).hint(hint))
        };
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

/// The locality of ranks and chunks, for local shares.
fn locality_of(options: &LoaderOptions) -> Result<Arc<Locality>> {
    let Some(locality) = &options.locality else {
        let text =
            "local shares go to the nodes that hold the samples, and no node is known to hold any";
        let hint = "name the job's peers, or take strided shares";
        return Err(Error::new(ErrorKind::InvalidArgument, text).hint(hint));
    };
    let ranks = locality.num_ranks();
    let world_size = options.world_size;
    if !world_size.is_multiple_of(ranks) {
        let text =
            format!("{ranks} ranks have joined as peers, and the world size is {world_size}");
        let hint = "local shares need one rank for each peer, or equally many processes";
        return Err(Error::new(ErrorKind::InvalidArgument, text).hint(hint));
    }
    Ok(Arc::clone(locality))
}
