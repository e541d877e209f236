//! DH-HMAC-CHAP on one queue: after its Connect, and again whenever the host asks for it.
//!
//! Until the first authentication has succeeded, the queue serves Authentication Send and Authentication
//! Receive and nothing else. A later one runs beside other commands; if it fails, the connection closes.
//! Exponentiations are computed by another thread ([`super::super::exponentiations`]); a host that asks
//! for a message too early waits for it.

use std::time::{Duration, Instant};

use super::super::access_log::AccessKind;
use super::super::exponentiations::Job;
use super::super::peers::Peer;
use super::super::stats::Counters;
use super::super::subsystem::Subsystem;
use super::super::warnings::WarningKind;
use super::{Closed, HostConnection};
use dlfs_base::buf::IoBuf;
use dlfs_base::random;
use dlfs_nvme::auth::{Controller, Explanation, Failed, Next, Power, Randomness};
use dlfs_nvme::nvme::sqe::fctype;
use dlfs_nvme::nvme::{Sqe, Status};
use dlfs_nvme::tcp::controller::{CommandId, DataTransfer};

/// An authentication that has begun.
pub(super) struct Authentication {
    controller: Controller,
    /// The message that the next Authentication Receive fetches.
    message: Option<Vec<u8>>,
    /// When it may be fetched: a wrong proof costs the host a delay.
    not_before: Option<Instant>,
    /// An Authentication Receive that waits for its message, and the room for it in bytes.
    waiting: Option<(CommandId, u32)>,
}

/// Returns whether a command belongs to an authentication.
pub(super) fn is_authentication(sqe: &Sqe) -> bool {
    matches!(sqe.fctype(), Some(fctype::AUTHENTICATION_SEND | fctype::AUTHENTICATION_RECEIVE))
}

impl HostConnection {
    /// Starts an Authentication Send or an Authentication Receive.
    pub(super) fn begin_authentication(
        &mut self,
        id: CommandId,
        sqe: &Sqe,
        data: DataTransfer,
        subsystem: &Subsystem,
        now: Instant,
    ) {
        let is_send = sqe.fctype() == Some(fctype::AUTHENTICATION_SEND);
        match data {
            _ if !sqe.is_nvme_authentication() => {
                self.fail(id, Status::INVALID_FIELD.do_not_retry())
            }
            DataTransfer::FromHost { len, .. }
                if is_send && (1..=MAX_SEND_BYTES).contains(&len) =>
            {
                self.awaited.begin(now);
                self.receive_into(id, IoBuf::zeroed(len as usize));
            }
            DataTransfer::ToHost(room) if !is_send && (1..=MAX_ROOM_BYTES).contains(&room) => {
                self.fetch(id, room, subsystem, now);
            }
            _ => self.fail(id, Status::INVALID_SGL_LENGTH.do_not_retry()),
        }
    }

    /// A message of the host has arrived.
    pub(super) fn end_authentication_send(
        &mut self,
        id: CommandId,
        message: &[u8],
        subsystem: &Subsystem,
        now: Instant,
    ) {
        if self.authentication.is_none() {
            match self.new_authentication(subsystem) {
                Ok(authentication) => self.authentication = Some(Box::new(authentication)),
                Err(status) => return self.fail(id, status),
            }
        }
        let Some(authentication) = &mut self.authentication else { return };
        let next = authentication.controller.handle(message);
        if self.follow(next, subsystem, now) {
            self.protocol.finish(id, Status::SUCCESS, 0);
        } else {
            self.fail(id, Status::COMMAND_INTERRUPTED);
        }
    }

    /// The result of an exponentiation has arrived.
    pub(in super::super) fn computed(&mut self, power: Power, subsystem: &Subsystem, now: Instant) {
        let Some(authentication) = &mut self.authentication else { return };
        let next = authentication.controller.computed(power);
        // It is asked for one more exponentiation only by messages.
        self.follow(next, subsystem, now);
    }

    /// The keys in force now decide, so that a host whose key was withdrawn fails.
    fn new_authentication(&self, subsystem: &Subsystem) -> Result<Authentication, Status> {
        let queue = self.queue.as_ref().expect("only a connected queue authenticates");
        let keys = subsystem.keys_of(&queue.controller.hostnqn);
        let terms = keys.map(|keys| {
            let host = &queue.controller.hostnqn;
            let concatenation = queue.concatenation;
            subsystem.authentication_terms(host, &keys, concatenation)
        });
        let terms = terms.ok_or(Status::INVALID_OPCODE.do_not_retry())?;
        let mut bytes = [0; Randomness::LEN_BYTES];
        // A retry may succeed: early after the start of a machine there may be no random numbers yet.
        random::draw(&mut bytes).map_err(|_| Status::INTERNAL_ERROR)?;
        let controller = Controller::new(terms, &Randomness::from_bytes(bytes));
        Ok(Authentication { controller, message: None, not_before: None, waiting: None })
    }

    /// Does what comes next; `false`: too many hosts authenticate now, and this one must begin anew.
    fn follow(&mut self, next: Next, subsystem: &Subsystem, now: Instant) -> bool {
        let Some(authentication) = &mut self.authentication else { return true };
        match next {
            Next::Receive => {}
            Next::Send(message) => {
                let wrong = matches!(
                    authentication.controller.failure(),
                    Some(Failed::Here(Explanation::AuthenticationFailed, _))
                );
                authentication.not_before = wrong.then(|| now + WRONG_PROOF_DELAY);
                authentication.message = Some(message);
                self.deliver(subsystem, now);
            }
            Next::Compute(work) => {
                let Some(queue) = &self.queue else { return true };
                let job =
                    Job { poller: self.poller, connection: (self.index, self.generation), work };
                let peer = Peer::from(self.peer.ip());
                let host = &queue.controller.hostnqn;
                if !subsystem.exponentiations.push(job, peer, host, now) {
                    self.authentication = None;
                    return false;
                }
            }
            Next::Authenticated => self.authenticated(subsystem, now),
            Next::Failed(failed) => self.refuse(&failed, subsystem, now),
        }
        true
    }

    fn authenticated(&mut self, subsystem: &Subsystem, now: Instant) {
        let authentication = self.authentication.take();
        let Some(queue) = &self.queue else { return };
        let controller = &queue.controller;
        let psk =
            authentication.and_then(|authentication| authentication.controller.generated_psk());
        if let Some(psk) = psk {
            subsystem.generated.add(psk, now);
        }
        let host = controller.hostnqn.as_str();
        let cntlid = controller.cntlid;
        let qid = queue.qid;
        tracing::debug!(peer = %self.peer, host, cntlid, qid, "authenticated");
        if qid == 0 {
            subsystem.access.tell(self.who(), Some(cntlid), AccessKind::Authenticated);
        }
        subsystem.exponentiations.prove(Peer::from(self.peer.ip()), &controller.hostnqn);
        self.is_authenticated = true;
    }

    /// Ends service: the host has not proved itself.
    fn refuse(&mut self, failed: &Failed, subsystem: &Subsystem, now: Instant) {
        Counters::add(&subsystem.counters.refused, 1);
        let why = format_args!("authentication failed: {failed}");
        subsystem.warnings.warn(now, WarningKind::NotAuthenticated, self.who(), why);
        self.log_closed(NOT_AUTHENTICATED, now);
        self.authentication = None;
        self.is_authenticated = false;
        self.terminated = Some(now);
        self.awaited.end();
        self.queue = None;
    }

    /// Authentication Receive: answers at once, or when there is a message.
    fn fetch(&mut self, id: CommandId, room: u32, subsystem: &Subsystem, now: Instant) {
        match &mut self.authentication {
            Some(authentication) if authentication.waiting.is_none() => {
                authentication.waiting = Some((id, room));
                self.deliver(subsystem, now);
            }
            _ => self.fail(id, Status::COMMAND_SEQUENCE_ERROR.do_not_retry()),
        }
    }

    /// Gives the message to the command that waits for it, if there are both and its delay is over.
    pub(super) fn deliver(&mut self, subsystem: &Subsystem, now: Instant) {
        let Some(authentication) = &mut self.authentication else { return };
        if authentication.not_before.is_some_and(|at| now < at) || authentication.message.is_none()
        {
            return;
        }
        let Some((id, room)) = authentication.waiting.take() else { return };
        let message = authentication.message.take().expect("there is one");
        if message.len() > room as usize {
            authentication.message = Some(message);
            return self.fail(id, Status::INVALID_SGL_LENGTH.do_not_retry());
        }
        let mut buf = IoBuf::zeroed(room as usize);
        buf[..message.len()].copy_from_slice(&message);
        let next = authentication.controller.sent();
        self.protocol.send_data(id, buf.freeze());
        self.follow(next, subsystem, now);
    }
}

/// The longest message of a host has 528 bytes.
const MAX_SEND_BYTES: u32 = 1024;
/// The room for a message that hosts offer: Linux and SPDK 4,096 bytes.
const MAX_ROOM_BYTES: u32 = 4096;
/// How long a host waits for the answer to a wrong proof.
const WRONG_PROOF_DELAY: Duration = Duration::from_secs(1);
const NOT_AUTHENTICATED: Closed = Closed::Dropped("the host did not authenticate itself");
