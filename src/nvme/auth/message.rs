//! The messages of DH-HMAC-CHAP in wire format.
//!
//! | message   | direction          | type, id | from byte 6                                            |
//! |-----------|--------------------|----------|--------------------------------------------------------|
//! | Negotiate | host to controller | 00, 00   | SC_C, NAPD, then 64-byte descriptors, see below        |
//! | Challenge | controller to host | 01, 01   | HL, 0, HASHID, DHGID, DHVLEN, SEQNUM, C1, DH value     |
//! | Reply     | host to controller | 01, 02   | HL, 0, CVALID, 0, DHVLEN, SEQNUM, R1, C2, DH value     |
//! | Success1  | controller to host | 01, 03   | HL, 0, RVALID, 0 (7), R2 if RVALID                     |
//! | Success2  | host to controller | 01, 04   | 0 (10)                                                 |
//! | Failure1  | controller to host | 00, F1   | reason 1, explanation                                  |
//! | Failure2  | host to controller | 00, F0   | reason 1, explanation                                  |
//!
//! 0 is a zero byte, and 0 (7) seven of them. A descriptor is AUTHID, 0, HALEN, DHLEN, 30 bytes of hashes, 30
//! bytes of groups.
//!
//! Each message begins with its type, its identifier, two reserved bytes, and the transaction identifier;
//! numbers are little-endian (NVM Express Base Specification 2.1, 8.3.5.3 and 8.3.5.5). Zeros may follow a
//! message, since the host does not know its length when it sends Authentication Receive.

use std::fmt;

/// A message of either side.
#[derive(Clone, PartialEq, Eq)]
pub enum Message {
    /// The host offers hashes and groups, preferred first.
    Negotiate {
        /// Secure channel concatenation: 0 none, 2 with a new TLS PSK.
        sc_c: u8,
        /// Identifiers of hashes; empty if DH-HMAC-CHAP is not among the protocols.
        hashes: Vec<u8>,
        /// Identifiers of groups.
        groups: Vec<u8>,
    },
    /// The controller chooses, and challenges the host.
    Challenge {
        /// The chosen hash.
        hash: u8,
        /// The chosen group.
        group: u8,
        /// Sequence number of the challenge.
        sequence: u32,
        /// C1.
        challenge: Vec<u8>,
        /// g^x mod p; empty without a group.
        dh: Vec<u8>,
    },
    /// The host responds, and may challenge the controller.
    Reply {
        /// R1.
        response: Vec<u8>,
        /// CVALID: `challenge` holds a challenge.
        cvalid: bool,
        /// Sequence number of `challenge`. 0: the controller does not answer the challenge, which only
        /// serves to derive the TLS PSK.
        sequence: u32,
        /// C2, as long as `response`.
        challenge: Vec<u8>,
        /// g^y mod p; empty without a group.
        dh: Vec<u8>,
    },
    /// The controller accepts the host.
    Success1 {
        /// Length of the hash's values in bytes. Linux's host requires it even without R2.
        hl: u8,
        /// R2, if the host asked for it.
        response: Option<Vec<u8>>,
    },
    /// The host accepts the controller.
    Success2,
    /// The controller ends the authentication.
    Failure1 {
        /// The reason.
        explanation: Explanation,
    },
    /// The host ends the authentication.
    Failure2 {
        /// The reason.
        explanation: Explanation,
    },
}

/// The reason why a side ends an authentication (AUTH_Failure reason code explanation).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Explanation {
    /// 1: the response is wrong.
    #[error("authentication failed")]
    AuthenticationFailed,
    /// 2: no protocol in common.
    #[error("authentication protocol not usable")]
    ProtocolNotUsable,
    /// 3: the sides disagree on secure channel concatenation.
    #[error("secure channel concatenation mismatch")]
    ConcatenationMismatch,
    /// 4: no hash in common.
    #[error("hash function not usable")]
    HashNotUsable,
    /// 5: no group in common.
    #[error("Diffie-Hellman group not usable")]
    GroupNotUsable,
    /// 6: a message's fields are wrong.
    #[error("incorrect payload")]
    IncorrectPayload,
    /// 7: another message was expected.
    #[error("incorrect protocol message")]
    IncorrectMessage,
    /// A code that this release does not know.
    #[error("explanation {0:#04x}")]
    Other(u8),
}

impl Explanation {
    /// The explanations that the specification defines, in the order of their codes, from 1.
    const KNOWN: [Explanation; 7] = [
        Explanation::AuthenticationFailed,
        Explanation::ProtocolNotUsable,
        Explanation::ConcatenationMismatch,
        Explanation::HashNotUsable,
        Explanation::GroupNotUsable,
        Explanation::IncorrectPayload,
        Explanation::IncorrectMessage,
    ];

    fn from_wire(byte: u8) -> Explanation {
        let known = usize::from(byte).checked_sub(1).and_then(|at| Explanation::KNOWN.get(at));
        known.copied().unwrap_or(Explanation::Other(byte))
    }

    /// The code on the wire.
    fn to_wire(self) -> u8 {
        match self {
            Explanation::Other(byte) => byte,
            _ => {
                let at = Explanation::KNOWN.iter().position(|&known| known == self);
                at.map_or(0, |at| at as u8 + 1)
            }
        }
    }
}

/// Reasons why bytes are not a valid message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The bytes end before the message does.
    #[error("the message is cut off")]
    Short,
    /// No message has this type and identifier.
    #[error("no message has type {0:#04x} and identifier {1:#04x}")]
    Unknown(u8, u8),
    /// A field has an invalid value.
    #[error("the field {0} has an invalid value")]
    Field(&'static str),
}

impl Message {
    /// The message's name.
    pub fn name(&self) -> &'static str {
        self.kind().0
    }

    /// The name, the type and the identifier.
    fn kind(&self) -> (&'static str, u8, u8) {
        match self {
            Message::Negotiate { .. } => ("Negotiate", COMMON, 0x00),
            Message::Challenge { .. } => ("Challenge", DH_HMAC_CHAP, 0x01),
            Message::Reply { .. } => ("Reply", DH_HMAC_CHAP, 0x02),
            Message::Success1 { .. } => ("Success1", DH_HMAC_CHAP, 0x03),
            Message::Success2 => ("Success2", DH_HMAC_CHAP, 0x04),
            Message::Failure1 { .. } => ("Failure1", COMMON, 0xF1),
            Message::Failure2 { .. } => ("Failure2", COMMON, 0xF0),
        }
    }

    /// Encodes the message in the transaction `tid`.
    pub fn encode(&self, tid: u16) -> Vec<u8> {
        let (_, kind, id) = self.kind();
        let [low, high] = tid.to_le_bytes();
        let mut bytes = vec![kind, id, 0, 0, low, high];
        match self {
            Message::Negotiate { sc_c, hashes, groups } => {
                assert!(hashes.len() <= 30 && groups.len() <= 30, "there are not as many");
                bytes.extend([*sc_c, 1, AUTHID_DH_HMAC_CHAP, 0]);
                bytes.extend([hashes.len() as u8, groups.len() as u8]);
                bytes.extend(hashes);
                bytes.resize(NEGOTIATE_HEAD + 4 + 30, 0);
                bytes.extend(groups);
                bytes.resize(NEGOTIATE_HEAD + DESCRIPTOR_LEN, 0);
            }
            Message::Challenge { hash, group, sequence, challenge, dh } => {
                put_values(&mut bytes, [*hash, *group], *sequence, &[challenge], dh);
            }
            Message::Reply { response, cvalid, sequence, challenge, dh } => {
                assert_eq!(response.len(), challenge.len(), "both have the hash's length");
                let flags = [u8::from(*cvalid), 0];
                put_values(&mut bytes, flags, *sequence, &[response, challenge], dh);
            }
            Message::Success1 { hl, response } => {
                let response = response.as_deref().unwrap_or_default();
                assert!(
                    response.is_empty() || response.len() == usize::from(*hl),
                    "R2 is a value of the hash"
                );
                bytes.extend([*hl, 0, u8::from(!response.is_empty())]);
                bytes.resize(HEAD, 0);
                bytes.extend(response);
            }
            Message::Success2 => bytes.resize(HEAD, 0),
            Message::Failure1 { explanation } | Message::Failure2 { explanation } => {
                bytes.extend([REASON_FAILED, explanation.to_wire()]);
            }
        }
        bytes
    }

    /// Decodes the message at the start of `bytes`; also returns its transaction identifier.
    ///
    /// # Errors
    /// The bytes are no message, or its fields contradict each other. Whether the fields match what the
    /// sides agreed on is not checked here.
    pub fn decode(bytes: &[u8]) -> Result<(u16, Message), MessageError> {
        let mut rest = Fields(bytes);
        let [kind, id, _, _] = rest.array()?;
        let tid = u16::from_le_bytes(rest.array()?);
        let message = match (kind, id) {
            (COMMON, 0x00) => negotiate(rest)?,
            (DH_HMAC_CHAP, 0x01) => {
                let ([hash, group], sequence, [challenge], dh) = values(rest)?;
                Message::Challenge { hash, group, sequence, challenge, dh }
            }
            (DH_HMAC_CHAP, 0x02) => {
                let ([cvalid, _], sequence, [response, challenge], dh) = values(rest)?;
                let cvalid = flag(cvalid, "CVALID")?;
                Message::Reply { response, cvalid, sequence, challenge, dh }
            }
            (DH_HMAC_CHAP, 0x03) => success1(rest)?,
            (DH_HMAC_CHAP, 0x04) => rest.take(HEAD - 6).map(|_| Message::Success2)?,
            (COMMON, 0xF0 | 0xF1) => {
                let [_, explanation] = rest.array()?;
                let explanation = Explanation::from_wire(explanation);
                match id {
                    0xF1 => Message::Failure1 { explanation },
                    _ => Message::Failure2 { explanation },
                }
            }
            _ => return Err(MessageError::Unknown(kind, id)),
        };
        Ok((tid, message))
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Decodes a Negotiate behind the transaction identifier.
fn negotiate(mut rest: Fields<'_>) -> Result<Message, MessageError> {
    let [sc_c, napd] = rest.array()?;
    for _ in 0..napd {
        let descriptor: [u8; DESCRIPTOR_LEN] = rest.array()?;
        let [authid, _, halen, dhlen] = *descriptor.first_chunk().expect("it is longer");
        let halen = usize::from(halen);
        let dhlen = usize::from(dhlen);
        if authid != AUTHID_DH_HMAC_CHAP {
            continue;
        }
        if halen > 30 || dhlen > 30 {
            return Err(MessageError::Field("HALEN or DHLEN"));
        }
        let hashes = descriptor[4..][..halen].to_vec();
        let groups = descriptor[34..][..dhlen].to_vec();
        return Ok(Message::Negotiate { sc_c, hashes, groups });
    }
    Ok(Message::Negotiate { sc_c, hashes: Vec::new(), groups: Vec::new() })
}

/// Appends the fields that a Challenge and a Reply have: two bytes of its own, the sequence number, `values`, each as
/// long as the hash, and the DH value.
fn put_values(bytes: &mut Vec<u8>, own: [u8; 2], sequence: u32, values: &[&[u8]], dh: &[u8]) {
    bytes.extend([values[0].len() as u8, 0]);
    bytes.extend(own);
    bytes.extend((dh.len() as u16).to_le_bytes());
    bytes.extend(sequence.to_le_bytes());
    bytes.extend(values.concat());
    bytes.extend(dh);
}

/// Two bytes of the message's own, the sequence number, values of the hash, and the DH value.
type Values<const N: usize> = ([u8; 2], u32, [Vec<u8>; N], Vec<u8>);

/// The fields that [`put_values`] appends.
fn values<const N: usize>(mut rest: Fields<'_>) -> Result<Values<N>, MessageError> {
    let [hl, _] = rest.array()?;
    let own = rest.array()?;
    let dhvlen = u16::from_le_bytes(rest.array()?);
    let sequence = u32::from_le_bytes(rest.array()?);
    let mut values = [const { Vec::new() }; N];
    for value in &mut values {
        *value = rest.take(hash_len(hl)?)?.to_vec();
    }
    let dh = rest.take(dhvlen.into())?.to_vec();
    Ok((own, sequence, values, dh))
}

/// Decodes a Success1 behind the transaction identifier.
fn success1(mut rest: Fields<'_>) -> Result<Message, MessageError> {
    let [hl, _, rvalid] = rest.array()?;
    rest.take(HEAD - 9)?;
    let response =
        if flag(rvalid, "RVALID")? { Some(rest.take(hash_len(hl)?)?.to_vec()) } else { None };
    Ok(Message::Success1 { hl, response })
}

/// Checks the HL field.
fn hash_len(hl: u8) -> Result<usize, MessageError> {
    match hl {
        32 | 48 | 64 => Ok(hl.into()),
        _ => Err(MessageError::Field("HL")),
    }
}

/// Decodes a field that is 0 or 1.
fn flag(byte: u8, name: &'static str) -> Result<bool, MessageError> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(MessageError::Field(name)),
    }
}

/// The undecoded rest of a message.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], MessageError> {
        let (first, rest) = self.0.split_first_chunk().ok_or(MessageError::Short)?;
        self.0 = rest;
        Ok(*first)
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], MessageError> {
        let (first, rest) = self.0.split_at_checked(len).ok_or(MessageError::Short)?;
        self.0 = rest;
        Ok(first)
    }
}

// Types of messages.
const COMMON: u8 = 0x00;
const DH_HMAC_CHAP: u8 = 0x01;
/// The identifier of the protocol in Negotiate.
const AUTHID_DH_HMAC_CHAP: u8 = 0x01;
/// Reason code of both failures: the authentication has failed.
const REASON_FAILED: u8 = 1;
/// Bytes of a DH-HMAC-CHAP message before its parts of variable length.
const HEAD: usize = 16;
/// Bytes of a Negotiate before its descriptors.
const NEGOTIATE_HEAD: usize = 8;
/// Bytes of a protocol descriptor.
const DESCRIPTOR_LEN: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn messages() -> Vec<Message> {
        let fill = |len: usize, at: u8| (0..len).map(|i| at ^ i as u8).collect::<Vec<u8>>();
        let explanation = Explanation::HashNotUsable;
        vec![
            Message::Negotiate { sc_c: 2, hashes: vec![3, 1], groups: vec![2, 0, 1] },
            Message::Challenge {
                hash: 2,
                group: 1,
                sequence: 0x0102_0304,
                challenge: fill(48, 7),
                dh: fill(256, 9),
            },
            Message::Reply {
                response: fill(64, 1),
                cvalid: true,
                sequence: 77,
                challenge: fill(64, 2),
                dh: fill(384, 3),
            },
            Message::Success1 { hl: 32, response: Some(fill(32, 5)) },
            Message::Success1 { hl: 48, response: None },
            Message::Success2,
            Message::Failure1 { explanation },
            Message::Failure2 { explanation: Explanation::Other(0x5A) },
        ]
    }

    #[test]
    fn messages_decode_to_what_was_encoded_also_with_zeros_behind_them() {
        for message in messages() {
            let mut bytes = message.encode(0xA1B2);
            assert!(Message::decode(&bytes).unwrap() == (0xA1B2, message.clone()), "{message:?}");
            bytes.resize(4096, 0);
            assert!(
                Message::decode(&bytes).unwrap() == (0xA1B2, message.clone()),
                "{message:?} padded"
            );
        }
    }

    #[test]
    fn a_message_cut_off_at_any_byte_is_refused() {
        for message in messages() {
            let bytes = message.encode(1);
            for len in 0..bytes.len() {
                let decoded = Message::decode(&bytes[..len]);
                assert_eq!(decoded.err(), Some(MessageError::Short), "{message:?} of {len} bytes");
            }
        }
    }

    #[test]
    fn messages_have_the_lengths_that_targets_check() {
        let lens: Vec<usize> = messages().iter().map(|message| message.encode(1).len()).collect();
        assert_eq!(lens, [72, 16 + 48 + 256, 16 + 2 * 64 + 384, 16 + 32, 16, 16, 8, 8]);
    }

    #[test]
    fn a_success1_without_a_response_names_the_length_of_the_hash_as_linuxs_host_wants_it() {
        let bytes = Message::Success1 { hl: 64, response: None }.encode(1);
        assert_eq!(bytes, [1, 3, 0, 0, 1, 0, 64, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn a_negotiate_has_the_bytes_of_the_specification() {
        let message =
            Message::Negotiate { sc_c: 0, hashes: vec![1, 2, 3], groups: (0..6).collect() };
        let mut expected = vec![0, 0, 0, 0, 1, 0, 0, 1, 1, 0, 3, 6, 1, 2, 3];
        expected.resize(42, 0);
        expected.extend([0, 1, 2, 3, 4, 5]);
        expected.resize(72, 0);
        assert_eq!(message.encode(1), expected);
    }
}
