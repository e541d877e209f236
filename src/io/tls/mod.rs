//! TLS 1.3 for one NVMe/TCP connection, with a pre-shared key (PSK) and no certificate.
//!
//! A [`Session`] does no I/O itself, like the connections of [`dlfs_nvme::tcp`] whose bytes it protects:
//! ciphertext goes in and plaintext comes out, straight into the buffer of the read that waits for it;
//! plaintext goes in and ciphertext comes out. It owns no socket and no clock. [`dlfs_nvme::auth`] derives the
//! pre-shared keys and their identities (NVMe/TCP Transport Specification 1.1, 3.6.1).
//!
//! The system's OpenSSL (3.0 or newer) does the handshake, and encrypts and decrypts the records. It is loaded by
//! [`load`], or when the first session is created; without it, both fail with [`TlsError::NoLibrary`], and nothing else
//! differs.
//!
//! Invariants:
//! - TLS 1.3 only, with an external PSK and an ephemeral key exchange (`psk_dhe_ke`). A side that authenticates
//!   in another way, such as with a certificate, is refused.
//! - No session ticket is issued or used, and no early data (0-RTT) are sent.
//! - The end of the stream ends the connection, with or without a close_notify alert. Only NVMe/TCP completions
//!   tell whether a transfer is complete.
//! - No key is in an error or in a `Debug` output.
//!
//! Read [`Session`] first, in `session.rs`; then `records.rs` for its data, and `openssl.rs` and `library.rs` for the
//! way to C. [`keyring`] finds keys in the kernel.

mod ciphertext;
pub mod keyring;
mod library;
mod openssl;
mod records;
mod session;

pub use session::Session;

use std::time::Duration;

use dlfs_nvme::auth::TlsPsk;

/// Loads OpenSSL, so that sessions can be created.
///
/// # Errors
/// `NoLibrary`; `Failed`: a system policy forbids what NVMe/TCP needs. Later calls return the same error.
pub fn load() -> Result<(), TlsError> {
    openssl::shared().map(drop)
}

/// The hint for users when OpenSSL cannot be loaded.
pub const HOW_TO_INSTALL: &str = "install OpenSSL 3 (Debian: libssl3t64, before trixie libssl3; Fedora: openssl-libs), \
    or leave TLS out on a network that you trust";

/// The PSKs that a controller accepts.
pub trait Keys: Send + Sync {
    /// The PSK with this identity, which a host has sent; `None`: there is no such PSK.
    fn find(&self, identity: &str) -> Option<TlsPsk>;
}

/// Errors of starting a session, or that end a session.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TlsError {
    /// There is no OpenSSL 3; the text is the loader's.
    #[error("TLS needs OpenSSL 3, and libssl.so.3 cannot be loaded: {0}")]
    NoLibrary(String),
    /// The other side ended the session with this alert.
    #[error("the other side ended TLS: {name} (alert {number})", name = alert_name(*number))]
    Alert {
        /// The alert's number.
        number: u8,
    },
    /// The other side does not speak TLS.
    #[error("the other side does not speak TLS")]
    NotTls,
    /// The other side offered no PSK that this side has, or did not prove that it has the PSK.
    #[error("the other side has no common pre-shared key")]
    NoKey,
    /// A record of an established session was not authentic, or malformed: it was changed in transit.
    #[error("a TLS record is not authentic")]
    BadRecord,
    /// The other side closed the session.
    #[error("the other side closed the TLS session")]
    Closed,
    /// The handshake failed, or OpenSSL reported an error; the text is OpenSSL's.
    #[error("TLS failed: {0}")]
    Failed(String),
}

impl TlsError {
    /// Returns whether another identity of the same key may be tried: some targets know only version 0.
    pub(crate) fn may_be_identity(&self) -> bool {
        matches!(self, TlsError::Alert { .. } | TlsError::Closed)
    }
}

/// The name of an alert (RFC 8446, 6).
fn alert_name(alert: u8) -> &'static str {
    match alert {
        0 => "close_notify",
        10 => "unexpected_message",
        20 => "bad_record_mac",
        22 => "record_overflow",
        40 => "handshake_failure",
        47 => "illegal_parameter",
        50 => "decode_error",
        51 => "decrypt_error",
        70 => "protocol_version",
        71 => "insufficient_security",
        80 => "internal_error",
        109 => "missing_extension",
        115 => "unknown_psk_identity",
        116 => "certificate_required",
        _ => "unknown alert",
    }
}

/// The first byte of a TLS connection: a handshake record. NVMe/TCP begins with 0 (ICReq).
pub const FIRST_BYTE: u8 = 22;

/// The most plaintext of a record, in bytes.
pub const RECORD_LEN_BYTES: usize = 16 << 10;

/// The timeout of a handshake.
pub const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests;
