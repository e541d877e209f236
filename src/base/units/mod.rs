//! Integer types of this library: each unit has its own type, so that units cannot be confused.
//!
//! Values are 1-based and in the unit of their name. 0-based wire values stay in `dlfs-nvme`.

mod deadline;
mod size;

pub use deadline::deadline;
pub use size::parse_size;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[derive(serde::Serialize, serde::Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// Logical block address: an index in logical blocks of the namespace, not in bytes.
    Lba(u64)
}
number! {
    /// Namespace identifier (NSID); the lowest is 1.
    Nsid(u32)
}
number! {
    /// The index of a sample in the order of its source: the id that users see. Equals the index in
    /// torchvision's ImageFolder.
    SampleId(u64)
}
number! {
    /// The index of a sample on media: `slot = P(id)` with the keyed permutation P of its part.
    Slot(u64)
}
number! {
    /// Version of an image: each committed import, append, delete or purge increments it.
    Generation(u64)
}

impl Generation {
    /// The next generation. `dlfs-format` checks that a generation read from media leaves room for it.
    pub fn next(self) -> Generation {
        Generation(self.0 + 1)
    }
}
number! {
    /// A pass over the data set; the first is 0.
    Epoch(u64)
}

/// Alignment in bytes of every structure on media, whatever the block size.
pub const ALIGN_BYTES: usize = 4096;

/// Rounds `value` up to a multiple of `align`, a power of two; `None` if the result overflows `u64`.
pub const fn round_up(value: u64, align: u64) -> Option<u64> {
    match value.checked_add(align - 1) {
        Some(sum) => Some(sum & !(align - 1)),
        None => None,
    }
}

/// The sum of lengths stated by media, peers or sources; `u64::MAX` if it overflows.
pub fn total(lens: impl IntoIterator<Item = u64>) -> u64 {
    lens.into_iter().fold(0, u64::saturating_add)
}
