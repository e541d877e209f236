//! Long samples of a plain folder in a tier in a folder: files of their own, which programs open.

use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::alone::ran_alone;
use dlfs::address::Address;
use dlfs::cache::{Cache, Identity, TierOptions, TierPlan};
use dlfs::dataset::{Image, OpenOptions};
use dlfs::format::Uuid;
use dlfs::qpair::blocking::Blocking;
use dlfs::reader::{Batch, ReaderOptions};
use dlfs::tier::{Index, Policy, Units};
use dlfs::units::{Generation, SampleId};
use rustix::process::{Signal, kill_process, waitpid};

use super::{PAGE, on_disk, settle};
use crate::images::unique_uuid;
use crate::support::fork::{in_child, spawn_child};
use crate::support::origin::Origin;
use crate::support::random::Random;

/// Three long samples of 1,000 pages each, and a place between them.
struct Long {
    origin: Origin,
    uuid: Uuid,
    policy: Policy,
}

const PAGES: u64 = 1000;
const BYTES: u64 = PAGES * PAGE;
/// Units of a sample.
const UNITS: u32 = 16;

fn first_page(sample: u64) -> u64 {
    3 + sample * (PAGES + 24)
}

fn bytes_of(sample: u64) -> Range<u64> {
    first_page(sample) * PAGE..(first_page(sample) + PAGES) * PAGE
}

fn units() -> Units {
    Units::of_long_samples((0..3).map(|sample| (first_page(sample), BYTES)))
}

impl Long {
    fn new(seed: u64, policy: Policy) -> Long {
        let origin = Origin::new(seed, (first_page(3) + 1) * PAGE);
        Long { origin, uuid: unique_uuid(), policy }
    }

    /// With a tier of so many pages besides its index, filled at most as fast as that.
    fn open(&self, folder: &Path, pages: u64, bandwidth_bytes_per_s: Option<u64>) -> Cache {
        let identity = Identity { uuid: self.uuid, generation: Generation(1) };
        let quota = Index::data_offset(&units()) + pages * PAGE;
        let tiers = vec![format!("file:{}:{quota}", folder.display()).parse().unwrap()];
        let policy = self.policy;
        let options =
            TierOptions { tiers, policy, bandwidth_bytes_per_s, ..TierOptions::default() };
        Cache::new(&[Arc::clone(&self.origin.device)], units(), identity, &options).unwrap()
    }

    /// Reads pages and compares them; returns how many bytes of the origin that took.
    fn read(&self, cache: &Cache, pages: Range<u64>) -> u64 {
        let before = cache.stats().origin.bytes;
        let mut io = Blocking::new(cache.devices()[0].queue_pair().unwrap()).unwrap();
        for page in pages.clone().step_by(64) {
            let end = pages.end.min(page + 64);
            let from = (page * PAGE) as usize;
            let to = (end * PAGE) as usize;
            let found = io.read(from as u64, to - from).unwrap();
            assert!(found[..] == self.origin.bytes[from..to], "pages {page}..{end}");
        }
        cache.stats().origin.bytes - before
    }

    fn read_sample(&self, cache: &Cache, sample: u64) -> u64 {
        self.read(cache, first_page(sample)..first_page(sample) + PAGES)
    }

    fn bytes(&self, sample: u64) -> &[u8] {
        let Range { start, end } = bytes_of(sample);
        &self.origin.bytes[start as usize..end as usize]
    }
}

/// The copy of a sample, as a program opens it.
fn copy(cache: &Cache, sample: u64) -> Option<(PathBuf, File)> {
    let open = |path: &Path| (path.to_owned(), File::open(path).unwrap());
    cache.open_copy(0, &bytes_of(sample), open).map(|(_, opened)| opened)
}

fn content(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// The only tier of a folder.
fn tier_in(folder: &Path) -> PathBuf {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut tiers: Vec<_> =
        entries.filter(|path| path.extension().is_some_and(|name| name == "dlfs")).collect();
    assert_eq!(tiers.len(), 1, "{tiers:?}");
    tiers.remove(0)
}

/// The index of the tier in a folder, and its bytes on disk.
fn index_in(folder: &Path, uuid: Uuid) -> Option<(Index, Vec<u32>)> {
    let mut bytes = fs::read(tier_in(folder)).unwrap();
    bytes.truncate(Index::len_bytes(units().len()) as usize);
    let (index, kept) = Index::parse(&bytes, uuid, Generation(1), &units()).ok()?;
    let is_whole = |unit: &u32| units().get(*unit).all() == index.get(*unit).unwrap().pages;
    let whole = kept.iter().map(|kept| kept.unit).filter(is_whole).collect();
    Some((index, whole))
}

fn files_of(folder: &Path) -> PathBuf {
    tier_in(folder).with_extension("files")
}

#[test]
fn a_copy_that_is_whole_is_a_file_with_the_samples_bytes_and_no_other_is_opened() {
    if ran_alone(a_copy_that_is_whole_is_a_file_with_the_samples_bytes_and_no_other_is_opened) {
        return;
    }
    let data = Long::new(31, Policy::FirstTouch);
    let folder = tempfile::tempdir().unwrap();
    let cache = data.open(folder.path(), 2 * PAGES, None);
    assert!(copy(&cache, 0).is_none());
    data.read(&cache, first_page(0)..first_page(0) + 10); // the rest is copied behind
    data.read_sample(&cache, 1);
    data.read_sample(&cache, 2);
    let stats = settle(&cache);
    assert_eq!(stats.tiers[0].held_bytes, 2 * BYTES, "the third has no room: {stats:?}");
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
    let modes = [mode(&tier_in(folder.path())), mode(&files_of(folder.path()))];
    assert_eq!(modes, [0o600, 0o700], "samples are for the user alone");
    for sample in [0, 1] {
        let (path, file) = copy(&cache, sample).expect("all of it is there");
        assert_eq!(mode(&path), 0o600);
        assert!(path.starts_with(files_of(folder.path())));
        assert!(content(&file) == data.bytes(sample), "sample {sample}");
        assert_eq!(data.read_sample(&cache, sample), 0, "a reader has the same copy");
    }
    assert!(copy(&cache, 2).is_none());
    let Range { start, end } = bytes_of(1);
    for other in [start..end - PAGE, start + PAGE..end, start..end + PAGE] {
        assert!(cache.open_copy(0, &other, Path::to_owned).is_none(), "not a sample");
    }
    assert_eq!(cache.stats().tiers[0].opens, 2);
    let index = fs::metadata(tier_in(folder.path())).unwrap().blocks() * 512;
    assert!(
        index <= Index::len_bytes(units().len()) + PAGE,
        "{index} bytes in the tier's own file"
    );
    // A process that attaches opens the same files.
    assert!(in_child(|| {
        let cache = data.open(folder.path(), 2 * PAGES, None);
        copy(&cache, 1).is_some_and(|(_, file)| content(&file) == data.bytes(1))
    }));
    drop(cache);
    // As an earlier version left them.
    for (path, mode) in [(tier_in(folder.path()), 0o644), (files_of(folder.path()), 0o755)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let cache = data.open(folder.path(), 2 * PAGES, None);
    assert_eq!([mode(&tier_in(folder.path())), mode(&files_of(folder.path()))], modes);
    let stats = settle(&cache);
    assert_eq!(stats.tiers[0].restored, u64::from(2 * UNITS), "{stats:?}");
    assert!((0..2).all(|sample| content(&copy(&cache, sample).unwrap().1) == data.bytes(sample)));
    assert_eq!(stats.origin.copier_bytes + cache.stats().origin.bytes, 0);
}

#[test]
fn after_a_kill_in_mid_copy_the_rest_is_fetched_and_the_copy_is_the_sample() {
    if ran_alone(after_a_kill_in_mid_copy_the_rest_is_fetched_and_the_copy_is_the_sample) {
        return;
    }
    let data = Long::new(32, Policy::FirstTouch);
    let folder = tempfile::tempdir().unwrap();
    let child = spawn_child(|| {
        let cache = data.open(folder.path(), 3 * PAGES, Some(512 << 10));
        data.read(&cache, first_page(1) + 500..first_page(1) + 501);
        std::thread::sleep(Duration::from_secs(60));
        false
    });
    // Some of the sample is copied and listed, and more is on its way.
    let until = Instant::now() + Duration::from_secs(60);
    let listed = |few: usize| {
        let has_tier = fs::read_dir(folder.path()).unwrap().count() > 1;
        let found = if has_tier { index_in(folder.path(), data.uuid) } else { None };
        found.map(|(_, whole)| whole.len()).filter(|&count| count >= few)
    };
    while listed(4).is_none() {
        assert!(Instant::now() < until, "nothing is copied");
        std::thread::sleep(Duration::from_millis(1));
    }
    kill_process(child, Signal::KILL).unwrap();
    waitpid(Some(child), rustix::process::WaitOptions::empty()).unwrap();
    let listed = listed(4).unwrap();
    println!("{listed} of {UNITS} units are listed");
    assert!(listed < UNITS as usize, "it was killed too late");
    let cache = data.open(folder.path(), 3 * PAGES, None);
    assert_eq!(data.read_sample(&cache, 0), BYTES);
    let stats = settle(&cache);
    assert!(stats.tiers[0].restored >= listed as u64 && stats.tiers[0].damaged == 0, "{stats:?}");
    assert!(content(&copy(&cache, 1).expect("the rest was fetched").1) == data.bytes(1));
    assert_eq!(data.read_sample(&cache, 1), 0);
}

/// The place of each unit follows from its address alone: a unit that is missing after a restart cannot get
/// the place of another.
#[test]
fn one_unit_that_is_missing_after_a_restart_is_fetched_into_its_own_place() {
    let data = Long::new(33, Policy::FirstTouch);
    for (missing, fetches) in [(0, true), (7, true), (UNITS - 1, true), (9, false)] {
        let folder = tempfile::tempdir().unwrap();
        let cache = data.open(folder.path(), 2 * PAGES, None);
        data.read_sample(&cache, 0);
        data.read_sample(&cache, 1);
        settle(&cache);
        drop(cache);
        // As if it had never been written, or, at last, as if it were damaged.
        let unit = UNITS + missing;
        let bounds = units().get(unit);
        let file = files_of(folder.path()).join(format!("copy-{:x}", first_page(1)));
        let file = File::options().read(true).write(true).open(file).unwrap();
        let junk = vec![0xEE; bounds.len_bytes() as usize];
        file.write_all_at(&junk, bounds.start_bytes() - bytes_of(1).start).unwrap();
        if fetches {
            let (mut index, _) = index_in(folder.path(), data.uuid).unwrap();
            let page = index.set(unit, None);
            let tier = File::options().write(true).open(tier_in(folder.path())).unwrap();
            tier.write_all_at(&index.bytes()[page..page + 4096], page as u64).unwrap();
        }
        let cache = data.open(folder.path(), 2 * PAGES, None);
        let stats = settle(&cache);
        assert_eq!(stats.tiers[0].restored, u64::from(2 * UNITS - 1), "{stats:?}");
        assert_eq!(stats.tiers[0].damaged, u64::from(!fetches), "{stats:?}");
        assert_eq!(stats.origin.copier_bytes, bounds.len_bytes(), "that unit and no other");
        for sample in [0, 1] {
            let (_, file) = copy(&cache, sample).expect("all of it is there");
            assert!(content(&file) == data.bytes(sample), "sample {sample}, unit {missing}");
            assert_eq!(data.read_sample(&cache, sample), 0);
        }
    }
}

#[test]
fn a_part_for_whose_rest_the_quota_has_no_room_is_removed() {
    let data = Long::new(34, Policy::FirstTouch);
    let folder = tempfile::tempdir().unwrap();
    drop((data.open(folder.path(), PAGES, None), data.open(folder.path(), PAGES, None)));
    let cache = data.open(folder.path(), PAGES, None);
    data.read_sample(&cache, 2);
    settle(&cache);
    let (path, held) = copy(&cache, 2).unwrap();
    drop(cache);
    let cache = data.open(folder.path(), PAGES - 1, None);
    let stats = settle(&cache);
    assert_eq!((stats.tiers[0].used_bytes, stats.tiers[0].held_bytes), (0, 0), "{stats:?}");
    assert!(!path.exists() && content(&held) == data.bytes(2));
    assert_eq!(data.read_sample(&cache, 2), BYTES);
    assert!(on_disk(folder.path()) <= Index::len_bytes(units().len()) + PAGE);
}

#[test]
fn an_evicted_copy_is_unlinked_and_whoever_has_it_open_keeps_its_bytes() {
    let data = Long::new(35, Policy::Clairvoyant);
    let folder = tempfile::tempdir().unwrap();
    let cache = data.open(folder.path(), PAGES, None);
    let plan = |sample: u32| {
        let copies = (sample * UNITS..(sample + 1) * UNITS).map(|unit| (unit, 0)).collect();
        let mut reads = vec![1; units().len() as usize];
        reads[(sample * UNITS) as usize..((sample + 1) * UNITS) as usize].fill(5);
        TierPlan { copies, reads, fingerprint: units().fingerprint() }
    };
    let mut held = Vec::new();
    for (round, sample) in (1_u64..).zip([0, 2, 0, 1]) {
        cache.set_plan(&plan(sample)).unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        while cache.stats().tiers[0].fills < round * u64::from(UNITS) {
            assert!(Instant::now() < until, "{:?}", cache.stats());
            std::thread::sleep(Duration::from_millis(2));
        }
        settle(&cache);
        let sample = u64::from(sample);
        let (path, file) = copy(&cache, sample).expect("it was planned");
        assert_eq!(fs::read_dir(files_of(folder.path())).unwrap().count(), 1);
        assert_eq!(data.read_sample(&cache, sample), 0);
        held.push((sample, path, file));
        for (sample, _, file) in &held {
            assert!(content(file) == data.bytes(*sample), "sample {sample}, in round {round}");
        }
    }
    let links: Vec<u64> = held.iter().map(|(.., file)| file.metadata().unwrap().nlink()).collect();
    assert_eq!(links, [0, 0, 0, 1]);
    assert!(on_disk(folder.path()) <= Index::len_bytes(units().len()) + (PAGES + 1) * PAGE);
}

/// Makes a folder with two long files and a small one; returns their bytes in the order of ids.
fn plain_folder(seed: u64) -> (tempfile::TempDir, Vec<Vec<u8>>) {
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random::new(seed);
    let files: Vec<Vec<u8>> = [(17 << 20) + 3, 16 << 20, (16 << 20) + 4096]
        .into_iter()
        .map(|len| {
            let mut bytes = vec![0; len];
            random.fill(&mut bytes);
            bytes
        })
        .collect();
    for (name, bytes) in ["a", "b", "c"].iter().zip(&files) {
        fs::write(folder.path().join(name), bytes).unwrap();
    }
    (folder, files)
}

#[test]
fn files_above_16_mib_of_a_plain_folder_are_copied_to_files_of_their_own_that_leave_with_their_tier()
 {
    let cache = tempfile::tempdir().unwrap();
    let open = |folder: &Path, tier: &str| {
        let tiers = TierOptions { tiers: vec![tier.parse().unwrap()], ..TierOptions::default() };
        let options = OpenOptions { tiers, ..OpenOptions::default() };
        Image::open(&[Address::from_path(folder)], &options).unwrap()
    };
    let quota = format!("file:{}:60M", cache.path().display());
    let mut before = None;
    for seed in [36, 37] {
        let (folder, files) = plain_folder(seed);
        for is_new in [true, false] {
            let image = open(folder.path(), &quota);
            let tiers = image.tiers().unwrap();
            settle(tiers);
            let range = |id| {
                let extent = image.directory().extent(SampleId(id)).unwrap();
                extent.offset_bytes..extent.offset_bytes + u64::from(extent.len_bytes)
            };
            let copy = |id| tiers.open_copy(0, &range(id), |path| fs::read(path).unwrap());
            assert_eq!(copy(0).is_some(), !is_new);
            let mut reader = image.reader(ReaderOptions::default()).unwrap();
            let mut batch = Batch::new();
            for id in 0..3 {
                reader.read_batch(&[SampleId(id)], &mut batch).unwrap();
                assert!(batch.bytes(0)[..] == files[id as usize][..], "sample {id}");
            }
            let stats = settle(tiers);
            assert_eq!(stats.origin.bytes + stats.origin.copier_bytes == 0, !is_new, "{stats:?}");
            let found = [0, 1, 2].map(|id| copy(id).map(|(_, bytes)| bytes));
            assert!(found[0].as_ref() == Some(&files[0]) && found[2].as_ref() == Some(&files[2]));
            assert!(found[1].is_none(), "16 MiB are not above 16 MiB");
        }
        // The second data set has room only where the first one has gone, with its files.
        let tier = files_of(cache.path());
        assert_eq!(fs::read_dir(&tier).unwrap().count(), 2);
        let first = before.replace(tier);
        assert!(first.is_none_or(|first| !first.exists()));
    }
    let memory = open(plain_folder(38).0.path(), "ram:60M");
    let units = memory.tiers().unwrap().units();
    assert_eq!(units.long().len(), 2, "and memory has no files");
}
