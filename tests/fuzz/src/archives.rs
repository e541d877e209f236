//! Sources of an import that are single files: tar and WebDataset shards, also compressed, TFRecord
//! shards, lists.

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use dlfs::format::names::crc32c;
use dlfs::import::sources::sample_stream::SampleStream;
use dlfs::import::sources::stream::StreamSource;
use dlfs::import::sources::{Source, SourceKind, SourceOptions};

use super::Target;
use super::media::number;

/// A tar archive after one byte: bit 0 selects WebDataset.
pub const TAR: Target = Target {
    name: "tar",
    seeds: tars,
    refit: Some(refit_tar),
    run: import_tar,
    heap_bytes: 4 << 20,
    rounds: 300,
};

/// An archive in gzip or zstd after the same byte as in [`TAR`].
pub const GZIP: Target = Target {
    name: "gzip",
    seeds: gzips,
    refit: None,
    run: import_gzip,
    heap_bytes: 8 << 20,
    rounds: 300,
};

/// A TFRecord shard.
pub const TFRECORD: Target = Target {
    name: "tfrecord",
    seeds: tfrecords,
    refit: Some(refit_tfrecord),
    run: import_tfrecord,
    heap_bytes: 4 << 20,
    rounds: 300,
};

/// A list of paths and labels, beside a folder that has some of the files.
pub const LIST: Target = Target {
    name: "list",
    seeds: lists,
    refit: None,
    run: import_list,
    heap_bytes: 4 << 20,
    rounds: 300,
};

fn tars() -> Vec<Vec<u8>> {
    let grouped = [("a.jpg", 300), ("a.cls", 1), ("b.seg.png", 0), ("b.cls", 2)];
    let long = format!("{}/c.jpg", "n".repeat(120));
    let plain = [("a.jpg", 5), ("d/b.jpg", 0), (long.as_str(), 20)];
    vec![[vec![1], tar(&grouped)].concat(), [vec![0], tar(&plain)].concat()]
}

fn gzips() -> Vec<Vec<u8>> {
    let gzip = |kind: u8, files: &[(&str, u64)]| {
        let mut all = Vec::from([kind]);
        flate2::bufread::GzEncoder::new(&tar(files)[..], flate2::Compression::best())
            .read_to_end(&mut all)
            .unwrap();
        all
    };
    let zstd = [vec![0], zstd::encode_all(&tar(&[("a.jpg", 70), ("b.jpg", 3000)])[..], 1).unwrap()];
    vec![
        gzip(0, &[("a.jpg", 70), ("b.jpg", 3000)]),
        gzip(1, &[("a.jpg", 70), ("a.cls", 1)]),
        zstd.concat(),
    ]
}

fn tar(files: &[(&str, u64)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for &(name, len) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(len);
        header.set_mode(0o644);
        builder.append_data(&mut header, name, std::io::repeat(b'7').take(len)).unwrap();
    }
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Link);
    header.set_size(0);
    builder.append_link(&mut header, "e.jpg", files[0].0).unwrap();
    let mut bytes = builder.into_inner().unwrap();
    bytes.truncate(bytes.len() - 1024); // two blocks of zeroes; a missing end is equivalent
    bytes
}

fn tfrecords() -> Vec<Vec<u8>> {
    vec![[record(b"first"), record(b""), record(&[9; 300])].concat()]
}

/// A TFRecord shard of `count` records of `len` bytes.
pub fn shard(count: u8, len: usize) -> Vec<u8> {
    (0..count).flat_map(|number| record(&vec![number; len])).collect()
}

fn record(data: &[u8]) -> Vec<u8> {
    let len = (data.len() as u64).to_le_bytes();
    [&len[..], &masked(&len), data, &masked(data)].concat()
}

fn masked(bytes: &[u8]) -> [u8; 4] {
    crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

fn lists() -> Vec<Vec<u8>> {
    vec![b"a.jpg\t3\nfolder/b.jpg\t-1\r\nfolder\nno\n./a.jpg\n../x\t1\n/etc\n".to_vec()]
}

/// Corrects the checksum of each header, following the sizes of the members.
fn refit_tar(bytes: &mut [u8]) {
    let mut at = 1;
    while let Some(header) = bytes.get_mut(at..at + 512) {
        header[148..156].fill(b' ');
        let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        let digits = header[124..136].iter().skip_while(|&&byte| byte == b' ');
        let digits = digits.take_while(|byte| (b'0'..=b'7').contains(byte));
        let size = digits.fold(0_usize, |size, digit| size << 3 | usize::from(digit - b'0'));
        at = at.saturating_add(512).saturating_add(size.saturating_add(511) / 512 * 512);
    }
}

/// Corrects the checksums of each length and payload.
fn refit_tfrecord(bytes: &mut [u8]) {
    let mut at = 0;
    while let Some(record) = bytes.get_mut(at..).filter(|rest| rest.len() >= 12) {
        let crc = masked(&record[..8]);
        record[8..12].copy_from_slice(&crc);
        let len = usize::try_from(number(record, 0, 8)).unwrap_or(usize::MAX);
        let end = len.saturating_add(12);
        let crc = record.get(12..end).map(masked);
        if let (Some(crc), Some(field)) = (crc, record.get_mut(end..end.saturating_add(4))) {
            field.copy_from_slice(&crc);
        }
        at = at.saturating_add(end).saturating_add(4);
    }
}

fn import_tar(input: &[u8]) {
    let Some((kind, content)) = input.split_first() else { return };
    import(tar_kind(*kind), content, content.len() as u64);
    let folder = folder();
    let path = folder.path().join("shard.tar");
    std::fs::write(&path, content).unwrap();
    stream(tar_kind(*kind), &path, content.len() as u64);
}

fn import_gzip(input: &[u8]) {
    let Some((kind, content)) = input.split_first() else { return };
    // deflate expands a byte to at most 1,032; zstd expands four bytes to a block of 128 KiB.
    let most = content.len() as u64 * (128 << 10);
    import(tar_kind(*kind), content, most);
    let folder = folder();
    let path = folder.path().join("shard.tar.gz");
    std::fs::write(&path, content).unwrap();
    stream(tar_kind(*kind), &path, most);
}

fn tar_kind(byte: u8) -> SourceKind {
    if byte & 1 == 0 { SourceKind::Tar } else { SourceKind::WebDataset }
}

fn import_tfrecord(input: &[u8]) {
    import(SourceKind::TfRecord, input, input.len() as u64);
}

fn import_list(input: &[u8]) {
    import(SourceKind::List, input, u64::MAX);
}

/// Files in memory, if there is a file system for that.
pub(super) fn folder() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    tempfile::tempdir_in(if memory.is_dir() { memory } else { Path::new("/tmp") }).unwrap()
}

/// Indexes and reads; no part may be longer than the input.
fn import(kind: SourceKind, content: &[u8], most_bytes: u64) {
    let folder = folder();
    let path = folder.path().join("shard");
    std::fs::File::create(&path).unwrap().write_all(content).unwrap();
    if kind == SourceKind::List {
        std::fs::create_dir(folder.path().join("folder")).unwrap();
        std::fs::write(folder.path().join("a.jpg"), b"a").unwrap();
        std::fs::write(folder.path().join("folder/b.jpg"), b"bb").unwrap();
    }
    let spool = Some(folder.path().to_owned());
    let options = SourceOptions { kind, spool, ..SourceOptions::default() };
    let Ok(source) = Source::open(&[PathBuf::from(&path)], &options) else { return };
    let index = source.index();
    assert!(!index.is_empty() || !index.bad.is_empty(), "there is something in it");
    let mut reader = source.reader();
    for row in 0..index.len() {
        assert!(!index.name(row).is_empty(), "a sample has a name");
        for part in index.payloads(row) {
            // An impossible length must not be in the index.
            assert!(u64::from(part.len_bytes) <= most_bytes, "row {row}: {part:?}");
            let len = part.len_bytes as usize;
            let read = reader.read(row, &part, &mut vec![0; len]);
            assert!(kind != SourceKind::List || read.is_ok(), "a file that is there is read");
        }
    }
    index.fingerprint();
}

/// Reads it as a stream; no sample may be longer than the input.
fn stream(kind: SourceKind, path: &Path, most_bytes: u64) {
    let mut source = StreamSource::new(vec![path.to_owned()], kind, None).unwrap();
    let mut bytes = 0;
    while let Ok(Some(sample)) = source.next_sample() {
        bytes += sample.fields.iter().flatten().map(|field| field.len() as u64).sum::<u64>();
        assert!(sample.fields.len() <= source.fields().len().max(1), "fields of all samples");
        assert!(bytes <= most_bytes, "{bytes} bytes of samples");
        source.give_back(sample);
    }
}
