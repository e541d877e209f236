//! Programs in C, built as a user builds them and run plainly, under AddressSanitizer and in valgrind.
//!
//! What the machine lacks is skipped, loudly.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use dlfs::import::{ImportOptions, import};
use dlfs::nvme::Address;
use dlfs::qpair::{self, ConnectOptions};
use dlfs::target::{Target, TargetOptions};
use dlfs::units::{Nsid, SampleId};
use dlfs::volume::{Image, OpenOptions};

/// libdlfs, installed; `None` where programs in C cannot be built.
fn prefix() -> Option<&'static Path> {
    static PREFIX: OnceLock<Option<tempfile::TempDir>> = OnceLock::new();
    let prefix = PREFIX.get_or_init(|| {
        if !(has("cc") && has("pkg-config") && has("python3")) {
            return None;
        }
        let prefix = tempfile::tempdir().unwrap();
        // This program lies in the folder where cargo has built the library.
        let built = std::env::current_exe().unwrap().parent().unwrap().to_path_buf();
        let install = here().join("install");
        run(Command::new("python3").arg(install).arg(prefix.path()).arg("--from").arg(built));
        Some(prefix)
    });
    if prefix.is_none() {
        println!("SKIPPED: cc, pkg-config and python3 are needed");
    }
    prefix.as_ref().map(tempfile::TempDir::path)
}

/// Memory that nothing points to any more is an error.
const LEAKS: &str = "--leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite";

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output();
    found.is_ok_and(|output| output.status.success())
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{text}{complaints}", output.status);
    text
}

/// How a program is built and run.
#[derive(Debug, Clone, Copy, PartialEq)]
enum How {
    Plain,
    Static,
    Asan,
    Valgrind,
}

impl How {
    /// All that this machine has; says what it has not.
    fn all() -> Vec<How> {
        let mut ways = vec![How::Plain, How::Static];
        if has_asan() {
            ways.push(How::Asan);
        } else {
            println!("SKIPPED: cc has no AddressSanitizer here");
        }
        if has("valgrind") {
            ways.push(How::Valgrind);
        } else {
            println!("SKIPPED: valgrind is not installed");
        }
        ways
    }
}

fn has_asan() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let (source, program) = (folder.path().join("a.c"), folder.path().join("a"));
        fs::write(&source, "int main(void) { return 0; }").unwrap();
        let mut cc = Command::new("cc");
        cc.arg("-fsanitize=address,undefined").arg(&source).arg("-o").arg(&program);
        cc.output().is_ok_and(|output| output.status.success())
            && Command::new(&program).output().is_ok_and(|output| output.status.success())
    })
}

/// A source file, built against the installed library.
struct Program {
    folder: tempfile::TempDir,
    how: How,
}

impl Program {
    fn build(prefix: &Path, source: &Path, how: How) -> Program {
        let folder = tempfile::tempdir().unwrap();
        let pkg_config = |option: &[&str]| {
            let mut command = Command::new("pkg-config");
            command.args(option).arg("dlfs");
            let text = run(command.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")));
            text.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        let plus = source.extension() == Some(OsStr::new("cpp"));
        let mut cc = Command::new(if plus { "c++" } else { "cc" });
        cc.args([if plus { "-std=c++11" } else { "-std=gnu99" }, "-g", "-O1", "-pthread"]);
        cc.args(["-Wall", "-Wextra", "-Wpedantic", "-Werror"]).arg(source);
        cc.args(pkg_config(&["--cflags"]));
        if how == How::Asan {
            cc.args(["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]);
        }
        if how == How::Static {
            cc.arg(prefix.join("lib/libdlfs.a"));
            let libraries = pkg_config(&["--libs", "--static"]);
            cc.args(libraries.iter().filter(|name| *name != "-ldlfs"));
        } else {
            cc.args(pkg_config(&["--libs"]));
            cc.arg(format!("-Wl,-rpath,{}", prefix.join("lib").display()));
        }
        run(cc.arg("-o").arg(folder.path().join("program")));
        Program { folder, how }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let program = self.folder.path().join("program");
        let mut command = match self.how {
            How::Valgrind => {
                let mut valgrind = Command::new("valgrind");
                valgrind.args(["-q", "--error-exitcode=9", "--fair-sched=yes"]);
                let known = here().join("tests/c/valgrind.supp");
                valgrind.arg(format!("--suppressions={}", known.display()));
                valgrind.env("VALGRIND_OPTS", LEAKS);
                valgrind.arg(program);
                valgrind
            }
            _ => Command::new(program),
        };
        command.args(arguments);
        command
    }

    fn run(&self, arguments: &[&str]) -> String {
        run(&mut self.command(arguments))
    }
}

/// A data set of 180 samples in 3 classes, as tests/c/check.h knows it.
struct Source {
    temp: tempfile::TempDir,
}

impl Source {
    fn new() -> Source {
        let temp = tempfile::tempdir().unwrap();
        for id in 0..180usize {
            let folder = temp.path().join(format!("files/class{}", id / 60));
            fs::create_dir_all(&folder).unwrap();
            let bytes: Vec<u8> = (0..id * 37 % 5000).map(|i| (id * 31 + i * 7) as u8).collect();
            fs::write(folder.join(format!("{:04}", id % 60)), bytes).unwrap();
        }
        let source = Source { temp };
        source.import("files", "train.dlfs");
        source
    }

    fn import(&self, from: &str, to: &str) {
        let options = ImportOptions { chunk_size_bytes: 64 << 10, ..ImportOptions::default() };
        let (from, to) = (self.temp.path().join(from), Address::from_path(self.path(to)));
        import(&[from], &[to], &options, &ConnectOptions::default(), &mut ()).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    fn address(&self) -> String {
        self.path("train.dlfs").to_str().unwrap().to_owned()
    }

    fn serve(&self) -> Target {
        let image = Address::from_path(self.path("train.dlfs"));
        let device = qpair::open(&image, &ConnectOptions::default()).unwrap();
        let listen: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let nqn = "nqn.2026-11.io.dlfs:train".parse().unwrap();
        Target::bind(TargetOptions { listen, ..TargetOptions::new(nqn) }, vec![device]).unwrap()
    }
}

#[test]
fn every_function_is_right_used_right_and_an_error_used_wrong() {
    let Some(prefix) = prefix() else { return };
    let source = Source::new();
    fs::create_dir(source.path("other")).unwrap();
    fs::write(source.path("other/one"), "1").unwrap();
    source.import("other", "other.dlfs");
    let target = source.serve();
    let (other, folder) = (source.path("other.dlfs"), source.temp.path());
    let (other, folder) = (other.to_str().unwrap(), folder.to_str().unwrap());
    for how in How::all() {
        let program = Program::build(prefix, &here().join("tests/c/api.c"), how);
        for address in [source.address(), target.address(Nsid(1)).to_string()] {
            println!("{how:?} {address}");
            program.run(&[&address, other, folder]);
        }
    }
}

#[test]
fn threads_share_handles_and_children_of_forks_read_on() {
    let Some(prefix) = prefix() else { return };
    let source = Source::new();
    let target = source.serve();
    for how in How::all() {
        let program = Program::build(prefix, &here().join("tests/c/threads.c"), how);
        let forks = match how {
            // A thousand in all where it is quick, half of them while threads read.
            How::Plain => "250",
            // A child may find the sanitizer's allocator locked by a thread that it does not have
            // (google/sanitizers issue 774, gcc before 14): threads alone there.
            How::Asan => "0",
            How::Static | How::Valgrind => "3",
        };
        for address in [source.address(), target.address(Nsid(1)).to_string()] {
            println!("{how:?} {address}");
            // A child leaves alone, and so leaks, what its parent's threads had: that is the rule.
            run(program.command(&[&address, forks]).env("VALGRIND_OPTS", "--leak-check=no"));
        }
    }
}

#[test]
fn a_target_that_goes_away_is_an_error_in_time() {
    let Some(prefix) = prefix() else { return };
    let source = Source::new();
    let ways = How::all().into_iter().filter(|how| *how != How::Static);
    for how in ways {
        let target = source.serve();
        let program = Program::build(prefix, &here().join("tests/c/away.c"), how);
        let mut command = program.command(&[&target.address(Nsid(1)).to_string()]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        target.stop();
        let output = child.wait_with_output().unwrap();
        let complaints = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{how:?}: {line}{complaints}");
    }
}

#[test]
fn blocks_of_a_namespace_are_written_and_read_without_a_data_set() {
    let Some(prefix) = prefix() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (file, served) = (folder.path().join("blocks"), folder.path().join("served"));
    for path in [&file, &served] {
        fs::write(path, vec![0; 1 << 20]).unwrap();
    }
    let connect = ConnectOptions { writable: true, ..ConnectOptions::default() };
    let device = qpair::open(&Address::from_path(served), &connect).unwrap();
    let nqn = "nqn.2026-11.io.dlfs:blocks".parse().unwrap();
    let options = TargetOptions {
        listen: "127.0.0.1:0".parse().unwrap(),
        writable: true,
        ..TargetOptions::new(nqn)
    };
    let target = Target::bind(options, vec![device]).unwrap();
    for how in How::all() {
        let program = Program::build(prefix, &here().join("tests/c/blocks.c"), how);
        for address in [file.to_str().unwrap(), &target.address(Nsid(1)).to_string()] {
            println!("{how:?} {address}");
            // A child leaves alone, and so leaks, what its parent's queue pair had.
            run(program.command(&[address]).env("VALGRIND_OPTS", "--leak-check=no"));
        }
    }
}

#[test]
fn a_damaged_sample_costs_what_the_caller_says() {
    let Some(prefix) = prefix() else { return };
    let source = Source::new();
    let image = Address::from_path(source.path("train.dlfs"));
    let image = Image::open(&[image], &OpenOptions::default()).unwrap();
    let extent = image.directory().extent(SampleId(100)).unwrap();
    let mut bytes = fs::read(source.path("train.dlfs")).unwrap();
    bytes[extent.offset_bytes as usize + 7] ^= 4;
    fs::write(source.path("train.dlfs"), bytes).unwrap();
    let target = source.serve();
    for how in How::all() {
        let program = Program::build(prefix, &here().join("tests/c/damage.c"), how);
        for address in [source.address(), target.address(Nsid(1)).to_string()] {
            println!("{how:?} {address}");
            program.run(&[&address, "100"]);
        }
    }
}

#[test]
fn a_program_may_end_with_everything_open_and_reads_under_way() {
    let Some(prefix) = prefix() else { return };
    let source = Source::new();
    let target = source.serve();
    for how in How::all() {
        let program = Program::build(prefix, &here().join("tests/c/leave.c"), how);
        for address in [source.address(), target.address(Nsid(1)).to_string()] {
            println!("{how:?} {address}");
            (0..5).for_each(|_| drop(program.run(&[&address])));
        }
    }
}

/// SPDK's host reads our target: nothing but the library needs to have been built with it.
#[cfg(feature = "spdk")]
#[test]
fn programs_read_by_spdks_host_too() {
    let Some(prefix) = prefix() else { return };
    let source = Source::new();
    let target = source.serve();
    let address = format!("spdk:{}", target.address(Nsid(1)));
    let example = Program::build(prefix, &here().join("examples/epoch.c"), How::Plain);
    let said = example.run(&[&address]);
    assert_eq!(said, example.run(&[&source.address()]), "an epoch by SPDK and from the file");
    let leave = Program::build(prefix, &here().join("tests/c/leave.c"), How::Plain);
    (0..3).for_each(|_| drop(leave.run(&[&address])));
}

#[test]
fn tiers_of_a_mount_change_where_samples_come_from_and_nothing_else() {
    let Some(prefix) = prefix() else { return };
    let source = Source::new();
    let file = source.path("tiers.toml");
    let toml =
        "[[tier]]\nbackend = \"memory\"\ncapacity = \"1M\"\nread = [{ threads = 1, mb_per_s = 9 }]";
    fs::write(&file, toml).unwrap();
    for how in How::all() {
        let folder = source.path(&format!("{how:?}"));
        fs::create_dir(&folder).unwrap();
        let tier = format!("file:{}:8M", folder.display());
        let program = Program::build(prefix, &here().join("tests/c/tiers.c"), how);
        program.run(&[&source.address(), &tier, file.to_str().unwrap()]);
    }
}

#[test]
fn fields_of_a_sample_are_told_apart() {
    let Some(prefix) = prefix() else { return };
    if !has("tar") {
        println!("SKIPPED: tar is needed");
        return;
    }
    let source = Source::new();
    let folder = source.path("shard");
    fs::create_dir(&folder).unwrap();
    for (name, bytes) in
        [("a.cls", "4"), ("a.txt", "hello"), ("b.cls", "5"), ("c.cls", "6"), ("c.txt", "hello")]
    {
        fs::write(folder.join(name), bytes).unwrap();
    }
    let mut tar = Command::new("tar");
    tar.arg("-cf").arg(source.path("shard.tar")).arg("-C").arg(&folder);
    run(tar.args(["a.cls", "a.txt", "b.cls", "c.cls", "c.txt"]));
    source.import("shard.tar", "fields.dlfs");
    let image = source.path("fields.dlfs");
    for how in How::all() {
        let program = Program::build(prefix, &here().join("tests/c/fields.c"), how);
        program.run(&[image.to_str().unwrap()]);
    }
}

#[test]
fn the_examples_do_what_they_say() {
    let Some(prefix) = prefix() else { return };
    let source = Source::new();
    let bytes: usize = (0..180).map(|id| id * 37 % 5000).sum();
    let target = source.serve();
    for how in How::all() {
        let epoch = Program::build(prefix, &here().join("examples/epoch.c"), how);
        let files = Program::build(prefix, &here().join("examples/files.c"), how);
        for address in [source.address(), target.address(Nsid(1)).to_string()] {
            let state = source.path("run.json");
            let out = epoch.run(&[&address, "50", "2", state.to_str().unwrap()]);
            let line = format!("180 samples, {bytes} bytes, labels add up to 180");
            assert_eq!(out.matches(&line).count(), 2, "{out}");
            let again = epoch.run(&[&address, "50", "2", state.to_str().unwrap()]);
            assert_eq!(again, "", "the state says that all is read");
            fs::remove_file(state).unwrap();
            let out = files.run(&[&address, "class1"]);
            assert!(out.starts_with("class1/0000 has 2220 bytes\n60 samples, "), "{out}");
        }
    }
}

#[test]
fn the_header_is_c_plus_plus_too() {
    let Some(prefix) = prefix() else { return };
    if !has("c++") {
        println!("SKIPPED: c++ is needed");
        return;
    }
    let source = Source::new();
    Program::build(prefix, &here().join("tests/c/plus.cpp"), How::Plain).run(&[&source.address()]);
}

#[test]
fn the_program_in_the_readme_prints_what_the_readme_says() {
    let Some(prefix) = prefix() else { return };
    let readme = fs::read_to_string(here().join("README.md")).unwrap();
    let block = |language: &str| {
        let begin = readme.find(&format!("```{language}\n")).expect("a block") + 4 + language.len();
        let rest = &readme[begin..];
        rest[..rest.find("```").expect("its end")].to_owned()
    };
    let source = Source::new();
    let file = source.path("first.c");
    fs::write(&file, block("c")).unwrap();
    let out = Program::build(prefix, &file, How::Plain).run(&[&source.address()]);
    assert_eq!(out, block("text"));
}

#[test]
fn the_version_is_the_package_s_everywhere() {
    let version = env!("CARGO_PKG_VERSION");
    let pc = fs::read_to_string(here().join("dlfs.pc")).unwrap();
    assert!(pc.contains(&format!("\nVersion: {version}\n")), "{pc}");
    let build = fs::read_to_string(here().join("build.rs")).unwrap();
    let major = version.split('.').next().unwrap();
    assert!(build.contains(&format!("libdlfs.so.{major}\"")), "the soname has the major version");
}
