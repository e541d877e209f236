//! One cache a node: processes that share tiers, what they read from the origin, and what attaching costs.

#[path = "../tests/support/fork.rs"]
#[allow(dead_code, unreachable_pub)] // in_child
mod fork;
mod support;
#[path = "support/throttle.rs"]
mod throttle;

use std::io::{BufRead as _, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlfs::address::Address;
use dlfs::cache::{Cache, TierOptions};
use dlfs::dataset::{Image, OpenOptions};
use dlfs::import::{ImportOptions, import};
use dlfs::order::{OrderKind, OrderSpec};
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::{self, ConnectOptions};
use dlfs::reader::Batch;
use dlfs::target::{Target, TargetOptions};
use dlfs::units::Nsid;
use rustix::process::{WaitOptions, waitpid};
use support::{Options, Side, Stopwatch};
use throttle::Throttled;

const USAGE: &str = "cargo bench --bench node -- [--small N] [--large N] [--rounds N] [--at FOLDER]

Imports N samples of 4 KiB and N of 110 KiB, in a tier in memory and in one in a file. The owner of the tier,
a process that has attached and a forked child of one read everything ten times in turn, in global order;
medians of the rounds. Then 8 processes, half of them forked, read five epochs together, on an empty tier, from a
target that sends --origin-mb megabytes a second: from a file in the page cache, reading outruns copying to another
file, and what is not copied in time is read again. An epoch begins when everything read before is copied.";

fn main() {
    support::results::record("node");
    let options = Options::parse(
        USAGE,
        &[
            ("small", "40000"),
            ("large", "2000"),
            ("rounds", "7"),
            ("at", "target"),
            ("origin-mb", "200"),
            ("side", ""),
            ("tier", ""),
            ("rank", "0"),
            ("world", "1"),
            ("forks", "no"),
            ("epochs", "1"),
        ],
    );
    if !options.text("side").is_empty() {
        return side(&options);
    }
    println!("{}", support::machine());
    let work = tempfile::tempdir_in(options.text("at")).expect("a folder in --at");
    let kinds = [
        ("4 KiB", 4 << 10, options.number("small")),
        ("110 KiB", 110 << 10, options.number("large")),
    ];
    let images = kinds.map(|(name, len, count)| {
        let image = import_files(work.path(), count, len);
        (name, image)
    });
    println!("| samples | tier | reader | samples/s | of the owner's | CPU, us a sample |");
    println!("|---|---|---|---|---|---|");
    for (name, image) in &images {
        for tier in tiers(work.path()) {
            speeds(name, image, &tier, options.number("rounds"));
        }
    }
    println!("\n| samples | tier | processes | origin bytes / pages, epochs 1 to 5 | in all |");
    println!("|---|---|---|---|---|");
    for (name, image) in &images {
        let origin = serve(image, options.number("origin-mb"));
        let address = origin.address(Nsid(1)).to_string();
        for tier in tiers(work.path()) {
            origin_bytes(name, &address, &tier);
        }
    }
}

/// A target with the image, on a link of `megabytes_s`.
fn serve(image: &str, megabytes_s: u64) -> Target {
    let device = qpair::open(&Address::from_path(image), &ConnectOptions::default());
    let device = Throttled::new(device.expect("the image"), megabytes_s * 1_000_000);
    let nqn = "nqn.2026-11.io.dlfs:origin".parse().expect("an NQN");
    Target::bind(TargetOptions::new(nqn), vec![Arc::new(device)]).expect("a target on loopback")
}

/// A tier in memory, and one in a new folder.
fn tiers(at: &Path) -> [String; 2] {
    let folder = tempfile::tempdir_in(at).expect("a folder").keep();
    ["ram:2G".to_owned(), format!("file:{}:2G", folder.display())]
}

fn kind_of(tier: &str) -> &str {
    tier.split(':').next().unwrap_or(tier)
}

/// The owner, an attached process and a forked child read everything in turn.
fn speeds(name: &str, image: &str, tier: &str, rounds: u64) {
    let mut sides =
        [("owner", "no"), ("attached", "no"), ("forked child", "yes")].map(|(who, forks)| {
            let mut side = start(image, tier, 0, 1, forks);
            let is_owner = side.line() == "owner";
            assert_eq!(is_owner, who == "owner", "{who}");
            (who, side, Vec::new())
        });
    // Until the copies are whole, and everybody has the pages mapped.
    for (_, side, _) in &mut sides {
        while epoch(side).origin_bytes > 0 {}
        epoch(side);
    }
    for round in 0..rounds as usize {
        for turn in 0..sides.len() {
            let (_, side, found) = &mut sides[(round + turn) % 3];
            found.push(epoch(side));
        }
    }
    let mut owner = None;
    for (who, _, found) in sides {
        let speed = median(found.iter().map(|epoch| epoch.samples_per_s));
        let cpu = median(found.iter().map(|epoch| epoch.cpu_us));
        let owner = *owner.get_or_insert(speed);
        println!(
            "| {name} | {} | {who} | {speed:.0} | {:.2} | {cpu:.2} |",
            kind_of(tier),
            speed / owner
        );
    }
}

/// Eight processes read their shares of five epochs together.
fn origin_bytes(name: &str, image: &str, tier: &str) {
    let mut sides: Vec<Side> = (0..RANKS)
        .map(|rank| start(image, tier, rank, RANKS, if rank % 2 == 1 { "yes" } else { "no" }))
        .collect();
    sides.iter_mut().for_each(|side| drop(side.line()));
    let mut read = Vec::new();
    let mut used = 0;
    for _ in 0..EPOCHS {
        sides.iter_mut().for_each(Side::go_on);
        // First all read, then all wait until what they read is copied.
        sides.iter_mut().for_each(|side| drop(side.line()));
        sides.iter_mut().for_each(Side::go_on);
        let epochs: Vec<Epoch> = sides.iter_mut().map(Epoch::of).collect();
        read.push(epochs.iter().map(|epoch| epoch.origin_bytes).sum::<u64>());
        std::thread::sleep(PAUSE); // the owner may have been told of the last copies just now
        used = epochs.iter().map(|epoch| epoch.used_bytes).max().unwrap_or_default();
    }
    // In the end the tier has each page once.
    let of_pages = |bytes: u64| format!("{:.4}", bytes as f64 / used.max(1) as f64);
    let each: Vec<String> = read.iter().map(|&bytes| of_pages(bytes)).collect();
    let each = each.join(", ");
    let all = of_pages(read.iter().sum());
    println!("| {name} | {} | {RANKS} | {each} | {all} |", kind_of(tier));
}

/// A side's results of one epoch, as it prints them.
struct Epoch {
    samples_per_s: f64,
    cpu_us: f64,
    origin_bytes: u64,
    used_bytes: u64,
}

impl Epoch {
    /// Waits for the next one of `side`.
    fn of(side: &mut Side) -> Epoch {
        let line = side.line();
        let words: Vec<f64> = line.split(' ').map(|word| word.parse().expect("a number")).collect();
        let [samples_per_s, cpu_us, origin_bytes, used_bytes] = words[..] else {
            panic!("four numbers, not {line}")
        };
        let origin_bytes = origin_bytes as u64;
        let used_bytes = used_bytes as u64;
        Epoch { samples_per_s, cpu_us, origin_bytes, used_bytes }
    }
}

fn epoch(side: &mut Side) -> Epoch {
    side.go_on();
    drop(side.line());
    side.go_on();
    Epoch::of(side)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn start(image: &str, tier: &str, rank: u64, world: u64, forks: &str) -> Side {
    // An epoch of the speeds would take 50 ms.
    let epochs = if world == 1 { "10" } else { "1" };
    let rank = rank.to_string();
    let world = world.to_string();
    let mut arguments = vec!["--side", image, "--tier", tier, "--rank", &rank, "--world", &world];
    arguments.extend(["--epochs", epochs]);
    if forks == "yes" {
        arguments.push("--forks");
    }
    Side::start(&arguments)
}

/// Opens the image through the tier, and reads an epoch for each line of standard input.
fn side(options: &Options) {
    let image = open(options.text("side"), options.text("tier"));
    let tiers = image.tiers().expect("opened with tiers");
    let work = || {
        println!("{}", if tiers.owner().is_none() { "owner" } else { "attached" });
        std::io::stdout().flush().expect("the other side reads");
        let mut lines = std::io::stdin().lock().lines();
        let mut seed = 0;
        while let Some(Ok(_)) = lines.next() {
            seed += 1;
            let before = origin(tiers);
            let speed = read(&image, seed, options);
            println!("read");
            std::io::stdout().flush().expect("the other side reads");
            let Some(Ok(_)) = lines.next() else { break };
            settle(tiers);
            let used: u64 = tiers.stats().tiers.iter().map(|tier| tier.used_bytes).sum();
            println!("{speed} {} {used}", origin(tiers) - before);
            std::io::stdout().flush().expect("the other side reads");
        }
        true
    };
    if options.is_set("forks") {
        let child = fork::spawn_child(work);
        let status = waitpid(Some(child), WaitOptions::empty()).expect("a child of this process");
        assert!(status.is_some_and(|(_, status)| status.exit_status() == Some(0)), "the child");
    } else {
        work();
    }
}

/// Bytes that this process has read from the origin, for itself or for copies.
fn origin(tiers: &Cache) -> u64 {
    let origin = tiers.stats().origin;
    origin.bytes + origin.copier_bytes
}

/// Reads the rank's share of the epochs: samples/s, CPU in us a sample.
fn read(image: &Image, seed: u64, options: &Options) -> String {
    let order = OrderSpec { kind: OrderKind::Global, seed };
    let loader = LoaderOptions {
        rank: options.number("rank") as u32,
        world_size: options.number("world") as u32,
        ..LoaderOptions::new(order, 64, options.number("epochs"))
    };
    let mut loader = image.prefetcher(loader).expect("a loader");
    let mut batch = Batch::new();
    let mut samples = 0;
    let watch = Stopwatch::start();
    while loader.next_into(&mut batch).expect("a batch") {
        samples += batch.len();
    }
    let (wall, cpu) = watch.seconds();
    let samples = samples.max(1) as f64;
    format!("{:.0} {:.3}", samples / wall, cpu * 1e6 / samples)
}

/// Waits until nothing has been copied or sent for a moment.
fn settle(tiers: &Cache) {
    let mut since = Instant::now();
    while since.elapsed() < PAUSE {
        std::thread::sleep(PAUSE / 20);
        if !tiers.is_settled() {
            since = Instant::now();
        }
    }
}

fn open(image: &str, tier: &str) -> Image {
    let tiers = vec![tier.parse().expect("a tier")];
    let tiers = TierOptions { tiers, ..TierOptions::default() };
    let options = OpenOptions { tiers, ..OpenOptions::default() };
    Image::open(&[image.parse().expect("an address")], &options).expect("an image")
}

fn import_files(at: &Path, count: u64, len: usize) -> String {
    let folder = tempfile::tempdir_in(at).expect("a folder");
    support::files::make_files(folder.path(), count, len);
    let image = at.join(format!("{len}.dlfs"));
    let addresses = [Address::from_path(&image)];
    let options = ImportOptions::default();
    let connect = ConnectOptions::default();
    let sources = [folder.path().to_owned()];
    import(&sources, &addresses, &options, &connect, &mut ()).expect("an image");
    image.to_str().expect("a path of this program's making").to_owned()
}

const RANKS: u64 = 8;
const EPOCHS: usize = 5;
const PAUSE: Duration = Duration::from_millis(200);
