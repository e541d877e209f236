//! Signals: SIGINT ends a run with its figures, SIGUSR1 asks for them.

mod common;

use std::process::Stdio;
use std::time::Duration;

use common::{bench, end_of, signal};

fn started(more: &[&str]) -> std::process::Child {
    let mut command = bench();
    command.args(["--name=s", "--ioengine=null", "--size=1g", "--rw=randread", "--time_based"]);
    command.args(["--runtime=60", "--rate_iops=1000", "--eta=never"]).args(more);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    std::thread::sleep(Duration::from_millis(700));
    child
}

#[test]
fn an_interrupted_run_prints_what_it_has() {
    let child = started(&["--output-format=json"]);
    signal(&child, "INT");
    let out = end_of(child).code(128);
    let job = &out.json()["jobs"][0];
    assert!(job["read"]["total_ios"].as_u64().unwrap() > 0);
    assert!(job["read"]["runtime"].as_u64().unwrap() < 60_000);
}

#[test]
fn figures_so_far_are_printed_on_request_and_the_run_goes_on() {
    let child = started(&["--output-format=json"]);
    signal(&child, "USR1");
    std::thread::sleep(Duration::from_millis(700));
    signal(&child, "INT");
    let out = end_of(child).code(128);
    let documents =
        serde_json::Deserializer::from_slice(&out.stdout).into_iter::<serde_json::Value>();
    let ios: Vec<u64> = documents
        .map(|document| document.unwrap()["jobs"][0]["read"]["total_ios"].as_u64().unwrap())
        .collect();
    assert_eq!(ios.len(), 2, "{ios:?}");
    assert!(ios[0] > 0 && ios[1] > ios[0], "{ios:?}");
}

#[test]
fn figures_come_by_the_clock_when_that_is_asked_for() {
    let child = started(&["--output-format=json", "--status-interval=300ms"]);
    signal(&child, "INT");
    let out = end_of(child).code(128);
    let documents =
        serde_json::Deserializer::from_slice(&out.stdout).into_iter::<serde_json::Value>();
    let documents: Result<Vec<_>, _> = documents.collect();
    assert!(documents.unwrap().len() >= 2);
}
