//! Finds the heads of chunks: for a rebuild, and to find what an interrupted import left.
//!
//! Every cell may hold a head. But a generation never writes where the current one reads, so within a chunk that is in
//! use there is no other: a scan passes over the cells of the chunks that it finds, and looks into those of chunks that
//! may have been given up, and overwritten in part.

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

/// The heads that were found so far.
#[derive(Default)]
pub(super) struct Scan {
    /// The valid heads.
    pub(super) heads: Vec<ChunkHead>,
    /// Cells whose first block cannot be read, and that no chunk found has.
    pub(super) unreadable: Vec<CellRange>,
    /// For each head, by its namespace and cell, the cells of its chunk that were passed over.
    passed: Vec<((u16, u64), CellRange)>,
}

impl Scan {
    /// Every head of the namespaces.
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

    /// The heads in `cells`, but for those within chunks.
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

    /// Looks into the chunks that were passed over, but for those whose heads are at `sound` places; returns whether
    /// there were heads.
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

    /// Finds the heads in `cells`; returns the cells that cannot be read.
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

/// Gives the blocks within `bytes` of a namespace to `take`, each `step` bytes apart, or says why a block cannot be
/// read. `take` returns where to go on, or breaks off. Neighbouring blocks are read together, the more the longer
/// none was passed over.
///
/// # Errors
/// Those of reading, other than of bad blocks.
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

/// Reads a block, a second time from the device if the first attempt is bad; or returns why it cannot be
/// read.
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
