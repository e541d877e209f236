//! Data sets on many remote namespaces: how many sockets one poller checks.

use std::sync::Arc;

use crate::import_support::{options, paths, tree};
use dlfs::address::Address;
use dlfs::dataset::{Image, OpenOptions};
use dlfs::import::{self, Onto};
use dlfs::nvme::Nqn;
use dlfs::order::{OrderKind, OrderSpec};
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::mem::MemNamespace;
use dlfs::qpair::tcp::{TcpNamespace, TcpStats};
use dlfs::qpair::{ConnectOptions, Device};
use dlfs::reader::Batch;
use dlfs::target::{Target, TargetOptions};
use dlfs::units::Nsid;

const SAMPLES: usize = 2_000;

/// An image striped over all namespaces of several targets.
fn striped(targets: usize, namespaces_each: usize) -> (Vec<Target>, Vec<Arc<TcpNamespace>>) {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path(), SAMPLES, 16_384, 3);
    let disk = || Arc::new(MemNamespace::new(4 << 20, 4096).unwrap());
    let disks: Vec<Arc<dyn Device>> =
        (0..targets * namespaces_each).map(|_| disk() as Arc<dyn Device>).collect();
    import::import_onto(&paths(dir.path()), &disks, &options(Onto::Empty), &mut ()).unwrap();
    let nqn = Nqn::new("nqn.2026-11.io.dlfs:many").unwrap();
    let serve = |disks: &[Arc<dyn Device>]| {
        Target::bind(TargetOptions::new(nqn.clone()), disks.to_vec()).unwrap()
    };
    let targets: Vec<Target> = disks.chunks(namespaces_each).map(serve).collect();
    let connect = |target: &Target, nsid| {
        let Address::Tcp(address) = target.address(Nsid(nsid)) else { panic!("not TCP") };
        Arc::new(TcpNamespace::connect(&address, &ConnectOptions::default()).unwrap())
    };
    let nsids = 1..=namespaces_each as u32;
    let devices = targets.iter().flat_map(|target| nsids.clone().map(move |nsid| (target, nsid)));
    let devices = devices.map(|(target, nsid)| connect(target, nsid)).collect();
    (targets, devices)
}

fn total(devices: &[Arc<TcpNamespace>]) -> TcpStats {
    devices.iter().map(|device| device.stats()).fold(TcpStats::default(), |sum, stats| TcpStats {
        receives: sum.receives + stats.receives,
        empty_receives: sum.empty_receives + stats.empty_receives,
    })
}

/// Without an epoll set, 32 namespaces were checked 7.3 times for each time that bytes arrived.
#[test]
fn a_socket_is_read_only_when_it_is_readable() {
    let (_targets, devices) = striped(4, 4);
    let dyn_devices = devices.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect();
    let image = Image::from_devices(dyn_devices, &OpenOptions::default()).unwrap();
    for kind in [OrderKind::Global, OrderKind::Grouped { lanes: 1, group: 4 }] {
        let order = OrderSpec { kind, seed: 7 };
        let mut loader = image.prefetcher(LoaderOptions::new(order, 64, 2)).unwrap();
        let before = total(&devices);
        let mut count = 0;
        let mut batch = Batch::new();
        while loader.next_into(&mut batch).unwrap() {
            count += batch.len();
        }
        let after = total(&devices);
        let calls = after.receives - before.receives;
        let brought = calls - (after.empty_receives - before.empty_receives);
        println!("{kind:?}: {calls} receives, {brought} of them brought bytes");
        assert_eq!(count, 2 * SAMPLES);
        assert!(brought > 16 && calls * 10 <= brought * 11, "{calls} for {brought}");
    }
}
