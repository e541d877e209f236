//! Verifies written chunks by reading them back, for networks without digests.

use crate::import::media::{Channel, pieces};
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::directory::{ChunkInfo, Directory};
use dlfs_format::format::ChunkHeader;
use dlfs_format::format::checksum::crc32c_append;

/// Reads the chunks of `directory` from number `first` on and compares them with it.
///
/// # Errors
/// `Disconnected`: a chunk differs; the import can be resumed. Those of reading.
pub(super) fn check_chunks(channel: &mut Channel, directory: &Directory, first: u32) -> Result<()> {
    for number in first..directory.num_chunks() {
        let chunk = directory.chunk(number);
        if !is_whole(channel, directory, &chunk)? {
            let device = &channel.media().devices()[usize::from(chunk.namespace)];
            let message = format!("chunk {number} does not read back as it was written");
            return Err(Error::new(ErrorKind::Disconnected, message)
                .target(device.namespace().address)
                .hint("resume with dlfs import --resume"));
        }
    }
    Ok(())
}

/// The checksum of bytes on media.
pub(super) fn crc_of(channel: &mut Channel, namespace: u16, offset: u64, len: u64) -> Result<u32> {
    let mut crc = 0;
    for (at, piece) in pieces(len, PIECE_BYTES) {
        crc = crc32c_append(crc, &channel.read(namespace, offset + at, piece)?);
    }
    Ok(crc)
}

fn is_whole(channel: &mut Channel, directory: &Directory, chunk: &ChunkInfo) -> Result<bool> {
    let head = channel.read(chunk.namespace, chunk.offset_bytes, chunk.header_bytes as usize)?;
    let Ok(header) = ChunkHeader::parse(&head) else { return Ok(false) };
    if (header.head().first_slot, u32::from(header.head().num_samples))
        != (chunk.first_slot, chunk.num_slots)
    {
        return Ok(false);
    }
    for sample in header.samples() {
        let Some(extent) = directory.extent(sample.id) else { continue };
        if (extent.len_bytes, extent.crc32c) != (sample.len_bytes, sample.crc32c) {
            return Ok(false);
        }
        let at = extent.offset_bytes;
        let len = extent.len_bytes.into();
        if crc_of(channel, extent.namespace, at, len)? != extent.crc32c {
            return Ok(false);
        }
    }
    Ok(true)
}

const PIECE_BYTES: u64 = 1 << 20;
