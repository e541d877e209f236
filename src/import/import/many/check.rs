//! Verifies a written part by reading it back, for networks without digests.

use crate::import::media::Channel;
use crate::import::part_sum::PartSum;
use crate::import::read_back::whole_chunk;
use crate::import::written_part::WrittenPart;
use dlfs_base::units::ALIGN_BYTES;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::format::ImageLayout;

/// Reads the chunks of a written part in order. Compares all samples with the chunk headers, and the headers
/// with the part's record.
///
/// # Errors
/// `Disconnected`: something differs; the part can be written again. Errors of reading.
pub(super) fn check_part(
    channel: &mut Channel,
    layout: &ImageLayout,
    part: &WrittenPart,
) -> Result<()> {
    let mut cell = part.first_cell;
    let mut sum = PartSum::default();
    for number in 0..part.chunks {
        let offset = layout.offset_of(cell)?;
        let Some(header) = whole_chunk(channel, part.namespace, offset, ALIGN_BYTES)? else {
            let message = format!("chunk {number} does not read back as it was written");
            return Err(Error::new(ErrorKind::Disconnected, message)
                .target(channel.media().namespace(part.namespace).address)
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
