//! Fuzzes generation records.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| dlfs_fuzz::media::RECORD.check(input));
