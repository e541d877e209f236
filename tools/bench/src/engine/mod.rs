//! What moves the bytes: the library's queue pairs, and three engines to compare them with.
//!
//! Every engine is a [`QueuePair`], so that one loop drives all. `null` completes everything at once,
//! `psync` and `uring` work on plain files without any of the library's code. Their blocks are one
//! byte long: an LBA is an offset.

mod consent;
mod null;
mod psync;
pub(crate) mod target;
mod uring;

pub(crate) use target::{Target, Targets};

use dlfs::qpair::Namespace;

/// A namespace of single bytes.
fn byte_namespace(address: &str, len: u64, depth: u16, engine: &str) -> Namespace {
    Namespace {
        address: address.to_owned(),
        block_len_bytes: 1,
        num_blocks: len,
        max_transfer_bytes: u32::MAX,
        queue_depth: depth,
        nguid: [0; 16],
        read_only: false,
        engine: engine.to_owned(),
    }
}
