//! `dlfs mount`, where the machine has `/dev/fuse`.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{TestDir, dlfs, run};

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
    mounted_with(&[&dir.arg("train.dlfs"), place])
}

fn mounted_with(arguments: &[&str]) -> Child {
    let mut command = dlfs();
    command.args(["mount", "--foreground"]).args(arguments);
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
    let options = ["--tier", "ram:1M", "--metrics", "127.0.0.1:0"];
    let ran = run(&[&["mount", &dir.arg("train.dlfs"), &place][..], &options].concat()).code(0);
    // Nobody could find the metrics otherwise.
    assert!(ran.stderr.contains("metrics at http://127.0.0.1:"), "{}", ran.stderr);
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
    // Programs that read all the time, with nothing of it in the page cache.
    let reading = "while dd if=$0/cat/001.bin of=/dev/null iflag=direct bs=64k 2>$1; do :; done";
    let readers: Vec<Child> = (0..4)
        .map(|i| {
            let errors = dir.arg(&format!("errors{i}"));
            Command::new("sh").args(["-c", reading, &place, &errors]).spawn().unwrap()
        })
        .collect();
    child.kill().unwrap();
    child.wait().unwrap();
    let killed = Instant::now();
    // Each ends by itself: none waits for the daemon, killable or not (state D).
    for mut reader in readers {
        while reader.try_wait().unwrap().is_none() {
            assert!(killed.elapsed() < Duration::from_secs(120), "a reader does not end");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    println!("4 readers ended {:?} after the daemon was killed", killed.elapsed());
    for i in 0..4 {
        let errors = fs::read_to_string(dir.path(&format!("errors{i}"))).unwrap();
        let known = ["not connected", "Software caused connection abort", "Input/output error"];
        assert!(known.iter().any(|why| errors.contains(why)), "{errors}");
    }
    let file = Path::new(&place).join("cat/001.bin");
    let error = fs::read(&file).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(107), "ENOTCONN: {error}");
    unmount(Path::new(&place));
}

/// Samples of `len` bytes, `all` together, and the image of them.
fn large(len: usize, all: usize) -> TestDir {
    let dir = TestDir::new();
    fs::create_dir(dir.path("source")).unwrap();
    fs::create_dir(dir.path("place")).unwrap();
    for file in 0..all / len {
        let bytes: Vec<u8> = (0..len).map(|at| (at >> 8 ^ at ^ file) as u8).collect();
        fs::write(dir.path("source").join(format!("{file:03}")), bytes).unwrap();
    }
    run(&["import", &dir.arg("source"), &dir.arg("train.dlfs")]).code(0);
    dir
}

/// Anonymous memory of a process, in bytes.
fn anonymous(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
}

/// Once the window took 256 MiB for any data set, in the loader and again for what waits.
#[test]
fn reading_ahead_takes_no_more_memory_than_the_data_set_or_its_window() {
    if !has_fuse() {
        return;
    }
    for (len, window, most) in
        [(64 << 10, "", 150 << 20), (8 << 20, ", \"window\": 32000000", 180 << 20)]
    {
        let dir = large(len, 48 << 20);
        let image = dir.arg("train.dlfs");
        let place = dir.arg("place");
        let order = dir.arg("order.json");
        let text = format!("{{\"order\": {{\"kind\": \"global\", \"seed\": 7}}{window}}}");
        fs::write(&order, text).unwrap();
        let mut child = mounted_with(&[&image, &place, "--order", &order]);
        let mut took = 0;
        for entry in fs::read_dir(&place).unwrap() {
            let read = fs::read(entry.unwrap().path()).unwrap();
            assert_eq!(read.len(), len);
            took = took.max(anonymous(child.id()));
        }
        println!("samples of {len} bytes: {took} bytes");
        assert!(took < most, "{took} bytes of memory");
        unmount(Path::new(&place));
        child.wait().unwrap();
    }
}

#[test]
fn a_mount_that_ends_leaves_all_that_was_read_in_its_tier_also_while_a_file_is_open() {
    if !has_fuse() {
        return;
    }
    let dir = large(2 << 20, 24 << 20);
    let image = dir.arg("train.dlfs");
    let place = dir.arg("place");
    let cache = dir.arg("cache");
    fs::create_dir(&cache).unwrap();
    let tier = format!("file:{cache}:100M");
    let mut child = mounted_with(&[&image, &place, "--tier", &tier]);
    for entry in fs::read_dir(&place).unwrap() {
        assert_eq!(fs::read(entry.unwrap().path()).unwrap().len(), 2 << 20);
    }
    let open = fs::File::open(Path::new(&place).join("000")).unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    child.wait().unwrap();
    drop(open);
    let json = run(&["read", &image, "--tier", &tier, "--json"]).code(0).json();
    assert_eq!(json["tiers"]["origin"]["bytes"], 0, "{json}");
}

/// As another user, with a `/dev/fuse` that all may open, in a namespace of mounts of its own; exit code 77 where the
/// machine cannot do that.
const AS_NOBODY: &str = r#"
cd /
command -v setpriv >/dev/null && test -u "$(command -v fusermount3)" || exit 77
nobody="setpriv --reuid 65534 --regid 65534 --clear-groups --"
mknod $0/fuse c 10 229 && chmod 666 $0/fuse && mount --bind $0/fuse /dev/fuse || exit 77
$nobody sh -c ': <>/dev/fuse' || exit 77
chmod 755 $0 && chmod 644 $0/train.dlfs && chown 65534 $0/place || exit 77
set -e
$nobody $0/dlfs mount $0/train.dlfs $0/place --tier ram:1M
$nobody sh -c "cat $0/place/cat/* $0/place/dog/* $0/place/newt/*" >$0/read
if ls $0/place >/dev/null 2>&1; then echo "another user may look"; exit 1; fi
$nobody fusermount3 -u $0/place
test -z "$(ls $0/place)"
"#;

#[test]
fn an_ordinary_user_mounts_with_fusermount3_in_the_background_with_a_tier() {
    if !has_fuse() {
        return;
    }
    let dir = TestDir::with_image();
    fs::create_dir(dir.path("place")).unwrap();
    // The build folder may be closed to other users. Another process makes the copy: if this one had the file open
    // for writing while another test started a program, the copy could not be run for a moment.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_dlfs")).arg(dir.path("dlfs")).status();
    assert!(copied.unwrap().success());
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", AS_NOBODY, &dir.arg("")]).stdin(Stdio::null());
    let Ok(output) = command.output() else {
        println!("SKIPPED: unshare is not installed");
        return;
    };
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.code() == Some(77) || errors.starts_with("unshare:") {
        println!(
            "SKIPPED: it takes setpriv, fusermount3 with the set-user-ID bit, and mknod: {errors}"
        );
        return;
    }
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{errors}");
    let sources = ["cat", "dog", "newt"].map(|class| {
        let folder = fs::read_dir(dir.path("source").join(class)).unwrap();
        let mut files: Vec<_> = folder.map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files.iter().flat_map(|file| fs::read(file).unwrap()).collect::<Vec<u8>>()
    });
    assert!(fs::read(dir.path("read")).unwrap() == sources.concat());
}

#[test]
fn what_cannot_be_mounted_is_refused_before_the_command_returns() {
    let dir = TestDir::with_image();
    let missing = dir.arg("nothing");
    run(&["mount", &dir.arg("train.dlfs"), &missing]).code(1).complains_of(&["nothing"]);
    run(&["mount", &dir.arg("no.dlfs"), &dir.arg("source")]).code(1).complains_of(&["no.dlfs"]);
}

#[test]
fn a_folder_that_was_just_unmounted_is_mounted_again_and_keeps_what_others_mount() {
    if !has_fuse() {
        return;
    }
    let dir = TestDir::with_image();
    let place = dir.arg("place");
    fs::create_dir(&place).unwrap();
    for round in 0..20 {
        run(&["mount", &dir.arg("train.dlfs"), &place]).code(0);
        assert_eq!(fs::read_dir(&place).unwrap().count(), 3, "round {round}");
        assert!(Command::new("umount").arg(&place).status().unwrap().success());
    }
    let child = mounted(&dir, &place);
    let mount = Command::new("mount").args(["-t", "tmpfs", "none", &place]).status().unwrap();
    assert!(mount.success());
    fs::write(dir.path("place/mine"), "mine").unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    assert!(dir.path("place/mine").exists());
    unmount(Path::new(&place)); // the upper one first, as the error says
    unmount(Path::new(&place));
    assert_eq!(fs::read_dir(&place).unwrap().count(), 0);
}
