//! What a target costs its process, and what becomes of it when the process forks or runs out of
//! file descriptors.

#[path = "support/counting_alloc.rs"]
mod counting_alloc;
mod support;

use std::cell::RefCell;
use std::io::Write as _;
use std::net::TcpStream;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use counting_alloc::{CountingAlloc, peak_during};
use dlfs::nvme::{ConnectData, Nqn, Sqe};
use dlfs::qpair::mem::MemNamespace;
use dlfs::target::{Target, TargetOptions};
use dlfs::tcp::Digests;
use dlfs::tcp::pdu::{CapsuleCmd, Form, IcReq};
use dlfs::units::{Lba, Nsid};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::fork::in_child;
use support::raw_host::RawHost;
use zerocopy::IntoBytes as _;

#[global_allocator]
static ALLOCATOR: CountingAlloc = CountingAlloc;

const NONE: Digests = Digests { header: false, data: false };

/// One test at a time: heap, descriptors and forks are the whole process's.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn nqn() -> Nqn {
    Nqn::new("nqn.2026-11.io.dlfs:process").unwrap()
}

fn serve() -> Target {
    let device = MemNamespace::new(1 << 20, 512).unwrap();
    Target::bind(TargetOptions::new(nqn()), vec![Arc::new(device)]).unwrap()
}

fn read_works(target: &Target) -> bool {
    let (_admin, [mut io]) = RawHost::with_queues(target.local_addr(), &nqn(), NONE);
    io.call(Sqe::read(0, Nsid(1), Lba(0), 8, 4096), &[]).1 == [0; 4096]
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let limit = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < limit, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_connection_before_its_connect_holds_little_memory() {
    let _alone = alone();
    let target = serve();
    assert!(read_works(&target)); // what is allocated once is allocated now
    wait_until("the first host leaves", || target.stats().connections == 0);
    // ICReq, and all of a Connect but its last byte: the most that a stranger can make us hold.
    let mut bytes = IcReq::new(NONE).as_bytes().to_vec();
    let data = ConnectData::new([1; 16], 0xFFFF, &nqn(), &nqn());
    let entry = Sqe::connect(0, 0, 31, 0).as_bytes().try_into().unwrap();
    let form = Form::default();
    form.put(&mut bytes, &CapsuleCmd::new(entry, 1024, form));
    bytes.extend_from_slice(&data.as_bytes()[..1023]);
    const COUNT: u64 = 400;
    let (peak, strangers) = peak_during(|| {
        let strangers: Vec<TcpStream> = (0..COUNT)
            .map(|_| {
                let mut stream = TcpStream::connect(target.local_addr()).unwrap();
                stream.write_all(&bytes).unwrap();
                stream
            })
            .collect();
        wait_until("all are accepted", || target.stats().connections == COUNT);
        assert!(read_works(&target));
        strangers
    });
    let each = peak as u64 / COUNT;
    println!("{each} bytes of heap a connection before Connect");
    assert!(each < 24 << 10, "{each} bytes of heap a connection");
    drop(strangers);
}

#[test]
fn a_forked_child_that_drops_its_handle_leaves_the_target_alone() {
    let _alone = alone();
    let target = RefCell::new(Some(serve()));
    assert!(in_child(|| {
        drop(target.take());
        true
    }));
    let target = target.take().expect("the parent's own handle");
    assert!(read_works(&target));
    target.stop();
}

#[test]
fn a_target_without_file_descriptors_recovers_when_there_are_some_again() {
    let _alone = alone();
    // In a process of its own, where nobody else misses them.
    // An even and an odd number of them: with one of the two, a connection is left without.
    assert!(in_child(|| {
        let starved = [30, 31].map(|spare| {
            let target = serve();
            let open = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
            let limit = getrlimit(Resource::Nofile);
            setrlimit(Resource::Nofile, Rlimit { current: Some(open + spare), ..limit }).unwrap();
            let mut clients = Vec::new();
            while let Ok(client) = TcpStream::connect(target.local_addr()) {
                clients.push(client);
            }
            let starved = (target.stats().accepted as usize) < clients.len();
            drop(clients);
            setrlimit(Resource::Nofile, limit).unwrap();
            assert!(read_works(&target));
            starved
        });
        starved.contains(&true)
    }));
}
