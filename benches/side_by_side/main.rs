//! Compares dlfs with other programs, in one run and one table.
//!
//! Each case is measured in short slices, once per round, in a new random order each round; a row
//! is the median of the rounds' ratios. The other side of a connection (`targets`) and the measured
//! side (`hosts`) are separate processes on one processor each, so that the processor time of each
//! side is separate. Read `rows` for the comparisons, `cases` for how they are measured.

#[path = "../../tests/support/counting_alloc.rs"]
mod counting_alloc;
#[path = "../support/mod.rs"]
mod support;

mod accounting;
mod backing_off;
mod cases;
mod data;
mod external;
mod hosts;
mod opening;
mod report;
mod rows;
mod slice;
mod spdk;
mod stage;
mod stats;
mod targets;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use cases::Case;
use counting_alloc::CountingAlloc;
use rows::Row;
use slice::Slice;
use stage::Stage;
use stats::Random;
use support::Options;

#[global_allocator]
static ALLOCATOR: CountingAlloc = CountingAlloc;

const USAGE: &str = "cargo bench --bench side_by_side -- [--rows TEXT,TEXT] [--rounds N] [--quick]

Measures dlfs beside raw TCP, SPDK, fio, pread and memcpy, and prints a table of median ratios with
their 90 % bootstrap intervals, and one of processor time. --rows takes the rows whose name has
one of the texts in it; --list names them all. --quick is 5 rounds instead of 15.
--scaling prints the table of 1, 2, 4 and 8 queue pairs instead, --accounting what one sample and one
batch cost the host: instructions, cache misses, system calls, allocations, copies; --backing-off what
sleeping when idle adds to the latency of the next read.

Rows over TLS need OpenSSL 3; beside them is what openssl speed says of their cipher.

The data sets are imported into --at (6 GiB when all are made) and kept for the next run. SPDK is
looked for below SPDK_DIR and in PATH. The rows about the cost of verification need
--features unverified before the --.";

fn main() {
    support::results::record("side_by_side");
    let options = Options::parse(
        USAGE,
        &[
            ("rows", ""),
            ("rounds", "15"),
            ("slice-ms", "600"),
            ("quick", "no"),
            ("list", "no"),
            ("scaling", "no"),
            ("accounting", "no"),
            ("backing-off", "no"),
            ("seed", ""),
            ("at", ""),
            ("region", "1G"),
            ("pool", "16M"),
            ("window", "256M"),
            ("lanes", "8"),
            ("group", "4"),
            ("batch", "256"),
            ("order", "grouped"),
            // The following options give a process of the bench its role.
            ("side", ""),
            ("address", ""),
            ("image", ""),
            ("len", "4096"),
            ("depth", "32"),
            ("queue-pairs", "1"),
            ("pollers", "1"),
            ("busy-poll", "no"),
            ("pause-us", "0"),
            ("batches", "0"),
            ("threads", "1"),
            ("epochs", "0"),
            ("digests", "no"),
            ("tls", "no"),
            ("ping-pong", "no"),
            ("without-checksums", "no"),
        ],
    );
    match options.text("side") {
        "" if options.is_set("list") => {
            rows::all().for_each(|row| println!("{:<24}{}", row.id, row.title));
        }
        "" if options.is_set("accounting") => accounting::run(&options),
        "" if options.is_set("backing-off") => backing_off::run(&options),
        "" => run(&options),
        side @ ("target" | "sender") => targets::run(side, &options),
        "pause" => backing_off::read_with_pauses(&options),
        side => hosts::run(side, &options),
    }
}

/// The results, by case and round.
type Measured = BTreeMap<String, BTreeMap<u64, Slice>>;

fn run(options: &Options) {
    let seed = seed(options);
    let rounds = rounds(options);
    println!("{}, one for each side", support::machine());
    println!("TCP congestion control of the system: {}", support::congestion_control());
    if support::cpus().len() < 2 {
        println!("ONE PROCESSOR: both sides share it, and no row says what two would give");
    }
    println!("{rounds} rounds of slices of {} ms, seed {seed}", options.number("slice-ms"));
    let start = Instant::now();
    let rows =
        chosen_rows(if options.is_set("scaling") { "scaling" } else { options.text("rows") });
    let (kept, others): (Vec<_>, Vec<_>) = chosen_cases(&rows).into_iter().partition(Case::is_kept);
    let mut missing = BTreeMap::new();
    let mut cases = Vec::new();
    let mut random = Random(seed);
    let mut measured = Measured::new();
    // Processes that keep gigabytes begin when the targets of others have ended: together they may not have room.
    for group in [others, kept] {
        let mut stage = Stage::new(options);
        let group = prepared(group, &mut stage, &mut missing);
        for round in 0..rounds * u64::from(!group.is_empty()) {
            for case in shuffled(&group, &mut random) {
                if round % case.every != 0 || missing.contains_key(&case.id) {
                    continue;
                }
                match stage.run(case) {
                    Ok(slice) => {
                        measured.entry(case.id.clone()).or_default().insert(round, slice);
                    }
                    Err(why) => {
                        missing.insert(case.id.clone(), why);
                    }
                }
            }
            eprintln!("round {} of {rounds}, {:.0} s", round + 1, start.elapsed().as_secs_f64());
        }
        cases.extend(group);
    }
    report::print(&rows, &cases, &measured, &missing, seed);
}

fn seed(options: &Options) -> u64 {
    options.text("seed").parse().unwrap_or_else(|_| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock past 1970");
        now.as_nanos() as u64 % 1_000_000
    })
}

fn rounds(options: &Options) -> u64 {
    if options.is_set("quick") { 5 } else { options.number("rounds") }
}

fn chosen_rows(filter: &str) -> Vec<&'static Row> {
    // Scaling has its own table.
    let in_table = |row: &&Row| row.id.starts_with("scaling") == filter.starts_with("scaling");
    let is_named = |row: &&Row| filter.split(',').any(|text| row.id.contains(text));
    let rows: Vec<&Row> = rows::all().filter(in_table).filter(is_named).collect();
    assert!(!rows.is_empty(), "no row has '{filter}' in its name: see --list");
    rows
}

/// The cases that the rows need.
fn chosen_cases(rows: &[&Row]) -> Vec<Case> {
    let wanted: BTreeSet<&str> =
        rows.iter().flat_map(|row| [Some(row.ours), row.other]).flatten().collect();
    let mut cases = cases::all();
    cases.retain(|case| wanted.contains(&*case.id));
    assert!(cases.len() == wanted.len(), "every case that a row names is there");
    cases
}

/// Sets up those of `cases` that can be run; stores in `missing` why the others cannot.
fn prepared(
    mut cases: Vec<Case>,
    stage: &mut Stage<'_>,
    missing: &mut BTreeMap<String, String>,
) -> Vec<Case> {
    cases.retain(|case| match stage.prepare(case) {
        Ok(()) => true,
        Err(why) => {
            missing.insert(case.id.clone(), why);
            false
        }
    });
    cases
}

/// The families in a new order, and the cases of each.
fn shuffled<'a>(cases: &'a [Case], random: &mut Random) -> Vec<&'a Case> {
    let mut families: Vec<&str> = cases.iter().map(|case| case.family).collect();
    families.dedup();
    families.sort_unstable();
    families.dedup();
    random.shuffle(&mut families);
    let mut order = Vec::with_capacity(cases.len());
    for family in families {
        let mut members: Vec<&Case> = cases.iter().filter(|case| case.family == family).collect();
        random.shuffle(&mut members);
        order.extend(members);
    }
    order
}

/// Disables the verification of samples, in a build with that switch.
fn set_unverified(off: bool) {
    #[cfg(feature = "unverified")]
    dlfs::reader::unverified::set(off);
    #[cfg(not(feature = "unverified"))]
    assert!(!off, "this build verifies");
}
