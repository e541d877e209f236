//! Paced nodes through dlfs and through a shared file system, from one origin on the same link. The file system is
//! sshfs without encryption: each node mounts the folder of files that the origin's sftp-server serves.

use std::io::BufRead as _;
use std::net::{IpAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use dlfs::permutation::{Key, Permutation};

use crate::cluster::{Cluster, Image, Setting};
use crate::network::Network;
use crate::sides::{self, Read};
use crate::support::{self, Options, Side, cpu_seconds_of, cpu_time, files};

/// Prints samples a second and processor time of 1, 2, 4 and 8 nodes.
pub(crate) fn compare(image: &Image, at: &Path, options: &Options) {
    let pace = options.number("pace-mb");
    println!(
        "\nEach node reads {pace} MB/s at most; sshfs with {THREADS} reading threads a node, no encryption."
    );
    println!(
        "\n| nodes | through | epoch 1, samples/s | later epochs, samples/s | of the steps' speed | CPU s/GB |"
    );
    println!("|---|---|---|---|---|---|");
    let samples = options.number("samples");
    let len = options.number("len");
    for num in NODES {
        let setting = Setting {
            num,
            order: "global",
            peers: num > 1,
            quotas: 1.02,
            verify: false,
            window_bytes: options.number("window"),
        };
        let mut cluster = Cluster::start(image, at, options, &setting);
        let first = cluster.read(0..1, pace);
        cluster.read(1..2, 0); // whatever the first epoch has left to fill
        print(("dlfs", num, pace), &first, &cluster.read(2..5, pace), len);
    }
    if ![SFTP_SERVER, "/usr/bin/sshfs"].iter().all(|program| Path::new(program).exists()) {
        println!("SKIPPED: no sshfs with {SFTP_SERVER}");
        return;
    }
    let folder = tempfile::tempdir_in(at).expect("a folder");
    files::make_files(folder.path(), samples, len as usize);
    for num in NODES {
        let mut mounted = Mounted::start(folder.path(), options, num);
        let first = mounted.read(0, 1, pace);
        print(("sshfs", num, pace), &first, &mounted.read(1, 4, pace), len);
    }
}

fn print((through, num, pace): (&str, usize, u64), first: &[Read], later: &[Read], len: u64) {
    let speed = |reads: &[Read]| {
        let longest = reads.iter().map(|read| read.first_batch_s + read.wall_s).fold(0., f64::max);
        reads.iter().map(|read| read.samples).sum::<f64>() / longest
    };
    let sum = |value: fn(&Read) -> f64| later.iter().map(value).sum::<f64>();
    let steps = num as f64 * pace as f64 * 1e6 / len as f64;
    println!(
        "| {num} | {through} | {:.0} | {:.0} | {:.3} | {:.2} |",
        speed(first),
        speed(later),
        speed(later) / steps,
        sum(|read| read.cpu_s) / sum(|read| read.bytes) * 1e9
    );
}

/// Nodes that have mounted the origin's folder.
struct Mounted {
    ranks: Vec<Side>,
    _origin: Side,
    _network: Network,
}

impl Mounted {
    fn start(folder: &Path, options: &Options, num: usize) -> Mounted {
        let network = Network::new(num + 1, options.number("origin-mb")).expect("as before");
        let listen = Network::address(0);
        let mut origin =
            Side::start_in(network.machine(0), &["--side", "sftp", "--listen", &listen]);
        let port = origin.line();
        let folder = folder.to_str().expect("a path of this program's making");
        let ranks = (0..num).map(|rank| {
            let rank_text = rank.to_string();
            let world = num.to_string();
            let arguments = ["--side", "files", "--image", folder, "--listen", &listen];
            let place = ["--rank", &rank_text, "--world", &world, "--port", &port];
            let data = ["--samples", options.text("samples"), "--len", options.text("len")];
            let mut side = Side::start_in(
                network.machine(rank + 1),
                &[&arguments[..], &place, &data].concat(),
            );
            assert_eq!(side.line(), "mounted");
            side
        });
        let ranks = ranks.collect();
        Mounted { ranks, _origin: origin, _network: network }
    }

    fn read(&mut self, from: u64, to: u64, pace: u64) -> Vec<Read> {
        self.ranks.iter_mut().for_each(|rank| rank.tell(&format!("{from} {to} {pace}")));
        self.ranks.iter_mut().map(|rank| Read::parse(&rank.line())).collect()
    }
}

/// Serves the files of this machine: an sftp-server for each connection.
pub(crate) fn sftp(options: &Options) {
    let listen: IpAddr = options.text("listen").parse().expect("an IP address");
    let listener = TcpListener::bind((listen, 0)).expect("a free port");
    sides::say(&listener.local_addr().expect("it is bound").port().to_string());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = OwnedFd::from(stream.expect("a connection"));
            let output = stream.try_clone().expect("a descriptor");
            let mut server = Command::new(SFTP_SERVER);
            let server = server.stdin(Stdio::from(stream)).stdout(Stdio::from(output));
            let mut server = server.spawn().expect("it was there");
            std::thread::spawn(move || server.wait());
        }
    });
    support::wait_for_end_of_input();
}

/// Mounts the origin's folder; then, for each line `FROM TO PACE`, reads its share of those epochs by several
/// threads, and prints what it found.
pub(crate) fn files(options: &Options) {
    let mount = tempfile::tempdir().expect("a folder");
    let origin = format!("{}:{}", options.text("listen"), options.text("image"));
    let port = format!("directport={}", options.text("port"));
    let mut sshfs = Command::new("/usr/bin/sshfs");
    let sshfs = sshfs.args(["-f", "-o", &port, &origin]).arg(mount.path());
    let mut sshfs = sshfs.stdin(Stdio::null()).spawn().expect("it was there");
    let until = Instant::now() + Duration::from_secs(20);
    while !mount.path().join("0000").exists() {
        assert!(Instant::now() < until, "sshfs does not mount the folder");
        std::thread::sleep(Duration::from_millis(10));
    }
    sides::say("mounted");
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("a line of the bench");
        let numbers: Vec<u64> =
            line.split(' ').map(|word| word.parse().expect("a number")).collect();
        let cpu = |pid| cpu_time().as_secs_f64() + cpu_seconds_of(pid);
        let start = Instant::now();
        let before = cpu(sshfs.id());
        let samples: u64 = std::thread::scope(|scope| {
            let mount = mount.path();
            let numbers = &numbers[..];
            let threads = (0..THREADS)
                .map(|thread| scope.spawn(move || read_share(mount, numbers, options, thread)));
            let threads: Vec<_> = threads.collect();
            threads.into_iter().map(|thread| thread.join().expect("it reads")).sum()
        });
        let read = Read {
            wall_s: start.elapsed().as_secs_f64(),
            cpu_s: cpu(sshfs.id()) - before,
            bytes: (samples * options.number("len")) as f64,
            samples: samples as f64,
            ..Read::default()
        };
        sides::say(&read.line());
    }
    let unmounted = Command::new("fusermount3").args(["-u"]).arg(mount.path()).status();
    assert!(unmounted.is_ok_and(|status| status.success()), "the folder stays mounted");
    sshfs.wait().expect("a child of this process");
}

/// Reads the part of one of the threads, each file whole, with a step after each; returns how many.
fn read_share(mount: &Path, epochs: &[u64], options: &Options, thread: u64) -> u64 {
    let rank = options.number("rank");
    let world = options.number("world");
    let samples = options.number("samples");
    let len = options.number("len");
    let step = match epochs[2] {
        0 => Duration::ZERO,
        pace => Duration::from_secs_f64((len * THREADS) as f64 / (pace as f64 * 1e6)),
    };
    let mut read = 0;
    let mut due = Instant::now();
    for epoch in epochs[0]..epochs[1] {
        let order = Permutation::new(samples, Key::derive(11, &[epoch]));
        let share = (rank + world * thread..samples).step_by((world * THREADS) as usize);
        for position in share {
            let id = order.forward(position);
            let path = mount.join(format!("{:04}/{id:08}.bin", id / 1000));
            let bytes = std::fs::read(path).expect("a file of the origin");
            assert!(bytes.len() as u64 == len, "sample {id} has {} bytes", bytes.len());
            read += 1;
            // A loader reads ahead: what is late takes up the time of later steps.
            due = (due + step).max(Instant::now() - READ_AHEAD);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
    }
    read
}

const NODES: [usize; 4] = [1, 2, 4, 8];
const THREADS: u64 = 4;
/// As a DataLoader's prefetch factor allows: a few batches.
const READ_AHEAD: Duration = Duration::from_millis(100);
const SFTP_SERVER: &str = "/usr/lib/openssh/sftp-server";
