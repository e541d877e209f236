//! The engine by SPDK against SPDK's own target, and each side of ours against SPDK's other.
//!
//! Runs with `--features spdk` where SPDK is installed; the target is `nvmf_tgt`, below `SPDK_DIR` or on
//! the path. One test at a time: targets and hosts poll, and SPDK's environment is one.
//! Without the feature there is nothing here: `cargo test --test '*'` refuses tests that require one.
#![cfg(feature = "spdk")]

mod import_support;
mod support;

use std::collections::VecDeque;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlfs::ErrorKind;
use dlfs::buf::{HugePages, Pages, Pool, PoolOptions};
use dlfs::import::{self, ImportOptions, Onto};
use dlfs::nvme::Address;
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::mem::MemNamespace;
use dlfs::qpair::{Completion, ConnectOptions, Device, Io, IoError, open};
use dlfs::target::{Target, TargetOptions};
use dlfs::units::Nsid;
use import_support::{contents, options, paths, tree};
use parking_lot::{Mutex, MutexGuard};
use serde_json::json;
use support::contract::{self, read};
use support::fork::in_child;
use support::nvmf_tgt::{NQN, NvmfTgt, program};
use support::random::Random;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A target, and the right to be the only test at work.
fn target(mib: u64) -> Option<(MutexGuard<'static, ()>, NvmfTgt)> {
    let alone = ONE_AT_A_TIME.lock();
    NvmfTgt::start(mib, 4096).map(|target| (alone, target))
}

fn connect(address: &Address, options: &ConnectOptions, writable: bool) -> Arc<dyn Device> {
    open(address, &ConnectOptions { writable, ..options.clone() }).unwrap()
}

fn check_contract(address: &Address, options: &ConnectOptions) {
    contract::check(connect(address, options, true), connect(address, options, false));
}

#[test]
fn tcp_by_spdk_keeps_the_contract_with_and_without_header_digests() {
    let Some((_alone, target)) = target(8) else { return };
    for hdr_digest in [false, true] {
        let options = ConnectOptions { hdr_digest, ..ConnectOptions::default() };
        check_contract(&target.spdk_tcp(), &options);
    }
}

#[test]
fn vfio_user_keeps_the_contract() {
    let Some((_alone, target)) = target(8) else { return };
    check_contract(&target.vfio_user(), &ConnectOptions::default());
}

#[test]
fn our_host_keeps_the_contract_on_spdks_target() {
    let Some((_alone, target)) = target(8) else { return };
    for hdr_digest in [false, true] {
        let options = ConnectOptions { hdr_digest, ..ConnectOptions::default() };
        check_contract(&target.tcp(), &options);
    }
}

/// Not the whole contract: nvmf_tgt 26.01 ends when a connection with data digests is dropped while
/// reads are outstanding, which the contract does.
#[test]
fn with_data_digests_both_hosts_read_what_the_other_wrote() {
    let Some((_alone, target)) = target(8) else { return };
    let options =
        ConnectOptions { hdr_digest: true, data_digest: true, ..ConnectOptions::default() };
    let ours = connect(&target.tcp(), &options, true);
    let spdks = connect(&target.spdk_tcp(), &options, true);
    let mut ours = Blocking::new(ours.queue_pair().unwrap()).unwrap();
    let mut spdks = Blocking::new(spdks.queue_pair().unwrap()).unwrap();
    let mut bytes = vec![0; 3 << 20];
    Random::new(5).fill(&mut bytes);
    ours.write_at(4096, &bytes).unwrap();
    assert!(spdks.read(4096, bytes.len()).unwrap()[..] == bytes[..]);
    Random::new(6).fill(&mut bytes);
    spdks.write_at(8192, &bytes).unwrap();
    assert!(ours.read(8192, bytes.len()).unwrap()[..] == bytes[..]);
}

/// Short waits: what takes longer than these is given up.
fn impatient(ctrl_loss_s: u64) -> ConnectOptions {
    ConnectOptions {
        io_timeout: Duration::from_secs(1),
        ctrl_loss_tmo: Duration::from_secs(ctrl_loss_s),
        connect_timeout: Duration::from_secs(5),
        writable: true,
        ..ConnectOptions::default()
    }
}

/// Both transports of SPDK's host that work without hardware.
fn both(target: &NvmfTgt) -> [Address; 2] {
    [target.spdk_tcp(), target.vfio_user()]
}

#[test]
fn an_image_imported_through_one_engine_is_read_through_each_other() {
    let Some((_alone, target)) = target(16) else { return };
    let folder = tempfile::tempdir().unwrap();
    let files = tree(folder.path(), 60, 9000, 1);
    let [spdk_tcp, vfio_user] = both(&target);
    let addresses = [target.tcp(), spdk_tcp, vfio_user];
    let mut onto = Onto::Empty;
    for through in &addresses {
        let connect = ConnectOptions { writable: true, ..ConnectOptions::default() };
        let wanted = ImportOptions { lease: Duration::from_millis(800), ..options(onto) };
        let through = std::slice::from_ref(through);
        import::import(&paths(folder.path()), through, &wanted, &connect, &mut ()).unwrap();
        for address in &addresses {
            let device = open(address, &ConnectOptions::default()).unwrap();
            assert_eq!(contents(&[device]).unwrap(), files, "written through {through:?}");
        }
        onto = Onto::Force;
    }
}

#[test]
fn reads_go_on_when_a_killed_target_is_back_and_end_in_time_when_it_is_not() {
    let Some((_alone, mut target)) = target(8) else { return };
    for address in both(&target) {
        let device = open(&address, &impatient(20)).unwrap();
        let mut pair = device.queue_pair().unwrap();
        let mut pending: VecDeque<Io> = (0..40).map(|n| read(n, 65536)).collect();
        pair.submit(&mut pending);
        target.kill();
        let (started, mut done) = (Instant::now(), Vec::new());
        while started.elapsed() < Duration::from_millis(300) {
            pair.poll(Instant::now(), 64, &mut done);
        }
        target.restart(8);
        while done.len() < 40 {
            pair.submit(&mut pending);
            pair.poll(Instant::now(), 64, &mut done);
            assert!(started.elapsed() < Duration::from_secs(40), "{} of 40", done.len());
        }
        assert!(done.iter().all(|completion| completion.result.is_ok()), "{done:?}");
        drop((pair, device));

        let device = open(&address, &impatient(2)).unwrap();
        let mut io = Blocking::new(device.queue_pair().unwrap()).unwrap();
        target.kill();
        let started = Instant::now();
        let error = io.read(0, 4096).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Disconnected, "{error:?}");
        assert!(started.elapsed() < Duration::from_secs(30), "{error:?}");
        drop((io, device));
        target.restart(8);
    }
}

#[test]
fn a_target_that_hangs_is_given_up_in_time_and_used_again_when_it_goes_on() {
    let Some((_alone, target)) = target(8) else { return };
    for address in both(&target) {
        let device = open(&address, &impatient(30)).unwrap();
        let mut io = Blocking::new(device.queue_pair().unwrap()).unwrap();
        io.read(0, 65536).unwrap();
        target.freeze(true);
        io.set_deadline(Duration::from_secs(3));
        let error = io.read(0, 65536).unwrap_err();
        let kinds = [ErrorKind::TimedOut, ErrorKind::Disconnected];
        assert!(kinds.contains(&error.kind()), "{error:?}");
        target.freeze(false);
        io.set_deadline(Duration::from_secs(40));
        io.read(0, 65536).unwrap();
    }
}

#[test]
fn a_controller_that_throws_the_host_out_is_connected_to_again() {
    let Some((_alone, target)) = target(8) else { return };
    let device = open(&target.spdk_tcp(), &impatient(20)).unwrap();
    let mut io = Blocking::new(device.queue_pair().unwrap()).unwrap();
    io.write_at(0, &[7; 4096]).unwrap();
    let port = target.port().to_string();
    let address =
        json!({"trtype": "TCP", "adrfam": "IPv4", "traddr": "127.0.0.1", "trsvcid": port});
    let listener = json!({"nqn": NQN, "listen_address": address});
    target.call("nvmf_subsystem_remove_listener", listener.clone());
    target.call("nvmf_subsystem_add_listener", listener);
    assert!(io.read(0, 4096).unwrap().iter().all(|&byte| byte == 7));
}

#[test]
fn a_namespace_that_is_removed_is_an_error_and_not_a_hang() {
    let Some((_alone, target)) = target(8) else { return };
    for address in both(&target) {
        let device = open(&address, &impatient(2)).unwrap();
        let mut io = Blocking::new(device.queue_pair().unwrap()).unwrap();
        io.read(0, 4096).unwrap();
        target.call("nvmf_subsystem_remove_ns", json!({"nqn": NQN, "nsid": 1}));
        let started = Instant::now();
        let error = io.read(0, 4096).unwrap_err();
        assert!(started.elapsed() < Duration::from_secs(40), "{error:?}");
        assert_ne!(error.kind(), ErrorKind::TimedOut, "{error:?}");
        drop((io, device));
        let absent = open(&address, &impatient(2)).err().expect("there is none");
        assert_eq!(absent.kind(), ErrorKind::NotFound, "{absent:?}");
        let namespace = json!({"bdev_name": "Malloc0", "nsid": 1});
        target.call("nvmf_subsystem_add_ns", json!({"nqn": NQN, "namespace": namespace}));
    }
}

#[test]
fn what_is_not_there_is_refused_in_time_with_the_reason() {
    let Some((_alone, target)) = target(8) else { return };
    let port = target.port();
    let cases = [
        "spdk:nvme-tcp://127.0.0.1:1/nqn.2026-11.io.dlfs:x".to_owned(),
        format!("spdk:nvme-tcp://127.0.0.1:{port}/nqn.2026-11.io.dlfs:nothing"),
        format!("{}?ns=7", target.spdk_tcp()),
        "trtype:VFIOUSER traddr:/nonexistent/dlfs".to_owned(),
        "trtype:RDMA traddr:127.0.0.1 subnqn:nqn.2026-11.io.dlfs:x".to_owned(),
        "trtype:PCIE traddr:0000:ff:1f.7".to_owned(),
    ];
    for case in cases {
        let started = Instant::now();
        let error = open(&case.parse().unwrap(), &impatient(2)).err().expect("nothing is there");
        println!("{case}: {error:?}");
        assert!(started.elapsed() < Duration::from_secs(12), "{case}: {error:?}");
        let text = error.report();
        assert!(
            text.contains(case.trim_start_matches("spdk:").split(' ').next().unwrap()),
            "{text}"
        );
    }
    // It goes on after all of that.
    let device = open(&target.spdk_tcp(), &impatient(2)).unwrap();
    Blocking::new(device.queue_pair().unwrap()).unwrap().read(0, 4096).unwrap();
}

#[test]
fn everything_may_be_dropped_in_any_order() {
    let Some((_alone, target)) = target(8) else { return };
    for address in both(&target) {
        for order in 0..4 {
            let device = open(&address, &impatient(5)).unwrap();
            let other = open(&address, &impatient(5)).unwrap();
            let mut first = device.queue_pair().unwrap();
            let mut pending: VecDeque<Io> = (0..20).map(|n| read(n, 65536)).collect();
            first.submit(&mut pending);
            let second = other.queue_pair().unwrap();
            match order {
                0 => drop((device, first, other, second)),
                1 => drop((second, other, first, device)),
                2 => drop((device, other, second, first)),
                _ => drop((first, second, device, other)),
            }
        }
        let device = open(&address, &impatient(5)).unwrap();
        Blocking::new(device.queue_pair().unwrap()).unwrap().read(0, 4096).unwrap();
    }
}

#[test]
fn pools_lie_in_memory_that_the_device_reaches_and_outlive_it() {
    let Some((_alone, target)) = target(8) else { return };
    let device = open(&target.vfio_user(), &impatient(5)).unwrap();
    let options =
        PoolOptions { bytes: 4 << 20, slot_len_bytes: 65536, huge_pages: HugePages::Auto };
    let pool = Pool::new(options).unwrap();
    assert_eq!(pool.pages(), Pages::Driver);
    let mut pair = device.queue_pair().unwrap();
    let mut buf = pool.take(65536).unwrap();
    buf.fill(1);
    let address = buf.as_ptr();
    pair.submit(&mut VecDeque::from([Io { buf, ..read(0, 0) }]));
    let (mut done, started) = (Vec::new(), Instant::now());
    while pair.poll(Instant::now(), 1, &mut done) == 0 {
        assert!(started.elapsed() < Duration::from_secs(10));
    }
    let Completion { buf, result, .. } = done.remove(0);
    assert_eq!(result, Ok(()));
    assert!(buf.as_ptr() == address && buf.iter().all(|&byte| byte == 0));
    drop((pair, device, target));
    assert_eq!(pool.take(65536).unwrap().len(), 65536);
}

#[test]
fn a_child_process_gets_errors_and_its_parent_goes_on() {
    let Some((_alone, target)) = target(8) else { return };
    for address in both(&target) {
        let device = open(&address, &impatient(5)).unwrap();
        let mut pair = device.queue_pair().unwrap();
        let mut pending: VecDeque<Io> = (0..8).map(|n| read(n, 4096)).collect();
        pair.submit(&mut pending);
        let in_the_child = || {
            let mut done = Vec::new();
            pair.poll(Instant::now(), 64, &mut done);
            let refused = done.iter().all(|c| matches!(c.result, Err(IoError::Disconnected(_))));
            let opened = open(&address, &impatient(5)).err().map(|error| error.kind());
            let paired = device.queue_pair().err().map(|error| error.kind());
            let unsupported = Some(ErrorKind::Unsupported);
            done.len() == 8 && refused && opened == unsupported && paired == unsupported
        };
        assert!(in_child(in_the_child));
    }
}

#[test]
fn too_little_memory_and_missing_huge_pages_are_said_before_anything_starts() {
    // SPDK starts once a process, so each of these has one.
    let this = "too_little_memory_and_missing_huge_pages_are_said_before_anything_starts";
    let Some(case) = std::env::var("DLFS_TEST_SPDK").ok() else {
        let _alone = ONE_AT_A_TIME.lock();
        for case in ["memory", "huge pages"] {
            let child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", this, "--nocapture"])
                .env("DLFS_TEST_SPDK", case)
                .output()
                .unwrap();
            assert!(child.status.success(), "{case}: {child:?}");
        }
        return;
    };
    let mut options = impatient(2);
    match case.as_str() {
        "memory" => options.spdk.memory_bytes = 1 << 20,
        "huge pages" => {
            options.spdk.huge_pages = Some(true);
            options.spdk.memory_bytes = 1 << 40;
        }
        other => panic!("no case {other}"),
    }
    let address = "spdk:nvme-tcp://127.0.0.1:1/nqn.2026-11.io.dlfs:x".parse().unwrap();
    let error = open(&address, &options).err().expect("nothing listens there");
    let expected = match case.as_str() {
        "memory" => ErrorKind::InvalidArgument,
        _ => ErrorKind::OutOfMemory,
    };
    assert_eq!(error.kind(), expected, "{error:?}");
}

#[test]
fn our_target_is_read_by_spdks_programs_without_complaint() {
    let _alone = ONE_AT_A_TIME.lock();
    let programs = (program("spdk_nvme_perf"), program("spdk_nvme_identify"));
    let (Some(perf), Some(identify)) = programs else {
        println!("SKIPPED: spdk_nvme_perf and spdk_nvme_identify are not there");
        return;
    };
    let disk = MemNamespace::new(8 << 20, 4096).unwrap();
    let target = TargetOptions::new("nqn.2026-11.io.dlfs:ours".parse().unwrap());
    let target = Target::bind(target, vec![Arc::new(disk)]).unwrap();
    let Address::Tcp(tcp) = target.address(Nsid(1)) else { panic!("a TCP address") };
    let trid = format!(
        "trtype:TCP adrfam:IPv4 traddr:{} trsvcid:{} subnqn:{}",
        tcp.traddr,
        tcp.trsvcid,
        tcp.subnqn.as_str()
    );
    // Without one spdk_nvme_perf 26.01 presents an empty host NQN, which is none and is refused.
    let trid = format!("{trid} hostnqn:nqn.2026-11.io.dlfs:spdk-host");
    let run = |program: &Path, arguments: &str| {
        let arguments = arguments.split(' ').chain(["-r", &trid]);
        let output = Command::new(program).args(arguments).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, error) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{out}\n{error}");
        // It says that every time it disconnects, from SPDK's own target too.
        let complaints = error.lines().filter(|line| line.contains("*ERROR*"));
        let complaints: Vec<&str> =
            complaints.filter(|line| !line.contains("Bad file descriptor")).collect();
        assert!(complaints.is_empty(), "{complaints:?}");
        out
    };
    let shared = "--no-huge -s 128";
    for digests in ["", " -H -I"] {
        let load = format!("{shared} -c 0x1 -q 8 -o 4096 -w randread -t 1{digests}");
        assert!(run(&perf, &load).contains("Total"), "no figures");
    }
    let described = run(&identify, shared);
    assert!(described.contains("Namespace ID:1"), "{described}");
}
