//! Tiers from one run to the next: what a new plan keeps, how a change of the origin affects
//! copies, block devices, and readers that read while copies change.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dlfs::ErrorKind;
use dlfs::address::Address;
use dlfs::cache::{Cache, Identity, TierOptions, TierPlan};
use dlfs::dataset::{Image, OpenOptions};
use dlfs::format::Uuid;
use dlfs::order::{OrderKind, OrderSpec};
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::blocking::Blocking;
use dlfs::reader::{Batch, ReaderOptions};
use dlfs::tier::{Policy, Units};
use dlfs::units::{Generation, SampleId};

use crate::support::disk::{LoopDevice, SmallDisk};
use crate::support::origin::Origin;
use crate::support::random::Random;

/// An origin that is divided into equal units.
fn origin(seed: u64) -> Origin {
    Origin::new(seed, NUM_UNITS * UNIT_BYTES)
}

/// The identity of an image with these bytes, unique to this process: with the same one, another test, or this one in
/// another process, would attach to its tiers.
fn identity(bytes: &[u8]) -> Identity {
    let of_bytes = u128::from(u64::from_le_bytes(bytes[..8].try_into().unwrap()));
    let uuid = Uuid((of_bytes << 32 | u128::from(std::process::id())).to_le_bytes());
    Identity { uuid, generation: Generation(1) }
}

impl Origin {
    fn units() -> Units {
        Units::from_pages((0..NUM_UNITS).map(|unit| (unit * UNIT_PAGES, UNIT_PAGES as u32)))
    }

    fn cache(&self, policy: Policy, tier: &str) -> Cache {
        let identity = identity(&self.bytes);
        let tiers =
            TierOptions { tiers: vec![tier.parse().unwrap()], policy, ..Default::default() };
        Cache::new(&[Arc::clone(&self.device)], Origin::units(), identity, &tiers).unwrap()
    }

    /// Reads whole units and compares them.
    fn read(&self, cache: &Cache, units: impl IntoIterator<Item = u64>) {
        let mut io = Blocking::new(cache.devices()[0].queue_pair().unwrap()).unwrap();
        for unit in units {
            let at = (unit * UNIT_BYTES) as usize;
            let found = io.read(at as u64, UNIT_BYTES as usize).unwrap();
            assert!(found[..] == self.bytes[at..at + UNIT_BYTES as usize], "unit {unit}");
        }
    }
}

/// A plan that keeps `copies` in the first tier; all units are read once, except those in `often`.
fn plan(copies: impl Iterator<Item = u32>, often: std::ops::Range<usize>) -> TierPlan {
    let mut reads = vec![1; NUM_UNITS as usize];
    reads[often].fill(5);
    let copies = copies.map(|unit| (unit, 0)).collect();
    TierPlan { copies, reads, fingerprint: Origin::units().fingerprint() }
}

fn settle(cache: &Cache) {
    let until = Instant::now() + Duration::from_secs(60);
    while !cache.is_settled() {
        assert!(Instant::now() < until, "still copying: {:#?}", cache.stats());
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until the copier has fetched all planned units.
fn settle_fills(cache: &Cache, fills: u64) {
    let until = Instant::now() + Duration::from_secs(60);
    while cache.stats().tiers[0].fills < fills {
        assert!(Instant::now() < until, "{:#?}", cache.stats());
        std::thread::sleep(Duration::from_millis(2));
    }
    settle(cache);
}

/// Room for half of the units and the index.
fn half(folder: &Path) -> String {
    let quota = NUM_UNITS / 2 * UNIT_BYTES + 8192;
    format!("file:{}:{quota}", folder.display())
}

#[test]
fn after_a_restart_copies_give_way_to_what_the_new_plan_reads_more_often() {
    let origin = origin(1);
    let folder = tempfile::tempdir().unwrap();
    let tier = half(folder.path());
    let first = 0..NUM_UNITS as u32 / 2;
    let second = NUM_UNITS as u32 / 2..NUM_UNITS as u32;
    {
        let cache = origin.cache(Policy::Clairvoyant, &tier);
        cache.set_plan(&plan(first, 0..0)).unwrap();
        settle_fills(&cache, NUM_UNITS / 2);
    }
    for checked in [true, false] {
        let cache = origin.cache(Policy::Clairvoyant, &tier);
        if checked {
            settle(&cache);
        }
        // The second half is planned; a quarter of all units is read more often than the existing
        // copies.
        let often = NUM_UNITS as usize / 2..NUM_UNITS as usize * 3 / 4;
        cache.set_plan(&plan(second.clone(), often.clone())).unwrap();
        settle_fills(&cache, if checked { NUM_UNITS / 4 } else { 0 });
        let stats = cache.stats().tiers[0].clone();
        if checked {
            assert_eq!((stats.left, stats.fills), (NUM_UNITS / 4, NUM_UNITS / 4), "{stats:?}");
        } else {
            assert_eq!((stats.left, stats.damaged), (0, 0), "they are there now: {stats:?}");
        }
        assert!(stats.used_bytes <= stats.capacity_bytes, "{stats:?}");
        let before = cache.stats().origin.reads;
        origin.read(&cache, often.map(|unit| unit as u64));
        assert_eq!(cache.stats().origin.reads, before, "the tier has them");
        origin.read(&cache, 0..NUM_UNITS);
    }
}

#[test]
fn copies_that_are_read_as_often_as_others_do_not_give_way() {
    let origin = origin(2);
    let cache = origin.cache(Policy::Clairvoyant, &format!("ram:{}", NUM_UNITS / 2 * UNIT_BYTES));
    cache.set_plan(&plan(0..NUM_UNITS as u32 / 2, 0..0)).unwrap();
    settle_fills(&cache, NUM_UNITS / 2);
    cache.set_plan(&plan(NUM_UNITS as u32 / 2..NUM_UNITS as u32, 0..0)).unwrap();
    settle(&cache);
    let stats = cache.stats().tiers[0].clone();
    assert_eq!((stats.left, stats.fills), (0, NUM_UNITS / 2), "{stats:?}");
}

#[test]
fn bytes_are_equal_while_copies_come_and_give_way() {
    let origin = origin(3);
    let cache = origin.cache(Policy::Clairvoyant, &format!("ram:{}", NUM_UNITS / 2 * UNIT_BYTES));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 0..3 {
            let origin = &origin;
            let cache = &cache;
            let is_over = &is_over;
            scope.spawn(move || {
                let mut random = Random::new(seed);
                while !is_over.load(Ordering::Relaxed) {
                    origin.read(cache, [(); 16].map(|()| random.below(NUM_UNITS)));
                }
            });
        }
        let mut random = Random::new(9);
        for _ in 0..12 {
            let from = random.below(NUM_UNITS / 2) as usize;
            let often = from..from + NUM_UNITS as usize / 2;
            cache.set_plan(&plan(often.start as u32..often.end as u32, often.clone())).unwrap();
            std::thread::sleep(Duration::from_millis(5));
            settle(&cache);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let stats = cache.stats().tiers[0].clone();
    assert!(stats.left > 0 && stats.hits > 0 && stats.damaged == 0, "{stats:?}");
}

#[test]
fn a_plan_of_another_data_set_or_of_other_tiers_is_refused() {
    let origin = origin(4);
    let cache = origin.cache(Policy::Clairvoyant, "ram:1M");
    let good = plan(0..4, 0..0);
    let other = Units::from_pages([(0, 1), (5, 9)]).fingerprint();
    let refused = [
        (TierPlan { fingerprint: other, ..good.clone() }, "another data set"),
        (TierPlan { reads: vec![1; 3], ..good.clone() }, "another data set"),
        (TierPlan { copies: vec![(NUM_UNITS as u32, 0)], ..good.clone() }, "a portion"),
        (TierPlan { copies: vec![(0, 1)], ..good.clone() }, "a tier"),
    ];
    for (plan, why) in refused {
        let error = cache.set_plan(&plan).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.report().contains(why), "{}", error.report());
    }
    cache.set_plan(&good).unwrap();
    settle_fills(&cache, 4);
}

#[test]
fn a_block_device_is_a_tier_and_its_copies_survive() {
    let origin = origin(5);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("disk");
    fs::File::create(&file).unwrap().set_len(32 << 20).unwrap();
    let Some(device) = LoopDevice::new(&file) else {
        println!("SKIPPED: no block device without root");
        return;
    };
    let tier = format!("file:{}:16M", device.path().display());
    for restored in [0, NUM_UNITS] {
        let cache = origin.cache(Policy::FirstTouch, &tier);
        settle(&cache);
        assert_eq!(cache.stats().tiers[0].restored, restored);
        origin.read(&cache, 0..NUM_UNITS);
        settle(&cache);
        origin.read(&cache, 0..NUM_UNITS);
        let stats = cache.stats();
        assert!(stats.tiers[0].hits >= NUM_UNITS && stats.tiers[0].damaged == 0, "{stats:?}");
        let attached = origin.cache(Policy::FirstTouch, &tier);
        assert_eq!(attached.owner(), Some(std::process::id()));
        origin.read(&attached, 0..NUM_UNITS);
        assert!(attached.stats().tiers[0].hits >= NUM_UNITS, "{:?}", attached.stats());
    }
    let tiers = format!("file:{}:64M", device.path().display()).parse().unwrap();
    let options = TierOptions { tiers: vec![tiers], ..TierOptions::default() };
    let identity = identity(&origin.bytes);
    let error = Cache::new(&[Arc::clone(&origin.device)], Origin::units(), identity, &options);
    assert_eq!(error.unwrap_err().kind(), ErrorKind::NoSpace, "the device is shorter");
}

#[test]
fn a_tier_on_a_read_only_file_system_is_refused_with_its_path() {
    let origin = origin(6);
    let Some(disk) = SmallDisk::new(4 << 20) else {
        println!("SKIPPED: no read-only file system without root");
        return;
    };
    disk.make_read_only();
    let tiers = vec![format!("file:{}:2M", disk.path().display()).parse().unwrap()];
    let options = TierOptions { tiers, ..TierOptions::default() };
    let identity = identity(&origin.bytes);
    let error = Cache::new(&[Arc::clone(&origin.device)], Origin::units(), identity, &options);
    let error = error.unwrap_err();
    assert!(error.report().contains(&*disk.path().to_string_lossy()), "{}", error.report());
    assert!(error.report().contains("ead-only"), "{}", error.report());
}

#[test]
fn a_folder_that_changes_during_a_run_is_stale_and_what_was_copied_is_still_right() {
    let folder = tempfile::tempdir().unwrap();
    for index in 0..40_u8 {
        fs::write(folder.path().join(format!("{index:02}")), vec![index; 20_000]).unwrap();
    }
    for policy in [Policy::FirstTouch, Policy::Clairvoyant] {
        let tiers = vec!["ram:400K".parse().unwrap()];
        let tiers = TierOptions { tiers, policy, ..TierOptions::default() };
        let options = OpenOptions { tiers, ..OpenOptions::default() };
        let image = Image::open(&[Address::from_path(folder.path())], &options).unwrap();
        let order = OrderSpec { kind: OrderKind::Global, seed: 3 };
        let mut loader = image.prefetcher(LoaderOptions::new(order, 4, 1)).unwrap();
        while let Some(batch) = loader.next() {
            batch.unwrap();
        }
        drop(loader);
        settle(image.tiers().unwrap());
        std::thread::sleep(Duration::from_millis(20)); // ensures a new time stamp
        for index in 0..40_u8 {
            fs::write(folder.path().join(format!("{index:02}")), vec![index ^ 99; 20_000]).unwrap();
        }
        let mut reader = image.reader(ReaderOptions::default()).unwrap();
        let mut batch = Batch::new();
        let mut copied = 0;
        let mut stale = 0;
        for index in 0..40 {
            match reader.read_batch(&[SampleId(index)], &mut batch) {
                Ok(()) => {
                    assert!(batch.bytes(0).iter().all(|&byte| u64::from(byte) == index));
                    copied += 1;
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Stale, "{error:?}");
                    stale += 1;
                }
            }
        }
        assert!(copied > 0 && stale > 0, "{policy:?}: {copied} from the tier, {stale} not");
        for index in 0..40_u8 {
            fs::write(folder.path().join(format!("{index:02}")), vec![index; 20_000]).unwrap();
        }
    }
}

#[test]
fn a_tier_whose_file_system_goes_away_in_mid_run_is_missed_and_reads_go_on() {
    let origin = origin(7);
    let Some(disk) = SmallDisk::new(16 << 20) else {
        println!("SKIPPED: no file system to take away without root");
        return;
    };
    let cache = origin.cache(Policy::FirstTouch, &format!("file:{}:8M", disk.path().display()));
    origin.read(&cache, 0..NUM_UNITS / 2);
    settle(&cache);
    let is_tier = |path: &Path| path.to_string_lossy().contains("tier-");
    let entries = fs::read_dir(disk.path()).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| is_tier(path)).for_each(|path| fs::remove_file(path).unwrap());
    drop(disk); // lazy unmount: open files stay usable, opening fails
    origin.read(&cache, 0..NUM_UNITS);
    settle(&cache);
    origin.read(&cache, 0..NUM_UNITS);
}

const NUM_UNITS: u64 = 64;
const UNIT_PAGES: u64 = 16;
const UNIT_BYTES: u64 = UNIT_PAGES * 4096;
