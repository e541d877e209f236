//! The positions of a rank in an order or a mixture, batch by batch.

use std::ops::Range;

use crate::error::{Result, invalid};
use crate::order::budget::{Dealt, RowPlace};
use crate::order::{GlobalBatch, Positions, Shard, State};
use crate::units::Epoch;

use super::LoaderOptions;

/// The batches of a rank that are still to be planned.
pub(super) struct Walk {
    shard: Shard,
    /// The number of positions of an epoch.
    len: u64,
    pub(super) batch_size: u64,
    drop_short: bool,
    epochs: Range<u64>,
    /// The positions of the current epoch that all ranks had consumed when the walk began; 0 in later epochs.
    consumed: u64,
    /// The place of these positions, if batches are rows of tokens.
    place: Option<RowPlace>,
    current: Option<CurrentEpoch>,
    /// The number of consecutive epochs without a batch for this rank.
    empty_epochs: u64,
}

/// The walk through one epoch.
struct CurrentEpoch {
    /// The rank's share of the epoch.
    shard: Shard,
    /// The positions of the rank that are still to come, without those that are dropped.
    rest: Positions,
    /// The number of positions of the rank, dropped ones included.
    all: u64,
    /// The number of samples that the walk has returned; with a budget, the number of batches.
    taken: u64,
}

/// A batch with a fixed number of samples.
pub(super) struct FixedBatch {
    pub(super) head: Head,
    /// This rank's positions: every W-th of the global batch (W: world size).
    pub(super) positions: Positions,
    pub(super) shard: Shard,
    pub(super) batch: GlobalBatch,
    /// Set if only some ranks read this tail: it is no whole global batch that could be divided.
    pub(super) is_partly_dropped: bool,
}

impl Walk {
    /// The walk of a run with these options through epochs of `len` positions, from `start` on.
    ///
    /// # Errors
    /// `InvalidArgument`: the batch size is 0; the rank does not exist.
    pub(super) fn new(len: u64, options: &LoaderOptions, start: &State) -> Result<Walk> {
        if options.batch_size == 0 {
            return Err(invalid("a batch has at least one sample"));
        }
        let shard = options.shard()?;
        Ok(Walk {
            shard,
            len,
            batch_size: options.batch_size as u64,
            drop_short: options.drop_short,
            epochs: start.epoch.0..options.epochs.end,
            consumed: start.consumed,
            place: start.place,
            current: None,
            empty_epochs: 0,
        })
    }

    /// Returns whether there are no more batches. After the last batch, only the call that returns `None` sets this.
    pub(super) fn is_done(&self) -> bool {
        self.epochs.is_empty()
    }

    /// The rank's share of the current epoch.
    pub(super) fn shard(&self) -> Option<&Shard> {
        self.current.as_ref().map(|current| &current.shard)
    }

    /// The current epoch; begins it if necessary.
    fn current(&mut self) -> &mut CurrentEpoch {
        self.current.get_or_insert_with(|| {
            let shard = self.shard.after(self.consumed);
            let mut rest = shard.positions(self.len);
            let all = rest.remaining();
            if self.drop_short {
                rest = rest.split_front(shard.in_whole_batches(all, self.batch_size));
            }
            CurrentEpoch { shard, rest, all, taken: 0 }
        })
    }

    /// Moves to the start of the next epoch.
    fn end_epoch(&mut self) {
        self.epochs.start += 1;
        self.consumed = 0;
        self.place = None;
        self.current = None;
    }

    /// The next batch of a fixed number of samples.
    pub(super) fn next_fixed(&mut self) -> Option<FixedBatch> {
        let Walk { len, batch_size, drop_short, .. } = *self;
        while !self.is_done() {
            let epoch = Epoch(self.epochs.start);
            let current = self.current();
            if current.rest.remaining() == 0 {
                if current.taken == 0 && self.consumed == 0 {
                    self.epochs.start = self.epochs.end; // no epoch has anything for this rank
                    return None;
                }
                self.end_epoch();
                continue;
            }
            let shard = current.shard;
            let batch = shard.global_batch(len, current.taken, batch_size);
            let is_partly_dropped = drop_short && !shard.is_whole(batch, batch_size);
            let positions = current.rest.split_front(batch_size);
            current.taken += positions.remaining();
            let ends_epoch = current.rest.remaining() == 0;
            let consumed = shard.consumed_after(len, current.taken);
            let left = current.all - current.taken;
            let head = Head { left, ..Head::new(epoch, ends_epoch, consumed) };
            return Some(FixedBatch { head, positions, shard, batch, is_partly_dropped });
        }
        None
    }

    /// The next batch by a budget. `deal` returns the next batch of an epoch for a share that begins at a place, or
    /// `None` if the share has no more batches.
    ///
    /// # Errors
    /// Errors of `deal`.
    pub(super) fn next_dealt(
        &mut self,
        mut deal: impl FnMut(Epoch, Shard, Option<RowPlace>) -> Result<Option<Dealt>>,
    ) -> Result<Option<Head>> {
        while !self.is_done() {
            let epoch = Epoch(self.epochs.start);
            let place = self.place;
            let current = self.current();
            if let Some(dealt) = deal(epoch, current.shard, place)? {
                current.taken += 1;
                let Dealt { consumed, ends_epoch, place } = dealt;
                return Ok(Some(Head { place, ..Head::new(epoch, ends_epoch, consumed) }));
            }
            let is_empty = current.taken == 0 && self.consumed == 0;
            self.empty_epochs = if is_empty { self.empty_epochs + 1 } else { 0 };
            if self.empty_epochs >= most_empty_epochs(self.len) {
                self.epochs.start = self.epochs.end;
                return Ok(None);
            }
            self.end_epoch();
        }
        Ok(None)
    }
}

/// The number of consecutive epochs of `len` samples without a batch for a rank after which its run ends. Such an epoch
/// has fewer batches than ranks. The number of batches varies, so a later epoch may have a batch for the rank; but
/// cutting an epoch into batches takes some 100 ns a sample.
fn most_empty_epochs(len: u64) -> u64 {
    ((1 << 26) / len.max(1)).clamp(16, 1000)
}

/// The position of a batch in the run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Head {
    pub(crate) epoch: Epoch,
    /// True for the last batch of its epoch on this rank.
    pub(crate) ends_epoch: bool,
    /// The state of the run once all ranks have consumed the batch: epoch, and positions of that epoch.
    pub(crate) after: (Epoch, u64),
    /// The place of that position, if batches are rows of tokens.
    pub(crate) place: Option<RowPlace>,
    /// The number of samples that the rank, or all ranks of a node together, have behind the batch in its epoch,
    /// dropped ones included. Always 0 for batches by a budget.
    pub(crate) left: u64,
}

impl Head {
    /// The head of a batch of `epoch` that ends after `consumed` positions.
    pub(super) fn new(epoch: Epoch, ends_epoch: bool, consumed: u64) -> Head {
        let after = if ends_epoch { (Epoch(epoch.0 + 1), 0) } else { (epoch, consumed) };
        Head { epoch, ends_epoch, after, place: None, left: 0 }
    }
}
