//! How throughput grows with processors, beside one: targets and readers, local readers, copying threads of one
//! loader, and subsystems; and what memcpy reaches on as many processors.
//!
//! Each side is a process of this program, bound to processors of its own: pollers of targets to the first ones,
//! readers to those behind them. Each round measures every row once, so a ratio compares measurements that are close
//! in time. Read `sides.rs` for the work of a side.

#[path = "../support/mod.rs"]
mod support;

mod sides;

use std::collections::BTreeMap;
use std::path::PathBuf;

use support::{Options, Side};

const USAGE: &str = "cargo bench --bench scale -- [--at-most N] [--lens BYTES,BYTES] [--rounds N]

Measures 1, 2, 4, ... of each row: pollers of a target and readers, readers of a local image in the page cache,
copying threads of one loader, and subsystems of one poller, each with a data set and a reader. Beside them is memcpy on
as many processors. Efficiency is the throughput beside so many times that of one; of subsystems it is that beside one
data set of the same bytes on a target with as many pollers. Rows with a target take two processors for each of them.

Needs 8 processors. --at-most N measures up to N of each on any machine, which shows that the bench works: sides that
share a processor say nothing about scaling.";

fn main() {
    support::results::record("scale");
    let options = Options::parse(
        USAGE,
        &[
            ("at-most", "0"),
            ("lens", "4096,110592"),
            ("data", "1G"),
            ("rounds", "5"),
            ("slice-ms", "1000"),
            ("at", "target"),
            // The following options give a process of the bench its role.
            ("side", ""),
            ("image", ""),
            ("first-cpu", "0"),
            ("cpus", "1"),
            ("pollers", "1"),
            ("subsystems", "1"),
            ("copying", "0"),
        ],
    );
    if !options.text("side").is_empty() {
        return sides::run(&options);
    }
    let processors = support::cpus().len();
    let at_most = options.number("at-most") as usize;
    if at_most == 0 && processors < MIN_PROCESSORS {
        println!(
            "skipped: benches/scale needs {MIN_PROCESSORS} processors and may use {processors} here; --at-most 2"
        );
        return;
    }
    println!("{}", support::machine());
    let setups = setups(processors, at_most);
    if setups.iter().any(|setup| setup.processors() > processors) {
        println!("TOO FEW PROCESSORS: sides share them, and efficiency says nothing");
    }
    println!("\n{HEAD}");
    for len in options.text("lens").split(',') {
        let mut stage = Stage::new(&options, len.parse().expect("bytes of a sample"));
        let mut found: BTreeMap<Setup, Vec<Speed>> = BTreeMap::new();
        for round in 0..options.number("rounds") {
            for setup in &setups {
                found.entry(*setup).or_default().push(stage.measure(*setup));
            }
            eprintln!(
                "round {} of {} of samples of {len} bytes",
                round + 1,
                options.text("rounds")
            );
        }
        found.keys().for_each(|setup| println!("| {len} | {} |", row(*setup, &found)));
    }
}

/// A row: how many of what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Setup {
    what: What,
    count: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// Loops of memcpy.
    Memcpy,
    /// Readers of one image in the page cache.
    Local,
    /// Copying threads of one such reader.
    Copying,
    /// Pollers of one target, and readers.
    Target,
    /// Targets of one poller, each with a data set and a reader.
    Subsystems,
}

impl Setup {
    /// The number of processors that it uses.
    fn processors(self) -> usize {
        match self.what {
            What::Memcpy | What::Local => self.count,
            What::Copying => self.count + 1,
            What::Target | What::Subsystems => 2 * self.count,
        }
    }

    fn name(self) -> &'static str {
        match self.what {
            What::Memcpy => "memcpy",
            What::Local => "local readers",
            What::Copying => "copying threads of one loader",
            What::Target => "pollers, and as many readers",
            What::Subsystems => "subsystems, and as many readers",
        }
    }
}

/// The rows that fit on the processors; with `at_most`, those with at most so many.
fn setups(processors: usize, at_most: usize) -> Vec<Setup> {
    let whats = [What::Memcpy, What::Local, What::Copying, What::Target, What::Subsystems];
    let fits = |setup: &Setup| match at_most {
        0 => setup.processors() <= processors,
        _ => setup.count <= at_most,
    };
    let counts = || std::iter::successors(Some(1), |count| Some(2 * count));
    let of = |what| counts().map(move |count| Setup { what, count }).take_while(fits);
    let is_measured = |setup: &Setup| setup.what != What::Subsystems || setup.count > 1; // one is a target's
    whats.into_iter().flat_map(of).filter(is_measured).collect()
}

/// The result of one round of a row.
struct Speed {
    bytes_s: f64,
    /// Processor seconds for each GB, of the readers and of the targets.
    reader_cpu: f64,
    target_cpu: Option<f64>,
}

/// The images of one length of samples, and the targets, which live as long as the rounds.
struct Stage<'a> {
    options: &'a Options,
    len: usize,
    folder: tempfile::TempDir,
    targets: BTreeMap<Setup, (Side, Vec<String>)>,
}

impl Stage<'_> {
    fn new(options: &Options, len: usize) -> Stage<'_> {
        let folder = tempfile::tempdir_in(options.text("at")).expect("a folder in --at");
        Stage { options, len, folder, targets: BTreeMap::new() }
    }

    /// An image of this part of the data, written if it does not exist.
    fn image(&self, of: usize) -> PathBuf {
        let path = self.folder.path().join(format!("{of}.dlfs"));
        if !path.exists() {
            let bytes = self.options.number("data") as usize / of;
            sides::write_image(&path, bytes / self.len, self.len);
        }
        path
    }

    fn measure(&mut self, setup: Setup) -> Speed {
        let Setup { what, count } = setup;
        let local = || self.image(1).display().to_string();
        let mut readers: Vec<Side> = match what {
            What::Memcpy => (0..count).map(|n| self.start("memcpy", "", n, &[])).collect(),
            What::Local => (0..count).map(|n| self.start("reader", &local(), n, &[])).collect(),
            What::Copying => {
                let copying = count.to_string();
                let cpus = setup.processors().to_string();
                let more = ["--copying", &copying, "--cpus", &cpus];
                vec![self.start("reader", &local(), 0, &more)]
            }
            What::Target | What::Subsystems => {
                let addresses = self.addresses(setup);
                let of = |n: usize| &addresses[n % addresses.len()];
                (0..count).map(|n| self.start("reader", of(n), count + n, &[])).collect()
            }
        };
        let target = self.targets.get(&setup).map(|(side, _)| side);
        readers.iter_mut().for_each(|side| assert_eq!(side.line(), "ready"));
        let before = target.map(Side::cpu_seconds);
        readers.iter_mut().for_each(Side::go_on);
        let found: Vec<[f64; 4]> =
            readers.iter_mut().map(|side| sides::parse(&side.line())).collect();
        let target_cpu_s = target.zip(before).map(|(side, before)| side.cpu_seconds() - before);
        let sum = |of: &dyn Fn(&[f64; 4]) -> f64| found.iter().map(of).sum::<f64>();
        let gb = sum(&|[bytes, ..]| bytes / 1e9);
        let all_gb = sum(&|[.., all_bytes]| all_bytes / 1e9);
        Speed {
            bytes_s: sum(&|[bytes, wall_s, ..]| bytes / wall_s),
            reader_cpu: sum(&|[_, _, cpu_s, _]| *cpu_s) / gb,
            target_cpu: target_cpu_s.map(|cpu_s| cpu_s / all_gb),
        }
    }

    /// The addresses of the row's subsystems, which are started first if necessary.
    fn addresses(&mut self, setup: Setup) -> Vec<String> {
        if let Some((_, addresses)) = self.targets.get(&setup) {
            return addresses.clone();
        }
        let (subsystems, pollers) = match setup.what {
            What::Subsystems => (setup.count, 1),
            _ => (1, setup.count),
        };
        let image = self.image(subsystems).display().to_string();
        let [cpus, subsystems, pollers] = [setup.count, subsystems, pollers].map(|n| n.to_string());
        let more = ["--cpus", &cpus, "--subsystems", &subsystems, "--pollers", &pollers];
        let mut side = self.start("target", &image, 0, &more);
        let line = side.line();
        let addresses: Vec<String> = line.split(' ').map(str::to_owned).collect();
        self.targets.insert(setup, (side, addresses.clone()));
        addresses
    }

    fn start(&self, side: &str, image: &str, first_cpu: usize, more: &[&str]) -> Side {
        let first_cpu = first_cpu.to_string();
        let slice_ms = self.options.text("slice-ms");
        let own =
            ["--side", side, "--image", image, "--first-cpu", &first_cpu, "--slice-ms", slice_ms];
        Side::start(&[&own[..], more].concat())
    }
}

/// The row of a setup, after the length of its samples.
fn row(setup: Setup, found: &BTreeMap<Setup, Vec<Speed>>) -> String {
    let Setup { what, count } = setup;
    let speeds = &found[&setup];
    let beside = |other: Setup, times: usize| {
        let pairs = speeds.iter().zip(found.get(&other)?);
        Some(spread(pairs.map(|(ours, other)| ours.bytes_s / other.bytes_s / times as f64)))
    };
    let [low, efficiency, high] = match what {
        What::Subsystems => beside(Setup { what: What::Target, count }, 1),
        _ => beside(Setup { what, count: 1 }, count),
    }
    .expect("measured before");
    let memory = beside(Setup { what: What::Memcpy, count }, 1).filter(|_| what == What::Local);
    let memory = memory.map(|[_, ratio, _]| ratio);
    let verdict = match memory {
        _ if efficiency >= BAR || what == What::Memcpy => "",
        Some(ratio) if ratio >= BAR => "the memory's bandwidth",
        _ => "BELOW 0.9",
    };
    let median = |of: &dyn Fn(&Speed) -> f64| spread(speeds.iter().map(of))[1];
    let or_dash = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.3}"));
    let target_cpu =
        speeds[0].target_cpu.map(|_| median(&|speed| speed.target_cpu.unwrap_or(f64::NAN)));
    format!(
        "{} | {count} | {:.2} | {efficiency:.2} ({low:.2} to {high:.2}) | {} | {:.3} | {} | {verdict}",
        setup.name(),
        median(&|speed| speed.bytes_s) / 1e9,
        or_dash(memory),
        median(&|speed| speed.reader_cpu),
        or_dash(target_cpu),
    )
}

/// The minimum, the median and the maximum.
fn spread(figures: impl Iterator<Item = f64>) -> [f64; 3] {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    [figures[0], figures[figures.len() / 2], figures[figures.len() - 1]]
}

const HEAD: &str = "| bytes of a sample | what | count | GB/s | efficiency | beside memcpy | readers' CPU, s/GB \
                    | targets' CPU, s/GB | |\n|---|---|---|---|---|---|---|---|---|";
/// The least efficiency that needs no explanation.
const BAR: f64 = 0.9;
const MIN_PROCESSORS: usize = 8;
