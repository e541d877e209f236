//! Progress of indexing a source, and its cancellation.

use super::SourceOptions;
use crate::import::progress::{Progress, Stage};
use dlfs_base::{Error, ErrorKind, Result};

/// The options of one indexing, and its progress.
pub(crate) struct Indexing<'p> {
    progress: &'p mut dyn Progress,
    pub(super) options: &'p SourceOptions,
    /// Samples and bytes found since the last report.
    samples: u64,
    bytes: u64,
    /// Calls of [`found`](Self::found) since the last report.
    calls: u64,
    /// Set once `progress` asked to stop.
    is_stopped: bool,
}

impl<'p> Indexing<'p> {
    /// Begins the stage of indexing.
    pub(crate) fn new(progress: &'p mut dyn Progress, options: &'p SourceOptions) -> Indexing<'p> {
        let mut indexing =
            Indexing { progress, options, samples: 0, bytes: 0, calls: 0, is_stopped: false };
        indexing.again();
        indexing
    }

    /// Counts `samples` more samples (0: more of a counted one) and their `bytes`; returns false once indexing is to
    /// stop.
    pub(super) fn found(&mut self, samples: u64, bytes: u64) -> bool {
        self.samples += samples;
        self.bytes = self.bytes.saturating_add(bytes); // a source may claim any length
        self.calls += 1;
        if self.calls == CALLS_A_REPORT {
            self.progress.advance(self.samples, self.bytes);
            (self.samples, self.bytes, self.calls) = (0, 0, 0);
            self.is_stopped |= self.progress.stop();
        }
        !self.is_stopped
    }

    /// Returns false once indexing is to stop.
    pub(super) fn goes_on(&self) -> bool {
        !self.is_stopped
    }

    /// Restarts the counts from zero: the entries found so far will be found again.
    pub(super) fn again(&mut self) {
        (self.samples, self.bytes, self.calls) = (0, 0, 0);
        self.progress.stage(Stage::Indexing, 0, 0);
        self.is_stopped |= self.progress.stop();
    }

    /// Checks that indexing was not asked to stop.
    ///
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

/// Calls between two reports: some milliseconds.
const CALLS_A_REPORT: u64 = 4096;

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
        let options = SourceOptions::default();
        let mut indexing = Indexing::new(&mut told, &options);
        assert!((0..CALLS_A_REPORT).all(|_| indexing.found(1, u64::MAX)));
        assert_eq!(told.0, [(0, 0), (CALLS_A_REPORT, u64::MAX)]);
    }
}
