//! A host's progress with bytes that it owes on a connection.
//!
//! A host could hold memory for ever by moving one byte now and then, so only larger amounts count.

use std::time::{Duration, Instant};

/// Measures a host's progress: [`PROGRESS_BYTES`] within a time limit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Progress {
    /// Start of the debt, or time of the last progress; `None`: the host owes nothing.
    since: Option<Instant>,
    bytes: usize,
}

impl Progress {
    pub(super) const NONE: Progress = Progress { since: None, bytes: 0 };

    /// The host begins to owe bytes.
    pub(super) fn begin(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    /// Counts `bytes` that the host has moved; returns whether they add up to progress.
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

/// Totals of bytes and PDUs received on a connection since its start.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrived {
    pub(super) awaited_bytes: u64,
    pub(super) pdus: u64,
}

/// Bytes that a host must read or send within a time limit.
const PROGRESS_BYTES: usize = 64 << 10;
