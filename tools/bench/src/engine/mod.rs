//! I/O engines: the library's queue pairs, and three engines of our own for comparison.
//!
//! Every engine is a [`QueuePair`], so one loop drives all. `null` completes everything at once,
//! `psync` and `uring` work on plain files without any of the library's code. Their blocks are one
//! byte long, so that an LBA is an offset, unless the file is opened with O_DIRECT.

mod consent;
mod null;
mod psync;
pub(crate) mod target;
mod uring;

pub(crate) use target::{Target, Targets};

use dlfs::qpair::Namespace;

/// A namespace of one of our own engines.
fn plain_namespace(address: &str, len: u64, block: u32, depth: u16, engine: &str) -> Namespace {
    Namespace {
        address: address.to_owned(),
        block_len_bytes: block,
        num_blocks: len / u64::from(block),
        max_transfer_bytes: u32::MAX,
        queue_depth: depth,
        nguid: [0; 16],
        read_only: false,
        engine: engine.to_owned(),
    }
}
