//! Two importers of one image where no lock keeps them apart: remote ones, and files on file systems without locks.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::common::{Served, TestDir, dlfs, end_of, finish, run, signal};

/// Starts an import that will be stopped midway.
fn start(source: &str, address: &str) -> Child {
    let mut command = dlfs();
    command.args(["import", source, address, "--chunk-size", "1M", "--keep-alive-tmo", "1"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts")
}

#[test]
fn an_importer_that_is_stopped_harms_no_image_that_was_committed_meanwhile() {
    let dir = TestDir::with_source();
    fs::create_dir_all(dir.path("large/a")).unwrap();
    for number in 0..200u8 {
        fs::write(dir.path(&format!("large/a/{number}")), vec![number; 500_000]).unwrap();
    }
    let large = dir.arg("large");
    let small = dir.arg("source");
    thread::scope(|scope| {
        for megabytes in [8, 30, 55] {
            let dir = &dir;
            let large = &large;
            let small = &small;
            scope.spawn(move || {
                let image = format!("image{megabytes}");
                let file = fs::File::create(dir.path(&image)).unwrap();
                file.set_len(128 << 20).unwrap();
                let served = Served::start(&dir.arg(&image), &["--writable"]);
                let address = &served.address;
                let stopped = start(large, address);
                let until = Instant::now() + Duration::from_secs(60);
                // Allocated blocks of 512 bytes.
                while file.metadata().unwrap().blocks() < megabytes << 11 && Instant::now() < until
                {
                    thread::sleep(Duration::from_millis(1));
                }
                signal(&stopped, "STOP");
                run(&["import", small, address, "--force", "--keep-alive-tmo", "1"]).code(0);
                signal(&stopped, "CONT");
                let ended = end_of(stopped);
                let out = format!("out{megabytes}");
                run(&["verify", address]).code(0);
                run(&["export", address, &dir.arg(&out)]).code(0);
                assert_eq!(dir.files(&out), dir.files("source"), "{}", ended.stderr);
                // Unless it had finished before it could be stopped.
                if ended.status.code() != Some(0) {
                    ended.complains_of(&["another has taken its place"]);
                }
            });
        }
    });
}

/// `dlfs` where `flock` fails with this error.
fn without_locks(errno: Errno, arguments: &[&str]) -> Command {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/support/without_flock.py");
    let mut command = Command::new("python3");
    command
        .arg(script)
        .arg(errno.raw_os_error().to_string())
        .arg(env!("CARGO_BIN_EXE_dlfs"))
        .args(arguments);
    command
}

#[test]
fn an_image_on_a_file_system_without_locks_is_written_under_a_lease_that_is_told_once() {
    let dir = TestDir::with_source();
    fs::create_dir_all(dir.path("more/owl")).unwrap();
    fs::write(dir.path("more/owl/1.bin"), "hoot").unwrap();
    let source = dir.arg("source");
    let more = dir.arg("more");
    for errno in [Errno::NOSYS, Errno::OPNOTSUPP, Errno::NOLCK] {
        let image = dir.arg(&format!("{}.dlfs", errno.raw_os_error()));
        let told = finish(without_locks(errno, &["import", &source, &image])).code(0);
        told.complains_of(&["no locks", "a lease", &image]);
        assert_eq!(told.stderr.matches("no locks").count(), 1, "{}", told.stderr);
        let other = dir.arg(&format!("{}-2.dlfs", errno.raw_os_error()));
        let striped = format!("{image},{other}");
        let told = finish(without_locks(errno, &["import", &source, &striped, "--force"])).code(0);
        assert_eq!(told.stderr.matches("no locks").count(), 1, "{}", told.stderr);
        finish(without_locks(errno, &["import", &more, &striped, "--append"])).code(0);
        run(&["verify", &striped]).code(0);
        assert_eq!(run(&["cat", &striped, "owl/1.bin"]).code(0).stdout, b"hoot");
    }
}

#[test]
fn a_second_writer_is_kept_away_where_no_lock_does_it() {
    let dir = TestDir::with_source();
    let image = dir.arg("train.dlfs");
    let mut first = without_locks(
        Errno::NOSYS,
        &["import", "-", &image, "--from", "tar", "--placement", "source"],
    );
    first.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut first = first.spawn().expect("python3 starts");
    let mut stdin = first.stdin.take().expect("piped");
    let archive = Command::new("tar").args(["-c", "-C", &dir.arg("source"), "."]).output().unwrap();
    stdin.write_all(&archive.stdout[..16 << 10]).unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    let has_lease = || {
        fs::read(&image)
            .is_ok_and(|bytes| bytes.get(24 << 10..).is_some_and(|at| at.starts_with(b"DLFSLEAS")))
    };
    while !has_lease() {
        assert!(Instant::now() < until, "no lease");
        thread::sleep(Duration::from_millis(5));
    }
    let second = ["import", &dir.arg("source"), &image, "--force"];
    finish(without_locks(Errno::NOSYS, &second)).code(1).complains_of(&["another import"]);
    stdin.write_all(&archive.stdout[16 << 10..]).unwrap();
    drop(stdin);
    assert_eq!(end_of(first).status.code(), Some(0));
    run(&["verify", &image]).code(0);
}

#[test]
fn what_needs_a_lock_is_refused_without_one_and_nothing_is_left() {
    let dir = TestDir::with_image();
    fs::create_dir(dir.path("tier")).unwrap();
    let image = dir.arg("train.dlfs");
    let tier = format!("file:{}:64M", dir.arg("tier"));
    let refused = finish(without_locks(Errno::NOSYS, &["read", &image, "--tier", &tier])).code(1);
    refused.complains_of(&[&dir.arg("tier"), "flock", "local folder"]);
    assert_eq!(fs::read_dir(dir.path("tier")).unwrap().count(), 0);
}

#[test]
fn a_command_that_fails_before_it_has_written_leaves_no_file() {
    let dir = TestDir::with_source();
    let source = dir.arg("source");
    let image = dir.arg("new.dlfs");
    let striped = format!("{image},{}", dir.arg("nowhere/new.dlfs"));
    run(&["import", &source, &striped]).code(1).complains_of(&["nowhere/new.dlfs"]);
    assert!(!dir.path("new.dlfs").exists());
    // The limit is in blocks of 512 or 1,024 bytes, and the data set has megabytes.
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -f 64; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_dlfs")]);
    limited.args(["import", &source, &image]);
    finish(limited).code(1).complains_of(&["new.dlfs", "File too large", "ulimit -f"]);
    assert!(!dir.path("new.dlfs").exists());
}
