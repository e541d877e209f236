//! Events for a log of a target's hosts: one for each that connects, is refused, fails to prove who it is, is evicted
//! or leaves.
//!
//! The lines of `warnings.rs` are for people, and limited in number; these events are for programs, and none is left
//! out. The [`AccessLog`] decides what becomes of them.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use serde::Serialize;

use dlfs_nvme::nvme::Nqn;

/// Takes the events of a target.
///
/// The threads that move data call it, so it must neither block nor wait: it passes the event on, or drops it.
pub trait AccessLog: fmt::Debug + Send + Sync {
    /// Something has happened to a host.
    fn tell(&self, event: &AccessEvent<'_>);
}

/// Something that happened to a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccessEvent<'a> {
    /// The subsystem that the target serves. A host may have asked for another one.
    pub subsystem: &'a Nqn,
    /// The name that the host states, or has proved; `None`: it has not said it yet.
    pub host: Option<&'a Nqn>,
    /// The address that the host connects from, where it is known.
    pub peer: Option<SocketAddr>,
    /// Its controller, if it has one.
    pub cntlid: Option<u16>,
    /// The kind of event.
    pub kind: AccessKind<'a>,
}

/// The kind of an event, with its details. [`AccessKind::name`] names it; it is serialized as its fields alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum AccessKind<'a> {
    /// A controller was created for it.
    Connected {
        /// True for a controller of the discovery service.
        discovery: bool,
        /// True if the connection is inside TLS.
        tls: bool,
        /// True if the host has yet to prove who it is.
        must_authenticate: bool,
    },
    /// It has proved who it is on its admin queue.
    Authenticated,
    /// It has not proved who it is: a wrong key, none, or no TLS. Its connection ends.
    NotAuthenticated {
        /// The reason.
        why: &'a str,
    },
    /// A connection, or a Connect command, was refused: the host is not allowed, or a limit was reached.
    Refused {
        /// The reason.
        why: &'a str,
    },
    /// A controller or a connection of it was closed to make room for others.
    Evicted {
        /// The reason.
        why: &'a str,
    },
    /// It has violated the protocol. Its connection ends.
    BrokeProtocol {
        /// The reason.
        why: &'a str,
    },
    /// It has exceeded a time limit. Its connection ends.
    TimedOut {
        /// The reason.
        why: &'a str,
    },
    /// All connections of its controller have ended.
    Disconnected {
        /// True for a controller of the discovery service.
        discovery: bool,
        /// Why its admin queue ended, or the controller before it.
        why: &'a str,
        /// How long the controller existed, in seconds.
        seconds: u64,
        /// Commands that arrived on its I/O queues.
        commands: u64,
        /// Bytes that the target sent over its connections, with headers.
        sent_bytes: u64,
        /// Bytes that the target received over its connections, with headers.
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

/// The host that an event or a warning is about, as far as it is known.
#[derive(Debug, Clone, Copy)]
pub(super) struct Who<'a> {
    pub(super) peer: Option<SocketAddr>,
    pub(super) host: Option<&'a Nqn>,
}

/// Tells the events of one subsystem to its log, if there is one.
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

    /// Tells an event that has a reason, whose text is made only if somebody wants it.
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
