//! Metrics of a process equal the system calls that strace sees it make, and what the target has counted.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::alone::again;
use dlfs::address::Address;
use dlfs::dataset::{Dataset, Options};
use dlfs::exporter;
use dlfs::import::{ImportOptions, Onto, import};
use dlfs::metrics::{self, Metric};
use dlfs::nvme::Nqn;
use dlfs::order::{OrderKind, OrderSpec};
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::{self, ConnectOptions};
use dlfs::target::{Target, TargetOptions};
use dlfs::units::Nsid;

/// Addresses that a child process of this test reads, a line each.
const CHILD: &str = "DLFS_TEST_METRICS_CHILD";

/// Not a test of its own: the child reads all samples of each address, and says what it has counted.
#[test]
fn child_reads_and_says_its_metrics() {
    let Ok(addresses) = std::env::var(CHILD) else { return };
    let order = OrderSpec { kind: OrderKind::Global, seed: 7 };
    for address in addresses.lines() {
        let address: Address = address.parse().unwrap();
        let dataset = Dataset::open(&[address], &Options::default(), &mut ()).unwrap();
        let loader = dataset.loader(LoaderOptions::new(order, 16, 1)).unwrap();
        while loader.next(&mut ()).unwrap().is_some() {}
    }
    let snapshot = exporter::snapshot();
    for metric in [
        &metrics::HOST_RECEIVES,
        &metrics::HOST_EMPTY_RECEIVES,
        &metrics::FOLDER_OPENS,
        &metrics::FOLDER_READS,
        &metrics::FOLDER_READ_BYTES,
        &metrics::READ_COMMANDS,
        &metrics::LOADER_SAMPLE_BYTES,
    ] {
        println!("\n{}={}", metric.name(), snapshot.sum(metric));
    }
}

#[test]
fn metrics_of_a_run_are_the_system_calls_that_strace_sees_and_what_the_target_counts() {
    let temp = tempfile::tempdir().unwrap();
    let files = temp.path().join("files");
    fs::create_dir(&files).unwrap();
    let mut all_bytes = 0;
    for id in 0..120 {
        let bytes = vec![id as u8; 1 + 977 * id % 30_000];
        fs::write(files.join(format!("{id:04}")), &bytes).unwrap();
        all_bytes += bytes.len();
    }
    let image = Address::from_path(temp.path().join("train.dlfs"));
    let options = ImportOptions { onto: Onto::Empty, ..ImportOptions::default() };
    let connect = ConnectOptions::default();
    import(std::slice::from_ref(&files), std::slice::from_ref(&image), &options, &connect, &mut ())
        .unwrap();
    let nqn = Nqn::new("nqn.2026-11.io.dlfs:strace").unwrap();
    let device = qpair::open(&image, &connect).unwrap();
    let target = Target::bind(TargetOptions::new(nqn), vec![device]).unwrap();

    let addresses = format!("{}\n{}", target.address(Nsid(1)), files.display());
    let Some((said, calls)) = run_under_strace(&addresses, temp.path()) else { return };
    let counted = |metric: &Metric| said[&metric.name()];

    // The keeper's thread receives on the admin queue, which is no I/O queue.
    let receives: Vec<&Call> = calls
        .iter()
        .filter(|call| call.name == "readv" && call.thread != "dlfs-keeper")
        .filter(|call| call.file.starts_with("socket:"))
        .collect();
    let empty = receives.iter().filter(|call| call.result <= 0).count();
    assert!(receives.len() > empty, "{receives:?}");
    assert_eq!(counted(&metrics::HOST_RECEIVES), receives.len() as u64);
    assert_eq!(counted(&metrics::HOST_EMPTY_RECEIVES), empty as u64);

    let of_files = |name| {
        let files = files.to_str().unwrap();
        let is_file = move |call: &&Call| {
            call.name == name && call.result >= 0 && call.file.len() > files.len() + 1
        };
        calls.iter().filter(is_file).filter(move |call| call.file.starts_with(files))
    };
    assert_eq!(counted(&metrics::FOLDER_READS), of_files("pread64").count() as u64);
    let bytes: i64 = of_files("pread64").map(|call| call.result).sum();
    assert_eq!(counted(&metrics::FOLDER_READ_BYTES), bytes as u64);
    assert_eq!((bytes, all_bytes as i64), (all_bytes as i64, bytes), "each file once");

    // The directory is read beside the samples.
    let reads = target.stats().commands.of("read");
    assert!(reads > 0 && counted(&metrics::READ_COMMANDS) >= reads / 2, "{reads}");
    assert_eq!(counted(&metrics::LOADER_SAMPLE_BYTES), 2 * all_bytes as u64);
}

/// A system call.
#[derive(Debug)]
struct Call {
    /// The name of its thread.
    thread: String,
    name: String,
    /// The object of its first argument: a path, or the kind of a socket.
    file: String,
    result: i64,
}

/// Lets a child read `addresses`; returns what it says and its system calls. Prints a line and returns `None` where
/// there is no strace.
fn run_under_strace(addresses: &str, outside: &Path) -> Option<(HashMap<String, u64>, Vec<Call>)> {
    let log = outside.join("strace.log");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-y", "-qq", "-s", "64", "-o"]).arg(&log);
    strace.args(["-e", "trace=readv,pread64,prctl"]);
    let probe = Command::new("strace").args(["-o", "/dev/null", "true"]).output();
    if !probe.is_ok_and(|output| output.status.success()) {
        println!("SKIPPED: strace is not installed, or may not look at other processes");
        return None;
    }
    let child = again(child_reads_and_says_its_metrics);
    strace.arg(child.get_program()).args(child.get_args());
    let output = strace.env(CHILD, addresses).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let said = said.lines().filter_map(|line| {
        let (name, value) = line.split_once('=')?;
        Some((name.to_owned(), value.parse().ok()?))
    });
    Some((said.collect(), calls_of(&fs::read_to_string(&log).unwrap())))
}

fn calls_of(log: &str) -> Vec<Call> {
    let mut begun: BTreeMap<&str, &str> = BTreeMap::new();
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    let mut calls = Vec::new();
    for line in log.lines() {
        let (pid, rest) = line.split_once(' ').unwrap();
        let rest = rest.trim_start();
        if let Some(front) = rest.strip_suffix(" <unfinished ...>") {
            begun.insert(pid, front);
            continue;
        }
        let whole = match rest.split_once(" resumed>") {
            Some((_, back)) => format!("{}{back}", begun.remove(pid).unwrap()),
            None => rest.to_owned(),
        };
        let Some((call, result)) = whole.rsplit_once(" = ") else { continue };
        let Some((name, arguments)) = call.split_once('(') else { continue };
        if let Some(of) = arguments.strip_prefix("PR_SET_NAME, \"") {
            names.insert(pid.to_owned(), of.split('"').next().unwrap().to_owned());
        }
        let file = arguments.split_once('<').and_then(|(_, rest)| rest.split_once('>'));
        let Some(result) = result.split(' ').next().and_then(|text| text.parse().ok()) else {
            continue;
        };
        calls.push(Call {
            thread: names.get(pid).cloned().unwrap_or_default(),
            name: name.to_owned(),
            file: file.map_or("", |(file, _)| file).to_owned(),
            result,
        });
    }
    calls
}
