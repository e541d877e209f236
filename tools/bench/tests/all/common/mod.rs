//! Runs the real `dlfs-bench`, with a time limit, on files in temporary folders.

#[path = "../../../../../tests/support/program.rs"]
mod program;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use dlfs::qpair::Device;
use dlfs::qpair::mem::MemNamespace;
use dlfs::target::{Target, TargetOptions};

pub(crate) use program::*;

/// The binary under test.
pub(crate) fn bench() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dlfs-bench"));
    command.stdin(Stdio::null());
    command
}

/// Runs it with `arguments` to its end.
pub(crate) fn run<A: AsRef<OsStr>>(arguments: &[A]) -> Ran {
    let mut command = bench();
    command.args(arguments);
    finish(command)
}

/// A temporary folder.
pub(crate) struct TestDir(tempfile::TempDir);

impl TestDir {
    pub(crate) fn new() -> TestDir {
        TestDir(tempfile::tempdir().expect("a temporary folder"))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn folder(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).expect("a file in the temporary folder");
        path
    }
}

/// A served namespace in memory.
pub(crate) fn target(len: u64, writable: bool) -> (Target, String) {
    let nqn = "nqn.2026-11.io.dlfs:bench".parse().unwrap();
    let options = TargetOptions { writable, ..TargetOptions::new(nqn) };
    let device: Arc<dyn Device> = Arc::new(MemNamespace::new(len, 512).unwrap());
    let target = Target::bind(options, vec![device]).unwrap();
    let address = target.local_addr();
    let name = format!("nvme-tcp://{address}/nqn.2026-11.io.dlfs:bench?ns=1");
    (target, name)
}

/// Waits until `is_so`; fails if that takes longer than any test should.
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let limit = Instant::now() + EVENT_LIMIT;
    while !is_so() {
        assert!(Instant::now() < limit, "not within {EVENT_LIMIT:?}: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// No event of a test takes this long, except on a heavily loaded machine.
const EVENT_LIMIT: Duration = Duration::from_secs(120);
