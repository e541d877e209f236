//! The names of the classes that an unfinished import of rows has found, so that it goes on with the same numbers.
//! Pure: bytes in, bytes out.
//!
//! The image has them only once it is committed. Until then they lie between the first superblock and the journal, and
//! a point of the checkpoint says how many of them it needs, with their hash.

use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use xxhash_rust::xxh3::Xxh3;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::import::journal::Journal;
use dlfs_format::format::checksum::crc32c;

/// Names of classes as they lie on media: three blocks of 4,096 bytes, on namespace 0.
///
/// | bytes        | field         | meaning                                                      |
/// |--------------|---------------|--------------------------------------------------------------|
/// | 0..8         | `magic`       | "DLFSCLSN"                                                   |
/// | 8..10        | `version`     | 2                                                            |
/// | 10..12       | `reserved_a`  | zero                                                         |
/// | 12..16       | `num_classes` | how many there are                                           |
/// | 16..32       | `uuid`        | the image                                                    |
/// | 32..40       | `generation`  | the generation that the import makes                         |
/// | 40..48       | `time_ns`     | the time in its journal                                      |
/// | 48..52       | `packed_len`  | bytes of `names` that are used                               |
/// | 52..56       | `names_len`   | bytes of the names before compression                        |
/// | 56..12284    | `names`       | of each its length as u16 and its bytes; all in Deflate      |
/// | 12284..12288 | `crc`         | CRC32C of bytes 0..12284                                     |
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawClasses {
    magic: [u8; 8],
    version: U16,
    reserved_a: [u8; 2],
    num_classes: U32,
    uuid: [u8; 16],
    generation: U64,
    time_ns: U64,
    packed_len: U32,
    names_len: U32,
    names: [u8; MAX_PACKED_BYTES],
    crc: [u8; 4],
}
const _: () = assert!(size_of::<RawClasses>() == CLASSES_BYTES);

/// The blocks to write at [`CLASSES_OFFSET`] for the import of `journal`. `None`: the names have no room there.
pub(super) fn encode(journal: &Journal, names: &[Vec<u8>]) -> Option<Vec<u8>> {
    let mut all = Vec::new();
    for name in names {
        all.extend_from_slice(&u16::try_from(name.len()).ok()?.to_le_bytes());
        all.extend_from_slice(name);
        if all.len() > MAX_NAMES_BYTES {
            return None;
        }
    }
    let packed = deflated(&all)?;
    let mut raw = RawClasses::new_zeroed();
    raw.names.get_mut(..packed.len())?.copy_from_slice(&packed);
    raw.magic = MAGIC;
    raw.version = VERSION.into();
    raw.num_classes = u32::try_from(names.len()).ok()?.into();
    raw.uuid = journal.layout.uuid.0;
    raw.generation = journal.generation.0.into();
    raw.time_ns = journal.time_ns.into();
    raw.packed_len = (packed.len() as u32).into(); // no more than there is room for
    raw.names_len = (all.len() as u32).into();
    raw.crc = crc32c(&raw.as_bytes()[..CLASSES_BYTES - 4]).to_le_bytes();
    Some(raw.as_bytes().to_vec())
}

/// The names in such blocks. `None`: they are not those of the import of `journal`, or damaged, or a later release
/// wrote them.
pub(super) fn parse(bytes: &[u8], journal: &Journal) -> Option<Vec<Vec<u8>>> {
    let (raw, _) = RawClasses::read_from_prefix(bytes).ok()?;
    let crc = crc32c(&bytes[..CLASSES_BYTES - 4]).to_le_bytes();
    let of = (raw.uuid, raw.generation.get(), raw.time_ns.get());
    if (raw.magic, raw.version.get(), raw.crc) != (MAGIC, VERSION, crc)
        || of != (journal.layout.uuid.0, journal.generation.0, journal.time_ns)
    {
        return None;
    }
    let len = usize::try_from(raw.names_len.get()).ok().filter(|len| *len <= MAX_NAMES_BYTES)?;
    let packed = raw.names.get(..usize::try_from(raw.packed_len.get()).ok()?)?;
    let all = inflated(packed, len)?;
    let mut rest = &all[..];
    let mut names = Vec::new();
    while let Some((len, behind)) = rest.split_first_chunk() {
        let (name, behind) = behind.split_at_checked(usize::from(u16::from_le_bytes(*len)))?;
        names.push(name.to_vec());
        rest = behind;
    }
    (names.len() == usize::try_from(raw.num_classes.get()).ok()?).then_some(names)
}

/// Deflate as RFC 1951 has it.
fn deflated(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).ok()?;
    encoder.finish().ok()
}

/// The `len` bytes that were packed. `None`: it is no Deflate, or of another length.
fn inflated(packed: &[u8], len: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    DeflateDecoder::new(packed).take(len as u64 + 1).read_to_end(&mut bytes).ok()?;
    (bytes.len() == len).then_some(bytes)
}

/// Tells apart other names, or the same ones in another order.
pub(super) fn hash(names: &[Vec<u8>]) -> u64 {
    let mut hash = Xxh3::new();
    for name in names {
        hash.update(&(name.len() as u64).to_le_bytes());
        hash.update(name);
    }
    hash.digest()
}

/// Offset of the names on namespace 0: behind the first superblock copy.
pub(super) const CLASSES_OFFSET: u64 = 4 << 10;

/// Bytes of the blocks.
pub(super) const CLASSES_BYTES: usize = 12 << 10;

const MAX_PACKED_BYTES: usize = CLASSES_BYTES - 60;
/// More of them do not fit, however well they compress.
const MAX_NAMES_BYTES: usize = 1 << 20;
const VERSION: u16 = 2;
const MAGIC: [u8; 8] = *b"DLFSCLSN";

#[cfg(test)]
mod tests {
    use super::*;
    use dlfs_base::units::Generation;
    use dlfs_format::format::{ImageLayout, Pack, Part, Uuid};

    fn journal() -> Journal {
        Journal {
            layout: ImageLayout::new(Uuid([3; 16]), 1 << 20, Pack::Tight, 4).unwrap(),
            namespace: 0,
            generation: Generation(7),
            time_ns: 1234,
            part: Part { first: 1000, count: 0, seed: 9, window: 0 },
            fingerprint: 0,
        }
    }

    fn numbered(count: u64) -> Vec<Vec<u8>> {
        (0..count).map(|at| format!("n{:08}", at * 7919).into_bytes()).collect()
    }

    #[test]
    fn names_read_back_in_their_order_and_only_for_their_own_import() {
        let names = [numbered(1000), vec![Vec::new(), vec![b'x'; 9000]]].concat();
        let bytes = encode(&journal(), &names).unwrap();
        assert_eq!(
            (bytes.len(), parse(&bytes, &journal()).as_ref()),
            (CLASSES_BYTES, Some(&names))
        );
        assert_eq!(parse(&bytes, &Journal { time_ns: 5, ..journal() }), None);
        assert_eq!(parse(&bytes[..8192], &journal()), None);
        assert_ne!(hash(&names), hash(&names[1..]));
    }

    #[test]
    fn names_that_have_no_room_are_not_kept() {
        assert_eq!(encode(&journal(), &numbered(1 << 20)), None);
        assert_eq!(encode(&journal(), &[vec![0; 1 << 17]]), None);
    }

    #[test]
    fn every_flipped_bit_is_seen() {
        let bytes = encode(&journal(), &numbered(20)).unwrap();
        for bit in (0..bytes.len() * 8).step_by(7) {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(parse(&damaged, &journal()), None, "bit {bit}");
        }
    }
}
