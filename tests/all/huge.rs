//! An image of very many samples: what opening it and reading from it takes of memory.
//!
//! `DLFS_TEST_SAMPLES=1000000000 cargo test --release --test all huge:: -- --nocapture` takes 9 GB of disk below
//! `TMPDIR`, and as much memory.

use std::time::Instant;

use crate::support::alone::ran_alone;
use crate::support::huge_image::{SAMPLE_BYTES, SAMPLES_PER_CHUNK, write_image};
use dlfs::address::Address;
use dlfs::dataset::{Image, OpenOptions};
use dlfs::order::{OrderKind, OrderSpec};
use dlfs::prefetch::LoaderOptions;
use dlfs::reader::{Batch, ReaderOptions};
use dlfs::units::SampleId;

/// Checkpoint, length and checksum of a sample, a little of the chunk table, and nothing else.
const COLUMNS_BYTES: f64 = 8.0 + 8.0 / 32.0 + 40.0 / SAMPLES_PER_CHUNK as f64;
const WINDOW_BYTES: usize = 16 << 20;
/// Threads, queues, and buffers of this program; more of them, and page tables, beside a long column.
const OTHER_BYTES: u64 = 20 << 20;
/// The columns' part that is granted for those: a lookup tree would take all of it again.
const OTHER_PART: u64 = 33;

/// The most memory that was resident so far, in bytes.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

fn right(batch: &Batch, samples: usize) {
    assert_eq!(batch.len(), samples);
    for at in 0..batch.len() {
        assert_eq!(batch.bytes(at), [0; SAMPLE_BYTES as usize]);
    }
}

/// In a process of its own: what others touch would count.
#[test]
fn reading_by_id_keeps_no_tree_and_no_names_in_memory() {
    if ran_alone(reading_by_id_keeps_no_tree_and_no_names_in_memory) {
        return;
    }
    let samples = std::env::var("DLFS_TEST_SAMPLES").map_or(4_000_000, |n| n.parse().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("huge.dlfs");
    let begun = Instant::now();
    write_image(&path, samples);
    println!("{samples} samples, written within {:.1?}", begun.elapsed());
    let before = peak_bytes();

    let begun = Instant::now();
    let image = Image::open(&[Address::from_path(&path)], &OpenOptions::default()).unwrap();
    let opened = begun.elapsed();
    assert_eq!(image.directory().num_live(), samples);
    assert!(!image.directory().has_tree() && !image.directory().has_names());

    let ids: Vec<SampleId> = (0..256).map(|n| SampleId(n * 0x9E37_79B9 % samples)).collect();
    let begun = Instant::now();
    let mut batch = Batch::new();
    image.reader(ReaderOptions::default()).unwrap().read_batch(&ids, &mut batch).unwrap();
    let read = begun.elapsed();
    right(&batch, ids.len());

    let begun = Instant::now();
    let order = OrderSpec { kind: OrderKind::Grouped { lanes: 1, group: 2 }, seed: 7 };
    let mut options = LoaderOptions::new(order, 64, 1);
    options.window_bytes = WINDOW_BYTES;
    let mut loader = image.prefetcher(options).unwrap();
    assert!(loader.next_into(&mut batch).unwrap());
    let loaded = begun.elapsed();
    right(&batch, 64);
    drop(loader);

    let grown = peak_bytes() - before;
    let columns = (samples as f64 * COLUMNS_BYTES) as u64;
    println!(
        "opened within {opened:.1?}, 256 ids read within {read:.1?}, first batch {loaded:.1?}"
    );
    println!("resident: {grown} bytes more, of them columns {columns}, window {WINDOW_BYTES}");
    assert!(image.directory().memory_bytes().total() <= columns + 4096, "only columns");
    // The tree alone would take 8 bytes a sample.
    let others = OTHER_BYTES + columns / OTHER_PART;
    assert!(grown <= columns + WINDOW_BYTES as u64 + others, "memory beside the columns");
    // Names were never written, and nobody missed it.
    assert!(image.lookup(b"one").is_err());
}
