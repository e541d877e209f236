//! A TLS session, from the first message of its handshake to its last record.

use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

use super::ciphertext::{Incoming, Outgoing};
use super::openssl::{Handshake, Side};
use super::records::Records;
use super::{Keys, TlsError};
use dlfs_nvme::auth::TlsPsk;

/// One side of a TLS session. It owns no socket and reads no clock.
///
/// Lend received ciphertext with [`Session::give`]. Call [`Session::handshake`] until the session is
/// established, and afterwards [`Session::open`] until it needs more ciphertext; then take the memory back. After
/// each of these calls and after [`Session::seal`], send [`Session::outgoing`]. The first error ends the session.
pub struct Session {
    phase: Phase,
    incoming: Incoming,
    outgoing: Outgoing,
    /// On a controller, the identity of the host's key once the session is established; otherwise `None`.
    identity: Option<String>,
}

/// The progress of a session.
enum Phase {
    Handshake(Handshake),
    Established(Box<Records>),
}

impl Session {
    /// Creates the host's side, which offers only this PSK and its cipher suite. Its first message is ready to
    /// send after [`Session::handshake`].
    ///
    /// # Errors
    /// `NoLibrary`. OpenSSL refuses: a system policy forbids an algorithm that NVMe/TCP needs, or there is no memory.
    pub fn host(psk: &TlsPsk) -> Result<Session, TlsError> {
        Session::new(Side::Host(psk.clone()))
    }

    /// Creates the controller's side, for hosts that have one of `keys`.
    ///
    /// # Errors
    /// As [`Session::host`].
    pub fn controller(keys: Arc<dyn Keys>) -> Result<Session, TlsError> {
        Session::new(Side::Controller(keys))
    }

    fn new(side: Side) -> Result<Session, TlsError> {
        let phase = Phase::Handshake(Handshake::new(side)?);
        let incoming = Incoming::default();
        Ok(Session { phase, incoming, outgoing: Outgoing::default(), identity: None })
    }

    /// Continues the handshake; returns whether the session is established.
    ///
    /// # Errors
    /// The two sides have no common PSK, the other side ended the handshake or does not speak TLS, or OpenSSL fails.
    /// The outgoing bytes may hold an alert.
    pub fn handshake(&mut self) -> Result<bool, TlsError> {
        let Phase::Handshake(handshake) = &mut self.phase else { return Ok(true) };
        while !handshake.step(|bytes| self.outgoing.put(bytes))? {
            let Some(record) = self.incoming.record()? else { return Ok(false) };
            handshake.put(&record)?;
        }
        let (secrets, identity) = handshake.results();
        let records = Records::new(secrets, handshake.is_host())?;
        self.identity = identity;
        self.phase = Phase::Established(Box::new(records));
        Ok(true)
    }

    /// Returns whether the handshake has succeeded.
    pub fn is_established(&self) -> bool {
        matches!(self.phase, Phase::Established(_))
    }

    /// On a controller, the identity of the host's key once the session is established; otherwise `None`.
    pub fn identity(&self) -> Option<&str> {
        self.identity.as_deref()
    }

    /// Lends memory whose first `len` bytes are ciphertext that has been received.
    ///
    /// # Panics
    /// Ciphertext that was given before has not been read to its end.
    pub fn give(&mut self, memory: Vec<u8>, len: usize) {
        self.incoming.give(memory, len);
    }

    /// Takes the lent memory back. Unread bytes are dropped, so leave some only after an error.
    pub fn take_back(&mut self) -> Vec<u8> {
        self.incoming.take_back()
    }

    /// Decrypts into `into`, one slice after the other; returns the number of bytes. If that is less than `into` has,
    /// more ciphertext is needed. Bytes of the slices beyond that number are void; after an error all bytes are.
    ///
    /// # Errors
    /// A record is not authentic, or the other side ended the session.
    pub fn open(&mut self, mut into: &mut [IoSliceMut<'_>]) -> Result<usize, TlsError> {
        let Phase::Established(records) = &mut self.phase else { return Ok(0) };
        IoSliceMut::advance_slices(&mut into, 0); // drops empty slices at the front
        let mut len = records.take_leftover(&mut into);
        while !into.is_empty() {
            let record = self.incoming.record().map_err(|_| TlsError::BadRecord)?;
            let Some(record) = record else { break };
            len += records.open(&record, &mut into, &mut self.outgoing)?;
            len += records.take_leftover(&mut into);
        }
        Ok(len)
    }

    /// Encrypts at most `most` bytes from the front of `slices`; returns their number. Afterwards the slices may have
    /// lost some of these bytes: make them anew.
    ///
    /// # Errors
    /// OpenSSL fails, such as for lack of memory.
    ///
    /// # Panics
    /// The session is not established.
    pub fn seal(&mut self, mut slices: &mut [IoSlice<'_>], most: usize) -> Result<usize, TlsError> {
        let Phase::Established(records) = &mut self.phase else {
            panic!("nothing is sealed before the session is established")
        };
        let len = slices.iter().map(|slice| slice.len()).sum::<usize>().min(most);
        records.seal(&mut slices, len, &mut self.outgoing)?;
        Ok(len)
    }

    /// Ciphertext to send.
    pub fn outgoing(&self) -> &[u8] {
        self.outgoing.bytes()
    }

    /// Reports that the first `len` bytes of [`Session::outgoing`] were sent.
    pub fn sent(&mut self, len: usize) {
        self.outgoing.sent(len);
    }

    /// Exchanges the memory for outgoing ciphertext, so that sessions can share it. Does nothing while there is
    /// ciphertext to send.
    pub fn swap_outgoing(&mut self, memory: &mut Vec<u8>) {
        self.outgoing.swap(memory);
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.is_established() { "established" } else { "in its handshake" };
        write!(f, "Session({state})")
    }
}
