//! Units: an integer type for each, so that they cannot be confused, and arithmetic on lengths and times.
//!
//! The 0-based counts of NVMe's wire format, where 7 means 8 blocks, stay in `dlfs-nvme`.

use std::time::{Duration, Instant};

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
    /// The index of a sample in the order of its source, from 0: the id that users see. For a folder, equals the index
    /// in torchvision's ImageFolder.
    SampleId(u64)
}

number! {
    /// The index of a sample on media: `slot = P(id)` with the keyed permutation P of its part.
    Slot(u64)
}

number! {
    /// Version of an image: the first is 1, and each committed append, delete or purge increments it.
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

/// The time `limit` after `now`. Caps `limit` at a century, since adding a larger value could overflow the
/// clock, which panics.
pub fn deadline(now: Instant, limit: Duration) -> Instant {
    now + limit.min(FOREVER)
}

/// Parses a size with the units of dd: `K`, `M`, ... `E` and `KiB`, `MiB`, ... are powers of 1,024; `KB`,
/// `MB`, ... are powers of 1,000; `B` and no unit are bytes. Case does not matter.
///
/// # Errors
/// A sentence for users: not a number, an unknown unit, or 2^64 bytes or more.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| NOT_A_SIZE.to_owned())?;
    let factor = factor_of(unit.trim()).ok_or_else(|| NOT_A_SIZE.to_owned())?;
    number.checked_mul(factor).ok_or_else(|| "more than 2^64 - 1 bytes".to_owned())
}

fn factor_of(unit: &str) -> Option<u64> {
    let unit = unit.to_ascii_uppercase();
    let (letter, rest) = match unit.as_str() {
        "" | "B" => return Some(1),
        unit => unit.split_at_checked(1)?,
    };
    let power = 1 + "KMGTPE".find(letter)? as u32;
    match rest {
        "" | "IB" => Some(1024_u64.pow(power)),
        "B" => Some(1000_u64.pow(power)),
        _ => None,
    }
}

/// A century: longer than any process runs. Caps the limits of [`deadline`].
const FOREVER: Duration = Duration::from_secs(100 * 365 * 86_400);
const NOT_A_SIZE: &str = "not a size; examples: 4096, 4M, 256MiB, 1G, 100MB";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_infinite_limit_is_a_deadline_that_never_comes() {
        let now = Instant::now();
        assert_eq!(deadline(now, Duration::from_secs(5)) - now, Duration::from_secs(5));
        assert_eq!(deadline(now, Duration::MAX) - now, FOREVER);
    }

    #[test]
    fn binary_and_decimal_units_follow_dd() {
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("4M"), Ok(4 << 20));
        assert_eq!(parse_size("256MiB"), Ok(256 << 20));
        assert_eq!(parse_size("1g"), Ok(1 << 30));
        assert_eq!(parse_size("100MB"), Ok(100_000_000));
        assert_eq!(parse_size("2 kib"), Ok(2048));
        assert_eq!(parse_size("0"), Ok(0));
        assert_eq!(parse_size("15E"), Ok(15 << 60));
    }

    #[test]
    fn an_invalid_size_is_refused_with_examples() {
        for text in ["", "M", "4X", "4MBs", "-1", "1.5G", "4é", "0x10"] {
            assert!(parse_size(text).unwrap_err().contains("256MiB"), "{text}");
        }
        assert!(parse_size("16E").unwrap_err().contains("2^64"));
    }
}
