//! The places of copies of samples during the simulation, by policy.
//!
//! # Peers by hash
//!
//! As in `dlfs read --peers`, the program's own table gives each chunk at most one holder.
//!
//! Nodes read a sample from the holder of its chunk; if the holder lacks the sample, the holder reads it from the
//! origin and keeps it. The first read of a chunk makes its holder copy the rest in the background, chunk after
//! chunk in the order of these first reads; a node that wants a sample that is being copied waits for the copy.
//! A sample for which no node has room always comes from the origin.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use dlfs::order::HexId;
use dlfs::permutation::Key;
use dlfs::plan::{ChunkHolders, HolderMap, Member, Model, Planner, Source};
use dlfs::units::SampleId;

use crate::engine::Job;

/// The copies that nodes hold.
pub(crate) trait Copies {
    /// The tiers of this node and of another one with a copy of `sample`.
    fn find(&self, _node: u32, _sample: u32) -> (Option<u8>, Option<u8>) {
        (None, None)
    }

    /// The source from which `node` reads `sample` now.
    fn source(&self, model: &Model, node: u32, sample: u32) -> Source {
        let (local, remote) = self.find(node, sample);
        model.choose(local, remote)
    }

    /// Returns whether `sample` reaches `node` from the origin by way of another node.
    fn is_elsewhere(&self, _node: u32, _sample: u32) -> bool {
        false
    }

    /// Returns whether the staging threads of `node` wait for `sample`: a fill thread is copying it to the place
    /// where they would read it, and the policy lets them wait.
    fn is_coming(&self, _node: u32, _sample: u32) -> bool {
        false
    }

    /// Notes that `node` stages `sample`; some policies keep it. Returns the node whose fill threads now have
    /// more to do, if any.
    fn claimed(&mut self, _node: u32, _sample: u32, _len_bytes: u32) -> Option<u32> {
        None
    }

    /// Starts the next copy of thread `thread` of `tier` of `node`; returns its sample.
    fn next_fill(&mut self, _node: u32, _tier: usize, _thread: usize) -> Option<u32> {
        None
    }

    /// Ends the copy of thread `thread` of `tier` of `node`; returns its sample.
    fn filled(&mut self, _node: u32, _tier: usize, _thread: usize) -> Option<u32> {
        None
    }
}

/// No copies: all samples come from the origin.
pub(crate) struct Nothing;

impl Copies for Nothing {}

/// At most one copy of each sample, and its holder.
#[derive(Debug)]
pub(crate) struct Shared {
    /// `node << 8 | tier`, or a value for no holder.
    places: Vec<u32>,
    /// True if a node keeps samples that it is the first to read, in tier 0.
    fill: bool,
    /// Bytes held from the start in each tier of each node.
    pub(crate) used: Vec<Vec<u64>>,
}

/// Tiers that each node fills from the top with the samples that it reads first.
#[derive(Debug)]
pub(crate) struct FirstTouch {
    nodes: Vec<HashMap<u32, u8>>,
    /// Free bytes in each tier of each node.
    room: Vec<Vec<u64>>,
}

/// The planned tiers of all nodes, and their filling.
#[derive(Debug)]
pub(crate) struct Planned {
    /// For each sample, the node with the best planned copy; `None` if each node reads only its own tiers.
    holders: Option<HolderMap>,
    nodes: Vec<NodePlan>,
    /// Set if staging threads keep planned samples that are missing. Fill threads then leave them the samples
    /// of this many coming accesses, and staging threads wait for a sample that a fill thread is copying.
    keep_staged: Option<u64>,
}

/// The nodes' use of a plan.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Use {
    /// Staging threads keep planned samples that are missing, as in NoPFS and dlfs but not in HDMLP.
    pub(crate) keep_staged: bool,
    /// Nodes read from each other.
    pub(crate) peers: bool,
}

#[derive(Debug)]
struct NodePlan {
    /// The number of accesses that the staging threads have claimed.
    claimed: u64,
    /// Planned samples by id, each with tier and block address.
    by_id: Vec<(u32, u64)>,
    tiers: Vec<TierPlan>,
}

#[derive(Debug)]
struct TierPlan {
    /// Samples in the order of filling, which is the order of their addresses.
    fills: Vec<Fill>,
    next: usize,
    /// The entry of `fills` that each fill thread is copying.
    at: Vec<Option<usize>>,
}

#[derive(Debug, Clone, Copy)]
struct Fill {
    sample: u32,
    first_access: u32,
    lba: u64,
    is_done: bool,
}

impl Shared {
    /// Begins without copies; each node keeps the samples that it is the first to read.
    pub(crate) fn first_reader(samples: usize) -> Shared {
        Shared { places: vec![NOBODY; samples], fill: true, used: Vec::new() }
    }

    /// Each node holds its slice of the samples while it fits the tiers, filled in the order `tiers`.
    pub(crate) fn slices(job: &Job, tiers: &[usize]) -> Shared {
        let nodes = job.schedule.nodes();
        let samples = job.sizes.len();
        let mut places = vec![NOBODY; samples];
        let mut used = vec![vec![0; job.tier_bytes.len()]; nodes as usize];
        for (node, used) in (0..).zip(&mut used) {
            for sample in slice(samples, node, nodes) {
                let len = u64::from(job.sizes[sample]);
                let room = tiers.iter().find(|&&tier| used[tier] + len <= job.tier_bytes[tier]);
                if let Some(&tier) = room {
                    used[tier] += len;
                    places[sample] = node << 8 | tier as u32;
                }
            }
        }
        Shared { places, fill: false, used }
    }

    /// The node that holds `sample`.
    pub(crate) fn node_of(&self, sample: u32) -> Option<u32> {
        let place = self.places[sample as usize];
        (place != NOBODY).then_some(place >> 8)
    }
}

impl Copies for Shared {
    fn find(&self, node: u32, sample: u32) -> (Option<u8>, Option<u8>) {
        let place = self.places[sample as usize];
        match place {
            NOBODY => (None, None),
            _ if place >> 8 == node => (Some(place as u8), None),
            _ => (None, Some(place as u8)),
        }
    }

    fn claimed(&mut self, node: u32, sample: u32, _: u32) -> Option<u32> {
        let place = &mut self.places[sample as usize];
        if self.fill && *place == NOBODY {
            *place = node << 8;
        }
        None
    }
}

impl FirstTouch {
    /// Empty tiers of all nodes.
    pub(crate) fn new(job: &Job) -> FirstTouch {
        let nodes = job.schedule.nodes() as usize;
        FirstTouch { nodes: vec![HashMap::new(); nodes], room: vec![job.tier_bytes.clone(); nodes] }
    }
}

impl Copies for FirstTouch {
    fn find(&self, node: u32, sample: u32) -> (Option<u8>, Option<u8>) {
        (self.nodes[node as usize].get(&sample).copied(), None)
    }

    fn claimed(&mut self, node: u32, sample: u32, len_bytes: u32) -> Option<u32> {
        let room = &mut self.room[node as usize];
        let len = u64::from(len_bytes);
        if let Entry::Vacant(place) = self.nodes[node as usize].entry(sample)
            && let Some(tier) = room.iter().position(|&room| len <= room)
        {
            room[tier] -= len;
            place.insert(tier as u8);
        }
        None
    }
}

impl Planned {
    /// Plans all nodes of `job`.
    ///
    /// # Errors
    /// More tiers, or larger ones, than an address can encode.
    pub(crate) fn new(job: &Job, usage: Use) -> dlfs::Result<Planned> {
        // Staging threads claim about this many samples in the time of a few transfers.
        let margin = 4 * u64::from(job.model.staging.threads);
        let keep_staged = usage.keep_staged.then_some(margin);
        let block_len_bytes = block_len_bytes(job);
        let blocks = |&bytes: &u64| bytes / u64::from(block_len_bytes);
        let tiers: Vec<u64> = job.tier_bytes.iter().map(blocks).collect();
        let mut planner = Planner::new(&job.schedule, &job.sizes[..], block_len_bytes)?;
        let mut holders = usage.peers.then(|| HolderMap::empty(job.sizes.len() as u64));
        let mut nodes = Vec::with_capacity(job.schedule.nodes() as usize);
        for node in 0..job.schedule.nodes() {
            let tier = |stage: &dlfs::plan::Stage| TierPlan {
                fills: Vec::new(),
                next: 0,
                at: vec![None; stage.threads as usize],
            };
            let tiers_of_node = job.model.tiers.iter().map(tier).collect();
            let mut plan = NodePlan { claimed: 0, by_id: Vec::new(), tiers: tiers_of_node };
            planner.plan(node, &tiers, &mut |copy| {
                holders.iter_mut().for_each(|holders| holders.add(node, &copy));
                let sample = copy.sample.0 as u32;
                let lba = copy.lba.0;
                plan.by_id.push((sample, u64::from(copy.tier) << TIER_SHIFT | lba));
                let first_access = copy.first_access.min(u64::from(u32::MAX)) as u32;
                let fill = Fill { sample, first_access, lba, is_done: false };
                plan.tiers[usize::from(copy.tier)].fills.push(fill);
            })?;
            plan.by_id.sort_unstable();
            plan.by_id.shrink_to_fit();
            nodes.push(plan);
        }
        Ok(Planned { holders, nodes, keep_staged })
    }

    /// Returns whether the copy that `node` plans at `lba` of `tier` exists.
    fn has(&self, node: &NodePlan, tier: usize, lba: u64) -> bool {
        let fills = &node.tiers[tier].fills;
        let fill = fills.binary_search_by_key(&lba, |fill| fill.lba).map(|index| fills[index]);
        let is_kept = |fill: &Fill| u64::from(fill.first_access) < node.claimed;
        fill.is_ok_and(|fill| fill.is_done || self.keep_staged.is_some() && is_kept(&fill))
    }
}

impl Copies for Planned {
    fn find(&self, node: u32, sample: u32) -> (Option<u8>, Option<u8>) {
        let own = &self.nodes[node as usize];
        let local = own.by_id.binary_search_by_key(&sample, |entry| entry.0).ok();
        let local = local.and_then(|index| {
            let tier = own.by_id[index].1 >> TIER_SHIFT;
            let lba = own.by_id[index].1 & LBA_MASK;
            self.has(own, tier as usize, lba).then_some(tier as u8)
        });
        let holders = self.holders.as_ref();
        let holder = holders.and_then(|holders| holders.holder(SampleId(u64::from(sample))));
        let remote = holder.filter(|holder| {
            let other = &self.nodes[holder.rank as usize];
            holder.rank != node && self.has(other, usize::from(holder.tier), holder.lba.0)
        });
        (local, remote.map(|holder| holder.tier))
    }

    fn is_coming(&self, node: u32, sample: u32) -> bool {
        let tiers = self.nodes[node as usize].tiers.iter();
        let mut at = tiers.flat_map(|tier| tier.at.iter().flatten().map(|&at| tier.fills[at]));
        self.keep_staged.is_some() && at.any(|fill| fill.sample == sample)
    }

    fn claimed(&mut self, node: u32, _: u32, _: u32) -> Option<u32> {
        self.nodes[node as usize].claimed += 1;
        None
    }

    fn next_fill(&mut self, node: u32, tier: usize, thread: usize) -> Option<u32> {
        let node = &mut self.nodes[node as usize];
        let tier = &mut node.tiers[tier];
        if let Some(margin) = self.keep_staged {
            let near = |fill: &&Fill| u64::from(fill.first_access) < node.claimed + margin;
            tier.next += tier.fills[tier.next..].iter().take_while(near).count();
        }
        let fill = tier.fills.get(tier.next)?;
        tier.at[thread] = Some(tier.next);
        tier.next += 1;
        Some(fill.sample)
    }

    fn filled(&mut self, node: u32, tier: usize, thread: usize) -> Option<u32> {
        let tier = &mut self.nodes[node as usize].tiers[tier];
        let fill = &mut tier.fills[tier.at[thread].take()?];
        fill.is_done = true;
        Some(fill.sample)
    }
}

/// The smallest block length that can address the largest tier, so that small samples waste little.
fn block_len_bytes(job: &Job) -> u32 {
    let largest = job.tier_bytes.iter().copied().max().unwrap_or(0);
    let fits = |&len: &u32| largest / u64::from(len) <= 1 << 36;
    [512, 1024, 2048].into_iter().find(fits).unwrap_or(4096)
}

/// The samples of `node`'s slice.
pub(crate) fn slice(samples: usize, node: u32, nodes: u32) -> std::ops::Range<usize> {
    let node = node as usize;
    let nodes = nodes as usize;
    samples * node / nodes..samples * (node + 1) / nodes
}

/// No holder.
const NOBODY: u32 = u32::MAX;
const TIER_SHIFT: u32 = 40;
const LBA_MASK: u64 = (1 << TIER_SHIFT) - 1;

/// The copies of all nodes.
#[derive(Debug)]
pub(crate) struct ByHash {
    per_chunk: u32,
    /// The place of each sample, present or future; `None` if its chunk has no holder, or the holder no room.
    places: Vec<Option<Place>>,
    states: Vec<State>,
    /// By chunk: set after its first read.
    is_begun: Vec<bool>,
    /// By node, then by tier.
    fills: Vec<Vec<Fills>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    node: u16,
    tier: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Absent,
    /// A fill thread is copying it.
    Coming,
    Held,
}

/// The work of one tier's fill threads.
#[derive(Debug, Clone)]
struct Fills {
    /// Chunks to complete.
    chunks: VecDeque<u32>,
    /// The next sample of the first chunk.
    next: u32,
    /// The sample that each thread is copying.
    at: Vec<Option<u32>>,
}

/// The node of `job` that holds each chunk, computed by the program's own code. With `keep_shares`, as for
/// local shares, no node holds more than 1.02 times its share while others have room.
///
/// # Errors
/// More nodes than a round can have.
pub(crate) fn holders(job: &Job, keep_shares: bool) -> dlfs::Result<ChunkHolders> {
    let chunk_bytes: Vec<u64> = (0..job.schedule.num_chunks())
        .map(|chunk| job.sizes[range(job, chunk)].iter().map(|&size| u64::from(size)).sum())
        .collect();
    let room_bytes = job.tier_bytes.iter().sum();
    let nodes = job.schedule.nodes();
    let share = chunk_bytes.iter().sum::<u64>() / u64::from(nodes);
    let share_bytes = if keep_shares { share.saturating_mul(102) / 100 } else { u64::MAX };
    let id = |node: u32| Key::derive(u64::from_be_bytes(*b"sim node"), &[node.into()]).word();
    let members: Vec<Member> =
        (0..nodes).map(|node| Member { id: id(node), room_bytes, share_bytes }).collect();
    ChunkHolders::new(HexId([0; 16]), &members, &chunk_bytes)
}

impl ByHash {
    /// Begins without copies; `holders` gives each chunk's holder. A holder fills its tiers from the fastest
    /// down.
    pub(crate) fn new(job: &Job, holders: &ChunkHolders) -> ByHash {
        let nodes = job.schedule.nodes() as usize;
        let mut room = vec![job.tier_bytes.clone(); nodes];
        let mut places = vec![None; job.sizes.len()];
        for chunk in 0..holders.num_chunks() {
            let Some(node) = holders.holder(chunk) else { continue };
            for sample in range(job, chunk) {
                let room = &mut room[usize::from(node)];
                let len = u64::from(job.sizes[sample]);
                if let Some(tier) = room.iter().position(|&room| len <= room) {
                    room[tier] -= len;
                    places[sample] = Some(Place { node, tier: tier as u8 });
                }
            }
        }
        let fills = job.model.tiers.iter().map(|stage| Fills {
            chunks: VecDeque::new(),
            next: 0,
            at: vec![None; stage.threads as usize],
        });
        ByHash {
            per_chunk: job.schedule.per_chunk(),
            states: vec![State::Absent; places.len()],
            places,
            is_begun: vec![false; holders.num_chunks() as usize],
            fills: vec![fills.collect(); nodes],
        }
    }
}

impl Copies for ByHash {
    /// The holder if it has a copy, else the origin.
    fn source(&self, _: &Model, node: u32, sample: u32) -> Source {
        match (self.places[sample as usize], self.states[sample as usize]) {
            (Some(place), State::Held) if u32::from(place.node) == node => {
                Source::Local(place.tier)
            }
            (Some(place), State::Held) => Source::Remote(place.tier),
            _ => Source::Origin,
        }
    }

    fn is_elsewhere(&self, node: u32, sample: u32) -> bool {
        self.places[sample as usize].is_some_and(|place| u32::from(place.node) != node)
    }

    fn is_coming(&self, _: u32, sample: u32) -> bool {
        self.states[sample as usize] == State::Coming
    }

    /// From now on the holder has the sample. Returns the holder if this is the first read of the chunk, so that the
    /// holder has to copy the rest.
    fn claimed(&mut self, _: u32, sample: u32, _: u32) -> Option<u32> {
        let place = self.places[sample as usize]?;
        self.states[sample as usize] = State::Held;
        let chunk = sample / self.per_chunk;
        if std::mem::replace(&mut self.is_begun[chunk as usize], true) {
            return None;
        }
        for fills in &mut self.fills[usize::from(place.node)] {
            fills.chunks.push_back(chunk);
        }
        Some(place.node.into())
    }

    fn next_fill(&mut self, node: u32, tier: usize, thread: usize) -> Option<u32> {
        let fills = &mut self.fills[node as usize][tier];
        while let Some(&chunk) = fills.chunks.front() {
            let first = chunk * self.per_chunk;
            let end = (first + self.per_chunk).min(self.places.len() as u32);
            let place = Some(Place { node: node as u16, tier: tier as u8 });
            let is_wanted = |&sample: &u32| {
                let sample = sample as usize;
                self.places[sample] == place && self.states[sample] == State::Absent
            };
            if let Some(sample) = (fills.next.max(first)..end).find(is_wanted) {
                self.states[sample as usize] = State::Coming;
                fills.next = sample + 1;
                fills.at[thread] = Some(sample);
                return Some(sample);
            }
            fills.chunks.pop_front();
            fills.next = 0;
        }
        None
    }

    fn filled(&mut self, node: u32, tier: usize, thread: usize) -> Option<u32> {
        let sample = self.fills[node as usize][tier].at[thread].take()?;
        self.states[sample as usize] = State::Held;
        Some(sample)
    }
}

/// The samples of `chunk`.
fn range(job: &Job, chunk: u32) -> Range<usize> {
    let per_chunk = job.schedule.per_chunk() as usize;
    let first = chunk as usize * per_chunk;
    first..(first + per_chunk).min(job.sizes.len())
}
