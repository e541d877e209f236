//! The processes of the bench: a target, a reader, and a loop of memcpy.

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use dlfs::address::Address;
use dlfs::dataset::{Image, OpenOptions};
use dlfs::import::{NewSample, WriteOrder, Writer, WriterOptions};
use dlfs::order::{OrderKind, OrderSpec};
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::{ConnectOptions, Cpus};
use dlfs::reader::Batch;
use dlfs::target::{Target, TargetOptions};
use dlfs::units::Nsid;

use crate::support::loaded::loaded;
use crate::support::random_reads::random_below;
use crate::support::{self, Options, Stopwatch};

/// Runs the side given by `--side`, on its processors.
pub(crate) fn run(options: &Options) {
    let number = |name| options.number(name) as usize;
    let first = number("first-cpu");
    support::pin_to(first..first + number("cpus"));
    match options.text("side") {
        "target" => serve(options),
        "reader" => read(options),
        _ => copy(options),
    }
}

/// Serves a copy of the image from each subsystem, whose addresses it prints, until standard input closes.
fn serve(options: &Options) {
    let subsystems = options.number("subsystems") as usize;
    let list: Vec<String> = support::cpus().iter().map(usize::to_string).collect();
    let cpus = Cpus::parse(&list.join(",")).expect("processors that this process may use");
    let targets = (0..subsystems).map(|n| {
        let nqn = format!("nqn.2026-11.io.dlfs:scale-{n}").parse().expect("a valid name");
        let cpus = if subsystems == 1 { cpus.clone() } else { cpus.nth(n) };
        let target_options = TargetOptions {
            num_pollers: options.number("pollers") as usize,
            cpus: Some(cpus),
            ..TargetOptions::new(nqn)
        };
        let device = loaded(Path::new(options.text("image"))).read_only();
        Target::bind(target_options, vec![Arc::new(device)]).expect("a free port")
    });
    let targets: Vec<Target> = targets.collect();
    let addresses: Vec<String> =
        targets.iter().map(|target| target.address(Nsid(1)).to_string()).collect();
    println!("{}", addresses.join(" "));
    support::wait_for_end_of_input();
}

/// Reads the image in grouped order.
fn read(options: &Options) {
    let address = options.text("image").parse().expect("an address of a target, or a path");
    let image = Image::open(&[address], &OpenOptions::default()).expect("an image of this bench");
    let copying = options.number("copying") as usize;
    let order = OrderSpec { kind: OrderKind::Grouped { lanes: 4, group: 2 }, seed: 1 };
    let loader = LoaderOptions {
        window_bytes: WINDOW_BYTES,
        copy_threads: (copying > 0).then_some(copying),
        ..LoaderOptions::new(order, 128, EPOCHS)
    };
    let mut loader = image.prefetcher(loader).expect("a loader");
    let mut batch = Batch::new();
    measure(options, || {
        assert!(
            loader.next_into(&mut batch).expect("a batch"),
            "more epochs than there is time for"
        );
        batch.len_bytes()
    });
}

/// Copies pieces of a region into a ring as long as a reader's window.
fn copy(options: &Options) {
    let region = vec![1u8; 2 * WINDOW_BYTES];
    let mut ring = vec![0u8; WINDOW_BYTES];
    let mut from = random_below((region.len() / PIECE_BYTES) as u64, 1);
    let mut into = (0..ring.len()).step_by(PIECE_BYTES).cycle();
    measure(options, || {
        let from = from() as usize * PIECE_BYTES;
        let into = into.next().expect("it has no end");
        ring[into..][..PIECE_BYTES].copy_from_slice(&region[from..][..PIECE_BYTES]);
        black_box(&ring);
        PIECE_BYTES as u64
    });
}

/// Does `work`, which returns its bytes, for a slice of time once standard input has a line. Prints bytes, seconds and
/// processor seconds of the slice, and bytes with those of the time before it, when the work is not yet measured.
fn measure(options: &Options, mut work: impl FnMut() -> u64) {
    println!("ready");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("the bench says when");
    let mut work_for = |limit: Duration| {
        let watch = Stopwatch::start();
        let mut bytes = 0;
        while watch.elapsed() < limit {
            bytes += work();
        }
        (bytes, watch.seconds())
    };
    let (warm_bytes, _) = work_for(WARM);
    let (bytes, (wall_s, cpu_s)) = work_for(Duration::from_millis(options.number("slice-ms")));
    println!("{bytes} {wall_s} {cpu_s} {}", warm_bytes + bytes);
    support::wait_for_end_of_input();
}

/// The result that a side has printed.
pub(crate) fn parse(line: &str) -> [f64; 4] {
    let figures: Vec<f64> = line.split(' ').map_while(|figure| figure.parse().ok()).collect();
    figures.try_into().unwrap_or_else(|_| panic!("four numbers, not '{line}'"))
}

/// Writes an image of `count` samples of `len` bytes.
pub(crate) fn write_image(path: &Path, count: usize, len: usize) {
    let options = WriterOptions { order: WriteOrder::Written, ..WriterOptions::default() };
    let image = [Address::from_path(path)];
    let writer = Writer::create(&image, options, &ConnectOptions::default());
    let mut writer = writer.expect("an image in --at");
    let mut bytes: Vec<u8> = (0..len).map(|at| (at ^ (at >> 7)) as u8).collect();
    for number in 0..count as u64 {
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        let fields = [Some(&bytes[..])];
        let sample = NewSample { fields: &fields, ..NewSample::default() };
        writer.write(&sample).expect("room for the image");
    }
    writer.finish().expect("room for the image");
}

/// The time before a slice: longer than a window takes to fill.
const WARM: Duration = Duration::from_millis(300);
/// So small that a chunk is evicted before the next epoch needs it.
const WINDOW_BYTES: usize = 64 << 20;
/// The length of a copy: that of a large read.
const PIECE_BYTES: usize = 128 << 10;
/// More epochs than any slice reads.
const EPOCHS: u64 = 1 << 20;
