//! Paced runs from a cold start, beside what the simulator predicts for them.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cluster::{Cluster, Image, Setting};
use crate::sides::Read;
use crate::support::Options;

/// Prints prediction and measurement for each number of nodes, with and without peers.
pub(crate) fn compare(at: &Path, options: &Options, nodes: &[usize]) {
    let Some(simulator) = simulator() else {
        println!("\nSKIPPED: no dlfs-sim; build it with cargo build --release -p dlfs-sim");
        return;
    };
    // As long as whole pages, so that no read brings a page's other half.
    let image = Image::import_with(at, SAMPLES, SAMPLE_BYTES, CHUNK_BYTES);
    let pace = options.number("pace-mb");
    println!(
        "\nEach node reads {pace} MB/s at most; predicted by dlfs-sim from the rates of link and step. It knows no \
         connections to set up."
    );
    println!(
        "\n| nodes | caches | epochs | origin bytes / data | predicted | seconds | predicted | error |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for &num in nodes {
        for (name, peers, quotas) in [
            ("peers, 1.3 of the data together", true, 1.3),
            ("a quarter each, no peers", false, num as f64 / 4.),
        ] {
            let setting = Setting { num, order: "global", peers, quotas, verify: false };
            let mut cluster = Cluster::start(&image, at, options, &setting);
            let (mut sent, mut before) = (cluster.origin_bytes(), Predicted::default());
            for (epochs, which) in [(0..2, "1 and 2, from a cold start"), (2..4, "3 and 4")] {
                let config = config(&image, options, &setting, epochs.end);
                let all = Predicted::of(&simulator, &config, at, peers);
                let reads = cluster.read(epochs, pace);
                let total = |read: &Read| read.first_batch_s + read.wall_s;
                let measured = reads.iter().map(total).fold(0., f64::max);
                let now = cluster.origin_bytes();
                let of_data = |bytes: f64| bytes / image.live_bytes as f64;
                let (seconds, bytes) = (all.seconds - before.seconds, all.bytes - before.bytes);
                println!(
                    "| {num} | {name} | {which} | {:.3} | {:.3} | {measured:.2} | {seconds:.2} | {:+.1} % |",
                    of_data((now - sent) as f64),
                    of_data(bytes),
                    (seconds / measured - 1.) * 100.
                );
                (sent, before) = (now, all);
            }
        }
    }
}

/// The same machines and the same job for the simulator, from the options of this bench alone.
fn config(image: &Image, options: &Options, setting: &Setting, epochs: u64) -> String {
    // Of each frame of 1,514 bytes that the link counts, 1,448 are data.
    let origin = options.number("origin-mb") as f64 * 1448. / 1514.;
    let quota = image.live_bytes as f64 * setting.quotas / setting.num as f64 / 1e6;
    let window = match options.number("window") {
        0 => 256. * 1.048_576,
        bytes => bytes as f64 / 1e6,
    };
    let (num, batch) = (setting.num, setting.num as u64 * options.number("batch"));
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

/// What the simulator says.
#[derive(Debug, Clone, Copy, Default)]
struct Predicted {
    seconds: f64,
    /// Bytes of the origin.
    bytes: f64,
}

impl Predicted {
    fn of(simulator: &Path, config: &str, at: &Path, peers: bool) -> Predicted {
        let file = at.join("machines.toml");
        std::fs::write(&file, config).expect("a file");
        let policy = if peers { "peers-by-hash" } else { "first-touch" };
        let arguments = ["--json", "run", "--policy", policy];
        let output = Command::new(simulator).args(arguments).arg(&file).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let number = |name: &str| -> f64 {
            let value = said.split_once(&format!("\"{name}\":")).map(|(_, rest)| rest);
            let value = value.and_then(|rest| rest.split([',', '}']).next()?.parse().ok());
            value.unwrap_or_else(|| {
                panic!("dlfs-sim: {said}{}\n{config}", String::from_utf8_lossy(&output.stderr))
            })
        };
        let bytes = number("origin_bytes") + number("filled_bytes");
        Predicted { seconds: number("seconds"), bytes }
    }
}

/// The command beside the folder of this program, or the one in the environment.
fn simulator() -> Option<PathBuf> {
    let named = std::env::var_os("DLFS_SIM").map(PathBuf::from);
    let own = std::env::current_exe().ok();
    let beside = own.and_then(|own| Some(own.parent()?.parent()?.join("dlfs-sim")));
    named.or(beside).filter(|path| path.is_file())
}

const SAMPLES: u64 = 2_400;
const SAMPLE_BYTES: u64 = 28 << 12;
/// The simulator's.
const CHUNK_BYTES: u32 = 4 << 20;
/// Of what limits nothing here.
const MEMORY_MB_S: &str = "5000.0";
