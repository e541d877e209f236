//! Many nodes in one process, each with its own target, tier and connections: what a node costs by the number of
//! its peers.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use dlfs::dataset::Image;
use dlfs::peers::rendezvous::Folder;
use dlfs::prefetch::LoaderOptions;
use dlfs::target::TargetOptions;
use dlfs::tier::PAGE_BYTES;

use crate::cluster::Image as Imported;
use crate::sides;
use crate::support::{Options, Side, cpu_time};

/// Prints what a node costs beside 15, 31 and 63 others, and checks that nothing grows faster than their number.
pub(crate) fn compare(at: &Path, options: &Options) {
    let image = Imported::import_with(at, SAMPLES, SAMPLE_BYTES, CHUNK_BYTES);
    let path = image.path.to_str().expect("a path of this program's making");
    let listen = Ipv4Addr::LOCALHOST.to_string();
    let mut origin = Side::start(&["--side", "origin", "--image", path, "--listen", &listen]);
    let address = origin.line();
    println!(
        "\nNodes as threads of one process; {} MB in {} chunks, quotas of {QUOTAS} of it together, windows of {} MiB.",
        image.live_bytes / 1_000_000,
        image.chunks,
        WINDOW_BYTES >> 20
    );
    println!(
        "\n| nodes | open, ms | join, s | connect to all, ms | memory a node, MB | of its bound | descriptors a node \
         | threads a node | idle, of a core | keep alives a second |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    let quota = (image.live_bytes as f64 * QUOTAS) as u64;
    let found: Vec<Cost> = options
        .text("many")
        .split(',')
        .map(|nodes| {
            let at = at.to_str().expect("a path of our making");
            let quota = quota.to_string();
            let arguments = ["--side", "many", "--image", &address, "--world", nodes, "--at", at];
            let mut side = Side::start(&[&arguments[..], &["--tier", &quota]].concat());
            let cost = Cost::parse(&side.line());
            side.go_on();
            cost.print();
            cost
        })
        .collect();
    found.windows(2).for_each(|two| two[1].grows_no_faster_than_nodes(&two[0]));
    println!("No column of a node grows faster than the number of nodes.");
}

/// The cost of each of the nodes that share one process.
#[derive(Debug, Clone, Copy, Default)]
struct Cost {
    nodes: f64,
    open_s: f64,
    join_s: f64,
    connected_s: f64,
    memory_bytes: f64,
    descriptors: f64,
    threads: f64,
    idle: f64,
    keep_alives_s: f64,
}

impl Cost {
    fn fields(&mut self) -> [&mut f64; 9] {
        let Cost { nodes, open_s, join_s, connected_s, memory_bytes, .. } = self;
        let Cost { descriptors, threads, idle, keep_alives_s, .. } = self;
        let first = [nodes, open_s, join_s, connected_s, memory_bytes];
        let [a, b, c, d, e] = first;
        [a, b, c, d, e, descriptors, threads, idle, keep_alives_s]
    }

    fn parse(line: &str) -> Cost {
        let mut cost = Cost::default();
        let mut words = line.split(' ').map(|word| word.parse().expect("a number"));
        cost.fields().into_iter().for_each(|field| *field = words.next().expect("nine numbers"));
        cost
    }

    fn line(mut self) -> String {
        self.fields().map(|field| field.to_string()).join(" ")
    }

    /// The most memory that a node of so many may have: window, pool, what its tier has in memory, and sockets.
    fn bound_bytes(&self) -> f64 {
        let nqn = "nqn.2026-11.io.dlfs:bound".parse().expect("an NQN");
        let pool = TargetOptions::new(nqn).buffer_bytes;
        let sockets = self.descriptors * SOCKET_BYTES as f64;
        (WINDOW_BYTES + pool + OTHER_BYTES) as f64 + sockets
    }

    fn print(&self) {
        let of_bound = self.memory_bytes / self.bound_bytes();
        println!(
            "| {} | {:.1} | {:.2} | {:.0} | {:.1} | {of_bound:.2} | {:.0} | {:.1} | {:.4} | {:.1} |",
            self.nodes,
            self.open_s * 1e3,
            self.join_s,
            self.connected_s * 1e3,
            self.memory_bytes / 1e6,
            self.descriptors,
            self.threads,
            self.idle,
            self.keep_alives_s,
        );
        assert!(of_bound <= 1., "a node has more memory than window, pool, tier and sockets");
        assert!(self.idle <= 0.02, "an idle node takes {} of a core", self.idle);
    }

    /// With a quarter for noise.
    fn grows_no_faster_than_nodes(&self, fewer: &Cost) {
        let times = self.nodes / fewer.nodes;
        let each = [
            ("time to open", self.open_s, fewer.open_s, 1., 0.02),
            ("time to join", self.join_s, fewer.join_s, times, 0.5),
            ("time to connect", self.connected_s, fewer.connected_s, times, 0.5),
            ("memory", self.memory_bytes, fewer.memory_bytes, times, 2e6),
            ("descriptors", self.descriptors, fewer.descriptors, times, 4.),
            ("threads", self.threads, fewer.threads, 1., 1.),
            ("idle processor time", self.idle, fewer.idle, times, 0.005),
        ];
        for (what, now, before, most, slack) in each {
            let bound = before * most * 1.25 + slack;
            assert!(
                now <= bound,
                "{what} of a node: {now} with {} nodes, {before} with {}",
                self.nodes,
                fewer.nodes
            );
        }
    }
}

/// Runs the nodes; prints what they cost, and ends with its input.
pub(crate) fn nodes(options: &Options) {
    let num = options.number("world") as u32;
    let folder = tempfile::tempdir_in(options.text("at")).expect("a folder");
    let quota = (options.number("tier") / u64::from(num)).next_multiple_of(PAGE_BYTES);
    let before = (resident_bytes(), count("/proc/self/fd"), count("/proc/self/task"));
    let began = Instant::now();
    let images: Vec<Image> = (0..num)
        .map(|rank| {
            let tier = folder.path().join(format!("tier-{rank}"));
            fs::create_dir(&tier).expect("a folder");
            sides::open(options.text("image"), &format!("file:{}:{quota}", tier.display()))
        })
        .collect();
    let open_s = began.elapsed().as_secs_f64() / f64::from(num);
    let began = Instant::now();
    let images: Vec<Image> = std::thread::scope(|scope| {
        let joining: Vec<_> = (0..num)
            .zip(images)
            .map(|(rank, image)| {
                let place = folder.path();
                scope.spawn(move || join(image, (rank, num), place))
            })
            .collect();
        joining.into_iter().map(|joined| joined.join().expect("it joins")).collect()
    });
    let join_s = began.elapsed().as_secs_f64();
    let began = Instant::now();
    // One after the other: all at once would be 4,000 connections that two processors set up within a second.
    let mut loaders = Vec::new();
    for (rank, image) in (0..num).zip(&images) {
        let mut loader = image.prefetcher(run((rank, num))).expect("a loader");
        while peers_read_from(image) < num as usize - 1 {
            drop(loader.next().expect("epochs enough").expect("a batch"));
            let late = began.elapsed() > Duration::from_secs(300);
            assert!(!late, "rank {rank} has read from {} peers", peers_read_from(image));
        }
        loaders.push(loader);
    }
    let connected_s = began.elapsed().as_secs_f64() / f64::from(num);
    images.iter().for_each(sides::settle);
    let served = images.iter().map(|image| image.peers()?.served());
    for served in served.map(|served| served.expect("it serves its peers")) {
        assert!(served.controllers == u64::from(num - 1), "{} controllers", served.controllers);
    }
    let node = f64::from(num);
    let each = |now: u64, before: u64| now.saturating_sub(before) as f64 / node;
    let memory_bytes = each(resident_bytes(), before.0);
    let descriptors = each(count("/proc/self/fd"), before.1);
    let threads = each(count("/proc/self/task"), before.2);
    let keep_alives = || -> u64 {
        let served = images.iter().filter_map(|image| image.peers()?.served());
        served.map(|served| served.commands.of("keep_alive")).sum()
    };
    let alive = keep_alives();
    let idle = idle_share(num);
    let keep_alives_s = (keep_alives() - alive) as f64 / IDLE.as_secs_f64() / node;
    let cost = Cost {
        nodes: node,
        open_s,
        join_s,
        connected_s,
        memory_bytes,
        descriptors,
        threads,
        idle,
        keep_alives_s,
    };
    sides::say(&cost.line());
    drop(std::io::stdin().lines().next());
}

/// The number of peers from which something has come.
fn peers_read_from(image: &Image) -> usize {
    let stats = image.peers().expect("it has peers").stats();
    stats.nodes.iter().filter(|node| node.bytes > 0).count()
}

fn join(image: Image, (rank, num): (u32, u32), place: &Path) -> Image {
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let peers = sides::peer_options((rank, num), listen);
    let mut folder = Folder::new(place, &peers.round).expect("a folder");
    image.with_peers(&peers, &run((rank, num)), &mut folder).expect("all ranks join")
}

fn run((rank, world_size): (u32, u32)) -> LoaderOptions {
    let order = sides::order("global");
    LoaderOptions {
        rank,
        world_size,
        window_bytes: WINDOW_BYTES,
        ..LoaderOptions::new(order, 8, 1_000)
    }
}

/// The share of a core that each of `num` idle nodes of this process uses.
fn idle_share(num: u32) -> f64 {
    let before = cpu_time();
    std::thread::sleep(IDLE);
    (cpu_time() - before).as_secs_f64() / IDLE.as_secs_f64() / f64::from(num)
}

/// Bytes of memory of this process.
fn resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux says it");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line VmRSS");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

fn count(folder: &str) -> u64 {
    fs::read_dir(folder).expect("Linux lists it").count() as u64
}

const SAMPLES: u64 = 16_000;
const SAMPLE_BYTES: u64 = 16 << 10;
const CHUNK_BYTES: u32 = 256 << 10;
const WINDOW_BYTES: usize = 4 << 20;
/// The quotas of all nodes together, of the data.
const QUOTAS: f64 = 1.3;
/// The most memory that a connection may cost a node: buffers, and the state of its protocol.
const SOCKET_BYTES: usize = 64 << 10;
/// The directory, the index of a tier, stacks.
const OTHER_BYTES: usize = 16 << 20;
const IDLE: Duration = Duration::from_secs(10);
