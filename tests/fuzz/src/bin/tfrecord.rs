//! Fuzzes TFRecord shards.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| dlfs_fuzz::archives::TFRECORD.check(input));
