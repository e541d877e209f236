//! Peers that send little, and peers whose origin does.

use std::time::{Duration, Instant};

use dlfs::dataset::Image;
use dlfs::peers::Pass;
use dlfs::qpair::ConnectOptions;

use super::{Node, Origin, hostnqn, nodes, read_all, wait_until};
use crate::import_support::wire::{Pace, Wire};

/// A process beside rank 0 that reaches rank 1 by the address of `wire` alone.
pub(super) fn beside_rank_0(origin: &Origin, nodes: &[Node], wire: &Wire, tier: &str) -> Node {
    let pass = nodes[0].image.peers().unwrap().pass().to_json();
    let from = nodes[1].address().to_string();
    let to = wire.address().to_string();
    assert!(pass.contains(&from));
    let pass = Pass::from_json(&pass.replace(&from, &to)).unwrap();
    let connect = ConnectOptions { hostnqn: Some(hostnqn()), ..ConnectOptions::default() };
    let image: Image = origin.open_on(Some("beside".to_owned()), Some(tier));
    let image = image.attach_to_peers(pass, &connect).unwrap();
    let Node { rank, order, sharding, .. } = nodes[0];
    Node { rank, image, order, sharding }
}

/// At a byte every 50 ms, the samples would take hours.
#[test]
fn a_peer_that_trickles_is_given_up_and_asked_again_later() {
    let origin = Origin::new(46, 600, 20_000);
    let nodes = nodes(&origin, 2, 3.);
    read_all(&origin, &nodes, 0..1);
    wait_until("all copies", || nodes.iter().all(|node| node.image.tiers().unwrap().is_settled()));
    let wire = Wire::to(nodes[1].address());
    let reader = beside_rank_0(&origin, &nodes, &wire, "ram:1M");
    let ids = reader.ids_in(&reader.chunks_of(1));
    let (first, rest) = ids.split_at(8);
    reader.read_ids(&origin, &first[..4]);
    let from_peer = || reader.stats().nodes.iter().map(|node| node.bytes).sum::<u64>();
    assert!(from_peer() > 0 && reader.stats().rerouted_bytes == 0);

    wire.set_pace(Some(Pace { bytes: 1, every: Duration::from_millis(50) }));
    let before = from_peer();
    let began = Instant::now();
    reader.read_ids(&origin, &first[4..]);
    println!("a trickling peer was given up after {:?}", began.elapsed());
    assert_eq!(from_peer(), before);
    assert!(reader.stats().rerouted_bytes > 0);

    // Also while it connects.
    let again = beside_rank_0(&origin, &nodes, &wire, "ram:1M");
    let began = Instant::now();
    again.read_ids(&origin, &first[4..]);
    println!("one to which a connection was made, after {:?}", began.elapsed());
    assert!(again.stats().rerouted_bytes > 0);

    wire.set_pace(None);
    let mut rest = rest.iter().cycle();
    wait_until("the peer to be asked again", || {
        reader.read_ids(&origin, &[*rest.next().unwrap()]);
        from_peer() > before
    });
}

/// Its answers are few, but whole: less data a second than of a network that is of use, and progress all the same.
/// One small sample from the middle of each chunk, so that nobody fetches the same pages beside it.
#[test]
fn a_peer_whose_origin_is_slow_is_waited_for() {
    let mut origin = Origin::new(47, 600, 20_000);
    origin.wire = Some(Wire::to(origin.target.local_addr()));
    let nodes = nodes(&origin, 2, 3.);
    let chunks = nodes[0].chunks_of(1);
    let small_of = |&chunk: &u32| {
        let ids = nodes[0].ids_in(&[chunk]);
        let inner = ids.get(1..ids.len().saturating_sub(1))?;
        inner.iter().copied().min_by_key(|id| origin.samples[id.0 as usize].len())
    };
    let ids: Vec<_> = chunks.iter().filter_map(small_of).collect();
    let wire = origin.wire.as_ref().unwrap();
    // A chunk, which the holder fetches behind the first read of it, does not keep the next read waiting for long.
    wire.set_pace(Some(Pace { bytes: 8 << 10, every: Duration::from_millis(20) }));
    let began = Instant::now();
    ids[..16].iter().for_each(|&id| nodes[0].read_ids(&origin, &[id]));
    let stats = nodes[0].stats();
    let took = began.elapsed();
    wire.set_pace(None);
    let bytes: u64 = stats.nodes.iter().map(|node| node.bytes).sum();
    println!("{bytes} bytes from a peer with a slow origin in {took:?}");
    // A machine that stalls for a second may end the connection; the rest then comes from elsewhere.
    assert!(bytes > 0 && stats.not_there_bytes == 0, "{stats:?}");
}
