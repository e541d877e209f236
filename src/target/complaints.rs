//! Warnings about hosts: a line now and then with a count, however many hosts give cause for one. Those
//! that are left out are in the access log, which is all events of level `INFO`.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tracing::field::display;

use crate::nvme::Nqn;

/// What is warned of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Complaint {
    /// A host that is not on the allow-list.
    Stranger,
    /// A controller for which there was no place.
    NoController,
    /// A connection for which there was no place or no file descriptor.
    NoConnection,
    /// A controller or connection that was closed for want of places, descriptors or memory.
    MadeRoom,
    /// A host that broke the protocol.
    Protocol,
    /// A host that let a time limit pass.
    Late,
}

/// Who is spoken of, as far as it is known.
#[derive(Debug, Clone, Copy)]
pub(super) struct Who<'a> {
    pub(super) peer: Option<SocketAddr>,
    pub(super) host: Option<&'a Nqn>,
}

/// One line a kind in [`INTERVAL`]; the rest is counted.
#[derive(Debug)]
pub(super) struct Complaints {
    start: Instant,
    kinds: [Kind; 6],
}

#[derive(Debug, Default)]
struct Kind {
    /// When the next line may be written, in milliseconds from the start.
    next_ms: AtomicU64,
    suppressed: AtomicU64,
}

impl Complaints {
    pub(super) fn new(start: Instant) -> Complaints {
        Complaints { start, kinds: Default::default() }
    }

    /// Warns of it, with how many of the kind were left out since the last time; or counts it, and leaves
    /// it to the access log.
    pub(super) fn say(
        &self,
        now: Instant,
        complaint: Complaint,
        who: Who<'_>,
        what: fmt::Arguments<'_>,
    ) {
        let (peer, host) = (who.peer.map(display), who.host.map(Nqn::as_str));
        match self.turn(now, complaint) {
            Some(suppressed) => tracing::warn!(peer, host, suppressed, "{what}"),
            None => tracing::info!(peer, host, "{what}"),
        }
    }

    /// How many of the kind were left out, when it is time for a line.
    fn turn(&self, now: Instant, complaint: Complaint) -> Option<u64> {
        let kind = &self.kinds[complaint as usize];
        let now_ms = now.saturating_duration_since(self.start).as_millis() as u64;
        let next_ms = kind.next_ms.load(Ordering::Relaxed);
        let then_ms = now_ms + INTERVAL.as_millis() as u64;
        let relaxed = Ordering::Relaxed;
        // Of several pollers at the same moment one says it.
        let is_time = now_ms >= next_ms
            && kind.next_ms.compare_exchange(next_ms, then_ms, relaxed, relaxed).is_ok();
        if !is_time {
            kind.suppressed.fetch_add(1, relaxed);
        }
        is_time.then(|| kind.suppressed.swap(0, relaxed))
    }
}

const INTERVAL: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_causes_are_one_line_and_a_count_with_the_next() {
        let start = Instant::now();
        let complaints = Complaints::new(start);
        let after = |number| start + Duration::from_millis(number);
        let turn = |number| complaints.turn(after(number), Complaint::NoConnection);
        let said: Vec<u64> = (0..1000).filter_map(turn).collect();
        assert_eq!(said, [0]);
        assert_eq!(complaints.turn(start, Complaint::Stranger), Some(0), "another kind");
        assert_eq!(complaints.turn(start + INTERVAL, Complaint::NoConnection), Some(999));
    }
}
