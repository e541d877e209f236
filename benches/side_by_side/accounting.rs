//! The cost of one sample and one batch on the host, counted: instructions and cache misses by
//! callgrind, system calls by strace, allocations and copies by the library and its allocator.
//!
//! Each program counts a short and a long run; their difference is the cost of the batches between
//! them, without opening and warm-up. Callgrind does not support AVX-512, so checksums are counted
//! with the instructions that it supports; its caches are simulated.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::cases::To;
use crate::data::Data;
use crate::stage::Stage;
use crate::support::{self, Options};

/// Prints one line for each order and engine.
pub(crate) fn run(options: &Options) {
    println!("{}", support::machine());
    let mut stage = Stage::new(options);
    println!(
        "\n| samples of 4 KiB, batches of 256 | instructions a sample | L1 misses a sample \
         | last-level misses a sample | system calls a batch | allocations a batch \
         | bytes copied a sample |\n|---|---|---|---|---|---|---|"
    );
    for (name, to) in [("TCP", To::Served(Data::Small)), ("page cache", To::File(Data::Small))] {
        let address = stage.address(to).expect("what this bench starts itself");
        for order in ["grouped", "global"] {
            let side = Side { address: &address, order };
            let (instructions, misses) = match side.callgrind() {
                Ok(counts) => {
                    (format!("{:.0}", counts[0]), format!("{:.1} | {:.1}", counts[1], counts[2]))
                }
                Err(why) => (why, "- | -".into()),
            };
            let calls = side.system_calls().unwrap_or_else(|why| why);
            let (allocations, copied) = side.allocations_and_copies();
            println!(
                "| {name}, {order} | {instructions} | {misses} | {calls} | {allocations:.2} | {copied:.0} |"
            );
        }
    }
}

/// The host's side, run by a counting program.
struct Side<'a> {
    address: &'a str,
    order: &'a str,
}

impl Side<'_> {
    /// Runs this program for this many batches under `prefix`.
    fn run(&self, prefix: &[&str], batches: u64) -> Result<Output, String> {
        let program = std::env::current_exe().expect("the path of this program");
        let batches = batches.to_string();
        let (before, rest) = prefix.split_first().map_or((None, &[][..]), |(a, b)| (Some(a), b));
        let mut command = match before {
            Some(name) => Command::new(name),
            None => Command::new(&program),
        };
        if before.is_some() {
            command.args(rest).arg(&program);
        }
        let output = command
            .args(["--side", "account", "--address", self.address, "--order", self.order])
            .args(["--batches", &batches])
            .stdin(Stdio::null())
            .output()
            .map_err(|_| format!("{} is not installed", prefix[0]))?;
        if output.status.success() {
            Ok(output)
        } else {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(format!("failed: {}", said.lines().last().unwrap_or_default()))
        }
    }

    /// Instructions, and misses of the first-level data cache and of the last level, per sample.
    fn callgrind(&self) -> Result<[f64; 3], String> {
        let short = self.callgrind_of(SHORT)?;
        let long = self.callgrind_of(LONG)?;
        let samples = ((LONG - SHORT) * BATCH) as f64;
        Ok([0, 1, 2].map(|i| (long[i] - short[i]) / samples))
    }

    fn callgrind_of(&self, batches: u64) -> Result<[f64; 3], String> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let file = folder.path().join("callgrind");
        let out = format!("--callgrind-out-file={}", file.display());
        let program = ["valgrind", "--tool=callgrind", "--cache-sim=yes", LAST_LEVEL, &out];
        self.run(&program, batches)?;
        totals(&file)
    }

    /// System calls per batch: the total, and the most frequent ones.
    fn system_calls(&self) -> Result<String, String> {
        let short = self.calls_of(SHORT)?;
        let long = self.calls_of(LONG * 4)?;
        let batches = (LONG * 4 - SHORT) as f64;
        let mut each: Vec<(f64, &String)> = long
            .iter()
            .map(|(name, count)| {
                (count.saturating_sub(*short.get(name).unwrap_or(&0)) as f64 / batches, name)
            })
            .collect();
        each.sort_by(|a, b| b.0.total_cmp(&a.0));
        let total: f64 = each.iter().map(|(count, _)| count).sum();
        let named: Vec<String> =
            each.iter().take(3).map(|(count, name)| format!("{name} {count:.2}")).collect();
        Ok(format!("{total:.2} ({})", named.join(", ")))
    }

    fn calls_of(&self, batches: u64) -> Result<BTreeMap<String, u64>, String> {
        let output = self.run(&["strace", "-f", "-c", "-U", "calls,name"], batches)?;
        let text = String::from_utf8_lossy(&output.stderr);
        let counts = text.lines().filter_map(|line| {
            let mut words = line.split_whitespace();
            Some((words.next()?.parse().ok()?, words.next()?.to_owned()))
        });
        Ok(counts.filter(|(_, name)| name != "total").map(|(count, name)| (name, count)).collect())
    }

    /// Allocations per batch, and bytes that the library itself copied per sample.
    fn allocations_and_copies(&self) -> (f64, f64) {
        let of = |batches| {
            let output = self.run(&[], batches).expect("this program itself");
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let numbers: Vec<f64> =
                text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            (numbers[0], numbers[1])
        };
        let short = of(LONG);
        let long = of(8 * LONG);
        let batches = (7 * LONG) as f64;
        ((long.0 - short.0) / batches, (long.1 - short.1) / batches / BATCH as f64)
    }
}

/// From the last line "totals: Ir Dr Dw I1mr D1mr D1mw ILmr DLmr DLmw": instructions, L1 and LL
/// misses.
fn totals(file: &Path) -> Result<[f64; 3], String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("callgrind: {error}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("totals:"));
    let numbers: Vec<f64> = line
        .unwrap_or_default()
        .split_whitespace()
        .filter_map(|number| number.parse().ok())
        .collect();
    match numbers[..] {
        [ir, _, _, i1, d1r, d1w, il, dlr, dlw] => Ok([ir, i1 + d1r + d1w, il + dlr + dlw]),
        _ => Err("callgrind printed other columns".into()),
    }
}

/// Batches of the two runs whose difference is counted: more than the window holds.
const SHORT: u64 = 256;
const LONG: u64 = 512;
/// The last level of the simulated caches: 32 MiB, 16 ways, lines of 64 bytes. A virtual machine
/// may report the size of a cache that it shares with many others.
const LAST_LEVEL: &str = "--LL=33554432,16,64";
const BATCH: u64 = 256;
