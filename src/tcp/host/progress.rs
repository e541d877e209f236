//! Whether the controller makes progress with the outstanding commands.

use std::time::{Duration, Instant};

use crate::units::deadline;

/// The progress of a connection, judged by one of two rules.
///
/// By default any whole header and any byte of data counts, in either direction: whoever has no other place for
/// the data waits for them, however slowly they arrive.
///
/// With a least amount, a command that ends counts, and otherwise so much received data: a controller that sends
/// a byte now and then is given up as one that sends none. A command that ends counts however short it is, since
/// a controller that itself waits for a slow medium answers seldom, but then whole. What is sent does not count:
/// new commands say nothing about the controller.
#[derive(Debug)]
pub(super) struct Progress {
    limit: Duration,
    /// 0: by default.
    least_bytes: u32,
    /// When the last progress was made, or the first command submitted.
    since: Instant,
    /// Data received since then.
    received_bytes: u32,
}

impl Progress {
    pub(super) fn new(now: Instant, limit: Duration, least_bytes: u32) -> Progress {
        Progress { limit, least_bytes, since: now, received_bytes: 0 }
    }

    /// The first command is submitted, or one has ended.
    pub(super) fn made(&mut self, now: Instant) {
        (self.since, self.received_bytes) = (now, 0);
    }

    /// Bytes were sent.
    pub(super) fn sent(&mut self, now: Instant) {
        if self.least_bytes == 0 {
            self.made(now);
        }
    }

    /// A header, or `len` bytes of data, were received.
    pub(super) fn received(&mut self, now: Instant, len: usize) {
        self.received_bytes = self.received_bytes.saturating_add(len as u32);
        if self.received_bytes >= self.least_bytes {
            self.made(now);
        }
    }

    /// When the time without progress ends.
    pub(super) fn deadline(&self) -> Instant {
        deadline(self.since, self.limit)
    }

    /// Whether it has ended.
    pub(super) fn is_over(&mut self, now: Instant) -> bool {
        let end = self.deadline();
        // Nobody has looked for long, so the data may be only what the receive buffer has room for.
        let is_unknown = self.received_bytes > 0 && now >= deadline(end, self.limit / 4);
        if now >= end && is_unknown {
            self.made(now);
            return false;
        }
        now >= end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(1);
    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_trickle_is_progress_only_where_any_byte_is() {
        let start = Instant::now();
        let [mut any, mut least] = [0, 1000].map(|least| Progress::new(start, LIMIT, least));
        for nth in 1..=9 {
            for progress in [&mut any, &mut least] {
                progress.received(start + 100 * nth * MS, 50);
                progress.sent(start + 100 * nth * MS);
            }
        }
        assert!(!any.is_over(start + LIMIT) && !any.is_over(start + 1899 * MS));
        assert!(any.is_over(start + 1900 * MS));
        assert!(!least.is_over(start + 999 * MS) && least.is_over(start + LIMIT));
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
