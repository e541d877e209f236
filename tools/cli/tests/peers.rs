//! Ranks that read from each other's tiers: one process each, as a launcher starts them.

mod common;

use std::fs;
use std::process::{Command, Stdio};

use common::{Served, TestDir, dlfs, run};
use serde_json::Value;

const RANKS: usize = 3;

/// `dlfs read` of one rank on a node of its own, as torchrun would start it.
fn rank(dir: &TestDir, image: &str, rank: usize, round: &str) -> Command {
    let tier = dir.arg(&format!("tier-{rank}"));
    fs::create_dir_all(&tier).unwrap();
    let mut command = dlfs();
    command
        .args([
            "read",
            image,
            "--tier",
            &format!("file:{tier}:64M"),
            "--epochs",
            "4",
            "--batch",
            "16",
        ])
        .args(["--peers", &dir.arg("rendezvous"), "--node", &format!("node{rank}"), "--json"])
        .env("RANK", rank.to_string())
        .env("WORLD_SIZE", RANKS.to_string())
        .env("MASTER_ADDR", "127.0.0.1")
        .env("MASTER_PORT", "29500")
        .env("TORCHELASTIC_RUN_ID", round)
        .env("TORCHELASTIC_RESTART_COUNT", "0");
    command
}

#[test]
fn ranks_of_a_job_read_from_each_others_tiers() {
    let dir = TestDir::with_source();
    let image = dir.arg("train.dlfs");
    // Small chunks, so that each node holds some.
    run(&["import", &dir.arg("source"), &image, "--chunk-size", "64K"]).code(0);
    fs::create_dir(dir.path("rendezvous")).unwrap();
    let origin = Served::start(&image, &[]);
    let ranks: Vec<_> = (0..RANKS)
        .map(|nth| {
            let mut command = rank(&dir, &origin.address, nth, "job");
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("dlfs starts")
        })
        .collect();
    let mut samples = 0;
    for (nth, rank) in ranks.into_iter().enumerate() {
        let output = rank.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "rank {nth}: {said}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        samples += report["samples"].as_u64().unwrap();
        let nodes = report["peers"]["nodes"].as_array().unwrap();
        let bytes = |node: &Value| node["bytes"].as_u64().unwrap();
        assert_eq!(nodes.len(), RANKS);
        assert!(
            nodes.iter().map(bytes).sum::<u64>() > 0,
            "rank {nth} read nothing from peers: {report}"
        );
        assert_eq!(report["peers"]["mismatched_bytes"], 0);
    }
    assert_eq!(samples, 4 * 300, "each sample once an epoch");
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
    let rendezvous = dir.arg("rendezvous");
    let bare = ["read", &image, "--peers", &rendezvous, "--round", "r", "--world-size", "1"];
    assert!(run(&bare).code(1).stderr.contains("there is no tier"));
}
