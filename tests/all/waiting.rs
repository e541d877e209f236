//! Time that a consumer of batches has waited, and the report of it.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use dlfs::cache::TierOptions;
use dlfs::dataset::{Dataset, Image, OpenOptions};
use dlfs::format::Pack;
use dlfs::order::{OrderKind, OrderSpec};
use dlfs::prefetch::{Batching, LoaderOptions, LoaderStats};
use dlfs::qpair::Device;
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::mem::MemNamespace;
use dlfs::reader::{Batch, ReaderOptions};
use dlfs::report::{Cause, Place, PlaceBytes, Report, Stalls};

use crate::images::{self, sample};
use crate::support::faults::{Fault, Faulty, Rule};

const SAMPLES: usize = 200;

/// An image in memory of samples of 4 KiB, and the device that it is read from.
fn image() -> (Faulty, Image) {
    image_of(SAMPLES)
}

fn image_of(samples: usize) -> (Faulty, Image) {
    let source: Vec<_> = (0..samples).map(|i| sample(&format!("{i:04}"), None, 4096)).collect();
    let mut media = images::Image::unique(1, Pack::Tight);
    media.add(&source, 7, source.len() as u64, &[]);
    let mut bytes = media.namespaces.swap_remove(0);
    bytes.resize(bytes.len().next_multiple_of(64 << 10), 0);
    let memory = MemNamespace::new(bytes.len() as u64, 4096).unwrap();
    Blocking::new(memory.queue_pair().unwrap()).unwrap().write_at(0, &bytes).unwrap();
    let device = Faulty::new(Arc::new(memory));
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(device.clone())];
    (device, Image::from_devices(devices, &OpenOptions::default()).unwrap())
}

fn options(batch_size: usize) -> LoaderOptions {
    LoaderOptions::new(OrderSpec { kind: OrderKind::Global, seed: 3 }, batch_size, 1)
}

/// Reads an epoch and keeps all its batches until the end.
fn read_keeping_all(image: &Image, options: LoaderOptions) -> LoaderStats {
    let mut loader = image.prefetcher(options).unwrap();
    let mut kept = Vec::new();
    while let Some(batch) = loader.next() {
        kept.push(batch.unwrap());
    }
    assert_eq!(kept.iter().map(|batch| batch.len()).sum::<usize>(), SAMPLES);
    loader.stats()
}

#[test]
fn waits_for_reads_are_waits_for_the_network_and_causes_add_up() {
    let (device, image) = image();
    device.add(Rule::any_read(1, Fault::DelayTime(Duration::from_millis(500))));
    let stats = read_keeping_all(&image, options(16));
    let network = stats.stalls.of(Cause::Network);
    assert!(network >= Duration::from_millis(250), "{:?}", stats.stalls);
    assert_eq!(stats.stalls.total().as_secs_f64(), stats.stall_s);
}

/// Nothing fits the window any more, so each batch is read only when it is asked for.
#[test]
fn waits_of_a_consumer_that_holds_the_window_are_waits_for_the_window() {
    let (device, image) = image();
    device.add(Rule::any_read(u32::MAX, Fault::DelayTime(Duration::from_millis(10))));
    let options = LoaderOptions { window_bytes: 256 << 10, ..options(10) };
    let stats = read_keeping_all(&image, options);
    assert!(stats.over_window >= 5, "{stats:?}");
    assert!(stats.stalls.of(Cause::Window) >= Duration::from_millis(50), "{:?}", stats.stalls);
}

/// While the consumer holds the window nothing is outstanding, so each later batch is looked up in the order, and its
/// reads are planned, when the consumer waits for it already.
#[test]
fn what_is_planned_only_while_the_consumer_waits_is_a_wait_for_the_order() {
    let (_device, image) = image();
    let stats = read_keeping_all(&image, LoaderOptions { window_bytes: 256 << 10, ..options(10) });
    assert!(stats.over_window >= 5, "{stats:?}");
    assert!(!stats.stalls.of(Cause::Order).is_zero(), "{:?}", stats.stalls);
    assert_eq!(stats.stalls.total().as_secs_f64(), stats.stall_s);
}

#[test]
fn a_loader_that_waits_for_its_consumer_says_how_long() {
    let (_device, image) = image();
    // Room for a few batches: the others are read when the consumer has returned these.
    let options = LoaderOptions { window_bytes: 256 << 10, ..options(10) };
    let mut loader = image.prefetcher(options).unwrap();
    let mut samples = 0;
    while let Some(batch) = loader.next() {
        samples += batch.unwrap().len();
        std::thread::sleep(Duration::from_millis(10)); // the step of a training
    }
    let stats = loader.stats();
    assert_eq!(samples, SAMPLES);
    assert!(stats.blocked_s > 0.0, "{stats:?}");
}

/// Reads epochs of one batch of 4 MiB, in a window that has room for little more. So most of each batch is read while
/// the consumer waits for it. Returns what the loader says it waited for.
fn read_large_batches(copy_threads: Option<usize>) -> Stalls {
    let (device, image) = image_of(LARGE_BATCH);
    device.complete_together();
    let window_bytes = 6 << 20;
    let batching = Some(Batching::Sample);
    let epochs = 0..LARGE_BATCHES;
    let options =
        LoaderOptions { epochs, window_bytes, batching, copy_threads, ..options(LARGE_BATCH) };
    let mut loader = image.prefetcher(options).unwrap();
    let mut batch = Batch::new();
    let mut outside = Duration::ZERO;
    let mut count = 0;
    loop {
        let began = Instant::now();
        let is_batch = loader.next_into(&mut batch).unwrap();
        outside += began.elapsed();
        if !is_batch {
            break;
        }
        count += 1;
        assert_eq!(batch.len(), LARGE_BATCH);
    }
    assert_eq!(count, LARGE_BATCHES);
    let stats = loader.stats();
    let stalls = stats.stalls;
    println!("{copy_threads:?}: {stalls:?} of {outside:?}");
    assert_eq!(stats.copied_bytes > 0, copy_threads.is_some());
    assert_eq!(stalls.total().as_secs_f64(), stats.stall_s, "causes add up to the whole");
    assert!(
        stalls.total() <= outside,
        "nothing but waiting was counted: {stalls:?} of {outside:?}"
    );
    stalls
}

/// The device answers all reads at once: then they are verified, in several turns of the poller.
#[test]
fn what_arrives_faster_than_it_is_verified_waits_for_checksums() {
    let stalls = read_large_batches(None);
    assert!(!stalls.of(Cause::Checksum).is_zero(), "{stalls:?}");
    assert!(stalls.of(Cause::Copy).is_zero(), "nothing is gathered: {stalls:?}");
}

#[test]
fn a_batch_that_is_gathered_into_one_buffer_is_waited_for_as_a_copy() {
    for threads in [1, 2] {
        let stalls = read_large_batches(Some(threads));
        assert!(!stalls.of(Cause::Copy).is_zero(), "{stalls:?}");
        assert!(!stalls.of(Cause::Checksum).is_zero(), "{stalls:?}");
    }
}

/// Samples of a batch of 4 MiB, and how many such batches are read.
const LARGE_BATCH: usize = 1024;
const LARGE_BATCHES: u64 = 30;

/// The report of a run of two epochs over `dataset`.
fn report_of_a_run(dataset: &Dataset) -> Report {
    report_of(dataset, LoaderOptions { epochs: 0..2, ..options(16) })
}

fn report_of(dataset: &Dataset, options: LoaderOptions) -> Report {
    let loader = dataset.loader(options).unwrap();
    while loader.next(&mut ()).unwrap().is_some() {}
    loader.report()
}

#[test]
fn a_report_has_the_bytes_of_its_own_run_through_tiers_that_others_use() {
    let (_, image) = image();
    let tiers = vec!["ram:64M".parse().unwrap()];
    let image = image.with_tiers(&TierOptions { tiers, ..TierOptions::default() }).unwrap();
    let dataset = Dataset::from_image(image, ReaderOptions::default());
    for run in 0..3 {
        let report = report_of_a_run(&dataset);
        let total = report.timeline.total();
        assert_eq!((total.samples, total.bytes), (2 * SAMPLES as u64, 2 * 4096 * SAMPLES as u64));
        let epochs: Vec<u64> =
            report.timeline.epochs().iter().map(|epoch| epoch.counts.samples).collect();
        assert_eq!(epochs, [SAMPLES as u64; 2], "run {run}");
        let read = total.places.total();
        let by_loader = report.reads.bytes;
        assert!(read > 0 && read == by_loader, "run {run}: {read} of {by_loader}");
        assert_eq!(total.time(), report.timeline.time());
    }
}

/// Reads from the origin take a while, so that a read often wants a page that another one is fetching: samples of
/// 4 KiB share pages.
#[test]
fn bytes_by_place_add_up_to_what_was_read_through_memory_and_drives_cold_and_warm() {
    for sizes in [&["ram:64M"][..], &["64M"], &["ram:256K", "64M"], &["ram:256K", "512K"]] {
        for batching in [None, Some(Batching::Sample), Some(Batching::Chunk)] {
            let folder = tempfile::tempdir().unwrap();
            let tier = |size: &&str| {
                if size.starts_with("ram:") {
                    size.parse().unwrap()
                } else {
                    format!("file:{}:{size}", folder.path().display()).parse().unwrap()
                }
            };
            let tiers = sizes.iter().map(tier).collect();
            let (device, image) = image();
            device.add(Rule::any_read(u32::MAX, Fault::DelayTime(Duration::from_millis(2))));
            let image = image.with_tiers(&TierOptions { tiers, ..TierOptions::default() }).unwrap();
            let dataset = Dataset::from_image(image, ReaderOptions::default());
            let of_run = |seed: u64| {
                let order = OrderSpec { kind: ORDERS[seed as usize % ORDERS.len()], seed };
                let options = LoaderOptions { queue_pairs: 2, batching, ..options(16) };
                let options = LoaderOptions { order, epochs: 0..2, ..options };
                let batching = match order.kind {
                    OrderKind::Global => batching.filter(|asked| *asked != Batching::Chunk),
                    _ => batching,
                };
                let report = report_of(&dataset, LoaderOptions { batching, ..options });
                let places = report.timeline.total().places;
                assert_eq!(places.total(), report.reads.bytes, "{batching:?}: {places:?}");
                places
            };
            // One run into empty tiers; three runs at the same time; one that finds what there is room for.
            let first = of_run(0);
            let together = thread::scope(|scope| {
                let runs = [1, 2, 3].map(|seed| scope.spawn(move || of_run(seed)));
                runs.map(|run| run.join().unwrap())
            });
            let sum = [first, of_run(4)]
                .iter()
                .chain(&together)
                .fold(PlaceBytes::default(), |sum, of_run| sum.plus(of_run));
            let stats = dataset.tier_stats().unwrap();
            println!("{batching:?}: {sum:?}: {stats:?}");
            let hits = |memory: bool| -> u64 {
                let tiers =
                    stats.tiers.iter().filter(|tier| tier.name.starts_with("ram:") == memory);
                tiers.map(|tier| tier.hit_bytes).sum()
            };
            assert_eq!(sum.of(Place::Memory), hits(true));
            assert_eq!(sum.of(Place::Drive), hits(false));
            assert_eq!(sum.of(Place::Ahead), stats.origin.ahead_bytes + stats.origin.joined_bytes);
            assert_eq!(sum.of(Place::Peer), 0);
            let origin = stats.origin.bytes;
            match stats.origin.ahead {
                0 => assert_eq!(sum.of(Place::Origin), origin),
                _ => assert!(sum.of(Place::Origin) <= origin, "{sum:?}: {stats:?}"),
            }
            assert!(origin > 0 && hits(true) + hits(false) > 0, "{stats:?}");
        }
    }
}

const ORDERS: [OrderKind; 2] = [OrderKind::Global, OrderKind::Grouped { lanes: 2, group: 2 }];
