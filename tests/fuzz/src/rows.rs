//! Sources of an import that are rows: shards of MDS and LitData, their indexes, JSON Lines.

use std::path::Path;

use dlfs::import::sources::sample_stream::SampleStream;
use dlfs::import::sources::{FoundFile, SourceKind};
use dlfs::import::{ImportOptions, formats};

use super::Target;
use super::archives::folder;

/// A byte for what the rest is: a shard of MDS or LitData, an index of one of them, or JSON Lines.
pub const ROWS: Target =
    Target { name: "rows", seeds, refit: None, run: read, heap_bytes: 8 << 20, rounds: 600 };

/// An Arrow file or stream.
pub const ARROW: Target = Target {
    name: "arrow",
    seeds: arrows,
    refit: None,
    run: arrow,
    heap_bytes: 64 << 20,
    rounds: 100,
};

/// A Parquet file.
pub const PARQUET: Target = Target {
    name: "parquet",
    seeds: parquets,
    refit: None,
    run: parquet,
    heap_bytes: 64 << 20,
    rounds: 100,
};

const MDS_INDEX: &str = r#"{"version": 2, "shards": [{"format": "mds", "column_names": ["a", "b", "n"],
    "column_encodings": ["bytes", "ndarray", "int"], "column_sizes": [null, null, 8],
    "raw_data": {"basename": "shard"}, "zip_data": null}]}"#;

const LITDATA_INDEX: &str = r#"{"chunks": [{"filename": "shard"}], "config": {"compression": null,
    "data_format": ["tensor", "numpy", "bytes"], "item_loader": "PyTreeLoader",
    "data_spec": "[1, {\"type\":\"list\",\"children_spec\":[{\"type\":null}, {\"type\":null}, {\"type\":null}]}]"}}"#;

const LINES: &str = "{\"a\": 1, \"b\": [1, 2.5], \"c\": \"text\", \"d\": {\"e\": null}}\n\n{\"b\": [], \"a\": -7}\n\
                     {\"file_name\": \"shard\", \"a\": 2}\n";

fn seeds() -> Vec<Vec<u8>> {
    let kind = |kind: u8, bytes: &[u8]| [&[kind], bytes].concat();
    vec![
        kind(0, &shard(&mds_items())),
        kind(1, &shard(&litdata_items())),
        kind(2, MDS_INDEX.as_bytes()),
        kind(3, LITDATA_INDEX.as_bytes()),
        kind(4, LINES.as_bytes()),
    ]
}

fn arrows() -> Vec<Vec<u8>> {
    let big_endian = &include_bytes!("../../rows/big-endian.arrow")[..];
    let files = [
        include_bytes!("../../rows/differing-0.arrow"),
        &include_bytes!("../../rows/differing-1.arrow")[..],
    ];
    files.into_iter().chain([big_endian]).map(<[u8]>::to_vec).collect()
}

fn parquets() -> Vec<Vec<u8>> {
    let files = [
        include_bytes!("../../rows/checksums.parquet"),
        &include_bytes!("../../rows/differing-1.parquet")[..],
    ];
    files
        .into_iter()
        .chain([&include_bytes!("../../rows/pair-0.parquet")[..]])
        .map(<[u8]>::to_vec)
        .collect()
}

fn arrow(input: &[u8]) {
    alone(SourceKind::Arrow, input);
}

fn parquet(input: &[u8]) {
    alone(SourceKind::Parquet, input);
}

/// Rows of one file.
fn alone(kind: SourceKind, input: &[u8]) {
    let dir = folder();
    let path = dir.path().join("rows");
    std::fs::write(&path, input).unwrap();
    // Runs of values, and compressed pages.
    rows_of(kind, &path, 1 << 20);
}

fn mds_items() -> Vec<Vec<u8>> {
    let item = |a: &[u8], b: &[u8], n: i64| {
        let lens = [a.len() as u32, b.len() as u32].map(u32::to_le_bytes).concat();
        [&lens[..], a, b, &n.to_le_bytes()].concat()
    };
    // An array of two rows of one f32.
    let array = [34, 2 << 2, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0];
    vec![item(b"first", &array, 7), item(b"", &array, -1)]
}

fn litdata_items() -> Vec<Vec<u8>> {
    let item = |leaves: [&[u8]; 3]| {
        let lens: Vec<u8> =
            leaves.iter().flat_map(|leaf| (leaf.len() as u32).to_le_bytes()).collect();
        [&lens[..], &leaves.concat()].concat()
    };
    let tensor = [&[0, 0, 0, 11, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 3][..], b"abc"].concat();
    let numpy = [&[4, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0][..], b"xy"].concat();
    vec![item([&tensor, &numpy, b"bytes"]), item([&tensor, &numpy, b""])]
}

fn shard(items: &[Vec<u8>]) -> Vec<u8> {
    let mut at = 4 + 4 * (items.len() as u32 + 1);
    let mut bytes = (items.len() as u32).to_le_bytes().to_vec();
    bytes.extend(at.to_le_bytes());
    for item in items {
        at += item.len() as u32;
        bytes.extend(at.to_le_bytes());
    }
    [bytes, items.concat()].concat()
}

/// Reads all rows; no field may be longer than the files.
fn read(input: &[u8]) {
    let Some((kind, content)) = input.split_first() else { return };
    let dir = folder();
    let put = |name: &str, bytes: &[u8]| std::fs::write(dir.path().join(name), bytes).unwrap();
    let (kind, index, of_shard) = match kind % 5 {
        0 => (SourceKind::Mds, MDS_INDEX.as_bytes(), content),
        1 => (SourceKind::LitData, LITDATA_INDEX.as_bytes(), content),
        2 => (SourceKind::Mds, content, &shard(&mds_items())[..]),
        3 => (SourceKind::LitData, content, &shard(&litdata_items())[..]),
        _ => (SourceKind::JsonLines, content, &b"a file"[..]),
    };
    put("index.json", index);
    put("shard", of_shard);
    rows_of(kind, &dir.path().join("index.json"), index.len().max(of_shard.len()));
}

fn rows_of(kind: SourceKind, path: &Path, most_bytes: usize) {
    let options = ImportOptions::default();
    let file = FoundFile::new(path.to_path_buf(), b"index.json".to_vec());
    let opened = formats::open(
        vec![file],
        kind,
        None,
        &options,
        None,
        &Default::default(),
        &Default::default(),
    );
    let Ok(mut source) = opened else {
        return;
    };
    // A bad shard of an index ends it, and what follows is read.
    while let Ok(Some(sample)) = source.next_sample() {
        assert_eq!(sample.fields.len(), source.fields().len(), "fields of all samples");
        assert!(!sample.name.is_empty(), "a sample has a name");
        // A number of JSON has two bytes or more and becomes eight; an array may get a header.
        let is_within = |field: &[u8]| field.len() <= 8 * most_bytes + 1024;
        assert!(sample.fields.iter().flatten().all(|field| is_within(field)));
    }
}
