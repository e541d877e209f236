//! Fuzzes sizes, tiers and other texts of options.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| dlfs_fuzz::text::OPTION.check(input));
