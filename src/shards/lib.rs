//! Shards read as they are: a source that `dlfs import` takes, as a read-only data set without an import.
//!
//! # What it is
//! A [`ShardSet`] lists the shards of a source, in the order of an import. A [`ShardReader`] decodes one shard front to
//! back with the decoders of `dlfs-import`, and returns its samples as records of an image: same names, fields, labels
//! and columns. At the end of the shard it gives a [`ShardIndex`]: the name, length, label and checksum of each sample,
//! and the places from which *runs* of samples are decoded again. [`KeptIndexes`] keeps indexes in a folder or in a
//! store, so that no process of a job makes one twice. Once all indexes are there, [`assemble`] makes the directory,
//! and a [`ShardNamespace`] in which the runs lie one after the other: any reader, tier or target uses it like an
//! image.
//!
//! # How it is used
//! ```ignore
//! let set = Arc::new(ShardSet::open(&[source], &ShardOptions { index, ..Default::default() }, progress)?);
//! // Either all indexes at once, made in parallel where none is kept:
//! let Indexed { indexes, .. } = set.index(&mut progress)?;
//! // Or shard by shard, as an epoch reads them; a reader stays in the thread that opened it:
//! let mut reader = set.reader(shard)?;
//! while let Some(sample) = reader.next(&mut record)? { /* `record` has got the bytes of `sample` */ }
//! let index = reader.finish()?;
//! set.keep(shard, &index)?;
//! // In any case, once there is an index of each shard:
//! let ShardImage { directory, namespace } = assemble(&set, indexes)?;
//! ```
//!
//! # What it is not
//! It does not decode a format itself (`dlfs-import` does), knows no order, and writes nothing but kept indexes, and
//! the image that a [`ShardFilling`] fills with what is read.
//!
//! # Invariants
//! - Bytes of a shard are returned only if length and entity tag (or time) are those that the listing had.
//! - A sample that an index lists has the checksum of its first decoding, so every reader verifies it.
//! - An index that is damaged or of another version is made again, and never trusted.
//!
//! Every shard is read as a stream: as `dlfs import` reads shards of a store. So a later member of a tar that has the
//! name of an earlier one is a bad entry, and the first sample defines the fields of WebDataset shards.
//!
//! Read `set.rs` first, then `index.rs` and `namespace.rs`.

mod filling;
mod index;
mod kept;
mod namespace;
mod set;

pub use dlfs_import::import::shards::Shard;
pub use filling::{CopyingReader, FilledShard, FillingShard, ShardFilling, image_to_fill};
pub use index::{BadSample, Run, ShardIndex, ShardSample};
pub use kept::{KeptIndexes, KeptObjects, Making};
pub use namespace::{ShardImage, ShardNamespace, assemble};
pub use set::{Indexed, ShardOptions, ShardReader, ShardSet};
