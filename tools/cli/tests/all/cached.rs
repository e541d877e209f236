//! `dlfs cached`: tiers that outlive jobs, and jobs that have the tiers already.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::DirBuilderExt;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{TestDir, dlfs, finish, run, signal, wait};

/// A running `dlfs cached`.
struct Cached {
    child: Child,
    log: BufReader<ChildStderr>,
}

impl Cached {
    fn start(image: &str, options: &[&str]) -> Cached {
        Cached::start_by(dlfs(), image, options)
    }

    fn start_by(mut command: Command, image: &str, options: &[&str]) -> Cached {
        command.args(["cached", image, "--json"]).args(options);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.expect("dlfs starts");
        let log = BufReader::new(child.stderr.take().expect("piped"));
        Cached { child, log }
    }

    /// The line that it prints once it owns the tiers.
    fn owning(&mut self) -> Value {
        let mut line = String::new();
        let stdout = self.child.stdout.as_mut().expect("piped");
        BufReader::new(stdout).read_line(&mut line).expect("a pipe can be read");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    /// The next line of its log.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.log.read_line(&mut line).expect("a pipe can be read");
        line
    }

    fn pid(&self) -> Value {
        Value::from(self.child.id())
    }

    /// Ends it as an operator does.
    fn end(mut self) {
        signal(&self.child, "TERM");
        let status = wait(&mut self.child);
        assert_eq!(status.code(), Some(0), "{}", self.line());
    }
}

impl Drop for Cached {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read(image: &str, tiers: &[&str]) -> Value {
    let fixed = ["read", image, "--epochs", "2", "--seed", "5", "--json"];
    run(&[&fixed, tiers].concat()).code(0).json()
}

fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < until, "waited for {what}");
        sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_job_with_a_runtime_folder_finds_the_tiers_of_a_process_without_one() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let tier = ["--tier", "ram:64M"];
    let by = |runtime: Option<&str>| {
        let mut command = dlfs();
        command.env("TMPDIR", dir.path("")).env_remove("XDG_RUNTIME_DIR");
        runtime.inspect(|path| _ = command.env("XDG_RUNTIME_DIR", path));
        command
    };
    let mut cached = Cached::start_by(by(None), &image, &tier);
    cached.owning();
    let runtime = dir.arg("runtime");
    fs::DirBuilder::new().mode(0o700).create(&runtime).unwrap();
    let mut job = by(Some(&runtime));
    job.args(["read", &image, "--json"]).args(tier);
    assert_eq!(finish(job).code(0).json()["tiers"]["owner"], cached.pid());
    cached.end();
}

#[test]
fn copies_of_one_job_in_memory_serve_the_next() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let tier = ["--tier", "ram:64M"];
    let mut cached = Cached::start(&image, &tier);
    let said = cached.owning();
    assert!(said["pid"] == cached.pid() && said["generation"] == 1, "{said}");
    assert_eq!(said["tiers"][0]["used_bytes"], 0, "{said}");
    let plain = read(&image, &[]);
    wait_for("jobs that read nothing from the image", || {
        let job = read(&image, &tier);
        assert_eq!(job["order_crc32c"], plain["order_crc32c"]);
        assert_eq!(job["tiers"]["owner"], cached.pid());
        job["tiers"]["origin"]["bytes"] == 0
    });
    signal(&cached.child, "USR1");
    let line = cached.line();
    assert!(line.contains("statistics attached=0 tier=0 used_bytes="), "{line}");
    assert!(!line.contains("used_bytes=0 ") && line.contains("damaged=0 off=false"), "{line}");
    cached.end();
    assert_eq!(read(&image, &tier)["tiers"]["owner"], Value::Null, "jobs go on without it");
}

#[test]
fn cached_keeps_what_the_plans_of_jobs_name() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let tier = ["--tier", "ram:64M", "--policy", "clairvoyant"];
    let mut cached = Cached::start(&image, &tier);
    cached.owning();
    wait_for("jobs that read nothing from the image", || {
        let job = read(&image, &tier);
        assert_eq!(job["tiers"]["owner"], cached.pid());
        job["tiers"]["origin"]["bytes"] == 0
    });
    cached.end();
}

#[test]
fn copies_in_a_file_survive_a_restart() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let folder = dir.arg("cache");
    fs::create_dir(&folder).unwrap();
    let file = format!("file:{folder}:64M");
    let tiers = ["--tier", "ram:100K", "--tier", &file, "--stats", "1"];
    let mut cached = Cached::start(&image, &tiers);
    cached.owning();
    let job = || read(&image, &tiers[..4]);
    wait_for("jobs that read nothing from the image", || job()["tiers"]["origin"]["bytes"] == 0);
    let line = cached.line();
    assert!(line.contains("statistics attached=") && line.contains(" tier=1 "), "{line}");
    cached.end();
    let mut again = Cached::start(&image, &tiers);
    let used = again.owning()["tiers"].clone();
    assert_eq!(used[0]["used_bytes"], 0, "memory is gone: {used}");
    assert!(used[1]["used_bytes"].as_u64() > Some(1 << 20), "the file is not: {used}");
    again.end();
}

#[test]
fn if_a_job_owns_the_tiers_it_is_named_or_waited_for() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let tier = ["--tier", "ram:64M"];
    let mut job = dlfs();
    job.args(["read", &image, "--epochs", "1000000", "--json"]).args(tier);
    let mut job = job.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("dlfs starts");
    wait_for("the job to have the tiers", || read(&image, &tier)["tiers"]["owner"] == job.id());
    let who = format!("process {} (", job.id());
    let refused = run(&[&["cached", &image], &tier[..]].concat()).code(1);
    refused.complains_of(&[&who, "read", "--epochs 1000000", "--wait"]);
    let mut cached = Cached::start(&image, &[&tier[..], &["--wait"]].concat());
    let line = cached.line();
    assert!(line.contains(&who) && line.contains("waiting for its end"), "{line}");
    job.kill().unwrap();
    wait(&mut job);
    assert_eq!(cached.owning()["pid"], cached.pid());
    assert_eq!(read(&image, &tier)["tiers"]["owner"], cached.pid());
    cached.end();
}

#[test]
fn cached_needs_tiers_and_keeps_what_is_read_first() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    run(&["cached", &image]).code(2).complains_of(&["--tier ram:20G"]);
    let missing = ["cached", &dir.arg("missing"), "--tier", "ram:1M"];
    run(&missing).code(1).complains_of(&["missing"]);
}
