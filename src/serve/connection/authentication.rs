//! DH-HMAC-CHAP on one queue: after its Connect, and again whenever the host starts a reauthentication.
//!
//! Until the first authentication succeeds, the queue serves only Authentication Send and Authentication
//! Receive. Reauthentication runs beside other commands; if it fails, the connection closes. Another thread
//! computes the exponentiations ([`super::super::exponentiations`]). An Authentication Receive that comes
//! before its message is ready waits for it.

use std::time::{Duration, Instant};

use super::super::access_log::{AccessKind, WarningKind};
use super::super::exponentiations::Job;
use super::super::hosts::Peer;
use super::super::stats::Counters;
use super::super::subsystem::Subsystem;
use super::{Closed, HostConnection};
use dlfs_base::buf::IoBuf;
use dlfs_base::random;
use dlfs_nvme::auth::{Controller, Explanation, Failed, Next, Power, Randomness};
use dlfs_nvme::nvme::sqe::fctype;
use dlfs_nvme::nvme::{Sqe, Status};
use dlfs_nvme::tcp::controller::{CommandId, DataTransfer};

/// An authentication in progress.
pub(super) struct Authentication {
    controller: Controller,
    /// The message that the next Authentication Receive fetches.
    message: Option<Vec<u8>>,
    /// The earliest time at which it may be fetched: a wrong proof delays the host.
    not_before: Option<Instant>,
    /// An Authentication Receive that waits for its message, and the length of its buffer in bytes.
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

    /// Handles the data of an Authentication Send: a message of the host.
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

    /// Handles the result of an exponentiation.
    pub(in super::super) fn computed(&mut self, power: Power, subsystem: &Subsystem, now: Instant) {
        let Some(authentication) = &mut self.authentication else { return };
        let next = authentication.controller.computed(power);
        // The result of an exponentiation never asks for another one; only messages do.
        self.follow(next, subsystem, now);
    }

    /// Starts with the keys now in force: a host whose key was withdrawn fails.
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
        // A retry may succeed: soon after boot, the operating system may have no random numbers yet.
        random::draw(&mut bytes).map_err(|_| Status::INTERNAL_ERROR)?;
        let controller = Controller::new(terms, &Randomness::from_bytes(bytes));
        Ok(Authentication { controller, message: None, not_before: None, waiting: None })
    }

    /// Performs the next step. Returns `false` if too many hosts authenticate now; the host must then start
    /// again.
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

    /// Ends service, because the host failed to authenticate.
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

    /// Answers an Authentication Receive: at once, or when its message is ready.
    fn fetch(&mut self, id: CommandId, room: u32, subsystem: &Subsystem, now: Instant) {
        match &mut self.authentication {
            Some(authentication) if authentication.waiting.is_none() => {
                authentication.waiting = Some((id, room));
                self.deliver(subsystem, now);
            }
            _ => self.fail(id, Status::COMMAND_SEQUENCE_ERROR.do_not_retry()),
        }
    }

    /// Completes the waiting Authentication Receive, if the message is ready and its delay is over.
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

/// Limit for a host's message; the longest has 528 bytes.
const MAX_SEND_BYTES: u32 = 1024;
/// Limit for an Authentication Receive's buffer; Linux and SPDK offer 4,096 bytes.
const MAX_ROOM_BYTES: u32 = 4096;
/// Delay of the answer to a wrong proof.
const WRONG_PROOF_DELAY: Duration = Duration::from_secs(1);
const NOT_AUTHENTICATED: Closed = Closed::Dropped("the host did not authenticate itself");
