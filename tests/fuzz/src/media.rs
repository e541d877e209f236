//! The structures on media: superblock, chunk header, record, snapshot.

use std::ops::Range;
use std::sync::OnceLock;

use dlfs::directory::Directory;
use dlfs::format::names::{crc32c, crc32c_append};
use dlfs::format::{ChunkHead, ChunkHeader, GenerationRecord, Pack, Superblock};
use dlfs::units::SampleId;

use super::images::{Image, folder};
use super::{Target, script};

/// A superblock.
pub const SUPERBLOCK: Target = Target {
    name: "superblock",
    seeds: superblocks,
    refit: Some(refit_block),
    run: superblock,
    heap_bytes: 1 << 20,
    rounds: 3000,
};

/// The head and table of a chunk.
pub const CHUNK: Target = Target {
    name: "chunk",
    seeds: chunks,
    refit: Some(refit_chunk),
    run: chunk,
    heap_bytes: 1 << 20,
    rounds: 3000,
};

/// A generation record.
pub const RECORD: Target = Target {
    name: "record",
    seeds: records,
    refit: Some(refit_chunk),
    run: record,
    heap_bytes: 1 << 20,
    rounds: 3000,
};

/// A directory: the first byte selects one, the rest is a script that damages it.
pub const SNAPSHOT: Target = Target {
    name: "snapshot",
    seeds: snapshot_scripts,
    refit: None,
    run: snapshot_by_script,
    heap_bytes: 16 << 20,
    rounds: 1000,
};

/// A folder; the same after an append and with deletions; striped and tight.
fn images() -> Vec<Image> {
    let mut striped = Image::new(3, Pack::Aligned);
    striped.add(&folder(3, 20), 7, 60, &["jpg", "txt"]);
    let mut grown = Image::new(1, Pack::Tight);
    grown.add(&folder(2, 20), 1, 40, &[]);
    grown.add(&folder(4, 5), 2, 0, &[]);
    grown.delete(&[3, 4, 41]);
    vec![striped, grown]
}

fn superblocks() -> Vec<Vec<u8>> {
    images().iter().map(|image| image.open().1.encode().to_vec()).collect()
}

fn chunks() -> Vec<Vec<u8>> {
    let of_image = |image: &Image| -> Vec<Vec<u8>> {
        let (directory, _) = image.open();
        let chunk = |c| {
            let info = directory.chunk(c);
            image.read(info.namespace, info.offset_bytes, info.header_bytes).to_vec()
        };
        (0..directory.num_chunks().min(4)).map(chunk).collect()
    };
    images().iter().flat_map(of_image).collect()
}

fn records() -> Vec<Vec<u8>> {
    let whole = images().into_iter().map(|image| image.open().0.record().encode(0, 1));
    whole
        .map(|mut bytes| {
            bytes.truncate(number(&bytes, 12, 4) as usize); // without the padding
            bytes
        })
        .collect()
}

fn snapshots() -> &'static [Vec<u8>] {
    static SNAPSHOTS: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    SNAPSHOTS.get_or_init(|| {
        images().iter().map(|image| image.open().0.to_snapshot().unwrap()).collect()
    })
}

/// Both unchanged, then each field of the head and of each section slightly too large.
fn snapshot_scripts() -> Vec<Vec<u8>> {
    let changed = |which: usize| {
        let mut fields: Vec<(usize, u8)> =
            vec![(10, 1), (48, 3), (56, 3), (64, 3), (80, 2), (84, 1)];
        let bytes = &snapshots()[which];
        for section in (128..2176).step_by(32).filter(|&at| number(bytes, at + 16, 8) > 0) {
            fields.extend([(section + 16, 3), (section + 24, 3)]);
            fields.push((number(bytes, section + 8, 8) as usize + 8, 2));
        }
        let script =
            move |(at, width)| [vec![which as u8], script::number(at, width, 4, 1)].concat();
        fields.into_iter().map(script)
    };
    let whole = [vec![0], vec![1]];
    whole.into_iter().chain((0..2).flat_map(changed)).collect()
}

/// The last four of 4,096 bytes are their CRC.
pub fn refit_block(bytes: &mut [u8]) {
    put_crc(bytes, 0..4092, 4092);
}

/// The CRC of a state of an unfinished import: of all but itself.
pub fn refit_state(bytes: &mut [u8]) {
    let Some((head, rest)) = bytes.split_at_mut_checked(16) else { return };
    let crc = crc32c_append(crc32c(&head[..12]), rest);
    head[12..].copy_from_slice(&crc.to_le_bytes());
}

/// The table's CRC at 120, then the head's at 124.
pub fn refit_chunk(bytes: &mut [u8]) {
    let header_len = number(bytes, 12, 4) as usize;
    put_crc(bytes, 128..header_len, 120);
    put_crc(bytes, 0..124, 124);
}

/// Each section's CRC, then the head's.
pub fn refit_snapshot(bytes: &mut [u8]) {
    for section in (0..64).map(|i| 128 + i * 32) {
        let start = number(bytes, section + 8, 8);
        let len = number(bytes, section + 16, 8);
        if let Some(end) = start.checked_add(len).filter(|_| len > 0) {
            put_crc(bytes, start as usize..end as usize, section + 4);
        }
    }
    refit_block(bytes);
}

/// A little-endian number; missing bytes are zero.
pub fn number(bytes: &[u8], at: usize, width: usize) -> u64 {
    let mut number = [0; 8];
    let field = bytes.get(at..at.saturating_add(width)).unwrap_or_default();
    number[..field.len()].copy_from_slice(field);
    u64::from_le_bytes(number)
}

/// Stores the CRC of a range, if the range and the field are complete.
pub fn put_crc(bytes: &mut [u8], of: Range<usize>, at: usize) {
    let Some(crc) = bytes.get(of).map(crc32c) else { return };
    if let Some(field) = bytes.get_mut(at..at + 4) {
        field.copy_from_slice(&crc.to_le_bytes());
    }
}

fn superblock(bytes: &[u8]) {
    let Ok(superblock) = Superblock::parse(bytes) else { return };
    superblock.snapshot_range();
    assert_eq!(Superblock::parse(&superblock.encode()), Ok(superblock), "it reads back");
}

fn chunk(bytes: &[u8]) {
    if let Ok(head) = ChunkHead::parse(bytes) {
        let _ = (head.cell_range(), head.end_slot(), head.len_bytes());
    }
    let Ok(header) = ChunkHeader::parse(bytes) else { return };
    assert_eq!(header.samples().count(), usize::from(header.head().num_samples));
    assert_eq!(header.fields().count(), usize::from(header.head().num_fields));
    let data_len: u64 = header.samples().map(|sample| u64::from(sample.len_bytes)).sum();
    assert!(data_len <= header.head().data_len, "samples of {data_len} bytes lie in the data");
    let mut again = vec![0; header.head().data_start() as usize];
    header.encode_into(&mut again);
    let again = ChunkHeader::parse(&again).expect("what was encoded");
    assert!(again.samples().eq(header.samples()), "it reads back");
}

fn record(bytes: &[u8]) {
    let Ok((head, record)) = GenerationRecord::parse(bytes) else { return };
    let again = record.encode(head.namespace, head.cell);
    let (_, again) = GenerationRecord::parse(&again).expect("what was encoded");
    assert_eq!(again, record, "it reads back");
}

fn snapshot_by_script(input: &[u8]) {
    let Some((&which, changes)) = input.split_first() else { return };
    let mut bytes = snapshots()[usize::from(which) % snapshots().len()].clone();
    script::apply(changes, &mut bytes);
    snapshot(&bytes);
    refit_snapshot(&mut bytes);
    snapshot(&bytes);
}

fn snapshot(bytes: &[u8]) {
    let Ok(directory) = Directory::from_snapshot(bytes.to_vec()) else { return };
    ask(&directory);
    // Whatever was accepted can be written again, and is then equal.
    let Ok(again) = directory.to_snapshot() else { return };
    let again = Directory::from_snapshot(again).expect("the snapshot of a directory");
    assert_eq!(again.num_live(), directory.num_live());
    assert_eq!(again.num_chunks(), directory.num_chunks());
}

/// All queries of a directory, for the first and last samples and chunks.
pub fn ask(directory: &Directory) {
    let ends = |len: u64| (0..len.min(100)).chain(len.saturating_sub(20).max(100)..len);
    for id in ends(directory.num_samples()).map(SampleId) {
        let extent = directory.extent(id);
        assert_eq!(extent.is_some(), directory.is_live(id), "live samples lie somewhere");
        let _ = (directory.label(id), directory.slot_of(id), directory.chunk_of(id));
        if let Ok(Some(name)) = directory.name(id) {
            let _ = directory.lookup(&name); // names that cannot be decoded are an error, not a panic
        }
    }
    assert!(directory.num_live() <= directory.num_samples());
    for rank in ends(directory.num_live()) {
        let id = directory.id_of_live(rank);
        assert_eq!((directory.is_live(id), directory.rank_of(id)), (true, rank), "{id:?}");
    }
    for c in ends(directory.num_chunks().into()).map(|c| c as u32) {
        directory.chunk(c);
        directory.samples_in_chunk(c).for_each(drop);
        let live = directory.live_in_chunk(c);
        (0..live).for_each(|nth| _ = directory.id_in_chunk(c, nth));
    }
    let _ = (directory.list(b""), directory.lookup(b"class00/sample0001.bin"));
    directory.record();
    let _ = (directory.freed(), directory.classes(), directory.fields());
    directory.deleted_ranges();
}
