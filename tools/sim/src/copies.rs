//! The copies of samples that nodes hold during the simulation: the trait [`Copies`], and the placements of policies
//! without peers or with a plan. `by_hash.rs` has the placement of `dlfs read --peers`.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use dlfs::plan::{HolderMap, Model, Planner, Source};
use dlfs::units::SampleId;

use crate::engine::Job;

/// The copies that nodes hold, which the engine asks for and changes.
///
/// Nodes, tiers of a node, and fill threads of a tier are numbered from 0. The methods of a policy without copies are
/// the default.
pub(crate) trait Copies {
    /// The tiers with a copy of `sample`: of `node`, and of another node.
    fn find(&self, _node: u32, _sample: u32) -> (Option<u8>, Option<u8>) {
        (None, None)
    }

    /// The source from which `node` reads `sample` now.
    fn source(&self, model: &Model, node: u32, sample: u32) -> Source {
        let (local, remote) = self.find(node, sample);
        model.choose(local, remote)
    }

    /// Returns whether another node reads `sample` from the origin for `node`, and sends it on.
    fn is_relayed(&self, _node: u32, _sample: u32) -> bool {
        false
    }

    /// Returns whether the staging threads of `node` wait for `sample`: a fill thread is copying it to the tier from
    /// which they would read it, and the policy lets them wait.
    fn is_being_copied(&self, _node: u32, _sample: u32) -> bool {
        false
    }

    /// Called when `node` starts to stage `sample`; some policies keep the sample. Returns the node whose fill threads
    /// now have more to copy, if any.
    fn on_claim(&mut self, _node: u32, _sample: u32, _len_bytes: u32) -> Option<u32> {
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
pub(crate) struct NoCopies;

impl Copies for NoCopies {}

/// At most one copy of each sample in all tiers, which all nodes read.
pub(crate) struct SingleCopies {
    /// By sample: `node << 8 | tier`, or [`NO_HOLDER`].
    places: Vec<u32>,
    /// True if a node keeps the samples that it is the first to read, in tier 0 without a limit.
    keeps_first_read: bool,
    /// Bytes held from the start in each tier of each node.
    pub(crate) used: Vec<Vec<u64>>,
}

/// Tiers that each node fills from the top with the samples that it reads first.
pub(crate) struct FirstTouch {
    /// By node: the tier of each sample that the node holds.
    tiers: Vec<HashMap<u32, u8>>,
    /// Free bytes of each tier of each node.
    free_bytes: Vec<Vec<u64>>,
}

/// The planned tiers of all nodes, and their filling.
pub(crate) struct Planned {
    /// For each sample, the node with the best planned copy; `None` if each node reads only its own tiers.
    holders: Option<HolderMap>,
    nodes: Vec<NodePlan>,
    /// `None`: only fill threads make copies. Otherwise staging threads keep planned samples that are missing: fill
    /// threads leave them the samples of this many coming accesses, and staging threads wait for a sample that a fill
    /// thread is copying.
    staging_margin: Option<u64>,
}

/// The nodes' use of a plan.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlanUse {
    /// Staging threads keep planned samples that are missing, as in NoPFS and dlfs but not in HDMLP.
    pub(crate) keep_staged: bool,
    /// Nodes read from each other.
    pub(crate) peers: bool,
}

/// The planned copies of one node.
struct NodePlan {
    /// The number of accesses that the staging threads have claimed.
    claimed: u64,
    /// Planned samples, sorted by id, each with `tier << TIER_SHIFT | lba`.
    by_id: Vec<(u32, u64)>,
    tiers: Vec<TierPlan>,
}

/// The planned copies of one tier, and how far they are made.
struct TierPlan {
    /// Samples in the order of filling, which is the order of their addresses.
    fills: Vec<Fill>,
    /// The entry of `fills` that the next free fill thread copies.
    next: usize,
    /// The entry of `fills` that each fill thread is copying.
    copying: Vec<Option<usize>>,
}

/// A planned copy in a tier.
#[derive(Debug, Clone, Copy)]
struct Fill {
    sample: u32,
    /// The node's first access of the sample, counted from the start of the run.
    first_access: u32,
    /// The address that the planner gave the copy, in blocks of the tier.
    lba: u64,
    is_done: bool,
}

impl SingleCopies {
    /// Begins without copies; each node keeps the samples that it is the first to read.
    pub(crate) fn first_reader(samples: usize) -> SingleCopies {
        let places = vec![NO_HOLDER; samples];
        SingleCopies { places, keeps_first_read: true, used: Vec::new() }
    }

    /// Each node holds the samples of its slice that fit its tiers, which are filled in the order `tiers`.
    pub(crate) fn slices(job: &Job, tiers: &[usize]) -> SingleCopies {
        let nodes = job.schedule.nodes();
        let samples = job.sizes.len();
        let mut places = vec![NO_HOLDER; samples];
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
        SingleCopies { places, keeps_first_read: false, used }
    }

    /// The node that holds `sample`.
    pub(crate) fn node_of(&self, sample: u32) -> Option<u32> {
        let place = self.places[sample as usize];
        (place != NO_HOLDER).then_some(place >> 8)
    }
}

impl Copies for SingleCopies {
    fn find(&self, node: u32, sample: u32) -> (Option<u8>, Option<u8>) {
        let place = self.places[sample as usize];
        match place {
            NO_HOLDER => (None, None),
            _ if place >> 8 == node => (Some(place as u8), None),
            _ => (None, Some(place as u8)),
        }
    }

    fn on_claim(&mut self, node: u32, sample: u32, _: u32) -> Option<u32> {
        let place = &mut self.places[sample as usize];
        if self.keeps_first_read && *place == NO_HOLDER {
            *place = node << 8;
        }
        None
    }
}

impl FirstTouch {
    /// Empty tiers of all nodes.
    pub(crate) fn new(job: &Job) -> FirstTouch {
        let nodes = job.schedule.nodes() as usize;
        let free_bytes = vec![job.tier_bytes.clone(); nodes];
        FirstTouch { tiers: vec![HashMap::new(); nodes], free_bytes }
    }
}

impl Copies for FirstTouch {
    fn find(&self, node: u32, sample: u32) -> (Option<u8>, Option<u8>) {
        (self.tiers[node as usize].get(&sample).copied(), None)
    }

    fn on_claim(&mut self, node: u32, sample: u32, len_bytes: u32) -> Option<u32> {
        if let Entry::Vacant(place) = self.tiers[node as usize].entry(sample)
            && let Some(tier) = take_room(&mut self.free_bytes[node as usize], len_bytes)
        {
            place.insert(tier);
        }
        None
    }
}

impl Planned {
    /// Plans all nodes of `job`.
    ///
    /// # Errors
    /// More tiers, or larger ones, than an address can encode.
    pub(crate) fn new(job: &Job, usage: PlanUse) -> dlfs::Result<Planned> {
        // Staging threads claim about this many samples in the time of a few transfers.
        let margin = 4 * u64::from(job.model.staging.threads);
        let staging_margin = usage.keep_staged.then_some(margin);
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
                copying: vec![None; stage.threads as usize],
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
        Ok(Planned { holders, nodes, staging_margin })
    }

    /// Returns whether the copy that `node` plans at `lba` of `tier` exists.
    fn has(&self, node: &NodePlan, tier: usize, lba: u64) -> bool {
        let fills = &node.tiers[tier].fills;
        let fill = fills.binary_search_by_key(&lba, |fill| fill.lba).map(|index| fills[index]);
        let is_kept = |fill: &Fill| u64::from(fill.first_access) < node.claimed;
        fill.is_ok_and(|fill| fill.is_done || self.staging_margin.is_some() && is_kept(&fill))
    }
}

impl Copies for Planned {
    fn find(&self, node: u32, sample: u32) -> (Option<u8>, Option<u8>) {
        let plan = &self.nodes[node as usize];
        let local = plan.by_id.binary_search_by_key(&sample, |entry| entry.0).ok();
        let local = local.and_then(|index| {
            let tier = plan.by_id[index].1 >> TIER_SHIFT;
            let lba = plan.by_id[index].1 & LBA_MASK;
            self.has(plan, tier as usize, lba).then_some(tier as u8)
        });
        let holders = self.holders.as_ref();
        let holder = holders.and_then(|holders| holders.holder(SampleId(u64::from(sample))));
        let remote = holder.filter(|holder| {
            let other = &self.nodes[holder.rank as usize];
            holder.rank != node && self.has(other, usize::from(holder.tier), holder.lba.0)
        });
        (local, remote.map(|holder| holder.tier))
    }

    fn is_being_copied(&self, node: u32, sample: u32) -> bool {
        let tiers = self.nodes[node as usize].tiers.iter();
        let mut copying =
            tiers.flat_map(|tier| tier.copying.iter().flatten().map(|&at| tier.fills[at]));
        self.staging_margin.is_some() && copying.any(|fill| fill.sample == sample)
    }

    fn on_claim(&mut self, node: u32, _: u32, _: u32) -> Option<u32> {
        self.nodes[node as usize].claimed += 1;
        None
    }

    fn next_fill(&mut self, node: u32, tier: usize, thread: usize) -> Option<u32> {
        let node = &mut self.nodes[node as usize];
        let tier = &mut node.tiers[tier];
        if let Some(margin) = self.staging_margin {
            let near = |fill: &&Fill| u64::from(fill.first_access) < node.claimed + margin;
            tier.next += tier.fills[tier.next..].iter().take_while(near).count();
        }
        let fill = tier.fills.get(tier.next)?;
        tier.copying[thread] = Some(tier.next);
        tier.next += 1;
        Some(fill.sample)
    }

    fn filled(&mut self, node: u32, tier: usize, thread: usize) -> Option<u32> {
        let tier = &mut self.nodes[node as usize].tiers[tier];
        let fill = &mut tier.fills[tier.copying[thread].take()?];
        fill.is_done = true;
        Some(fill.sample)
    }
}

/// Takes `len_bytes` of the first tier with room; returns the tier. `free_bytes` has the free bytes of each tier.
pub(crate) fn take_room(free_bytes: &mut [u64], len_bytes: u32) -> Option<u8> {
    let len = u64::from(len_bytes);
    let tier = free_bytes.iter().position(|&free| len <= free)?;
    free_bytes[tier] -= len;
    Some(tier as u8)
}

/// The smallest block length that can address the largest tier, so that small samples waste little.
fn block_len_bytes(job: &Job) -> u32 {
    let largest = job.tier_bytes.iter().copied().max().unwrap_or(0);
    let fits = |&len: &u32| largest / u64::from(len) <= 1 << 36;
    [512, 1024, 2048].into_iter().find(fits).unwrap_or(4096)
}

/// The samples of `node`'s slice: node after node has an equal part of the ids.
pub(crate) fn slice(samples: usize, node: u32, nodes: u32) -> std::ops::Range<usize> {
    let node = node as usize;
    let nodes = nodes as usize;
    samples * node / nodes..samples * (node + 1) / nodes
}

/// The value of [`SingleCopies::places`] for a sample without a copy.
const NO_HOLDER: u32 = u32::MAX;
/// The lowest bit of the tier in an entry of [`NodePlan::by_id`]: block addresses in a plan are below 2^36.
const TIER_SHIFT: u32 = 40;
/// The bits of the block address in an entry of [`NodePlan::by_id`].
const LBA_MASK: u64 = (1 << TIER_SHIFT) - 1;
