//! Runs the real `dlfs-bench`, with a time limit, on files in temporary folders.
#![allow(dead_code, unreachable_pub)] // each test program uses its own part of it

#[path = "../../../../tests/support/program.rs"]
mod program;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub use program::*;

/// The binary under test.
pub fn bench() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dlfs-bench"));
    command.stdin(Stdio::null());
    command
}

/// Runs it with `arguments` to its end.
pub fn run<A: AsRef<OsStr>>(arguments: &[A]) -> Ran {
    let mut command = bench();
    command.args(arguments);
    finish(command)
}

/// A temporary folder.
pub struct Place(tempfile::TempDir);

impl Place {
    pub fn new() -> Place {
        Place(tempfile::tempdir().expect("a temporary folder"))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn folder(&self) -> &Path {
        self.0.path()
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).expect("a file in the temporary folder");
        path
    }
}
