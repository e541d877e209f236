//! The superblock: the identity and properties of an image, and the location of its directory.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::format::cursor::read_sealed;
use crate::format::error::at_most;
use crate::format::geometry::{FORMAT_VERSION, MAX_NAMESPACE_BYTES, MAX_SAMPLES, check_generation};
use crate::format::{FormatError, ImageLayout};
use dlfs_base::checksum::crc32c;
use dlfs_base::units::{Generation, total};

/// A superblock copy on media: one block of 4,096 bytes.
///
/// Magic, version and checksum keep their offsets in every future version, so that a reader can distinguish an image
/// of a later version from a damaged one.
///
/// Two superblocks differ only in the first 512 bytes, the smallest unit that a device writes atomically:
/// `balance` is chosen so that the checksum is always 0. So a power loss during the write of a copy leaves the old
/// copy or the new one, never half of each. (Superblocks of earlier releases have a `balance` of 0 and
/// another checksum. They are read the same way, but a power loss while one is replaced may leave half of each.)
///
/// | bytes      | field                | meaning                                                |
/// |------------|----------------------|--------------------------------------------------------|
/// | 0..8       | `magic`              | "DLFSIMG" and NUL                                      |
/// | 8..10      | `version`            | 2: the format version of the whole image               |
/// | 10..12     | `namespace`          | index of this namespace, from 0                        |
/// | 12..14     | `num_namespaces`     | number of namespaces of the image                      |
/// | 14         | `pack`               | 0 aligned, 1 tight                                     |
/// | 15         | `reserved_a`         | zero                                                   |
/// | 16..32     | `uuid`               | the image                                              |
/// | 32..40     | `generation`         | from 1; odd ones in copy B, even ones in copy A        |
/// | 40..48     | `time_ns`            | time of the commit, in ns since 1970                   |
/// | 48..56     | `required`           | features that a reader must know; none so far          |
/// | 56..64     | `optional`           | features a reader may ignore; bit 0: other copy void   |
/// | 64..72     | `placement_seed`     | seed of the newest part's placement                    |
/// | 72..80     | `used_len`           | bytes of this namespace that this generation may read  |
/// | 80..84     | `chunk_size`         | maximum bytes of a chunk of several samples            |
/// | 84..86     | `snapshot_namespace` | index of the namespace with the directory snapshot     |
/// | 86..88     | `reserved_b`         | zero                                                   |
/// | 88..96     | `snapshot_offset`    | first byte of the snapshot                             |
/// | 96..104    | `snapshot_len`       | length of the snapshot in bytes                        |
/// | 104..108   | `snapshot_crc`       | CRC32C at the end of the snapshot's head               |
/// | 108..112   | `reserved_c`         | zero                                                   |
/// | 112..120   | `num_samples`        | ids assigned, deleted samples included                 |
/// | 120..128   | `num_live`           | live samples                                           |
/// | 128..136   | `to_write`           | features that a writer must know; a reader need not    |
/// | 136..504   | `reserved_d`         | zero                                                   |
/// | 504..508   | `balance`            | makes `crc` 0                                          |
/// | 508..4092  | `reserved_e`         | zero                                                   |
/// | 4092..4096 | `crc`                | CRC32C of bytes 0..4092                                |
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawSuperblock {
    magic: [u8; 8],
    version: U16,
    namespace: U16,
    num_namespaces: U16,
    pack: u8,
    reserved_a: u8,
    uuid: [u8; 16],
    generation: U64,
    time_ns: U64,
    required: U64,
    optional: U64,
    placement_seed: U64,
    used_len: U64,
    chunk_size: U32,
    snapshot_namespace: U16,
    reserved_b: U16,
    snapshot_offset: U64,
    snapshot_len: U64,
    snapshot_crc: U32,
    reserved_c: U32,
    num_samples: U64,
    num_live: U64,
    to_write: U64,
    reserved_d: [u8; 368],
    balance: U32,
    reserved_e: [u8; 3584],
    crc: U32,
}
const _: () = assert!(size_of::<RawSuperblock>() == SUPERBLOCK_BYTES);
const _: () = assert!(std::mem::offset_of!(RawSuperblock, balance) == BALANCE_OFFSET);

/// A superblock, decoded and checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Superblock {
    /// Properties of the whole image.
    pub layout: ImageLayout,
    /// Index of the namespace that holds this superblock.
    pub namespace: u16,
    /// The generation that it commits, from 1.
    pub generation: Generation,
    /// Time of the commit, in ns since 1970.
    pub time_ns: u64,
    /// Features that a reader may ignore: [`OTHER_COPY_VOID`].
    pub optional_features: u64,
    /// Seed of the newest part's placement.
    pub placement_seed: u64,
    /// Used length: bytes of this namespace that the generation may read. A shorter namespace was truncated.
    pub used_len_bytes: u64,
    /// Location of the directory's snapshot.
    pub snapshot: SnapshotLocation,
    /// Number of ids assigned, deleted samples included.
    pub num_samples: u64,
    /// Number of live samples.
    pub num_live: u64,
    /// Features without which the image may be read but not written: [`TYPED_COLUMNS`], [`FIELD_TYPES`], [`ORIGINS`].
    pub features_to_write: u64,
}

/// Location of a directory's snapshot, and the checksum that identifies it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SnapshotLocation {
    /// Index of the namespace.
    pub namespace: u16,
    /// First byte.
    pub offset_bytes: u64,
    /// Length in bytes.
    pub len_bytes: u64,
    /// The CRC32C at the end of the snapshot's head. It covers the checksums of all sections, so a snapshot with
    /// another value is not the committed one.
    pub head_crc32c: u32,
}

/// The sum of the used lengths of all namespaces of an image, in bytes.
pub fn used_bytes(superblocks: &[Superblock]) -> u64 {
    total(superblocks.iter().map(|superblock| superblock.used_len_bytes))
}

impl Superblock {
    /// The block to write at [`copy_offset`] of the superblock's generation.
    pub fn encode(&self) -> [u8; SUPERBLOCK_BYTES] {
        let mut raw = RawSuperblock {
            magic: MAGIC,
            version: FORMAT_VERSION.into(),
            namespace: self.namespace.into(),
            num_namespaces: self.layout.num_namespaces.into(),
            pack: self.layout.pack.to_byte(),
            uuid: self.layout.uuid.0,
            generation: self.generation.0.into(),
            time_ns: self.time_ns.into(),
            required: REQUIRED_FEATURES.into(),
            optional: self.optional_features.into(),
            placement_seed: self.placement_seed.into(),
            used_len: self.used_len_bytes.into(),
            chunk_size: self.layout.chunk_size_bytes.into(),
            snapshot_namespace: self.snapshot.namespace.into(),
            snapshot_offset: self.snapshot.offset_bytes.into(),
            snapshot_len: self.snapshot.len_bytes.into(),
            snapshot_crc: self.snapshot.head_crc32c.into(),
            num_samples: self.num_samples.into(),
            num_live: self.num_live.into(),
            to_write: self.features_to_write.into(),
            ..RawSuperblock::new_zeroed()
        };
        raw.balance = (!crc32c(&raw.as_bytes()[..BALANCE_OFFSET]) ^ BALANCED).into();
        zerocopy::transmute!(raw)
    }

    /// Decodes one copy from the first 4,096 of `bytes`.
    ///
    /// # Errors
    /// `Magic`: there is no superblock here. `Version`: another release wrote it. `RequiredFeatures`: a later one did.
    /// Other errors: the superblock is damaged.
    pub fn parse(bytes: &[u8]) -> Result<Superblock, FormatError> {
        let raw: RawSuperblock = read_sealed("superblock", MAGIC, bytes)?;
        let unknown = raw.required.get() & !REQUIRED_FEATURES;
        if unknown != 0 {
            return Err(FormatError::RequiredFeatures { unknown });
        }
        raw.decode()
    }

    /// Checks that this release may write to the image.
    ///
    /// # Errors
    /// `FeaturesToWrite`: a later release wrote the image, with a feature that writing would damage.
    pub fn check_writable(&self) -> Result<(), FormatError> {
        match self.features_to_write & !(TYPED_COLUMNS | FIELD_TYPES | ORIGINS) {
            0 => Ok(()),
            unknown => Err(FormatError::FeaturesToWrite { unknown }),
        }
    }

    /// The cells of the snapshot. It begins at the start of a cell: decoding checks this.
    pub fn snapshot_range(&self) -> crate::format::CellRange {
        let cell = self.snapshot.offset_bytes / self.layout.cell_bytes();
        let cells = self.layout.cells_of(self.snapshot.len_bytes);
        crate::format::CellRange { namespace: self.snapshot.namespace, cell, cells }
    }
}

impl RawSuperblock {
    fn decode(&self) -> Result<Superblock, FormatError> {
        let Self { uuid, chunk_size, pack, num_namespaces, .. } = *self;
        let layout = ImageLayout::decode(uuid, chunk_size, pack, num_namespaces)?;
        let last = u64::from(layout.num_namespaces) - 1;
        at_most("index of a namespace", u64::from(self.namespace.get()), last)?;
        at_most("namespace of the snapshot", u64::from(self.snapshot_namespace.get()), last)?;
        at_most("length of a namespace", self.used_len.get(), MAX_NAMESPACE_BYTES)?;
        let offset = self.snapshot_offset.get();
        let len = self.snapshot_len.get();
        at_most("offset of the snapshot within its cell", offset % layout.cell_bytes(), 0)?;
        at_most("length of the snapshot", len, MAX_NAMESPACE_BYTES)?;
        at_most("offset of the snapshot", offset, MAX_NAMESPACE_BYTES - len)?;
        at_most("number of samples", self.num_samples.get(), MAX_SAMPLES)?;
        at_most("number of live samples", self.num_live.get(), self.num_samples.get())?;
        let generation = check_generation(self.generation.get())?;
        Ok(Superblock {
            layout,
            namespace: self.namespace.get(),
            generation,
            time_ns: self.time_ns.get(),
            optional_features: self.optional.get(),
            placement_seed: self.placement_seed.get(),
            used_len_bytes: self.used_len.get(),
            snapshot: SnapshotLocation {
                namespace: self.snapshot_namespace.get(),
                offset_bytes: offset,
                len_bytes: len,
                head_crc32c: self.snapshot_crc.get(),
            },
            num_samples: self.num_samples.get(),
            num_live: self.num_live.get(),
            features_to_write: self.to_write.get(),
        })
    }
}

/// Offset of the copy of `generation`: A for even ones, B for odd ones.
pub fn copy_offset(generation: Generation) -> u64 {
    COPY_OFFSETS[copy_index(generation)]
}

/// Index of the copy of `generation`: 0 for A, 1 for B.
#[doc(hidden)]
pub fn copy_index(generation: Generation) -> usize {
    (generation.0 % 2) as usize
}

/// Optional feature: the other copy was erased on purpose, so it held no newer generation. A rebuild, a purge or an
/// `import --force` sets the bit before it erases the other copy; the next commit clears it.
pub const OTHER_COPY_VOID: u64 = 1;
/// Bit of `features_to_write`: chunks have [typed columns](crate::format::columns). A release that does not know them
/// would lose them when it appends or rewrites a chunk.
pub const TYPED_COLUMNS: u64 = 1;
/// Bit of `features_to_write`: chunks have the [types of fields](crate::format::field_type). A release that does not
/// know them would omit them from the chunks that it writes.
pub const FIELD_TYPES: u64 = 2;
/// Bit of `features_to_write`: the image records its [origins](crate::format::record). A release that does not know
/// them would lose them.
pub const ORIGINS: u64 = 4;
/// Offsets of copies A and B. B is so far from A that one bad or torn large block does not destroy both, and lies in
/// the reserved first 36 KiB.
pub const COPY_OFFSETS: [u64; 2] = [0, 32 << 10];
/// Bytes of one copy.
pub const SUPERBLOCK_BYTES: usize = 4096;
/// Offset of `balance`, in the first 512 bytes.
const BALANCE_OFFSET: usize = 504;
/// The CRC32C register after `balance` that makes the checksum 0: only zeroes follow up to the checksum.
const BALANCED: u32 = register_before(SUPERBLOCK_BYTES - 4 - BALANCE_OFFSET);
const MAGIC: [u8; 8] = *b"DLFSIMG\0";
/// Required features that this build knows: none so far.
const REQUIRED_FEATURES: u64 = 0;

/// The CRC32C register that makes the checksum 0 if this many zero bytes follow.
const fn register_before(zeroes: usize) -> u32 {
    const POLYNOMIAL: u32 = 0x82f6_3b78; // reflected
    let mut register = u32::MAX; // the checksum is its complement
    let mut bits = zeroes * 8;
    while bits > 0 {
        // Run the CRC backwards. A step shifts right, so the highest bit is set only if the step added the polynomial.
        let was_added = register >> 31 == 1;
        register = if was_added { (register ^ POLYNOMIAL) << 1 | 1 } else { register << 1 };
        bits -= 1;
    }
    register
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{Pack, Uuid};

    #[test]
    fn a_write_that_is_torn_after_any_sector_leaves_the_old_superblock_or_the_new_one() {
        let layout = ImageLayout::new(Uuid([3; 16]), 1 << 20, Pack::Tight, 4).unwrap();
        let of_generation = |generation| Superblock {
            layout,
            namespace: 1,
            generation: Generation(generation),
            time_ns: 99 * generation,
            optional_features: 0,
            placement_seed: generation << 40,
            used_len_bytes: 7 << 20,
            snapshot: SnapshotLocation { len_bytes: 4096 * generation, ..Default::default() },
            num_samples: 1000,
            num_live: 1000 - generation,
            features_to_write: 0,
        };
        let old = of_generation(2);
        let new = of_generation(4);
        let blocks = [[0; SUPERBLOCK_BYTES], old.encode(), new.encode()];
        for (before, was) in [(blocks[0], None), (blocks[1], Some(old))] {
            for subset in 0..1u32 << 8 {
                let mut torn = before;
                for sector in (0..8).filter(|sector| subset >> sector & 1 == 1) {
                    let range = sector * 512..(sector + 1) * 512;
                    torn[range.clone()].copy_from_slice(&blocks[2][range]);
                }
                let expected = if subset & 1 == 1 { Some(new) } else { was };
                assert_eq!(Superblock::parse(&torn).ok(), expected, "sectors {subset:08b}");
            }
        }
    }
}
