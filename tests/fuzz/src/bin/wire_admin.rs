//! Fuzzes the data of admin commands.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| dlfs_fuzz::wire::WIRE_ADMIN.check(input));
