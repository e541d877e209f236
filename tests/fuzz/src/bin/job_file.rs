//! Fuzzes fio's job files.
#![no_main]

#[path = "../jobs.rs"]
mod jobs;

libfuzzer_sys::fuzz_target!(|input: &[u8]| jobs::job_file(input));
