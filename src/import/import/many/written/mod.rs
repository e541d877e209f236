//! Parts that programs write: one image by many writers, none of which knows how many samples the others have.
//!
//! # What it is
//! A [`WritePlan`] prepares the namespaces and says what all samples are like. A [`PartWriter`] writes one part, of any
//! length, onto one namespace, behind the parts that are complete there. Its chunks number ids and slots from 0.
//! [`WritePlan::commit`] gives the parts their places, one behind the other: it reads the header of each chunk,
//! rewrites the head, and commits all as one generation. The samples are not moved, nor read.
//!
//! # What it is not
//! It starts no writers, and does not decide which of several attempts counts: whoever has the [`WrittenPart`]s commits
//! those, or else the last complete attempt of each part.
//!
//! # Invariants
//! - Until its record is on the namespace, a part is free space: the next attempt there writes over it.
//! - Chunks without a place are of another image, that of the plan's id: a rebuild does not take attempts that were
//!   given up for samples of the image.
//! - What is complete is not written over until the commit.
//! - A head that the commit rewrites lies in one block, and changes in the first 128 bytes alone. Whether it was
//!   rewritten before does not matter: the new one follows from what the record covers.
//! - The commit holds the leases of all namespaces.
//!
//! Read `plan.rs` first, then `lane.rs`, `part.rs`, `placing.rs` for the thread of a writer, and `commit.rs`.

mod check;
mod commit;
mod lane;
mod part;
mod placing;
mod plan;

use lane::{Lane, PartRecord};
pub use part::{Output, PartPlace, PartWriter, WrittenPart};
pub use plan::WritePlan;
