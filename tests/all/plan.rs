//! Plans of whole data sets: equal on every rank without messages, and specific to the data set.

use std::collections::BTreeMap;

use crate::images;
use dlfs::directory::Directory;
use dlfs::format::{ImageLayout, Pack, Uuid};
use dlfs::order::{ImageId, OrderKind, OrderSpec, Population, Tail};
use dlfs::plan::{
    Inputs, JointPlan, PlanError, Planner, RankInputs, Rate, Tier, TierInputs, TrainingRun,
};
use dlfs::units::SampleId;
use dlfs::{Error, ErrorKind};

const BLOCK_LEN_BYTES: u32 = 512;

/// Two tiers on each of three ranks, together too small for all samples.
fn inputs(directory: &Directory) -> Inputs {
    let tier = |num_blocks| TierInputs { num_blocks, read: Rate::mb_per_s(500) };
    let rank = |blocks| RankInputs { tiers: vec![tier(blocks), tier(2 * blocks)] };
    Inputs {
        image: ImageId(directory.uuid().0),
        generation: directory.generation(),
        order: OrderSpec { kind: OrderKind::Global, seed: 9 },
        first_epoch: 0,
        num_epochs: 7,
        consumed: 0,
        tail: Tail::Keep,
        block_len_bytes: BLOCK_LEN_BYTES,
        ranks: vec![rank(30), rank(40), rank(20)],
    }
}

fn image(uuid: u8) -> images::Image {
    let mut media = images::Image::new(1, Pack::Aligned);
    let uuid = Uuid::from_random_bytes([uuid; 16]);
    media.layout = ImageLayout::new(uuid, 64 << 10, Pack::Aligned, 1).unwrap();
    media
}

#[test]
fn a_plan_of_another_data_set_or_generation_is_refused() {
    let samples = images::folder(2, 60);
    let mut media = image(1);
    let first = media.add(&samples, 7, 120, &[]);
    let plan = JointPlan::new(&inputs(&first), &first).unwrap();
    plan.check(&first).unwrap();

    let second = media.delete(&[3]);
    let stale =
        PlanError::OtherGeneration { planned: first.generation(), open: second.generation() };
    assert_eq!(plan.check(&second), Err(stale.clone()));
    assert_eq!(JointPlan::new(&inputs(&first), &second), Err(stale.clone()));
    let error = Error::from(stale);
    assert!(
        error.kind() == ErrorKind::Stale && error.to_string().contains("generation"),
        "{error}"
    );
    let again = JointPlan::new(&inputs(&second), &second).unwrap();
    assert_eq!(again.holder(SampleId(3)), None, "nobody keeps what is deleted");
    assert_ne!(again.name(), plan.name());

    // As many samples with the same lengths and ids: only the UUID distinguishes them.
    let other = image(2).add(&samples, 7, 120, &[]);
    let foreign =
        PlanError::OtherImage { planned: ImageId(first.uuid().0), open: ImageId(other.uuid().0) };
    assert_eq!(plan.check(&other), Err(foreign.clone()));
    assert_eq!(JointPlan::new(&inputs(&first), &other), Err(foreign.clone()));
    let error = Error::from(foreign);
    assert!(error.kind() == ErrorKind::InvalidArgument && error.to_string().contains("image"));
}

#[test]
fn impossible_inputs_are_refused_before_planning() {
    let directory = image(1).add(&images::folder(1, 10), 7, 10, &[]);
    let refuse = |change: fn(&mut Inputs)| {
        let mut inputs = inputs(&directory);
        change(&mut inputs);
        JointPlan::new(&inputs, &directory).unwrap_err()
    };
    assert_eq!(refuse(|inputs| inputs.ranks.clear()), PlanError::Ranks { ranks: 0 });
    let len_bytes = 1_000;
    let refused = refuse(|inputs| inputs.block_len_bytes = 1_000);
    assert_eq!(refused, PlanError::BlockLen { len_bytes });
    let blocks = (1 << 36) + 1;
    let refused = refuse(|inputs| inputs.ranks[1].tiers[0].num_blocks = (1 << 36) + 1);
    assert_eq!(refused, PlanError::Capacity { blocks });
}

#[test]
fn every_rank_computes_the_same_plan_from_all_inputs_and_no_copies_overlap() {
    let directory = image(1).add(&images::folder(4, 60), 7, 240, &[]);
    let known = inputs(&directory);
    // Each rank puts its own tiers into the rendezvous, and plans with what it finds there.
    let told: Vec<Vec<u8>> = known.ranks.iter().map(|rank| rank.to_bytes().unwrap()).collect();
    let plans: Vec<JointPlan> = (0..3)
        .map(|_| {
            let ranks = told.iter().map(|bytes| RankInputs::from_bytes(bytes).unwrap()).collect();
            JointPlan::new(&Inputs { ranks, ..known.clone() }, &directory).unwrap()
        })
        .collect();
    assert!(plans.iter().all(|plan| *plan == plans[0]));
    let mut held = BTreeMap::new();
    for id in (0..240).map(SampleId) {
        let Some(holder) = plans[0].holder(id) else { continue };
        let tier = known.ranks[holder.rank as usize].tiers[usize::from(holder.tier)];
        let blocks = u64::from(directory.len_bytes(id).unwrap().div_ceil(BLOCK_LEN_BYTES).max(1));
        assert!(holder.lba.0 + blocks <= tier.num_blocks, "{id}: {holder:?}");
        let place = (holder.rank, holder.tier, holder.lba.0);
        assert_eq!(held.insert(place, blocks), None, "two samples at {place:?}");
    }
    assert!((30..240).contains(&held.len()), "{} of 240 samples are held", held.len());
    let copies: Vec<_> = held.into_iter().collect();
    for pair in copies.windows(2) {
        let [((rank, tier, lba), blocks), (next, _)] = [pair[0], pair[1]];
        assert!((rank, tier) != (next.0, next.1) || lba + blocks <= next.2, "{pair:?}");
    }
    assert_eq!(plans[0].memory_bytes(), 240 * 8);
}

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

/// The share of the reads sent to another node for which a second other node has a copy.
fn share_with_a_second_copy(nodes: u32, epochs: u64) -> f64 {
    const BLOCKS: u32 = 8;
    let num = 500 * nodes;
    let lengths = vec![BLOCKS * BLOCK_LEN_BYTES; num as usize];
    let order = OrderSpec { kind: OrderKind::Global, seed: 9 };
    let all = Equal(num);
    let run = TrainingRun::new(&all, order, 0..epochs, nodes, Tail::Keep).unwrap();
    let mut planner = Planner::new(&run, &lengths[..], BLOCK_LEN_BYTES).unwrap();
    let tier = [Tier { num_blocks: u64::from(num / nodes * BLOCKS) }];
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
