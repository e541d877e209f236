//! Untrusted bytes: every decoder, fed with damaged versions of its input.
//!
//! The targets are those of `tests/fuzz/`, which a coverage-guided fuzzer drives there; here they run in
//! the normal test build, on the corpus and on seeded damage. A target may refuse; it must not
//! panic, and it must not allocate by an unchecked length. More rounds: `DLFS_FUZZ_ROUNDS=1000000
//! cargo test --release --test heap fuzz`; another seed: `DLFS_FUZZ_SEED`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use crate::alone;
use crate::targets::damage::Damage;
use crate::targets::{TARGETS, Target};

fn check(target: &Target, what: &str, bytes: &[u8]) {
    let result = catch_unwind(AssertUnwindSafe(|| target.check(bytes)));
    assert!(result.is_ok(), "{}, {what}: it panicked on {} bytes", target.name, bytes.len());
}

#[test]
fn every_input_of_the_corpus_is_refused_or_taken() {
    let _alone = alone();
    for target in TARGETS {
        let mut files: Vec<PathBuf> = std::fs::read_dir(corpus(target))
            .unwrap_or_else(|error| panic!("{}: {error}", corpus(target).display()))
            .map(|entry| entry.unwrap().path())
            .collect();
        files.sort();
        assert!(files.len() >= 2, "{} has a corpus", target.name);
        for file in files {
            let bytes = std::fs::read(&file).unwrap();
            assert!(bytes.len() <= 4096, "{}: {} bytes", file.display(), bytes.len());
            check(target, &file.display().to_string(), &bytes);
        }
    }
}

/// Each seed unchanged, truncated to many lengths, and damaged in as many ways as there are rounds.
#[test]
fn damaged_inputs_are_refused_or_taken() {
    let _alone = alone();
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let seed = number("DLFS_FUZZ_SEED").unwrap_or(1);
    for target in TARGETS {
        let rounds = number("DLFS_FUZZ_ROUNDS").unwrap_or(target.rounds);
        let valid = (target.seeds)();
        for (number, bytes) in valid.iter().enumerate() {
            check(target, &format!("input {number}"), bytes);
            let cuts = (0..bytes.len().min(300)).step_by(if rounds < 1000 { 7 } else { 1 });
            for len in cuts.take(rounds as usize) {
                check(target, &format!("input {number} cut to {len}"), &bytes[..len]);
            }
        }
        let mut damage = Damage::new(seed);
        for round in 0..rounds {
            let mut bytes = damage.pick(&valid).clone();
            damage.inflict(&mut bytes);
            check(target, &format!("seed {seed}, round {round}"), &bytes);
        }
    }
}

/// Decoders accept valid inputs; otherwise the checks above would hold for a decoder that refuses
/// everything.
#[test]
fn valid_inputs_cost_no_more_than_they_may() {
    let _alone = alone();
    let greedy = Target {
        name: "greedy",
        seeds: Vec::new,
        refit: None,
        run: |_| drop(vec![1_u8; 1 << 20]),
        heap_bytes: 1000,
        rounds: 0,
    };
    let result = catch_unwind(|| greedy.check(&[0; 100]));
    assert!(result.is_err(), "a megabyte for a hundred bytes is too much");
}

fn corpus(target: &Target) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus").join(target.name)
}
