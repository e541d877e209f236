//! Copies that a node has made of what others hold.

use std::fs;
use std::os::unix::fs::FileExt;

use super::slow::beside_rank_0;
use super::{Origin, SampleId, nodes, read_all, wait_until};
use crate::import_support::wire::Wire;

#[test]
fn what_a_node_has_kept_while_its_holder_was_away_is_not_read_from_it_again() {
    let origin = Origin::new(48, 600, 20_000);
    let nodes = nodes(&origin, 2, 3.);
    read_all(&origin, &nodes, 0..1);
    wait_until("all copies", || nodes.iter().all(|node| node.image.tiers().unwrap().is_settled()));
    let wire = Wire::to(nodes[1].address());
    fs::create_dir(origin.tier(2)).unwrap();
    let tier = format!("file:{}:64M", origin.tier(2).display());
    let reader = beside_rank_0(&origin, &nodes, &wire, &tier);
    let ids = reader.ids_in(&reader.chunks_of(1));
    let (kept, others) = ids.split_at(ids.len() / 2);
    let from_peer = || reader.stats().nodes.iter().map(|node| node.bytes).sum::<u64>();

    wire.hold();
    reader.read_ids(&origin, kept);
    let cache = reader.image.tiers().unwrap();
    wait_until("its own copies", || cache.is_settled() && reader.held_bytes() > 0);
    wire.go_on();
    let mut others = others.iter().cycle();
    wait_until("the holder to be back", || {
        reader.read_ids(&origin, &[*others.next().unwrap()]);
        from_peer() > 0
    });

    let origin_sent = || origin.target.stats().read_bytes;
    wait_until("the copier", || cache.is_settled());
    let before = from_peer();
    let sent_before = origin_sent();
    let hits = cache.stats().tiers[0].hit_bytes;
    reader.read_ids(&origin, kept);
    assert_eq!(from_peer(), before, "its own copies are nearer");
    assert_eq!(origin_sent(), sent_before);
    assert!(cache.stats().tiers[0].hit_bytes > hits);

    // The holder is not blamed for a bad copy of the node's own.
    let mut long = kept.iter().filter(|id| origin.samples[id.0 as usize].len() > 64);
    let id = *long.next().unwrap();
    let damage = |rank, id: SampleId| {
        let path = fs::read_dir(origin.tier(rank)).unwrap().next().unwrap().unwrap().path();
        let bytes = fs::read(&path).unwrap();
        let sample = &origin.samples[id.0 as usize];
        let at = bytes.windows(64).position(|bytes| bytes == &sample[..64]).unwrap();
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&[!bytes[at]], at as u64).unwrap();
    };
    damage(2, id);
    reader.read_ids(&origin, &[id]);
    assert_eq!((cache.stats().tiers[0].damaged, reader.stats().mismatched_bytes), (1, 0));

    // If the holder's copy is bad, too, the bytes come from the origin.
    let id = *long.next_back().unwrap();
    damage(2, id);
    damage(1, id);
    let rerouted = reader.stats().rerouted_bytes;
    reader.read_ids(&origin, &[id]);
    assert!(reader.stats().mismatched_bytes > 0 && reader.stats().rerouted_bytes > rerouted);
}

/// A process that owns the tiers of a node and has no peers, such as `dlfs cached`, learns from the rank what its
/// node holds.
#[test]
fn the_owner_of_a_tier_fetches_what_the_ranks_of_its_node_hold() {
    let mut origin = Origin::new(49, 600, 20_000);
    origin.serving = dlfs::peers::Serving::CopiesOnly;
    let tier = origin.tier(0);
    fs::create_dir(&tier).unwrap();
    let tier = |rank| format!("file:{}:64M", origin.tier(rank).display());
    let owner = origin.open(Some(&tier(0)));
    owner.check_copies();
    fs::create_dir(origin.tier(1)).unwrap();
    let how = (dlfs::order::OrderKind::Global, dlfs::order::Sharding::Strided);
    let nodes = super::nodes_on(&origin, 2, how, tier);
    assert_eq!(nodes[0].image.tiers().unwrap().owner(), Some(std::process::id()));
    let live = dlfs::peers::live_page_bytes(nodes[0].image.directory());
    let held_by = |node| nodes[0].chunks_of(node).iter().map(|&chunk| live[chunk as usize]).sum();
    for node in 0..2 {
        let expected: u64 = held_by(node);
        let held = || nodes[node as usize].held_bytes();
        wait_until("what the node holds", || held() >= expected);
    }
    let sent = origin.target.stats().read_bytes;
    let all: Vec<_> = nodes[1].ids_in(&nodes[1].chunks_of(0));
    nodes[1].read_ids(&origin, &all);
    assert_eq!(nodes[1].stats().not_there_bytes, 0);
    assert_eq!(origin.target.stats().read_bytes, sent);
}
