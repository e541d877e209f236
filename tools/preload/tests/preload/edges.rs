//! Calls at the edge of what a program may do: no descriptor left, no memory to read into, paths through `..`, figures.

use std::fs;
use std::os::unix::fs::symlink;

use dlfs::import::{NewSample, Writer, WriterOptions};
use dlfs::qpair::ConnectOptions;

use super::plain_folder::image_of_fields;
use super::{PlainFolder, Source, succeeded};

/// Runs `program`, in Python, with these mounts; returns what it prints.
#[track_caller]
fn printed(source: &Source, mounts: &str, program: &str, folder: &std::path::Path) -> String {
    let mut command = source.command("python3", mounts);
    succeeded(command.args(["-c", program]).arg(folder).output().unwrap())
}

#[test]
fn a_range_is_closed_to_its_end_and_no_further_if_no_descriptor_is_left() {
    let source = Source::new();
    let [(mounts, folder), _] = source.mounts();
    let program = r#"
import ctypes, os, resource, sys
libc = ctypes.CDLL(None, use_errno=True)
limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (256, limit))
before = set(os.listdir("/proc/self/fd"))
data = open(sys.argv[1] + "/a/one.bin", "rb").read()
library = [int(fd) for fd in os.listdir("/proc/self/fd") if fd not in before]
assert library and min(library) > 20, library
null = os.open("/dev/null", os.O_RDONLY)
try:
    while True:
        os.dup(null)
except OSError as error:
    assert error.errno == 24, error
assert libc.close_range(10, 11, 0) == 0
open_now = [fd for fd in range(3, 20) if libc.fcntl(fd, 1) >= 0]
print([fd for fd in range(3, 20) if fd not in open_now])
assert open(sys.argv[1] + "/a/one.bin", "rb").read() == data
"#;
    assert_eq!(printed(&source, &mounts, program, &folder), "[10, 11]\n");
}

#[test]
fn a_path_relative_to_a_real_folder_reaches_a_data_set_through_dots() {
    let source = Source::new();
    let [(mounts, folder), _] = source.mounts();
    let program = r#"
import os, sys
shown = sys.argv[1]
beside = os.open(os.path.dirname(shown) + "/plain/a", os.O_RDONLY | os.O_DIRECTORY)
for path in ("../../shown/text", "b/../../../shown/text", "./../../shown/a/../text"):
    fd = os.open(path, os.O_RDONLY, dir_fd=beside)
    assert os.read(fd, 100) == b"one\ntwo\nthree\n"
    assert os.stat(path, dir_fd=beside).st_size == 14
assert os.read(os.open("../text", os.O_RDONLY, dir_fd=beside), 100) == b"one\ntwo\nthree\n"
print("read")
"#;
    assert_eq!(printed(&source, &mounts, program, &folder), "read\n");
}

#[test]
fn a_read_without_memory_fails_as_the_kernels_does() {
    let source = Source { folder: PlainFolder::new(&[("a/large.bin", 20_000_003)]) };
    let [_, (mounts, folder)] = source.mounts();
    let program = r#"
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
fd = os.open(sys.argv[1] + "/a/large.bin", os.O_RDONLY)
assert "memfd" not in os.readlink(f"/proc/self/fd/{fd}"), "it is read through the tier"
for result in (libc.read(fd, None, 10), libc.pread(fd, None, 10, ctypes.c_long(5))):
    assert result == -1 and ctypes.get_errno() == 14, (result, ctypes.get_errno())
assert len(os.read(fd, 10)) == 10 and os.lseek(fd, 0, os.SEEK_CUR) == 10
print("refused")
"#;
    assert_eq!(printed(&source, &mounts, program, &folder), "refused\n");
}

#[test]
fn a_path_that_does_not_fit_into_the_buffer_ends_the_program_as_in_the_c_library() {
    let source = Source::new();
    let [(mounts, folder), _] = source.mounts();
    let program = r#"
import ctypes, os, sys
libc = ctypes.CDLL(None)
libc.__realpath_chk.restype = ctypes.c_void_p
path = (sys.argv[1] + "/a").encode()
def ends(room):
    if os.fork() == 0:
        os.dup2(os.open("/dev/null", os.O_WRONLY), 2)
        os._exit(0 if libc.__realpath_chk(path, ctypes.create_string_buffer(4096), ctypes.c_size_t(room)) else 1)
    return os.wait()[1]
print(ends(4096), os.WTERMSIG(ends(10)))
"#;
    assert_eq!(printed(&source, &mounts, program, &folder), "0 6\n");
}

#[test]
fn a_mount_counts_a_file_for_each_field_of_its_samples() {
    let source = Source::new();
    let image = source.path("fields.dlfs");
    image_of_fields(&image);
    let folder = source.path("fields");
    let mounts = format!("{}={}", folder.display(), image.display());
    let program = "import os, sys; print(os.statvfs(sys.argv[1]).f_files)";
    assert_eq!(printed(&source, &mounts, program, &folder).trim(), "6");
}

#[test]
fn a_program_that_is_called_as_the_librarys_threads_are_sees_the_data_set() {
    let source = Source::new();
    let [(mounts, folder), _] = source.mounts();
    let program = source.path("dlfs-cat");
    symlink("/bin/cat", &program).unwrap();
    let shown = source.command(&program, &mounts).arg(folder.join("text")).output().unwrap();
    assert_eq!(succeeded(shown), "one\ntwo\nthree\n");
}

#[test]
fn relative_names_in_settings_are_of_the_folder_that_the_program_begins_in() {
    let source = Source::new();
    let program = r#"
import os, sys
os.chdir("/")
for shown in sys.argv[1:]:
    assert open(shown + "/text").read() == "one\ntwo\nthree\n", shown
    os.chdir("/usr")
    assert open(shown + "/a/one.bin", "rb").read(1) == b"\0", shown
    os.chdir("/")
print("read")
"#;
    let shown = ["image", "bare", "tiered"].map(|name| source.path(name));
    let [image, bare, tiered] = shown.each_ref().map(|path| path.display());
    let mounts = format!(
        "{image}=train.dlfs;order=order.json {bare}=plain {tiered}=plain;tier=file:kept:64M"
    );
    fs::create_dir(source.path("kept")).unwrap();
    fs::write(source.path("order.json"), r#"{"order": {"kind": "global", "seed": 7}}"#).unwrap();
    let mut command = source.command("python3", &mounts);
    command.args(["-c", program]).args(&shown).env("DLFS_REPORT", "report");
    let output = command.current_dir(source.path("")).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!errors.contains("nothing is read ahead"), "{errors}");
    assert_eq!(succeeded(output), "read\n");
    let report = fs::read_to_string(source.path("report")).unwrap();
    assert!(report.contains("read ahead"), "{report}");
    assert!(fs::read_dir(source.path("kept")).unwrap().count() > 0, "the tier is elsewhere");
}

#[test]
fn readahead_goes_on_where_samples_have_more_files_than_there_are_descriptors() {
    let source = Source::new();
    let image = dlfs::address::Address::from_path(source.path("many.dlfs"));
    let fields = ["a", "b", "c", "d", "e", "f"].map(|name| name.as_bytes().to_vec()).to_vec();
    let options = WriterOptions { fields, ..WriterOptions::default() };
    let mut writer = Writer::create(&[image], options, &ConnectOptions::default()).unwrap();
    for id in 0..400_u32 {
        let bytes = id.to_le_bytes();
        writer
            .write(&NewSample { fields: &[Some(&bytes[..]); 6], ..NewSample::default() })
            .unwrap();
    }
    writer.finish().unwrap();
    let order = r#"{"order": {"kind": "sequential", "by": "id", "seed": 0}, "batch": 100}"#;
    fs::write(source.path("order.json"), order).unwrap();
    let folder = source.path("many");
    let mounts = format!(
        "{}={};order={}",
        folder.display(),
        source.path("many.dlfs").display(),
        source.path("order.json").display()
    );
    // A batch has more files than there are descriptors, so some of its samples cannot be kept ready.
    let program = r#"
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (512, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
for id in range(400):
    for field in "abcdef":
        path = f"{sys.argv[1]}/{id:09}.{field}"
        assert open(path, "rb").read() == id.to_bytes(4, "little"), path
print("read")
"#;
    let report = source.path("report");
    let mut command = source.command("python3", &mounts);
    command.args(["-c", program]).arg(&folder).env("DLFS_REPORT", &report);
    assert_eq!(succeeded(command.output().unwrap()), "read\n");
    let report = fs::read_to_string(report).unwrap();
    let line = report.lines().rfind(|line| line.contains("read ahead: samples ")).unwrap();
    let samples = line.split("samples ").nth(1).unwrap().split(',').next().unwrap();
    // The first 42 samples take all descriptors, and the window moves on once they were opened.
    assert!(samples.parse::<u64>().unwrap() >= 200, "{line}");
}

#[test]
fn a_forked_child_reports_what_it_has_opened_itself() {
    let source = Source::new();
    let program = r#"
import os, sys
top = sys.argv[1]
for name in ("text", "top", "a/one.bin"):
    assert open(top + "/" + name, "rb").read()
if os.fork() == 0:
    assert open(top + "/text", "rb").read()
    sys.exit()
assert os.wait()[1] == 0
if os.fork() == 0:
    sys.exit()
assert os.wait()[1] == 0
"#;
    for (number, (mounts, folder)) in source.mounts().into_iter().enumerate() {
        let report = source.path(&format!("report-{number}"));
        let mut command = source.command("python3", &mounts);
        command.args(["-c", program]).arg(&folder).env("DLFS_REPORT", &report);
        succeeded(command.output().unwrap());
        let report = fs::read_to_string(report).unwrap();
        let opens = report.lines().filter(|line| line.contains(", folders ")).map(|line| {
            line.split(": opens ").nth(1).unwrap().split(',').next().unwrap().to_owned()
        });
        assert_eq!(opens.collect::<Vec<_>>(), ["1", "3"], "{report}");
    }
}

#[test]
fn older_calls_that_change_a_file_fail_and_leave_a_plain_folder_as_it_is() {
    let source = Source::new();
    let program = r#"
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
top = sys.argv[1].encode()
file, new, folder = top + b"/text", top + b"/new", os.open(top, os.O_PATH)
for name, *arguments in [
    ("utime", file, None), ("utimes", file, None), ("lutimes", file, None), ("futimesat", folder, b"text", None),
    ("mkfifoat", folder, b"new", 0o600), ("mknodat", folder, b"new", 0o100600, 0), ("mkfifo", new, 0o600),
]:
    if not hasattr(libc, name):
        continue  # glibc has mknodat since 2.33
    ctypes.set_errno(0)
    assert getattr(libc, name)(*arguments) == -1 and ctypes.get_errno() == 30, (name, ctypes.get_errno())
print("refused")
"#;
    let state = |name: &str| {
        let metadata = fs::metadata(source.path("plain").join(name)).ok()?;
        Some((metadata.modified().unwrap(), metadata.len()))
    };
    let before = state("text");
    for (mounts, folder) in source.mounts() {
        assert_eq!(printed(&source, &mounts, program, &folder), "refused\n");
    }
    assert!(before.is_some() && state("text") == before && state("new").is_none());
}
