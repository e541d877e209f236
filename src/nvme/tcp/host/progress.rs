//! The progress of a controller with the outstanding commands, without which it times out.

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
    /// The time without progress that ends the connection.
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

/// The bytes that count as progress by default: the same amount that a target requires of a host.
const PROGRESS_BYTES: u32 = 64 << 10;
