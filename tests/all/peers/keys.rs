//! Ranks that prove to each other that they belong to one job.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use dlfs::ErrorKind;
use dlfs::address::{Address, TcpAddress};
use dlfs::keys::generate_secret;
use dlfs::nvme::Nqn;
use dlfs::peers::rendezvous::{Blocks, Rendezvous};
use dlfs::peers::{JobKey, Pass, PeerKeys};
use dlfs::qpair::mem::MemNamespace;
use dlfs::qpair::{self, ConnectOptions};
use dlfs::target::{Target, TargetOptions};
use dlfs::units::Nsid;

use super::{Node, Origin, hostnqn, nodes, read_all};

fn given() -> PeerKeys {
    let text = generate_secret(None).unwrap().to_text();
    PeerKeys { key: JobKey::of(&text).unwrap(), tls: false }
}

/// How many authentications the nodes have answered, and the bytes that came from peers.
fn counted(nodes: &[Node]) -> (u64, u64) {
    let peers = nodes.iter().map(|node| node.image.peers().unwrap());
    peers.fold((0, 0), |(authentications, bytes), peers| {
        let served = peers.served().unwrap();
        (
            authentications + served.commands.of("authentication"),
            bytes + peers.stats().nodes.iter().map(|node| node.bytes).sum::<u64>(),
        )
    })
}

/// The error for a program that claims the name of a rank's host, with these keys.
fn intrude(node: &Node, connect: ConnectOptions) -> dlfs::Error {
    let address = node.address();
    let subnqn = Nqn::new(format!(
        "nqn.2026-11.io.dlfs:cache:{}:{}",
        node.image.peers().unwrap().round().records()[0].image,
        node.image.directory().generation().0
    ));
    let address = Address::Tcp(TcpAddress {
        traddr: address.ip().to_string(),
        trsvcid: address.port(),
        subnqn: subnqn.unwrap(),
        nsid: None,
    });
    let connect = ConnectOptions {
        hostnqn: Some(hostnqn()),
        ctrl_loss_tmo: Duration::ZERO,
        connect_timeout: Duration::from_secs(60),
        ..connect
    };
    qpair::open_all(&[address], &connect).map(drop).unwrap_err()
}

#[test]
fn ranks_with_a_key_read_from_each_other_and_nobody_else_reads_from_them() {
    for keys in [given(), PeerKeys { key: JobKey::Drawn, tls: false }] {
        let origin = Origin { keys: Some(keys), ..Origin::new(61, 300, 20_000) };
        let nodes = nodes(&origin, 3, 1.5);
        read_all(&origin, &nodes, 0..2);
        let (authentications, bytes) = counted(&nodes);
        println!("{authentications} authentications, {bytes} bytes from peers");
        assert!(authentications > 0 && bytes > origin.data_bytes() / 2);
        let data = origin.data_bytes();
        assert!(origin.target.stats().read_bytes < 2 * data, "peers answered, not the origin");
        let error = intrude(&nodes[1], ConnectOptions::default());
        assert!(error.report().contains("requires authentication"), "{}", error.report());
        let secret = Some(generate_secret(None).unwrap());
        let error =
            intrude(&nodes[1], ConnectOptions { dhchap_secret: secret, ..Default::default() });
        assert_eq!(error.kind(), ErrorKind::Refused, "{}", error.report());
    }
}

/// A worker process gets the pass of the process that has joined.
#[test]
fn a_process_beside_a_rank_has_its_keys() {
    let keys = given();
    let origin = Origin { keys: Some(keys.clone()), ..Origin::new(62, 200, 20_000) };
    let nodes = nodes(&origin, 2, 3.);
    let pass = nodes[0].image.peers().unwrap().pass();
    assert!(!format!("{pass:?} {keys:?}").contains("DHHC-1"));
    let pass = Pass::from_json(&pass.to_json()).unwrap();
    // The keys for the data set's target are not those of peers.
    let connect = ConnectOptions {
        hostnqn: Some(hostnqn()),
        dhchap_secret: Some(generate_secret(None).unwrap()),
        dhchap_ctrl_secret: Some(generate_secret(None).unwrap()),
        ..ConnectOptions::default()
    };
    let image = origin.open(Some("ram:4M")).attach_to_peers(pass, &connect).unwrap();
    let peers = image.peers().unwrap();
    assert_eq!(peers.devices_of(1).unwrap().len(), 1);
}

#[test]
fn a_rank_with_another_key_is_named_by_all() {
    let origin = Origin::new(63, 50, 5_000);
    let keys = [Some(given()), Some(PeerKeys { key: JobKey::Drawn, tls: false }), None];
    let joined: Vec<_> = thread::scope(|scope| {
        let joining: Vec<_> = (0..3)
            .map(|rank| {
                let origin = &origin;
                let keys = keys[rank as usize].clone();
                scope.spawn(move || {
                    let options = origin.peer_options(rank, 3);
                    let options = dlfs::peers::PeerOptions { keys, ..options };
                    origin.try_join(&options, "ram:1M").map(drop)
                })
            })
            .collect();
        joining.into_iter().map(|joined| joined.join().unwrap()).collect()
    });
    for error in joined.into_iter().map(|joined| joined.unwrap_err()) {
        let report = error.report();
        assert!(report.contains("has job key") && report.contains("--job-key"), "{report}");
    }
}

/// A rank may have all records, and connect, before another rank has them.
#[test]
fn hosts_that_come_before_the_target_knows_them_wait() {
    let device = Arc::new(MemNamespace::new(1 << 20, 4096).unwrap());
    let subnqn = Nqn::new("nqn.2026-11.io.dlfs:held").unwrap();
    let options = TargetOptions { hold: true, ..TargetOptions::new(subnqn) };
    let target = Target::bind(options, vec![device]).unwrap();
    let address = [target.address(Nsid(1))];
    let connect = ConnectOptions { hostnqn: Some(hostnqn()), ..ConnectOptions::default() };
    thread::scope(|scope| {
        let connecting = scope.spawn(|| qpair::open_all(&address, &connect).map(drop));
        thread::sleep(Duration::from_millis(100));
        assert!(!connecting.is_finished() && target.stats().accepted == 0);
        target.set_allowed_hosts(vec![hostnqn()]);
        connecting.join().unwrap().unwrap();
    });
}

#[test]
fn only_ranks_with_the_key_meet_at_rank_0() {
    let keys = given();
    let others = given();
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut host = Blocks::host(listen, 2, Some(&keys)).unwrap();
    let place = host.describe();
    let port = place.rsplit(':').next().unwrap().parse().unwrap();
    let connect = ConnectOptions::default();
    let record = br#"{"none": 1}"#;
    host.set(0, record).unwrap();
    host.get(2, Instant::now()).unwrap();
    let get = |keys: Option<&PeerKeys>| {
        let mut guest = Blocks::guest("127.0.0.1", port, 2, &connect, keys);
        guest.set(1, record).unwrap();
        guest.get(2, Instant::now())
    };
    assert!(get(Some(&keys)).unwrap()[0].is_some());
    for wrong in [Some(&others), None] {
        let report = get(wrong).unwrap_err().report();
        println!("{report}");
        assert!(report.contains("rank 0"), "{report}");
    }
}
