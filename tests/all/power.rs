//! Power losses at any moment of any command: afterwards the image is at the previous or the next
//! generation, never in between, and the command can be resumed or repeated.
//!
//! Each test records the writes and flushes of a few commands, generates the images that a power loss may
//! leave (see `power/cuts.rs`), and checks each of them (`power/check.rs`). The seed is printed;
//! `DLFS_POWER_SEED` sets it, and `DLFS_POWER_IMAGES` sets the maximum number of images: each history has
//! an equal share, and most have fewer possible images. `tools/check --all` asks for 260,000 and fails if
//! fewer than 100,000 were checked.

mod check;
mod cuts;
mod disk;
mod scene;

use dlfs::import::Onto;

use check::{Checker, Effort};
use scene::{Scene, Script, Step};

fn effort() -> Effort {
    let number = |name, default| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let images = number("DLFS_POWER_IMAGES", FEW_IMAGES) as usize;
    let sectors = if images > FEW_IMAGES as usize { 10 } else { 5 };
    Effort { images: images / SCENES, sectors, seed: number("DLFS_POWER_SEED", 1) }
}

fn check(script: Script) {
    let scene = Scene::record(script);
    let mut checker = Checker::new(&scene, effort());
    let images = checker.run();
    println!("power loss: {}: {images} images, {:?}", scene.name, checker.counts);
    let failures = checker.failures.join("\n");
    assert!(failures.is_empty(), "{}:\n{failures}", scene.name);
    assert!(images > 20, "only {images} images");
}

fn import(source: usize, onto: Onto, time_ns: u64) -> Step {
    Step::Import { source, onto, time_ns }
}

/// A first import, of source 0.
fn first() -> Step {
    import(0, Onto::Empty, 1_000)
}

fn append() -> Step {
    import(1, Onto::Append, 2_000)
}

fn script(name: &'static str, disks: usize, before: Vec<Step>, steps: Vec<Step>) -> Script {
    Script { name, disks, chunk_size_bytes: 64 << 10, before, destroyed: false, steps }
}

#[test]
fn first_import() {
    check(script("first import", 1, vec![], vec![first()]));
}

#[test]
fn first_import_striped() {
    check(script("first import, striped", 3, vec![], vec![first()]));
}

#[test]
fn append_to_one_generation() {
    check(script("append", 1, vec![first()], vec![append()]));
}

#[test]
fn append_striped_to_several_generations() {
    let before = vec![first(), Step::Delete { every: 3 }, Step::Purge];
    check(script("append, striped", 2, before, vec![append()]));
}

#[test]
fn append_in_large_chunks() {
    let script = script("append, large chunks", 1, vec![first()], vec![append()]);
    check(Script { chunk_size_bytes: 256 << 10, ..script });
}

#[test]
fn import_over_an_older_image() {
    let before = vec![first(), append(), Step::Delete { every: 3 }];
    check(script("force", 1, before, vec![import(2, Onto::Force, 3_000)]));
}

#[test]
fn import_over_an_older_image_striped() {
    let before = vec![first(), Step::Delete { every: 3 }];
    check(script("force, striped", 2, before, vec![import(2, Onto::Force, 3_000)]));
}

#[test]
fn delete() {
    check(script("delete", 2, vec![first(), append()], vec![Step::Delete { every: 3 }]));
}

#[test]
fn purge() {
    // So many chunks that another command's record and snapshot cannot cover what a purge left.
    let more = import(2, Onto::Append, 3_000);
    let before = vec![first(), append(), more, Step::Delete { every: 2 }];
    check(script("purge", 2, before, vec![Step::Purge]));
}

#[test]
fn several_generations_one_after_another() {
    let delete = || Step::Delete { every: 3 };
    let steps = vec![append(), delete(), Step::Purge, import(2, Onto::Append, 1 << 60), delete()];
    check(script("generations", 1, vec![first()], steps));
}

#[test]
fn several_generations_striped() {
    let delete = || Step::Delete { every: 2 };
    let steps = vec![append(), delete(), import(2, Onto::Append, 1 << 60), Step::Purge];
    check(script("generations, striped", 2, vec![first()], steps));
}

#[test]
fn rebuild_of_a_whole_image() {
    let before = vec![first(), append(), Step::Delete { every: 3 }];
    check(script("rebuild, nothing lost", 2, before, vec![Step::Rebuild]));
}

#[test]
fn rebuild_of_lost_superblocks() {
    let before = vec![first(), append(), Step::Delete { every: 3 }];
    let script = script("rebuild, superblocks lost", 2, before, vec![Step::Rebuild]);
    check(Script { destroyed: true, ..script });
}

/// Images in total, by default.
const FEW_IMAGES: u64 = 4_000;

/// Number of tests that share the images.
const SCENES: usize = 13;
