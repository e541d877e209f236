//! CRC32C (Castagnoli), the one checksum of the format, and the frozen hash of names.

/// CRC32C of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    ::crc32c::crc32c(bytes)
}

/// CRC32C of what `crc` was taken of, followed by `bytes`.
pub fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    ::crc32c::crc32c_append(crc, bytes)
}

/// The fingerprint of a name: the upper half of XXH3-64 with the image's seed. Part of the format.
pub fn fingerprint(seed: u64, name: &[u8]) -> u32 {
    (xxhash_rust::xxh3::xxh3_64_with_seed(name, seed) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc32c_gives_the_check_value_of_its_catalogue_in_one_piece_and_in_two() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c_append(crc32c(b"1234"), b"56789"), 0xe306_9283);
    }

    #[test]
    fn the_fingerprint_is_the_published_xxh3_with_seed() {
        // XXH3_64bits("", seed 0) and of "a": xxHash's own sanity values.
        assert_eq!(fingerprint(0, b""), 0x2d06_8005);
        assert_eq!(fingerprint(0, b"a"), 0xe6c6_32b6);
    }
}
