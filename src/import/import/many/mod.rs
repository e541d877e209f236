//! One import by many processes, on up to as many hosts as there are namespaces.
//!
//! # What it is
//! A *plan* prepares the namespaces and holds the data that all parts share. A *part* writes chunks onto one
//! namespace. The *commit* makes the parts one generation. There are two kinds of parts:
//!
//! - Parts from sources: [`plan_import`] indexes the sources and lays out all chunks. A part ([`import_part`])
//!   reads its rows of the plan piece by piece; with shuffled placement, its samples are a random subset of the
//!   source. [`commit_import`] reads the headers of all chunks. The image is byte for byte the one that a
//!   single import or append would have made.
//! - Parts from programs that do not know each other's number of samples: a [`PartWriter`] writes a part of any
//!   length after the complete parts on its namespace. Its chunks number ids and slots from 0.
//!   [`WritePlan::commit`] concatenates the parts: it reads the header of each chunk, and rewrites the chunk's
//!   head. Samples are neither moved nor read.
//!
//! # What it is not
//! It starts no processes: `srun`, MPI, a Kubernetes job or a shell do that. It keeps no state outside the plan
//! and the namespaces. If a program tries a part several times, the caller chooses an attempt by its
//! [`WrittenPart`]; by default the last complete attempt counts.
//!
//! # Invariants
//! - A part holds only the lease of its own namespace, and writes nowhere else. The commit of written parts
//!   holds the leases of all namespaces, the commit of parts from sources that of namespace 0.
//! - A part may be retried any number of times. A part from a source finds the chunks that are on the namespace
//!   already. The cells of a part from a program count as free until the mark names its record. From then to the
//!   commit, nothing overwrites them.
//! - A part counts as complete only by the mark of its namespace (`../marks.rs`), which is written when all chunks
//!   are durable. The mark of written parts names the last of their records.
//! - Until the commit, chunks of written parts have the plan's id in place of the image's UUID, so a rebuild does
//!   not take abandoned attempts for samples of the image. The commit rewrites their heads. A head lies in one
//!   block, and only its first 128 bytes change. The new head depends only on data that the record covers, so
//!   rewriting it twice gives the same bytes.
//! - A plan to append has a mark on each namespace from the beginning. Any other change of the image removes
//!   the marks (`../discard.rs`), under the lease of each namespace, so no part writes to cells that this change
//!   uses.
//!
//! [`filling`] writes shards while they are read for training, without a plan.
//!
//! Read `plan_file.rs` first; then `sourced.rs` for parts from sources, and for parts from programs `write_plan.rs`,
//! `part_writer.rs` and `written.rs`.

mod commit;
pub mod filling;
mod part_writer;
mod plan_file;
mod source_plan;
mod sourced;
mod write_plan;
mod written;

pub use part_writer::{Output, PartPlace, PartWriter};
pub use sourced::{PartReport, PlanReport, commit_import, import_part, plan_import};
pub use write_plan::WritePlan;

pub use crate::import::written_part::WrittenPart;
