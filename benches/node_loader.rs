//! One loader for a node: the bytes a second that its ranks take together, beside one rank alone, and their memory.

mod support;

use std::path::Path;
use std::time::Instant;

use dlfs::address::Address;
use dlfs::dataset::{Dataset, Options as OpenOptions};
use dlfs::import::{ImportOptions, import};
use dlfs::order::{OrderKind, OrderSpec};
use dlfs::prefetch::{LoaderOptions, NodePlace};
use dlfs::qpair::ConnectOptions;
use dlfs::reader::Batch;
use support::{Options, Side};

const USAGE: &str =
    "cargo bench --bench node_loader -- [--small N] [--large N] [--ranks N] [--rounds N] [--window BYTES]

Imports N samples of 4 KiB and N of 110 KiB, which the page cache then holds. In each round, one process reads
--small-epochs or --large-epochs of them alone, and then as many processes as ranks read as many through one node
loader. Clocks start before the processes do, and 32 of them take some 0.4 s to start: so there are many epochs.
Medians of the rounds; the memory is the sum of the processes' proportional shares (PSS) behind the last batch.";

/// The two ways of reading.
const WAYS: [(&str, &str); 2] = [("one rank alone", "alone"), ("a node loader", "node")];

fn main() {
    support::results::record("node_loader");
    let options = Options::parse(
        USAGE,
        &[
            ("small", "100000"),
            ("large", "4000"),
            ("small-epochs", "80"),
            ("large-epochs", "240"),
            ("ranks", "32"),
            ("rounds", "3"),
            ("epochs", ""),
            ("window", "128M"),
            ("at", "target"),
            ("side", ""),
            ("way", ""),
            ("rank", "0"),
            ("order", ""),
            ("batch", "64"),
        ],
    );
    if !options.text("side").is_empty() {
        return side(&options);
    }
    println!("{}", support::machine());
    let ranks = options.number("ranks");
    let work = tempfile::tempdir_in(options.text("at")).expect("a folder in --at");
    println!(
        "\n| samples | order | ranks | read by | MB/s | of one rank alone | memory, MiB | beside the window, a rank |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for (name, len, count, batch) in
        [("4 KiB", 4 << 10, "small", "64"), ("110 KiB", 110 << 10, "large", "16")]
    {
        let epochs = options.text(&format!("{count}-epochs"));
        let image = import_files(work.path(), options.number(count), len);
        for order in ["grouped", "global"] {
            let mut found: Vec<Vec<Found>> = WAYS.iter().map(|_| Vec::new()).collect();
            for _ in 0..options.number("rounds") {
                for ((_, way), found) in WAYS.iter().zip(&mut found) {
                    let ranks = if *way == "alone" { 1 } else { ranks };
                    found.push(read(&options, &image, way, order, (batch, epochs), ranks));
                }
            }
            let alone = median(found[0].iter().map(|one| one.mb_s));
            for ((what, way), found) in WAYS.iter().zip(&found) {
                let ranks = if *way == "alone" { 1 } else { ranks };
                let mb_s = median(found.iter().map(|one| one.mb_s));
                let memory = median(found.iter().map(|one| one.mib));
                let window = options.number("window") >> 20;
                let beside = (memory - window as f64).max(0.0) / ranks as f64;
                println!(
                    "| {name} | {order} | {ranks} | {what} | {mb_s:.0} | {:.2} | {memory:.0} | {beside:.1} |",
                    mb_s / alone
                );
            }
        }
    }
}

/// The result of one round.
struct Found {
    mb_s: f64,
    mib: f64,
}

/// All ranks read all epochs.
fn read(
    options: &Options,
    image: &str,
    way: &str,
    order: &str,
    (batch, epochs): (&str, &str),
    ranks: u64,
) -> Found {
    let began = Instant::now();
    let mut sides: Vec<Side> = (0..ranks)
        .map(|rank| {
            let numbers = [rank, ranks, options.number("window")];
            let [rank, ranks, window] = numbers.map(|number| number.to_string());
            Side::start(&[
                "--side", image, "--way", way, "--order", order, "--batch", batch, "--rank", &rank,
                "--ranks", &ranks, "--epochs", epochs, "--window", &window,
            ])
        })
        .collect();
    let bytes: u64 =
        sides.iter_mut().map(|side| side.line().parse::<u64>().expect("a number of bytes")).sum();
    let mb_s = bytes as f64 / 1e6 / began.elapsed().as_secs_f64();
    let pss = sides.iter().map(|side| pss_kib(side.pid())).sum::<u64>();
    Found { mb_s, mib: pss as f64 / 1024.0 }
}

/// A rank: reads all its batches, and prints their bytes.
fn side(options: &Options) {
    let address = Address::from_path(options.text("side"));
    let dataset = Dataset::open(&[address], &OpenOptions::default(), &mut ()).expect("an image");
    let kind = match options.text("order") {
        "global" => OrderKind::Global,
        _ => OrderKind::Grouped { lanes: 8, group: 2 },
    };
    let epochs = options.number("epochs");
    let ranks = options.number("ranks") as u32;
    let node = NodePlace { local_world_size: ranks, job: options.text("side").to_owned() };
    let run = LoaderOptions {
        rank: options.number("rank") as u32,
        world_size: ranks,
        node: (options.text("way") == "node").then_some(node),
        window_bytes: options.number("window") as usize,
        ..LoaderOptions::new(OrderSpec { kind, seed: 7 }, options.number("batch") as usize, epochs)
    };
    let loader = dataset.loader(run).expect("a loader");
    let mut batch = Batch::new();
    let mut bytes = 0;
    while loader.next_into(&mut batch, &mut ()).expect("verified samples") {
        bytes += batch.len_bytes();
    }
    println!("{bytes}");
    support::wait_for_end_of_input();
}

fn pss_kib(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("a process");
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).expect("its PSS");
    line.trim().trim_end_matches(" kB").parse().expect("a number of kB")
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn import_files(at: &Path, count: u64, len: usize) -> String {
    let folder = tempfile::tempdir_in(at).expect("a folder");
    support::files::make_files(folder.path(), count, len);
    let image = at.join(format!("{len}.dlfs"));
    let addresses = [Address::from_path(&image)];
    let connect = ConnectOptions::default();
    let sources = [folder.path().to_owned()];
    import(&sources, &addresses, &ImportOptions::default(), &connect, &mut ()).expect("an image");
    image.to_str().expect("a path of this program's making").to_owned()
}
