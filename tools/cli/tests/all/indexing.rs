//! index, and commands that read shards as they are.

use std::fs;
use std::process::Stdio;

use crate::common::{TestDir, dlfs, run};

const SHARDS: usize = 40;
const LINES: usize = 500;

/// Files of lines, which are shards.
fn shards() -> TestDir {
    let dir = TestDir::new();
    fs::create_dir(dir.path("shards")).unwrap();
    for shard in 0..SHARDS {
        let line = |number| format!("{{\"number\": {number}, \"text\": \"of {shard}\"}}\n");
        let lines: String = (0..LINES).map(line).collect();
        fs::write(dir.path("shards").join(format!("{shard:03}.jsonl")), lines).unwrap();
    }
    dir
}

#[test]
fn four_processes_make_each_index_once() {
    let dir = shards();
    let index = dir.arg("index");
    let arguments = ["index", &dir.arg("shards"), "--index", &index, "--json"];
    let start = |_| dlfs().args(arguments).stdout(Stdio::piped()).spawn().unwrap();
    let processes: Vec<_> = (0..4).map(start).collect();
    let mut made = 0;
    for process in processes {
        let output = process.wait_with_output().unwrap();
        assert!(output.status.success());
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["samples"], SHARDS * LINES);
        made += report["made"].as_u64().unwrap();
    }
    assert_eq!(made, SHARDS as u64);
    let again = run(&["index", &dir.arg("shards"), "--index", &index]).code(0);
    assert_eq!(again.text(), "40 shards with 20,000 samples; 0 indexed now\n");
}

#[test]
fn commands_that_read_take_shards() {
    let dir = shards();
    let shards = dir.arg("shards");
    let index = dir.arg("index");
    let given = [&*shards, "--shards", "--index", &index];
    let names = run(&[&["ls", "-R"][..], &given[..]].concat()).code(0);
    assert_eq!(names.text().lines().count(), SHARDS * LINES);
    assert!(names.text().starts_with("000.jsonl/0\n"), "{}", names.text());
    run(&[&["verify"][..], &given[..]].concat()).code(0);
    run(&[&["stat"][..], &given[..]].concat()).code(0);
    run(&[&["shuffle-report"][..], &given[..]].concat()).code(0);
    let read =
        [&["read"][..], &given[..], &["--order", "grouped", "--seed", "7", "--json"]].concat();
    let read = run(&read).code(0);
    let report: serde_json::Value =
        serde_json::from_str(read.text().lines().last().unwrap()).unwrap();
    assert_eq!(report["samples"], SHARDS * LINES, "{report}");
    let error = run(&["ls", "-R", &shards, "--index", &index]).code(2);
    assert!(error.stderr.contains("--shards"), "{}", error.stderr);
}
