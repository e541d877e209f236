//! Our own driver over vfio-user, against a model controller behind a real socket and real shared memory.
//!
//! Each test has a process of its own: once a device was opened, all large pools of a process take its pages.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dlfs::address::Address;
use dlfs::buf::{HugePages, Pages, Pool, PoolOptions};
use dlfs::import::{self, ImportOptions, Onto};
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::{ConnectOptions, Device, Fence, Io, IoError, IoOp, open};
use dlfs::{ErrorKind, units::Lba};

use crate::import_support::{contents, options, paths, tree};
use crate::support::alone::{again, ran_alone};
use crate::support::contract::{self, Driver, read};
use crate::support::fork::in_child;
use crate::support::nvme_model::{Model, SUBNQN};
use crate::support::random::Random;
use crate::support::short_timeouts::{one, patient, refusal, short_timeouts};
use crate::support::vfio_user_server::{Abilities, VfioUserServer};

const ALL: Abilities = Abilities { maps_doorbells: true, max_regions: 16 };

fn connect(address: &Address, writable: bool) -> Arc<dyn Device> {
    open(address, &ConnectOptions { writable, ..ConnectOptions::default() }).unwrap()
}

/// As [`connect`], with short time-outs, which a busy machine may exceed while it opens.
fn connect_at_last(address: &Address) -> Arc<dyn Device> {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        match open(address, &short_timeouts()) {
            Err(error) if error.kind() == ErrorKind::TimedOut && Instant::now() < until => {}
            opened => return opened.unwrap(),
        }
    }
}

/// As `short_timeouts`, for controllers that come back however busy the machine is.
fn patient_resets() -> ConnectOptions {
    ConnectOptions { connect_timeout: Duration::from_secs(60), ..short_timeouts() }
}

/// A server of 4 MiB of random bytes.
fn server(change: impl FnOnce(&mut Model)) -> VfioUserServer {
    let mut model = Model::new(4 << 20, 512);
    Random::new(11).fill(&mut model.media);
    change(&mut model);
    VfioUserServer::start(model, ALL)
}

#[test]
fn devices_with_lists_of_pages_or_sgls_keep_the_contract() {
    if ran_alone(devices_with_lists_of_pages_or_sgls_keep_the_contract) {
        return;
    }
    for (block_len, mdts, sgls, max_entries) in
        [(512, 5, false, 64), (4096, 0, true, 64), (512, 1, false, 4), (4096, 8, true, 256)]
    {
        let mut model = Model::new(4 << 20, block_len);
        (model.mdts, model.sgls, model.max_entries) = (mdts, sgls, max_entries);
        let server = VfioUserServer::start(model, ALL);
        let address = server.address();
        contract::check(connect(&address, true), connect(&address, false));
    }
}

#[test]
fn servers_that_map_no_doorbells_or_little_memory_keep_the_contract() {
    if ran_alone(servers_that_map_no_doorbells_or_little_memory_keep_the_contract) {
        return;
    }
    for (maps_doorbells, max_regions) in [(false, 16), (true, 2)] {
        let model = Model::new(4 << 20, 512);
        let server = VfioUserServer::start(model, Abilities { maps_doorbells, max_regions });
        let address = server.address();
        contract::check(connect(&address, true), connect(&address, false));
    }
}

#[test]
fn pools_made_after_opening_are_reached_and_dropped_ones_are_taken_back() {
    if ran_alone(pools_made_after_opening_are_reached_and_dropped_ones_are_taken_back) {
        return;
    }
    let server = server(|_| {});
    let mut pair = Driver::new(&*connect(&server.address(), false));
    let media = server.model.lock().unwrap().media.clone();
    for _ in 0..40 {
        let options =
            PoolOptions { bytes: 4 << 20, slot_len_bytes: 4096, huge_pages: HugePages::Auto };
        let pool = Pool::new(options).unwrap();
        assert_eq!(pool.pages(), Pages::Driver);
        let with_memory = |n: u64| Io { buf: pool.take(65536).unwrap(), ..read(n * 128, 0) };
        for (sent, found) in pair.run((0..20).map(with_memory).collect()) {
            assert_eq!(found.result, Ok(()));
            let at = sent.slba.0 as usize * 512;
            assert!(found.buf[..] == media[at..at + 65536], "the bytes of the device");
        }
    }
}

#[test]
fn an_image_is_imported_and_read_again_after_its_target_has_lost_its_host() {
    if ran_alone(an_image_is_imported_and_read_again_after_its_target_has_lost_its_host) {
        return;
    }
    let server = VfioUserServer::start(Model::new(16 << 20, 4096), ALL);
    let folder = tempfile::tempdir().unwrap();
    let files = tree(folder.path(), 60, 9000, 1);
    let address = server.address();
    let connect_options = ConnectOptions { writable: true, ..ConnectOptions::default() };
    let wanted = ImportOptions { lease: Duration::from_millis(800), ..options(Onto::Empty) };
    let onto = std::slice::from_ref(&address);
    import::import(&paths(folder.path()), onto, &wanted, &connect_options, &mut ()).unwrap();
    assert_eq!(contents(&[connect(&address, false)]).unwrap(), files);
    let with_nqn: Address = format!("{address} subnqn:{SUBNQN} ns:1").parse().unwrap();
    assert_eq!(contents(&[connect(&with_nqn, false)]).unwrap(), files);
}

#[test]
fn a_command_without_an_answer_is_aborted_then_ended_by_a_reset_and_issued_again() {
    if ran_alone(a_command_without_an_answer_is_aborted_then_ended_by_a_reset_and_issued_again) {
        return;
    }
    let server = server(|_| {});
    let device = open(&server.address(), &patient_resets()).unwrap();
    let mut pair = Driver::new(&*device);
    let media = server.model.lock().unwrap().media.clone();
    let wakes = silent_until_reset(&server);
    let reads = (0..50).map(|n| read(n * 8, 4096)).collect();
    for (sent, found) in pair.run(reads) {
        assert_eq!(found.result, Ok(()));
        assert!(found.buf[..] == media[sent.slba.0 as usize * 512..][..4096]);
    }
    assert!(wakes.join().unwrap(), "it was reset");
    let other = one(&mut Driver::new(&*device), read(0, 4096));
    assert_eq!(other.result, Ok(()), "queues that are created afterwards work");
}

/// Silences the controller until it is disabled, which the host does last. Returns whether that has happened.
fn silent_until_reset(server: &VfioUserServer) -> JoinHandle<bool> {
    let model = Arc::clone(&server.model);
    let resets = model.lock().unwrap().num_resets;
    model.lock().unwrap().is_silent = true;
    std::thread::spawn(move || {
        let deadline = Instant::now() + Duration::from_secs(60);
        while model.lock().unwrap().num_resets == resets && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut model = model.lock().unwrap();
        model.is_silent = false;
        model.num_resets > resets
    })
}

#[test]
fn a_controller_that_leaves_an_admin_command_without_an_answer_is_reset_and_usable() {
    if ran_alone(a_controller_that_leaves_an_admin_command_without_an_answer_is_reset_and_usable) {
        return;
    }
    let server = server(|_| {});
    let device = open(&server.address(), &patient_resets()).unwrap();
    let pair = device.queue_pair().unwrap();
    let wakes = silent_until_reset(&server);
    drop(pair);
    assert!(wakes.join().unwrap(), "a queue was not deleted");
    let most = device.capabilities().max_queue_pairs;
    let pairs: Vec<Driver> = (0..most).map(|_| Driver::new(&*device)).collect();
    drop(pairs);
    let wakes = silent_until_reset(&server);
    let refused = device.queue_pair().err().expect("nobody answers");
    assert_eq!(refused.kind(), ErrorKind::TimedOut, "{refused}");
    assert!(wakes.join().unwrap(), "a queue was not created");
    assert_eq!(one(&mut Driver::new(&*device), read(0, 4096)).result, Ok(()));
}

#[test]
fn all_queues_of_a_controller_that_was_reset_go_on() {
    if ran_alone(all_queues_of_a_controller_that_was_reset_go_on) {
        return;
    }
    let server = server(|_| {});
    let device = open(&server.address(), &patient_resets()).unwrap();
    let mut pairs: Vec<Driver> = (0..4).map(|_| Driver::new(&*device)).collect();
    for round in 0..4u8 {
        for pair in &mut pairs {
            let mut buf = dlfs::buf::IoBuf::zeroed(4096);
            buf.fill(round);
            let write = Io { op: IoOp::Write, slba: Lba(0), buf, tag: 0 };
            assert_eq!(one(pair, write).result, Ok(()));
            let found = one(pair, read(0, 4096));
            assert!(found.result == Ok(()) && found.buf.iter().all(|byte| *byte == round));
        }
        server.model.lock().unwrap().fail();
    }
}

#[test]
fn a_controller_that_is_gone_fails_its_reads_and_returns_their_buffers() {
    if ran_alone(a_controller_that_is_gone_fails_its_reads_and_returns_their_buffers) {
        return;
    }
    for is_killed in [false, true] {
        let mut server = server(|_| {});
        let device = connect_at_last(&server.address());
        let mut pair = Driver::new(&*device);
        assert_eq!(one(&mut pair, read(0, 4096)).result, Ok(()));
        if is_killed {
            server.stop();
        } else {
            server.model.lock().unwrap().is_gone = true;
        }
        for (sent, ended) in pair.run((0..20).map(|n| read(n, 8192)).collect()) {
            assert!(matches!(ended.result, Err(IoError::Disconnected(_))), "{:?}", ended.result);
            assert_eq!(ended.buf.len(), sent.buf_len);
        }
        let error = device.queue_pair().map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Disconnected, "{error}");
    }
}

#[test]
fn a_device_that_answers_wrongly_gives_right_bytes_or_errors() {
    if ran_alone(a_device_that_answers_wrongly_gives_right_bytes_or_errors) {
        return;
    }
    let server = server(|model| model.may_lie = false);
    let media = server.model.lock().unwrap().media.clone();
    let mut random = Random::new(21);
    let mut right = 0;
    let mut failed = 0;
    for round in 0..6 {
        let device = connect_at_last(&server.address());
        let mut pair = Driver::new(&*device);
        server.model.lock().unwrap().mischief = Some((Random::new(round), 60));
        for _ in 0..5 {
            let len = 4096 * (1 + random.below(8) as usize);
            let reads = (0..40).map(|_| read(random.below(8000), len)).collect();
            for (sent, found) in pair.run(reads) {
                if found.result.is_err() {
                    failed += 1;
                    continue;
                }
                let at = sent.slba.0 as usize * 512;
                assert!(found.buf[..] == media[at..at + len], "wrong bytes at {}", sent.slba.0);
                right += 1;
            }
        }
        let mut model = server.model.lock().unwrap();
        (model.mischief, model.is_gone) = (None, false);
    }
    println!("{right} right, {failed} failed");
    assert!(right > 200 && failed > 0);
}

#[test]
fn errors_of_the_medium_and_closed_fences_fail_only_their_commands() {
    if ran_alone(errors_of_the_medium_and_closed_fences_fail_only_their_commands) {
        return;
    }
    let server = server(|model| model.bad_block = Some(9));
    let device = connect(&server.address(), true);
    let mut pair = Driver::new(&*device);
    let ends = pair.run(vec![read(0, 4096), read(8, 4096), read(16, 4096)]);
    assert_eq!((&ends[0].1.result, &ends[2].1.result), (&Ok(()), &Ok(())));
    let Err(error) = &ends[1].1.result else { panic!("a bad block was read") };
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    let mut pair = device.queue_pair().unwrap();
    pair.use_fence(&Fence::closed());
    let write = Io { op: IoOp::Write, ..read(0, 512) };
    let mut pending = VecDeque::from([write, read(0, 512)]);
    pair.submit(&mut pending);
    let mut done = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(60);
    while done.len() < 2 && Instant::now() < deadline {
        pair.poll(Instant::now(), 9, &mut done);
    }
    let fenced = done.iter().filter(|end| end.result == Err(IoError::Fenced)).count();
    assert_eq!((fenced, done.len()), (1, 2), "the read goes on");
}

#[test]
fn places_without_a_device_are_refused_with_the_reason_and_what_to_do() {
    if ran_alone(places_without_a_device_are_refused_with_the_reason_and_what_to_do) {
        return;
    }
    let server = server(|_| {});
    let address = server.address();
    let other = format!("{address} subnqn:nqn.2026-11.io.dlfs:other").parse().unwrap();
    let cases = [
        ("trtype:VFIOUSER traddr:/nonexistent/dlfs".parse().unwrap(), ErrorKind::NotFound),
        (format!("{address} ns:7").parse().unwrap(), ErrorKind::NotFound),
        (other, ErrorKind::InvalidArgument),
    ];
    for (address, kind) in cases {
        let error = refusal(&address, &patient());
        assert_eq!(error.kind(), kind, "{error:?}");
        assert!(error.to_string().contains("traddr:"), "{error}");
    }
    let paths = vec![address.clone()];
    let error = refusal(&address, &ConnectOptions { paths, ..patient() });
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    // A controller that takes no command is given up, and one that does again is opened.
    server.model.lock().unwrap().is_silent = true;
    let error = refusal(&address, &short_timeouts());
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error:?}");
    server.model.lock().unwrap().is_silent = false;
    let mut io = Blocking::new(connect(&address, false).queue_pair().unwrap()).unwrap();
    assert_eq!(io.read(1, 100).unwrap()[..], server.model.lock().unwrap().media[1..101]);
}

#[test]
fn a_forked_child_is_refused_and_its_parent_goes_on() {
    if ran_alone(a_forked_child_is_refused_and_its_parent_goes_on) {
        return;
    }
    let server = server(|_| {});
    let address = server.address();
    let device = connect(&address, false);
    let mut pair = device.queue_pair().unwrap();
    let mut pending: VecDeque<Io> = (0..8).map(|n| read(n, 4096)).collect();
    pair.submit(&mut pending);
    let in_the_child = || {
        let mut done = Vec::new();
        pair.poll(Instant::now(), 64, &mut done);
        let refused = done.iter().all(|end| matches!(end.result, Err(IoError::Disconnected(_))));
        let kind = |error: dlfs::Error| error.kind();
        let opened = open(&address, &ConnectOptions::default()).map(drop).map_err(kind);
        let paired = device.queue_pair().map(drop).map_err(kind);
        let ends = (opened, paired);
        done.len() == 8
            && refused
            && ends == (Err(ErrorKind::Unsupported), Err(ErrorKind::Disconnected))
    };
    assert!(in_child(in_the_child));
    let mut done = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(60);
    while pair.outstanding() > 0 && Instant::now() < deadline {
        pair.poll(Instant::now(), 64, &mut done);
    }
    assert!(done.len() == 8 && done.iter().all(|end| end.result == Ok(())), "{done:?}");
}

/// Names the device of a process that reads until it is killed.
const VICTIM: &str = "DLFS_TEST_PCIE_VICTIM";

#[test]
fn a_device_whose_process_was_killed_is_usable_by_the_next() {
    if let Ok(address) = std::env::var(VICTIM) {
        let mut pair = Driver::new(&*connect(&address.parse().unwrap(), true));
        for round in 0.. {
            let ends = pair.run((0..60).map(|n| read(n * 64, 32768)).collect());
            assert!(ends.iter().all(|(_, end)| end.result == Ok(())));
            if round == 0 {
                println!("READING");
            }
        }
    }
    let kills = std::env::var("DLFS_TEST_KILLS").map_or(8, |text| text.parse().unwrap());
    let server = server(|_| {});
    let mut random = Random::new(3);
    for _ in 0..kills {
        let mut victim = again(a_device_whose_process_was_killed_is_usable_by_the_next);
        victim.env(VICTIM, server.address().to_string()).stdout(Stdio::piped());
        let mut victim = victim.spawn().unwrap();
        let said = BufReader::new(victim.stdout.take().unwrap());
        assert!(said.lines().map_while(Result::ok).any(|line| line.contains("READING")));
        std::thread::sleep(Duration::from_micros(random.below(5000)));
        victim.kill().unwrap();
        victim.wait().unwrap();
    }
    // Each victim was the next of another one.
    assert!(server.model.lock().unwrap().num_resets >= kills);
}

/// Set in the process under strace.
const UNDER_STRACE: &str = "DLFS_TEST_PCIE_STRACE";

#[test]
fn reads_by_our_own_driver_take_no_system_call() {
    if std::env::var(UNDER_STRACE).is_ok() {
        return read_between_marks();
    }
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("strace");
    if !Command::new("strace").arg("true").output().is_ok_and(|output| output.status.success()) {
        println!("SKIPPED: strace is not installed, or may not look at other processes");
        return;
    }
    let program = again(reads_by_our_own_driver_take_no_system_call);
    let mut strace = Command::new("strace");
    strace.args(["-f", "-o"]).arg(&log).arg(program.get_program()).args(program.get_args());
    let output = strace.env(UNDER_STRACE, "1").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let log = std::fs::read_to_string(log).unwrap();
    let calls: Vec<(&str, &str)> = log.lines().filter_map(|line| line.split_once(' ')).collect();
    let mark = |name| calls.iter().rposition(|(_, call)| call.contains(name)).expect("it was made");
    let reader = calls[mark(BEGIN)].0;
    let window = &calls[mark(BEGIN) + 1..mark(END)];
    // If the machine's clock needs a system call, those calls are not the engine's.
    let is_clock = |call: &str| call.trim_start().starts_with("clock_gettime(");
    // The end of a call that was told before: of the mark.
    let is_end = |call: &str| call.trim_start().starts_with("<... ");
    let is_call = |call: &str| !is_clock(call) && !is_end(call);
    let own: Vec<_> = window.iter().filter(|(pid, call)| *pid == reader && is_call(call)).collect();
    assert!(own.is_empty(), "by the thread that reads: {own:?}");
}

/// Reads between two marker system calls.
fn read_between_marks() {
    let server = server(|_| {});
    let mut pair = connect(&server.address(), false).queue_pair().unwrap();
    let options = PoolOptions { bytes: 1 << 20, slot_len_bytes: 4096, huge_pages: HugePages::Auto };
    let pool = Pool::new(options).unwrap();
    let with_memory = |n: u64| Io { buf: pool.take(4096).unwrap(), ..read(n * 8, 0) };
    let mut pending: VecDeque<Io> = (0..32).map(with_memory).collect();
    let mut done = Vec::with_capacity(32);
    let mut count = 0;
    let limit = Instant::now() + Duration::from_secs(60);
    while count < WARM_UP + READS {
        if count < WARM_UP {
            assert!(!Path::new(BEGIN).exists()); // the last of them counts
        }
        pair.submit(&mut pending);
        pair.poll(Instant::now(), usize::MAX, &mut done);
        count += done.len();
        for completion in done.drain(..) {
            completion.result.unwrap();
            pending.push_back(Io { buf: completion.buf, ..read(count as u64 % 512 * 8, 0) });
        }
        assert!(Instant::now() < limit, "{count} reads");
    }
    assert!(!Path::new(END).exists());
}

/// The number of warm-up reads, after which heap and lists no longer grow.
const WARM_UP: usize = 500;
const READS: usize = 2000;
const BEGIN: &str = "/nonexistent/dlfs-window-begins";
const END: &str = "/nonexistent/dlfs-window-ends";
