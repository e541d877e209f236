//! Fuzzes files of rows: shards with tables of offsets, their indexes, JSON Lines.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| dlfs_fuzz::rows::ROWS.check(input));
