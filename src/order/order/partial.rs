//! Local shuffling, and partial local shuffling (PLS): each rank shuffles a share of its own.
//!
//! The live samples, in slot order, are divided into one contiguous share for each rank (the first N mod W
//! have one more), so that a rank stages whole chunks. A share is a list of *entries*, numbered from 0. In epoch e:
//!
//! - rank r reads its entries in an order shuffled by (seed, e, r); position p is rank p mod W, its
//!   sample p / W;
//! - the first floor(q * n) entries of a shuffle of 0..n by (seed, e), the same on every rank, are
//!   exchanged, n being the length of the shortest share. For the i-th of them the ranks are permuted
//!   by (seed, e, i): each sends the sample of that entry to one rank and receives one from another
//!   (or keeps its own), so shares neither grow nor shrink;
//! - a rank reads received samples from the next epoch on.
//!
//! A sample changes its rank, but never its entry. So the holder of a sample is found without a table, by
//! following its entry back through the epochs, in about 15 ns for each epoch.

use super::Shares;
use dlfs_base::permutation::{Key, Permutation};
use dlfs_base::units::Epoch;

#[derive(Debug, Clone)]
pub(super) struct Partial {
    shares: Shares,
    /// The exchanges of all earlier epochs.
    past: Vec<Exchange>,
    key: Key,
    /// The last rank that was looked up, and the order in which it reads its entries.
    reading: Option<(u32, Permutation)>,
}

/// The exchange of one epoch.
#[derive(Debug, Clone)]
pub(super) struct Exchange {
    key: Key,
    /// The entry at index i < `num_exchanged` is the i-th exchanged.
    entries: Permutation,
    num_exchanged: u64,
}

impl Exchange {
    /// The samples that move of `samples`: floor(`q` * `samples`).
    pub(super) fn count(samples: u64, q: f64) -> u64 {
        // IEEE 754 defines the product, so it is the same on every machine; with q <= 1 its floor fits.
        (samples as f64 * q).floor() as u64
    }

    /// The exchange of `num_exchanged` entries in `epoch`, `shortest` being the length of the shortest share.
    pub(super) fn new(seed: u64, epoch: u64, shortest: u64, num_exchanged: u64) -> Exchange {
        let key = epoch_key(seed, epoch).with(EXCHANGE);
        Exchange { key, entries: Permutation::new(shortest, key), num_exchanged }
    }

    /// The exchanges of all epochs before `epoch`; none if nothing ever moves.
    pub(super) fn before(seed: u64, epoch: Epoch, shortest: u64, num: u64) -> Vec<Exchange> {
        let epochs = if num == 0 { 0..0 } else { 0..epoch.0 };
        epochs.map(|epoch| Exchange::new(seed, epoch, shortest, num)).collect()
    }

    /// The entry that moves in `step`.
    pub(super) fn entry(&self, step: u64) -> u64 {
        self.entries.forward(step)
    }

    /// To which rank each rank sends in `step`.
    pub(super) fn ranks(&self, step: u64, world_size: u64) -> Permutation {
        Permutation::new(world_size, self.key.with(step))
    }

    /// The rank that held, in epoch 0, the sample that `rank` holds at `entry` after the exchanges `past`.
    pub(super) fn first_holder(past: &[Exchange], rank: u64, entry: u64, world_size: u64) -> u64 {
        let exchanges = past.iter().rev().filter(|exchange| entry < exchange.entries.len());
        exchanges.fold(rank, |rank, exchange| {
            let step = exchange.entries.inverse(entry);
            if step >= exchange.num_exchanged {
                return rank;
            }
            exchange.ranks(step, world_size).inverse(rank)
        })
    }
}

impl Partial {
    pub(super) fn new(shares: Shares, epoch: Epoch) -> Partial {
        let key = epoch_key(shares.seed, epoch.0).with(READ);
        Partial { past: shares.past(epoch), shares, key, reading: None }
    }

    /// The chunk of the sample at `position`, and its index there.
    pub(super) fn locate(&mut self, position: u64) -> (u32, u32) {
        let ranks = u64::from(self.shares.world_size());
        let rank = (position % ranks) as u32;
        let entries = match self.reading {
            Some((last, entries)) if last == rank => entries,
            _ => {
                let len = self.shares.len_of(rank);
                self.reading.insert((rank, Permutation::new(len, self.key.with(rank.into())))).1
            }
        };
        self.shares.locate(&self.past, rank, entries.forward(position / ranks))
    }
}

fn epoch_key(seed: u64, epoch: u64) -> Key {
    Key::derive(seed, &[super::OrderKind::Local { world_size: 1 }.label(), epoch])
}

/// Words of the keys. Frozen.
const READ: u64 = 0;
const EXCHANGE: u64 = 1;
