//! Fuzzes the state of a run.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| dlfs_fuzz::text::STATE.check(input));
