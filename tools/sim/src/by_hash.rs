//! The copies of peers by hash, as in `dlfs read --peers`: the program's own table gives each chunk at most one holder.
//!
//! Nodes read a sample from the holder of its chunk; if the holder lacks the sample, the holder reads it from the
//! origin and keeps it. The first read of a chunk makes its holder copy the rest in the background, chunk after
//! chunk in the order of these first reads; a node that wants a sample that is being copied waits for the copy.
//! A sample for which no node has room always comes from the origin.

use std::collections::VecDeque;
use std::ops::Range;

use dlfs::order::HexId;
use dlfs::permutation::Key;
use dlfs::plan::{ChunkHolders, Member, Model, Source};

use crate::copies::{Copies, take_room};
use crate::engine::Job;

/// The copies of all nodes.
pub(crate) struct ByHash {
    /// Samples of each chunk but the last.
    per_chunk: u32,
    /// The place of each sample, present or future; `None` if its chunk has no holder, or the holder no room.
    places: Vec<Option<Place>>,
    /// The state of each sample.
    states: Vec<CopyState>,
    /// By chunk: set after its first read.
    is_begun: Vec<bool>,
    /// The work of fill threads, by node, then by tier.
    fills: Vec<Vec<TierFills>>,
}

/// A tier of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    node: u16,
    tier: u8,
}

/// The state of the copy of one sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CopyState {
    /// Only the origin has the sample.
    Absent,
    /// A fill thread of the holder is copying the sample.
    Copying,
    /// The holder has the sample, or is fetching it to answer a read.
    Held,
}

/// The work of one tier's fill threads.
#[derive(Clone)]
struct TierFills {
    /// Chunks to complete.
    chunks: VecDeque<u32>,
    /// The next sample of the first chunk.
    next: u32,
    /// The sample that each thread is copying.
    copying: Vec<Option<u32>>,
}

impl ByHash {
    /// Begins without copies; `holders` gives each chunk's holder. A holder fills its tiers from the fastest
    /// down.
    pub(crate) fn new(job: &Job, holders: &ChunkHolders) -> ByHash {
        let nodes = job.schedule.nodes() as usize;
        let mut free_bytes = vec![job.tier_bytes.clone(); nodes];
        let mut places = vec![None; job.sizes.len()];
        for chunk in 0..holders.num_chunks() {
            let Some(node) = holders.holder(chunk) else { continue };
            for sample in range(job, chunk) {
                let tier = take_room(&mut free_bytes[usize::from(node)], job.sizes[sample]);
                places[sample] = tier.map(|tier| Place { node, tier });
            }
        }
        let fills = job.model.tiers.iter().map(|stage| TierFills {
            chunks: VecDeque::new(),
            next: 0,
            copying: vec![None; stage.threads as usize],
        });
        ByHash {
            per_chunk: job.schedule.per_chunk(),
            states: vec![CopyState::Absent; places.len()],
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
            (Some(place), CopyState::Held) if u32::from(place.node) == node => {
                Source::Local(place.tier)
            }
            (Some(place), CopyState::Held) => Source::Remote(place.tier),
            _ => Source::Origin,
        }
    }

    fn is_relayed(&self, node: u32, sample: u32) -> bool {
        self.places[sample as usize].is_some_and(|place| u32::from(place.node) != node)
    }

    fn is_being_copied(&self, _: u32, sample: u32) -> bool {
        self.states[sample as usize] == CopyState::Copying
    }

    /// From now on the holder has the sample. Returns the holder if this is the first read of the chunk, so that the
    /// holder has to copy the rest.
    fn on_claim(&mut self, _: u32, sample: u32, _: u32) -> Option<u32> {
        let place = self.places[sample as usize]?;
        self.states[sample as usize] = CopyState::Held;
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
                self.places[sample] == place && self.states[sample] == CopyState::Absent
            };
            if let Some(sample) = (fills.next.max(first)..end).find(is_wanted) {
                self.states[sample as usize] = CopyState::Copying;
                fills.next = sample + 1;
                fills.copying[thread] = Some(sample);
                return Some(sample);
            }
            fills.chunks.pop_front();
            fills.next = 0;
        }
        None
    }

    fn filled(&mut self, node: u32, tier: usize, thread: usize) -> Option<u32> {
        let sample = self.fills[node as usize][tier].copying[thread].take()?;
        self.states[sample as usize] = CopyState::Held;
        Some(sample)
    }
}

/// The node of `job` that holds each chunk, computed by the program's own code. With `keep_shares`, as for local
/// shares, no node holds more than 1.02 times an equal share while others have room.
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

/// The samples of `chunk`.
fn range(job: &Job, chunk: u32) -> Range<usize> {
    let per_chunk = job.schedule.per_chunk() as usize;
    let first = chunk as usize * per_chunk;
    first..(first + per_chunk).min(job.sizes.len())
}
