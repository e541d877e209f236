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
        let (rank, world_size) = (u64::from(self.rank), u64::from(self.world_size));
        let rest = len.saturating_sub(self.consumed);
        let count = match self.tail {
            Tail::Keep => rest.saturating_sub(rank).div_ceil(world_size),
            Tail::DropLast => rest / world_size,
            Tail::Pad => rest.div_ceil(world_size),
        };
        Positions::new(self.consumed + rank, world_size, count)
    }

    /// Positions of an epoch of `len` that all ranks have consumed once each has taken `taken` of its
    /// own; `len` once they are through, also with a dropped or padded tail.
    pub fn consumed_after(&self, len: u64, taken: u64) -> u64 {
        let each = self.positions(len).count;
        let world_size = u64::from(self.world_size);
        if taken >= each { len } else { len.min(self.consumed + taken * world_size) }
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
        self.next += front.count * self.step;
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
        self.next += self.step;
        Some(position)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let count = usize::try_from(self.count).unwrap_or(usize::MAX);
        (count, Some(count))
    }
}

impl ExactSizeIterator for Positions {}
