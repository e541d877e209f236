//! Fuzzes importing onto what lies there, journals and leases included.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| dlfs_fuzz::image::RESUME.check(input));
