//! The NVMe/TCP engine when connections, targets and processes come and go.

use std::net::{TcpListener, ToSocketAddrs as _};
use std::time::{Duration, Instant};

use crate::import_support::wire::{Pace, Wire};
use crate::support::alone::ran_alone;
use crate::support::contract::{Driver, read};
use crate::support::fork::in_child;
use crate::support::hostile_target::{HostileTarget, Misbehaviour, Step, identify_controller};
use crate::support::random::Random;
use crate::support::short_timeouts::{
    LEN, bytes, hasty, one, opened, patient, refusal, short_timeouts,
};
use dlfs::ErrorKind;
use dlfs::address::{Address, TcpAddress};
use dlfs::nvme::Status;
use dlfs::qpair::{ConnectOptions, Io, IoError, IoOp, open};
use dlfs::units::Lba;
use zerocopy::IntoBytes as _;

const BLOCKS: u64 = LEN as u64 / 512;

fn paths(targets: &[&HostileTarget]) -> Vec<Address> {
    targets.iter().map(|target| target.address()).collect()
}

fn write(slba: u64, len: usize, fill: u8) -> Io {
    let mut io = read(slba, len);
    io.op = IoOp::Write;
    io.buf.fill(fill);
    io
}

fn flush() -> Io {
    Io { op: IoOp::Flush, ..read(0, 0) }
}

/// Reads everything in 4 KiB pieces at full depth; each completes once with correct data.
fn read_all(driver: &mut Driver, expected: &[u8]) {
    let ios = (0..BLOCKS / 8).map(|i| read(i * 8, 4096)).collect();
    for (sent, completion) in driver.run(ios) {
        completion.result.unwrap();
        let at = sent.slba.0 as usize * 512;
        assert!(*completion.buf == expected[at..at + 4096], "wrong bytes at {at}");
    }
}

/// Waits for an effect of another thread; the limit only prevents waiting for ever.
fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let limit = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < limit, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn an_absent_target_is_refused_by_name() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let address: Address =
        format!("nvme-tcp://127.0.0.1:{port}/nqn.2026-11.io.dlfs:none").parse().unwrap();
    let error = refusal(&address, &patient());
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.report().contains(&format!("127.0.0.1:{port}")), "{}", error.report());
    assert!(error.report().contains("is the target running"), "{}", error.report());
}

#[test]
fn a_host_name_that_does_not_resolve_is_not_found() {
    let address: Address = "nvme-tcp://no-such-host.invalid/nqn.2026-11.io:x".parse().unwrap();
    let error = refusal(&address, &hasty());
    assert!(matches!(error.kind(), ErrorKind::NotFound | ErrorKind::TimedOut), "{error:?}");
    assert!(error.report().contains("no-such-host.invalid"), "{}", error.report());
}

#[test]
fn a_target_that_hangs_at_a_step_of_connecting_is_given_up_naming_the_step() {
    for step in Step::ALL {
        let target = HostileTarget::start(bytes(1));
        target.behave(Misbehaviour::Hang(step), None);
        let address = without_nsid(&target);
        // On a busy machine the time may be over before the step is reached.
        let given_up = || {
            let error = refusal(&address, &hasty());
            assert_eq!(error.kind(), ErrorKind::TimedOut, "{step:?}: {}", error.report());
            assert!(error.report().contains("127.0.0.1"), "{step:?}: {}", error.report());
            error.report()
        };
        let mut reports = std::iter::repeat_with(given_up).take(10);
        assert!(reports.any(|report| report.contains(words(step))), "{step:?}: {}", given_up());
        assert!(target.misbehaved() > 0, "{step:?}");
    }
}

#[test]
fn a_target_that_closes_or_fails_at_a_step_of_connecting_is_refused() {
    for step in Step::ALL {
        for misbehaviour in [
            Misbehaviour::Close(step),
            Misbehaviour::Fail(step, Status::INTERNAL_ERROR.do_not_retry()),
        ] {
            if misbehaviour
                == Misbehaviour::Fail(Step::IcResp, Status::INTERNAL_ERROR.do_not_retry())
                || matches!(misbehaviour, Misbehaviour::Fail(Step::NamespaceList, _))
            {
                continue; // there is no status in ICResp; without a list it is namespace 1
            }
            let target = HostileTarget::start(bytes(1));
            target.behave(misbehaviour.clone(), None);
            // On a busy machine the time may be over before the step is reached.
            let mut errors =
                std::iter::repeat_with(|| refusal(&without_nsid(&target), &hasty())).take(10);
            let error = errors.find(|_| target.misbehaved() > 0).expect("the step is reached");
            assert!(error.report().contains("127.0.0.1"), "{misbehaviour:?}: {}", error.report());
        }
    }
    for misbehaviour in [Misbehaviour::NeverReady, Misbehaviour::FatalStatus] {
        let target = HostileTarget::start(bytes(1));
        target.behave(misbehaviour.clone(), None);
        let error = refusal(&target.address(), &patient());
        assert!(error.report().contains("enabling the controller"), "{}", error.report());
    }
}

#[test]
fn a_target_whose_answers_come_in_drops_is_left_and_asked_again() {
    let target = HostileTarget::start(bytes(3));
    let Address::Tcp(address) = target.address() else { unreachable!("it serves TCP") };
    let wire =
        Wire::to((&*address.traddr, address.trsvcid).to_socket_addrs().unwrap().next().unwrap());
    let traddr = wire.address().ip().to_string();
    let trsvcid = wire.address().port();
    let through = TcpAddress { traddr, trsvcid, ..address };
    let device = opened(&Address::Tcp(through), &short_timeouts());
    let mut driver = Driver::new(&*device);
    let before = wire.carried().len();
    // 4 KiB take 80 s at this pace, and each byte comes long before the time without progress is over.
    wire.set_pace(Some(Pace { bytes: 1, every: Duration::from_millis(20) }));
    let completion = std::thread::scope(|scope| {
        scope.spawn(|| {
            eventually("another connection", || wire.carried().len() > before);
            wire.set_pace(None);
        });
        one(&mut driver, read(0, 4096))
    });
    completion.result.unwrap();
    assert!(completion.buf[..] == bytes(3)[..4096]);
}

/// How an error names the step.
fn words(step: Step) -> &'static str {
    match step {
        Step::IcResp => "ICResp",
        Step::AdminConnect => "Connect",
        Step::PropertyGet => "reading CAP",
        Step::PropertySet => "enabling the controller",
        Step::IdentifyController => "Identify Controller",
        Step::SetNumQueues => "number of queues",
        Step::IoConnect => "I/O queue",
        Step::NamespaceList => "active namespaces",
        Step::IdentifyNamespace => "Identify Namespace",
        Step::NamespaceDescriptors => "descriptors",
        Step::KeepAlive => "Keep Alive",
        Step::DiscoveryLog => "discovery log",
    }
}

fn without_nsid(target: &HostileTarget) -> Address {
    let Address::Tcp(address) = target.address() else { unreachable!("it serves TCP") };
    Address::Tcp(TcpAddress { nsid: None, ..address })
}

#[test]
fn a_target_that_does_not_allow_the_host_says_so_with_a_hint() {
    let target = HostileTarget::start(bytes(1));
    let status = Status::CONNECT_INVALID_HOST.do_not_retry();
    target.behave(Misbehaviour::Fail(Step::AdminConnect, status), None);
    let error = refusal(&target.address(), &patient());
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.report().contains("--hostnqn"), "{}", error.report());
}

#[test]
fn reads_survive_a_target_that_dies_in_the_middle_of_a_batch_and_returns() {
    let expected = bytes(2);
    let target = HostileTarget::start(expected.clone());
    let device = open(&target.address(), &patient()).unwrap();
    let mut driver = Driver::new(&*device);
    for death in [Misbehaviour::Die, Misbehaviour::CloseIo, Misbehaviour::CloseInData] {
        let returns = death == Misbehaviour::Die;
        target.behave(death, Some(1));
        std::thread::scope(|scope| {
            if returns {
                scope.spawn(|| {
                    let before = target.misbehaved();
                    eventually("it dies", || target.misbehaved() > before || before > 0);
                    std::thread::sleep(Duration::from_millis(50));
                    target.revive();
                });
            }
            read_all(&mut driver, &expected);
        });
    }
    assert_eq!(target.misbehaved(), 3);
}

#[test]
fn many_deaths_and_returns_lose_and_double_nothing() {
    let expected = bytes(3);
    let target = HostileTarget::start(expected.clone());
    let device = open(&target.address(), &patient()).unwrap();
    let mut driver = Driver::new(&*device);
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random::new(4);
            while !over.load(std::sync::atomic::Ordering::SeqCst) {
                // It lives long enough for some reads, which may be tried ten times only.
                let before = target.io_commands();
                std::thread::sleep(Duration::from_millis(20 + random.below(30)));
                eventually("reads", || {
                    target.io_commands() >= before + 200
                        || over.load(std::sync::atomic::Ordering::SeqCst)
                });
                target.die();
                std::thread::sleep(Duration::from_millis(random.below(20)));
                target.revive();
            }
        });
        for _ in 0..20 {
            read_all(&mut driver, &expected);
        }
        over.store(true, std::sync::atomic::Ordering::SeqCst);
    });
}

#[test]
fn a_target_that_never_returns_fails_everything_after_its_time_and_from_then_on_at_once() {
    let target = HostileTarget::start(bytes(1));
    let options = ConnectOptions { ctrl_loss_tmo: Duration::from_millis(300), ..patient() };
    let device = open(&target.address(), &options).unwrap();
    let mut driver = Driver::new(&*device);
    target.die();
    for _ in 0..2 {
        let ios = vec![read(0, 512), write(8, 512, 1), flush(), read(16, 4096)];
        for (_, completion) in driver.run(ios) {
            let Err(IoError::Disconnected(reason)) = completion.result else {
                panic!("{completion:?}")
            };
            assert!(reason.contains("127.0.0.1") || reason.contains("given up"), "{reason}");
        }
    }
    let error = device.queue_pair().map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Disconnected, "{}", error.report());
    assert_eq!(device.namespace().num_blocks, BLOCKS, "still known");
}

#[test]
fn a_frozen_queue_is_torn_down_and_its_reads_are_issued_again() {
    let expected = bytes(5);
    let target = HostileTarget::start(expected.clone());
    let device = opened(&target.address(), &short_timeouts());
    let mut driver = Driver::new(&*device);
    let before = target.accepted();
    target.behave(Misbehaviour::HangIo, Some(3));
    read_all(&mut driver, &expected);
    assert_eq!(target.misbehaved(), 3);
    assert!(target.accepted() > before);
}

#[test]
fn a_target_that_returns_with_another_namespace_is_refused_naming_both() {
    let cases: [(usize, [u8; 16], &str); 3] = [
        (LEN, [0x11; 16], "11111111111111111111111111111111"),
        (LEN / 2, [0xE7; 16], "1024 blocks of 512 bytes"),
        (LEN * 2, [0xE7; 16], "4096 blocks of 512 bytes"),
    ];
    for (len, nguid, found) in cases {
        let target = HostileTarget::start(bytes(1));
        let device = open(&target.address(), &patient()).unwrap();
        let mut driver = Driver::new(&*device);
        target.die();
        target.replace(vec![0; len], nguid);
        target.revive();
        let completion = one(&mut driver, read(0, 512));
        let Err(IoError::Disconnected(reason)) = completion.result else {
            panic!("{completion:?}")
        };
        assert!(reason.contains("another namespace"), "{reason}");
        assert!(reason.contains(&"e7".repeat(16)) && reason.contains(found), "{reason}");
        let error = device.queue_pair().map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Stale, "{}", error.report());
    }
}

#[test]
fn the_second_path_is_used_while_the_first_is_down_and_the_first_again_after() {
    let expected = bytes(6);
    let first = HostileTarget::start(expected.clone());
    let second = HostileTarget::start(expected.clone());
    first.die();
    let options = ConnectOptions { paths: paths(&[&second]), ..short_timeouts() };
    let device = opened(&first.address(), &options);
    let mut driver = Driver::new(&*device);
    // At least, because a read that a busy machine answers late is issued again.
    let all = BLOCKS as usize / 8;
    read_all(&mut driver, &expected);
    let of_second = second.io_commands();
    assert!(first.io_commands() == 0 && of_second >= all, "{of_second} on the second");
    first.revive();
    second.die();
    read_all(&mut driver, &expected);
    assert!(first.io_commands() >= all, "{} on the first", first.io_commands());
    assert_eq!(second.io_commands(), of_second);
    second.revive();
    first.behave(Misbehaviour::HangIo, None); // frozen, not dead
    read_all(&mut driver, &expected);
    assert!(second.io_commands() >= of_second + all, "{} on the second", second.io_commands());
}

#[test]
fn a_second_path_to_another_namespace_is_never_read_from() {
    let expected = bytes(7);
    let first = HostileTarget::start(expected.clone());
    let other = HostileTarget::start(vec![0; LEN]);
    other.replace(vec![0; LEN], [0x22; 16]);
    // The namespace is the one that is reached first; that must be the first even on a loaded
    // machine.
    let long_timeouts = ConnectOptions {
        connect_timeout: Duration::from_secs(120),
        paths: paths(&[&other]),
        ..patient()
    };
    let device = open(&first.address(), &long_timeouts).unwrap();
    let mut driver = Driver::new(&*device);
    for _ in 0..3 {
        first.cut();
        read_all(&mut driver, &expected);
    }
    assert_eq!(other.io_commands(), 0);
}

/// A target whose controller limits a command to 2^`mdts` pages.
fn with_small_transfers(bytes: Vec<u8>, mdts: u8) -> HostileTarget {
    let target = HostileTarget::start(bytes);
    let mut id = identify_controller();
    id.mdts = mdts;
    let mut page = id.as_bytes().to_vec();
    page.resize(4096, 0);
    target.behave(Misbehaviour::Page(Step::IdentifyController, page), None);
    target
}

#[test]
fn reads_split_for_one_path_are_split_again_for_one_with_a_smaller_limit() {
    let expected = bytes(15);
    let large = HostileTarget::start(expected.clone());
    let small = with_small_transfers(expected.clone(), 2);
    let smallest = with_small_transfers(expected.clone(), 1);
    let options = ConnectOptions { paths: paths(&[&small, &smallest]), ..patient() };
    let device = open(&large.address(), &options).unwrap();
    let mut driver = Driver::new(&*device);
    let most = device.namespace().max_transfer_bytes as usize;
    assert_eq!(most, 128 << 10);
    let read_largest = |driver: &mut Driver| {
        let ios = (0..LEN / most).map(|at| read((at * most / 512) as u64, most)).collect();
        for (sent, completion) in driver.run(ios) {
            completion.result.unwrap();
            let at = sent.slba.0 as usize * 512;
            assert!(*completion.buf == expected[at..at + most], "wrong bytes at {at}");
        }
    };
    read_largest(&mut driver);
    assert_eq!(large.io_commands(), LEN / most);
    // In flight when the path is lost, and restarted on the next ones.
    large.behave(Misbehaviour::HangIo, None);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            eventually("reads hang", || large.misbehaved() > 0);
            large.die();
        });
        read_largest(&mut driver);
    });
    assert!(small.io_commands() >= LEN / (16 << 10), "{}", small.io_commands());
    small.behave(Misbehaviour::CloseIo, Some(1)); // in the middle of a split I/O
    read_largest(&mut driver);
    small.die();
    read_largest(&mut driver);
    read_largest(&mut driver);
    assert!(smallest.io_commands() >= LEN / (8 << 10), "{}", smallest.io_commands());
    // A write, and queue pairs that are created from now on.
    let mut io = write(64, most, 9);
    io.tag = 0;
    one(&mut driver, io).result.unwrap();
    let mut expected = expected.clone();
    expected[64 * 512..][..most].fill(9);
    assert!(smallest.bytes() == expected);
    let mut late = Driver::new(&*device);
    let completion = one(&mut late, read(64, 4096));
    assert!(completion.result.is_ok() && *completion.buf == expected[64 * 512..][..4096]);
    // An error of one part fails the whole I/O, once.
    smallest.behave(Misbehaviour::BadBlocks(80..81, Status::UNRECOVERED_READ_ERROR), None);
    let failed = one(&mut driver, read(0, most));
    assert_eq!(failed.result, Err(IoError::Status(Status::UNRECOVERED_READ_ERROR)));
    assert_eq!(failed.buf.len(), most, "the buffer comes back whole");
}

#[test]
fn a_path_related_status_moves_reads_and_writes_to_the_other_path() {
    let expected = bytes(8);
    let first = HostileTarget::start(expected.clone());
    let second = HostileTarget::start(expected.clone());
    let options = ConnectOptions { paths: paths(&[&second]), ..patient() };
    let device = open(&first.address(), &options).unwrap();
    let mut driver = Driver::new(&*device);
    first.behave(Misbehaviour::Status(Status::ANA_INACCESSIBLE), None);
    read_all(&mut driver, &expected);
    assert!(second.io_commands() >= BLOCKS as usize / 8);
    second.behave(Misbehaviour::Status(Status::ANA_INACCESSIBLE), Some(1));
    first.be_good();
    one(&mut driver, write(0, 512, 7)).result.unwrap();
    assert_eq!(first.bytes()[..512], [7; 512]);
}

#[test]
fn statuses_are_retried_or_reported_as_they_demand() {
    let expected = bytes(9);
    let target = HostileTarget::start(expected.clone());
    let device = open(&target.address(), &patient()).unwrap();
    let mut driver = Driver::new(&*device);
    target.behave(Misbehaviour::Status(Status::TRANSIENT_TRANSPORT_ERROR), Some(2));
    assert!(one(&mut driver, read(0, 512)).result.is_ok());
    target.behave(Misbehaviour::Status(Status::INTERNAL_PATH_ERROR), Some(2));
    assert!(one(&mut driver, write(0, 512, 1)).result.is_ok());
    for status in [
        Status::UNRECOVERED_READ_ERROR,
        Status::TRANSIENT_TRANSPORT_ERROR.do_not_retry(),
        Status::INTERNAL_PATH_ERROR.do_not_retry(),
        Status::new(7, 0xFF),
    ] {
        target.behave(Misbehaviour::Status(status), Some(1));
        assert_eq!(one(&mut driver, read(0, 512)).result, Err(IoError::Status(status)));
    }
    // A write is not repeated when its outcome is unknown.
    target.behave(Misbehaviour::Status(Status::TRANSIENT_TRANSPORT_ERROR), Some(1));
    let result = one(&mut driver, write(0, 512, 1)).result;
    assert_eq!(result, Err(IoError::Status(Status::TRANSIENT_TRANSPORT_ERROR)));
    // Even an unlimited retry has a limit.
    target.behave(Misbehaviour::Status(Status::TRANSIENT_TRANSPORT_ERROR), None);
    assert!(matches!(one(&mut driver, read(0, 512)).result, Err(IoError::Status(_))));
}

#[test]
fn a_read_that_kills_every_connection_fails_after_its_first_try_and_ten_more() {
    let target = HostileTarget::start(bytes(1));
    // Only the limit of tries ends the read, not the time.
    let options = ConnectOptions { ctrl_loss_tmo: Duration::from_secs(600), ..patient() };
    let device = open(&target.address(), &options).unwrap();
    let mut driver = Driver::new(&*device);
    let before = target.io_commands();
    target.behave(Misbehaviour::CloseIo, None);
    let completion = one(&mut driver, read(0, 512));
    assert!(matches!(completion.result, Err(IoError::Disconnected(_))), "{completion:?}");
    assert_eq!(target.io_commands() - before, 1 + 10);
    target.be_good();
    assert!(one(&mut driver, read(0, 512)).result.is_ok(), "and the next one does not suffer");
}

#[test]
fn writes_and_flushes_that_were_on_their_way_are_not_issued_again() {
    let target = HostileTarget::start(bytes(1));
    let device = open(&target.address(), &patient()).unwrap();
    let mut driver = Driver::new(&*device);
    for io in [write(0, 512, 1), write(0, 64 << 10, 1), flush()] {
        let before = target.io_commands();
        target.behave(Misbehaviour::CloseIo, Some(1));
        let completion = one(&mut driver, io);
        assert!(matches!(completion.result, Err(IoError::Disconnected(_))), "{completion:?}");
        // The next command shows that the queue is back, without other effects.
        one(&mut driver, read(0, 512)).result.unwrap();
        assert_eq!(target.io_commands(), before + 2);
    }
}

#[test]
fn a_flush_fails_when_completed_writes_may_have_been_lost_with_the_last_session() {
    let target = HostileTarget::start(bytes(1));
    let device = open(&target.address(), &patient()).unwrap();
    let mut driver = Driver::new(&*device);
    // A read is retried, so when it ends the queue is on a new connection.
    let lose_session = |driver: &mut Driver| {
        target.cut();
        one(driver, read(0, 512)).result.unwrap();
    };
    one(&mut driver, write(0, 512, 1)).result.unwrap();
    one(&mut driver, flush()).result.unwrap();
    lose_session(&mut driver);
    one(&mut driver, flush()).result.unwrap(); // there was no cached write to lose
    one(&mut driver, write(0, 512, 2)).result.unwrap();
    lose_session(&mut driver);
    let told = one(&mut driver, flush()).result;
    assert!(matches!(told, Err(IoError::Disconnected(_))), "{told:?}");
    one(&mut driver, flush()).result.unwrap(); // reported once
    one(&mut driver, write(0, 512, 3)).result.unwrap();
    target.behave(Misbehaviour::CloseIo, Some(1));
    let told = one(&mut driver, flush()).result;
    assert!(matches!(told, Err(IoError::Disconnected(_))), "{told:?}");
    one(&mut driver, read(0, 512)).result.unwrap();
    one(&mut driver, flush()).result.unwrap(); // reported once
}

#[test]
fn idle_connections_are_kept_alive_and_come_back_without_any_io() {
    let expected = bytes(10);
    let target = HostileTarget::start(expected.clone());
    let options = ConnectOptions { keep_alive_tmo: Duration::from_millis(200), ..short_timeouts() };
    let device = opened(&target.address(), &options);
    let before = target.accepted();
    target.cut();
    eventually("the admin queue is back", || target.accepted() > before);
    let before = target.accepted();
    target.behave(Misbehaviour::Hang(Step::KeepAlive), Some(1));
    eventually("keep-alive shows the hang", || target.accepted() > before);
    read_all(&mut Driver::new(&*device), &expected);
}

#[test]
fn no_more_queue_pairs_than_were_granted() {
    let target = HostileTarget::start(bytes(1));
    let options = ConnectOptions { nr_io_queues: 2, ..patient() };
    let device = open(&target.address(), &options).unwrap();
    let first = device.queue_pair().unwrap();
    let _second = device.queue_pair().unwrap();
    let error = device.queue_pair().map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{}", error.report());
    drop(first);
    device.queue_pair().unwrap();
}

#[test]
fn impossible_ios_are_refused_before_they_are_sent() {
    let target = HostileTarget::start(bytes(1));
    let options = ConnectOptions { writable: false, ..patient() };
    let device = open(&target.address(), &options).unwrap();
    let mut driver = Driver::new(&*device);
    for io in [write(0, 512, 1), read(BLOCKS, 512), read(0, 100), read(u64::MAX, 512), read(0, 0)] {
        let result = one(&mut driver, io).result;
        assert!(matches!(result, Err(IoError::Invalid(_))), "{result:?}");
    }
    assert_eq!(target.io_commands(), 0);
}

#[test]
fn a_child_process_reads_on_connections_of_its_own_and_the_parent_is_undisturbed() {
    if ran_alone(a_child_process_reads_on_connections_of_its_own_and_the_parent_is_undisturbed) {
        return;
    }
    let expected = bytes(11);
    let target = HostileTarget::start(expected.clone());
    let device = open(&target.address(), &patient()).unwrap();
    let mut driver = Driver::new(&*device);
    read_all(&mut driver, &expected);
    let before = target.accepted();
    assert!(in_child(|| {
        let mut own = Driver::new(&*device);
        read_all(&mut own, &expected);
        read_all(&mut driver, &expected); // the parent's driver, which the child inherited
        device.namespace().num_blocks == BLOCKS
    }));
    let children = target.accepted() - before;
    assert_eq!(children, 3, "an admin queue and two I/O queues");
    read_all(&mut driver, &expected);
    assert_eq!(target.accepted() - before, children, "the parent's connections are the same");
}

#[test]
fn a_child_that_is_granted_fewer_queues_than_it_has_inherited_drops_all_queue_pairs() {
    if ran_alone(a_child_that_is_granted_fewer_queues_than_it_has_inherited_drops_all_queue_pairs) {
        return;
    }
    let expected = bytes(13);
    let target = HostileTarget::start(expected.clone());
    let device = open(&target.address(), &patient()).unwrap();
    let mut first = Driver::new(&*device);
    let mut second = Driver::new(&*device);
    target.behave(Misbehaviour::Grant(1), None);
    assert!(in_child(move || {
        read_all(&mut first, &expected);
        let refused = one(&mut second, read(0, 4096)).result;
        drop((first, second));
        matches!(refused, Err(IoError::Disconnected(reason)) if reason.contains("grants only 1"))
    }));
}

#[test]
fn a_child_of_a_child_reads_too_also_with_io_outstanding_at_the_fork() {
    if ran_alone(a_child_of_a_child_reads_too_also_with_io_outstanding_at_the_fork) {
        return;
    }
    let expected = bytes(12);
    let target = HostileTarget::start(expected.clone());
    let device = opened(&target.address(), &short_timeouts());
    let mut pair = device.queue_pair().unwrap();
    let mut pending = (0..16).map(|i| Io { tag: i, ..read(i * 8, 4096) }).collect();
    target.behave(Misbehaviour::HangIo, Some(1));
    pair.submit(&mut pending);
    let mut finish = || {
        let mut done = Vec::new();
        let limit = Instant::now() + Duration::from_secs(60);
        while done.len() < 16 && Instant::now() < limit {
            pair.poll(Instant::now(), 64, &mut done);
        }
        done.len() == 16
            && done.iter().all(|c| {
                let at = c.tag as usize * 4096;
                c.result.is_ok() && *c.buf == expected[at..at + 4096]
            })
    };
    assert!(in_child(|| {
        let grandchild = in_child(|| {
            let mut own = Driver::new(&*device);
            let completion = one(&mut own, read(0, 4096));
            completion.result.is_ok() && *completion.buf == expected[..4096]
        });
        grandchild && finish()
    }));
    assert!(finish(), "the parent's own reads");
}

#[test]
fn an_error_names_the_block_it_is_about() {
    let target = HostileTarget::start(bytes(1));
    let device = open(&target.address(), &patient()).unwrap();
    let mut driver = Driver::new(&*device);
    target.behave(Misbehaviour::Status(Status::UNRECOVERED_READ_ERROR), Some(1));
    let error = one(&mut driver, read(24, 512)).result.unwrap_err();
    let error = error.at(&device.namespace(), Lba(24));
    assert!(error.report().contains("LBA 24"), "{}", error.report());
    assert!(error.report().contains("unrecovered read error"), "{}", error.report());
}
