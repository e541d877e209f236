//! `--metrics`: what the commands serve while they run.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::{TestDir, dlfs, run, signal, wait};

/// A running command that serves its metrics.
struct Serving {
    child: Child,
    metrics: String,
    stdout: BufReader<std::process::ChildStdout>,
    _stderr: BufReader<std::process::ChildStderr>,
}

impl Serving {
    fn start(arguments: &[&str]) -> Serving {
        let mut command = dlfs();
        command.args(arguments).args(["--metrics", "127.0.0.1:0"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        stderr.read_line(&mut line).unwrap();
        let at = line.trim_end().split("metrics at http://").nth(1).expect(&line);
        let metrics = at.strip_suffix("/metrics").expect(at).to_owned();
        Serving { child, metrics, stdout, _stderr: stderr }
    }

    /// The first line that it prints.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line
    }

    /// The values of its page, by series.
    fn scrape(&self) -> BTreeMap<String, f64> {
        let mut stream = TcpStream::connect(&self.metrics).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: dlfs\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        let lines = body.lines().filter(|line| !line.starts_with('#'));
        let value = |line: &str| {
            let (series, value) = line.rsplit_once(' ').unwrap();
            (series.to_owned(), value.parse().unwrap())
        };
        lines.map(value).collect()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            signal(&self.child, "TERM");
            wait(&mut self.child);
        }
    }
}

#[test]
fn a_target_counts_what_a_job_says_that_it_has_read() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let mut target = Serving::start(&["serve", &image, "--listen", "127.0.0.1:0", "--json"]);
    let said: serde_json::Value = serde_json::from_str(&target.line()).unwrap();
    let address = said["address"].as_str().unwrap();
    let value = |series: &str| {
        let series = series.replace("{}", "{subsystem=\"nqn.2026-11.io.dlfs:train\"}");
        target.scrape()[&series]
    };
    // Opening reads superblocks and the directory: as much as a command that reads no samples.
    let opening = |what: &str| {
        let before = value(what);
        run(&["stat", address]).code(0);
        value(what) - before
    };
    let bytes = "dlfs_target_read_bytes_total{}";
    let reads = "dlfs_target_reads_total{}";
    assert_eq!((value(bytes), value(reads)), (0.0, 0.0));
    assert!(opening(bytes) > 0.0);
    let before = (value(bytes), value(reads));
    let job = run(&["read", address, "--epochs", "2", "--json"]).code(0).json();
    let read = (value(bytes) - before.0, value(reads) - before.1);
    let job_bytes = job["read_bytes"].as_f64().unwrap();
    let job_reads = job["commands"].as_f64().unwrap();
    assert!(read.0 >= job_bytes && read.1 >= job_reads, "{read:?}, {job}");
    let files: usize = dir.files("source").iter().map(|(_, bytes)| bytes.len()).sum();
    assert!(job["bytes"] == 2 * files, "{job}");
    assert!(value("dlfs_target_connections_accepted_total{}") >= 4.0);
}

#[test]
fn a_job_can_be_watched_while_it_reads() {
    let dir = TestDir::with_image();
    // A pipe that nobody empties holds the job in the middle of its epochs.
    let ids = dir.arg("ids");
    assert!(Command::new("mkfifo").arg(&ids).status().unwrap().success());
    let job = Serving::start(&[
        "read",
        &dir.arg("train.dlfs"),
        "--epochs",
        "1000",
        "--batch-size",
        "10",
        "--ids",
        &ids,
        "--quiet",
    ]);
    let mut lines = BufReader::new(File::open(&ids).unwrap());
    let mut first = String::new();
    lines.read_line(&mut first).unwrap();
    let values = job.scrape();
    assert!(values["dlfs_loader_batches_total"] >= 1.0, "{values:?}");
    assert!(values["dlfs_loader_samples_total"] >= 10.0, "{values:?}");
    assert!(values["dlfs_read_bytes_total{by=\"loader\"}"] > 0.0, "{values:?}");
    assert!(!values.keys().any(|series| series.starts_with("dlfs_target")), "{values:?}");
}

#[test]
fn tiers_that_outlive_jobs_say_how_full_they_are() {
    let dir = TestDir::with_image();
    let mut cached =
        Serving::start(&["cached", &dir.arg("train.dlfs"), "--tier", "ram:64M", "--json"]);
    let said: serde_json::Value = serde_json::from_str(&cached.line()).unwrap();
    let values = cached.scrape();
    let tier = said["tiers"][0]["name"].as_str().unwrap();
    let capacity = said["tiers"][0]["capacity_bytes"].as_f64().unwrap();
    assert_eq!(values[&format!("dlfs_tier_capacity_bytes{{tier=\"{tier}\"}}")], capacity);
    assert_eq!(values["dlfs_tiers_attached"], 0.0);
}

#[test]
fn a_mounted_image_says_what_was_read_of_it() {
    let opened = File::options().read(true).write(true).open("/dev/fuse");
    if opened.is_err() || !rustix::process::geteuid().is_root() {
        println!("SKIPPED: it takes /dev/fuse, and root");
        return;
    }
    let dir = TestDir::with_image();
    let place = dir.arg("place");
    fs::create_dir(&place).unwrap();
    let mut mounted = Serving::start(&["mount", "--foreground", &dir.arg("train.dlfs"), &place]);
    assert!(mounted.line().starts_with("mounted "));
    let file = dir.path("place").join("cat/077.bin");
    let len = fs::read(file).unwrap().len();
    let values = mounted.scrape();
    assert!(values["dlfs_read_bytes_total{by=\"id\"}"] >= len as f64, "{values:?}");
}

#[test]
fn an_address_that_cannot_be_served_ends_the_command() {
    let dir = TestDir::with_image();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let arguments = ["read", &dir.arg("train.dlfs"), "--metrics", &address].map(OsString::from);
    run(&arguments).code(1).complains_of(&[&address, "metrics"]);
    run(&["read", &dir.arg("train.dlfs"), "--metrics", "9410"])
        .code(2)
        .complains_of(&["--metrics"]);
}
