//! Processes of this test program: it runs one of its tests again, and no other.

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Runs the calling `test` again in a process of its own; returns false in that process, where the test goes on.
///
/// For tests that fork, and for those that look at what belongs to the whole process. A forked child would hold the
/// sockets and file locks of all other tests for as long as it lives.
#[must_use]
pub fn ran_alone<T: Fn()>(test: T) -> bool {
    let name = name_of(&test);
    if std::env::var(ALONE).is_ok_and(|alone| alone == name) {
        return false;
    }
    let output = again(test).env(ALONE, name).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    // Its result is this test's, and counts once.
    let told = printed.lines().filter(|line| !line.starts_with("test "));
    told.for_each(|line| println!("{line}"));
    println!("{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && printed.contains("1 passed"), "{name}: {}", output.status);
    true
}

/// Limits the memory of this process to what it uses now and `bytes` more.
pub fn leave_memory(bytes: u64) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let used = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    let used: u64 = used.trim().trim_end_matches(" kB").parse().unwrap();
    let current = Some((used << 10) + bytes);
    setrlimit(Resource::As, Rlimit { current, ..getrlimit(Resource::As) }).unwrap();
}

/// This program, to run `test` and nothing else.
pub fn again<T: Fn()>(test: T) -> Command {
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["--exact", name_of(&test), "--nocapture"]);
    program
}

/// Waits until `child` ends, for `limit` at most; returns how long it took if it has ended.
pub fn ended_within(child: &mut Child, limit: Duration) -> Option<Duration> {
    let began = Instant::now();
    loop {
        let has_ended = child.try_wait().unwrap().is_some();
        let took = began.elapsed();
        if has_ended {
            return Some(took);
        }
        let left = limit.checked_sub(took)?;
        std::thread::sleep(left.min(Duration::from_millis(1)));
    }
}

/// The name of a test function, as the program's filters take it.
pub fn name_of<T: Fn()>(_test: &T) -> &'static str {
    let path = std::any::type_name::<T>(); // crate::module::test
    path.split_once("::").expect("it begins with the crate").1
}

const ALONE: &str = "DLFS_TEST_ALONE";
