//! One thread that reads blocks of a device, as fast as it can.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use dlfs::buf::{HugePages, Pool, PoolOptions};
use dlfs::qpair::group::PollGroup;
use dlfs::qpair::{Device, Io, IoOp};
use dlfs::units::Lba;

use super::Stopwatch;

/// Reads `len` bytes at each of `places`, `depth` at a time, for `limit`: reads a second, and processor time
/// of a read in microseconds.
pub fn random_reads(
    device: &dyn Device,
    len: usize,
    depth: usize,
    limit: Duration,
    mut places: impl FnMut() -> Lba,
) -> (f64, f64) {
    let pool = Pool::new(PoolOptions {
        bytes: depth * len,
        slot_len_bytes: len,
        huge_pages: HugePages::Auto,
    });
    let pool = pool.expect("memory for the reads");
    let mut group = PollGroup::new().expect("a group");
    group.add(device.queue_pair().expect("a queue pair"));
    let io = |buf, slba| Io { op: IoOp::Read, slba, buf, tag: 0 };
    let mut pending: VecDeque<Io> =
        (0..depth).map(|_| io(pool.take(len).expect("a slot for each"), places())).collect();
    let mut done = Vec::with_capacity(depth);
    let mut count = 0u64;
    let watch = Stopwatch::start();
    loop {
        group.submit(0, &mut pending);
        let now = Instant::now();
        if group.poll(now, depth, &mut done) == 0 {
            group.wait(now + limit);
        }
        for (_, completion) in done.drain(..) {
            completion.result.expect("a read");
            count += 1;
            pending.push_back(io(completion.buf, places()));
        }
        if watch.elapsed() > limit {
            break;
        }
    }
    let (wall, cpu) = watch.seconds();
    (count as f64 / wall, cpu * 1e6 / count as f64)
}

/// Numbers below `end` that look random, the same for the same `seed`.
pub fn random_below(end: u64, seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 32) * end) >> 32
    }
}
