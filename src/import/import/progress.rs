//! The progress of an import.

/// Receives the progress of an import, on the thread that imports.
pub trait Progress {
    /// A new stage begins; `samples` and `bytes` are its totals, where known.
    fn stage(&mut self, stage: Stage, samples: u64, bytes: u64);

    /// This many more samples and bytes of the stage are done.
    fn advance(&mut self, samples: u64, bytes: u64);

    /// Called periodically: whether to stop. What is done is kept for a later `Resume`.
    fn stop(&mut self) -> bool {
        false
    }
}

/// No progress reports.
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
