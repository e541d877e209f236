//! Faults of one of four nodes: what the others' batches notice.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use dlfs::permutation::Key;
use rustix::process::{Pid, Signal, kill_process};

use crate::cluster::{Cluster, Image, Setting};
use crate::sides::Read;
use crate::support::{Options, Side};

/// In which the others notice.
const EPOCHS: std::ops::Range<u64> = 3..6;

const SETTING: Setting =
    Setting { num: 4, order: "global", peers: true, quotas: 1.3, verify: true, window_bytes: 0 };

/// Kills a node, or freezes it, in turns: each time in a new job at a random moment of three epochs.
pub(crate) fn kill(image: &Image, at: &Path, options: &Options) {
    let kills = options.number("kills");
    let seed = seed(options);
    println!("\nRandom moments from --seed {seed}.");
    let mut both = [(Signal::KILL, Seen::default(), 0), (Signal::STOP, Seen::default(), 0)];
    for nth in 0..kills {
        let (how, seen, count) = &mut both[(nth % 2) as usize];
        let mut cluster = warm(image, at, options);
        let epoch_s = unpaced_epoch_s(&mut cluster);
        cluster.begin(EPOCHS, 0);
        let moment = Key::derive(seed, &[nth]).word() as f64 / u64::MAX as f64;
        std::thread::sleep(Duration::from_secs_f64(epoch_s * 3. * moment));
        let victim = cluster.ranks[3].take().expect("nobody has killed it before");
        signal(&victim, *how);
        let reads = cluster.end();
        signal(&victim, Signal::KILL);
        victim.abandon();
        seen.add(&reads);
        *count += 1;
        let share = image.samples / 4 * 3;
        let read_all = reads.iter().all(|read| read.samples == share as f64);
        assert!(read_all && seen.wrong == 0., "{how:?} number {nth} of seed {seed}: {reads:?}");
        if (nth + 1) % 10 == 0 {
            eprintln!("{} of {kills}", nth + 1);
        }
    }
    let [(_, killed, kills), (_, frozen, freezes)] = both;
    killed.print(&format!("kill -9 of one of 4 nodes, {kills} times"));
    frozen.print(&format!("SIGSTOP of one of 4 nodes, {freezes} times"));
}

fn seed(options: &Options) -> u64 {
    options.text("seed").parse().unwrap_or_else(|_| {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        now.expect("later than 1970").as_secs()
    })
}

/// Stops a node for ten seconds.
pub(crate) fn stop(image: &Image, at: &Path, options: &Options) {
    disturb(image, at, options, "SIGSTOP of one of 4 nodes for 10 s", |cluster, is_on| {
        let stopped = cluster.ranks[3].as_ref().expect("nobody has killed it");
        signal(stopped, if is_on { Signal::STOP } else { Signal::CONT });
    });
}

/// Takes a node's link down for ten seconds: to its peers and to the origin.
pub(crate) fn take_link_down(image: &Image, at: &Path, options: &Options) {
    disturb(image, at, options, "the link of one of 4 nodes down", |cluster, is_on| {
        if is_on {
            cluster.network.take_down(4);
        } else {
            cluster.network.take_up(4);
        }
    });
}

/// Disturbs node 3 while the others read, and measures those; then lets it go on and waits for it, too.
fn disturb(image: &Image, at: &Path, options: &Options, name: &str, set: impl Fn(&Cluster, bool)) {
    let mut cluster = warm(image, at, options);
    cluster.begin(EPOCHS, options.number("pace-mb"));
    std::thread::sleep(Duration::from_millis(200));
    let since = Instant::now();
    set(&cluster, true);
    let mut disturbed = cluster.ranks[3].take();
    let mut seen = Seen::default();
    seen.add(&cluster.end());
    std::mem::swap(&mut cluster.ranks[3], &mut disturbed);
    std::thread::sleep(Duration::from_secs(10).saturating_sub(since.elapsed()));
    set(&cluster, false);
    let last = Read::parse(&cluster.ranks[3].as_mut().expect("put back").line());
    seen.print(name);
    assert!(last.wrong == 0., "the disturbed node has wrong bytes");
    println!("The disturbed node went on: {} samples, no error.", last.samples);
}

/// A job whose tiers are full.
fn warm(image: &Image, at: &Path, options: &Options) -> Cluster {
    let setting = Setting { window_bytes: options.number("window"), ..SETTING };
    let mut cluster = Cluster::start(image, at, options, &setting);
    cluster.read(0..2, 0);
    cluster
}

fn unpaced_epoch_s(cluster: &mut Cluster) -> f64 {
    cluster.read(2..3, 0).iter().map(|read| read.wall_s).fold(0., f64::max)
}

fn signal(side: &Side, signal: Signal) {
    let pid = Pid::from_raw(side.pid() as i32).expect("a process has a number");
    kill_process(pid, signal).expect("a child of this process");
}

/// The results of the other nodes. A batch that fails ends its rank, and the bench with it.
#[derive(Default)]
struct Seen {
    longest_wait_s: f64,
    wrong: f64,
    rerouted: f64,
    samples: f64,
}

impl Seen {
    fn add(&mut self, reads: &[Read]) {
        for read in reads {
            self.longest_wait_s = self.longest_wait_s.max(read.longest_wait_s);
            self.wrong += read.wrong;
            self.rerouted += read.rerouted;
            self.samples += read.samples;
        }
    }

    fn print(&self, name: &str) {
        println!(
            "{name}: {} samples on the others, 0 errors, {} wrong, longest wait {:.2} s, {:.0} MB read elsewhere",
            self.samples,
            self.wrong,
            self.longest_wait_s,
            self.rerouted / 1e6,
        );
    }
}
