//! Tiers in remote namespaces: a burst buffer of one node, which its target may lose at any time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dlfs::ErrorKind;
use dlfs::cache::{Cache, CacheStats, Identity, TierOptions};
use dlfs::format::Uuid;
use dlfs::qpair::Device;
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::mem::MemNamespace;
use dlfs::target::Target;
use dlfs::tier::Units;
use dlfs::units::{Generation, Nsid};

use crate::images::unique_uuid;
use crate::import_support::served::serve;
use crate::support::origin::Origin;

const PAGE: u64 = 4096;
const NUM_PAGES: u64 = 512;
const ALL_BYTES: u64 = NUM_PAGES * PAGE;

/// A data set behind a tier in a namespace of a target.
struct Scene {
    origin: Origin,
    uuid: Uuid,
    namespace: MemNamespace,
    target: Target,
}

impl Scene {
    fn new(seed: u64) -> Scene {
        println!("seed {seed}");
        let namespace = MemNamespace::new(2 * ALL_BYTES, 4096).unwrap();
        let target = serve(std::slice::from_ref(&namespace), None);
        let origin = Origin::new(seed, ALL_BYTES);
        Scene { origin, uuid: unique_uuid(), namespace, target }
    }

    fn tier(&self, size: &str) -> String {
        format!("{}:{size}", self.target.address(Nsid(1)))
    }

    fn open(&self, tier: &str) -> dlfs::Result<Cache> {
        let identity = Identity { uuid: self.uuid, generation: Generation(1) };
        let options = TierOptions { tiers: vec![tier.parse()?], ..TierOptions::default() };
        Cache::new(&[Arc::clone(&self.origin.device)], units(), identity, &options)
    }

    /// Reads and compares everything; returns the bytes from the origin and from the tier.
    fn read_all(&self, cache: &Cache) -> (u64, u64) {
        self.read_by(&mut reader(cache), cache)
    }

    fn read_by(&self, io: &mut Blocking, cache: &Cache) -> (u64, u64) {
        let of = |stats: &CacheStats| (stats.origin.bytes, stats.tiers[0].hit_bytes);
        let before = of(&cache.stats());
        for at in (0..ALL_BYTES).step_by(16 * PAGE as usize) {
            let found = io.read(at, 16 * PAGE as usize).unwrap();
            assert!(found[..] == self.origin.bytes[at as usize..][..found.len()], "byte {at}");
        }
        let until = Instant::now() + Duration::from_secs(60);
        while !cache.is_settled() {
            assert!(Instant::now() < until, "still copying: {:#?}", cache.stats());
            std::thread::sleep(Duration::from_millis(2));
        }
        let after = of(&cache.stats());
        (after.0 - before.0, after.1 - before.1)
    }
}

fn units() -> Units {
    Units::of_small_samples((0..NUM_PAGES / 16).map(|unit| (unit * 16, 16)))
}

fn reader(cache: &Cache) -> Blocking {
    Blocking::new(cache.devices()[0].queue_pair().unwrap()).unwrap()
}

#[test]
fn copies_in_a_remote_namespace_are_read_instead_of_the_origin_and_found_again() {
    let scene = Scene::new(47);
    let tier = scene.tier("3M");
    let cache = scene.open(&tier).unwrap();
    assert_eq!(scene.read_all(&cache), (ALL_BYTES, 0));
    assert_eq!(scene.read_all(&cache), (0, ALL_BYTES));
    // A second process of the node shares it: the same bytes, without the origin.
    let second = scene.open(&tier).unwrap();
    assert_eq!(scene.read_all(&second), (0, ALL_BYTES));
    drop((second, cache));
    let again = scene.open(&tier).unwrap();
    assert_eq!(scene.read_all(&again), (0, ALL_BYTES), "the index lies beside the copies");
    // It is this data set's alone while it is open.
    let other = Identity { uuid: unique_uuid(), generation: Generation(1) };
    let options = TierOptions { tiers: vec![tier.parse().unwrap()], ..TierOptions::default() };
    let origins = [Arc::clone(&scene.origin.device)];
    let Err(error) = Cache::new(&origins, units(), other, &options) else {
        panic!("the namespace is in use");
    };
    assert!(error.report().contains("in use"), "{}", error.report());
    drop(again);
    // One that is too small for all keeps what fits, and the origin gives the rest.
    let small = scene.open(&scene.tier("1M")).unwrap();
    let (origin, tier) = scene.read_all(&small);
    assert!(origin > 0 && origin + tier == ALL_BYTES, "{origin} + {tier}");
}

#[test]
fn a_target_that_is_lost_costs_the_copies_and_no_read() {
    let mut scene = Scene::new(48);
    let cache = scene.open(&scene.tier("3M")).unwrap();
    let mut before = reader(&cache);
    assert_eq!(scene.read_by(&mut before, &cache), (ALL_BYTES, 0));
    assert_eq!(scene.read_by(&mut before, &cache), (0, ALL_BYTES));
    let other = serve(std::slice::from_ref(&scene.namespace), None);
    drop(std::mem::replace(&mut scene.target, other));
    assert_eq!(scene.read_by(&mut before, &cache), (ALL_BYTES, 0), "a reader that was there");
    assert_eq!(scene.read_all(&cache), (ALL_BYTES, 0), "and a new one");
}

#[test]
fn what_a_namespace_holds_is_not_overwritten_without_consent() {
    let scene = Scene::new(49);
    let refused = |tier: &str, kind: ErrorKind, words: &str| {
        let error = scene.open(tier).err().unwrap_or_else(|| panic!("{tier} was taken"));
        assert!(error.report().contains(words), "{}", error.report());
        assert_eq!(error.kind(), kind, "{}", error.report());
    };
    let mut io = Blocking::new(scene.namespace.queue_pair().unwrap()).unwrap();
    io.write_at(2 * ALL_BYTES - PAGE, &[7; PAGE as usize]).unwrap();
    refused(&scene.tier("3M"), ErrorKind::Refused, "a namespace with content");
    refused(&scene.tier("5M"), ErrorKind::InvalidArgument, "larger than its namespace");
    refused(&scene.tier("4K"), ErrorKind::InvalidArgument, "its own index");
    // As the hint says.
    let cache = scene.open(&format!("{}:overwrite", scene.tier("3M"))).unwrap();
    assert_eq!(scene.read_all(&cache), (ALL_BYTES, 0));
    drop(cache);
    let cache = scene.open(&scene.tier("3M")).unwrap();
    assert_eq!(scene.read_all(&cache), (0, ALL_BYTES), "an earlier tier is taken over");
}
