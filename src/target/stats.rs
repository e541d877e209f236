//! What a target has done so far.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a [`super::Target`] has done so far, and who is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TargetStats {
    /// Controllers now.
    pub controllers: u64,
    /// TCP connections now.
    pub connections: u64,
    /// TCP connections ever accepted.
    pub accepted: u64,
    /// Connections that were ended because of what the host did or failed to do, or to make room.
    pub dropped: u64,
    /// Connections and Connects that were refused: a limit, or a host that may not connect.
    pub refused: u64,
    /// Controllers and connections that were closed early for want of places, file descriptors or
    /// memory; the connections are among those dropped, too.
    pub evicted: u64,
    /// Reads that succeeded.
    pub reads: u64,
    /// Bytes of those.
    pub read_bytes: u64,
    /// Writes that succeeded.
    pub writes: u64,
    /// Bytes of those.
    pub written_bytes: u64,
    /// I/O commands that were answered with an error.
    pub errors: u64,
}

/// The counters behind [`TargetStats`], added to by all pollers.
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

/// What one poller has done since it last told the others.
///
/// All pollers write the same counters, so each gathers its own in between: two operations on a shared
/// cache line a turn, not a command.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) reads: u64,
    pub(super) read_bytes: u64,
    pub(super) writes: u64,
    pub(super) written_bytes: u64,
}

impl Tally {
    /// Adds what was gathered to `counters`.
    pub(super) fn tell(&mut self, counters: &Counters) {
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
