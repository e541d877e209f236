//! Object stores: bytes a second beside curl's and a line's, imports beside those of files, and reading behind a tier
//! beside reading an image.

#[path = "../tests/support/object_store.rs"]
#[allow(dead_code, unreachable_pub)] // a module of each program, which uses a part of it
mod object_store;
mod support;

use std::fs::File;
use std::io::{BufRead as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use dlfs::address::Address;
use dlfs::cache::TierOptions;
use dlfs::dataset::{Image, OpenOptions};
use dlfs::import::{ImportOptions, Onto, PlacementOrder, import};
use dlfs::order::{OrderKind, OrderSpec};
use dlfs::places::{Client, Object, Place, PlaceOptions, Reader};
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::ConnectOptions;
use object_store::{Fault, ObjectStore, bytes_of};
use support::{Options, Side, Stopwatch};

const USAGE: &str = "cargo bench --features cloud --bench places -- [--rounds N] [--bytes B] [--dir DIR] \
    [--only PART]

PART: curl, line, imports, tiers.

The store is a process of its own on one processor, on loopback over plain HTTP. What reads it has the other
processors, and so has what it is compared with; in the first row, both have one. `line` is a store that answers
after 50 ms and sends at 1 Gb/s in all. Shards and samples of 128 KiB; images and shards lie in --dir.";

fn main() {
    support::results::record("places");
    let defaults = [
        ("rounds", "5"),
        ("bytes", "1G"),
        ("dir", "target"),
        ("only", ""),
        ("side", ""),
        ("shards", ""),
        ("line", "0"),
    ];
    let options = Options::parse(USAGE, &defaults);
    if options.text("side") == "serve" {
        return serve(&options);
    }
    let bytes = options.number("bytes");
    let rounds = options.number("rounds");
    let is_asked = |part| ["", part].contains(&options.text("only"));
    println!("{}", support::machine());
    println!("| what | dlfs | beside | dlfs / beside |");
    println!("|---|---|---|---|");
    let fast = Server::start(bytes, false);
    // On a thread of its own, since what a bound thread starts is bound as well.
    let on_thread = |work: &(dyn Fn() + Sync)| {
        std::thread::scope(|scope| scope.spawn(work).join().expect("no panic"));
    };
    if is_asked("curl") {
        on_thread(&|| beside_curl(&fast, bytes, rounds));
        println!(
            "| peak memory of the client: MiB, beside the window and 64 MiB | {:.0} | {} | |",
            peak_mib(),
            256 + 64
        );
    }
    if is_asked("line") {
        beside_line(bytes);
    }
    let folder = tempfile::tempdir_in(options.text("dir")).expect("a folder in --dir");
    if is_asked("imports") {
        on_thread(&|| imports(folder.path(), rounds));
    }
    if is_asked("tiers") {
        on_thread(&|| tiers(&fast, folder.path(), rounds));
    }
}

/// The other process.
struct Server {
    _side: Side,
    endpoint: String,
    options: PlaceOptions,
}

impl Server {
    fn start(bytes: u64, is_line: bool) -> Server {
        let bytes = bytes.to_string();
        let line = u8::from(is_line).to_string();
        Server::with(&["--bytes", &bytes, "--line", &line])
    }

    /// A store of the shards in this folder.
    fn of_files(folder: &Path) -> Server {
        Server::with(&["--shards", folder.to_str().expect("UTF-8")])
    }

    fn with(options: &[&str]) -> Server {
        let mut side = Side::start(&[&["--side", "serve"], options].concat());
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
    let shards = options.text("shards");
    support::pin(1);
    let store =
        if is_line { ObjectStore::with_faults(|_| Fault::Late(50)) } else { ObjectStore::good() };
    if !shards.is_empty() {
        for shard in 0..SHARDS {
            let name = format!("{shard}.tar");
            store.put_file(&format!("shards/{name}"), &Path::new(shards).join(&name));
        }
    } else {
        store.put("big", bytes_of(1, options.number("bytes") as usize));
        (0..SAMPLES).for_each(|n| store.put(&format!("samples/{n:05}"), bytes_of(n, SAMPLE_BYTES)));
    }
    if is_line {
        store.shape(125_000_000);
    }
    println!("{}", store.endpoint());
    support::wait_for_end_of_input();
}

fn beside_curl(server: &Server, bytes: u64, rounds: u64) {
    support::pin(0);
    let mut ours = Vec::new();
    let mut theirs = Vec::new();
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

/// The speed and the processor time of reading or importing some bytes.
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
    let begun = Instant::now();
    let before = seconds_of_children();
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
    let mut ours = vec![read_all(&server.client(), bytes).mb_s];
    let mut line = vec![125.0];
    row("the same, 50 ms away on a line of 1 Gb/s: MB/s, beside the line", &mut ours, &mut line);
}

/// Measures imports of shards that are in memory, and of shards that are on the disk: read by the store, or by the
/// import itself.
fn imports(folder: &Path, rounds: u64) {
    let local = std::path::absolute(folder.join("shards")).expect("a working folder");
    std::fs::create_dir(&local).expect("a new folder");
    for shard in 0..SHARDS {
        let mut file = File::create_new(local.join(format!("{shard}.tar"))).expect("a new file");
        file.write_all(&tar(shard)).and_then(|()| file.sync_all()).expect("room");
    }
    let server = Server::of_files(&local);
    support::pin_off(1);
    for (is_cold, what) in [(false, "in memory"), (true, "on the disk")] {
        let mut ours = Vec::new();
        let mut theirs = Vec::new();
        for round in 0..rounds {
            for turn in 0..2 {
                let image = folder.join("image.dlfs");
                let (source, taken) = match (round + turn) % 2 {
                    0 => (PathBuf::from("s3://bucket/shards"), &mut ours),
                    _ => (local.clone(), &mut theirs),
                };
                if is_cold {
                    forget(&local);
                }
                let watch = Stopwatch::start();
                make(&source, &image, &server.options);
                let bytes = SHARDS * MEMBERS * SAMPLE_BYTES as u64;
                taken.push(Run::of(bytes, watch.seconds()));
                std::fs::remove_file(&image).expect("just made");
            }
        }
        let what = format!(
            "import of tar shards {what}, durable: MB/s, beside the same files without the store"
        );
        runs(&what, &ours, &theirs);
    }
}

/// Has the kernel drop what it keeps of the shards, which are on the disk.
fn forget(folder: &Path) {
    for shard in 0..SHARDS {
        let file = File::open(folder.join(format!("{shard}.tar"))).expect("it is there");
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("a file");
    }
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
    support::pin_off(1);
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
    let mut ours = Vec::new();
    let mut theirs = Vec::new();
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
    let begun = Instant::now();
    let mut samples = 0;
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
    let mut ours = each(ours, |run| run.cpu_ms);
    let mut theirs = each(theirs, |run| run.cpu_ms);
    row("its processor time, ms", &mut ours, &mut theirs);
}

fn row(what: &str, ours: &mut [f64], theirs: &mut [f64]) {
    let shown = |rates: &mut [f64]| {
        rates.sort_unstable_by(f64::total_cmp);
        let least = rates[0];
        let most = rates[rates.len() - 1];
        (rates[rates.len() / 2], format!("{:.0} ({least:.0} to {most:.0})", rates[rates.len() / 2]))
    };
    let (ours, our_text) = shown(ours);
    let (theirs, their_text) = shown(theirs);
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
const SHARDS: u64 = 32;
const MEMBERS: u64 = 256;
const SAMPLES: u64 = 2048;
const SAMPLE_BYTES: usize = 128 << 10;
