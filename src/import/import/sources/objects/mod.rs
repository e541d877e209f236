//! Objects of stores as sources: folders of objects, shards, and lists.
//!
//! A folder of objects is indexed from its listing alone, in the order of a local folder. Payloads are then read in
//! the order of placement; the payloads of a chunk are requested concurrently. Shards are streams: they are read once,
//! front to back. A list names objects of its own folder by key, or of any store by address.
//!
//! Read `look.rs` first, which detects the kind; then `listed.rs`, `splits.rs`, `index.rs` and `read.rs`.

mod index;
mod listed;
mod look;
mod read;
mod splits;

pub(in crate::import) use look::{are_objects, look};
pub(in crate::import) use read::{
    ObjectReads, ObjectRoot, ObjectStreams, Shard, push_origin, reason,
};
pub(in crate::import) use splits::warn_of_splits;
