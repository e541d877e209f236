//! Header and data digests: CRC32C, little-endian on the wire.

use dlfs_base::checksum::{crc32c, crc32c_append};

/// Digests in use on a connection, or requested for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Digests {
    /// HDGST: a digest follows every header.
    pub header: bool,
    /// DDGST: a digest follows the data of a PDU.
    pub data: bool,
}

impl Digests {
    /// The DGST byte of ICReq and ICResp: bit 0 header, bit 1 data.
    pub fn to_bits(self) -> u8 {
        u8::from(self.header) | u8::from(self.data) << 1
    }

    /// The names of the digests in use; `None` without digests.
    pub fn as_text(self) -> Option<&'static str> {
        match (self.header, self.data) {
            (false, false) => None,
            (true, false) => Some("header digest"),
            (false, true) => Some("data digest"),
            (true, true) => Some("header and data digest"),
        }
    }

    /// Decodes a DGST byte; other bits are reserved.
    pub fn from_bits(bits: u8) -> Digests {
        Digests { header: bits & 1 != 0, data: bits & 2 != 0 }
    }
}

/// The digest of `bytes`, in wire format.
pub fn digest(bytes: &[u8]) -> [u8; 4] {
    crc32c(bytes).to_le_bytes()
}

/// A digest over bytes that arrive or leave in pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct RunningDigest(u32);

impl RunningDigest {
    /// The digest of zero bytes.
    pub(crate) fn new() -> RunningDigest {
        RunningDigest(0)
    }

    /// Adds the next bytes.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0 = crc32c_append(self.0, bytes);
    }

    /// The digest of all bytes so far, in wire format.
    pub(crate) fn to_bytes(self) -> [u8; 4] {
        self.0.to_le_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_of_known_bytes_is_the_published_one() {
        let rising: Vec<u8> = (0..32).collect();
        let falling: Vec<u8> = (0..32).rev().collect();
        for (bytes, wire) in [
            (&b"123456789"[..], [0x83, 0x92, 0x06, 0xE3]),
            (&[0; 32], [0xAA, 0x36, 0x91, 0x8A]),
            (&[0xFF; 32], [0x43, 0xAB, 0xA8, 0x62]),
            (&rising, [0x4E, 0x79, 0xDD, 0x46]),
            (&falling, [0x5C, 0xDB, 0x3F, 0x11]),
            (&[], [0; 4]),
            (&[0; 512], [0xC0, 0xED, 0xFC, 0x30]),
            (&[0; 4096], [0x89, 0x41, 0xF9, 0x98]),
        ] {
            assert_eq!(digest(bytes), wire, "{} bytes", bytes.len());
        }
    }

    #[test]
    fn a_running_digest_does_not_depend_on_where_the_bytes_were_cut() {
        let bytes: Vec<u8> = (0..=255).collect();
        for cut in 0..=bytes.len() {
            let mut running = RunningDigest::new();
            running.update(&bytes[..cut]);
            running.update(&bytes[cut..]);
            assert_eq!(running.to_bytes(), digest(&bytes), "cut at {cut}");
        }
    }

    #[test]
    fn digest_bits_are_header_first_and_reserved_bits_mean_nothing() {
        for bits in 0..=255 {
            assert_eq!(Digests::from_bits(bits).to_bits(), bits & 3);
        }
        assert_eq!(Digests { header: true, data: false }.to_bits(), 1);
    }
}
