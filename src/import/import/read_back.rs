//! Reads chunks back: to find those of an interrupted import, and to verify written ones where a network has no
//! digests.

use crate::import::media::{Channel, pieces};
use dlfs_base::buf::IoBuf;
use dlfs_base::units::{ALIGN_BYTES, Slot};
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::format::builder::ChunkLocation;
use dlfs_format::format::chunk::{ChunkId, ChunkKind, SampleEntry};
use dlfs_format::format::names::crc32c;
use dlfs_format::format::{ChunkHead, ChunkHeader, ChunkSpec, RecordSums};

/// Reads the chunk of `spec` at `location` that begins with `first_slot`; of an oversize chunk, only the header.
/// `None`: it is not there, a sample does not match its checksums, or padding is not zero.
///
/// # Errors
/// Errors of reading.
pub(super) fn sound_chunk(
    channel: &mut Channel,
    spec: &ChunkSpec,
    location: &ChunkLocation,
    first_slot: Slot,
) -> Result<Option<(ChunkHeader, IoBuf)>> {
    let start = spec.layout.offset_of(location.cell)?;
    let is_expected = |head: &ChunkHead| is_head_of(head, spec, location, first_slot);
    read_sound(channel, location.namespace, start, is_expected)
}

/// Reads the chunk at offset `start`, if its head `is_expected`; of an oversize chunk, only the header. `None`: as
/// [`sound_chunk`].
fn read_sound(
    channel: &mut Channel,
    namespace: u16,
    start: u64,
    is_expected: impl Fn(&ChunkHead) -> bool,
) -> Result<Option<(ChunkHeader, IoBuf)>> {
    let len = channel.media.len_bytes(namespace);
    let is_within = |bytes: u64| start.saturating_add(bytes) <= len;
    if !is_within(ALIGN_BYTES as u64) {
        return Ok(None);
    }
    let block = channel.read(namespace, start, ALIGN_BYTES)?;
    let head = ChunkHead::parse(&block).ok().filter(is_expected);
    let Some(head) = head.filter(|head| is_within(head.len_bytes())) else { return Ok(None) };
    let is_oversize = head.len_bytes() > u64::from(head.layout.chunk_size_bytes);
    let read = if is_oversize { head.data_start() } else { head.len_bytes() };
    let bytes = channel.read(namespace, start, read as usize)?;
    let Ok(header) = ChunkHeader::parse(&bytes) else { return Ok(None) };
    let is_sound = if is_oversize {
        oversize_is_sound(channel, &header, namespace, start)?
    } else {
        ordinary_is_sound(&header, &bytes)
    };
    Ok(is_sound.then_some((header, bytes)))
}

/// Returns whether `head` belongs to the chunk of `spec` at `location` that begins with `first_slot`.
pub(super) fn is_head_of(
    head: &ChunkHead,
    spec: &ChunkSpec,
    location: &ChunkLocation,
    first_slot: Slot,
) -> bool {
    let ChunkLocation { sequence, time_ns, namespace, cell } = *location;
    head.layout == spec.layout
        && head.kind == ChunkKind::Samples
        && head.id == ChunkId { generation: spec.generation, sequence }
        && head.time_ns == time_ns
        && head.first_slot == first_slot
        && head.part == spec.part.uncounted()
        && head.check_location(&spec.layout, namespace, cell).is_ok()
}

/// Returns whether the only sample of the chunk at offset `start` matches its checksums, and the padding behind the
/// sample is zero.
fn oversize_is_sound(
    channel: &mut Channel,
    header: &ChunkHeader,
    namespace: u16,
    start: u64,
) -> Result<bool> {
    let Some(sample) = header.samples().next() else { return Ok(false) };
    let mut sums = RecordSums::default();
    let len = u64::from(sample.len_bytes);
    let padded_len = header.head().len_bytes() - sample.offset_bytes;
    for (at, piece) in pieces(padded_len, PIECE_BYTES) {
        let bytes = channel.read(namespace, start + sample.offset_bytes + at, piece)?;
        let payload = (len.saturating_sub(at)).min(piece as u64) as usize;
        sums.push(&bytes[..payload]);
        if bytes[payload..].iter().any(|&byte| byte != 0) {
            return Ok(false);
        }
    }
    Ok(is_right(&sample, &sums))
}

/// Returns whether every sample of a chunk matches its checksum and all padding is zero.
fn ordinary_is_sound(header: &ChunkHeader, bytes: &[u8]) -> bool {
    let mut at = header.head().header_len as usize;
    let is_zero = |range: std::ops::Range<usize>| {
        bytes.get(range).is_some_and(|gap| gap.iter().all(|&byte| byte == 0))
    };
    for sample in header.samples() {
        let start = sample.offset_bytes as usize;
        let end = start + sample.len_bytes as usize;
        let sound = bytes.get(start..end).is_some_and(|record| match sample.pieces {
            [] => crc32c(record) == sample.crc32c,
            _ => is_right(&sample, &RecordSums::of(record)),
        });
        if !sound || !is_zero(at..start) {
            return false;
        }
        at = end;
    }
    is_zero(at..header.head().len_bytes() as usize)
}

/// Returns whether a header has these checksums for the sample. Earlier releases wrote no checksums for pieces.
fn is_right(sample: &SampleEntry<'_>, sums: &RecordSums) -> bool {
    let pieces = sample.pieces;
    sums.crc32c() == sample.crc32c
        && (pieces.is_empty() || sums.pieces().eq(pieces.iter().copied()))
}

/// Reads back chunks that were written, and checks that each has its head of `heads` and matching checksums.
///
/// # Errors
/// `Disconnected`: a chunk is not as it was written; `hint` says what to do. Errors of reading.
pub(super) fn check_heads(
    channel: &mut Channel,
    heads: &[ChunkHead],
    hint: &'static str,
) -> Result<()> {
    for head in heads {
        let start = head.layout.offset_of(head.cell)?;
        if read_sound(channel, head.namespace, start, |found| found == head)?.is_none() {
            let message =
                format!("chunk {} does not read back as it was written", head.id.sequence);
            let error = Error::new(ErrorKind::Disconnected, message).hint(hint);
            return Err(error.target(channel.media.address(head.namespace)));
        }
    }
    Ok(())
}

/// Bytes of an oversize chunk that are read at once.
const PIECE_BYTES: u64 = 1 << 20;
