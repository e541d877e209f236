//! Sources, chunks and commits: everything that writes an image.
//!
//! # What it is
//! [`import`] indexes a source, decides what lies where, and lets several threads read samples and
//! write chunks side by side; then it commits. What it writes is a function of a [`journal`], which it
//! writes first, and of the source: so an import that was killed, ran out of space or lost its target
//! goes on where it stopped and ends with the same bytes.
//!
//! # What it is not
//! It reads no samples back for users (`reader` does), decides nothing about formats (`format` does),
//! and keeps no state outside of the image.
//!
//! # Invariants
//! - Until the last write of a commit, a reader opens the generation before, whole.
//! - No cell that this generation or the one before reads is written to.
//! - Nothing is committed that was not read whole and unchanged from the source.
//! - One importer at a time writes an image: see `lease.rs`.
//!
//! Read `run.rs` first, then `pass.rs`, `worker.rs` and `chunks.rs`; `begin.rs` judges what a target holds.

mod chunker;
mod chunks;
mod commit;
mod device;
mod edit;
mod importer;
pub mod journal;
mod lease;
mod media;
mod options;
mod pass;
mod prepare;
mod read_back;
mod rebuild;
mod retry;
mod scan;
mod snapshot;
pub mod sources;
mod streamed;
mod worker;
mod write_behind;

pub use edit::{EditReport, delete, delete_on, purge, purge_on};
pub use importer::{import, import_onto};
pub use options::{
    BadEntries, EditOptions, ImportOptions, ImportReport, OnError, Onto, PlacementOrder, Progress,
    Stage,
};
pub use rebuild::{RebuildReport, rebuild, rebuild_on};
pub use snapshot::{SnapshotReport, snapshot_check, snapshot_save};
pub use sources::{BadEntry, BadReason};

use crate::Result;

/// Fills `bytes` with random numbers of the operating system.
fn draw(bytes: &mut [u8]) -> Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        let flags = rustix::rand::GetRandomFlags::empty();
        filled += rustix::rand::getrandom(&mut bytes[filled..], flags)
            .map_err(|errno| crate::Error::from(std::io::Error::from(errno)))?;
    }
    Ok(())
}
