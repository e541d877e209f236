//! DH-HMAC-CHAP: host and controller prove to each other that they know a key, without saying it.
//!
//! The controller sends a *challenge*, the host answers with a *response* that only the key gives, and may
//! challenge the controller in the same message (NVM Express Base Specification 2.1, 8.3.5.5). A
//! Diffie-Hellman exchange may go with it: then who listens on the wire cannot even try keys that are easy
//! to guess.
//!
//! [`Host`] and [`Controller`] are the two sides as pure state machines: messages in, messages out, with
//! random numbers as arguments. They know neither sockets nor time: who drives them sends the messages in
//! Authentication Send and Authentication Receive commands and limits how long it takes. An exponentiation
//! takes milliseconds, so both hand it out as [`Exponentiation`], to be done by any thread.
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
//! - No key, response or shared secret is in an error, a log or a `Debug` output, and each is wiped when it
//!   is dropped.
//! - Responses are compared in constant time, and keys are used in constant time.
//! - A message that is not exactly what the state expects ends the authentication; no state goes on after a
//!   failure.
//!
//! Read [`Host`] first; `response` has the formulas, `message` the bytes.

mod controller;
mod group;
mod hash;
mod host;
mod message;
mod psk;
mod response;
mod secret;
mod text;

pub use controller::{Controller, ControllerTerms};
pub use group::{Exponentiation, Group, Power};
pub use hash::{Digest, Hash};
pub use host::{Host, HostTerms};
pub use message::{Explanation, Message, MessageError};
pub use psk::{ConfiguredPsk, Derivation, Identity, IdentityVersion, Origin, TlsPsk};
pub use secret::Secret;
pub use text::KeyError;

use std::fmt;

use zeroize::Zeroize;

/// Random numbers of one side for one authentication, from the operating system's generator.
pub struct Randomness {
    /// The challenge to the other side; as many of its bytes as the hash has are used.
    pub challenge: [u8; 64],
    /// The private exponent of Diffie-Hellman.
    pub exponent: [u8; group::EXPONENT_LEN_BYTES],
    /// The sequence number of the challenge: never twice with one key, so a random number or a counter; a
    /// zero is used as 1.
    pub sequence: u32,
}

impl Randomness {
    /// How many random bytes one authentication takes.
    pub const LEN_BYTES: usize = 64 + group::EXPONENT_LEN_BYTES + 4;

    /// Random numbers of these bytes, from the operating system's generator.
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

/// What is one side's own in one authentication.
struct Own {
    challenge: [u8; 64],
    /// Never 0.
    sequence: u32,
    exponent: group::Exponent,
}

impl Own {
    fn new(randomness: &Randomness) -> Own {
        Own {
            challenge: randomness.challenge,
            sequence: randomness.sequence.max(1),
            exponent: group::Exponent::new(randomness.exponent),
        }
    }
}

impl fmt::Debug for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Own")
    }
}

/// Whether the keys of TLS are to be made of the authentication (secure channel concatenation).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Concatenation {
    /// It is not asked for, or refused.
    #[default]
    No,
    /// It is asked for, or insisted on.
    Required,
}

/// What comes next, after something was given to a side.
#[derive(Debug)]
#[must_use]
pub enum Next {
    /// Send this message (host: Authentication Send; controller: the data of the next Authentication
    /// Receive), then call `sent`.
    Send(Vec<u8>),
    /// Wait for a message of the other side (host: Authentication Receive).
    Receive,
    /// Do this and give the result to `computed`.
    Compute(Exponentiation),
    /// It has succeeded.
    Authenticated,
    /// It has failed, and the other side knows.
    Failed(Failed),
}

/// Why an authentication has failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failed {
    /// This side found it, and has told the other.
    #[error("{0}: {1}")]
    Here(Explanation, &'static str),
    /// The other side says so.
    #[error("the other side says: {0}")]
    There(Explanation),
    /// The driver did what cannot be now: a message was given where none was asked for.
    #[error("a message out of turn")]
    OutOfTurn,
}

#[cfg(test)]
mod tests;
