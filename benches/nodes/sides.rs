//! The processes on the machines: the origin's target, and one rank a machine.

use std::io::{BufRead as _, Write as _};
use std::net::SocketAddr;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use dlfs::address::Address;
use dlfs::cache::TierOptions;
use dlfs::dataset::{Image, OpenOptions};
use dlfs::order::{OrderKind, OrderSpec};
use dlfs::peers::rendezvous::Folder;
use dlfs::peers::{PeerOptions, Serving};
use dlfs::prefetch::{LoaderOptions, Prefetcher};
use dlfs::qpair::{self, ConnectOptions};
use dlfs::reader::Batch;
use dlfs::target::{Target, TargetOptions};
use dlfs::tier::Policy;
use dlfs::units::Nsid;

use crate::support::{Options, cpu_time};

/// Serves the image; prints its address, then for each line of input the bytes that hosts have read.
pub(crate) fn origin(options: &Options) {
    let device =
        qpair::open(&Address::from_path(options.text("image")), &ConnectOptions::default());
    let nqn = "nqn.2026-11.io.dlfs:origin".parse().expect("an NQN");
    let listen = SocketAddr::new(options.text("listen").parse().expect("an IP address"), 0);
    let target_options = TargetOptions { listen, allow_any_host: true, ..TargetOptions::new(nqn) };
    let target = Target::bind(target_options, vec![device.expect("the image")]).expect("a target");
    say(&target.address(Nsid(1)).to_string());
    for _ in std::io::stdin().lock().lines() {
        say(&target.stats().read_bytes.to_string());
    }
}

/// A rank's report on the epochs that it has read: one line.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Read {
    /// From the first batch to the end.
    pub(crate) wall_s: f64,
    pub(crate) cpu_s: f64,
    /// From the request of the first batch until it is there.
    pub(crate) first_batch_s: f64,
    /// The longest wait for a batch.
    pub(crate) longest_wait_s: f64,
    pub(crate) bytes: f64,
    /// Samples, and those whose bytes are not their file's.
    pub(crate) samples: f64,
    pub(crate) wrong: f64,
    /// Bytes read from other ranks' caches since the last line, and bytes that had to be read elsewhere.
    pub(crate) from_peers: f64,
    pub(crate) rerouted: f64,
}

impl Read {
    fn fields(&mut self) -> [&mut f64; 9] {
        let Read { wall_s, cpu_s, first_batch_s, longest_wait_s, bytes, .. } = self;
        let Read { samples, wrong, from_peers, rerouted, .. } = self;
        [wall_s, cpu_s, first_batch_s, longest_wait_s, bytes, samples, wrong, from_peers, rerouted]
    }

    /// From the line of a rank.
    pub(crate) fn parse(line: &str) -> Read {
        let mut read = Read::default();
        let mut words = line.split(' ').map(|word| word.parse().expect("a number"));
        read.fields().into_iter().for_each(|field| *field = words.next().expect("nine numbers"));
        read
    }

    /// For [`Read::parse`].
    pub(crate) fn line(mut self) -> String {
        self.fields().map(|field| field.to_string()).join(" ")
    }
}

/// Opens the image with its tier, joins its peers if there is a folder to meet in, and prints a line. Then,
/// for each line of input `FROM TO PACE WHAT`, reads its share of those epochs, or all of them if WHAT is `all`,
/// and prints what it found.
pub(crate) fn rank(options: &Options) {
    let image = join(options);
    say("joined");
    let mut peers = (0., 0.);
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("a line of the bench");
        let words: Vec<&str> = line.split(' ').collect();
        let number = |nth: usize| words[nth].parse::<u64>().expect("a number");
        let mut run = run(options, number(0)..number(1));
        if words[3] == "all" {
            (run.rank, run.world_size) = (0, 1);
        }
        let prefetcher = image.prefetcher(run).expect("a loader");
        let mut read = read(prefetcher, number(2) as f64 * 1e6, options.is_set("verify"));
        if let Some(all) = image.peers().map(|peers| peers.stats()) {
            let bytes = all.nodes.iter().map(|node| node.bytes).sum::<u64>() as f64;
            let rerouted = all.rerouted_bytes as f64;
            (read.from_peers, read.rerouted) = (bytes - peers.0, rerouted - peers.1);
            peers = (bytes, rerouted);
        }
        settle(&image);
        say(&read.line());
    }
}

pub(crate) fn order(name: &str) -> OrderSpec {
    let kind = match name {
        "global" => OrderKind::Global,
        "grouped" => OrderKind::Grouped { lanes: 0, group: 4 },
        other => panic!("--order {other}: global or grouped"),
    };
    OrderSpec { kind, seed: 11 }
}

/// Opens the image with its tier, and joins its peers if there is a folder to meet in.
pub(crate) fn join(options: &Options) -> Image {
    let image = open(options.text("image"), options.text("tier"));
    let folder = options.text("peers");
    if folder.is_empty() {
        return image;
    }
    let place = (options.number("rank") as u32, options.number("world") as u32);
    let listen = SocketAddr::new(options.text("listen").parse().expect("an IP address"), 0);
    let peers = peer_options(place, listen);
    let mut folder = Folder::new(Path::new(folder), &peers.round).expect("a shared folder");
    image.with_peers(&peers, &run(options, 0..1), &mut folder).expect("all ranks join")
}

/// Reads every sample once, and waits until the tier has it.
pub(crate) fn read_everything(image: &Image, options: &Options) {
    let run = LoaderOptions { rank: 0, world_size: 1, ..run(options, 0..1) };
    let everything = read(image.prefetcher(run).expect("a loader"), 0., false);
    assert!(everything.samples > 0., "an image with samples");
    settle(image);
}

fn run(options: &Options, epochs: Range<u64>) -> LoaderOptions {
    let rank = options.number("rank") as u32;
    let world_size = options.number("world") as u32;
    let batch_size = options.number("batch") as usize;
    let order = order(options.text("order"));
    let window_bytes = options.number("window") as usize;
    LoaderOptions {
        epochs,
        rank,
        world_size,
        window_bytes,
        ..LoaderOptions::new(order, batch_size, 1)
    }
}

/// How `rank` of `world_size` joins its peers: each rank is a node of its own.
pub(crate) fn peer_options((rank, world_size): (u32, u32), listen: SocketAddr) -> PeerOptions {
    PeerOptions {
        round: "bench".to_owned(),
        rank,
        world_size,
        listen,
        node: Some(format!("machine {rank}")),
        serving: Serving::ReadThrough,
        keep_shares: false,
        timeout: Duration::from_secs(60),
        connect: ConnectOptions::default(),
        keys: None,
    }
}

pub(crate) fn open(address: &str, tier: &str) -> Image {
    let tiers = (!tier.is_empty()).then(|| tier.parse().expect("a tier"));
    let policy = Policy::FirstTouch;
    let tiers =
        TierOptions { tiers: tiers.into_iter().collect(), policy, ..TierOptions::default() };
    let options = OpenOptions { tiers, ..OpenOptions::default() };
    Image::open(&[address.parse().expect("an address")], &options).expect("an image")
}

/// Reads to the end. A step on each batch takes as long as its bytes do at `bytes_s`; 0: no steps.
fn read(mut prefetcher: Prefetcher, bytes_s: f64, verify: bool) -> Read {
    let mut batch = Batch::new();
    let mut read = Read::default();
    let mut steps = Steps::default();
    let mut start = Instant::now();
    let cpu = cpu_time();
    loop {
        let asked = Instant::now();
        if !prefetcher.next_into(&mut batch).expect("a batch, whatever peers do") {
            break;
        }
        let waited = asked.elapsed().as_secs_f64();
        read.longest_wait_s = read.longest_wait_s.max(waited);
        if read.samples == 0. {
            read.first_batch_s = waited;
            start = Instant::now();
        }
        let mut bytes = 0;
        for sample in batch.iter() {
            bytes += sample.bytes.len();
            read.wrong += f64::from(u8::from(verify && !is_file(sample.id.0, sample.bytes)));
        }
        read.bytes += bytes as f64;
        read.samples += batch.len() as f64;
        if bytes_s > 0. {
            steps.begin(Duration::from_secs_f64(bytes as f64 / bytes_s));
        }
    }
    steps.finish();
    read.wall_s = start.elapsed().as_secs_f64();
    read.cpu_s = (cpu_time() - cpu).as_secs_f64();
    read
}

/// Steps as a GPU takes them: each begins when its batch is there and the step before has ended, and the rank asks
/// for the next batch while it runs.
#[derive(Default)]
struct Steps {
    /// When the last one that began ends.
    end: Option<Instant>,
}

impl Steps {
    /// Waits until a step on the batch that has just come can begin.
    fn begin(&mut self, takes: Duration) {
        let now = Instant::now();
        let begin = self.end.map_or(now, |end| end.max(now));
        std::thread::sleep(begin - now);
        self.end = Some(begin + takes);
    }

    /// Waits until the last one has ended.
    fn finish(&self) {
        let end = self.end.map(|end| end.saturating_duration_since(Instant::now()));
        std::thread::sleep(end.unwrap_or_default());
    }
}

/// Returns whether `bytes` are those of file `number` of `make_files`.
fn is_file(number: u64, bytes: &[u8]) -> bool {
    bytes.iter().zip(number..).all(|(&byte, at)| byte == (at ^ (at >> 7)) as u8)
}

/// Waits until the tiers copy nothing, for a moment or for at most a minute.
pub(crate) fn settle(image: &Image) {
    let Some(tiers) = image.tiers() else { return };
    let start = Instant::now();
    let mut since = Instant::now();
    while since.elapsed() < Duration::from_millis(200) && start.elapsed().as_secs() < 60 {
        std::thread::sleep(Duration::from_millis(10));
        if !tiers.is_settled() {
            since = Instant::now();
        }
    }
}

pub(crate) fn say(line: &str) {
    println!("{line}");
    std::io::stdout().flush().expect("the bench reads");
}
