//! Copies are kept by page of 4 KiB: what a read brings is kept as it is and reserves what it uses, and of
//! several that want a page one reads it from the origin.

mod own_files;

use std::collections::{BTreeSet, VecDeque};
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::alone::ran_alone;
use dlfs::buf::IoBuf;
use dlfs::cache::{Cache, CacheStats, Identity, TierOptions, TierPlan};
use dlfs::format::Uuid;
use dlfs::metrics::Place;
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::{Completion, Io, IoOp, PairScope, QueuePair};
use dlfs::tier::{Index, Policy, Units};
use dlfs::units::{Generation, Lba};

use crate::images::unique_uuid;
use crate::support::disk::SmallDisk;
use crate::support::faults::{Fault, Faulty, Rule};
use crate::support::fork::in_child;
use crate::support::origin::Origin;
use crate::support::random::Random;

/// Small samples of 4,000 bytes without gaps, in units of 16 pages.
struct Small {
    origin: Origin,
    policy: Policy,
    uuid: Uuid,
}

impl Small {
    fn new(seed: u64) -> Small {
        let origin = Origin::new(seed, NUM_PAGES * PAGE);
        Small { origin, policy: Policy::FirstTouch, uuid: unique_uuid() }
    }

    fn units() -> Units {
        Units::of_small_samples((0..NUM_PAGES / 16).map(|unit| (unit * 16, 16)))
    }

    fn open(&self, tier: &str) -> Cache {
        let identity = Identity { uuid: self.uuid, generation: Generation(1) };
        let tiers = vec![tier.parse().unwrap()];
        let options = TierOptions { tiers, policy: self.policy, ..TierOptions::default() };
        Cache::new(&[Arc::clone(&self.origin.device)], Small::units(), identity, &options).unwrap()
    }

    /// Reads whole pages and compares them.
    fn read(&self, cache: &Cache, pages: impl IntoIterator<Item = std::ops::Range<u64>>) {
        let mut io = Blocking::new(cache.devices()[0].queue_pair().unwrap()).unwrap();
        for pages in pages {
            let from = (pages.start * PAGE) as usize;
            let to = (pages.end * PAGE) as usize;
            let found = io.read(from as u64, to - from).unwrap();
            assert!(found[..] == self.origin.bytes[from..to], "pages {pages:?}");
        }
    }
}

/// The pages of a sample of 4,000 bytes.
fn pages_of(sample: u64) -> std::ops::Range<u64> {
    sample * SAMPLE / PAGE..((sample + 1) * SAMPLE).div_ceil(PAGE)
}

fn file(folder: &Path, quota: &str) -> String {
    format!("file:{}:{quota}", folder.display())
}

fn settle(cache: &Cache) -> CacheStats {
    let until = Instant::now() + Duration::from_secs(60);
    while !cache.is_settled() {
        assert!(Instant::now() < until, "still copying: {:#?}", cache.stats());
        std::thread::sleep(Duration::from_millis(2));
    }
    cache.stats()
}

/// The bytes that the only tier in `folder` takes on disk, as `du` counts them.
fn on_disk(folder: &Path) -> u64 {
    let mut tiers = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let tier = tiers.find(|path| path.extension().is_some_and(|name| name == "dlfs")).unwrap();
    fs::metadata(tier).unwrap().blocks() * 512
}

/// A tier of this size on disk is within `quota`: the file system takes some blocks of its own to find the
/// parts of a sparse file.
fn is_within(on_disk: u64, quota: u64) -> bool {
    on_disk <= quota + quota / 128 + 16 * 1024
}

fn origin_bytes(cache: &Cache) -> u64 {
    let origin = cache.stats().origin;
    origin.bytes + origin.copier_bytes
}

fn submit(pair: &mut dyn QueuePair, pages: std::ops::Range<u64>, tag: u64) {
    let buf = IoBuf::zeroed(((pages.end - pages.start) * PAGE) as usize);
    let io = Io { op: IoOp::Read, slba: Lba(pages.start), buf, tag };
    assert_eq!(pair.submit(&mut VecDeque::from([io])), 1);
}

fn poll(pair: &mut dyn QueuePair) -> Vec<Completion> {
    let mut done = Vec::new();
    pair.poll(Instant::now(), usize::MAX, &mut done);
    done
}

fn poll_until_done(pair: &mut dyn QueuePair, count: usize) -> Vec<Completion> {
    let until = Instant::now() + Duration::from_secs(60);
    let mut done = Vec::new();
    while done.len() < count {
        done.append(&mut poll(pair));
        assert!(Instant::now() < until, "it never completes");
    }
    done
}

#[test]
fn small_samples_in_random_order_reserve_the_pages_that_they_touch_and_no_more() {
    let data = Small::new(1);
    let folder = tempfile::tempdir().unwrap();
    for tier in ["ram:64M".to_owned(), file(folder.path(), "64M")] {
        let cache = data.open(&tier);
        let mut random = Random::new(2);
        let samples: Vec<u64> = (0..1000).map(|_| random.below(NUM_SAMPLES)).collect();
        let touched: BTreeSet<u64> = samples.iter().flat_map(|&sample| pages_of(sample)).collect();
        data.read(&cache, samples.iter().map(|&sample| pages_of(sample)));
        let stats = settle(&cache);
        let bytes = touched.len() as u64 * PAGE;
        println!("{bytes} bytes of pages for {} of samples", 1000 * SAMPLE);
        let tier = &stats.tiers[0];
        // A little is read ahead where a sample happens to follow the last one.
        assert!((bytes..bytes * 103 / 100).contains(&tier.held_bytes), "{stats:?}");
        assert_eq!(tier.used_bytes, tier.held_bytes, "{stats:?}");
        assert_eq!(origin_bytes(&cache), tier.held_bytes, "each page once: {stats:?}");
        data.read(&cache, samples.iter().map(|&sample| pages_of(sample)));
        assert_eq!(origin_bytes(&cache), tier.held_bytes, "{:?}", cache.stats());
    }
}

/// The places count every byte of every read once, whoever fetched it.
#[test]
fn a_read_of_pages_that_another_read_is_fetching_counts_as_joined() {
    let data = Small::new(21);
    let folder = tempfile::tempdir().unwrap();
    for (tier, place) in
        [("ram:64M".to_owned(), Place::Memory), (file(folder.path(), "64M"), Place::Drive)]
    {
        let origin = Faulty::new(Arc::clone(&data.origin.device));
        let identity = Identity { uuid: data.uuid, generation: Generation(1) };
        let tiers = TierOptions { tiers: vec![tier.parse().unwrap()], ..TierOptions::default() };
        let cache =
            Cache::new(&[Arc::new(origin.clone())], Small::units(), identity, &tiers).unwrap();
        let scope = PairScope::new();
        let mut pair = cache.devices()[0].queue_pair_in(&scope).unwrap();
        // Two reads of page 6, the second of which wants page 5 as well.
        origin.add(Rule::any_read(2, Fault::Delay { polls: 5 }));
        submit(&mut *pair, 6..7, 1);
        submit(&mut *pair, 5..7, 2);
        for done in poll_until_done(&mut *pair, 2) {
            let pages = if done.tag == 1 { 6..7 } else { 5..7 };
            let bytes = (pages.start * PAGE) as usize..(pages.end * PAGE) as usize;
            assert!(done.result.is_ok() && done.buf[..] == data.origin.bytes[bytes], "{pages:?}");
        }
        let places = scope.places().read();
        let stats = settle(&cache);
        assert_eq!((stats.origin.joined, stats.origin.joined_bytes), (1, PAGE), "{stats:?}");
        assert_eq!((stats.origin.bytes, places.of(Place::Ahead)), (2 * PAGE, PAGE), "{stats:?}");
        assert_eq!(places.total(), PAGE, "the origin is the rest: {places:?}");
        // Now there are copies of them, and of no others.
        submit(&mut *pair, 4..7, 3);
        poll_until_done(&mut *pair, 1);
        let places = scope.places().read();
        assert_eq!((places.of(place), places.total()), (2 * PAGE, 3 * PAGE), "{places:?}");
        assert_eq!(settle(&cache).origin.bytes, 3 * PAGE);
    }
}

#[test]
fn pages_that_were_kept_are_there_after_a_restart_and_no_others() {
    let data = Small::new(2);
    let folder = tempfile::tempdir().unwrap();
    let tier = file(folder.path(), "64M");
    let kept = || (0..NUM_PAGES).step_by(3).map(|page| page..page + 1);
    {
        let cache = data.open(&tier);
        data.read(&cache, kept());
        settle(&cache);
    }
    let cache = data.open(&tier);
    let stats = settle(&cache);
    assert_eq!((stats.tiers[0].restored, stats.tiers[0].damaged), (NUM_PAGES / 16, 0));
    assert_eq!(stats.tiers[0].used_bytes, NUM_PAGES.div_ceil(3) * PAGE);
    data.read(&cache, kept());
    assert_eq!(origin_bytes(&cache), 0, "{stats:?}");
    data.read(&cache, (0..NUM_PAGES / 16).map(|unit| unit * 16..unit * 16 + 16));
    assert_eq!(origin_bytes(&cache), (NUM_PAGES - NUM_PAGES.div_ceil(3)) * PAGE);
    let stats = settle(&cache);
    assert_eq!(
        (stats.tiers[0].fills, stats.tiers[0].held_bytes),
        (NUM_PAGES / 16, NUM_PAGES * PAGE)
    );
}

/// Nobody waits for the last copies, nor for those of the run before to be checked.
#[test]
fn all_that_was_read_is_found_again_at_once_by_the_next_run() {
    let data = Small::new(22);
    for _ in 0..3 {
        let folder = tempfile::tempdir().unwrap();
        let tier = file(folder.path(), "64M");
        for is_first in [true, false] {
            let cache = data.open(&tier);
            data.read(&cache, (0..NUM_PAGES / 64).map(|run| run * 64..(run + 1) * 64));
            let expected = if is_first { NUM_PAGES * PAGE } else { 0 };
            assert_eq!(origin_bytes(&cache), expected, "{:?}", cache.stats());
        }
        let stats = settle(&data.open(&tier));
        let tier = &stats.tiers[0];
        assert_eq!((tier.restored, tier.damaged), (NUM_PAGES / 16, 0), "{stats:?}");
        assert_eq!(tier.held_bytes, NUM_PAGES * PAGE, "{stats:?}");
    }
}

#[test]
fn a_corrupt_page_is_fetched_again_and_its_neighbours_stay() {
    let data = Small::new(3);
    let folder = tempfile::tempdir().unwrap();
    let tier = file(folder.path(), "64M");
    let unit = || std::iter::once(32..48);
    {
        let cache = data.open(&tier);
        data.read(&cache, unit());
        settle(&cache);
        let mut pair = cache.devices()[0].queue_pair().unwrap();
        pair.report_corrupt(Lba(35), PAGE as usize);
        let stats = settle(&cache);
        let tier = &stats.tiers[0];
        assert_eq!((tier.damaged, tier.held_bytes, tier.used_bytes), (1, 15 * PAGE, 16 * PAGE));
        data.read(&cache, unit());
        assert_eq!(origin_bytes(&cache), 17 * PAGE, "one page again");
        assert_eq!(settle(&cache).tiers[0].held_bytes, 16 * PAGE);
    }
    let cache = data.open(&tier);
    let stats = settle(&cache);
    assert_eq!((stats.tiers[0].restored, stats.tiers[0].damaged), (1, 0), "{stats:?}");
    data.read(&cache, unit());
    assert_eq!(origin_bytes(&cache), 0);
}

#[test]
fn readers_of_a_page_that_is_being_copied_wait_for_the_copy() {
    let data = Small::new(4);
    let cache = data.open("ram:64M");
    let mut pairs = [(); 3].map(|()| cache.devices()[0].queue_pair().unwrap());
    let [first, second, third] = &mut pairs;
    let began = Instant::now();
    submit(&mut **first, 8..12, 1);
    submit(&mut **second, 10..14, 2);
    // A wait ends after a second, so on a machine that stalls for that long the second reader reads two pages again.
    let mut early: Vec<_> = (0..100).flat_map(|_| poll(&mut **second)).collect();
    let stalled = || began.elapsed() >= Duration::from_secs(1);
    assert!(early.is_empty() || stalled(), "half of it is under way");
    let done = poll_until_done(&mut **first, 1).remove(0);
    assert!(done.buf[..] == data.origin.bytes[8 << 12..12 << 12]);
    let done = early.pop().unwrap_or_else(|| poll_until_done(&mut **second, 1).remove(0));
    assert!(done.buf[..] == data.origin.bytes[10 << 12..14 << 12]);
    let again = if stalled() { origin_bytes(&cache) - 6 * PAGE } else { 0 };
    assert!(again <= 2 * PAGE, "{again} bytes");
    assert_eq!(origin_bytes(&cache), 6 * PAGE + again, "each page once");
    // Within one queue pair it is served from memory.
    submit(&mut **third, 32..40, 3);
    submit(&mut **third, 36..38, 4);
    for done in poll_until_done(&mut **third, 2) {
        let (from, to) = if done.tag == 3 { (32 << 12, 40 << 12) } else { (36 << 12, 38 << 12) };
        assert!(done.buf[..] == data.origin.bytes[from..to]);
    }
    assert_eq!(origin_bytes(&cache), 14 * PAGE + again);
    // Without its claimant it is read by who waits.
    submit(&mut **first, 64..66, 5);
    let began = Instant::now();
    submit(&mut **second, 64..66, 6);
    let mut early = poll(&mut **second);
    assert!(early.is_empty() || began.elapsed() >= Duration::from_secs(1), "it waits");
    pairs[0] = cache.devices()[0].queue_pair().unwrap();
    let done = early.pop().unwrap_or_else(|| poll_until_done(&mut *pairs[1], 1).remove(0));
    assert!(done.buf[..] == data.origin.bytes[64 << 12..66 << 12]);
    assert_eq!(settle(&cache).tiers[0].held_bytes, 16 * PAGE);
}

#[test]
fn pages_claimed_by_a_killed_process_are_read_by_others() {
    if ran_alone(pages_claimed_by_a_killed_process_are_read_by_others) {
        return;
    }
    let data = Small::new(5);
    let folder = tempfile::tempdir().unwrap();
    let tier = file(folder.path(), "64M");
    let cache = data.open(&tier);
    for round in 0..4 {
        let pages = round * 16..round * 16 + 16;
        let is_killed = !in_child(|| {
            let cache = data.open(&tier);
            let mut pair = cache.devices()[0].queue_pair().unwrap();
            submit(&mut *pair, pages.clone(), 1);
            if round % 2 == 0 {
                std::thread::sleep(Duration::from_millis(20)); // the owner hears of the claim
            }
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)
                .is_ok()
        });
        assert!(is_killed);
        let began = Instant::now();
        data.read(&cache, [pages]);
        println!("after {:?}", began.elapsed());
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    }
    let stats = settle(&cache);
    assert_eq!(stats.tiers[0].held_bytes, 64 * PAGE, "{stats:?}");
    assert_eq!(origin_bytes(&cache), 64 * PAGE);
}

#[test]
fn a_page_of_two_units_is_kept_once_also_where_only_the_second_is_planned() {
    let mut data = Small::new(6);
    // Three samples of 20 pages; a page has bytes of two of them.
    let units = || Units::from_pages([(0, 20), (19, 20), (38, 20)]);
    assert_eq!(units().num_pages(), 58);
    data.policy = Policy::Clairvoyant;
    let identity = Identity { uuid: data.uuid, generation: Generation(1) };
    let options = TierOptions {
        tiers: vec![format!("ram:{}", 20 * PAGE).parse().unwrap()],
        policy: Policy::Clairvoyant,
        ..TierOptions::default()
    };
    let cache =
        Cache::new(&[Arc::clone(&data.origin.device)], units(), identity, &options).unwrap();
    let plan = |unit: u32, reads: Vec<u16>| TierPlan {
        copies: vec![(unit, 0)],
        reads,
        fingerprint: units().fingerprint(),
    };
    cache.set_plan(&plan(1, vec![1, 2, 1])).unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while cache.stats().tiers[0].held_bytes < 20 * PAGE {
        assert!(Instant::now() < until, "{:?}", cache.stats());
        std::thread::sleep(Duration::from_millis(2));
    }
    let stats = settle(&cache);
    assert_eq!(stats.tiers[0].used_bytes, 20 * PAGE, "19 pages and the one before: {stats:?}");
    data.read(&cache, std::iter::once(19..39));
    assert_eq!(cache.stats().origin.bytes, 0, "all of the sample is there");
    // The first one is planned now, whose last page has been kept for the second.
    cache.set_plan(&plan(0, vec![9, 2, 1])).unwrap();
    while cache.stats().tiers[0].fills < 2 {
        assert!(Instant::now() < until, "{:?}", cache.stats());
        std::thread::sleep(Duration::from_millis(2));
    }
    settle(&cache);
    data.read(&cache, std::iter::once(0..20));
    assert_eq!(cache.stats().origin.bytes, 0, "{:?}", cache.stats());
    data.read(&cache, std::iter::once(0..58));
}

#[test]
fn the_quota_counts_the_pages_that_are_kept_and_not_those_between_them() {
    let data = Small::new(7);
    let folder = tempfile::tempdir().unwrap();
    // One page of each unit, whose places take sixteen times the quota.
    let one_each = || (0..NUM_PAGES / 16).map(|unit| unit * 16 + 5..unit * 16 + 6);
    let pages = NUM_PAGES / 16;
    let index = Index::len_bytes(Small::units().len());
    let quota = index + pages * PAGE;
    for tier in [format!("ram:{}", pages * PAGE), file(folder.path(), &quota.to_string())] {
        let cache = data.open(&tier);
        data.read(&cache, one_each());
        let stats = settle(&cache);
        let tier = &stats.tiers[0];
        assert_eq!(
            (tier.held_bytes, tier.capacity_bytes),
            (pages * PAGE, pages * PAGE),
            "{stats:?}"
        );
        // The quota is used up now: nothing more is kept.
        data.read(&cache, (0..NUM_PAGES / 16).map(|unit| unit * 16..unit * 16 + 16));
        assert_eq!(settle(&cache).tiers[0].held_bytes, pages * PAGE);
        data.read(&cache, one_each());
    }
    let on_disk_now = on_disk(folder.path());
    println!("{on_disk_now} bytes on disk, the quota is {quota}");
    assert!(is_within(on_disk_now, quota), "{on_disk_now} bytes on disk, the quota is {quota}");
    {
        let cache = data.open(&file(folder.path(), &quota.to_string()));
        assert_eq!(settle(&cache).tiers[0].restored, pages);
        data.read(&cache, one_each());
        assert_eq!(origin_bytes(&cache), 0);
    }
    // Under a smaller quota a part of the copies gives way, on disk, too.
    let quota = index + pages / 4 * PAGE;
    let cache = data.open(&file(folder.path(), &quota.to_string()));
    let stats = settle(&cache);
    assert_eq!(stats.tiers[0].held_bytes, pages / 4 * PAGE, "{stats:?}");
    assert!(is_within(on_disk(folder.path()), quota), "{} of {quota}", on_disk(folder.path()));
    data.read(&cache, one_each());
}

#[test]
fn what_a_full_tier_has_no_room_for_finds_it_in_the_next() {
    let data = Small::new(13);
    let folder = tempfile::tempdir().unwrap();
    let tiers = [format!("ram:{}", 100 * PAGE), file(folder.path(), "64M")];
    let options = TierOptions {
        tiers: tiers.iter().map(|tier| tier.parse().unwrap()).collect(),
        ..TierOptions::default()
    };
    let identity = Identity { uuid: data.uuid, generation: Generation(1) };
    let origins = [Arc::clone(&data.origin.device)];
    let cache = Cache::new(&origins, Small::units(), identity, &options).unwrap();
    // A page of each unit first: they would take all of the memory.
    data.read(&cache, (0..NUM_PAGES / 16).map(|unit| unit * 16 + 5..unit * 16 + 6));
    for _ in 0..2 {
        data.read(&cache, (0..NUM_PAGES / 16).map(|unit| unit * 16..unit * 16 + 16));
        settle(&cache);
    }
    let before = origin_bytes(&cache);
    data.read(&cache, (0..NUM_PAGES / 16).map(|unit| unit * 16..unit * 16 + 16));
    assert_eq!(origin_bytes(&cache), before, "{:?}", cache.stats());
}

#[test]
fn planned_units_that_share_pages_all_find_a_place() {
    let data = Small::new(14);
    // Each unit's first sample begins in the last page of the one before.
    let units = || Units::of_small_samples((0..200).map(|unit| (unit * 15, 16)));
    let num_pages = units().num_pages();
    let options = TierOptions {
        tiers: vec![format!("ram:{}", num_pages * PAGE).parse().unwrap()],
        policy: Policy::Clairvoyant,
        ..TierOptions::default()
    };
    let identity = Identity { uuid: data.uuid, generation: Generation(1) };
    let origins = [Arc::clone(&data.origin.device)];
    let cache = Cache::new(&origins, units(), identity, &options).unwrap();
    // Every other unit first, so that the last pages of those between come first.
    let copies = (0..200).step_by(2).chain((1..200).step_by(2)).map(|unit| (unit, 0)).collect();
    let reads = vec![1; 200];
    cache.set_plan(&TierPlan { copies, reads, fingerprint: units().fingerprint() }).unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while cache.stats().tiers[0].held_bytes < num_pages * PAGE {
        assert!(Instant::now() < until, "{:?}", cache.stats());
        std::thread::sleep(Duration::from_millis(2));
    }
    data.read(&cache, std::iter::once(0..num_pages));
    assert_eq!(cache.stats().origin.bytes, 0);
}

#[test]
fn pages_that_a_killed_process_left_on_disk_without_an_entry_are_freed() {
    let data = Small::new(8);
    let folder = tempfile::tempdir().unwrap();
    let quota = 2 << 20;
    let tier = file(folder.path(), &quota.to_string());
    let kept = || (0..NUM_PAGES).step_by(64).map(|page| page..page + 2);
    {
        let cache = data.open(&tier);
        data.read(&cache, kept());
        settle(&cache);
    }
    let before = on_disk(folder.path());
    let path = fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
    let writable = fs::File::options().write(true).open(&path).unwrap();
    let len = writable.metadata().unwrap().len();
    // Between the copies, and behind them.
    let first = Index::len_bytes(Small::units().len()) + 8 * PAGE;
    writable.write_all_at(&[1; 2 * PAGE as usize], first).unwrap();
    writable.write_all_at(&vec![1; 4 << 20], len - (4 << 20)).unwrap();
    writable.sync_all().unwrap();
    assert!(on_disk(folder.path()) > quota);
    let cache = data.open(&tier);
    assert_eq!(settle(&cache).tiers[0].damaged, 0);
    let after = on_disk(folder.path());
    assert!(after <= before + 16 * 1024, "{before} bytes before, {after} after");
    data.read(&cache, kept());
    assert_eq!(origin_bytes(&cache), 0);
}

#[test]
fn what_a_plan_evicts_is_freed_on_disk() {
    let mut data = Small::new(9);
    data.policy = Policy::Clairvoyant;
    let folder = tempfile::tempdir().unwrap();
    let num_units = Small::units().len();
    let index = Index::len_bytes(num_units);
    let quota = index + NUM_PAGES / 4 * PAGE;
    let tier = file(folder.path(), &quota.to_string());
    let cache = data.open(&tier);
    for round in 0..4 {
        // Each plan reads another quarter most often.
        let quarter = round * num_units / 4..(round + 1) * num_units / 4;
        let mut reads = vec![round as u16; num_units as usize];
        reads[quarter.start as usize..quarter.end as usize].fill(round as u16 + 1);
        let copies = quarter.clone().map(|unit| (unit, 0)).collect();
        let plan = TierPlan { copies, reads, fingerprint: Small::units().fingerprint() };
        cache.set_plan(&plan).unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        let pages = u64::from(quarter.start) * 16..u64::from(quarter.end) * 16;
        while cache.stats().tiers[0].fills < u64::from(round + 1) * NUM_PAGES / 64 {
            assert!(Instant::now() < until, "{:?}", cache.stats());
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(settle(&cache).tiers[0].held_bytes, NUM_PAGES / 4 * PAGE);
        let on_disk = on_disk(folder.path());
        assert!(is_within(on_disk, quota), "round {round}: {on_disk} bytes of {quota}");
        let before = origin_bytes(&cache);
        data.read(&cache, [pages]);
        assert_eq!(origin_bytes(&cache), before);
    }
    assert_eq!(cache.stats().tiers[0].left, u64::from(num_units) / 4 * 3);
}

#[test]
fn a_sparse_tier_whose_disk_fills_up_is_switched_off_and_reads_go_on() {
    let data = Small::new(10);
    let Some(disk) = SmallDisk::new(10 << 20) else { return };
    let cache = data.open(&file(disk.path(), "8M"));
    // Other data fill the disk meanwhile.
    fs::write(disk.path().join("ballast"), vec![1; 6 << 20]).unwrap();
    let every_other = || (0..NUM_PAGES).step_by(2).map(|page| page..page + 1);
    data.read(&cache, every_other());
    let tier = settle(&cache).tiers.remove(0);
    assert!(tier.is_off && tier.held_bytes > 0 && tier.held_bytes < 4 << 20, "{tier:?}");
    data.read(&cache, every_other());
    assert!(cache.stats().tiers[0].hits > 0);
}

#[test]
fn sparse_tiers_of_two_data_sets_in_one_folder_share_the_quota() {
    let folder = tempfile::tempdir().unwrap();
    let tier = file(folder.path(), "4M");
    let first = Small::new(11);
    let second = Small::new(12);
    let one_each = || (0..NUM_PAGES / 16).map(|unit| unit * 16..unit * 16 + 1);
    let small = file(folder.path(), "1M");
    drop(first.open(&small)); // a reservation of 1 MiB, in a file that is longer
    let opened = first.open(&small);
    first.read(&opened, one_each());
    settle(&opened);
    let beside = second.open(&tier);
    second.read(&beside, one_each());
    let capacities = [opened.capacities()[0], beside.capacities()[0]];
    let index = Index::len_bytes(Small::units().len());
    let sum: u64 = capacities.iter().map(|pages| index + pages * PAGE).sum();
    assert_eq!(sum, 4 << 20, "{capacities:?}: the second gets what the first leaves");
}

const PAGE: u64 = 4096;
const NUM_PAGES: u64 = 4096;
const SAMPLE: u64 = 4000;
const NUM_SAMPLES: u64 = NUM_PAGES * PAGE / SAMPLE;
