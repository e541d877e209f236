//! Transfers bytes over TLS, as [`super`] does without TLS.
//!
//! Ciphertext is received into memory of the link. OpenSSL decrypts it into the buffers that the connection
//! names, mostly the buffers of reads.

use std::io::{IoSlice, IoSliceMut};
use std::time::Instant;

use rustix::io::Errno;
use socket2::Socket;

use super::{LinkError, call};
use crate::qpair::session::Failure;
use crate::qpair::session::connect::Payload;
use crate::qpair::tcp::TcpStats;
use crate::tls::{RECORD_LEN_BYTES, Session};
use dlfs_nvme::auth::TlsPsk;
use dlfs_nvme::tcp::budget::{HOST_RECEIVE_BYTES, HOST_RECEIVE_SLICES, HOST_SEND_SLICES};
use dlfs_nvme::tcp::host::Connection;

/// The TLS session of a socket.
pub(super) struct Secured {
    session: Session,
    /// Memory for received ciphertext.
    memory: Vec<u8>,
    /// Set if the handshake ended as it does when the target does not know the PSK identity.
    refuses_identity: bool,
}

impl Secured {
    pub(super) fn new(psk: &TlsPsk) -> Result<Secured, Failure> {
        let session = Session::host(psk).map_err(LinkError::Tls)?;
        Ok(Secured { session, memory: vec![0; MEMORY_LEN], refuses_identity: false })
    }

    /// Returns whether there is ciphertext to send.
    pub(super) fn has_outgoing(&self) -> bool {
        !self.session.outgoing().is_empty()
    }

    pub(super) fn refuses_identity(&self) -> bool {
        self.refuses_identity
    }

    /// Advances the handshake; returns whether it is complete. `is_ready`: the socket may have received data.
    pub(super) fn handshake(
        &mut self,
        socket: &Socket,
        is_ready: bool,
        receives: &mut TcpStats,
    ) -> Result<bool, LinkError> {
        let result = self.try_handshake(socket, is_ready, receives);
        self.refuses_identity = match &result {
            Err(LinkError::Tls(error)) => error.may_be_identity(),
            Err(LinkError::Closed | LinkError::Os(Errno::CONNRESET)) => true,
            _ => false,
        };
        result
    }

    fn try_handshake(
        &mut self,
        socket: &Socket,
        is_ready: bool,
        receives: &mut TcpStats,
    ) -> Result<bool, LinkError> {
        let mut result = self.session.handshake();
        self.flush(socket)?;
        while is_ready && result == Ok(false) {
            let Some(len) = self.read(socket, receives)? else { break };
            self.session.give(std::mem::take(&mut self.memory), len);
            result = self.session.handshake();
            self.memory = self.session.take_back();
            self.flush(socket)?; // also an alert with the reason of a failure
        }
        result.map_err(LinkError::Tls)
    }

    /// Receives ciphertext, up to the limit of one turn, and passes its plaintext to the connection.
    pub(super) fn receive<B: AsRef<[u8]> + AsMut<[u8]>>(
        &mut self,
        socket: &Socket,
        connection: &mut Connection<Payload<B>>,
        now: Instant,
        scratch: &mut [u8],
        receives: &mut TcpStats,
    ) -> Result<(), Failure> {
        let mut budget = HOST_RECEIVE_BYTES;
        while budget > 0 {
            let Some(len) = self.read(socket, receives)? else { return Ok(()) };
            let asked = self.memory.len();
            self.session.give(std::mem::take(&mut self.memory), len);
            let result = self.decrypt(connection, now, scratch);
            self.memory = self.session.take_back();
            result?;
            if len < asked {
                return Ok(()); // the socket is drained
            }
            budget = budget.saturating_sub(len);
        }
        Ok(())
    }

    /// Decrypts all available ciphertext into the buffers that the connection names.
    fn decrypt<B: AsRef<[u8]> + AsMut<[u8]>>(
        &mut self,
        connection: &mut Connection<Payload<B>>,
        now: Instant,
        scratch: &mut [u8],
    ) -> Result<(), Failure> {
        loop {
            let mut slices: [IoSliceMut<'_>; HOST_RECEIVE_SLICES] =
                std::array::from_fn(|_| IoSliceMut::new(&mut []));
            let used = connection.poll_receive(scratch, &mut slices);
            let asked: usize = slices[..used].iter().map(|slice| slice.len()).sum();
            let filled = self.session.open(&mut slices[..used]).map_err(LinkError::Tls)?;
            connection.handle_filled(now, scratch, filled)?;
            if filled < asked {
                return Ok(());
            }
        }
    }

    /// Sends queued bytes until the socket is full.
    pub(super) fn send<B: AsRef<[u8]> + AsMut<[u8]>>(
        &mut self,
        socket: &Socket,
        connection: &mut Connection<Payload<B>>,
        now: Instant,
    ) -> Result<(), LinkError> {
        while self.flush(socket)? && connection.wants_transmit() {
            let mut slices = [IoSlice::new(&[]); HOST_SEND_SLICES];
            let used = connection.poll_transmit(&mut slices);
            let sealed =
                self.session.seal(&mut slices[..used], SEAL_BYTES).map_err(LinkError::Tls)?;
            connection.transmitted(now, sealed);
        }
        Ok(())
    }

    /// Reads the socket once; `None`: no bytes are available.
    fn read(
        &mut self,
        socket: &Socket,
        receives: &mut TcpStats,
    ) -> Result<Option<usize>, LinkError> {
        let memory = &mut self.memory[..];
        receives.count(memory.len(), || rustix::io::read(socket, &mut *memory))
    }

    /// Sends ciphertext; returns whether all is sent.
    fn flush(&mut self, socket: &Socket) -> Result<bool, LinkError> {
        loop {
            let outgoing = self.session.outgoing();
            if outgoing.is_empty() {
                return Ok(true);
            }
            let flags = rustix::net::SendFlags::NOSIGNAL;
            let sent = call(outgoing.len(), || rustix::net::send(socket, outgoing, flags))?;
            let Some(len) = sent else { return Ok(false) };
            self.session.sent(len);
        }
    }
}

/// The most ciphertext of one receive: small enough to stay in the second-level cache.
const MEMORY_LEN: usize = 8 * RECORD_LEN_BYTES;

/// The most plaintext that is encrypted before it is sent.
const SEAL_BYTES: usize = 4 * RECORD_LEN_BYTES;
