//! Fetches of a job that starts with empty tiers, and of one whose node has lost its own.

use super::*;

/// Starts three nodes, whose tiers keep what they have, and waits until each has all that it holds. Returns the time
/// that takes and the bytes that the origin gives.
fn fill(origin: &Origin, round: &str) -> (Duration, u64) {
    let before = origin.target.stats().read_bytes;
    let began = Instant::now();
    let room_bytes = room_of_each(origin, 3, 1.3);
    let start = |rank: u32| {
        let options = PeerOptions { round: round.to_owned(), ..origin.peer_options(rank, 3) };
        let mut folder = Folder::new(origin.rendezvous(), round).unwrap();
        let tier = format!("file:{}:{room_bytes}", origin.tier(rank).display());
        let image = origin.open_on(options.node.clone(), Some(&tier));
        let image = image.with_peers(&options, &run(rank, 3, 0..1), &mut folder).unwrap();
        Node { rank, image, order: OrderKind::Global, sharding: Sharding::Strided }
    };
    let nodes: Vec<Node> = thread::scope(|scope| {
        let starting: Vec<_> = (0..3).map(|rank| scope.spawn(move || start(rank))).collect();
        starting.into_iter().map(|node| node.join().unwrap()).collect()
    });
    let of_chunk = live_page_bytes(nodes[0].image.directory());
    let own_bytes = |node: &Node| -> u64 {
        node.chunks_of(node.rank).iter().map(|&chunk| of_chunk[chunk as usize]).sum()
    };
    wait_until("what each holds", || nodes.iter().all(|node| node.held_bytes() >= own_bytes(node)));
    let took = began.elapsed();
    let all: Vec<SampleId> = (0..origin.samples.len() as u64).map(SampleId).collect();
    nodes[0].read_ids(origin, &all);
    (took, origin.target.stats().read_bytes - before)
}

#[test]
fn a_node_that_has_lost_its_tier_fetches_its_own_chunks_and_the_others_nothing() {
    let origin = Origin { serving: Serving::CopiesOnly, ..Origin::new(47, 1_000, 20_000) };
    let data = origin.data_bytes();
    (0..3).for_each(|rank| fs::create_dir(origin.tier(rank)).unwrap());
    let (cold, all) = fill(&origin, "cold");
    fs::remove_dir_all(origin.tier(2)).unwrap();
    fs::create_dir(origin.tier(2)).unwrap();
    let (again, part) = fill(&origin, "again");
    println!(
        "a cold start of 3 nodes took {cold:?} and {all} bytes of {data} from the origin, and to fill one of them \
         again {again:?} and {part}"
    );
    // Each node also reads the directory.
    assert!(all >= data && all * 10 <= data * 11, "{all} of {data} bytes");
    assert!(part * 10 <= data * 5, "{part} of {data} bytes");
}
