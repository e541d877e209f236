//! Local shuffling, and partial local shuffling (PLS): each rank shuffles its own share.
//!
//! The live samples, in slot order, are divided into one contiguous share per rank (the first N mod W shares have
//! one more), so that a rank stages whole chunks. A share is a list of *entries*, numbered from 0. In epoch e:
//!
//! - rank r reads its entries in an order shuffled by (seed, e, r); position p belongs to rank p mod W, and is its
//!   sample p / W;
//! - the first floor(q * n) entries of a shuffle of 0..n by (seed, e), the same on every rank, are exchanged; n is
//!   the length of the shortest share. For the i-th exchanged entry, the ranks are permuted by (seed, e, i): each
//!   rank sends its sample of that entry to one rank and receives one from another (or keeps its own), so shares
//!   keep their lengths;
//! - a rank reads received samples from the next epoch on.
//!
//! A sample changes its rank, but never its entry. So the holder of a sample is found without a table: its entry is
//! followed back through the epochs, in about 15 ns per epoch.

use super::Shares;
use super::exchange::{Exchange, epoch_key};
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

impl Partial {
    pub(super) fn new(shares: Shares, epoch: Epoch) -> Partial {
        let key = epoch_key(shares.seed, epoch.0).with(READ);
        Partial { past: shares.past(epoch), shares, key, reading: None }
    }

    /// The chunk of the sample at `position`, and its index in the chunk.
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

/// A word of the keys. Frozen.
const READ: u64 = 0;
