//! Shards read as they are: a source that `dlfs import` takes, as a read-only data set without an import.
//!
//! # What it is
//! A [`ShardSet`] lists the shards of a source, in the order of an import. A [`ShardReader`] decodes one shard front to
//! back with the decoders of `dlfs-import`, and returns its samples as records of an image: same names, fields, labels
//! and columns. At the end of the shard it returns a [`ShardIndex`]: the name, length, label and checksum of each
//! sample, and the places in the shard at which decoding *runs* of samples can begin. [`KeptIndexes`] keeps indexes in
//! a folder or in a store, so that one process of a job makes each index. From the indexes of all shards, [`assemble`]
//! makes a directory, and a [`ShardNamespace`] in which the runs lie one after the other. Any reader, tier or target
//! uses them like an image.
//!
//! # How it is used
//! ```ignore
//! let set = Arc::new(ShardSet::open(&[source], &ShardOptions { index, ..Default::default() }, progress)?);
//! // Either index all shards at once, in parallel, where no index is kept:
//! let Indexed { indexes, .. } = set.index(&mut progress)?;
//! // Or shard by shard, as an epoch reads them; a reader stays in the thread that opened it:
//! let mut reader = set.reader(shard)?;
//! while let Some(sample) = reader.next(&mut record)? { /* the bytes of `sample` were appended to `record` */ }
//! let index = reader.finish()?;
//! set.keep(shard, &index)?;
//! // In any case, once each shard has an index:
//! let ShardImage { directory, namespace } = assemble(&set, indexes)?;
//! ```
//!
//! # What it is not
//! It does not decode a format itself (`dlfs-import` does), and knows no order. It writes only kept indexes, and the
//! image into which a [`ShardFilling`] copies shards.
//!
//! # Invariants
//! - Bytes of a shard are returned only if its length, and its entity tag or times, are those of the listing.
//! - An index has the checksum that each sample had when it was first decoded, and every reader verifies it.
//! - A kept index that is damaged or has another version is made again.
//!
//! Every shard is read as a stream, as `dlfs import` reads shards of a store. So a member of a tar archive with the
//! name of an earlier member is a bad entry, and the first sample defines the fields of WebDataset shards.
//!
//! Read `set.rs` first, then `reader.rs`, `index.rs` and `namespace.rs`.

mod assemble;
mod filling;
mod index;
mod indexing;
mod kept;
mod namespace;
mod reader;
mod run_cache;
mod set;

pub use assemble::{ShardImage, assemble};
pub use dlfs_import::import::shards::Shard;
pub use filling::{CopyingReader, FilledShard, FillingShard, ShardFilling, image_to_fill};
pub use index::{BadSample, Run, ShardIndex, ShardSample};
pub use indexing::Indexed;
pub use kept::{KeptIndexes, KeptObjects, Making};
pub use namespace::ShardNamespace;
pub use reader::ShardReader;
pub use set::{ShardOptions, ShardSet};
