//! The end of a controller: its reason, and the counters of its connections.
//!
//! A controller's connections may belong to several pollers. Each connection adds its counters when it
//! ends. The last one drops the controller, which writes the totals to the access log.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use super::access_log::{AccessKind, Teller, Who};
use dlfs_nvme::nvme::Nqn;

/// Commands and bytes that crossed a connection.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Traffic {
    /// Commands on an I/O queue.
    pub(super) commands: u64,
    pub(super) sent_bytes: u64,
    pub(super) received_bytes: u64,
}

/// The reason and the counters that a controller collects until it ends.
#[derive(Debug)]
pub(super) struct ControllerEnd {
    access: Arc<Teller>,
    why: OnceLock<Cow<'static, str>>,
    commands: AtomicU64,
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
}

impl ControllerEnd {
    pub(super) fn new(access: Arc<Teller>) -> ControllerEnd {
        ControllerEnd {
            access,
            why: OnceLock::new(),
            commands: AtomicU64::new(0),
            sent_bytes: AtomicU64::new(0),
            received_bytes: AtomicU64::new(0),
        }
    }

    /// Sets the reason why the controller ends. Only the first call counts: later reasons are its
    /// consequences.
    pub(super) fn because(&self, why: impl Into<Cow<'static, str>>) {
        let _ = self.why.set(why.into()); // a reason is set already
    }

    /// Adds the counters of one of its connections, which ends.
    pub(super) fn add(&self, traffic: &Traffic) {
        let Traffic { commands, sent_bytes, received_bytes } = *traffic;
        self.commands.fetch_add(commands, Ordering::Relaxed);
        self.sent_bytes.fetch_add(sent_bytes, Ordering::Relaxed);
        self.received_bytes.fetch_add(received_bytes, Ordering::Relaxed);
    }

    /// Writes to the access log that all connections have ended.
    pub(super) fn tell(
        &self,
        (host, peer): (&Nqn, SocketAddr),
        cntlid: u16,
        discovery: bool,
        since: Instant,
    ) {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let kind = AccessKind::Disconnected {
            discovery,
            why: self.why.get().map_or("", |why| why),
            seconds: since.elapsed().as_secs(),
            commands: value(&self.commands),
            sent_bytes: value(&self.sent_bytes),
            received_bytes: value(&self.received_bytes),
        };
        self.access.tell(Who { peer: Some(peer), host: Some(host) }, Some(cntlid), kind);
    }
}
