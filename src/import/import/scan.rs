//! Finds the heads of chunks, for a rebuild and for finding the remains of an interrupted import.
//!
//! Every cell may hold a head. But a generation never writes to cells that the current one reads, so a chunk in
//! use contains no other head. A scan therefore skips the cells of the chunks that it finds. It searches the
//! cells of chunks that may have been abandoned and partly overwritten.

use std::collections::HashSet;
use std::ops::{ControlFlow, Range};

use crate::import::media::{Channel, Media};
use crate::import::options::Progress;
use dlfs_base::Result;
use dlfs_format::format::geometry::CELL_BYTES;
use dlfs_format::format::{CellRange, ChunkHead, ImageLayout};

/// The heads found so far.
pub(super) struct Scan {
    media: Media,
    layout: ImageLayout,
    /// The valid heads.
    pub(super) heads: Vec<ChunkHead>,
    /// Cells that cannot be read, and that belong to no found chunk.
    pub(super) unreadable: Vec<CellRange>,
    /// The cells of found chunks that were skipped, each with namespace and cell of the chunk's head.
    skipped: Vec<((u16, u64), CellRange)>,
}

impl Scan {
    /// Finds every head of the namespaces.
    ///
    /// # Errors
    /// Errors of reading, except those of bad blocks.
    pub(super) fn whole(media: &Media, layout: &ImageLayout) -> Result<Scan> {
        let all: Vec<CellRange> = cells_until(layout, media.num_cells(layout)).collect();
        let mut scan = Scan::of(media, layout, &all, &mut ())?;
        while scan.look_inside(&HashSet::new())? {}
        Ok(scan)
    }

    /// Finds the heads in `cells`, except those within chunks. Advances `progress` by cells.
    ///
    /// # Errors
    /// As [`whole`](Self::whole).
    pub(super) fn of(
        media: &Media,
        layout: &ImageLayout,
        cells: &[CellRange],
        progress: &mut dyn Progress,
    ) -> Result<Scan> {
        let mut scan = Scan {
            media: media.clone(),
            layout: *layout,
            heads: Vec::new(),
            unreadable: Vec::new(),
            skipped: Vec::new(),
        };
        let mut channel = media.channel();
        for range in cells {
            let unreadable = scan.walk(&mut channel, *range, progress)?;
            scan.unreadable.extend(unreadable);
        }
        Ok(scan)
    }

    /// Searches the skipped cells, except in chunks whose heads are at `sound` places. Returns whether it found
    /// heads.
    pub(super) fn look_inside(&mut self, sound: &HashSet<(u16, u64)>) -> Result<bool> {
        let before = self.heads.len();
        let mut channel = self.media.channel();
        let suspicious: Vec<_> =
            self.skipped.extract_if(.., |(head, _)| !sound.contains(head)).collect();
        for (_, cells) in suspicious {
            self.walk(&mut channel, cells, &mut ())?;
        }
        Ok(self.heads.len() > before)
    }

    /// Finds the heads in `cells`, and returns the cells that cannot be read.
    fn walk(
        &mut self,
        channel: &mut Channel,
        cells: CellRange,
        progress: &mut dyn Progress,
    ) -> Result<Vec<CellRange>> {
        let namespace = cells.namespace;
        let end = cells.cell + cells.cells;
        let mut unreadable = Vec::new();
        let bytes = cells.cell * CELL_BYTES..end * CELL_BYTES;
        each_block(channel, namespace, bytes, |at, block| {
            let cell = at / CELL_BYTES;
            let mut next = cell + 1;
            match block.map(|block| ChunkHead::parse(block).ok()) {
                Ok(Some(head)) if head.check_location(&self.layout, namespace, cell).is_ok() => {
                    next = end.min(cell + head.cell_range().cells);
                    let inside = CellRange { namespace, cell: cell + 1, cells: next - cell - 1 };
                    self.skipped.push(((namespace, cell), inside));
                    self.heads.push(head);
                }
                Ok(_) => {}
                Err(why) => {
                    tracing::warn!(namespace, offset_bytes = at, "a cell cannot be read: {why}");
                    unreadable.push(CellRange { namespace, cell, cells: 1 });
                }
            }
            progress.advance(next - cell, 0);
            ControlFlow::Continue(next * CELL_BYTES)
        })?;
        Ok(unreadable)
    }
}

/// Passes the blocks in the byte range `bytes` of a namespace to `take`, each with its offset; for a bad block the
/// reason why it cannot be read. `take` returns the offset at which to continue, or stops. Adjacent blocks are read
/// together, in pieces that grow while no block is skipped.
///
/// # Errors
/// Errors of reading, except those of bad blocks.
pub(super) fn each_block(
    channel: &mut Channel,
    namespace: u16,
    bytes: Range<u64>,
    mut take: impl FnMut(u64, Result<&[u8], &str>) -> ControlFlow<(), u64>,
) -> Result<()> {
    let len = channel.media.len_bytes(namespace);
    let end = bytes.end.min(len);
    let block = BLOCK_BYTES as u64;
    let mut at = bytes.start;
    let mut max_piece = block;
    while at.saturating_add(block) <= end {
        let from = at;
        let piece = max_piece.min((end - at) / block * block);
        let whole = if piece > block {
            channel.read_block(namespace, from, piece as usize, false)?.ok()
        } else {
            None
        };
        while at < from + piece {
            let flow = match &whole {
                Some(bytes) => take(at, Ok(&bytes[(at - from) as usize..][..BLOCK_BYTES])),
                None => match channel.read_twice(namespace, at, BLOCK_BYTES)? {
                    Ok(bytes) => take(at, Ok(&bytes)),
                    Err(why) => take(at, Err(&why)),
                },
            };
            let ControlFlow::Continue(next) = flow else { return Ok(()) };
            at = next;
        }
        let is_next = at == from + piece;
        max_piece = if is_next { (2 * max_piece).min(PIECE_BYTES) } else { block };
    }
    Ok(())
}

/// The cells for chunks of each namespace; `ends` has the exclusive end for each.
pub(super) fn cells_until(
    layout: &ImageLayout,
    ends: impl IntoIterator<Item = u64>,
) -> impl Iterator<Item = CellRange> {
    let cell = layout.first_cell();
    let range = move |(namespace, end): (u16, u64)| CellRange {
        namespace,
        cell,
        cells: end.saturating_sub(cell),
    };
    (0..).zip(ends).map(range)
}

/// Length of a block. The head of a chunk is in its first block.
pub(super) const BLOCK_BYTES: usize = CELL_BYTES as usize;
/// Maximum length of a read in a scan of adjacent blocks.
const PIECE_BYTES: u64 = 1 << 20;
