//! The plan of a run: tiers keep the samples, of any length, that the run reads most often, as far as there is room.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlfs::cache::{CacheStats, TierOptions};
use dlfs::dataset::{Image, OpenOptions};
use dlfs::directory::Directory;
use dlfs::format::Pack;
use dlfs::order::{OrderKind, OrderSpec, Tail};
use dlfs::plan::{Accesses, TrainingRun};
use dlfs::prefetch::{Batching, LoaderOptions};
use dlfs::qpair::Device;
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::mem::MemNamespace;
use dlfs::tier::{Index, Policy};
use dlfs::units::SampleId;

use crate::images::{self, Sample, sample};
use crate::support::disk::LoopDevice;

/// An image of equal samples in memory, of which each of four ranks reads a quarter an epoch.
struct Equal {
    source: Vec<Sample>,
    device: Arc<dyn Device>,
}

impl Equal {
    fn new(count: u64, len: usize, pack: Pack) -> Equal {
        let source: Vec<_> = (0..count).map(|id| sample(&format!("{id:06}"), None, len)).collect();
        let mut media = images::Image::unique(1, pack);
        media.add(&source, 7, count, &[]);
        let mut bytes = media.namespaces.remove(0);
        bytes.resize(bytes.len().next_multiple_of(64 << 10), 0);
        let device = MemNamespace::new(bytes.len() as u64, 512).unwrap();
        Blocking::new(device.queue_pair().unwrap()).unwrap().write_at(0, &bytes).unwrap();
        Equal { source, device: Arc::new(device) }
    }

    /// A quarter of the data in pages.
    fn quarter(&self) -> u64 {
        (self.source.len() * self.source[0].record.len()).div_ceil(PAGE as usize) as u64 / 4
    }

    fn open(&self, policy: Policy, tiers: &[String]) -> Image {
        let tiers = tiers.iter().map(|tier| tier.parse().unwrap()).collect();
        let tiers = TierOptions { tiers, policy, ..TierOptions::default() };
        let options = OpenOptions { tiers, ..OpenOptions::default() };
        Image::from_devices(vec![Arc::clone(&self.device)], &options).unwrap()
    }

    /// Reads all epochs of a rank, and returns the pages that the tiers saved: that they served, without those that
    /// the copier has fetched.
    fn saved(&self, image: &Image, rank: u32) -> u64 {
        let world_size = RANKS;
        let batching = Some(Batching::None);
        let window_bytes = 1 << 20;
        let options = LoaderOptions::new(ORDER, 8, EPOCHS);
        let options = LoaderOptions { rank, world_size, batching, window_bytes, ..options };
        let mut loader = image.prefetcher(options).unwrap();
        while let Some(batch) = loader.next() {
            let batch = batch.unwrap();
            for (index, id) in batch.ids().enumerate() {
                assert!(batch.bytes(index)[..] == self.source[id.0 as usize].record[..], "{id}");
            }
        }
        drop(loader);
        let stats = settled(image);
        for tier in &stats.tiers {
            assert!(tier.used_bytes <= tier.capacity_bytes && tier.damaged == 0, "{tier:?}");
        }
        let hits: u64 = stats.tiers.iter().map(|tier| tier.hit_bytes).sum();
        (hits - stats.origin.copier_bytes) / PAGE
    }

    /// Pages that tiers of `room` pages can save a rank: all reads but one of the samples that it reads most often.
    fn possible(&self, directory: &Directory, rank: u32, room: u64) -> u64 {
        let run = TrainingRun::new(directory, ORDER, 0..EPOCHS, RANKS, Tail::Keep).unwrap();
        let mut counts = vec![0_u64; self.source.len()];
        run.walk(rank, &mut |ids| ids.iter().for_each(|id| counts[id.0 as usize] += 1));
        let pages = |id: u64| pages_of(directory, SampleId(id));
        let mut samples: Vec<(u64, u64)> =
            (0..).zip(counts).map(|(id, reads)| (reads, pages(id))).collect();
        samples.sort_unstable_by(|a, b| b.cmp(a));
        // Samples that share pages take at least their own bytes.
        let most = room * PAGE / self.source[0].record.len() as u64;
        let saved = |(reads, pages): &(u64, u64)| reads.saturating_sub(1) * pages;
        samples.iter().take(most as usize).map(saved).sum()
    }
}

fn pages_of(directory: &Directory, id: SampleId) -> u64 {
    let extent = directory.extent(id).unwrap();
    let end = extent.offset_bytes + u64::from(extent.len_bytes);
    end.div_ceil(PAGE) - extent.offset_bytes / PAGE
}

fn settled(image: &Image) -> CacheStats {
    let tiers = image.tiers().unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while !tiers.is_settled() {
        assert!(Instant::now() < until, "still copying: {:#?}", tiers.stats());
        std::thread::sleep(Duration::from_millis(2));
    }
    tiers.stats()
}

fn ram(pages: u64) -> String {
    format!("ram:{}", pages * PAGE)
}

#[test]
fn a_plan_saves_nearly_as_many_reads_as_any_choice_of_samples_could() {
    println!("seed {}", ORDER.seed);
    for (count, len, pack, least) in [
        (2_000, 4_096, Pack::Aligned, 0.99),
        (400, 12_288, Pack::Aligned, 0.98),
        (120, 69_632, Pack::Aligned, 0.99),
        (800, 6_000, Pack::Tight, 0.9),
        (2_000, 1_000, Pack::Tight, 0.8),
    ] {
        let data = Equal::new(count, len, pack);
        let room = data.quarter();
        let image = data.open(Policy::FirstTouch, &[ram(room)]);
        let possible = data.possible(image.directory(), 1, room);
        let first_touch = data.saved(&image, 1);
        drop(image); // the next one would attach to its tiers
        for tiers in [vec![ram(room)], vec![ram(room / 3), ram(room - room / 3)]] {
            let planned = data.saved(&data.open(Policy::Clairvoyant, &tiers), 1);
            println!(
                "{len} bytes {pack:?}, tiers {tiers:?}: {planned} pages saved, by first touch {first_touch}, \
                 possible {possible}"
            );
            assert!(planned as f64 >= least * possible as f64, "{planned} of {possible}");
            assert!(planned > first_touch, "{planned}, and by first touch {first_touch}");
        }
    }
}

#[test]
fn copies_give_way_page_by_page_to_what_a_later_run_reads_more_often() {
    println!("seed {}", ORDER.seed);
    let data = Equal::new(2_000, 4_096, Pack::Aligned);
    let folder = tempfile::tempdir().unwrap();
    let directory = Arc::clone(data.open(Policy::Clairvoyant, &[ram(1)]).directory());
    let quota = data.quarter() * PAGE + Index::len_bytes(4_000).next_multiple_of(PAGE);
    let tier = [format!("file:{}:{quota}", folder.path().display())];
    for rank in [1, 2, 2] {
        let image = data.open(Policy::Clairvoyant, &tier);
        let room = image.tiers().unwrap().capacities()[0];
        let saved = data.saved(&image, rank);
        let possible = data.possible(&directory, rank, room);
        let stats = settled(&image);
        println!("rank {rank}: {saved} pages saved, possible {possible}: {:?}", stats.tiers[0]);
        assert!(saved * 10 >= possible * 9, "{saved} of {possible}");
        drop(image);
        let files = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().metadata());
        let on_disk: u64 = files.map(|file| file.unwrap().blocks() * 512).sum();
        assert!(on_disk <= quota + quota / 50, "{on_disk} bytes on disk, the quota is {quota}");
    }
}

#[test]
fn on_a_block_device_a_plan_keeps_whole_units() {
    let data = Equal::new(2_000, 4_096, Pack::Aligned);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("disk");
    fs::File::create(&file).unwrap().set_len(16 << 20).unwrap();
    let Some(device) = LoopDevice::new(&file) else {
        println!("SKIPPED: no block device without root");
        return;
    };
    let tier = [format!("file:{}:{}", device.path().display(), data.quarter() * PAGE + (64 << 10))];
    for rank in [1, 2] {
        let image = data.open(Policy::Clairvoyant, &tier);
        let saved = data.saved(&image, rank);
        let stats = settled(&image);
        println!("rank {rank}: {saved} pages saved, {:?}", stats.tiers[0]);
        assert!(stats.tiers[0].held_bytes * 10 > stats.tiers[0].capacity_bytes * 9, "{stats:?}");
    }
}

const PAGE: u64 = 4096;
const ORDER: OrderSpec = OrderSpec { kind: OrderKind::Global, seed: 28 };
const RANKS: u32 = 4;
const EPOCHS: u64 = 20;
