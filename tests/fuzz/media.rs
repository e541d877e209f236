//! What lies on media: taken from small images of every shape, and read back by the decoders.

use dlfs::directory::Directory;
use dlfs::format::checksum::crc32c;
use dlfs::format::{ChunkHeader, GenerationRecord, Pack, Superblock};
use dlfs::units::SampleId;

use crate::images::{Image, folder};

/// A folder, the same appended to and with deletions, striped and tight.
fn images() -> Vec<Image> {
    let mut striped = Image::new(3, Pack::Aligned);
    striped.add(&folder(3, 40), 7, 120, &["jpg", "txt"]);
    let mut grown = Image::new(1, Pack::Tight);
    grown.add(&folder(2, 30), 1, 60, &[]);
    grown.add(&folder(4, 5), 2, 0, &[]);
    grown.delete(&[3, 4, 61]);
    vec![striped, grown]
}

pub(crate) fn superblocks() -> Vec<Vec<u8>> {
    images().iter().map(|image| image.open().1.encode().to_vec()).collect()
}

pub(crate) fn chunks() -> Vec<Vec<u8>> {
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

pub(crate) fn records() -> Vec<Vec<u8>> {
    images().iter().map(|image| image.open().0.record().encode(0, 1)).collect()
}

pub(crate) fn snapshots() -> Vec<Vec<u8>> {
    images().iter().map(|image| image.open().0.to_snapshot().unwrap()).collect()
}

/// The last four of 4,096 bytes are their CRC.
pub(crate) fn refit_block(bytes: &mut [u8]) {
    put_crc(bytes, 0..4092, 4092);
}

/// The table's CRC at 120, then the head's at 124.
pub(crate) fn refit_chunk(bytes: &mut [u8]) {
    let header_len = number(bytes, 12, 4) as usize;
    put_crc(bytes, 128..header_len, 120);
    put_crc(bytes, 0..124, 124);
}

/// Each section's CRC, then the head's.
pub(crate) fn refit_snapshot(bytes: &mut [u8]) {
    for section in (0..64).map(|i| 128 + i * 32) {
        let (start, len) = (number(bytes, section + 8, 8), number(bytes, section + 16, 8));
        if let Some(end) = start.checked_add(len).filter(|_| len > 0) {
            put_crc(bytes, start as usize..end as usize, section + 4);
        }
    }
    refit_block(bytes);
}

fn number(bytes: &[u8], at: usize, width: usize) -> u64 {
    let mut number = [0; 8];
    let field = bytes.get(at..at + width).unwrap_or_default();
    number[..field.len()].copy_from_slice(field);
    u64::from_le_bytes(number)
}

fn put_crc(bytes: &mut [u8], of: std::ops::Range<usize>, at: usize) {
    let Some(crc) = bytes.get(of).map(crc32c) else { return };
    if let Some(field) = bytes.get_mut(at..at + 4) {
        field.copy_from_slice(&crc.to_le_bytes());
    }
}

pub(crate) fn superblock(bytes: &[u8]) {
    if let Ok(superblock) = Superblock::parse(bytes) {
        superblock.snapshot_run();
        Superblock::parse(&superblock.encode()).unwrap();
    }
}

pub(crate) fn chunk(bytes: &[u8]) {
    if let Ok(header) = ChunkHeader::parse(bytes) {
        header.samples().for_each(drop);
        header.fields().for_each(drop);
        header.head().run();
        header.head().end_slot();
    }
}

pub(crate) fn record(bytes: &[u8]) {
    if let Ok((head, record)) = GenerationRecord::parse(bytes) {
        record.encode(head.namespace, head.cell);
    }
}

pub(crate) fn snapshot(bytes: &[u8]) {
    let Ok(directory) = Directory::from_snapshot(bytes.to_vec()) else { return };
    for id in (0..directory.num_samples().min(200)).map(SampleId) {
        directory.extent(id);
        directory.label(id);
        directory.rank_of(id);
        if let Ok(Some(name)) = directory.name(id) {
            let _ = directory.lookup(&name).unwrap();
        }
    }
    (0..directory.num_live().min(200)).for_each(|rank| _ = directory.id_of_live(rank));
    for c in 0..directory.num_chunks().min(200) {
        directory.chunk(c);
        directory.samples_in_chunk(c).for_each(drop);
        (0..directory.live_in_chunk(c)).for_each(|nth| _ = directory.id_in_chunk(c, nth));
    }
    let _ = directory.list(b"");
    let _ = directory.to_snapshot();
    directory.record();
    directory.freed();
}
