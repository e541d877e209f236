//! Fuzzes addresses and NQNs.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| dlfs_fuzz::text::ADDRESS.check(input));
