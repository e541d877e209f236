//! The SPDK engine against SPDK's own target, and each of our sides against SPDK's other side.
//!
//! Runs with `--features spdk` if SPDK is installed; the target is `nvmf_tgt`, below `SPDK_DIR` or
//! on the path. One test at a time: targets and hosts spin, and SPDK's environment exists once per
//! process. Without the feature this file is empty, since `cargo test --test '*'` refuses tests
//! that require a feature.
#![cfg(feature = "spdk")]

#[path = "spdk/failures.rs"]
mod failures;
#[allow(dead_code, unreachable_pub)] // it uses a part of it
mod import_support;
#[path = "spdk/keys.rs"]
mod keys;
#[path = "spdk/own_process.rs"]
mod own_process;
#[path = "spdk/refusals.rs"]
mod refusals;
#[allow(dead_code, unreachable_pub)] // it uses a part of it
mod support;
#[path = "spdk/system_calls.rs"]
mod system_calls;

use std::collections::{BTreeSet, VecDeque};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlfs::ErrorKind;
use dlfs::address::Address;
use dlfs::buf::{HugePages, Pages, Pool, PoolOptions};
use dlfs::import::{self, ImportOptions, Onto};
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::mem::MemNamespace;
use dlfs::qpair::{Completion, ConnectOptions, Device, Io, IoError, open};
use dlfs::target::{Target, TargetOptions};
use dlfs::units::Nsid;
use import_support::{contents, options, paths, tree};
use parking_lot::{Mutex, MutexGuard};
use support::contract::{self, read};
use support::fork::in_child;
use support::nvmf_tgt::{NvmfTgt, program};
use support::random::Random;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A target, and the lock that lets one test run at a time.
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
fn our_driver_keeps_the_contract_on_spdks_target() {
    let Some((_alone, target)) = target(8) else { return };
    check_contract(&target.own_vfio_user(), &ConnectOptions::default());
}

#[test]
fn our_host_keeps_the_contract_on_spdks_target() {
    let Some((_alone, target)) = target(8) else { return };
    for hdr_digest in [false, true] {
        let options = ConnectOptions { hdr_digest, ..ConnectOptions::default() };
        check_contract(&target.tcp(), &options);
    }
}

/// Not the whole contract: nvmf_tgt 26.01 exits if a connection with data digests is dropped while
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

/// Short time-outs, so that tests see the host give up soon.
fn short_timeouts(ctrl_loss_s: u64) -> ConnectOptions {
    ConnectOptions {
        io_timeout: Duration::from_secs(1),
        ctrl_loss_tmo: Duration::from_secs(ctrl_loss_s),
        connect_timeout: Duration::from_secs(5),
        writable: true,
        ..ConnectOptions::default()
    }
}

/// The transports of SPDK's host that need no hardware.
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
fn everything_may_be_dropped_in_any_order() {
    let Some((_alone, target)) = target(8) else { return };
    for address in both(&target) {
        for order in 0..4 {
            let device = open(&address, &short_timeouts(5)).unwrap();
            let other = open(&address, &short_timeouts(5)).unwrap();
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
        let device = open(&address, &short_timeouts(5)).unwrap();
        Blocking::new(device.queue_pair().unwrap()).unwrap().read(0, 4096).unwrap();
    }
}

#[test]
fn pools_lie_in_memory_that_the_device_reaches_and_outlive_it() {
    let Some((_alone, target)) = target(8) else { return };
    let device = open(&target.vfio_user(), &short_timeouts(5)).unwrap();
    let options =
        PoolOptions { bytes: 4 << 20, slot_len_bytes: 65536, huge_pages: HugePages::Auto };
    let pool = Pool::new(options).unwrap();
    assert_eq!(pool.pages(), Pages::Driver);
    let mut pair = device.queue_pair().unwrap();
    let mut buf = pool.take(65536).unwrap();
    buf.fill(1);
    let address = buf.as_ptr();
    pair.submit(&mut VecDeque::from([Io { buf, ..read(0, 0) }]));
    let mut done = Vec::new();
    let started = Instant::now();
    while pair.poll(Instant::now(), 1, &mut done) == 0 {
        assert!(started.elapsed() < Duration::from_secs(60));
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
        let device = open(&address, &short_timeouts(5)).unwrap();
        let mut pair = device.queue_pair().unwrap();
        let mut pending: VecDeque<Io> = (0..8).map(|n| read(n, 4096)).collect();
        pair.submit(&mut pending);
        let in_the_child = || {
            let mut done = Vec::new();
            pair.poll(Instant::now(), 64, &mut done);
            let refused = done.iter().all(|c| matches!(c.result, Err(IoError::Disconnected(_))));
            let opened = open(&address, &short_timeouts(5)).err().map(|error| error.kind());
            let paired = device.queue_pair().err().map(|error| error.kind());
            let unsupported = Some(ErrorKind::Unsupported);
            done.len() == 8 && refused && opened == unsupported && paired == unsupported
        };
        assert!(in_child(in_the_child));
    }
}

/// Messages that SPDK's programs print about SPDK's own target, and so may print about ours: that a
/// connection was closed, after they have closed it.
#[test]
fn our_target_is_read_by_spdks_programs_with_no_complaint_that_its_own_would_not_get() {
    let programs = (program("spdk_nvme_perf"), program("spdk_nvme_identify"));
    let (Some(perf), Some(identify)) = programs else {
        println!("SKIPPED: spdk_nvme_perf and spdk_nvme_identify are not there");
        return;
    };
    let Some((_alone, spdks)) = target(8) else { return };
    let disk = MemNamespace::new(8 << 20, 4096).unwrap();
    let ours = TargetOptions::new("nqn.2026-11.io.dlfs:ours".parse().unwrap());
    let ours = Target::bind(ours, vec![Arc::new(disk)]).unwrap();
    let mut usual = BTreeSet::new();
    for (address, is_ours) in [(spdks.tcp(), false), (ours.address(Nsid(1)), true)] {
        let shared = "--no-huge -s 128";
        let load = format!("{shared} -c 0x1 -q 8 -o 4096 -w randread -t 1");
        let mut complaints = BTreeSet::new();
        for digests in ["", " -H -I"] {
            let (out, errors) = run(&perf, &format!("{load}{digests}"), &address);
            assert!(out.contains("Total"), "no figures: {out}");
            complaints.extend(errors);
        }
        let (described, errors) = run(&identify, shared, &address);
        assert!(described.contains("Namespace ID:1"), "{described}");
        complaints.extend(errors);
        if is_ours {
            let unusual: Vec<&String> = complaints.difference(&usual).collect();
            assert!(unusual.is_empty(), "{unusual:?}, and usual are {usual:?}");
        } else {
            usual = complaints;
        }
    }
}

/// The output of an SPDK program that is run against a target, and its complaints without names and
/// addresses.
fn run(program: &Path, arguments: &str, address: &Address) -> (String, BTreeSet<String>) {
    let Address::Tcp(tcp) = address else { panic!("a TCP address") };
    let traddr = &tcp.traddr;
    let trsvcid = tcp.trsvcid;
    let subnqn = tcp.subnqn.as_str();
    // Without a host NQN spdk_nvme_perf 26.01 presents an empty one, which is invalid and refused.
    let trid = format!(
        "trtype:TCP adrfam:IPv4 traddr:{traddr} trsvcid:{trsvcid} subnqn:{subnqn} \
         hostnqn:nqn.2026-11.io.dlfs:spdk-host"
    );
    let arguments = arguments.split(' ').chain(["-r", &trid]);
    let output = Command::new(program).args(arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let out = text(&output.stdout);
    let error = text(&output.stderr);
    assert!(output.status.success(), "{out}\n{error}");
    let complaint = |line: &str| {
        let said = line.split_once("*ERROR*: ")?.1;
        Some(said.rsplit_once(']').map_or(said, |(_, said)| said).trim().to_owned())
    };
    let complaints = error.lines().chain(out.lines()).filter_map(complaint).collect();
    (out, complaints)
}
