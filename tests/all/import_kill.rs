//! An import that is killed at any moment, and a disk that fills up during it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::import_support::{Random, contents, options, paths, tree};
use crate::support::alone::{again, ended_within};
use crate::support::disk::SmallDisk;
use dlfs::address::Address;
use dlfs::import::{ImportOptions, Onto, import};
use dlfs::qpair::{self, ConnectOptions, Device};
use dlfs::{ErrorKind, Result};

/// Environment variable that tells a child process of this test what to import.
const CHILD: &str = "DLFS_TEST_IMPORT";

fn run(source: &Path, image: &Path, onto: Onto, time_ns: u64) -> Result<()> {
    let options = ImportOptions { time_ns: Some(time_ns), reader_threads: 2, ..options(onto) };
    let image = [Address::from_path(image)];
    import(&paths(source), &image, &options, &ConnectOptions::default(), &mut ()).map(drop)
}

/// Not a test of its own: the child's work.
#[test]
fn child_imports_what_it_is_told() {
    let Some(job) = std::env::var_os(CHILD) else { return };
    let job = job.into_string().unwrap();
    let words: Vec<&str> = job.split('|').collect();
    let onto = if words[2] == "append" { Onto::Append } else { Onto::Empty };
    run(Path::new(words[0]), Path::new(words[1]), onto, words[3].parse().unwrap()).unwrap();
}

fn spawn(source: &Path, image: &Path, onto: &str, time_ns: u64) -> Child {
    let job = format!("{}|{}|{onto}|{time_ns}", source.display(), image.display());
    again(child_imports_what_it_is_told)
        .env(CHILD, job)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn devices(image: &Path) -> Vec<Arc<dyn Device>> {
    vec![qpair::open(&Address::from_path(image), &ConnectOptions::default()).unwrap()]
}

struct Killing {
    dir: tempfile::TempDir,
    first: PathBuf,
    second: PathBuf,
    first_files: BTreeMap<Vec<u8>, Vec<u8>>,
    all_files: BTreeMap<Vec<u8>, Vec<u8>>,
    after_first: Vec<u8>,
    after_second: Vec<u8>,
}

impl Killing {
    fn new() -> Killing {
        let dir = tempfile::tempdir().unwrap();
        let first = dir.path().join("first");
        let second = dir.path().join("second");
        let first_files = tree(&first, 250, 8000, 1);
        let mut all_files = first_files.clone();
        all_files.extend(tree(&second, 250, 8000, 2));
        let image = dir.path().join("whole");
        run(&first, &image, Onto::Empty, 1).unwrap();
        let after_first = fs::read(&image).unwrap();
        run(&second, &image, Onto::Append, 2).unwrap();
        let after_second = fs::read(&image).unwrap();
        Killing { dir, first, second, first_files, all_files, after_first, after_second }
    }

    fn begin(&self, image: &Path, append: bool) -> Child {
        if append {
            spawn(&self.second, image, "append", 2)
        } else {
            spawn(&self.first, image, "empty", 1)
        }
    }

    /// Kills an import after `delay`; returns how long it took if it had ended.
    fn kill(&self, image: &Path, append: bool, delay: Duration) -> Option<Duration> {
        let mut child = self.begin(image, append);
        let took = ended_within(&mut child, delay);
        child.kill().unwrap(); // SIGKILL
        child.wait().unwrap();
        took
    }

    fn check_append(&self, image: &Path, round: u32) {
        let found = contents(&devices(image)).unwrap();
        assert!(found == self.first_files || found == self.all_files, "round {round}: torn");
        match run(&self.second, image, Onto::Resume, 2) {
            // It was killed before it wrote its journal.
            Err(error) if matches!(error.kind(), ErrorKind::BadSource | ErrorKind::NotFound) => {
                run(&self.second, image, Onto::Append, 2).unwrap();
            }
            result => result.unwrap(),
        }
        assert!(fs::read(image).unwrap() == self.after_second, "round {round}: other bytes");
    }

    fn check_first(&self, image: &Path, round: u32) {
        if image.exists() {
            match contents(&devices_or_none(image)) {
                Ok(found) => assert!(found == self.first_files, "round {round}: torn"),
                Err(error) => assert!(
                    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidArgument),
                    "round {round}: {error:?}"
                ),
            }
        }
        run(&self.first, image, Onto::Resume, 1).unwrap();
        assert!(fs::read(image).unwrap() == self.after_first, "round {round}: other bytes");
    }
}

/// A file of an import that was killed early may be too short to open.
fn devices_or_none(image: &Path) -> Vec<Arc<dyn Device>> {
    qpair::open(&Address::from_path(image), &ConnectOptions::default()).into_iter().collect()
}

#[test]
fn an_import_killed_at_any_moment_keeps_the_generation_before_and_resumes_to_the_same_bytes() {
    let killing = Killing::new();
    let image = killing.dir.path().join("killed");
    let mut times = [Duration::ZERO; 2];
    for append in [false, true] {
        if append {
            fs::write(&image, &killing.after_first).unwrap();
        }
        let began = Instant::now();
        assert!(killing.begin(&image, append).wait().unwrap().success());
        times[usize::from(append)] = began.elapsed();
    }
    let rounds: u32 =
        std::env::var("DLFS_TEST_KILLS").map_or(40, |kills| kills.parse().expect("a number"));
    let mut random = Random::new(200);
    let mut hit = 0;
    for round in 0..rounds {
        let append = round % 2 == 1;
        let most = times[usize::from(append)].as_micros() as usize;
        let delay = Duration::from_micros(random.below(most + most / 10) as u64);
        let _ = fs::remove_file(&image); // it may not exist yet
        if append {
            fs::write(&image, &killing.after_first).unwrap();
        }
        let time = &mut times[usize::from(append)];
        match killing.kill(&image, append, delay) {
            None => hit += 1,
            Some(took) => *time = took.min(*time), // the machine is less busy than before
        }
        if append {
            killing.check_append(&image, round)
        } else {
            killing.check_first(&image, round)
        }
    }
    println!("{hit} of {rounds} imports were at work when they were killed");
    assert!(hit > rounds / 4, "only {hit} of {rounds} imports were at work when they were killed");
}

#[test]
fn a_disk_that_fills_up_under_an_import_loses_nothing_and_room_lets_it_go_on() {
    let killing = Killing::new();
    let Some(disk) = SmallDisk::new(killing.after_second.len() as u64 + (1 << 20)) else { return };
    let image = disk.path().join("image");
    run(&killing.first, &image, Onto::Empty, 1).unwrap();
    let ballast = disk.path().join("ballast");
    let mut fill = fs::File::create(&ballast).unwrap();
    // All but 100 KiB of the free space, so that the disk is full in the middle of the append.
    let left = rustix::fs::fstatvfs(&fill).unwrap();
    let len = (left.f_bavail * left.f_frsize).saturating_sub(100 << 10);
    std::io::Write::write_all(&mut fill, &vec![1; len as usize]).unwrap();
    drop(fill);
    let error = run(&killing.second, &image, Onto::Append, 2).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error:?}");
    assert_eq!(contents(&devices(&image)).unwrap(), killing.first_files);
    fs::remove_file(ballast).unwrap();
    run(&killing.second, &image, Onto::Resume, 2).unwrap();
    assert_eq!(contents(&devices(&image)).unwrap(), killing.all_files);
    assert!(fs::read(&image).unwrap() == killing.after_second);
}

#[test]
fn a_second_import_of_the_same_image_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    tree(&dir.path().join("source"), 10, 100, 1);
    let image = dir.path().join("image");
    let options = qpair::file::FileOptions { create_len: Some(0), ..Default::default() };
    let holder = qpair::file::FileNamespace::open(&image, options).unwrap();
    let error = run(&dir.path().join("source"), &image, Onto::Empty, 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error:?}");
    drop(holder);
    run(&dir.path().join("source"), &image, Onto::Empty, 1).unwrap();
}
