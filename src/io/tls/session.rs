//! A TLS session: first its handshake, then its records.
//!
//! The records of an established session (RFC 8446, 5), without a copy of their contents: plaintext is sealed from
//! where it lies, and opened to where it belongs. OpenSSL's own records cost two copies in each direction.
//!
//! The keys follow from the secrets of the handshake. The other side may change its keys (KeyUpdate); this side does so
//! only when asked, since not every peer can follow.

use std::borrow::Cow;
use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

use zeroize::Zeroizing;

use super::openssl::{Cipher, Handshake, Secrets, Side, TAG_LEN};
use super::{Keys, RECORD_LEN_BYTES, TlsError};
use dlfs_nvme::auth::{Hash, TlsPsk};

/// One side of a TLS session. It owns no socket and reads no clock.
///
/// Lend received ciphertext with [`Session::give`]. Call [`Session::handshake`] until the session is
/// established, and afterwards [`Session::open`] until it needs more ciphertext; then take the memory back. After
/// each of these calls and after [`Session::seal`], send [`Session::outgoing`]. The first error ends the session.
pub struct Session {
    state: State,
    incoming: Incoming,
    outgoing: Outgoing,
    /// On a controller, the identity of the host's key.
    identity: Option<String>,
}

enum State {
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
        let state = State::Handshake(Handshake::new(side)?);
        let incoming = Incoming::default();
        Ok(Session { state, incoming, outgoing: Outgoing::default(), identity: None })
    }

    /// Continues the handshake; returns whether the session is established.
    ///
    /// # Errors
    /// The two sides have no common PSK, or the other side ended the handshake. The outgoing bytes may hold an
    /// alert.
    pub fn handshake(&mut self) -> Result<bool, TlsError> {
        let State::Handshake(handshake) = &mut self.state else { return Ok(true) };
        while !handshake.step(|bytes| self.outgoing.put(bytes))? {
            let Some(record) = self.incoming.record()? else { return Ok(false) };
            handshake.put(&record)?;
        }
        let (secrets, identity) = handshake.results();
        let records = Records::new(secrets, handshake.is_host())?;
        self.identity = identity;
        self.state = State::Established(Box::new(records));
        Ok(true)
    }

    /// Returns whether the handshake has succeeded.
    pub fn is_established(&self) -> bool {
        matches!(self.state, State::Established(_))
    }

    /// On a controller, the identity of the host's key once the session is established.
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
    /// more ciphertext is needed. The contents of the slices beyond that number, and after an error of all, are void.
    ///
    /// # Errors
    /// A record is not authentic, or the other side ended the session.
    pub fn open(&mut self, mut into: &mut [IoSliceMut<'_>]) -> Result<usize, TlsError> {
        let State::Established(records) = &mut self.state else { return Ok(0) };
        IoSliceMut::advance_slices(&mut into, 0); // without empty ones in front
        let mut len = records.take_rest(&mut into);
        while !into.is_empty() {
            let record = self.incoming.record().map_err(|_| TlsError::BadRecord)?;
            let Some(record) = record else { break };
            len += records.open(&record, &mut into, &mut self.outgoing)?;
            len += records.take_rest(&mut into);
        }
        Ok(len)
    }

    /// Encrypts at most `most` bytes from the front of `slices`, which it takes from there; returns their number.
    ///
    /// # Errors
    /// OpenSSL fails, such as for lack of memory.
    ///
    /// # Panics
    /// The session is not established.
    pub fn seal(&mut self, mut slices: &mut [IoSlice<'_>], most: usize) -> Result<usize, TlsError> {
        let State::Established(records) = &mut self.state else {
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

/// Both directions of an established session.
pub(super) struct Records {
    is_host: bool,
    receiving: Direction,
    sending: Direction,
    /// Plaintext for which there was no place; the bytes from `at` are unread.
    rest: Vec<u8>,
    at: usize,
}

/// The records in one direction.
struct Direction {
    cipher: Cipher,
    seals: bool,
    iv: [u8; 12],
    /// The number of the next record.
    sequence: u64,
    secret: Zeroizing<Vec<u8>>,
}

impl Records {
    /// # Errors
    /// OpenSSL has given no secrets, or has no memory.
    pub(super) fn new([host, controller]: Secrets, is_host: bool) -> Result<Records, TlsError> {
        let missing = || TlsError::Failed("OpenSSL gives no secrets".to_owned());
        let host = Direction::new(host.ok_or_else(missing)?, is_host)?;
        let controller = Direction::new(controller.ok_or_else(missing)?, !is_host)?;
        let (receiving, sending) = if is_host { (controller, host) } else { (host, controller) };
        Ok(Records { is_host, receiving, sending, rest: Vec::new(), at: 0 })
    }

    /// Seals the first `len` bytes of `slices`, and appends them to `outgoing`.
    pub(super) fn seal(
        &mut self,
        slices: &mut &mut [IoSlice<'_>],
        mut len: usize,
        outgoing: &mut Outgoing,
    ) -> Result<(), TlsError> {
        while len > 0 {
            let now = len.min(RECORD_LEN_BYTES);
            self.sending.seal(APPLICATION_DATA, slices, now, outgoing)?;
            IoSlice::advance_slices(slices, now);
            len -= now;
        }
        Ok(())
    }

    /// Moves what was left over into `into`; returns the number of bytes.
    pub(super) fn take_rest(&mut self, into: &mut &mut [IoSliceMut<'_>]) -> usize {
        let begin = self.at;
        while let Some(slice) = into.first_mut()
            && self.at < self.rest.len()
        {
            let len = slice.len().min(self.rest.len() - self.at);
            slice[..len].copy_from_slice(&self.rest[self.at..self.at + len]);
            self.at += len;
            IoSliceMut::advance_slices(into, len);
        }
        let taken = self.at - begin;
        if self.at == self.rest.len() {
            (self.rest, self.at) = (Vec::new(), 0); // an idle session keeps no memory
        }
        taken
    }

    /// Opens a record into `into`, and the end of its contents into the rest; returns the number of bytes in `into`.
    /// Nothing may be left over from before.
    ///
    /// # Errors
    /// The record is not authentic, or ends the session.
    pub(super) fn open(
        &mut self,
        record: &[u8],
        into: &mut &mut [IoSliceMut<'_>],
        outgoing: &mut Outgoing,
    ) -> Result<usize, TlsError> {
        let (content, kind) = self.receiving.open(record, into, &mut self.rest)?;
        if kind != APPLICATION_DATA {
            return self.take_rare(record, outgoing).map(|()| 0);
        }
        self.receiving.sequence += 1;
        let filled = content - self.rest.len();
        IoSliceMut::advance_slices(into, filled);
        Ok(filled)
    }

    /// Handles a record that is padded, or no data. It is opened again into memory of its own.
    fn take_rare(&mut self, record: &[u8], outgoing: &mut Outgoing) -> Result<(), TlsError> {
        let mut plain = std::mem::take(&mut self.rest);
        let (_, mut kind) = self.receiving.open(record, &mut [], &mut plain)?;
        self.receiving.sequence += 1;
        while kind == 0 {
            kind = plain.pop().ok_or(TlsError::BadRecord)?;
        }
        match (kind, &plain[..]) {
            (APPLICATION_DATA, _) => self.rest = plain,
            (ALERT, [_, 0]) => return Err(TlsError::Closed),
            (ALERT, [_, number]) => return Err(TlsError::Alert { number: *number }),
            (HANDSHAKE, messages) => self.take_messages(messages, outgoing)?,
            _ => return Err(TlsError::BadRecord),
        }
        Ok(())
    }

    /// Handles the messages that may follow a handshake. None of them spans records here.
    fn take_messages(
        &mut self,
        mut messages: &[u8],
        outgoing: &mut Outgoing,
    ) -> Result<(), TlsError> {
        let unexpected = || TlsError::Failed("unexpected handshake message".to_owned());
        while !messages.is_empty() {
            let (&[kind, a, b, c], rest) =
                messages.split_first_chunk::<4>().ok_or_else(unexpected)?;
            let len = u32::from_be_bytes([0, a, b, c]) as usize;
            let (message, rest) = rest.split_at_checked(len).ok_or_else(unexpected)?;
            messages = rest;
            match (kind, message) {
                (NEW_SESSION_TICKET, _) if self.is_host => {} // no session is resumed
                (KEY_UPDATE, [asks @ (0 | 1)]) if rest.is_empty() => {
                    self.receiving.update()?;
                    if *asks == 1 {
                        let answer = [IoSlice::new(&[KEY_UPDATE, 0, 0, 1, 0])];
                        self.sending.seal(HANDSHAKE, &answer, 5, outgoing)?;
                        self.sending.update()?;
                    }
                }
                _ => return Err(unexpected()),
            }
        }
        Ok(())
    }
}

impl Direction {
    fn new(secret: Zeroizing<Vec<u8>>, seals: bool) -> Result<Direction, TlsError> {
        let key_len = if secret.len() == Hash::Sha256.len_bytes() { 16 } else { 32 };
        let cipher = Cipher::new(&expand_label(&secret, "key", key_len), seals)?;
        let mut iv = [0; 12];
        iv.copy_from_slice(&expand_label(&secret, "iv", 12));
        Ok(Direction { cipher, seals, iv, sequence: 0, secret })
    }

    /// Changes to the next keys (RFC 8446, 7.2).
    fn update(&mut self) -> Result<(), TlsError> {
        let secret = expand_label(&self.secret, "traffic upd", self.secret.len());
        *self = Direction::new(secret, self.seals)?;
        Ok(())
    }

    fn begin(&mut self, header: &[u8]) -> Result<(), TlsError> {
        let mut nonce = self.iv;
        let sequence = self.sequence.to_be_bytes();
        nonce[4..].iter_mut().zip(sequence).for_each(|(byte, number)| *byte ^= number);
        self.cipher.begin(&nonce, header)
    }

    /// Appends one record with the first `len` bytes of `slices`.
    fn seal(
        &mut self,
        kind: u8,
        slices: &[IoSlice<'_>],
        len: usize,
        outgoing: &mut Outgoing,
    ) -> Result<(), TlsError> {
        let [high, low] = ((len + 1 + TAG_LEN) as u16).to_be_bytes();
        let header = [APPLICATION_DATA, 3, 3, high, low];
        let record = outgoing.room(HEADER_LEN + len + 1 + TAG_LEN);
        let (head, mut into) = record.split_at_mut(HEADER_LEN);
        head.copy_from_slice(&header);
        self.begin(&header)?;
        let mut left = len;
        for slice in slices {
            let from = &slice[..slice.len().min(left)];
            let (now, later) = into.split_at_mut(from.len());
            self.cipher.update(from, now)?;
            into = later;
            left -= from.len();
            if left == 0 {
                break;
            }
        }
        assert_eq!(left, 0, "there are as many bytes to seal");
        self.cipher.update(&[kind], &mut into[..1])?;
        into[1..].copy_from_slice(&self.cipher.tag()?);
        self.sequence += 1;
        outgoing.added(HEADER_LEN + len + 1 + TAG_LEN);
        Ok(())
    }

    /// Opens a record into `into`, and the end of its contents into `rest`; returns their length, and the last byte:
    /// the type, or 0 if the record is padded.
    fn open(
        &mut self,
        record: &[u8],
        into: &mut [IoSliceMut<'_>],
        rest: &mut Vec<u8>,
    ) -> Result<(usize, u8), TlsError> {
        let (header, sealed) = record.split_at(HEADER_LEN);
        let (sealed, tag) = sealed.split_last_chunk().ok_or(TlsError::BadRecord)?;
        let (kind, content) = sealed.split_last().ok_or(TlsError::BadRecord)?;
        if header[0] != APPLICATION_DATA || content.len() > RECORD_LEN_BYTES {
            return Err(TlsError::BadRecord);
        }
        self.begin(header)?;
        let mut from = content;
        for slice in into {
            let (now, later) = from.split_at(slice.len().min(from.len()));
            self.cipher.update(now, &mut slice[..now.len()])?;
            from = later;
            if from.is_empty() {
                break;
            }
        }
        rest.resize(from.len(), 0);
        self.cipher.update(from, rest)?;
        let mut opened = [0];
        self.cipher.update(&[*kind], &mut opened)?;
        if !self.cipher.has_tag(tag)? {
            return Err(TlsError::BadRecord);
        }
        Ok((content.len(), opened[0]))
    }
}

/// HKDF-Expand-Label without a context (RFC 8446, 7.1), of at most the length of a hash.
fn expand_label(secret: &[u8], label: &str, len: usize) -> Zeroizing<Vec<u8>> {
    let is_long = secret.len() == Hash::Sha384.len_bytes();
    let hash = if is_long { Hash::Sha384 } else { Hash::Sha256 };
    let [high, low] = (len as u16).to_be_bytes();
    let head = [high, low, (LABEL.len() + label.len()) as u8];
    let block = hash.hmac(secret, &[&head, LABEL, label.as_bytes(), &[0, 1]]);
    Zeroizing::new(block.as_ref()[..len].to_vec())
}

/// Received ciphertext, which is cut into records.
#[derive(Default)]
pub(super) struct Incoming {
    /// Lent memory with received bytes; the bytes from `at` to `end` are unread.
    memory: Vec<u8>,
    at: usize,
    end: usize,
    /// The beginning of a record whose end has not arrived.
    partial: Vec<u8>,
}

impl Incoming {
    pub(super) fn give(&mut self, memory: Vec<u8>, len: usize) {
        assert!(self.at == self.end && len <= memory.len(), "ciphertext is read to its end");
        (self.memory, self.at, self.end) = (memory, 0, len);
    }

    pub(super) fn take_back(&mut self) -> Vec<u8> {
        (self.at, self.end) = (0, 0);
        std::mem::take(&mut self.memory)
    }

    /// The next whole record.
    ///
    /// # Errors
    /// What has arrived is no record.
    pub(super) fn record(&mut self) -> Result<Option<Cow<'_, [u8]>>, TlsError> {
        if self.partial.is_empty() {
            let unread = &self.memory[self.at..self.end];
            if let Some(len) = record_len(unread)?.filter(|len| *len <= unread.len()) {
                self.at += len;
                return Ok(Some(Cow::Borrowed(&self.memory[self.at - len..self.at])));
            }
        }
        loop {
            let len = record_len(&self.partial)?;
            let missing = len.unwrap_or(HEADER_LEN) - self.partial.len();
            if missing == 0 {
                return Ok(Some(Cow::Owned(std::mem::take(&mut self.partial))));
            }
            let unread = &self.memory[self.at..self.end];
            if unread.is_empty() {
                return Ok(None);
            }
            let now = &unread[..missing.min(unread.len())];
            self.partial.reserve_exact(missing);
            self.partial.extend_from_slice(now);
            self.at += now.len();
        }
    }
}

/// Length of the record that begins with `bytes`, once its header is there.
fn record_len(bytes: &[u8]) -> Result<Option<usize>, TlsError> {
    let Some(&[kind, major, _, high, low]) = bytes.first_chunk::<5>() else { return Ok(None) };
    let len = usize::from(u16::from_be_bytes([high, low]));
    let is_record = (CHANGE_CIPHER_SPEC..=APPLICATION_DATA).contains(&kind)
        && major == 3
        && len <= RECORD_LEN_BYTES + MAX_EXPANSION;
    if is_record { Ok(Some(HEADER_LEN + len)) } else { Err(TlsError::NotTls) }
}

/// Ciphertext to send. Its memory is written before it is used, once.
#[derive(Default)]
pub(super) struct Outgoing {
    memory: Vec<u8>,
    /// The bytes from `sent` to `end` are to be sent.
    sent: usize,
    end: usize,
}

impl Outgoing {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.memory[self.sent..self.end]
    }

    /// Appends bytes.
    pub(super) fn put(&mut self, bytes: &[u8]) {
        self.room(bytes.len()).copy_from_slice(bytes);
        self.added(bytes.len());
    }

    /// Memory for the next `len` bytes, which [`Outgoing::added`] then appends.
    pub(super) fn room(&mut self, len: usize) -> &mut [u8] {
        if self.memory.len() < self.end + len {
            self.memory.resize(self.end + len, 0);
        }
        &mut self.memory[self.end..self.end + len]
    }

    pub(super) fn added(&mut self, len: usize) {
        self.end += len;
        assert!(self.end <= self.memory.len(), "added more than there was room for");
    }

    pub(super) fn sent(&mut self, len: usize) {
        self.sent += len;
        assert!(self.sent <= self.end, "sent more than there was");
        if self.sent == self.end {
            (self.sent, self.end) = (0, 0);
        }
    }

    pub(super) fn swap(&mut self, memory: &mut Vec<u8>) {
        if self.end == 0 {
            std::mem::swap(&mut self.memory, memory);
        }
    }
}

const LABEL: &[u8] = b"tls13 ";

// Content types and message types (RFC 8446, B.1 and B.3).
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;

/// Length of a record's header.
pub(super) const HEADER_LEN: usize = 5;

/// The most by which protection makes a record longer than its contents.
const MAX_EXPANSION: usize = 256;

// The first and the last content type (RFC 8446, B.1).
const CHANGE_CIPHER_SPEC: u8 = 20;
pub(super) const APPLICATION_DATA: u8 = 23;

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let of = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        (0..hex.len()).step_by(2).map(of).collect()
    }

    /// Secrets of RFC 8448, 3: `{client}` and `{server}` derive write traffic keys for application data.
    const CLIENT: &str = "9e40646ce79a7f9dc05af8889bce6552875afa0b06df0087f792ebb7c17504a5";
    const SERVER: &str = "a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643";

    fn both() -> [Records; 2] {
        let secrets = || [CLIENT, SERVER].map(|secret| Some(Zeroizing::new(bytes(secret))));
        [true, false].map(|is_host| Records::new(secrets(), is_host).unwrap())
    }

    /// A record of `kind` with these contents, as `from` sends it.
    fn sealed(from: &mut Records, kind: u8, contents: &[u8]) -> Vec<u8> {
        let mut outgoing = Outgoing::default();
        let slices = [IoSlice::new(contents)];
        from.sending.seal(kind, &slices, contents.len(), &mut outgoing).unwrap();
        outgoing.bytes().to_vec()
    }

    /// The contents that `by` reads of a record, and its answer.
    fn opened(by: &mut Records, record: &[u8]) -> Result<(Vec<u8>, Vec<u8>), TlsError> {
        let mut outgoing = Outgoing::default();
        let mut into = [0; 100];
        let slices = &mut &mut [IoSliceMut::new(&mut into)][..];
        let mut len = by.open(record, slices, &mut outgoing)?;
        len += by.take_rest(slices);
        Ok((into[..len].to_vec(), outgoing.bytes().to_vec()))
    }

    #[test]
    fn records_are_those_of_rfc_8448() {
        let [mut host, mut controller] = both();
        let payload: Vec<u8> = (0..50).collect();
        let record = sealed(&mut host, APPLICATION_DATA, &payload);
        let expected = "1703030043a23f7054b62c94d0affafe8228ba55cbefacea42f914aa66bcab3f2b9819a8a5b46b395bd54a9a20\
                        441e2b62974e1f5a6292a2977014bd1e3deae63aeebb21694915e4";
        assert_eq!(record, bytes(expected));
        assert_eq!(opened(&mut controller, &record).unwrap().0, payload);
        let ticket = sealed(&mut controller, HANDSHAKE, &[NEW_SESSION_TICKET, 0, 0, 1, 7]);
        let record = sealed(&mut controller, APPLICATION_DATA, &payload);
        let expected = "17030300432e937e11ef4ac740e538ad36005fc4a46932fc3225d05f82aa1b36e30efaf97d90e6dffc602dcb50\
                        1a59a8fcc49c4bf2e5f0a21c0047c2abf332540dd032e167c2955d";
        assert_eq!(record, bytes(expected));
        assert!(opened(&mut host, &ticket).unwrap().0.is_empty());
        assert_eq!(opened(&mut host, &record).unwrap().0, payload);
    }

    /// The expected record is of Python's `hmac` and `cryptography`.
    #[test]
    fn the_longer_hash_has_the_longer_key() {
        let secret: Zeroizing<Vec<u8>> = Zeroizing::new((0..48).collect());
        let secrets = [Some(secret.clone()), Some(secret)];
        let record = sealed(&mut Records::new(secrets, true).unwrap(), APPLICATION_DATA, b"dlfs");
        assert_eq!(record, bytes("17030300152c5b194f02709c3dcaafa407f4b82c58d18f067115"));
    }

    #[test]
    fn a_changed_bit_and_a_repeated_record_are_not_authentic() {
        let [mut host, mut controller] = both();
        let record = sealed(&mut host, APPLICATION_DATA, &[7; 40]);
        for bit in 0..8 * record.len() {
            let mut wrong = record.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            let error = opened(&mut controller, &wrong).unwrap_err();
            assert_eq!(error, TlsError::BadRecord, "bit {bit}");
            controller = both().into_iter().nth(1).unwrap();
        }
        opened(&mut controller, &record).unwrap();
        assert_eq!(opened(&mut controller, &record).unwrap_err(), TlsError::BadRecord);
    }

    #[test]
    fn padding_is_removed_and_padding_alone_is_refused() {
        let [mut host, mut controller] = both();
        for (contents, expected) in [(&[5, 6, 23, 0, 0][..], &[5, 6][..]), (&[23, 0], &[])] {
            let record = sealed(&mut host, 0, contents);
            assert_eq!(opened(&mut controller, &record).unwrap().0, expected);
        }
        let after = sealed(&mut host, APPLICATION_DATA, &[8]);
        assert_eq!(opened(&mut controller, &after).unwrap().0, [8]);
        let record = sealed(&mut host, 0, &[0, 0]);
        assert_eq!(opened(&mut controller, &record).unwrap_err(), TlsError::BadRecord);
    }

    #[test]
    fn the_other_side_changes_its_keys_and_has_them_changed() {
        let [mut host, mut controller] = both();
        for asks in [0, 1, 1] {
            let update = sealed(&mut host, HANDSHAKE, &[KEY_UPDATE, 0, 0, 1, asks]);
            host.sending.update().unwrap();
            let (read, answer) = opened(&mut controller, &update).unwrap();
            assert!(read.is_empty() && answer.is_empty() == (asks == 0));
            if asks == 1 {
                assert_eq!(opened(&mut host, &answer).unwrap(), (vec![], vec![]));
            }
            let record = sealed(&mut host, APPLICATION_DATA, &[1, 2, 3]);
            assert_eq!(opened(&mut controller, &record).unwrap().0, [1, 2, 3]);
            let record = sealed(&mut controller, APPLICATION_DATA, &[4, 5]);
            assert_eq!(opened(&mut host, &record).unwrap().0, [4, 5]);
        }
    }

    #[test]
    fn alerts_and_messages_out_of_place_end_the_session() {
        let cases: [(u8, &[u8]); 7] = [
            (ALERT, &[1, 0]),
            (ALERT, &[2, 20]),
            (ALERT, &[2]),
            (HANDSHAKE, &[NEW_SESSION_TICKET, 0, 0, 1, 7]),
            (HANDSHAKE, &[KEY_UPDATE, 0, 0, 1, 2]),
            (HANDSHAKE, &[KEY_UPDATE, 0, 0, 1, 0, KEY_UPDATE, 0, 0, 1, 0]),
            (HANDSHAKE, &[KEY_UPDATE, 0, 0]),
        ];
        let errors = cases.map(|(kind, contents)| {
            let [mut host, mut controller] = both();
            let record = sealed(&mut host, kind, contents);
            opened(&mut controller, &record).unwrap_err()
        });
        assert_eq!(errors[..2], [TlsError::Closed, TlsError::Alert { number: 20 }]);
        assert_eq!(errors[2], TlsError::BadRecord);
        assert!(errors[3..].iter().all(|error| matches!(error, TlsError::Failed(_))), "{errors:?}");
    }
}
