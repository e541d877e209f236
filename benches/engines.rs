//! The speed of one thread that reads through each engine, without a network: I/Os and bytes per
//! second.

mod support;

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::file::{FileCalls, FileNamespace, FileOptions};
use dlfs::qpair::mem::MemNamespace;
use dlfs::qpair::{Device, Direct};
use dlfs::units::Lba;
use support::Options;
use support::random_reads::{random_below, random_reads};

const USAGE: &str = "cargo bench --bench engines -- [--dir DIR] [--size BYTES] [--seconds S]

Reads blocks at random from memory and from a file in DIR: from the page cache, and with O_DIRECT.
One thread, pinned.";

fn main() {
    support::results::record("engines");
    let options = Options::parse(
        USAGE,
        &[("dir", "target"), ("size", "512M"), ("seconds", "1"), ("rounds", "3")],
    );
    let size = options.number("size");
    let seconds = options.number("seconds");
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
            let rounds = (0..options.number("rounds")).map(|round| {
                let blocks = (len / 4096) as u64;
                let mut place = random_below(device.namespace().num_blocks / blocks, round);
                random_reads(&**device, len, depth, limit, || Lba(place() * blocks))
            });
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
