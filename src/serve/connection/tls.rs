//! TLS on a connection of a host: the handshake, and the encryption between protocol and socket.
//!
//! One port serves plain connections and TLS: the first byte that a host sends tells which. The handshake runs in the
//! poll loop without blocking. It looks the host's key up first, so a host without a valid key costs the parsing of one
//! message and no exponentiation. Buffers for ciphertext belong to the poller; a connection owns one only while its
//! host does not read.

use std::io::{IoSlice, IoSliceMut, Read as _};
use std::net::TcpStream;
use std::time::Instant;

use rustix::net::{SendFlags, send};

use super::{BROKE_PROTOCOL, Closed, HostConnection, MISCOUNTED, has_passed, is_transient};
use crate::access_log::WarningKind;
use crate::io::Backend;
use crate::stats::Counters;
use crate::subsystem::{Subsystem, TlsIdentity};
use dlfs_io::tls::{FIRST_BYTE, HANDSHAKE_LIMIT, Keys, RECORD_LEN_BYTES, Session, TlsError};
use dlfs_nvme::auth::{Derivation, IdentityParts, IdentityVersion, Origin, TlsPsk};
use dlfs_nvme::nvme::Nqn;
use dlfs_nvme::tcp::budget::{TARGET_RECEIVE_BYTES, TARGET_SEND_SLICES};

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

/// The transport of a connection: plain TCP, or TLS over it.
#[derive(Debug)]
pub(super) enum Transport {
    /// Nothing has been received yet.
    Unknown,
    Plain,
    Tls(Box<Secured>),
}

/// The TLS session of a connection, and the identity of its PSK.
#[derive(Debug)]
pub(super) struct Secured {
    session: Session,
    /// The identity of the PSK; `None` until the handshake is complete.
    identity: Option<TlsIdentity>,
}

impl HostConnection {
    /// Decides by the first received byte whether the host begins TLS; returns whether it does.
    /// A target without any TLS PSK takes every connection for a plain one.
    pub(super) fn begins_tls(&mut self, bytes: &[u8], backend: &Backend) -> Result<bool, Closed> {
        if bytes.first() != Some(&FIRST_BYTE) || !backend.subsystem.offers_tls() {
            self.transport = Transport::Plain;
            return Ok(false);
        }
        match Session::controller(backend.subsystem.clone()) {
            Ok(session) => {
                self.transport = Transport::Tls(Box::new(Secured { session, identity: None }));
                Ok(true)
            }
            Err(error) => Err(self.refuse_tls(&error, backend)),
        }
    }

    /// The identity of the PSK of the TLS session; `None` on a plain connection.
    pub(super) fn tls_identity(&self) -> Option<&TlsIdentity> {
        match &self.transport {
            Transport::Tls(secured) => secured.identity.as_ref(),
            Transport::Unknown | Transport::Plain => None,
        }
    }

    /// Bytes of ciphertext that wait to be sent.
    pub(super) fn sealed_bytes(&self) -> usize {
        match &self.transport {
            Transport::Tls(secured) => secured.session.outgoing().len(),
            Transport::Unknown | Transport::Plain => 0,
        }
    }

    /// Returns whether a handshake exceeds its time limit.
    pub(super) fn is_late_handshake(&self, now: Instant) -> bool {
        has_passed(now, self.opened, HANDSHAKE_LIMIT)
            && matches!(&self.transport, Transport::Tls(secured) if secured.identity.is_none())
    }

    /// Makes one receive call for ciphertext, and starts the commands that it brought.
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

    /// Handles the first `len` bytes of `scratch.sealed`, which were just received.
    pub(super) fn take_sealed(
        &mut self,
        len: usize,
        backend: &mut Backend,
        scratch: &mut Scratch,
    ) -> Result<(), Closed> {
        if self.discards_input() {
            return Ok(());
        }
        if let Transport::Tls(secured) = &mut self.transport {
            secured.session.give(std::mem::take(&mut scratch.sealed), len);
        }
        let result = self.shake_hands(backend).and_then(|is_established| {
            if is_established { self.open_all(backend, &mut scratch.plain) } else { Ok(()) }
        });
        if let Transport::Tls(secured) = &mut self.transport {
            scratch.sealed = secured.session.take_back();
        }
        result
    }

    /// Advances the handshake; returns whether it is complete.
    fn shake_hands(&mut self, backend: &Backend) -> Result<bool, Closed> {
        let Transport::Tls(secured) = &mut self.transport else { return Ok(false) };
        if secured.identity.is_some() {
            return Ok(true);
        }
        let error = match secured.session.handshake() {
            Ok(false) => return Ok(false),
            Ok(true) => {
                secured.identity = secured.session.identity().and_then(|text| {
                    let parts = IdentityParts::parse(text)?;
                    Some(TlsIdentity { text: text.to_owned(), parts })
                });
                match &secured.identity {
                    Some(identity) => {
                        let host = identity.parts.hostnqn.as_str();
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

    /// Logs a failed handshake, and tries to send the TLS alert to the host; returns the reason to close.
    fn refuse_tls(&mut self, error: &TlsError, backend: &Backend) -> Closed {
        let subsystem = &backend.subsystem;
        if let Transport::Tls(secured) = &mut self.transport {
            // The alert is optional: the connection closes either way.
            let _ = flush(&self.stream, &mut secured.session);
        }
        Counters::add(&subsystem.counters.refused, 1);
        let why = format_args!("TLS handshake: {error}");
        subsystem.warnings.warn(backend.now, WarningKind::NotAuthenticated, self.who(), why);
        NO_SESSION
    }

    /// Decrypts all received records. A command's data go straight into their buffer, other bytes through `plain`.
    fn open_all(&mut self, backend: &mut Backend, plain: &mut [u8]) -> Result<(), Closed> {
        let before = self.arrived();
        let mut opened = 0;
        let mut result = Ok(());
        while result.is_ok() && self.terminated.is_none() {
            let Transport::Tls(secured) = &mut self.transport else { break };
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

    /// Encrypts and sends the protocol's bytes, [`SEAL_BYTES`] at a time, until the socket is full or about `max` bytes
    /// are sent.
    pub(super) fn send_secured(
        &mut self,
        scratch: &mut Scratch,
        max: usize,
        now: Instant,
    ) -> Result<(), Closed> {
        let Transport::Tls(secured) = &mut self.transport else { return Ok(()) };
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

/// Sends the session's ciphertext; returns whether all of it is sent.
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
    /// The PSK with this identity, which must name this subsystem or the discovery service. A generated PSK is found
    /// while it is valid. Of configured PSKs, a version 1 identity determines the PSK and its derivation. A version 0
    /// identity names only a hash: the host's first PSK with that hash is taken, and derived as the options say.
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

/// Maximum ciphertext of one receive call.
const SEALED_LEN: usize = 8 * RECORD_LEN_BYTES;

/// Plaintext encrypted per send call: little enough to stay in the second-level cache.
const SEAL_BYTES: usize = 4 * RECORD_LEN_BYTES;
const NO_SESSION: Closed = Closed::Dropped("no TLS session was established, or it broke");
pub(super) const LATE_HANDSHAKE: Closed = Closed::Dropped("no TLS handshake succeeded in time");
