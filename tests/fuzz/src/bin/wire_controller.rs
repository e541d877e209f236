//! Fuzzes the controller side of a connection.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| dlfs_fuzz::wire::WIRE_CONTROLLER.check(input));
