//! Authentication of a host on a queue, by DH-HMAC-CHAP.
//!
//! A host authenticates on each queue after its Connect, and again whenever it starts a reauthentication. Until the
//! first authentication succeeds, the queue serves only Authentication Send and Authentication Receive.
//! Reauthentication runs beside other commands; if it fails, the connection closes. Another thread computes the
//! exponentiations ([`crate::exponentiations`]). An Authentication Receive that arrives before its message is ready
//! waits for the message.

use std::time::{Duration, Instant};

use super::{Closed, HostConnection};
use crate::access_log::{AccessKind, WarningKind};
use crate::exponentiations::Job;
use crate::io::Backend;
use crate::peers::Peer;
use crate::stats::Counters;
use crate::subsystem::Subsystem;
use dlfs_base::buf::IoBuf;
use dlfs_base::random;
use dlfs_nvme::auth::{Controller, ControllerTerms, Explanation, Failed, Next, Power, Randomness};
use dlfs_nvme::nvme::sqe::fctype;
use dlfs_nvme::nvme::{Sqe, Status};
use dlfs_nvme::tcp::controller::{CommandId, DataTransfer};

/// An authentication in progress.
pub(super) struct Authentication {
    controller: Controller,
    /// The message that the next Authentication Receive fetches.
    message: Option<Vec<u8>>,
    /// The earliest time to hand the message out: the answer to a wrong proof is delayed.
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
        backend: &Backend,
    ) {
        let is_send = sqe.fctype() == Some(fctype::AUTHENTICATION_SEND);
        match data {
            _ if !sqe.is_nvme_authentication() => {
                self.fail(id, Status::INVALID_FIELD.do_not_retry())
            }
            DataTransfer::FromHost { len, .. }
                if is_send && (1..=MAX_SEND_BYTES).contains(&len) =>
            {
                self.awaited.begin(backend.now);
                self.receive_into(id, IoBuf::zeroed(len as usize));
            }
            DataTransfer::ToHost(room) if !is_send && (1..=MAX_ROOM_BYTES).contains(&room) => {
                self.fetch(id, room, backend);
            }
            _ => self.fail(id, Status::INVALID_SGL_LENGTH.do_not_retry()),
        }
    }

    /// Handles the data of an Authentication Send: a message of the host.
    pub(super) fn end_authentication_send(
        &mut self,
        id: CommandId,
        message: &[u8],
        backend: &Backend,
    ) {
        if self.authentication.is_none() {
            match self.new_authentication(&backend.subsystem) {
                Ok(authentication) => self.authentication = Some(Box::new(authentication)),
                Err(status) => return self.fail(id, status),
            }
        }
        let Some(authentication) = &mut self.authentication else { return };
        let next = authentication.controller.handle(message);
        if self.follow(next, backend) {
            self.protocol.finish(id, Status::SUCCESS, 0);
        } else {
            self.fail(id, Status::COMMAND_INTERRUPTED);
        }
    }

    /// Handles the result of an exponentiation.
    pub(in super::super) fn computed(&mut self, power: Power, backend: &Backend) {
        let Some(authentication) = &mut self.authentication else { return };
        let next = authentication.controller.computed(power);
        // The result of an exponentiation never asks for another one; only messages do.
        self.follow(next, backend);
    }

    /// Begins an authentication with the current keys: a host whose keys were removed meanwhile fails.
    fn new_authentication(&self, subsystem: &Subsystem) -> Result<Authentication, Status> {
        let queue = self.queue.as_ref().expect("only a connected queue authenticates");
        let host = &queue.controller.hostnqn;
        let keys = subsystem.keys_of(host).ok_or(Status::INVALID_OPCODE.do_not_retry())?;
        let terms = ControllerTerms {
            hostnqn: host.clone(),
            subnqn: subsystem.options.nqn.clone(),
            secrets: keys.secrets.clone(),
            ctrl_secret: keys.ctrl_secret.clone(),
            hashes: subsystem.options.dhchap_hashes.clone(),
            groups: subsystem.options.dhchap_groups.clone(),
            concatenation: queue.concatenation,
        };
        let mut bytes = [0; Randomness::LEN_BYTES];
        // A retry may succeed: soon after boot, the operating system may have no random numbers yet.
        random::draw(&mut bytes).map_err(|_| Status::INTERNAL_ERROR)?;
        let controller = Controller::new(terms, &Randomness::from_bytes(bytes));
        Ok(Authentication { controller, message: None, not_before: None, waiting: None })
    }

    /// Performs the next step of the authentication. Returns `false` if the queue of exponentiations is full: the
    /// authentication is then dropped, and the host must start again.
    fn follow(&mut self, next: Next, backend: &Backend) -> bool {
        let Some(authentication) = &mut self.authentication else { return true };
        match next {
            Next::Receive => {}
            Next::Send(message) => {
                let wrong = matches!(
                    authentication.controller.failure(),
                    Some(Failed::Here(Explanation::AuthenticationFailed, _))
                );
                authentication.not_before = wrong.then(|| backend.now + WRONG_PROOF_DELAY);
                authentication.message = Some(message);
                self.deliver(backend);
            }
            Next::Compute(work) => {
                let Some(queue) = &self.queue else { return true };
                let job =
                    Job { poller: self.poller, connection: (self.index, self.generation), work };
                let peer = Peer::from(self.peer.ip());
                let host = &queue.controller.hostnqn;
                if !backend.subsystem.exponentiations.push(job, peer, host, backend.now) {
                    self.authentication = None;
                    return false;
                }
            }
            Next::Authenticated => self.authenticated(backend),
            Next::Failed(failed) => self.refuse(&failed, backend),
        }
        true
    }

    fn authenticated(&mut self, backend: &Backend) {
        let subsystem = &backend.subsystem;
        let authentication = self.authentication.take();
        let Some(queue) = &self.queue else { return };
        let controller = &queue.controller;
        let psk =
            authentication.and_then(|authentication| authentication.controller.generated_psk());
        if let Some(psk) = psk {
            subsystem.generated.add(psk, backend.now);
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

    /// Ends service on the connection: the host failed to authenticate.
    fn refuse(&mut self, failed: &Failed, backend: &Backend) {
        let Backend { subsystem, now, .. } = backend;
        Counters::add(&subsystem.counters.refused, 1);
        let why = format_args!("authentication failed: {failed}");
        subsystem.warnings.warn(*now, WarningKind::NotAuthenticated, self.who(), why);
        self.log_closed(NOT_AUTHENTICATED, *now);
        self.authentication = None;
        self.is_authenticated = false;
        self.terminated = Some(*now);
        self.awaited.end();
        self.queue = None;
    }

    /// Starts an Authentication Receive, which completes when its message is ready: see [`HostConnection::deliver`].
    fn fetch(&mut self, id: CommandId, room: u32, backend: &Backend) {
        match &mut self.authentication {
            Some(authentication) if authentication.waiting.is_none() => {
                authentication.waiting = Some((id, room));
                self.deliver(backend);
            }
            _ => self.fail(id, Status::COMMAND_SEQUENCE_ERROR.do_not_retry()),
        }
    }

    /// Completes the waiting Authentication Receive if its message is ready and any delay has passed.
    pub(super) fn deliver(&mut self, backend: &Backend) {
        let Some(authentication) = &mut self.authentication else { return };
        if authentication.not_before.is_some_and(|at| backend.now < at)
            || authentication.message.is_none()
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
        self.follow(next, backend);
    }
}

/// Limit for a host's message; the longest has 528 bytes.
const MAX_SEND_BYTES: u32 = 1024;

/// Limit for an Authentication Receive's buffer; Linux and SPDK offer 4,096 bytes.
const MAX_ROOM_BYTES: u32 = 4096;

/// Delay of the answer to a wrong proof.
const WRONG_PROOF_DELAY: Duration = Duration::from_secs(1);
pub(super) const NOT_AUTHENTICATED: Closed =
    Closed::Dropped("the host did not authenticate itself");
