//! The staging window and tiers: batches are published in order, memory is never overwritten while
//! it can still be read, and is freed after use. What a plan keeps is copied by the first read that
//! needs it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dlfs::cache::TierOptions;
use dlfs::dataset::{Image, OpenOptions};
use dlfs::format::Pack;
use dlfs::order::{EpochOrder, OrderKind, OrderSpec};
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::Device;
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::mem::MemNamespace;
use dlfs::reader::Batch;
use dlfs::tier::Policy;
use dlfs::units::Epoch;

use crate::images::{self, Sample, sample};
use crate::support::faults::{Fault, Faulty, Rule};

const ORDER: OrderSpec = OrderSpec { kind: OrderKind::Global, seed: 23 };

/// Samples of `len` bytes on a device that records its reads.
fn data(count: u64, len: usize) -> (Vec<Sample>, Faulty) {
    let source: Vec<Sample> =
        (0..count).map(|index| sample(&format!("s{index:04}"), None, len)).collect();
    let mut media = images::Image::unique(1, Pack::Aligned);
    media.add(&source, 7, count, &[]);
    let mut bytes = media.namespaces.remove(0);
    bytes.resize(bytes.len().next_multiple_of(64 << 10), 0);
    let device = MemNamespace::new(bytes.len() as u64, 4096).unwrap();
    Blocking::new(device.queue_pair().unwrap()).unwrap().write_at(0, &bytes).unwrap();
    (source, Faulty::new(Arc::new(device)))
}

fn open(device: &Faulty, tiers: TierOptions) -> Image {
    let device: Arc<dyn Device> = Arc::new(device.clone());
    let options = OpenOptions { tiers, ..OpenOptions::default() };
    Image::from_devices(vec![device], &options).unwrap()
}

/// The bytes read since the last call, once they are `at_least` this many and no more are read for
/// a while.
fn read_at_rest(device: &Faulty, at_least: usize) -> usize {
    let mut all = 0;
    let mut quiet_since = Instant::now();
    let until = Instant::now() + Duration::from_secs(60);
    let is_quiet = |since: Instant| since.elapsed() >= Duration::from_millis(30);
    while !(all >= at_least && is_quiet(quiet_since)) && Instant::now() < until {
        let bytes: usize = device.take_seen().iter().map(|(_, _, len)| len).sum();
        if bytes > 0 {
            (all, quiet_since) = (all + bytes, Instant::now());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    all
}

#[test]
fn staging_publishes_in_order_overwrites_nothing_unread_and_drops_after_use() {
    const WINDOW_BYTES: usize = 1 << 20;
    let (source, device) = data(2_000, 4096);
    // The device completes in random order, and the first reads late.
    device.shuffle_completions(3);
    let image = open(&device, TierOptions::default());
    device.take_seen();
    device.add(Rule::any_read(5, Fault::DelayTime(Duration::from_millis(20))));
    let options = LoaderOptions { window_bytes: WINDOW_BYTES, ..LoaderOptions::new(ORDER, 3, 2) };
    let mut loader = image.prefetcher(options).unwrap();
    let expected: Vec<u64> = (0..2)
        .flat_map(|epoch| {
            let directory = image.directory();
            let mut order = EpochOrder::new(&ORDER, Epoch(epoch), &**directory).unwrap();
            let mut ids = Vec::new();
            order.ids(&**directory, 0..2_000, &mut ids);
            ids.into_iter().map(|id| id.0)
        })
        .collect();

    // Nobody takes batches: reading stops when it would have to overwrite unread data.
    let ahead = read_at_rest(&device, 1);
    assert!(ahead > 0 && ahead <= WINDOW_BYTES, "{ahead} bytes read ahead");
    let is_right = |batch: &Batch| {
        batch.iter().all(|sample| sample.bytes == source[sample.id.0 as usize].record)
    };
    let mut found = Vec::new();
    let mut kept = None::<Batch>;
    while let Some(batch) = loader.next() {
        let batch = batch.unwrap();
        found.extend(batch.ids().map(|id| id.0));
        assert!(is_right(&batch), "a batch as it comes");
        if found.len() % 500 < 3 {
            read_at_rest(&device, 0); // everything that may be overwritten is, by now
        }
        let previous = kept.replace(batch);
        assert!(previous.as_ref().is_none_or(is_right), "a batch that was kept while others came");
    }
    assert_eq!(found, expected, "in the order of the order");
    // 16 MB have passed through a window of 1 MiB: only dropped batches made room.
    assert_eq!(loader.stats().over_window, 0);
    assert!(device.struck() >= 5);
}

#[test]
fn a_planned_sample_that_is_not_there_yet_is_kept_by_the_read_that_needs_it() {
    let (source, device) = data(200, 64 << 10); // each is copied separately
    let tiers = TierOptions {
        tiers: vec!["ram:64M".parse().unwrap()],
        policy: Policy::Clairvoyant,
        // So little that background copying has no effect.
        bandwidth_bytes_per_s: Some(1),
        ..TierOptions::default()
    };
    let image = open(&device, tiers);
    device.take_seen();
    let read = |epochs: std::ops::Range<u64>| {
        let options = LoaderOptions { epochs, ..LoaderOptions::new(ORDER, 7, 0) };
        let mut loader = image.prefetcher(options).unwrap();
        for batch in std::iter::from_fn(|| loader.next()) {
            for sample in batch.unwrap().iter() {
                assert_eq!(sample.bytes, source[sample.id.0 as usize].record);
            }
        }
    };
    read(0..1);
    settle(&image);
    let stats = image.tiers().unwrap().stats();
    assert_eq!(stats.tiers[0].fills, 200, "all were kept: {stats:#?}");
    assert!(stats.origin.copier_reads <= 2, "and hardly one was fetched for it: {stats:#?}");
    assert!(device.take_seen().len() >= 200);
    read(1..3);
    assert!(device.take_seen().is_empty(), "{:#?}", image.tiers().unwrap().stats());
}

/// Waits until no copy is in progress.
fn settle(image: &Image) {
    let until = Instant::now() + Duration::from_secs(60);
    while !image.tiers().unwrap().is_settled() {
        assert!(Instant::now() < until, "still copying: {:#?}", image.tiers().unwrap().stats());
        std::thread::sleep(Duration::from_millis(2));
    }
}
