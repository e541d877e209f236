//! Events for a log of a target's hosts: each host that connects, is refused, fails to authenticate, is
//! evicted, violates the protocol, times out or leaves.
//!
//! The lines of `warnings.rs` are for people and rate-limited. These events are for programs and complete.
//! An [`AccessLog`] decides where they go.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use serde::Serialize;

use dlfs_nvme::nvme::Nqn;

/// Receives the events of a target.
///
/// The target calls it on the threads that move data. It must not block: it passes the event on, or drops it.
pub trait AccessLog: fmt::Debug + Send + Sync {
    /// Receives one event.
    fn tell(&self, event: &AccessEvent<'_>);
}

/// An event about a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccessEvent<'a> {
    /// The target's subsystem. The host may have asked for another one.
    pub subsystem: &'a Nqn,
    /// The host's NQN, as stated in Connect or proved by authentication; `None` before Connect.
    pub host: Option<&'a Nqn>,
    /// The address from which the host connects, if known.
    pub peer: Option<SocketAddr>,
    /// The host's controller, if it has one.
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
    /// The host failed to authenticate: a wrong key, no key, or no TLS. Its connection ends.
    NotAuthenticated {
        /// The reason.
        why: &'a str,
    },
    /// A connection, or a Connect command, was refused: the host is not allowed, or a limit was reached.
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

    /// Passes on an event with a reason; formats the reason only if there is an access log.
    pub(super) fn tell_why(
        &self,
        who: Who<'_>,
        why: fmt::Arguments<'_>,
        kind: fn(&str) -> AccessKind<'_>,
    ) {
        if self.log.is_some() {
            self.tell(who, None, kind(&why.to_string()));
        }
    }
}
