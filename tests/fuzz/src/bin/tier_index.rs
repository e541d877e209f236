//! Fuzzes the index of a tier.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| dlfs_fuzz::tiers::TIER_INDEX.check(input));
