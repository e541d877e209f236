//! The security of a connection: TLS, and authentications of its host.
//!
//! Inside TLS are the same bytes as on a plain connection, encrypted by a session between protocol and socket. The
//! first byte of a connection tells whether it is TLS, so one port serves both. The handshake runs in the poll loop
//! without blocking. It checks the key first: a host without a valid key costs the parsing of one message and no
//! exponentiation. Buffers for ciphertext belong to the poller; a connection owns one only while its host does not
//! read.
//!
//! DH-HMAC-CHAP runs on one queue after its Connect, and again whenever the host starts a reauthentication. Until the
//! first authentication succeeds, the queue serves only Authentication Send and Authentication Receive.
//! Reauthentication runs beside other commands; if it fails, the connection closes. Another thread computes the
//! exponentiations ([`crate::exponentiations`]). An Authentication Receive that comes before its message is ready
//! waits for it.

use std::io::{IoSlice, IoSliceMut, Read as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::net::{SendFlags, send};

use super::{BROKE_PROTOCOL, Closed, HostConnection, MISCOUNTED, is_transient};
use crate::access_log::{AccessKind, WarningKind};
use crate::exponentiations::Job;
use crate::hosts::Peer;
use crate::io::Backend;
use crate::stats::Counters;
use crate::subsystem::{Names, Subsystem};
use dlfs_base::buf::IoBuf;
use dlfs_base::random;
use dlfs_io::tls::{FIRST_BYTE, HANDSHAKE_LIMIT, Keys, RECORD_LEN_BYTES, Session, TlsError};
use dlfs_nvme::auth::{
    Controller, ControllerTerms, Derivation, Explanation, Failed, IdentityParts, IdentityVersion,
    Next, Origin, Power, Randomness, TlsPsk,
};
use dlfs_nvme::nvme::sqe::fctype;
use dlfs_nvme::nvme::{Nqn, Sqe, Status};
use dlfs_nvme::tcp::budget::{TARGET_RECEIVE_BYTES, TARGET_SEND_SLICES};
use dlfs_nvme::tcp::controller::{CommandId, DataTransfer};

/// Buffers that a poller lends its connections while it serves them.
pub(in super::super) struct Scratch {
    /// Received plaintext.
    pub(super) plain: Vec<u8>,
    /// Received ciphertext; empty until there is some.
    pub(super) sealed: Vec<u8>,
    /// Ciphertext to send.
    outgoing: Vec<u8>,
}

impl Scratch {
    pub(in super::super) fn new() -> Scratch {
        let plain = vec![0; TARGET_RECEIVE_BYTES];
        Scratch { plain, sealed: Vec::new(), outgoing: Vec::new() }
    }
}

/// The transport of the connection's bytes.
#[derive(Debug)]
pub(super) enum Carriage {
    /// Nothing has been received.
    Unknown,
    Plain,
    Tls(Box<Secured>),
}

/// The TLS session of a connection, and the identity of its key.
#[derive(Debug)]
pub(super) struct Secured {
    session: Session,
    /// The identity of its key, once the session is established.
    names: Option<Names>,
}

impl HostConnection {
    /// Looks at the connection's first byte; returns whether it is TLS.
    pub(super) fn begins_tls(&mut self, bytes: &[u8], backend: &Backend) -> Result<bool, Closed> {
        if bytes.first() != Some(&FIRST_BYTE) || !backend.subsystem.offers_tls() {
            self.carriage = Carriage::Plain;
            return Ok(false);
        }
        match Session::controller(backend.subsystem.clone()) {
            Ok(session) => {
                self.carriage = Carriage::Tls(Box::new(Secured { session, names: None }));
                Ok(true)
            }
            Err(error) => Err(self.refuse_tls(&error, backend)),
        }
    }

    /// The identity of the PSK of the connection's TLS session.
    pub(super) fn secured_as(&self) -> Option<&Names> {
        match &self.carriage {
            Carriage::Tls(secured) => secured.names.as_ref(),
            Carriage::Unknown | Carriage::Plain => None,
        }
    }

    /// Bytes of ciphertext that wait to be sent.
    pub(super) fn sealed_bytes(&self) -> usize {
        match &self.carriage {
            Carriage::Tls(secured) => secured.session.outgoing().len(),
            Carriage::Unknown | Carriage::Plain => 0,
        }
    }

    /// Returns whether a handshake exceeds its time limit.
    pub(super) fn is_late_handshake(&self, now: Instant) -> bool {
        let is_late = now.saturating_duration_since(self.opened) >= HANDSHAKE_LIMIT;
        is_late && matches!(&self.carriage, Carriage::Tls(secured) if secured.names.is_none())
    }

    /// Makes one receive call for ciphertext, and starts the commands that arrived.
    pub(super) fn receive_secured(
        &mut self,
        backend: &mut Backend,
        scratch: &mut Scratch,
    ) -> Result<(), Closed> {
        scratch.sealed.resize(SEALED_LEN, 0);
        let len = match (&self.stream).read(&mut scratch.sealed) {
            Ok(0) => return Err(Closed::ByHost),
            Ok(len) if len > scratch.sealed.len() => return Err(MISCOUNTED),
            Ok(len) => len,
            Err(error) if is_transient(&error) => return Ok(()),
            Err(error) => return Err(Closed::Lost(error.kind())),
        };
        self.traffic.received_bytes += len as u64;
        self.take_sealed(len, backend, scratch)
    }

    /// Handles the first `len` bytes of the memory for ciphertext.
    pub(super) fn take_sealed(
        &mut self,
        len: usize,
        backend: &mut Backend,
        scratch: &mut Scratch,
    ) -> Result<(), Closed> {
        if self.terminated.is_some() {
            return Ok(()); // discarded after a protocol error
        }
        if let Carriage::Tls(secured) = &mut self.carriage {
            secured.session.give(std::mem::take(&mut scratch.sealed), len);
        }
        let result = self.shake_hands(backend).and_then(|is_established| {
            if is_established { self.open_all(backend, &mut scratch.plain) } else { Ok(()) }
        });
        if let Carriage::Tls(secured) = &mut self.carriage {
            scratch.sealed = secured.session.take_back();
        }
        result
    }

    /// Advances the handshake; returns whether it is over.
    fn shake_hands(&mut self, backend: &Backend) -> Result<bool, Closed> {
        let Carriage::Tls(secured) = &mut self.carriage else { return Ok(false) };
        if secured.names.is_some() {
            return Ok(true);
        }
        let error = match secured.session.handshake() {
            Ok(false) => return Ok(false),
            Ok(true) => {
                secured.names = secured.session.identity().and_then(|identity| {
                    let parts = IdentityParts::parse(identity)?;
                    Some(Names { identity: identity.to_owned(), parts })
                });
                match &secured.names {
                    Some(names) => {
                        let host = names.parts.hostnqn.as_str();
                        tracing::debug!(peer = %self.peer, host, "TLS is established");
                        return Ok(true);
                    }
                    None => TlsError::NoKey,
                }
            }
            Err(error) => error,
        };
        Err(self.refuse_tls(&error, backend))
    }

    /// Reports a failed handshake in the log and, if the socket takes the alert, to the host.
    fn refuse_tls(&mut self, error: &TlsError, backend: &Backend) -> Closed {
        let subsystem = &backend.subsystem;
        if let Carriage::Tls(secured) = &mut self.carriage {
            // The alert is optional: the connection closes either way.
            let _ = flush(&self.stream, &mut secured.session);
        }
        Counters::add(&subsystem.counters.refused, 1);
        let why = format_args!("TLS handshake: {error}");
        subsystem.warnings.warn(backend.now, WarningKind::NotAuthenticated, self.who(), why);
        NO_SESSION
    }

    /// Decrypts all that has arrived: payload goes straight into its buffer, the rest through `plain`.
    fn open_all(&mut self, backend: &mut Backend, plain: &mut [u8]) -> Result<(), Closed> {
        let before = self.arrived();
        let mut opened = 0;
        let mut result = Ok(());
        while result.is_ok() && self.terminated.is_none() {
            let Carriage::Tls(secured) = &mut self.carriage else { break };
            let (in_place, into) = match self.protocol.payload() {
                Some(payload) => (true, payload),
                // Decrypts one record at a time, so that payload after a command can go straight into its
                // buffer.
                None => (false, &mut plain[..RECORD_LEN_BYTES]),
            };
            let len = match secured.session.open(&mut [IoSliceMut::new(into)]) {
                Ok(0) => break,
                Ok(len) => len,
                Err(TlsError::Closed) => return Err(Closed::ByHost),
                Err(error) => {
                    let why = format_args!("{error}");
                    let warnings = &backend.subsystem.warnings;
                    warnings.warn(backend.now, WarningKind::Protocol, self.who(), why);
                    return Err(BROKE_PROTOCOL);
                }
            };
            opened += len;
            let input = if in_place { 0 } else { len };
            if in_place {
                self.protocol.payload_received(len);
            }
            result = self.handle_all(&plain[..input], backend);
        }
        if self.terminated.is_none() {
            self.note_arrival(before, opened, backend.now);
        }
        result
    }

    /// Encrypts the protocol's bytes, a few records at a time, and sends as much as the socket accepts, or not
    /// much more than `max` bytes.
    pub(super) fn send_secured(
        &mut self,
        scratch: &mut Scratch,
        max: usize,
        now: Instant,
    ) -> Result<(), Closed> {
        let Carriage::Tls(secured) = &mut self.carriage else { return Ok(()) };
        let session = &mut secured.session;
        let is_lent = session.outgoing().is_empty();
        if is_lent {
            session.swap_outgoing(&mut scratch.outgoing);
        }
        let mut left = max;
        loop {
            let before = session.outgoing().len();
            let is_flushed = flush(&self.stream, session)?;
            let sent = before - session.outgoing().len();
            self.traffic.sent_bytes += sent as u64;
            self.sending.advance(now, sent);
            if !is_flushed {
                self.is_blocked = true;
                return Ok(());
            }
            left = left.saturating_sub(sent);
            if self.protocol.transmit().is_empty() || left == 0 {
                break;
            }
            let mut slices = [IoSlice::new(&[]); TARGET_SEND_SLICES];
            let used = self.protocol.gather(&mut slices);
            let sealed = session.seal(&mut slices[..used], SEAL_BYTES).map_err(|_| NO_SESSION)?;
            self.protocol.sent(sealed);
        }
        if is_lent {
            session.swap_outgoing(&mut scratch.outgoing);
        } else {
            session.swap_outgoing(&mut Vec::new()); // an idle connection keeps no buffer
        }
        if self.protocol.transmit().is_empty() {
            self.sending.end();
        }
        Ok(())
    }
}

/// Sends ciphertext; returns whether all of it is sent.
fn flush(stream: &TcpStream, session: &mut Session) -> Result<bool, Closed> {
    loop {
        let outgoing = session.outgoing();
        if outgoing.is_empty() {
            return Ok(true);
        }
        match send(stream, outgoing, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(len) if len > outgoing.len() => return Err(MISCOUNTED),
            Ok(len) => session.sent(len),
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => return Ok(false),
            Err(errno) => return Err(Closed::Lost(std::io::Error::from(errno).kind())),
        }
    }
}

impl Keys for Subsystem {
    /// A version 1 identity determines the PSK and its derivation. A version 0 identity does not: it means
    /// the host's first PSK with its hash, derived as the options say.
    fn find(&self, identity: &str) -> Option<TlsPsk> {
        let parts = IdentityParts::parse(identity)?;
        let is_ours = parts.subnqn == self.options.nqn || parts.subnqn.as_str() == Nqn::DISCOVERY;
        if !is_ours {
            return None;
        }
        if parts.origin == Origin::Generated {
            return Some((*self.generated.hold(identity, Instant::now())?).clone());
        }
        let keys = self.keys_of(&parts.hostnqn)?;
        let derivations = match parts.version {
            IdentityVersion::V0 => &[self.options.tls_derivation][..],
            IdentityVersion::V1 => &[Derivation::Specification, Derivation::Compatible],
        };
        let mut of_hash = keys.tls_keys.iter().filter(|key| key.hash() == parts.hash);
        of_hash.find_map(|key| {
            let of = |derivation: &Derivation| {
                key.tls_psk(parts.version, *derivation, &parts.hostnqn, &parts.subnqn)
            };
            let mut psks = derivations.iter().filter_map(of);
            psks.find(|psk| psk.identity() == identity)
        })
    }
}

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

    /// Starts with the keys now in force: a host whose key was withdrawn fails.
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

    /// Performs the next step. Returns `false` if too many hosts authenticate now; the host must then start
    /// again.
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

    /// Ends service, because the host failed to authenticate.
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

    /// Answers an Authentication Receive: at once, or when its message is ready.
    fn fetch(&mut self, id: CommandId, room: u32, backend: &Backend) {
        match &mut self.authentication {
            Some(authentication) if authentication.waiting.is_none() => {
                authentication.waiting = Some((id, room));
                self.deliver(backend);
            }
            _ => self.fail(id, Status::COMMAND_SEQUENCE_ERROR.do_not_retry()),
        }
    }

    /// Completes the waiting Authentication Receive, if the message is ready and its delay is over.
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

/// Maximum ciphertext of one receive call.
const SEALED_LEN: usize = 8 * RECORD_LEN_BYTES;

/// Plaintext encrypted per send call: little enough to stay in the second-level cache.
const SEAL_BYTES: usize = 4 * RECORD_LEN_BYTES;
const NO_SESSION: Closed = Closed::Dropped("no TLS session was established, or it broke");
pub(super) const LATE_HANDSHAKE: Closed = Closed::Dropped("no TLS handshake succeeded in time");

/// Limit for a host's message; the longest has 528 bytes.
const MAX_SEND_BYTES: u32 = 1024;

/// Limit for an Authentication Receive's buffer; Linux and SPDK offer 4,096 bytes.
const MAX_ROOM_BYTES: u32 = 4096;

/// Delay of the answer to a wrong proof.
const WRONG_PROOF_DELAY: Duration = Duration::from_secs(1);
const NOT_AUTHENTICATED: Closed = Closed::Dropped("the host did not authenticate itself");
