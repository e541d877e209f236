//! Progress of indexing, and its cancellation.

use crate::import::progress::{Progress, Stage};
use dlfs_base::{Error, ErrorKind, Result};

/// Counts the samples and bytes found, and reports them.
pub(crate) struct Indexing<'p> {
    progress: &'p mut dyn Progress,
    samples: u64,
    bytes: u64,
    /// Files or records since the last report.
    since: u64,
    is_stopped: bool,
}

impl<'p> Indexing<'p> {
    /// Begins the stage and its counts.
    pub(crate) fn new(progress: &'p mut dyn Progress) -> Indexing<'p> {
        let mut indexing = Indexing { progress, samples: 0, bytes: 0, since: 0, is_stopped: false };
        indexing.again();
        indexing
    }

    /// Counts `samples` more samples (0: a part of one) and their `bytes`; returns whether to go on.
    pub(super) fn found(&mut self, samples: u64, bytes: u64) -> bool {
        self.samples += samples;
        self.bytes = self.bytes.saturating_add(bytes); // a source may claim any length
        self.since += 1;
        if self.since == MANY {
            self.progress.advance(self.samples, self.bytes);
            (self.samples, self.bytes, self.since) = (0, 0, 0);
            self.is_stopped |= self.progress.stop();
        }
        !self.is_stopped
    }

    /// Returns false once indexing was asked to stop.
    pub(super) fn goes_on(&self) -> bool {
        !self.is_stopped
    }

    /// Restarts the counts from zero: the entries found so far will be found again.
    pub(super) fn again(&mut self) {
        (self.samples, self.bytes, self.since) = (0, 0, 0);
        self.progress.stage(Stage::Indexing, 0, 0);
        self.is_stopped |= self.progress.stop();
    }

    /// # Errors
    /// `Interrupted`: indexing was asked to stop, so the index is incomplete.
    pub(super) fn check(&self) -> Result<()> {
        if self.is_stopped {
            let message = "the import was stopped while it indexed the source; nothing is written";
            return Err(Error::new(ErrorKind::Interrupted, message));
        }
        Ok(())
    }
}

/// Files or records between two reports: some milliseconds.
const MANY: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_that_a_source_claims_add_up_to_any_sum() {
        struct Told(Vec<(u64, u64)>);
        impl Progress for Told {
            fn stage(&mut self, _: Stage, samples: u64, bytes: u64) {
                self.0.push((samples, bytes));
            }

            fn advance(&mut self, samples: u64, bytes: u64) {
                self.0.push((samples, bytes));
            }
        }
        let mut told = Told(Vec::new());
        let mut indexing = Indexing::new(&mut told);
        assert!((0..MANY).all(|_| indexing.found(1, u64::MAX)));
        assert_eq!(told.0, [(0, 0), (MANY, u64::MAX)]);
    }
}
