//! The share of one rank in an epoch, and its division into batches.

use serde::{Deserialize, Serialize};

use super::spec::EMPTY_WORLD;
use dlfs_base::error::{Result, ensure};

/// The share of one rank in an epoch: the rule of PyTorch's `DistributedSampler`.
///
/// Of the positions from `consumed` on, rank r of W takes each position p with (p - `consumed`) mod W = r. So all
/// ranks together take the samples in the order of the sequence, for any W.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// The rank, from 0.
    pub rank: u32,
    /// The number of ranks.
    pub world_size: u32,
    /// Positions of the epoch that all ranks together had consumed when the run started or resumed.
    pub consumed: u64,
    /// The treatment of a tail that the ranks cannot share equally.
    pub tail: Tail,
    /// The number of ranks that this share serves: 1, except in a node loader, where `rank` and `world_size` count
    /// *places* of `seats` ranks each. Place n of N serves the ranks n, n + N, n + 2N, ...; each of them takes every
    /// `seats`-th sample of the place.
    pub seats: u32,
}

/// The treatment of an epoch's end if the number of remaining samples is not a multiple of the world size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tail {
    /// Every sample is read; some ranks read one more than other ranks.
    #[default]
    Keep,
    /// The tail, which has fewer samples than there are ranks, is not read.
    DropLast,
    /// The first samples of the epoch are repeated, so that all ranks read equally many.
    Pad,
}

/// The rule by which ranks share a global batch. It changes neither the samples of the batch nor the number of
/// samples of each rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sharding {
    /// Each rank takes every W-th position (W: world size): the rule of `DistributedSampler`.
    #[default]
    Strided,
    /// One rank takes all samples of a chunk, or of a range of its slots, within equal shares. For grouped order,
    /// if the number of lanes is not a multiple of the world size. See [`Aligner`](super::Aligner).
    Aligned,
    /// Each rank takes samples that its own node holds, within equal shares. For runs whose nodes read from each
    /// other's caches. See [`ByNode`](super::ByNode).
    Local,
}

/// A global batch: the positions that all ranks together take in one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GlobalBatch {
    /// The first position.
    pub first: u64,
    /// The number of positions; those past the epoch's end repeat the first samples.
    pub count: u64,
}

impl Shard {
    /// The share of rank `rank` of `world_size`, from the start of an epoch.
    ///
    /// # Errors
    /// The rank does not exist, or the world size is 0.
    pub fn new(rank: u32, world_size: u32, tail: Tail) -> Result<Shard> {
        ensure(world_size > 0, || EMPTY_WORLD)?;
        ensure(rank < world_size, || {
            format!("rank {rank} of a world of {world_size}: ranks count from 0")
        })?;
        Ok(Shard { rank, world_size, consumed: 0, tail, seats: 1 })
    }

    /// The share of a place of `seats` ranks.
    #[must_use]
    pub fn of_seats(self, seats: u32) -> Shard {
        Shard { seats: seats.max(1), ..self }
    }

    /// The number of ranks of all places.
    pub fn num_ranks(&self) -> u64 {
        u64::from(self.world_size.max(1)) * u64::from(self.seats.max(1))
    }

    /// The ranks of this place.
    pub fn ranks(&self) -> impl Iterator<Item = u64> + use<> {
        (u64::from(self.rank)..self.num_ranks()).step_by(self.world_size.max(1) as usize)
    }

    /// The number of `samples` of the place that are read if a last batch that is whole on no rank is dropped.
    /// `batch_size` is that of the place.
    pub fn in_whole_batches(&self, samples: u64, batch_size: u64) -> u64 {
        let seats = u64::from(self.seats.max(1));
        let rest = samples % batch_size;
        // The first rank of the place takes the most samples of a batch.
        let is_whole_on_first = rest > (batch_size / seats).saturating_sub(1) * seats;
        if is_whole_on_first { samples } else { samples - rest }
    }

    /// The share of the same rank after all ranks have consumed `consumed` positions of the epoch.
    #[must_use]
    pub fn after(self, consumed: u64) -> Shard {
        Shard { consumed, ..self }
    }

    /// The positions of the rank in an epoch of `len`, in ascending order.
    pub fn positions(&self, len: u64) -> Positions {
        let rank = u64::from(self.rank);
        let world_size = u64::from(self.world_size.max(1));
        let rest = len.saturating_sub(self.consumed);
        let count = match self.tail {
            Tail::Keep => rest.saturating_sub(rank).div_ceil(world_size),
            Tail::DropLast => rest / self.num_ranks() * u64::from(self.seats.max(1)),
            Tail::Pad => rest.div_ceil(self.num_ranks()) * u64::from(self.seats.max(1)),
        };
        // `consumed` may come from a state file: past the end there are no positions.
        Positions::new(self.consumed.saturating_add(rank), world_size, count)
    }

    /// The global batch after each rank has taken `taken` samples, with batches of `batch_size` on each rank. Empty
    /// past the end.
    pub fn global_batch(&self, len: u64, taken: u64, batch_size: u64) -> GlobalBatch {
        let world_size = u64::from(self.world_size.max(1));
        let rest = len.saturating_sub(self.consumed);
        let all = match self.tail {
            Tail::Keep => rest,
            Tail::DropLast => rest / self.num_ranks() * self.num_ranks(),
            Tail::Pad => rest.next_multiple_of(self.num_ranks()),
        };
        let before = taken.saturating_mul(world_size);
        let count = all.saturating_sub(before).min(batch_size.saturating_mul(world_size));
        GlobalBatch { first: self.consumed.saturating_add(before), count }
    }

    /// Returns whether `batch` has `batch_size` positions for each rank.
    pub fn is_whole(&self, batch: GlobalBatch, batch_size: u64) -> bool {
        batch.count / u64::from(self.world_size.max(1)) >= batch_size
    }

    /// The number of positions of an epoch of `len` that all ranks have consumed after each has taken `taken`
    /// samples; `len` at the end, even if the tail is dropped or padded.
    pub fn consumed_after(&self, len: u64, taken: u64) -> u64 {
        let each = self.positions(len).count;
        let taken_by_all = taken.saturating_mul(self.world_size.into());
        if taken >= each { len } else { len.min(self.consumed.saturating_add(taken_by_all)) }
    }
}

/// Evenly spaced positions of an epoch: a rank's share, or a batch of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Positions {
    /// The first of the remaining positions.
    next: u64,
    /// The distance of neighbours.
    step: u64,
    /// The number of remaining positions.
    count: u64,
}

impl Positions {
    /// `count` positions, from `first` in steps of `step`.
    pub const fn new(first: u64, step: u64, count: u64) -> Positions {
        Positions { next: first, step, count }
    }

    /// The number of positions left.
    pub fn remaining(&self) -> u64 {
        self.count
    }

    /// Takes the first `count` positions, or all that are left.
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
    fn any_consumed_count_of_a_state_takes_nothing_past_the_end() {
        for tail in [Tail::Keep, Tail::DropLast, Tail::Pad] {
            for consumed in [1000, 1001, u64::MAX - 1, u64::MAX] {
                let shard = Shard::new(3, 4, tail).unwrap().after(consumed);
                let mut positions = shard.positions(1000);
                assert_eq!((positions.remaining(), positions.next()), (0, None));
                assert_eq!(shard.consumed_after(1000, u64::MAX), 1000);
                assert_eq!(shard.consumed_after(1000, 0), 1000);
            }
        }
        let nobody = Shard { rank: 0, world_size: 0, consumed: 0, tail: Tail::Keep, seats: 0 };
        assert_eq!(nobody.positions(5).count(), 5, "a world has one rank at least");
        let mut far = Positions::new(u64::MAX - 1, u64::MAX, u64::MAX);
        assert_eq!(far.split_front(3).collect::<Vec<_>>(), [u64::MAX - 1, u64::MAX, u64::MAX]);
        assert_eq!(far.next(), Some(u64::MAX));
    }
    #[test]
    fn a_place_reads_the_samples_of_its_ranks_and_deals_each_its_own() {
        for tail in [Tail::Keep, Tail::DropLast, Tail::Pad] {
            for (places, seats) in [(1, 1), (1, 4), (2, 3), (3, 2), (3, 5)] {
                for (len, consumed) in
                    [(0, 0), (1, 0), (7, 3), (60, 0), (61, 13), (89, 30), (90, 89)]
                {
                    check_place(tail, (places, seats), len, consumed);
                }
            }
        }
    }

    fn check_place(tail: Tail, (places, seats): (u32, u32), len: u64, consumed: u64) {
        for place in 0..places {
            let all = Shard::new(place, places, tail).unwrap().of_seats(seats).after(consumed);
            let what = format!("{all:?} of {len}");
            let read: Vec<u64> = all.positions(len).collect();
            let ranks: Vec<u64> = all.ranks().collect();
            assert_eq!(ranks.len(), seats as usize, "{what}");
            for (seat, &rank) in ranks.iter().enumerate() {
                let one = Shard::new(rank as u32, places * seats, tail).unwrap().after(consumed);
                let own: Vec<u64> = one.positions(len).collect();
                let dealt: Vec<u64> =
                    read.iter().skip(seat).step_by(seats as usize).copied().collect();
                assert_eq!(dealt, own, "{what}, seat {seat}");
                for batch_size in 1..4 {
                    let of_place = batch_size * u64::from(seats);
                    for batches in 0..4 {
                        let taken = batches * batch_size;
                        let of_one = one.global_batch(len, taken, batch_size);
                        let batch = all.global_batch(len, batches * of_place, of_place);
                        assert_eq!(batch, of_one, "{what}");
                        let is_last = own.len() as u64 <= taken;
                        let after = all.consumed_after(len, batches * of_place);
                        assert!(is_last || after == one.consumed_after(len, taken), "{what}");
                    }
                    let kept = own.len() as u64 / batch_size * batch_size;
                    let whole = all.in_whole_batches(read.len() as u64, of_place);
                    let dealt = whole.saturating_sub(seat as u64).div_ceil(seats.into());
                    assert_eq!(dealt / batch_size * batch_size, kept, "{what}");
                    assert!(
                        whole.is_multiple_of(of_place)
                            || whole % of_place > (batch_size - 1) * u64::from(seats)
                    );
                }
            }
        }
    }
}
