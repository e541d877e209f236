//! Verifies written chunks by reading them back, for networks without digests.

use crate::import::media::{Channel, pieces};
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::directory::{ChunkInfo, Directory};
use dlfs_format::format::checksum::crc32c_append;
use dlfs_format::format::chunk::SampleEntry;
use dlfs_format::format::{ChunkHead, ChunkHeader};

/// Reads the chunks from number `first` on, and compares them with `directory`.
///
/// # Errors
/// `Disconnected`: a chunk differs; the import can be resumed. Errors of reading.
pub(super) fn check_chunks(channel: &mut Channel, directory: &Directory, first: u32) -> Result<()> {
    for number in first..directory.num_chunks() {
        let chunk = directory.chunk(number);
        let header =
            whole_chunk(channel, chunk.namespace, chunk.offset_bytes, chunk.header_bytes as usize)?;
        if !header.is_some_and(|header| is_same(&header, directory, &chunk)) {
            let message = format!("chunk {number} does not read back as it was written");
            return Err(Error::new(ErrorKind::Disconnected, message)
                .target(channel.media().namespace(chunk.namespace).address)
                .hint("resume with dlfs import --resume"));
        }
    }
    Ok(())
}

/// Returns whether a chunk has the samples that `directory` lists.
fn is_same(header: &ChunkHeader, directory: &Directory, chunk: &ChunkInfo) -> bool {
    let head = header.head();
    let is_sample = |sample: SampleEntry<'_>| {
        let extent = directory.extent(sample.id);
        extent.is_none_or(|extent| {
            (extent.len_bytes, extent.crc32c) == (sample.len_bytes, sample.crc32c)
        })
    };
    (head.first_slot, u32::from(head.num_samples)) == (chunk.first_slot, chunk.num_slots)
        && header.samples().all(is_sample)
}

/// Reads the chunk at `offset`, and returns its header if all its samples match their checksums.
/// `header_bytes`, at least a block, is the length of the first read.
///
/// # Errors
/// Errors of reading.
pub(super) fn whole_chunk(
    channel: &mut Channel,
    namespace: u16,
    offset: u64,
    header_bytes: usize,
) -> Result<Option<ChunkHeader>> {
    let mut bytes = channel.read(namespace, offset, header_bytes)?;
    let Ok(head) = ChunkHead::parse(&bytes) else { return Ok(None) };
    if head.data_start() as usize > bytes.len() {
        bytes = channel.read(namespace, offset, head.data_start() as usize)?;
    }
    let Ok(header) = ChunkHeader::parse(&bytes) else { return Ok(None) };
    for sample in header.samples() {
        let at = offset + sample.offset_bytes;
        if crc_of(channel, namespace, at, sample.len_bytes.into())? != sample.crc32c {
            return Ok(None);
        }
    }
    Ok(Some(header))
}

/// Computes the checksum of a byte range on the media.
fn crc_of(channel: &mut Channel, namespace: u16, offset: u64, len: u64) -> Result<u32> {
    let mut crc = 0;
    for (at, piece) in pieces(len, PIECE_BYTES) {
        crc = crc32c_append(crc, &channel.read(namespace, offset + at, piece)?);
    }
    Ok(crc)
}

const PIECE_BYTES: u64 = 1 << 20;
