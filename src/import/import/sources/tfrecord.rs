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
//! An index is made of files. From pipes, compressed files and objects of stores, records are read in the order in
//! which they arrive: see [`RecordStream`](super::RecordStream).

use std::fs::File;
use std::io::Read;
use std::sync::Arc;

use super::file_counts::Indexing;
use super::index::{BadEntry, BadReason, Index, MAX_NAME_BYTES, TOO_LONG_A_NAME};
use super::shard::{FrontToBack, Input, front_to_back, read_some};
use dlfs_base::checksum::crc32c;

/// Appends the records of one shard, named after `stem`; if the shard is broken, the rest of it is one bad entry.
pub(crate) fn index_shard(
    file: Arc<File>,
    stem: &[u8],
    container: u32,
    index: &mut Index,
    indexing: &mut Indexing<'_>,
) {
    let shard = index.containers[container as usize].clone();
    if stem.len() + MAX_NUMBER_BYTES > MAX_NAME_BYTES {
        return index.bad.push(BadEntry::new(stem, TOO_LONG_A_NAME).within(&shard.path));
    }
    let mut input = front_to_back(file, 0..shard.len_bytes);
    let mut at = 0;
    for number in 0.. {
        let name = [stem, format!("/{number}").as_bytes()].concat();
        match next_record(&mut input, &mut at) {
            Ok(None) => return,
            Ok(Some((offset, len))) => match index.push_file(&name, None, len, offset, container) {
                Ok(()) if !indexing.found(1, len) => return,
                Ok(()) => {}
                Err(reason) => index.bad.push(BadEntry::new(&name, reason).within(&shard.path)),
            },
            Err(reason) => {
                let rest = at..shard.len_bytes;
                let bad = BadEntry::new(&name, reason).within(&shard.path).rest(rest);
                return index.bad.push(bad);
            }
        }
    }
}

/// Compares the CRC32C of a payload with the stored checksum after it.
pub(crate) fn check_crc(crc: u32, stored: [u8; CRC_BYTES]) -> Result<(), BadReason> {
    check("payload", crc, stored)
}

/// Returns whether a file that begins with these bytes is a TFRecord shard: the checksum of the length is valid.
pub(crate) fn looks_like(head: &[u8]) -> bool {
    head.first_chunk::<HEADER_BYTES>().is_some_and(|header| length(header).is_ok())
}

/// Offset and length of the next payload, whose record begins at `at`; `None` at the end of the shard.
fn next_record(input: &mut FrontToBack, at: &mut u64) -> Result<Option<(u64, u64)>, BadReason> {
    let shard_end = input.get_ref().end;
    if *at == shard_end {
        return Ok(None);
    }
    let len = next_len(input)?.ok_or(ENDS_IN_HEADER)?;
    let offset = *at + HEADER_BYTES as u64;
    let end = len.checked_add(CRC_BYTES as u64).and_then(|len| offset.checked_add(len));
    let end = end.filter(|&end| end <= shard_end).ok_or(ENDS_INSIDE)?;
    input.skip(end - offset)?;
    *at = end;
    Ok(Some((offset, len)))
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

const ENDS_IN_HEADER: BadReason = BadReason::Truncated("the shard ends inside a record's header");

fn length(header: &[u8; HEADER_BYTES]) -> Result<u64, BadReason> {
    let (len, crc) = header.split_first_chunk::<8>().expect("the header is longer than 8 bytes");
    check("length", crc32c(len), crc.try_into().expect("12 - 8 bytes"))?;
    Ok(u64::from_le_bytes(*len))
}

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
/// A slash and a 64-bit number.
const MAX_NUMBER_BYTES: usize = 21;
/// Bytes of a stored checksum.
pub(crate) const CRC_BYTES: usize = 4;
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
