//! Paced runs from a cold start, beside what the simulator predicts for them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::cluster::{Cluster, Image, Setting};
use crate::sides::Read;
use crate::support::Options;

/// Prints prediction and measurement for each number of nodes, with and without peers.
pub(crate) fn compare(at: &Path, options: &Options, nodes: &[usize]) {
    let Some(simulator) = simulator() else { return };
    // As long as whole pages, so that no read brings a page's other half.
    let image = Image::import_with(at, SAMPLES, SAMPLE_BYTES, CHUNK_BYTES);
    let pace = options.number("pace-mb");
    let window_bytes = match options.number("window") {
        0 => WINDOW_BYTES,
        given => given,
    };
    println!(
        "\nTrainings from a cold start; each node reads {pace} MB/s at most. Predicted by dlfs-sim from the rates of \
         link and step. Both begin when the nodes have joined; windows of {} MiB.",
        window_bytes >> 20
    );
    println!(
        "\n| nodes | caches | epochs | origin bytes / data | predicted | seconds | predicted | error | start and join \
         before, s | first batch, s |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for &num in nodes {
        for (name, peers, quotas) in [
            ("peers, 1.3 of the data together", true, 1.3),
            ("a quarter each, no peers", false, num as f64 / 4.),
        ] {
            let setting =
                Setting { num, order: "global", peers, quotas, verify: false, window_bytes };
            let both = |epochs| {
                let config = config(&image, options, &setting, epochs);
                let predicted = Took::predicted(&simulator, &config, at, peers);
                let mut cluster = Cluster::start(&image, at, options, &setting);
                let (took, first_batch_s) = Took::measured(&mut cluster, epochs, pace);
                let set_up = format!("{:.2} | {first_batch_s:.2}", cluster.joined_s);
                (format!("1 to {epochs}"), took, predicted, set_up)
            };
            let short = both(SHORT);
            let long = both(LONG);
            let name_of_later = format!("{} to {LONG}", SHORT + 1);
            let later = (name_of_later, long.1 - short.1, long.2 - short.2, "|".to_owned());
            let of_data = |bytes: f64| bytes / image.live_bytes as f64;
            for (epochs, measured, predicted, set_up) in [short, long, later] {
                println!(
                    "| {num} | {name} | {epochs} | {:.3} | {:.3} | {:.2} | {:.2} | {:+.1} % | {set_up} |",
                    of_data(measured.bytes),
                    of_data(predicted.bytes),
                    measured.seconds,
                    predicted.seconds,
                    (predicted.seconds / measured.seconds - 1.) * 100.
                );
            }
        }
    }
    println!("Later epochs: the longer training less the shorter one.");
}

/// The same machines and the same job for the simulator, from the options of this bench alone.
fn config(image: &Image, options: &Options, setting: &Setting, epochs: u64) -> String {
    // A frame counts 1,514 bytes on the link, and 1,448 of them are data.
    let origin = options.number("origin-mb") as f64 * 1448. / 1514.;
    let quota = image.live_bytes as f64 * setting.quotas / setting.num as f64 / 1e6;
    let window = setting.window_bytes as f64 / 1e6;
    let num = setting.num;
    let batch = setting.num as u64 * options.number("batch");
    format!(
        "[environment]\nnodes = {num}\ncompute_mb_s = {pace}.0\npreprocess_mb_s = {MEMORY_MB_S}\n\
         network_mb_s = {MEMORY_MB_S}\norigin_link_mb_s = {MEMORY_MB_S}\norigin_mb_s = [[1, {origin}]]\n\
         [environment.staging]\ncapacity_mb = {window:.3}\nthreads = 64\nread_mb_s = [[1, {MEMORY_MB_S}]]\n\
         [[environment.tiers]]\ncapacity_mb = {quota:.6}\nthreads = 1\nread_mb_s = [[1, {MEMORY_MB_S}]]\n\
         [dataset]\nsamples = {samples}\nmean_mb = {mean}\n\
         [training]\nepochs = {epochs}\nbatch = {batch}\nseed = 11\n",
        pace = options.number("pace-mb"),
        samples = image.samples,
        mean = image.len as f64 / 1e6,
    )
}

/// The time and the bytes that a training from a cold start takes.
#[derive(Debug, Clone, Copy, Default)]
struct Took {
    seconds: f64,
    /// Bytes of the origin.
    bytes: f64,
}

impl std::ops::Sub for Took {
    type Output = Took;

    fn sub(self, less: Took) -> Took {
        Took { seconds: self.seconds - less.seconds, bytes: self.bytes - less.bytes }
    }
}

impl Took {
    /// Measures nodes that have just joined, from the request of the first batch to the end of the slowest node;
    /// returns the longest first batch, too.
    fn measured(cluster: &mut Cluster, epochs: u64, pace_mb_s: u64) -> (Took, f64) {
        let before = cluster.origin_bytes();
        let reads = cluster.read(0..epochs, pace_mb_s);
        let bytes = (cluster.origin_bytes() - before) as f64;
        let longest = |of: fn(&Read) -> f64| reads.iter().map(of).fold(0., f64::max);
        let seconds = longest(|read| read.first_batch_s + read.wall_s);
        (Took { seconds, bytes }, longest(|read| read.first_batch_s))
    }

    fn predicted(simulator: &Path, config: &str, at: &Path, peers: bool) -> Took {
        let file = at.join("machines.toml");
        std::fs::write(&file, config).expect("a file");
        let policy = if peers { "peers-by-hash" } else { "first-touch" };
        let arguments = ["--json", "run", "--policy", policy];
        let output = Command::new(simulator)
            .args(arguments)
            .arg(&file)
            .stderr(Stdio::inherit())
            .output()
            .expect("it runs");
        let said = String::from_utf8_lossy(&output.stdout);
        let number = |name: &str| number(&said, name);
        let bytes = number("origin_bytes") + number("filled_bytes");
        Took { seconds: number("seconds"), bytes }
    }
}

/// A number of the simulator's output.
pub(crate) fn number(said: &str, name: &str) -> f64 {
    let value = said.split_once(&format!("\"{name}\":")).map(|(_, rest)| rest);
    let value = value.and_then(|rest| rest.split([',', '}']).next()?.parse().ok());
    value.unwrap_or_else(|| panic!("dlfs-sim has failed, or prints no {name}: {said}"))
}

/// The command beside the folder of this program, or the one in the environment; says if there is none.
pub(crate) fn simulator() -> Option<PathBuf> {
    let named = std::env::var_os("DLFS_SIM").map(PathBuf::from);
    let own = std::env::current_exe().ok();
    let beside = own.and_then(|own| Some(own.parent()?.parent()?.join("dlfs-sim")));
    let found = named.or(beside).filter(|path| path.is_file());
    if found.is_none() {
        println!("\nSKIPPED: no dlfs-sim; build it with cargo build --release -p dlfs-sim");
    }
    found
}

/// The epochs of the two trainings.
const SHORT: u64 = 2;
const LONG: u64 = 12;
/// A small part of the data, as where data is large. Otherwise the nodes read all that they need at once, and two
/// processors are the machines of all.
const WINDOW_BYTES: u64 = 32 << 20;
const SAMPLES: u64 = 2_400;
const SAMPLE_BYTES: u64 = 28 << 12;
/// The simulator's.
const CHUNK_BYTES: u32 = 4 << 20;
/// The rate of everything that limits nothing here, such as memory and network.
const MEMORY_MB_S: &str = "5000.0";
