//! The target as seen by hosts, correct and hostile: plain sockets against a running target.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::alone::ran_alone;
use crate::support::faults::{Fault, Faulty, Rule};
use crate::support::hostile_target::{HostileTarget, Misbehaviour};
use crate::support::ports::{bind_again, is_kept_by_a_child};
use crate::support::random::Random;
use crate::support::raw_host::{RawHost, Reply};
use dlfs::ErrorKind;
use dlfs::nvme::fabrics::DiscoveryRecord;
use dlfs::nvme::identify::{IdentifyNamespace, NamespaceDescriptors, decode_namespace_list};
use dlfs::nvme::sqe::{admin, cns, feature, log_page};
use dlfs::nvme::{Cc, Csts, IdentifyController, Nqn, Property, Sgl, Sqe, Status};
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::mem::MemNamespace;
use dlfs::qpair::{Capabilities, ConnectOptions, Cpus, Device, Namespace, PairScope, QueuePair};
use dlfs::target::{Target, TargetOptions};
use dlfs::tcp::Digests;
use dlfs::units::{Lba, Nsid};
use zerocopy::FromBytes as _;

const MIB: u64 = 1 << 20;
const NSID: Nsid = Nsid(1);
const NO_DIGESTS: Digests = Digests { header: false, data: false };
const BOTH_DIGESTS: Digests = Digests { header: true, data: true };

fn nqn() -> Nqn {
    Nqn::new("nqn.2026-11.io.dlfs:test").unwrap()
}

/// A target with one namespace of 8 MiB in memory, with seeded contents, which are returned.
fn serve(change: impl FnOnce(&mut TargetOptions)) -> (Target, Vec<u8>) {
    try_serve(change).unwrap()
}

fn try_serve(change: impl FnOnce(&mut TargetOptions)) -> dlfs::Result<(Target, Vec<u8>)> {
    let device = MemNamespace::new(8 * MIB, 512).unwrap();
    let mut bytes = vec![0; 8 << 20];
    Random::new(1).fill(&mut bytes);
    let mut blocking = Blocking::new(device.queue_pair().unwrap()).unwrap();
    blocking.write_at(0, &bytes).unwrap();
    let mut options = TargetOptions::new(nqn());
    change(&mut options);
    Ok((Target::bind(options, vec![Arc::new(device)])?, bytes))
}

#[test]
fn a_host_identifies_reads_and_keeps_alive_with_and_without_digests() {
    let (target, bytes) = serve(|_| {});
    for digests in [NO_DIGESTS, BOTH_DIGESTS] {
        let (mut admin, [mut io]) = RawHost::with_queues(target.local_addr(), &nqn(), digests);
        let (_, page) = admin.call(Sqe::identify(0, cns::CONTROLLER, Nsid(0)), &[]);
        let controller = IdentifyController::decode(&page).unwrap();
        assert_eq!((controller.subnqn(), controller.nn.get()), (Ok(nqn()), 1));
        let (_, page) = admin.call(Sqe::identify(0, cns::ACTIVE_NAMESPACES, Nsid(0)), &[]);
        assert_eq!(decode_namespace_list(&page).unwrap(), [NSID]);
        let (_, page) = admin.call(Sqe::identify(0, cns::NAMESPACE, NSID), &[]);
        let namespace = IdentifyNamespace::decode(&page).unwrap();
        assert_eq!((namespace.num_blocks(), namespace.block_len_bytes()), (8 * MIB / 512, 512));
        assert!(namespace.is_write_protected() && namespace.nguid != [0; 16]);
        assert!(admin.call(Sqe::keep_alive(0), &[]).0.status().is_success());
        for (slba, num_blocks) in [(0, 1), (7, 8), (100, 256), (8 * MIB / 512 - 2048, 2048)] {
            let len = num_blocks * 512;
            let (cqe, read) = io.call(Sqe::read(0, NSID, Lba(slba), num_blocks, len), &[]);
            assert!(cqe.status().is_success(), "{}", cqe.status());
            assert!(read == bytes[slba as usize * 512..][..len as usize], "at {slba}");
        }
    }
}

#[test]
fn queues_go_to_the_poller_that_has_the_fewest() {
    let (target, _) = serve(|options| options.num_pollers = 2);
    assert_eq!(target.queues_by_poller(), [0, 0]);
    let hosts =
        [(); 3].map(|()| RawHost::with_queues::<2>(target.local_addr(), &nqn(), NO_DIGESTS));
    assert_eq!(target.queues_by_poller(), [3, 3], "admin queues do not count");
    drop(hosts);
    let limit = Instant::now() + Duration::from_secs(60);
    while target.queues_by_poller() != [0, 0] {
        assert!(Instant::now() < limit, "{:?}", target.queues_by_poller());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn pollers_that_are_bound_and_never_sleep_serve_and_stop() {
    let cpus = Cpus::of_node(0).expect("every machine has node 0");
    let (target, bytes) = serve(|options| {
        (options.num_pollers, options.busy_poll, options.cpus) = (2, true, Some(cpus));
    });
    for _ in 0..2 {
        let (_admin, [mut io]) = RawHost::with_queues(target.local_addr(), &nqn(), NO_DIGESTS);
        let (cqe, read) = io.call(Sqe::read(0, NSID, Lba(8), 8, 4096), &[]);
        assert!(cqe.status().is_success() && read == bytes[4096..8192]);
    }
    target.stop();
}

#[test]
fn a_host_that_gives_up_its_event_requests_may_use_their_cids_again() {
    let (target, _) = serve(|_| {});
    let (mut admin, _) = RawHost::admin(target.local_addr(), &nqn(), NO_DIGESTS);
    for cid in [7, 8, 9] {
        let event = admin.capsule(&Sqe::async_event_request(cid), &[]);
        admin.send(&event);
    }
    for cid in [8, 8, 7, 9] {
        let keep_alive = admin.capsule(&Sqe::keep_alive(cid), &[]);
        admin.send(&keep_alive);
        let Reply::Resp(cqe) = admin.receive() else { panic!("not the answer to {cid}") };
        assert!(cqe.cid.get() == cid && cqe.status().is_success(), "{cqe:?}");
    }
}

#[test]
fn writes_in_the_capsule_and_by_r2t_reach_the_namespace() {
    let (target, _) = serve(|options| options.writable = true);
    for digests in [NO_DIGESTS, BOTH_DIGESTS] {
        let (_admin, [mut io]) = RawHost::with_queues(target.local_addr(), &nqn(), digests);
        let small = vec![0xA5; 4096];
        let write = Sqe::write(0, NSID, Lba(8), 8, Sgl::in_capsule(4096));
        assert!(io.call(write, &small).0.status().is_success());
        let large: Vec<u8> = (0..1 << 20).map(|i| (i >> 10) as u8).collect();
        let cid = io.start(Sqe::write(0, NSID, Lba(2048), 2048, Sgl::transport(1 << 20)), &[]);
        let Reply::R2t { cid: of, ttag, offset: 0, len: 1_048_576 } = io.receive() else {
            panic!("no R2T for everything");
        };
        assert_eq!(of, cid);
        for (at, data) in (0u32..).step_by(64 << 10).zip(large.chunks(64 << 10)) {
            let is_last = at as usize + data.len() == large.len();
            let pdu = io.h2c_data(cid, ttag, at, data, is_last);
            io.send(&pdu);
        }
        let Reply::Resp(cqe) = io.receive() else { panic!("no completion") };
        assert!(cqe.status().is_success(), "{}", cqe.status());
        assert!(io.call(Sqe::flush(0, NSID), &[]).0.status().is_success());
        let (_, read) = io.call(Sqe::read(0, NSID, Lba(8), 8, 4096), &[]);
        assert!(read == small);
        let (_, read) = io.call(Sqe::read(0, NSID, Lba(2048), 2048, 1 << 20), &[]);
        assert!(read == large);
    }
    assert_eq!(target.stats().writes, 4);
}

#[test]
fn the_hostile_target_behaves_until_it_is_told_otherwise() {
    let hostile = HostileTarget::start((0..1 << 20).map(|i: u32| (i >> 9) as u8).collect());
    let read = Sqe::read(0, NSID, Lba(5), 2, 1024);
    for digests in [NO_DIGESTS, BOTH_DIGESTS] {
        let (_admin, [mut io]) =
            RawHost::with_queues(hostile.local_addr(), &HostileTarget::nqn(), digests);
        let (cqe, data) = io.call(read, &[]);
        assert!(cqe.status().is_success() && data == [[5; 512], [6; 512]].concat());
        hostile.behave(Misbehaviour::ShortSuccess(512), Some(1));
        assert_eq!(io.call(read, &[]).1.len(), 512);
        hostile.behave(Misbehaviour::Status(Status::LBA_OUT_OF_RANGE), Some(1));
        assert!(io.call(read, &[]).0.status().is(Status::LBA_OUT_OF_RANGE));
        assert_eq!(io.call(read, &[]).1.len(), 1024);
        hostile.behave(Misbehaviour::Die, Some(1));
        io.start(read, &[]);
        assert_eq!(io.receive(), Reply::Closed);
        hostile.die();
        assert!(std::net::TcpStream::connect(hostile.local_addr()).is_err());
        hostile.revive();
    }
    assert_eq!(hostile.misbehaved(), 6);
}

/// Reads `num_blocks` blocks from `slba` on and compares them with the namespace.
fn check_read(io: &mut RawHost, bytes: &[u8], slba: u64, num_blocks: u32) {
    let (cqe, read) = io.call(Sqe::read(0, NSID, Lba(slba), num_blocks, num_blocks * 512), &[]);
    assert!(cqe.status().is_success(), "{}", cqe.status());
    assert!(read == bytes[slba as usize * 512..][..num_blocks as usize * 512], "at {slba}");
}

#[test]
fn two_hosts_with_many_queues_read_side_by_side_on_several_pollers() {
    for num_pollers in [1, 3] {
        let (target, bytes) = serve(|options| options.num_pollers = num_pollers);
        let address = target.local_addr();
        std::thread::scope(|scope| {
            for host in 0..2u64 {
                let bytes = &bytes;
                scope.spawn(move || {
                    let (_admin, queues) = RawHost::with_queues::<4>(address, &nqn(), NO_DIGESTS);
                    let mut random = Random::new(host);
                    for mut io in queues {
                        for _ in 0..100 {
                            let num_blocks = 1 + random.below(512);
                            let slba = random.below(8 * MIB / 512 - num_blocks);
                            check_read(&mut io, bytes, slba, num_blocks as u32);
                        }
                    }
                });
            }
        });
        assert_eq!((target.stats().reads, target.stats().errors), (800, 0));
        target.stop();
    }
}

#[test]
fn a_deep_queue_is_served_with_little_memory() {
    let (target, bytes) = serve(|options| options.buffer_bytes = 256 << 10);
    let (mut admin, [mut io, mut other]) =
        RawHost::with_queues(target.local_addr(), &nqn(), NO_DIGESTS);
    let (_, page) = admin.call(Sqe::identify(0, cns::CONTROLLER, Nsid(0)), &[]);
    let limit = IdentifyController::decode(&page).unwrap().max_transfer_bytes(0).unwrap();
    assert_eq!(limit, 64 << 10, "a quarter of the buffers");
    let reads: Vec<u8> = (0..127u16)
        .flat_map(|cid| io.capsule(&Sqe::read(cid, NSID, Lba(u64::from(cid)), 128, 64 << 10), &[]))
        .collect();
    io.send(&reads);
    check_read(&mut other, &bytes, 3, 128);
    for _ in 0..127 {
        let Reply::Data { cid, bytes: read, last: true, success: true, .. } = io.receive() else {
            panic!("no data");
        };
        assert!(read == bytes[usize::from(cid) * 512..][..64 << 10]);
    }
}

#[test]
fn a_host_that_is_killed_while_it_writes_leaves_the_old_bytes() {
    let (target, bytes) = serve(|options| options.writable = true);
    let write = Sqe::write(0, NSID, Lba(0), 2048, Sgl::transport(1 << 20));
    for sent in [0, 1, 64 << 10, (1 << 20) - 1] {
        let (_admin, [mut io]) = RawHost::with_queues(target.local_addr(), &nqn(), NO_DIGESTS);
        let cid = io.start(write, &[]);
        let Reply::R2t { ttag, .. } = io.receive() else { panic!("no R2T") };
        let pdu = io.h2c_data(cid, ttag, 0, &vec![0xEE; 1 << 20], true);
        io.send(&pdu[..24 + sent]);
    }
    let (_admin, [mut io]) = RawHost::with_queues(target.local_addr(), &nqn(), NO_DIGESTS);
    check_read(&mut io, &bytes, 0, 2048);
    assert_eq!(target.stats().writes, 0);
}

#[test]
fn a_wrong_data_digest_of_a_write_is_a_transient_error_and_writes_nothing() {
    let (target, bytes) = serve(|options| {
        options.writable = true;
        options.buffer_bytes = 256 << 10; // so that leaked memory would be missed
    });
    let (_admin, [mut io]) = RawHost::with_queues(target.local_addr(), &nqn(), BOTH_DIGESTS);
    let mut write = Sqe::write(0x77, NSID, Lba(0), 1, Sgl::in_capsule(512));
    for _ in 0..300 {
        let mut capsule = io.capsule(&write, &[0xEE; 512]);
        *capsule.last_mut().unwrap() ^= 1;
        io.send(&capsule);
        let Reply::Resp(cqe) = io.receive() else { panic!("no completion") };
        assert!(cqe.status().is(Status::TRANSIENT_TRANSPORT_ERROR) && !cqe.status().dnr);
    }
    for _ in 0..10 {
        let cid = io.start(Sqe::write(0, NSID, Lba(0), 128, Sgl::transport(64 << 10)), &[]);
        let Reply::R2t { ttag, .. } = io.receive() else { panic!("no R2T") };
        let mut pdu = io.h2c_data(cid, ttag, 0, &vec![0xEE; 64 << 10], true);
        *pdu.last_mut().unwrap() ^= 1;
        io.send(&pdu);
        let Reply::Resp(cqe) = io.receive() else { panic!("no completion") };
        assert!(cqe.status().is(Status::TRANSIENT_TRANSPORT_ERROR));
    }
    assert_eq!((target.stats().writes, target.stats().errors), (0, 310));
    check_read(&mut io, &bytes, 0, 128);
    // The same command again, undamaged, with FUA.
    write.cdw12.set(write.cdw12.get() | dlfs::nvme::sqe::FUA);
    assert!(io.call(write, &[0xEE; 512]).0.status().is_success());
    assert_eq!(io.call(Sqe::read(0, NSID, Lba(0), 1, 512), &[]).1, [0xEE; 512]);
}

#[test]
fn writes_to_a_read_only_namespace_are_refused_before_their_data_move() {
    let (target, bytes) = serve(|_| {});
    let (_admin, [mut io]) = RawHost::with_queues(target.local_addr(), &nqn(), NO_DIGESTS);
    for sgl in [Sgl::in_capsule(4096), Sgl::transport(4096)] {
        let data: &[u8] = if sgl == Sgl::in_capsule(4096) { &[0xEE; 4096] } else { &[] };
        let (cqe, _) = io.call(Sqe::write(0, NSID, Lba(0), 8, sgl), data);
        assert_eq!(cqe.status(), Status::NAMESPACE_WRITE_PROTECTED.do_not_retry());
    }
    let flush = io.call(Sqe::flush(0, NSID), &[]).0.status();
    assert!(flush.is_success(), "a flush writes nothing: {flush}");
    check_read(&mut io, &bytes, 0, 8);
}

#[test]
fn failures_of_the_device_become_statuses_that_say_whether_to_try_again() {
    let device = MemNamespace::new(MIB, 512).unwrap();
    let faulty = Arc::new(Faulty::new(Arc::new(device)));
    faulty.add(Rule::read(0..1, 1, Fault::Os(libc::EIO)));
    faulty.add(Rule::read(1..2, 1, Fault::Status(Status::UNWRITTEN_BLOCK)));
    faulty.add(Rule::read(2..3, 1, Fault::Short));
    faulty.shuffle_completions(7);
    let target = Target::bind(TargetOptions::new(nqn()), vec![faulty.clone()]).unwrap();
    let (_admin, [mut io]) = RawHost::with_queues(target.local_addr(), &nqn(), NO_DIGESTS);
    let mut status = |slba| io.call(Sqe::read(0, NSID, Lba(slba), 1, 512), &[]).0.status();
    assert_eq!(status(0), Status::UNRECOVERED_READ_ERROR);
    assert_eq!(status(1), Status::UNWRITTEN_BLOCK);
    assert_eq!(status(2), Status::DATA_TRANSFER_ERROR);
    for slba in 0..4 {
        assert!(status(slba).is_success(), "once only");
    }
    faulty.add(Rule::any_read(1, Fault::Disconnect));
    assert_eq!(status(3), Status::INTERNAL_PATH_ERROR);
}

#[test]
fn several_namespaces_have_their_own_bytes_and_identifiers() {
    let devices: Vec<Arc<dyn Device>> = (1..=3u8)
        .map(|n| {
            let device = MemNamespace::new(MIB, 4096).unwrap().with_nguid([n; 16]);
            let mut blocking = Blocking::new(device.queue_pair().unwrap()).unwrap();
            blocking.write_at(0, &vec![n; 4096]).unwrap();
            Arc::new(device) as Arc<dyn Device>
        })
        .collect();
    let target = Target::bind(TargetOptions::new(nqn()), devices).unwrap();
    let (mut admin, [mut io]) = RawHost::with_queues(target.local_addr(), &nqn(), NO_DIGESTS);
    let (_, page) = admin.call(Sqe::identify(0, cns::ACTIVE_NAMESPACES, Nsid(1)), &[]);
    assert_eq!(decode_namespace_list(&page).unwrap(), [Nsid(2), Nsid(3)]);
    for n in 1..=3u8 {
        let nsid = Nsid(u32::from(n));
        let (_, page) = admin.call(Sqe::identify(0, cns::NAMESPACE, nsid), &[]);
        assert_eq!(IdentifyNamespace::decode(&page).unwrap().nguid, [n; 16]);
        let (_, page) = admin.call(Sqe::identify(0, cns::NAMESPACE_DESCRIPTORS, nsid), &[]);
        assert_eq!(NamespaceDescriptors::decode(&page).nguid, Some([n; 16]));
        assert_eq!(io.call(Sqe::read(0, nsid, Lba(0), 1, 4096), &[]).1, vec![n; 4096]);
    }
    assert!(target.address(Nsid(2)).to_string().ends_with("/nqn.2026-11.io.dlfs:test?ns=2"));
}

#[test]
fn only_hosts_on_the_list_may_connect_and_discovery_shows_nothing_to_others() {
    let friend = Nqn::new("nqn.2026-11.io.dlfs:friend").unwrap();
    let (target, _) = serve(|options| options.allow_hosts = vec![friend.clone()]);
    for (hostnqn, is_allowed) in
        [(friend, true), (Nqn::new("nqn.2026-11.io.dlfs:foe").unwrap(), false)]
    {
        let mut host = RawHost::initialised(target.local_addr(), &nqn(), NO_DIGESTS);
        host.hostnqn = hostnqn.clone();
        let status = host.connect(0, 31, 0xFFFF).status();
        let refused = Status::CONNECT_INVALID_HOST.do_not_retry();
        assert_eq!(status, if is_allowed { Status::SUCCESS } else { refused });
        let names = discovered(&target, hostnqn);
        assert_eq!(names.contains(&nqn()), is_allowed, "{names:?}");
        assert!(names.contains(&Nqn::discovery()));
    }
}

#[test]
fn the_generation_of_the_discovery_log_changes_with_the_hosts_that_may_connect() {
    let [friend, foe] =
        ["friend", "foe"].map(|name| Nqn::new(format!("nqn.2026-11.io.dlfs:{name}")).unwrap());
    let (target, _) = serve(|options| options.allow_hosts = vec![friend.clone()]);
    let mut host = RawHost::initialised(target.local_addr(), &Nqn::discovery(), NO_DIGESTS);
    host.hostnqn = foe.clone();
    assert!(host.connect(0, 31, 0xFFFF).status().is_success());
    host.call(Sqe::property_set(0, Property::Cc, u64::from(Cc::ENABLE.0)), &[]);
    let mut log = || {
        let (_, header) = host.call(Sqe::get_log_page(0, log_page::DISCOVERY, 0, 20), &[]);
        let field = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().unwrap());
        (field(0), field(8)) // GENCTR and NUMREC
    };
    let (before, alone) = log();
    assert_eq!((log(), alone), ((before, 1), 1));
    target.set_allowed_hosts(vec![friend, foe]);
    let (after, both) = log();
    assert!(after != before && both == 2, "{before}, {after}; {both} records");
}

/// The subsystems of the discovery log for a host, read in two commands, as nvme-cli does.
fn discovered(target: &Target, hostnqn: Nqn) -> Vec<Nqn> {
    let mut host = RawHost::initialised(target.local_addr(), &Nqn::discovery(), NO_DIGESTS);
    host.hostnqn = hostnqn;
    assert!(host.connect(0, 31, 0xFFFF).status().is_success());
    host.call(Sqe::property_set(0, Property::Cc, u64::from(Cc::ENABLE.0)), &[]);
    let (_, header) = host.call(Sqe::get_log_page(0, log_page::DISCOVERY, 0, 20), &[]);
    let num_records = u32::from(header[8]);
    let (_, records) =
        host.call(Sqe::get_log_page(0, log_page::DISCOVERY, 1024, num_records * 1024), &[]);
    let records = records.chunks_exact(1024).map(|record| {
        let record = DiscoveryRecord::read_from_bytes(record).unwrap();
        assert_eq!(record.port(), Some(target.local_addr().port()));
        assert_eq!(record.traddr(), Some("127.0.0.1"));
        record.subnqn().unwrap()
    });
    records.collect()
}

#[test]
fn a_host_that_connects_to_a_wrong_subsystem_is_referred_to_discovery() {
    let friend = Nqn::new("nqn.2026-11.io.dlfs:friend").unwrap();
    let (target, _) = serve(|options| options.allow_hosts = vec![friend.clone()]);
    let port = target.local_addr().port();
    let host = |hostnqn: &Nqn, subsystem: &str| {
        let address = format!("nvme-tcp://127.0.0.1:{port}/nqn.2026-11.io.dlfs:{subsystem}");
        let options =
            ConnectOptions { hostnqn: Some(hostnqn.clone()), ..ConnectOptions::default() };
        dlfs::qpair::open(&address.parse().unwrap(), &options).err().map(|error| error.report())
    };
    let of_nobody = host(&friend, "no-such-thing").expect("there is none");
    assert!(of_nobody.contains("dlfs discover HOST:PORT"), "{of_nobody}");
    let name = nqn().to_string();
    let served = name.rsplit(':').next().unwrap();
    let stranger = Nqn::new("nqn.2026-11.io.dlfs:stranger").unwrap();
    let of_stranger = host(&stranger, served).expect("it is not allowed");
    assert!(of_stranger.contains("--hostnqn"), "{of_stranger}");
    assert!(of_stranger.contains(stranger.as_str()), "{of_stranger}");
    assert!(!of_stranger.contains("dlfs discover"), "it would list nothing: {of_stranger}");
    assert_eq!(host(&friend, served), None);
}

#[test]
fn devices_that_cannot_be_served_are_refused_with_a_reason() {
    let (target, _) = serve(|_| {});
    let bind = |change: &dyn Fn(&mut TargetOptions)| {
        let mut options = TargetOptions::new(nqn());
        change(&mut options);
        let device: Arc<dyn Device> = Arc::new(MemNamespace::new(MIB, 512).unwrap());
        Target::bind(options, vec![device])
    };
    let taken = bind(&|options| options.listen = target.local_addr()).unwrap_err();
    assert_eq!(taken.kind(), ErrorKind::Busy);
    assert!(taken.report().contains(&target.local_addr().to_string()), "{}", taken.report());
    let open = bind(&|options| options.listen = "0.0.0.0:0".parse().unwrap()).unwrap_err();
    assert_eq!(open.kind(), ErrorKind::InvalidArgument);
    assert!(open.report().contains("--allow-host"), "{}", open.report());
    let allowed = bind(&|options| {
        options.listen = "0.0.0.0:0".parse().unwrap();
        options.allow_any_host = true;
    });
    allowed.unwrap().stop();
    let strange = bind(&|options| options.listen = "192.0.2.1:0".parse().unwrap());
    assert_eq!(strange.unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(
        bind(&|options| options.nqn = Nqn::discovery()).unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
    assert_eq!(
        Target::bind(TargetOptions::new(nqn()), vec![]).unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
}

#[test]
fn a_stopped_target_frees_its_port_and_its_hosts_see_the_end() {
    let (target, _) = serve(|_| {});
    let address = target.local_addr();
    let (mut admin, [mut io]) = RawHost::with_queues(address, &nqn(), NO_DIGESTS);
    admin.start(Sqe::async_event_request(0), &[]);
    target.stop();
    assert_eq!((admin.receive(), io.receive()), (Reply::Closed, Reply::Closed));
    let (again, bytes) = bind_again(|| try_serve(|options| options.listen = address));
    let (_admin, [mut io]) = RawHost::with_queues(again.local_addr(), &nqn(), NO_DIGESTS);
    check_read(&mut io, &bytes, 1, 1);
}

#[test]
fn a_controller_that_is_disabled_loses_its_queues_and_can_be_enabled_again() {
    let (target, bytes) = serve(|_| {});
    let (mut admin, cntlid) = RawHost::admin(target.local_addr(), &nqn(), NO_DIGESTS);
    let enabled = |admin: &mut RawHost| {
        assert!(admin.call(Sqe::set_num_queues(0, 1), &[]).0.status().is_success());
        let mut io = RawHost::initialised(target.local_addr(), &nqn(), NO_DIGESTS);
        assert!(io.connect(1, 31, cntlid).status().is_success());
        check_read(&mut io, &bytes, 0, 8);
        io
    };
    let mut io = enabled(&mut admin);
    let event = admin.start(Sqe::async_event_request(0), &[]);
    let csts =
        |admin: &mut RawHost| admin.call(Sqe::property_get(0, Property::Csts), &[]).0.dw0.get();
    assert_eq!(csts(&mut admin), Csts::READY);
    let disable = admin.start(Sqe::property_set(0, Property::Cc, 0x0046_0000), &[]);
    let (Reply::Resp(done), Reply::Resp(aborted)) = (admin.receive(), admin.receive()) else {
        panic!("the disabling and the aborted event request are answered");
    };
    assert_eq!((done.cid.get(), aborted.cid.get()), (disable, event));
    assert!(aborted.status().is(Status::ABORTED_SQ_DELETED));
    assert_eq!((csts(&mut admin), io.receive()), (0, Reply::Closed));
    assert!(admin.call(Sqe::keep_alive(0), &[]).0.status().is(Status::COMMAND_SEQUENCE_ERROR));
    admin.call(Sqe::property_set(0, Property::Cc, u64::from(Cc::ENABLE.0)), &[]);
    enabled(&mut admin);
    admin.call(Sqe::property_set(0, Property::Cc, u64::from(Cc::SHUTDOWN.0)), &[]);
    assert!(Csts(csts(&mut admin)).is_shut_down());
    // Other entry sizes are invalid: a fatal status instead of ready.
    admin.call(Sqe::property_set(0, Property::Cc, 0), &[]);
    admin.call(Sqe::property_set(0, Property::Cc, 0x0056_0001), &[]);
    assert_eq!(csts(&mut admin), Csts::FATAL);
}

#[test]
fn a_target_on_ipv6_is_reached_by_the_address_that_it_reports() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        println!("SKIPPED: this machine has no IPv6 loopback");
        return;
    }
    let (target, bytes) = serve(|options| options.listen = "[::1]:0".parse().unwrap());
    let port = target.local_addr().port();
    let address = format!("nvme-tcp://[::1]:{port}/nqn.2026-11.io.dlfs:test?ns=1");
    assert_eq!(target.address(NSID).to_string(), address);
    let (_admin, [mut io]) = RawHost::with_queues(target.local_addr(), &nqn(), NO_DIGESTS);
    check_read(&mut io, &bytes, 77, 3);
}

#[test]
fn many_namespaces_are_served_while_their_devices_are_slow() {
    let devices = (0..40).map(|_| {
        let faulty = Faulty::new(Arc::new(MemNamespace::new(MIB, 512).unwrap()));
        faulty.add(Rule::any_read(3, Fault::DelayTime(Duration::from_millis(20))));
        Arc::new(faulty) as Arc<dyn Device>
    });
    let target = Target::bind(TargetOptions::new(nqn()), devices.collect()).unwrap();
    let (_admin, [mut io]) = RawHost::with_queues(target.local_addr(), &nqn(), NO_DIGESTS);
    let reads: Vec<u8> = (1..=40u16)
        .flat_map(|n| io.capsule(&Sqe::read(n, Nsid(u32::from(n)), Lba(0), 1, 512), &[]))
        .collect();
    io.send(&reads);
    for _ in 0..40 {
        assert!(matches!(io.receive(), Reply::Data { success: true, .. }));
    }
}

/// A namespace that says how many of its blocks are allocated.
struct Thin(Faulty);

impl Device for Thin {
    fn namespace(&self) -> Namespace {
        self.0.namespace()
    }

    fn queue_pair_in(&self, scope: &PairScope) -> dlfs::Result<Box<dyn QueuePair>> {
        self.0.queue_pair_in(scope)
    }

    fn grow(&self, len_bytes: u64) -> dlfs::Result<()> {
        self.0.grow(len_bytes)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { allocated_bytes: Some(0), ..self.0.capabilities() }
    }
}

#[test]
fn a_host_says_whether_reads_of_deallocated_blocks_have_a_status_of_their_own() {
    for is_thin in [true, false] {
        let faulty = Faulty::new(Arc::new(MemNamespace::new(8 * MIB, 512).unwrap()));
        let absent = Status::UNWRITTEN_BLOCK.do_not_retry();
        faulty.add(Rule::any_read(u32::MAX, Fault::Status(absent)));
        let device: Arc<dyn Device> =
            if is_thin { Arc::new(Thin(faulty)) } else { Arc::new(faulty) };
        let target = Target::bind(TargetOptions::new(nqn()), vec![device]).unwrap();
        let (mut host, [mut io]) = RawHost::with_queues(target.local_addr(), &nqn(), NO_DIGESTS);
        let (_, page) = host.call(Sqe::identify(0, cns::NAMESPACE, NSID), &[]);
        let nsfeat = IdentifyNamespace::decode(&page).unwrap().nsfeat;
        assert_eq!(nsfeat & IdentifyNamespace::NSFEAT_DAE != 0, is_thin);
        let mut get = Sqe::set_features(0, feature::ERROR_RECOVERY, 0);
        get.opcode = admin::GET_FEATURES;
        let mut read = || io.call(Sqe::read(0, NSID, Lba(0), 8, 4096), &[]).0.status();
        let off = Sqe::set_features(0, feature::ERROR_RECOVERY, 0);
        let on = Sqe::set_features(0, feature::ERROR_RECOVERY, feature::DULBE);
        let (cqe, _) = host.call(get, &[]);
        assert!(cqe.status().is_success());
        if !is_thin {
            assert_eq!(cqe.dw0.get(), 0);
            assert!(host.call(on, &[]).0.status().is(Status::INVALID_FIELD));
            continue;
        }
        assert_eq!(cqe.dw0.get(), feature::DULBE, "on unless the host says otherwise");
        assert_eq!(read(), absent);
        assert!(host.call(off, &[]).0.status().is_success());
        assert_eq!(host.call(get, &[]).0.dw0.get(), 0);
        // Never zeros, which would be taken for data.
        assert_eq!(read(), Status::UNRECOVERED_READ_ERROR.do_not_retry());
        assert!(host.call(on, &[]).0.status().is_success());
        assert_eq!(read(), absent);
    }
}

/// A rank that serves its tiers forks the workers of a data loader, which may outlive it.
#[test]
fn a_forked_child_does_not_keep_the_port_of_a_target() {
    if ran_alone(a_forked_child_does_not_keep_the_port_of_a_target) {
        return;
    }
    let (target, _) = serve(|_| {});
    let address = target.local_addr();
    assert!(!is_kept_by_a_child(address, || drop(target)));
}
