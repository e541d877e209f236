//! Namespaces of one subsystem share one controller, and in each poller one I/O queue. Also the
//! meaning of an address without `?ns=`.

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::import_support::{contents, options, paths, tree};
use crate::support::alone::ran_alone;
use crate::support::fork::in_child;
use dlfs::ErrorKind;
use dlfs::address::{Address, TcpAddress};
use dlfs::buf::IoBuf;
use dlfs::dataset::{Image, OpenOptions};
use dlfs::format::Uuid;
use dlfs::import::{self, EditOptions, ImportOptions, Onto};
use dlfs::nvme::Nqn;
use dlfs::order::{OrderKind, OrderSpec};
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::group::PollGroup;
use dlfs::qpair::mem::MemNamespace;
use dlfs::qpair::tcp::TcpNamespace;
use dlfs::qpair::{
    Completion, ConnectOptions, Device, Io, IoError, IoOp, PairScope, open, open_all,
};
use dlfs::reader::Batch;
use dlfs::target::{Target, TargetOptions};
use dlfs::units::{Lba, Nsid};

const SAMPLES: usize = 400;

fn nqn() -> Nqn {
    Nqn::new("nqn.2026-11.io.dlfs:controllers").unwrap()
}

fn disks(count: usize) -> Vec<Arc<dyn Device>> {
    let disk = |_| Arc::new(MemNamespace::new(16 << 20, 4096).unwrap()) as Arc<dyn Device>;
    (0..count).map(disk).collect()
}

fn serve(disks: &[Arc<dyn Device>], writable: bool) -> Target {
    let options = TargetOptions { writable, ..TargetOptions::new(nqn()) };
    Target::bind(options, disks.to_vec()).unwrap()
}

fn import_onto(disks: &[Arc<dyn Device>], image: u8) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path(), SAMPLES, 20_000, image.into());
    let options = ImportOptions { uuid: Some(Uuid([image; 16])), ..options(Onto::Empty) };
    import::import_onto(&paths(dir.path()), disks, &options, &mut ()).unwrap();
    dir
}

/// Options of hosts whose connections are counted: none is made anew because the machine is busy.
fn patient() -> ConnectOptions {
    ConnectOptions {
        io_timeout: Duration::from_secs(60),
        keep_alive_tmo: Duration::from_secs(60),
        connect_timeout: Duration::from_secs(60),
        tcp_connect_timeout: Duration::from_secs(30),
        ..ConnectOptions::default()
    }
}

/// The address of the subsystem, without a namespace.
fn whole(target: &Target) -> Address {
    let Address::Tcp(address) = target.address(Nsid(1)) else { panic!("not TCP") };
    Address::Tcp(TcpAddress { nsid: None, ..address })
}

fn named(target: &Target, nsids: impl IntoIterator<Item = u32>) -> Vec<Address> {
    nsids.into_iter().map(|nsid| target.address(Nsid(nsid))).collect()
}

/// The target's controllers and connections, after it has noticed which have ended.
fn counts(target: &Target, expected: (u64, u64)) -> (u64, u64) {
    let now = || (target.stats().controllers, target.stats().connections);
    let until = Instant::now() + Duration::from_secs(60);
    while now() != expected && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    now()
}

fn read_epoch(image: &Image, target: &Target, queue_pairs: usize) {
    let order = OrderSpec { kind: OrderKind::Global, seed: 3 };
    let options = LoaderOptions { queue_pairs, ..LoaderOptions::new(order, 32, 1) };
    let before = target.stats().accepted;
    let mut loader = image.prefetcher(options).unwrap();
    let mut batch = Batch::new();
    let mut count = 0;
    while loader.next_into(&mut batch).unwrap() {
        count += batch.len();
    }
    assert_eq!(count, SAMPLES);
    let made = target.stats().accepted - before;
    assert_eq!((made, target.stats().controllers), (queue_pairs as u64, 1));
}

#[test]
fn an_image_on_64_namespaces_has_one_controller_and_one_io_queue_a_poller() {
    let disks = disks(64);
    import_onto(&disks, 1);
    let target = serve(&disks, false);
    let addresses = named(&target, 1..=64);
    let options = OpenOptions { connect: patient(), ..OpenOptions::default() };
    let image = Image::open(&addresses, &options).unwrap();
    assert_eq!(image.devices().len(), 64);
    assert_eq!(counts(&target, (1, 1)), (1, 1));
    // The admin queue's, that by which the superblocks were read, and the directory's.
    println!("opening took {} connections", target.stats().accepted);
    assert!(target.stats().accepted <= 3, "{:?}", target.stats());
    // And one for the names, which `dlfs stat` reads as well.
    image.load_names().unwrap();
    println!("what dlfs stat reads took {}", target.stats().accepted);
    assert!(target.stats().accepted <= 4, "{:?}", target.stats());
    assert_eq!(counts(&target, (1, 1)), (1, 1));
    read_epoch(&image, &target, 1);
    read_epoch(&image, &target, 2);
    assert_eq!(counts(&target, (1, 1)), (1, 1));
    assert_eq!(target.stats().refused, 0);
}

#[test]
fn an_address_without_a_namespace_means_those_of_the_image_behind_it() {
    let disks = disks(5);
    import_onto(&disks[1..4], 1);
    let target = serve(&disks, false);
    let address = whole(&target);
    let options = OpenOptions { connect: patient(), ..OpenOptions::default() };
    let image = Image::open(std::slice::from_ref(&address), &options).unwrap();
    let addresses: Vec<String> =
        image.devices().iter().map(|device| device.namespace().address).collect();
    let expected: Vec<String> = named(&target, 2..=4).iter().map(Address::to_string).collect();
    assert_eq!(addresses, expected);
    read_epoch(&image, &target, 1);
    drop(image);

    // With a second image the user must choose.
    import_onto(&disks[4..], 9);
    let error = Image::open(std::slice::from_ref(&address), &OpenOptions::default()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let report = error.report();
    for nsid in 2..=5 {
        assert!(report.contains(&target.address(Nsid(nsid)).to_string()), "{report}");
    }
    // Naming one namespace of an image chooses it.
    let both = [target.address(Nsid(2)), address];
    let error = Image::open(&both, &OpenOptions::default()).err().unwrap();
    assert!(error.report().contains("are both namespace"), "{}", error.report());
    let second = Image::open(&named(&target, [5]), &OpenOptions::default()).unwrap();
    assert_eq!(second.directory().num_live(), SAMPLES as u64);
}

#[test]
fn a_subsystem_without_an_image_says_so_and_one_namespace_is_as_if_it_was_named() {
    let target = serve(&disks(2), false);
    let error = Image::open(&[whole(&target)], &OpenOptions::default()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.report().contains("none of 2 namespaces"), "{}", error.report());
    let disks = disks(1);
    import_onto(&disks, 1);
    let target = serve(&disks, false);
    let image = Image::open(&[whole(&target)], &OpenOptions::default()).unwrap();
    assert_eq!(image.devices()[0].namespace().address, whole(&target).to_string());
}

fn import_to(source: &Path, address: &Address, onto: Onto) -> dlfs::Result<()> {
    let address = std::slice::from_ref(address);
    let connect = ConnectOptions::default();
    let options = ImportOptions { uuid: None, ..options(onto) };
    import::import(&paths(source), address, &options, &connect, &mut ()).map(drop)
}

#[test]
fn nothing_is_written_to_one_of_several_namespaces_that_the_user_did_not_name() {
    let disks = disks(2);
    let target = serve(&disks, true);
    let address = whole(&target);
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path(), 20, 9_000, 4);
    for onto in [Onto::Empty, Onto::Force, Onto::Resume, Onto::Append] {
        let error = import_to(dir.path(), &address, onto).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{onto:?}: {}", error.report());
        for nsid in 1..=2 {
            let expected = target.address(Nsid(nsid)).to_string();
            assert!(error.report().contains(&expected), "{}", error.report());
        }
    }
    let writable = ConnectOptions { writable: true, ..ConnectOptions::default() };
    let error = open(&address, &writable).err().unwrap();
    assert!(error.report().contains("?ns="), "{}", error.report());
    // An image on one of the namespaces is not all that they hold.
    import_onto(&disks[..1], 1);
    let error = import_to(dir.path(), &address, Onto::Append).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{}", error.report());
    let error = import::purge(
        std::slice::from_ref(&address),
        &EditOptions::default(),
        &ConnectOptions::default(),
        &mut (),
    );
    assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidArgument);
    let device: Arc<dyn Device> = Arc::new(
        TcpNamespace::connect(&tcp(&target.address(Nsid(2))), &ConnectOptions::default()).unwrap(),
    );
    let mut io = dlfs::qpair::blocking::Blocking::new(device.queue_pair().unwrap()).unwrap();
    assert!(io.read(0, 1 << 20).unwrap().iter().all(|byte| *byte == 0), "it is as it was");
}

fn tcp(address: &Address) -> TcpAddress {
    let Address::Tcp(address) = address else { panic!("not TCP") };
    address.clone()
}

#[test]
fn an_image_on_all_namespaces_of_a_subsystem_is_appended_to_by_the_address_of_that() {
    let disks = disks(3);
    import_onto(&disks, 1);
    let target = serve(&disks, true);
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path(), 20, 9_000, 4);
    import_to(dir.path(), &whole(&target), Onto::Append).unwrap();
    assert_eq!(counts(&target, (0, 0)), (0, 0));
    let found = contents(&disks).unwrap();
    assert_eq!(found.len(), SAMPLES + 20);
}

fn read(tag: u64, slba: u64) -> Io {
    Io { op: IoOp::Read, slba: Lba(slba), buf: IoBuf::zeroed(512), tag }
}

/// Disks of 64 blocks; each block contains its disk's and its own number.
fn told_apart(count: usize) -> Vec<Arc<dyn Device>> {
    let disk = |number: usize| {
        let disk = MemNamespace::new(64 * 512, 512).unwrap();
        let mut io = dlfs::qpair::blocking::Blocking::new(disk.queue_pair().unwrap()).unwrap();
        for block in 0..64 {
            io.write_at(block * 512, &[number as u8, block as u8].repeat(256)).unwrap();
        }
        Arc::new(disk) as Arc<dyn Device>
    };
    (0..count).map(disk).collect()
}

fn assert_right(done: &Completion, number: usize) {
    assert_eq!(done.result, Ok(()));
    assert_eq!(done.buf[..2], [number as u8, done.tag as u8], "of {number}");
}

/// Polls until this number of I/Os has completed.
fn finish(group: &mut PollGroup, count: usize) -> Vec<(usize, Completion)> {
    let mut done = Vec::new();
    let until = Instant::now() + Duration::from_secs(60);
    while done.len() < count && Instant::now() < until {
        if group.poll(Instant::now(), usize::MAX, &mut done) == 0 {
            group.wait(until);
        }
    }
    done
}

#[test]
fn queue_pairs_that_share_a_connection_get_what_they_submitted_and_outlive_each_other() {
    const COUNT: usize = 8;
    let disks = told_apart(COUNT);
    let target = serve(&disks, false);
    let opened = open_all(&named(&target, 1..=COUNT as u32), &patient()).unwrap();
    let devices: Vec<Arc<dyn Device>> = opened.into_iter().flatten().collect();
    let scope = PairScope::new();
    let mut pairs: VecDeque<_> =
        devices.iter().map(|device| device.queue_pair_in(&scope).unwrap()).collect();
    assert_eq!(counts(&target, (1, 2)), (1, 2));
    let queues: std::collections::BTreeSet<_> = pairs.iter().map(|p| p.shared_queue()).collect();
    assert_eq!(queues.len(), 1);

    // The first handle is the leader and is dropped with outstanding reads; so is the second.
    for slba in 0..2 {
        pairs[0].submit(&mut VecDeque::from([read(slba, slba)]));
    }
    drop(pairs.pop_front());
    pairs[0].submit(&mut VecDeque::from([read(9, 9)]));
    drop(pairs.pop_front());
    let mut group = PollGroup::new().unwrap();
    for pair in pairs {
        group.add(pair);
    }
    for round in 0..20 {
        for index in 0..COUNT - 2 {
            let mut pending = (0..4).map(|at| read((round + at) % 64, (round + at) % 64)).collect();
            assert_eq!(group.submit(index, &mut pending), 4);
        }
        let done = finish(&mut group, 4 * (COUNT - 2));
        assert_eq!((done.len(), group.outstanding()), (4 * (COUNT - 2), 0));
        done.iter().for_each(|(index, done)| assert_right(done, index + 2));
    }
    // One poller's timeouts are all on one connection, also when it sleeps.
    group.submit(3, &mut VecDeque::from([read(5, 5)]));
    std::thread::sleep(Duration::from_millis(30));
    assert_right(&finish(&mut group, 1)[0].1, 5);
    assert_eq!(counts(&target, (1, 2)), (1, 2));
    assert_eq!(target.stats().accepted, 2, "no connection was made anew");
    drop(group);
    assert_eq!(counts(&target, (1, 1)), (1, 1));
}

#[test]
fn commands_of_queue_pairs_that_share_a_connection_go_out_with_the_first_that_starts() {
    const COUNT: u64 = 6;
    let disks = told_apart(COUNT as usize);
    let target = serve(&disks, false);
    let opened = open_all(&named(&target, 1..=COUNT as u32), &ConnectOptions::default()).unwrap();
    let scope = PairScope::new();
    let devices = opened.iter().flatten();
    let mut pairs: Vec<_> = devices.map(|device| device.queue_pair_in(&scope).unwrap()).collect();
    for pair in &mut pairs {
        assert_eq!(pair.submit(&mut (0..4).map(|at| read(at, at)).collect()), 4);
    }
    // A send for each pair would have been made by now.
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(target.stats().reads, 0);
    // The commands of all, although one starts and none is polled.
    pairs[2].start();
    let until = Instant::now() + Duration::from_secs(60);
    while target.stats().reads < 4 * COUNT && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(target.stats().reads, 4 * COUNT);
}

#[test]
fn a_write_of_a_dropped_queue_pair_ends_the_session_and_the_others_read_on() {
    let disks = told_apart(2);
    let target = serve(&disks, true);
    let connect = ConnectOptions { writable: true, ..patient() };
    let opened = open_all(&named(&target, 1..=2), &connect).unwrap();
    let scope = PairScope::new();
    let mut writer = opened[0][0].queue_pair_in(&scope).unwrap();
    let mut group = PollGroup::new().unwrap();
    group.add(opened[1][0].queue_pair_in(&scope).unwrap());
    group.submit(0, &mut (0..8).map(|at| read(at, at)).collect());
    let write = Io { op: IoOp::Write, ..read(0, 0) };
    assert_eq!(writer.submit(&mut VecDeque::from([write])), 1);
    writer.start();
    drop(writer);
    let done = finish(&mut group, 8);
    assert_eq!(done.len(), 8);
    done.iter().for_each(|(_, done)| assert_right(done, 1));
    assert_eq!(
        target.stats().accepted,
        4,
        "a new session, and what was on its way is not sent any more"
    );
}

#[test]
fn a_child_process_goes_on_with_queue_pairs_that_share_a_connection() {
    if ran_alone(a_child_process_goes_on_with_queue_pairs_that_share_a_connection) {
        return;
    }
    let disks = told_apart(3);
    let target = serve(&disks, false);
    let opened = open_all(&named(&target, 1..=3), &ConnectOptions::default()).unwrap();
    let scope = PairScope::new();
    let mut group = PollGroup::new().unwrap();
    for devices in &opened {
        group.add(devices[0].queue_pair_in(&scope).unwrap());
    }
    let mut round = || {
        for index in 0..3 {
            group.submit(index, &mut (0..4).map(|at| read(at, at)).collect());
        }
    };
    round();
    assert!(in_child(|| {
        // Outstanding I/Os, further I/Os, and I/Os of new queue pairs.
        let done = finish(&mut group, 12);
        done.iter().for_each(|(index, done)| assert_right(done, *index));
        let other = opened[1][0].queue_pair_in(&scope).unwrap();
        let index = group.add(other);
        group.submit(index, &mut VecDeque::from([read(7, 7)]));
        let more = finish(&mut group, 1);
        more.iter().for_each(|(_, done)| assert_right(done, 1));
        done.len() == 12 && more.len() == 1
    }));
    let done = finish(&mut group, 12);
    assert_eq!(done.len(), 12, "the parent's own");
    done.iter().for_each(|(index, done)| assert_right(done, *index));
}

#[test]
fn a_child_forked_while_another_thread_has_the_connection_fails_what_was_under_way_and_reads_on() {
    if ran_alone(a_child_forked_while_another_thread_has_the_connection_fails_what_was_under_way_and_reads_on) {
        return;
    }
    let disks = told_apart(2);
    let target = serve(&disks, false);
    let opened = open_all(&named(&target, 1..=2), &ConnectOptions::default()).unwrap();
    let scope = PairScope::new();
    let mut busy = opened[0][0].queue_pair_in(&scope).unwrap();
    let mut group = PollGroup::new().unwrap();
    group.add(opened[1][0].queue_pair_in(&scope).unwrap());
    let (mut told, tell) = std::io::pipe().unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|threads| {
        // This thread holds the connection's lock most of the time.
        threads.spawn(|| {
            let mut done = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                // Few, because queue pairs that share the queue share its depth.
                if busy.outstanding() < 4 {
                    busy.submit(&mut VecDeque::from([read(1, 1)]));
                }
                busy.poll(Instant::now(), usize::MAX, &mut done);
                done.drain(..).for_each(|done| assert_right(&done, 0));
            }
        });
        let _stops = StopsAtEnd(&stop);
        let mut lost = Vec::new();
        while lost.len() < FORKS || !lost.contains(&4) && lost.len() < 50 * FORKS {
            let round = lost.len();
            assert_eq!(group.submit(0, &mut (0..4).map(|at| read(at, at)).collect()), 4);
            // The other thread has waited for the lock and needs a while to continue.
            std::thread::sleep(Duration::from_micros(200 + 30 * (round % 32) as u64));
            let is_right = in_child(|| {
                let (lost, right): (Vec<_>, Vec<_>) =
                    finish(&mut group, 4).into_iter().partition(|(_, done)| done.result.is_err());
                let is_told = |done: &Completion| match &done.result {
                    Err(IoError::Disconnected(why)) => why.contains("forked"),
                    _ => false,
                };
                assert!(lost.iter().all(|(_, done)| is_told(done)), "{lost:?}");
                right.iter().for_each(|(_, done)| assert_right(done, 1));
                (&tell).write_all(&[lost.len() as u8]).unwrap();
                // Its later reads use a connection of their own.
                group.submit(0, &mut (0..8).map(|at| read(at, at)).collect());
                let more = finish(&mut group, 8);
                more.iter().for_each(|(_, done)| assert_right(done, 1));
                // The other thread's queue pair is there too, with its submitted I/Os.
                let mut own = PollGroup::new().unwrap();
                own.add(opened[0][0].queue_pair_in(&scope).unwrap());
                own.submit(0, &mut VecDeque::from([read(7, 7)]));
                finish(&mut own, 1).iter().for_each(|(_, done)| assert_right(done, 0));
                lost.len() + right.len() == 4 && more.len() == 8
            });
            assert!(is_right, "fork {round}");
            let mut byte = [0];
            told.read_exact(&mut byte).unwrap();
            lost.push(byte[0]);
            let done = finish(&mut group, 4);
            assert_eq!(done.len(), 4, "the parent's own");
            done.iter().for_each(|(_, done)| assert_right(done, 1));
        }
        println!("I/Os lost by each child: {lost:?}");
        assert!(lost.contains(&4), "no fork met the lock: this says nothing");
    });
}

struct StopsAtEnd<'a>(&'a AtomicBool);

impl Drop for StopsAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// At least this many.
const FORKS: usize = 12;

#[test]
fn pollers_of_their_own_share_a_connection_too_though_nobody_wakes_them() {
    let disks = told_apart(2);
    let target = serve(&disks, false);
    let opened = open_all(&named(&target, 1..=2), &ConnectOptions::default()).unwrap();
    let scope = PairScope::new();
    let mut groups: Vec<PollGroup> = opened
        .iter()
        .map(|devices| {
            let mut group = PollGroup::new().unwrap();
            group.add(devices[0].queue_pair_in(&scope).unwrap());
            group
        })
        .collect();
    // The first one watches the socket and is not polled.
    for round in 0..10 {
        groups[1].submit(0, &mut VecDeque::from([read(round, round)]));
        assert_right(&finish(&mut groups[1], 1)[0].1, 1);
    }
    groups[0].submit(0, &mut VecDeque::from([read(3, 3)]));
    assert_right(&finish(&mut groups[0], 1)[0].1, 0);
}

#[test]
fn a_list_of_more_namespaces_than_a_page_is_read_to_its_end() {
    const COUNT: usize = 1_100;
    let disk = |at: usize| MemNamespace::new((at as u64 + 1) * 512, 512).unwrap();
    let disks: Vec<Arc<dyn Device>> =
        (0..COUNT).map(|at| Arc::new(disk(at)) as Arc<dyn Device>).collect();
    let target = serve(&disks, false);
    let all = TcpNamespace::connect_all(&tcp(&whole(&target)), &patient()).unwrap();
    let blocks: Vec<u64> = all.iter().map(|one| one.namespace().num_blocks).collect();
    assert_eq!(blocks, Vec::from_iter(1..=COUNT as u64));
    assert_eq!(target.stats().accepted, 1);
    // By their numbers, in any order; the error names the wrong one.
    let addresses = named(&target, [700, 3, 1_099]);
    let opened = open_all(&addresses, &ConnectOptions::default()).unwrap();
    let blocks: Vec<u64> = opened.iter().map(|one| one[0].namespace().num_blocks).collect();
    assert_eq!(blocks, [700, 3, 1_099]);
    let wrong = named(&target, [700, 5_000, 3]);
    let error = open_all(&wrong, &ConnectOptions::default()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.report().contains(&wrong[1].to_string()), "{}", error.report());
    let error = open(&whole(&target), &ConnectOptions::default()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.report().contains("which of 1100 namespaces"), "{}", error.report());
}

#[test]
fn a_controller_cannot_be_asked_to_prove_itself_by_a_host_that_does_not() {
    let disks = told_apart(1);
    let target = serve(&disks, false);
    let secret = dlfs::auth::Secret::generate(&[3; 64], None);
    let connect = ConnectOptions { dhchap_ctrl_secret: Some(secret), ..ConnectOptions::default() };
    let error = open_all(&named(&target, 1..=1), &connect).err().expect("it is refused");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert_eq!(target.stats().accepted, 0);
}
