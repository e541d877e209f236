//! Nodes that serve only copies, one of whose tiers `dlfs cached` owns.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use dlfs::cache::{Cache, TierOptions};
use dlfs::dataset::{Image, OpenOptions};
use dlfs::peers::rendezvous::Folder;
use dlfs::peers::{PeerOptions, Serving, live_page_bytes};
use dlfs::qpair::ConnectOptions;
use dlfs::reader::{Batch, ReaderOptions};

use crate::common::{Served, TestDir, dlfs, run};

/// Joins as a rank on a node of its own, whose tier is `tier`.
fn join(dir: &TestDir, image: &str, rank: u32, tier: &str) -> Image {
    let tiers = TierOptions { tiers: vec![tier.parse().unwrap()], ..TierOptions::default() };
    let options = OpenOptions { tiers, ..OpenOptions::default() };
    let opened = Image::open(&[image.parse().unwrap()], &options).unwrap();
    let peers = PeerOptions {
        round: "start".to_owned(),
        rank,
        world_size: 2,
        listen: "127.0.0.1:0".parse().unwrap(),
        node: Some(format!("node {rank}")),
        serving: Serving::CopiesOnly,
        keep_shares: false,
        timeout: Duration::from_secs(60),
        connect: ConnectOptions::default(),
        keys: None,
    };
    let mut folder = Folder::new(&dir.path("rendezvous"), "start").unwrap();
    opened.with_peers(&peers, None, &mut folder).unwrap()
}

fn cache(image: &Image) -> &Cache {
    image.tiers().expect("it was opened with a tier")
}

fn chunks_of(image: &Image, node: u32) -> Vec<u32> {
    let peers = image.peers().unwrap();
    let index = Some(peers.round().node_of(node));
    let chunks = 0..image.directory().num_chunks();
    chunks.filter(|&chunk| peers.holders().holder(chunk) == index).collect()
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < until, "waited for {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn what_a_node_holds_is_fetched_by_the_owner_of_its_tier_and_again_by_the_next_owner() {
    let dir = TestDir::with_source();
    let path = dir.arg("train.dlfs");
    run(&["import", &dir.arg("source"), &path, "--chunk-size", "64K"]).code(0);
    for name in ["rendezvous", "tier"] {
        fs::create_dir(dir.path(name)).unwrap();
    }
    let origin = Served::start(&path, &[]);
    let mut owner = dlfs()
        .args(["cached", &origin.address, "--tier", "ram:64M", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("dlfs starts");
    let mut line = String::new();
    BufReader::new(owner.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let tiers = ["ram:64M".to_owned(), format!("file:{}:64M", dir.arg("tier"))];
    let [zero, one] = thread::scope(|scope| {
        let joining = [0, 1].map(|rank: usize| {
            let dir = &dir;
            let address = &origin.address;
            let tier = &tiers[rank];
            scope.spawn(move || join(dir, address, rank as u32, tier))
        });
        joining.map(|joined| joined.join().unwrap())
    });
    assert_eq!(cache(&zero).owner(), Some(owner.id()));
    let own = chunks_of(&zero, 0);
    let live = live_page_bytes(zero.directory());
    let expected: u64 = own.iter().map(|&chunk| live[chunk as usize]).sum();
    let held = || cache(&zero).stats().tiers.first().map_or(0, |tier| tier.held_bytes);
    assert!(expected > 0);
    wait_until("what the node holds", || held() >= expected);

    // With it goes all that it kept in memory.
    owner.kill().unwrap();
    owner.wait().unwrap();
    wait_until("the next owner", || cache(&zero).owner().is_none());
    wait_until("what the node holds, again", || held() >= expected);

    let ids: Vec<_> =
        own.iter().flat_map(|&c| zero.directory().samples_in_chunk(c)).map(|(id, _)| id).collect();
    let mut batch = Batch::new();
    one.reader(ReaderOptions::default()).unwrap().read_batch(&ids, &mut batch).unwrap();
    let stats = one.peers().unwrap().stats();
    assert!(stats.nodes.iter().map(|node| node.bytes).sum::<u64>() > 0);
    assert_eq!((stats.not_there_bytes, stats.rerouted_bytes), (0, 0));
}
