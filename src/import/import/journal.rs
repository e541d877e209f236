//! The journal: what an import needs in order to resume after a kill, a power loss or a full disk. Pure:
//! bytes in, bytes out.
//!
//! It lies at the start of each namespace, between the superblock copies, and is written and flushed before
//! anything else. From then on the import is a function of the journal and the source: the same inputs give
//! the same bytes, however often the work is interrupted. The journal stays after the import; once its
//! generation is committed, it is obsolete.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use dlfs_base::units::Generation;
use dlfs_format::format::checksum::crc32c;
use dlfs_format::format::geometry::{FORMAT_VERSION, check_generation, read_sealed};
use dlfs_format::format::{FormatError, ImageLayout, Pack, Part, Uuid};

/// A journal as it lies on media: one block of 4,096 bytes.
///
/// | bytes      | field            | meaning                                            |
/// |------------|------------------|----------------------------------------------------|
/// | 0..8       | `magic`          | "DLFSJRNL"                                         |
/// | 8..10      | `version`        | 2: that of the image                               |
/// | 10..12     | `namespace`      | index of this namespace, from 0                    |
/// | 12..14     | `num_namespaces` | how many the image has                             |
/// | 14         | `pack`           | 0 aligned, 1 tight                                 |
/// | 15         | `reserved_a`     | zero                                               |
/// | 16..32     | `uuid`           | the image                                          |
/// | 32..40     | `generation`     | the generation that the import makes               |
/// | 40..48     | `time_ns`        | the time that it writes everywhere, ns since 1970  |
/// | 48..56     | `part_first`     | first id of the new part                           |
/// | 56..64     | `part_seed`      | seed of its placement                              |
/// | 64..72     | `part_window`    | window of its placement; 0 is source order         |
/// | 72..80     | `fingerprint`    | hash of the indexed source; 0 for a stream         |
/// | 80..84     | `chunk_size`     | maximum bytes of a chunk of several samples        |
/// | 84..4092   | `reserved_b`     | zero                                               |
/// | 4092..4096 | `crc`            | CRC32C of bytes 0..4092                            |
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawJournal {
    magic: [u8; 8],
    version: U16,
    namespace: U16,
    num_namespaces: U16,
    pack: u8,
    reserved_a: u8,
    uuid: [u8; 16],
    generation: U64,
    time_ns: U64,
    part_first: U64,
    part_seed: U64,
    part_window: U64,
    fingerprint: U64,
    chunk_size: U32,
    reserved_b: [u8; 4008],
    crc: U32,
}
const _: () = assert!(size_of::<RawJournal>() == JOURNAL_BYTES);

/// A journal, decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Journal {
    /// The layout of the whole image.
    pub layout: ImageLayout,
    /// Index of the namespace it lies on.
    pub namespace: u16,
    /// The generation that the import makes.
    pub generation: Generation,
    /// The time that it writes everywhere, in ns since 1970.
    pub time_ns: u64,
    /// First id, seed and window of the new part; its count is that of the source.
    pub part: Part,
    /// Hash of the indexed source; 0 for a stream.
    pub fingerprint: u64,
}

impl Journal {
    /// The block to write at [`JOURNAL_OFFSET`].
    pub fn encode(&self) -> [u8; JOURNAL_BYTES] {
        let mut raw = RawJournal {
            magic: MAGIC,
            version: FORMAT_VERSION.into(),
            namespace: self.namespace.into(),
            num_namespaces: self.layout.num_namespaces.into(),
            pack: u8::from(self.layout.pack == Pack::Tight),
            reserved_a: 0,
            uuid: self.layout.uuid.0,
            generation: self.generation.0.into(),
            time_ns: self.time_ns.into(),
            part_first: self.part.first.into(),
            part_seed: self.part.seed.into(),
            part_window: self.part.window.into(),
            fingerprint: self.fingerprint.into(),
            chunk_size: self.layout.chunk_size_bytes.into(),
            reserved_b: [0; 4008],
            crc: 0.into(),
        };
        raw.crc = crc32c(&raw.as_bytes()[..JOURNAL_BYTES - 4]).into();
        zerocopy::transmute!(raw)
    }

    /// Reads a journal from the first 4,096 of `bytes`.
    ///
    /// # Errors
    /// `Magic`: there is no journal here. Otherwise it is damaged, or a later release wrote it.
    pub fn parse(bytes: &[u8]) -> Result<Journal, FormatError> {
        let raw: RawJournal = read_sealed("journal of an import", MAGIC, bytes)?;
        let pack = if raw.pack == 0 { Pack::Aligned } else { Pack::Tight };
        let namespaces = raw.num_namespaces.get();
        let uuid = Uuid(raw.uuid);
        let chunk_size = raw.chunk_size.get();
        let layout = ImageLayout::new(uuid, chunk_size, pack, namespaces)?;
        let part = Part {
            first: raw.part_first.get(),
            count: 0,
            seed: raw.part_seed.get(),
            window: raw.part_window.get(),
        };
        part.check()?;
        Ok(Journal {
            layout,
            namespace: raw.namespace.get(),
            generation: check_generation(raw.generation.get())?,
            time_ns: raw.time_ns.get(),
            part,
            fingerprint: raw.fingerprint.get(),
        })
    }

    /// Returns whether the same import wrote `other` on another namespace.
    pub(crate) fn is_of_the_same_import(&self, other: &Journal) -> bool {
        Journal { namespace: other.namespace, ..*self } == *other
    }
}

/// Offset of the journal on every namespace: away from both superblock copies.
pub const JOURNAL_OFFSET: u64 = 16 << 10;

/// Bytes of a journal.
pub const JOURNAL_BYTES: usize = 4096;

const MAGIC: [u8; 8] = *b"DLFSJRNL";

#[cfg(test)]
mod tests {
    use super::*;

    fn journal() -> Journal {
        Journal {
            layout: ImageLayout::new(Uuid([3; 16]), 1 << 20, Pack::Tight, 4).unwrap(),
            namespace: 2,
            generation: Generation(7),
            time_ns: 1234,
            part: Part { first: 1000, count: 0, seed: 9, window: 0 },
            fingerprint: u64::MAX,
        }
    }

    #[test]
    fn a_journal_reads_back_and_matches_only_its_own_import() {
        let bytes = journal().encode();
        assert_eq!(Journal::parse(&bytes), Ok(journal()));
        let other = Journal { namespace: 0, ..journal() };
        assert!(other.is_of_the_same_import(&journal()));
        assert!(!Journal { time_ns: 5, ..other }.is_of_the_same_import(&journal()));
    }

    #[test]
    fn every_flipped_bit_is_seen() {
        let bytes = journal().encode();
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Journal::parse(&damaged).is_err(), "bit {bit}");
        }
        assert!(Journal::parse(&bytes[..4095]).is_err());
    }
}
