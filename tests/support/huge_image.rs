//! An image of very many samples, written structure by structure: an import of a billion would take a day.
//!
//! Samples are holes of a sparse file, which read as zeroes, and so are lookup tree and names, for readers that ask for
//! no name. A billion samples take 9 GB of disk.

use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::Path;

use dlfs::checksum::{crc32c, crc32c_append};
use dlfs::format::snapshot::{
    SNAPSHOT_HEAD_BYTES, Section, SectionKind, SnapshotHead, head_crc32c,
};
use dlfs::format::superblock::{SnapshotLocation, copy_offset};
use dlfs::format::{CellRange, ImageLayout, Pack, Superblock, Uuid};
use dlfs::units::Generation;

/// The length of each sample, all zeroes.
pub const SAMPLE_BYTES: u64 = 300;
const CHUNK_BYTES: u32 = 4 << 20;
pub const SAMPLES_PER_CHUNK: u64 = 13_000;
const HEADER_PAGES: u64 = 40;
const CHUNK_PAGES: u64 = HEADER_PAGES + (SAMPLES_PER_CHUNK * SAMPLE_BYTES).div_ceil(4096);
const FIRST_CELL: u64 = 9;

/// Writes the sections of a snapshot one after the other, without keeping them.
struct Sections {
    file: BufWriter<File>,
    /// The offset of the snapshot in the file.
    start: u64,
    at: u64,
    done: Vec<Section>,
}

impl Sections {
    /// `pieces` are the bytes of the section.
    fn write(&mut self, kind: SectionKind, pieces: impl Iterator<Item = Vec<u8>>) {
        let offset = self.at.next_multiple_of(128);
        self.file.seek(SeekFrom::Start(self.start + offset)).unwrap();
        let mut len = 0;
        let mut crc32c = 0;
        for piece in pieces {
            self.file.write_all(&piece).unwrap();
            crc32c = crc32c_append(crc32c, &piece);
            len += piece.len() as u64;
        }
        self.done.push(Section { kind, offset, len, crc32c, param: 0 });
        self.at = offset + len;
    }

    /// Leaves a hole, whose checksum is wrong.
    fn hole(&mut self, kind: SectionKind, align: u64, len: u64, param: u64) {
        let offset = self.at.next_multiple_of(align);
        self.done.push(Section { kind, offset, len, crc32c: 1, param });
        self.at = offset + len;
    }
}

/// Writes an image of `samples` samples in the order that `window` and the seed 7 say.
pub fn write_image(path: &Path, samples: u64) {
    let layout = ImageLayout::new(Uuid([7; 16]), CHUNK_BYTES, Pack::Tight, 1).unwrap();
    let chunks = samples.div_ceil(SAMPLES_PER_CHUNK);
    let record = CellRange { namespace: 0, cell: FIRST_CELL + chunks * CHUNK_PAGES, cells: 1 };
    let start = (record.cell + 1) * 4096;
    let file = BufWriter::with_capacity(1 << 20, File::create(path).unwrap());
    let mut out = Sections { file, start, at: SNAPSHOT_HEAD_BYTES as u64, done: Vec::new() };
    let generation = Generation(1);
    let time_ns = 1;

    // One part, shuffled as a whole; no fields, classes or freed cells.
    let mut facts = vec![1];
    for number in [0, samples, 7, samples, time_ns] {
        leb128(&mut facts, number);
    }
    facts.extend([0, 0, 0]);
    out.write(SectionKind::Facts, [facts].into_iter());
    out.write(SectionKind::Chunks, (0..chunks).map(|c| raw_chunk(c).to_vec()));
    let per_piece = 1 << 15; // checkpoints, or samples
    let checkpoints = samples.div_ceil(32);
    out.write(
        SectionKind::Checkpoints,
        (0..checkpoints.div_ceil(per_piece)).map(|piece| {
            let all = piece * per_piece..checkpoints.min((piece + 1) * per_piece);
            all.flat_map(|checkpoint| raw_checkpoint(checkpoint * 32)).collect()
        }),
    );
    let column = |value: u32| {
        let piece = value.to_le_bytes().repeat(per_piece as usize);
        (0..samples.div_ceil(per_piece)).map(move |at| {
            let rest = (samples - at * per_piece).min(per_piece);
            piece[..rest as usize * 4].to_vec()
        })
    };
    out.write(SectionKind::Lengths, column(SAMPLE_BYTES as u32));
    out.write(SectionKind::Checksums, column(crc32c(&[0; SAMPLE_BYTES as usize])));
    out.hole(SectionKind::TreeKeys, 128, samples * 4 + samples / 8, samples);
    out.hole(SectionKind::TreeIds, 128, samples * 4, 4);
    out.hole(SectionKind::NameBlocks, 4096, samples.div_ceil(16) * 8, 0);
    out.hole(SectionKind::Names, 128, samples * 5, 0);

    let len_bytes = out.at.next_multiple_of(4096);
    let num_samples = samples;
    let sections = out.done;
    let head =
        SnapshotHead { layout, generation, time_ns, num_samples, record, len_bytes, sections };
    let head = head.encode();
    let mut file = out.file;
    file.seek(SeekFrom::Start(start)).unwrap();
    file.write_all(&head).unwrap();
    let head_crc32c = head_crc32c(&head);
    let snapshot = SnapshotLocation { namespace: 0, offset_bytes: start, len_bytes, head_crc32c };
    let superblock = Superblock {
        layout,
        namespace: 0,
        generation,
        time_ns,
        optional_features: 0,
        placement_seed: 7,
        used_len_bytes: start + len_bytes,
        snapshot,
        num_samples,
        num_live: samples,
        features_to_write: 0,
    };
    file.seek(SeekFrom::Start(copy_offset(generation))).unwrap();
    file.write_all(&superblock.encode()).unwrap();
    file.into_inner().unwrap().set_len(start + len_bytes).unwrap();
}

fn raw_chunk(number: u64) -> [u8; 40] {
    let mut raw = [0; 40];
    let cell = FIRST_CELL + number * CHUNK_PAGES;
    for (at, value) in (0..).step_by(8).zip([number * SAMPLES_PER_CHUNK, cell, 1, number]) {
        raw[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    raw[32..36].copy_from_slice(&(CHUNK_PAGES as u32).to_le_bytes());
    raw[36..38].copy_from_slice(&(HEADER_PAGES as u16).to_le_bytes());
    raw
}

fn raw_checkpoint(slot: u64) -> [u8; 8] {
    let chunk = (slot / SAMPLES_PER_CHUNK) as u32;
    let at = (slot % SAMPLES_PER_CHUNK * SAMPLE_BYTES) as u32;
    let mut raw = [0; 8];
    raw[..4].copy_from_slice(&chunk.to_le_bytes());
    raw[4..].copy_from_slice(&at.to_le_bytes());
    raw
}

fn leb128(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}
