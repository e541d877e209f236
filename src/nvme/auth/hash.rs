//! The hash functions of DH-HMAC-CHAP and of TLS PSKs, selected at run time.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest as _, Sha256, Sha384, Sha512};
use subtle::ConstantTimeEq;
use zeroize::Zeroize;

/// A hash function, with its identifier on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Hash {
    /// SHA-256, 32 bytes.
    Sha256 = 1,
    /// SHA-384, 48 bytes.
    Sha384 = 2,
    /// SHA-512, 64 bytes.
    Sha512 = 3,
}

impl Hash {
    /// All hash functions, ascending by identifier.
    pub const ALL: [Hash; 3] = [Hash::Sha256, Hash::Sha384, Hash::Sha512];

    /// Length of the hash's values in bytes.
    pub const fn len_bytes(self) -> usize {
        match self {
            Hash::Sha256 => 32,
            Hash::Sha384 => 48,
            Hash::Sha512 => 64,
        }
    }

    /// The identifier on the wire, and in the text form of keys.
    pub const fn id(self) -> u8 {
        self as u8
    }

    /// The hash function with this identifier, if there is one.
    pub(crate) fn from_id(id: u8) -> Option<Hash> {
        Hash::ALL.into_iter().find(|hash| hash.id() == id)
    }

    /// The hash of `bytes`.
    pub(crate) fn digest(self, bytes: &[u8]) -> Digest {
        match self {
            Hash::Sha256 => Digest::new(&Sha256::digest(bytes)),
            Hash::Sha384 => Digest::new(&Sha384::digest(bytes)),
            Hash::Sha512 => Digest::new(&Sha512::digest(bytes)),
        }
    }

    /// HMAC of the concatenation of `parts` with `key`.
    pub fn hmac(self, key: &[u8], parts: &[&[u8]]) -> Digest {
        match self {
            Hash::Sha256 => hmac::<Hmac<Sha256>>(key, parts),
            Hash::Sha384 => hmac::<Hmac<Sha384>>(key, parts),
            Hash::Sha512 => hmac::<Hmac<Sha512>>(key, parts),
        }
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SHA-{}", self.len_bytes() * 8)
    }
}

fn hmac<M: Mac + KeyInit>(key: &[u8], parts: &[&[u8]]) -> Digest {
    let mut mac = <M as KeyInit>::new_from_slice(key).expect("HMAC takes keys of any length");
    parts.iter().for_each(|part| mac.update(part));
    Digest::new(&mac.finalize().into_bytes())
}

/// A hash value, treated as a secret: compared in constant time, wiped, never printed.
#[derive(Clone)]
pub struct Digest {
    bytes: [u8; 64],
    len: usize,
}

impl Digest {
    pub(super) fn new(value: &[u8]) -> Digest {
        let mut bytes = [0; 64];
        bytes[..value.len()].copy_from_slice(value);
        Digest { bytes, len: value.len() }
    }

    /// Compares with `other`, in a time that does not depend on the first difference.
    pub(crate) fn is(&self, other: &[u8]) -> bool {
        self.as_ref().ct_eq(other).into()
    }
}

impl AsRef<[u8]> for Digest {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({} bytes)", self.len)
    }
}

impl Drop for Digest {
    fn drop(&mut self) {
        self.bytes.zeroize();
    }
}
