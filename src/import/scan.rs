//! Scans the first block of every cell for chunk heads: for a rebuild, and to find what an interrupted
//! import left.

use std::sync::Arc;

use crate::Result;
use crate::buf::IoBuf;
use crate::format::{CellRange, ChunkHead, ImageLayout};
use crate::import::media::{Channel, Media};
use crate::import::options::Progress;
use crate::qpair::Device;

/// What a scan found.
pub(super) struct Scan {
    /// The valid heads of all cells.
    pub(super) heads: Vec<ChunkHead>,
    /// Cells whose first block cannot be read.
    pub(super) unreadable: Vec<CellRange>,
}

/// Reads the first block of every cell.
pub(super) fn scan(
    media: &Media,
    layout: &ImageLayout,
    progress: &mut dyn Progress,
) -> Result<Scan> {
    let mut channel = media.channel();
    let (mut heads, mut unreadable) = (Vec::new(), Vec::new());
    for (namespace, cells) in (0..).zip(capacities(media, layout)) {
        let len = media.devices()[usize::from(namespace)].namespace().len_bytes();
        for cell in 1..cells {
            let at = layout.offset_of(cell)?;
            progress.advance(1, 0);
            if at + BLOCK_BYTES as u64 > len {
                continue;
            }
            match read_twice(&mut channel, namespace, at, BLOCK_BYTES)? {
                Ok(block) => {
                    let head = ChunkHead::parse(&block).ok();
                    let is_here =
                        |head: &ChunkHead| head.check_location(layout, namespace, cell).is_ok();
                    heads.extend(head.filter(is_here));
                }
                Err(why) => {
                    tracing::warn!(namespace, offset_bytes = at, "a cell cannot be read: {why}");
                    unreadable.push(CellRange { namespace, cell, cells: 1 });
                }
            }
        }
    }
    Ok(Scan { heads, unreadable })
}

/// Reads a block, a second time from the device if the first attempt is bad; or returns why it cannot be
/// read.
pub(super) fn read_twice(
    channel: &mut Channel,
    namespace: u16,
    offset: u64,
    len: usize,
) -> Result<std::result::Result<IoBuf, String>> {
    match channel.read_block(namespace, offset, len, false)? {
        Err(_) => channel.read_block(namespace, offset, len, true),
        found => Ok(found),
    }
}

/// The cells of each namespace.
pub(super) fn capacities(media: &Media, layout: &ImageLayout) -> Vec<u64> {
    let capacity = |device: &Arc<dyn Device>| layout.capacity_cells(device.namespace().len_bytes());
    // The last cell of a file may be truncated after its used part.
    media.devices().iter().map(capacity).map(|cells| cells + 1).collect()
}

/// The head of a chunk lies in its first block.
pub(super) const BLOCK_BYTES: usize = 4096;
