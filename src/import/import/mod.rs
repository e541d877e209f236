//! Everything that writes an image: sources, chunks and commits.
//!
//! # What it is
//! [`import`] indexes a source, lays out the chunks, and commits after several threads have read samples and
//! written chunks in parallel. A stream has no index: one thread reads it and lays out chunks meanwhile. The
//! written bytes depend only on the source, the options, and a [`journal`], which is written first. So an import
//! that was killed, ran out of space or lost its target can be resumed, and ends with the same bytes.
//!
//! # What it is not
//! It does not read samples for users (`reader` does), does not define formats (`format` does), and keeps
//! no state outside the image, except the plan files of [`many`].
//!
//! # Invariants
//! - Until the last write of a commit, a reader opens the previous generation, complete.
//! - An import never writes to a cell that the current generation or the previous one reads, unless the user
//!   discards the image.
//! - An import commits only samples that it read completely and unchanged from the source.
//! - Only one importer at a time writes an image, or, in an import by many, each of its namespaces: see `lease.rs`.
//!
//! Read `importer.rs` first, then `pass.rs` and `chunks.rs`; `prepare.rs` inspects the image to
//! write. [`many`] divides an import among processes. [`Writer`] takes samples from a program that creates
//! them: read `writer/mod.rs`, then `chunk_stream.rs`. `streamed.rs` uses `chunk_stream.rs`, too.

mod bad_entries;
mod block;
mod checked;
mod checkpoint;
mod chunk_stream;
mod chunks;
mod columns;
mod commit;
mod committed;
mod device;
mod discard;
mod edit;
mod empty;
mod field_types;
pub mod formats;
mod importer;
mod inspect;
pub mod journal;
mod lease;
pub mod many;
mod marks;
mod media;
mod options;
mod pass;
mod points;
mod prepare;
mod progress;
mod purge;
mod read_back;
mod rebuild;
mod remains;
mod retry;
mod scan;
pub mod shards;
pub mod sources;
mod streamed;
mod temporary_column;
mod tokenizer;
mod trim;
mod write_behind;
mod writer;
mod written_part;

pub use bad_entries::BadEntries;
pub use edit::{EditReport, delete, delete_ids, delete_on};
pub use field_types::{FieldColumn, FieldSpec};
pub use importer::{import, import_onto};
pub use inspect::{SnapshotReport, orphans_on, snapshot_check, snapshot_save};
pub use options::{
    ColumnCounts, ColumnsFrom, EditOptions, ImportOptions, ImportReport, MediaUse, OnError, Onto,
    PlacementOrder, Progress, RowOptions, Stage,
};
pub use purge::{purge, purge_on};
pub use rebuild::{RebuildReport, read_heads, rebuild, rebuild_on};
pub use sources::{BadEntry, BadReason};
pub use tokenizer::tokenizer_in;
pub use writer::{Label, NewSample, WriteOrder, WriteReport, Writer, WriterOptions};
