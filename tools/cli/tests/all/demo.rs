//! demo: the README's first command, with its own data and with the user's.

use std::fs;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::common::{self, TestDir, dlfs, finish, wait};

#[test]
fn the_demo_shows_all_of_it_and_leaves_nothing_behind() {
    let dir = TestDir::new();
    let mut command = dlfs();
    command.arg("demo").env("TMPDIR", dir.path(""));
    let ran = finish(command).code(0);
    for words in [
        "4,000 samples",
        "epoch 1",
        "epoch 2",
        "verified",
        "samples/s",
        "p99",
        "s a GB",
        "s/GB",
        "dlfs serve",
        "opens, reads and closes",
        "warm",
        "cold",
        "times",
    ] {
        assert!(ran.text().contains(words), "{words} in:\n{}", ran.text());
    }
    assert_eq!(dir.files("").len(), 0, "the temporary folder is empty again");
}

#[test]
fn the_demo_takes_a_folder_of_the_user_s_and_prints_json() {
    let dir = TestDir::with_source();
    fs::create_dir(dir.path("tmp")).unwrap();
    let before = dir.files("source");
    let mut command = dlfs();
    command
        .args(["demo", &dir.arg("source"), "--json", "--batch-size", "64"])
        .env("TMPDIR", dir.path("tmp"));
    let json = finish(command).code(0).json();
    assert_eq!(json["verified"], true);
    let compared = &json["compared"];
    for (way, verified) in [("files", false), ("image", true), ("nvme_tcp", true)] {
        let figures = &compared[way];
        for key in ["samples_per_s", "bytes_per_s", "cpu_s_per_gb"] {
            assert!(figures[key].as_f64().unwrap() > 0.0, "{way} {key}");
        }
        assert_eq!(figures["verified"], verified);
        assert_eq!(figures["order_crc32c"], compared["files"]["order_crc32c"], "{way}");
    }
    let epochs = json["epochs"].as_array().unwrap();
    assert_eq!(epochs.len(), 2);
    for epoch in epochs {
        assert_eq!(epoch["samples"], 300);
        for key in
            ["bytes", "seconds", "samples_per_s", "batch_us", "cpu_s", "stall_s", "order_crc32c"]
        {
            assert!(!epoch[key].is_null(), "{key}");
        }
    }
    assert_ne!(epochs[0]["order_crc32c"], epochs[1]["order_crc32c"]);
    assert_eq!(dir.files("source"), before);
    assert_eq!(dir.files("tmp").len(), 0);
}

#[test]
fn ctrl_c_ends_the_demo_and_cleans_up() {
    let dir = TestDir::new();
    for wait_ms in [0, 60, 250, 600] {
        let mut command = dlfs();
        command.arg("demo").env("TMPDIR", dir.path("")).stdout(Stdio::null());
        let mut child = command.spawn().unwrap();
        wait_until_it_handles_sigint(&child);
        std::thread::sleep(Duration::from_millis(wait_ms));
        common::signal(&child, "INT");
        let code = wait(&mut child).code();
        assert!(code == Some(1) || code == Some(0), "{code:?}: stopped, or just done");
        assert_eq!(fs::read_dir(dir.path("")).unwrap().count(), 0, "after {wait_ms} ms");
    }
}

/// Before, a signal ends it as it ends any program.
fn wait_until_it_handles_sigint(child: &Child) {
    let until = Instant::now() + Duration::from_secs(60);
    let handled = || {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).expect("it runs");
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).expect("a mask");
        u64::from_str_radix(mask.trim(), 16).expect("a hexadecimal mask")
    };
    const SIGINT: u64 = 1 << (2 - 1);
    while handled() & SIGINT == 0 {
        assert!(Instant::now() < until, "it does not handle SIGINT");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_demo_of_no_folder_or_an_empty_one_says_so() {
    let dir = TestDir::new();
    fs::create_dir(dir.path("empty")).unwrap();
    common::run(&["demo", &dir.arg("nothing")]).code(1).complains_of(&["nothing"]);
    common::run(&["demo", &dir.arg("empty")]).code(1).complains_of(&["empty"]);
}
