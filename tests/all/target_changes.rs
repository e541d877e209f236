//! A target whose namespaces and hosts change while it serves: what hosts that are connected see.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::faults::{Fault, Faulty, Rule};
use crate::support::raw_host::{RawHost, Reply};
use crate::support::tls_tunnel;
use dlfs::ErrorKind;
use dlfs::auth::{ConfiguredPsk, Derivation, Hash, IdentityVersion};
use dlfs::nvme::identify::decode_namespace_list;
use dlfs::nvme::sqe::{cns, feature, log_page};
use dlfs::nvme::{IdentifyController, Nqn, Sgl, Sqe, Status};
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::mem::MemNamespace;
use dlfs::qpair::{self, ConnectOptions, Device};
use dlfs::target::{AnaState, HostKeys, ServedNamespace, Target, TargetOptions};
use dlfs::tcp::Digests;
use dlfs::tls::Session;
use dlfs::units::{Lba, Nsid};

const MIB: u64 = 1 << 20;
const DIGESTS: Digests = Digests { header: true, data: true };
/// Events that a host asks for: namespaces and ANA.
const NAMESPACES: u32 = 1 << 8;
const ANA: u32 = 1 << 11;

fn nqn() -> Nqn {
    Nqn::new("nqn.2026-11.io.dlfs:changes").unwrap()
}

/// A namespace whose bytes are all its NSID.
fn namespace(nsid: u8) -> ServedNamespace {
    let device = MemNamespace::new(MIB, 512).unwrap();
    let mut blocking = Blocking::new(device.queue_pair().unwrap()).unwrap();
    blocking.write_at(0, &vec![nsid; MIB as usize]).unwrap();
    ServedNamespace { nsid: Nsid(nsid.into()), device: Arc::new(device), read_only: false }
}

fn serve(served: Vec<ServedNamespace>, change: impl FnOnce(&mut TargetOptions)) -> Target {
    let mut options = TargetOptions { max_nsid: 64, num_pollers: 2, ..TargetOptions::new(nqn()) };
    change(&mut options);
    let listener = dlfs::target::listen(options.listen).unwrap();
    Target::serve(options, vec![listener], served).unwrap()
}

fn read(io: &mut RawHost, nsid: u8) -> Result<Vec<u8>, Status> {
    let (cqe, bytes) = io.call(Sqe::read(0, Nsid(nsid.into()), Lba(0), 1, 512), &[]);
    if cqe.status().is_success() { Ok(bytes) } else { Err(cqe.status()) }
}

fn enable_events(admin: &mut RawHost, events: u32) {
    let set = Sqe::set_features(0, feature::ASYNC_EVENT_CONFIG, events);
    assert!(admin.call(set, &[]).0.status().is_success());
}

/// Dword 0 of the event that ends request `cid`.
fn event(admin: &mut RawHost, cid: u16) -> u32 {
    let Reply::Resp(cqe) = admin.receive() else { panic!("not an event") };
    assert!(cqe.cid.get() == cid && cqe.status().is_success(), "{cqe:?}");
    cqe.dw0.get()
}

fn changed(admin: &mut RawHost) -> Vec<Nsid> {
    let log = Sqe::get_log_page(0, log_page::CHANGED_NAMESPACES, 0, 4096);
    decode_namespace_list(&admin.call(log, &[]).1).unwrap()
}

fn active(admin: &mut RawHost) -> Vec<Nsid> {
    let list = Sqe::identify(0, cns::ACTIVE_NAMESPACES, Nsid(0));
    decode_namespace_list(&admin.call(list, &[]).1).unwrap()
}

#[test]
fn namespaces_come_and_go_and_connected_hosts_are_told() {
    let mut target = serve(vec![namespace(1)], |_| {});
    let (mut admin, [mut io, mut other]) =
        RawHost::with_queues(target.local_addr(), &nqn(), DIGESTS);
    let page = admin.call(Sqe::identify(0, cns::CONTROLLER, Nsid(0)), &[]).1;
    let controller = IdentifyController::decode(&page).unwrap();
    assert_eq!((controller.nn.get(), controller.oaes.get()), (64, NAMESPACES));
    enable_events(&mut admin, NAMESPACES);
    let request = admin.start(Sqe::async_event_request(0), &[]);
    assert_eq!(read(&mut io, 7).unwrap_err(), Status::INVALID_NAMESPACE.do_not_retry());

    target.add_namespace(namespace(7)).unwrap();
    assert_eq!(event(&mut admin, request), 0x04_00_02, "Namespace Attribute Changed");
    // Both queues, which different pollers serve, know it when the host is told.
    for io in [&mut io, &mut other] {
        assert_eq!(read(io, 7).unwrap(), [7; 512]);
    }
    assert_eq!(active(&mut admin), [Nsid(1), Nsid(7)]);

    // Until the list is read, nothing more is reported; then the list has all of it.
    let request = admin.start(Sqe::async_event_request(0), &[]);
    target.add_namespace(namespace(9)).unwrap();
    assert_eq!(changed(&mut admin), [Nsid(7), Nsid(9)]);
    assert_eq!(changed(&mut admin), []);
    target.remove_namespace(Nsid(1)).unwrap();
    assert_eq!(event(&mut admin, request), 0x04_00_02);
    assert_eq!(changed(&mut admin), [Nsid(1)]);
    for io in [&mut io, &mut other] {
        assert_eq!(read(io, 1).unwrap_err(), Status::INVALID_NAMESPACE.do_not_retry());
        assert_eq!(read(io, 9).unwrap(), [9; 512]);
    }
    assert_eq!(active(&mut admin), [Nsid(7), Nsid(9)]);
    let gone = admin.call(Sqe::identify(0, cns::NAMESPACE, Nsid(1)), &[]).0.status();
    assert_eq!(gone, Status::INVALID_NAMESPACE.do_not_retry());

    // The NSID may be used again, for other bytes.
    let ServedNamespace { device, .. } = namespace(11);
    target.add_namespace(ServedNamespace { nsid: Nsid(1), device, read_only: true }).unwrap();
    assert_eq!(read(&mut io, 1).unwrap(), [11; 512]);
}

#[test]
fn a_change_that_is_not_possible_is_refused_with_its_reason() {
    let mut target = serve(vec![namespace(1)], |_| {});
    let kind_and_text = |error: dlfs::Error| (error.kind(), error.to_string());
    let (kind, text) = kind_and_text(target.add_namespace(namespace(1)).unwrap_err());
    assert!(kind == ErrorKind::InvalidArgument && text.contains("a namespace 1 already"), "{text}");
    let (kind, text) = kind_and_text(target.remove_namespace(Nsid(2)).unwrap_err());
    assert!(kind == ErrorKind::NotFound && text.contains("no namespace 2"), "{text}");
    for nsid in [0, dlfs::target::MAX_NSID + 1] {
        let served = ServedNamespace { nsid: Nsid(nsid), ..namespace(1) };
        let (kind, text) = kind_and_text(target.add_namespace(served).unwrap_err());
        assert!(kind == ErrorKind::InvalidArgument && text.contains("1 to 65536"), "{text}");
    }
    let options = TargetOptions::new(nqn());
    let listener = dlfs::target::listen(options.listen).unwrap();
    let twice = Target::serve(options, vec![listener], vec![namespace(3), namespace(3)]);
    assert!(twice.unwrap_err().to_string().contains("two namespaces have the NSID 3"));
}

#[test]
fn commands_that_have_begun_end_although_their_namespace_is_removed() {
    let faulty = Faulty::new(namespace(1).device);
    faulty.add(Rule::any_read(1, Fault::DelayTime(Duration::from_millis(200))));
    let slow = ServedNamespace { device: Arc::new(faulty.clone()), ..namespace(1) };
    let mut target = serve(vec![slow, namespace(2)], |_| {});
    let (_admin, [mut io]) = RawHost::with_queues(target.local_addr(), &nqn(), DIGESTS);
    let begun = io.start(Sqe::read(0, Nsid(1), Lba(0), 1, 512), &[]);
    wait_until(|| faulty.struck() == 1);
    target.remove_namespace(Nsid(1)).unwrap();
    let refused = io.start(Sqe::read(0, Nsid(1), Lba(0), 1, 512), &[]);
    let mut replies = [io.receive(), io.receive()];
    replies.sort_by_key(|reply| matches!(reply, Reply::Resp(_)));
    let Reply::Data { cid, bytes, success: true, .. } = &replies[0] else { panic!("{replies:?}") };
    assert!(*cid == begun && *bytes == [1; 512]);
    let Reply::Resp(cqe) = &replies[1] else { panic!("{replies:?}") };
    assert_eq!((cqe.cid.get(), cqe.status()), (refused, Status::INVALID_NAMESPACE.do_not_retry()));
    assert_eq!(read(&mut io, 2).unwrap(), [2; 512]);
}

#[test]
fn a_host_reads_on_while_other_namespaces_come_and_go() {
    let mut target =
        serve(vec![namespace(1), namespace(2)], |options| options.ana = Some(AnaState::Optimized));
    let device = qpair::open(&target.address(Nsid(1)), &ConnectOptions::default()).unwrap();
    let mut blocking = Blocking::new(device.queue_pair().unwrap()).unwrap();
    let mut bytes = vec![0; 4096];
    for round in 0..50u32 {
        match round % 2 {
            0 => target.remove_namespace(Nsid(2)).unwrap(),
            _ => target.add_namespace(namespace(2)).unwrap(),
        }
        bytes.fill(0);
        blocking.read_at(u64::from(round) * 4096, &mut bytes).unwrap();
        assert_eq!(bytes, [1; 4096], "round {round}");
    }
    let connects = target.stats().commands.of("connect");
    assert_eq!(connects, 2, "one admin queue, one I/O queue: it was never disconnected");
}

#[test]
fn a_host_that_is_dropped_leaves_the_others_connected() {
    let target = serve(vec![namespace(1)], |_| {});
    let [stays, goes] =
        ["stays", "goes"].map(|name| Nqn::new(format!("nqn.2026-11.io.dlfs:{name}")));
    let stays = stays.unwrap();
    let goes = goes.unwrap();
    let connect = |hostnqn: &Nqn| {
        let options =
            ConnectOptions { hostnqn: Some(hostnqn.clone()), ..ConnectOptions::default() };
        let device = qpair::open(&target.address(Nsid(1)), &options).unwrap();
        let queue_pair = device.queue_pair().unwrap();
        (device, Blocking::new(queue_pair).unwrap())
    };
    let (_device, mut reader) = connect(&stays);
    let _gone = connect(&goes);
    let hosts = |target: &Target| -> Vec<(Nqn, usize)> {
        let connected = target.connected().into_iter();
        connected.map(|controller| (controller.host, controller.num_io_queues)).collect()
    };
    assert_eq!(hosts(&target), [(stays.clone(), 1), (goes.clone(), 1)]);
    target.set_allowed_hosts(vec![stays.clone()]);
    assert_eq!((target.disconnect(&goes), target.disconnect(&goes)), (1, 0));
    // The one that goes tries again and again, and is refused.
    let none_else = || {
        let stats = target.stats();
        stats.connections == 2 && stats.accepted - stats.refused == 4
    };
    wait_until(none_else);
    assert_eq!(hosts(&target), [(stays, 1)]);
    let mut bytes = [0; 512];
    reader.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, [1; 512]);
    wait_until(none_else);
}

#[test]
fn a_host_that_is_dropped_while_it_reads_comes_back_without_an_error() {
    let target = serve(vec![namespace(1)], |_| {});
    let device = qpair::open(&target.address(Nsid(1)), &ConnectOptions::default()).unwrap();
    let mut reader = Blocking::new(device.queue_pair().unwrap()).unwrap();
    let host = target.connected()[0].host.clone();
    for round in 0..40_u32 {
        // Its commands arrive at queues whose controller has just gone.
        wait_until(|| target.disconnect(&host) == 1);
        let mut bytes = [0; 512];
        reader.read_at(u64::from(round) * 512, &mut bytes).unwrap_or_else(|error| {
            panic!("round {round}: {error}");
        });
        assert_eq!(bytes, [1; 512]);
    }
}

#[test]
fn a_drained_target_answers_what_has_begun_and_lets_nobody_in() {
    let faulty = Faulty::new(namespace(1).device);
    faulty.add(Rule::any_read(1, Fault::DelayTime(Duration::from_millis(300))));
    let slow = ServedNamespace { device: Arc::new(faulty.clone()), ..namespace(1) };
    let target = serve(vec![slow], |_| {});
    let (mut admin, [mut io]) = RawHost::with_queues(target.local_addr(), &nqn(), DIGESTS);
    let parked = admin.start(Sqe::async_event_request(0), &[]);
    let begun = io.start(Sqe::read(0, Nsid(1), Lba(0), 1, 512), &[]);
    wait_until(|| faulty.struck() == 1);
    assert!(!target.is_drained());
    target.drain();
    let mut late = RawHost::initialised(target.local_addr(), &nqn(), DIGESTS);
    let refused = late.connect(0, 31, dlfs::nvme::ConnectData::CNTLID_DYNAMIC);
    assert!(refused.status().is(Status::CONNECT_CONTROLLER_BUSY), "{}", refused.status());
    let Reply::Data { cid, bytes, success: true, .. } = io.receive() else { panic!("no data") };
    assert!(cid == begun && bytes == [1; 512]);
    assert_eq!(io.receive(), Reply::Closed);
    drop(io);
    assert_eq!(admin.receive(), Reply::Closed, "request {parked} stays unanswered");
    drop(admin);
    wait_until(|| target.is_drained());
}

#[test]
fn a_drained_target_executes_nothing_that_comes_after_it_has_closed_its_side() {
    let host = Nqn::new("nqn.2026-11.io.dlfs:raw-host").unwrap();
    let key = ConfiguredPsk::generate(&[1; 64], Hash::Sha256);
    let write = |lba| Sqe::write(0, Nsid(1), Lba(lba), 1, Sgl::in_capsule(512));
    for is_inside_tls in [false, true] {
        let served = namespace(1);
        let device = Arc::clone(&served.device);
        let target = serve(vec![served], |options| {
            options.writable = true;
            if is_inside_tls {
                let keys = HostKeys { tls_keys: vec![key.clone()], ..HostKeys::default() };
                options.host_keys.insert(host.clone(), keys);
            }
        });
        let mut path = target.local_addr();
        if is_inside_tls {
            let psk = key.tls_psk(IdentityVersion::V1, Derivation::Specification, &host, &nqn());
            let make = move || Session::host(psk.as_ref().unwrap()).unwrap();
            path = tls_tunnel::of_host(path, Box::new(make));
        }
        let (mut admin, [mut io]) = RawHost::with_queues(path, &nqn(), DIGESTS);
        assert!(io.call(write(0), &[9; 512]).0.status().is_success());
        target.drain();
        assert_eq!(io.receive(), Reply::Closed);
        let late = io.capsule(&write(1), &[9; 512]);
        io.try_send(&late);
        drop(io);
        // The target ends the admin queue only after the I/O queue.
        assert_eq!(admin.receive(), Reply::Closed);
        drop(admin);
        wait_until(|| target.is_drained());
        let mut blocking = Blocking::new(device.queue_pair().unwrap()).unwrap();
        let bytes = blocking.read(0, 1024).unwrap();
        assert_eq!((bytes[0], bytes[512]), (9, 1), "inside TLS: {is_inside_tls}");
    }
}

#[test]
fn a_host_that_knows_ana_is_told_that_a_drained_target_is_inaccessible() {
    let target =
        serve(vec![namespace(1), namespace(4)], |options| options.ana = Some(AnaState::Optimized));
    let (mut admin, [mut io]) = RawHost::with_queues(target.local_addr(), &nqn(), DIGESTS);
    let page = admin.call(Sqe::identify(0, cns::CONTROLLER, Nsid(0)), &[]).1;
    let controller = IdentifyController::decode(&page).unwrap();
    assert_eq!(controller.oaes.get(), NAMESPACES | ANA);
    assert_eq!(controller.cmic & IdentifyController::CMIC_ANA, IdentifyController::CMIC_ANA);
    let ana_log =
        |admin: &mut RawHost| admin.call(Sqe::get_log_page(0, log_page::ANA, 0, 56), &[]).1;
    let log = ana_log(&mut admin);
    assert_eq!((log[8], log[16], log[20], log[32]), (1, 1, 2, 0x01), "one group, optimized");
    assert_eq!((log[48], log[52]), (1, 4), "its namespaces");
    enable_events(&mut admin, NAMESPACES | ANA);
    let request = admin.start(Sqe::async_event_request(0), &[]);
    assert!(read(&mut io, 4).is_ok());
    target.drain();
    assert_eq!(event(&mut admin, request), 0x0C_03_02, "Asymmetric Namespace Access Change");
    assert_eq!(
        read(&mut io, 4).unwrap_err(),
        Status::ANA_INACCESSIBLE,
        "and it may be tried elsewhere"
    );
    assert_eq!(ana_log(&mut admin)[32], 0x03);
    assert_eq!(io.receive(), Reply::Closed);
    drop(io);
    assert_eq!(admin.receive(), Reply::Closed);
    drop(admin);
    wait_until(|| target.is_drained());
}

#[test]
fn a_target_that_stops_listening_leaves_its_socket_to_another_and_keeps_its_hosts() {
    let other = Nqn::new("nqn.2026-11.io.dlfs:other").unwrap();
    let listener = dlfs::target::listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let serve = |nqn: &Nqn| {
        let options = TargetOptions { num_pollers: 2, ..TargetOptions::new(nqn.clone()) };
        Target::serve(options, vec![listener.try_clone().unwrap()], vec![namespace(1)]).unwrap()
    };
    let first = serve(&nqn());
    let (_admin, [mut io]) = RawHost::with_queues(first.local_addr(), &nqn(), DIGESTS);
    let second = serve(&other);
    first.stop_listening().unwrap();
    let accepted = first.stats().accepted;
    // Both would accept, and the first one knows no such subsystem.
    for _ in 0..50 {
        let (_admin, [mut io]) = RawHost::with_queues(second.local_addr(), &other, DIGESTS);
        assert!(read(&mut io, 1).is_ok());
    }
    assert_eq!((first.stats().accepted, second.stats().accepted), (accepted, 100));
    assert!(read(&mut io, 1).is_ok());
    // Without another one the port is closed.
    drop(listener);
    second.stop_listening().unwrap();
    assert!(std::net::TcpStream::connect(second.local_addr()).is_err());
}

fn wait_until(is_so: impl Fn() -> bool) {
    let limit = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < limit, "it never became so");
        std::thread::sleep(Duration::from_millis(1));
    }
}
