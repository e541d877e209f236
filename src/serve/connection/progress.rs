//! A host's progress with what it owes on a connection.

use std::time::{Duration, Instant};

/// Measures a host's progress. A byte now and then does not count.
#[derive(Debug, Clone, Copy)]
pub(super) struct Progress {
    /// Since when the host owes progress without enough of it; `None`: it owes nothing.
    since: Option<Instant>,
    bytes: usize,
}

impl Progress {
    pub(super) const NONE: Progress = Progress { since: None, bytes: 0 };

    /// The host now owes progress.
    pub(super) fn begin(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    /// The host has moved `bytes`; returns whether that is progress by now.
    pub(super) fn advance(&mut self, now: Instant, bytes: usize) -> bool {
        self.bytes += bytes;
        let is_enough = self.bytes >= PROGRESS_BYTES && self.since.is_some();
        if is_enough {
            *self = Progress { since: Some(now), bytes: 0 };
        }
        is_enough
    }

    /// The host owes nothing more.
    pub(super) fn end(&mut self) {
        *self = Progress::NONE;
    }

    pub(super) fn is_stuck(&self, now: Instant, limit: Duration) -> bool {
        self.since.is_some_and(|since| now.saturating_duration_since(since) >= limit)
    }
}

/// Totals of what has arrived on a connection since its start.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrived {
    pub(super) awaited_bytes: u64,
    pub(super) pdus: u64,
}

/// How much a host must read or send within a time limit.
const PROGRESS_BYTES: usize = 64 << 10;
