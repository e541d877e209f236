//! Time limits of reads after the target has left a read unanswered: [`Unanswered`].
//!
//! The kernel repeats the read of a page that it could not read, and reads queue behind a batch that waits
//! for the target. If each read waited for its own deadline, a program would wait for all these deadlines in
//! turn. So for a second after a failure, a *repeated* read gets an eighth of the time that the failed read
//! took: a read of the same file, or one that the kernel requested before the failure. That is enough if the
//! target is back, and a program waits for little more than one deadline. Other reads get the full time.

use std::time::{Duration, Instant};

use dlfs::posix::File;
use dlfs::reader::Watch;
use dlfs::{Error, ErrorKind};
use parking_lot::Mutex;

/// The unanswered reads of the last second, with which new reads are compared.
#[derive(Default)]
pub(crate) struct Unanswered(Mutex<Vec<Failure>>);

/// Reads that ended without an answer.
struct Failure {
    /// The time at which they ended.
    at: Instant,
    /// The time for which they waited.
    waited: Duration,
    files: Vec<File>,
}

impl Unanswered {
    /// Records reads that began at `began` and failed with `error`, unless `error` is an answer of the target.
    /// `reads` holds their files, and the time of the kernel's request for each.
    pub(crate) fn note(
        &self,
        error: &Error,
        began: Instant,
        reads: impl Iterator<Item = (File, Instant)>,
    ) {
        let mut failures = self.0.lock();
        let has_waited = |asked: Instant| failures.iter().any(|failure| asked < failure.at);
        let files = match error.kind() {
            ErrorKind::TimedOut | ErrorKind::Disconnected => reads.map(|(file, _)| file).collect(),
            // The short limit ended these reads. Only those that the kernel requested before an earlier failure are
            // recorded, so that short limits end even if programs continue to read.
            ErrorKind::Interrupted => {
                reads.filter(|(_, asked)| has_waited(*asked)).map(|(file, _)| file).collect()
            }
            _ => return,
        };
        let at = Instant::now();
        failures.push(Failure { at, waited: at - began, files });
    }

    /// The time limit of a read that the kernel requested at `asked`; `None`: the usual deadline.
    pub(crate) fn limit(&self, file: File, asked: Instant) -> Option<Duration> {
        let mut failures = self.0.lock();
        failures.retain(|failure| failure.at.elapsed() < LIMITS_FOR);
        let is_repeated = |failure: &&Failure| asked < failure.at || failure.files.contains(&file);
        let waited = failures.iter().filter(is_repeated).map(|failure| failure.waited).max();
        waited.map(|waited| waited / LIMIT_DIVISOR)
    }
}

/// Returns whether a read ended without an answer of the target: by a deadline, a short limit, or a lost connection.
pub(crate) fn is_unanswered(error: &Error) -> bool {
    use ErrorKind::{Disconnected, Interrupted, TimedOut};
    matches!(error.kind(), TimedOut | Disconnected | Interrupted)
}

/// The short time limit of one read; `None`: only the usual deadline.
pub(crate) struct ReadDeadline(Option<Instant>);

impl ReadDeadline {
    /// Ends the read `limit` from now.
    pub(crate) fn after(limit: Option<Duration>) -> ReadDeadline {
        ReadDeadline(limit.map(|limit| Instant::now() + limit))
    }
}

impl Watch for ReadDeadline {
    fn goes_on(&mut self) -> bool {
        self.0.is_none_or(|until| Instant::now() < until)
    }
}

/// A failure limits reads for this time.
const LIMITS_FOR: Duration = Duration::from_secs(1);
/// A repeated read gets the failed read's time divided by this.
const LIMIT_DIVISOR: u32 = 8;

#[cfg(test)]
mod tests {
    use dlfs::units::SampleId;

    use super::*;

    #[test]
    fn what_waited_and_what_comes_again_get_less_time_and_all_others_as_much_as_any() {
        let file = |id| File { id: SampleId(id), field: 0 };
        let unanswered = Unanswered::default();
        let asked = Instant::now();
        let begun = asked - Duration::from_secs(8);
        let one = || [(file(1), asked)].into_iter();
        unanswered.note(&Error::new(ErrorKind::Corrupt, "damaged"), begun, one());
        assert_eq!(unanswered.limit(file(1), asked), None, "somebody has answered");
        unanswered.note(&Error::new(ErrorKind::TimedOut, "late"), begun, one());
        let later = Instant::now() + Duration::from_millis(1);
        let least = Duration::from_secs(1);
        assert!(unanswered.limit(file(2), asked).is_some_and(|limit| limit >= least), "it waited");
        assert_eq!(unanswered.limit(file(2), later), None);
        assert!(unanswered.limit(file(1), later).is_some_and(|limit| limit >= least), "again");
        let short = Error::new(ErrorKind::Interrupted, "it had less time");
        let reads = [(file(3), asked), (file(4), later)].into_iter();
        unanswered.note(&short, Instant::now(), reads);
        let latest = Instant::now() + Duration::from_secs(1);
        assert!(unanswered.limit(file(3), latest).is_some(), "the kernel asks for it again");
        assert_eq!(unanswered.limit(file(4), latest), None, "the kernel has asked for it again");
    }
}
