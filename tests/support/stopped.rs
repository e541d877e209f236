//! Waits until a process has stopped.

use std::fs;
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// Waits until all threads of a process that was sent SIGSTOP have stopped, or have ended: until then, one of them may
/// still answer.
pub fn wait_until_stopped(pid: u32) {
    let threads = format!("/proc/{pid}/task");
    let deadline = Instant::now() + LIMIT;
    while !all_stopped(Path::new(&threads)).unwrap_or(false) {
        assert!(Instant::now() < deadline, "process {pid} did not stop within {LIMIT:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Returns whether each of the threads has stopped or ended.
fn all_stopped(threads: &Path) -> io::Result<bool> {
    for thread in fs::read_dir(threads)? {
        let Ok(stat) = fs::read_to_string(thread?.path().join("stat")) else { continue };
        let state = stat.rsplit(") ").next().unwrap_or_default();
        if !state.starts_with(['T', 't', 'Z']) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// No process takes this long, except on a heavily loaded machine.
const LIMIT: Duration = Duration::from_secs(240);
