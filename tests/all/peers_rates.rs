//! The decision whether nodes of a job ask each other, by the rates of network and origin as far as they are known.

use std::fs;
use std::thread;
use std::time::Duration;

use dlfs::address::Address;
use dlfs::cache::TierOptions;
use dlfs::dataset::{Image, OpenOptions};
use dlfs::import::{ImportOptions, import};
use dlfs::order::{OrderKind, OrderSpec};
use dlfs::peers::rendezvous::Folder;
use dlfs::peers::{PeerOptions, Serving};
use dlfs::plan::{Curve, Rate, SourceRates};
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::ConnectOptions;

/// Bytes that two nodes read from each other in an epoch, if the network gives each of them `network` MB/s and the
/// origin 100.
fn crossed(network: u64) -> u64 {
    let temp = tempfile::tempdir().unwrap();
    let source = temp.path().join("source");
    fs::create_dir(&source).unwrap();
    for nth in 0..200 {
        fs::write(source.join(format!("{nth:05}")), vec![nth as u8; 5_000]).unwrap();
    }
    let image = Address::from_path(temp.path().join("train.dlfs"));
    let options = ImportOptions { chunk_size_bytes: 128 << 10, ..ImportOptions::default() };
    let connect = ConnectOptions::default();
    import(&[source], std::slice::from_ref(&image), &options, &connect, &mut ()).unwrap();
    let read = |rank: u32| {
        let tiers = TierOptions {
            tiers: vec!["ram:8M".parse().unwrap()],
            node: Some(format!("{network}-{rank}")),
            rates: SourceRates {
                // Two processes get half of it each.
                origin: Some(Curve::flat(Rate::mb_per_s(200))),
                network: Some(Rate::mb_per_s(network)),
                ..SourceRates::default()
            },
            ..TierOptions::default()
        };
        let options = OpenOptions { tiers, ..OpenOptions::default() };
        let image = Image::open(std::slice::from_ref(&image), &options).unwrap();
        let peers = PeerOptions {
            round: "start".to_owned(),
            rank,
            world_size: 2,
            listen: "127.0.0.1:0".parse().unwrap(),
            node: None,
            serving: Serving::ReadThrough,
            keep_shares: false,
            timeout: Duration::from_secs(60),
            connect: ConnectOptions::default(),
            keys: None,
        };
        let order = OrderSpec { kind: OrderKind::Global, seed: 4 };
        let run = LoaderOptions { rank, world_size: 2, ..LoaderOptions::new(order, 16, 1) };
        let mut folder = Folder::new(temp.path(), "start").unwrap();
        let image = image.with_peers(&peers, &run, &mut folder).unwrap();
        let mut prefetcher = image.prefetcher(run).unwrap();
        let mut samples = 0;
        while let Some(batch) = prefetcher.next() {
            samples += batch.unwrap().len();
        }
        assert_eq!(samples, 100);
        let nodes = image.peers().unwrap().stats().nodes;
        nodes.iter().map(|node| node.bytes + node.reads).sum::<u64>()
    };
    thread::scope(|scope| {
        let ranks = [scope.spawn(|| read(0)), scope.spawn(|| read(1))];
        ranks.into_iter().map(|rank| rank.join().unwrap()).sum()
    })
}

#[test]
fn nodes_ask_each_other_unless_the_origin_is_faster_than_the_network() {
    assert_eq!(crossed(99), 0, "the origin is faster");
    assert!(crossed(100) > 0, "of equally fast ones the nearest is read");
}
