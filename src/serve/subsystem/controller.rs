//! A controller of the subsystem, and its connected queues.
//!
//! Each connection owns its [`Queue`], which owns its [`Controller`] together with the controller's other queues.
//! The subsystem's table is the only other owner.

use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{QID_OFFSET, Subsystem};
use crate::access_log::{AccessKind, ControllerEnd, Refusal, Traffic, Who};
use crate::events::Events;
use crate::options::Access;
use crate::peers::Peer;
use dlfs_nvme::auth::{Concatenation, TlsPsk};
use dlfs_nvme::nvme::{Cc, Csts, Nqn, Status};

/// A controller: created by the Connect of its admin queue, and removed when that queue's connection closes, or when
/// the controller is evicted or disconnected.
pub(crate) struct Controller {
    pub(crate) cntlid: u16,
    /// The address from which the admin queue connected.
    pub(super) from: SocketAddr,
    pub(crate) hostnqn: Nqn,
    pub(crate) hostid: [u8; 16],
    pub(crate) is_discovery: bool,
    /// True if the admin queue is inside TLS. I/O queues are inside TLS exactly then.
    pub(super) is_secured: bool,
    /// The generated TLS PSK of the admin queue; holding it keeps the PSK valid while the controller exists.
    pub(super) _generated: Option<Arc<TlsPsk>>,
    /// The host's access.
    pub(crate) access: Access,
    /// True once the controller is removed; its connections then close themselves.
    pub(super) is_dead: AtomicBool,
    /// Controller Configuration as the host wrote it.
    pub(super) cc: AtomicU32,
    /// Controller Status without RDY.
    pub(super) csts: AtomicU32,
    /// Number of times the controller was disabled. I/O queues that connected before that no longer belong to it.
    pub(super) resets: AtomicU32,
    /// Keep Alive Timeout (KATO) in milliseconds; 0: none.
    pub(crate) kato_ms: AtomicU32,
    /// Time at which the last whole PDU, or much of one, was received on any connection of the controller, in
    /// milliseconds since the subsystem's start.
    pub(super) last_seen_ms: AtomicU64,
    /// The controller's asynchronous events.
    pub(crate) events: Events,
    /// Creation time of the controller.
    pub(super) since: Instant,
    /// True if the host has cleared DULBE (feature Error Recovery) while a namespace was thinly provisioned.
    pub(crate) hides_unwritten: AtomicBool,
    /// The reason and counters that the access log gets when the controller ends.
    pub(super) end: ControllerEnd,
    pub(super) queues: Mutex<Queues>,
}

/// The I/O queues of a controller.
#[derive(Default)]
pub(super) struct Queues {
    /// Number of I/O queues granted; `None` until the host asks.
    granted: Option<u16>,
    /// Identifiers of the connected I/O queues.
    pub(super) connected: Vec<u16>,
}

/// One connected queue. Dropping it removes it from its controller; dropping the admin queue
/// removes the controller.
pub(crate) struct Queue {
    pub(crate) controller: Arc<Controller>,
    /// Identifier of the queue; 0: the admin queue.
    pub(crate) qid: u16,
    /// Entries of the submission queue, 0-based.
    pub(crate) sqsize: u16,
    pub(crate) sq_flow_control: bool,
    /// True if the host must authenticate on this queue: it has secrets, and uses no generated TLS PSK.
    pub(crate) must_authenticate: bool,
    /// Generation of a TLS PSK by authentication on this queue: no, optional or required.
    pub(crate) concatenation: Concatenation,
    /// The controller's `resets` when this queue connected.
    pub(super) resets: u32,
    pub(super) subsystem: Arc<Subsystem>,
}

impl Controller {
    pub(super) fn peer(&self) -> Peer {
        Peer::from(self.from.ip())
    }

    /// The host NQN under which the memory of the controller's queues is accounted. Anyone may connect to
    /// the discovery service under any NQN, so all discovery controllers count as one separate host.
    pub(crate) fn accounted_to(&self) -> Nqn {
        if self.is_discovery { Nqn::discovery() } else { self.hostnqn.clone() }
    }

    /// Returns whether reads of deallocated blocks must not fail with *Deallocated or Unwritten Logical
    /// Block*.
    pub(crate) fn hides_unwritten(&self) -> bool {
        self.hides_unwritten.load(Ordering::Relaxed)
    }

    pub(crate) fn is_enabled(&self) -> bool {
        Csts(self.csts()).is_ready()
    }

    pub(crate) fn cc(&self) -> u32 {
        self.cc.load(Ordering::Relaxed)
    }

    /// Controller Status, with RDY derived from CC.
    pub(crate) fn csts(&self) -> u32 {
        let csts = self.csts.load(Ordering::Relaxed);
        let ready = Cc(self.cc()).is_enabled() && !Csts(csts).is_fatal();
        csts | if ready { Csts::READY } else { 0 }
    }

    /// Executes a Property Set of CC: enables, disables or shuts down the controller. An unsupported
    /// configuration sets CSTS.CFS.
    pub(crate) fn set_cc(&self, value: u32) {
        let before = Cc(self.cc.swap(value, Ordering::Relaxed));
        let after = Cc(value);
        let mut csts = self.csts.load(Ordering::Relaxed);
        if before.is_enabled() && !after.is_enabled() {
            csts = 0;
            self.events.reset();
            self.resets.fetch_add(1, Ordering::Relaxed);
            *self.queues.lock() = Queues::default();
        }
        if !before.is_enabled() && after.is_enabled() && !self.can_enable(value) {
            csts |= Csts::FATAL;
        }
        if after.wants_shutdown() {
            csts |= Csts::SHUTDOWN_COMPLETE;
        }
        self.csts.store(csts, Ordering::Relaxed);
    }

    /// Returns whether CC is supported: page size, arbitration and command set 0, queue entries of 64 and
    /// 16 bytes. A discovery controller has no I/O queues and may leave the entry sizes 0.
    fn can_enable(&self, cc: u32) -> bool {
        let entries = cc >> 16 & 0xFF;
        cc & CC_MPS_AMS_CSS == 0 && (entries == 0x46 || self.is_discovery)
    }

    /// Returns whether any I/O queue is connected.
    pub(crate) fn has_io_queues(&self) -> bool {
        !self.queues.lock().connected.is_empty()
    }

    /// Grants up to `max` I/O queues; refuses once any is connected.
    pub(crate) fn grant_queues(&self, asked: u16, max: u16) -> Result<u16, Status> {
        let mut queues = self.queues.lock();
        if !queues.connected.is_empty() {
            return Err(Status::COMMAND_SEQUENCE_ERROR);
        }
        let granted = asked.min(max).max(1);
        queues.granted = Some(granted);
        Ok(granted)
    }

    /// Number of I/O queues granted; 0 until the host asks.
    pub(crate) fn granted_queues(&self) -> u16 {
        self.queues.lock().granted.unwrap_or(0)
    }

    /// Adds a connected I/O queue.
    pub(super) fn add_queue(&self, qid: u16) -> Result<(), Refusal> {
        let mut queues = self.queues.lock();
        if qid > queues.granted.unwrap_or(0) {
            return Err(Refusal::command(QID_OFFSET, "the queue identifier was not granted"));
        }
        if queues.connected.contains(&qid) {
            return Err(Refusal::of(
                Status::COMMAND_SEQUENCE_ERROR,
                "the queue is connected already",
            ));
        }
        queues.connected.push(qid);
        Ok(())
    }
}

impl Queue {
    pub(super) fn log_connected(&self, peer: SocketAddr) {
        let host = self.controller.hostnqn.as_str();
        let cntlid = self.controller.cntlid;
        let discovery = self.controller.is_discovery;
        if self.qid != 0 {
            let qid = self.qid;
            return tracing::debug!(%peer, host, cntlid, qid, "connected an I/O queue");
        }
        tracing::info!(%peer, host, cntlid, discovery, "connected");
        self.tell(AccessKind::Connected {
            discovery,
            tls: self.controller.is_secured,
            must_authenticate: self.must_authenticate,
        });
    }

    /// Writes an event of the controller to the access log.
    fn tell(&self, kind: AccessKind<'_>) {
        let Controller { from, hostnqn, cntlid, .. } = &*self.controller;
        let who = Who { peer: Some(*from), host: Some(hostnqn) };
        self.subsystem.access.tell(who, Some(*cntlid), kind);
    }

    /// Writes to the access log, for an admin queue, that its connection ends before the host has authenticated.
    pub(crate) fn tell_unauthenticated(&self) {
        if self.qid == 0 {
            self.tell(AccessKind::NotAuthenticated { why: LEFT });
        }
    }

    /// Notes that the queue's connection ends, with its `traffic`. Of the admin queue, `why` is also the reason of the
    /// controller's end.
    pub(crate) fn ends(&self, why: &dyn Display, traffic: &Traffic) {
        self.controller.end.add(traffic);
        if self.qid == 0 {
            self.controller.end.because(why.to_string());
        }
    }

    /// Returns whether the queue's controller was removed, or was disabled since this I/O queue connected.
    pub(crate) fn is_orphan(&self) -> bool {
        let controller = &self.controller;
        let is_reset = self.qid != 0 && controller.resets.load(Ordering::Relaxed) != self.resets;
        is_reset || controller.is_dead.load(Ordering::Relaxed)
    }

    /// Notes that the host is alive: a whole PDU, or much of one, was received.
    pub(crate) fn seen(&self, now: Instant) {
        self.controller.last_seen_ms.store(self.subsystem.millis(now), Ordering::Relaxed);
    }

    /// The deadline of Keep Alive; `None`: the controller has no KATO. The controller ends unless a whole PDU, or much
    /// of one, arrives within twice its KATO: hosts send every half KATO, and may be late on a busy machine.
    pub(crate) fn keep_alive_deadline(&self) -> Option<Instant> {
        let kato_ms = u64::from(self.controller.kato_ms.load(Ordering::Relaxed));
        let last_seen_ms = self.controller.last_seen_ms.load(Ordering::Relaxed);
        (kato_ms > 0)
            .then(|| self.subsystem.start + Duration::from_millis(last_seen_ms + 2 * kato_ms))
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let who = (&self.hostnqn, self.from);
        self.end.tell(who, self.cntlid, self.is_discovery, self.since);
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.qid == 0 {
            return self.subsystem.controllers.lock().remove(&self.controller);
        }
        if self.controller.resets.load(Ordering::Relaxed) == self.resets {
            self.controller.queues.lock().connected.retain(|&qid| qid != self.qid);
        }
    }
}

/// The reason in the access log if a host that must authenticate never does.
const LEFT: &str = "the host left without authenticating";

/// Fields MPS, AMS and CSS of CC.
const CC_MPS_AMS_CSS: u32 = 0x3FF0;
