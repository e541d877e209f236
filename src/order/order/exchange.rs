//! The exchange of samples between the shares of the ranks in one epoch; `partial.rs` defines it.

use dlfs_base::permutation::{Key, Permutation};
use dlfs_base::units::Epoch;

/// The exchange of one epoch.
#[derive(Debug, Clone)]
pub(super) struct Exchange {
    key: Key,
    /// The entry at index i < `num_exchanged` is the i-th to be exchanged.
    entries: Permutation,
    num_exchanged: u64,
}

impl Exchange {
    /// The number of exchanged samples among `samples`: floor(`q` * `samples`).
    pub(super) fn count(samples: u64, q: f64) -> u64 {
        // IEEE 754 defines the product, so it is the same on every machine; q <= 1, so its floor fits.
        (samples as f64 * q).floor() as u64
    }

    /// The exchange of `num_exchanged` entries in `epoch`; `shortest` is the length of the shortest share.
    pub(super) fn new(seed: u64, epoch: u64, shortest: u64, num_exchanged: u64) -> Exchange {
        let key = epoch_key(seed, epoch).with(EXCHANGE);
        Exchange { key, entries: Permutation::new(shortest, key), num_exchanged }
    }

    /// The exchanges of all epochs before `epoch`; none if `num` is 0.
    pub(super) fn before(seed: u64, epoch: Epoch, shortest: u64, num: u64) -> Vec<Exchange> {
        let epochs = if num == 0 { 0..0 } else { 0..epoch.0 };
        epochs.map(|epoch| Exchange::new(seed, epoch, shortest, num)).collect()
    }

    /// The entry that is exchanged in `step`.
    pub(super) fn entry(&self, step: u64) -> u64 {
        self.entries.forward(step)
    }

    /// The rank that each rank sends to in `step`.
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

pub(super) fn epoch_key(seed: u64, epoch: u64) -> Key {
    Key::derive(seed, &[super::OrderKind::Local { world_size: 1 }.label(), epoch])
}

/// A word of the keys. Frozen.
const EXCHANGE: u64 = 1;
