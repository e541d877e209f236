//! Partial local shuffling: who has which sample, and what the ranks exchange.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::random::Random;
use dlfs::order::{EpochOrder, Exchanged, OrderKind, OrderSpec, Population, Positions, Shares};
use dlfs::units::{Epoch, SampleId};

/// `len` samples in chunks of 10.
struct Samples(u64);

impl Population for Samples {
    fn num_live(&self) -> u64 {
        self.0
    }

    fn num_chunks(&self) -> u32 {
        self.0.div_ceil(10) as u32
    }

    fn live_in_chunk(&self, chunk: u32) -> u32 {
        (self.0 - u64::from(chunk) * 10).min(10) as u32
    }

    fn id_of_live(&self, rank: u64) -> SampleId {
        SampleId(rank)
    }

    fn id_in_chunk(&self, chunk: u32, nth: u32) -> SampleId {
        SampleId((u64::from(chunk) * 10 + u64::from(nth)) * 7 % self.0)
    }

    fn chunk_of(&self, _: SampleId) -> Option<u32> {
        None
    }
}

fn partial(q: f64, world_size: u32, seed: u64) -> OrderSpec {
    OrderSpec { kind: OrderKind::Partial { q, world_size }, seed }
}

/// The exchanges of all ranks in `epoch`.
fn of_all(shares: &Shares, samples: &Samples, epoch: u64) -> Vec<Vec<Exchanged>> {
    let of = |rank| shares.exchanges(samples, rank, Epoch(epoch));
    (0..shares.world_size()).map(of).collect()
}

fn ids_of_all(shares: &Shares, samples: &Samples, epoch: u64) -> Vec<BTreeSet<SampleId>> {
    let of = |rank| shares.ids(samples, rank, Epoch(epoch)).into_iter().collect();
    (0..shares.world_size()).map(of).collect()
}

/// Numbers of samples without a common factor with the stride of the ids.
const NUMBERS: [u64; 5] = [40, 97, 100, 311, 1_000];

const WORLD_SIZES: [u32; 9] = [1, 2, 3, 4, 5, 7, 8, 16, 31];

const PARTS: [f64; 6] = [0.0, 0.1, 0.3, 0.5, 0.9, 1.0];

#[test]
fn in_each_step_every_rank_sends_one_sample_to_one_rank_and_receives_one_from_one() {
    for world_size in WORLD_SIZES {
        let samples = Samples(311);
        let shares = Shares::new(&partial(0.7, world_size, 5), &samples).unwrap();
        for epoch in [0, 1, 6] {
            let all = of_all(&shares, &samples, epoch);
            for step in 0..shares.num_steps() as usize {
                let mut receivers = BTreeSet::new();
                for (rank, exchanges) in (0..).zip(&all) {
                    let Exchanged { to, from, sends, receives } = exchanges[step];
                    assert!(receivers.insert(to), "two ranks send to {to} in step {step}");
                    assert_eq!(all[to as usize][step].from, rank);
                    assert_eq!(all[to as usize][step].receives, sends);
                    assert_eq!(all[from as usize][step].sends, receives);
                }
            }
        }
    }
}

#[test]
fn the_shares_of_all_ranks_are_all_samples_each_once_in_every_epoch() {
    for number in NUMBERS {
        for world_size in WORLD_SIZES {
            for q in PARTS {
                let samples = Samples(number);
                let shares = Shares::new(&partial(q, world_size, 9), &samples).unwrap();
                for epoch in [0, 1, 2, 9] {
                    let of_ranks = ids_of_all(&shares, &samples, epoch);
                    let lens: Vec<u64> = of_ranks.iter().map(|ids| ids.len() as u64).collect();
                    let expected: Vec<u64> = (0..world_size).map(|r| shares.len_of(r)).collect();
                    assert_eq!(lens, expected, "{number} samples, {world_size} ranks, q {q}");
                    let all: BTreeSet<SampleId> = of_ranks.into_iter().flatten().collect();
                    assert_eq!(all.len() as u64, number, "{world_size} ranks, q {q}");
                }
            }
        }
    }
}

#[test]
fn a_rank_that_sends_what_it_should_and_keeps_what_it_receives_has_its_next_share() {
    let samples = Samples(311);
    for world_size in WORLD_SIZES {
        for q in PARTS {
            let shares = Shares::new(&partial(q, world_size, 2), &samples).unwrap();
            for epoch in 0..4 {
                let before = ids_of_all(&shares, &samples, epoch);
                let after = ids_of_all(&shares, &samples, epoch + 1);
                for (rank, exchanges) in of_all(&shares, &samples, epoch).iter().enumerate() {
                    let mut held = before[rank].clone();
                    let moving = exchanges.iter().filter(|one| one.to as usize != rank);
                    let moving: Vec<_> = moving.collect();
                    held.extend(moving.iter().map(|one| one.receives));
                    let most = shares.len_of(rank as u32) + shares.num_steps();
                    assert!(held.len() as u64 <= most, "at most (1 + q) of a share");
                    moving.iter().for_each(|one| assert!(held.remove(&one.sends)));
                    assert_eq!(held, after[rank], "rank {rank} of {world_size}, epoch {epoch}");
                }
            }
        }
    }
}

#[test]
fn a_rank_reads_its_share_and_nothing_else() {
    let samples = Samples(311);
    for (world_size, q) in [(1, 0.5), (4, 0.0), (4, 0.3), (7, 1.0)] {
        let spec = partial(q, world_size, 77);
        let shares = Shares::new(&spec, &samples).unwrap();
        for epoch in 0..3 {
            let mut order = EpochOrder::new(&spec, Epoch(epoch), &samples).unwrap();
            for (rank, share) in (0..).zip(ids_of_all(&shares, &samples, epoch)) {
                let mut read = Vec::new();
                let count = shares.len_of(rank);
                let positions = Positions::new(rank.into(), world_size.into(), count);
                order.ids(&samples, positions, &mut read);
                assert_eq!(read.len() as u64, count);
                assert_eq!(BTreeSet::from_iter(read), share, "rank {rank} of {world_size}");
            }
        }
    }
}

#[test]
fn nothing_moves_without_a_part_and_with_all_of_it_all_but_fixed_points_do() {
    let samples = Samples(1_000);
    let still = Shares::new(&partial(0.0, 8, 3), &samples).unwrap();
    assert_eq!(still.num_steps(), 0);
    assert_eq!(ids_of_all(&still, &samples, 0), ids_of_all(&still, &samples, 7));
    let local = OrderSpec { kind: OrderKind::Local { world_size: 8 }, seed: 3 };
    let local = Shares::new(&local, &samples).unwrap();
    assert_eq!(ids_of_all(&still, &samples, 4), ids_of_all(&local, &samples, 4));

    let all = Shares::new(&partial(1.0, 8, 3), &samples).unwrap();
    assert_eq!(all.num_steps(), 125);
    let exchanged = of_all(&all, &samples, 0);
    let stays = |rank: u32, one: &Exchanged| one.to == rank;
    let fixed: usize =
        (0..).zip(&exchanged).map(|(r, e)| e.iter().filter(|x| stays(r, x)).count()).sum();
    println!("{fixed} fixed points in 125 steps of 8 ranks");
    assert!((60..220).contains(&fixed), "one a step on average");
    let entries: BTreeMap<SampleId, u32> =
        exchanged[0].iter().map(|one| (one.sends, one.to)).collect();
    assert_eq!(entries.len(), 125, "each sample of the share once");
    let global = OrderSpec { kind: OrderKind::Global, seed: 3 };
    assert!(Shares::new(&global, &samples).is_none());
}

#[test]
fn a_batch_makes_q_times_its_samples_due_and_fractions_add_up() {
    let mut random = Random::new(8);
    for _ in 0..2_000 {
        let world_size = random.below(12) as u32 + 2;
        let samples = Samples(random.below(3_000) + u64::from(world_size));
        let q = random.below(101) as f64 / 100.;
        let shares = Shares::new(&partial(q, world_size, 1), &samples).unwrap();
        let shortest = samples.0 / u64::from(world_size);
        let batch = random.below(40) + 1;
        let batches = shortest.div_ceil(batch);
        let due = |batches: u64| shares.steps_due(batches * batch);
        assert_eq!((due(0), due(batches)), (0, shares.num_steps()));
        for done in 0..batches {
            let before = due(done);
            let after = due(done + 1);
            assert!(before <= after && after <= shares.num_steps());
            if (done + 1) * batch < shortest {
                assert_eq!(after, ((done + 1) as f64 * batch as f64 * q).floor() as u64);
            }
        }
        if shortest.is_multiple_of(batch) {
            assert_eq!(shares.num_steps(), ((batches * batch) as f64 * q).floor() as u64);
        }
    }
}

#[test]
fn the_exchange_follows_from_seed_and_epoch_alone() {
    let samples = Samples(311);
    let of = |seed, epoch| {
        let shares = Shares::new(&partial(0.4, 5, seed), &samples).unwrap();
        of_all(&shares, &samples, epoch)
    };
    assert_eq!(of(1, 3), of(1, 3));
    assert_ne!(of(1, 3), of(1, 4));
    assert_ne!(of(1, 3), of(2, 3));
}
