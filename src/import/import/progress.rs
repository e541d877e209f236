//! The progress of an import.

/// Receives the progress of an import, on the importing thread.
pub trait Progress {
    /// Called when a stage begins. `samples` and `bytes` are its totals; 0 if unknown.
    fn stage(&mut self, stage: Stage, samples: u64, bytes: u64);

    /// Called when this many more samples and bytes of the stage are done.
    fn advance(&mut self, samples: u64, bytes: u64);

    /// Called periodically. Returns whether to stop. Completed work is kept for a later `Resume`.
    fn stop(&mut self) -> bool {
        false
    }
}

/// Ignores progress.
impl Progress for () {
    fn stage(&mut self, _: Stage, _: u64, _: u64) {}
    fn advance(&mut self, _: u64, _: u64) {}
}

/// The stage of an import.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stage {
    /// Indexing the source.
    Indexing,
    /// Reading samples and writing chunks.
    Writing,
    /// Writing the directory and making everything durable.
    Committing,
}
