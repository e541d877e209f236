//! Object stores: bytes a second beside curl's and a line's, imports beside those of files, and reading behind a tier
//! beside reading an image.

#[path = "../tests/support/object_store.rs"]
#[allow(dead_code, unreachable_pub)] // a module of each program, which uses a part of it
mod object_store;
mod support;

use std::io::{BufRead as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use dlfs::cache::TierOptions;
use dlfs::dataset::{Image, OpenOptions};
use dlfs::import::{ImportOptions, Onto, PlacementOrder, import};
use dlfs::nvme::Address;
use dlfs::order::{OrderKind, OrderSpec};
use dlfs::places::{Client, Object, Place, PlaceOptions, Reader};
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::ConnectOptions;
use object_store::{Fault, ObjectStore, bytes_of};
use support::{Options, Side, Stopwatch};

const USAGE: &str = "cargo bench --features cloud --bench places -- [--rounds N] [--bytes B] [--dir DIR]

The store is a process of its own on one processor, and serves memory on loopback over plain HTTP; what is beside it, and
what it is compared with, has the other processors, or one of them where the row says so. `line` is a store that answers after 50 ms and sends at 1 Gb/s in all. Shards and samples of 128 KiB;
images and local shards lie in --dir.";

fn main() {
    support::results::record("places");
    let defaults =
        [("rounds", "5"), ("bytes", "1G"), ("dir", "target"), ("side", ""), ("line", "0")];
    let options = Options::parse(USAGE, &defaults);
    if options.text("side") == "serve" {
        return serve(&options);
    }
    let (bytes, rounds) = (options.number("bytes"), options.number("rounds"));
    println!("{}", support::machine());
    println!("| what | dlfs | beside | dlfs / beside |");
    println!("|---|---|---|---|");
    let fast = Server::start(bytes, false);
    // On a thread of its own, since what a bound thread starts is bound as well.
    std::thread::scope(|scope| {
        scope.spawn(|| beside_curl(&fast, bytes, rounds)).join().expect("no panic")
    });
    println!(
        "| peak memory of the client: MiB, beside the window and 64 MiB | {:.0} | {} | |",
        peak_mib(),
        256 + 64
    );
    beside_line(bytes);
    let folder = tempfile::tempdir_in(options.text("dir")).expect("a folder in --dir");
    let others = || {
        support::pin_off(1);
        imports(&fast, folder.path(), rounds);
        tiers(&fast, folder.path(), rounds);
    };
    std::thread::scope(|scope| scope.spawn(others).join().expect("no panic"));
}

/// The other process.
struct Server {
    _side: Side,
    endpoint: String,
    options: PlaceOptions,
}

impl Server {
    fn start(bytes: u64, is_line: bool) -> Server {
        let (bytes, line) = (bytes.to_string(), u8::from(is_line).to_string());
        let mut side = Side::start(&["--side", "serve", "--bytes", &bytes, "--line", &line]);
        let endpoint = side.line().trim().to_owned();
        let setting = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let settings =
            vec![setting("aws_endpoint_url", &endpoint), setting("aws_skip_signature", "true")];
        Server {
            _side: side,
            endpoint,
            options: PlaceOptions { settings, ..PlaceOptions::default() },
        }
    }

    fn client(&self) -> Client {
        let place = Place::parse("s3://bucket/").expect("a valid address");
        Client::open(&place, &self.options).expect("the store is there")
    }
}

fn serve(options: &Options) {
    let is_line = options.number("line") == 1;
    support::pin(1);
    let store = match is_line {
        true => ObjectStore::with_faults(|_| Fault::Late(50)),
        false => ObjectStore::good(),
    };
    store.put("big", bytes_of(1, options.number("bytes") as usize));
    if is_line {
        store.shape(125_000_000);
    } else {
        for shard in 0..SHARDS {
            store.put(&format!("shards/{shard}.tar"), tar(shard));
        }
        (0..SAMPLES).for_each(|n| store.put(&format!("samples/{n:05}"), bytes_of(n, SAMPLE_BYTES)));
    }
    println!("{}", store.endpoint());
    support::wait_for_end_of_input();
}

fn beside_curl(server: &Server, bytes: u64, rounds: u64) {
    support::pin(0);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        for turn in 0..2 {
            match (round + turn) % 2 {
                0 => ours.push(read_all(&server.client(), bytes)),
                _ => theirs.push(curl(&server.endpoint, bytes)),
            }
        }
    }
    runs("an object in ranges of 8 MiB, one core: MB/s, beside curl --parallel", &ours, &theirs);
}

/// What reading or importing some bytes took.
struct Run {
    mb_s: f64,
    cpu_ms: f64,
}

impl Run {
    fn of(bytes: u64, (wall, cpu): (f64, f64)) -> Run {
        Run { mb_s: bytes as f64 / 1e6 / wall, cpu_ms: cpu * 1e3 }
    }
}

/// Reads the object front to back.
fn read_all(client: &Client, bytes: u64) -> Run {
    let object = client.head("big").expect("it is there");
    let watch = Stopwatch::start();
    drain(client, object, bytes);
    Run::of(bytes, watch.seconds())
}

fn drain(client: &Client, object: Object, bytes: u64) {
    let mut reader = Reader::new(client.clone(), vec![object]);
    reader.next_object();
    let mut read = 0;
    // As curl does, which gives each piece that it has received to its output.
    loop {
        let len = reader.fill_buf().expect("the store answers").len();
        if len == 0 {
            break;
        }
        reader.consume(len);
        read += len as u64;
    }
    assert_eq!(read, bytes);
}

fn curl(endpoint: &str, bytes: u64) -> Run {
    let ranges = (0..bytes.div_ceil(RANGE)).map(|n| (n * RANGE, ((n + 1) * RANGE).min(bytes) - 1));
    let urls = ranges.map(|(first, last)| {
        format!("url = {endpoint}/bucket/big\noutput = /dev/null\nrange = {first}-{last}\nsilent\n")
    });
    let config = urls.collect::<Vec<_>>().join("next\n");
    let (begun, before) = (Instant::now(), seconds_of_children());
    let mut child = Command::new("curl")
        .args(["--parallel", "--parallel-max", "32", "-K", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("curl is installed");
    child.stdin.take().expect("piped").write_all(config.as_bytes()).expect("curl reads");
    assert!(child.wait().expect("a child").success());
    Run::of(bytes, (begun.elapsed().as_secs_f64(), seconds_of_children() - before))
}

/// Processor time of the children that have ended, in steps of 10 ms.
fn seconds_of_children() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux has it");
    let behind_name = stat.rsplit_once(')').expect("the name is in brackets").1;
    let ticks = behind_name.split_whitespace().skip(13).take(2);
    ticks.map(|text| text.parse::<f64>().expect("a number")).sum::<f64>() / 100.0
}

fn beside_line(bytes: u64) {
    let server = Server::start(bytes, true);
    let (mut ours, mut line) = (vec![read_all(&server.client(), bytes).mb_s], vec![125.0]);
    row("the same, 50 ms away on a line of 1 Gb/s: MB/s, beside the line", &mut ours, &mut line);
}

fn imports(server: &Server, folder: &Path, rounds: u64) {
    let local = folder.join("shards");
    std::fs::create_dir(&local).expect("a new folder");
    (0..SHARDS).for_each(|n| std::fs::write(local.join(format!("{n}.tar")), tar(n)).expect("room"));
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        for turn in 0..2 {
            let image = folder.join("image.dlfs");
            let (source, taken) = match (round + turn) % 2 {
                0 => (PathBuf::from("s3://bucket/shards"), &mut ours),
                _ => (local.clone(), &mut theirs),
            };
            let watch = Stopwatch::start();
            make(&source, &image, &server.options);
            let bytes = SHARDS * MEMBERS * SAMPLE_BYTES as u64;
            taken.push(Run::of(bytes, watch.seconds()));
            std::fs::remove_file(&image).expect("just made");
        }
    }
    runs("import of tar shards, durable: MB/s, beside local shards", &ours, &theirs);
}

fn make(source: &Path, image: &Path, places: &PlaceOptions) {
    let options = ImportOptions {
        onto: Onto::Empty,
        placement: PlacementOrder::Source,
        places: places.clone(),
        ..ImportOptions::default()
    };
    let image = [Address::from_path(image)];
    import(&[source.to_path_buf()], &image, &options, &ConnectOptions::default(), &mut ())
        .expect("imported");
}

fn tiers(server: &Server, folder: &Path, rounds: u64) {
    let image = folder.join("samples.dlfs");
    make(Path::new("s3://bucket/samples"), &image, &server.options);
    let tier = folder.join("tier");
    std::fs::create_dir_all(&tier).expect("a folder for the tier");
    let tier = format!("file:{}:1G", tier.display()).parse().expect("a tier");
    let connect = ConnectOptions { places: server.options.clone(), ..ConnectOptions::default() };
    let tiers = TierOptions { tiers: vec![tier], ..TierOptions::default() };
    let remote = OpenOptions { connect, tiers, ..OpenOptions::default() };
    let remote =
        Image::open(&[Address::Objects("s3://bucket/samples".into())], &remote).expect("opens");
    let local = Image::open(&[Address::from_path(&image)], &OpenOptions::default()).expect("opens");
    epoch(&remote, 0);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        for turn in 0..2 {
            match (round + turn) % 2 {
                0 => ours.push(epoch(&remote, round + 1)),
                _ => theirs.push(epoch(&local, round + 1)),
            }
        }
    }
    row(
        "samples of s3:// behind a file tier, from the second epoch: samples/s, beside a local image",
        &mut ours,
        &mut theirs,
    );
}

/// Samples a second of one epoch.
fn epoch(image: &Image, seed: u64) -> f64 {
    let order = OrderSpec { kind: OrderKind::Global, seed };
    let mut loader = image.prefetcher(LoaderOptions::new(order, 64, 1)).expect("a loader");
    let (begun, mut samples) = (Instant::now(), 0);
    while let Some(batch) = loader.next() {
        samples += batch.expect("it is read").ids().count();
    }
    samples as f64 / begun.elapsed().as_secs_f64()
}

fn tar(shard: u64) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for member in 0..MEMBERS {
        let bytes = bytes_of(shard * MEMBERS + member, SAMPLE_BYTES);
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        archive
            .append_data(&mut header, format!("{shard}/{member:04}"), &bytes[..])
            .expect("memory");
    }
    archive.into_inner().expect("memory")
}

/// Rates, and in a row of its own the processor time that they took.
fn runs(what: &str, ours: &[Run], theirs: &[Run]) {
    let each = |runs: &[Run], of: fn(&Run) -> f64| runs.iter().map(of).collect::<Vec<f64>>();
    row(what, &mut each(ours, |run| run.mb_s), &mut each(theirs, |run| run.mb_s));
    let (mut ours, mut theirs) = (each(ours, |run| run.cpu_ms), each(theirs, |run| run.cpu_ms));
    row("its processor time, ms", &mut ours, &mut theirs);
}

fn row(what: &str, ours: &mut [f64], theirs: &mut [f64]) {
    let shown = |rates: &mut [f64]| {
        rates.sort_unstable_by(f64::total_cmp);
        let (least, most) = (rates[0], rates[rates.len() - 1]);
        (rates[rates.len() / 2], format!("{:.0} ({least:.0} to {most:.0})", rates[rates.len() / 2]))
    };
    let ((ours, our_text), (theirs, their_text)) = (shown(ours), shown(theirs));
    println!("| {what} | {our_text} | {their_text} | {:.2} |", ours / theirs);
}

/// The most memory that this process has had.
fn peak_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
    let line = status.lines().find(|line| line.starts_with("VmHWM")).expect("Linux has it");
    let kib: f64 =
        line.split_whitespace().nth(1).and_then(|word| word.parse().ok()).expect("a number");
    kib / 1024.0
}

const RANGE: u64 = 8 << 20;
const SHARDS: u64 = 8;
const MEMBERS: u64 = 256;
const SAMPLES: u64 = 2048;
const SAMPLE_BYTES: usize = 128 << 10;
