//! Real programs with `libdlfs_preload.so` in front of the C library.

#[allow(unreachable_pub)] // shared by both doors
#[path = "../../../tests/support/plain_folder.rs"]
mod plain_folder;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use plain_folder::PlainFolder;

/// A plain folder, and an image of it.
struct Source {
    folder: PlainFolder,
}

impl Source {
    fn new() -> Source {
        Source { folder: PlainFolder::new(&[]) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path(name)
    }

    /// A command with the library and these settings.
    fn command(&self, program: impl AsRef<std::ffi::OsStr>, mounts: &str) -> Command {
        let mut command = Command::new(program);
        command.env("LD_PRELOAD", library()).env("DLFS_MOUNTS", mounts);
        command
    }

    /// The image below a folder that does not exist, and the plain folder below itself with a tier.
    fn mounts(&self) -> [(String, PathBuf); 2] {
        let (image, plain) = (self.path("shown"), self.path("plain"));
        [
            (format!("{}={}", image.display(), self.path("train.dlfs").display()), image),
            (format!("{0}={0};tier=ram:16M", plain.display()), plain),
        ]
    }
}

/// The library, which cargo builds before this test.
fn library() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let folder = own.ancestors().find(|at| at.ends_with("deps")).expect("a test lies in deps");
    let found = [folder, folder.parent().unwrap()].map(|at| at.join("libdlfs_preload.so"));
    found.into_iter().find(|path| path.exists()).expect("cargo has built libdlfs_preload.so")
}

fn text(output: &[u8]) -> String {
    String::from_utf8_lossy(output).into_owned()
}

fn succeeded(output: Output) -> String {
    assert!(output.status.success(), "{}\n{}", output.status, text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn three_hundred_calls_and_programs_do_what_they_do_on_a_plain_folder() {
    let source = Source::new();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/posix/conformance.py");
    let plain = Command::new("python3")
        .arg(&script)
        .arg(source.path("plain"))
        .args(["--against", "preload"])
        .output()
        .unwrap();
    eprintln!("{}", text(&plain.stderr));
    let expected = succeeded(plain);
    assert!(expected.lines().count() >= 300, "{} calls", expected.lines().count());
    for (mounts, folder) in source.mounts() {
        let mut command = source.command("python3", &mounts);
        let output = command.arg(&script).arg(folder).args(["--door", "preload"]).output().unwrap();
        let errors = text(&output.stderr);
        let found = succeeded(output);
        let different: Vec<String> = expected
            .lines()
            .zip(found.lines())
            .filter(|(expected, found)| expected != found)
            .map(|(expected, found)| format!("expected {expected}\n   found {found}"))
            .collect();
        assert!(different.is_empty(), "{mounts}\n{}\n{errors}", different.join("\n"));
        assert_eq!(expected.lines().count(), found.lines().count(), "{errors}");
    }
}

#[test]
fn a_program_that_touches_no_data_set_has_no_thread_connection_or_open_image() {
    let source = Source::new();
    let [(mounts, _), _] = source.mounts();
    let status = source.command("cat", &mounts).arg("/proc/self/status").output().unwrap();
    let status = succeeded(status);
    assert!(status.contains("Threads:\t1\n"), "{status}");
    let open = source.command("ls", &mounts).args(["-l", "/proc/self/fd"]).output().unwrap();
    let open = succeeded(open);
    assert!(!open.contains("socket") && !open.contains("dlfs"), "{open}");
}

#[test]
fn settings_that_are_wrong_are_said_in_one_line_and_the_program_runs() {
    let source = Source::new();
    for (mounts, why) in [
        ("nonsense", "write FOLDER=ADDRESS"),
        ("relative=/x", "not an absolute path"),
        ("/=/x", "the whole file system"),
        ("/a=/x;colour=red", "none of tier=, copy= and fuse="),
        ("/a=/x;tier=cup:1", "tier"),
        ("/a=/x /a/b=/y", "inside of it"),
    ] {
        let output = source.command("cat", mounts).arg(source.path("plain/text")).output().unwrap();
        let errors = text(&output.stderr);
        assert_eq!(text(&output.stdout), "one\ntwo\nthree\n");
        assert_eq!(errors.lines().count(), 1, "{errors}");
        assert!(errors.contains("DLFS_MOUNTS") && errors.contains(why), "{errors}");
    }
    let mounts = format!("{}={}", source.path("x").display(), source.path("no.dlfs").display());
    let output = source.command("cat", &mounts).arg(source.path("x/1")).output().unwrap();
    let errors = text(&output.stderr);
    assert!(!output.status.success() && errors.contains("no.dlfs"), "{errors}");
}

#[test]
fn the_report_counts_what_each_level_gave() {
    let source = Source::new();
    let [_, (mounts, folder)] = source.mounts();
    let report = source.path("report");
    let twice = format!("cat {0}/a/two.bin {0}/a/two.bin | wc -c", folder.display());
    let mut command = source.command("sh", &mounts);
    succeeded(command.args(["-c", &twice]).env("DLFS_REPORT", &report).output().unwrap());
    let report = fs::read_to_string(report).unwrap();
    assert!(report.contains("opens 2, reads 2, bytes 600000"), "{report}");
    assert!(report.contains("from ram:") && report.contains("from origin"), "{report}");
}

#[test]
fn a_descriptor_survives_fork_and_exec_and_many_opens_leave_none_behind() {
    let source = Source::new();
    let [(mounts, folder), _] = source.mounts();
    let program = r#"
import os, resource, sys
folder = sys.argv[1]
data = open(folder + "/a/one.bin", "rb").read()
before = len(os.listdir("/proc/self/fd"))
for _ in range(20000):
    fd = os.open(folder + "/a/b/100", os.O_RDONLY)
    os.close(fd)
assert len(os.listdir("/proc/self/fd")) == before
for _ in range(200):
    if os.fork() == 0:
        os._exit(0 if open(folder + "/a/one.bin", "rb").read() == data else 1)
    assert os.wait()[1] == 0
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
held = []
try:
    while True:
        held.append(os.open(folder + "/top", os.O_RDONLY))
except OSError as error:
    assert error.errno == 24, error
for fd in held:
    os.close(fd)
assert open(folder + "/a/one.bin", "rb").read() == data
fd = os.open(folder + "/a/one.bin", os.O_RDONLY)
os.set_inheritable(fd, True)
os.execvp("python3", ["python3", "-c", f"""
import os
assert len(os.read({fd}, 1 << 20)) == 5000
assert os.fstat({fd}).st_ino == os.stat({folder!r} + "/a/one.bin").st_ino
print("whole")
"""])
"#;
    let mut command = source.command("python3", &mounts);
    let output = command.args(["-c", program]).arg(folder).output().unwrap();
    assert_eq!(succeeded(output), "whole\n");
}

#[test]
fn the_library_exports_what_it_stands_in_for_and_nothing_else() {
    let Ok(listed) = Command::new("nm").args(["-D", "--defined-only"]).arg(library()).output()
    else {
        println!("SKIPPED: nm is not installed");
        return;
    };
    let listed = succeeded(listed);
    let names: Vec<&str> = listed
        .lines()
        .filter_map(|line| line.split(' ').nth(2))
        .map(|n| n.split('@').next().unwrap())
        .collect();
    for name in [
        "open",
        "open64",
        "openat64",
        "fopen64",
        "__open64_2",
        "statx",
        "__xstat",
        "readdir64",
        "closedir",
    ] {
        assert!(names.contains(&name), "{name} is missing");
    }
    for name in ["mmap", "malloc", "read", "close", "dlsym"] {
        assert!(!names.contains(&name), "{name} is interposed");
    }
    let odd: Vec<&&str> =
        names.iter().filter(|name| name.contains("dlfs") || name.starts_with("_ZN")).collect();
    assert!(odd.is_empty(), "{odd:?}");
}
