//! Finds the heads of chunks, for a rebuild and for finding the remains of an interrupted import.
//!
//! Every cell may hold a head. But a generation never writes to cells that the current one reads, so a chunk in
//! use contains no other head. A scan therefore skips the cells of the chunks that it finds. It searches the
//! cells of chunks that may have been abandoned and partly overwritten.

use std::collections::HashSet;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use crate::import::media::{Channel, Media};
use crate::import::options::Progress;
use dlfs_base::Result;
use dlfs_base::buf::IoBuf;
use dlfs_format::format::geometry::CELL_BYTES;
use dlfs_format::format::{CellRange, ChunkHead, ImageLayout};
use dlfs_io::qpair::Device;

/// The heads found so far.
#[derive(Default)]
pub(super) struct Scan {
    /// The valid heads.
    pub(super) heads: Vec<ChunkHead>,
    /// Cells whose first block cannot be read, and that belong to no found chunk.
    pub(super) unreadable: Vec<CellRange>,
    /// The cells of found chunks that were skipped, with namespace and cell of the chunk's head.
    passed: Vec<((u16, u64), CellRange)>,
}

impl Scan {
    /// Finds every head of the namespaces.
    pub(super) fn whole(media: &Media, layout: &ImageLayout) -> Result<Scan> {
        let first = layout.first_cell();
        let cells = |(namespace, end): (u16, u64)| CellRange {
            namespace,
            cell: first,
            cells: end.saturating_sub(first),
        };
        let all: Vec<CellRange> = (0..).zip(capacities(media, layout)).map(cells).collect();
        let mut scan = Scan::of(media, layout, &all, &mut ())?;
        while scan.look_inside(media, layout, &HashSet::new())? {}
        Ok(scan)
    }

    /// Finds the heads in `cells`, except those within chunks.
    pub(super) fn of(
        media: &Media,
        layout: &ImageLayout,
        cells: &[CellRange],
        progress: &mut dyn Progress,
    ) -> Result<Scan> {
        let mut scan = Scan::default();
        let mut channel = media.channel();
        for range in cells {
            let unreadable = scan.walk(&mut channel, layout, *range, progress)?;
            scan.unreadable.extend(unreadable);
        }
        Ok(scan)
    }

    /// Searches the skipped cells, except in chunks whose heads are at `sound` places. Returns whether it found
    /// heads.
    pub(super) fn look_inside(
        &mut self,
        media: &Media,
        layout: &ImageLayout,
        sound: &HashSet<(u16, u64)>,
    ) -> Result<bool> {
        let before = self.heads.len();
        let mut channel = media.channel();
        let suspicious: Vec<_> =
            self.passed.extract_if(.., |(head, _)| !sound.contains(head)).collect();
        for (_, cells) in suspicious {
            self.walk(&mut channel, layout, cells, &mut ())?;
        }
        Ok(self.heads.len() > before)
    }

    /// Finds the heads in `cells`, and returns the cells that cannot be read.
    fn walk(
        &mut self,
        channel: &mut Channel,
        layout: &ImageLayout,
        cells: CellRange,
        progress: &mut dyn Progress,
    ) -> Result<Vec<CellRange>> {
        let namespace = cells.namespace;
        let end = cells.cell + cells.cells;
        let cell_bytes = layout.cell_bytes();
        let mut unreadable = Vec::new();
        let bytes = cells.cell * cell_bytes..end * cell_bytes;
        each_block(channel, namespace, bytes, cell_bytes, |at, block| {
            let cell = at / cell_bytes;
            let mut next = cell + 1;
            match block.map(|block| ChunkHead::parse(block).ok()) {
                Ok(head) => {
                    let is_here =
                        |head: &ChunkHead| head.check_location(layout, namespace, cell).is_ok();
                    if let Some(head) = head.filter(is_here) {
                        next = end.min(cell + head.cell_range().cells);
                        let inside =
                            CellRange { namespace, cell: cell + 1, cells: next - cell - 1 };
                        self.passed.push(((namespace, cell), inside));
                        self.heads.push(head);
                    }
                }
                Err(why) => {
                    tracing::warn!(namespace, offset_bytes = at, "a cell cannot be read: {why}");
                    unreadable.push(CellRange { namespace, cell, cells: 1 });
                }
            }
            progress.advance(next - cell, 0);
            ControlFlow::Continue(next * cell_bytes)
        })?;
        Ok(unreadable)
    }
}

/// Passes the blocks in the byte range `bytes` of a namespace to `take`, at a distance of `step` bytes; for a
/// bad block it passes the reason instead. `take` returns the offset at which to continue, or stops. Adjacent
/// blocks are read together, in pieces that grow while no block is skipped.
///
/// # Errors
/// Errors of reading, except those of bad blocks.
pub(super) fn each_block(
    channel: &mut Channel,
    namespace: u16,
    bytes: Range<u64>,
    step: u64,
    mut take: impl FnMut(u64, Result<&[u8], &str>) -> ControlFlow<(), u64>,
) -> Result<()> {
    let len = channel.media().namespace(namespace).len_bytes();
    let end = bytes.end.min(len);
    let block = BLOCK_BYTES as u64;
    let mut at = bytes.start;
    let mut most = block;
    while at.saturating_add(block) <= end {
        let from = at;
        let piece = most.min((end - at) / block * block);
        let whole = if piece > block {
            channel.read_block(namespace, from, piece as usize, false)?.ok()
        } else {
            None
        };
        while at < from + piece {
            let flow = match &whole {
                Some(bytes) => take(at, Ok(&bytes[(at - from) as usize..][..BLOCK_BYTES])),
                None => match read_twice(channel, namespace, at, BLOCK_BYTES)? {
                    Ok(bytes) => take(at, Ok(&bytes)),
                    Err(why) => take(at, Err(&why)),
                },
            };
            let ControlFlow::Continue(next) = flow else { return Ok(()) };
            at = next;
        }
        let is_next = step == block && at == from + piece;
        most = if is_next { (2 * most).min(PIECE_BYTES) } else { block };
    }
    Ok(())
}

/// Reads a block. If the first attempt is bad, it reads again from the device. The inner error is the reason
/// why the block cannot be read.
pub(super) fn read_twice(
    channel: &mut Channel,
    namespace: u16,
    offset: u64,
    len: usize,
) -> Result<Result<IoBuf, String>> {
    match channel.read_block(namespace, offset, len, false)? {
        Err(_) => channel.read_block(namespace, offset, len, true),
        found => Ok(found),
    }
}

/// The number of cells of each namespace, and one more.
pub(super) fn capacities(media: &Media, layout: &ImageLayout) -> Vec<u64> {
    let capacity = |device: &Arc<dyn Device>| layout.capacity_cells(device.namespace().len_bytes());
    // The last cell of a file may be truncated after its used part, so it counts, too.
    media.devices().iter().map(capacity).map(|cells| cells + 1).collect()
}

/// A chunk's head is in its first block.
pub(super) const BLOCK_BYTES: usize = CELL_BYTES as usize;
/// Maximum length of a read in a scan of adjacent blocks.
const PIECE_BYTES: u64 = 1 << 20;
