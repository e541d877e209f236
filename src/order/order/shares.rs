//! Shares of the ranks in `local` and `partial` order, and their exchanges in an epoch. Every rank computes them with
//! the same result, so an exchange needs no message besides the reads themselves.
//!
//! A [`Shares`] answers for any rank and epoch: the samples of the rank ([`Shares::ids`]), and for each step of an
//! epoch, the sample that the rank sends, its receiver, the sample that the rank receives, and its sender
//! ([`Shares::exchanges`]). Consequences:
//!
//! - in a step each rank sends one sample and receives one, or keeps its own, so shares keep their lengths;
//! - in every epoch, the shares of all ranks together contain each sample once;
//! - during an exchange, a rank has at most its share and the samples received so far.
//!
//! # Local shuffling, and partial local shuffling (PLS)
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

use super::{OrderKind, OrderSpec, Population, SlotRanks};
use dlfs_base::permutation::{Key, Permutation};
use dlfs_base::units::{Epoch, SampleId};

/// The shares of all ranks of a run, in each epoch.
#[derive(Debug, Clone)]
pub struct Shares {
    slots: SlotRanks,
    pub(super) seed: u64,
    /// The fraction of the samples that an epoch exchanges, from 0 to 1; 0 in `local` order.
    q: f64,
    world_size: u32,
}

/// One step of an epoch's exchange, as one rank sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exchanged {
    /// The rank that gets this rank's sample; this rank itself if nothing moves.
    pub to: u32,
    /// The rank whose sample this rank gets.
    pub from: u32,
    /// The sample that leaves after the epoch.
    pub sends: SampleId,
    /// The sample that takes its place.
    pub receives: SampleId,
}

impl Shares {
    /// The shares that `spec` gives to the samples of `population`; `None` if ranks do not have their own shares in
    /// that order.
    pub fn new(spec: &OrderSpec, population: &(impl Population + ?Sized)) -> Option<Shares> {
        let (q, world_size) = match spec.kind {
            OrderKind::Local { world_size } => (0.0, world_size),
            OrderKind::Partial { q, world_size } => (q, world_size),
            _ => return None,
        };
        let slots = SlotRanks::new(population);
        (world_size > 0).then_some(Shares { slots, seed: spec.seed, q, world_size })
    }

    /// The number of ranks.
    pub fn world_size(&self) -> u32 {
        self.world_size
    }

    /// The number of samples of `rank`, the same in every epoch.
    pub fn len_of(&self, rank: u32) -> u64 {
        self.shortest() + u64::from(u64::from(rank) < self.slots.len() % self.ranks())
    }

    /// The number of steps of an epoch's exchange: floor(q * n), where n is the length of the shortest share.
    pub fn num_steps(&self) -> u64 {
        match self.world_size {
            1 => 0,
            _ => Exchange::count(self.shortest(), self.q),
        }
    }

    /// The number of an epoch's steps that are due when a rank has taken `samples` of its share:
    /// floor(q * `samples`). So each batch adds q times its samples, and fractions add up. At the end of the epoch
    /// all steps are due.
    pub fn steps_due(&self, samples: u64) -> u64 {
        if samples >= self.shortest() {
            return self.num_steps();
        }
        Exchange::count(samples, self.q).min(self.num_steps())
    }

    /// The samples that `rank` has in `epoch`, by entry.
    ///
    /// Takes about 15 ns per sample and epoch before `epoch`.
    ///
    /// # Panics
    /// If the rank does not exist.
    pub fn ids(
        &self,
        population: &(impl Population + ?Sized),
        rank: u32,
        epoch: Epoch,
    ) -> Vec<SampleId> {
        assert!(rank < self.world_size, "rank {rank} of {}", self.world_size);
        let past = self.past(epoch);
        let places = (0..self.len_of(rank)).map(|entry| self.locate(&past, rank, entry));
        places.map(|(chunk, nth)| population.id_in_chunk(chunk, nth)).collect()
    }

    /// The samples that `rank` sends and receives in each step of `epoch`; the receiving rank uses them from the
    /// next epoch on.
    ///
    /// # Panics
    /// If the rank does not exist.
    pub fn exchanges(
        &self,
        population: &(impl Population + ?Sized),
        rank: u32,
        epoch: Epoch,
    ) -> Vec<Exchanged> {
        assert!(rank < self.world_size, "rank {rank} of {}", self.world_size);
        let past = self.past(epoch);
        let exchange = Exchange::new(self.seed, epoch.0, self.shortest(), self.num_steps());
        let id = |rank, entry| {
            let (chunk, nth) = self.locate(&past, rank, entry);
            population.id_in_chunk(chunk, nth)
        };
        let of_step = |step| {
            let entry = exchange.entries.forward(step);
            let ranks = exchange.ranks(step, self.ranks());
            let to = ranks.forward(rank.into()) as u32;
            let from = ranks.inverse(rank.into()) as u32;
            Exchanged { to, from, sends: id(rank, entry), receives: id(from, entry) }
        };
        (0..self.num_steps()).map(of_step).collect()
    }

    /// The chunk of the sample that `rank` has at `entry`, and the sample's index in the chunk.
    pub(super) fn locate(&self, past: &[Exchange], rank: u32, entry: u64) -> (u32, u32) {
        let first = Exchange::first_holder(past, rank.into(), entry, self.ranks());
        let extra = self.slots.len() % self.ranks();
        self.slots.locate(first * self.shortest() + first.min(extra) + entry)
    }

    /// The exchanges of all epochs before `epoch`.
    fn past(&self, epoch: Epoch) -> Vec<Exchange> {
        let num = self.num_steps();
        let epochs = if num == 0 { 0..0 } else { 0..epoch.0 };
        epochs.map(|epoch| Exchange::new(self.seed, epoch, self.shortest(), num)).collect()
    }

    /// The length of the shortest share.
    fn shortest(&self) -> u64 {
        self.slots.len() / self.ranks()
    }

    fn ranks(&self) -> u64 {
        self.world_size.into()
    }
}

/// The sequence of one epoch in `local` and `partial` order: position -> sample.
#[derive(Debug, Clone)]
pub(super) struct Partial {
    shares: Shares,
    /// The exchanges of all earlier epochs.
    past: Vec<Exchange>,
    /// With a rank, the key of the order in which that rank reads its entries.
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

/// The exchange of one epoch.
#[derive(Debug, Clone)]
pub(super) struct Exchange {
    key: Key,
    /// A shuffle of the entries: those at the indexes below `num_exchanged` are exchanged, in this order.
    entries: Permutation,
    /// The number of exchanged entries.
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

    /// The rank that each rank sends to in `step`.
    pub(super) fn ranks(&self, step: u64, world_size: u64) -> Permutation {
        Permutation::new(world_size, self.key.with(step))
    }

    /// The rank that held, in epoch 0, the sample that `rank` holds at `entry` after the exchanges `past`.
    fn first_holder(past: &[Exchange], rank: u64, entry: u64, world_size: u64) -> u64 {
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

/// The key of an epoch, in `local` as in `partial` order.
fn epoch_key(seed: u64, epoch: u64) -> Key {
    Key::derive(seed, &[super::OrderKind::Local { world_size: 1 }.label(), epoch])
}

/// The word of the key by which a rank reads its share. Frozen.
const READ: u64 = 0;
/// The word of the key of an exchange. Frozen.
const EXCHANGE: u64 = 1;
