//! What a consumer of batches has waited for, and the report of it.

mod images;
mod support;

use std::sync::Arc;
use std::time::Duration;

use dlfs::cache::TierOptions;
use dlfs::dataset::{Dataset, Image, OpenOptions};
use dlfs::format::Pack;
use dlfs::order::{OrderKind, OrderSpec};
use dlfs::prefetch::{LoaderOptions, LoaderStats};
use dlfs::qpair::Device;
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::mem::MemNamespace;
use dlfs::reader::ReaderOptions;
use dlfs::report::{Cause, Report};

use images::sample;
use support::faults::{Fault, Faulty, Rule};

const SAMPLES: usize = 200;

/// An image in memory of samples of 4 KiB, and the device that it is read from.
fn image() -> (Faulty, Image) {
    let source: Vec<_> = (0..SAMPLES).map(|i| sample(&format!("{i:04}"), None, 4096)).collect();
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

/// The report of a run of two epochs over `dataset`.
fn report_of_a_run(dataset: &Dataset) -> Report {
    let loader = dataset.loader(LoaderOptions { epochs: 0..2, ..options(16) }).unwrap();
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
        let (read, by_loader) = (total.places.total(), report.reads.bytes);
        assert!(read > 0 && read <= by_loader, "run {run}: {read} of {by_loader}");
        assert_eq!(total.time(), report.timeline.time());
    }
}
