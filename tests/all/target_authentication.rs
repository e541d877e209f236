//! Hosts that authenticate to a target, and hosts that cannot.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::raw_host::{RawHost, Reply};
use dlfs::ErrorKind;
use dlfs::address::Address;
use dlfs::auth::{
    Concatenation, Explanation, Group, Hash, Host, HostTerms, Message, Next, Randomness, Secret,
};
use dlfs::nvme::{ConnectData, Nqn, Property, Sgl, Sqe, Status};
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::mem::MemNamespace;
use dlfs::qpair::tcp::TcpNamespace;
use dlfs::qpair::{ConnectOptions, Device as _};
use dlfs::target::{Access, HostKeys, HostRule, Limits, Rules, Target, TargetOptions};
use dlfs::tcp::Digests;
use dlfs::units::{Lba, Nsid};
use zerocopy::IntoBytes as _;

const NONE: Digests = Digests { header: false, data: false };

fn subnqn() -> Nqn {
    Nqn::new("nqn.2026-11.io.dlfs:secret").unwrap()
}

fn host(name: &str) -> Nqn {
    Nqn::new(format!("nqn.2026-11.io.dlfs:{name}")).unwrap()
}

fn secret(byte: u8) -> Secret {
    Secret::generate(&std::array::from_fn(|at| byte ^ at as u8), Some(Hash::Sha256))
}

fn keys(of: &[(&str, &[u8], Option<u8>)]) -> BTreeMap<Nqn, HostKeys> {
    let keys = of.iter().map(|(name, secrets, ctrl)| {
        let secrets = secrets.iter().map(|&byte| secret(byte)).collect();
        (host(name), HostKeys { secrets, ctrl_secret: ctrl.map(secret), ..HostKeys::default() })
    });
    keys.collect()
}

/// A target with 1 MiB of sevens, which knows `alice` by secret 1 and authenticates itself to her
/// with secret 2.
fn serve(change: impl FnOnce(&mut TargetOptions)) -> Target {
    let device = MemNamespace::new(1 << 20, 512).unwrap();
    let mut blocking = Blocking::new(device.queue_pair().unwrap()).unwrap();
    blocking.write_at(0, &vec![7; 1 << 20]).unwrap();
    let mut options = TargetOptions::new(subnqn());
    options.host_keys = keys(&[("alice", &[1], Some(2))]);
    change(&mut options);
    Target::bind(options, vec![Arc::new(device)]).unwrap()
}

fn connect_options(name: &str, secret_of: Option<u8>, ctrl: Option<u8>) -> ConnectOptions {
    ConnectOptions {
        hostnqn: Some(host(name)),
        dhchap_secret: secret_of.map(secret),
        dhchap_ctrl_secret: ctrl.map(secret),
        connect_timeout: Duration::from_secs(60),
        ctrl_loss_tmo: Duration::from_secs(120),
        ..ConnectOptions::default()
    }
}

fn connect(target: &Target, options: &ConnectOptions) -> dlfs::Result<TcpNamespace> {
    let Address::Tcp(address) = target.address(Nsid(1)) else { panic!("it serves TCP") };
    TcpNamespace::connect(&address, options)
}

fn reads_sevens(namespace: &TcpNamespace) {
    let mut blocking = Blocking::new(namespace.queue_pair().unwrap()).unwrap();
    assert_eq!(blocking.read(4096, 4096).unwrap()[..], [7; 4096]);
}

#[test]
fn a_host_with_its_key_reads_with_every_hash_and_group_one_way_and_both_ways() {
    for group in Group::ALL {
        for hash in Hash::ALL {
            let target = serve(|options| {
                (options.dhchap_hashes, options.dhchap_groups) = (vec![hash], vec![group]);
            });
            for ctrl in [None, Some(2)] {
                reads_sevens(&connect(&target, &connect_options("alice", Some(1), ctrl)).unwrap());
            }
            assert_eq!(target.stats().refused, 0, "{hash:?}, {group}");
        }
    }
}

#[test]
fn a_wrong_key_a_missing_key_and_a_wrong_controller_are_refused_with_a_reason() {
    let target = serve(|_| {});
    let refused = |name, secret, ctrl| {
        let error =
            connect(&target, &connect_options(name, secret, ctrl)).err().expect("a refusal");
        (error.kind(), error.to_string())
    };
    let (kind, text) = refused("alice", Some(3), None);
    assert_eq!(kind, ErrorKind::Refused, "{text}");
    assert!(text.contains("the other side does not accept the response"), "{text}");
    let (kind, text) = refused("alice", None, None);
    assert_eq!(kind, ErrorKind::Refused, "{text}");
    assert!(text.contains("requires authentication"), "{text}");
    let (kind, text) = refused("alice", Some(1), Some(3));
    assert_eq!(kind, ErrorKind::Refused, "{text}");
    assert!(text.contains("controller"), "{text}");
    let (kind, text) = refused("mallory", Some(1), None);
    assert_eq!(kind, ErrorKind::Refused, "{text}");
    reads_sevens(&connect(&target, &connect_options("alice", Some(1), Some(2))).unwrap());
}

#[test]
fn a_host_on_the_list_needs_no_key_and_a_host_with_keys_must_use_them() {
    let target = serve(|options| {
        options.allow_hosts = vec![host("bob")];
        options.host_keys.extend(keys(&[("carol", &[4], None)]));
    });
    reads_sevens(&connect(&target, &connect_options("bob", None, None)).unwrap());
    reads_sevens(&connect(&target, &connect_options("carol", Some(4), None)).unwrap());
    let error =
        connect(&target, &connect_options("carol", Some(4), Some(2))).err().expect("a refusal");
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    let error =
        connect(&target, &connect_options("bob", Some(1), Some(2))).err().expect("a refusal");
    assert!(error.to_string().contains("although it must"), "{error}");
}

#[test]
fn a_host_sees_the_namespaces_that_it_may_use_and_writes_only_if_it_may() {
    let devices =
        || (1..=3u64).map(|mib| Arc::new(MemNamespace::new(mib << 20, 512).unwrap()) as _);
    let mut host_keys = keys(&[("alice", &[1], None), ("bob", &[1], None)]);
    let access = Access { namespaces: Some(vec![Nsid(1), Nsid(3)]), read_only: true };
    host_keys.get_mut(&host("alice")).unwrap().access = access;
    let options = TargetOptions { host_keys, writable: true, ..TargetOptions::new(subnqn()) };
    let mut target = Target::bind(options, devices().collect()).unwrap();
    let Address::Tcp(address) = target.address(Nsid(1)) else { panic!("it serves TCP") };
    let options = |name| ConnectOptions { writable: true, ..connect_options(name, Some(1), None) };
    let all = |name| TcpNamespace::connect_all(&address, &options(name)).unwrap();
    let lens = |of: &[TcpNamespace]| -> Vec<u64> {
        of.iter().map(|namespace| namespace.namespace().len_bytes() >> 20).collect()
    };
    let of_alice = all("alice");
    assert_eq!(lens(&of_alice), [1, 3]);
    assert!(of_alice.iter().all(|namespace| namespace.namespace().read_only));
    let of_bob = all("bob");
    assert_eq!(lens(&of_bob), [1, 2, 3]);
    Blocking::new(of_bob[1].queue_pair().unwrap()).unwrap().write_at(0, &[1; 512]).unwrap();
    let error = TcpNamespace::connect_to(&address, &[Nsid(2)], &options("alice")).err().unwrap();
    assert!(error.to_string().contains("invalid namespace"), "{error}");
    // The commands themselves are refused, too.
    let (mut admin, cntlid) = unproven(&target, 0, ConnectData::CNTLID_DYNAMIC);
    assert!(authenticate(&mut admin, 1));
    enable(&mut admin);
    let (mut io, _) = unproven(&target, 1, cntlid);
    assert!(authenticate(&mut io, 1));
    let status = |io: &mut RawHost, sqe| io.call(sqe, &[0; 512]).0.status();
    let write = |nsid| Sqe::write(0, Nsid(nsid), Lba(0), 1, Sgl::in_capsule(512));
    assert_eq!(status(&mut io, write(1)), Status::NAMESPACE_WRITE_PROTECTED.do_not_retry());
    assert_eq!(status(&mut io, write(2)), Status::INVALID_NAMESPACE.do_not_retry());
    // Namespaces that do not exist are refused; existing connections stay.
    let mut wrong = keys(&[("alice", &[1], None)]);
    wrong.get_mut(&host("alice")).unwrap().access.namespaces = Some(vec![Nsid(4)]);
    assert_eq!(target.set_host_keys(wrong).unwrap_err().kind(), ErrorKind::InvalidArgument);
    target.set_host_keys(keys(&[("alice", &[1], None)])).unwrap();
    assert_eq!(status(&mut io, write(2)), Status::INVALID_NAMESPACE.do_not_retry());
    assert_eq!(lens(&all("alice")), [1, 2, 3]);
}

/// An admin or I/O queue of `alice` that is connected and has not authenticated.
fn unproven(target: &Target, qid: u16, cntlid: u16) -> (RawHost, u16) {
    let mut queue = RawHost::initialised(target.local_addr(), &subnqn(), NONE);
    queue.hostnqn = host("alice");
    let cqe = queue.connect(qid, 31, cntlid);
    assert!(cqe.status().is_success(), "{}", cqe.status());
    assert_eq!(cqe.dw0.get() >> 16, 0b10, "AUTHREQ says ATR");
    (queue, cqe.dw0.get() as u16)
}

fn send_of(len: usize) -> Sqe {
    let mut sqe = Sqe::authentication_send(0, len as u32);
    sqe.sgl = Sgl::in_capsule(len as u32);
    sqe
}

fn fetch_of(room: u32) -> Sqe {
    let mut sqe = Sqe::authentication_receive(0, room);
    sqe.sgl = Sgl::transport(room);
    sqe
}

/// Does alice's part on a queue, with the key `byte`; returns whether the target accepts her.
fn authenticate(queue: &mut RawHost, byte: u8) -> bool {
    let terms = HostTerms {
        hostnqn: host("alice"),
        subnqn: subnqn(),
        secret: secret(byte),
        ctrl_secret: None,
        hashes: vec![Hash::Sha384],
        groups: vec![Group::Null],
        concatenation: Concatenation::No,
    };
    let (mut prover, mut next) =
        Host::new(terms, &Randomness::from_bytes([byte; Randomness::LEN_BYTES]), 5);
    loop {
        next = match next {
            Next::Send(message) => {
                let send = send_of(message.len());
                let status = queue.call(send, &message).0.status();
                assert!(status.is_success(), "{status}");
                prover.sent()
            }
            Next::Receive => {
                let (cqe, message) = queue.call(fetch_of(4096), &[]);
                assert!(cqe.status().is_success(), "{}", cqe.status());
                prover.handle(&message)
            }
            Next::Compute(_) => unreachable!("there is no group"),
            Next::Authenticated => return true,
            Next::Failed(_) => return false,
        }
    }
}

fn enable(admin: &mut RawHost) {
    let set = Sqe::property_set(0, Property::Cc, u64::from(dlfs::nvme::Cc::ENABLE.0));
    assert!(admin.call(set, &[]).0.status().is_success());
    assert!(admin.call(Sqe::set_num_queues(0, 2), &[]).0.status().is_success());
}

#[test]
fn every_queue_must_authenticate_before_anything_else() {
    let target = serve(|_| {});
    let (mut admin, cntlid) = unproven(&target, 0, ConnectData::CNTLID_DYNAMIC);
    let required = Status::AUTHENTICATION_REQUIRED.do_not_retry();
    let refused = |queue: &mut RawHost, sqe| assert_eq!(queue.call(sqe, &[]).0.status(), required);
    refused(&mut admin, Sqe::property_get(0, Property::Cap));
    refused(&mut admin, Sqe::identify(0, dlfs::nvme::sqe::cns::CONTROLLER, Nsid(0)));
    assert!(authenticate(&mut admin, 1));
    enable(&mut admin);
    // Knowing the controller's identifier and the host's name proves nothing.
    let (mut io, _) = unproven(&target, 1, cntlid);
    refused(&mut io, Sqe::read(0, Nsid(1), Lba(0), 8, 4096));
    assert!(authenticate(&mut io, 1));
    assert_eq!(io.call(Sqe::read(0, Nsid(1), Lba(0), 8, 4096), &[]).1, [7; 4096]);
}

#[test]
fn a_wrong_proof_ends_the_connection_and_its_controller() {
    let target = serve(|_| {});
    let (mut admin, _) = unproven(&target, 0, ConnectData::CNTLID_DYNAMIC);
    let began = Instant::now();
    assert!(!authenticate(&mut admin, 9));
    assert!(began.elapsed() >= Duration::from_secs(1), "a wrong proof costs a delay");
    assert_eq!(admin.receive(), Reply::Closed);
    assert_eq!(target.stats().refused, 1);
    assert_eq!(target.stats().controllers, 0);
}

#[test]
pub fn messages_out_of_turn_and_of_wrong_form_are_refused_and_nothing_is_served() {
    let target = serve(|_| {});
    let (mut admin, _) = unproven(&target, 0, ConnectData::CNTLID_DYNAMIC);
    let status = |queue: &mut RawHost, sqe, data: &[u8]| queue.call(sqe, data).0.status();
    let too_early = status(&mut admin, fetch_of(4096), &[]);
    assert_eq!(too_early, Status::COMMAND_SEQUENCE_ERROR.do_not_retry());
    let mut of_another_protocol = send_of(16);
    of_another_protocol.cdw10.set(0x0100_0100);
    let other = status(&mut admin, of_another_protocol, &[0; 16]);
    assert_eq!(other, Status::INVALID_FIELD.do_not_retry());
    let long = status(&mut admin, send_of(2048), &[0; 2048]);
    assert_eq!(long, Status::INVALID_SGL_LENGTH.do_not_retry());
    // Invalid messages are received, and their refusal is sent.
    assert!(status(&mut admin, send_of(16), &[0xAA; 16]).is_success());
    let (_, message) = admin.call(fetch_of(4096), &[]);
    assert!(matches!(Message::decode(&message), Ok((_, Message::Failure1 { .. }))));
    assert_eq!(admin.receive(), Reply::Closed);
}

#[test]
fn keys_are_replaced_while_hosts_are_connected_and_two_are_valid_in_between() {
    let mut target = serve(|_| {});
    let before = connect(&target, &connect_options("alice", Some(1), None)).unwrap();
    let mut blocking = Blocking::new(before.queue_pair().unwrap()).unwrap();
    target.set_host_keys(keys(&[("alice", &[1, 5], None)])).unwrap();
    for byte in [1, 5] {
        reads_sevens(&connect(&target, &connect_options("alice", Some(byte), None)).unwrap());
    }
    target.set_host_keys(keys(&[("alice", &[5], None)])).unwrap();
    let error =
        connect(&target, &connect_options("alice", Some(1), None)).err().expect("a refusal");
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    assert_eq!(blocking.read(0, 4096).unwrap()[..], [7; 4096], "what is connected stays");
}

#[test]
fn a_host_authenticates_again_while_its_reads_are_outstanding() {
    let target = serve(|_| {});
    let (mut admin, cntlid) = unproven(&target, 0, ConnectData::CNTLID_DYNAMIC);
    assert!(authenticate(&mut admin, 1));
    enable(&mut admin);
    let (mut io, _) = unproven(&target, 1, cntlid);
    assert!(authenticate(&mut io, 1));
    for _ in 0..2 {
        let read = io.start(Sqe::read(0, Nsid(1), Lba(0), 8, 4096), &[]);
        let terms = Message::Negotiate {
            sc_c: 0,
            hashes: vec![Hash::Sha256.id()],
            groups: vec![Group::Ffdhe2048.id()],
        }
        .encode(8);
        let send = io.start(send_of(terms.len()), &terms);
        let fetch = io.start(fetch_of(4096), &[]);
        // Between Negotiate and the end of Diffie-Hellman, reads are answered.
        let during = io.start(Sqe::read(0, Nsid(1), Lba(8), 8, 4096), &[]);
        let mut answered = Vec::new();
        while answered.len() < 4 {
            match io.receive() {
                Reply::Resp(cqe) => {
                    assert!(cqe.status().is_success(), "{}", cqe.status());
                    answered.push(cqe.cid.get());
                }
                Reply::Data { cid, bytes, success, .. } => {
                    assert!(cid == fetch || bytes == [7; 4096]);
                    answered.extend(success.then_some(cid));
                }
                other => panic!("{other:?}"),
            }
        }
        answered.sort_unstable();
        let mut expected = [read, send, fetch, during];
        expected.sort_unstable();
        assert_eq!(answered, expected);
        // It aborts this one with Failure2, and authenticates in the next.
        let failure = failure();
        let status = io.call(send_of(failure.len()), &failure).0.status();
        assert!(status.is_success(), "{status}");
        assert_eq!(io.receive(), Reply::Closed);
        (io, _) = unproven(&target, 1, cntlid);
        assert!(authenticate(&mut io, 1));
        assert!(authenticate(&mut io, 1), "again, on the same queue");
        assert_eq!(io.call(Sqe::read(0, Nsid(1), Lba(0), 8, 4096), &[]).1, [7; 4096]);
    }
}

/// The message by which a host ends an authentication.
fn failure() -> Vec<u8> {
    Message::Failure2 { explanation: Explanation::HashNotUsable }.encode(8)
}

/// Sends these commands, each with the data in its capsule and with its number as CID, and `more`, in one segment.
fn send_at_once(queue: &mut RawHost, commands: &[(Sqe, &[u8])], more: &[u8]) {
    let mut bytes = Vec::new();
    for (cid, (sqe, data)) in (1..).zip(commands) {
        let mut sqe = *sqe;
        sqe.cid.set(cid);
        bytes.extend(queue.capsule(&sqe, data));
    }
    bytes.extend(more);
    queue.send(&bytes);
}

#[test]
fn bytes_behind_a_failed_authentication_in_its_segment_do_nothing() {
    let target = serve(|_| {});
    let (mut admin, _) = unproven(&target, 0, ConnectData::CNTLID_DYNAMIC);
    let mut of_two_parts = Sqe::authentication_send(0, 100);
    of_two_parts.sgl = Sgl::transport(100);
    let cid = admin.start(of_two_parts, &[]);
    let Reply::R2t { ttag, .. } = admin.receive() else { panic!("the target asks for the data") };
    let failure = failure();
    let late = admin.h2c_data(cid, ttag, 0, &[0; 100], true);
    send_at_once(&mut admin, &[(send_of(failure.len()), &failure)], &late);
    let replies = admin.until_closed();
    assert!(matches!(&replies[..], [Reply::Resp(cqe)] if cqe.cid.get() == 1), "{replies:?}");
    target.check().unwrap();

    let (mut admin, _) = unproven(&target, 0, ConnectData::CNTLID_DYNAMIC);
    let data =
        ConnectData::new(admin.hostid, ConnectData::CNTLID_DYNAMIC, &subnqn(), &host("alice"));
    let again = (Sqe::connect(0, 0, 31, 0), data.as_bytes());
    send_at_once(&mut admin, &[(send_of(failure.len()), &failure), again], &[]);
    let replies = admin.until_closed();
    assert!(matches!(&replies[..], [Reply::Resp(cqe)] if cqe.cid.get() == 1), "{replies:?}");
    reads_sevens(&connect(&target, &connect_options("alice", Some(1), None)).unwrap());
}

#[test]
fn commands_that_wait_when_an_authentication_fails_are_not_executed() {
    let target = serve(|options| {
        options.writable = true;
        let limits = Limits { write_iops: Some(2), ..Limits::default() };
        let hosts = vec![host("alice").as_str().parse().unwrap()];
        let hosts = vec![HostRule { group: None, hosts, limits }];
        options.limiter.set(Rules { hosts, ..Rules::default() });
    });
    let (mut admin, cntlid) = unproven(&target, 0, ConnectData::CNTLID_DYNAMIC);
    assert!(authenticate(&mut admin, 1));
    enable(&mut admin);
    let (mut io, _) = unproven(&target, 1, cntlid);
    assert!(authenticate(&mut io, 1));
    let write = |lba| Sqe::write(0, Nsid(1), Lba(lba), 1, Sgl::in_capsule(512));
    let failure = failure();
    // The limit lets the first write begin, and the second half a second later: before the connection closes.
    let commands: [(Sqe, &[u8]); 3] =
        [(write(0), &[1; 512]), (write(8), &[1; 512]), (send_of(failure.len()), &failure)];
    send_at_once(&mut io, &commands, &[]);
    io.until_closed();
    reads_sevens(&connect(&target, &connect_options("alice", Some(1), None)).unwrap());
}

#[test]
fn of_many_hosts_at_once_those_beyond_the_queue_are_told_to_try_again_and_get_their_turn() {
    let target = serve(|options| options.dhchap_groups = vec![Group::Ffdhe2048]);
    let negotiate = Message::Negotiate {
        sc_c: 0,
        hashes: vec![Hash::Sha256.id()],
        groups: vec![Group::Ffdhe2048.id()],
    }
    .encode(3);
    let connect_many = || -> Vec<RawHost> {
        (0..150).map(|_| unproven(&target, 0, ConnectData::CNTLID_DYNAMIC).0).collect()
    };
    let mut queues = connect_many();
    let mut attempts = 1;
    let mut num_told_to_retry = 0;
    while !queues.is_empty() {
        for queue in &mut queues {
            queue.start(send_of(negotiate.len()), &negotiate);
        }
        queues.retain_mut(|queue| {
            let Reply::Resp(cqe) = queue.receive() else { panic!("a completion is due") };
            let is_busy = cqe.status() == Status::COMMAND_INTERRUPTED;
            assert!(is_busy || cqe.status().is_success(), "{}", cqe.status());
            num_told_to_retry += u32::from(is_busy);
            if !is_busy {
                let (_, message) = queue.call(fetch_of(4096), &[]);
                assert!(matches!(Message::decode(&message), Ok((_, Message::Challenge { .. }))));
            }
            is_busy
        });
        // On a busy machine each may have come when the one before was done.
        if queues.is_empty() && num_told_to_retry == 0 && attempts < 20 {
            queues = connect_many();
            attempts += 1;
        }
    }
    assert!(num_told_to_retry > 0);
    reads_sevens(&connect(&target, &connect_options("alice", Some(1), None)).unwrap());
}
