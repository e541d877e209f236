//! The hash of names, which is part of the format, and CRC32C.

pub use dlfs_base::checksum::{crc32c, crc32c_append};

/// The fingerprint of a name: the upper half of XXH3-64 with the image's seed. Part of the format.
pub fn fingerprint(seed: u64, name: &[u8]) -> u32 {
    (xxhash_rust::xxh3::xxh3_64_with_seed(name, seed) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fingerprint_is_the_published_xxh3_with_seed() {
        // XXH3_64bits("", seed 0) and of "a": xxHash's own sanity values.
        assert_eq!(fingerprint(0, b""), 0x2d06_8005);
        assert_eq!(fingerprint(0, b"a"), 0xe6c6_32b6);
    }
}
