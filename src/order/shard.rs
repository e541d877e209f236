//! What one rank takes of an epoch, and how it is cut into batches.

use serde::{Deserialize, Serialize};

use super::OrderError;

/// The part of an epoch's sequence that one rank takes: DistributedSampler's rule.
///
/// Of the positions from `consumed` on, rank r of W takes each p with (p - `consumed`) mod W = r. So
/// the samples that all ranks take together follow the sequence, whatever W is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// Which rank, from 0.
    pub rank: u32,
    /// How many ranks there are.
    pub world_size: u32,
    /// Positions of the epoch that all ranks together had consumed when the run (re)started.
    pub consumed: u64,
    /// What happens to a tail that does not give each rank the same number.
    pub tail: Tail,
}

/// What happens where the rest of an epoch is no multiple of the world size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tail {
    /// Every sample is read; some ranks have one more than others.
    #[default]
    Keep,
    /// The tail is left out: fewer samples than there are ranks.
    DropLast,
    /// The epoch's first samples are read once more, so that all ranks have equally many.
    Pad,
}

/// How a global batch, the positions that all ranks together take at a step, is shared out. Its set of
/// samples, and how many each rank gets, are the same either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sharding {
    /// Every W-th position: DistributedSampler's rule.
    #[default]
    Strided,
    /// Whole chunks to one rank, as far as equal shares allow: for grouped order where the number of lanes
    /// is no multiple of the world size. See [`Aligner`](super::Aligner).
    Aligned,
}

/// A global batch: what all ranks together take at a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GlobalBatch {
    /// Its first position.
    pub first: u64,
    /// Its positions; those past the epoch's end repeat the first samples.
    pub count: u64,
}

impl Shard {
    /// Rank `rank` of `world_size`, from the start of an epoch.
    ///
    /// # Errors
    /// No such rank.
    pub fn new(rank: u32, world_size: u32, tail: Tail) -> Result<Shard, OrderError> {
        if world_size == 0 {
            return Err(OrderError::EmptyWorld);
        }
        if rank >= world_size {
            return Err(OrderError::Rank { rank, world_size });
        }
        Ok(Shard { rank, world_size, consumed: 0, tail })
    }

    /// The same rank where all ranks have consumed `consumed` positions of the epoch.
    #[must_use]
    pub fn after(self, consumed: u64) -> Shard {
        Shard { consumed, ..self }
    }

    /// The positions that the rank takes of an epoch of `len`, first to last.
    pub fn positions(&self, len: u64) -> Positions {
        let (rank, world_size) = (u64::from(self.rank), u64::from(self.world_size.max(1)));
        let rest = len.saturating_sub(self.consumed);
        let count = match self.tail {
            Tail::Keep => rest.saturating_sub(rank).div_ceil(world_size),
            Tail::DropLast => rest / world_size,
            Tail::Pad => rest.div_ceil(world_size),
        };
        // A state may say that anything was consumed: past the end there is nothing to take.
        Positions::new(self.consumed.saturating_add(rank), world_size, count)
    }

    /// The global batch that begins once each rank has taken `taken` samples, where a rank's batch is of
    /// `batch_size`: empty past the end.
    pub fn global_batch(&self, len: u64, taken: u64, batch_size: u64) -> GlobalBatch {
        let world_size = u64::from(self.world_size.max(1));
        let rest = len.saturating_sub(self.consumed);
        let all = match self.tail {
            Tail::Keep => rest,
            Tail::DropLast => rest / world_size * world_size,
            Tail::Pad => rest.next_multiple_of(world_size),
        };
        let before = taken.saturating_mul(world_size);
        let count = all.saturating_sub(before).min(batch_size.saturating_mul(world_size));
        GlobalBatch { first: self.consumed.saturating_add(before), count }
    }

    /// Whether `batch` has `batch_size` positions for each rank.
    pub fn is_whole(&self, batch: GlobalBatch, batch_size: u64) -> bool {
        batch.count / u64::from(self.world_size.max(1)) >= batch_size
    }

    /// Positions of an epoch of `len` that all ranks have consumed once each has taken `taken` of its
    /// own; `len` once they are through, also with a dropped or padded tail.
    pub fn consumed_after(&self, len: u64, taken: u64) -> u64 {
        let each = self.positions(len).count;
        let taken_by_all = taken.saturating_mul(self.world_size.into());
        if taken >= each { len } else { len.min(self.consumed.saturating_add(taken_by_all)) }
    }
}

/// Positions of an epoch, evenly spaced: a rank's share, or a batch of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Positions {
    next: u64,
    step: u64,
    count: u64,
}

impl Positions {
    /// `count` positions: `first`, then each `step` further.
    pub const fn new(first: u64, step: u64, count: u64) -> Positions {
        Positions { next: first, step, count }
    }

    /// How many there are.
    pub fn remaining(&self) -> u64 {
        self.count
    }

    /// Takes the first `count` of them, or all that are left: the next batch.
    #[must_use]
    pub fn split_front(&mut self, count: u64) -> Positions {
        let front = Positions { count: count.min(self.count), ..*self };
        self.next = self.next.saturating_add(front.count.saturating_mul(self.step));
        self.count -= front.count;
        front
    }
}

impl Iterator for Positions {
    type Item = u64;

    #[inline]
    fn next(&mut self) -> Option<u64> {
        self.count = self.count.checked_sub(1)?;
        let position = self.next;
        self.next = self.next.saturating_add(self.step);
        Some(position)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let count = usize::try_from(self.count).unwrap_or(usize::MAX);
        (count, Some(count))
    }
}

impl ExactSizeIterator for Positions {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_a_state_says_was_consumed_there_is_nothing_to_take_past_the_end() {
        for tail in [Tail::Keep, Tail::DropLast, Tail::Pad] {
            for consumed in [1000, 1001, u64::MAX - 1, u64::MAX] {
                let shard = Shard::new(3, 4, tail).unwrap().after(consumed);
                let mut positions = shard.positions(1000);
                assert_eq!((positions.remaining(), positions.next()), (0, None));
                assert_eq!(shard.consumed_after(1000, u64::MAX), 1000);
                assert_eq!(shard.consumed_after(1000, 0), 1000);
            }
        }
        let nobody = Shard { rank: 0, world_size: 0, consumed: 0, tail: Tail::Keep };
        assert_eq!(nobody.positions(5).count(), 5, "a world has one rank at least");
        let mut far = Positions::new(u64::MAX - 1, u64::MAX, u64::MAX);
        assert_eq!(far.split_front(3).collect::<Vec<_>>(), [u64::MAX - 1, u64::MAX, u64::MAX]);
        assert_eq!(far.next(), Some(u64::MAX));
    }
}
