//! Time and memory of planning: frequencies and placement of one rank, and the holders of all ranks.
//!
//! `cargo bench --bench plan -- [SAMPLES [EPOCHS [RANKS]]]`, by default 10 M samples, 100 epochs and
//! 64 ranks. One thread does all of it. Samples have 16 KiB to 240 KiB, about ImageNet's lengths; the
//! tiers of a rank hold 1/16 and 1/8 of the data set.
//!
//! Limits: 60 s and 1 GB for a rank; 5 minutes and 12 bytes a sample for the map of all ranks.

#[path = "support/results.rs"]
mod results;

use std::time::Instant;

use dlfs::order::{OrderKind, OrderSpec, Population, Tail};
use dlfs::plan::{HolderMap, Planner, TrainingRun};
use dlfs::units::SampleId;

struct Samples(u64);

impl Population for Samples {
    fn num_live(&self) -> u64 {
        self.0
    }

    fn num_chunks(&self) -> u32 {
        1
    }

    fn live_in_chunk(&self, _chunk: u32) -> u32 {
        u32::try_from(self.0).expect("a bench of fewer than 2^32 samples")
    }

    fn id_of_live(&self, rank: u64) -> SampleId {
        SampleId(rank)
    }

    fn id_in_chunk(&self, _chunk: u32, nth: u32) -> SampleId {
        SampleId(u64::from(nth))
    }

    fn chunk_of(&self, _id: SampleId) -> Option<u32> {
        Some(0)
    }
}

fn len_bytes(sample: u64) -> u32 {
    16_384 + (sample.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u32 % 229_376
}

fn main() {
    results::record("plan");
    let numbers: Vec<u64> = std::env::args().filter_map(|arg| arg.parse().ok()).collect();
    let number = |index: usize, default| numbers.get(index).copied().unwrap_or(default);
    let samples = Samples(number(0, 10_000_000));
    let epochs = number(1, 100);
    let ranks = u32::try_from(number(2, 64)).expect("a world size");
    let order = OrderSpec { kind: OrderKind::Global, seed: 1 };
    let run =
        TrainingRun::new(&samples, order, 0..epochs, ranks, Tail::Keep).expect("a run with ranks");
    let all_blocks = samples.0 * (131_072 / BLOCK_LEN_BYTES);
    let tiers = [16, 8].map(|part| all_blocks / part);
    let lengths: Vec<u32> = (0..samples.0).map(len_bytes).collect();
    println!("{} samples, {epochs} epochs, {ranks} ranks, one thread", samples.0);
    println!("before planning: {} MB resident at most", peak_mb());

    let start = Instant::now();
    let mut planner = Planner::new(&run, &lengths, BLOCK_LEN_BYTES as u32).expect("a block length");
    let mut copies = [0_u64; 2];
    planner
        .plan(0, &tiers, &mut |copy| copies[usize::from(copy.tier)] += 1)
        .expect("tiers that an address can name");
    let seconds = start.elapsed().as_secs_f64();
    println!("one rank: {copies:?} copies in {seconds:.2} s, {} MB resident at most", peak_mb());

    let start = Instant::now();
    let mut map = HolderMap::empty(samples.0);
    for rank in 0..ranks {
        planner.plan(rank, &tiers, &mut |copy| map.add(rank, &copy)).expect("the same tiers");
    }
    let seconds = start.elapsed().as_secs_f64();
    let held = (0..samples.0).filter(|&id| map.holder(SampleId(id)).is_some()).count();
    let each = map.memory_bytes() as f64 / samples.0 as f64;
    println!(
        "all ranks: {held} samples held in {seconds:.2} s, map {each:.1} bytes a sample, {} MB resident at most",
        peak_mb()
    );
}

/// The peak memory of the process so far.
fn peak_mb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024 / 1_000_000
}

const BLOCK_LEN_BYTES: u64 = 512;
