//! The access log of a target: each host that connects, authenticates or fails to, is refused, is evicted, violates the
//! protocol, times out or leaves.
//!
//! There are two readers. Programs get each event: an [`AccessLog`] receives it as an [`AccessEvent`]. People read the
//! process's log. Of each kind of warnings, it has at most one line per [`INTERVAL`] at level `WARN`, with the number
//! of lines suppressed before it ([`Warnings`]). The suppressed ones are logged at `INFO`.
//!
//! A controller's connections may belong to several pollers. Each connection adds its counters when it
//! ends. The last one drops the controller, which writes the totals to the access log ([`ControllerEnd`]). A refused
//! Connect has its reason for both readers in a [`Refusal`], beside the response to the host.

use std::borrow::Cow;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::Serialize;
use tracing::field::display;

use dlfs_nvme::nvme::fabrics::InvalidParameter;
use dlfs_nvme::nvme::{Nqn, Status};

/// Receives the events of a target.
///
/// The target calls it on the threads that move data, so it must not block: it passes an event on, or drops it.
pub trait AccessLog: fmt::Debug + Send + Sync {
    /// Receives one event.
    fn tell(&self, event: &AccessEvent<'_>);
}

/// An event about a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccessEvent<'a> {
    /// The target's subsystem. The host may have asked for another one.
    pub subsystem: &'a Nqn,
    /// The host's NQN, as stated in Connect or proved by authentication; `None` before Connect, or if Connect
    /// names no valid NQN.
    pub host: Option<&'a Nqn>,
    /// The address from which the host connects, if known.
    pub peer: Option<SocketAddr>,
    /// The host's controller; `None` before it has one, and for refusals, evictions and other warnings.
    pub cntlid: Option<u16>,
    /// The kind of event.
    pub kind: AccessKind<'a>,
}

/// The kind of an event, with its details. Serialization writes only the fields; [`AccessKind::name`] gives
/// the kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum AccessKind<'a> {
    /// A controller was created for the host.
    Connected {
        /// True for a controller of the discovery service.
        discovery: bool,
        /// True if the connection is inside TLS.
        tls: bool,
        /// True if the host has yet to authenticate.
        must_authenticate: bool,
    },
    /// The host has authenticated on its admin queue.
    Authenticated,
    /// The host failed to authenticate, or left before it did: a wrong key, no key, or no TLS. Its connection ends.
    NotAuthenticated {
        /// The reason.
        why: &'a str,
    },
    /// A connection, or a Connect command, was refused: the host is not allowed, a limit was reached, the target
    /// drains, or the command is invalid.
    Refused {
        /// The reason.
        why: &'a str,
    },
    /// A controller or a connection of the host was closed to make room for others.
    Evicted {
        /// The reason.
        why: &'a str,
    },
    /// The host violated the protocol. Its connection ends.
    BrokeProtocol {
        /// The reason.
        why: &'a str,
    },
    /// The host exceeded a time limit. Its connection ends.
    TimedOut {
        /// The reason.
        why: &'a str,
    },
    /// All connections of its controller have ended.
    Disconnected {
        /// True for a controller of the discovery service.
        discovery: bool,
        /// The reason why the admin queue ended, or why the controller ended before it.
        why: &'a str,
        /// Lifetime of the controller, in seconds.
        seconds: u64,
        /// Commands that arrived on the controller's I/O queues.
        commands: u64,
        /// Bytes that the target sent over the controller's connections, with headers.
        sent_bytes: u64,
        /// Bytes that the target received over the controller's connections, with headers.
        received_bytes: u64,
    },
}

impl AccessKind<'_> {
    /// The name of the event in an access log.
    pub fn name(&self) -> &'static str {
        match self {
            AccessKind::Connected { .. } => "connected",
            AccessKind::Authenticated => "authenticated",
            AccessKind::NotAuthenticated { .. } => "not-authenticated",
            AccessKind::Refused { .. } => "refused",
            AccessKind::Evicted { .. } => "evicted",
            AccessKind::BrokeProtocol { .. } => "protocol-error",
            AccessKind::TimedOut { .. } => "timed-out",
            AccessKind::Disconnected { .. } => "disconnected",
        }
    }
}

/// The host that an event or a warning is about; unknown parts are `None`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Who<'a> {
    pub(super) peer: Option<SocketAddr>,
    pub(super) host: Option<&'a Nqn>,
}

/// Passes the events of one subsystem to its access log, if there is one.
#[derive(Debug)]
pub(super) struct Teller {
    subsystem: Nqn,
    log: Option<Arc<dyn AccessLog>>,
}

impl Teller {
    pub(super) fn new(subsystem: Nqn, log: Option<Arc<dyn AccessLog>>) -> Teller {
        Teller { subsystem, log }
    }

    pub(super) fn tell(&self, who: Who<'_>, cntlid: Option<u16>, kind: AccessKind<'_>) {
        if let Some(log) = &self.log {
            let Who { peer, host } = who;
            log.tell(&AccessEvent { subsystem: &self.subsystem, host, peer, cntlid, kind });
        }
    }
}

/// The kind of a warning. Each kind is rate-limited separately.
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
    /// The verb that begins the line in the log.
    fn verb(self) -> &'static str {
        match self {
            WarningKind::HostNotAllowed
            | WarningKind::NotAuthenticated
            | WarningKind::NoController
            | WarningKind::NoConnection => "refused",
            WarningKind::Evicted => "evicted",
            WarningKind::Protocol => "closed",
            WarningKind::TimedOut => "dropped",
        }
    }

    /// The same as an event of the access log.
    fn event(self, why: &str) -> AccessKind<'_> {
        match self {
            WarningKind::HostNotAllowed | WarningKind::NoController | WarningKind::NoConnection => {
                AccessKind::Refused { why }
            }
            WarningKind::NotAuthenticated => AccessKind::NotAuthenticated { why },
            WarningKind::Evicted => AccessKind::Evicted { why },
            WarningKind::Protocol => AccessKind::BrokeProtocol { why },
            WarningKind::TimedOut => AccessKind::TimedOut { why },
        }
    }
}

/// Logs at most one line per kind and [`INTERVAL`] at `WARN`, and counts the others.
#[derive(Debug)]
pub(super) struct Warnings {
    start: Instant,
    access: Arc<Teller>,
    /// Indexed by [`WarningKind`].
    kinds: [KindState; 7],
}

/// The rate limit of one kind of warnings.
#[derive(Debug, Default)]
struct KindState {
    /// Earliest time of the next line, in milliseconds since `start`.
    next_ms: AtomicU64,
    /// Warnings since the last line at `WARN`.
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
        if self.access.log.is_some() {
            self.access.tell(who, None, kind.event(&why.to_string()));
        }
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

/// Counters of a connection.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Traffic {
    /// Commands that arrived on an I/O queue; 0 for an admin queue.
    pub(super) commands: u64,
    pub(super) sent_bytes: u64,
    pub(super) received_bytes: u64,
}

/// The reason and the counters that a controller collects until it ends.
#[derive(Debug)]
pub(super) struct ControllerEnd {
    access: Arc<Teller>,
    why: OnceLock<Cow<'static, str>>,
    traffic: Mutex<Traffic>,
}

impl ControllerEnd {
    pub(super) fn new(access: Arc<Teller>) -> ControllerEnd {
        ControllerEnd { access, why: OnceLock::new(), traffic: Mutex::default() }
    }

    /// Sets the reason why the controller ends. Only the first call counts: later reasons are consequences of that one.
    pub(super) fn because(&self, why: impl Into<Cow<'static, str>>) {
        let _ = self.why.set(why.into()); // a reason is set already
    }

    /// Adds the counters of a connection that ends.
    pub(super) fn add(&self, traffic: &Traffic) {
        let mut sum = self.traffic.lock();
        sum.commands += traffic.commands;
        sum.sent_bytes += traffic.sent_bytes;
        sum.received_bytes += traffic.received_bytes;
    }

    /// Writes to the access log that all connections of the controller have ended, which was created at `since`.
    pub(super) fn tell(
        &self,
        (host, peer): (&Nqn, SocketAddr),
        cntlid: u16,
        discovery: bool,
        since: Instant,
    ) {
        let Traffic { commands, sent_bytes, received_bytes } = *self.traffic.lock();
        let kind = AccessKind::Disconnected {
            discovery,
            why: self.why.get().map_or("", |why| why),
            seconds: since.elapsed().as_secs(),
            commands,
            sent_bytes,
            received_bytes,
        };
        self.access.tell(Who { peer: Some(peer), host: Some(host) }, Some(cntlid), kind);
    }
}

/// A refusal of a Connect: the status and dword 0 of the response, and the reason for the logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: Status,
    pub(super) dw0: u32,
    /// The kind of the warning. `None`: the refusal is no warning; it goes to the access log and is logged at `INFO`.
    pub(super) kind: Option<WarningKind>,
    /// The reason, for the operator's log.
    pub(super) why: Cow<'static, str>,
}

impl Refusal {
    /// An invalid parameter at `offset` of the command.
    pub(super) fn command(offset: u16, why: impl Into<Cow<'static, str>>) -> Refusal {
        Refusal::invalid(InvalidParameter { offset, in_data: false }, why)
    }

    /// An invalid parameter at `offset` of the Connect data.
    pub(super) fn data(offset: u16, why: impl Into<Cow<'static, str>>) -> Refusal {
        Refusal::invalid(InvalidParameter { offset, in_data: true }, why)
    }

    fn invalid(parameter: InvalidParameter, why: impl Into<Cow<'static, str>>) -> Refusal {
        let refusal = Refusal::of(Status::CONNECT_INVALID_PARAMETERS, why);
        Refusal { dw0: parameter.to_wire(), ..refusal }
    }

    /// A permanent refusal: a retry would fail again.
    pub(super) fn of(status: Status, why: impl Into<Cow<'static, str>>) -> Refusal {
        Refusal { status: status.do_not_retry(), dw0: 0, kind: None, why: why.into() }
    }
}

/// A refusal because of a limit or of draining: a retry may succeed later.
pub(super) fn busy(why: impl Into<Cow<'static, str>>) -> Refusal {
    let status = Status::CONNECT_CONTROLLER_BUSY;
    Refusal { status, dw0: 0, kind: Some(WarningKind::NoController), why: why.into() }
}

/// Shortest time between two lines of one kind at level `WARN`.
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
        let counts: Vec<u64> = (0..1000).filter_map(due).collect();
        assert_eq!(counts, [0]);
        assert_eq!(warnings.due(start, WarningKind::HostNotAllowed), Some(0), "another kind");
        assert_eq!(warnings.due(start + INTERVAL, WarningKind::NoConnection), Some(999));
    }
}
