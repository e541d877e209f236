//! `dlfs mount`, where the machine has `/dev/fuse`.

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{TestDir, dlfs, run};

fn has_fuse() -> bool {
    let opened = fs::File::options().read(true).write(true).open("/dev/fuse");
    let may_mount = rustix::process::geteuid().is_root();
    if opened.is_err() || !may_mount {
        println!("SKIPPED: it takes /dev/fuse, and root");
    }
    opened.is_ok() && may_mount
}

fn unmount(place: &Path) {
    let status = Command::new("umount").arg("--lazy").arg(place).status().unwrap();
    assert!(status.success());
}

/// `dlfs mount` in the foreground, once it has mounted.
fn mounted(dir: &TestDir, place: &str) -> Child {
    let mut command = dlfs();
    command.args(["mount", "--foreground", &dir.arg("train.dlfs"), place]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("mounted "), "{line}");
    child
}

/// Compares each file with its source.
fn compare(dir: &TestDir, place: &str) {
    for class in ["cat", "dog", "newt"] {
        let folder = Path::new(place).join(class);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 100);
        for entry in fs::read_dir(&folder).unwrap() {
            let entry = entry.unwrap();
            let source = dir.path("source").join(class).join(entry.file_name());
            assert_eq!(fs::read(entry.path()).unwrap(), fs::read(source).unwrap());
        }
    }
}

#[test]
fn an_image_is_mounted_in_the_background_until_it_is_unmounted() {
    if !has_fuse() {
        return;
    }
    let dir = TestDir::with_image();
    let place = dir.arg("place");
    fs::create_dir(&place).unwrap();
    let ran = run(&["mount", &dir.arg("train.dlfs"), &place, "--tier", "ram:1M"]);
    ran.code(0);
    compare(&dir, &place);
    unmount(Path::new(&place));
    assert_eq!(fs::read_dir(&place).unwrap().count(), 0);
}

#[test]
fn a_signal_unmounts_and_a_killed_daemon_leaves_errors_and_no_hanging_reads() {
    if !has_fuse() {
        return;
    }
    let dir = TestDir::with_image();
    let place = dir.arg("place");
    fs::create_dir(&place).unwrap();
    let mut child = mounted(&dir, &place);
    compare(&dir, &place);
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(fs::read_dir(&place).unwrap().count(), 0);

    let mut child = mounted(&dir, &place);
    child.kill().unwrap();
    child.wait().unwrap();
    let file = Path::new(&place).join("cat/001.bin");
    let begin = Instant::now();
    let error = fs::read(&file).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(107), "ENOTCONN: {error}");
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    unmount(Path::new(&place));
}

#[test]
fn what_cannot_be_mounted_is_refused_before_the_command_returns() {
    let dir = TestDir::with_image();
    let missing = dir.arg("nothing");
    run(&["mount", &dir.arg("train.dlfs"), &missing]).code(1).complains_of(&["nothing"]);
    run(&["mount", &dir.arg("no.dlfs"), &dir.arg("source")]).code(1).complains_of(&["no.dlfs"]);
}
