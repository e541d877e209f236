//! DH-HMAC-CHAP: the host, and on its request also the controller, proves that it knows a key, without
//! revealing the key.
//!
//! The controller sends a *challenge*. The host answers with a *response* that only an owner of the key can
//! compute. In the same message, the host may challenge the controller (NVM Express Base Specification 2.1,
//! 8.3.5.5). With an optional Diffie-Hellman exchange, an eavesdropper cannot test guesses of a weak key.
//!
//! [`Host`] and [`Controller`] are the two sides as pure state machines: messages in, messages out, with
//! random numbers as arguments. They know neither sockets nor time: the driver sends the messages in
//! Authentication Send and Authentication Receive commands, and limits the duration. An exponentiation
//! takes milliseconds, so both sides return it as an [`Exponentiation`] that any thread may compute.
//!
//! ```text
//! host                                    controller
//!  Negotiate ------ hashes, groups -------->
//!  <------- C1, SEQ1, g^x mod p ------------ Challenge
//!  Reply ------ R1, C2, SEQ2, g^y mod p ---->     the host has proved itself
//!  <------------- R2 ----------------------- Success1
//!  Success2 -------------------------------->     only if the host asked for R2
//! ```
//!
//! Invariants:
//! - Errors, logs and `Debug` output contain no key, response or shared secret. Keys and shared secrets are
//!   wiped when they are dropped.
//! - Responses are compared in constant time, and keys are used in constant time.
//! - A message other than the one that the state expects ends the authentication, and no state continues
//!   after a failure.
//!
//! Read [`Host`] first; `response` has the formulas, `message` the bytes.

mod controller;
mod group;
mod hash;
mod host;
mod key_text;
mod message;
mod psk;
mod response;
mod secret;

pub use controller::{Controller, ControllerTerms};
pub use group::{Exponentiation, Group, Power};
pub use hash::{Digest, Hash};
pub use host::{Host, HostTerms};
pub use key_text::KeyError;
pub use message::{Explanation, Message, MessageError};
pub use psk::{ConfiguredPsk, Derivation, IdentityParts, IdentityVersion, Origin, TlsPsk};
pub use secret::Secret;

use std::fmt;

use zeroize::Zeroize;

/// The random numbers of one side for one authentication.
pub struct Randomness {
    /// The challenge to the other side; only its first bytes are used, as many as a value of the hash has.
    pub challenge: [u8; 64],
    /// The private Diffie-Hellman exponent.
    pub exponent: [u8; group::EXPONENT_LEN_BYTES],
    /// The sequence number of the challenge. It must never repeat with the same key, so it is a
    /// random number or a counter; 0 is replaced by 1.
    pub sequence: u32,
}

impl Randomness {
    /// The number of random bytes for one authentication.
    pub const LEN_BYTES: usize = 64 + group::EXPONENT_LEN_BYTES + 4;

    /// Splits random bytes, which must come from the operating system's generator.
    pub fn from_bytes(mut bytes: [u8; Randomness::LEN_BYTES]) -> Randomness {
        let (challenge, rest) = bytes.split_at(64);
        let (exponent, sequence) = rest.split_at(group::EXPONENT_LEN_BYTES);
        let randomness = Randomness {
            challenge: challenge.try_into().expect("cut to this length"),
            exponent: exponent.try_into().expect("cut to this length"),
            sequence: u32::from_le_bytes(sequence.try_into().expect("cut to this length")),
        };
        bytes.zeroize();
        randomness
    }
}

impl Drop for Randomness {
    fn drop(&mut self) {
        self.exponent.zeroize();
    }
}

/// One side's own challenge and exponent, ready for use.
struct OwnNumbers {
    challenge: [u8; 64],
    /// The sequence number; never 0.
    sequence: u32,
    exponent: group::Exponent,
}

impl OwnNumbers {
    fn new(randomness: &Randomness) -> OwnNumbers {
        OwnNumbers {
            challenge: randomness.challenge,
            sequence: randomness.sequence.max(1),
            exponent: group::Exponent::new(randomness.exponent),
        }
    }
}

impl fmt::Debug for OwnNumbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnNumbers")
    }
}

/// Generation of a TLS PSK by an authentication (secure channel concatenation).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Concatenation {
    /// A host does not request it; a controller refuses it.
    #[default]
    No,
    /// A controller does as the host requests. For a host the same as `No`.
    Optional,
    /// A host requests it; a controller requires it.
    Required,
}

/// The next step for the driver.
#[derive(Debug)]
#[must_use]
pub enum Next {
    /// Send this message (host: Authentication Send; controller: the data of the next Authentication
    /// Receive), then call `sent`.
    Send(Vec<u8>),
    /// Wait for a message from the other side (host: Authentication Receive).
    Receive,
    /// Compute this and pass the result to `computed`.
    Compute(Exponentiation),
    /// The authentication has succeeded.
    Authenticated,
    /// The authentication has failed. After [`Failed::Here`], the other side has been told.
    Failed(Failed),
}

/// A reason to end an authentication, as the other side is told it, and in words.
type Refusal = (Explanation, &'static str);

/// The reason for a failed authentication. Its text does not repeat "authentication failed".
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failed {
    /// This side detected the failure, and tells the other.
    Here(Explanation, &'static str),
    /// The other side reported the failure.
    There(Explanation),
    /// The driver made a call that the state does not permit, such as passing an unrequested message.
    OutOfTurn,
}

impl std::error::Error for Failed {}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use Explanation::AuthenticationFailed;
        match self {
            Failed::Here(AuthenticationFailed, why) => f.write_str(why),
            Failed::Here(explanation, why) => write!(f, "{explanation}: {why}"),
            Failed::There(AuthenticationFailed) => {
                f.write_str("the other side does not accept the response")
            }
            Failed::There(explanation) => write!(f, "the other side reports: {explanation}"),
            Failed::OutOfTurn => f.write_str("a message came out of turn"),
        }
    }
}

#[cfg(test)]
mod tests;
