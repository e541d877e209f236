//! Progress of a host with bytes that it owes: responses to read, the data of writes or the rest of a PDU to send.
//!
//! A host could hold memory for ever by moving one byte now and then, so only [`PROGRESS_BYTES`] count as progress.

use std::time::{Duration, Instant};

use super::has_passed;

/// The debt of a host, and its progress with it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Progress {
    /// Start of the debt, or time of the last progress; `None`: the host owes nothing.
    since: Option<Instant>,
    /// Bytes moved since then.
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

    /// Returns whether the host owes bytes and has made no progress for `limit`.
    pub(super) fn is_stuck(&self, now: Instant, limit: Duration) -> bool {
        self.since.is_some_and(|since| has_passed(now, since, limit))
    }
}

/// Totals of bytes and PDUs received on a connection since its start.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrived {
    pub(super) awaited_bytes: u64,
    pub(super) pdus: u64,
}

/// Bytes that a host must move within a time limit: less is no progress.
const PROGRESS_BYTES: usize = 64 << 10;
