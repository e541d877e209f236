//! Faults of one of four nodes: what the others' batches notice.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::cluster::{Cluster, Image, Setting};
use crate::sides::Read;
use crate::support::{Options, Side};

const SETTING: Setting =
    Setting { num: 4, order: "global", peers: true, quotas: 1.3, verify: true };

/// Kills a node at different moments of an epoch, each time in a new job.
pub(crate) fn kill(image: &Image, at: &Path, options: &Options) {
    let kills = options.number("kills");
    let mut all = Seen::default();
    for nth in 0..kills {
        let mut cluster = warm(image, at, options);
        let epoch_s = unpaced_epoch_s(&mut cluster);
        cluster.begin(3..6, 0);
        std::thread::sleep(Duration::from_secs_f64(epoch_s * 3. * nth as f64 / kills as f64));
        let killed = cluster.ranks[3].take().expect("nobody has killed it before");
        signal(&killed, Signal::KILL);
        killed.abandon();
        all.add(&cluster.end());
    }
    all.print(&format!("kill -9 of one of 4 nodes, {kills} times"));
}

/// Stops a node for ten seconds.
pub(crate) fn stop(image: &Image, at: &Path, options: &Options) {
    disturb(image, at, options, "SIGSTOP of one of 4 nodes", |cluster, is_on| {
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
    cluster.begin(3..6, options.number("pace-mb"));
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
    let mut cluster = Cluster::start(image, at, options, &SETTING);
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

/// What the other nodes saw. A batch that failed ends its rank, and the bench with it.
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
