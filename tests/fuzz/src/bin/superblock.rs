//! Fuzzes superblocks.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| dlfs_fuzz::media::SUPERBLOCK.check(input));
