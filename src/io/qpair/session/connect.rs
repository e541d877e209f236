//! The steps of one queue's connection: TCP, TLS, ICReq, Connect, authentication.
//!
//! Admin queues and I/O queues connect in the same way; only their Connect commands differ.
//! After Connect the two sides may authenticate, by messages in Fabrics commands.

use std::time::Instant;

use zerocopy::IntoBytes;

use super::{Failure, Terms};
use crate::tls::HANDSHAKE_LIMIT;
use dlfs_base::error::{ErrorKind, Result as DlfsResult};
use dlfs_base::units::deadline;
use dlfs_nvme::auth::{
    Concatenation, Failed, Group, Hash, Host, HostTerms, Next, Randomness, Secret, TlsPsk,
};
use dlfs_nvme::nvme::fabrics::{CONNECT_ASCR, CONNECT_ATR, InvalidParameter};
use dlfs_nvme::nvme::{ConnectData, Cqe, Nqn, RetryClass, Sqe, Status};
use dlfs_nvme::tcp::host::{self, CommandError, Connection, HostOptions, Transfer};
use dlfs_nvme::tcp::{Digests, ProtocolError};

/// The parameters of a queue's connection.
#[derive(Debug, Clone)]
pub struct ConnectTerms {
    /// The parameters of all connections to the controller.
    pub common: Terms,
    /// The controller's identifier; an admin queue asks for a new controller by [`ConnectData::CNTLID_DYNAMIC`].
    pub cntlid: u16,
    /// Queue identifier; 0 is the admin queue.
    pub qid: u16,
    /// Entries of the queue, one of which stays empty.
    pub num_entries: u16,
}

/// An event of a channel.
#[derive(Debug)]
pub enum Event<B> {
    /// Commands can be submitted.
    Ready {
        /// The controller.
        cntlid: u16,
    },
    /// The authentication has generated a TLS PSK: replace this connection by one with TLS.
    Concatenated {
        /// The PSK.
        psk: TlsPsk,
    },
    /// The connection failed: abandon the channel.
    Failed {
        /// The reason.
        failure: Failure,
        /// True if the controller answered Connect with an error status that may be transient: any but
        /// Authentication Required.
        refused: bool,
    },
    /// A command has ended; see [`host::Event::Done`].
    Done {
        /// The submitted payload.
        payload: B,
        /// The completion, or an error if the completion is invalid.
        result: Result<Cqe, CommandError>,
    },
}

/// The payload of a command on a channel.
#[derive(Debug)]
pub enum Payload<B> {
    /// The Connect command's data.
    Connect(Box<ConnectData>),
    /// An authentication message, or room for one.
    Authentication(Vec<u8>),
    /// A payload of the channel's user.
    Own(B),
}

impl<B> Payload<B> {
    /// The payload of the channel's user; `None` for a command of the channel.
    fn into_own(self) -> Option<B> {
        match self {
            Payload::Own(payload) => Some(payload),
            Payload::Connect(_) | Payload::Authentication(_) => None,
        }
    }
}

impl<B: AsRef<[u8]>> AsRef<[u8]> for Payload<B> {
    fn as_ref(&self) -> &[u8] {
        match self {
            Payload::Own(payload) => payload.as_ref(),
            Payload::Connect(data) => data.as_bytes(),
            Payload::Authentication(message) => message,
        }
    }
}

impl<B: AsMut<[u8]>> AsMut<[u8]> for Payload<B> {
    fn as_mut(&mut self) -> &mut [u8] {
        match self {
            Payload::Own(payload) => payload.as_mut(),
            Payload::Connect(data) => data.as_mut_bytes(),
            Payload::Authentication(message) => message,
        }
    }
}

/// The payload of a completed command, and its result.
pub type Ended<B> = (B, Result<Cqe, CommandError>);

/// The connection of one queue. It owns no socket and never reads a clock.
///
/// Connect a socket and call [`Channel::handle_connected`]. If there is a `Channel::psk`, establish TLS with it
/// and call `Channel::handle_secured`. Transfer the bytes of [`Channel::connection`], call
/// [`Channel::handle_timeout`], and take `Channel::poll_event` until it returns `None`; then send.
#[derive(Debug)]
pub struct Channel<B> {
    terms: Box<ConnectTerms>,
    stage: ChannelStage,
    /// `Some` once TCP is connected and, with a PSK, TLS is established.
    connection: Option<Box<Connection<Payload<B>>>>,
    /// `Some` while [`ChannelStage::Authenticating`].
    authentication: Option<Box<Authentication>>,
}

/// The progress of connecting a queue. The stages follow each other in this order; `Securing` is left out without a
/// PSK, and `Authenticating` if the controller does not require it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChannelStage {
    /// TCP is connecting, until this time at most.
    Opening { deadline: Instant },
    /// TLS is being established, until this time at most.
    Securing { deadline: Instant },
    /// ICReq was sent.
    Initialising,
    /// Connect was sent.
    Connecting,
    /// Connect has succeeded, and the controller requires authentication.
    Authenticating,
    /// The queue can be used.
    Ready,
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Channel<B> {
    /// Creates a channel whose TCP connection has been started.
    pub fn new(now: Instant, terms: ConnectTerms) -> Channel<B> {
        let stage = ChannelStage::Opening { deadline: deadline(now, terms.common.tcp_timeout) };
        Channel { terms: Box::new(terms), stage, connection: None, authentication: None }
    }

    /// Records that TCP is connected.
    pub fn handle_connected(&mut self, now: Instant) {
        match self.terms.common.psk {
            Some(_) => {
                self.stage = ChannelStage::Securing { deadline: deadline(now, HANDSHAKE_LIMIT) }
            }
            None => self.handle_secured(now),
        }
    }

    /// The TLS PSK, while TLS must be established before anything else is sent.
    pub(crate) fn psk(&self) -> Option<&TlsPsk> {
        self.terms
            .common
            .psk
            .as_ref()
            .filter(|_| matches!(self.stage, ChannelStage::Securing { .. }))
    }

    /// Records that TLS is established, or is not used.
    pub(crate) fn handle_secured(&mut self, now: Instant) {
        let options = HostOptions {
            digests: self.terms.common.digests,
            may_decline: self.terms.common.digests != self.terms.common.required,
            max_outstanding: self.terms.num_entries - 1,
            ic_timeout: self.terms.common.io_timeout,
            io_timeout: self.terms.common.io_timeout,
            least_progress_bytes: self.terms.common.least_progress_bytes,
        };
        self.stage = ChannelStage::Initialising;
        self.connection = Some(Box::new(Connection::new(now, &options)));
    }

    /// The connection that transfers its bytes; `None` before TCP is connected and TLS established.
    pub fn connection(&mut self) -> Option<&mut Connection<Payload<B>>> {
        self.connection.as_deref_mut()
    }

    /// Returns whether TCP is not connected yet.
    pub fn is_opening(&self) -> bool {
        matches!(self.stage, ChannelStage::Opening { .. })
    }

    /// Returns whether there are bytes to send.
    pub fn wants_transmit(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| connection.wants_transmit())
    }

    /// Returns whether there are bytes to send, or TCP is not connected yet.
    pub(crate) fn wants_writable(&self) -> bool {
        self.is_opening() || self.wants_transmit()
    }

    /// Handles timeouts; an early call does nothing.
    ///
    /// # Errors
    /// A deadline has passed: the channel has failed.
    pub fn handle_timeout(&mut self, now: Instant) -> Result<(), Failure> {
        match (&mut self.connection, self.stage) {
            (Some(connection), _) => Ok(connection.handle_timeout(now)?),
            (None, ChannelStage::Opening { deadline }) if now >= deadline => {
                let message = format!("no answer within {:?}", self.terms.common.tcp_timeout);
                Err(Failure::new(ErrorKind::TimedOut, message))
            }
            (None, ChannelStage::Securing { deadline }) if now >= deadline => {
                let message = format!("not established within {HANDSHAKE_LIMIT:?}");
                Err(Failure::new(ErrorKind::TimedOut, message).hint(NO_TLS))
            }
            (None, _) => Ok(()),
        }
    }

    /// The time at which to call [`Channel::handle_timeout`]; may change after any call.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match (&self.connection, self.stage) {
            (Some(connection), _) => connection.poll_timeout(),
            (None, ChannelStage::Opening { deadline } | ChannelStage::Securing { deadline }) => {
                Some(deadline)
            }
            (None, _) => None,
        }
    }

    /// The next event. Afterwards there may be more to send.
    pub(crate) fn poll_event(&mut self, now: Instant) -> Option<Event<B>> {
        loop {
            let event = self.connection.as_mut()?.poll_event()?;
            let handled = match event {
                host::Event::Done { payload: Payload::Own(payload), result } => {
                    return Some(Event::Done { payload, result });
                }
                host::Event::Done { payload: Payload::Connect(_), result } => {
                    self.handle_answer(now, result)
                }
                host::Event::Done { payload: Payload::Authentication(message), result } => {
                    self.handle_message(now, &message, result)
                }
                host::Event::Initialised => self.send_connect(now).map(|()| None),
            };
            match handled {
                Ok(None) => {}
                Ok(event) => return event,
                Err(failure) => return Some(Event::Failed { failure, refused: false }),
            }
        }
    }

    /// Sends Connect on the initialised connection.
    fn send_connect(&mut self, now: Instant) -> Result<(), Failure> {
        let Channel { terms, stage, connection: Some(connection), .. } = self else {
            return Ok(());
        };
        if connection.failed().is_some() {
            return Ok(()); // transferring its bytes reports the failure
        }
        let granted = connection.digests();
        let required = terms.common.required;
        if required.header && !granted.header || required.data && !granted.data {
            return Err(ProtocolError::DigestDeclined.into());
        }
        let ConnectTerms { common: Terms { host, subnqn, .. }, cntlid, .. } = &**terms;
        let data = Box::new(ConnectData::new(host.id, *cntlid, subnqn, &host.nqn));
        let kato_ms = u32::try_from(terms.common.keep_alive_tmo.as_millis()).unwrap_or(u32::MAX);
        let sqe = Sqe::connect(0, terms.qid, terms.num_entries - 1, kato_ms);
        *stage = ChannelStage::Connecting;
        let taken = connection.submit(now, sqe, Transfer::Out, false, Payload::Connect(data));
        taken
            .map_err(|_| Failure::new(ErrorKind::Disconnected, "a new connection takes no command"))
    }

    /// Handles the completion of Connect; returns the event that it causes, if any.
    fn handle_answer(
        &mut self,
        now: Instant,
        result: Result<Cqe, CommandError>,
    ) -> Result<Option<Event<B>>, Failure> {
        let cqe = result
            .map_err(|error| Failure::new(ErrorKind::Corrupt, error.to_string()).at(CONNECT))?;
        if !cqe.status().is_success() {
            let refused = !cqe.status().is(Status::AUTHENTICATION_REQUIRED);
            let failure = refusal(&cqe, &self.terms.common.host.nqn).at(CONNECT);
            return Ok(Some(Event::Failed { failure, refused }));
        }
        let wanted = cqe.dw0.get() & (CONNECT_ATR | CONNECT_ASCR);
        let cntlid = (cqe.dw0.get() & 0xFFFF) as u16;
        let begun = Authentication::begin(&self.terms.common, wanted, cntlid);
        let Some((authentication, next)) = begun.map_err(|failure| failure.at(CONNECT))? else {
            self.stage = ChannelStage::Ready;
            return Ok(Some(Event::Ready { cntlid }));
        };
        self.stage = ChannelStage::Authenticating;
        self.authentication = Some(Box::new(authentication));
        self.continue_authentication(now, next)
    }

    /// Handles the completion of an authentication command; returns the event that it causes, if any.
    fn handle_message(
        &mut self,
        now: Instant,
        message: &[u8],
        result: Result<Cqe, CommandError>,
    ) -> Result<Option<Event<B>>, Failure> {
        let Some(authentication) = &mut self.authentication else { return Ok(None) };
        let next = authentication.answered(message, result);
        self.continue_authentication(now, next.map_err(|failure| failure.at(AUTHENTICATION))?)
    }

    /// Performs the authentication's next step. At the end of the authentication, returns the event for it.
    fn continue_authentication(
        &mut self,
        now: Instant,
        mut next: Next,
    ) -> Result<Option<Event<B>>, Failure> {
        let (Some(authentication), Some(connection)) =
            (&mut self.authentication, &mut self.connection)
        else {
            return Ok(None);
        };
        let (sqe, transfer, message) = loop {
            next = match next {
                Next::Compute(work) => authentication.host.computed(work.compute()),
                Next::Send(message) => {
                    let len = message.len() as u32;
                    break (Sqe::authentication_send(0, len), Transfer::Out, message);
                }
                Next::Receive => {
                    let room = vec![0; MESSAGE_ROOM_BYTES as usize];
                    let sqe = Sqe::authentication_receive(0, MESSAGE_ROOM_BYTES);
                    break (sqe, Transfer::In, room);
                }
                Next::Authenticated => {
                    let Authentication { host, cntlid, .. } = &**authentication;
                    let event = match host.generated_psk() {
                        Some(psk) => Event::Concatenated { psk },
                        None => Event::Ready { cntlid: *cntlid },
                    };
                    self.authentication = None;
                    self.stage = ChannelStage::Ready;
                    return Ok(Some(event));
                }
                Next::Failed(failed) => return Err(not_authenticated(&failed).at(AUTHENTICATION)),
            };
        };
        authentication.is_receiving = transfer == Transfer::In;
        let payload = Payload::Authentication(message);
        let taken = connection.submit(now, sqe, transfer, false, payload);
        taken
            .map(|()| None)
            .map_err(|_| Failure::new(ErrorKind::Disconnected, "the connection takes no command"))
    }

    /// Sets the length up to which write data are sent in the command capsule.
    pub(crate) fn set_max_in_capsule(&mut self, max_in_capsule: u32) {
        if let Some(connection) = &mut self.connection {
            connection.set_max_in_capsule(max_in_capsule);
        }
    }

    /// The negotiated digests; none before the connection is initialised.
    pub(crate) fn digests(&self) -> Digests {
        self.connection.as_ref().map_or(Digests::default(), |connection| connection.digests())
    }

    /// Returns whether commands can be submitted.
    pub fn has_room(&self) -> bool {
        self.stage == ChannelStage::Ready && self.connection.as_ref().is_some_and(|c| c.has_room())
    }

    /// Takes a command; see [`Connection::submit`].
    pub fn submit(
        &mut self,
        now: Instant,
        sqe: Sqe,
        transfer: Transfer,
        no_timeout: bool,
        payload: B,
    ) -> Result<(), B> {
        let Some(connection) =
            self.connection.as_mut().filter(|_| self.stage == ChannelStage::Ready)
        else {
            return Err(payload);
        };
        let taken = connection.submit(now, sqe, transfer, no_timeout, Payload::Own(payload));
        taken.map_err(|payload| payload.into_own().expect("the payload that was submitted"))
    }

    /// The payloads of outstanding commands.
    pub(crate) fn outstanding(&self) -> impl Iterator<Item = &B> {
        let payloads = self.connection.iter().flat_map(|connection| connection.payloads());
        payloads.filter_map(|payload| match payload {
            Payload::Own(payload) => Some(payload),
            Payload::Connect(_) | Payload::Authentication(_) => None,
        })
    }

    /// Returns whether a command with data for the controller is outstanding: then unsent bytes must be
    /// discarded when the socket closes.
    pub(crate) fn owes_data(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| connection.owes_data())
    }

    /// Abandons the channel; returns the payloads of outstanding commands, and the commands that have ended.
    /// Close the socket before using any of the payloads again.
    pub fn abandon(mut self) -> (Vec<B>, Vec<Ended<B>>) {
        let Some(mut connection) = self.connection.take() else { return (Vec::new(), Vec::new()) };
        let payloads = connection.abandon().into_iter().filter_map(Payload::into_own).collect();
        let events = std::iter::from_fn(|| connection.poll_event());
        let ended = events.filter_map(|event| match event {
            host::Event::Done { payload, result } => Some((payload.into_own()?, result)),
            host::Event::Initialised => None,
        });
        (payloads, ended.collect())
    }

    /// Adds a hint to an early failure: a target without room for a connection closes it before sending
    /// anything.
    pub fn explain(&self, failure: Failure) -> Failure {
        let is_early = matches!(self.stage, ChannelStage::Initialising);
        match failure.kind {
            ErrorKind::Disconnected if is_early => failure.hint(CLOSED_AT_ONCE),
            _ => failure,
        }
    }

    /// The name of the current step; `None` once the queue can be used.
    pub fn stage(&self) -> Option<&'static str> {
        match self.stage {
            ChannelStage::Opening { .. } => Some("TCP connect"),
            ChannelStage::Securing { .. } => Some("TLS handshake"),
            ChannelStage::Initialising => Some("initialising the connection"),
            ChannelStage::Connecting => Some(CONNECT),
            ChannelStage::Authenticating => {
                Some(self.authentication.as_ref().map_or(AUTHENTICATION, |a| a.host.stage()))
            }
            ChannelStage::Ready => None,
        }
    }
}

/// The failure for an error status of Connect, which named `host`.
fn refusal(cqe: &Cqe, host: &Nqn) -> Failure {
    let status = cqe.status();
    let invalid = InvalidParameter::from_wire(cqe.dw0.get());
    let answered = Failure::new(ErrorKind::Refused, format!("the controller answered {status}"));
    if status.is(Status::CONNECT_INVALID_HOST) {
        let message = format!(
            "the target does not allow this host ({host}): the controller answered {status}"
        );
        return Failure::new(ErrorKind::Refused, message).hint(NOT_ALLOWED);
    }
    if status.is(Status::CONNECT_CONTROLLER_BUSY) {
        return answered.hint(NO_CONTROLLER);
    }
    if status.is(Status::AUTHENTICATION_REQUIRED) {
        return authentication_required();
    }
    if status.is(Status::CONNECT_INVALID_PARAMETERS) {
        if (invalid.offset, invalid.in_data) == (ConnectData::SUBNQN_OFFSET, true) {
            let message = format!("the target has no such subsystem ({status})");
            return Failure::new(ErrorKind::NotFound, message).hint(LIST_SUBSYSTEMS);
        }
        let part = if invalid.in_data { "data" } else { "command" };
        let message = format!("{status}, offset {} of the {part}", invalid.offset);
        return Failure::new(ErrorKind::Refused, message).hint(LIST_SUBSYSTEMS);
    }
    answered
}

/// The secrets with which a host authenticates.
#[derive(Debug, Clone)]
pub struct Credentials {
    /// The host's secret.
    pub secret: Secret,
    /// The subsystem's secret, if the controller must authenticate too.
    pub ctrl_secret: Option<Secret>,
    /// True if the authentication of an admin queue generates the TLS PSK for all queues.
    pub concatenates: bool,
    /// Random numbers for one authentication.
    pub randomness: fn() -> DlfsResult<Randomness>,
}

/// An authentication in progress.
#[derive(Debug)]
struct Authentication {
    host: Host,
    /// The identifier of the controller that answered Connect.
    cntlid: u16,
    /// True if the outstanding command is Authentication Receive; false if it is Authentication Send.
    is_receiving: bool,
}

impl Authentication {
    /// Starts the authentication if the controller requires it; otherwise returns `None`. `wanted` has the bits
    /// [`CONNECT_ATR`] and [`CONNECT_ASCR`] of the controller's answer to Connect.
    ///
    /// # Errors
    /// The controller requires a secret or an option that this host lacks. This host requires the controller to
    /// authenticate, and the controller does not. There are no random numbers.
    fn begin(
        terms: &Terms,
        wanted: u32,
        cntlid: u16,
    ) -> Result<Option<(Authentication, Next)>, Failure> {
        let Some(credentials) = &terms.host.credentials else {
            return if wanted == 0 { Ok(None) } else { Err(authentication_required()) };
        };
        let is_secured = terms.psk.is_some();
        // With TLS on a generated PSK, both sides were authenticated before.
        let is_generated = credentials.concatenates && is_secured;
        if wanted & CONNECT_ASCR != 0 && !credentials.concatenates {
            let message = "the target requires TLS on keys of the authentication \
                           (secure channel concatenation)";
            return Err(Failure::new(ErrorKind::Refused, message).hint(CONCATENATE));
        }
        if wanted & (CONNECT_ATR | CONNECT_ASCR) == 0 {
            let is_needed = credentials.ctrl_secret.is_some() || credentials.concatenates;
            if is_generated || !is_needed {
                return Ok(None);
            }
            let message = "the controller does not authenticate, although it must";
            let hint = "it may be an impostor, or the target has no key for this host: \
                        give it one, or do not ask the controller to prove itself";
            return Err(Failure::new(ErrorKind::Refused, message).hint(hint));
        }
        let Credentials { secret, ctrl_secret, randomness, .. } = credentials;
        let concatenates = credentials.concatenates && !is_secured;
        let randomness = randomness().map_err(|error| {
            Failure::new(error.kind(), format!("no random numbers for the authentication: {error}"))
        })?;
        let host_terms = HostTerms {
            hostnqn: terms.host.nqn.clone(),
            subnqn: terms.subnqn.clone(),
            secret: secret.clone(),
            ctrl_secret: ctrl_secret.clone(),
            hashes: Hash::ALL.to_vec(),
            groups: GROUPS.to_vec(),
            concatenation: if concatenates { Concatenation::Required } else { Concatenation::No },
        };
        let tid = (randomness.sequence & 0xFFFF) as u16;
        let (host, next) = Host::new(host_terms, &randomness, tid);
        Ok(Some((Authentication { host, cntlid, is_receiving: false }, next)))
    }

    /// Handles the completion of the outstanding command; `message` is the data of that command.
    fn answered(
        &mut self,
        message: &[u8],
        result: Result<Cqe, CommandError>,
    ) -> Result<Next, Failure> {
        match result {
            Ok(cqe) if !cqe.status().is_success() => {
                let text = format!("the controller answered {}", cqe.status());
                // The target is busy authenticating other hosts.
                let kind = match cqe.status().retry_class() {
                    RetryClass::Retry => ErrorKind::Busy,
                    _ => ErrorKind::Refused,
                };
                return Err(Failure::new(kind, text));
            }
            Ok(_) => {}
            Err(error) => return Err(Failure::new(ErrorKind::Corrupt, error.to_string())),
        }
        Ok(if self.is_receiving { self.host.handle(message) } else { self.host.sent() })
    }
}

/// The failure if the target requires authentication and this host has no secret.
fn authentication_required() -> Failure {
    Failure::new(ErrorKind::Refused, "the target requires authentication")
        .hint("give this host's key: --dhchap-secret FILE, or dhchap_secret in Rust, C and Python")
}

/// The failure of an authentication.
fn not_authenticated(failed: &Failed) -> Failure {
    let hint =
        "check that both sides have the same key for this host's NQN and the subsystem's NQN";
    Failure::new(ErrorKind::Refused, failed.to_string()).hint(hint)
}

/// The hint when a target requires keys of TLS that an authentication generates.
const CONCATENATE: &str = "give --concat, or concat in Rust, C and Python";

/// The hint when a target does not allow the host.
const NOT_ALLOWED: &str = "have this NQN added to the target's hosts file or --allow-host, or give another with \
    --hostnqn; a target that requires TLS, or has a TLS key for this host, needs it: --tls-key (hostnqn and tls_key in \
    Rust, C and Python)";

/// The hint when a target has no controller left.
const NO_CONTROLLER: &str = "the target has as many controllers as it allows, of all hosts or of this address: \
    close what is not in use, or raise its limits (dlfs serve --max-controllers and \
    --max-controllers-per-address); its log says which was reached";

/// The hint when a target closes the connection before it sends anything.
const CLOSED_AT_ONCE: &str = "either no NVMe/TCP target listens there, or it has no place for this host: see \
    its log (dlfs serve --max-connections and --max-connections-per-address are such limits)";

/// The hint when a target does not answer TLS.
const NO_TLS: &str =
    "does the target have a TLS key for this host? A target without any offers no TLS";

/// The hint for an NQN that the target does not know.
const LIST_SUBSYSTEMS: &str = "check the subsystem NQN in the address: `dlfs discover HOST:PORT` lists those that the \
     target offers to this host";

/// The name of the command in failures.
const CONNECT: &str = "Connect";

/// The name of the authentication in failures.
const AUTHENTICATION: &str = "authentication";

/// DH groups that the host offers, in the order of its preference. The controller chooses.
const GROUPS: [Group; 3] = [Group::Ffdhe3072, Group::Ffdhe2048, Group::Null];

/// The room for a message of the controller: more than any message needs.
const MESSAGE_ROOM_BYTES: u32 = 4096;

#[cfg(test)]
mod tests;
