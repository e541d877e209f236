//! Finds orphans: cells with data that belong to no generation, such as those left by a killed import.

use std::sync::Arc;

use crate::import::media::{Media, pieces};
use crate::import::prepare;
use dlfs_base::Result;
use dlfs_format::format::CellRange;
use dlfs_format::format::space::without;
use dlfs_io::qpair::Device;

/// Returns the cells that are not all zero and that belong neither to the newest generation (chunks, record,
/// snapshot) nor to the previous one (the cells that the newest one freed). These cells are free: the next
/// import may write there.
///
/// This reads all free cells of the namespaces. So it is for tests, and for files, whose length is that of the
/// image.
///
/// # Errors
/// Errors of opening the image, and of reading.
pub fn orphans_on(devices: &[Arc<dyn Device>]) -> Result<Vec<CellRange>> {
    let given = Media::for_reading(devices.to_vec())?;
    let opened = prepare::opened(&given)?;
    let media = given.in_order(&opened.given);
    let superblock = opened.superblock();
    let directory = prepare::read_directory(&media, superblock)?;
    let layout = superblock.layout;
    let first = superblock.layout.first_cell();
    let all = (0..).zip(prepare::num_cells(&media, &layout)).map(|(namespace, cells)| CellRange {
        namespace,
        cell: first,
        cells: cells.saturating_sub(first),
    });
    let read = directory.cell_ranges().chain([superblock.snapshot_range()]);
    let free = without(all, read.chain(directory.freed().iter().copied()));
    let mut channel = media.channel();
    let mut found = Vec::new();
    let one_by_one = free.into_iter().flat_map(|range| {
        (range.cell..range.cell + range.cells).map(move |cell| (range.namespace, cell))
    });
    for (namespace, cell) in one_by_one {
        let len_bytes = media.namespace(namespace).len_bytes();
        let start = layout.offset_of(cell)?;
        let len = layout.cell_bytes().min(len_bytes.saturating_sub(start));
        for (at, piece) in pieces(len, PIECE_BYTES) {
            if channel.read(namespace, start + at, piece)?.iter().any(|byte| *byte != 0) {
                found.push(CellRange { namespace, cell, cells: 1 });
                break;
            }
        }
    }
    Ok(found)
}

const PIECE_BYTES: u64 = 1 << 20;
