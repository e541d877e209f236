//! The cost of a directory, compared with a `BTreeMap`: bytes per sample, lookup time, opening
//! time; and its metadata operations by several workers, beside those of ext4.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::hint::black_box;
use std::io::Read;
use std::process::Command;
use std::time::Instant;

use dlfs::buf::IoBuf;
use dlfs::directory::{Directory, Entry, EntryKind};
use dlfs::format::Extent;
use dlfs::format::names::crc32c;
use dlfs::permutation::{Key, Permutation};
use dlfs::units::SampleId;
use support::snapshot::{directory_of, name_of};
use support::{Options, Stopwatch};

const USAGE: &str = "cargo bench --bench directory -- [--samples N,N] [--open N] [--dir DIR]

Makes directories of N samples in 1,000 class folders, 64 samples a chunk, shuffled placement; looks
up a million ids and names at random in each and in a BTreeMap<String, Extent> of the same; then
opens the snapshot of --open samples from a file in DIR, beside reading and checksumming its bytes; then
looks up and lists --files samples by 1, 2, ... workers, beside stat and ls -lR of as many files in DIR.
20 million samples take about 5 GiB of memory.";

fn main() {
    support::results::record("directory");
    let options = Options::parse(
        USAGE,
        &[
            ("samples", "1000000,20000000"),
            ("open", "10000000"),
            ("files", "130000"),
            ("dir", "target"),
            ("rounds", "5"),
        ],
    );
    println!("{}", support::machine());
    for samples in options.text("samples").split(',') {
        lookups(samples.parse().expect("a number of samples"));
    }
    opening(options.number("open"), options.text("dir"), options.number("rounds"));
    metadata(options.number("files"), options.text("dir"), options.number("rounds"));
}

fn lookups(samples: u64) {
    println!("\n{samples} samples");
    let before = resident_bytes();
    let directory = opened(&directory_of(samples));
    let grown = resident_bytes().saturating_sub(before);
    let memory = directory.memory_bytes();
    let per = |bytes: u64| bytes as f64 / samples as f64;
    let order = Permutation::new(samples, Key::new(1));
    println!(
        "  directory: {:.2} B a sample beside names and labels (columns {:.2}, tree {:.2}, chunks {:.2}, \
         checkpoints {:.2}); labels {:.2}, names {:.2}; process grew by {:.1}; tree height {}",
        per(memory.core()),
        per(memory.lengths_and_checksums),
        per(memory.tree),
        per(memory.chunks),
        per(memory.checkpoints),
        per(memory.labels),
        per(memory.names),
        per(grown),
        directory.tree_height(),
    );
    let before = resident_bytes();
    let mut map = BTreeMap::new();
    for id in 0..samples {
        let extent = directory.extent(SampleId(id)).expect("every id has an extent");
        map.insert(String::from_utf8(name_of(id)).expect("names are ASCII"), extent);
    }
    let mapped = resident_bytes().saturating_sub(before);
    println!(
        "  BTreeMap<String, Extent>: {:.1} B a sample: {:.1} times the directory without names, \
         {:.1} times with",
        per(mapped),
        mapped as f64 / memory.core() as f64,
        mapped as f64 / memory.total() as f64
    );
    let ids: Vec<u64> = (0..LOOKUPS).map(|i| order.forward(i % samples)).collect();
    let names: Vec<String> =
        ids.iter().map(|id| String::from_utf8(name_of(*id)).expect("names are ASCII")).collect();
    let by_id = time(&ids, |id| directory.extent(SampleId(*id)).map(|extent| extent.offset_bytes));
    let hot: Vec<u64> = (0..LOOKUPS).map(|i| order.forward(i % 256 % samples)).collect();
    let by_id_hot = time(&hot, |id| directory.extent(SampleId(*id)).map(|e| e.offset_bytes));
    let by_name = time(&names, |name| directory.lookup(name.as_bytes()).ok().flatten());
    let by_name_extent = time(&names, |name| {
        let id = directory.lookup(name.as_bytes()).ok().flatten()?;
        directory.extent(id)
    });
    let in_map = time(&names, |name| map.get(name).map(|extent: &Extent| extent.offset_bytes));
    println!(
        "  id to extent: {by_id:.0} ns at random, {by_id_hot:.0} ns among 256 ids\n  \
         name to id: {by_name:.0} ns; name to extent: {by_name_extent:.0} ns; \
         BTreeMap name to extent: {in_map:.0} ns ({:.1} times as long)",
        in_map / by_name_extent
    );
    let start = Stopwatch::start();
    let mut sum = 0u64;
    for c in 0..directory.num_chunks() {
        sum += directory.samples_in_chunk(c).map(|(id, e)| id.0 ^ e.offset_bytes).sum::<u64>() & 1;
    }
    black_box(sum);
    println!(
        "  all samples chunk by chunk: {:.1} ns a sample",
        start.seconds().1 * 1e9 / samples as f64
    );
}

/// The directory as a reader has it: opened from its snapshot, in one large buffer.
fn opened(directory: &Directory) -> Directory {
    let snapshot = directory.snapshot().expect("it has its names");
    let mut bytes = IoBuf::zeroed(snapshot.len_bytes() as usize);
    snapshot.read_at(0, &mut bytes).expect("its checksums are in memory");
    Directory::from_snapshot(bytes).expect("a snapshot just made")
}

/// Nanoseconds per `lookup` of one of `keys`, each of which must be found. Processor time, as
/// everywhere here: nothing waits, so other work on the machine counts less.
fn time<K, T>(keys: &[K], lookup: impl Fn(&K) -> Option<T>) -> f64 {
    let start = Stopwatch::start();
    for key in keys {
        black_box(lookup(black_box(key)).expect("every key is there"));
    }
    start.seconds().1 * 1e9 / keys.len() as f64
}

fn opening(samples: u64, dir: &str, rounds: u64) {
    println!("\nopening the snapshot of {samples} samples, from the page cache, best of {rounds}");
    let snapshot = directory_of(samples).to_snapshot().expect("it has its names");
    let file = tempfile::NamedTempFile::new_in(dir).expect("a file in --dir");
    fs::write(file.path(), &snapshot).expect("room for the snapshot");
    let len = snapshot.len();
    drop(snapshot);
    let read = || {
        let mut bytes = IoBuf::zeroed(len);
        let mut file = fs::File::open(file.path()).expect("the file that was written");
        file.read_exact(&mut bytes).expect("as long as it was written");
        bytes
    };
    let best = |work: &dyn Fn()| {
        let timed = (0..rounds).map(|_| {
            let start = Stopwatch::start();
            work();
            start.seconds().1 * 1e3
        });
        timed.fold(f64::INFINITY, f64::min)
    };
    let checksum = best(&|| {
        black_box(crc32c(&read()));
    });
    let open = best(&|| {
        black_box(Directory::from_snapshot(read()).expect("a snapshot just written"));
    });
    println!(
        "  {:.0} MB: reading and checksumming {checksum:.0} ms, opening {open:.0} ms: {:.2} times",
        len as f64 / 1e6,
        open / checksum
    );
}

/// Look-ups of names and listings with lengths, by as many workers as there are processors at most.
fn metadata(samples: u64, dir: &str, rounds: u64) {
    let directory = opened(&directory_of(samples));
    let folder = tempfile::tempdir_in(dir).expect("a folder in --dir");
    let text = |id| String::from_utf8(name_of(id)).expect("names are ASCII");
    let names: Vec<String> = (0..samples).map(text).collect();
    let class = |name: &String| name.split('/').next().unwrap_or_default().to_owned();
    let classes: Vec<String> =
        names.iter().map(class).collect::<BTreeSet<_>>().into_iter().collect();
    classes.iter().for_each(|class| fs::create_dir(folder.path().join(class)).expect("room"));
    names.iter().for_each(|name| drop(fs::File::create(folder.path().join(name)).expect("room")));
    let extent = |name: &String| {
        let id = directory.lookup(name.as_bytes()).expect("it has its names");
        directory.extent(id.expect("every name is there")).expect("it is live").len_bytes
    };
    let look_up = |names: &[String]| names.iter().map(extent).fold(0, u32::wrapping_add);
    let stat = |names: &[String]| {
        let len =
            |name: &String| fs::symlink_metadata(folder.path().join(name)).expect("a file").len();
        names.iter().map(len).sum::<u64>()
    };
    let list = |classes: &[String]| {
        let entries =
            classes.iter().flat_map(|class| directory.list(class.as_bytes()).expect("names"));
        let len = |entry: Entry| match entry.kind {
            EntryKind::Sample(id) => directory.extent(id).map_or(0, |extent| extent.len_bytes),
            EntryKind::Folder => 0,
        };
        entries.map(len).fold(0, u32::wrapping_add)
    };
    let ls = |classes: &[String]| {
        let mut command = Command::new("ls");
        command.arg("-lR").args(classes).current_dir(folder.path());
        command.output().expect("ls is there").stdout.len()
    };
    println!(
        "\n{samples} samples, and as many files in {dir}: million a second of time, best of {rounds}"
    );
    println!(
        "| workers | name to extent | stat | list all with lengths | `ls -lR` |\n|---|---|---|---|---|"
    );
    for workers in 1..=std::thread::available_parallelism().map_or(1, usize::from) {
        let rate = |seconds: f64| format!("{:.3}", samples as f64 / 1e6 / seconds);
        let [look_up, stat, list, ls] = [
            together(workers, rounds, &names, &look_up),
            together(workers, rounds, &names, &stat),
            together(workers, rounds, &classes, &list),
            together(workers, rounds, &classes, &ls),
        ]
        .map(rate);
        println!("| {workers} | {look_up} | {stat} | {list} | {ls} |");
    }
}

/// The shortest time in which so many workers do the work on all items, each on its share.
fn together<R>(
    workers: usize,
    rounds: u64,
    items: &[String],
    work: &(impl Fn(&[String]) -> R + Sync),
) -> f64 {
    let once = || {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for items in items.chunks(items.len().div_ceil(workers)) {
                scope.spawn(move || drop(black_box(work(items))));
            }
        });
        start.elapsed().as_secs_f64()
    };
    (0..rounds).map(|_| once()).fold(f64::INFINITY, f64::min)
}

fn resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) << 10
}

const LOOKUPS: u64 = 1_000_000;
