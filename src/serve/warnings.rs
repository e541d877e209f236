//! Rate-limited warnings about hosts: one line per kind and interval, with the number of warnings
//! suppressed before it. Suppressed warnings still go to the log at level `INFO`, and to the access log.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tracing::field::display;

use super::access_log::{AccessKind, Teller, Who};
use dlfs_nvme::nvme::Nqn;

/// The kind of a warning; each kind has a rate limit of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WarningKind {
    /// A host is not on the allow-list.
    HostNotAllowed,
    /// A host failed to authenticate.
    NotAuthenticated,
    /// A controller was refused because a limit was reached.
    NoController,
    /// A connection was refused: a limit was reached, or no file descriptor was left.
    NoConnection,
    /// A controller or connection was closed to free a controller, a connection, a file descriptor or memory.
    Evicted,
    /// A host violated the protocol.
    Protocol,
    /// A host exceeded a time limit.
    TimedOut,
}

impl WarningKind {
    /// The verb for the target's action against the host.
    fn verb(self) -> &'static str {
        match self {
            WarningKind::HostNotAllowed | WarningKind::NotAuthenticated => "refused",
            WarningKind::NoController | WarningKind::NoConnection => "refused",
            WarningKind::Evicted => "evicted",
            WarningKind::Protocol => "closed",
            WarningKind::TimedOut => "dropped",
        }
    }

    /// The constructor of the access log's event.
    fn event(self) -> fn(&str) -> AccessKind<'_> {
        match self {
            WarningKind::HostNotAllowed | WarningKind::NoController | WarningKind::NoConnection => {
                |why| AccessKind::Refused { why }
            }
            WarningKind::NotAuthenticated => |why| AccessKind::NotAuthenticated { why },
            WarningKind::Evicted => |why| AccessKind::Evicted { why },
            WarningKind::Protocol => |why| AccessKind::BrokeProtocol { why },
            WarningKind::TimedOut => |why| AccessKind::TimedOut { why },
        }
    }
}

/// Logs one line per kind and [`INTERVAL`] at `WARN`, and counts the others.
#[derive(Debug)]
pub(super) struct Warnings {
    start: Instant,
    access: Arc<Teller>,
    kinds: [Kind; 7],
}

#[derive(Debug, Default)]
struct Kind {
    /// Earliest time of the next line, in milliseconds since `start`.
    next_ms: AtomicU64,
    suppressed: AtomicU64,
}

impl Warnings {
    pub(super) fn new(start: Instant, access: Arc<Teller>) -> Warnings {
        Warnings { start, access, kinds: Default::default() }
    }

    /// Logs at `WARN` why the host was refused, evicted or dropped, with the number of suppressed warnings
    /// of this kind. Within the interval, counts the warning and logs at `INFO`. The access log gets every
    /// one.
    pub(super) fn warn(
        &self,
        now: Instant,
        kind: WarningKind,
        who: Who<'_>,
        why: fmt::Arguments<'_>,
    ) {
        self.access.tell_why(who, why, kind.event());
        let verb = kind.verb();
        let peer = who.peer.map(display);
        let host = who.host.map(Nqn::as_str);
        match self.due(now, kind) {
            Some(suppressed) => tracing::warn!(peer, host, suppressed, "{verb}: {why}"),
            None => tracing::info!(peer, host, "{verb}: {why}"),
        }
    }

    /// If a line is due at `WARN`, returns how many warnings of this kind were suppressed since the last one.
    fn due(&self, now: Instant, kind: WarningKind) -> Option<u64> {
        let kind = &self.kinds[kind as usize];
        let now_ms = now.saturating_duration_since(self.start).as_millis() as u64;
        let next_ms = kind.next_ms.load(Ordering::Relaxed);
        let then_ms = now_ms + INTERVAL.as_millis() as u64;
        let relaxed = Ordering::Relaxed;
        // If several pollers warn at the same time, the exchange succeeds for one of them.
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
    fn a_thousand_warnings_are_one_line_and_a_count_in_the_next() {
        let start = Instant::now();
        let nobody = Teller::new(Nqn::discovery(), None);
        let warnings = Warnings::new(start, Arc::new(nobody));
        let after = |number| start + Duration::from_millis(number);
        let due = |number| warnings.due(after(number), WarningKind::NoConnection);
        let said: Vec<u64> = (0..1000).filter_map(due).collect();
        assert_eq!(said, [0]);
        assert_eq!(warnings.due(start, WarningKind::HostNotAllowed), Some(0), "another kind");
        assert_eq!(warnings.due(start + INTERVAL, WarningKind::NoConnection), Some(999));
    }
}
