//! Bytes that nobody meant: every decoder, fed with damaged versions of what it reads.
//!
//! A decoder may refuse; it may not panic, and it may not allocate by a length that it has not checked.
//! Damage is seeded, and on media the checksums are made right again behind it, so that it reaches the
//! arithmetic: a CRC stops accidents, not an adversary. More rounds: `DLFS_FUZZ_ROUNDS=1000000 cargo
//! test --release --test fuzz`; another seed: `DLFS_FUZZ_SEED`.

#[path = "fuzz/archives.rs"]
mod archives;
#[path = "support/counting_alloc.rs"]
mod counting_alloc;
#[path = "fuzz/damage.rs"]
mod damage;
mod images;
#[path = "fuzz/media.rs"]
mod media;
#[path = "fuzz/text.rs"]
mod text;
#[path = "fuzz/wire.rs"]
mod wire;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use counting_alloc::CountingAlloc;
use damage::Damage;

#[global_allocator]
static ALLOC: CountingAlloc = CountingAlloc;

/// Feeds `decode` with each seed as it is, cut short at every length of its head, and damaged in as
/// many ways as there are rounds; `refit` makes checksums right again.
///
/// One at a time: the peak of the heap is the whole process's.
fn fuzz(seeds: impl FnOnce() -> Vec<Vec<u8>>, refit: impl Fn(&mut [u8]), decode: impl Fn(&[u8])) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let number = |name, default| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let valid = seeds();
    let (rounds, seed) = (number("DLFS_FUZZ_ROUNDS", 3_000), number("DLFS_FUZZ_SEED", 1));
    let check = |what: &str, bytes: &[u8]| {
        let decode = || catch_unwind(AssertUnwindSafe(|| decode(bytes)));
        let (grown, result) = counting_alloc::peak_during(decode);
        assert!(result.is_ok(), "seed {seed}, {what}: it panicked on {} bytes", bytes.len());
        let limit = 64 * bytes.len() + (1 << 20);
        assert!(
            grown <= limit,
            "seed {seed}, {what}: {grown} bytes of heap for {} of input",
            bytes.len()
        );
    };
    for (number, bytes) in valid.iter().enumerate() {
        check(&format!("input {number}"), bytes);
        for len in 0..bytes.len().min(300) {
            check(&format!("input {number} cut to {len}"), &bytes[..len]);
        }
    }
    let mut damage = Damage::new(seed);
    for round in 0..rounds {
        let mut bytes = damage.pick(&valid).clone();
        damage.inflict(&mut bytes);
        check(&format!("round {round}"), &bytes);
        refit(&mut bytes);
        check(&format!("round {round}, refitted"), &bytes);
    }
}

fn as_it_is(_: &mut [u8]) {}

#[test]
fn damaged_superblocks_are_refused_or_read() {
    fuzz(media::superblocks, media::refit_block, media::superblock);
}

#[test]
fn damaged_chunk_headers_are_refused_or_read() {
    fuzz(media::chunks, media::refit_chunk, media::chunk);
}

#[test]
fn damaged_generation_records_are_refused_or_read() {
    fuzz(media::records, media::refit_chunk, media::record);
}

#[test]
fn damaged_snapshots_are_refused_or_answer_every_question() {
    fuzz(media::snapshots, media::refit_snapshot, media::snapshot);
}

#[test]
fn damaged_responses_end_a_host_connection_or_are_taken() {
    fuzz(wire::responses, as_it_is, wire::host);
}

#[test]
fn damaged_requests_end_a_controller_connection_or_are_taken() {
    fuzz(wire::requests, as_it_is, wire::controller);
}

#[test]
fn damaged_admin_data_are_refused_or_read() {
    fuzz(wire::admin_data, as_it_is, wire::admin);
}

#[test]
fn damaged_addresses_names_and_states_are_refused_or_read() {
    fuzz(text::texts, as_it_is, text::parse);
}

#[test]
fn damaged_archives_are_refused_or_imported() {
    fuzz(archives::archives, as_it_is, archives::import);
}
