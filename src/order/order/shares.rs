//! Shares of the ranks in `local` and `partial` order, and their exchanges in an epoch. They are computed, with the
//! same result on every rank, so an exchange needs no message besides the reads themselves.
//!
//! `partial.rs` defines shares and exchanges. A [`Shares`] answers for any rank and epoch: the samples of the rank
//! ([`Shares::ids`]), and for each step of an epoch, the sample that it sends, the receiver, the sample that it
//! receives, and the sender ([`Shares::exchanges`]). Consequences:
//!
//! - in a step each rank sends one sample and receives one, or keeps its own, so shares keep their lengths;
//! - in every epoch, the shares of all ranks together contain each sample once;
//! - during an exchange, a rank has at most its share and the samples received so far.

use super::exchange::Exchange;
use super::{OrderKind, OrderSpec, Population, SlotRanks};
use dlfs_base::units::{Epoch, SampleId};

/// The shares of all ranks of a run, in each epoch.
#[derive(Debug, Clone)]
pub struct Shares {
    slots: SlotRanks,
    pub(super) seed: u64,
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
        let of_entry = |entry| self.id(population, &past, rank, entry);
        (0..self.len_of(rank)).map(of_entry).collect()
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
        let of_step = |step| {
            let entry = exchange.entry(step);
            let ranks = exchange.ranks(step, self.ranks());
            let to = ranks.forward(rank.into()) as u32;
            let from = ranks.inverse(rank.into()) as u32;
            Exchanged {
                to,
                from,
                sends: self.id(population, &past, rank, entry),
                receives: self.id(population, &past, from, entry),
            }
        };
        (0..self.num_steps()).map(of_step).collect()
    }

    /// The sample that `rank` has at `entry` after the exchanges `past`.
    fn id(
        &self,
        population: &(impl Population + ?Sized),
        past: &[Exchange],
        rank: u32,
        entry: u64,
    ) -> SampleId {
        let (chunk, nth) = self.locate(past, rank, entry);
        population.id_in_chunk(chunk, nth)
    }

    /// The chunk of the sample that `rank` has at `entry`, and the sample's index in the chunk.
    pub(super) fn locate(&self, past: &[Exchange], rank: u32, entry: u64) -> (u32, u32) {
        let first = Exchange::first_holder(past, rank.into(), entry, self.ranks());
        let extra = self.slots.len() % self.ranks();
        self.slots.locate(first * self.shortest() + first.min(extra) + entry)
    }

    pub(super) fn past(&self, epoch: Epoch) -> Vec<Exchange> {
        Exchange::before(self.seed, epoch, self.shortest(), self.num_steps())
    }

    fn shortest(&self) -> u64 {
        self.slots.len() / self.ranks()
    }

    fn ranks(&self) -> u64 {
        self.world_size.into()
    }
}
