//! One import by many processes, on as many hosts as there are namespaces.
//!
//! # What it is
//! An import is a function of its journal and its source. So a *plan* ([`plan_import`]) indexes the source, lays out
//! all chunks, and writes that to a file. A *part* ([`import_part`]) reads its rows of the plan, piece by piece, and
//! writes the chunks that lie on one namespace: the samples of every part are a random share of the source. The
//! *commit* ([`commit_import`]) reads the headers of all chunks, and commits them as one generation. The image is the
//! one that a single import or append would have made, byte for byte.
//!
//! # What it is not
//! It starts no processes: `srun`, MPI, a Kubernetes job or a shell do that. It keeps no state but the plan and the
//! namespaces.
//!
//! # Invariants
//! - A part holds the lease of its own namespace alone, and writes nowhere else.
//! - A part may be tried as often as it takes: what is on the namespace already is found, not written again.
//! - The commit takes nothing for granted but the mark of a part (`mark.rs`), which is written when all its chunks
//!   are durable.
//! - A plan to append has a mark on each namespace from the beginning. Any other change of the image removes them
//!   (`give_up.rs`), under the lease of each namespace: no part writes where that change does.
//!
//! Read `plan_file.rs` and `pieces.rs` first, then `planning.rs`, `part.rs` and `committing.rs`. `written/` is for
//! parts that programs write, of samples that no plan knows: [`WritePlan`].

mod committing;
mod part;
mod pieces;
mod plan_file;
mod planned_names;
mod planning;
mod written;

pub use committing::commit_import;
pub use part::{PartReport, import_part};
pub use planning::{PlanReport, plan_import};
pub use written::{Output, PartPlace, PartWriter, WritePlan, WrittenPart};
