//! Integers of this library, each with a type of its own, so that they cannot be confused.
//!
//! Values are 1-based and in the unit of their name; the wire's 0-based forms stay in `nvme` and `tcp`.

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
    /// Namespace identifier (NSID), from 1.
    Nsid(u32)
}
number! {
    /// A sample's rank in its source, the id that users see; ImageFolder's index.
    SampleId(u64)
}
number! {
    /// A sample's rank on media: `slot = P(id)` with the keyed permutation P of its part.
    Slot(u64)
}
number! {
    /// Version of an image: each import, append, delete or purge that commits makes the next one.
    Generation(u64)
}

impl Generation {
    /// The next generation. `format` checks that a generation read from media leaves room for it.
    pub fn next(self) -> Generation {
        Generation(self.0 + 1)
    }
}
number! {
    /// A pass over the data set, counted from 0.
    Epoch(u64)
}

/// Every structure on media begins at a multiple of this many bytes, whatever the block size.
pub const ALIGN_BYTES: usize = 4096;

/// `value` rounded up to a multiple of `align`, a power of two; `None` if that overflows `u64`.
pub const fn round_up(value: u64, align: u64) -> Option<u64> {
    match value.checked_add(align - 1) {
        Some(sum) => Some(sum & !(align - 1)),
        None => None,
    }
}

/// The sum of lengths that media, peers or sources state; `u64::MAX` if it is more.
pub fn total(lens: impl IntoIterator<Item = u64>) -> u64 {
    lens.into_iter().fold(0, u64::saturating_add)
}
