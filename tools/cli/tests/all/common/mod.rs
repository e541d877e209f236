//! Runs the real `dlfs`, with a time limit, on small data sets in temporary folders.

mod ports;
#[path = "../../../../../tests/support/program.rs"]
mod program;
#[allow(dead_code, unreachable_pub)] // shared with the library's tests
#[path = "../../../../../tests/support/random.rs"]
pub(crate) mod random;

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

pub(crate) use ports::free_port;
pub(crate) use program::*;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with};
use serde_json::Value;

/// The binary under test, with no terminal and a clean environment of options.
pub(crate) fn dlfs() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dlfs"));
    command.stdin(Stdio::null()).env_remove("NO_COLOR");
    command
}

/// [`dlfs`] in an address space of 1 GiB: it aborts if it keeps what has no end.
pub(crate) fn dlfs_in_little_memory() -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -v 1048576; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_dlfs")]);
    command.stdin(Stdio::null()).env_remove("NO_COLOR");
    command
}

/// Runs `dlfs` with `arguments` to its end.
pub(crate) fn run<A: AsRef<OsStr>>(arguments: &[A]) -> Ran {
    let mut command = dlfs();
    command.args(arguments);
    finish(command)
}

/// A temporary folder with a data set and images.
pub(crate) struct TestDir(tempfile::TempDir);

impl TestDir {
    pub(crate) fn new() -> TestDir {
        TestDir(tempfile::tempdir().expect("a temporary folder"))
    }

    /// A folder with the small data set of [`TestDir::make_source`].
    pub(crate) fn with_source() -> TestDir {
        let dir = TestDir::new();
        dir.make_source("source");
        dir
    }

    /// A folder with the data set imported into `train.dlfs`.
    pub(crate) fn with_image() -> TestDir {
        let dir = TestDir::with_source();
        run(&[
            OsStr::new("import"),
            dir.path("source").as_os_str(),
            dir.path("train.dlfs").as_os_str(),
        ])
        .code(0);
        dir
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// As text, for a command line.
    pub(crate) fn arg(&self, name: &str) -> String {
        self.path(name).to_str().expect("temporary folders are named in UTF-8").to_owned()
    }

    /// Three classes of a hundred samples, 0 to some 20,000 bytes each.
    pub(crate) fn make_source(&self, name: &str) {
        for (class, folder) in ["cat", "dog", "newt"].iter().enumerate() {
            let folder = self.path(name).join(folder);
            fs::create_dir_all(&folder).expect("a new folder");
            for index in 0..100_usize {
                let path = folder.join(format!("{index:03}.bin"));
                fs::write(path, sample(class, index)).expect("a new file");
            }
        }
    }

    /// The files below `name`, by relative path.
    pub(crate) fn files(&self, name: &str) -> Vec<(PathBuf, Vec<u8>)> {
        let root = self.path(name);
        let mut files = Vec::new();
        collect_files(&root, &root, &mut files);
        files.sort();
        files
    }
}

/// Pseudo-random bytes that differ from those of every other sample.
fn sample(class: usize, index: usize) -> Vec<u8> {
    let len = match index {
        0 => 0,
        index => (index * index * 2 + class * 17) % 20_011,
    };
    (0..len).map(|at| (at * 31 + index * 7 + class * 101) as u8).collect()
}

fn collect_files(root: &Path, folder: &Path, files: &mut Vec<(PathBuf, Vec<u8>)>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            collect_files(root, &path, files);
        } else {
            let name = path.strip_prefix(root).expect("below the root").to_path_buf();
            files.push((name, fs::read(&path).expect("a file")));
        }
    }
}

/// An address where connections are refused, as long as the socket lives.
pub(crate) fn refusing() -> (OwnedFd, String) {
    // Bound, so that nobody else gets the port, and not listening.
    let bound = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let bound = bound.expect("a socket");
    bind(&bound, &SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port");
    let address = SocketAddr::try_from(getsockname(&bound).expect("it is bound"));
    (bound, address.expect("of IPv4").to_string())
}

/// A running `dlfs serve` on a free port; it is stopped when this is dropped.
pub(crate) struct Served {
    pub(crate) child: Child,
    pub(crate) address: String,
    pub(crate) said: Value,
    _stdout: BufReader<ChildStdout>,
}

impl Served {
    pub(crate) fn start(image: &str, options: &[&str]) -> Served {
        let mut command = dlfs();
        command.args(["serve", image, "--listen", "127.0.0.1:0", "--json"]).args(options);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("dlfs starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        stdout.read_line(&mut line).expect("a pipe can be read");
        let said: Value = serde_json::from_str(&line).expect("serve says where it listens");
        let address = said["address"].as_str().expect("an address").to_owned();
        Served { child, address, said, _stdout: stdout }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            signal(&self.child, "TERM");
            wait(&mut self.child);
        }
    }
}
