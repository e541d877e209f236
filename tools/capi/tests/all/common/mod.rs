//! Shared by the tests in C: the installed library, programs built against it, and a data set.

#[path = "../../../../cli/tests/all/common/ports.rs"]
pub(crate) mod ports;

use std::ffi::OsStr;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use dlfs::address::Address;
use dlfs::import::{ImportOptions, import};
use dlfs::qpair::{self, ConnectOptions};
use dlfs::target::{Target, TargetOptions};

/// libdlfs, installed; `None` if C programs cannot be built.
pub(crate) fn prefix() -> Option<&'static Path> {
    static PREFIX: OnceLock<Option<tempfile::TempDir>> = OnceLock::new();
    let prefix = PREFIX.get_or_init(|| {
        if !(has("cc") && has("pkg-config") && has("python3")) {
            return None;
        }
        let prefix = tempfile::tempdir().unwrap();
        // This program is in the folder where cargo has built the library.
        let built = std::env::current_exe().unwrap().parent().unwrap().to_path_buf();
        let install = here().join("install");
        let mut command = Command::new("python3");
        command.arg(install).arg(prefix.path()).arg("--from").arg(built);
        if cfg!(feature = "spdk") {
            command.args(["--features", "spdk"]);
        }
        run(&mut command);
        Some(prefix)
    });
    if prefix.is_none() {
        println!("SKIPPED: cc, pkg-config and python3 are needed");
    }
    prefix.as_ref().map(tempfile::TempDir::path)
}

/// Leaked memory is an error.
const LEAKS: &str = "--leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite";

pub(crate) fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub(crate) fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output();
    found.is_ok_and(|output| output.status.success())
}

pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{text}{complaints}", output.status);
    text
}

/// How a program is built and run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum How {
    Plain,
    Static,
    Asan,
    Valgrind,
}

impl How {
    /// The ways that this machine supports; prints those that it does not. Valgrind takes minutes, and comes with
    /// `DLFS_LONG_TESTS`.
    pub(crate) fn all() -> Vec<How> {
        let mut ways = vec![How::Plain];
        if has_asan() {
            ways.push(How::Asan);
        } else {
            println!("SKIPPED: cc has no AddressSanitizer here");
        }
        if std::env::var_os("DLFS_LONG_TESTS").is_none() {
            return ways;
        }
        ways.push(How::Static);
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
        let source = folder.path().join("a.c");
        let program = folder.path().join("a");
        fs::write(&source, "int main(void) { return 0; }").unwrap();
        let mut cc = Command::new("cc");
        cc.arg("-fsanitize=address,undefined").arg(&source).arg("-o").arg(&program);
        cc.output().is_ok_and(|output| output.status.success())
            && Command::new(&program).output().is_ok_and(|output| output.status.success())
    })
}

/// A source file, built against the installed library.
pub(crate) struct Program {
    folder: tempfile::TempDir,
    how: How,
}

impl Program {
    pub(crate) fn build(prefix: &Path, source: &Path, how: How) -> Program {
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

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
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

    pub(crate) fn run(&self, arguments: &[&str]) -> String {
        run(&mut self.command(arguments))
    }
}

/// A data set of 180 samples in 3 classes, as expected by tests/c/check.h.
pub(crate) struct Source {
    pub(crate) temp: tempfile::TempDir,
}

impl Source {
    pub(crate) fn new() -> Source {
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

    pub(crate) fn import(&self, from: &str, to: &str) {
        let options = ImportOptions { chunk_size_bytes: 64 << 10, ..ImportOptions::default() };
        let from = self.temp.path().join(from);
        let to = Address::from_path(self.path(to));
        import(&[from], &[to], &options, &ConnectOptions::default(), &mut ()).unwrap();
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    pub(crate) fn address(&self) -> String {
        self.path("train.dlfs").to_str().unwrap().to_owned()
    }

    pub(crate) fn serve(&self) -> Target {
        self.serve_at("127.0.0.1:0".parse().unwrap())
    }

    pub(crate) fn serve_at(&self, listen: SocketAddr) -> Target {
        let image = Address::from_path(self.path("train.dlfs"));
        let device = qpair::open(&image, &ConnectOptions::default()).unwrap();
        let nqn = "nqn.2026-11.io.dlfs:train".parse().unwrap();
        Target::bind(TargetOptions { listen, ..TargetOptions::new(nqn) }, vec![device]).unwrap()
    }
}
