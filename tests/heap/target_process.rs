//! A target's costs for its process, and its behaviour when the process forks or runs out of file
//! descriptors.

use std::cell::RefCell;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::alone;
use crate::support::faults::{Fault, Faulty, Rule};
use crate::support::fork::{ends_well, in_child, spawn_child};
use crate::targets::counting_alloc::peak_during;
use crate::targets::raw_host::{RawHost, Reply};
use dlfs::nvme::{ConnectData, Nqn, Sgl, Sqe};
use dlfs::qpair::mem::MemNamespace;
use dlfs::qpair::{ConnectOptions, IoOp, open};
use dlfs::target::{Target, TargetOptions};
use dlfs::tcp::Digests;
use dlfs::tcp::pdu::{CapsuleCmd, Form, IcReq};
use dlfs::units::{Lba, Nsid};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use zerocopy::IntoBytes as _;

const NONE: Digests = Digests { header: false, data: false };

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

/// As much as one command may read, so that leftover memory is never enough.
fn large_read_works(target: &Target) -> bool {
    let (_admin, [mut io]) = RawHost::with_queues(target.local_addr(), &nqn(), NONE);
    io.call(large_read(), &[]).1 == vec![0; 1 << 20]
}

fn large_read() -> Sqe {
    Sqe::read(0, Nsid(1), Lba(0), 2048, 1 << 20)
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let limit = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < limit, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_connection_before_its_connect_holds_little_memory() {
    let _alone = alone();
    let target = serve();
    assert!(read_works(&target)); // one-time allocations happen now
    wait_until("the first host leaves", || target.stats().connections == 0);
    // ICReq, and a Connect without its last byte: the most that an unknown host can make us hold.
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
fn hosts_that_never_read_cost_the_target_no_more_than_its_buffers() {
    let _alone = alone();
    let device = MemNamespace::new(1 << 20, 512).unwrap();
    let mut options = TargetOptions::new(nqn());
    // Anyone may use the discovery service.
    options.allow_hosts = vec![Nqn::new("nqn.2026-11.io.dlfs:raw-host").unwrap()];
    let target = Target::bind(options, vec![Arc::new(device)]).unwrap();
    assert!(read_works(&target));
    let (peak, hosts) = peak_during(|| {
        let hosts: Vec<RawHost> = (0..20)
            .map(|_| {
                let (mut host, _) = RawHost::admin(target.local_addr(), &Nqn::discovery(), NONE);
                // An error log of 1 MiB for each queue entry: it is refused, or its memory is held.
                let mut log = Sqe::get_log_page(0, 1, 0, 4);
                log.cdw10.set(0xFFFF_0001);
                log.cdw11.set(3);
                log.sgl = Sgl::transport(1 << 20);
                (0..31).for_each(|_| _ = host.start(log, &[]));
                host
            })
            .collect();
        std::thread::sleep(Duration::from_millis(300));
        assert!(read_works(&target));
        // Although they use the name of an allowed host.
        assert!(large_read_works(&target));
        hosts
    });
    println!("{peak} bytes of heap for 620 answers of 1 MiB");
    assert!(peak < 16 << 20, "{peak} bytes of heap");
    drop(hosts);
}

#[test]
fn a_host_is_served_though_another_process_in_its_name_asks_and_never_reads() {
    let _alone = alone();
    let target = serve();
    let (admin, mut queues) = RawHost::with_queues::<8>(target.local_addr(), &nqn(), NONE);
    for queue in &mut queues {
        (0..100).for_each(|_| _ = queue.start(large_read(), &[]));
    }
    wait_until("a host that does not read is evicted", || {
        assert!(large_read_works(&target));
        target.stats().evicted > 0
    });
    drop((admin, queues));
}

#[test]
fn data_in_capsules_wait_in_the_socket_while_a_slow_device_has_the_buffers() {
    let _alone = alone();
    let slow = Faulty::new(Arc::new(MemNamespace::new(1 << 20, 512).unwrap()));
    let rule = |fault| Rule { op: IoOp::Write, blocks: 0..u64::MAX, times: u32::MAX, fault };
    slow.add(rule(Fault::DelayTime(Duration::from_millis(20))));
    let mut options = TargetOptions::new(nqn());
    (options.writable, options.buffer_bytes) = (true, 4 << 20);
    let target = Target::bind(options, vec![Arc::new(slow)]).unwrap();
    const HOSTS: usize = 16;
    const WRITES: u16 = 127;
    let (admin, mut queues) = RawHost::with_queues::<HOSTS>(target.local_addr(), &nqn(), NONE);
    let write = Sqe::write(0, Nsid(1), Lba(0), 32, Sgl::in_capsule(16 << 10));
    let (peak, ()) = peak_during(|| {
        std::thread::scope(|scope| {
            for queue in &mut queues {
                scope.spawn(|| {
                    // 32 MiB in total, of which the target has room for a quarter.
                    let data = vec![7; 16 << 10];
                    (0..WRITES).for_each(|_| _ = queue.start(write, &data));
                    for _ in 0..WRITES {
                        let Reply::Resp(cqe) = queue.receive() else { panic!("no answer") };
                        assert!(cqe.status().is_success(), "{}", cqe.status());
                    }
                });
            }
        });
    });
    println!("{peak} bytes of heap for 32 MiB in capsules");
    assert!(peak < 24 << 20, "{peak} bytes of heap");
    assert_eq!(target.stats().writes, (HOSTS * usize::from(WRITES)) as u64);
    drop((admin, queues));
}

#[test]
fn silent_connections_give_way_when_there_is_no_file_descriptor_left() {
    let _alone = alone();
    assert!(in_child(|| {
        let target = serve();
        let strangers: Vec<TcpStream> =
            (0..20).map(|_| TcpStream::connect(target.local_addr()).unwrap()).collect();
        wait_until("all are accepted", || target.stats().connections == 20);
        let open = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64 - 1;
        // Two for the host, one for the first of its two connections at the target.
        let limit = Rlimit { current: Some(open + 3), ..getrlimit(Resource::Nofile) };
        setrlimit(Resource::Nofile, limit).unwrap();
        let works = read_works(&target);
        drop(strangers);
        works && target.stats().evicted > 0
    }));
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
fn a_forked_child_holds_open_neither_connections_nor_listeners() {
    let _alone = alone();
    let target = serve();
    let (mut admin, _) = RawHost::admin(target.local_addr(), &nqn(), NONE);
    // Without Keep Alive, the target sees by the end of its connections alone that a host has left.
    let options = ConnectOptions { keep_alive_tmo: Duration::ZERO, ..ConnectOptions::default() };
    let device = open(&target.address(Nsid(1)), &options).unwrap();
    let pair = device.queue_pair().unwrap();
    let (mut says, mut hears) = UnixStream::pair().unwrap();
    hears.set_read_timeout(Some(Duration::from_secs(240))).unwrap();
    let child = spawn_child(|| hears.read_exact(&mut [0]).is_ok());
    drop((pair, device));
    wait_until("the host's connections end", || target.stats().connections == 1);
    assert_eq!(target.disconnect(&admin.hostnqn), 1);
    assert_eq!(admin.receive(), Reply::Closed);
    let address = target.local_addr();
    target.stop();
    TcpStream::connect(address).expect_err("nobody listens");
    says.write_all(&[1]).unwrap();
    assert!(ends_well(child));
}

#[test]
fn a_target_without_file_descriptors_recovers_when_there_are_some_again() {
    let _alone = alone();
    // In a child process, where nothing else needs the descriptors. With an even or an odd number
    // of them, one connection is left without.
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
            let stats = target.stats();
            // Not accepted yet, or accepted because another one had to go.
            let starved = stats.accepted < clients.len() as u64 || stats.evicted > 0;
            drop(clients);
            setrlimit(Resource::Nofile, limit).unwrap();
            assert!(read_works(&target));
            starved
        });
        starved.contains(&true)
    }));
}
