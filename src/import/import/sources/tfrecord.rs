//! TFRecord shards: length, its masked CRC, payload, its masked CRC.
//!
//! | bytes        | field     | meaning                                    |
//! |--------------|-----------|--------------------------------------------|
//! | 0..8         | `len`     | payload length, little-endian              |
//! | 8..12        | `len_crc` | masked CRC32C of the eight bytes before it |
//! | 12..12+len   | payload   |                                            |
//! | 12+len..+4   | `crc`     | masked CRC32C of the payload               |
//!
//! A record is named after its shard and its number in the shard, from 0. Payload checksums are verified when the
//! payload is read, so that no payload is read twice.
//!
//! Records are read as the members of an archive, each a file that is called as its number: see `tar_members.rs`.

use std::io::Read;

use super::bad::BadReason;
use super::shard::read_some;
use dlfs_base::checksum::crc32c;

/// Compares the CRC32C of a payload with the stored checksum after it.
pub(crate) fn check_crc(crc: u32, stored: [u8; CRC_BYTES]) -> Result<(), BadReason> {
    check("payload", crc, stored)
}

/// Returns whether a file that begins with these bytes is a TFRecord shard: the checksum of the length is valid.
pub(crate) fn looks_like(head: &[u8]) -> bool {
    head.first_chunk::<HEADER_BYTES>().is_some_and(|header| length(header).is_ok())
}

/// Reads the header of the next record and returns the payload's length; `None` at the end of the input.
pub(super) fn next_len(from: &mut dyn Read) -> Result<Option<u64>, BadReason> {
    let mut header = [0; HEADER_BYTES];
    match read_some(from, &mut header)? {
        0 => Ok(None),
        HEADER_BYTES => length(&header).map(Some),
        _ => Err(ENDS_IN_HEADER),
    }
}

/// The reason for a shard that ends within the header of a record.
const ENDS_IN_HEADER: BadReason = BadReason::Truncated("the shard ends inside a record's header");

/// The payload's length in a header, whose checksum is verified.
fn length(header: &[u8; HEADER_BYTES]) -> Result<u64, BadReason> {
    let (len, crc) = header.split_first_chunk::<8>().expect("the header is longer than 8 bytes");
    check("length", crc32c(len), crc.try_into().expect("12 - 8 bytes"))?;
    Ok(u64::from_le_bytes(*len))
}

/// Compares the CRC32C of the part `what` of a record with the stored checksum.
fn check(what: &'static str, crc: u32, stored: [u8; CRC_BYTES]) -> Result<(), BadReason> {
    let found = u32::from_le_bytes(stored);
    let expected = masked(crc);
    BadReason::BadCrc { what, expected, found }.unless(expected == found)
}

/// TensorFlow masks stored checksums, since the CRC of data that contains its own CRC is weak.
fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xA282_EAD8)
}

/// Bytes before a payload.
pub(super) const HEADER_BYTES: usize = 12;
/// Bytes of a stored checksum.
pub(crate) const CRC_BYTES: usize = 4;
/// The reason for a shard that ends within the payload or last checksum of a record.
pub(super) const ENDS_INSIDE: BadReason = BadReason::Truncated("the shard ends inside the record");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_masked_checksum_is_tensorflows() {
        // RFC 3720's vector for 32 zero bytes, rotated and masked by hand.
        assert_eq!(crc32c(&[0; 32]), 0x8A91_36AA);
        assert_eq!(masked(0x8A91_36AA), 0x6D55_1522_u32.wrapping_add(0xA282_EAD8));
        // The header that TensorFlow writes for a record of 5 bytes.
        let header = [5, 0, 0, 0, 0, 0, 0, 0, 0xea, 0xb2, 0x04, 0x3e];
        assert_eq!(length(&header), Ok(5));
        assert!(
            looks_like(&header) && !looks_like(&header[..11]) && !looks_like(b"path\tlabel\n..")
        );
    }
}
