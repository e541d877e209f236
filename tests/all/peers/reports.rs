//! Bytes from other nodes in a report.

use std::thread;

use dlfs::dataset::Dataset;
use dlfs::reader::ReaderOptions;
use dlfs::report::{Place, Report};

use super::{Origin, nodes, run};

#[test]
fn a_report_has_what_its_loader_read_from_peers_from_its_own_tier_and_from_the_origin() {
    let origin = Origin::new(38, 600, 20_000);
    let nodes = nodes(&origin, 2, 1.3);
    let reports: Vec<Report> = thread::scope(|scope| {
        let reading = nodes.iter().map(|node| {
            let dataset = Dataset::from_image(node.image.clone(), ReaderOptions::default());
            scope.spawn(move || {
                let loader = dataset.loader(run(node.rank, 2, 0..3)).unwrap();
                while loader.next(&mut ()).unwrap().is_some() {}
                loader.report()
            })
        });
        let reading: Vec<_> = reading.collect();
        reading.into_iter().map(|read| read.join().unwrap()).collect()
    });
    for (report, node) in reports.iter().zip(&nodes) {
        let places = report.timeline.total().places;
        println!("{places:?} of {}", report.reads.bytes);
        assert_eq!(places.total(), report.reads.bytes);
        let from_peers: u64 = node.stats().nodes.iter().map(|node| node.bytes).sum();
        assert_eq!(places.of(Place::Peer), from_peers);
        assert!(from_peers > 0 && places.of(Place::Drive) > 0, "{places:?}");
        // The tier serves this node's loader and the other node.
        let served = node.image.tiers().unwrap().stats().tiers[0].hit_bytes;
        assert!(places.of(Place::Drive) <= served, "{places:?} of {served}");
    }
}
