//! Two targets of one image: a host has a session with each, and no read fails when one goes, hangs or changes its
//! ANA state.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::hostile_target::{HostileTarget, Misbehaviour};
use crate::support::ports::bind_again;
use crate::support::random::Random;
use crate::support::short_timeouts::{LEN, bytes};
use dlfs::exporter;
use dlfs::metrics::{HOST_FAILOVERS, HOST_PATH_COMMANDS, HOST_PATH_LOSSES};
use dlfs::nvme::Nqn;
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::mem::MemNamespace;
use dlfs::qpair::{self, ConnectOptions, Device};
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
        let device = MemNamespace::new(bytes.len() as u64, 512).unwrap();
        let mut blocking = Blocking::new(device.queue_pair().unwrap()).unwrap();
        blocking.write_at(0, bytes).unwrap();
        let nqn = Nqn::new(format!("nqn.2026-11.io.dlfs:{name}")).unwrap();
        let mut served = Served { nqn, device: Arc::new(device), targets: [None, None] };
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        served.targets = [(); 2].map(|()| Some(served.serve(any)));
        served
    }

    fn serve(&self, listen: SocketAddr) -> Target {
        let ana = Some(AnaState::Optimized);
        let options = TargetOptions { listen, ana, ..TargetOptions::new(self.nqn.clone()) };
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
        let options = ConnectOptions { paths: vec![second], ..ConnectOptions::default() };
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
    assert!(served.metric(&HOST_PATH_LOSSES.name()) >= f64::from(stopped));
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
