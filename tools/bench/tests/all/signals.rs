//! Signals: SIGINT ends a run with its figures.

use std::process::Stdio;

use crate::common::{bench, end_of, signal, target, wait_until};

#[test]
fn an_interrupted_run_prints_what_it_has() {
    let (target, name) = target(8 << 20, false);
    let mut command = bench();
    command.args(["--name=s", "--rw=randread", "--time_based", "--runtime=60", "--rate_iops=1000"]);
    command.arg(format!("--filename={name}")).arg("--output-format=json");
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // More than iodepth= I/Os: some have ended, and are counted.
    wait_until("the job reads", || target.stats().read_bytes > 4 * 4096);
    signal(&child, "INT");
    let read = end_of(child).code(128).json()["jobs"][0]["read"].clone();
    assert!(read["total_ios"].as_u64().unwrap() > 0);
    assert!(read["runtime"].as_u64().unwrap() < 60_000);
}
