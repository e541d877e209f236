//! The memory of an import: the directory that it builds, and buffers of a fixed size.

use std::io::Write as _;
use std::sync::Arc;

use crate::alone;
use crate::targets::counting_alloc::peak_during;
use dlfs::import::sources::SourceKind;
use dlfs::import::{ImportOptions, PlacementOrder, import_onto};
use dlfs::qpair::Device;
use dlfs::qpair::mem::MemNamespace;

fn masked(bytes: &[u8]) -> [u8; 4] {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

/// Peak heap of importing `count` records of `len` bytes.
fn heap_of_import(count: usize, len: usize) -> usize {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.tfrecord");
    let header = (len as u64).to_le_bytes();
    let payload = vec![7; len];
    let record = [&header[..], &masked(&header), &payload, &masked(&payload)].concat();
    std::fs::write(&path, record.repeat(count)).unwrap();
    drop((record, payload));
    // In memory that the heap counter does not see.
    let len_bytes = (count * (len + 64) * 2).next_multiple_of(1 << 20) as u64 + (64 << 20);
    let device: Arc<dyn Device> = Arc::new(MemNamespace::new(len_bytes, 4096).unwrap());
    let options = ImportOptions {
        chunk_size_bytes: 1 << 20,
        reader_threads: 2,
        lease: std::time::Duration::from_millis(500),
        ..ImportOptions::default()
    };
    let (peak, report) = peak_during(|| import_onto(&[path], &[device], &options, &mut ()));
    assert_eq!(report.unwrap().samples, count as u64);
    peak
}

#[test]
fn an_import_takes_bytes_by_the_sample_for_the_directory_and_none_by_their_length() {
    let _alone = alone();
    let few = heap_of_import(20_000, 100);
    let many = heap_of_import(80_000, 100);
    let by_sample = many.saturating_sub(few) / 60_000;
    println!("{few} and {many} bytes: {by_sample} a sample, of which 15 are its name, three times");
    assert!(by_sample < 250, "{by_sample} bytes a sample");
    let short = heap_of_import(500, 1_000);
    let long = heap_of_import(500, 100_000);
    println!("{short} bytes for short samples, {long} for long ones");
    assert!(long < short + (2 << 20), "{short} bytes for short samples, {long} for long ones");
}

/// Peak heap of importing a record of `mib` MiB from a pipe.
fn heap_of_stream(mib: usize) -> usize {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.tfrecord");
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, 0o600.into()).unwrap();
    let len = ((mib << 20) as u64).to_le_bytes();
    let piece = vec![7; 1 << 20];
    let crc = (0..mib).fold(0, |crc, _| crc32c::crc32c_append(crc, &piece));
    let crc = crc.rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes();
    let to = path.clone();
    let writer = std::thread::spawn(move || {
        let mut pipe = std::fs::File::options().write(true).open(to).unwrap();
        pipe.write_all(&[&len[..], &masked(&len)].concat()).unwrap();
        (0..mib).for_each(|_| pipe.write_all(&piece).unwrap());
        pipe.write_all(&crc).unwrap();
    });
    // In memory that the heap counter does not see.
    let device: Arc<dyn Device> =
        Arc::new(MemNamespace::new(((mib + 64) << 20) as u64, 4096).unwrap());
    let from = SourceKind::TfRecord;
    let placement = PlacementOrder::Source;
    let options = ImportOptions { from, placement, ..ImportOptions::default() };
    let (peak, report) = peak_during(|| import_onto(&[path], &[device], &options, &mut ()));
    assert_eq!(report.unwrap().sample_bytes, (mib << 20) as u64);
    writer.join().unwrap();
    peak
}

#[test]
fn a_long_sample_of_a_stream_takes_no_more_memory_than_a_window() {
    let _alone = alone();
    let short = heap_of_stream(65);
    let long = heap_of_stream(200);
    println!("{short} bytes for a sample of 65 MiB, {long} for one of 200 MiB");
    assert!(long < short + (2 << 20) && long < 32 << 20, "{short} and {long} bytes");
}
