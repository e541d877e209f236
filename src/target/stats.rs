//! Counters of a target.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of a [`super::Target`] since it started, and what is connected now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TargetStats {
    /// Controllers now.
    pub controllers: u64,
    /// TCP connections now.
    pub connections: u64,
    /// TCP connections ever accepted.
    pub accepted: u64,
    /// Connections that the target closed because of the host's behaviour or because of a limit.
    pub dropped: u64,
    /// Connections and Connect commands that were refused: a limit, or a host that is not allowed.
    pub refused: u64,
    /// Controllers and connections closed because a limit was reached or file descriptors or memory
    /// ran out. The connections count as `dropped`, too.
    pub evicted: u64,
    /// Successful reads.
    pub reads: u64,
    /// Bytes of successful reads.
    pub read_bytes: u64,
    /// Successful writes.
    pub writes: u64,
    /// Bytes of successful writes.
    pub written_bytes: u64,
    /// I/O commands with an error response.
    pub errors: u64,
}

/// The shared counters behind [`TargetStats`].
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) connections: AtomicU64,
    pub(super) accepted: AtomicU64,
    pub(super) dropped: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) evicted: AtomicU64,
    pub(super) reads: AtomicU64,
    pub(super) read_bytes: AtomicU64,
    pub(super) writes: AtomicU64,
    pub(super) written_bytes: AtomicU64,
    pub(super) errors: AtomicU64,
}

/// One poller's counts since it last published them.
///
/// All pollers write the same counters, so each collects its own first: two operations on a shared
/// cache line per poll iteration, not per command.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) reads: u64,
    pub(super) read_bytes: u64,
    pub(super) writes: u64,
    pub(super) written_bytes: u64,
}

impl Tally {
    /// Adds the counts to `counters` and starts again from zero.
    pub(super) fn publish_counts(&mut self, counters: &Counters) {
        let Tally { reads, read_bytes, writes, written_bytes } = std::mem::take(self);
        if reads > 0 {
            Counters::add(&counters.reads, reads);
            Counters::add(&counters.read_bytes, read_bytes);
        }
        if writes > 0 {
            Counters::add(&counters.writes, writes);
            Counters::add(&counters.written_bytes, written_bytes);
        }
    }
}

impl Counters {
    pub(super) fn add(counter: &AtomicU64, value: u64) {
        counter.fetch_add(value, Ordering::Relaxed);
    }

    pub(super) fn read(&self, controllers: u64) -> TargetStats {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        TargetStats {
            controllers,
            connections: value(&self.connections),
            accepted: value(&self.accepted),
            dropped: value(&self.dropped),
            refused: value(&self.refused),
            evicted: value(&self.evicted),
            reads: value(&self.reads),
            read_bytes: value(&self.read_bytes),
            writes: value(&self.writes),
            written_bytes: value(&self.written_bytes),
            errors: value(&self.errors),
        }
    }
}
