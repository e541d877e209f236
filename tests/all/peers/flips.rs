//! Bits of copies that flip where they are kept, in files and in memory.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

use crate::support::alone::ran_alone;
use dlfs::order::{OrderKind, Sharding};
use dlfs::tier::PAGE_BYTES;

use super::{Node, Origin, nodes, nodes_on, read_all, room_of_each, wait_until};
use crate::support::random::Random;

#[test]
fn bytes_that_flip_in_a_holders_file_are_never_delivered() {
    let origin = Origin::new(39, 1_000, 20_000);
    let nodes = nodes(&origin, 3, 1.5);
    let tier_of = |rank| fs::read_dir(origin.tier(rank)).unwrap().next().unwrap().unwrap().path();
    flip(&origin, &nodes, || (0..3).map(tier_of).collect());
}

/// Also while its peers have borrowed them.
#[test]
fn bytes_that_flip_in_a_holders_memory_are_never_delivered() {
    if ran_alone(bytes_that_flip_in_a_holders_memory_are_never_delivered) {
        return;
    }
    let origin = Origin::new(42, 1_000, 20_000);
    let room_bytes = room_of_each(&origin, 3, 1.5);
    let how = (OrderKind::Global, Sharding::Strided);
    let nodes = nodes_on(&origin, 3, how, |_| format!("ram:{room_bytes}"));
    flip(&origin, &nodes, || {
        // By inode: a memory file may have several descriptors.
        let mut tiers = BTreeMap::new();
        for entry in fs::read_dir("/proc/self/fd").unwrap() {
            let path = entry.unwrap().path();
            let name = fs::read_link(&path).unwrap_or_default();
            if name.to_string_lossy().starts_with("/memfd:dlfs")
                && let Ok(found) = fs::metadata(&path)
                // Other shared files, which hold tables of copies, are shorter.
                && found.len() >= room_bytes
            {
                tiers.insert(found.ino(), path);
            }
        }
        assert_eq!(tiers.len(), 3);
        tiers.into_values().collect()
    });
}

/// Flips single bits of the nodes' copies, which lie in `files`: a tenth of them before each of ten epochs.
fn flip(origin: &Origin, nodes: &[Node], files: impl FnOnce() -> Vec<PathBuf>) {
    let num: u64 =
        std::env::var("DLFS_TEST_FLIPS").map_or(300, |num| num.parse().expect("a number"));
    read_all(origin, nodes, 0..1);
    wait_until("all copies", || nodes.iter().all(|node| node.image.tiers().unwrap().is_settled()));
    let mut random = Random::new(40);
    let open = |path| fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let files: Vec<fs::File> = files().into_iter().map(open).collect();
    for epoch in 1..11 {
        let mut flipped = 0;
        while flipped < num / 10 {
            let file = &files[random.below(3) as usize];
            let len = file.metadata().unwrap().len();
            let at = 16 * PAGE_BYTES + random.below(len - 16 * PAGE_BYTES);
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            // Most zeroes are holes, where there is no copy.
            if byte[0] != 0 {
                file.write_all_at(&[byte[0] ^ 1 << random.below(8)], at).unwrap();
                flipped += 1;
            }
        }
        read_all(origin, nodes, epoch..epoch + 1);
    }
    let mismatched: u64 = nodes.iter().map(|node| node.stats().mismatched_bytes).sum();
    println!("{num} bytes flipped, {mismatched} bytes differed on their way, none was delivered");
    assert!(mismatched > 0);
}
