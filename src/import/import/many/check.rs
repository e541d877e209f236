//! Verifies a written part by reading it back, for networks without digests.

use crate::import::many::record::WrittenPart;
use crate::import::media::Channel;
use crate::import::part_sum::PartSum;
use crate::import::read_back::crc_of;
use dlfs_base::units::ALIGN_BYTES;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::format::{ChunkHead, ChunkHeader, ImageLayout};

/// Reads the chunks of a written part, one behind the other, and compares all samples with their headers, and
/// these with the record.
///
/// # Errors
/// `Disconnected`: something differs; the part can be written again. Those of reading.
pub(super) fn check_part(
    channel: &mut Channel,
    layout: &ImageLayout,
    part: &WrittenPart,
) -> Result<()> {
    let mut cell = part.first_cell;
    let mut sum = PartSum::default();
    for number in 0..part.chunks {
        let offset = layout.offset_of(cell)?;
        let Some(header) = whole_chunk(channel, part.namespace, offset)? else {
            let device = &channel.media().devices()[usize::from(part.namespace)];
            let message = format!("chunk {number} does not read back as it was written");
            return Err(Error::new(ErrorKind::Disconnected, message)
                .target(device.namespace().address)
                .hint("write the part again"));
        };
        sum.add(header.head());
        cell += header.head().cell_range().cells;
    }
    if (sum.samples, sum.digest()) == (part.samples, part.digest) {
        Ok(())
    } else {
        let message = "the chunks of a part do not read back as they were written";
        Err(Error::new(ErrorKind::Disconnected, message).hint("write the part again"))
    }
}

/// The header of the chunk at `offset`, if all its samples have their checksums.
fn whole_chunk(channel: &mut Channel, namespace: u16, offset: u64) -> Result<Option<ChunkHeader>> {
    let block = channel.read(namespace, offset, ALIGN_BYTES)?;
    let Ok(head) = ChunkHead::parse(&block) else { return Ok(None) };
    let bytes = channel.read(namespace, offset, head.data_start() as usize)?;
    let Ok(header) = ChunkHeader::parse(&bytes) else { return Ok(None) };
    for sample in header.samples() {
        let at = offset + sample.offset_bytes;
        if crc_of(channel, namespace, at, sample.len_bytes.into())? != sample.crc32c {
            return Ok(None);
        }
    }
    Ok(Some(header))
}
