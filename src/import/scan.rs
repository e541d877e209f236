//! Scans the first block of every cell for chunk heads: for a rebuild, and to find what an interrupted
//! import left.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::Result;
use crate::buf::IoBuf;
use crate::format::geometry::CELL_BYTES;
use crate::format::{CellRange, ChunkHead, ImageLayout};
use crate::import::media::{Channel, Media};
use crate::import::options::Progress;
use crate::qpair::Device;

/// What a scan found.
pub(super) struct Scan {
    /// The valid heads of all cells.
    pub(super) heads: Vec<ChunkHead>,
    /// Cells whose first block cannot be read, and that no chunk found has.
    pub(super) unreadable: Vec<CellRange>,
}

/// Reads the first block of every cell: all of the namespaces where cells are blocks.
pub(super) fn scan(
    media: &Media,
    layout: &ImageLayout,
    progress: &mut dyn Progress,
) -> Result<Scan> {
    let mut channel = media.channel();
    let (mut heads, mut unreadable) = (Vec::new(), Vec::new());
    for (namespace, cells) in (0..).zip(capacities(media, layout)) {
        let from_head = heads.len();
        let mut found = Vec::new();
        each_block(&mut channel, namespace, layout.cell_bytes(), |at, block| {
            progress.advance(1, 0);
            let cell = at / layout.cell_bytes();
            if !(layout.first_cell()..cells).contains(&cell) {
                return ControlFlow::Continue(());
            }
            match block {
                Ok(block) => {
                    let head = ChunkHead::parse(block).ok();
                    let is_here =
                        |head: &ChunkHead| head.check_location(layout, namespace, cell).is_ok();
                    heads.extend(head.filter(is_here));
                }
                Err(why) => {
                    tracing::warn!(namespace, offset_bytes = at, "a cell cannot be read: {why}");
                    found.push(CellRange { namespace, cell, cells: 1 });
                }
            }
            ControlFlow::Continue(())
        })?;
        let of_chunk = |range: &CellRange| {
            heads[from_head..]
                .iter()
                .map(ChunkHead::cell_range)
                .any(|chunk| (chunk.cell + 1..chunk.cell + chunk.cells).contains(&range.cell))
        };
        unreadable.extend(found.into_iter().filter(|range| !of_chunk(range)));
    }
    Ok(Scan { heads, unreadable })
}

/// Gives the block at every multiple of `step` bytes of a namespace to `take`, until that breaks off; or
/// says why a block cannot be read. Neighbouring blocks are read together.
///
/// # Errors
/// Those of reading, other than of bad blocks.
pub(super) fn each_block(
    channel: &mut Channel,
    namespace: u16,
    step: u64,
    mut take: impl FnMut(u64, std::result::Result<&[u8], &str>) -> ControlFlow<()>,
) -> Result<()> {
    let len = channel.media().devices()[usize::from(namespace)].namespace().len_bytes();
    let block = BLOCK_BYTES as u64;
    let mut at = 0;
    while at + block <= len {
        let piece = if step == block { (len - at).min(PIECE_BYTES) / block * block } else { block };
        let whole = match piece > block {
            true => channel.read_block(namespace, at, piece as usize, false)?.ok(),
            false => None,
        };
        for from in (at..at + piece).step_by(BLOCK_BYTES) {
            let flow = match &whole {
                Some(bytes) => take(from, Ok(&bytes[(from - at) as usize..][..BLOCK_BYTES])),
                None => match read_twice(channel, namespace, from, BLOCK_BYTES)? {
                    Ok(bytes) => take(from, Ok(&bytes)),
                    Err(why) => take(from, Err(&why)),
                },
            };
            if flow.is_break() {
                return Ok(());
            }
        }
        at += piece.max(step);
    }
    Ok(())
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
pub(super) const BLOCK_BYTES: usize = CELL_BYTES as usize;
/// How much a scan of neighbouring blocks reads at once.
const PIECE_BYTES: u64 = 1 << 20;
