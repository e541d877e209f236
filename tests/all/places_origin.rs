//! Objects of a store, read without an import: as a folder of files, with tiers in front of it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::alone::ran_alone;
use crate::support::contract;
use crate::support::fork::in_child;
use crate::support::object_store::{Fault, ObjectStore, bytes_of, mix};
use dlfs::ErrorKind;
use dlfs::address::Address;
use dlfs::cache::TierOptions;
use dlfs::dataset::{Image, OpenOptions};
use dlfs::order::{OrderKind, OrderSpec};
use dlfs::places::{Place, PlaceOptions};
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::folder::FolderNamespace;
use dlfs::qpair::{ConnectOptions, Device};
use dlfs::units::SampleId;

fn reaching(places: PlaceOptions) -> ConnectOptions {
    ConnectOptions { places, ..ConnectOptions::default() }
}

/// Files of many lengths in class folders and none, in the order of ids.
fn files() -> Vec<(String, Vec<u8>)> {
    let lens = [0, 1, 4095, 4096, 70_000, 300_001, (4 << 20) + 9, 12_288, 0];
    let mut files = Vec::new();
    for class in ["a", "a/sub", "a.b", "zebra"] {
        files.extend(
            lens.iter().enumerate().map(|(index, len)| (format!("{class}/{index:02}"), *len)),
        );
    }
    files.push(("README".to_owned(), 33));
    let with_bytes = |(seed, (name, len))| (name, bytes_of(seed, len));
    (0..).zip(files).map(with_bytes).collect()
}

fn put(store: &ObjectStore, files: &[(String, Vec<u8>)]) {
    files.iter().for_each(|(name, bytes)| store.put(&format!("set/{name}"), bytes.clone()));
    store.put("set/zebra/", "");
    store.put("settled", "not beneath it");
}

fn open_options(places: PlaceOptions) -> OpenOptions {
    OpenOptions {
        connect: ConnectOptions { places, ..ConnectOptions::default() },
        ..OpenOptions::default()
    }
}

fn open(options: &OpenOptions) -> dlfs::Result<Image> {
    Image::open(&[Address::Objects("s3://bucket/set".to_owned())], options)
}

/// Reads some epochs, and compares every byte.
fn epochs(image: &Image, files: &[(String, Vec<u8>)], epochs: u64) {
    let options = LoaderOptions::new(OrderSpec { kind: OrderKind::Global, seed: 3 }, 5, epochs);
    let mut loader = image.prefetcher(options).unwrap();
    let mut seen = vec![0; files.len()];
    while let Some(batch) = loader.next() {
        let batch = batch.unwrap();
        for (index, id) in batch.ids().enumerate() {
            assert!(batch.bytes(index)[..] == files[id.0 as usize].1[..], "sample {id}");
            seen[id.0 as usize] += 1;
        }
    }
    assert!(seen.iter().all(|&count| count == epochs));
}

/// Waits until nothing is being copied.
fn settle(image: &Image) {
    let tiers = image.tiers().unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while !tiers.is_settled() {
        assert!(Instant::now() < until, "still copying: {:#?}", tiers.stats());
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn objects_keep_the_contract_of_a_read_only_engine() {
    let store = ObjectStore::good();
    put(&store, &files());
    let place = Place::parse("s3://bucket/set").unwrap();
    let namespace = FolderNamespace::open_objects(&place, &reaching(store.options())).unwrap();
    contract::check_read_only(Arc::new(namespace));
}

#[test]
fn an_address_of_objects_is_a_data_set_with_names_and_classes_and_every_byte() {
    let store = ObjectStore::good();
    let files = files();
    put(&store, &files);
    let image = open(&open_options(store.options())).unwrap();
    let directory = image.directory();
    assert_eq!(directory.num_samples(), files.len() as u64);
    for (id, (name, _)) in files.iter().enumerate() {
        let id = SampleId(id as u64);
        assert_eq!(directory.name(id).unwrap().unwrap(), name.as_bytes());
    }
    assert_eq!(directory.label(SampleId(0)), Some(0));
    assert_eq!(directory.label(SampleId(files.len() as u64 - 1)), None);
    epochs(&image, &files, 2);
    assert_eq!(open(&open_options(store.options())).unwrap().directory().uuid(), directory.uuid());
    let none =
        Image::open(&[Address::Objects("s3://bucket/none".into())], &open_options(store.options()));
    assert_eq!(none.err().unwrap().kind(), ErrorKind::NotFound);
}

#[test]
fn behind_a_tier_later_epochs_ask_the_store_for_nothing() {
    let store = ObjectStore::good();
    let files = files();
    put(&store, &files);
    let tiers = TierOptions { tiers: vec!["ram:64M".parse().unwrap()], ..TierOptions::default() };
    let options = OpenOptions { tiers, ..open_options(store.options()) };
    let image = open(&options).unwrap();
    let requests = || store.state().requests.load(Ordering::Relaxed);
    let mut before = requests();
    epochs(&image, &files, 1);
    assert!(requests() > before);
    // The last copies are written behind the reads.
    let is_quiet = |before: &mut u64| {
        settle(&image);
        epochs(&image, &files, 1);
        std::mem::replace(before, requests()) == requests()
    };
    assert!((0..20).any(|_| is_quiet(&mut before)), "{before} requests");
}

#[test]
fn behind_a_file_tier_a_later_epoch_reads_each_sample_with_one_read_of_the_tier() {
    let store = ObjectStore::good();
    let files: Vec<_> = (0..NUM).map(|n| (format!("{n:03}"), bytes_of(n, SAMPLE_BYTES))).collect();
    put(&store, &files);
    let folder = tempfile::tempdir().unwrap();
    let tier = format!("file:{}:64M", folder.path().display()).parse().unwrap();
    let tiers = TierOptions { tiers: vec![tier], ..TierOptions::default() };
    let options = OpenOptions { tiers, ..open_options(store.options()) };
    let image = open(&options).unwrap();
    epochs(&image, &files, 1);
    settle(&image);
    let is_tier = |path: &Path| path.extension().is_some_and(|name| name == "dlfs");
    let mut paths = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let tier = fs::read(paths.find(|path| is_tier(path)).unwrap()).unwrap();
    let aligned: BTreeSet<_> = tier.chunks(SAMPLE_BYTES).collect();
    assert!(files.iter().all(|(_, bytes)| aligned.contains(&bytes[..])), "one folio has each copy");
    let requests = store.state().requests.load(Ordering::Relaxed);
    let before = image.tiers().unwrap().stats();
    epochs(&image, &files, 1);
    let after = image.tiers().unwrap().stats();
    assert_eq!(store.state().requests.load(Ordering::Relaxed), requests, "the store is not asked");
    let hits = after.tiers[0].hits - before.tiers[0].hits;
    let bytes = after.tiers[0].hit_bytes - before.tiers[0].hit_bytes;
    assert_eq!(bytes, NUM * SAMPLE_BYTES as u64);
    assert!(hits <= NUM, "{hits} reads: neighbours may share one, and none is split");
}

#[test]
fn a_hostile_store_gives_the_reader_no_wrong_byte() {
    let store = ObjectStore::with_faults(|request| {
        let mut state = request.number ^ 99;
        match mix(&mut state) % 12 {
            0 => Fault::Status(503, None),
            1 => Fault::Cut,
            2 if !request.key.is_empty() => Fault::OtherRange,
            3 if !request.key.is_empty() => Fault::Nothing,
            _ => Fault::None,
        }
    });
    let files = files();
    put(&store, &files);
    epochs(&open(&open_options(store.options())).unwrap(), &files, 2);
}

#[test]
fn an_object_that_changed_or_a_store_that_is_away_is_an_error_that_names_it() {
    let is_away = Arc::new(AtomicBool::new(false));
    let away = Arc::clone(&is_away);
    let store = ObjectStore::with_faults(move |_| {
        if away.load(Ordering::Relaxed) { Fault::Reset } else { Fault::None }
    });
    put(&store, &files());
    let patience = Duration::from_millis(300);
    let options = PlaceOptions { patience, ..store.options() };
    let place = Place::parse("s3://bucket/set/").unwrap();
    let namespace = FolderNamespace::open_objects(&place, &reaching(options)).unwrap();
    let mut io = Blocking::new(namespace.queue_pair().unwrap()).unwrap();
    let at =
        |name: &[u8]| namespace.files().iter().find(|file| file.name == name).unwrap().offset_bytes;
    store.put("set/a/04", bytes_of(77, 70_000));
    let error = io.read(at(b"a/04"), 70_000).unwrap_err();
    assert!(error.report().contains("s3://bucket/set/a/04"), "{}", error.report());
    is_away.store(true, Ordering::Relaxed);
    let error = io.read(at(b"a/05"), 4096).unwrap_err();
    assert!(error.report().contains("the store could not be read"), "{}", error.report());
    is_away.store(false, Ordering::Relaxed);
    // A busy machine may take longer than the patience to connect again.
    let until = Instant::now() + Duration::from_secs(60);
    let read = loop {
        match io.read(at(b"a/05"), 300_001) {
            Err(_) if Instant::now() < until => {}
            read => break read.unwrap(),
        }
    };
    assert!(read[..300_001] == files()[5].1[..]);
}

#[test]
fn a_forked_child_reads_with_a_connection_of_its_own() {
    if ran_alone(a_forked_child_reads_with_a_connection_of_its_own) {
        return;
    }
    let store = ObjectStore::good();
    let files = files();
    put(&store, &files);
    let place = Place::parse("s3://bucket/set").unwrap();
    let namespace = FolderNamespace::open_objects(&place, &reaching(store.options())).unwrap();
    let read = || {
        let mut io = Blocking::new(namespace.queue_pair().unwrap()).unwrap();
        let file = &namespace.files()[5];
        io.read(file.offset_bytes, 300_001).unwrap()[..300_001] == files[5].1[..]
    };
    assert!(read() && in_child(read) && read());
}

/// Samples that are enough for aligned copies.
const NUM: u64 = 200;
const SAMPLE_BYTES: usize = 128 << 10;
