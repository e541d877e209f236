//! Keys as strings: a prefix, two digits, and base64 of the key with its CRC-32, as nvme-cli prints them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use crc_fast::CrcAlgorithm;
use zeroize::Zeroizing;

/// Reasons why a string is not a valid key. Contains no part of the string.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The prefix, which is given here, or a colon is missing.
    #[error("a key of this kind begins with `{0}` and ends with `:`")]
    Form(&'static str),
    /// The two digits after the prefix name no known hash; the text tells which ones do.
    #[error("the two digits after the prefix name no known hash: {0}")]
    Hash(&'static str),
    /// The part between the colons is not base64.
    #[error("the part between the colons is not base64: characters are missing or were changed")]
    Base64,
    /// The key has an invalid length.
    #[error("the key has {found} bytes; it must have {allowed}")]
    Length {
        /// Bytes without the CRC; 0 also if the CRC is cut off.
        found: usize,
        /// The permitted lengths, for an error message.
        allowed: &'static str,
    },
    /// The key's CRC-32 differs.
    #[error("the key's CRC-32 differs: it was damaged, or a character was mistyped")]
    Checksum,
}

/// Decodes `text` into the identifier of the hash and the bytes of the key.
pub(super) fn decode(
    text: &str,
    prefix: &'static str,
) -> Result<(u8, Zeroizing<Vec<u8>>), KeyError> {
    let form = || KeyError::Form(prefix);
    let rest = text.trim().strip_prefix(prefix).ok_or_else(form)?;
    let (digits, rest) = rest.split_once(':').ok_or_else(form)?;
    let encoded = rest.strip_suffix(':').ok_or_else(form)?;
    let number = match digits {
        "00" => 0,
        "01" => 1,
        "02" => 2,
        "03" => 3,
        _ => return Err(KeyError::Hash("00 to 03 are")),
    };
    let mut bytes = Zeroizing::new(STANDARD.decode(encoded).map_err(|_| KeyError::Base64)?);
    let Some(len) = bytes.len().checked_sub(4) else {
        return Err(KeyError::Length { found: 0, allowed: "at least 32" });
    };
    let (key, crc) = bytes.split_at(len);
    if crc32(key) != crc {
        return Err(KeyError::Checksum);
    }
    bytes.truncate(len);
    Ok((number, bytes))
}

/// Encodes a key as a string.
pub(super) fn encode(prefix: &str, number: u8, key: &[u8]) -> Zeroizing<String> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(key.len() + 4));
    bytes.extend_from_slice(key);
    bytes.extend_from_slice(&crc32(key));
    let encoded = Zeroizing::new(STANDARD.encode(&*bytes));
    Zeroizing::new(format!("{prefix}{number:02}:{}:", *encoded))
}

/// CRC-32 of IEEE 802.3, as in zlib.
fn crc32(bytes: &[u8]) -> [u8; 4] {
    (crc_fast::checksum(CrcAlgorithm::Crc32IsoHdlc, bytes) as u32).to_le_bytes()
}
