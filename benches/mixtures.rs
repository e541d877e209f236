//! Eight data sets mixed by one loader, beside one data set of the same samples.
//!
//! `cargo bench --bench mixtures`. Every side is read over TCP on loopback from the memory of another process of
//! this program: that one on the first processor, the loader on the second. The eight data sets have a namespace
//! each, in a subsystem of its own. They are compared with one data set on eight such namespaces, so with as many
//! connections, and with one on a single namespace. The window is too small to keep chunks between epochs. Each
//! round reads every side once, so a ratio compares measurements that are close in time.

#[path = "support/mod.rs"]
mod support;

use std::io::Write as _;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use dlfs::address::Address;
use dlfs::dataset::{Dataset, Loader, Mixture, Options as DatasetOptions};
use dlfs::import::{self, ImportOptions, Onto};
use dlfs::nvme::Nqn;
use dlfs::order::mixture::{Batching, Part};
use dlfs::order::{OrderKind, OrderSpec};
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::Device;
use dlfs::qpair::mem::MemNamespace;
use dlfs::reader::Batch;
use dlfs::target::{Target, TargetOptions};
use dlfs::units::Nsid;

use support::{Options, cpu_time, machine, pin, results, wait_for_end_of_input};

fn main() -> dlfs::Result<()> {
    results::record("mixtures");
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|argument| argument == "--serve") {
        let number = |index: usize| arguments[at + index].parse().expect("a number");
        return serve(number(1), number(2));
    }
    let options = Options::parse(
        "Reads eight data sets mixed, beside one data set of the same samples.",
        &[
            ("lens", "4096,110592"),
            ("orders", "global,grouped"),
            ("rounds", "11"),
            ("epochs", "3"),
            ("sides", "0,1,2,3"),
            ("lanes", "8"),
            ("group", "4"),
        ],
    );
    println!("{}", machine());
    for len in options.text("lens").split(',') {
        compare(&options, len.parse().expect("bytes of a sample"))?;
    }
    Ok(())
}

fn compare(options: &Options, len: usize) -> dlfs::Result<()> {
    let count = (DATA_BYTES / len).next_multiple_of(IMAGES);
    println!("\n{count} samples of {len} bytes\n\n{HEAD}");
    let mut process = support::Side::start(&["--serve".into(), count.to_string(), len.to_string()]);
    let mut addresses = || -> Vec<Address> {
        let line = process.line();
        line.split_whitespace().map(|address| address.parse().expect("an address")).collect()
    };
    let single = addresses();
    let spread = addresses();
    let parts = addresses();
    let open =
        |addresses: &[Address]| Dataset::open(addresses, &DatasetOptions::default(), &mut ());
    let parts = parts.chunks(1).map(open).collect::<dlfs::Result<Vec<Dataset>>>()?;
    let mixture = |batching| {
        let parts = parts.iter().map(|part| (part.clone(), Part::Choose(part.len())));
        Mixture::new(parts.collect(), None, batching, Vec::new())
    };
    let single = open(&single)?;
    let spread = open(&spread)?;
    let chosen = options.text("sides").split(',').map(|side| side.parse().expect("a number"));
    let chosen: Vec<usize> = chosen.collect();
    let stratified = mixture(Batching::Stratified)?;
    let random = mixture(Batching::Random)?;
    let sides: [(&str, &Start); 4] = [
        ("one on 8 namespaces", &|options| spread.loader(options)),
        ("8 mixed, stratified", &|options| stratified.loader(options)),
        ("8 mixed, random", &|options| random.loader(options)),
        ("one on one namespace", &|options| single.loader(options)),
    ];
    for name in options.text("orders").split(',') {
        let kind = match name {
            "global" => OrderKind::Global,
            _ => OrderKind::Grouped {
                lanes: options.number("lanes") as u32,
                group: options.number("group") as u32,
            },
        };
        let mut runs = [const { Vec::<Run>::new() }; 4];
        for round in 0..options.number("rounds") {
            // Each side is the first one in turn.
            for turn in 0..sides.len() {
                let side = (turn + round as usize) % sides.len();
                if !chosen.contains(&side) {
                    continue;
                }
                let order = OrderSpec { kind, seed: round };
                let loader_options = LoaderOptions {
                    window_bytes: WINDOW_BYTES,
                    ..LoaderOptions::new(order, 128, options.number("epochs"))
                };
                runs[side].push(read(sides[side].1, loader_options, len)?);
            }
        }
        for (side, (title, _)) in sides.iter().enumerate().filter(|(side, _)| chosen.contains(side))
        {
            println!("| {name} | {title} | {} |", report(&runs[side], &runs[chosen[0]]));
        }
    }
    Ok(())
}

/// The result of some epochs of a side.
struct Run {
    samples_per_s: f64,
    /// Microseconds of this process's time a sample.
    host_us: f64,
    /// Bytes read per byte of the samples.
    read_share: f64,
}

type Start<'a> = dyn Fn(LoaderOptions) -> dlfs::Result<Loader> + Sync + 'a;

/// Reads what `start` loads; the time before the first batch does not count.
fn read(start: &Start, options: LoaderOptions, len: usize) -> dlfs::Result<Run> {
    // The loader's threads run where the thread runs that starts them.
    std::thread::scope(|scope| {
        let run = || {
            pin(1);
            let loader = start(options)?;
            let mut batch = Batch::new();
            loader.next_into(&mut batch, &mut ())?;
            let began = Instant::now();
            let host = cpu_time();
            let mut count = 0;
            while loader.next_into(&mut batch, &mut ())? {
                count += batch.len();
            }
            let lasted = began.elapsed().as_secs_f64();
            let host = cpu_time() - host;
            let stats = loader.stats();
            Ok(Run {
                samples_per_s: count as f64 / lasted,
                host_us: host.as_secs_f64() * 1e6 / count as f64,
                read_share: stats.read.bytes as f64 / (stats.samples * len as u64) as f64,
            })
        };
        scope.spawn(run).join().expect("a loader")
    })
}

fn report(runs: &[Run], first: &[Run]) -> String {
    let ratios = runs.iter().zip(first).map(|(run, first)| run.samples_per_s / first.samples_per_s);
    let (low, ratio, high) = spread(ratios.collect());
    let median = |of: &dyn Fn(&Run) -> f64| spread(runs.iter().map(of).collect()).1;
    format!(
        "{:.0} | {ratio:.2} ({low:.2} to {high:.2}) | {:.2} | {:.2}",
        median(&|run| run.samples_per_s),
        median(&|run| run.host_us),
        median(&|run| run.read_share),
    )
}

/// The minimum, the median and the maximum.
fn spread(mut figures: Vec<f64>) -> (f64, f64, f64) {
    figures.sort_by(f64::total_cmp);
    (figures[0], figures[figures.len() / 2], figures[figures.len() - 1])
}

/// Serves the samples three times until standard input closes, and prints a line of addresses for each: as one data
/// set on one namespace, as one on eight, and as eight data sets.
fn serve(count: usize, len: usize) -> dlfs::Result<()> {
    pin(0);
    let folder = tempfile::tempdir()?;
    let room = (2 * count * len + (16 << 20)) as u64;
    let disks = |number: usize| -> dlfs::Result<Vec<MemNamespace>> {
        let bytes = (room / number as u64 + (16 << 20)).next_multiple_of(4096);
        (0..number).map(|_| MemNamespace::new(bytes, 4096)).collect()
    };
    let single = disks(1)?;
    let spread = disks(IMAGES)?;
    let parts = disks(IMAGES)?;
    let each = count / IMAGES;
    for (part, disk) in parts.iter().enumerate() {
        let source = folder.path().join(part.to_string());
        write_samples(&source, part * each..(part + 1) * each, len)?;
        import_onto(&source, std::slice::from_ref(disk))?;
    }
    import_onto(folder.path(), &single)?;
    import_onto(folder.path(), &spread)?;
    drop(folder);
    let mut serving = Vec::new();
    for (number, disks) in [single, spread, parts].into_iter().enumerate() {
        let mut addresses = Vec::new();
        for (nth, disk) in disks.iter().enumerate() {
            // Namespaces of one subsystem would share the connection of a data set.
            let nqn = format!("nqn.2026-11.io.dlfs:mixtures-{number}-{nth}");
            let options = TargetOptions::new(Nqn::new(nqn).expect("a valid name"));
            let target = Target::bind(options, vec![Arc::new(disk.read_only())])?;
            addresses.push(target.address(Nsid(1)).to_string());
            serving.push(target);
        }
        println!("{}", addresses.join(" "));
    }
    std::io::stdout().flush()?;
    wait_for_end_of_input();
    Ok(())
}

fn write_samples(folder: &Path, numbers: Range<usize>, len: usize) -> dlfs::Result<()> {
    std::fs::create_dir(folder)?;
    for number in numbers {
        let bytes: Vec<u8> = (number..).take(len).map(|at| (at ^ (at >> 7)) as u8).collect();
        std::fs::write(folder.join(format!("{number:06}")), bytes)?;
    }
    Ok(())
}

fn import_onto(source: &Path, disks: &[MemNamespace]) -> dlfs::Result<()> {
    let writable = disks.iter().map(|disk| Arc::new(disk.clone()) as Arc<dyn Device>);
    let writable = writable.collect::<Vec<_>>();
    let chunk_size_bytes = 1 << 20;
    let options = ImportOptions { onto: Onto::Empty, chunk_size_bytes, ..Default::default() };
    import::import_onto(&[source.to_owned()], &writable, &options, &mut ())?;
    Ok(())
}

const HEAD: &str = "| order | data sets | samples/s | beside the first | host, us of CPU a sample | bytes read a byte \
                    |\n|---|---|---|---|---|---|";
/// The data sets that are mixed.
const IMAGES: usize = 8;
/// The total length of the samples.
const DATA_BYTES: usize = 768 << 20;
/// So small that a chunk is evicted before the next epoch needs it, and enough for the open chunks of eight grouped
/// orders.
const WINDOW_BYTES: usize = 192 << 20;
