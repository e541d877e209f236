//! A folder of many small files, and one thread that opens, reads and closes each of them.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::Stopwatch;

/// Creates `count` files of `len` bytes below `folder`, a thousand per class folder.
pub fn make_files(folder: &Path, count: u64, len: usize) {
    let mut bytes = vec![0u8; len];
    for number in 0..count {
        let class = folder.join(format!("{:04}", number / 1000));
        if number % 1000 == 0 {
            std::fs::create_dir(&class).expect("a folder for a class");
        }
        bytes.iter_mut().zip(number..).for_each(|(byte, at)| *byte = (at ^ (at >> 7)) as u8);
        std::fs::write(class.join(format!("{number:08}.bin")), &bytes).expect("room for the files");
    }
}

/// Every file below `folder`.
pub fn list(folder: &Path, files: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(folder).expect("a folder that can be listed");
    for entry in entries.flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => list(&entry.path(), files),
            Ok(kind) if kind.is_file() => files.push(entry.path()),
            _ => {} // neither is read
        }
    }
}

/// Opens, reads and closes all files once, in the order of `seed`; returns files per second.
pub fn read_all(name: &str, files: &mut [PathBuf], seed: u64) -> f64 {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    files.sort_unstable();
    for last in (1..files.len()).rev() {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        files.swap(last, (((state >> 32) * (last as u64 + 1)) >> 32) as usize);
    }
    let mut buffer = vec![0u8; 1 << 20];
    let mut total = 0usize;
    let watch = Stopwatch::start();
    for path in &*files {
        total += read_file(path, &mut buffer);
    }
    let (wall, cpu) = watch.seconds();
    let count = files.len() as f64;
    let files_s = count / wall;
    let mb_s = total as f64 / 1e6 / wall;
    let cpu_us = cpu * 1e6 / count;
    println!("{name:<26}{files_s:>12.0}{mb_s:>10.1}{cpu_us:>16.1}");
    files_s
}

/// Opens, reads to the end and closes, into an existing buffer: as cheaply as possible.
pub fn read_file(path: &Path, buffer: &mut [u8]) -> usize {
    let mut file = File::open(path).expect("a file that was listed");
    let mut total = 0;
    loop {
        let count = file.read(buffer).expect("a readable file");
        total += count;
        if count < buffer.len() {
            return total; // the end: a regular file returns everything that it has
        }
    }
}

/// Writes dirty pages and drops the page cache; needs root.
pub fn drop_caches() -> std::io::Result<()> {
    rustix::fs::sync();
    std::fs::write("/proc/sys/vm/drop_caches", "3")
}

/// The columns of [`read_all`].
pub fn print_header() {
    println!("{:<26}{:>12}{:>10}{:>16}", "", "samples/s", "MB/s", "CPU us a sample");
}
