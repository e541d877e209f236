//! Fuzzes compressed archives.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| dlfs_fuzz::archives::GZIP.check(input));
