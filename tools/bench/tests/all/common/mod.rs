//! Runs the real `dlfs-bench`, with a time limit, on files in temporary folders.

#[path = "../../../../../tests/support/program.rs"]
mod program;

use std::ffi::OsStr;
use std::fs;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Deserializer, StreamDeserializer, Value, de::IoRead};

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

/// A run that prints its figures as JSON documents when it is asked to.
pub(crate) struct Reporting {
    child: Child,
    figures: StreamDeserializer<'static, IoRead<BufReader<ChildStdout>>, Value>,
}

impl Reporting {
    /// Starts `command`, and waits until the program handles the signals that ask for figures.
    pub(crate) fn start(mut command: Command) -> Reporting {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the program starts");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        let handled = 1 << (SIGINT - 1) | 1 << (SIGUSR1 - 1);
        wait_until("the program handles signals", || handled_signals(&child) & handled == handled);
        Reporting { child, figures: Deserializer::from_reader(stdout).into_iter() }
    }

    /// Waits for the next figures.
    pub(crate) fn next_figures(&mut self) -> Value {
        self.figures.next().expect("the run goes on").expect("figures are JSON")
    }

    /// Asks for figures again and again until `is_enough`; returns those.
    pub(crate) fn report_until(&mut self, is_enough: impl Fn(&Value) -> bool) -> Value {
        let limit = Instant::now() + EVENT_LIMIT;
        loop {
            signal(&self.child, "USR1");
            let figures = self.next_figures();
            if is_enough(&figures) {
                return figures;
            }
            assert!(Instant::now() < limit, "no more than {figures}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Interrupts the run, which ends with exit code 128; returns its last figures.
    pub(crate) fn interrupt(mut self) -> Value {
        signal(&self.child, "INT");
        let last = self.figures.map(|figures| figures.expect("figures are JSON")).last();
        assert_eq!(wait(&mut self.child).code(), Some(128));
        last.expect("an interrupted run prints its figures")
    }
}

/// The mask of signals that the child handles.
fn handled_signals(child: &Child) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).expect("it runs");
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).expect("a mask");
    u64::from_str_radix(mask.trim(), 16).expect("a hexadecimal mask")
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

const SIGINT: u32 = 2;
const SIGUSR1: u32 = 10;
