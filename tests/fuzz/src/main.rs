//! Fuzzes the target that the variable `DLFS_FUZZ_TARGET` names: one program for all, which is linked once.
#![no_main]

mod jobs;

use std::sync::LazyLock;

use dlfs_fuzz::{TARGETS, Target};

/// `None`: the job files of fio.
static TARGET: LazyLock<Option<&Target>> = LazyLock::new(|| {
    let name = std::env::var("DLFS_FUZZ_TARGET").expect("it names a folder of the corpus");
    let found = TARGETS.iter().copied().find(|target| target.name == name);
    assert!(found.is_some() || name == "job_file", "there is no target {name}");
    found
});

libfuzzer_sys::fuzz_target!(|input: &[u8]| match *TARGET {
    Some(target) => target.check(input),
    None => jobs::job_file(input),
});
