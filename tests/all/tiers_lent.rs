//! Tiers in memory lend their copies: what is lent never changes, and what is withdrawn is written again only when
//! nobody has it any more.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::alone::ran_alone;
use dlfs::buf::SharedBuf;
use dlfs::cache::{Cache, CacheStats, Identity, TierOptions, TierPlan};
use dlfs::format::Uuid;
use dlfs::qpair::QueuePair;
use dlfs::qpair::blocking::Blocking;
use dlfs::tier::{Policy, Units};
use dlfs::units::{Generation, Lba};

use crate::images::unique_uuid;
use crate::support::fork::in_child;
use crate::support::origin::Origin;

/// Samples in units of 16 pages.
struct Data {
    origin: Origin,
    uuid: Uuid,
    units: Units,
}

impl Data {
    fn new(seed: u64, units: Units) -> Data {
        println!("seed {seed}");
        Data { origin: Origin::new(seed, NUM_PAGES * PAGE), uuid: unique_uuid(), units }
    }

    fn open(&self, policy: Policy, tier: &str) -> Cache {
        let identity = Identity { uuid: self.uuid, generation: Generation(1) };
        let tiers = vec![tier.parse().unwrap()];
        let options = TierOptions { tiers, policy, ..TierOptions::default() };
        let devices = [Arc::clone(&self.origin.device)];
        Cache::new(&devices, self.units.clone(), identity, &options).unwrap()
    }

    fn bytes(&self, pages: std::ops::Range<u64>) -> &[u8] {
        &self.origin.bytes[(pages.start * PAGE) as usize..(pages.end * PAGE) as usize]
    }

    fn read(&self, cache: &Cache, pages: std::ops::Range<u64>) {
        let mut io = Blocking::new(cache.devices()[0].queue_pair().unwrap()).unwrap();
        let len = ((pages.end - pages.start) * PAGE) as usize;
        let found = io.read(pages.start * PAGE, len).unwrap();
        assert!(found[..] == *self.bytes(pages));
    }
}

fn small() -> Units {
    Units::of_small_samples((0..NUM_PAGES / 16).map(|unit| (unit * 16, 16)))
}

/// A target's view of the tiers for peers, which never reads the origin.
fn view(cache: &Cache) -> Box<dyn QueuePair> {
    cache.views(true, &[[1; 16]])[0].queue_pair().unwrap()
}

fn borrow(pair: &dyn QueuePair, pages: std::ops::Range<u64>) -> Option<SharedBuf> {
    pair.borrow(Lba(pages.start), ((pages.end - pages.start) * PAGE) as usize)
}

fn wait_until(cache: &Cache, what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < until, "{what}: {:#?}", cache.stats());
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn settle(cache: &Cache) -> CacheStats {
    wait_until(cache, "still copying", || cache.is_settled());
    cache.stats()
}

fn origin_bytes(cache: &Cache) -> u64 {
    let origin = cache.stats().origin;
    origin.bytes + origin.copier_bytes
}

#[test]
fn copies_in_memory_are_lent_where_they_are_contiguous() {
    let data = Data::new(1, small());
    let folder = tempfile::tempdir().unwrap();
    let cache = data.open(Policy::FirstTouch, "ram:64M");
    data.read(&cache, 16..64);
    settle(&cache);
    let pair = view(&cache);
    for pages in [16..17, 30..34, 16..64] {
        let lent = borrow(&*pair, pages.clone()).expect("all of it is there, side by side");
        assert!(lent[..] == *data.bytes(pages));
    }
    assert!(borrow(&*pair, 15..17).is_none() && borrow(&*pair, 63..65).is_none());
    let stats = cache.stats();
    assert_eq!((stats.tiers[0].hits, stats.tiers[0].hit_bytes), (3, 53 * PAGE), "{stats:?}");
    let file = data.open(Policy::FirstTouch, &format!("file:{}:64M", folder.path().display()));
    data.read(&file, 16..64);
    settle(&file);
    assert!(borrow(&*view(&file), 16..17).is_none(), "a file has no memory to lend");
}

#[test]
fn a_corrupt_page_is_kept_again_once_nobody_has_its_old_bytes() {
    let data = Data::new(2, small());
    let cache = data.open(Policy::FirstTouch, "ram:64M");
    data.read(&cache, 0..32);
    settle(&cache);
    let mut pair = view(&cache);
    let lent = borrow(&*pair, 2..5).unwrap();
    pair.report_corrupt(Lba(3), PAGE as usize);
    assert!(borrow(&*pair, 2..5).is_none() && borrow(&*pair, 3..4).is_none());
    assert!(borrow(&*pair, 4..5).is_some(), "its neighbours are lent as before");
    for round in 1..4 {
        data.read(&cache, 0..32);
        assert_eq!(settle(&cache).tiers[0].held_bytes, 31 * PAGE, "there is no place for it");
        assert_eq!(origin_bytes(&cache), (32 + round) * PAGE);
    }
    assert!(lent[..] == *data.bytes(2..5));
    drop(lent);
    wait_until(&cache, "the page is not kept", || {
        data.read(&cache, 3..4);
        settle(&cache).tiers[0].held_bytes == 32 * PAGE
    });
    assert!(borrow(&*pair, 2..5).unwrap()[..] == *data.bytes(2..5));
}

#[test]
fn a_large_samples_corrupt_page_is_fetched_once_nobody_has_its_old_bytes() {
    let data = Data::new(3, Units::from_pages((0..NUM_PAGES / 16).map(|unit| (unit * 16, 16))));
    let cache = data.open(Policy::FirstTouch, "ram:64M");
    data.read(&cache, 0..16);
    assert_eq!(settle(&cache).tiers[0].held_bytes, 16 * PAGE);
    let mut pair = view(&cache);
    let lent = borrow(&*pair, 0..16).unwrap();
    pair.report_corrupt(Lba(3), PAGE as usize);
    let before = origin_bytes(&cache);
    std::thread::sleep(Duration::from_millis(300)); // long enough for a copier that does not wait
    assert!(lent[..] == *data.bytes(0..16));
    assert_eq!((origin_bytes(&cache), cache.stats().tiers[0].held_bytes), (before, 15 * PAGE));
    drop(lent);
    assert_eq!(settle(&cache).tiers[0].held_bytes, 16 * PAGE, "without a reader");
    assert_eq!(origin_bytes(&cache), before + PAGE);
}

#[test]
fn evicted_copies_stay_until_nobody_has_them() {
    let data = Data::new(4, small());
    // Room for a quarter.
    let cache = data.open(Policy::Clairvoyant, &format!("ram:{}", NUM_PAGES / 4 * PAGE));
    let num_units = small().len();
    let plan = |quarter: u32| {
        let units = quarter * num_units / 4..(quarter + 1) * num_units / 4;
        let mut reads = vec![quarter as u16; num_units as usize];
        reads[units.start as usize..units.end as usize].fill(quarter as u16 + 1);
        let copies = units.map(|unit| (unit, 0)).collect();
        TierPlan { copies, reads, fingerprint: small().fingerprint() }
    };
    let of_quarter = |quarter: u64| quarter * NUM_PAGES / 4..(quarter + 1) * NUM_PAGES / 4;
    let are_filled = |quarters: u64| {
        let filled = || cache.stats().tiers[0].fills >= quarters * u64::from(num_units) / 4;
        wait_until(&cache, "the plan is not kept", filled);
        settle(&cache);
    };
    cache.set_plan(&plan(0)).unwrap();
    are_filled(1);
    let pair = view(&cache);
    let lent: Vec<SharedBuf> =
        (0..NUM_PAGES / 4).map(|page| borrow(&*pair, page..page + 1).unwrap()).collect();
    cache.set_plan(&plan(1)).unwrap();
    wait_until(&cache, "nothing is evicted", || {
        cache.stats().tiers[0].left == u64::from(num_units) / 4
    });
    assert!(borrow(&*pair, 0..1).is_none());
    data.read(&cache, of_quarter(1));
    assert_eq!(settle(&cache).tiers[0].held_bytes, 0, "there is no room yet");
    for (page, lent) in (0..).zip(&lent) {
        assert!(lent[..] == *data.bytes(page..page + 1), "page {page}");
    }
    drop(lent);
    are_filled(2);
    assert!(borrow(&*pair, of_quarter(1)).unwrap()[..] == *data.bytes(of_quarter(1)));
}

#[test]
fn a_forked_child_lends_nothing() {
    if ran_alone(a_forked_child_lends_nothing) {
        return;
    }
    let data = Data::new(5, small());
    let cache = data.open(Policy::FirstTouch, "ram:64M");
    data.read(&cache, 0..16);
    settle(&cache);
    let pair = view(&cache);
    assert!(borrow(&*pair, 0..16).is_some());
    let lends_nothing = || {
        data.read(&cache, 0..16);
        borrow(&*pair, 0..16).is_none()
    };
    assert!(in_child(lends_nothing), "its parent would not know");
    assert!(borrow(&*pair, 0..16).is_some());
}

const PAGE: u64 = 4096;
const NUM_PAGES: u64 = 1024;
