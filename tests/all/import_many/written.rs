//! Parts that programs write: of any length, in any order, killed and repeated, and their commit.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlfs::address::Address;
use dlfs::dataset::{Image, OpenOptions};
use dlfs::directory::Directory;
use dlfs::format::columns::{ColumnSpec, ColumnType, Value};
use dlfs::format::superblock::{COPY_OFFSETS, SUPERBLOCK_BYTES};
use dlfs::format::{FieldTypes, Pack, Uuid};
use dlfs::import::many::{PartPlace, PartWriter, WritePlan, WrittenPart, commit_import};
use dlfs::import::{self, ImportOptions, Label, NewSample, Onto, WriteReport, WriterOptions};
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::mem::MemNamespace;
use dlfs::qpair::{self, ConnectOptions, Device};
use dlfs::units::{Nsid, SampleId};
use dlfs::{ErrorKind, Result};

use super::{run, spawn, was_killed_at_work};
use crate::import_support::served::{serve, short_leased};
use crate::import_support::{Random, contents, options};
use crate::support::disk::SmallDisk;
use crate::support::stopped::wait_until_stopped;

const LANES: u64 = 2;

type Samples = BTreeMap<Vec<u8>, Vec<u8>>;

/// The name and the bytes of sample `nth` of part `key`. Every fifth part has no samples.
fn sample(key: u64, nth: u64) -> (Vec<u8>, Vec<u8>) {
    let len = (nth * 7919 + key * 101) % 9000 + u64::from(nth == 3) * 200_000;
    let byte = |at: u64| (at * 31 + nth * 7 + key) as u8;
    (format!("part{key}/{nth:04}").into_bytes(), (0..len).map(byte).collect())
}

fn count(key: u64) -> u64 {
    if key % 5 == 4 { 0 } else { 40 + key * 13 }
}

fn samples(keys: impl IntoIterator<Item = u64>) -> Samples {
    keys.into_iter().flat_map(|key| (0..count(key)).map(move |nth| sample(key, nth))).collect()
}

fn of(image: ImportOptions) -> WriterOptions {
    WriterOptions { window_bytes: 100_000, image, ..WriterOptions::default() }
}

fn connect() -> ConnectOptions {
    ConnectOptions { writable: true, ..ConnectOptions::default() }
}

struct Scene {
    dir: tempfile::TempDir,
    plan: WritePlan,
}

impl Scene {
    fn new() -> Scene {
        let dir = tempfile::tempdir().unwrap();
        let plan = plan_at(&paths(dir.path()), of(options(Onto::Empty)), &[]).unwrap();
        Scene { dir, plan }
    }

    fn opened(&self) -> Vec<Arc<dyn Device>> {
        opened(&paths(self.dir.path()))
    }

    fn bytes(&self) -> Vec<Vec<u8>> {
        paths(self.dir.path()).iter().map(|path| fs::read(path).unwrap()).collect()
    }
}

fn paths(dir: &Path) -> Vec<PathBuf> {
    (0..LANES).map(|lane| dir.join(format!("lane{lane}"))).collect()
}

fn opened(paths: &[PathBuf]) -> Vec<Arc<dyn Device>> {
    let open = |path: &PathBuf| {
        qpair::open(&Address::from_path(path), &ConnectOptions::default()).unwrap()
    };
    paths.iter().map(open).collect()
}

fn plan_at(paths: &[PathBuf], options: WriterOptions, classes: &[&str]) -> Result<WritePlan> {
    let image: Vec<Address> = paths.iter().map(Address::from_path).collect();
    let classes = classes.iter().map(|class| class.as_bytes().to_vec()).collect();
    WritePlan::create(&image, &options, classes, &connect())
}

fn begin(plan: &WritePlan, key: u64) -> Result<PartWriter> {
    PartWriter::begin(plan, key, PartPlace::Own, &connect())
}

fn fill(out: &mut PartWriter, key: u64) -> Result<()> {
    for nth in 0..count(key) {
        let (name, bytes) = sample(key, nth);
        let fields = [Some(&bytes[..])];
        out.write(&NewSample { name: Some(&name), fields: &fields, ..Default::default() })?;
    }
    Ok(())
}

fn write(plan: &WritePlan, key: u64) -> Result<WrittenPart> {
    let mut out = begin(plan, key)?;
    fill(&mut out, key)?;
    out.finish()
}

fn commit(plan: &WritePlan, count: u64) -> Result<WriteReport> {
    plan.commit_all(count, &connect(), &mut ())
}

fn directory(devices: Vec<Arc<dyn Device>>) -> Arc<Directory> {
    let image = Image::from_devices(devices, &OpenOptions::default()).unwrap();
    image.load_names().unwrap();
    image.directory().clone()
}

#[test]
fn parts_of_any_length_in_any_order_become_one_image_in_the_order_of_their_numbers() {
    let scene = Scene::new();
    let plan = WritePlan::from_bytes(&scene.plan.to_bytes()).unwrap();
    for key in [5, 0, 3, 4, 1] {
        let part = write(&plan, key).unwrap();
        assert_eq!((part.key, part.samples), (key, count(key)));
        assert_eq!(u64::from(part.namespace), key % LANES);
        assert_eq!(WrittenPart::from_bytes(&part.to_bytes()).unwrap(), part);
    }
    let error = commit(&plan, 7).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("the parts 2, 6 are not complete"), "{error}");
    // An attempt that fails, one that counts, and one that counts in its place.
    let mut out = begin(&plan, 2).unwrap();
    fill(&mut out, 7).unwrap();
    drop(out);
    let mut out = begin(&plan, 2).unwrap();
    fill(&mut out, 8).unwrap();
    out.finish().unwrap();
    write(&plan, 2).unwrap();
    let error = commit(&plan, 5).unwrap_err();
    assert!(error.to_string().contains("part 5 is there, and the parts 0 to 4"), "{error}");
    let found: Vec<u64> = plan.complete(&connect()).unwrap().iter().map(|part| part.key).collect();
    assert_eq!(found, [0, 1, 2, 3, 4, 5]);
    assert!(Image::from_devices(scene.opened(), &OpenOptions::default()).is_err(), "not visible");

    let report = commit(&plan, 6).unwrap();
    let expected = samples(0..6);
    assert_eq!((report.samples, report.generation.0), (expected.len() as u64, 1));
    assert_eq!(report.sample_bytes, expected.values().map(|bytes| bytes.len() as u64).sum::<u64>());
    assert_eq!(contents(&scene.opened()).unwrap(), expected);
    let directory = directory(scene.opened());
    let in_order = (0..6).flat_map(|key| (0..count(key)).map(move |nth| sample(key, nth).0));
    for (id, name) in (0..).zip(in_order) {
        assert_eq!(directory.name(SampleId(id)).unwrap(), Some(name));
    }
    let bytes = scene.bytes();
    assert_eq!(report.image_bytes, bytes.iter().map(|lane| lane.len() as u64).sum::<u64>());
    assert_eq!(commit(&plan, 6).unwrap(), report, "a commit may be repeated");
    let error = begin(&plan, 1).unwrap_err();
    assert!(error.to_string().contains("committed already"), "{error}");
    assert!(scene.bytes() == bytes);

    // The data that the commit wrote into the heads of chunks is enough for a rebuild.
    for device in scene.opened_writable() {
        let mut io = Blocking::new(device.queue_pair().unwrap()).unwrap();
        COPY_OFFSETS.iter().for_each(|&at| io.write_at(at, &[0; SUPERBLOCK_BYTES]).unwrap());
    }
    import::rebuild_on(&scene.opened_writable(), None, &mut ()).unwrap();
    assert_eq!(contents(&scene.opened()).unwrap(), expected);
}

impl Scene {
    fn opened_writable(&self) -> Vec<Arc<dyn Device>> {
        let options = qpair::file::FileOptions { writable: true, ..Default::default() };
        let open = |path: PathBuf| qpair::file::FileNamespace::open(path, options).unwrap();
        let opened = paths(self.dir.path()).into_iter().map(open);
        opened.map(|device| Arc::new(device) as Arc<dyn Device>).collect()
    }
}

#[test]
fn fields_columns_and_classes_are_those_of_the_plan_in_all_parts() {
    let dir = tempfile::tempdir().unwrap();
    let options = WriterOptions {
        fields: vec![b"x".to_vec(), b"emb".to_vec()],
        field_types: FieldTypes::new(vec![None, Some("f32[2]".parse().unwrap())]),
        columns: vec![ColumnSpec { name: "width".into(), kind: ColumnType::Int }],
        ..of(options(Onto::Empty))
    };
    let plan = plan_at(&paths(dir.path()), options, &["cat", "dog"]).unwrap();
    let file = dir.path().join("write.plan");
    plan.save(&file).unwrap();
    let plan = WritePlan::load(&file).unwrap();
    for key in [1, 0, 2] {
        let mut out = begin(&plan, key).unwrap();
        let class = Label::Class(if key == 1 { b"dog" } else { b"cat" });
        for nth in 0..100_u8 {
            let x = [nth; 3];
            let emb = [nth; 8];
            let width = [("width", Value::Int(nth.into()))];
            let fields = [Some(&x[..]), Some(&emb[..])];
            let new = NewSample { name: None, label: class, fields: &fields, values: &width };
            assert_eq!(out.write(&new).unwrap(), u64::from(nth));
        }
        let fields = [None, Some(&[0; 7][..])];
        let error = out.write(&NewSample { fields: &fields, ..Default::default() }).unwrap_err();
        assert!(error.to_string().contains("field emb is f32[2]"), "{error}");
        let label = Label::Class(b"cow");
        let fields = [Some(&b"x"[..]), None];
        let new = NewSample { label, fields: &fields, ..Default::default() };
        let error = out.write(&new).unwrap_err();
        assert!(error.to_string().contains("the plan has no class \"cow\""), "{error}");
        out.finish().unwrap();
    }
    // By the command's way to commit, which needs the number of parts.
    let error = commit_import(&file, &connect(), &mut ()).unwrap_err();
    assert!(error.report().contains("--parts"), "{}", error.report());
    commit(&plan, 3).unwrap();
    let directory = directory(opened(&paths(dir.path())));
    assert_eq!(directory.classes(), [b"cat".to_vec(), b"dog".to_vec()]);
    let labels: Vec<_> = [0, 100, 299].map(|id| directory.label(SampleId(id))).into();
    assert_eq!(labels, [Some(0), Some(1), Some(0)]);
    assert_eq!(directory.column("width").unwrap().get(142), Value::Int(42));
    assert_eq!(directory.name(SampleId(142)).unwrap().unwrap(), b"00001-000000042");
}

#[test]
fn what_does_not_belong_together_is_refused() {
    let scene = Scene::new();
    let other = Scene::new();
    let part = write(&scene.plan, 0).unwrap();
    let foreign = write(&other.plan, 0).unwrap();
    let error = scene.plan.commit(&[part, foreign], &connect(), &mut ()).unwrap_err();
    assert!(error.to_string().contains("written part 0 is of another plan"), "{error}");
    let bytes = foreign.to_bytes();
    assert!(WrittenPart::from_bytes(&bytes[1..]).is_err());
    assert!(WrittenPart::from_bytes(&[&[1], &bytes[1..]].concat()).is_err());
    let mut bytes = scene.plan.to_bytes();
    assert_eq!(WritePlan::from_bytes(b"something").unwrap_err().kind(), ErrorKind::InvalidArgument);
    bytes[40] ^= 1;
    assert_eq!(WritePlan::from_bytes(&bytes).unwrap_err().kind(), ErrorKind::Corrupt);

    // Two samples with one name, in two parts.
    let mut out = begin(&scene.plan, 1).unwrap();
    fill(&mut out, 0).unwrap();
    let again = out.finish().unwrap();
    let error = scene.plan.commit(&[part, again], &connect(), &mut ()).unwrap_err();
    assert!(error.to_string().contains("have the same name, \"part0/"), "{error}");
    scene.plan.commit(&[part], &connect(), &mut ()).unwrap();
    assert_eq!(contents(&scene.opened()).unwrap(), samples([0]));

    // No samples at all; appends; another plan for the same namespaces.
    let error = other.plan.commit(&[], &connect(), &mut ()).unwrap_err();
    assert!(error.to_string().contains("no sample was written"), "{error}");
    let files = paths(other.dir.path());
    let error = plan_at(&files, of(options(Onto::Append)), &[]).unwrap_err();
    assert!(error.to_string().contains("a plan is for a new image"), "{error}");
    let later = ImportOptions { uuid: Some(Uuid([9; 16])), ..options(Onto::Force) };
    plan_at(&files, of(later), &[]).unwrap();
    let error = begin(&other.plan, 0).unwrap_err();
    assert!(error.to_string().contains("not prepared for this plan"), "{error}");
    let error = other.plan.commit(&[foreign], &connect(), &mut ()).unwrap_err();
    assert!(error.to_string().contains("not prepared for this plan"), "{error}");

    // A chunk that is another one than the record says.
    let scene = Scene::new();
    write(&scene.plan, 0).unwrap();
    let lane = &paths(scene.dir.path())[0];
    let mut bytes = fs::read(lane).unwrap();
    let chunk = bytes.windows(8).position(|window| window == b"DLFSCHNK").unwrap();
    bytes[chunk + 60] ^= 1;
    fs::write(lane, &bytes).unwrap();
    let error = commit(&scene.plan, 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
}

#[test]
fn a_second_attempt_is_busy_or_goes_elsewhere_and_the_parts_that_are_named_count() {
    let scene = Scene::new();
    let mut first = begin(&scene.plan, 0).unwrap();
    assert_eq!(begin(&scene.plan, 0).unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(commit(&scene.plan, 1).unwrap_err().kind(), ErrorKind::Busy);
    let mut second = PartWriter::begin(&scene.plan, 0, PartPlace::AnyFree, &connect()).unwrap();
    let error = PartWriter::begin(&scene.plan, 0, PartPlace::AnyFree, &connect()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "both namespaces are taken");
    fill(&mut first, 0).unwrap();
    fill(&mut second, 1).unwrap();
    let first = first.finish().unwrap();
    let second = second.finish().unwrap();
    assert_eq!((first.namespace, second.namespace), (0, 1));
    scene.plan.commit(&[second], &connect(), &mut ()).unwrap();
    assert_eq!(contents(&scene.opened()).unwrap(), samples([1]));
}

#[test]
fn a_part_on_a_full_disk_fails_and_is_written_again_when_there_is_room() {
    let Some(disk) = SmallDisk::new(4 << 20) else { return };
    let dir = tempfile::tempdir().unwrap();
    let files = [disk.path().join("lane"), dir.path().join("lane")];
    let plan = plan_at(&files, of(options(Onto::Empty)), &[]).unwrap();
    let ballast = disk.path().join("ballast");
    let mut filling = fs::File::create(&ballast).unwrap();
    while filling.write_all(&[1; 4096]).is_ok() {}
    write(&plan, 1).unwrap();
    let error = write(&plan, 2).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error:?}");
    let error = commit(&plan, 3).unwrap_err();
    assert!(error.to_string().contains("the parts 0, 2 are not complete"), "{error}");
    let mut out = begin(&plan, 0).unwrap();
    let content = vec![1; 100_000];
    let fields = [Some(&content[..])];
    let new = NewSample { fields: &fields, ..Default::default() };
    assert!((0..100).any(|_| out.write(&new).is_err()), "the disk is full");
    assert_eq!(out.finish().unwrap_err().kind(), ErrorKind::Interrupted);
    drop(filling);
    fs::remove_file(&ballast).unwrap();
    write(&plan, 0).unwrap();
    write(&plan, 2).unwrap();
    commit(&plan, 3).unwrap();
    assert_eq!(contents(&opened(&files)).unwrap(), samples(0..3));
}

/// Does the job of a child of these tests: `write|PLAN|KEY`, `end|PLAN|COUNT`, or `late|PLAN|KEY`, which writes until
/// it cannot.
pub(super) fn child(words: &[&str]) {
    let plan = WritePlan::load(Path::new(words[1])).unwrap();
    let number = words[2].parse().unwrap();
    match words[0] {
        "write" => drop(write(&plan, number).unwrap()),
        "end" => drop(commit(&plan, number).unwrap()),
        "peak" => {
            let began = Instant::now();
            let report = commit(&plan, number).unwrap();
            let took = began.elapsed().as_secs_f64();
            let bytes = peak_bytes();
            let text = format!("{} {took:.1} {bytes}", report.samples);
            fs::write(Path::new(words[1]).with_extension("peak"), text).unwrap();
        }
        _ => {
            let mut out = begin(&plan, number).unwrap();
            let content = vec![0xaa; 30_000];
            let fields = [Some(&content[..])];
            let new = NewSample { fields: &fields, ..Default::default() };
            let error = loop {
                if let Err(error) = out.write(&new) {
                    break error;
                }
                // So seldom that the namespace is not full by then, however busy the machine is.
                std::thread::sleep(Duration::from_millis(100));
            };
            assert_eq!(error.kind(), ErrorKind::Busy, "{error:?}");
        }
    }
}

/// The most memory that this process had.
pub(super) fn peak_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// `DLFS_WRITTEN_SAMPLES=100000000` writes as many: it takes minutes, and 3 GB where temporary files are.
#[test]
fn the_commit_of_many_small_samples_takes_little_memory_for_each() {
    const PARTS: u64 = 50;
    let count: u64 = std::env::var("DLFS_WRITTEN_SAMPLES")
        .map_or(200_000, |count| count.parse().expect("a number"));
    let dir = tempfile::tempdir().unwrap();
    let pack = Pack::Tight;
    let chunk_size_bytes = 64 << 10;
    let image = ImportOptions { pack, chunk_size_bytes, ..ImportOptions::default() };
    let options = WriterOptions { image, ..WriterOptions::default() };
    let plan = plan_at(&paths(dir.path()), options, &[]).unwrap();
    let file = dir.path().join("write.plan");
    plan.save(&file).unwrap();
    // The last chunk of each part is small, and its header shorter than those before.
    let each = count / PARTS;
    for key in 0..PARTS {
        let mut out = begin(&plan, key).unwrap();
        for _ in 0..each {
            let fields = [Some(&[7; 16][..])];
            out.write(&NewSample { fields: &fields, ..Default::default() }).unwrap();
        }
        out.finish().unwrap();
    }
    run(&format!("peak|{}|{PARTS}", file.display()));
    let text = fs::read_to_string(file.with_extension("peak")).unwrap();
    println!("samples, seconds of the commit, bytes of memory at most: {text}");
    let numbers: Vec<f64> = text.split(' ').map(|number| number.parse().unwrap()).collect();
    assert_eq!(numbers[0] as u64, each * PARTS);
    println!("{:.1} bytes a sample", numbers[2] / numbers[0]);
    assert!(numbers[2] < 256e6 + 20.0 * numbers[0], "{text}");
    let directory = directory(opened(&paths(dir.path())));
    for nth in [0, each * PARTS / 2, each * PARTS - 1] {
        let name = format!("{:05}-{:09}", nth / each, nth % each).into_bytes();
        assert_eq!(directory.name(SampleId(nth)).unwrap().as_ref(), Some(&name));
        assert_eq!(directory.lookup(&name).unwrap(), Some(SampleId(nth)));
    }
}

#[test]
fn parts_and_commit_killed_at_any_moment_end_with_the_same_bytes_when_run_again() {
    let scene = Scene::new();
    let file = scene.dir.path().join("write.plan");
    scene.plan.save(&file).unwrap();
    let prepared = scene.bytes();
    let restore = || {
        let files = paths(scene.dir.path());
        files.iter().zip(&prepared).for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
    };
    const PARTS: u64 = 4;
    let jobs: Vec<String> = (0..PARTS)
        .map(|key| format!("write|{}|{key}", file.display()))
        .chain([format!("end|{}|{PARTS}", file.display())])
        .collect();
    let mut times: Vec<Duration> = jobs.iter().map(|job| run(job)).collect();
    let whole = scene.bytes();
    assert_eq!(contents(&scene.opened()).unwrap(), samples(0..PARTS));
    let mut random = Random::new(42);
    let kills: u32 =
        std::env::var("DLFS_TEST_KILLS").map_or(20, |kills| kills.parse().expect("a number"));
    let mut hit = 0;
    for round in 0..kills.div_ceil(jobs.len() as u32) {
        restore();
        for (job, time) in jobs.iter().zip(&mut times) {
            hit += u32::from(was_killed_at_work(job, time, &mut random));
            // A part that was complete when it was killed is complete.
            let key: u64 = job.rsplit('|').next().unwrap().parse().unwrap();
            let is_there = job.starts_with("write")
                && scene.plan.complete(&connect()).unwrap().iter().any(|part| part.key == key);
            if !is_there {
                run(job);
            }
        }
        assert!(scene.bytes() == whole, "round {round}: other bytes");
        assert_eq!(import::orphans_on(&scene.opened()).unwrap(), [], "round {round}");
    }
    println!("{hit} processes were at work when they were killed");
    assert!(hit > kills / 4, "only {hit} of {kills} were at work when they were killed");
}

#[test]
fn an_attempt_that_was_stopped_until_another_took_its_place_writes_nothing_when_it_goes_on() {
    let disks = [(); 2].map(|()| MemNamespace::new(16 << 20, 512).unwrap());
    let target = serve(&disks, None);
    let dir = tempfile::tempdir().unwrap();
    let image = [target.address(Nsid(1)), target.address(Nsid(2))];
    // So long that a busy machine renews it in time.
    let leased = ImportOptions { lease: Duration::from_secs(3), ..short_leased(Onto::Empty) };
    let plan = WritePlan::create(&image, &of(leased), Vec::new(), &connect()).unwrap();
    let file = dir.path().join("write.plan");
    plan.save(&file).unwrap();
    let mut late = spawn(&format!("late|{}|0", file.display()));
    let lane = || {
        let mut io = Blocking::new(disks[0].queue_pair().unwrap()).unwrap();
        io.read(0, 16 << 20).unwrap()
    };
    let until = Instant::now() + Duration::from_secs(60);
    while !lane()[..1 << 20].chunks(1024).any(|bytes| bytes.starts_with(&[0xaa; 4])) {
        assert!(Instant::now() < until && late.try_wait().unwrap().is_none(), "it writes nothing");
    }
    assert_eq!(begin(&plan, 0).unwrap_err().kind(), ErrorKind::Busy, "it is at work");
    let signal = |name: &str| {
        let pid = late.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    };
    signal("-STOP");
    wait_until_stopped(late.id());
    let second = write(&plan, 0).unwrap();
    let before = lane();
    signal("-CONT");
    assert!(late.wait().unwrap().success(), "it does not end as busy");
    assert!(lane()[..] == before[..], "the late attempt wrote something");
    write(&plan, 1).unwrap();
    assert_eq!(commit(&plan, 2).unwrap().samples, count(0) + count(1));
    assert_eq!(second.samples, count(0));
    target.stop();
    let devices = disks.map(|disk| Arc::new(disk) as Arc<dyn Device>);
    assert_eq!(contents(&devices).unwrap(), samples(0..2));
}

#[test]
fn a_target_that_restarts_in_the_middle_costs_an_attempt_at_most() {
    let disks = [(); 2].map(|()| MemNamespace::new(16 << 20, 512).unwrap());
    let target = serve(&disks, None);
    let listen = target.local_addr();
    let image = [target.address(Nsid(1)), target.address(Nsid(2))];
    let plan = WritePlan::create(&image, &of(short_leased(Onto::Empty)), Vec::new(), &connect());
    let plan = plan.unwrap();
    write(&plan, 1).unwrap();
    let mut out = begin(&plan, 0).unwrap();
    let half: Vec<_> = (0..20).map(|nth| sample(2, nth)).collect();
    for (name, bytes) in &half {
        let fields = [Some(&bytes[..])];
        out.write(&NewSample { name: Some(name), fields: &fields, ..Default::default() }).unwrap();
    }
    target.stop();
    let target = serve(&disks, Some(listen));
    match fill(&mut out, 0) {
        Ok(()) => drop(out), // the parts below are another attempt either way
        Err(error) => assert_eq!(error.kind(), ErrorKind::Disconnected, "{error:?}"),
    }
    write(&plan, 0).unwrap();
    commit(&plan, 2).unwrap();
    target.stop();
    let devices = disks.map(|disk| Arc::new(disk) as Arc<dyn Device>);
    assert_eq!(contents(&devices).unwrap(), samples(0..2));
}
