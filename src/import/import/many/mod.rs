//! One import by many processes, on as many hosts as there are namespaces.
//!
//! # What it is
//! A *plan* prepares the namespaces and says what all parts share, a *part* writes chunks onto one namespace, and the
//! *commit* makes them one generation. Parts are of two kinds:
//!
//! - From sources: [`plan_import`] indexes them and lays out all chunks; a part ([`import_part`]) reads its rows of the
//!   plan, piece by piece, so that the samples of every part are a random share of the source; [`commit_import`] reads
//!   the headers of all chunks. The image is the one that a single import or append would have made, byte for byte.
//! - From programs, none of which knows how many samples the others have: a [`PartWriter`] writes a part of any length
//!   behind those that are complete on its namespace. Its chunks number ids and slots from 0. [`WritePlan::commit`]
//!   gives the parts their places, one behind the other: it reads the header of each chunk, and rewrites the head. The
//!   samples are not moved, nor read.
//!
//! # What it is not
//! It starts no processes: `srun`, MPI, a Kubernetes job or a shell do that. It keeps no state but the plan and the
//! namespaces. Of several attempts at a part of a program, whoever has the [`WrittenPart`]s chooses, or else the last
//! complete one counts.
//!
//! # Invariants
//! - A part holds the lease of its own namespace alone, and writes nowhere else. The commit of written parts holds
//!   those of all namespaces.
//! - A part may be tried as often as it takes. One from a source finds what is on the namespace already; one that a
//!   program writes is free space until its record is there, and what is complete is not written over.
//! - The commit takes nothing for granted but the mark of a namespace (`mark.rs`), which is written when all chunks are
//!   durable, and the records behind it (`record.rs`).
//! - Chunks without a place are of another image, that of the plan's id: a rebuild does not take attempts that were
//!   given up for samples of the image. A head that the commit rewrites lies in one block, and changes in the first 128
//!   bytes alone; the new one follows from what the record covers, whether or not it was rewritten before.
//! - A plan to append has a mark on each namespace from the beginning. Any other change of the image removes them
//!   (`give_up.rs`), under the lease of each namespace: no part writes where that change does.
//!
//! Read `plan_file.rs` and `commit.rs` first; then, for sources, `source_plan.rs`, `planning.rs`, `source_part.rs` and
//! `source_commit.rs`; for programs `write_plan.rs`, `record.rs`, `part_writer.rs`, `placing.rs`, `write_commit.rs`.

mod check;
mod commit;
mod part_writer;
mod pieces;
mod placing;
mod plan_file;
mod planned_names;
mod planning;
mod record;
mod source_commit;
mod source_part;
mod source_plan;
mod write_commit;
mod write_plan;

pub use part_writer::{Output, PartPlace, PartWriter};
pub use planning::{PlanReport, plan_import};
pub use source_commit::commit_import;
pub use source_part::{PartReport, import_part};
pub use write_plan::WritePlan;

pub use crate::import::written_part::WrittenPart;
