//! Two targets of one image: a host has a session with each, and no read fails when one goes, hangs or changes its
//! ANA state.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::faults::{Fault, Faulty, Rule};
use crate::support::hostile_target::{HostileTarget, Misbehaviour};
use crate::support::ports::bind_again;
use crate::support::random::Random;
use crate::support::short_timeouts::{LEN, bytes};
use dlfs::ErrorKind;
use dlfs::exporter;
use dlfs::metrics::{HOST_FAILOVERS, HOST_PATH_COMMANDS, HOST_PATH_LOSSES};
use dlfs::nvme::Nqn;
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::mem::MemNamespace;
use dlfs::qpair::{self, ConnectOptions, Device, IoOp};
use dlfs::target::{AnaState, Target, TargetOptions};
use dlfs::units::Nsid;

const SEED: u64 = 53;

/// One namespace, served by two targets of one subsystem.
struct Served {
    nqn: Nqn,
    device: Arc<dyn Device>,
    targets: [Option<Target>; 2],
}

impl Served {
    fn new(name: &str, bytes: &[u8]) -> Served {
        Served::on(name, Arc::new(namespace(bytes)))
    }

    fn on(name: &str, device: Arc<dyn Device>) -> Served {
        let nqn = Nqn::new(format!("nqn.2026-11.io.dlfs:{name}")).unwrap();
        let mut served = Served { nqn, device, targets: [None, None] };
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        served.targets = [(); 2].map(|()| Some(served.serve(any)));
        served
    }

    fn serve(&self, listen: SocketAddr) -> Target {
        let ana = Some(AnaState::Optimized);
        let new = TargetOptions::new(self.nqn.clone());
        let options = TargetOptions { listen, ana, writable: true, ..new };
        bind_again(|| Target::bind(options.clone(), vec![Arc::clone(&self.device)]))
    }

    fn target(&self, number: usize) -> &Target {
        self.targets[number].as_ref().unwrap()
    }

    fn reads(&self, number: usize) -> u64 {
        self.target(number).stats().reads
    }

    fn open(&self) -> Reader {
        let [first, second] = [0, 1].map(|number| self.target(number).address(Nsid(1)));
        // No session is to end because the machine is busy.
        let options = ConnectOptions {
            paths: vec![second],
            io_timeout: Duration::from_secs(50),
            keep_alive_tmo: Duration::from_secs(60),
            ..ConnectOptions::default()
        };
        let device = qpair::open(&first, &options).unwrap();
        Reader::new(device)
    }

    /// The sum of a metric of this host's paths.
    fn metric(&self, family: &str) -> f64 {
        let text = exporter::snapshot().to_openmetrics();
        let of = format!("subsystem=\"{}\"", self.nqn);
        let lines = text.lines().filter(|line| line.starts_with(family) && line.contains(&of));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    }
}

fn namespace(bytes: &[u8]) -> MemNamespace {
    let device = MemNamespace::new(bytes.len() as u64, 512).unwrap();
    let mut blocking = Blocking::new(device.queue_pair().unwrap()).unwrap();
    blocking.write_at(0, bytes).unwrap();
    device
}

/// Reads at random places, checks every byte, and remembers the longest wait.
struct Reader {
    blocking: Blocking,
    random: Random,
    longest: Duration,
    _device: Arc<dyn Device>,
}

impl Reader {
    fn new(device: Arc<dyn Device>) -> Reader {
        let blocking = Blocking::new(device.queue_pair().unwrap()).unwrap();
        let random = Random::new(SEED);
        Reader { blocking, random, longest: Duration::ZERO, _device: device }
    }

    fn read(&mut self, expected: &[u8]) {
        let at = self.random.below(LEN as u64 / 4096) * 4096;
        let mut found = vec![0; 4096];
        let began = Instant::now();
        self.blocking.read_at(at, &mut found).unwrap();
        self.longest = self.longest.max(began.elapsed());
        assert!(found == expected[at as usize..][..4096], "wrong bytes at {at}, seed {SEED}");
    }

    /// Reads until something is so; the limit only prevents waiting for ever.
    fn read_until(&mut self, expected: &[u8], what: &str, is_so: impl Fn() -> bool) {
        let limit = Instant::now() + Duration::from_secs(60);
        while !is_so() {
            assert!(Instant::now() < limit, "never: {what}");
            self.read(expected);
        }
    }

    fn tell(&self, what: &str) {
        println!("{what}: the longest wait was {:?}", self.longest);
        assert!(self.longest < Duration::from_secs(60));
    }
}

#[test]
fn reads_use_both_paths_and_go_on_when_either_is_closed_and_comes_back() {
    let expected = bytes(SEED);
    let mut served = Served::new("multipath-closed", &expected);
    let mut reader = served.open();
    let mut stopped = 0;
    for round in 0..6 {
        let which = round % 2;
        for number in [0, 1] {
            let before = served.reads(number);
            let what = format!("target {number} is read from, round {round}");
            reader.read_until(&expected, &what, || served.reads(number) > before);
        }
        let listen = served.target(which).local_addr();
        // Closed while reads are on their way.
        let target = served.targets[which].take().unwrap();
        let stopping = std::thread::spawn(move || target.stop());
        while !stopping.is_finished() {
            reader.read(&expected);
        }
        stopping.join().unwrap();
        (0..100).for_each(|_| reader.read(&expected));
        stopped += 1;
        served.targets[which] = Some(served.serve(listen));
    }
    reader.tell("a closed path");
    let losses = || served.metric(&HOST_PATH_LOSSES.name());
    reader.read_until(&expected, "each loss is counted", || losses() >= f64::from(stopped));
    assert!(served.metric(&HOST_FAILOVERS.name()) >= 1.0);
    assert!(served.metric(&HOST_PATH_COMMANDS.name()) >= 600.0);
}

#[test]
fn reads_follow_the_ana_states_of_two_targets() {
    let expected = bytes(SEED + 1);
    let served = Served::new("multipath-ana", &expected);
    let mut reader = served.open();
    let set = |number: usize, state| served.target(number).set_ana(state).unwrap();
    let connects = || [0, 1].map(|number| served.target(number).stats().commands.of("connect"));
    reader.read_until(&expected, "both have a queue", || connects() == [2, 2]);
    for round in 0..10 {
        let worse = round % 2;
        set(worse, AnaState::NonOptimized);
        // The event may take a moment; from then on nothing is read there.
        let mut idle = 0;
        while idle < 50 {
            let before = served.reads(worse);
            reader.read(&expected);
            idle = if served.reads(worse) == before { idle + 1 } else { 0 };
        }
        set(1 - worse, AnaState::NonOptimized);
        let before = served.reads(worse);
        reader.read_until(&expected, "equals share", || served.reads(worse) > before);
        set(1 - worse, AnaState::Optimized);
        set(worse, AnaState::Optimized);
    }
    assert_eq!(connects(), [2, 2], "these states end no session");
    for round in 0..6 {
        let gone = round % 2;
        let state = [AnaState::Inaccessible, AnaState::PersistentLoss, AnaState::Change][round / 2];
        set(gone, state);
        (0..100).for_each(|_| reader.read(&expected));
        set(gone, AnaState::Optimized);
        let before = served.reads(gone);
        reader.read_until(&expected, "accessible again", || served.reads(gone) > before);
    }
    reader.tell("ANA changes");
    // On both paths at once: reads wait.
    set(0, AnaState::Inaccessible);
    set(1, AnaState::Inaccessible);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            set(1, AnaState::Optimized);
        });
        (0..100).for_each(|_| reader.read(&expected));
    });
    reader.tell("with both paths inaccessible for 300 ms at last");
}

#[test]
fn a_read_on_a_silent_path_is_issued_on_the_other_after_the_keep_alive_time() {
    let expected = bytes(SEED + 2);
    let targets = [(); 2].map(|()| HostileTarget::start(expected.clone()));
    let options = ConnectOptions {
        paths: vec![targets[1].address()],
        keep_alive_tmo: Duration::from_millis(500),
        ..ConnectOptions::default()
    };
    let mut reader = Reader::new(qpair::open(&targets[0].address(), &options).unwrap());
    for silent in [0, 1] {
        let have_both = || targets.iter().all(|target| target.io_commands() > 0);
        reader.read_until(&expected, "both are read from", have_both);
        targets[silent].behave(Misbehaviour::HangIo, None);
        (0..100).for_each(|_| reader.read(&expected));
        targets[silent].be_good();
    }
    reader.tell("a silent path with a Keep Alive Timeout of 500 ms");
}

/// A device whose next write ends in this way.
fn with_write(bytes: &[u8], fault: Fault) -> Faulty {
    let device = Faulty::new(Arc::new(namespace(bytes)));
    device.add(Rule { op: IoOp::Write, blocks: 0..u64::MAX, times: 1, fault });
    device
}

/// A host that writes, and that no slow machine makes give up.
fn patient() -> ConnectOptions {
    let long = Duration::from_secs(60);
    ConnectOptions {
        writable: true,
        io_timeout: long,
        keep_alive_tmo: long,
        connect_timeout: long,
        ..ConnectOptions::default()
    }
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let limit = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < limit, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_write_on_its_way_to_a_target_that_becomes_inaccessible_is_answered_there() {
    let expected = bytes(SEED + 4);
    let held = with_write(&expected, Fault::Hold);
    let served = Served::on("multipath-leaving", Arc::new(held.clone()));
    let paths = vec![served.target(1).address(Nsid(1))];
    let options = ConnectOptions { paths, ..patient() };
    let device = qpair::open(&served.target(0).address(Nsid(1)), &options).unwrap();
    let mut writer = Blocking::new(device.queue_pair().unwrap()).unwrap();
    let mut reader = Reader::new(device);
    let writes = || [0, 1].map(|number| served.target(number).stats().writes);
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| {
            writer.write_at(0, &expected[..4096]).unwrap();
            writer.write_at(4096, &expected[4096..8192]).unwrap();
        });
        wait_until("the write is on its way", || held.struck() == 1);
        served.target(0).set_ana(AnaState::Inaccessible).unwrap();
        reader.read_until(&expected, "reads go on elsewhere", || served.reads(1) > 0);
        let before = served.reads(0);
        (0..100).for_each(|_| reader.read(&expected));
        assert_eq!(served.reads(0), before, "nothing new goes there");
        assert!(!writing.is_finished(), "the write was given up");
        held.release();
        writing.join().unwrap();
    });
    assert_eq!(writes(), [1, 1]);
    reader.tell("a write on its way to an inaccessible target");
}

#[test]
fn a_write_on_its_way_to_a_target_that_drains_is_answered_on_a_single_path() {
    let expected = bytes(SEED + 5);
    let held = with_write(&expected, Fault::Hold);
    let served = Served::on("multipath-drained", Arc::new(held.clone()));
    let device = qpair::open(&served.target(0).address(Nsid(1)), &patient()).unwrap();
    let mut writer = Blocking::new(device.queue_pair().unwrap()).unwrap();
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| writer.write_at(0, &expected[..4096]));
        wait_until("the write is on its way", || held.struck() == 1);
        served.target(0).drain();
        wait_until("the host leaves", || served.metric(&HOST_PATH_LOSSES.name()) >= 1.0);
        assert!(!writing.is_finished(), "the write was given up");
        held.release();
        writing.join().unwrap().unwrap();
    });
    wait_until("the host is gone", || served.target(0).is_drained());
}

#[test]
fn a_write_that_an_inaccessible_target_never_answers_ends_in_time_and_the_next_goes_elsewhere() {
    let expected = bytes(SEED + 6);
    let swallows = with_write(&expected, Fault::Swallow);
    let served = Served::on("multipath-unanswered", Arc::new(swallows.clone()));
    let options = ConnectOptions {
        paths: vec![served.target(1).address(Nsid(1))],
        io_timeout: Duration::from_secs(1),
        ..patient()
    };
    let device = qpair::open(&served.target(0).address(Nsid(1)), &options).unwrap();
    let mut writer = Blocking::new(device.queue_pair().unwrap()).unwrap();
    let mut reader = Reader::new(device);
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| {
            let error = writer.write_at(0, &expected[..4096]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Disconnected, "{}", error.report());
            assert!(error.report().contains("did not arrive in time"), "{}", error.report());
            writer.write_at(0, &expected[..4096]).unwrap();
        });
        wait_until("the write is on its way", || swallows.struck() == 1);
        served.target(0).set_ana(AnaState::Inaccessible).unwrap();
        reader.read_until(&expected, "reads go on elsewhere", || served.reads(1) > 0);
        writing.join().unwrap();
    });
    (0..100).for_each(|_| reader.read(&expected));
    reader.tell("a write without an answer");
}
