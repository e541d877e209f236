//! Sources of an import that are one file: tar, WebDataset and TFRecord shards, lists.

use std::io::{Read as _, Write as _};
use std::path::PathBuf;

use dlfs::format::checksum::crc32c;
use dlfs::import::sources::{Source, SourceKind, SourceOptions};

const KINDS: [SourceKind; 4] =
    [SourceKind::Tar, SourceKind::WebDataset, SourceKind::TfRecord, SourceKind::List];

/// The first byte says what the rest is.
pub(crate) fn archives() -> Vec<Vec<u8>> {
    let list = b"a.jpg\t3\nfolder/b.jpg\t-1\n".to_vec();
    let contents = [tar(), tar(), tfrecord(), list];
    (0..).zip(contents).map(|(kind, content)| [vec![kind], content].concat()).collect()
}

fn tar() -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    let long = format!("{}/c.jpg", "n".repeat(150));
    for (name, len) in [("a.jpg", 700), ("a.cls", 1), ("d/b.jpg", 0), (long.as_str(), 512)] {
        let mut header = tar::Header::new_gnu();
        header.set_size(len);
        header.set_mode(0o644);
        builder.append_data(&mut header, name, std::io::repeat(b'7').take(len)).unwrap();
    }
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Link);
    header.set_size(0);
    builder.append_link(&mut header, "e.jpg", "a.jpg").unwrap();
    builder.into_inner().unwrap()
}

fn tfrecord() -> Vec<u8> {
    let masked = |bytes: &[u8]| {
        let crc = crc32c(bytes);
        crc.rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
    };
    let record = |data: &[u8]| {
        let len = (data.len() as u64).to_le_bytes();
        [&len[..], &masked(&len), data, &masked(data)].concat()
    };
    [record(b"first"), record(b""), record(&[9; 3000])].concat()
}

pub(crate) fn import(bytes: &[u8]) {
    let Some((&kind, content)) = bytes.split_first() else { return };
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(content).unwrap();
    let kind = KINDS[usize::from(kind) % KINDS.len()];
    let options = SourceOptions { kind, ..SourceOptions::default() };
    let paths = [PathBuf::from(file.path())];
    let Ok(source) = Source::open(&paths, &options) else { return };
    let mut reader = source.reader();
    for row in 0..source.index().len() {
        for part in source.index().parts(row) {
            // A length that the file cannot have must not be in the index.
            assert!(u64::from(part.len_bytes) <= content.len() as u64, "row {row}: {part:?}");
            let _ = reader.read(row, &part, &mut vec![0; part.len_bytes as usize]);
        }
    }
}
