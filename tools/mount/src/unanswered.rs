//! Reads that the target left unanswered, and the time limit of the reads after them.
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

/// The most recent unanswered reads.
#[derive(Default)]
pub(crate) struct Unanswered(Mutex<Vec<Failure>>);

struct Failure {
    at: Instant,
    waited: Duration,
    files: Vec<File>,
}

impl Unanswered {
    /// Notes the failure of reads that began at `began`, if `error` says that the target did not answer.
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
            // These reads had the short limit. The files are noted only of those that the kernel requested
            // before an earlier failure: the short limits then end, even if programs go on to read.
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
        failures.retain(|failure| failure.at.elapsed() < AGAIN_WITHIN);
        let comes_again = |failure: &&Failure| asked < failure.at || failure.files.contains(&file);
        let waited = failures.iter().filter(comes_again).map(|failure| failure.waited).max();
        waited.map(|waited| waited / AGAIN_SHARE)
    }
}

/// Returns whether the error says that the target did not answer in time.
pub(crate) fn is(error: &Error) -> bool {
    use ErrorKind::{Disconnected, Interrupted, TimedOut};
    matches!(error.kind(), TimedOut | Disconnected | Interrupted)
}

/// Ends a read at this time, if there is one.
pub(crate) struct Until(Option<Instant>);

impl Until {
    /// The time `limit` from now; `None`: no limit.
    pub(crate) fn after(limit: Option<Duration>) -> Until {
        Until(limit.map(|limit| Instant::now() + limit))
    }
}

impl Watch for Until {
    fn goes_on(&mut self) -> bool {
        self.0.is_none_or(|until| Instant::now() < until)
    }
}

/// A failure limits reads for this time.
const AGAIN_WITHIN: Duration = Duration::from_secs(1);
/// A repeated read gets the failed read's time divided by this.
const AGAIN_SHARE: u32 = 8;

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
