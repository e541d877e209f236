//! One import by many: the parts of a plan, which fail, are killed and repeated, and their commit.

mod import_support;
mod support;
#[path = "import_many/written.rs"]
mod written;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlfs::import::many::{commit_import, import_part, plan_import};
use dlfs::import::{ColumnsFrom, ImportOptions, Onto, import};
use dlfs::nvme::Address;
use dlfs::qpair::{self, ConnectOptions, Device};
use dlfs::{ErrorKind, Result};
use import_support::{Random, contents, options, paths, tree};

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
        let (plan, connect) = (self.plan_path(name), ConnectOptions::default());
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
    let error = scene.plan("appended", &options(Onto::Append)).unwrap_err();
    assert!(error.to_string().contains("a plan is for a new image"), "{error}");

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
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
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

/// What a child process of this test does: `plan|part|commit`, a plan, and a number or folder; or as `written.rs`
/// says.
const CHILD: &str = "DLFS_TEST_MANY";

/// Not a test of its own: the child's work.
#[test]
fn child_does_what_it_is_told() {
    let Some(job) = std::env::var_os(CHILD) else { return };
    let job = job.into_string().unwrap();
    let words: Vec<&str> = job.split('|').collect();
    let (connect, plan) = (ConnectOptions::default(), Path::new(words[1]));
    match words[0] {
        "part" => drop(part(plan, words[2].parse().unwrap()).unwrap()),
        "commit" => drop(commit(plan).unwrap()),
        "write" | "end" | "late" | "peak" => written::child(&words),
        _ => {
            let folder = Path::new(words[2]);
            let image = (0..PARTS).map(|part| folder.join(format!("killed{part}")));
            let image: Vec<Address> = image.map(Address::from_path).collect();
            let source = paths(&folder.join("source"));
            plan_import(&source, &image, &options(Onto::Force), &connect, plan, &mut ()).unwrap();
        }
    }
}

fn spawn(job: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_does_what_it_is_told"])
        .env(CHILD, job)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Runs `job` until it succeeds; it is killed after `delay` at first, if there is one.
fn run_killed(job: &str, delay: Option<Duration>) -> bool {
    let Some(delay) = delay else {
        assert!(spawn(job).wait().unwrap().success(), "{job}");
        return false;
    };
    let mut child = spawn(job);
    std::thread::sleep(delay);
    let running = child.try_wait().unwrap().is_none();
    child.kill().unwrap(); // SIGKILL
    child.wait().unwrap();
    running
}

#[test]
fn plan_parts_and_commit_killed_at_any_moment_end_with_the_same_bytes_when_run_again() {
    let scene = Scene::new(250, 9000);
    let plan = scene.plan_path("killed");
    let folder = scene.dir.path().display();
    let plan_job = format!("plan|{}|{folder}", plan.display());
    let jobs: Vec<String> = (0..PARTS)
        .map(|part| format!("part|{}|{part}", plan.display()))
        .chain([format!("commit|{}|", plan.display())])
        .collect();
    // How long each step takes when it is left alone.
    let timed = |job: &str| {
        let began = Instant::now();
        run_killed(job, None);
        began.elapsed().as_micros() as usize
    };
    let times: Vec<usize> = std::iter::once(&plan_job).chain(&jobs).map(|job| timed(job)).collect();
    assert!(scene.bytes("killed") == scene.whole);
    let mut random = Random::new(41);
    let kills: usize =
        std::env::var("DLFS_TEST_KILLS").map_or(20, |kills| kills.parse().expect("a number"));
    let mut hit = 0;
    for round in 0..kills.div_ceil(jobs.len() + 1) {
        let mut delay = |step: usize| {
            Some(Duration::from_micros(random.below(times[step] + times[step] / 10) as u64))
        };
        let _ = fs::remove_file(&plan); // of the round before
        hit += usize::from(run_killed(&plan_job, delay(0)));
        // A plan that was killed is made again: its file may be there.
        let _ = fs::remove_file(&plan);
        run_killed(&plan_job, None);
        for (step, job) in jobs.iter().enumerate() {
            hit += usize::from(run_killed(job, delay(step + 1)));
            run_killed(job, None);
        }
        assert!(scene.bytes("killed") == scene.whole, "round {round}: other bytes");
    }
    println!("{hit} processes were at work when they were killed");
    assert!(hit > kills / 4, "only {hit} of {kills} were at work when they were killed");
}
