//! Hostile hosts against our target: whatever a host sends, the target survives, refuses it with
//! the right reason, and serves the others.

use std::io::Write as _;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::random::Random;
use crate::support::raw_host::{RawHost, Reply};
use dlfs::nvme::sqe::{admin, fctype, feature, nvm};
use dlfs::nvme::{Cc, ConnectData, Nqn, Property, Sgl, Sqe, Status};
use dlfs::qpair::Device;
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::mem::MemNamespace;
use dlfs::target::{Target, TargetOptions};
use dlfs::tcp::Digests;
use dlfs::tcp::pdu::IcReq;
use dlfs::units::{Lba, Nsid};
use zerocopy::IntoBytes as _;

const LEN: u64 = 4 << 20;
const NUM_BLOCKS: u64 = LEN / 512;
const NSID: Nsid = Nsid(1);
const NONE: Digests = Digests { header: false, data: false };
const BOTH: Digests = Digests { header: true, data: true };

fn nqn() -> Nqn {
    Nqn::new("nqn.2026-11.io.dlfs:hostile").unwrap()
}

/// A target, its namespace, and a correct host that stays connected while others attack.
struct Siege {
    target: Target,
    device: MemNamespace,
    bytes: Vec<u8>,
    _admin: RawHost,
    good: RawHost,
}

impl Siege {
    fn begin(change: impl FnOnce(&mut TargetOptions)) -> Siege {
        let device = MemNamespace::new(LEN, 512).unwrap();
        let mut bytes = vec![0; LEN as usize];
        Random::new(3).fill(&mut bytes);
        blocking(&device).write_at(0, &bytes).unwrap();
        let mut options = TargetOptions::new(nqn());
        change(&mut options);
        let target = Target::bind(options, vec![Arc::new(device.clone())]).unwrap();
        let (admin, [good]) = RawHost::with_queues(target.local_addr(), &nqn(), NONE);
        Siege { target, device, bytes, _admin: admin, good }
    }

    fn open(&self) -> RawHost {
        RawHost::open(self.target.local_addr(), &nqn())
    }

    fn initialised(&self, digests: Digests) -> RawHost {
        RawHost::initialised(self.target.local_addr(), &nqn(), digests)
    }

    fn io_queue(&self, digests: Digests) -> (RawHost, RawHost) {
        let (admin, [io]) = RawHost::with_queues(self.target.local_addr(), &nqn(), digests);
        (admin, io)
    }

    /// The correct host still reads correct data.
    fn check(&mut self) {
        let (cqe, read) = self.good.call(Sqe::read(0, NSID, Lba(9), 16, 8192), &[]);
        assert!(cqe.status().is_success() && read == self.bytes[9 * 512..][..8192]);
    }

    /// Nothing was written, and nothing is left of the hostile hosts.
    fn end(mut self) {
        self.check();
        let limit = Instant::now() + Duration::from_secs(60);
        while self.target.stats().connections > 2 || self.target.stats().controllers > 1 {
            assert!(Instant::now() < limit, "left over: {:?}", self.target.stats());
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut now = vec![0; LEN as usize];
        blocking(&self.device).read_at(0, &mut now).unwrap();
        assert!(now == self.bytes, "the namespace has changed");
    }
}

fn blocking(device: &MemNamespace) -> Blocking {
    Blocking::new(device.queue_pair().unwrap()).unwrap()
}

/// Asserts that the target closed the connection, with this fatal error status if it sent one.
fn assert_terminated(host: &mut RawHost, fes: u16, what: &str) {
    match &host.until_closed()[..] {
        [.., Reply::Term { fes: found, .. }] => assert_eq!(*found, fes, "{what}"),
        [] => {} // a reset overtook it
        other => panic!("{what}: {other:?}"),
    }
}

#[test]
fn hosts_that_leave_at_any_byte_of_the_handshake_leave_nothing_behind() {
    let siege = Siege::begin(|_| {});
    let mut script = IcReq::new(NONE).as_bytes().to_vec();
    let host = siege.open();
    let data = ConnectData::new([7; 16], 0xFFFF, &nqn(), &host.hostnqn);
    script.extend(host.capsule(&Sqe::connect(0, 0, 31, 0), data.as_bytes()));
    drop(host);
    for len in 0..script.len() {
        let mut host = siege.open();
        host.send(&script[..len]);
        if len % 2 == 0 {
            // Closing with unread bytes sends RST instead of FIN.
            let socket = socket2::SockRef::from(&host.stream);
            socket.set_linger(Some(Duration::ZERO)).unwrap();
        }
    }
    siege.end();
}

#[test]
fn a_second_initialisation_and_impossible_ones_are_refused() {
    let mut siege = Siege::begin(|_| {});
    for digests in [NONE, BOTH] {
        let mut host = siege.initialised(digests);
        host.send(IcReq::new(digests).as_bytes());
        assert_terminated(&mut host, 2, "second ICReq");
        let (_admin, mut io) = siege.io_queue(digests);
        io.send(IcReq::new(digests).as_bytes());
        assert_terminated(&mut io, 2, "ICReq on a live queue");
    }
    for (at, value, fes) in
        [(0, 1, 1), (2, 127, 1), (2, 255, 1), (4, 127, 1), (7, 255, 1), (8, 1, 6), (10, 32, 6)]
    {
        let mut bytes = IcReq::new(NONE).as_bytes().to_vec();
        bytes[at] = value;
        let mut host = siege.open();
        host.send(&bytes);
        assert_terminated(&mut host, fes, &format!("byte {at} = {value}"));
    }
    siege.check();
    siege.end();
}

#[test]
pub fn every_pdu_type_in_the_wrong_state_ends_only_its_own_connection() {
    let mut siege = Siege::begin(|_| {});
    for pdu_type in 0..=255u8 {
        let hlen = match pdu_type {
            0 | 1 => 128,
            4 => 72,
            _ => 24,
        };
        let mut pdu = vec![0; usize::from(hlen)];
        (pdu[0], pdu[2], pdu[4]) = (pdu_type, hlen, hlen);
        for state in 0..3 {
            let (mut host, _admin) = match state {
                0 => (siege.open(), None),
                1 => (siege.initialised(NONE), None),
                _ => {
                    let (admin, io) = siege.io_queue(NONE);
                    (io, Some(admin))
                }
            };
            if matches!((pdu_type, state), (0, 0) | (4, 1..)) {
                continue; // what should come next
            }
            host.try_send(&pdu);
            let replies = host.until_closed();
            assert!(
                matches!(replies[..], [] | [Reply::Term { fes: 1 | 2, .. }]),
                "type {pdu_type:02x} in state {state}: {replies:?}"
            );
        }
        siege.check();
    }
    siege.end();
}

#[test]
pub fn data_that_nobody_asked_for_end_only_their_own_connection() {
    let mut siege = Siege::begin(|options| options.writable = true);
    let data = vec![0xEE; 4096];
    // Before Connect, for a read, for an idle slot, and after the last data.
    let mut host = siege.initialised(NONE);
    let pdu = host.h2c_data(0, 0, 0, &data, true);
    host.send(&pdu);
    assert_terminated(&mut host, 1, "before Connect");
    for ttag in [0, 1, 126, 127, 128, 0xFFFF] {
        let (_admin, mut io) = siege.io_queue(NONE);
        let pdu = io.h2c_data(0, ttag, 0, &data, true);
        io.send(&pdu);
        assert_terminated(&mut io, 1, &format!("transfer tag {ttag}"));
    }
    let write = Sqe::write(0, NSID, Lba(0), 16, Sgl::transport(8192));
    let cases: [(&str, u16, u32, usize, bool, u16); 6] = [
        ("another command", 1, 0, 4096, false, 1),
        ("an offset past the start", 0, 4096, 4096, true, 1),
        ("an offset near 2^32", 0, 0xFFFF_F000, 4096, false, 1),
        ("data past the end", 0, 0, 12_288, true, 4),
        ("the last PDU too early", 0, 0, 4096, true, 1),
        ("no last PDU", 0, 0, 8192, false, 1),
    ];
    for (what, cid_change, offset, len, last, fes) in cases {
        let (_admin, mut io) = siege.io_queue(NONE);
        let cid = io.start(write, &[]);
        let Reply::R2t { ttag, .. } = io.receive() else { panic!("no R2T") };
        let pdu = io.h2c_data(cid ^ cid_change, ttag, offset, &vec![0xEE; len], last);
        io.send(&pdu);
        assert_terminated(&mut io, fes, what);
        siege.check();
    }
    // More in one PDU than MAXH2CDATA.
    let (admin, mut io) = siege.io_queue(NONE);
    let cid = io.start(write, &[]);
    let Reply::R2t { ttag, .. } = io.receive() else { panic!("no R2T") };
    let pdu = io.h2c_data(cid, ttag, 0, &vec![0; 2 << 20], false);
    io.try_send(&pdu);
    assert_terminated(&mut io, 5, "above MAXH2CDATA");
    drop((admin, io));
    siege.end();
}

#[test]
pub fn false_lengths_are_refused_without_allocating_for_them() {
    let mut siege = Siege::begin(|options| options.writable = true);
    // PLEN, PDO and HLEN of a capsule, on a live queue.
    for (at, bytes) in [
        (4, &[0xFF, 0xFF, 0xFF, 0xFF][..]),
        (4, &[0, 0, 0, 0]),
        (4, &[71, 0, 0, 0]),
        (4, &[73, 0, 0, 0]),
        (4, &[0, 0, 0, 0x80]),
        (2, &[0]),
        (2, &[255]),
        (1, &[1]),
    ] {
        let (_admin, mut io) = siege.io_queue(NONE);
        let mut capsule = io.capsule(&Sqe::read(1, NSID, Lba(0), 1, 512), &[]);
        capsule[at..at + bytes.len()].copy_from_slice(bytes);
        io.send(&capsule);
        let replies = io.until_closed();
        assert!(
            matches!(replies[..], [] | [Reply::Term { fes: 1 | 5, .. }]),
            "{at} {bytes:?}: {replies:?}"
        );
    }
    // SGL lengths up to 4 GiB in commands of every kind: an error status at once.
    let (mut admin, mut io) = siege.io_queue(NONE);
    for len in [0, 511, 513, 1 << 20, 0x8000_0000, u32::MAX] {
        let read = Sqe::read(0, NSID, Lba(0), 1, len);
        assert!(io.call(read, &[]).0.status().is(Status::INVALID_SGL_LENGTH), "read of {len}");
        let write = Sqe::write(0, NSID, Lba(0), 1, Sgl::transport(len));
        assert!(io.call(write, &[]).0.status().is(Status::INVALID_SGL_LENGTH), "write of {len}");
        let mut identify = Sqe::identify(0, 1, Nsid(0));
        identify.sgl = Sgl::transport(len);
        assert!(
            admin.call(identify, &[]).0.status().is(Status::INVALID_SGL_LENGTH),
            "Identify of {len}"
        );
    }
    let mut set = Sqe::set_features(0, feature::HOST_BEHAVIOR, 0);
    set.sgl = Sgl::transport(u32::MAX);
    assert!(admin.call(set, &[]).0.status().is(Status::INVALID_FIELD));
    let mut log = Sqe::get_log_page(0, 1, 0, 4);
    (log.cdw10, log.cdw11) = (0xFFFF_0001.into(), 0xFFFF.into());
    log.sgl = Sgl::transport(u32::MAX);
    assert!(admin.call(log, &[]).0.status().is(Status::INVALID_SGL_LENGTH));
    // 65,536 blocks are more than MDTS.
    let read = Sqe::read(0, NSID, Lba(0), 8192, LEN as u32);
    assert!(io.call(read, &[]).0.status().is(Status::INVALID_FIELD));
    drop((admin, io));
    siege.check();
    siege.end();
}

#[test]
fn a_flood_of_commands_ends_its_connection_and_a_full_queue_is_served() {
    let siege = Siege::begin(|_| {});
    let (idle_admin, mut io) = siege.io_queue(NONE);
    let reads: Vec<u8> = (0..127u16)
        .flat_map(|cid| io.capsule(&Sqe::read(cid, NSID, Lba(0), 128, 65_536), &[]))
        .collect();
    io.send(&reads);
    let mut seen = [false; 127];
    for _ in 0..127 {
        let Reply::Data { cid, bytes, last: true, success: true, .. } = io.receive() else {
            panic!("no data")
        };
        assert!(
            bytes == siege.bytes[..65_536] && !std::mem::replace(&mut seen[usize::from(cid)], true)
        );
    }
    // Asynchronous event requests stay pending: the fifth is refused, the rest would fill the
    // queue.
    let (mut admin, idle_io) = siege.io_queue(NONE);
    for _ in 0..4 {
        admin.start(Sqe::async_event_request(0), &[]);
    }
    assert!(admin.call(Sqe::async_event_request(0), &[]).0.status().is(Status::AER_LIMIT_EXCEEDED));
    // Before Connect, one command at a time is allowed.
    let mut host = siege.initialised(NONE);
    for _ in 0..200 {
        let refused = host.call(Sqe::keep_alive(0), &[]).0.status();
        assert!(refused.is(Status::COMMAND_SEQUENCE_ERROR), "{refused}");
    }
    let keep_alives: Vec<u8> =
        (0..2000u16).flat_map(|cid| host.capsule(&Sqe::keep_alive(cid), &[])).collect();
    host.try_send(&keep_alives);
    let replies = host.until_closed();
    assert!(replies.len() <= 2, "{} answers to a host that did not wait for one", replies.len());
    drop((idle_admin, io, admin, idle_io, host));
    siege.end();
}

#[test]
fn half_open_connections_make_room_for_new_ones() {
    let mut siege = Siege::begin(|options| options.max_connections = 40);
    let strangers: Vec<TcpStream> =
        (0..200).map(|_| TcpStream::connect(siege.target.local_addr()).unwrap()).collect();
    siege.check();
    let (_admin, mut io) = siege.io_queue(NONE);
    assert!(io.call(Sqe::flush(0, NSID), &[]).0.status().is(Status::SUCCESS));
    assert!(siege.target.stats().connections <= 40);
    drop((strangers, _admin, io));
    siege.end();
}

#[test]
fn a_full_target_refuses_new_hosts_as_busy_and_serves_the_others() {
    let mut siege = Siege::begin(|options| options.max_controllers = 2);
    let (second, _) = RawHost::admin(siege.target.local_addr(), &nqn(), NONE);
    let mut third = siege.initialised(NONE);
    let status = third.connect(0, 31, 0xFFFF).status();
    assert_eq!(status, Status::CONNECT_CONTROLLER_BUSY, "and may be tried again");
    drop(second);
    let limit = Instant::now() + Duration::from_secs(60);
    while !third.connect(0, 31, 0xFFFF).status().is_success() {
        assert!(Instant::now() < limit, "the place of the one that left is not given away");
    }
    drop(third);
    // All allowed connections exist and are in use: the next one is closed at once.
    let mut full = Siege::begin(|options| options.max_connections = 2);
    let mut stranger = full.open();
    assert_eq!(stranger.receive(), Reply::Closed);
    full.check();
    siege.check();
    full.end();
    siege.end();
}

#[test]
fn slow_connections_and_silent_hosts_are_closed() {
    // Long enough for a busy machine to connect.
    let siege = Siege::begin(|options| options.connect_timeout = Duration::from_secs(6));
    let mut silent = siege.open();
    let mut half = siege.initialised(NONE);
    // KATO is 6 s: the controller ends with all its queues.
    let mut admin = siege.initialised(NONE);
    let data = ConnectData::new([7; 16], 0xFFFF, &nqn(), &admin.hostnqn);
    let (cqe, _) = admin.call(Sqe::connect(0, 0, 31, 6000), data.as_bytes());
    let cntlid = cqe.dw0.get() as u16;
    admin.call(Sqe::property_set(0, Property::Cc, 0x0046_0001), &[]);
    admin.call(Sqe::set_num_queues(0, 1), &[]);
    let mut io = siege.initialised(NONE);
    assert!(io.connect(1, 31, cntlid).status().is_success());
    assert_eq!((silent.receive(), half.receive()), (Reply::Closed, Reply::Closed));
    assert_eq!((admin.receive(), io.receive()), (Reply::Closed, Reply::Closed));
    siege.end();
}

#[test]
fn a_capsule_that_comes_in_drops_keeps_neither_its_controller_nor_its_connection_alive() {
    let mut siege = Siege::begin(|options| options.send_timeout = Duration::from_secs(6));
    let with_kato = |kato_ms| {
        let mut admin = siege.initialised(NONE);
        let data = ConnectData::new([7; 16], 0xFFFF, &nqn(), &admin.hostnqn);
        admin.call(Sqe::connect(0, 0, 31, kato_ms), data.as_bytes());
        admin.call(Sqe::property_set(0, Property::Cc, 0x0046_0001), &[]);
        admin
    };
    // Until the target closes the connection, which also a busy machine does before the last piece.
    let drip = |host: &mut RawHost, pieces: usize, pause: Duration| {
        let capsule = host.capsule(&Sqe::keep_alive(5), &[]);
        for piece in capsule.chunks(capsule.len().div_ceil(pieces)) {
            if host.stream.write_all(piece).is_err() {
                break;
            }
            std::thread::sleep(pause);
        }
    };
    // A host that is slow, and sends whole capsules in time, lives on.
    let mut slow = with_kato(6000);
    for _ in 0..10 {
        drip(&mut slow, 3, Duration::from_millis(250));
        assert!(matches!(slow.receive(), Reply::Resp(cqe) if cqe.status().is_success()));
    }
    drop(slow);
    // 72 bytes in 22 s.
    let mut admin = with_kato(2000);
    drip(&mut admin, 72, Duration::from_millis(300));
    assert_eq!(admin.receive(), Reply::Closed);
    // Without a time-out of its controller, on an I/O queue.
    let (admin, mut io) = siege.io_queue(NONE);
    drip(&mut io, 72, Duration::from_millis(300));
    assert_eq!(io.receive(), Reply::Closed);
    drop(admin);
    siege.check();
    siege.end();
}

#[test]
fn a_host_that_reads_no_answers_is_closed_and_delays_nobody() {
    let mut siege = Siege::begin(|options| {
        options.buffer_bytes = 4 << 20;
        options.send_timeout = Duration::from_millis(500);
    });
    let (_admin, mut io) = siege.io_queue(NONE);
    let reads: Vec<u8> = (0..127u16)
        .flat_map(|cid| io.capsule(&Sqe::read(cid, NSID, Lba(0), 1024, 524_288), &[]))
        .collect();
    io.send(&reads);
    let limit = Instant::now() + Duration::from_secs(60);
    while siege.target.stats().dropped == 0 {
        siege.check();
        assert!(Instant::now() < limit, "{:?}", siege.target.stats());
    }
    drop((_admin, io));
    siege.end();
}

#[test]
fn a_host_with_many_queues_that_reads_no_answers_leaves_memory_to_the_others() {
    let mut siege = Siege::begin(|_| {});
    let nqn = Nqn::new("nqn.2026-11.io.dlfs:stuck").unwrap();
    let connect = |qid: u16, sqsize: u16, cntlid: u16| {
        let mut host = siege.initialised(NONE);
        host.hostnqn = nqn.clone();
        let cqe = host.connect(qid, sqsize, cntlid);
        assert!(cqe.status().is_success(), "{}", cqe.status());
        (host, cqe.dw0.get() as u16)
    };
    let (mut admin, cntlid) = connect(0, 31, ConnectData::CNTLID_DYNAMIC);
    let enable = Sqe::property_set(0, Property::Cc, u64::from(Cc::ENABLE.0));
    assert!(admin.call(enable, &[]).0.status().is_success());
    assert!(admin.call(Sqe::set_num_queues(0, 8), &[]).0.status().is_success());
    let mut queues: Vec<RawHost> = (1..=8).map(|qid| connect(qid, 127, cntlid).0).collect();
    for queue in &mut queues {
        // 8 times 63 MiB, with a pool of 64 MiB.
        let read = |cid| queue.capsule(&Sqe::read(cid, NSID, Lba(0), 1024, 524_288), &[]);
        let reads: Vec<u8> = (0..126u16).flat_map(read).collect();
        queue.send(&reads);
    }
    (0..200).for_each(|_| siege.check());
    assert_eq!(siege.target.stats().dropped, 0, "it was served beside the other, not after it");
    drop((admin, queues));
    siege.end();
}

#[test]
fn connect_is_checked_field_by_field() {
    let siege = Siege::begin(|_| {});
    let (admin, cntlid) = RawHost::admin(siege.target.local_addr(), &nqn(), NONE);
    let good = ConnectData::new([7; 16], 0xFFFF, &nqn(), &admin.hostnqn);
    let refused = |sqe: Sqe, data: &[u8]| {
        let mut host = siege.initialised(NONE);
        let cqe = host.call(sqe, data).0;
        assert!(!cqe.status().is_success(), "{sqe:?}");
        (cqe.status().sct, cqe.status().sc, cqe.dw0.get())
    };
    let with_data = |change: &dyn Fn(&mut ConnectData)| {
        let mut data = good.clone();
        change(&mut data);
        refused(Sqe::connect(0, 0, 31, 0), data.as_bytes())
    };
    let command = |offset: u32| (1, 0x82, offset);
    let data = |offset: u32| (1, 0x82, 0x1_0000 | offset);
    assert_eq!(refused(Sqe::connect(0, 0, 0, 0), good.as_bytes()), command(44));
    assert_eq!(refused(Sqe::connect(0, 0, 0xFFFF, 0), good.as_bytes()), command(44));
    let mut sqe = Sqe::connect(0, 0, 31, 0);
    sqe.cdw10.set(1);
    assert_eq!(refused(sqe, good.as_bytes()), (1, 0x80, 0));
    // NQNs: empty, unterminated, too long, not UTF-8, of another subsystem.
    assert_eq!(with_data(&|data| data.hostnqn = [0; 256]), data(512));
    assert_eq!(with_data(&|data| data.hostnqn = [b'a'; 256]), data(512));
    assert_eq!(with_data(&|data| data.hostnqn[..224].fill(b'a')), data(512));
    assert_eq!(with_data(&|data| data.hostnqn[3] = 0xFF), data(512));
    assert_eq!(with_data(&|data| data.hostnqn[3] = b'\n'), data(512));
    assert_eq!(with_data(&|data| data.subnqn = [b'a'; 256]), data(256));
    assert_eq!(with_data(&|data| data.subnqn[4] ^= 1), data(256));
    assert_eq!(with_data(&|data| data.subnqn = [0; 256]), data(256));
    assert_eq!(with_data(&|data| data.cntlid.set(1)), data(16));
    // I/O queues: before the grant, of no controller, of another host, beyond the grant.
    let join = |qid: u16, change: &dyn Fn(&mut ConnectData)| {
        let mut data = good.clone();
        data.cntlid.set(cntlid);
        change(&mut data);
        refused(Sqe::connect(0, qid, 31, 0), data.as_bytes())
    };
    assert_eq!(join(1, &|_| {}), command(42));
    let mut admin = admin;
    assert!(admin.call(Sqe::set_num_queues(0, 2), &[]).0.status().is_success());
    for qid in [3, 4, 0xFFFF] {
        assert_eq!(join(qid, &|_| {}), command(42));
    }
    assert_eq!(join(1, &|data| data.cntlid.set(0)), data(16));
    assert_eq!(join(1, &|data| data.cntlid.set(0xFFFF)), data(16));
    assert_eq!(join(1, &|data| data.hostnqn[5] ^= 1), data(512));
    assert_eq!(join(1, &|data| data.hostid = [8; 16]), data(0));
    let mut first = siege.initialised(NONE);
    assert!(first.connect(1, 31, cntlid).status().is_success());
    assert_eq!(join(1, &|_| {}), (0, 0x0C, 0));
    let queues = admin.call(Sqe::set_num_queues(0, 3), &[]).0.status();
    assert!(queues.is(Status::COMMAND_SEQUENCE_ERROR), "{queues}");
    // Data of another length, and data that would need an R2T.
    let mut host = siege.initialised(NONE);
    let mut sqe = Sqe::connect(0, 0, 31, 0);
    sqe.sgl = Sgl::in_capsule(1020);
    assert!(host.call(sqe, &good.as_bytes()[..1020]).0.status().is(Status::INVALID_SGL_LENGTH));
    sqe.sgl = Sgl::transport(1024);
    assert!(host.call(sqe, &[]).0.status().is(Status::INVALID_SGL_LENGTH));
    // Twice on one connection.
    assert!(host.connect(0, 31, 0xFFFF).status().is_success());
    assert!(host.connect(0, 31, 0xFFFF).status().is(Status::COMMAND_SEQUENCE_ERROR));
    drop((admin, first, host));
    siege.end();
}

#[test]
pub fn every_opcode_on_either_queue_is_answered_and_changes_nothing() {
    let siege = Siege::begin(|_| {});
    let (mut admin, mut io) = siege.io_queue(NONE);
    for opcode in 0..=255u8 {
        let is_known = [nvm::FLUSH, nvm::READ].contains(&opcode);
        let mut sqe = Sqe::new(opcode, 0, NSID);
        if opcode & 3 == 2 {
            sqe.sgl = Sgl::transport(512); // what moves to the host has room for a block
        }
        let status = match opcode & 3 {
            1 => {
                sqe.sgl = Sgl::in_capsule(512);
                io.call(sqe, &[0xEE; 512]).0.status()
            }
            _ => io.call(sqe, &[]).0.status(),
        };
        let is_expected = match opcode {
            nvm::FLUSH => status.is(Status::NAMESPACE_WRITE_PROTECTED) || status.is_success(),
            nvm::WRITE => status.is(Status::NAMESPACE_WRITE_PROTECTED),
            fctype::OPCODE => !status.is_success(),
            _ => status.is_success() == is_known,
        };
        assert!(is_expected, "I/O opcode {opcode:02x}: {status}");
        if [admin::ASYNC_EVENT_REQUEST, fctype::OPCODE].contains(&opcode) {
            continue; // never answered; has tests of its own
        }
        let (cqe, _) = match opcode & 3 {
            1 => admin.call(sqe, &[0xEE; 512]),
            _ => admin.call(sqe, &[]),
        };
        let is_harmless = [admin::ABORT, admin::KEEP_ALIVE].contains(&opcode);
        assert_eq!(
            cqe.status().is_success(),
            is_harmless,
            "admin opcode {opcode:02x}: {}",
            cqe.status()
        );
    }
    for fctype in 0..=255u32 {
        let mut sqe = Sqe::new(fctype::OPCODE, 0, Nsid(fctype));
        sqe.cdw11.set(0x10);
        if fctype & 3 == 2 {
            sqe.sgl = Sgl::transport(64);
        }
        let (cqe, _) = admin.call(sqe, &[]);
        assert!(!cqe.status().is_success(), "FCTYPE {fctype:02x}");
    }
    drop((admin, io));
    siege.end();
}

#[test]
fn missing_blocks_and_missing_namespaces_are_refused() {
    let siege = Siege::begin(|options| options.writable = true);
    let (mut admin, mut io) = siege.io_queue(NONE);
    for (slba, num_blocks) in [
        (NUM_BLOCKS, 1),
        (NUM_BLOCKS - 1, 2),
        (NUM_BLOCKS - 7, 8),
        (u64::MAX, 1),
        (u64::MAX - 7, 8),
        (1 << 63, 8),
        (u64::MAX - 65_535, 65_536),
    ] {
        let read = Sqe::read(0, NSID, Lba(slba), num_blocks, num_blocks * 512);
        assert!(
            io.call(read, &[]).0.status().is(Status::LBA_OUT_OF_RANGE),
            "read {slba} {num_blocks}"
        );
        let write = Sqe::write(0, NSID, Lba(slba), num_blocks, Sgl::transport(num_blocks * 512));
        assert!(
            io.call(write, &[]).0.status().is(Status::LBA_OUT_OF_RANGE),
            "write {slba} {num_blocks}"
        );
    }
    for nsid in [0, 2, 3, 0xFFFF_FFFE, 0xFFFF_FFFF] {
        let read = Sqe::read(0, Nsid(nsid), Lba(0), 1, 512);
        assert!(io.call(read, &[]).0.status().is(Status::INVALID_NAMESPACE), "namespace {nsid}");
        let flush = Sqe::flush(0, Nsid(nsid));
        assert!(io.call(flush, &[]).0.status().is(Status::INVALID_NAMESPACE), "flush of {nsid}");
        for cns in [0, 3, 5, 8] {
            let (cqe, _) = admin.call(Sqe::identify(0, cns, Nsid(nsid)), &[]);
            assert!(
                cqe.status().is(Status::INVALID_NAMESPACE),
                "CNS {cns} of {nsid}: {}",
                cqe.status()
            );
        }
    }
    drop((admin, io));
    siege.end();
}

#[test]
fn random_bytes_on_a_live_queue_end_only_that_queue() {
    let mut siege = Siege::begin(|_| {});
    let mut random = Random::new(5);
    for _ in 0..300 {
        let (_admin, mut io) = siege.io_queue(if random.one_in(2) { NONE } else { BOTH });
        let mut bytes: Vec<u8> = (0..20)
            .flat_map(|cid| io.capsule(&Sqe::read(cid, NSID, Lba(0), 8, 4096), &[]))
            .collect();
        for _ in 0..=random.below(3) {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] = random.next_u64() as u8;
        }
        io.try_send(&bytes);
        io.stream.shutdown(std::net::Shutdown::Write).unwrap();
        io.until_closed();
    }
    siege.check();
    siege.end();
}

#[test]
fn refused_commands_under_the_identifiers_of_event_requests_end_those_for_good() {
    let siege = Siege::begin(|_| {});
    let (mut admin, _) = RawHost::admin(siege.target.local_addr(), &Nqn::discovery(), NONE);
    let events = [0; 3].map(|_| admin.start(Sqe::async_event_request(0), &[]));
    for cid in events {
        // A command reuses the identifier, but is refused for its format before its opcode is
        // examined.
        let mut wrong = Sqe::keep_alive(cid);
        wrong.flags = 0;
        let capsule = admin.capsule(&wrong, &[]);
        admin.send(&capsule);
        let Reply::Resp(cqe) = admin.receive() else { panic!("no answer") };
        assert_eq!((cqe.cid.get(), cqe.status().is_success()), (cid, false));
    }
    // Disabling the controller ends the remaining event requests: none.
    assert!(admin.call(Sqe::property_set(0, Property::Cc, 0), &[]).0.status().is_success());
    assert!(admin.call(Sqe::property_get(0, Property::Cc), &[]).0.status().is_success());
    drop(admin);
    siege.end();
}
