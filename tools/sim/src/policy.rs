//! The compared policies. A policy says which samples are loaded before training, which copies are kept, which source
//! is read, and how samples are reordered.
//!
//! The first ten policies are those of the HDMLP thesis (sections 2.3 and 4.1.4), the others are this
//! project's.

use clap::ValueEnum;
use serde::Serialize;

use dlfs::options::DEFAULT_GROUP;
use dlfs::order::{OrderKind, OrderSpec, deal};
use dlfs::permutation::{Key, Permutation};

use crate::by_hash::{self, ByHash};
use crate::copies::{Copies, FirstTouch, NoCopies, PlanUse, Planned, SingleCopies, slice};
use crate::engine::{Engine, Job, Outcome, Rules, Sequence, WriteOverlap};
use crate::environment::{Config, ConfigError, Sharing};
use crate::schedule::{Samples, Schedule};

/// A policy for bringing samples to nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// Every sample is available when it is needed.
    LowerBound,
    /// No prefetching, no caching, no overlap.
    Naive,
    /// Clairvoyant placement by frequency, and fill threads in the order of first access; a node reads only
    /// its own tiers.
    Hdmlp,
    /// Prefetching into the staging buffer only (double buffering, tf.data).
    StagingPool,
    /// The memories of all nodes are loaded before training; the order is unchanged.
    DeepioOrdered,
    /// The same, but nodes train only on samples in memory.
    DeepioOpportunistic,
    /// Each node trains on its own slice, as much as its tiers hold, loaded before training.
    ParallelStaging,
    /// A distributed memory store, filled in the first epoch.
    LbannDynamic,
    /// A distributed memory store, loaded before training.
    LbannPreloading,
    /// Tiers are loaded before training; each node takes the samples of a batch that it holds.
    LocalityAware,
    /// dlfs's tiers: each node independently keeps the samples that it reads first (Monarch).
    FirstTouch,
    /// dlfs's clairvoyant tiers of each node by itself: like HDMLP, but staging threads keep the samples that
    /// they fetch.
    Clairvoyant,
    /// dlfs's grouped order: whole chunks, no tiers.
    Grouped,
    /// dlfs's peers: a hash selects the node that holds a chunk, and the others read from it.
    PeersByHash,
    /// The same, and each node takes the samples of a batch that it holds.
    ShardLocal,
    /// The placement of NoPFS: clairvoyant tiers, and nodes read from each other.
    PeersByPlan,
}

/// Reasons why a policy has no result.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PolicyError {
    /// The policy cannot run on this data set: "N/A" in the tables.
    #[error("not applicable: {0}")]
    NotApplicable(&'static str),
    /// A number in the configuration is impossible.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

impl Policy {
    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Policy::LowerBound => "Lower bound",
            Policy::Naive => "Naive",
            Policy::Hdmlp => "HDMLP",
            Policy::StagingPool => "StagingPoolPrefetcher",
            Policy::DeepioOrdered => "DeepIO ordered",
            Policy::DeepioOpportunistic => "DeepIO opportunistic",
            Policy::ParallelStaging => "Parallel data staging",
            Policy::LbannDynamic => "LBANN dynamic",
            Policy::LbannPreloading => "LBANN preloading",
            Policy::LocalityAware => "Locality-aware",
            Policy::FirstTouch => "dlfs first-touch",
            Policy::Clairvoyant => "dlfs clairvoyant",
            Policy::Grouped => "dlfs grouped",
            Policy::PeersByHash => "dlfs peers by hash",
            Policy::ShardLocal => "dlfs shard local",
            Policy::PeersByPlan => "dlfs peers by plan",
        }
    }

    /// The policies of `dlfs read`: without tiers, with tiers of the node, and with peers.
    pub fn of_program() -> &'static [Policy] {
        &[
            Policy::StagingPool,
            Policy::FirstTouch,
            Policy::Clairvoyant,
            Policy::Grouped,
            Policy::PeersByHash,
            Policy::ShardLocal,
        ]
    }

    /// The ten policies of the thesis, in the order of its tables.
    pub fn of_thesis() -> &'static [Policy] {
        &Policy::value_variants()[..10]
    }
}

/// A configuration with the sizes of its samples, ready to simulate policies.
#[derive(Debug, Clone)]
pub struct Simulation {
    config: Config,
    job: Job,
    total_bytes: u64,
}

impl Simulation {
    /// Draws the sizes of `config`.
    ///
    /// # Errors
    /// The first number that is out of range.
    pub fn new(config: &Config) -> Result<Simulation, ConfigError> {
        let sizes = config.dataset.sizes(config.training.seed)?;
        Simulation::with_sizes(config, sizes)
    }

    /// As [`Simulation::new`], but with given sizes, those of a real data set.
    ///
    /// # Errors
    /// The first number that is out of range.
    pub fn with_sizes(config: &Config, sizes: Vec<u32>) -> Result<Simulation, ConfigError> {
        let environment = &config.environment;
        let total_bytes = sizes.iter().map(|&size| u64::from(size)).sum();
        let job = Job {
            model: environment.model()?,
            origin_chunks: environment.origin_chunks()?,
            sharing: environment.origin_shared_by,
            staging_bytes: environment.staging_bytes()?,
            tier_bytes: environment.tier_bytes()?,
            schedule: schedule(config, &sizes, OrderKind::Global)?,
            sizes,
        };
        Ok(Simulation { config: config.clone(), job, total_bytes })
    }

    /// Total length of the data set.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// The lower bound, in seconds, of policies that read every sample in every epoch, with tiers of this size.
    /// In the first epoch, all samples come from the origin; in later epochs, those that fit in no tier do. In
    /// each epoch, the nodes compute meanwhile. The origin gives what it gives at its best to any number of
    /// nodes that read samples or chunks; with [`Sharing::Nodes`], it does so to each of a node's threads.
    pub fn cache_bound(&self) -> f64 {
        let job = &self.job;
        let nodes = u64::from(self.job.schedule.nodes());
        let held = job.tier_bytes.iter().sum::<u64>().saturating_mul(nodes);
        let read = self.total_bytes as f64 * job.schedule.positions as f64 / job.sizes.len() as f64;
        let compute = read / (job.model.compute.0 * nodes) as f64;
        let rates = (1..=job.model.nodes).map(|readers| {
            let chunks = job.origin_chunks.at(readers).shared_by(readers);
            let rate = job.model.origin_rate(readers).max(job.model.origin_link.min(chunks));
            rate.0 as f64 * f64::from(readers)
        });
        let fetching = match job.sharing {
            Sharing::Nodes => {
                let fills = job.model.tiers.iter().map(|tier| tier.threads);
                fills.fold(job.model.staging.threads, u32::saturating_add)
            }
            Sharing::Transfers => 1,
        };
        let origin = rates.fold(0.0, f64::max) * f64::from(fetching);
        let first = compute.max(read / origin);
        let later = compute.max((read - held as f64) / origin);
        first + later * f64::from(job.schedule.epochs - 1)
    }

    /// Simulates `policy`.
    ///
    /// # Errors
    /// The policy cannot run on this data set.
    pub fn run(&self, policy: Policy) -> Result<Outcome, PolicyError> {
        let job = &self.job;
        match policy {
            Policy::LowerBound => Ok(self.lower_bound()),
            Policy::Naive => Ok(self.naive()),
            Policy::StagingPool => Ok(plain(job, NoCopies, OVERLAPPED)),
            Policy::Hdmlp => Ok(plain(job, self.planned(HDMLP)?, STAGED)),
            Policy::Clairvoyant => Ok(plain(job, self.planned(CLAIRVOYANT)?, OVERLAPPED)),
            Policy::PeersByPlan => Ok(plain(job, self.planned(PEERS_BY_PLAN)?, OVERLAPPED)),
            Policy::PeersByHash => {
                let holders = by_hash::holders(job, false).map_err(ConfigError::from)?;
                Ok(plain(job, ByHash::new(job, &holders), OVERLAPPED))
            }
            Policy::ShardLocal => self.shard_local(),
            Policy::FirstTouch => Ok(plain(job, FirstTouch::new(job), OVERLAPPED)),
            Policy::Grouped => self.grouped(),
            Policy::DeepioOrdered => self.preloaded(Rules { origin_on_demand: true, ..PIPELINED }),
            Policy::DeepioOpportunistic => self.deepio_opportunistic(),
            Policy::ParallelStaging => self.parallel_staging(),
            Policy::LbannDynamic => self.lbann_dynamic(),
            Policy::LbannPreloading => {
                self.check_fits_memories().and_then(|()| self.preloaded(PIPELINED))
            }
            Policy::LocalityAware => self.locality_aware(),
        }
    }

    /// In each batch, the node with the most bytes to compute determines the time.
    fn lower_bound(&self) -> Outcome {
        let job = &self.job;
        let schedule = &self.job.schedule;
        let mut total_ns = 0_u64;
        for epoch in 0..schedule.epochs {
            let sequence = schedule.sequence(epoch);
            for step in 0..schedule.steps() {
                let node_ns = |node| {
                    let (first, count) = schedule.part(step, node);
                    let part = &sequence[first as usize..(first + count) as usize];
                    let bytes = part.iter().map(|&id| u64::from(job.sizes[id as usize])).sum();
                    job.model.compute.time_ns(bytes)
                };
                let slowest = (0..schedule.nodes()).map(node_ns).max().unwrap_or(0);
                total_ns = total_ns.saturating_add(slowest);
            }
        }
        Outcome { seconds: total_ns as f64 * 1e-9, ..Outcome::default() }
    }

    /// One staging thread of each node fetches each sample when it is needed.
    fn naive(&self) -> Outcome {
        let mut job = self.job.clone();
        job.model.staging.threads = 1;
        plain(&job, NoCopies, ON_DEMAND)
    }

    fn planned(&self, usage: PlanUse) -> Result<Planned, PolicyError> {
        Ok(Planned::new(&self.job, usage).map_err(ConfigError::from)?)
    }

    fn shard_local(&self) -> Result<Outcome, PolicyError> {
        let holders = by_hash::holders(&self.job, true).map_err(ConfigError::from)?;
        let sequence = |epoch| {
            self.dealt(epoch, |step, ids, room| {
                let mut nodes = Vec::with_capacity(ids.len());
                let per_chunk = self.job.schedule.per_chunk();
                deal(ids.iter().map(|id| holders.holder(id / per_chunk)), room, step, &mut nodes);
                ids.iter().copied().zip(nodes.into_iter().map(usize::from)).collect()
            })
        };
        Ok(Engine::new(&self.job, OVERLAPPED, ByHash::new(&self.job, &holders), &sequence).run(0))
    }

    /// The sequence of an epoch, in which `deal` has dealt out the samples of each step: it takes the step, its
    /// samples and the number of samples for each node, and returns each sample with its node.
    fn dealt(
        &self,
        epoch: u32,
        deal: impl Fn(u64, &[u32], &mut [u64]) -> Vec<(u32, usize)>,
    ) -> Vec<u32> {
        let schedule = &self.job.schedule;
        let mut sequence = schedule.sequence(epoch);
        for step in 0..schedule.steps() {
            let parts = (0..schedule.nodes()).map(|node| schedule.part(step, node));
            let (mut next, mut room): (Vec<u64>, Vec<u64>) = parts.unzip();
            let first = next[0] as usize;
            let ids = sequence[first..first + room.iter().sum::<u64>() as usize].to_vec();
            for (id, node) in deal(step, &ids, &mut room) {
                sequence[next[node] as usize] = id;
                next[node] += 1;
            }
        }
        sequence
    }

    fn grouped(&self) -> Result<Outcome, PolicyError> {
        let kind = OrderKind::Grouped { lanes: 0, group: DEFAULT_GROUP };
        let schedule = schedule(&self.config, &self.job.sizes, kind)?;
        Ok(plain(&Job { schedule, ..self.job.clone() }, NoCopies, IN_CHUNKS))
    }

    /// The memories of all nodes are loaded before training; the order is unchanged.
    fn preloaded(&self, rules: Rules) -> Result<Outcome, PolicyError> {
        let copies = SingleCopies::slices(&self.job, self.memory()?);
        Ok(self.loaded(copies, rules, &|epoch| self.job.schedule.sequence(epoch)))
    }

    /// Every node draws from the contents of all memories, until the epoch is complete.
    fn deepio_opportunistic(&self) -> Result<Outcome, PolicyError> {
        let copies = SingleCopies::slices(&self.job, self.memory()?);
        let ids = 0..self.job.sizes.len() as u32;
        let held: Vec<u32> = ids.filter(|&id| copies.node_of(id).is_some()).collect();
        if held.is_empty() {
            return Err(PolicyError::NotApplicable("no sample fits into a memory"));
        }
        let seed = self.config.training.seed;
        let sequence = |epoch| {
            let positions = self.job.schedule.positions;
            let mut draws = Draws::new(&held, Key::derive(seed, &[u64::from(epoch)]));
            (0..positions).map(|_| draws.next()).collect()
        };
        Ok(self.loaded(copies, PIPELINED, &sequence))
    }

    /// Every node draws from its own slice; the disk is filled first, as the published times imply.
    fn parallel_staging(&self) -> Result<Outcome, PolicyError> {
        let slowest_first: Vec<usize> = (0..self.job.tier_bytes.len()).rev().collect();
        let copies = SingleCopies::slices(&self.job, &slowest_first);
        let nodes = self.job.schedule.nodes();
        let held = |node| {
            let ids = slice(self.job.sizes.len(), node, nodes).map(|id| id as u32);
            ids.filter(|&id| copies.node_of(id).is_some()).collect::<Vec<u32>>()
        };
        let held: Vec<Vec<u32>> = (0..nodes).map(held).collect();
        if held.iter().any(Vec::is_empty) {
            return Err(PolicyError::NotApplicable("a node has no tier that a sample fits into"));
        }
        let sequence = |epoch| {
            let schedule = &self.job.schedule;
            let mut sequence = vec![0; schedule.positions as usize];
            for (node, held) in (0..).zip(&held) {
                let words = [u64::from(epoch), u64::from(node)];
                let mut draws = Draws::new(held, Key::derive(self.config.training.seed, &words));
                for nth in 0..schedule.of_node(node) {
                    sequence[schedule.position(node, nth) as usize] = draws.next();
                }
            }
            sequence
        };
        Ok(self.loaded(copies, PIPELINED, &sequence))
    }

    fn lbann_dynamic(&self) -> Result<Outcome, PolicyError> {
        self.check_fits_memories()?;
        let copies = SingleCopies::first_reader(self.job.sizes.len());
        Ok(plain(&self.job, copies, Rules { all_read: true, ..PIPELINED }))
    }

    /// A slice that fits in memory is there; a larger slice fills the disk first. The published load times
    /// imply both.
    fn locality_aware(&self) -> Result<Outcome, PolicyError> {
        let each = self.total_bytes / u64::from(self.job.schedule.nodes());
        let mut tiers: Vec<usize> = (0..self.job.tier_bytes.len()).collect();
        if self.job.tier_bytes.first().is_some_and(|&memory| memory < each) {
            tiers.reverse();
        }
        let copies = SingleCopies::slices(&self.job, &tiers);
        let holders: Vec<Option<u32>> =
            (0..self.job.sizes.len() as u32).map(|id| copies.node_of(id)).collect();
        let sequence =
            |epoch| self.dealt(epoch, |_, ids, room| deal_to_holders(ids, room, &holders));
        Ok(self.loaded(copies, PIPELINED, &sequence))
    }

    /// Trains after each node has loaded `copies.used` bytes into its tiers, all tiers in parallel.
    fn loaded(&self, copies: SingleCopies, rules: Rules, sequence: &Sequence<'_>) -> Outcome {
        let model = &self.job.model;
        let load_ns = |(tier, &bytes): (usize, &u64)| {
            let stage = &model.tiers[tier];
            let write = model.preprocess.min(stage.write_of_thread());
            let fetch_ns = model.origin_rate(model.nodes).time_ns(bytes);
            fetch_ns.saturating_add(write.time_ns(bytes)) / u64::from(stage.threads)
        };
        let of_node = |used: &Vec<u64>| {
            let tiers = used.iter().enumerate().map(load_ns).max().unwrap_or(0);
            match self.job.sharing {
                Sharing::Nodes => tiers,
                Sharing::Transfers => {
                    tiers.max(model.origin_rate(model.nodes).time_ns(used.iter().sum()))
                }
            }
        };
        let load_ns = copies.used.iter().map(of_node).max().unwrap_or(0);
        Engine::new(&self.job, rules, copies, sequence).run(load_ns)
    }

    /// The memory tier, as a list of tiers.
    fn memory(&self) -> Result<&'static [usize], PolicyError> {
        if self.job.tier_bytes.is_empty() {
            Err(PolicyError::NotApplicable("the nodes have no memory tier"))
        } else {
            Ok(&[0])
        }
    }

    /// Checks that the memory tiers of all nodes together can hold the data set.
    fn check_fits_memories(&self) -> Result<(), PolicyError> {
        let memory = self.job.tier_bytes.first().copied().unwrap_or(0);
        if u128::from(memory) * u128::from(self.job.schedule.nodes()) < u128::from(self.total_bytes)
        {
            Err(PolicyError::NotApplicable("the data set is larger than all memories"))
        } else {
            Ok(())
        }
    }
}

/// Trains `job` in the sequence of its schedule, without loading before training.
fn plain(job: &Job, copies: impl Copies, rules: Rules) -> Outcome {
    let sequence = |epoch| job.schedule.sequence(epoch);
    Engine::new(job, rules, copies, &sequence).run(0)
}

/// The schedule of `config` in an order of this kind. Chunks have as many samples as fit in [`CHUNK_BYTES`] on average.
fn schedule(config: &Config, sizes: &[u32], kind: OrderKind) -> Result<Schedule, ConfigError> {
    let count = sizes.len() as u64;
    let total: u64 = sizes.iter().map(|&size| u64::from(size)).sum();
    let per_chunk = (CHUNK_BYTES * count / total.max(1)).clamp(1, 65_535);
    let order = OrderSpec { kind, seed: config.training.seed }.started(config.environment.nodes);
    let samples = Samples { count, per_chunk };
    Schedule::new(samples, order, config.environment.nodes, &config.training)
}

/// Draws from a list in a random order, and in another one when the list is exhausted.
struct Draws<'a> {
    from: &'a [u32],
    key: Key,
    /// The number of times that the list was exhausted.
    round: u64,
    /// The position of the next draw in `order`.
    at: u64,
    order: Permutation,
}

impl<'a> Draws<'a> {
    fn new(from: &'a [u32], key: Key) -> Draws<'a> {
        let order = Permutation::new(from.len() as u64, key.with(0));
        Draws { from, key, round: 0, at: 0, order }
    }

    fn next(&mut self) -> u32 {
        if self.at == self.order.len() {
            self.round += 1;
            self.at = 0;
            self.order = Permutation::new(self.from.len() as u64, self.key.with(self.round));
        }
        self.at += 1;
        self.from[self.order.forward(self.at - 1) as usize]
    }
}

/// Deals out the samples of a step. Each node first takes samples that it holds, up to its share; the remaining
/// samples go to nodes that need more.
fn deal_to_holders(ids: &[u32], room: &mut [u64], holders: &[Option<u32>]) -> Vec<(u32, usize)> {
    let mut dealt = Vec::with_capacity(ids.len());
    let mut surplus = Vec::new();
    for &id in ids {
        match holders[id as usize].map(|node| node as usize).filter(|&node| room[node] > 0) {
            Some(node) => {
                room[node] -= 1;
                dealt.push((id, node));
            }
            None => surplus.push(id),
        }
    }
    // Round robin, so that no single node gets all samples without a holder.
    let mut nodes = (0..room.len()).cycle();
    for id in surplus {
        let node = nodes.find(|&node| room[node] > 0).expect("a step has a place for each sample");
        room[node] -= 1;
        dealt.push((id, node));
    }
    dealt
}

/// The thesis's model: a thread fetches a sample and then writes it.
const PIPELINED: Rules = Rules {
    origin_on_demand: false,
    overlap: WriteOverlap::None,
    all_read: false,
    reads_chunks: false,
};
/// Double buffering, and dlfs's pump: the next sample is fetched while the last one is written.
const OVERLAPPED: Rules = Rules { overlap: WriteOverlap::All, ..PIPELINED };
/// HDMLP: staging threads overlap writes and fetches as in double buffering; fill threads do not, like the threads that
/// load tiers before training. This reproduces the published times.
const STAGED: Rules = Rules { overlap: WriteOverlap::Staging, ..PIPELINED };
const IN_CHUNKS: Rules = Rules { reads_chunks: true, ..OVERLAPPED };
const ON_DEMAND: Rules = Rules { origin_on_demand: true, ..PIPELINED };

/// The published times assume that nodes read only their own tiers.
const HDMLP: PlanUse = PlanUse { keep_staged: false, peers: false };
const CLAIRVOYANT: PlanUse = PlanUse { keep_staged: true, peers: false };
const PEERS_BY_PLAN: PlanUse = PlanUse { keep_staged: true, peers: true };

/// The length of chunks, as `dlfs import` makes them by default.
const CHUNK_BYTES: u64 = 4 << 20;
