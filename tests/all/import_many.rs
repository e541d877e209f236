//! One import by many: the parts of a plan, which fail, are killed and repeated, and their commit.

mod written;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::import_support::{Random, contents, options, paths, tree};
use crate::support::alone::{again, ended_within};
use dlfs::address::Address;
use dlfs::import::many::{commit_import, import_part, plan_import};
use dlfs::import::{self, ColumnsFrom, EditOptions, ImportOptions, Onto, import, orphans_on};
use dlfs::qpair::{self, ConnectOptions, Device};
use dlfs::{ErrorKind, Result};

const PARTS: u16 = 3;

/// A source, and the image that a single import makes of it.
struct Scene {
    dir: tempfile::TempDir,
    files: BTreeMap<Vec<u8>, Vec<u8>>,
    whole: Vec<Vec<u8>>,
}

impl Scene {
    fn new(count: usize, max_len: usize) -> Scene {
        let dir = tempfile::tempdir().unwrap();
        let files = tree(&dir.path().join("source"), count, max_len, 3);
        let mut scene = Scene { dir, files, whole: Vec::new() };
        let image = scene.image("whole");
        let connect = ConnectOptions::default();
        import(&scene.source(), &image, &options(Onto::Empty), &connect, &mut ()).unwrap();
        scene.whole = scene.bytes("whole");
        scene
    }

    fn source(&self) -> Vec<PathBuf> {
        paths(&self.dir.path().join("source"))
    }

    /// Makes another source, to be appended.
    fn add_later(&self, count: usize) -> BTreeMap<Vec<u8>, Vec<u8>> {
        tree(&self.dir.path().join("later"), count, 6000, 4)
    }

    fn later(&self) -> Vec<PathBuf> {
        paths(&self.dir.path().join("later"))
    }

    fn path(&self, name: &str, part: u16) -> PathBuf {
        self.dir.path().join(format!("{name}{part}"))
    }

    fn plan_path(&self, name: &str) -> PathBuf {
        self.dir.path().join(format!("{name}.plan"))
    }

    fn image(&self, name: &str) -> Vec<Address> {
        (0..PARTS).map(|part| Address::from_path(self.path(name, part))).collect()
    }

    fn bytes(&self, name: &str) -> Vec<Vec<u8>> {
        (0..PARTS).map(|part| fs::read(self.path(name, part)).unwrap()).collect()
    }

    fn plan(&self, name: &str, options: &ImportOptions) -> Result<PathBuf> {
        let plan = self.plan_path(name);
        let connect = ConnectOptions::default();
        plan_import(&self.source(), &self.image(name), options, &connect, &plan, &mut ())?;
        Ok(plan)
    }

    fn opened(&self, name: &str) -> Vec<Arc<dyn Device>> {
        let open = |address| qpair::open(&address, &ConnectOptions::default()).unwrap();
        self.image(name).into_iter().map(open).collect()
    }
}

fn part(plan: &Path, number: u16) -> Result<dlfs::import::many::PartReport> {
    import_part(plan, number, &ConnectOptions::default(), &mut ())
}

fn commit(plan: &Path) -> Result<dlfs::import::WriteReport> {
    commit_import(plan, &ConnectOptions::default(), &mut ()).map(|(report, _)| report)
}

#[test]
fn parts_in_any_order_make_the_image_of_a_single_import_byte_for_byte() {
    let scene = Scene::new(400, 9000);
    let plan = scene.plan("many", &options(Onto::Empty)).unwrap();
    for number in [2, 0] {
        let report = part(&plan, number).unwrap();
        assert!(report.chunks > 2 && report.found == 0, "{report:?}");
    }
    let error = commit(&plan).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}");
    assert!(error.to_string().contains("part 1 is not complete"), "{error}");
    part(&plan, 1).unwrap();
    let again = part(&plan, 1).unwrap();
    assert_eq!((again.found, again.part), (again.chunks, 1));
    let report = commit(&plan).unwrap();
    assert_eq!(report.samples, 400);
    assert!(scene.bytes("many") == scene.whole, "another image than that of a single import");
    assert_eq!(contents(&scene.opened("many")).unwrap(), scene.files);
    assert_eq!(commit(&plan).unwrap(), report, "a commit may be repeated");
    assert!(scene.bytes("many") == scene.whole);
    let error = part(&plan, 1).unwrap_err();
    assert!(error.to_string().contains("committed already"), "{error}");
    assert!(scene.bytes("many") == scene.whole);
}

#[test]
fn labels_and_columns_come_from_the_plan() {
    let scene = Scene::new(60, 2000);
    let table = scene.dir.path().join("table.csv");
    let row = |name: &Vec<u8>| format!("{},{}\n", String::from_utf8_lossy(name), name.len());
    fs::write(
        &table,
        "name,len_of_name\n".to_owned() + &scene.files.keys().map(row).collect::<String>(),
    )
    .unwrap();
    let columns = Some(ColumnsFrom { path: table.clone(), key: None, only: Vec::new() });
    let with = ImportOptions { columns, ..options(Onto::Empty) };
    let single = scene.image("single");
    import(&scene.source(), &single, &with, &ConnectOptions::default(), &mut ()).unwrap();
    let plan = scene.plan("many", &with).unwrap();
    (0..PARTS).for_each(|number| drop(part(&plan, number).unwrap()));
    commit(&plan).unwrap();
    assert!(scene.bytes("many") == scene.bytes("single"));

    // The values are in the plan: nobody looks for the table again.
    let again = scene.plan("again", &with).unwrap();
    fs::remove_file(&table).unwrap();
    (0..PARTS).for_each(|number| drop(part(&again, number).unwrap()));
    commit(&again).unwrap();
    assert!(scene.bytes("again") == scene.bytes("single"));

    fs::write(&table, "name,len_of_name\n").unwrap();
    let other = scene.plan("other", &options(Onto::Empty)).unwrap();
    part(&other, 0).unwrap();
    fs::write(&table, fs::read_to_string(&table).unwrap() + "x,1\n").unwrap();
    part(&other, 1).unwrap(); // it has no table
}

#[test]
fn what_does_not_belong_to_the_plan_is_refused_by_name() {
    let scene = Scene::new(100, 3000);
    let plan = scene.plan("many", &options(Onto::Empty)).unwrap();
    let error = part(&plan, PARTS).unwrap_err();
    assert!(error.to_string().contains("parts 0 to 2, and no part 3"), "{error}");
    let error = scene.plan("many", &options(Onto::Empty)).unwrap_err();
    assert!(error.to_string().contains("a file here already"), "{error}");
    let error = scene.plan("resumed", &options(Onto::Resume)).unwrap_err();
    assert!(error.to_string().contains("a plan is not resumed"), "{error}");
    let error = scene.plan("appended", &options(Onto::Append)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "there is nothing to append to: {error:?}");

    // Planned again: what the first plan prepared is not for it any more.
    part(&plan, 0).unwrap();
    let first = scene.dir.path().join("first.plan");
    fs::rename(&plan, &first).unwrap();
    let again = ImportOptions { seed: 77, uuid: None, ..options(Onto::Force) };
    scene.plan("many", &again).unwrap();
    for number in 0..PARTS {
        let error = part(&first, number).unwrap_err();
        assert!(error.to_string().contains("not prepared for this plan"), "{error}");
    }
    let error = commit(&first).unwrap_err();
    assert!(error.to_string().contains("not prepared for this plan"), "{error}");

    // A file of the source changes: the part that has it says which.
    let name = scene.files.keys().next().unwrap();
    let changed = scene.dir.path().join("source").join(String::from_utf8_lossy(name).as_ref());
    fs::write(&changed, "other bytes, other length, and so on").unwrap();
    let failed: Vec<_> = (0..PARTS).filter_map(|number| part(&plan, number).err()).collect();
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert_eq!(failed[0].kind(), ErrorKind::BadSource);
    let report = failed[0].report();
    assert!(report.contains(String::from_utf8_lossy(name).as_ref()), "{report}");

    // A damaged plan, one that is none, and a namespace that is gone.
    let mut bytes = fs::read(&plan).unwrap();
    let in_head = bytes.len() - 40;
    bytes[in_head] ^= 1;
    let damaged = scene.dir.path().join("damaged.plan");
    fs::write(&damaged, &bytes).unwrap();
    assert_eq!(part(&damaged, 0).unwrap_err().kind(), ErrorKind::Corrupt);
    fs::write(&damaged, "something").unwrap();
    assert!(part(&damaged, 0).unwrap_err().to_string().contains("not the plan of an import"));
    fs::remove_file(scene.path("many", 2)).unwrap();
    let error = part(&plan, 2).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}");
    assert!(!scene.path("many", 2).exists());
}

#[test]
fn a_plan_is_damaged_wherever_a_bit_of_it_flips() {
    let scene = Scene::new(60, 3000);
    let plan = scene.plan("many", &options(Onto::Empty)).unwrap();
    let bytes = fs::read(&plan).unwrap();
    let prepared = scene.bytes("many");
    let mut random = Random::new(8);
    let places = [9, bytes.len() - 1, bytes.len() - 20];
    let others: Vec<usize> = (0..12).map(|_| 9 + random.below(bytes.len() - 9)).collect();
    for place in places.into_iter().chain(others) {
        let mut damaged = bytes.clone();
        damaged[place] ^= 1 << random.below(8);
        fs::write(&plan, &damaged).unwrap();
        let parts = (0..PARTS).map(|number| part(&plan, number).map(drop));
        let errors: Vec<_> = parts.filter_map(Result::err).collect();
        // A part that does not read the damaged piece is complete; names are read by the commit alone.
        let error = errors.into_iter().next().unwrap_or_else(|| commit(&plan).unwrap_err());
        assert_eq!(error.kind(), ErrorKind::Corrupt, "byte {place}: {error:?}");
        assert!(error.to_string().contains("the plan is damaged"), "byte {place}: {error}");
        for (number, bytes) in (0..).zip(&prepared) {
            fs::write(scene.path("many", number), bytes).unwrap();
        }
    }
    // An earlier release's, and the whole one. The head is at the end, before its length: its magic, and its version.
    let (head, len) = bytes.split_last_chunk::<8>().unwrap();
    let version = head.len() - u64::from_le_bytes(*len) as usize + 8;
    fs::write(&plan, [&bytes[..version], &[2], &bytes[version + 1..]].concat()).unwrap();
    let error = part(&plan, 0).unwrap_err();
    assert!(error.to_string().contains("another release of dlfs made this plan"), "{error}");
    fs::write(&plan, &bytes).unwrap();
    (0..PARTS).for_each(|number| drop(part(&plan, number).unwrap()));
    commit(&plan).unwrap();
    assert!(scene.bytes("many") == scene.whole);
}

/// A shard of TFRecords, each of 12 bytes.
fn records(path: &Path, count: u64) {
    let masked = |bytes: &[u8]| {
        dlfs::checksum::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
    };
    let mut out = Vec::new();
    for number in 0..count {
        let len = 12_u64.to_le_bytes();
        let payload = [number.to_le_bytes(); 2].concat();
        out.extend_from_slice(&[&len[..], &masked(&len)].concat());
        out.extend_from_slice(&[&payload[..12], &masked(&payload[..12])].concat());
    }
    fs::write(path, out).unwrap();
}

/// `DLFS_PLANNED_SAMPLES=10000000` plans as many.
#[test]
fn parts_hold_a_few_rows_at_a_time_and_the_commit_no_row() {
    let count: u64 = std::env::var("DLFS_PLANNED_SAMPLES")
        .map_or(300_000, |count| count.parse().expect("a number"));
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("records.tfrecord");
    records(&source, count);
    let image = |name: &str| -> Vec<Address> {
        let part = |part| Address::from_path(dir.path().join(format!("{name}{part}")));
        (0..PARTS).map(part).collect()
    };
    let connect = ConnectOptions::default();
    let options = options(Onto::Empty);
    let plan = dir.path().join("many.plan");
    let source = [source];
    plan_import(&source, &image("many"), &options, &connect, &plan, &mut ()).unwrap();
    for job in (0..PARTS).map(|part| format!("part|{}|{part}", plan.display())) {
        run(&job);
        let peak = fs::read_to_string(plan.with_extension("peak")).unwrap();
        let peak: u64 = peak.parse().unwrap();
        println!("{count} samples, {job}: {peak} bytes of memory at most");
        assert!(peak < 192 << 20, "{job} took {peak} bytes of memory");
    }
    run(&format!("commit|{}|", plan.display()));
    let peak = fs::read_to_string(plan.with_extension("peak")).unwrap();
    println!("{count} samples, the commit: {peak} bytes of memory at most");
    import(&source, &image("single"), &options, &connect, &mut ()).unwrap();
    for part in 0..PARTS {
        let bytes = |name| fs::read(dir.path().join(format!("{name}{part}"))).unwrap();
        assert!(bytes("many") == bytes("single"), "part {part} differs");
    }
}

#[test]
fn parts_of_an_append_make_the_image_of_a_single_append_byte_for_byte() {
    let scene = Scene::new(150, 6000);
    let mut files = scene.files.clone();
    files.extend(scene.add_later(90));
    let later = ImportOptions { time_ns: Some(2_000_000_000), ..options(Onto::Append) };
    let connect = ConnectOptions::default();
    import(&scene.later(), &scene.image("whole"), &later, &connect, &mut ()).unwrap();
    let whole = scene.bytes("whole");

    let plan = scene.plan("many", &options(Onto::Empty)).unwrap();
    (0..PARTS).for_each(|number| drop(part(&plan, number).unwrap()));
    commit(&plan).unwrap();
    let append = scene.plan_path("append");
    let image = scene.image("many");
    plan_import(&scene.later(), &image, &later, &connect, &append, &mut ()).unwrap();
    assert_eq!(contents(&scene.opened("many")).unwrap(), scene.files, "nothing is visible yet");
    for number in [1, 2] {
        let report = part(&append, number).unwrap();
        assert!(report.chunks > 0 && report.found == 0, "{report:?}");
    }
    assert!(commit(&append).unwrap_err().to_string().contains("part 0 is not complete"));
    part(&append, 0).unwrap();
    assert_eq!(part(&append, 0).unwrap().found, part(&append, 0).unwrap().chunks);
    let report = commit(&append).unwrap();
    assert_eq!((report.samples, report.live_samples, report.generation.0), (90, 240, 2));
    assert!(scene.bytes("many") == whole, "another image than that of a single append");
    assert_eq!(contents(&scene.opened("many")).unwrap(), files);
    assert_eq!(orphans_on(&scene.opened("many")).unwrap(), []);
    assert_eq!(commit(&append).unwrap(), report, "a commit may be repeated");
    let error = part(&append, 1).unwrap_err();
    assert!(error.to_string().contains("committed already"), "{error}");
    // The plan of the generation before is history.
    let error = commit(&plan).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Stale, "{error:?}");
    assert!(scene.bytes("many") == whole);
}

#[test]
fn a_planned_append_is_given_up_when_something_else_changes_the_image() {
    let scene = Scene::new(90, 3000);
    let mut files = scene.files.clone();
    files.extend(scene.add_later(30));
    let image = scene.image("whole");
    let connect = ConnectOptions::default();
    let plan = |name: &str, seed| {
        let path = scene.plan_path(name);
        let options = ImportOptions { seed, ..options(Onto::Append) };
        plan_import(&scene.later(), &image, &options, &connect, &path, &mut ()).map(|_| path)
    };
    let first = plan("first", 1).unwrap();
    part(&first, 0).unwrap();
    let name = files.pop_first().unwrap().0;
    import::delete(&image, &[name], &EditOptions::default(), &connect).unwrap();
    let deleted = scene.bytes("whole");
    for number in 0..PARTS {
        let error = part(&first, number).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Stale, "{error:?}");
        assert!(error.to_string().contains("has changed since"), "{error}");
    }
    assert_eq!(commit(&first).unwrap_err().kind(), ErrorKind::Stale);
    assert!(scene.bytes("whole") == deleted, "something was written");

    // Another plan takes its place, and the one before is refused.
    let second = plan("second", 2).unwrap();
    let third = plan("third", 3).unwrap();
    let error = part(&second, 1).unwrap_err();
    assert!(error.to_string().contains("not prepared for this plan"), "{error}");
    // An append that is refused, here for names that the image has, leaves the plan.
    let append = options(Onto::Append);
    let error = import(&scene.source(), &image, &append, &connect, &mut ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadSource, "{error:?}");
    (0..PARTS).for_each(|number| drop(part(&third, number).unwrap()));
    commit(&third).unwrap();
    assert_eq!(contents(&scene.opened("whole")).unwrap(), files);
}

#[test]
fn a_second_attempt_at_a_part_that_is_running_is_busy() {
    let scene = Scene::new(20, 3000);
    let plan = scene.plan("many", &options(Onto::Empty)).unwrap();
    let file_options = qpair::file::FileOptions { writable: true, ..Default::default() };
    let running = qpair::file::FileNamespace::open(scene.path("many", 1), file_options).unwrap();
    let error = part(&plan, 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error:?}");
    part(&plan, 0).unwrap();
    assert_eq!(commit(&plan).unwrap_err().kind(), ErrorKind::Busy);
    drop(running);
    part(&plan, 1).unwrap();
}

/// Environment variable that tells a child process of this test its job: `plan|append|part|commit`, a plan, and a
/// number or folder; or as `written.rs` says.
const CHILD: &str = "DLFS_TEST_MANY";

/// Not a test of its own: the child's work.
#[test]
fn child_does_what_it_is_told() {
    let Some(job) = std::env::var_os(CHILD) else { return };
    let job = job.into_string().unwrap();
    let words: Vec<&str> = job.split('|').collect();
    let connect = ConnectOptions::default();
    let plan = Path::new(words[1]);
    match words[0] {
        "part" => {
            part(plan, words[2].parse().unwrap()).unwrap();
            fs::write(plan.with_extension("peak"), written::peak_bytes().to_string()).unwrap();
        }
        "commit" => {
            commit(plan).unwrap();
            fs::write(plan.with_extension("peak"), written::peak_bytes().to_string()).unwrap();
        }
        "write" | "end" | "late" | "peak" => written::child(&words),
        kind => {
            let folder = Path::new(words[2]);
            let image = (0..PARTS).map(|part| folder.join(format!("killed{part}")));
            let image: Vec<Address> = image.map(Address::from_path).collect();
            let (source, onto) = match kind {
                "append" => ("later", Onto::Append),
                _ => ("source", Onto::Force),
            };
            let source = paths(&folder.join(source));
            let options = options(onto);
            plan_import(&source, &image, &options, &connect, plan, &mut ()).unwrap();
        }
    }
}

fn spawn(job: &str) -> Child {
    again(child_does_what_it_is_told)
        .env(CHILD, job)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Runs `job` to its end; returns how long that took.
fn run(job: &str) -> Duration {
    let began = Instant::now();
    assert!(spawn(job).wait().unwrap().success(), "{job}");
    began.elapsed()
}

/// Runs `job` and kills it at a random moment within its usual `time`; returns whether it was still running. If not,
/// `time` becomes what it took: the machine is less busy than before.
fn was_killed_at_work(job: &str, time: &mut Duration, random: &mut Random) -> bool {
    let most = time.as_micros() as usize;
    let delay = Duration::from_micros(random.below(most + most / 10) as u64);
    let mut child = spawn(job);
    let took = ended_within(&mut child, delay);
    child.kill().unwrap(); // SIGKILL
    child.wait().unwrap();
    took.inspect(|took| *time = (*time).min(*took)).is_none()
}

#[test]
fn plan_parts_and_commit_killed_at_any_moment_end_with_the_same_bytes_when_run_again() {
    let scene = Scene::new(250, 9000);
    kill_everywhere(&scene, "plan", None, &scene.whole, 41);
}

#[test]
fn an_append_by_parts_killed_at_any_moment_ends_with_the_same_bytes_when_run_again() {
    let scene = Scene::new(120, 5000);
    scene.add_later(150);
    let connect = ConnectOptions::default();
    let before = scene.bytes("whole");
    import(&scene.later(), &scene.image("whole"), &options(Onto::Append), &connect, &mut ())
        .unwrap();
    kill_everywhere(&scene, "append", Some(&before), &scene.bytes("whole"), 43);
}

/// Kills the plan that `kind` makes, its parts and its commit at random moments, each time from `before`, and runs
/// them again: they must end with the bytes `whole`, and no other cells in use.
fn kill_everywhere(
    scene: &Scene,
    kind: &str,
    before: Option<&[Vec<u8>]>,
    whole: &[Vec<u8>],
    seed: u64,
) {
    let plan = scene.plan_path("killed");
    let folder = scene.dir.path().display();
    let plan_job = format!("{kind}|{}|{folder}", plan.display());
    let jobs: Vec<String> = (0..PARTS)
        .map(|part| format!("part|{}|{part}", plan.display()))
        .chain([format!("commit|{}|", plan.display())])
        .collect();
    let restore = || {
        for (part, bytes) in (0..).zip(before.unwrap_or_default()) {
            fs::write(scene.path("killed", part), bytes).unwrap();
        }
    };
    restore();
    // How long each step takes when it is left alone.
    let mut times: Vec<Duration> =
        std::iter::once(&plan_job).chain(&jobs).map(|job| run(job)).collect();
    assert!(scene.bytes("killed") == whole);
    let mut random = Random::new(seed);
    let kills: usize =
        std::env::var("DLFS_TEST_KILLS").map_or(20, |kills| kills.parse().expect("a number"));
    let mut hit = 0;
    for round in 0..kills.div_ceil(jobs.len() + 1) {
        let mut killed =
            |step: usize, job: &str| was_killed_at_work(job, &mut times[step], &mut random);
        restore();
        let _ = fs::remove_file(&plan); // of the round before
        hit += usize::from(killed(0, &plan_job));
        // A plan that was killed is made again: its file may be there.
        let _ = fs::remove_file(&plan);
        run(&plan_job);
        for (step, job) in jobs.iter().enumerate() {
            hit += usize::from(killed(step + 1, job));
            run(job);
        }
        assert!(scene.bytes("killed") == whole, "round {round}: other bytes");
        assert_eq!(orphans_on(&scene.opened("killed")).unwrap(), [], "round {round}");
    }
    println!("{hit} processes were at work when they were killed");
    assert!(hit > kills / 10, "only {hit} of {kills} were at work when they were killed");
}
