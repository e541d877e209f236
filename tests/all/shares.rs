//! Shares of a target: limits that hold, shares by weight, and idle connections that cost little.

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::support::alone::ran_alone;
use crate::support::random::Random;
use crate::support::raw_host::{RawHost, Reply};
use dlfs::nvme::{Cc, ConnectData, Nqn, Property, Sgl, Sqe, Status};
use dlfs::qpair::Device;
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::file::{FileNamespace, FileOptions};
use dlfs::qpair::mem::MemNamespace;
use dlfs::target::{HostRule, Limiter, Limits, Rules, Target, TargetOptions};
use dlfs::tcp::Digests;
use dlfs::units::{Lba, Nsid};

const NSID: Nsid = Nsid(1);
const NONE: Digests = Digests { header: false, data: false };
const BOTH: Digests = Digests { header: true, data: true };
const LEN_BYTES: usize = 4 << 20;

fn nqn() -> Nqn {
    Nqn::new("nqn.2026-11.io.dlfs:shares").unwrap()
}

fn host_nqn(name: &str) -> Nqn {
    Nqn::new(format!("nqn.2026-11.io.dlfs:{name}")).unwrap()
}

fn rule(name: &str, limits: Limits) -> HostRule {
    HostRule { group: None, hosts: vec![host_nqn(name).as_str().parse().unwrap()], limits }
}

fn hosts(hosts: Vec<HostRule>) -> Rules {
    Rules { hosts, ..Rules::default() }
}

/// Rules that limit the namespace to so many reads a second.
fn reads_a_second(read_iops: u64, hosts: Vec<HostRule>) -> Rules {
    let limits = Limits { read_iops: Some(read_iops), ..Limits::default() };
    Rules { hosts, namespaces: BTreeMap::from([((nqn(), NSID), limits)]) }
}

/// A target with seeded bytes, which are returned. If it lends, reads take no buffer.
fn serve(rules: Rules, num_pollers: usize, lends: bool) -> (Target, Limiter, Vec<u8>) {
    let device = MemNamespace::new(LEN_BYTES as u64, 512).unwrap();
    let mut bytes = vec![0; LEN_BYTES];
    Random::new(7).fill(&mut bytes);
    Blocking::new(device.queue_pair().unwrap()).unwrap().write_at(0, &bytes).unwrap();
    let mut options = TargetOptions { writable: true, num_pollers, ..TargetOptions::new(nqn()) };
    options.limiter.set(rules);
    (options.max_connections_per_address, options.max_controllers_per_address) = (32_768, 16_384);
    let limiter = options.limiter.clone();
    let device = if lends { device.read_only() } else { device };
    (Target::bind(options, vec![Arc::new(device)]).unwrap(), limiter, bytes)
}

/// The admin queue and the I/O queues of a host's controller.
fn connect(target: &Target, name: &str, queues: u16, digests: Digests) -> (RawHost, Vec<RawHost>) {
    let open = || {
        let mut host = RawHost::initialised(target.local_addr(), &nqn(), digests);
        host.hostnqn = host_nqn(name);
        host
    };
    let mut admin = open();
    let cqe = admin.connect(0, 31, ConnectData::CNTLID_DYNAMIC);
    assert!(cqe.status().is_success(), "{}", cqe.status());
    let enable = Sqe::property_set(0, Property::Cc, u64::from(Cc::ENABLE.0));
    assert!(admin.call(enable, &[]).0.status().is_success());
    assert!(admin.call(Sqe::set_num_queues(0, queues), &[]).0.status().is_success());
    let io = (1..=queues).map(|qid| {
        let mut io = open();
        let joined = io.connect(qid, 127, cqe.dw0.get() as u16);
        assert!(joined.status().is_success(), "{}", joined.status());
        io
    });
    (admin, io.collect())
}

fn read_of(slba: u64, len: u32) -> Sqe {
    Sqe::read(0, NSID, Lba(slba), len / 512, len)
}

/// Reads with `depth` commands at a time until told to stop; counts those that completed before.
fn keep_reading(io: &mut RawHost, depth: usize, len: u32, count: &AtomicU64, stop: &AtomicBool) {
    let mut outstanding = depth;
    (0..depth).for_each(|_| _ = io.start(read_of(0, len), &[]));
    while outstanding > 0 {
        completed(io);
        if stop.load(Ordering::Relaxed) {
            outstanding -= 1;
        } else {
            count.fetch_add(1, Ordering::Relaxed);
            io.start(read_of(0, len), &[]);
        }
    }
}

/// Receives until a command has succeeded; returns its CID.
fn completed(io: &mut RawHost) -> u16 {
    loop {
        match io.receive() {
            Reply::Data { cid, success: true, .. } => return cid,
            Reply::Data { .. } => {}
            Reply::Resp(cqe) => {
                assert!(cqe.status().is_success(), "{}", cqe.status());
                return cqe.cid.get();
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Checks the reads of two hosts, each with its number of queues, while they complete `total` together. A share is
/// missed where the machine gives one host's threads no time, so a few attempts are made.
fn shares_are(
    target: &Target,
    queues: [(&str, u16); 2],
    total: u64,
    expected: [RangeInclusive<u64>; 2],
) {
    let mut found = std::iter::repeat_with(|| reads_of_both(target, queues, total)).take(10);
    let is_so = |reads: [u64; 2]| {
        println!("{reads:?}");
        expected.iter().zip(&reads).all(|(range, count)| range.contains(count))
    };
    assert!(found.any(is_so), "never {expected:?}");
}

/// The reads of two hosts, each with its number of queues, while they complete `total` together.
fn reads_of_both(target: &Target, queues: [(&str, u16); 2], total: u64) -> [u64; 2] {
    let counts = [AtomicU64::new(0), AtomicU64::new(0)];
    let stop = AtomicBool::new(false);
    let mut connected = queues.map(|(name, queues)| connect(target, name, queues, NONE));
    let both = || counts.each_ref().map(|count| count.load(Ordering::Relaxed));
    thread::scope(|scope| {
        for ((_, io), count) in connected.iter_mut().zip(&counts) {
            for io in io {
                scope.spawn(|| keep_reading(io, 32, 4096, count, &stop));
            }
        }
        let limit = Instant::now() + Duration::from_secs(120);
        let wait_until = |is_so: &dyn Fn() -> bool| {
            while !is_so() {
                assert!(Instant::now() < limit, "{:?}", both());
                thread::sleep(Duration::from_millis(1));
            }
        };
        wait_until(&|| both().iter().all(|&count| count >= 20));
        let before = both();
        wait_until(&|| both().iter().sum::<u64>() >= before.iter().sum::<u64>() + total);
        let after = both();
        stop.store(true, Ordering::Relaxed);
        [after[0] - before[0], after[1] - before[1]]
    })
}

#[test]
fn a_limit_of_bytes_holds_for_all_connections_of_a_host_on_all_pollers() {
    let rate = 8 << 20;
    let limits = Limits { read_bytes: Some(rate), ..Limits::default() };
    for lends in [false, true] {
        let (target, limiter, bytes) = serve(hosts(vec![rule("a", limits)]), 2, lends);
        let (_admin, io) = connect(&target, "a", 4, NONE);
        let begin = Instant::now();
        thread::scope(|scope| {
            for mut io in io {
                let bytes = &bytes;
                scope.spawn(move || {
                    for number in 0..16_u64 {
                        let (cqe, read) = io.call(read_of(number * 128, 65_536), &[]);
                        assert!(cqe.status().is_success(), "{}", cqe.status());
                        assert!(read == bytes[number as usize * 65_536..][..65_536]);
                    }
                });
            }
        });
        // 4 MiB in all; the burst, and one command of each poller, pass without waiting.
        let least = (4 << 20) as f64 / rate as f64 - 0.010 - 2.0 * 65_536.0 / rate as f64;
        let took = begin.elapsed().as_secs_f64();
        assert!(took >= least * 0.97, "{took} s instead of {least} s");
        let used = limiter.usage(&nqn());
        assert_eq!((used.len(), used[0].reads, used[0].read_bytes), (1, 64, 4 << 20));
        assert!(used[0].throttled > Duration::from_millis(100), "{used:?}");
        assert_eq!(used[0].limits, [limits]);
    }
}

#[test]
fn a_limit_of_writes_holds_for_data_in_capsules_and_delays_no_read() {
    let writes_a_second = |write_iops| {
        let limits = Limits { write_iops: Some(write_iops), ..Limits::default() };
        hosts(vec![rule("a", limits)])
    };
    let (target, limiter, _) = serve(writes_a_second(100), 1, false);
    let (_admin, mut io) = connect(&target, "a", 1, NONE);
    let io = &mut io[0];
    let data = [5; 4096];
    let write = Sqe::write(0, NSID, Lba(0), 8, Sgl::in_capsule(4096));
    let begin = Instant::now();
    (0..50).for_each(|_| _ = io.start(write, &data));
    (0..50).for_each(|_| _ = completed(io));
    let took = begin.elapsed();
    assert!(took >= Duration::from_millis(460), "{took:?}");
    assert_eq!(limiter.usage(&nqn())[0].writes, 50);
    // Reads pass by writes that would take most of a minute.
    limiter.set(writes_a_second(1));
    let mut writes: Vec<u16> = (0..50).map(|_| io.start(write, &data)).collect();
    let mut reads: Vec<u16> = (0..20).map(|_| io.start(read_of(64, 4096), &[])).collect();
    while !reads.is_empty() {
        let done = completed(io);
        writes.retain(|&cid| cid != done);
        reads.retain(|&cid| cid != done);
    }
    assert!(!writes.is_empty(), "reads have waited for writes");
    limiter.set(Rules::default());
    writes.iter().for_each(|_| _ = completed(io));
    let (cqe, read) = io.call(read_of(0, 4096), &[]);
    assert!(cqe.status().is_success() && read == data);
}

#[test]
fn hosts_share_what_is_limited_by_their_weights() {
    let weight = |weight| Limits { weight: Some(weight), ..Limits::default() };
    let weights = vec![rule("a", weight(50)), rule("b", weight(150))];
    let (target, ..) = serve(reads_a_second(400, weights), 1, false);
    shares_are(&target, [("a", 1), ("b", 1)], 400, [85..=115, 285..=330]);
}

#[test]
fn a_host_with_eight_connections_gets_no_more_than_one_with_one() {
    let (target, ..) = serve(reads_a_second(400, Vec::new()), 1, true);
    shares_are(&target, [("greedy", 8), ("polite", 1)], 400, [180..=220, 180..=230]);
}

#[test]
fn a_host_on_two_pollers_gets_no_more_than_one_on_one() {
    for lends in [true, false] {
        let (target, ..) = serve(reads_a_second(400, Vec::new()), 2, lends);
        shares_are(&target, [("greedy", 8), ("polite", 1)], 800, [350..=450, 0..=u64::MAX]);
    }
}

#[test]
fn a_host_of_a_group_on_two_pollers_gets_no_more_of_its_rate_than_one_on_one() {
    let hosts_of = |names: [&str; 2]| names.map(|name| host_nqn(name).as_str().parse().unwrap());
    for lends in [true, false] {
        let limits = Limits { read_iops: Some(400), ..Limits::default() };
        let group = Some("both".to_owned());
        let rule = HostRule { group, hosts: hosts_of(["greedy", "polite"]).into(), limits };
        let (target, ..) = serve(hosts(vec![rule]), 2, lends);
        shares_are(&target, [("greedy", 8), ("polite", 1)], 800, [350..=450, 0..=u64::MAX]);
    }
}

#[test]
fn a_write_whose_data_have_arrived_waits_for_none_that_has_not_begun() {
    let limits = Limits { write_iops: Some(1), ..Limits::default() };
    let (target, limiter, _) = serve(hosts(vec![rule("a", limits)]), 1, false);
    let (_admin, mut io) = connect(&target, "a", 1, NONE);
    let io = &mut io[0];
    let write = Sqe::write(0, NSID, Lba(0), 128, Sgl::transport(65_536));
    (0..120).for_each(|_| _ = io.start(write, &[]));
    let mut begun = 0;
    for number in 0..120 {
        let cqe = loop {
            match io.receive() {
                Reply::R2t { cid, ttag, .. } => {
                    let pdu = io.h2c_data(cid, ttag, 0, &[5; 65_536], true);
                    io.send(&pdu);
                    begun += 1;
                }
                Reply::Resp(cqe) => break cqe,
                other => panic!("{other:?}"),
            }
            assert!(begun < 120 || number > 0, "the first waits for the last");
        };
        assert!(cqe.status().is_success(), "{}", cqe.status());
        limiter.set(Rules::default()); // the others would take minutes
    }
}

#[test]
fn limits_change_while_commands_wait_for_them() {
    let one = Limits { read_iops: Some(1), ..Limits::default() };
    let (target, limiter, _) = serve(hosts(vec![rule("a", one)]), 1, false);
    let (_admin, mut io) = connect(&target, "a", 1, NONE);
    let begin = Instant::now();
    (0..2).for_each(|_| assert!(io[0].call(read_of(0, 512), &[]).0.status().is_success()));
    assert!(begin.elapsed() >= Duration::from_millis(900), "{:?}", begin.elapsed());
    // These would take minutes, and the host gives up before.
    (0..100).for_each(|_| _ = io[0].start(read_of(0, 512), &[]));
    limiter.set(Rules::default());
    (0..100).for_each(|_| _ = completed(&mut io[0]));
    limiter.set(hosts(vec![rule("a", one)]));
    let begin = Instant::now();
    (0..3).for_each(|_| assert!(io[0].call(read_of(0, 512), &[]).0.status().is_success()));
    assert!(begin.elapsed() >= Duration::from_millis(900), "{:?}", begin.elapsed());
}

#[test]
fn hosts_that_take_turns_get_the_bytes_they_asked_for() {
    for (lends, digests) in [(true, NONE), (false, NONE), (true, BOTH)] {
        let (target, _, bytes) = serve(Rules::default(), 1, lends);
        let (_admin, greedy) = connect(&target, "greedy", 4, digests);
        let (_other, mut polite) = connect(&target, "polite", 1, digests);
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            for mut io in greedy {
                let bytes = &bytes;
                let stop = &stop;
                scope.spawn(move || {
                    let mut number = 0;
                    while !stop.load(Ordering::Relaxed) || number < 8 {
                        let cids: Vec<u16> =
                            (0..4).map(|at| io.start(read_of(at * 2048, 1 << 20), &[])).collect();
                        check_all(&mut io, &cids, 1 << 20, bytes);
                        number += 1;
                    }
                });
            }
            for _ in 0..200 {
                let cids: Vec<u16> =
                    (0..4).map(|at| polite[0].start(read_of(at * 8, 4096), &[])).collect();
                check_all(&mut polite[0], &cids, 4096, &bytes);
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}

#[test]
fn a_long_read_beside_another_host_comes_in_pieces_and_counts_once() {
    for (lends, digests) in [(true, BOTH), (false, NONE)] {
        let (target, limiter, bytes) = serve(Rules::default(), 1, lends);
        let (_admin, mut greedy) = connect(&target, "greedy", 1, digests);
        let (_other, mut polite) = connect(&target, "polite", 1, digests);
        let io = &mut greedy[0];
        io.start(read_of(0, 1 << 20), &[]);
        assert_eq!(pieces(io, &bytes), [1 << 20], "alone");
        // Another host is there for a second, which a busy machine may let pass: a few attempts.
        let mut reads = 1;
        let mut first = 1 << 20;
        while first == 1 << 20 && reads < 20 {
            assert!(polite[0].call(read_of(0, 512), &[]).0.status().is_success());
            io.start(read_of(0, 1 << 20), &[]);
            first = pieces(io, &bytes)[0];
            reads += 1;
        }
        assert_eq!(first, 128 << 10, "beside another host");
        let used = limiter.usage(&nqn());
        let greedy = used.iter().find(|used| used.host == host_nqn("greedy")).unwrap();
        assert_eq!((greedy.reads, greedy.read_bytes), (reads, reads << 20));
    }
}

/// The lengths of the PDUs of a read from the beginning, up to the one that means success.
fn pieces(io: &mut RawHost, bytes: &[u8]) -> Vec<usize> {
    let mut lens: Vec<usize> = Vec::new();
    loop {
        let Reply::Data { offset, bytes: found, last, success, digest_ok, .. } = io.receive()
        else {
            panic!("no data after {lens:?}");
        };
        let at = lens.iter().sum::<usize>();
        assert_eq!((offset as usize, digest_ok, last), (at, true, success), "{lens:?}");
        assert!(found == bytes[at..at + found.len()]);
        lens.push(found.len());
        if success {
            return lens;
        }
    }
}

#[test]
fn a_read_in_pieces_ends_once_when_its_namespace_goes() {
    let (mut target, _, bytes) = serve(Rules::default(), 1, false);
    let failed = interrupted(&mut target, &bytes, |target| target.remove_namespace(NSID).unwrap());
    assert!(failed.iter().all(|found| found.is(Status::INVALID_NAMESPACE)), "{failed:?}");
}

#[test]
fn a_read_in_pieces_fails_with_the_piece_that_fails() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    // A read that copies pages while they are cut off finds zeros, so they are zeros before.
    let mut bytes = vec![0; 4 << 20];
    bytes[..4096].fill(3);
    std::fs::write(&path, &bytes).unwrap();
    let device = FileNamespace::open(&path, FileOptions::default()).unwrap();
    let mut target = Target::bind(TargetOptions::new(nqn()), vec![Arc::new(device)]).unwrap();
    let shorten = |_: &mut Target| {
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
    };
    let failed = interrupted(&mut target, &bytes, shorten);
    assert!(failed.iter().all(|status| !status.is_success()), "{failed:?}");
}

/// Starts more reads of 1 MiB than a host may hold that does not receive, so that pieces wait for memory. Then
/// something happens, and each read ends once; returns the statuses of those that fail.
fn interrupted(
    target: &mut Target,
    bytes: &[u8],
    happens: impl FnOnce(&mut Target),
) -> Vec<Status> {
    let block_len = target.namespaces()[0].device.namespace().block_len_bytes;
    let read = |len: u32| Sqe::read(0, NSID, Lba(0), len / block_len, len);
    let (_admin, mut greedy) = connect(target, "greedy", 1, NONE);
    let (_other, mut polite) = connect(target, "polite", 1, NONE);
    assert!(polite[0].call(read(4096), &[]).0.status().is_success());
    let io = &mut greedy[0];
    let mut left: Vec<u16> = (0..64).map(|_| io.start(read(1 << 20), &[])).collect();
    assert!(polite[0].call(read(4096), &[]).0.status().is_success());
    happens(target);
    let mut failed = Vec::new();
    while !left.is_empty() {
        let ended = match io.receive() {
            Reply::Data { cid, offset, bytes: found, success, .. } => {
                assert!(found == bytes[offset as usize..][..found.len()]);
                success.then_some(cid)
            }
            Reply::Resp(cqe) => {
                failed.push(cqe.status());
                Some(cqe.cid.get())
            }
            other => panic!("{other:?}"),
        };
        let before = left.len();
        left.retain(|&cid| Some(cid) != ended);
        assert_eq!(left.len() + usize::from(ended.is_some()), before, "{ended:?} ends once");
    }
    assert!(!failed.is_empty() && target.stats().errors == failed.len() as u64, "{failed:?}");
    failed
}

/// Receives the data of reads that follow one another, and compares them.
fn check_all(io: &mut RawHost, cids: &[u16], len: usize, bytes: &[u8]) {
    let mut left = cids.len();
    while left > 0 {
        match io.receive() {
            Reply::Data { cid, offset, bytes: found, digest_ok, success, .. } => {
                let at = cids.iter().position(|&of| of == cid).unwrap() * len + offset as usize;
                assert!(digest_ok && found == bytes[at..at + found.len()], "CID {cid}");
                left -= usize::from(success);
            }
            Reply::Resp(cqe) => {
                assert!(cqe.status().is_success(), "{}", cqe.status());
                left -= 1;
            }
            other => panic!("{other:?}"),
        }
    }
}

/// 1,000 connections, or as many as `DLFS_TEST_CONNECTIONS` says and descriptors allow.
#[test]
fn idle_connections_wake_no_poller_and_hold_little_memory() {
    if ran_alone(idle_connections_wake_no_poller_and_hold_little_memory) {
        return;
    }
    let wanted = std::env::var("DLFS_TEST_CONNECTIONS").map_or(1000, |n| n.parse().unwrap());
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let allowed = limit.maximum.map_or(u64::MAX, |files| files.saturating_sub(100) * 3 / 8);
    let num_connections = wanted.min(usize::try_from(allowed).unwrap_or(usize::MAX)) & !1;
    let (target, ..) = serve(Rules::default(), 1, false);
    let idle = |number: usize| -> [TcpStream; 2] {
        let (mut admin, mut io) = connect(&target, &format!("host-{number}"), 1, NONE);
        admin.start(Sqe::async_event_request(0), &[]);
        // A burst leaves nothing behind that lasts.
        (0..100).for_each(|_| _ = io[0].start(read_of(0, 512), &[]));
        (0..100).for_each(|_| _ = completed(&mut io[0]));
        [admin.stream, io.remove(0).stream]
    };
    let _first: Vec<_> = (0..10).map(idle).collect(); // memory that does not depend on their number
    thread::sleep(Duration::from_millis(500));
    let before = resident_bytes();
    let connections: Vec<_> = (10..10 + num_connections / 2).map(idle).collect();
    assert_eq!(target.stats().connections as usize, 20 + 2 * connections.len());
    // Within 5 s of the last command, the poller looks once more and then hardly ever.
    let limit = Instant::now() + Duration::from_secs(120);
    let mut quiet_since = Instant::now();
    let mut wakeups = target.stats().wakeups;
    while quiet_since.elapsed() < Duration::from_secs(3) {
        assert!(Instant::now() < limit, "the poller is woken all the time");
        thread::sleep(Duration::from_millis(10));
        let now = target.stats().wakeups;
        if now != wakeups {
            (wakeups, quiet_since) = (now, Instant::now());
        }
    }
    let per_connection = resident_bytes().saturating_sub(before) / num_connections;
    println!("{num_connections} connections, {per_connection} bytes each");
    assert!(per_connection <= 24 << 10, "{per_connection} bytes a connection");
}

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    resident.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}
