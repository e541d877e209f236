//! The geometry of an image: format version, cells, cell ranges, extents, and limits.

use zerocopy::FromBytes;

use crate::format::FormatError;
use crate::format::Uuid;
use crate::format::checksum::crc32c;
use crate::format::error::{at_most, enough, equal, out_of_range};
use crate::format::packing::Pack;
use dlfs_base::units::Generation;

/// Location of a sample's bytes, and their expected checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Extent {
    /// First byte within the namespace.
    pub offset_bytes: u64,
    /// Length of the record.
    pub len_bytes: u32,
    /// CRC32C of the record.
    pub crc32c: u32,
    /// Index of the namespace in the image, from 0.
    pub namespace: u16,
}

/// Consecutive cells that hold one chunk, generation record or snapshot.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Default,
    serde::Serialize,
    serde::Deserialize,
)]
pub struct CellRange {
    /// Index of the namespace.
    pub namespace: u16,
    /// First cell.
    pub cell: u64,
    /// Number of cells.
    pub cells: u64,
}

/// Properties of the whole image that never change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct ImageLayout {
    /// UUID of the image.
    pub uuid: Uuid,
    /// Maximum length of a chunk: a power of two between [`MIN_CHUNK_BYTES`] and [`MAX_CHUNK_BYTES`]. Only a chunk of
    /// one oversize sample is longer.
    pub chunk_size_bytes: u32,
    /// Packing rule of the samples in a chunk.
    pub pack: Pack,
    /// Number of namespaces.
    pub num_namespaces: u16,
}

impl ImageLayout {
    /// A layout, if the numbers are valid.
    ///
    /// # Errors
    /// `OutOfRange`: there is no namespace, or the chunk size is not a power of two or out of bounds.
    pub fn new(
        uuid: Uuid,
        chunk_size_bytes: u32,
        pack: Pack,
        num_namespaces: u16,
    ) -> Result<ImageLayout, FormatError> {
        check_chunk_size(chunk_size_bytes)?;
        if num_namespaces == 0 {
            return Err(out_of_range("number of namespaces", 0u64, 65_535));
        }
        Ok(ImageLayout { uuid, chunk_size_bytes, pack, num_namespaces })
    }

    /// Length of a cell, the unit of allocation.
    #[inline]
    pub fn cell_bytes(&self) -> u64 {
        CELL_BYTES
    }

    /// The first cell after the reserved ones.
    pub fn first_cell(&self) -> u64 {
        SUPERBLOCK_CELLS
    }

    /// Offset of `cell` in bytes.
    ///
    /// # Errors
    /// `OutOfRange`: the cell ends at or above 2^63 bytes.
    pub fn offset_of(&self, cell: u64) -> Result<u64, FormatError> {
        let size = self.cell_bytes();
        at_most("cell", cell, (MAX_NAMESPACE_BYTES / size).saturating_sub(1))?;
        Ok(cell * size)
    }

    /// The number of cells that `len_bytes` occupy.
    pub fn cells_of(&self, len_bytes: u64) -> u64 {
        len_bytes.div_ceil(self.cell_bytes())
    }

    /// Whole cells in a namespace of `len_bytes`, reserved ones included.
    pub fn capacity_cells(&self, len_bytes: u64) -> u64 {
        len_bytes.min(MAX_NAMESPACE_BYTES) / self.cell_bytes()
    }

    /// The maximum header size of a chunk: a quarter of the chunk.
    pub(crate) fn max_header_bytes(&self) -> u32 {
        self.chunk_size_bytes / 4
    }

    /// The maximum length of a chunk's decoded names together. Names are front-coded on media, so without this limit a
    /// small header could decode to huge names.
    pub(crate) fn max_names_bytes(&self) -> u64 {
        u64::from(self.chunk_size_bytes) * 4
    }
}

/// Checks that `bytes` is a valid chunk size.
pub(crate) fn check_chunk_size(bytes: u32) -> Result<(), FormatError> {
    if !bytes.is_power_of_two() || bytes < MIN_CHUNK_BYTES {
        return Err(out_of_range("chunk size", bytes, MIN_CHUNK_BYTES.into()));
    }
    at_most("chunk size", u64::from(bytes), u64::from(MAX_CHUNK_BYTES))?;
    Ok(())
}

/// Checks that `found`, the image layout in structure `what`, equals `expected`.
#[doc(hidden)]
pub fn check_layout(
    what: &'static str,
    expected: &ImageLayout,
    found: &ImageLayout,
) -> Result<(), FormatError> {
    if expected.uuid != found.uuid {
        let expected = expected.uuid;
        let found = found.uuid;
        return Err(FormatError::OtherImage { what, expected, found });
    }
    let numbers = |layout: &ImageLayout| {
        let ImageLayout { chunk_size_bytes, pack, num_namespaces, .. } = layout;
        [u64::from(*chunk_size_bytes), u64::from(*num_namespaces), u64::from(pack.to_byte())]
    };
    let names = ["chunk size", "number of namespaces", "packing"];
    let pairs = numbers(expected).into_iter().zip(numbers(found));
    names
        .into_iter()
        .zip(pairs)
        .try_for_each(|(name, (expected, found))| equal(name, expected, found))
}

/// Reads a structure from the front of `bytes`. It begins with `magic` and the version, and ends with its CRC32C.
///
/// # Errors
/// `Truncated`, `Magic`: the structure is not there. `Checksum`: it is damaged. `Version`: it has another format
/// version.
#[doc(hidden)]
pub fn read_sealed<T: FromBytes>(
    what: &'static str,
    magic: [u8; 8],
    bytes: &[u8],
) -> Result<T, FormatError> {
    enough(what, size_of::<T>() as u64, bytes.len())?;
    let bytes = &bytes[..size_of::<T>()];
    if !bytes.starts_with(&magic) {
        return Err(FormatError::Magic { what });
    }
    let (sealed, crc) = bytes.split_last_chunk().expect("a structure with a checksum");
    let expected = u32::from_le_bytes(*crc);
    let found = crc32c(sealed);
    if expected != found {
        return Err(FormatError::Checksum { what, expected, found });
    }
    let found = u16::from_le_bytes([bytes[8], bytes[9]]);
    if found != FORMAT_VERSION {
        return Err(FormatError::Version { what, found, known: FORMAT_VERSION });
    }
    Ok(T::read_from_bytes(bytes).expect("as many bytes as it has"))
}

/// Checks that `generation` is a valid number of a committed generation: 1 to `MAX_GENERATION`.
#[doc(hidden)]
pub fn check_generation(generation: u64) -> Result<Generation, FormatError> {
    match generation {
        1..=MAX_GENERATION => Ok(Generation(generation)),
        _ => Err(out_of_range("generation", generation, MAX_GENERATION)),
    }
}

/// Format version, stored in every structure of a generation.
pub const FORMAT_VERSION: u16 = 2;
/// The smallest chunk size. A name of 4,096 bytes still fits into its header: a quarter of the chunk.
pub const MIN_CHUNK_BYTES: u32 = 64 << 10;
/// Length of a cell.
pub const CELL_BYTES: u64 = 4096;
/// Reserved cells: the first 36 KiB, for the superblock copies and the states of an unfinished import.
pub(crate) const SUPERBLOCK_CELLS: u64 = 9;
/// The largest chunk size.
pub const MAX_CHUNK_BYTES: u32 = 256 << 20;
/// The default chunk size. Reads of 1 MiB already reach the bandwidth of drive and link; a chunk is four times as long
/// to hold enough samples for a good shuffle.
pub const DEFAULT_CHUNK_BYTES: u32 = 4 << 20;
/// The largest generation number of an image.
pub(crate) const MAX_GENERATION: u64 = i64::MAX as u64;
/// Maximum samples of an image.
pub const MAX_SAMPLES: u64 = 1 << 40;
/// Maximum bytes of a sample.
pub const MAX_SAMPLE_BYTES: u64 = u32::MAX as u64;
/// Maximum bytes of a namespace: 2^63 - 1, so that every offset fits in an `off_t`.
pub const MAX_NAMESPACE_BYTES: u64 = i64::MAX as u64;
/// Maximum bytes of a name.
pub const MAX_NAME_BYTES: usize = 4096;
/// Maximum samples of a chunk.
pub(crate) const MAX_CHUNK_SAMPLES: u32 = 65_535;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_of_two_to_the_63_less_one_bytes_is_addressed_to_its_last_whole_cell() {
        let layout = ImageLayout::new(Uuid::default(), 4 << 20, Pack::Aligned, 1).unwrap();
        let cells = layout.capacity_cells(u64::MAX);
        assert_eq!(cells, (1 << 51) - 1);
        assert_eq!(layout.offset_of(cells - 1), Ok((cells - 1) << 12));
        assert!(layout.offset_of(cells).is_err());
        assert!(layout.offset_of(u64::MAX).is_err());
    }

    #[test]
    fn impossible_layouts_are_refused() {
        for bytes in [0, 1, 4096, 32 << 10, (64 << 10) + 1, 512 << 20, u32::MAX] {
            assert!(ImageLayout::new(Uuid::default(), bytes, Pack::Tight, 1).is_err(), "{bytes}");
        }
        assert!(ImageLayout::new(Uuid::default(), 4 << 20, Pack::Tight, 0).is_err());
    }
}
