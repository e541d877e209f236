//! Tiers in front of an origin: the same data in the same order whatever is kept, never more than
//! the quota, and a fault of a tier is only a miss. `tests/rows.md` has the table of features.

use std::collections::VecDeque;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlfs::ErrorKind;
use dlfs::address::Address;
use dlfs::buf::IoBuf;
use dlfs::cache::{Cache, CacheStats, Identity, TierOptions};
use dlfs::dataset::{Image, OpenOptions};
use dlfs::format::{Pack, Uuid};
use dlfs::order::{OrderKind, OrderSpec, SequentialBy};
use dlfs::prefetch::{Batching, LoaderOptions};
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::folder::FolderNamespace;
use dlfs::qpair::mem::MemNamespace;
use dlfs::qpair::{Device, Io, IoOp};
use dlfs::reader::{Batch, ReaderOptions};
use dlfs::tier::{Index, Policy, Stop, Units};
use dlfs::units::{Generation, Lba, SampleId};

use crate::images::{self, Sample, sample};
use crate::support::contract;
use crate::support::disk::SmallDisk;
use crate::support::faults::{Fault, Faulty, Rule};
use crate::support::random::Random;
use crate::support::warnings::warnings_of;

/// A data set on two namespaces in memory, with counters of the reads.
struct Data {
    source: Vec<Sample>,
    origins: Vec<Arc<Faulty>>,
}

impl Data {
    /// Samples of many lengths: less than a block, many blocks, more than a unit.
    fn new() -> Data {
        let lens = [100, 5_000, 70_000, 33_000, 8_192, 200_000, 0, 4_097];
        let mut source: Vec<Sample> = (0..120)
            .map(|index| sample(&format!("s{index:03}"), Some(index), lens[index as usize % 8]))
            .collect();
        source.push(sample("t", Some(3), (5 << 20) + 3));
        let mut media = images::Image::unique(2, Pack::Aligned);
        media.add(&source, 7, source.len() as u64, &[]);
        let origins = media.namespaces.iter().map(|bytes| {
            let len = bytes.len().next_multiple_of(64 << 10);
            let device = MemNamespace::new(len as u64, 512).unwrap();
            let mut padded = bytes.clone();
            padded.resize(len, 0);
            Blocking::new(device.queue_pair().unwrap()).unwrap().write_at(0, &padded).unwrap();
            Arc::new(Faulty::new(Arc::new(device)))
        });
        Data { origins: origins.collect(), source }
    }

    fn open(&self, options: &TierOptions) -> Image {
        self.try_open(options).unwrap()
    }

    fn try_open(&self, options: &TierOptions) -> dlfs::Result<Image> {
        let devices = self.origins.iter().map(|origin| Arc::clone(origin) as Arc<dyn Device>);
        let options = OpenOptions { tiers: options.clone(), ..OpenOptions::default() };
        Image::from_devices(devices.collect(), &options)
    }

    /// Reads epochs along an order, compares every byte, and returns the ids in order.
    fn epochs(&self, image: &Image, options: LoaderOptions) -> Vec<u64> {
        let mut loader = image.prefetcher(options).unwrap();
        let mut order = Vec::new();
        while let Some(batch) = loader.next() {
            let batch = batch.unwrap_or_else(|error| panic!("{error:?}"));
            self.compare(&batch);
            order.extend(batch.ids().map(|id| id.0));
        }
        order
    }

    fn compare(&self, batch: &Batch) {
        for (index, id) in batch.ids().enumerate() {
            let expected = &self.source[id.0 as usize].record;
            assert!(batch.bytes(index)[..] == expected[..], "sample {id}");
        }
    }

    /// Reads all samples by id, a few at a time.
    fn all(&self, image: &Image) {
        let mut reader = image.reader(ReaderOptions::default()).unwrap();
        let ids: Vec<SampleId> = (0..self.source.len() as u64).map(SampleId).collect();
        let mut batch = Batch::new();
        for ids in ids.chunks(7) {
            reader.read_batch(ids, &mut batch).unwrap_or_else(|error| panic!("{error:?}"));
            self.compare(&batch);
        }
    }

    fn origin_reads(&self) -> usize {
        self.origins.iter().map(|origin| origin.take_seen().len()).sum()
    }
}

fn options(policy: Policy, tiers: &[&str]) -> TierOptions {
    let tiers = tiers.iter().map(|tier| tier.parse().unwrap()).collect();
    TierOptions { tiers, policy, ..TierOptions::default() }
}

/// The only tier in a folder.
fn tier_in(folder: &Path) -> std::path::PathBuf {
    let mut tiers = tiers_in(folder);
    assert_eq!(tiers.len(), 1, "{tiers:?}");
    tiers.remove(0)
}

/// All tiers in a folder.
fn tiers_in(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|name| name == "dlfs")).collect()
}

/// Waits until nothing is being copied.
fn settle(image: &Image) -> CacheStats {
    let tiers = image.tiers().expect("it was opened with tiers");
    let until = Instant::now() + Duration::from_secs(60);
    while !tiers.is_settled() {
        assert!(Instant::now() < until, "still copying: {:#?}", tiers.stats());
        std::thread::sleep(Duration::from_millis(2));
    }
    tiers.stats()
}

fn global(seed: u64, epochs: u64) -> LoaderOptions {
    LoaderOptions::new(OrderSpec { kind: OrderKind::Global, seed }, 11, epochs)
}

#[test]
fn every_policy_gives_the_same_bytes_in_the_same_order() {
    let data = Data::new();
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random::new(41);
    let kinds = [
        OrderKind::Global,
        OrderKind::Grouped { lanes: 2, group: 2 },
        OrderKind::Sequential { by: SequentialBy::Slot },
        OrderKind::Sequential { by: SequentialBy::Id },
    ];
    let plain = data.open(&TierOptions::default());
    for (round, kind) in (0..3).flat_map(|round| kinds.map(|kind| (round, kind))) {
        let mut run = LoaderOptions::new(OrderSpec { kind, seed: random.next_u64() }, 9, 3);
        run.batch_size = 1 + random.below(30) as usize;
        run.world_size = 1 + random.below(3) as u32;
        run.rank = random.below(u64::from(run.world_size)) as u32;
        if random.one_in(3) {
            run.batching = Some(Batching::Sample);
        }
        let expected = data.epochs(&plain, run.clone());
        for policy in [Policy::None, Policy::FirstTouch, Policy::Clairvoyant] {
            for stop in [Stop::Never, Stop::AtFirstFailure] {
                let place = folder.path().join(format!("{round}-{policy:?}-{stop:?}-{kind:?}"));
                fs::create_dir(&place).unwrap();
                let ram = format!("ram:{}", 4096 * (1 + random.below(1000)));
                let file = format!("file:{}:{}", place.display(), 40_000 + random.below(3 << 20));
                let tiers = TierOptions { stop, ..options(policy, &[&ram, &file]) };
                let image = data.open(&tiers);
                let found = data.epochs(&image, run.clone());
                assert_eq!(found, expected, "{policy:?} {kind:?} {tiers:?}");
                for tier in image.tiers().map(Cache::stats).unwrap_or_default().tiers {
                    assert!(tier.used_bytes <= tier.capacity_bytes, "{tier:?}");
                    assert_eq!((tier.damaged, tier.is_off), (0, false), "{tier:?}");
                }
                drop(image);
                fs::remove_dir_all(place).unwrap();
            }
        }
    }
}

#[test]
fn what_fits_is_read_from_the_origin_once() {
    let data = Data::new();
    for policy in [Policy::FirstTouch, Policy::Clairvoyant] {
        let image = data.open(&options(policy, &["ram:64M"]));
        data.epochs(&image, global(1, 1));
        let stats = settle(&image);
        assert!(stats.tiers[0].fills > 0 && stats.tiers[0].fill_bytes <= 64 << 20, "{stats:?}");
        data.origin_reads();
        data.epochs(&image, global(1, 2));
        assert_eq!(data.origin_reads(), 0, "{policy:?}: {:#?}", settle(&image));
        let stats = settle(&image);
        assert!(stats.tiers[0].hits > 0 && stats.tiers[0].hit_bytes > 0, "{stats:?}");
    }
}

#[test]
fn more_data_than_all_tiers_hold_works_and_the_quota_is_kept() {
    let data = Data::new();
    let folder = tempfile::tempdir().unwrap();
    for policy in [Policy::FirstTouch, Policy::Clairvoyant] {
        let quota = 1 << 20;
        let file = format!("file:{}:{quota}", folder.path().display());
        let image = data.open(&options(policy, &["ram:600K", &file]));
        for epoch in 0..3 {
            data.epochs(&image, global(epoch, 1));
            settle(&image);
        }
        let stats = settle(&image);
        assert!(stats.tiers[0].used_bytes <= 600 << 10 && stats.tiers[0].fills > 0, "{stats:?}");
        assert!(stats.tiers[1].hits > 0, "{stats:?}");
        // The file is sparse: its length says nothing. The file system's own blocks for it count, too.
        let len = fs::metadata(tier_in(folder.path())).unwrap().blocks() * 512;
        assert!(len <= quota + (16 << 10), "{len} bytes on disk, the quota is {quota}");
    }
}

#[test]
fn the_first_partial_read_is_served_while_the_whole_unit_is_fetched_once() {
    let origin = MemNamespace::new(8 << 20, 4096).unwrap();
    let mut bytes = vec![0; 8 << 20];
    Random::new(5).fill(&mut bytes);
    Blocking::new(origin.queue_pair().unwrap()).unwrap().write_at(0, &bytes).unwrap();
    let origin = Faulty::new(Arc::new(origin.read_only()));
    let units = Units::from_pages([(0, 1024), (1024, 1024)]);
    let cache = cache(&origin, units, &options(Policy::FirstTouch, &["ram:4M"]));
    let device = Arc::clone(&cache.devices()[0]);
    std::thread::scope(|scope| {
        for reader in 0..4 {
            let device = &device;
            let bytes = &bytes;
            scope.spawn(move || {
                let mut io = Blocking::new(device.queue_pair().unwrap()).unwrap();
                let at = reader * 8192;
                assert!(io.read(at as u64, 8192).unwrap()[..] == bytes[at..at + 8192]);
            });
        }
    });
    settle_cache(&cache);
    let stats = cache.stats();
    let held = (stats.tiers[0].fill_bytes, stats.tiers[0].held_bytes);
    assert_eq!(held, (4 << 20, 4 << 20), "{stats:?}");
    assert_eq!(
        stats.origin.bytes + stats.origin.copier_bytes,
        4 << 20,
        "each byte once: {stats:?}"
    );
    origin.take_seen();
    let mut io = Blocking::new(device.queue_pair().unwrap()).unwrap();
    assert!(io.read(0, 4 << 20).unwrap()[..] == bytes[..4 << 20]);
    assert!(origin.take_seen().is_empty());
    assert!(io.read(1 << 20, 7 << 20).unwrap()[..] == bytes[1 << 20..], "from both");
    settle_cache(&cache);
    assert_eq!(cache.stats().tiers[0].fill_bytes, 4 << 20, "there is no room for the second");
}

#[test]
fn pieces_read_in_sequence_come_from_the_origin_in_large_reads() {
    let folder = tempfile::tempdir().unwrap();
    let len = (12 << 20) + 5000;
    let mut bytes = vec![0; len];
    Random::new(8).fill(&mut bytes);
    for name in ["a", "b", "c"] {
        fs::write(folder.path().join(name), &bytes).unwrap();
    }
    // The copier reads ahead of the reader on a slow machine if there is room.
    for (tier, limit) in [("ram:1M", 3 * 14), ("ram:64M", 3 * 2 * 14)] {
        let origin = Arc::new(FolderNamespace::open(folder.path(), Default::default()).unwrap());
        let begins: Vec<u64> = origin.files().iter().map(|file| file.offset_bytes).collect();
        let image = Image::open(&[Address::from_path(folder.path())], &OpenOptions::default());
        let devices: Vec<Arc<dyn Device>> = vec![origin.clone()];
        let tiers = options(Policy::FirstTouch, &[tier]);
        let image = image.unwrap().with_devices(devices).with_tiers(&tiers).unwrap();
        let mut io = Blocking::new(image.devices()[0].queue_pair().unwrap()).unwrap();
        let piece = 256 << 10;
        for at in (0..len).step_by(piece) {
            // Three files in turn: each is a sequence of its own.
            for begin in &begins {
                let end = len.min(at + piece);
                let found = io.read(begin + at as u64, end - at).unwrap();
                assert!(found[..] == bytes[at..end], "at {at}");
            }
        }
        settle(&image);
        let reads = origin.stats().reads;
        let stats = image.tiers().unwrap().stats();
        assert!(reads <= limit, "{reads} reads of the folder, at most {limit}: {stats:#?}");
        // A copier that has room and is ahead leaves nothing to read ahead.
        assert!(stats.origin.ahead_bytes > 0 || tier == "ram:64M", "{stats:#?}");
    }
}

#[test]
fn bytes_read_ahead_that_are_wrong_or_cannot_be_read_are_read_again_by_themselves() {
    let origin = MemNamespace::new(8 << 20, 4096).unwrap();
    let mut bytes = vec![0; 8 << 20];
    Random::new(9).fill(&mut bytes);
    Blocking::new(origin.queue_pair().unwrap()).unwrap().write_at(0, &bytes).unwrap();
    let origin = Faulty::new(Arc::new(origin.read_only()));
    let units = Units::from_pages([(0, 1024), (1024, 1024)]);
    let cache = cache(&origin, units, &options(Policy::FirstTouch, &["ram:1M"]));
    let mut pair = cache.devices()[0].queue_pair().unwrap();
    let mut read = |page: usize| {
        let io =
            Io { op: IoOp::Read, slba: Lba(page as u64), buf: IoBuf::zeroed(16 << 12), tag: 7 };
        pair.submit(&mut VecDeque::from([io]));
        let mut done = Vec::new();
        while done.is_empty() {
            pair.poll(Instant::now(), 1, &mut done);
        }
        let done = done.pop().unwrap();
        done.result.as_ref().unwrap_or_else(|error| panic!("page {page}: {error}"));
        let same = done.buf[..] == bytes[page << 12..(page + 16) << 12];
        if !same {
            pair.report_corrupt(Lba(page as u64), 16 << 12);
        }
        same
    };
    assert!(read(0));
    let unreadable = Fault::Status(dlfs::nvme::Status::UNRECOVERED_READ_ERROR);
    origin.add(Rule::read(200..201, 1, unreadable));
    assert!(read(16), "nobody has asked for page 200 yet");
    origin.add(Rule::read(32..33, 1, Fault::FlipBit { bit: 5 }));
    assert!(!read(32), "the window's first byte");
    assert!(read(32), "again from the origin");
    for page in (48..2048).step_by(16) {
        assert!(read(page), "page {page}");
    }
}

#[test]
fn a_device_with_tiers_keeps_the_contract_of_a_read_only_engine() {
    let origin = MemNamespace::new(5 << 20, 512).unwrap();
    let mut bytes = vec![0; 5 << 20];
    Random::new(6).fill(&mut bytes);
    Blocking::new(origin.queue_pair().unwrap()).unwrap().write_at(0, &bytes).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = format!("file:{}:2M", folder.path().display());
    let units = Units::from_pages((0..60).map(|unit| (unit * 20, 17 + unit as u32 % 5)));
    let origin = Faulty::new(Arc::new(origin.read_only()));
    let tiers = options(Policy::FirstTouch, &["ram:1M", &file]);
    let cache = cache(&origin, units, &tiers);
    for _ in 0..3 {
        contract::check_read_only(Arc::clone(&cache.devices()[0]));
        settle_cache(&cache);
    }
    assert!(cache.stats().tiers.iter().all(|tier| tier.hits > 0), "{:#?}", cache.stats());
}

#[test]
fn a_tier_that_survived_a_restart_is_checked_and_used_again() {
    let data = Data::new();
    let folder = tempfile::tempdir().unwrap();
    let tiers = options(Policy::FirstTouch, &[&format!("file:{}:32M", folder.path().display())]);
    let fills = {
        let image = data.open(&tiers);
        data.all(&image);
        settle(&image).tiers[0].fills
    };
    data.origin_reads();
    let image = data.open(&tiers);
    let opening = data.origin_reads();
    let stats = settle(&image);
    assert_eq!((stats.tiers[0].restored, stats.tiers[0].damaged), (fills, 0), "{stats:?}");
    data.all(&image);
    assert_eq!(data.origin_reads(), 0, "after {opening} to open: {:#?}", settle(&image));
    drop(image);
    // A flipped bit is detected before the copy is used; the rest is used.
    let path = tier_in(folder.path());
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.len() - bytes.iter().rev().position(|byte| *byte != 0).unwrap() - 1;
    bytes[at] ^= 1;
    fs::write(&path, bytes).unwrap();
    let image = data.open(&tiers);
    let stats = settle(&image);
    assert_eq!((stats.tiers[0].restored, stats.tiers[0].damaged), (fills - 1, 1), "{stats:?}");
    assert_eq!(stats.tiers[0].fills, 1, "it was fetched again: {stats:?}");
    data.all(&image);
}

#[test]
fn a_tier_is_used_again_whatever_path_leads_to_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    let real = folder.path().join("real");
    let link = folder.path().join("link");
    fs::create_dir(&real).unwrap();
    std::os::unix::fs::symlink(&real, &link).unwrap();
    // Less than twice the data set: counted as the tier of another one, its own would have to go.
    let tiers = options(Policy::FirstTouch, &[&format!("file:{}:4M", link.display())]);
    assert_eq!(read_filled(&filled(1, 1, 1, &tiers), 1), 0);
    assert_eq!(read_filled(&filled(1, 1, 1, &tiers), 1), 48);
}

/// A data set of 50 units of 64 KiB, all bytes `fill`, behind a tier in a folder.
fn filled(fill: u8, uuid: u8, generation: u64, tiers: &TierOptions) -> Cache {
    let origin = MemNamespace::new(4 << 20, 4096).unwrap();
    let mut io = Blocking::new(origin.queue_pair().unwrap()).unwrap();
    io.write_at(0, &vec![fill; 4 << 20]).unwrap();
    let identity = Identity { uuid: Uuid([uuid; 16]), generation: Generation(generation) };
    let origins: [Arc<dyn Device>; 1] = [Arc::new(origin.read_only())];
    let units = Units::from_pages((0..50).map(|unit| (unit * 16, 16)));
    Cache::new(&origins, units, identity, tiers).unwrap()
}

/// Reads all of a [`filled`] data set; returns the copies that its tier has restored.
fn read_filled(cache: &Cache, fill: u8) -> u64 {
    settle_cache(cache);
    let restored = cache.stats().tiers[0].restored;
    let mut io = Blocking::new(cache.devices()[0].queue_pair().unwrap()).unwrap();
    let found = io.read(0, 3 << 20).unwrap();
    assert!(found.iter().all(|&byte| byte == fill), "bytes of another data set");
    settle_cache(cache);
    restored
}

#[test]
fn a_folder_holds_the_tiers_of_several_images_and_generations() {
    let folder = tempfile::tempdir().unwrap();
    // Room for two data sets and a half.
    let tiers = options(Policy::FirstTouch, &[&format!("file:{}:8M", folder.path().display())]);
    let run = |image, generation| {
        let fill = image * 16 + generation as u8;
        read_filled(&filled(fill, image, generation, &tiers), fill)
    };
    let reserved = || -> u64 {
        tiers_in(folder.path()).iter().map(|path| fs::metadata(path).unwrap().len()).sum()
    };
    let a = 1;
    let b = 2;
    let c = 3;
    assert_eq!((run(a, 1), run(a, 1)), (0, 48));
    assert_eq!((run(b, 1), run(a, 1), run(b, 1)), (0, 48, 48), "each has a file of its own");
    assert_eq!(run(b, 2), 0, "another generation");
    assert_eq!(tiers_in(folder.path()).len(), 2, "the older generation gave way, not image a");
    assert_eq!((run(a, 1), run(b, 2)), (48, 48));
    assert_eq!((run(c, 1), run(b, 2)), (0, 48), "what was used last stays");
    assert_eq!(run(a, 1), 0, "what was used longest ago is gone");
    assert!(reserved() <= 8 << 20, "{} bytes, more than the quota", reserved());
}

#[test]
fn tiers_of_two_data_sets_in_one_folder_work_side_by_side_within_the_quota() {
    let folder = tempfile::tempdir().unwrap();
    let tiers = options(Policy::FirstTouch, &[&format!("file:{}:5M", folder.path().display())]);
    let train = filled(1, 1, 1, &tiers);
    read_filled(&train, 1);
    // The second gets what the first leaves, and the third has no room: it reads the origin.
    let validation = filled(2, 2, 1, &tiers);
    read_filled(&validation, 2);
    let (third, warnings) = warnings_of(|| filled(3, 3, 1, &tiers));
    assert!(warnings.iter().any(|text| text.contains("raise the quota")), "{warnings:?}");
    read_filled(&third, 3);
    let fills = [&train, &validation, &third].map(|cache| cache.stats().tiers[0].fills);
    assert!(fills[0] == 48 && (20..40).contains(&fills[1]) && fills[2] == 0, "{fills:?}");
    for (cache, fill) in [(&train, 1), (&validation, 2), (&third, 3)] {
        read_filled(cache, fill);
    }
    let files = tiers_in(folder.path());
    let reserved: u64 = files.iter().map(|path| fs::metadata(path).unwrap().len()).sum();
    assert!(files.len() == 2 && reserved <= 5 << 20, "{reserved} bytes in {files:?}");
}

#[test]
fn other_files_in_a_folder_of_tiers_stay() {
    let folder = tempfile::tempdir().unwrap();
    let tiers = options(Policy::FirstTouch, &[&format!("file:{}:4M", folder.path().display())]);
    read_filled(&filled(1, 1, 1, &tiers), 1);
    let notes = tier_in(folder.path()).with_file_name("tier-notes-g1.dlfs");
    fs::write(&notes, vec![b'n'; 3 << 20]).unwrap();
    read_filled(&filled(2, 2, 1, &tiers), 2);
    assert_eq!(fs::read(&notes).unwrap(), vec![b'n'; 3 << 20]);
    assert_eq!(tiers_in(folder.path()).len(), 2, "the first tier gave way");
}

#[test]
fn copies_of_another_data_set_or_generation_are_not_used() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tier");
    fs::write(&file, "").unwrap();
    // A file, unlike a folder, has room for one data set.
    let tiers = options(Policy::FirstTouch, &[&format!("file:{}:4M", file.display())]);
    let open =
        |fill: u8, uuid, generation| read_filled(&filled(fill, uuid, generation, &tiers), fill);
    assert_eq!(open(1, 1, 1), 0);
    assert!(open(1, 1, 1) > 40);
    assert_eq!(open(2, 1, 2), 0, "another generation");
    assert_eq!(open(3, 2, 2), 0, "another data set");
    assert!(open(3, 2, 2) > 40);
}

#[test]
fn a_copy_that_is_flipped_while_it_is_used_is_a_miss_and_fetched_again() {
    let data = Data::new();
    let folder = tempfile::tempdir().unwrap();
    let tiers = options(Policy::FirstTouch, &[&format!("file:{}:32M", folder.path().display())]);
    let image = data.open(&tiers);
    data.all(&image);
    let fills = settle(&image).tiers[0].fills;
    let path = tier_in(folder.path());
    let mut bytes = fs::read(&path).unwrap();
    let data_at = Index::len_bytes(image.tiers().unwrap().units().len()) as usize;
    bytes[data_at..].iter_mut().for_each(|byte| *byte ^= 0x55);
    overwrite(&path, &bytes);
    data.all(&image);
    let stats = settle(&image);
    assert!(stats.tiers[0].damaged > 0 && stats.tiers[0].fills > fills, "{stats:?}");
    data.all(&image);
    assert_eq!(settle(&image).tiers[0].damaged, stats.tiers[0].damaged, "they were mended");
}

#[test]
fn a_tier_that_is_cut_off_or_vanishes_in_mid_epoch_is_missed_and_filled_again() {
    let data = Data::new();
    for vanish in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let tiers = format!("file:{}:32M", folder.path().display());
        let image = data.open(&options(Policy::FirstTouch, &[&tiers]));
        data.all(&image);
        settle(&image);
        let mut loader = image.prefetcher(global(9, 2)).unwrap();
        let path = tier_in(folder.path());
        let mut batches = 0;
        while let Some(batch) = loader.next() {
            data.compare(&batch.unwrap());
            batches += 1;
            if batches == 5 {
                fs::File::options().write(true).open(&path).unwrap().set_len(8192).unwrap();
                if vanish {
                    fs::remove_file(&path).unwrap();
                }
            }
        }
        data.all(&image);
        let stats = settle(&image);
        assert!(stats.tiers[0].damaged > 0 && !stats.tiers[0].is_off, "{stats:?}");
        data.origin_reads();
        data.all(&image);
        assert_eq!(data.origin_reads(), 0, "it was filled again");
    }
}

#[test]
fn a_full_disk_switches_the_tier_off_and_reads_go_on() {
    let data = Data::new();
    let Some(disk) = SmallDisk::new(20 << 20) else { return };
    let tiers = options(Policy::FirstTouch, &[&format!("file:{}:16M", disk.path().display())]);
    let image = data.open(&tiers);
    // Other data fill the disk meanwhile.
    fs::write(disk.path().join("ballast"), vec![1; 18 << 20]).unwrap();
    for _ in 0..2 {
        data.all(&image);
        settle(&image);
    }
    let stats = settle(&image);
    assert!(stats.tiers[0].is_off && stats.tiers[0].hits > 0, "{stats:?}");
}

#[test]
fn a_tier_larger_than_the_free_space_warns_and_uses_the_free_space() {
    let data = Data::new();
    let Some(disk) = SmallDisk::new(6 << 20) else { return };
    let ballast = disk.path().join("ballast");
    fs::write(&ballast, vec![1; 2 << 20]).unwrap();
    let tiers = options(Policy::FirstTouch, &[&format!("file:{}:5M", disk.path().display())]);
    for run in 0..2 {
        let (image, warnings) = warnings_of(|| data.open(&tiers));
        assert!(warnings.iter().any(|text| text.contains("has less room")), "{warnings:?}");
        let capacity = image.tiers().unwrap().capacities()[0] * 4096;
        assert!((3 << 20..=4 << 20).contains(&capacity), "run {run}: {capacity}");
        data.all(&image);
        let stats = settle(&image);
        assert!(!stats.tiers[0].is_off && stats.tiers[0].used_bytes > 2 << 20, "{stats:?}");
    }
    fs::remove_file(tier_in(disk.path())).unwrap();
    fs::write(&ballast, vec![1; 6 << 20]).unwrap();
    let error = data.try_open(&tiers).unwrap_err();
    assert!(error.kind() == ErrorKind::NoSpace, "{error:?}");
    assert!(error.report().contains("0 bytes free"), "{}", error.report());
}

#[test]
fn tiers_of_one_folder_share_a_disk_that_is_hardly_larger_than_all_of_them() {
    let Some(disk) = SmallDisk::new(8 << 20) else { return };
    let tiers = options(Policy::FirstTouch, &[&format!("file:{}:8M", disk.path().display())]);
    // The first leaves less free than both take together.
    let train = filled(1, 1, 1, &tiers);
    read_filled(&train, 1);
    let validation = filled(2, 2, 1, &tiers);
    read_filled(&validation, 2);
    assert_eq!([&train, &validation].map(|cache| cache.stats().tiers[0].fills), [48, 48]);
    drop((train, validation));
    let run = |fill| read_filled(&filled(fill, fill, 1, &tiers), fill);
    assert_eq!([1, 2, 1].map(run), [48, 48, 48], "neither gives way to the other");
}

#[test]
fn a_tier_larger_than_its_whole_file_system_or_memory_is_refused_by_name() {
    let data = Data::new();
    let Some(disk) = SmallDisk::new(4 << 20) else { return };
    let tier = format!("file:{}:1T", disk.path().display());
    let error = data.try_open(&options(Policy::FirstTouch, &[&tier])).unwrap_err();
    let report = error.report();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{report}");
    assert!(report.contains(&format!("{}:{}", disk.path().display(), 1_u64 << 40)), "{report}");
    assert!(report.contains("whole file system: 4194304 bytes"), "{report}");
    // A data set larger than any memory, and a tier for all of it.
    let units = Units::from_pages([(0, u32::MAX), (u64::from(u32::MAX), u32::MAX)]);
    let origin: Arc<dyn Device> = Arc::clone(&data.origins[0]) as _;
    let identity = Identity { uuid: images::unique_uuid(), generation: Generation(1) };
    let tiers = options(Policy::FirstTouch, &["ram:30T"]);
    let error = Cache::new(&[origin], units, identity, &tiers).unwrap_err();
    let report = error.report();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{report}");
    assert!(report.contains("ram:32985348833280"), "{report}");
}

#[test]
fn tiers_that_cannot_be_opened_say_why() {
    let data = Data::new();
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().display();
    let refuse = |tier: &str| {
        let error = data.try_open(&options(Policy::FirstTouch, &[tier])).expect_err(tier);
        (error.kind(), error.report())
    };
    let (kind, report) = refuse(&format!("file:{place}/missing:4M"));
    assert!(kind == ErrorKind::NotFound && report.contains("missing"), "{report}");
    let (kind, report) = refuse(&format!("file:{place}:4K"));
    assert!(kind == ErrorKind::InvalidArgument && report.contains("index"), "{report}");
    let tiers = options(Policy::FirstTouch, &[&format!("file:{place}:4M")]);
    let first = data.open(&tiers);
    // One in memory beside it changes nothing: what the owner has opened holds.
    let mixed = options(Policy::FirstTouch, &["ram:1M", &format!("file:{place}:4M")]);
    let attached = data.open(&mixed);
    assert_eq!(attached.tiers().unwrap().owner(), Some(std::process::id()));
    drop((attached, first));
    drop(data.open(&tiers));
    let mut permissions = fs::metadata(tier_in(folder.path())).unwrap().permissions();
    permissions.set_readonly(true);
    fs::set_permissions(tier_in(folder.path()), permissions).unwrap();
    if fs::File::options().write(true).open(tier_in(folder.path())).is_ok() {
        println!("SKIPPED: root may write what is read-only");
        return;
    }
    let (kind, report) = refuse(&format!("file:{place}:4M"));
    assert!(kind == ErrorKind::Refused, "{report}");
}

#[test]
fn a_quota_smaller_than_one_sample_keeps_nothing_and_the_next_tier_is_used() {
    let data = Data::new();
    for policy in [Policy::FirstTouch, Policy::Clairvoyant] {
        let image = data.open(&options(policy, &["ram:4000", "ram:8M"]));
        data.epochs(&image, global(3, 2));
        let stats = settle(&image);
        assert_eq!(stats.tiers[0].fills, 0, "{stats:?}");
        assert!(stats.tiers[1].fills > 0, "{stats:?}");
    }
}

#[test]
fn a_copy_that_was_interrupted_is_not_there_after_a_restart() {
    let data = Data::new();
    let folder = tempfile::tempdir().unwrap();
    let tiers = options(Policy::FirstTouch, &[&format!("file:{}:32M", folder.path().display())]);
    for origin in &data.origins {
        origin.add(Rule::any_read(100_000, Fault::DelayTime(Duration::from_millis(1))));
    }
    let fills = {
        let image = data.open(&tiers);
        let mut reader = image.reader(ReaderOptions::default()).unwrap();
        let ids: Vec<SampleId> = (0..40).map(SampleId).collect();
        reader.read_batch(&ids, &mut Batch::new()).unwrap();
        image.tiers().unwrap().stats().tiers[0].fills // the rest is given up
    };
    let image = data.open(&tiers);
    let stats = settle(&image);
    assert!(stats.tiers[0].damaged == 0 && stats.tiers[0].restored >= fills, "{stats:?}");
    data.all(&image);
}

#[test]
fn the_copier_keeps_to_its_bandwidth() {
    let origin = MemNamespace::new(8 << 20, 4096).unwrap();
    let origin = Faulty::new(Arc::new(origin.read_only()));
    let units = Units::from_pages((0..8).map(|unit| (unit * 256, 256)));
    let bandwidth_bytes_per_s = Some(6 << 20);
    let tiers = TierOptions { bandwidth_bytes_per_s, ..options(Policy::FirstTouch, &["ram:8M"]) };
    let cache = cache(&origin, units, &tiers);
    let mut io = Blocking::new(cache.devices()[0].queue_pair().unwrap()).unwrap();
    let began = Instant::now();
    for unit in 0..8 {
        drop(io.read(unit << 20, 4096).unwrap()); // a part of each: the copier fetches the rest
    }
    settle_cache(&cache);
    // Seven of eight units must pass before the last begins; it can only take longer.
    assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
    assert_eq!(cache.stats().tiers[0].held_bytes, 8 << 20);
}

#[test]
fn an_origin_that_fails_fails_the_read_and_not_the_tier() {
    let data = Data::new();
    let image = data.open(&options(Policy::FirstTouch, &["ram:64M"]));
    let mut reader = image.reader(ReaderOptions::default()).unwrap();
    for origin in &data.origins {
        origin.add(Rule::any_read(2, Fault::Status(dlfs::nvme::Status::UNRECOVERED_READ_ERROR)));
    }
    let _ = reader.read_batch(&[SampleId(5)], &mut Batch::new()); // the retry may succeed
    data.all(&image);
    let stats = settle(&image);
    assert!(stats.tiers[0].fills > 0 && !stats.tiers[0].is_off, "{stats:?}");
}

#[test]
fn a_folder_has_tiers_as_an_image_has() {
    let folder = tempfile::tempdir().unwrap();
    for index in 0..60_u8 {
        fs::write(folder.path().join(format!("{index:02}")), vec![index; 20_000]).unwrap();
    }
    let address = dlfs::address::Address::from_path(folder.path());
    let origin = Arc::new(FolderNamespace::open(folder.path(), Default::default()).unwrap());
    let image = Image::open(&[address], &OpenOptions::default()).unwrap();
    let image = image.with_devices(vec![origin.clone()]);
    let image = image.with_tiers(&options(Policy::FirstTouch, &["ram:1M"])).unwrap();
    let mut opens = Vec::new();
    for epoch in 0..3 {
        let mut loader = image.prefetcher(global(epoch, 1)).unwrap();
        while let Some(batch) = loader.next() {
            let batch = batch.unwrap();
            for (index, id) in batch.ids().enumerate() {
                assert!(batch.bytes(index).iter().all(|&byte| u64::from(byte) == id.0));
            }
        }
        settle(&image);
        opens.push(origin.stats().opens);
    }
    assert_eq!(opens, [60, 69, 78], "51 of 60 files have room, each is opened once an epoch");
}

#[test]
fn reads_are_counted_and_timed_by_place_and_stalls_are_known() {
    let data = Data::new();
    for origin in &data.origins {
        origin.add(Rule::any_read(u32::MAX, Fault::DelayTime(Duration::from_millis(2))));
    }
    let image = data.open(&options(Policy::FirstTouch, &["ram:64M"]));
    for epoch in 0..2 {
        let mut loader = image.prefetcher(global(epoch, 1)).unwrap();
        let mut ends = 0;
        while let Some(batch) = loader.next() {
            ends += u32::from(batch.unwrap().ends_epoch());
        }
        assert_eq!(ends, 1, "the epoch's end is known");
        if epoch == 0 {
            assert!(loader.stats().stall_s > 0.001, "the first batch was waited for");
        }
        settle(&image);
    }
    let stats = settle(&image);
    let per_read = stats.origin.read_s / stats.origin.reads as f64;
    assert!(per_read >= 0.002, "each took 2 ms at least: {stats:?}");
    let tier = &stats.tiers[0];
    assert!(tier.hits > 0 && tier.hit_s > 0.0 && tier.fill_s > 0.0, "{stats:?}");
}

fn cache(origin: &Faulty, units: Units, options: &TierOptions) -> Cache {
    let identity = Identity { uuid: images::unique_uuid(), generation: Generation(1) };
    let origins: [Arc<dyn Device>; 1] = [Arc::new(origin.clone())];
    Cache::new(&origins, units, identity, options).unwrap()
}

fn settle_cache(cache: &Cache) {
    let until = Instant::now() + Duration::from_secs(60);
    while !cache.is_settled() {
        assert!(Instant::now() < until, "still copying: {:#?}", cache.stats());
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Changes a file in place: existing descriptors see it.
fn overwrite(path: &Path, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    fs::File::options().write(true).open(path).unwrap().write_all_at(bytes, 0).unwrap();
}

#[test]
fn an_origin_lends_and_starts_through_tiers_as_it_does_without_them() {
    let data = Data::new();
    // Blocks of 512 bytes below pages of 4,096.
    let memory = MemNamespace::new(data.origins[0].namespace().len_bytes(), 512).unwrap();
    let first = &data.origins[0];
    let mut from = Blocking::new(first.queue_pair().unwrap()).unwrap();
    let bytes = from.read(0, first.namespace().len_bytes() as usize).unwrap();
    Blocking::new(memory.queue_pair().unwrap()).unwrap().write_at(0, &bytes).unwrap();
    let origin = Arc::new(Faulty::new(Arc::new(memory.read_only())));
    let devices: Vec<Arc<dyn Device>> =
        vec![Arc::clone(&origin) as _, Arc::clone(&data.origins[1]) as _];
    let options =
        OpenOptions { tiers: options(Policy::FirstTouch, &["ram:4M"]), ..OpenOptions::default() };
    let image = Image::from_devices(devices, &options).unwrap();
    data.all(&image);
    settle(&image);
    let mut pair = image.devices()[0].queue_pair().unwrap();
    for (slba, len) in [(0, 4096), (7, 8192), (20, 65_536)] {
        let lent = pair.borrow(Lba(slba), len).expect("within a stripe of memory that lends");
        assert!(lent[..] == bytes[slba as usize * 4096..][..len], "page {slba}");
    }
    let writable = image.devices()[1].queue_pair().unwrap();
    assert!(writable.borrow(Lba(0), 4096).is_none(), "its bytes may change");

    let before = origin.starts();
    let mut pending = VecDeque::from([contract::read(3, 4096)]);
    assert_eq!(pair.submit(&mut pending), 1);
    pair.start();
    assert_eq!((origin.starts(), pair.outstanding()), (before + 1, 1), "nothing is completed");
    let mut done = Vec::new();
    let until = Instant::now() + Duration::from_secs(60);
    while done.is_empty() {
        pair.poll(Instant::now(), 1, &mut done);
        assert!(Instant::now() < until);
    }
    assert!(done[0].buf[..] == bytes[3 * 4096..][..4096]);
}
