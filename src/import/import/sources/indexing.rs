//! Progress of indexing, and its cancellation.

use dlfs_base::{Error, ErrorKind, Result};

/// A step of indexing, as reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Indexing begins, or begins again: counts start from zero.
    Begin,
    /// It has found more.
    Found {
        /// Samples.
        samples: u64,
        /// Their bytes.
        bytes: u64,
    },
}

/// Counts what is found and tells it to somebody who may stop it.
pub(crate) struct Indexing<'t> {
    tell: &'t mut dyn FnMut(Step) -> bool,
    samples: u64,
    bytes: u64,
    /// Files or records since the last report.
    since: u64,
    is_stopped: bool,
}

impl<'t> Indexing<'t> {
    /// Begins. `tell` returns whether to go on.
    pub(crate) fn new(tell: &'t mut dyn FnMut(Step) -> bool) -> Indexing<'t> {
        let is_stopped = !tell(Step::Begin);
        Indexing { tell, samples: 0, bytes: 0, since: 0, is_stopped }
    }

    /// `samples` more were found, or a part of one, and their `bytes`; returns whether to go on.
    pub(super) fn found(&mut self, samples: u64, bytes: u64) -> bool {
        self.samples += samples;
        self.bytes = self.bytes.saturating_add(bytes); // a source claims any length
        self.since += 1;
        if self.since == MANY {
            let step = Step::Found { samples: self.samples, bytes: self.bytes };
            (self.samples, self.bytes, self.since) = (0, 0, 0);
            self.is_stopped |= !(self.tell)(step);
        }
        !self.is_stopped
    }

    /// Returns whether nobody has asked to stop.
    pub(super) fn goes_on(&self) -> bool {
        !self.is_stopped
    }

    /// Restarts the count: the entries found so far will be found again.
    pub(super) fn again(&mut self) {
        (self.samples, self.bytes, self.since) = (0, 0, 0);
        self.is_stopped |= !(self.tell)(Step::Begin);
    }

    /// # Errors
    /// `Interrupted`: it was asked to stop, so what was indexed is not all.
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
        let mut told = Vec::new();
        let mut tell = |step| {
            told.push(step);
            true
        };
        let mut indexing = Indexing::new(&mut tell);
        assert!((0..MANY).all(|_| indexing.found(1, u64::MAX)));
        assert_eq!(told, [Step::Begin, Step::Found { samples: MANY, bytes: u64::MAX }]);
    }
}
