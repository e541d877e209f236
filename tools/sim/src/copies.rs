//! Where copies of samples are, by policy, while the simulation runs.

use std::collections::HashMap;

use dlfs::plan::{HolderMap, Model, PlanError, Planner, Source, Tier};
use dlfs::units::SampleId;

use crate::engine::Job;

/// The copies that nodes hold.
#[derive(Debug)]
pub enum Copies {
    /// None: everything comes from the origin; in whole chunks or not.
    None {
        /// Whether whole chunks are read.
        chunks: bool,
    },
    /// One of each sample, known to all nodes.
    Shared(Shared),
    /// First come, first kept, by each node for itself.
    FirstTouch(FirstTouch),
    /// By the planner, and filled while the training runs.
    Planned(Box<Planned>),
}

/// At most one copy of each sample, and who has it.
#[derive(Debug)]
pub struct Shared {
    /// `node << 8 | tier`, or nobody.
    places: Vec<u32>,
    /// Whether a node keeps what it reads first, in tier 0.
    fill: bool,
}

/// Tiers that each node fills top down with what it reads first.
#[derive(Debug)]
pub struct FirstTouch {
    nodes: Vec<HashMap<u32, u8>>,
    /// Bytes that are left in each tier of each node.
    room: Vec<Vec<u64>>,
}

/// The tiers of all nodes as planned, and how far they are filled.
#[derive(Debug)]
pub struct Planned {
    holders: HolderMap,
    nodes: Vec<NodePlan>,
    /// A staging thread keeps what is planned and not there; the fill thread then skips it.
    keep_staged: bool,
}

#[derive(Debug)]
struct NodePlan {
    /// Planned samples by id, each with tier and block address.
    by_id: Vec<(u32, u64)>,
    tiers: Vec<TierPlan>,
}

#[derive(Debug)]
struct TierPlan {
    /// Samples in the order of filling, with address and first access.
    fills: Vec<Fill>,
    next: usize,
    /// What each fill thread is at, or nothing.
    at: Vec<usize>,
}

#[derive(Debug, Clone, Copy)]
struct Fill {
    sample: u32,
    first_access: u32,
    lba: u64,
}

impl Copies {
    /// Whether the origin is read in whole chunks.
    pub fn reads_chunks(&self) -> bool {
        matches!(self, Copies::None { chunks: true })
    }

    /// Where `node` reads `sample` from now.
    pub fn source(&self, model: &Model, node: u32, sample: u32) -> Source {
        let (local, remote) = match self {
            Copies::None { .. } => (None, None),
            Copies::Shared(shared) => shared.find(node, sample),
            Copies::FirstTouch(touched) => {
                (touched.nodes[node as usize].get(&sample).copied(), None)
            }
            Copies::Planned(planned) => planned.find(node, sample),
        };
        model.choose(local, remote)
    }

    /// Whether a fill thread of `node` is at `sample`, and its staging threads wait for that.
    pub fn is_coming(&self, node: u32, sample: u32) -> bool {
        let Copies::Planned(planned) = self else { return false };
        let tiers = planned.nodes[node as usize].tiers.iter();
        let at = tiers.flat_map(|tier| tier.at.iter().filter_map(|&at| tier.fills.get(at)));
        planned.keep_staged && at.into_iter().any(|fill| fill.sample == sample)
    }

    /// `node` stages `sample`: some policies keep it.
    pub fn claimed(&mut self, node: u32, sample: u32, len_bytes: u32) {
        match self {
            Copies::Shared(shared) if shared.fill => {
                let place = &mut shared.places[sample as usize];
                if *place == NOBODY {
                    *place = node << 8;
                }
            }
            Copies::FirstTouch(touched) => touched.touch(node, sample, len_bytes),
            // What a planned node stages is kept too: `next_fill` skips what was claimed.
            _ => (),
        }
    }

    /// The sample that thread `thread` of `tier` copies next, where `node` has claimed `claimed`
    /// accesses.
    pub fn next_fill(
        &mut self,
        node: u32,
        tier: usize,
        thread: usize,
        claimed: u64,
    ) -> Option<u32> {
        let Copies::Planned(planned) = self else { return None };
        let keep_staged = planned.keep_staged;
        let tier = &mut planned.nodes[node as usize].tiers[tier];
        if keep_staged {
            let later = |fill: &&Fill| u64::from(fill.first_access) < claimed;
            tier.next += tier.fills[tier.next..].iter().take_while(later).count();
        }
        let fill = tier.fills.get(tier.next)?;
        tier.at[thread] = tier.next;
        tier.next += 1;
        Some(fill.sample)
    }

    /// Thread `thread` of `tier` has copied what it was at.
    pub fn filled(&mut self, node: u32, tier: usize, thread: usize) {
        if let Copies::Planned(planned) = self {
            planned.nodes[node as usize].tiers[tier].at[thread] = usize::MAX;
        }
    }
}

impl Shared {
    /// No copy yet; each node keeps what it reads first.
    pub fn first_reader(samples: usize) -> Shared {
        Shared { places: vec![NOBODY; samples], fill: true }
    }

    /// Each node has its slice of the samples, as far as tiers of `room` in the order `tiers` hold it.
    /// Returns the bytes that go to each tier of each node too.
    pub fn slices(job: &Job, tiers: &[usize]) -> (Shared, Vec<Vec<u64>>) {
        let (nodes, samples) = (job.schedule.nodes(), job.sizes.len());
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
        (Shared { places, fill: false }, used)
    }

    /// The node that has `sample`.
    pub fn node_of(&self, sample: u32) -> Option<u32> {
        let place = self.places[sample as usize];
        (place != NOBODY).then_some(place >> 8)
    }

    fn find(&self, node: u32, sample: u32) -> (Option<u8>, Option<u8>) {
        let place = self.places[sample as usize];
        match place {
            NOBODY => (None, None),
            _ if place >> 8 == node => (Some(place as u8), None),
            _ => (None, Some(place as u8)),
        }
    }
}

impl FirstTouch {
    /// Empty tiers of all nodes.
    pub fn new(job: &Job) -> FirstTouch {
        let nodes = job.schedule.nodes() as usize;
        FirstTouch { nodes: vec![HashMap::new(); nodes], room: vec![job.tier_bytes.clone(); nodes] }
    }

    fn touch(&mut self, node: u32, sample: u32, len_bytes: u32) {
        let (copies, room) = (&mut self.nodes[node as usize], &mut self.room[node as usize]);
        if copies.contains_key(&sample) {
            return;
        }
        let len = u64::from(len_bytes);
        if let Some(tier) = room.iter().position(|&room| len <= room) {
            room[tier] -= len;
            copies.insert(sample, tier as u8);
        }
    }
}

impl Planned {
    /// Plans all nodes of `job`.
    ///
    /// # Errors
    /// Tiers that an address cannot name.
    pub fn new(job: &Job, keep_staged: bool) -> Result<Planned, PlanError> {
        let blocks = |&bytes: &u64| Tier { num_blocks: bytes / u64::from(BLOCK_LEN_BYTES) };
        let tiers: Vec<Tier> = job.tier_bytes.iter().map(blocks).collect();
        let mut planner = Planner::new(&job.schedule, &job.sizes[..], BLOCK_LEN_BYTES)?;
        let mut holders = HolderMap::empty(job.sizes.len() as u64);
        let mut nodes = Vec::with_capacity(job.schedule.nodes() as usize);
        for node in 0..job.schedule.nodes() {
            let tier = |stage: &dlfs::plan::Stage| TierPlan {
                fills: Vec::new(),
                next: 0,
                at: vec![usize::MAX; stage.threads as usize],
            };
            let mut plan =
                NodePlan { by_id: Vec::new(), tiers: job.model.tiers.iter().map(tier).collect() };
            planner.place(node, &tiers, &mut |copy| {
                holders.add(node, &copy);
                let (sample, lba) = (copy.sample.0 as u32, copy.lba.0);
                plan.by_id.push((sample, u64::from(copy.tier) << TIER_SHIFT | lba));
                let first_access = copy.first_access.min(u64::from(u32::MAX)) as u32;
                plan.tiers[usize::from(copy.tier)].fills.push(Fill { sample, first_access, lba });
            })?;
            plan.by_id.sort_unstable();
            plan.by_id.shrink_to_fit();
            nodes.push(plan);
        }
        Ok(Planned { holders, nodes, keep_staged })
    }

    fn find(&self, node: u32, sample: u32) -> (Option<u8>, Option<u8>) {
        let own = &self.nodes[node as usize];
        let local = own.by_id.binary_search_by_key(&sample, |entry| entry.0).ok();
        let local = local.and_then(|index| {
            let (tier, lba) = (own.by_id[index].1 >> TIER_SHIFT, own.by_id[index].1 & LBA_MASK);
            own.tiers[tier as usize].has(lba).then_some(tier as u8)
        });
        let holder = self.holders.holder(SampleId(u64::from(sample)));
        let remote = holder.filter(|holder| {
            let tier = &self.nodes[holder.rank as usize].tiers[usize::from(holder.tier)];
            holder.rank != node && tier.has(holder.lba.0)
        });
        (local, remote.map(|holder| holder.tier))
    }
}

impl TierPlan {
    /// Whether the copy at `lba` is there: filled, and none before it still on its way.
    fn has(&self, lba: u64) -> bool {
        let first_missing = self.at.iter().copied().min().unwrap_or(usize::MAX).min(self.next);
        self.fills.get(first_missing).is_none_or(|fill| lba < fill.lba)
    }
}

/// The samples of `node`'s slice.
pub fn slice(samples: usize, node: u32, nodes: u32) -> std::ops::Range<usize> {
    let (node, nodes) = (node as usize, nodes as usize);
    samples * node / nodes..samples * (node + 1) / nodes
}

const NOBODY: u32 = u32::MAX;
const BLOCK_LEN_BYTES: u32 = 512;
const TIER_SHIFT: u32 = 40;
const LBA_MASK: u64 = (1 << TIER_SHIFT) - 1;
