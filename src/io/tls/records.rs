//! The records of an established session (RFC 8446, 5), without a copy of their contents: plaintext is sealed from
//! where it lies, and opened to where it belongs. OpenSSL's own records cost two copies in each direction.
//!
//! The keys follow from the secrets of the handshake. The other side may change its keys (KeyUpdate); this side does so
//! only when asked, since not every peer can follow.

use std::io::{IoSlice, IoSliceMut};

use zeroize::Zeroizing;

use super::ciphertext::{APPLICATION_DATA, HEADER_LEN, Outgoing};
use super::openssl::{Cipher, Secrets, TAG_LEN};
use super::{RECORD_LEN_BYTES, TlsError};
use dlfs_nvme::auth::Hash;

/// Both directions of an established session.
pub(super) struct Records {
    /// True on the host's side.
    is_host: bool,
    receiving: Direction,
    sending: Direction,
    /// Opened plaintext that the caller had no room for; the first `leftover_read` bytes have been read since.
    leftover: Vec<u8>,
    leftover_read: usize,
}

/// The records in one direction.
struct Direction {
    cipher: Cipher,
    /// True if this side sends in this direction.
    seals: bool,
    iv: [u8; IV_LEN],
    /// The number of the next record.
    sequence: u64,
    /// The traffic secret, from which the keys and the next secret follow.
    secret: Zeroizing<Vec<u8>>,
}

impl Records {
    /// Derives the keys of both directions from the secrets of the host and of the controller.
    ///
    /// # Errors
    /// OpenSSL has given no secrets, or has no memory.
    pub(super) fn new([host, controller]: Secrets, is_host: bool) -> Result<Records, TlsError> {
        let missing = || TlsError::Failed("OpenSSL gives no secrets".to_owned());
        let host = Direction::new(host.ok_or_else(missing)?, is_host)?;
        let controller = Direction::new(controller.ok_or_else(missing)?, !is_host)?;
        let (receiving, sending) = if is_host { (controller, host) } else { (host, controller) };
        Ok(Records { is_host, receiving, sending, leftover: Vec::new(), leftover_read: 0 })
    }

    /// Takes the first `len` bytes from `slices`, seals them, and appends the records to `outgoing`.
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

    /// Moves the leftover into `into`, as far as there is room; returns the number of bytes.
    pub(super) fn take_leftover(&mut self, into: &mut &mut [IoSliceMut<'_>]) -> usize {
        let begin = self.leftover_read;
        while let Some(slice) = into.first_mut()
            && self.leftover_read < self.leftover.len()
        {
            let len = slice.len().min(self.leftover.len() - self.leftover_read);
            slice[..len]
                .copy_from_slice(&self.leftover[self.leftover_read..self.leftover_read + len]);
            self.leftover_read += len;
            IoSliceMut::advance_slices(into, len);
        }
        let taken = self.leftover_read - begin;
        if self.leftover_read == self.leftover.len() {
            (self.leftover, self.leftover_read) = (Vec::new(), 0); // an idle session keeps no memory
        }
        taken
    }

    /// Opens a record into `into`, and the end of its contents, for which there is no room, into the leftover; returns
    /// the number of bytes in `into`. The leftover must be empty before.
    ///
    /// # Errors
    /// The record is not authentic, or ends the session.
    pub(super) fn open(
        &mut self,
        record: &[u8],
        into: &mut &mut [IoSliceMut<'_>],
        outgoing: &mut Outgoing,
    ) -> Result<usize, TlsError> {
        let (content, kind) = self.receiving.open(record, into, &mut self.leftover)?;
        if kind != APPLICATION_DATA {
            return self.open_rare(record, outgoing).map(|()| 0);
        }
        self.receiving.sequence += 1;
        let filled = content - self.leftover.len();
        IoSliceMut::advance_slices(into, filled);
        Ok(filled)
    }

    /// Opens a record that is padded or holds no data. Such a record is opened again, into memory of its own, and its
    /// data become the leftover.
    fn open_rare(&mut self, record: &[u8], outgoing: &mut Outgoing) -> Result<(), TlsError> {
        let mut plain = std::mem::take(&mut self.leftover);
        let (_, mut kind) = self.receiving.open(record, &mut [], &mut plain)?;
        self.receiving.sequence += 1;
        while kind == 0 {
            kind = plain.pop().ok_or(TlsError::BadRecord)?;
        }
        match (kind, &plain[..]) {
            (APPLICATION_DATA, _) => self.leftover = plain,
            (ALERT, [_, 0]) => return Err(TlsError::Closed),
            (ALERT, [_, number]) => return Err(TlsError::Alert { number: *number }),
            (HANDSHAKE, messages) => self.take_messages(messages, outgoing)?,
            _ => return Err(TlsError::BadRecord),
        }
        Ok(())
    }

    /// Handles the messages that may follow a handshake; a message that spans records is refused.
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
    /// Derives the keys of a traffic secret (RFC 8446, 7.3).
    fn new(secret: Zeroizing<Vec<u8>>, seals: bool) -> Result<Direction, TlsError> {
        let key_len = if secret.len() == Hash::Sha256.len_bytes() { 16 } else { 32 }; // AES-128 or AES-256
        let cipher = Cipher::new(&expand_label(&secret, "key", key_len), seals)?;
        let mut iv = [0; IV_LEN];
        iv.copy_from_slice(&expand_label(&secret, "iv", IV_LEN));
        Ok(Direction { cipher, seals, iv, sequence: 0, secret })
    }

    /// Changes to the next keys (RFC 8446, 7.2).
    fn update(&mut self) -> Result<(), TlsError> {
        let secret = expand_label(&self.secret, "traffic upd", self.secret.len());
        *self = Direction::new(secret, self.seals)?;
        Ok(())
    }

    /// Begins the next record: its nonce is the IV and the record's number (RFC 8446, 5.3).
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

/// HKDF-Expand-Label without a context (RFC 8446, 7.1), of at most the length of a hash. The length of `secret` says
/// which hash.
fn expand_label(secret: &[u8], label: &str, len: usize) -> Zeroizing<Vec<u8>> {
    let is_long = secret.len() == Hash::Sha384.len_bytes();
    let hash = if is_long { Hash::Sha384 } else { Hash::Sha256 };
    let [high, low] = (len as u16).to_be_bytes();
    let head = [high, low, (LABEL.len() + label.len()) as u8];
    let block = hash.hmac(secret, &[&head, LABEL, label.as_bytes(), &[0, 1]]);
    Zeroizing::new(block.as_ref()[..len].to_vec())
}

/// The beginning of every label of TLS 1.3.
const LABEL: &[u8] = b"tls13 ";
/// Length of an IV and of a nonce, in bytes.
const IV_LEN: usize = 12;

// Content types and message types (RFC 8446, B.1 and B.3).
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;

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
        len += by.take_leftover(slices);
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
