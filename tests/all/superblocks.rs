//! Unreadable or damaged superblock copies: the other copy is used, nobody overwrites a possibly newer
//! generation unless told to, and a rebuild finds it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::import_support::disk::{Disks, Event};
use crate::import_support::{contents, options, paths, tree};
use crate::support::faults::{Fault, Faulty, Rule};
use crate::support::warnings::warnings_of;
use dlfs::dataset::{Image, OpenOptions, VerifyReport};
use dlfs::format::superblock::{COPY_OFFSETS, SUPERBLOCK_BYTES};
use dlfs::import::{self, ImportOptions, Onto, import_onto};
use dlfs::nvme::{Nqn, Status};
use dlfs::order::{OrderKind, OrderSpec, State};
use dlfs::qpair::{ConnectOptions, Device, IoOp};
use dlfs::target::{Target, TargetOptions};
use dlfs::units::{Generation, Nsid};
use dlfs::{Error, ErrorKind, Result};

type Files = BTreeMap<Vec<u8>, Vec<u8>>;

/// An image at generation 2 (copy A): an import (copy B), and an append.
struct Scene {
    _folders: [tempfile::TempDir; 2],
    appended: Appended,
    images: [Vec<Vec<u8>>; 2],
    files: [Files; 2],
}

struct Appended(std::path::PathBuf);

impl Scene {
    fn new(namespaces: usize) -> Scene {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let first = tree(folders[0].path(), 20, 9000, 1);
        let mut all = first.clone();
        all.extend(tree(folders[1].path(), 15, 9000, 2));
        let disks = Disks::new(namespaces, 2 << 20);
        let appended = Appended(folders[1].path().to_owned());
        import_onto(&paths(folders[0].path()), &disks.devices(), &options(Onto::Empty), &mut ())
            .unwrap();
        let before = disks.contents();
        append(&appended.0, &disks.devices(), Onto::Append, false).unwrap();
        let images = [before, disks.contents()];
        Scene { _folders: folders, appended, images, files: [first, all] }
    }

    /// Generation 2 with a flipped bit in copy `copy` of a namespace.
    fn flipped(&self, namespace: usize, copy: usize) -> Disks {
        let mut image = self.images[1].clone();
        image[namespace][COPY_OFFSETS[copy] as usize + 70] ^= 4;
        Disks::holding(&image)
    }
}

fn append(
    source: &Path,
    devices: &[Arc<dyn Device>],
    onto: Onto,
    accept_older_generation: bool,
) -> Result<()> {
    let time_ns = Some(2_000_000_000);
    let options = ImportOptions { time_ns, accept_older_generation, ..options(onto) };
    import_onto(&paths(source), devices, &options, &mut ()).map(drop)
}

fn open(devices: &[Arc<dyn Device>]) -> Result<Image> {
    Image::from_devices(devices.to_vec(), &OpenOptions::default())
}

fn generation(devices: &[Arc<dyn Device>]) -> u64 {
    open(devices).unwrap().directory().generation().0
}

fn verify(devices: &[Arc<dyn Device>]) -> VerifyReport {
    open(devices).unwrap().verify(&Default::default(), &mut |_| ()).unwrap()
}

fn delete_one(devices: &[Arc<dyn Device>], files: &Files) -> Result<()> {
    let name = files.keys().next().unwrap().clone();
    import::delete_on(devices, &[name]).map(drop)
}

fn faulty(disks: &Disks) -> (Faulty, Vec<Arc<dyn Device>>) {
    let faulty = Faulty::new(disks.devices().remove(0));
    (faulty.clone(), vec![Arc::new(faulty)])
}

/// The blocks of 512 bytes of a superblock copy.
fn blocks_of(copy: usize) -> std::ops::Range<u64> {
    let first = COPY_OFFSETS[copy] / 512;
    first..first + SUPERBLOCK_BYTES as u64 / 512
}

fn block_faults() -> [Fault; 5] {
    [
        Fault::Os(libc::EIO),
        Fault::Status(Status::UNRECOVERED_READ_ERROR.do_not_retry()),
        Fault::Status(Status::GUARD_CHECK_ERROR),
        Fault::Short,
        Fault::FlipBit { bit: 4321 },
    ]
}

#[test]
fn an_unreadable_copy_stops_neither_reading_nor_rebuilding() {
    let scene = Scene::new(1);
    for fault in block_faults() {
        for (copy, expected) in [(0, 1), (1, 2)] {
            println!("{fault:?} at copy {copy}");
            let (faulty, devices) = faulty(&Disks::holding(&scene.images[1]));
            faulty.add(Rule::read(blocks_of(copy), u32::MAX, fault.clone()));
            let (image, warnings) = warnings_of(|| open(&devices).unwrap());
            assert_eq!(image.directory().generation(), Generation(expected));
            assert!(warnings.iter().any(|w| w.contains("superblock copy")), "{warnings:?}");
            let [bad] = image.bad_superblock_copies() else { panic!("one copy is bad") };
            assert_eq!((bad.offset_bytes, bad.may_be_newer), (COPY_OFFSETS[copy], true));
            assert_eq!(contents(&devices).unwrap(), scene.files[expected as usize - 1]);
            let damages = verify(&devices).damages;
            assert_eq!(damages.len(), 1, "{damages:?}");
            assert!(damages[0].what.starts_with("superblock copy"), "{damages:?}");
            // The newest generation is found without its superblock, and nothing is lost.
            let report = import::rebuild_on(&devices, None, &mut ()).unwrap();
            assert_eq!((report.generation, report.lost_samples), (Generation(2), 0));
        }
    }
}

#[test]
fn a_copy_that_is_bad_once_is_read_again_silently() {
    let scene = Scene::new(1);
    for fault in block_faults() {
        let (faulty, devices) = faulty(&Disks::holding(&scene.images[1]));
        faulty.add(Rule::read(blocks_of(0), 1, fault.clone()));
        let (image, warnings) = warnings_of(|| open(&devices).unwrap());
        assert_eq!(
            (image.directory().generation(), warnings.len()),
            (Generation(2), 0),
            "{fault:?}"
        );
        // So does anyone who writes.
        faulty.add(Rule::read(blocks_of(0), 1, fault.clone()));
        delete_one(&devices, &scene.files[1]).unwrap();
        assert_eq!((faulty.struck(), generation(&devices)), (2, 3), "{fault:?}");
    }
}

#[test]
fn a_namespace_that_is_out_of_reach_is_no_bad_copy() {
    let scene = Scene::new(1);
    for copy in [0, 1] {
        let (faulty, devices) = faulty(&Disks::holding(&scene.images[1]));
        faulty.add(Rule::read(blocks_of(copy), u32::MAX, Fault::Disconnect));
        assert_eq!(open(&devices).unwrap_err().kind(), ErrorKind::Disconnected);
    }
    let (faulty, devices) = faulty(&Disks::holding(&scene.images[1]));
    faulty.add(Rule::read(0..u64::MAX, u32::MAX, Fault::Os(libc::EIO)));
    let error = open(&devices).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "{error:?}");
}

#[test]
fn a_bad_copy_over_the_network_is_told_from_a_target_that_is_gone() {
    let scene = Scene::new(1);
    let (faulty, mut devices) = faulty(&Disks::holding(&scene.images[1]));
    let nqn = Nqn::new("nqn.2026-11.io.dlfs:copies").unwrap();
    let target = Target::bind(TargetOptions::new(nqn), vec![devices.remove(0)]).unwrap();
    for data_digest in [false, true] {
        let connect = ConnectOptions { data_digest, ..ConnectOptions::default() };
        let wanted = OpenOptions { connect, ..OpenOptions::default() };
        let open = || Image::open(&[target.address(Nsid(1))], &wanted).unwrap();
        faulty.add(Rule::read(blocks_of(0), 1, Fault::FlipBit { bit: 99 }));
        assert_eq!(open().directory().generation(), Generation(2), "read again");
        for fault in [Fault::Os(libc::EIO), Fault::FlipBit { bit: 99 }] {
            faulty.add(Rule::read(blocks_of(0), 2, fault));
            let image = open();
            assert_eq!(image.directory().generation(), Generation(1));
            assert_eq!(image.bad_superblock_copies().len(), 1);
            let report = image.verify(&Default::default(), &mut |_| ()).unwrap();
            assert_eq!(report.samples, scene.files[0].len() as u64);
        }
    }
    target.stop();
}

fn refused(result: Result<()>) -> Error {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error:?}");
    for way_out in ["dlfs rebuild", "--resume", "--accept-older-generation"] {
        assert!(error.report().contains(way_out), "{error:?}");
    }
    error
}

#[test]
fn a_possibly_newer_generation_is_not_overwritten_without_consent() {
    let scene = Scene::new(1);
    let disks = scene.flipped(0, 0);
    let before = disks.contents();
    let devices = disks.devices();
    let damages = verify(&devices).damages;
    assert!(damages[0].what.contains("generation 2 may be lost"), "{damages:?}");
    let other = tempfile::tempdir().unwrap();
    tree(other.path(), 3, 100, 7);
    let error = refused(append(other.path(), &devices, Onto::Append, false));
    assert!(error.to_string().contains("found is 1, and generation 2"), "{error:?}");
    refused(delete_one(&devices, &scene.files[0]));
    refused(import::purge_on(&devices, &mut ()).map(drop));
    assert!(disks.contents() == before, "nothing was written");
    append(other.path(), &devices, Onto::Append, true).unwrap();
    assert_eq!(contents(&devices).unwrap().len(), scene.files[0].len() + 3);
    assert_eq!(verify(&devices).damages.len(), 0);
}

#[test]
fn a_rebuild_finds_the_newest_generation_and_mends_the_copy() {
    let scene = Scene::new(1);
    let disks = scene.flipped(0, 0);
    let devices = disks.devices();
    let report = import::rebuild_on(&devices, None, &mut ()).unwrap();
    assert_eq!((report.generation, report.lost_samples), (Generation(2), 0));
    assert_eq!(report.mended_copies, 1);
    assert_eq!(contents(&devices).unwrap(), scene.files[1]);
    assert_eq!(verify(&devices).damages.len(), 0);
    delete_one(&devices, &scene.files[1]).unwrap();
    assert_eq!(generation(&devices), 3);
}

#[test]
fn a_rebuild_finds_a_newer_delete_and_purge_too() {
    let scene = Scene::new(1);
    let disks = Disks::holding(&scene.images[1]);
    let devices = disks.devices();
    for expected in [3, 4] {
        match expected {
            3 => delete_one(&devices, &scene.files[1]).unwrap(),
            _ => drop(import::purge_on(&devices, &mut ()).unwrap()),
        }
        let whole = contents(&devices).unwrap();
        let mut bytes = disks.contents();
        bytes[0][COPY_OFFSETS[expected % 2] as usize + 500] ^= 1;
        let bad = Disks::holding(&bytes);
        assert_eq!(generation(&bad.devices()), expected as u64 - 1);
        let report = import::rebuild_on(&bad.devices(), None, &mut ()).unwrap();
        assert_eq!((report.generation.0, report.lost_samples), (expected as u64, 0));
        assert_eq!(contents(&bad.devices()).unwrap(), whole);
    }
}

#[test]
fn a_rebuild_that_finds_nothing_newer_mends_the_copy_all_the_same() {
    let scene = Scene::new(1);
    // The copy of the previous generation is bad: nothing is lost, but nobody can tell.
    let disks = scene.flipped(0, 1);
    let devices = disks.devices();
    assert_eq!(generation(&devices), 2);
    refused(delete_one(&devices, &scene.files[1]));
    let report = import::rebuild_on(&devices, None, &mut ()).unwrap();
    assert_eq!((report.generation, report.mended_copies), (Generation(2), 1));
    assert_eq!(contents(&devices).unwrap(), scene.files[1]);
    assert_eq!((verify(&devices).damages.len(), generation(&devices)), (0, 2));
    delete_one(&devices, &scene.files[1]).unwrap();
    assert_eq!((verify(&devices).damages.len(), generation(&devices)), (0, 3));
    // Both copies count again: a blank one is an error.
    let mut bytes = disks.contents();
    bytes[0][..SUPERBLOCK_BYTES].fill(0);
    assert_eq!(verify(&Disks::holding(&bytes).devices()).damages.len(), 1);
}

/// The disks after a commit that lost power during its last superblock write.
fn torn(before: &[Vec<u8>], work: impl FnOnce(&[Arc<dyn Device>])) -> Disks {
    let disks = Disks::holding(before);
    disks.keep_events();
    work(&disks.devices());
    let mut left = disks.contents();
    let is_superblock = |event: &&Event| {
        let Event::Write { disk: 0, offset, .. } = event else { return false };
        COPY_OFFSETS.contains(offset)
    };
    let events = disks.events();
    let Some(Event::Write { offset, .. }) = events.iter().rev().find(is_superblock) else {
        panic!("a commit writes a superblock");
    };
    let tail = *offset as usize + 64..*offset as usize + SUPERBLOCK_BYTES;
    left[0][tail.clone()].copy_from_slice(&before[0][tail]);
    left[0][*offset as usize + 4095] ^= 0xff; // also where it was blank before
    Disks::holding(&left)
}

#[test]
fn an_append_whose_commit_was_torn_goes_on_with_resume_or_rebuild_and_with_nothing_else() {
    let scene = Scene::new(1);
    let appended = &scene.appended.0;
    let disks = || {
        torn(&scene.images[0], |devices| append(appended, devices, Onto::Append, false).unwrap())
    };
    for way_out in ["resume", "rebuild"] {
        let disks = disks();
        let devices = disks.devices();
        assert_eq!(contents(&devices).unwrap(), scene.files[0]);
        refused(delete_one(&devices, &scene.files[0]));
        refused(append(appended, &devices, Onto::Append, false));
        match way_out {
            "resume" => append(appended, &devices, Onto::Resume, false).unwrap(),
            _ => drop(import::rebuild_on(&devices, None, &mut ()).unwrap()),
        }
        assert_eq!(contents(&devices).unwrap(), scene.files[1], "{way_out}");
        assert_eq!(verify(&devices).damages.len(), 0, "{way_out}");
    }
}

#[test]
fn a_delete_whose_commit_was_torn_is_ended_by_a_rebuild_and_not_lost_to_a_resumed_import() {
    let scene = Scene::new(1);
    // An append was interrupted before its commit; then someone deleted instead.
    let interrupted = Disks::holding(&scene.images[0]);
    interrupted.keep_events();
    append(&scene.appended.0, &interrupted.devices(), Onto::Append, false).unwrap();
    let mut before = interrupted.contents();
    before[0][..SUPERBLOCK_BYTES].fill(0);
    let disks = torn(&before, |devices| delete_one(devices, &scene.files[0]).unwrap());
    let devices = disks.devices();
    refused(append(&scene.appended.0, &devices, Onto::Resume, false));
    let report = import::rebuild_on(&devices, None, &mut ()).unwrap();
    assert_eq!((report.generation, report.lost_samples), (Generation(2), 0));
    assert_eq!(contents(&devices).unwrap().len(), scene.files[0].len() - 1);
}

#[test]
fn with_several_namespaces_namespace_0_decides_and_the_others_confirm_it() {
    let scene = Scene::new(2);
    // The copy of generation 2 on namespace 1: namespace 0 has the same facts.
    let disks = scene.flipped(1, 0);
    let image = open(&disks.devices()).unwrap();
    assert_eq!(image.directory().generation(), Generation(2));
    assert!(image.superblocks()[1].used_len_bytes > 64 << 10);
    assert_eq!(contents(&disks.devices()).unwrap(), scene.files[1]);
    assert_eq!(verify(&disks.devices()).damages.len(), 1);
    import::rebuild_on(&disks.devices(), None, &mut ()).unwrap();
    assert_eq!(verify(&disks.devices()).damages.len(), 0);
    // The older copy on namespace 0: that of namespace 1 shows that no commit followed.
    let disks = scene.flipped(0, 1);
    assert_eq!(verify(&disks.devices()).damages.len(), 1);
    delete_one(&disks.devices(), &scene.files[1]).unwrap();
    assert_eq!(generation(&disks.devices()), 3);
    // The newest copy on namespace 0: namespace 1 still has it.
    let disks = scene.flipped(0, 0);
    assert_eq!(generation(&disks.devices()), 1);
    refused(delete_one(&disks.devices(), &scene.files[0]));
    import::rebuild_on(&disks.devices(), None, &mut ()).unwrap();
    assert_eq!(contents(&disks.devices()).unwrap(), scene.files[1]);
}

#[test]
fn a_state_and_a_saved_snapshot_of_the_lost_generation_say_so() {
    let scene = Scene::new(1);
    let dir = tempfile::tempdir().unwrap();
    let saved = dir.path().join("saved");
    let whole = open(&Disks::holding(&scene.images[1]).devices()).unwrap();
    whole.load_names().unwrap();
    std::fs::write(&saved, whole.directory().to_snapshot().unwrap()).unwrap();
    let devices = scene.flipped(0, 0).devices();
    let options = OpenOptions { snapshot: Some(saved), ..OpenOptions::default() };
    let stale = Image::from_devices(devices.clone(), &options).unwrap_err();
    let older = open(&devices).unwrap();
    let order = OrderSpec { kind: OrderKind::Global, seed: 0 };
    let uuid = whole.directory().uuid().0;
    let state = State::start(uuid, whole.directory().generation(), order);
    let len = older.directory().num_live();
    let refusal =
        state.check((uuid, None), older.directory().generation(), &order, 1, len).unwrap_err();
    for error in [stale, refusal] {
        assert_eq!(error.kind(), ErrorKind::Stale, "{error:?}");
        let report = error.report();
        assert!(report.contains("generation 2") && report.contains("opened at"), "{report}");
        assert!(report.contains("superblock may be damaged"), "{report}");
        assert!(report.contains("dlfs verify"), "{report}");
    }
}

#[test]
fn a_rebuild_does_without_the_cells_that_cannot_be_read() {
    let scene = Scene::new(1);
    let (faulty, devices) = faulty(&Disks::holding(&scene.images[1]));
    let chunk = open(&devices).unwrap().directory().chunk(1);
    let first = chunk.offset_bytes / 512;
    faulty.add(Rule::read(first..first + 8, u32::MAX, Fault::Os(libc::EIO)));
    let report = import::rebuild_on(&devices, None, &mut ()).unwrap();
    assert_eq!((report.unreadable_cells, report.lost_samples), (1, chunk.num_slots.into()));
    let seen = faulty.take_seen();
    let wrote_there = |(op, lba, len): &&(IoOp, dlfs::units::Lba, usize)| {
        *op == IoOp::Write && (lba.0..lba.0 + *len as u64 / 512).contains(&first)
    };
    assert!(!seen.iter().any(|io| wrote_there(&io)), "what may be there still is left alone");
    let left = contents(&devices).unwrap();
    assert_eq!(left.len() as u32, scene.files[1].len() as u32 - chunk.num_slots);
}
