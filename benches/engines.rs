//! The speed of one thread that reads through each engine, without a network: I/Os and bytes per
//! second.

mod support;

use std::collections::VecDeque;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use dlfs::buf::{HugePages, Pool, PoolOptions};
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::file::{FileCalls, FileNamespace, FileOptions};
use dlfs::qpair::group::PollGroup;
use dlfs::qpair::mem::MemNamespace;
use dlfs::qpair::{Device, Direct, Io, IoOp};
use dlfs::units::Lba;
use support::{Options, Stopwatch};

const USAGE: &str = "cargo bench --bench engines -- [--dir DIR] [--size BYTES] [--seconds S]

Reads blocks at random from memory and from a file in DIR: from the page cache, and with O_DIRECT.
One thread, pinned.";

fn main() {
    support::results::record("engines");
    let options = Options::parse(
        USAGE,
        &[("dir", "target"), ("size", "512M"), ("seconds", "1"), ("rounds", "3")],
    );
    let (size, seconds) = (options.number("size"), options.number("seconds"));
    println!("{}", support::machine());
    println!(
        "random reads of a namespace of {} MiB, best of {}",
        size >> 20,
        options.number("rounds")
    );
    support::pin(0);
    let file = tempfile::NamedTempFile::new_in(options.text("dir")).expect("a file in --dir");
    write_image(file.as_file(), size);
    let file_at = |calls, direct| open_file(file.path(), calls, direct);
    let memory = MemNamespace::new(size, 4096).expect("memory for the namespace");
    fill(&memory);
    let devices: [Option<Box<dyn Device>>; 5] = [
        Some(Box::new(memory)),
        file_at(FileCalls::Auto, Direct::Off),
        file_at(FileCalls::Pread, Direct::Off),
        file_at(FileCalls::Auto, Direct::On),
        file_at(FileCalls::Pread, Direct::On),
    ];
    println!(
        "{:<28}{:>9}{:>7}{:>12}{:>10}{:>12}",
        "engine", "bytes", "depth", "reads/s", "MB/s", "CPU us/read"
    );
    for (len, depth) in [(4096, 1), (4096, 64), (131_072, 32), (1 << 20, 8)] {
        for device in devices.iter().flatten() {
            let limit = Duration::from_secs(seconds);
            let rounds = (0..options.number("rounds"))
                .map(|round| random_reads(&**device, len, depth, limit, round));
            let best = rounds.fold((0.0, 0.0), |a: (f64, f64), b| if b.0 > a.0 { b } else { a });
            let (reads_s, cpu_us) = best;
            let engine = device.namespace().engine;
            let mb_s = reads_s * len as f64 / 1e6;
            println!("{engine:<28}{len:>9}{depth:>7}{reads_s:>12.0}{mb_s:>10.0}{cpu_us:>12.2}");
        }
    }
}

/// Pages that were never written are all the same page, which every cache holds.
fn fill(memory: &MemNamespace) {
    let mut io = Blocking::new(memory.queue_pair().expect("a queue pair")).expect("a poll group");
    for offset in (0..memory.namespace().len_bytes()).step_by(1 << 20) {
        io.write_at(offset, &[1; 1 << 20]).expect("a write to memory");
    }
}

fn write_image(file: &std::fs::File, size: u64) {
    let mut block = vec![0u8; 1 << 20];
    for offset in (0..size).step_by(block.len()) {
        block.iter_mut().zip(offset..).for_each(|(byte, at)| *byte = (at ^ (at >> 9)) as u8);
        file.write_all_at(&block, offset).expect("room for the image");
    }
    file.sync_all().expect("a durable image");
}

fn open_file(path: &Path, calls: FileCalls, direct: Direct) -> Option<Box<dyn Device>> {
    let options = FileOptions { calls, direct, ..FileOptions::default() };
    match FileNamespace::open(path, options) {
        Ok(device) => Some(Box::new(device)),
        Err(error) => {
            println!("left out: {}", error.report());
            None
        }
    }
}

/// Reads per second, and processor time per read in microseconds.
fn random_reads(
    device: &dyn Device,
    len: usize,
    depth: usize,
    limit: Duration,
    seed: u64,
) -> (f64, f64) {
    let pool = Pool::new(PoolOptions {
        bytes: depth * len,
        slot_len_bytes: len,
        huge_pages: HugePages::Auto,
    });
    let pool = pool.expect("memory for the reads");
    let mut group = PollGroup::new().expect("a group");
    group.add(device.queue_pair().expect("a queue pair"));
    let blocks = (len / 4096) as u64;
    let positions = device.namespace().num_blocks / blocks;
    let mut state = seed;
    let mut place = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Lba((((state >> 32) * positions) >> 32) * blocks)
    };
    let io = |buf, slba| Io { op: IoOp::Read, slba, buf, tag: 0 };
    let mut pending: VecDeque<Io> =
        (0..depth).map(|_| io(pool.take(len).expect("a slot for each"), place())).collect();
    let (mut done, mut count) = (Vec::with_capacity(depth), 0u64);
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
            pending.push_back(io(completion.buf, place()));
        }
        if watch.elapsed() > limit {
            break;
        }
    }
    let (wall, cpu) = watch.seconds();
    (count as f64 / wall, cpu * 1e6 / count as f64)
}
