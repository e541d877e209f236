//! Fuzzes what a target does with commands.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| dlfs_fuzz::session::SESSION.check(input));
