//! Commands report engines that break, and do not exit with 0.
//!
//! The binary under test includes the engine of `src/io/qpair/broken.rs`, like every build with debug
//! assertions.

use std::process::Stdio;

use crate::common::{Ran, Served, TestDir, dlfs, finish, run, wait};

const PANIC: &str = "an engine that was told to panic";

fn run_broken(engine: &str, arguments: &[&str]) -> Ran {
    let mut command = dlfs();
    command.env("DLFS_TEST_ENGINE", engine).args(arguments);
    finish(command)
}

#[track_caller]
fn says_all(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "no {word:?} in:\n{text}");
    }
}

#[test]
fn reading_and_exporting_end_with_the_error_and_never_say_verified() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let folder = dir.arg("out");
    let archive = dir.arg("out.tar");
    let ways: [&[&str]; 5] = [
        &["read", &image, "--epochs", "2", "--order", "grouped"],
        &[
            "read",
            &image,
            "--epochs",
            "2",
            "--order",
            "grouped",
            "--contiguous",
            "--copy-threads",
            "2",
        ],
        &["read", &image, "--epochs", "2", "--order", "global", "--json"],
        &["export", &image, &folder],
        &["export", &image, &archive, "--json"],
    ];
    for way in ways {
        for (engine, says) in [
            ("panics:1:dlfs-poller", ["the thread dlfs-poller panicked", PANIC]),
            ("panics:0:dlfs-poller", ["the thread dlfs-poller panicked", PANIC]),
        ] {
            println!("{way:?} {engine}");
            let ran = run_broken(engine, way);
            let ran = ran.code(1);
            says_all(&ran.stderr, &says);
            let text = ran.text();
            assert!(!text.contains("verified") && !text.contains("exported"), "{text}");
            assert!(!text.contains("order_crc32c"), "{text}");
        }
    }
}

#[test]
fn eio_ends_a_read_and_an_export_with_an_error() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let folder = dir.arg("out");
    let ran = run_broken("fails:1:dlfs-poller", &["read", &image]);
    ran.code(1).complains_of(&["Input/output error"]);
    let ran = run_broken("fails:1:dlfs-poller", &["export", &image, &folder]);
    assert_ne!(ran.status.code(), Some(0));
}

#[test]
fn an_import_whose_thread_dies_says_so_and_the_next_goes_on_from_there() {
    let dir = TestDir::with_source();
    let source = dir.arg("source");
    for (engine, says) in [
        ("panics:1:dlfs-import", ["the thread dlfs-import panicked", PANIC]),
        ("fails:1:dlfs-import", ["an I/O failed", "error 5"]),
    ] {
        let blank = std::fs::File::create(dir.path("blank.dlfs")).unwrap();
        blank.set_len(64 << 20).unwrap();
        let served = Served::start(&dir.arg("blank.dlfs"), &["--writable"]);
        let import = ["import", &source, &served.address, "--chunk-size", "64K"];
        let ran = run_broken(engine, &import);
        says_all(&ran.code(1).stderr, &says);
        let read = run(&["read", &served.address]);
        assert_ne!(read.status.code(), Some(0), "nothing was committed");
        run(&[&import[..], &["--resume"]].concat()).code(0);
        run(&["verify", &served.address]).code(0);
    }
}

#[test]
fn a_server_whose_poller_died_says_so_and_ends_also_as_a_relay() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let origin = Served::start(&image, &[]);
    for served in [&image, &origin.address] {
        let mut command = dlfs();
        command.env("DLFS_TEST_ENGINE", "panics:20:dlfs-target");
        command.args(["serve", served, "--listen", "127.0.0.1:0", "--json"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut stdout = std::io::BufReader::new(child.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut stdout, &mut line).unwrap();
        let said: serde_json::Value = serde_json::from_str(&line).unwrap();
        let address = said["address"].as_str().unwrap();
        let host =
            ["read", address, "--epochs", "1000", "--order", "global", "--ctrl-loss-tmo", "1"];
        let read = run(&host);
        assert_ne!(read.status.code(), Some(0), "the host was told");
        let status = wait(&mut child);
        assert_eq!(status.code(), Some(1), "{served}");
        let mut text = String::new();
        let mut stderr = child.stderr.take().unwrap();
        std::io::Read::read_to_string(&mut stderr, &mut text).unwrap();
        says_all(&text, &["the thread dlfs-target-0 panicked", PANIC]);
    }
}
