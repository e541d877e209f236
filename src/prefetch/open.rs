//! What a grouped order has open at a time, and whether the window has room for it.

use crate::directory::Directory;
use crate::order::OrderKind;

use super::LoaderOptions;

/// Whether the first batch would wait for so many chunks that it is rather read by itself; and there is
/// memory for both.
pub(super) fn has_lead(directory: &Directory, options: &LoaderOptions) -> bool {
    let awaited = open_bytes(directory, options);
    let room = (options.window_bytes as u64).saturating_sub(awaited);
    awaited >= LEAD_FROM_BYTES && room >= LEAD_ROOM_CHUNKS * chunk_len(directory)
}

/// Says so where the window is smaller than what the order goes through at a time: chunks are then given
/// up while samples of them are still to come, and read again.
pub(super) fn warn_of_small_window(directory: &Directory, options: &LoaderOptions) {
    let OrderKind::Grouped { lanes, group } = options.order.kind else { return };
    if (options.window_bytes as u64) < open_bytes(directory, options) {
        // While batches show the last chunks of a lane's group, the next group begins.
        let enough = u64::from(lanes_of(options)) * (u64::from(group) + 1);
        tracing::warn!(
            window_bytes = options.window_bytes,
            enough_bytes = chunks_len(directory, enough),
            lanes,
            group,
            "the window is smaller than the chunks that a grouped order has open at a time, so that they \
             are read again and again: give it enough_bytes, or take fewer lanes or smaller groups"
        );
    }
}

/// Bytes of the chunks that a grouped order has open on one rank at a time: one group of each of its
/// lanes. 0 for any other order.
fn open_bytes(directory: &Directory, options: &LoaderOptions) -> u64 {
    let OrderKind::Grouped { group, .. } = options.order.kind else { return 0 };
    chunks_len(directory, u64::from(lanes_of(options)) * u64::from(group))
}

/// Lanes that one rank goes through: ranks that divide them share them out, others go through all.
fn lanes_of(options: &LoaderOptions) -> u32 {
    let OrderKind::Grouped { lanes, .. } = options.order.kind else { return 0 };
    let world_size = options.world_size.max(1);
    if lanes.is_multiple_of(world_size) { lanes / world_size } else { lanes }
}

/// Bytes of so many chunks, or of all where there are fewer.
fn chunks_len(directory: &Directory, chunks: u64) -> u64 {
    chunks.min(u64::from(directory.num_chunks())).saturating_mul(chunk_len(directory))
}

fn chunk_len(directory: &Directory) -> u64 {
    directory.layout().chunk_size_bytes.into()
}

/// A first batch that waits for this much and more is read by itself: at 5 GB/s, 3 ms.
const LEAD_FROM_BYTES: u64 = 16 << 20;

/// Chunks' worth of memory beside those awaited without which there is no such batch.
pub(super) const LEAD_ROOM_CHUNKS: u64 = 8;
