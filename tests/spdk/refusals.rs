//! Impossible requests are refused in time, with the reason: absent targets, too little memory or
//! permission, busy devices. SPDK can start only once per process, so tests of its start run in
//! their own processes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use dlfs::ErrorKind;
use dlfs::buf::{HugePages, Pages, Pool, PoolOptions};
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::open;

use super::own_process::{self, address, case};
use super::{ONE_AT_A_TIME, both, short_timeouts, target};

#[test]
fn what_is_not_there_is_refused_in_time_with_the_reason() {
    let Some((_alone, target)) = target(8) else { return };
    let port = target.port();
    let cases = [
        "spdk:nvme-tcp://127.0.0.1:1/nqn.2026-11.io.dlfs:x".to_owned(),
        format!("spdk:nvme-tcp://127.0.0.1:{port}/nqn.2026-11.io.dlfs:nothing"),
        format!("{}?ns=7", target.spdk_tcp()),
        "spdk:trtype:VFIOUSER traddr:/nonexistent/dlfs".to_owned(),
        "trtype:RDMA traddr:127.0.0.1 subnqn:nqn.2026-11.io.dlfs:x".to_owned(),
        "trtype:PCIE traddr:0000:ff:1f.7".to_owned(),
    ];
    for case in cases {
        let started = Instant::now();
        let error =
            open(&case.parse().unwrap(), &short_timeouts(2)).err().expect("nothing is there");
        println!("{case}: {error:?}");
        assert!(started.elapsed() < Duration::from_secs(60), "{case}: {error:?}");
        let text = error.report();
        assert!(
            text.contains(case.trim_start_matches("spdk:").split(' ').next().unwrap()),
            "{text}"
        );
    }
    // It still works after all of these.
    let device = open(&target.spdk_tcp(), &short_timeouts(2)).unwrap();
    Blocking::new(device.queue_pair().unwrap()).unwrap().read(0, 4096).unwrap();
}

#[test]
fn too_little_memory_and_missing_huge_pages_are_said_before_anything_starts() {
    let nobody = "spdk:nvme-tcp://127.0.0.1:1/nqn.2026-11.io.dlfs:x".parse().unwrap();
    let Some(case) = case() else {
        let _alone = ONE_AT_A_TIME.lock();
        for case in ["memory", "huge pages"] {
            own_process::run(
                too_little_memory_and_missing_huge_pages_are_said_before_anything_starts,
                case,
                &nobody,
            );
        }
        return;
    };
    let mut options = short_timeouts(2);
    match case.as_str() {
        "memory" => options.spdk.memory_bytes = 1 << 20,
        "huge pages" => {
            options.spdk.huge_pages = Some(true);
            options.spdk.memory_bytes = 1 << 40;
        }
        other => panic!("no case {other}"),
    }
    let error = open(&address(), &options).err().expect("nothing listens there");
    let expected = match case.as_str() {
        "memory" => ErrorKind::InvalidArgument,
        _ => ErrorKind::OutOfMemory,
    };
    assert_eq!(error.kind(), expected, "{error:?}");
}

/// Queues and buffers for a hundred commands fit into 16 MiB only a few times.
#[test]
fn memory_that_runs_out_is_an_error_or_is_done_without() {
    let Some(_case) = case() else {
        let Some((_alone, target)) = target(8) else { return };
        own_process::run(
            memory_that_runs_out_is_an_error_or_is_done_without,
            "small",
            &target.vfio_user(),
        );
        return;
    };
    let mut options = short_timeouts(5);
    options.spdk.memory_bytes = 16 << 20;
    options.spdk.huge_pages = Some(false);
    let device = open(&address(), &options).unwrap();
    let mut pairs = vec![Blocking::new(device.queue_pair().unwrap()).unwrap()];
    let error = loop {
        match device.queue_pair() {
            Ok(pair) => pairs.push(Blocking::new(pair).unwrap()),
            Err(error) => break error,
        }
        assert!(pairs.len() < 64, "16 MiB hold any number of queues");
    };
    println!("{} queue pairs, then {error:?}", pairs.len());
    assert!(error.report().contains("memory"), "{}", error.report());
    for pair in &mut pairs {
        pair.read(0, 65536).unwrap();
    }
    // A pool that does not fit uses normal pages, and its contents are copied.
    let large = PoolOptions { bytes: 32 << 20, slot_len_bytes: 65536, huge_pages: HugePages::Off };
    let pool = Pool::new(large).unwrap();
    assert_ne!(pool.pages(), Pages::Driver);
}

#[test]
fn with_huge_pages_both_transports_work_and_an_absent_drive_is_refused() {
    let Some(_case) = case() else {
        let Some((_alone, target)) = target(8) else { return };
        let Some(_reserved) = Reserved::new(64) else { return };
        for address in both(&target) {
            own_process::run(
                with_huge_pages_both_transports_work_and_an_absent_drive_is_refused,
                "huge",
                &address,
            );
        }
        return;
    };
    let mut options = short_timeouts(5);
    options.spdk.memory_bytes = 64 << 20;
    options.spdk.huge_pages = Some(true);
    let before = Reserved::free();
    let device = open(&address(), &options).unwrap();
    assert!(Reserved::free() <= before - 32, "its memory lies in huge pages");
    let mut io = Blocking::new(device.queue_pair().unwrap()).unwrap();
    io.write_at(4096, &[3; 8192]).unwrap();
    assert!(io.read(4096, 8192).unwrap().iter().all(|&byte| byte == 3));
    let drive = "trtype:PCIE traddr:0000:ff:1f.7".parse().unwrap();
    let error = open(&drive, &options).err().expect("no machine has that slot");
    assert_eq!(error.kind(), ErrorKind::Refused, "{error:?}");
}

#[test]
fn an_ordinary_user_reads_over_tcp_and_is_kept_out_of_what_is_not_theirs() {
    let Some(case) = case() else {
        let Some((_alone, target)) = target(8) else { return };
        if !rustix::process::geteuid().is_root() {
            println!("SKIPPED: all of these tests run as an ordinary user already");
            return;
        }
        // Other users cannot access the folder of this program.
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let program = folder.path().join("tests");
        fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        let [tcp, vfio_user] = both(&target);
        for (case, address) in [("may", tcp), ("may not", vfio_user)] {
            let mut command = Command::new(&program);
            command.current_dir("/").uid(NOBODY).gid(NOBODY);
            own_process::run_as(
                command,
                an_ordinary_user_reads_over_tcp_and_is_kept_out_of_what_is_not_theirs,
                case,
                &address,
            );
        }
        return;
    };
    assert!(!rustix::process::geteuid().is_root());
    let opened = open(&address(), &short_timeouts(3));
    if case == "may" {
        Blocking::new(opened.unwrap().queue_pair().unwrap()).unwrap().read(0, 65536).unwrap();
        return;
    }
    let error = opened.err().expect("the socket lies in a folder of root's");
    println!("{error:?}");
    assert_eq!(error.kind(), ErrorKind::Refused, "{error:?}");
}

/// There is no PCIe drive; a vfio-user controller is equivalent for SPDK's driver, and accepts one
/// client as a drive accepts one driver.
#[test]
fn a_second_process_on_the_same_device_is_refused_and_the_first_goes_on() {
    let Some(_case) = case() else {
        let Some((_alone, target)) = target(8) else { return };
        let device = open(&target.vfio_user(), &short_timeouts(10)).unwrap();
        let mut io = Blocking::new(device.queue_pair().unwrap()).unwrap();
        io.write_at(0, &[9; 4096]).unwrap();
        own_process::run(
            a_second_process_on_the_same_device_is_refused_and_the_first_goes_on,
            "second",
            &target.vfio_user(),
        );
        assert!(io.read(0, 4096).unwrap().iter().all(|&byte| byte == 9));
        return;
    };
    let started = Instant::now();
    let error = open(&address(), &short_timeouts(3)).err().expect("it is in use");
    println!("{error:?} after {:?}", started.elapsed());
    assert!(started.elapsed() < Duration::from_secs(60), "{error:?}");
    let kinds = [ErrorKind::Refused, ErrorKind::TimedOut, ErrorKind::Disconnected];
    assert!(kinds.contains(&error.kind()), "{error:?}");
}

/// Huge pages that are reserved while it lives.
struct Reserved {
    before: String,
}

impl Reserved {
    /// Reserves `count` pages of 2 MiB; prints why if there are none.
    fn new(count: usize) -> Option<Reserved> {
        let before = fs::read_to_string(NR_HUGEPAGES).unwrap_or_default().trim().to_owned();
        if Reserved::free() >= count {
            return Some(Reserved { before });
        }
        let wanted = before.parse().unwrap_or(0) + count;
        if let Err(error) = fs::write(NR_HUGEPAGES, wanted.to_string()) {
            println!("SKIPPED: no huge pages are free, and none can be set aside: {error}");
            return None;
        }
        let reserved = Reserved { before };
        if Reserved::free() < count {
            println!("SKIPPED: the machine has no {count} huge pages");
            return None;
        }
        Some(reserved)
    }

    fn free() -> usize {
        let text = fs::read_to_string(NR_HUGEPAGES.replace("nr_", "free_")).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let _ = fs::write(NR_HUGEPAGES, &self.before); // it was writable before
    }
}

const NR_HUGEPAGES: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
/// A user and a group without rights.
const NOBODY: u32 = 65534;
