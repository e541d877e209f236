//! Plans of all ranks of a run.

use std::collections::BTreeMap;

use dlfs::order::{OrderKind, OrderSpec, Population, Tail};
use dlfs::plan::{Planner, TrainingRun};
use dlfs::units::SampleId;

const BLOCK_LEN_BYTES: u32 = 512;

/// Equal samples in one chunk.
struct Equal(u32);

impl Population for Equal {
    fn num_live(&self) -> u64 {
        self.0.into()
    }

    fn num_chunks(&self) -> u32 {
        1
    }

    fn live_in_chunk(&self, _: u32) -> u32 {
        self.0
    }

    fn id_of_live(&self, rank: u64) -> SampleId {
        SampleId(rank)
    }

    fn id_in_chunk(&self, _: u32, nth: u32) -> SampleId {
        SampleId(nth.into())
    }

    fn chunk_of(&self, _: SampleId) -> Option<u32> {
        Some(0)
    }
}

#[test]
fn every_rank_computes_the_same_plans_and_no_copies_overlap() {
    let lengths: Vec<u32> = (0..240).map(|id| id * 977 % 3_000).collect();
    let order = OrderSpec { kind: OrderKind::Global, seed: 9 };
    let all = Equal(240);
    let run = TrainingRun::new(&all, order, 0..7, 3, Tail::Keep).unwrap();
    // Two tiers on each of three ranks, together too small for all samples.
    let tiers = [30, 40, 20].map(|blocks: u64| [blocks, 2 * blocks]);
    let plan_all = || {
        let mut planner = Planner::new(&run, &lengths[..], BLOCK_LEN_BYTES).unwrap();
        let mut copies = Vec::new();
        for (rank, tiers) in (0..).zip(&tiers) {
            planner.plan(rank, tiers, &mut |copy| copies.push((rank, copy))).unwrap();
        }
        copies
    };
    let copies = plan_all();
    assert!((1..3).all(|_| plan_all() == copies), "each rank plans for all of them");
    let mut held = BTreeMap::new();
    for (rank, copy) in copies {
        let blocks = u64::from(lengths[copy.sample.0 as usize].div_ceil(BLOCK_LEN_BYTES).max(1));
        let tier = tiers[rank as usize][usize::from(copy.tier)];
        assert!(copy.lba.0 + blocks <= tier, "rank {rank}: {copy:?}");
        let place = (rank, copy.tier, copy.lba.0);
        assert_eq!(held.insert(place, blocks), None, "two copies at {place:?}");
    }
    assert!((40..=270).contains(&held.len()), "{} copies in 270 blocks", held.len());
    let copies: Vec<_> = held.into_iter().collect();
    for pair in copies.windows(2) {
        let [((rank, tier, lba), blocks), (next, _)] = [pair[0], pair[1]];
        assert!((rank, tier) != (next.0, next.1) || lba + blocks <= next.2, "{pair:?}");
    }
}

/// The share of the reads sent to another node for which a second other node has a copy.
fn share_with_a_second_copy(nodes: u32, epochs: u64) -> f64 {
    const BLOCKS: u32 = 8;
    let num = 500 * nodes;
    let lengths = vec![BLOCKS * BLOCK_LEN_BYTES; num as usize];
    let order = OrderSpec { kind: OrderKind::Global, seed: 9 };
    let all = Equal(num);
    let run = TrainingRun::new(&all, order, 0..epochs, nodes, Tail::Keep).unwrap();
    let mut planner = Planner::new(&run, &lengths[..], BLOCK_LEN_BYTES).unwrap();
    let tier = [u64::from(num / nodes * BLOCKS)];
    let mut copies = vec![0_u32; num as usize];
    let mut plans = Vec::new();
    for rank in 0..nodes {
        let mut kept = vec![false; num as usize];
        planner.plan(rank, &tier, &mut |copy| kept[copy.sample.0 as usize] = true).unwrap();
        copies.iter_mut().zip(&kept).for_each(|(copies, kept)| *copies += u32::from(*kept));
        let reads = |sample| planner.frequencies().of(SampleId(sample));
        plans.push((kept, (0..num.into()).map(reads).collect::<Vec<_>>()));
    }
    let mut sent = 0;
    let mut twice = 0;
    for (kept, reads) in plans {
        for (sample, reads) in reads.iter().enumerate().filter(|(sample, _)| !kept[*sample]) {
            sent += u64::from(*reads) * u64::from(copies[sample] > 0);
            twice += u64::from(*reads) * u64::from(copies[sample] > 1);
        }
    }
    twice as f64 / sent as f64
}

/// So a batch that waits for a node waits, as a whole, whatever copies of some of its samples others have.
#[test]
fn most_reads_that_plans_send_to_other_nodes_have_one_copy_to_read() {
    for (nodes, epochs) in [(4, 4), (4, 10), (4, 90), (8, 10), (8, 90), (64, 10), (64, 90)] {
        let share = share_with_a_second_copy(nodes, epochs);
        println!("{nodes} nodes, {epochs} epochs: {:.1} % have a second one", 100. * share);
        assert!(share < 0.5, "{nodes} nodes, {epochs} epochs: {share}");
    }
}
