//! The secret that a host or a subsystem is known by.

use std::fmt;
use std::str::FromStr;

use zeroize::Zeroizing;

use super::Hash;
use super::text::{KeyError, decode, encode};
use crate::nvme::Nqn;

/// A secret in the form `DHHC-1:hh:<base64>:` (NVM Express Base Specification 2.1, 8.3.5.5.7).
///
/// `hh` says which hash makes the key of it, 00 that it is the key itself. The text holds the secret: treat it
/// like a password.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    bytes: Zeroizing<Vec<u8>>,
    transform: Option<Hash>,
}

impl Secret {
    /// A new secret of these random bytes, as long as the values of `hash`, or 32 bytes.
    pub fn generate(random: &[u8; 64], transform: Option<Hash>) -> Secret {
        let len = transform.map_or(32, Hash::len_bytes);
        Secret { bytes: Zeroizing::new(random[..len].to_vec()), transform }
    }

    /// The text form, which ends in a colon.
    pub fn to_text(&self) -> Zeroizing<String> {
        encode(PREFIX, self.transform.map_or(0, Hash::id), &self.bytes)
    }

    /// Its bytes, to derive others from.
    #[doc(hidden)]
    pub fn bytes(&self) -> &Zeroizing<Vec<u8>> {
        &self.bytes
    }

    /// The hash that makes the key of it; `None`: it is the key itself.
    pub fn transform(&self) -> Option<Hash> {
        self.transform
    }

    /// The key of `owner`: the host's NQN for a host's secret, the subsystem's for a controller's.
    pub(super) fn key(&self, owner: &Nqn) -> Key {
        let parts = [owner.as_str().as_bytes(), b"NVMe-over-Fabrics"];
        Key(match self.transform {
            None => self.bytes.clone(),
            Some(hash) => Zeroizing::new(hash.hmac(&self.bytes, &parts).as_ref().to_vec()),
        })
    }
}

/// The key with which responses are made.
pub(super) struct Key(pub(super) Zeroizing<Vec<u8>>);

impl FromStr for Secret {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Secret, KeyError> {
        let (number, bytes) = decode(text, PREFIX)?;
        match bytes.len() {
            32 | 48 | 64 => Ok(Secret { bytes, transform: Hash::from_id(number) }),
            found => Err(KeyError::Length { found, allowed: "32, 48 or 64" }),
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

const PREFIX: &str = "DHHC-1:";
