//! One data set on 64 namespaces of 8 subsystems, compared with one namespace: the cost of checking
//! sockets, and of many connections.
//!
//! `cargo bench --bench many_namespaces`. `-- --shapes 1x1,8x8,8x1,1x8,1x64` separates the cost of
//! connections from that of targets, each of which has its own poller; `--shapes 8x8,8x128`
//! compares 1,024 namespaces with 64. The namespaces of a target share a controller. The targets of
//! a shape are one process of this program on the first processor; the loader is on the second. The
//! data are in the targets' memory, and the window is too small to keep chunks between epochs. Each
//! round reads every shape once, so a ratio compares measurements that are close in time.

#[path = "support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlfs::address::Address;
use dlfs::dataset::{Image, OpenOptions};
use dlfs::import::{self, ImportOptions, Onto};
use dlfs::nvme::Nqn;
use dlfs::order::{OrderKind, OrderSpec};
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::mem::MemNamespace;
use dlfs::qpair::tcp::TcpNamespace;
use dlfs::qpair::{ConnectOptions, Device};
use dlfs::reader::Batch;
use dlfs::target::{Target, TargetOptions};
use dlfs::units::Nsid;

use support::{Options, cpu_time, machine, pin, results, wait_for_end_of_input};

fn main() -> dlfs::Result<()> {
    results::record("many_namespaces");
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|argument| argument == "--serve") {
        let number = |index: usize| arguments[at + index].parse().expect("a number");
        return serve(number(1), number(2), number(3), number(4));
    }
    let options = Options::parse(
        "Reads one data set from SUBSYSTEMSxNAMESPACES, beside the first of these shapes.",
        &[
            ("shapes", "1x1,8x8"),
            ("lens", "4096,110592"),
            ("orders", "global,grouped"),
            ("rounds", "11"),
            ("epochs", "16"),
            ("idle", "2"),
        ],
    );
    println!("{}", machine());
    let lens = options.text("lens").split(',');
    for len in lens.map(|len| len.parse().expect("bytes of a sample")) {
        compare(&options, len)?;
    }
    Ok(())
}

/// Reads epochs of every shape in turn, and prints the results.
fn compare(options: &Options, len: usize) -> dlfs::Result<()> {
    let count = DATA_BYTES / len;
    println!("\n{count} samples of {len} bytes\n");
    let shapes: Vec<&str> = options.text("shapes").split(',').collect();
    let sides = shapes.iter().map(|shape| {
        let (targets, each) = shape.split_once('x').expect("subsystems x namespaces");
        let number = |text: &str| text.parse().expect("a number");
        Side::start(number(targets), number(each), count, len)
    });
    let sides = sides.collect::<dlfs::Result<Vec<Side>>>()?;
    if options.number("idle") > 0 {
        println!("| subsystems x namespaces | opened in, ms | idle, % of a core, host | targets |");
        println!("|---|---|---|---|");
        for (side, shape) in sides.iter().zip(&shapes) {
            println!("| {shape} | {} |", side.idle(Duration::from_secs(options.number("idle")))?);
        }
        println!();
    }
    println!("{HEAD}");
    for name in options.text("orders").split(',') {
        let kind = match name {
            "global" => OrderKind::Global,
            _ => OrderKind::Grouped { lanes: 4, group: 2 },
        };
        let mut runs: BTreeMap<usize, Vec<Run>> = BTreeMap::new();
        for round in 0..options.number("rounds") {
            // Each shape is the first one in turn.
            for turn in 0..sides.len() {
                let side = (turn + round as usize) % sides.len();
                let run = sides[side].read(kind, round, options.number("epochs"))?;
                runs.entry(side).or_default().push(run);
            }
        }
        for (side, shape) in shapes.iter().enumerate() {
            println!("| {name} | {shape} | {} |", report(&runs[&side], &runs[&0]));
        }
    }
    Ok(())
}

/// The result of one epoch of a side.
struct Run {
    samples_per_s: f64,
    /// Microseconds of processor time per sample, of this process and of the targets'.
    host_us: f64,
    target_us: f64,
    receives: u64,
    empty: u64,
    /// Bytes read per byte of the samples: less than 1 if chunks were still in the window.
    read_share: f64,
}

fn report(runs: &[Run], first: &[Run]) -> String {
    let ratios = runs.iter().zip(first).map(|(run, first)| run.samples_per_s / first.samples_per_s);
    let (low, ratio, high) = spread(ratios.collect());
    let median = |of: &dyn Fn(&Run) -> f64| spread(runs.iter().map(of).collect()).1;
    let (calls, empty) =
        runs.iter().fold((0, 0), |(calls, empty), run| (calls + run.receives, empty + run.empty));
    format!(
        "{:.0} | {ratio:.2} ({low:.2} to {high:.2}) | {:.2} | {:.2} | {:.2} | {:.3}",
        median(&|run| run.samples_per_s),
        median(&|run| run.host_us),
        median(&|run| run.target_us),
        median(&|run| run.read_share),
        calls as f64 / (calls - empty).max(1) as f64,
    )
}

/// The minimum, the median and the maximum.
fn spread(mut figures: Vec<f64>) -> (f64, f64, f64) {
    figures.sort_by(f64::total_cmp);
    (figures[0], figures[figures.len() / 2], figures[figures.len() - 1])
}

/// Targets in their own process, and the image on them.
struct Side {
    /// One namespace of each target: namespaces of one controller share their counters.
    controllers: Vec<Arc<TcpNamespace>>,
    image: Image,
    process: support::Side,
    sample_len: usize,
    /// How long connecting and opening the image took.
    opened_in: Duration,
}

impl Side {
    fn start(targets: usize, each: usize, count: usize, len: usize) -> dlfs::Result<Side> {
        let arguments = [targets, each, count, len].map(|number| number.to_string());
        let arguments: Vec<String> = ["--serve".to_owned()].into_iter().chain(arguments).collect();
        let mut process = support::Side::start(&arguments);
        let mut controllers = Vec::new();
        let mut devices = Vec::new();
        let lines: Vec<String> = (0..targets).map(|_| process.line()).collect();
        let began = Instant::now();
        for line in lines {
            let Ok(Address::Tcp(address)) = line.parse() else { panic!("not an address: {line}") };
            let all = TcpNamespace::connect_all(&address, &ConnectOptions::default())?;
            let all: Vec<_> = all.into_iter().map(Arc::new).collect();
            controllers.push(Arc::clone(&all[0]));
            devices.extend(all.into_iter().map(|device| device as Arc<dyn Device>));
        }
        assert_eq!(devices.len(), targets * each);
        let image = Image::from_devices(devices, &OpenOptions::default())?;
        Ok(Side { controllers, image, process, sample_len: len, opened_in: began.elapsed() })
    }

    /// How long opening took, and the cost of an idle loader with a full window.
    fn idle(&self, lasts: Duration) -> dlfs::Result<String> {
        let order = OrderSpec { kind: OrderKind::Global, seed: 0 };
        let options =
            LoaderOptions { window_bytes: WINDOW_BYTES, ..LoaderOptions::new(order, 128, 1) };
        let mut loader = self.image.prefetcher(options)?;
        loader.next_into(&mut Batch::new())?;
        std::thread::sleep(FILLS_WITHIN);
        let host = cpu_time();
        let target = self.process.cpu_seconds();
        std::thread::sleep(lasts);
        let share = |seconds: f64| 100.0 * seconds / lasts.as_secs_f64();
        let host = cpu_time() - host;
        let target = self.process.cpu_seconds() - target;
        let opened_in = self.opened_in.as_secs_f64() * 1e3;
        Ok(format!("{opened_in:.0} | {:.2} | {:.2}", share(host.as_secs_f64()), share(target)))
    }

    /// Reads some epochs; the time before the first batch does not count.
    fn read(&self, kind: OrderKind, seed: u64, epochs: u64) -> dlfs::Result<Run> {
        let options = LoaderOptions {
            window_bytes: WINDOW_BYTES,
            ..LoaderOptions::new(OrderSpec { kind, seed }, 128, epochs)
        };
        let mut loader = std::thread::scope(|scope| {
            // The loader's threads run where the thread runs that starts them.
            let start = || {
                pin(1);
                self.image.prefetcher(options)
            };
            scope.spawn(start).join().expect("a loader")
        })?;
        let mut batch = Batch::new();
        loader.next_into(&mut batch)?;
        let (calls, empty) = self.receives();
        let began = Instant::now();
        let host = cpu_time();
        let target = self.process.cpu_seconds();
        let mut count = 0;
        while loader.next_into(&mut batch)? {
            count += batch.len();
        }
        let lasted = began.elapsed().as_secs_f64();
        let a_sample = |seconds: f64| seconds * 1e6 / count as f64;
        let stats = loader.stats();
        Ok(Run {
            samples_per_s: count as f64 / lasted,
            host_us: a_sample((cpu_time() - host).as_secs_f64()),
            target_us: a_sample(self.process.cpu_seconds() - target),
            receives: self.receives().0 - calls,
            empty: self.receives().1 - empty,
            read_share: stats.read.bytes as f64 / (stats.samples * self.sample_len as u64) as f64,
        })
    }

    /// Receive calls, and how many of them returned no bytes.
    fn receives(&self) -> (u64, u64) {
        let stats = self.controllers.iter().map(|device| device.stats());
        stats.fold((0, 0), |(calls, empty), stats| {
            (calls + stats.receives, empty + stats.empty_receives)
        })
    }
}

/// Serves a data set in memory from `targets` targets of `each` namespaces until standard input
/// closes.
fn serve(targets: usize, each: usize, count: usize, len: usize) -> dlfs::Result<()> {
    pin(0);
    let folder = tempfile::tempdir()?;
    for number in 0..count {
        let bytes: Vec<u8> = (number..).take(len).map(|at| (at ^ (at >> 7)) as u8).collect();
        std::fs::write(folder.path().join(format!("{number:06}")), bytes)?;
    }
    let num_namespaces = targets * each;
    let room = (2 * count * len / num_namespaces + (16 << 20)) as u64;
    let disks = (0..num_namespaces).map(|_| MemNamespace::new(room.next_multiple_of(4096), 4096));
    let disks = disks.collect::<dlfs::Result<Vec<_>>>()?;
    let writable = disks.iter().map(|disk| Arc::new(disk.clone()) as Arc<dyn Device>);
    let writable = writable.collect::<Vec<_>>();
    let chunk_size_bytes = 1 << 20;
    let options = ImportOptions { onto: Onto::Empty, chunk_size_bytes, ..Default::default() };
    import::import_onto(&[folder.path().to_owned()], &writable, &options, &mut ())?;
    drop(folder);
    let mut serving = Vec::new();
    for (number, disks) in disks.chunks(each).enumerate() {
        let nqn = format!("nqn.2026-11.io.dlfs:many-{number}");
        let nqn = Nqn::new(nqn).expect("a valid name");
        let disks = disks.iter().map(|disk| Arc::new(disk.read_only()) as Arc<dyn Device>);
        let target = Target::bind(TargetOptions::new(nqn), disks.collect())?;
        println!("{}", target.address(Nsid(1)));
        serving.push(target);
    }
    std::io::stdout().flush()?;
    wait_for_end_of_input();
    Ok(())
}

const HEAD: &str = "| order | subsystems x namespaces | samples/s | beside the first | host, us of CPU a sample \
                    | targets | bytes read a byte | receives for each that brings bytes |\n\
                    |---|---|---|---|---|---|---|---|";
/// The total length of the samples.
const DATA_BYTES: usize = 160 << 20;
/// The window is full after this time.
const FILLS_WITHIN: Duration = Duration::from_secs(1);
/// So small that a chunk is evicted before the next epoch needs it.
const WINDOW_BYTES: usize = 64 << 20;
