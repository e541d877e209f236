//! Over vfio-user, the host reads without the kernel: no system call per I/O.

use std::collections::VecDeque;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use dlfs::buf::{HugePages, Pool, PoolOptions};
use dlfs::qpair::{Io, open};

use super::own_process::{self, address, case};
use super::support::contract::read;
use super::{short_timeouts, target};

#[test]
fn reads_over_vfio_user_take_no_system_call() {
    if case().is_some() {
        return read_between_marks();
    }
    let Some((_alone, target)) = target(8) else { return };
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("strace");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-o"]).arg(&log);
    if !strace.arg("true").output().is_ok_and(|output| output.status.success()) {
        println!("SKIPPED: strace is not installed, or may not look at other processes");
        return;
    }
    let mut command = Command::new("strace");
    command.args(["-f", "-o"]).arg(&log).arg(std::env::current_exe().unwrap());
    own_process::run_as(
        command,
        reads_over_vfio_user_take_no_system_call,
        "reads",
        &target.vfio_user(),
    );
    let log = std::fs::read_to_string(log).unwrap();
    let calls: Vec<(&str, &str)> = log.lines().filter_map(|line| line.split_once(' ')).collect();
    let mark = |name| calls.iter().rposition(|(_, call)| call.contains(name)).expect("it was made");
    let reader = calls[mark(BEGIN)].0;
    let window = &calls[mark(BEGIN) + 1..mark(END)];
    // If the machine's clock needs a system call, those calls are not the engine's.
    let is_clock = |call: &str| call.trim_start().starts_with("clock_gettime(");
    let own: Vec<_> =
        window.iter().filter(|(pid, call)| *pid == reader && !is_clock(call)).collect();
    println!("{} system calls of others while {READS} reads were made", window.len() - own.len());
    assert!(own.is_empty(), "by the thread that reads: {own:?}");
    // The keeper polls its admin queue about 20 times per second.
    assert!(window.len() < READS / 100, "{} system calls", window.len());
}

/// Reads between two marker system calls.
fn read_between_marks() {
    let device = open(&address(), &short_timeouts(5)).unwrap();
    let mut pair = device.queue_pair().unwrap();
    let options = PoolOptions { bytes: 1 << 20, slot_len_bytes: 4096, huge_pages: HugePages::Auto };
    let pool = Pool::new(options).unwrap();
    let with_memory = |n| Io { buf: pool.take(4096).unwrap(), ..read(n, 0) };
    let mut pending: VecDeque<Io> = (0..32).map(with_memory).collect();
    let mut done = Vec::with_capacity(32);
    let mut count = 0;
    let limit = Instant::now() + Duration::from_secs(60);
    while count < WARM_UP + READS {
        if count < WARM_UP {
            assert!(!Path::new(BEGIN).exists()); // the last of them counts
        }
        pair.submit(&mut pending);
        let now = Instant::now();
        pair.poll(now, usize::MAX, &mut done);
        count += done.len();
        for completion in done.drain(..) {
            completion.result.unwrap();
            pending.push_back(Io { buf: completion.buf, ..read(count as u64 % 2048, 0) });
        }
        assert!(now < limit, "{count} reads");
    }
    assert!(!Path::new(END).exists());
}

/// The number of warm-up reads, after which heap and lists no longer grow.
const WARM_UP: usize = 1000;
const READS: usize = 200_000;
const BEGIN: &str = "/nonexistent/dlfs-window-begins";
const END: &str = "/nonexistent/dlfs-window-ends";
