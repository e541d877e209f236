//! Secrets of DH-HMAC-CHAP, and the keys that they give.

use std::fmt;
use std::str::FromStr;

use zeroize::Zeroizing;

use super::Hash;
use super::key_text::{KeyError, decode, encode};
use crate::nvme::Nqn;

/// A secret in the form `DHHC-1:hh:<base64>:` (NVM Express Base Specification 2.1, 8.3.5.5.7).
///
/// `hh` identifies the hash that derives the key from the secret; 00: the secret is the key itself. The
/// string contains the secret, so treat it like a password.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    bytes: Zeroizing<Vec<u8>>,
    /// The hash that derives the key; `None`: `bytes` are the key.
    transform: Option<Hash>,
}

impl Secret {
    /// Makes a secret from random bytes, as long as a value of the hash `transform`, or 32 bytes without one.
    pub fn generate(random: &[u8; 64], transform: Option<Hash>) -> Secret {
        let len = transform.map_or(32, Hash::len_bytes);
        Secret { bytes: Zeroizing::new(random[..len].to_vec()), transform }
    }

    /// The secret as a string, which ends with a colon.
    pub fn to_text(&self) -> Zeroizing<String> {
        encode(SECRET_PREFIX, self.transform.map_or(0, Hash::id), &self.bytes)
    }

    /// The secret's bytes, for deriving other keys.
    #[doc(hidden)]
    pub fn bytes(&self) -> &Zeroizing<Vec<u8>> {
        &self.bytes
    }

    /// The hash that derives the key from the secret; `None`: the secret is the key itself.
    pub fn transform(&self) -> Option<Hash> {
        self.transform
    }

    /// The key of the HMACs in responses, for `owner`: the host's NQN for a host's secret, the subsystem's NQN for a
    /// controller's.
    pub(super) fn key(&self, owner: &Nqn) -> Zeroizing<Vec<u8>> {
        let parts = [owner.as_str().as_bytes(), b"NVMe-over-Fabrics"];
        match self.transform {
            None => self.bytes.clone(),
            Some(hash) => Zeroizing::new(hash.hmac(&self.bytes, &parts).as_ref().to_vec()),
        }
    }
}

impl FromStr for Secret {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Secret, KeyError> {
        let (number, bytes) = decode(text, SECRET_PREFIX)?;
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

/// The beginning of a secret.
const SECRET_PREFIX: &str = "DHHC-1:";
