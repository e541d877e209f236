//! Timeout for a controller that makes no progress with the outstanding commands.

use std::time::{Duration, Instant};

use dlfs_base::units::deadline;

/// The progress of a connection, judged by one of two rules.
///
/// By default, progress is the end of a command, a whole PDU without data, or 64 KiB sent or received. A PDU
/// with data does not count by itself, since a controller may split data into PDUs of one byte.
///
/// With a minimum amount above 0, progress is the end of a command, or this amount of received data. So a
/// controller that sends a byte now and then times out like one that sends nothing. The end of a command
/// counts even if its data are short: a controller that waits for a slow medium answers rarely, but then
/// completely. Sent bytes do not count: new commands say nothing about the controller.
#[derive(Debug)]
pub(super) struct Progress {
    limit: Duration,
    /// The minimum amount; 0 selects the default rule.
    least_bytes: u32,
    /// Time of the last progress, or of submitting the first outstanding command.
    since: Instant,
    /// Bytes since then that count towards the amount.
    moved_bytes: u32,
}

impl Progress {
    pub(super) fn new(now: Instant, limit: Duration, least_bytes: u32) -> Progress {
        Progress { limit, least_bytes, since: now, moved_bytes: 0 }
    }

    /// Notes progress: the first command was submitted, or a command has ended.
    pub(super) fn made(&mut self, now: Instant) {
        (self.since, self.moved_bytes) = (now, 0);
    }

    /// Notes that `len` bytes were sent.
    pub(super) fn sent(&mut self, now: Instant, len: usize) {
        if self.least_bytes == 0 {
            self.received(now, len);
        }
    }

    /// Notes that `len` bytes of data were received.
    pub(super) fn received(&mut self, now: Instant, len: usize) {
        self.moved_bytes = self.moved_bytes.saturating_add(len as u32);
        let least = if self.least_bytes == 0 { PROGRESS_BYTES } else { self.least_bytes };
        if self.moved_bytes >= least {
            self.made(now);
        }
    }

    /// Notes a received PDU without data.
    pub(super) fn received_pdu(&mut self, now: Instant) {
        if self.least_bytes == 0 {
            self.made(now);
        }
    }

    /// The time at which the timeout expires.
    pub(super) fn deadline(&self) -> Instant {
        deadline(self.since, self.limit)
    }

    /// Returns whether the timeout has expired. Starts it again if that is unknown.
    pub(super) fn is_over(&mut self, now: Instant) -> bool {
        let end = self.deadline();
        // This check is much too late: the moved bytes may be few only because the receive buffer was full.
        let is_unknown = self.moved_bytes > 0 && now >= deadline(end, self.limit / 4);
        if now >= end && is_unknown {
            self.made(now);
            return false;
        }
        now >= end
    }
}

/// The same amount that a target requires of a host.
const PROGRESS_BYTES: u32 = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(1);
    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_trickle_is_no_progress_and_whole_pdus_or_many_bytes_are() {
        let start = Instant::now();
        let both = || [0, 1000].map(|least| Progress::new(start, LIMIT, least));
        for mut progress in both() {
            for nth in 1..=9 {
                progress.received(start + 100 * nth * MS, 50);
                progress.sent(start + 100 * nth * MS, 50);
            }
            assert!(!progress.is_over(start + 999 * MS) && progress.is_over(start + LIMIT));
        }
        let [mut usual, mut least] = both();
        for progress in [&mut usual, &mut least] {
            progress.received_pdu(start + 500 * MS);
            progress.sent(start + 600 * MS, 32 << 10);
        }
        usual.received(start + 700 * MS, 32 << 10);
        assert_eq!(usual.deadline(), start + 700 * MS + LIMIT);
        assert_eq!(least.deadline(), start + LIMIT, "only what is received counts");
    }

    #[test]
    fn the_least_amount_and_a_command_that_ends_are_progress() {
        let start = Instant::now();
        let mut progress = Progress::new(start, LIMIT, 1000);
        progress.received(start + 400 * MS, 999);
        assert_eq!(progress.deadline(), start + LIMIT);
        progress.received(start + 500 * MS, 1);
        assert_eq!(progress.deadline(), start + 500 * MS + LIMIT);
        progress.received(start + 600 * MS, 999);
        progress.made(start + 700 * MS);
        progress.received(start + 800 * MS, 999);
        assert_eq!(progress.deadline(), start + 700 * MS + LIMIT);
    }

    #[test]
    fn data_that_nobody_has_looked_for_begin_a_new_time() {
        let start = Instant::now();
        let mut progress = Progress::new(start, LIMIT, 1000);
        progress.received(start + 3 * LIMIT, 500);
        assert!(!progress.is_over(start + 3 * LIMIT));
        assert!(progress.is_over(start + 4 * LIMIT), "nothing has come since");
        let mut silent = Progress::new(start, LIMIT, 1000);
        assert!(silent.is_over(start + 3 * LIMIT));
    }
}
