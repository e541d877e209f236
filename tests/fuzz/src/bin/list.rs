//! Fuzzes lists of paths and labels.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| dlfs_fuzz::archives::LIST.check(input));
