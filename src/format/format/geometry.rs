//! The geometry of an image: cells, cell ranges, extents, and limits.
//!
//! A packing rule ([`Pack`]) determines the offsets of samples in a chunk. A map from sample ids to slots
//! ([`Placement`]) determines their chunks; each [`Part`] has its own map.

use serde::{Deserialize, Serialize};
use zerocopy::little_endian::{U16, U32};

use crate::format::error::{at_most, equal, in_range, out_of_range};
use crate::format::{FormatError, Uuid};
use dlfs_base::permutation::{Key, Permutation};
use dlfs_base::units::{ALIGN_BYTES, Generation, SampleId, Slot};

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
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
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
        in_range(num_namespaces > 0, "number of namespaces", 0u64, 65_535)?;
        Ok(ImageLayout { uuid, chunk_size_bytes, pack, num_namespaces })
    }

    /// The layout in the fields of a structure on media.
    pub(crate) fn decode(
        uuid: [u8; 16],
        chunk_size: U32,
        pack: u8,
        num_namespaces: U16,
    ) -> Result<ImageLayout, FormatError> {
        let pack = Pack::from_byte(pack)?;
        ImageLayout::new(Uuid(uuid), chunk_size.get(), pack, num_namespaces.get())
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
    let is_possible = bytes.is_power_of_two() && bytes >= MIN_CHUNK_BYTES;
    in_range(is_possible, "chunk size", bytes, MIN_CHUNK_BYTES.into())?;
    in_range(bytes <= MAX_CHUNK_BYTES, "chunk size", bytes, MAX_CHUNK_BYTES.into())
}

/// Checks that `found`, the image layout in structure `what`, equals `expected`.
#[doc(hidden)]
pub fn check_layout(
    what: &'static str,
    expected: &ImageLayout,
    found: &ImageLayout,
) -> Result<(), FormatError> {
    if expected.uuid != found.uuid {
        let [expected, found] = [expected.uuid, found.uuid];
        return Err(FormatError::OtherImage { what, expected, found });
    }
    equal("chunk size", expected.chunk_size_bytes.into(), found.chunk_size_bytes.into())?;
    equal("number of namespaces", expected.num_namespaces.into(), found.num_namespaces.into())?;
    equal("packing", expected.pack.to_byte().into(), found.pack.to_byte().into())
}

/// Checks that `generation` is a valid number of a committed generation: 1 to `MAX_GENERATION`.
#[doc(hidden)]
pub fn check_generation(generation: u64) -> Result<Generation, FormatError> {
    let is_valid = (1..=MAX_GENERATION).contains(&generation);
    in_range(is_valid, "generation", generation, MAX_GENERATION).map(|()| Generation(generation))
}

/// The packing rule of a chunk's samples. Part of the format: the directory stores only lengths, and computes offsets
/// by this rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Pack {
    /// A sample begins at the next 4,096-byte boundary if it then touches one block less, and if the padding is at most
    /// 1/8 of its length. A read of one sample then transfers one block less. Otherwise it begins where the previous
    /// one ends.
    #[default]
    #[cfg_attr(
        feature = "clap",
        value(
            help = "No sample touches more blocks than its length needs, at the cost of at most 1/8 of padding"
        )
    )]
    Aligned,
    /// No padding
    ///
    /// Each sample begins where the previous one ends.
    Tight,
    /// Each sample begins at a multiple of 4,096. Never on media: used for a folder that is read without an import.
    #[cfg_attr(feature = "clap", value(skip))]
    #[serde(skip)]
    Paged,
}

impl Pack {
    /// The start of a sample of `len` bytes after one that ends at `at`. Both are relative to the start of the chunk's
    /// data, which is a multiple of 4,096.
    #[inline]
    pub(crate) fn next_start(self, at: u64, len: u32) -> u64 {
        match self {
            Pack::Tight => at,
            Pack::Paged => (at + BLOCK - 1) & !(BLOCK - 1),
            Pack::Aligned => {
                let within = at & (BLOCK - 1);
                let touched = within + u64::from(len);
                let needed = (u64::from(len) + BLOCK - 1) & !(BLOCK - 1);
                let padding = BLOCK - within;
                let better = touched > needed && padding * 8 <= u64::from(len);
                if better { at + padding } else { at }
            }
        }
    }

    /// The byte on media that encodes this rule.
    pub(crate) fn to_byte(self) -> u8 {
        match self {
            Pack::Aligned => 0,
            Pack::Tight => 1,
            Pack::Paged => 2, // rejected by every reader
        }
    }

    /// Decodes the byte on media.
    pub(crate) fn from_byte(byte: u8) -> Result<Pack, FormatError> {
        match byte {
            0 => Ok(Pack::Aligned),
            1 => Ok(Pack::Tight),
            _ => Err(out_of_range("pack mode", byte, 1)),
        }
    }
}

/// The samples of one import or append; of an import by many processes, those of one namespace or writer; of a program
/// that writes samples in windows, those of one window. Their ids are a contiguous range. Their slots are the same
/// range of numbers, in another order if they are shuffled.
///
/// `window`, the shuffle window, determines how ids map to slots. 0 keeps source order. Otherwise the part is
/// divided into windows of that many samples (the last one may be shorter), and a keyed permutation shuffles each
/// window. A shuffled import of a source of known length uses one window for the whole part. A stream is shuffled in
/// memory before ids are assigned, so its window is 0 or 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Part {
    /// First id, and first slot.
    pub first: u64,
    /// Number of samples, deleted and purged ones included.
    pub count: u64,
    /// Seed of the shuffle.
    pub seed: u64,
    /// Samples that are shuffled together; 0 keeps source order.
    pub window: u64,
}

impl Part {
    /// The same part with count 0, as in a chunk's head, which does not store the count.
    #[must_use]
    pub fn uncounted(self) -> Part {
        Part { count: 0, ..self }
    }

    /// Checks that the part's ids are valid.
    pub fn check(&self) -> Result<(), FormatError> {
        at_most("first id of a part", self.first, MAX_SAMPLES)?;
        at_most("samples of a part", self.count, MAX_SAMPLES - self.first)?;
        Ok(())
    }
}

/// A [`Part`] with its permutation: maps ids to slots and back, in tens of nanoseconds.
#[derive(Debug, Clone)]
pub struct Placement {
    part: Part,
    /// The permutation, if the part has a single window.
    whole: Option<Permutation>,
}

impl Placement {
    /// The placement of `part`, which must pass [`Part::check`].
    pub fn new(part: Part) -> Placement {
        let one_window = part.window != 0 && part.window >= part.count;
        let whole = one_window.then(|| permutation(part.seed, 0, part.count));
        Placement { part, whole }
    }

    /// The part.
    pub fn part(&self) -> &Part {
        &self.part
    }

    /// Returns whether the part contains this id, or slot: both are the same range.
    #[inline]
    pub fn contains(&self, id: u64) -> bool {
        id.wrapping_sub(self.part.first) < self.part.count
    }

    /// The slot of the sample with `id`.
    ///
    /// # Panics
    /// If the part does not contain `id`.
    #[inline]
    pub fn slot_of(&self, id: SampleId) -> Slot {
        Slot(self.map(id.0, Permutation::forward))
    }

    /// The id of the sample at `slot`. An import calls this to find the sample to write next.
    ///
    /// # Panics
    /// If the part does not contain `slot`.
    #[inline]
    pub fn id_at(&self, slot: Slot) -> SampleId {
        SampleId(self.map(slot.0, Permutation::inverse))
    }

    #[inline]
    fn map(&self, number: u64, through: impl Fn(&Permutation, u64) -> u64) -> u64 {
        assert!(self.contains(number), "{number} is not of this part");
        let local = number - self.part.first;
        match &self.whole {
            Some(permutation) => self.part.first + through(permutation, local),
            None if self.part.window == 0 => number,
            None => {
                let index = local / self.part.window;
                let start = index * self.part.window;
                let len = self.part.window.min(self.part.count - start);
                let permutation = permutation(self.part.seed, index, len);
                self.part.first + start + through(&permutation, local - start)
            }
        }
    }
}

/// The permutation of shuffle window `index`. Part of the format: it must never change.
fn permutation(seed: u64, index: u64, len: u64) -> Permutation {
    Permutation::new(len, Key::derive(seed, &[PLACEMENT, index]))
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

const BLOCK: u64 = ALIGN_BYTES as u64;

/// Domain separator for keys of placements: "place" in ASCII.
const PLACEMENT: u64 = 0x70_6c61_6365;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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

    #[test]
    fn a_sample_moves_to_the_next_block_only_when_that_saves_one_for_an_eighth_of_it() {
        let next_start = |at, len| Pack::Aligned.next_start(at, len);
        assert_eq!(next_start(0, 5000), 0);
        assert_eq!(next_start(3192, 5000), 3192); // ends exactly with its second block
        assert_eq!(next_start(3193, 5000), 3193); // would touch three; 903 bytes are more than 625
        assert_eq!(next_start(4000, 5000), 4096); // would touch three; 96 bytes are few
        assert_eq!(next_start(4000, 100), 4096 - 96); // an eighth of 100 is not 96
        assert_eq!(next_start(4095, 8), 4096);
        assert_eq!(next_start(4095, 0), 4095);
        assert_eq!(next_start(u64::from(u32::MAX) * 3, u32::MAX), u64::from(u32::MAX) * 3 + 3);
    }

    proptest! {
        #[test]
        fn padding_is_at_most_an_eighth_and_always_saves_a_block(at in 0u64..1 << 40, len: u32) {
            let blocks = |start: u64| (start + u64::from(len)).div_ceil(BLOCK) - start / BLOCK;
            let start = Pack::Aligned.next_start(at, len);
            prop_assert!(start >= at && (start - at) * 8 <= u64::from(len));
            if start > at {
                prop_assert_eq!(blocks(start), u64::from(len).div_ceil(BLOCK));
                prop_assert!(blocks(at) > blocks(start));
            }
            prop_assert_eq!(Pack::Tight.next_start(at, len), at);
            prop_assert_eq!(Pack::Paged.next_start(at, len), at.next_multiple_of(BLOCK));
        }
    }

    fn check_is_a_bijection(part: Part) {
        let placement = Placement::new(part);
        let mut seen = vec![false; part.count as usize];
        for id in part.first..part.first + part.count {
            let slot = placement.slot_of(SampleId(id));
            assert!(placement.contains(slot.0));
            assert!(!std::mem::replace(&mut seen[(slot.0 - part.first) as usize], true));
            assert_eq!(placement.id_at(slot), SampleId(id));
            if part.window > 0 {
                let window = |n: u64| (n - part.first) / part.window;
                assert_eq!(window(id), window(slot.0), "a sample leaves its window");
            }
        }
    }

    #[test]
    fn id_to_slot_and_slot_to_id_are_inverse_in_every_kind_of_part() {
        for (count, window) in [(0, 0), (1, 1), (1000, 0), (1000, 1000), (1000, 96), (10, 1 << 40)]
        {
            check_is_a_bijection(Part { first: 77, count, seed: 5, window });
        }
    }

    #[test]
    fn the_last_sample_of_the_largest_image_has_a_place() {
        for window in [0, 1 << 20, 1 << 40] {
            let part = Part { first: 0, count: MAX_SAMPLES, seed: 1, window };
            part.check().unwrap();
            let placement = Placement::new(part);
            let last = SampleId(MAX_SAMPLES - 1);
            assert_eq!(placement.id_at(placement.slot_of(last)), last);
        }
        assert!(Part { first: 1, count: MAX_SAMPLES, seed: 0, window: 0 }.check().is_err());
        assert!(Part { first: u64::MAX, count: 1, seed: 0, window: 0 }.check().is_err());
    }
}
