//! The cost of an order: nanoseconds per sample, and the set-up of an epoch.
//!
//! Run: `cargo bench --bench order`. One thread, no I/O; 1,281,167 samples (ImageNet-1K's number) of
//! 38 a chunk, batches of 256. Shares are timed by the thread's processor clock and have a bar; if one misses
//! it, the bench exits with code 1.

#[path = "support/results.rs"]
mod results;

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use dlfs::order::budget::{Budget, Deal};
use dlfs::order::mixture::{Batching, Mixture, MixtureSpec, Part, Source, Weight};
use dlfs::order::weighted::{Draws, LabelWeights, Weights};
use dlfs::order::{
    Aligner, ByNode, EpochOrder, Locality, OrderKind, OrderSpec, Population, Positions,
    SequentialBy, Shard, Sharding, Tail,
};
use dlfs::permutation::{Key, Permutation};
use dlfs::units::{Epoch, SampleId};
use rustix::time::{ClockId, clock_gettime};

const SAMPLES: u64 = 1_281_167;
const PER_CHUNK: u64 = 38;
const BATCH: u64 = 256;

/// The most processor time that a rank's share of a global batch may take.
const SHARE_BAR_MS: f64 = 15.0;

/// A live sample's id is its index, so that only the cost of the order itself is measured.
struct Even;

impl Population for Even {
    fn num_live(&self) -> u64 {
        SAMPLES
    }

    fn num_chunks(&self) -> u32 {
        SAMPLES.div_ceil(PER_CHUNK) as u32
    }

    fn live_in_chunk(&self, chunk: u32) -> u32 {
        PER_CHUNK.min(SAMPLES - u64::from(chunk) * PER_CHUNK) as u32
    }

    fn id_of_live(&self, rank: u64) -> SampleId {
        SampleId(rank)
    }

    fn id_in_chunk(&self, chunk: u32, nth: u32) -> SampleId {
        SampleId(u64::from(chunk) * PER_CHUNK + u64::from(nth))
    }

    fn chunk_of(&self, id: SampleId) -> Option<u32> {
        Some((id.0 / PER_CHUNK) as u32)
    }
}

fn main() {
    results::record("order");
    println!("{SAMPLES} samples, {PER_CHUNK} a chunk, batches of {BATCH}");
    for len in [SAMPLES, 1 << 40] {
        let permutation = Permutation::new(len, Key::new(1));
        let start = Instant::now();
        (0..SAMPLES).for_each(|index| _ = black_box(permutation.forward(index)));
        let nanos = start.elapsed().as_nanos() as f64 / SAMPLES as f64;
        println!("permutation of {len:<32}{nanos:>8.1} ns a value");
    }
    let grouped = |lanes, group| OrderKind::Grouped { lanes, group };
    for (name, kind, epoch) in [
        ("sequential by id", OrderKind::Sequential { by: SequentialBy::Id }, 0),
        ("sequential by slot", OrderKind::Sequential { by: SequentialBy::Slot }, 0),
        ("global", OrderKind::Global, 0),
        ("grouped, 1 lane of 1 chunk", grouped(1, 1), 0),
        ("grouped, 1 lane of 32 chunks", grouped(1, 32), 0),
        ("grouped, 8 lanes of 4 chunks", grouped(8, 4), 0),
        ("grouped, 64 lanes of 8 chunks", grouped(64, 8), 0),
        ("local, 8 ranks", OrderKind::Local { world_size: 8 }, 0),
        ("partial 0.3, 8 ranks, epoch 10", OrderKind::Partial { q: 0.3, world_size: 8 }, 10),
    ] {
        time_epoch(name, kind, epoch);
    }
    for batching in [Batching::Stratified, Batching::Random] {
        time_mixture(batching);
    }
    time_weighted();
    for kind in [OrderKind::Global, grouped(8, 4)] {
        time_budget(kind);
    }
    println!("| a rank's share of a global batch | CPU on one core | bar | |");
    println!("|---|---|---|---|");
    let mut is_met = true;
    for (world_size, lanes) in
        [(1024, 8), (1024, 4096), (1024, 8192), (1023, 8), (1021, 4096), (1024, 1)]
    {
        for sharding in [Sharding::Strided, Sharding::Aligned, Sharding::Local] {
            is_met &= time_shares(world_size, lanes, sharding);
        }
    }
    if !is_met {
        std::process::exit(1);
    }
}

/// Positions of a mixture of 16 sources.
fn time_mixture(batching: Batching) {
    let source = |number: u32| Source {
        name: number.to_string(),
        identity: number.to_string(),
        samples: 10_000 * u64::from(number + 1),
        part: Part::Weight(Weight::from(1 + number * number)),
    };
    let sources = (0..16).map(source).collect();
    let spec =
        MixtureSpec { sources, epoch_size: Some(SAMPLES), batching, phases: vec![], seed: 1 };
    let mut mixture = Mixture::new(&spec).unwrap();
    let start = Instant::now();
    (0..SAMPLES).for_each(|position| _ = black_box(mixture.draw(position)));
    let nanos = start.elapsed().as_nanos() as f64 / SAMPLES as f64;
    let name = format!("mixture of 16 sources, {batching:?}");
    println!("{name:<47}{nanos:>8.1} ns a position");
}

/// Positions of orders by weights, of samples and of a thousand labels.
fn time_weighted() {
    let each: Vec<f64> = (0..SAMPLES).map(|i| (i % 1000) as f64 + 1.0).collect();
    let labels = (0..SAMPLES as i64).map(|i| Some(i * i % 1000));
    let draws = Draws::default();
    let balanced = LabelWeights::Balanced;
    for (name, weights) in [
        ("weighted by sample", Weights::of_samples(SAMPLES, &each, draws)),
        ("weighted by label", Weights::of_labels(SAMPLES, labels, &balanced, draws)),
    ] {
        let weights = Arc::new(weights.unwrap());
        let mut order = EpochOrder::weighted(&weights.order(1), Epoch(0), &Even, &weights).unwrap();
        let mut ids = Vec::with_capacity(SAMPLES as usize);
        let start = Instant::now();
        order.ids(&Even, Positions::new(0, 1, SAMPLES), &mut ids);
        let nanos = start.elapsed().as_nanos() as f64 / SAMPLES as f64;
        black_box(ids);
        println!("{name:<47}{nanos:>8.1} ns a position");
    }
}

/// All batches by tokens of an epoch: drawing its samples, sorting and cutting them. Lengths are in memory by id.
fn time_budget(kind: OrderKind) {
    let length = |id: u64| 100 + (Key::new(id).word() >> 54) as u32; // 100 to 1,123
    let lengths: Vec<u32> = (0..SAMPLES).map(length).collect();
    let budget = Arc::new(Budget::new(16_384));
    let mut order = EpochOrder::new(&OrderSpec { kind, seed: 1 }, Epoch(0), &Even).unwrap();
    let shard = Shard::new(0, 1, Tail::Keep).unwrap();
    let mut deal = Deal::new(&budget, 1, Epoch(0), SAMPLES, shard);
    let mut draw = |range: std::ops::Range<u64>, ids: &mut Vec<SampleId>, tokens: &mut Vec<u32>| {
        let from = ids.len();
        order.ids(&Even, Positions::new(range.start, 1, range.end - range.start), ids);
        tokens.extend(ids[from..].iter().map(|id| lengths[id.0 as usize]));
        Ok(())
    };
    let mut batch = Vec::new();
    let mut batches = 0;
    let mut padded = 0;
    let start = Instant::now();
    while deal.next(&mut draw, &mut batch).unwrap().is_some() {
        let tokens = batch.iter().map(|id| u64::from(lengths[id.0 as usize]));
        padded += tokens.max().unwrap_or(0) * batch.len() as u64;
        batches += 1;
        batch.clear();
    }
    let nanos = start.elapsed().as_nanos() as f64 / SAMPLES as f64;
    let sum: u64 = lengths.iter().map(|&tokens| u64::from(tokens)).sum();
    let padding = 100.0 * (1.0 - sum as f64 / padded as f64);
    let name = format!("{kind}, batches by tokens");
    println!("{name:<47}{nanos:>8.1} ns a sample; {batches} batches, {padding:.2} % padding");
}

/// One rank's shares of the global batches of an epoch; returns whether the bar is met.
fn time_shares(world_size: u32, lanes: u32, sharding: Sharding) -> bool {
    let spec = OrderSpec { kind: OrderKind::Grouped { lanes, group: 4 }, seed: 7 };
    let mut order = EpochOrder::new(&spec, Epoch(0), &Even).unwrap();
    let shard = Shard::new(world_size / 2, world_size, Tail::Keep).unwrap();
    let mut aligner = Aligner::default();
    let mut picks = Vec::new();
    // Eight ranks on each node, which hold the chunks in turn.
    let nodes = world_size.div_ceil(8) as u16;
    let holders = (0..Even.num_chunks()).map(|chunk| Some((chunk % u32::from(nodes)) as u16));
    let locality = Locality::new((0..world_size).map(|rank| (rank / 8) as u16).collect(), holders);
    let mut by_node = ByNode::new(Arc::new(locality));
    let mut positions = shard.positions(order.len());
    let start = cpu_ms();
    let batches = order.len() / (u64::from(world_size) * BATCH);
    for nth in 0..batches {
        picks.clear();
        match sharding {
            Sharding::Strided => order.picks(positions.split_front(BATCH), &mut picks),
            Sharding::Aligned => {
                let batch = shard.global_batch(order.len(), nth * BATCH, BATCH);
                order.aligned_picks(&Even, &mut aligner, &shard, batch, &mut picks);
            }
            Sharding::Local => {
                let batch = shard.global_batch(order.len(), nth * BATCH, BATCH);
                order.local_picks(&mut by_node, &shard, (batch, BATCH), &mut picks);
            }
        }
        assert_eq!(black_box(&picks).len() as u64, BATCH);
    }
    let millis = (cpu_ms() - start) / batches as f64;
    let name = match sharding {
        Sharding::Strided => "strided",
        Sharding::Aligned => "aligned",
        Sharding::Local => "local",
    };
    let verdict = if millis <= SHARE_BAR_MS { "met" } else { "MISSED" };
    println!(
        "| {name}, {world_size} ranks, {lanes} lanes | {millis:.2} ms | <= {SHARE_BAR_MS} ms | {verdict} |"
    );
    millis <= SHARE_BAR_MS
}

/// The processor time of this thread.
fn cpu_ms() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6
}

/// One rank's epoch: all of it, or the first of eight shares where the order has shares.
fn time_epoch(name: &str, kind: OrderKind, epoch: u64) {
    let start = Instant::now();
    let mut order = EpochOrder::new(&OrderSpec { kind, seed: 7 }, Epoch(epoch), &Even).unwrap();
    let setup = start.elapsed();
    let shard = Shard::new(0, kind.world_size().unwrap_or(1), Tail::Keep).unwrap();
    let mut positions = shard.positions(order.len());
    let count = positions.remaining();
    let mut ids = Vec::new();
    let start = Instant::now();
    while positions.remaining() > 0 {
        ids.clear();
        order.ids(&Even, positions.split_front(BATCH), &mut ids);
        black_box(&ids);
    }
    let nanos = start.elapsed().as_nanos() as f64 / count as f64;
    let million_s = 1000.0 / nanos;
    println!("{name:<47}{nanos:>8.1} ns an id, {million_s:>6.1} M ids/s, set-up {setup:.1?}");
}
