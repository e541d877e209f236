//! Processes of one node on one tier: one owns it, the others attach, and nothing is kept or read from
//! the origin twice.

use std::collections::VecDeque;
use std::fs;
use std::io::Write;
use std::ops::Range;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::alone::ran_alone;
use dlfs::ErrorKind;
use dlfs::buf::IoBuf;
use dlfs::cache::{Cache, Identity, TierOptions, TierPlan};
use dlfs::format::Uuid;
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::{Io, IoOp, QueuePair};
use dlfs::tier::{PAGE_BYTES, Policy, Units};
use dlfs::units::{Generation, Lba};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::images::unique_uuid;
use crate::support::fork::{ends_well, in_child, spawn_child};
use crate::support::origin::Origin;
use crate::support::random::Random;
use crate::support::warnings::warnings_of;

/// An origin that is divided into equal units.
fn origin(seed: u64) -> Origin {
    Origin::new(seed, NUM_UNITS * UNIT_BYTES)
}

impl Origin {
    fn open(&self, folder: &Path, quota: &str) -> Cache {
        self.try_open(1, &format!("file:{}:{quota}", folder.display())).unwrap()
    }

    fn try_open(&self, image: u8, tier: &str) -> dlfs::Result<Cache> {
        self.open_all(Uuid([image; 16]), &[tier])
    }

    fn open_all(&self, uuid: Uuid, tiers: &[&str]) -> dlfs::Result<Cache> {
        let units = (0..NUM_UNITS).map(|unit| (unit * UNIT_PAGES, UNIT_PAGES as u32));
        self.open_units(Units::from_pages(units), uuid, tiers)
    }

    fn open_units(&self, units: Units, uuid: Uuid, tiers: &[&str]) -> dlfs::Result<Cache> {
        self.open_with(units, uuid, tiers, Policy::FirstTouch)
    }

    /// A tier in memory for half of the units, filled by plans.
    fn open_planned(&self, uuid: Uuid) -> Cache {
        let units = (0..NUM_UNITS).map(|unit| (unit * UNIT_PAGES, UNIT_PAGES as u32));
        let tier = format!("ram:{}", NUM_UNITS / 2 * UNIT_BYTES);
        self.open_with(Units::from_pages(units), uuid, &[&tier], Policy::Clairvoyant).unwrap()
    }

    fn open_with(
        &self,
        units: Units,
        uuid: Uuid,
        tiers: &[&str],
        policy: Policy,
    ) -> dlfs::Result<Cache> {
        let identity = Identity { uuid, generation: Generation(1) };
        let tiers = tiers.iter().map(|tier| tier.parse().unwrap()).collect();
        let options = TierOptions { tiers, policy, ..Default::default() };
        Cache::new(&[Arc::clone(&self.device)], units, identity, &options)
    }

    /// Reads these pieces of four pages and compares them.
    fn read_pieces(&self, cache: &Cache, pieces: impl IntoIterator<Item = u64>) {
        self.read_each(cache, pieces, PIECE_BYTES);
    }

    /// Reads these units and compares them.
    fn read_units(&self, cache: &Cache, units: impl IntoIterator<Item = u64>) {
        self.read_each(cache, units, UNIT_BYTES);
    }

    fn read_each(&self, cache: &Cache, parts: impl IntoIterator<Item = u64>, len: u64) {
        let mut io = Blocking::new(cache.devices()[0].queue_pair().unwrap()).unwrap();
        for part in parts {
            let at = (part * len) as usize;
            let found = io.read(at as u64, len as usize).unwrap();
            assert!(found[..] == self.bytes[at..at + len as usize], "part {part} of {len} bytes");
        }
    }
}

/// Waits until `is_so`, for a minute at most.
fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < until, "waited for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Bytes that a process has read from its origin, for itself or for copies.
fn origin_bytes(cache: &Cache) -> u64 {
    let origin = cache.stats().origin;
    origin.bytes + origin.copier_bytes
}

/// Waits until copies of all units serve the reads of `cache`.
fn wait_for_all(origin: &Origin, cache: &Cache) {
    wait_for("copies of all units", || {
        let before = cache.stats().origin.reads;
        origin.read_pieces(cache, 0..NUM_PIECES);
        cache.stats().origin.reads == before
    });
}

#[test]
fn the_second_opener_attaches_and_finds_and_adds_copies() {
    let origin = origin(1);
    let folder = tempfile::tempdir().unwrap();
    let owner = origin.open(folder.path(), "64M");
    let attached = origin.open(folder.path(), "64M");
    assert_eq!((owner.owner(), attached.owner()), (None, Some(std::process::id())));
    // Each unit is read half by one and half by the other.
    origin.read_pieces(&owner, (0..NUM_PIECES).filter(|piece| piece % 2 == 0));
    origin.read_pieces(&attached, (0..NUM_PIECES).filter(|piece| piece % 2 == 1));
    wait_for_all(&origin, &attached);
    wait_for_all(&origin, &owner);
    assert_eq!(attached.stats().tiers[0].used_bytes, owner.stats().tiers[0].used_bytes);
    assert_eq!(owner.stats().tiers[0].fills, NUM_UNITS, "one copy of each");
    let third = origin.open(folder.path(), "64M");
    origin.read_pieces(&third, 0..NUM_PIECES);
    assert_eq!(origin_bytes(&third), 0, "{:?}", third.stats());
}

#[test]
fn pages_that_only_an_attached_process_reads_are_kept() {
    let origin = origin(2);
    let folder = tempfile::tempdir().unwrap();
    let owner = origin.open(folder.path(), "64M");
    let attached = origin.open(folder.path(), "64M");
    origin.read_pieces(&attached, 0..NUM_PIECES);
    wait_for_all(&origin, &attached);
    assert_eq!(owner.stats().tiers[0].fills, NUM_UNITS);
    assert!(owner.stats().origin.copier_bytes < UNIT_BYTES * NUM_UNITS / 10, "it had the pieces");
}

#[test]
fn forked_and_separate_processes_keep_each_page_once_and_read_it_from_the_origin_once() {
    if ran_alone(forked_and_separate_processes_keep_each_page_once_and_read_it_from_the_origin_once)
    {
        return;
    }
    let units = || (0..NUM_UNITS).map(|unit| (unit * UNIT_PAGES, UNIT_PAGES as u32));
    // The pieces of a large sample are filled behind; pages of small ones only come as they are read.
    let large = read_by_all(3, || Units::from_pages(units()));
    let small = read_by_all(8, || Units::of_small_samples(units()));
    println!("origin bytes over 5 epochs: {large:.4} and {small:.4} of the data");
    assert!(large <= 1.01 && small <= 1.01, "{large} and {small} of the data from the origin");
}

/// Reads five epochs by eight processes, each piece by one of them and those of a unit by several; returns
/// the bytes read from the origin over those of the data: all its pages, which all have live bytes.
fn read_by_all(seed: u64, units: impl Fn() -> Units + Sync) -> f64 {
    let origin = origin(seed);
    let folder = tempfile::tempdir().unwrap();
    let tier = folder.path().join("tier");
    let notes = folder.path().join("notes");
    fs::create_dir(&tier).unwrap();
    fs::create_dir(&notes).unwrap();
    let spec = format!("file:{}:64M", tier.display());
    let open = || origin.open_units(units(), Uuid([1; 16]), &[&spec]).unwrap();
    let is_there = |name: String| notes.join(name).exists();
    // All processes have reached this place.
    let meet = |name: &str, rank: u64| {
        fs::write(notes.join(format!("{name}-{rank}")), "").unwrap();
        wait_for(name, || (0..RANKS).all(|rank| is_there(format!("{name}-{rank}"))));
    };
    let owner = open();
    let work = |rank: u64, cache: &Cache| {
        meet("start", rank);
        for epoch in 0..5 {
            // A piece that does not end where pages of the next one begin has one of its pages, too.
            let mut io = Blocking::new(cache.devices()[0].queue_pair().unwrap()).unwrap();
            for piece in (0..NUM_PIECES).filter(|piece| (piece + epoch) % RANKS == rank) {
                let at = (piece * PIECE_BYTES) as usize;
                let len = (PIECE_BYTES as usize + 4096).min(origin.bytes.len() - at);
                let found = io.read(at as u64, len).unwrap();
                assert!(found[..] == origin.bytes[at..at + len], "piece {piece}");
            }
            meet(&format!("epoch{epoch}"), rank);
        }
        fs::write(notes.join(format!("bytes-{rank}")), origin_bytes(cache).to_string()).unwrap();
        meet("end", rank);
    };
    let in_process = |rank: u64| {
        // Half of them inherit the cache, half open their own.
        if rank.is_multiple_of(2) {
            work(rank, &owner);
        } else {
            work(rank, &open());
        }
        true
    };
    let children: Vec<_> = (1..RANKS).map(|rank| spawn_child(|| in_process(rank))).collect();
    work(0, &owner);
    for (child, rank) in children.into_iter().zip(1..) {
        assert!(ends_well(child), "process {rank}");
    }
    let bytes = |rank: u64| -> u64 {
        fs::read_to_string(notes.join(format!("bytes-{rank}"))).unwrap().parse().unwrap()
    };
    let all: u64 = (0..RANKS).map(bytes).sum();
    let data = NUM_UNITS * UNIT_BYTES;
    let stats = owner.stats();
    let tier = &stats.tiers[0];
    assert_eq!((tier.fills, tier.held_bytes, tier.damaged), (NUM_UNITS, data, 0), "{stats:?}");
    all as f64 / data as f64
}

#[test]
fn without_its_owner_an_attached_process_reads_on_from_the_origin() {
    let origin = origin(4);
    let folder = tempfile::tempdir().unwrap();
    let owner = origin.open(folder.path(), "64M");
    let attached = origin.open(folder.path(), "64M");
    origin.read_pieces(&owner, 0..NUM_PIECES);
    wait_for_all(&origin, &attached);
    drop(owner);
    let began = Instant::now();
    origin.read_pieces(&attached, 0..NUM_PIECES);
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
}

#[test]
fn an_attached_process_takes_over_and_uses_the_copies_again() {
    let origin = origin(7);
    let folder = tempfile::tempdir().unwrap();
    let owner = origin.open(folder.path(), "64M");
    let attached = [(); 2].map(|()| origin.open(folder.path(), "64M"));
    // Queue pairs from before the takeover follow it.
    let mut pairs = attached
        .each_ref()
        .map(|cache| Blocking::new(cache.devices()[0].queue_pair().unwrap()).unwrap());
    origin.read_pieces(&owner, 0..NUM_PIECES / 2);
    wait_for("half of the copies", || owner.stats().tiers[0].fills == NUM_UNITS / 2);
    drop(owner);
    wait_for("one to take over", || attached.iter().any(|cache| cache.owner().is_none()));
    let heirs = attached.iter().filter(|cache| cache.owner().is_none()).count();
    assert_eq!(heirs, 1, "the other one attaches to it");
    let heir = attached.iter().find(|cache| cache.owner().is_none()).unwrap();
    wait_for("copies to be checked", || heir.is_settled());
    assert_eq!(heir.stats().tiers[0].restored, NUM_UNITS / 2, "{:?}", heir.stats());
    for (cache, io) in attached.iter().zip(&mut pairs) {
        wait_for("reads from the copies", || {
            let before = cache.stats().origin.reads;
            for piece in 0..NUM_PIECES / 2 {
                let at = (piece * PIECE_BYTES) as usize;
                let found = io.read(at as u64, PIECE_BYTES as usize).unwrap();
                assert!(found[..] == origin.bytes[at..at + PIECE_BYTES as usize], "piece {piece}");
            }
            cache.stats().origin.reads == before
        });
    }
    // Data that only the attached one reads is kept again.
    origin
        .read_pieces(attached.iter().find(|cache| cache.owner().is_some()).unwrap(), 0..NUM_PIECES);
    wait_for_all(&origin, heir);
}

#[test]
fn what_processes_have_read_when_they_end_is_found_again() {
    let origin = origin(23);
    let folder = tempfile::tempdir().unwrap();
    let owner = origin.open(folder.path(), "64M");
    let attached = origin.open(folder.path(), "64M");
    origin.read_units(&attached, 0..NUM_UNITS);
    drop(attached);
    drop(owner);
    let next = origin.open(folder.path(), "64M");
    origin.read_units(&next, (0..NUM_UNITS).rev());
    assert_eq!(origin_bytes(&next), 0, "{:?}", next.stats());
}

#[test]
fn a_tier_in_memory_is_shared_and_its_copies_serve_all() {
    let origin = origin(8);
    let uuid = unique_uuid();
    let owner = origin.open_all(uuid, &["ram:64M"]).unwrap();
    let attached = origin.open_all(uuid, &["ram:64M"]).unwrap();
    assert_eq!((owner.owner(), attached.owner()), (None, Some(std::process::id())));
    let other = origin.open_all(unique_uuid(), &["ram:64M"]).unwrap();
    assert_eq!(other.owner(), None, "another image has its own");
    origin.read_pieces(&owner, (0..NUM_PIECES).filter(|piece| piece % 2 == 0));
    origin.read_pieces(&attached, (0..NUM_PIECES).filter(|piece| piece % 2 == 1));
    wait_for_all(&origin, &attached);
    wait_for_all(&origin, &owner);
    assert_eq!(owner.stats().tiers[0].fills, NUM_UNITS, "one copy of each");
    let third = origin.open_all(uuid, &["ram:64M"]).unwrap();
    origin.read_pieces(&third, 0..NUM_PIECES);
    assert_eq!(origin_bytes(&third), 0, "{:?}", third.stats());
    assert_eq!(third.stats().tiers[0].hits, NUM_PIECES);
}

#[test]
fn after_its_owner_a_tier_in_memory_begins_empty_and_the_one_in_a_file_is_used_again() {
    let origin = origin(9);
    let folder = tempfile::tempdir().unwrap();
    let half = NUM_UNITS * UNIT_BYTES / 2;
    let uuid = unique_uuid();
    let file = format!("file:{}:64M", folder.path().display());
    let open = || origin.open_all(uuid, &[&format!("ram:{half}"), &file]).unwrap();
    let owner = open();
    let attached = open();
    origin.read_units(&attached, 0..NUM_UNITS);
    wait_for_all(&origin, &attached);
    let fills: Vec<u64> = owner.stats().tiers.iter().map(|tier| tier.fills).collect();
    assert_eq!(fills, [NUM_UNITS / 2, NUM_UNITS / 2]);
    drop(owner);
    wait_for("the other one to take over", || attached.owner().is_none() && attached.is_settled());
    let stats = attached.stats();
    assert_eq!(
        (stats.tiers[0].used_bytes, stats.tiers[1].restored),
        (0, NUM_UNITS / 2),
        "{stats:?}"
    );
    origin.read_units(&attached, 0..NUM_UNITS);
    wait_for_all(&origin, &attached);
    assert_eq!(attached.stats().tiers[0].used_bytes, half, "it fills again");
}

/// The plan of a process that reads these units twice, all others once, and keeps these.
fn plan_of(cache: &Cache, units: Range<u64>) -> TierPlan {
    let mut reads = vec![1; NUM_UNITS as usize];
    reads[units.start as usize..units.end as usize].fill(2);
    let copies = units.map(|unit| (unit as u32, 0)).collect();
    TierPlan { copies, reads, fingerprint: cache.units().fingerprint() }
}

/// Waits until copies of exactly these units serve `cache`.
fn wait_for_kept(origin: &Origin, cache: &Cache, units: &Range<u64>) {
    wait_for("the planned copies", || {
        let before = origin_bytes(cache);
        origin.read_units(cache, units.clone());
        let is_kept = origin_bytes(cache) == before;
        is_kept && cache.stats().tiers[0].held_bytes == (units.end - units.start) * UNIT_BYTES
    });
}

#[test]
fn processes_that_share_memory_keep_by_their_plans_together() {
    if ran_alone(processes_that_share_memory_keep_by_their_plans_together) {
        return;
    }
    let origin = origin(11);
    let uuid = unique_uuid();
    let quarter = NUM_UNITS / 4;
    // As a program that owns the tiers and has no plan.
    let owner = origin.open_planned(uuid);
    let second = origin.open_planned(uuid);
    assert!(owner.owner().is_none() && second.owner().is_some());
    second.set_plan(&plan_of(&second, 2 * quarter..4 * quarter)).unwrap();
    wait_for_kept(&origin, &second, &(2 * quarter..4 * quarter));
    // Both read the third quarter most often. Of the others, what the owner reads first was read as often as
    // the copies that exist: those stay.
    owner.set_plan(&plan_of(&owner, quarter..3 * quarter)).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    wait_for_kept(&origin, &owner, &(2 * quarter..4 * quarter));
    // A third one turns that round: all read the second quarter and the third most often.
    let is_kept = in_child(|| {
        let third = origin.open_planned(uuid);
        third.set_plan(&plan_of(&third, quarter..3 * quarter)).unwrap();
        wait_for_kept(&origin, &third, &(quarter..3 * quarter));
        third.owner().is_some()
    });
    assert!(is_kept);
    wait_for_kept(&origin, &owner, &(quarter..3 * quarter));
    wait_for_kept(&origin, &second, &(quarter..3 * quarter));
    assert_eq!(
        owner.stats().tiers[0].capacity_bytes,
        2 * quarter * UNIT_BYTES,
        "one quota for all"
    );
}

#[test]
fn an_owner_that_keeps_what_is_read_first_ignores_plans() {
    let origin = origin(13);
    let uuid = unique_uuid();
    let tier = format!("ram:{}", NUM_UNITS / 2 * UNIT_BYTES);
    let owner = origin.open_all(uuid, &[&tier]).unwrap();
    let planned = origin.open_planned(uuid);
    planned.set_plan(&plan_of(&planned, 0..NUM_UNITS / 2)).unwrap();
    // It is sent after the plan.
    origin.read_units(&planned, [NUM_UNITS - 1]);
    wait_for("its copy", || owner.stats().tiers[0].fills > 0);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(owner.stats().tiers[0].held_bytes, UNIT_BYTES, "{:?}", owner.stats());
}

#[test]
fn after_the_owner_of_memory_its_successor_keeps_by_the_plans_of_those_that_are_left() {
    let origin = origin(12);
    let uuid = unique_uuid();
    let quarter = NUM_UNITS / 4;
    let owner = origin.open_planned(uuid);
    let second = origin.open_planned(uuid);
    let third = origin.open_planned(uuid);
    owner.set_plan(&plan_of(&owner, 0..2 * quarter)).unwrap();
    second.set_plan(&plan_of(&second, 2 * quarter..4 * quarter)).unwrap();
    third.set_plan(&plan_of(&third, 2 * quarter..3 * quarter)).unwrap();
    wait_for_all_held(&owner);
    drop(owner);
    wait_for("a successor", || second.owner().is_none() || third.owner().is_none());
    wait_for("the other to attach", || second.owner().is_some() || third.owner().is_some());
    wait_for_kept(&origin, &second, &(2 * quarter..4 * quarter));
    wait_for_kept(&origin, &third, &(2 * quarter..4 * quarter));
}

/// Waits until the tier holds all that it may.
fn wait_for_all_held(cache: &Cache) {
    wait_for("a full tier", || {
        let tier = cache.stats().tiers.remove(0);
        tier.held_bytes == tier.capacity_bytes
    });
}

/// A queue pair that nobody polls, so two reads of the origin stay outstanding: a read of a piece, and an ahead read
/// from the next piece on.
fn with_reads_outstanding(cache: &Cache) -> Box<dyn QueuePair> {
    let mut pair = cache.devices()[0].queue_pair().unwrap();
    for piece in 0..2 {
        let slba = Lba(piece * PIECE_BYTES / PAGE_BYTES);
        let io = Io { op: IoOp::Read, slba, buf: IoBuf::zeroed(PIECE_BYTES as usize), tag: piece };
        assert_eq!(pair.submit(&mut VecDeque::from([io])), 1);
    }
    assert_eq!(pair.outstanding(), 2);
    pair
}

/// A reader's reads of the origin hold back what is fetched ahead; those of a reader that has gone do not.
#[test]
fn a_queue_pair_dropped_with_reads_outstanding_lets_the_next_owner_fetch_ahead() {
    let origin = origin(24);
    let uuid = unique_uuid();
    let owner = origin.open_planned(uuid);
    let heir = origin.open_planned(uuid);
    let pair = with_reads_outstanding(&heir);
    drop(owner);
    wait_for("the other one to take over", || heir.owner().is_none());
    drop(pair); // it has not followed the takeover: the owner that it knows is gone
    heir.set_plan(&plan_of(&heir, 0..NUM_UNITS / 2)).unwrap();
    wait_for_all_held(&heir);
}

#[test]
fn a_child_that_takes_over_fetches_ahead_whatever_its_parent_was_reading() {
    if ran_alone(a_child_that_takes_over_fetches_ahead_whatever_its_parent_was_reading) {
        return;
    }
    let origin = origin(25);
    let notes = tempfile::tempdir().unwrap();
    let attached = notes.path().join("attached");
    let owner = origin.open_planned(unique_uuid());
    let pair = with_reads_outstanding(&owner);
    // The child never drops the queue pair, as if it were another thread's.
    let child = spawn_child(|| {
        wait_for("the child to attach", || owner.owner().is_some());
        fs::write(&attached, "").unwrap();
        wait_for("the child to take over", || owner.owner().is_none());
        owner.set_plan(&plan_of(&owner, 0..NUM_UNITS / 2)).unwrap();
        wait_for_all_held(&owner);
        true
    });
    wait_for("the child", || attached.exists());
    drop((pair, owner));
    assert!(ends_well(child));
}

#[test]
fn a_child_of_the_owner_follows_a_takeover_and_keeps_neither_lock_nor_name() {
    if ran_alone(a_child_of_the_owner_follows_a_takeover_and_keeps_neither_lock_nor_name) {
        return;
    }
    let origin = origin(10);
    let folder = tempfile::tempdir().unwrap();
    let notes = tempfile::tempdir().unwrap();
    let file = format!("file:{}:64M", folder.path().display());
    let note = |name: &str| notes.path().join(name);
    let wait_for_note = |name: &str| wait_for(name, || note(name).exists());
    for tier in ["ram:64M", &file] {
        let uuid = unique_uuid();
        // A process that owns the tiers and forks a child that reads, and is killed.
        let owner = || {
            let owner = origin.open_all(uuid, &[tier]).unwrap();
            origin.read_units(&owner, 0..NUM_UNITS);
            wait_for("copies", || owner.stats().tiers[0].fills == NUM_UNITS);
            spawn_child(|| {
                origin.read_pieces(&owner, 0..NUM_PIECES);
                fs::write(note("child reads"), "").unwrap();
                wait_for_note("taken over");
                wait_for("the child to attach", || owner.owner().is_some());
                wait_for_all(&origin, &owner);
                fs::write(note("child attached"), "").unwrap();
                true
            });
            wait_for_note("the end");
            true
        };
        let owner = spawn_child(owner);
        wait_for_note("child reads");
        let successor = origin.open_all(uuid, &[tier]).unwrap();
        assert!(successor.owner().is_some());
        kill_process(owner, Signal::KILL).unwrap();
        wait_for("the other process to take over", || successor.owner().is_none());
        fs::write(note("taken over"), "").unwrap();
        wait_for_note("child attached");
        waitpid(Some(owner), WaitOptions::empty()).unwrap();
        for name in ["child reads", "taken over", "child attached"] {
            fs::remove_file(note(name)).unwrap();
        }
    }
}

#[test]
fn an_attached_process_with_other_options_is_warned() {
    let origin = origin(5);
    let folder = tempfile::tempdir().unwrap();
    let owner = origin.open(folder.path(), "64M");
    let (attached, warnings) = warnings_of(|| origin.open(folder.path(), "32M"));
    assert_eq!(attached.capacities(), owner.capacities());
    let is_named = |text: &String| text.contains("67108864") && text.contains("33554432");
    assert!(warnings.iter().any(is_named), "{warnings:?}");
    let (_same, warnings) = warnings_of(|| origin.open(folder.path(), "64M"));
    assert!(warnings.is_empty(), "{warnings:?}");
}

#[test]
fn a_file_that_is_the_tier_of_another_image_is_refused_by_name() {
    let origin = origin(6);
    let file = tempfile::NamedTempFile::new().unwrap();
    let tier = format!("file:{}:64M", file.path().display());
    let _owner = origin.try_open(1, &tier).unwrap();
    let error = origin.try_open(2, &tier).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.report().contains("for another image"), "{}", error.report());
}

/// Listens where the owner of tiers in memory of this image would.
fn listen_as_owner(uuid: Uuid) -> UnixListener {
    UnixListener::bind(socket(&name_in_memory(uuid))).unwrap()
}

fn name_in_memory(uuid: Uuid) -> String {
    format!("ram-{:016x}", xxhash_rust::xxh3::xxh3_64(format!("{uuid}-g1-").as_bytes()))
}

/// The path of a socket of this user, whose folder is there from now on.
fn socket(name: &str) -> PathBuf {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let is_private =
        |path: &PathBuf| fs::metadata(path).is_ok_and(|found| found.mode() & 0o077 == 0);
    let user = rustix::process::geteuid().as_raw();
    let folder = match runtime.filter(is_private) {
        Some(runtime) => runtime.join("dlfs"),
        None => std::env::temp_dir().join(format!("dlfs-{user}")),
    };
    let _ = fs::DirBuilder::new().mode(0o700).create(&folder); // it may be there
    folder.join(name)
}

#[test]
fn an_owner_of_another_version_is_named_with_its_process() {
    let origin = origin(11);
    let uuid = unique_uuid();
    let listener = listen_as_owner(uuid);
    listener.set_nonblocking(true).unwrap();
    let over = AtomicBool::new(false);
    let report = std::thread::scope(|scope| {
        scope.spawn(|| {
            let text = r#"{"protocol": 4000000000, "dlfs": "99.1.0", "pid": 4711}"#;
            let hello = [&(text.len() as u32).to_le_bytes(), text.as_bytes()].concat();
            while !over.load(Ordering::Relaxed) {
                if let Ok((mut stream, _)) = listener.accept() {
                    let _ = stream.write_all(&hello); // fails if the process has not waited
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        // On a busy machine an answer may come too late.
        let errors = (0..10).filter_map(|_| origin.open_all(uuid, &["ram:64M"]).err());
        let report = errors
            .inspect(|error| println!("{error}"))
            .find(|error| error.kind() == ErrorKind::Unsupported)
            .map(|error| error.report());
        over.store(true, Ordering::Relaxed);
        report.unwrap()
    });
    assert!(report.contains("process 4711 runs dlfs 99.1.0"), "{report}");
    assert!(report.contains("one version of dlfs on a node"), "{report}");
}

/// A process sends the pages that it has read without waiting for the owner to refuse some of them.
#[test]
fn of_the_pages_that_a_process_sends_those_that_the_owner_expects_are_kept() {
    let origin = origin(15);
    let uuid = unique_uuid();
    let units = (0..NUM_UNITS).map(|unit| (unit * UNIT_PAGES, UNIT_PAGES as u32));
    let owner = origin.open_units(Units::of_small_samples(units), uuid, &["ram:64M"]).unwrap();
    let mut stream = UnixStream::connect(socket(&name_in_memory(uuid))).unwrap();
    let unit = 3_u64;
    let mut send = |message: String, bytes: &[u8]| {
        let lens = [message.len() as u64, bytes.len() as u64].map(u64::to_le_bytes);
        stream.write_all(&[&lens.concat()[..], message.as_bytes(), bytes].concat()).unwrap();
    };
    send(format!("{{\"Expect\":[{unit},{}]}}", 0b0110), b"");
    let start = (unit * UNIT_BYTES) as usize;
    let piece = format!("{{\"Piece\":{{\"unit\":{unit},\"pages\":{}}}}}", 0b1111);
    send(piece, &origin.bytes[start..start + 4 * PAGE_BYTES as usize]);
    wait_for("copies of two pages", || owner.stats().tiers[0].held_bytes == 2 * PAGE_BYTES);
    let first = unit * UNIT_PAGES;
    origin.read_each(&owner, [first + 1, first + 2], PAGE_BYTES);
    assert_eq!(origin_bytes(&owner), 0);
}

#[test]
fn a_socket_in_use_by_another_process_is_named() {
    let origin = origin(12);
    let uuid = unique_uuid();
    let _silent = listen_as_owner(uuid);
    let error = origin.open_all(uuid, &["ram:64M"]).unwrap_err();
    let report = error.report();
    assert_eq!(error.kind(), ErrorKind::Busy, "{report}");
    assert!(report.contains(&name_in_memory(uuid)), "{report}");
    assert!(report.contains("it does not answer") && report.contains("ss -xlp"), "{report}");
    // A tier in a file has a lock: the first process uses it, and says that nobody shares it.
    let file = tempfile::NamedTempFile::new().unwrap();
    let found = file.as_file().metadata().unwrap();
    let name = format!("tier-{:x}-{:x}", found.dev(), found.ino());
    let silent = UnixListener::bind(socket(&name)).unwrap();
    let tier = format!("file:{}:64M", file.path().display());
    let (owner, warnings) = warnings_of(|| origin.open_all(uuid, &[&tier]).unwrap());
    assert!(warnings.iter().any(|text| text.contains(&name)), "{warnings:?}");
    drop(silent);
    let attached = origin.open_all(uuid, &[&tier]).unwrap();
    assert_eq!(attached.owner(), Some(std::process::id()), "it listens once the name is free");
    wait_for("the owner to count it", || owner.stats().attached == Some(1));
}

#[test]
fn sockets_lie_in_a_folder_of_the_user_and_nobody_else_can_take_their_names() {
    let origin = origin(14);
    let uuid = unique_uuid();
    // Any user could do this while the name was an abstract one.
    let user = rustix::process::geteuid().as_raw();
    let name = SocketAddr::from_abstract_name(format!("dlfs-ram-{user}-{uuid}-g1")).unwrap();
    let _squatter = UnixListener::bind_addr(&name).unwrap();
    let path = socket(&name_in_memory(uuid));
    // The leftover of an owner that was killed.
    drop(UnixListener::bind(&path).unwrap());
    let (owner, warnings) = warnings_of(|| origin.open_all(uuid, &["ram:64M"]).unwrap());
    assert!(warnings.is_empty(), "{warnings:?}");
    let attached = origin.open_all(uuid, &["ram:64M"]).unwrap();
    assert_eq!(attached.owner(), Some(std::process::id()));
    let folder = fs::symlink_metadata(path.parent().unwrap()).unwrap();
    assert_eq!((folder.mode() & 0o777, folder.uid()), (0o700, user));
    // A socket that somebody else of this user has made there since is not the owner's to remove.
    fs::remove_file(&path).unwrap();
    let _other = UnixListener::bind(&path).unwrap();
    drop((attached, owner));
    assert!(path.exists());
    fs::remove_file(&path).unwrap();
    drop(origin.open_all(uuid, &["ram:64M"]).unwrap());
    assert!(!path.exists(), "its own is removed");
}

/// Four processes read without a pause through one tier, while the one that owns it is killed again and
/// again, and replaced. Five kills, or as many as the variable says.
#[test]
fn kills_of_the_owner_cost_no_reader_a_wrong_byte_an_error_or_a_long_wait() {
    if ran_alone(kills_of_the_owner_cost_no_reader_a_wrong_byte_an_error_or_a_long_wait) {
        return;
    }
    let kills: u32 =
        std::env::var("DLFS_TEST_KILLS").map_or(5, |kills| kills.parse().expect("a number"));
    for kind in ["file", "ram"] {
        let origin = origin(13);
        let folder = tempfile::tempdir().unwrap();
        let notes = tempfile::tempdir().unwrap();
        let uuid = unique_uuid();
        let tier = match kind {
            "ram" => "ram:64M".to_owned(),
            _ => format!("file:{}:64M", folder.path().display()),
        };
        let note = |name: &str| notes.path().join(name);
        let reader = |number: u32| {
            let longest = fs::File::create(note(&format!("wait-{number}"))).unwrap();
            let cache = origin.open_all(uuid, &[&tier]).unwrap();
            let mut io = Blocking::new(cache.devices()[0].queue_pair().unwrap()).unwrap();
            let mut random = Random::new(u64::from(number));
            let mut most = 0;
            let mut owns = false;
            while !note("end").exists() {
                let began = Instant::now();
                for _ in 0..16 {
                    let at = (random.below(NUM_PIECES) * PIECE_BYTES) as usize;
                    let found = io.read(at as u64, PIECE_BYTES as usize).unwrap();
                    assert!(found[..] == origin.bytes[at..at + PIECE_BYTES as usize]);
                }
                let wait_us = began.elapsed().as_micros() as u64;
                if wait_us > most {
                    most = wait_us;
                    longest.write_all_at(&most.to_le_bytes(), 0).unwrap();
                }
                if !owns && cache.owner().is_none() {
                    owns = true;
                    fs::write(note(&format!("owner-{}", std::process::id())), "").unwrap();
                }
            }
            true
        };
        let mut random = Random::new(u64::from(std::process::id()));
        let mut running: Vec<Pid> = (0..4).map(|number| spawn_child(|| reader(number))).collect();
        for kill in 0..kills {
            let is_owner = |pid: &Pid| note(&format!("owner-{}", pid.as_raw_nonzero())).exists();
            wait_for("an owner", || running.iter().any(is_owner));
            std::thread::sleep(Duration::from_millis(random.below(300)));
            let owner = running.swap_remove(running.iter().position(is_owner).unwrap());
            kill_process(owner, Signal::KILL).unwrap();
            waitpid(Some(owner), WaitOptions::empty()).unwrap();
            running.push(spawn_child(|| reader(4 + kill)));
        }
        fs::write(note("end"), "").unwrap();
        for reader in running {
            let (_, status) = waitpid(Some(reader), WaitOptions::empty()).unwrap().unwrap();
            assert_eq!(
                status.exit_status(),
                Some(0),
                "{kind}: a reader met an error or wrong bytes"
            );
        }
        let longest = (0..4 + kills).filter_map(|number| {
            let bytes = fs::read(note(&format!("wait-{number}"))).ok()?;
            Some(u64::from_le_bytes(bytes.try_into().ok()?))
        });
        let longest = Duration::from_micros(longest.max().expect("some have read"));
        println!(
            "{kind}: {kills} kills of the owner, the longest wait for a batch was {longest:?}"
        );
        assert!(longest < Duration::from_secs(60), "{kind}: {longest:?}");
    }
}

const RANKS: u64 = 8;
const NUM_UNITS: u64 = 256;
const UNIT_PAGES: u64 = 16;
const UNIT_BYTES: u64 = UNIT_PAGES * 4096;
const PIECE_BYTES: u64 = UNIT_BYTES / 4;
const NUM_PIECES: u64 = NUM_UNITS * 4;
