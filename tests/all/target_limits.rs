//! Hosts that take all they can get: connections, controllers, memory, time. The others go on.

use std::io::Read as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::faults::{Fault, Faulty, Rule};
use crate::support::raw_host::{RawHost, Reply};
use dlfs::nvme::{Cc, ConnectData, Nqn, Property, Sgl, Sqe, Status};
use dlfs::qpair::Device;
use dlfs::qpair::mem::MemNamespace;
use dlfs::target::{Target, TargetOptions, TargetStats};
use dlfs::tcp::Digests;
use dlfs::units::{Lba, Nsid};
use zerocopy::IntoBytes as _;

const NSID: Nsid = Nsid(1);
const NONE: Digests = Digests { header: false, data: false };
/// Too long for anything here to time out.
const NEVER: Duration = Duration::from_secs(3600);

fn nqn() -> Nqn {
    Nqn::new("nqn.2026-11.io.dlfs:limits").unwrap()
}

fn serve(change: impl FnOnce(&mut TargetOptions)) -> Target {
    let mut options = TargetOptions::new(nqn());
    change(&mut options);
    // In a wrapper that lends nothing, so that reads need buffers.
    let device: Arc<dyn Device> = Arc::new(MemNamespace::new(4 << 20, 512).unwrap());
    Target::bind(options, vec![Arc::new(Faulty::new(device))]).unwrap()
}

/// A connection from 127.0.0.`octet` that has exchanged ICReq and ICResp.
fn from(octet: u8, target: &Target, subnqn: &Nqn) -> RawHost {
    let mut host = RawHost::open_from(octet, target.local_addr(), subnqn);
    host.initialise(NONE);
    host
}

fn connect(host: &mut RawHost, kato_ms: u32) -> Status {
    let data = ConnectData::new(host.hostid, 0xFFFF, &host.subnqn, &host.hostnqn);
    host.call(Sqe::connect(0, 0, 31, kato_ms), data.as_bytes()).0.status()
}

fn assert_admitted(host: &mut RawHost, kato_ms: u32) {
    let status = connect(host, kato_ms);
    assert!(status.is_success(), "{status}");
}

/// An enabled controller of the host `name`, with one I/O queue.
fn host_named(target: &Target, name: &str) -> (RawHost, RawHost) {
    let hostnqn = Nqn::new(format!("nqn.2026-11.io.dlfs:{name}")).unwrap();
    let open = || {
        let mut host = RawHost::initialised(target.local_addr(), &nqn(), NONE);
        host.hostnqn = hostnqn.clone();
        host
    };
    let mut admin = open();
    let cqe = admin.connect(0, 31, ConnectData::CNTLID_DYNAMIC);
    assert!(cqe.status().is_success(), "{}", cqe.status());
    let enable = Sqe::property_set(0, Property::Cc, u64::from(Cc::ENABLE.0));
    assert!(admin.call(enable, &[]).0.status().is_success());
    assert!(admin.call(Sqe::set_num_queues(0, 1), &[]).0.status().is_success());
    let mut io = open();
    let joined = io.connect(1, 127, cqe.dw0.get() as u16);
    assert!(joined.status().is_success(), "{}", joined.status());
    (admin, io)
}

/// Waits until the target's counters satisfy a condition.
fn wait_for(target: &Target, what: &str, is_so: impl Fn(TargetStats) -> bool) {
    let limit = Instant::now() + Duration::from_secs(60);
    while !is_so(target.stats()) {
        assert!(Instant::now() < limit, "{what}: {:?}", target.stats());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_host_that_sends_commands_without_reading_is_closed_when_its_queue_is_full() {
    let target = serve(|options| {
        options.allow_hosts = vec![Nqn::new("nqn.2026-11.io.dlfs:somebody-else").unwrap()];
    });
    let (mut host, _) = RawHost::admin(target.local_addr(), &Nqn::discovery(), NONE);
    let identify = |cid| host.capsule(&Sqe::identify(cid, 1, Nsid(0)), &[]);
    let batch: Vec<u8> = (0..64).flat_map(|cid| identify(cid % 16)).collect();
    // 200,000 pages would be 800 MB.
    for _ in 0..3000 {
        host.try_send(&batch);
    }
    let replies = host.until_closed();
    assert!(replies.len() < 64, "{} answers to one that did not read them", replies.len());
    wait_for(&target, "it is closed", |stats| stats.connections == 0 && stats.dropped > 0);
}

#[test]
fn one_address_has_a_limit_of_controllers_and_the_greediest_makes_room() {
    let target = serve(|options| {
        options.max_controllers = 8;
        options.max_controllers_per_address = 4;
    });
    let (_admin, [mut good]) = RawHost::with_queues(target.local_addr(), &nqn(), NONE);
    let take = |octet: u8, count: usize| -> Vec<RawHost> {
        (0..count)
            .map(|_| {
                let mut host = from(octet, &target, &nqn());
                assert_admitted(&mut host, 0);
                host
            })
            .collect()
    };
    let mut greedy = take(2, 4);
    let mut fifth = from(2, &target, &nqn());
    assert_eq!(connect(&mut fifth, 0), Status::CONNECT_CONTROLLER_BUSY, "it may try again");
    let _others = take(3, 3);
    assert_eq!((target.stats().controllers, target.stats().evicted), (8, 0));
    // Nothing is left, so the first of the address that has half of everything is evicted.
    let _newcomer = take(4, 1);
    assert_eq!(greedy[0].receive(), Reply::Closed);
    assert!(greedy[1].call(Sqe::keep_alive(0), &[]).0.status().is(Status::COMMAND_SEQUENCE_ERROR));
    assert!(good.call(Sqe::flush(0, NSID), &[]).0.status().is_success());
    let stats = target.stats();
    assert_eq!((stats.controllers, stats.refused, stats.evicted), (8, 1, 1));
}

#[test]
fn discovery_has_places_of_its_own_and_the_longest_silent_makes_room() {
    let target = serve(|options| {
        options.max_controllers = 1;
        options.max_discovery_controllers = 6;
        options.max_discovery_controllers_per_address = 3;
    });
    // None has more than the others, so only silence decides.
    let mut silent: Vec<RawHost> = (2..8)
        .map(|octet| {
            let mut host = from(octet, &target, &Nqn::discovery());
            assert_admitted(&mut host, u32::MAX);
            host
        })
        .collect();
    // Hosts that keep alive are not affected.
    let mut good = from(1, &target, &nqn());
    assert_admitted(&mut good, 0);
    let limit = Instant::now() + Duration::from_secs(60);
    let mut late = from(8, &target, &Nqn::discovery());
    while !connect(&mut late, 0).is_success() {
        assert!(Instant::now() < limit, "those that are silent keep their places");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(silent[0].receive(), Reply::Closed);
    assert_eq!(target.stats().controllers, 7);
}

#[test]
fn controllers_without_a_keep_alive_make_room_when_they_have_been_silent_too_long() {
    let target = serve(|options| {
        options.max_controllers_per_address = 3;
        options.max_keep_alive = Duration::from_millis(100);
    });
    let (_admin, [mut good]) = RawHost::with_queues(target.local_addr(), &nqn(), NONE);
    let mut silent: Vec<RawHost> = [0, 3_600_000]
        .iter()
        .map(|&kato_ms| {
            let mut host = from(1, &target, &nqn());
            assert_admitted(&mut host, kato_ms);
            std::thread::sleep(Duration::from_millis(50)); // the first is silent longer
            host
        })
        .collect();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(target.stats().evicted, 0, "nobody minds while there is room");
    assert!(good.call(Sqe::flush(0, NSID), &[]).0.status().is_success());
    let mut next = from(1, &target, &nqn());
    assert_admitted(&mut next, 0);
    assert_eq!(silent[0].receive(), Reply::Closed);
    assert!(silent[1].call(Sqe::keep_alive(0), &[]).0.status().is(Status::COMMAND_SEQUENCE_ERROR));
    assert!(good.call(Sqe::flush(0, NSID), &[]).0.status().is_success(), "it was not silent");
}

#[test]
fn one_address_has_a_limit_of_connections_and_its_oldest_stranger_makes_room() {
    let target = serve(|options| {
        options.max_connections = 8;
        options.max_connections_per_address = 4;
    });
    let (_admin, [mut good]) = RawHost::with_queues(target.local_addr(), &nqn(), NONE);
    let mut strangers: Vec<RawHost> = (0..4).map(|_| from(2, &target, &nqn())).collect();
    let mut fifth = from(2, &target, &nqn());
    assert_eq!(strangers[0].receive(), Reply::Closed);
    assert_admitted(&mut strangers[1], 0);
    assert_admitted(&mut strangers[2], 0);
    assert_admitted(&mut strangers[3], 0);
    assert_admitted(&mut fifth, 0);
    // All four have a queue: the next is refused, but not one from another address.
    let mut sixth = RawHost::open_from(2, target.local_addr(), &nqn());
    assert_eq!(sixth.receive(), Reply::Closed);
    let mut others: Vec<RawHost> = (0..2).map(|_| from(3, &target, &nqn())).collect();
    others.iter_mut().for_each(|host| assert_admitted(host, 0));
    let stats = target.stats();
    assert_eq!((stats.connections, stats.refused, stats.evicted), (8, 1, 1));
    // All eight are used. One of the four is evicted for the first of another address.
    let mut newcomer = from(4, &target, &nqn());
    assert_admitted(&mut newcomer, 0);
    assert_eq!(target.stats().evicted, 2);
    assert!(good.call(Sqe::flush(0, NSID), &[]).0.status().is_success());
}

#[test]
fn hosts_of_invented_names_that_do_not_read_give_their_memory_to_one_that_does() {
    let target = serve(|options| options.send_timeout = NEVER);
    let (_admin, [mut good]) = RawHost::with_queues(target.local_addr(), &nqn(), NONE);
    let hostile: Vec<(RawHost, RawHost)> = (0..24)
        .map(|number| {
            let (admin, mut io) = host_named(&target, &format!("invented-{number}"));
            let read = |cid| io.capsule(&Sqe::read(cid, NSID, Lba(0), 2048, 1 << 20), &[]);
            let reads: Vec<u8> = (0..120).flat_map(read).collect();
            io.send(&reads);
            // Each takes half of what is free before the next one comes. Together they would leave each other more.
            loop {
                let before = target.stats().reads;
                std::thread::sleep(Duration::from_millis(50));
                if target.stats().reads == before {
                    return (admin, io);
                }
            }
        })
        .collect();
    for _ in 0..20 {
        let (cqe, read) = good.call(Sqe::read(0, NSID, Lba(0), 2048, 1 << 20), &[]);
        assert!(cqe.status().is_success() && read.len() == 1 << 20);
    }
    assert!(target.stats().evicted > 0, "{:?}", target.stats());
    drop(hostile);
}

#[test]
fn hosts_that_announce_writes_and_send_no_data_give_their_memory_to_others() {
    let target = serve(|options| {
        options.send_timeout = NEVER;
        options.writable = true;
    });
    let (_admin, [mut good]) = RawHost::with_queues(target.local_addr(), &nqn(), NONE);
    let hostile: Vec<(RawHost, RawHost)> = (0..24)
        .map(|number| {
            let (admin, mut io) = host_named(&target, &format!("invented-{number}"));
            let sgl = Sgl::transport(1 << 20);
            let write = |cid| io.capsule(&Sqe::write(cid, NSID, Lba(0), 2048, sgl), &[]);
            let writes: Vec<u8> = (0..120).flat_map(write).collect();
            io.send(&writes);
            (admin, io)
        })
        .collect();
    let (cqe, read) = good.call(Sqe::read(0, NSID, Lba(0), 2048, 1 << 20), &[]);
    assert!(cqe.status().is_success() && read.len() == 1 << 20);
    assert!(target.stats().evicted > 0, "{:?}", target.stats());
    drop(hostile);
}

#[test]
fn a_host_that_reads_a_byte_now_and_then_or_sends_one_is_given_up_in_time() {
    let target = serve(|options| {
        options.send_timeout = Duration::from_millis(500);
        options.writable = true;
    });
    let (_admin, [mut reader, mut writer]) =
        RawHost::with_queues(target.local_addr(), &nqn(), NONE);
    let read = |cid| reader.capsule(&Sqe::read(cid, NSID, Lba(0), 2048, 1 << 20), &[]);
    let reads: Vec<u8> = (0..120).flat_map(read).collect();
    reader.send(&reads);
    writer.start(Sqe::write(0, NSID, Lba(0), 2048, Sgl::transport(1 << 20)), &[]);
    let Reply::R2t { cid, ttag, .. } = writer.receive() else { panic!("no R2T") };
    let pdu = writer.h2c_data(cid, ttag, 0, &vec![0; 1 << 20], true);
    let limit = Instant::now() + Duration::from_secs(60);
    for byte in &pdu {
        if target.stats().dropped >= 2 {
            return;
        }
        assert!(Instant::now() < limit, "{:?}", target.stats());
        let _ = reader.stream.read(&mut [0]); // may fail: either may be closed
        writer.try_send(&[*byte]);
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("a host may take as long as it likes");
}

#[test]
fn reads_that_find_no_memory_are_sent_elsewhere_if_their_hosts_can_read_elsewhere() {
    let options = TargetOptions {
        buffer_bytes: 4 << 20,
        max_memory_wait: Some(Duration::from_millis(200)),
        ..TargetOptions::new(nqn())
    };
    let device = Faulty::new(Arc::new(MemNamespace::new(4 << 20, 512).unwrap()));
    device.add(Rule::any_read(u32::MAX, Fault::Swallow));
    let target = Target::bind(options, vec![Arc::new(device)]).unwrap();
    let read = Sqe::read(0, NSID, Lba(0), 2048, 1 << 20);
    // Their reads never end, and hold the memory: the first host's 1 MiB, those of others pieces of 128 KiB.
    let mut greedy: Vec<_> = (0..32).map(|n| host_named(&target, &format!("greedy-{n}"))).collect();
    for (_, io) in &mut greedy {
        io.start(read, &[]);
    }
    let (_admin, mut io) = host_named(&target, "late");
    let began = Instant::now();
    let status = io.call(read, &[]).0.status();
    assert!(status.is(Status::UNWRITTEN_BLOCK) && status.dnr, "{status}");
    assert!(began.elapsed() >= Duration::from_millis(200), "it waited first");
}
