//! The order of names, their common prefixes, and their fingerprints; and the checksum of bytes on media, which other
//! crates take from here.

use std::cmp::Ordering;

pub use dlfs_base::checksum::{crc32c, crc32c_append};

/// The order of names: bytewise, but a slash sorts before all other bytes. So the contents of a folder directly follow
/// its own name, and class folders are in the order of their names.
pub(crate) fn compare(a: &[u8], b: &[u8]) -> Ordering {
    let same = common(a, b);
    let next = |name: &[u8]| name.get(same).map(|byte| if *byte == b'/' { 0 } else { *byte });
    next(a).cmp(&next(b))
}

/// The length of the common prefix of `a` and `b`.
#[inline]
pub fn common(a: &[u8], b: &[u8]) -> usize {
    let len = a.len().min(b.len());
    let words = a[..len].as_chunks::<8>().0.iter().zip(b[..len].as_chunks::<8>().0);
    let mut same = 0;
    for (a, b) in words {
        let differ = u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b);
        if differ != 0 {
            return same + (differ.trailing_zeros() / 8) as usize;
        }
        same += 8;
    }
    same + a[same..len].iter().zip(&b[same..len]).take_while(|(a, b)| a == b).count()
}

/// The fingerprint of a name: the upper half of XXH3-64 with the image's seed. Part of the format.
pub fn fingerprint(seed: u64, name: &[u8]) -> u32 {
    (xxhash_rust::xxh3::xxh3_64_with_seed(name, seed) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slash_sorts_before_all_other_bytes() {
        let mut names = ["a-b/x", "a", "a/z", "a/b/c", "a\u{1}", "", "a/b"].map(str::as_bytes);
        names.sort_by(|a, b| compare(a, b));
        assert_eq!(names, ["", "a", "a/b", "a/b/c", "a/z", "a\u{1}", "a-b/x"].map(str::as_bytes));
    }

    #[test]
    fn the_fingerprint_is_the_published_xxh3_with_seed() {
        // XXH3_64bits("", seed 0) and of "a": xxHash's own sanity values.
        assert_eq!(fingerprint(0, b""), 0x2d06_8005);
        assert_eq!(fingerprint(0, b"a"), 0xe6c6_32b6);
    }
}
