//! Ranks that read from each other's tiers: one process each, as a launcher starts them.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::random::Random;
use crate::common::{Served, TestDir, dlfs, free_port, run, signal};

const RANKS: usize = 3;

/// `dlfs read` of one rank on a node of its own, with a tier in a file and a folder to meet in.
fn rank(dir: &TestDir, image: &str, rank: usize, round: &str) -> Command {
    let tier = dir.arg(&format!("tier-{rank}"));
    fs::create_dir_all(&tier).unwrap();
    rank_with(image, rank, round, &format!("file:{tier}:64M"), &dir.arg("rendezvous"))
}

/// `dlfs read` of one rank on a node of its own, as torchrun would start it.
fn rank_with(image: &str, rank: usize, round: &str, tier: &str, peers: &str) -> Command {
    let mut command = dlfs();
    command
        .args(["read", image, "--tier", tier, "--batch-size", "16"])
        .args(["--peers", peers, "--node", &format!("node{rank}-{round}"), "--json"])
        .env("RANK", rank.to_string())
        .env("WORLD_SIZE", RANKS.to_string())
        .env("MASTER_ADDR", "127.0.0.1")
        .env("MASTER_PORT", "29500")
        .env("TORCHELASTIC_RUN_ID", round)
        .env("TORCHELASTIC_RESTART_COUNT", "0");
    command
}

/// Starts all ranks, and waits until they have read each sample once an epoch, much of it from each other.
fn read_together(commands: impl Iterator<Item = Command>) -> Vec<Value> {
    let ranks: Vec<_> = commands
        .map(|mut command| {
            command.args(["--epochs", "4"]).stdout(Stdio::piped()).stderr(Stdio::piped());
            command.spawn().expect("dlfs starts")
        })
        .collect();
    let mut samples = 0;
    let mut reports = Vec::new();
    for (nth, rank) in ranks.into_iter().enumerate() {
        let output = rank.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "rank {nth}: {said}");
        assert!(!said.contains("lost "), "rank {nth} warns of a rank that has ended: {said}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        samples += report["samples"].as_u64().unwrap();
        let nodes = report["peers"]["nodes"].as_array().unwrap();
        let bytes = |node: &Value| node["bytes"].as_u64().unwrap();
        assert_eq!(nodes.len(), RANKS);
        let from_peers: u64 = nodes.iter().map(bytes).sum();
        assert!(from_peers > 0, "rank {nth} read nothing from peers: {report}");
        assert_eq!(report["peers"]["mismatched_bytes"], 0);
        assert!(report["tiers"]["owner"].is_null(), "nodes share no tier: {report}");
        let places = report["places"]["places"].as_array().unwrap();
        let kinds: Vec<&str> =
            places.iter().map(|place| place["place"].as_str().unwrap()).collect();
        assert_eq!(kinds[1..], ["peer", "peer", "origin"], "{report}");
        let of_peers = places.iter().filter(|place| place["place"] == "peer").map(bytes);
        assert_eq!(of_peers.sum::<u64>(), from_peers);
        reports.push(report);
    }
    assert_eq!(samples, 4 * 300, "each sample once an epoch");
    reports
}

#[test]
fn ranks_of_a_job_read_from_each_others_tiers() {
    let dir = TestDir::with_source();
    let image = dir.arg("train.dlfs");
    // Small chunks, so that each node holds some.
    run(&["import", &dir.arg("source"), &image, "--chunk-size", "64K"]).code(0);
    fs::create_dir(dir.path("rendezvous")).unwrap();
    let origin = Served::start(&image, &[]);
    read_together((0..RANKS).map(|nth| rank(&dir, &origin.address, nth, "job")));
}

/// In grouped order, from an image on two namespaces, with tiers in memory that the nodes' names keep apart.
#[test]
fn ranks_meet_at_rank_0_or_by_a_list_of_addresses() {
    let dir = TestDir::with_source();
    let images = [dir.arg("0.dlfs"), dir.arg("1.dlfs")].join(",");
    run(&["import", &dir.arg("source"), &images, "--chunk-size", "64K"]).code(0);
    let key = dir.arg("key");
    fs::write(&key, run(&["key", "gen"]).code(0).stdout).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let meet_at = free_port().to_string();
    read_together((0..RANKS).map(|nth| {
        let mut command = rank_with(&images, nth, "auto", "ram:64M", "auto");
        command.args(["--rendezvous-port", &meet_at, "--order", "grouped", "--job-key", &key]);
        command
    }));
    let list: Vec<String> = (0..RANKS).map(|_| format!("127.0.0.1:{}", free_port())).collect();
    fs::write(dir.path("ranks"), list.join("\n")).unwrap();
    let meet_at = free_port().to_string();
    for peers in [list.join(","), dir.arg("ranks")] {
        read_together((0..RANKS).map(|nth| {
            let mut command = rank_with(&images, nth, "list", "ram:64M", &peers);
            command.args(["--rendezvous-port", &meet_at, "--order", "grouped"]);
            command.args(["--job-key", "rendezvous"]);
            // No launcher: the command line says which rank it is.
            command.env_remove("RANK").env_remove("WORLD_SIZE").env_remove("MASTER_ADDR");
            command.args(["--rank", &nth.to_string(), "--world-size", &RANKS.to_string()]);
            command
        }));
    }
}

/// With copiers that are slow, much is absent at first.
#[test]
fn nodes_that_serve_only_copies_say_what_is_not_there() {
    let dir = TestDir::with_source();
    let image = dir.arg("train.dlfs");
    run(&["import", &dir.arg("source"), &image, "--chunk-size", "64K"]).code(0);
    fs::create_dir(dir.path("rendezvous")).unwrap();
    let ranks: Vec<_> = (0..RANKS)
        .map(|nth| {
            let mut command = rank(&dir, &image, nth, "copies");
            command.args(["--peer-mode", "copies", "--copy-bandwidth", "64K"]);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("dlfs starts")
        })
        .collect();
    let mut samples = 0;
    let mut not_there = 0;
    for rank in ranks {
        let output = rank.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        samples += report["samples"].as_u64().unwrap();
        not_there += report["peers"]["not_there_bytes"].as_u64().unwrap();
    }
    assert_eq!(samples, 300, "each sample once");
    assert!(not_there > 0, "everything was there");
}

#[test]
fn two_jobs_do_not_touch_each_other() {
    let dir = TestDir::with_source();
    let image = dir.arg("train.dlfs");
    run(&["import", &dir.arg("source"), &image, "--chunk-size", "64K"]).code(0);
    fs::create_dir(dir.path("rendezvous")).unwrap();
    let meet = dir.arg("rendezvous");
    let job = |round: &'static str| {
        let image = image.clone();
        let meet = meet.clone();
        (0..RANKS).map(move |nth| rank_with(&image, nth, round, "ram:64M", &meet))
    };
    let mut other: Vec<_> = job("other")
        .map(|mut command| {
            command.args(["--epochs", "1000000"]).stdout(Stdio::null()).stderr(Stdio::null());
            command.spawn().unwrap()
        })
        .collect();
    wait_for_records(&dir.path("rendezvous"));
    let ended = thread::spawn(move || {
        thread::sleep(Duration::from_millis(300));
        other[1].kill().unwrap();
        other
    });
    for report in read_together(job("mine")) {
        assert_eq!(report["peers"]["rerouted_bytes"], 0, "{report}");
        assert_eq!(report["peers"]["nodes"].as_array().unwrap().len(), RANKS);
    }
    let mut other = ended.join().unwrap();
    for nth in [0, 2] {
        assert!(other[nth].try_wait().unwrap().is_none(), "a dead node ended rank {nth}");
    }
    for rank in &mut other {
        rank.kill().unwrap();
        rank.wait().unwrap();
    }
}

/// Waits until the records of all ranks are in the folder `meet`.
fn wait_for_records(meet: &Path) {
    let is_record =
        |file: &fs::DirEntry| file.path().extension().is_some_and(|extension| extension == "json");
    let records = || {
        let rounds = fs::read_dir(meet).unwrap().flatten();
        let files = rounds.flat_map(|round| fs::read_dir(round.path()).unwrap().flatten());
        files.filter(is_record).count()
    };
    let until = Instant::now() + Duration::from_secs(60);
    while records() < RANKS {
        assert!(Instant::now() < until, "not all ranks come");
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_rank_that_is_killed_or_stopped_at_any_moment_is_no_error_of_the_others() {
    let dir = TestDir::with_source();
    let image = dir.arg("train.dlfs");
    run(&["import", &dir.arg("source"), &image, "--chunk-size", "64K"]).code(0);
    let origin = Served::start(&image, &[]);
    let ends = std::env::var("DLFS_TEST_KILLS").map_or(5, |ends| ends.parse().expect("a number"));
    let seed = 51;
    println!("seed {seed}, {ends} ends");
    let mut random = Random::new(seed);
    let ends: Vec<End> = (0..ends)
        .map(|nth| End {
            nth,
            victim: random.below(RANKS as u64) as usize,
            after_ms: random.below(1500),
        })
        .collect();
    // Five at a time, since each waits a while for the rank that does not end.
    for some in ends.chunks(5) {
        thread::scope(|scope| {
            for end in some {
                let origin = &origin;
                scope.spawn(move || end.run(origin));
            }
        });
    }
}

/// The end of one rank: every other one is killed, the others are stopped.
struct End {
    nth: u64,
    victim: usize,
    /// So many milliseconds after all ranks have met.
    after_ms: u64,
}

impl End {
    const EPOCHS: u64 = 200;

    fn run(&self, origin: &Served) {
        let dir = TestDir::new();
        fs::create_dir(dir.path("rendezvous")).unwrap();
        let mut ranks: Vec<Child> = (0..RANKS)
            .map(|nth| {
                let mut command = rank(&dir, &origin.address, nth, &format!("end-{}", self.nth));
                command.args(["--epochs", &Self::EPOCHS.to_string(), "--peer-timeout", "6"]);
                command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("dlfs starts")
            })
            .collect();
        wait_for_records(&dir.path("rendezvous"));
        thread::sleep(Duration::from_millis(self.after_ms));
        let mut victim = ranks.remove(self.victim);
        let stops = self.nth % 2 == 1;
        if stops {
            signal(&victim, "STOP");
        } else {
            victim.kill().unwrap();
        }
        let End { nth, victim: ended, after_ms } = self;
        println!("end {nth}: rank {ended} after {after_ms} ms, stopped: {stops}");
        for rank in ranks {
            let output = rank.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "end {nth} of rank {ended}: {said}");
            let report: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(report["samples"], Self::EPOCHS * 100, "{report}");
        }
        victim.kill().unwrap();
        victim.wait().unwrap();
    }
}

#[test]
fn what_keeps_ranks_apart_is_named() {
    let dir = TestDir::with_image();
    fs::create_dir(dir.path("rendezvous")).unwrap();
    let image = dir.arg("train.dlfs");
    let fails = |mut command: Command, expected: &str| {
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(expected), "not {expected:?}: {said}");
    };
    let mut alone = rank(&dir, &image, 1, "alone");
    alone.args(["--peer-timeout", "1"]);
    fails(alone, "2 did not come to the folder");
    let mut unnamed = rank(&dir, &image, 1, "");
    unnamed.env_remove("TORCHELASTIC_RESTART_COUNT");
    fails(unnamed, "add --round NAME");
    let mut nowhere = rank(&dir, &image, 1, "nowhere");
    nowhere.env_remove("MASTER_ADDR");
    fails(nowhere, "add --peer-address IP");
    let mut wrong = rank(&dir, &image, 1, "wrong");
    wrong.env("RANK", "3");
    fails(wrong, "RANK says 3 and WORLD_SIZE says 3");
    let of = |nth: usize, peers: &str| rank_with(&image, nth, "named", "ram:64M", peers);
    let mut no_launcher = of(1, "auto");
    no_launcher.env_remove("RANK");
    fails(no_launcher, "no launcher has said which rank this is");
    let mut no_master = of(1, "auto");
    no_master.env_remove("MASTER_PORT");
    fails(no_master, "MASTER_ADDR and MASTER_PORT are missing");
    let port = free_port();
    let taken = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let taken_port = port.to_string();
    let mut port = of(0, "auto");
    port.args(["--rendezvous-port", &taken_port]);
    fails(port, &taken_port);
    drop(taken);
    let mut without_rank_0 = of(2, "auto");
    without_rank_0.args(["--rendezvous-port", &taken_port, "--peer-timeout", "1"]);
    fails(without_rank_0, "rank 0 is missing");
    // 203.0.113.0/24 is for documentation: no machine has these addresses.
    fails(
        of(1, "203.0.113.1:4421,203.0.113.2:4421,203.0.113.3:4421"),
        "203.0.113.2:4421 for rank 1",
    );
    fails(of(1, "203.0.113.1:4421,127.0.0.1:4421"), "2 ranks, and the world size is 3");
    let modes: Vec<_> = ["read-through", "copies", "copies"]
        .into_iter()
        .enumerate()
        .map(|(nth, mode)| {
            let mut command = rank(&dir, &image, nth, "modes");
            command.args(["--peer-mode", mode]).stderr(Stdio::piped()).stdout(Stdio::null());
            command.spawn().unwrap()
        })
        .collect();
    for rank in modes {
        let output = rank.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("mode of peers"), "{said}");
    }
    let rendezvous = dir.arg("rendezvous");
    let bare = ["read", &image, "--peers", &rendezvous, "--round", "r", "--world-size", "1"];
    assert!(run(&bare).code(1).stderr.contains("there is no tier"));
}
