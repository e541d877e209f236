//! Tiny samples in global order: read in passes over their blocks, in the same order as sample by
//! sample, within the window, and only where that saves reads.

use std::sync::Arc;
use std::time::Duration;

use dlfs::ErrorKind;
use dlfs::dataset::{Image, OnError, OpenOptions};
use dlfs::format::Pack;
use dlfs::nvme::Status;
use dlfs::order::{OrderKind, OrderSpec, Tail};
use dlfs::prefetch::{Batching, LoaderOptions, LoaderStats, Prefetcher};
use dlfs::qpair::Device;
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::mem::MemNamespace;
use dlfs::reader::Batch;
use dlfs::target::{Target, TargetOptions};
use dlfs::units::{Nsid, SampleId};

use crate::images::{self, Sample, sample};
use crate::support::faults::{Fault, Faulty, Rule};

/// Samples, and the device in memory with their image.
struct Source {
    samples: Vec<Sample>,
    device: Faulty,
}

impl Source {
    /// `count` samples of about `len` bytes, without those in `deleted`.
    fn new(count: usize, len: usize, deleted: &[u64]) -> Source {
        let samples: Vec<_> =
            (0..count).map(|i| sample(&format!("{i:06}"), None, len - i % 3)).collect();
        let mut media = images::Image::new(1, Pack::Tight);
        media.add(&samples, 7, count as u64, &[]);
        if !deleted.is_empty() {
            media.delete(deleted);
        }
        let mut bytes = std::mem::take(&mut media.namespaces[0]);
        bytes.resize(bytes.len().next_multiple_of(4096), 0);
        let device = MemNamespace::new(bytes.len() as u64, 4096).unwrap();
        Blocking::new(device.queue_pair().unwrap()).unwrap().write_at(0, &bytes).unwrap();
        Source { samples, device: Faulty::new(Arc::new(device)) }
    }

    fn serve(&self) -> Target {
        let nqn = "nqn.2026-11.io.dlfs:tiny".parse().unwrap();
        let listen = "127.0.0.1:0".parse().unwrap();
        let options = TargetOptions { listen, ..TargetOptions::new(nqn) };
        Target::bind(options, vec![Arc::new(self.device.clone())]).unwrap()
    }

    fn open(&self) -> Image {
        let device: Arc<dyn Device> = Arc::new(self.device.clone());
        Image::from_devices(vec![device], &OpenOptions::default()).unwrap()
    }

    fn assert_right(&self, batch: &Batch) {
        for sample in batch.iter() {
            let expected = &self.samples[sample.id.0 as usize].record;
            assert_eq!(sample.bytes, expected, "sample {}", sample.id);
        }
    }

    /// Verifies every batch; returns the ids in the order of delivery.
    fn drain(&self, loader: &mut Prefetcher) -> Vec<u64> {
        let mut ids = Vec::new();
        while let Some(batch) = loader.next() {
            let batch = batch.unwrap();
            self.assert_right(&batch);
            ids.extend(batch.ids().map(|id| id.0));
        }
        ids
    }

    /// Reads a run to its end; returns the ids in its order, and its counters.
    fn read(
        &self,
        image: &Image,
        change: impl FnOnce(&mut LoaderOptions),
    ) -> (Vec<u64>, LoaderStats) {
        let mut loader = loader(image, change);
        (self.drain(&mut loader), loader.stats())
    }
}

fn loader(image: &Image, change: impl FnOnce(&mut LoaderOptions)) -> Prefetcher {
    let mut options = LoaderOptions::new(OrderSpec { kind: OrderKind::Global, seed: 3 }, 64, 1);
    options.deadline = Duration::from_secs(60);
    change(&mut options);
    image.prefetcher(options).unwrap()
}

#[test]
fn tiny_samples_over_a_target_take_less_than_half_the_bytes_of_single_reads() {
    let source = Source::new(60_000, 100, &[]);
    let target = source.serve();
    let image = Image::open(&[target.address(Nsid(1))], &OpenOptions::default()).unwrap();
    let single = |options: &mut LoaderOptions| options.batching = Some(Batching::Sample);
    let (expected, singly) = source.read(&image, single);
    for window_bytes in [64 << 20, 8 << 20, 4 << 20] {
        let (ids, stats) = source.read(&image, |options| options.window_bytes = window_bytes);
        let bytes = stats.read.bytes as f64;
        let of = stats.sample_bytes as f64;
        let most = 0.5 * singly.read.bytes as f64;
        println!("window {window_bytes}: {:.2} times the bytes of {:.2}", bytes / of, most / of);
        assert!(ids == expected, "the same order");
        assert!(bytes <= most, "{bytes} bytes of {most}");
        assert_eq!((stats.over_window, stats.skipped, stats.resident), (0, 0, 0));
    }
    let mut ids = expected;
    ids.sort_unstable();
    assert!(ids.into_iter().eq(0..60_000), "each sample once");
}

#[test]
fn epochs_ranks_deleted_samples_and_a_resumption_change_nothing_in_the_order() {
    let deleted: Vec<u64> = (0..60_000).filter(|id| id % 7 == 3).collect();
    let source = Source::new(60_000, 100, &deleted);
    let mut halves = Vec::new();
    let image = source.open();
    for rank in 0..2 {
        let change = |options: &mut LoaderOptions| {
            (options.epochs, options.tail) = (0..2, Tail::Keep);
            (options.rank, options.world_size) = (rank, 2);
            options.window_bytes = 8 << 20;
        };
        let (expected, singly) = source.read(&image, |options| {
            change(options);
            options.batching = Some(Batching::Sample);
        });
        let mut first = loader(&image, change);
        let mut ids = Vec::new();
        for _ in 0..100 {
            let batch = first.next().unwrap().unwrap();
            source.assert_right(&batch);
            ids.extend(batch.ids().map(|id| id.0));
        }
        let state = first.state();
        drop(first);
        let (rest, stats) = source.read(&image, |options| {
            change(options);
            options.resume = Some(state);
        });
        ids.extend(rest);
        assert!(ids == expected, "rank {rank}");
        assert!(stats.read.bytes < singly.read.bytes / 2, "rank {rank}: {stats:?}");
        assert_eq!(stats.over_window, 0, "rank {rank}");
        halves.extend(ids);
    }
    halves.sort_unstable();
    let live = (0..60_000).filter(|id| id % 7 != 3);
    assert!(halves.into_iter().eq(live.flat_map(|id| [id; 2])), "each live sample in each epoch");
}

#[test]
fn a_small_window_a_small_data_set_and_larger_samples_are_read_sample_by_sample() {
    for (count, len, window_bytes) in
        [(60_000, 100, 64 << 10), (5_000, 100, 64 << 20), (4_000, 2_500, 64 << 20)]
    {
        let source = Source::new(count, len, &[]);
        let image = source.open();
        let [open, single] = [None, Some(Batching::Sample)].map(|batching| {
            source.read(&image, |options| {
                (options.window_bytes, options.batching) = (window_bytes, batching);
            })
        });
        assert!(open.0 == single.0, "{len} bytes: the same order");
        let bytes = (open.1.read.bytes, single.1.read.bytes);
        assert_eq!(bytes.0, bytes.1, "{count} samples of {len} bytes, window {window_bytes}");
    }
}

#[test]
fn a_bad_block_costs_its_own_samples_and_kept_batches_do_not_stop_the_run() {
    let source = Source::new(60_000, 100, &[]);
    let image = source.open();
    let change = |options: &mut LoaderOptions| options.window_bytes = 8 << 20;
    let mut keeping = loader(&image, change);
    let kept: Vec<_> = std::iter::from_fn(|| keeping.next()).map(Result::unwrap).collect();
    kept.iter().for_each(|batch| source.assert_right(batch));
    assert_eq!(kept.iter().map(Batch::len).sum::<usize>(), 60_000);
    drop(kept);

    let extent = |id| image.directory().extent(SampleId(id)).unwrap();
    let block = extent(41).offset_bytes / 4096;
    let status = Status { sct: 2, sc: 0x81, dnr: true, crd: 0, more: false };
    source.device.add(Rule::read(block..block + 1, u32::MAX, Fault::Status(status)));
    let lost: Vec<u64> = (0..60_000)
        .filter(|&id| {
            let start = extent(id).offset_bytes;
            let len = u64::from(extent(id).len_bytes);
            (start / 4096..=(start + len - 1) / 4096).contains(&block)
        })
        .collect();
    let (ids, stats) = source.read(&image, |options| {
        change(options);
        options.on_error = OnError::Skip;
    });
    assert_eq!((ids.len() + lost.len(), stats.skipped), (60_000, lost.len() as u64));
    assert!(lost.len() > 30 && ids.iter().all(|id| !lost.contains(id)), "{lost:?}");
    let mut failing = loader(&image, change);
    let error = std::iter::from_fn(|| failing.next()).find_map(Result::err).expect("it is raised");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}
