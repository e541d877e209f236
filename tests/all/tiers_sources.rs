//! The rates of tiers and origin count: the faster source is read, of equals the copy, and a tier's threads
//! limit what is in flight.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlfs::cache::{Cache, Environment, Identity, TierPlan};
use dlfs::dataset::{Image, OpenOptions};
use dlfs::format::Pack;
use dlfs::order::{OrderKind, OrderSpec};
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::Device;
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::mem::MemNamespace;
use dlfs::tier::Units;
use dlfs::units::Generation;

use crate::images::{self, Sample, sample, unique_uuid};
use crate::support::faults::{Fault, Faulty, Rule};
use crate::support::origin::Origin;
use crate::support::warnings::warnings_of;

/// One tier that gives `tier` MB/s to each of `threads`, over an origin with this table.
fn environment(place: &str, tier: u64, threads: u32, origin: &str) -> Environment {
    let all = tier * u64::from(threads);
    let text = format!(
        "policy = \"first-touch\"\norigin = [{origin}]\n[[tier]]\n{place}\ncapacity = \"32M\"\n\
         threads = {threads}\nread = [{{ threads = {threads}, mb_per_s = {all} }}]"
    );
    Environment::parse(&text).unwrap()
}

fn memory() -> String {
    "backend = \"memory\"".to_owned()
}

fn folder(path: &Path) -> String {
    format!("backend = \"filesystem\"\npath = \"{}\"", path.display())
}

fn open(origin: &Origin, environment: &Environment) -> Cache {
    let identity = Identity { uuid: unique_uuid(), generation: Generation(1) };
    let options = environment.options().unwrap();
    Cache::new(&[Arc::clone(&origin.device)], units(), identity, &options).unwrap()
}

fn units() -> Units {
    Units::from_pages((0..NUM_UNITS).map(|unit| (unit * UNIT_PAGES, UNIT_PAGES as u32)))
}

/// Reads all units, compares them, waits for the copies, and returns the bytes from the origin and from the tier.
fn read_all(origin: &Origin, cache: &Cache) -> (u64, u64) {
    let before = cache.stats();
    let mut io = Blocking::new(cache.devices()[0].queue_pair().unwrap()).unwrap();
    for unit in 0..NUM_UNITS as usize {
        let at = unit * UNIT_BYTES;
        let found = io.read(at as u64, UNIT_BYTES).unwrap();
        assert!(found[..] == origin.bytes[at..at + UNIT_BYTES], "unit {unit}");
    }
    settle(cache);
    let after = cache.stats();
    (after.origin.bytes - before.origin.bytes, after.tiers[0].hit_bytes - before.tiers[0].hit_bytes)
}

fn settle(cache: &Cache) {
    let until = Instant::now() + Duration::from_secs(60);
    while !cache.is_settled() {
        assert!(Instant::now() < until, "still copying: {:#?}", cache.stats());
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_tier_that_is_slower_than_the_origin_is_neither_read_nor_filled_and_of_equals_the_copy_is_read()
{
    let origin = Origin::new(1, ALL_BYTES);
    for tier in [99, 100, 101] {
        let place = tempfile::tempdir().unwrap();
        for place in [memory(), folder(place.path())] {
            let table = "{ threads = 1, mb_per_s = 100 }, { threads = 2, mb_per_s = 200 }";
            let cache = open(&origin, &environment(&place, tier, 2, table));
            let first = read_all(&origin, &cache);
            let second = read_all(&origin, &cache);
            let held = cache.stats().tiers[0].held_bytes;
            assert_eq!(first, (ALL_BYTES, 0), "{tier} MB/s");
            match tier {
                99 => assert_eq!((second, held), ((ALL_BYTES, 0), 0), "the origin is faster"),
                _ => assert_eq!((second, held), ((0, ALL_BYTES), ALL_BYTES), "{tier} MB/s"),
            }
        }
    }
}

#[test]
fn the_number_of_processes_turns_the_choice_round_while_the_tier_is_open() {
    let origin = Origin::new(2, ALL_BYTES);
    // One process gets 100 MB/s, each of two 75, each of four 40; the tier gives 75.
    let table = "{ threads = 1, mb_per_s = 100 }, { threads = 2, mb_per_s = 150 }, \
                 { threads = 4, mb_per_s = 160 }";
    let cache = open(&origin, &environment(&memory(), 75, 1, table));
    assert_eq!(read_all(&origin, &cache), (ALL_BYTES, 0));
    assert_eq!(read_all(&origin, &cache), (ALL_BYTES, 0), "nothing was kept");
    let ((), warnings) = warnings_of(|| cache.set_processes(4));
    assert!(warnings.is_empty(), "{warnings:?}");
    assert_eq!(read_all(&origin, &cache), (ALL_BYTES, 0));
    assert_eq!(read_all(&origin, &cache), (0, ALL_BYTES));
    let ((), warnings) = warnings_of(|| cache.set_processes(1));
    let said = warnings.join(" ");
    assert!(said.contains("75 MB/s") && said.contains("100 MB/s"), "{said}");
    assert_eq!(read_all(&origin, &cache), (ALL_BYTES, 0), "what is kept is slower");
    assert_eq!(cache.stats().tiers[0].held_bytes, ALL_BYTES, "and stays");
    cache.set_processes(2);
    assert_eq!(read_all(&origin, &cache), (0, ALL_BYTES), "a tie");
}

#[test]
fn a_tier_that_is_slower_than_the_origin_from_the_beginning_is_told_once() {
    let origin = Origin::new(4, ALL_BYTES);
    let cache = open(&origin, &environment(&memory(), 75, 1, "{ threads = 1, mb_per_s = 100 }"));
    let ((), warnings) = warnings_of(|| cache.set_processes(1));
    let said = warnings.join(" ");
    assert!(said.contains("75 MB/s") && said.contains("100 MB/s"), "{said}");
    let ((), warnings) = warnings_of(|| cache.set_processes(1));
    assert!(warnings.is_empty(), "{warnings:?}");
}

#[test]
fn of_two_tiers_the_one_that_is_slower_than_the_origin_is_left_out() {
    let origin = Origin::new(3, ALL_BYTES);
    let place = tempfile::tempdir().unwrap();
    let mut fast = environment(&memory(), 1000, 1, "{ threads = 1, mb_per_s = 500 }");
    let slow = environment(&folder(place.path()), 100, 1, "{ threads = 1, mb_per_s = 500 }");
    fast.tiers[0].capacity = (ALL_BYTES / 2).to_string();
    fast.tiers.extend(slow.tiers);
    let cache = open(&origin, &fast);
    read_all(&origin, &cache);
    assert_eq!(read_all(&origin, &cache), (ALL_BYTES / 2, ALL_BYTES / 2));
    let held: Vec<u64> = cache.stats().tiers.iter().map(|tier| tier.held_bytes).collect();
    assert_eq!(held, [ALL_BYTES / 2, 0]);
    cache.set_processes(5); // 100 MB/s each: a tie
    read_all(&origin, &cache);
    assert_eq!(read_all(&origin, &cache), (0, ALL_BYTES / 2));
    assert_eq!(cache.stats().tiers[1].hit_bytes, ALL_BYTES / 2);
}

#[test]
fn a_loader_tells_the_tiers_how_many_ranks_read() {
    let source: Vec<Sample> =
        (0..40).map(|n| sample(&format!("{n:02}"), Some(n), 70_000)).collect();
    let mut media = images::Image::unique(1, Pack::Aligned);
    media.add(&source, 7, source.len() as u64, &[]);
    let len = media.namespaces[0].len().next_multiple_of(64 << 10);
    let device = MemNamespace::new(len as u64, 512).unwrap();
    let mut io = Blocking::new(device.queue_pair().unwrap()).unwrap();
    media.namespaces[0].resize(len, 0);
    io.write_at(0, &media.namespaces[0]).unwrap();
    let rates = environment(&memory(), 75, 1, "{ threads = 1, mb_per_s = 100 }");
    let options = OpenOptions { tiers: rates.options().unwrap(), ..OpenOptions::default() };
    let image = Image::from_devices(vec![Arc::new(device)], &options).unwrap();
    let held = || image.tiers().unwrap().stats().tiers[0].held_bytes;
    for (world_size, is_kept) in [(1, false), (2, true)] {
        let order = OrderSpec { kind: OrderKind::Global, seed: 1 };
        let options = LoaderOptions { world_size, ..LoaderOptions::new(order, 5, 1) };
        let mut loader = image.prefetcher(options).unwrap();
        while let Some(batch) = loader.next() {
            batch.unwrap();
        }
        settle(image.tiers().unwrap());
        assert_eq!(held() > 0, is_kept, "world size {world_size}");
    }
}

#[test]
fn as_many_fetches_into_a_tier_are_in_flight_as_it_has_threads() {
    for threads in [1, 3] {
        let bytes = Origin::new(4, ALL_BYTES);
        let faulty = Faulty::new(Arc::clone(&bytes.device));
        faulty.add(Rule::any_read(u32::MAX, Fault::DelayTime(Duration::from_millis(2))));
        let origin = Origin { device: Arc::new(faulty.clone()), bytes: bytes.bytes };
        let mut rates = environment(&memory(), 1000, threads, "");
        rates.policy = Some("clairvoyant".to_owned());
        let cache = open(&origin, &rates);
        let plan = TierPlan {
            copies: (0..NUM_UNITS as u32).map(|unit| (unit, 0)).collect(),
            reads: vec![1; NUM_UNITS as usize],
            fingerprint: units().fingerprint(),
        };
        cache.set_plan(&plan).unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        while cache.stats().tiers[0].held_bytes < ALL_BYTES {
            assert!(Instant::now() < until, "{:?}", cache.stats());
            std::thread::sleep(Duration::from_millis(2));
        }
        let most = faulty.most_outstanding();
        assert!(most <= threads as usize, "{most} at once, with {threads} threads");
        assert_eq!(read_all(&origin, &cache), (0, ALL_BYTES));
    }
}

#[test]
fn readers_on_many_threads_get_on_within_a_limit_of_one_read() {
    let origin = Origin::new(5, ALL_BYTES);
    let place = tempfile::tempdir().unwrap();
    for place in [memory(), folder(place.path())] {
        let cache = open(&origin, &environment(&place, 1000, 1, ""));
        read_all(&origin, &cache);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..3).for_each(|_| assert!(read_all(&origin, &cache).0 == 0)));
            }
        });
    }
}

const UNIT_PAGES: u64 = 32;
const UNIT_BYTES: usize = UNIT_PAGES as usize * 4096;
const NUM_UNITS: u64 = 64;
const ALL_BYTES: u64 = NUM_UNITS * UNIT_BYTES as u64;
