//! Fuzzes deleting from and purging images that lie.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| dlfs_fuzz::image::EDIT.check(input));
