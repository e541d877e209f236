//! The benefit of tiers: Monarch's counts of opens, bytes and reads; and their cost without a
//! benefit.
//!
//! `cargo bench --bench tiers`. `cargo bench -p dlfs-sim --bench measured` compares a throttled
//! origin with the simulator's bound, which no cache can beat.

#[path = "support/origin.rs"]
mod origin;
#[path = "support/results.rs"]
mod results;

use std::sync::Arc;
use std::time::{Duration, Instant};

use dlfs::address::Address;
use dlfs::cache::{Cache, TierOptions};
use dlfs::dataset::{Image, OpenOptions};
use dlfs::order::{OrderKind, OrderSpec};
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::Device;
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::folder::FolderNamespace;
use dlfs::reader::Batch;
use dlfs::tier::Policy;
use origin::{in_memory_copy, make_files};

fn main() -> dlfs::Result<()> {
    results::record("tiers");
    let place = tempfile::tempdir()?;
    small_files()?;
    large_files()?;
    in_memory(&place.path().join("data"))
}

/// A folder of equal small files, 55 % of them kept, three epochs: opens and bytes of the origin.
fn small_files() -> dlfs::Result<()> {
    let folder = tempfile::tempdir()?;
    let count = 4_000;
    let len = 16_384;
    make_files(folder.path(), count, len)?;
    let mut found = Vec::new();
    for policy in [Policy::None, Policy::FirstTouch, Policy::Clairvoyant] {
        let origin = Arc::new(FolderNamespace::open(folder.path(), Default::default())?);
        let image = Image::open(&[Address::from_path(folder.path())], &OpenOptions::default())?;
        let quota = count * 55 / 100 * len;
        let tiers = vec![format!("ram:{quota}").parse()?];
        let tiers = TierOptions { tiers, policy, ..TierOptions::default() };
        let devices: Vec<Arc<dyn Device>> = vec![origin.clone()];
        let image = image.with_devices(devices).with_tiers(&tiers)?;
        for epoch in 0..3 {
            let order = OrderSpec { kind: OrderKind::Global, seed: epoch };
            let mut loader = image.prefetcher(LoaderOptions::new(order, 32, 1))?;
            let mut batch = Batch::new();
            while loader.next_into(&mut batch)? {}
            settle(image.tiers());
        }
        found.push((policy, origin.stats()));
    }
    println!("\n{count} files of {len} bytes, tier 55 %, 3 epochs (limit 36.7 %)");
    println!("| policy | opens | bytes | opens fewer | bytes fewer |");
    println!("|---|---|---|---|---|");
    let none = found[0].1;
    for (policy, stats) in found {
        let fewer = |now: u64, before: u64| (1.0 - now as f64 / before as f64) * 100.0;
        let opens = fewer(stats.opens, none.opens);
        let bytes = fewer(stats.bytes, none.bytes);
        println!(
            "| {policy:?} | {} | {} | {opens:.1} % | {bytes:.1} % |",
            stats.opens, stats.bytes
        );
    }
    Ok(())
}

/// Files of 128 MiB, read sequentially in pieces of 256 KiB, 55 % kept, three epochs: reads.
fn large_files() -> dlfs::Result<()> {
    let folder = tempfile::tempdir()?;
    let count = 9_u64;
    let len = 128 << 20;
    let piece = 256 << 10;
    for file in 0..count {
        let path = folder.path().join(format!("part-{file:05}.tfrecord"));
        std::fs::File::create(path)?.set_len(len)?; // holes: read as fast as zeroes can be
    }
    let mut reads = Vec::new();
    for policy in [Policy::None, Policy::FirstTouch] {
        let origin = Arc::new(FolderNamespace::open(folder.path(), Default::default())?);
        let offsets: Vec<u64> = origin.files().iter().map(|file| file.offset_bytes).collect();
        let image = Image::open(&[Address::from_path(folder.path())], &OpenOptions::default())?;
        let tier = format!("ram:{}", 5 * len); // 5 of 9 files: 55.6 %
        let tiers = TierOptions { tiers: vec![tier.parse()?], policy, ..TierOptions::default() };
        let devices: Vec<Arc<dyn Device>> = vec![origin.clone()];
        let image = image.with_devices(devices).with_tiers(&tiers)?;
        let mut io = Blocking::new(image.devices()[0].queue_pair()?)?;
        for epoch in 0..3 {
            for at in 0..count {
                let file = offsets[((at * 5 + epoch) % count) as usize];
                for skip in (0..len).step_by(piece) {
                    drop(io.read(file + skip, piece)?);
                    std::thread::sleep(Duration::from_micros(100)); // emulates decoding
                }
            }
            settle(image.tiers());
        }
        reads.push(origin.stats().reads);
    }
    let fewer = (1.0 - reads[1] as f64 / reads[0] as f64) * 100.0;
    println!("\n{count} files of 128 MiB in pieces of 256 KiB, tier 55 %, 3 epochs");
    println!("origin reads: none {}, first-touch {}: {fewer:.1} % fewer", reads[0], reads[1]);
    Ok(())
}

/// Everything in memory, with and without a tier in front of it: alternating, medians.
fn in_memory(folder: &std::path::Path) -> dlfs::Result<()> {
    make_files(folder, 1_000, 110_592)?; // 27 blocks: about an image of ImageNet
    let image = Image::open(&[Address::from_path(folder)], &OpenOptions::default())?;
    let device = in_memory_copy(&image.devices()[0])?;
    let plain = image.with_devices(vec![device]);
    let tiers = TierOptions { tiers: vec!["ram:1G".parse()?], ..TierOptions::default() };
    let global = OrderKind::Global;
    let grouped = OrderKind::Grouped { lanes: 4, group: 2 };
    for (filled_by, kind) in [(global, global), (grouped, grouped), (global, grouped)] {
        let tiered = plain.clone().with_tiers(&tiers)?;
        let mut ratios = Vec::new();
        for round in 0..17 {
            let kind = if round == 0 { filled_by } else { kind };
            let speed = |image: &Image| -> dlfs::Result<f64> {
                let options = LoaderOptions::new(OrderSpec { kind, seed: round }, 64, 6);
                let mut loader = image.prefetcher(options)?;
                let mut batch = Batch::new();
                let mut bytes = 0;
                let began = Instant::now();
                while loader.next_into(&mut batch)? {
                    bytes += batch.len_bytes();
                }
                Ok(bytes as f64 / began.elapsed().as_secs_f64())
            };
            let with = speed(&tiered)?;
            let without = speed(&plain)?;
            settle(tiered.tiers());
            if round > 0 {
                ratios.push(with / without); // the first one fills the tier
            }
        }
        ratios.sort_by(f64::total_cmp);
        let least = ratios[0];
        let most = ratios[ratios.len() - 1];
        let median = ratios[ratios.len() / 2];
        println!(
            "\nall in memory, {kind:?}, tier filled by {filled_by:?}: with tiers / without {median:.3} \
             ({least:.3} to {most:.3})"
        );
    }
    Ok(())
}

fn settle(tiers: Option<&Cache>) {
    while tiers.is_some_and(|tiers| !tiers.is_settled()) {
        std::thread::sleep(Duration::from_millis(1));
    }
}
