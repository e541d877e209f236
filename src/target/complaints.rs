//! Warnings about hosts: a line now and then with a count, however many hosts give cause for one.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

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

    /// Has `write` say it, with how many of the kind were not said since the last time; or counts it.
    pub(super) fn say(&self, now: Instant, complaint: Complaint, write: impl FnOnce(u64)) {
        let kind = &self.kinds[complaint as usize];
        let now_ms = now.saturating_duration_since(self.start).as_millis() as u64;
        let next_ms = kind.next_ms.load(Ordering::Relaxed);
        let then_ms = now_ms + INTERVAL.as_millis() as u64;
        let relaxed = Ordering::Relaxed;
        // Of several pollers at the same moment one says it.
        let is_time = now_ms >= next_ms
            && kind.next_ms.compare_exchange(next_ms, then_ms, relaxed, relaxed).is_ok();
        if is_time {
            write(kind.suppressed.swap(0, relaxed));
        } else {
            kind.suppressed.fetch_add(1, relaxed);
        }
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
        let mut said = Vec::new();
        for number in 0..1000 {
            let now = start + Duration::from_millis(number);
            complaints.say(now, Complaint::NoConnection, |suppressed| said.push(suppressed));
        }
        complaints.say(start, Complaint::Stranger, |suppressed| said.push(suppressed + 1_000_000));
        complaints
            .say(start + INTERVAL, Complaint::NoConnection, |suppressed| said.push(suppressed));
        assert_eq!(said, [0, 1_000_000, 999]);
    }
}
