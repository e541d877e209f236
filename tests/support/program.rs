//! Runs a program of this workspace to its end, with a time limit, and collects its output.
#![allow(dead_code, unreachable_pub)] // each test program uses its own part of it

#[path = "stopped.rs"]
mod stopped;

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// The result of a run.
pub struct Ran {
    pub status: ExitStatus,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Ran {
    /// Asserts the exit code; prints the output if it is another.
    #[track_caller]
    pub fn code(self, expected: i32) -> Ran {
        let stdout = String::from_utf8_lossy(&self.stdout);
        let found = self.status.code();
        assert_eq!(found, Some(expected), "stdout:\n{stdout}\nstderr:\n{}", self.stderr);
        self
    }

    /// Asserts success, with nothing on standard error.
    #[track_caller]
    pub fn quiet(self) -> Ran {
        let ran = self.code(0);
        assert_eq!(ran.stderr, "");
        ran
    }

    /// Standard output as text.
    #[track_caller]
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).expect("standard output is UTF-8")
    }

    /// Standard output as one JSON value, with nothing else beside it.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|error| {
            panic!("no JSON ({error}): {}", String::from_utf8_lossy(&self.stdout))
        })
    }

    /// Asserts that the error output contains these words.
    #[track_caller]
    pub fn complains_of(&self, words: &[&str]) {
        for word in words {
            assert!(self.stderr.contains(word), "no {word:?} in:\n{}", self.stderr);
        }
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
    }
}

/// Runs `command` to its end; fails if that takes longer than any test should.
pub fn finish(mut command: Command) -> Ran {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    end_of(child.expect("the program starts"))
}

/// Waits for the end of a child whose output is piped.
pub fn end_of(mut child: Child) -> Ran {
    let stdout = collect(child.stdout.take().expect("piped"));
    let stderr = collect(child.stderr.take().expect("piped"));
    let status = wait(&mut child);
    let stdout = stdout.join().expect("the reading thread does not panic");
    let stderr = stderr.join().expect("the reading thread does not panic");
    Ran { status, stdout, stderr: String::from_utf8_lossy(&stderr).into_owned() }
}

fn collect(mut pipe: impl Read + Send + 'static) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).expect("a pipe can be read");
        bytes
    })
}

/// Waits for the child's end; kills it if that takes longer than any test should.
pub fn wait(child: &mut Child) -> ExitStatus {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(status) = child.try_wait().expect("the child is ours") {
            return status;
        }
        if Instant::now() > deadline {
            child.kill().expect("the child is ours");
            panic!("it did not end within {LIMIT:?}");
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Sends `signal` (`INT`, `TERM`, `USR1`) to the child; after `STOP`, waits until it has stopped.
pub fn signal(child: &Child, signal: &str) {
    let status =
        Command::new("kill").arg(format!("-{signal}")).arg(child.id().to_string()).status();
    assert!(status.expect("kill runs").success());
    if signal == "STOP" {
        stopped::wait_until_stopped(child.id());
    }
}

/// No test takes this long, except on a heavily loaded machine.
const LIMIT: Duration = Duration::from_secs(240);
