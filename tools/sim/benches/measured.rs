//! Compares the simulator with measurements: its lower bound, and its prediction of `dlfs read`.
//!
//! `cargo build --release -p dlfs-cli && cargo bench -p dlfs-sim --bench measured [-- bound|read]`.
//! The command `dlfs` is the one beside the bench's own folder, or `$DLFS`.
//!
//! - *bound*: the library with an origin throttled to 100 MB/s, a tier in memory for half of the
//!   data, five epochs, and compute emulated by sleeping; compared with the bound and the times
//!   that the simulator predicts for the same numbers.
//! - *read*: `dlfs probe` and `dlfs read` as processes against a target in this process whose
//!   namespace is throttled. The simulator gets the probed rates; the sizes come from the image's
//!   directory.

#[path = "../../../benches/support/origin.rs"]
mod origin;
#[path = "../../../benches/support/results.rs"]
mod results;
#[path = "../../../benches/support/throttle.rs"]
mod throttle;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlfs::address::Address;
use dlfs::cache::TierOptions;
use dlfs::dataset::{Image, OpenOptions};
use dlfs::order::{OrderKind, OrderSpec};
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::Device;
use dlfs::qpair::file::{FileNamespace, FileOptions};
use dlfs::reader::Batch;
use dlfs::target::{Target, TargetOptions};
use dlfs::tier;
use dlfs::units::Nsid;
use dlfs_sim::environment::{Class, Config, Dataset, Environment, Scheme, Sharing, Training};
use dlfs_sim::policy::{Policy, Simulation};
use origin::{in_memory_copy, make_files};
use throttle::Throttled;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    results::record("measured");
    let part = std::env::args().skip(1).find(|argument| !argument.starts_with("--"));
    let place = tempfile::tempdir()?;
    match part.as_deref() {
        None => {
            bound(place.path())?;
            read(place.path())
        }
        Some("bound") => bound(place.path()),
        Some("read") => read(place.path()),
        Some(other) => Err(format!("'{other}' is neither bound nor read").into()),
    }
}

/// One node whose samples need no decoding, as a configuration of the simulator.
fn config(origin_mb_s: f64, samples: u64, tier_bytes: u64, training: Training) -> Config {
    Config {
        environment: Environment {
            nodes: 1,
            compute_mb_s: IN_MEMORY_MB_S,
            preprocess_mb_s: IN_MEMORY_MB_S,
            network_mb_s: IN_MEMORY_MB_S,
            origin_link_mb_s: IN_MEMORY_MB_S,
            origin_mb_s: vec![(1, origin_mb_s)],
            origin_shared_by: Sharing::Transfers,
            origin_chunks_mb_s: None,
            staging: Class::new(WINDOW_BYTES as f64 / 1e6, 4, &[(1, IN_MEMORY_MB_S)]),
            tiers: vec![Class::new(tier_bytes as f64 / 1e6, 1, &[(1, IN_MEMORY_MB_S)])],
        },
        dataset: Dataset { samples, mean_mb: FILE_BYTES as f64 / 1e6, deviation_mb: 0.0 },
        training,
    }
}

fn training(epochs: u32, batch: u64) -> Training {
    Training { epochs, batch, scheme: Scheme::Uniform, drop_last: false, seed: SEED }
}

/// Data of twice the tier at 100 MB/s, five epochs, three compute speeds.
fn bound(place: &Path) -> Result<(), Failure> {
    const FILES: u64 = 1_000;
    let folder = place.join("few");
    make_files(&folder, FILES, FILE_BYTES)?;
    let quota = FILES / 2 * FILE_BYTES;
    println!("origin 100 MB/s, {FILES} samples of {FILE_BYTES} bytes, tier of half, 5 epochs");
    println!("| compute MB/s | policy | seconds | bound | over it | simulated | of no tiers |");
    println!("|---|---|---|---|---|---|---|");
    for compute in [80.0, 125.0, 200.0] {
        let mut config = config(100.0, FILES, quota, training(5, 16));
        config.environment.compute_mb_s = compute;
        let simulation = Simulation::new(&config)?;
        let bound = simulation.cache_bound();
        let mut none = 0.0;
        for (policy, simulated) in [
            (tier::Policy::None, Policy::StagingPool),
            (tier::Policy::FirstTouch, Policy::FirstTouch),
            (tier::Policy::Clairvoyant, Policy::Clairvoyant),
        ] {
            let took = train(&folder, policy, quota, compute)?;
            none = if policy == tier::Policy::None { took } else { none };
            let simulated = simulation.run(simulated)?.seconds;
            let over = (took / bound - 1.0) * 100.0;
            println!(
                "| {compute} | {policy:?} | {took:.2} | {bound:.2} | {over:+.1} % | {simulated:.2} | {:.2} |",
                none / took
            );
        }
    }
    Ok(())
}

/// Seconds of a training run over the files behind a throttle.
fn train(
    folder: &Path,
    policy: tier::Policy,
    quota_bytes: u64,
    compute_mb_s: f64,
) -> dlfs::Result<f64> {
    let image = Image::open(&[Address::from_path(folder)], &OpenOptions::default())?;
    // The same bytes in memory, so that only the throttle limits the rate.
    let device = in_memory_copy(&image.devices()[0])?;
    let throttled: Arc<dyn Device> = Arc::new(Throttled::new(device, 100_000_000));
    let tiers = vec![format!("ram:{quota_bytes}").parse()?];
    let tiers = TierOptions { tiers, policy, ..TierOptions::default() };
    let image = image.with_devices(vec![throttled]).with_tiers(&tiers)?;
    let order = OrderSpec { kind: OrderKind::Global, seed: SEED };
    let options = LoaderOptions { window_bytes: WINDOW_BYTES, ..LoaderOptions::new(order, 16, 5) };
    let mut loader = image.prefetcher(options)?;
    let began = Instant::now();
    let mut batch = Batch::new();
    let mut busy_until = began;
    while loader.next_into(&mut batch)? {
        let time = Duration::from_secs_f64(batch.len_bytes() as f64 / (compute_mb_s * 1e6));
        busy_until = busy_until.max(Instant::now()) + time;
        std::thread::sleep(busy_until.saturating_duration_since(Instant::now()));
    }
    Ok(began.elapsed().as_secs_f64())
}

/// `dlfs read` at three rates of the origin: without tiers in both orders, and with both policies in global order.
fn read(place: &Path) -> Result<(), Failure> {
    let Some(command) = command() else {
        println!("SKIPPED: no command dlfs; build it with cargo build --release -p dlfs-cli");
        return Ok(());
    };
    let folder = place.join("many");
    let image = place.join("many.dlfs");
    make_files(&folder, FILES, FILE_BYTES)?;
    command.run(&["import", "--quiet", text(&folder), text(&image)])?;
    let file: Arc<dyn Device> = Arc::new(FileNamespace::open(&image, FileOptions::default())?);
    let sizes = sizes(&image)?;
    let quota = format!("ram:{}", FILES / 2 * FILE_BYTES);
    let reads = command.reads(&target(Arc::clone(&file), u64::MAX)?, "none", &quota, "global")?;
    println!(
        "\ndlfs read of {FILES} samples of {FILE_BYTES} bytes over NVMe/TCP, tier in memory for half"
    );
    println!(
        "of them, {EPOCHS} epochs; unthrottled and without tiers it takes {:.0} MB/s",
        reads.mb_s
    );
    println!("| origin MB/s | order | tiers | simulated s an epoch | measured | error |");
    println!("|---|---|---|---|---|---|");
    let mut errors: Vec<f64> = Vec::new();
    for mb_s in [100, 200, 400] {
        let target = target(Arc::clone(&file), mb_s * 1_000_000)?;
        let probed = command.run(&["probe", &text_of(&target), "--tier", &quota])?;
        let probed = dlfs::cache::Environment::parse(&probed)?;
        let mut config = config(0.0, FILES, 0, training(EPOCHS, BATCH));
        config.environment.compute_mb_s = reads.mb_s;
        config.environment = config.environment.with_probed(&probed)?;
        let simulation = Simulation::with_sizes(&config, sizes.clone())?;
        for (order, policy, simulated) in [
            ("global", "none", Policy::StagingPool),
            ("grouped", "none", Policy::Grouped),
            ("global", "first-touch", Policy::FirstTouch),
            ("global", "clairvoyant", Policy::Clairvoyant),
        ] {
            let simulated = simulation.run(simulated)?.seconds / f64::from(EPOCHS);
            let measured =
                command.reads(&target, policy, &quota, order)?.seconds / f64::from(EPOCHS);
            let error = (simulated / measured - 1.0) * 100.0;
            println!(
                "| {mb_s} | {order} | {policy} | {simulated:.3} | {measured:.3} | {error:+.1} % |"
            );
            errors.push(error.abs());
        }
    }
    let mean = errors.iter().sum::<f64>() / errors.len() as f64;
    let most = errors.iter().copied().fold(0.0, f64::max);
    println!(
        "error of {} configurations: {mean:.1} % in the mean, {most:.1} % at most",
        errors.len()
    );
    Ok(())
}

/// The command `dlfs`.
struct Dlfs(PathBuf);

/// The report of a `dlfs read`.
struct Reads {
    seconds: f64,
    mb_s: f64,
}

/// The command beside the folder of this program, or the one in the environment.
fn command() -> Option<Dlfs> {
    let named = std::env::var_os("DLFS").map(PathBuf::from);
    let own = std::env::current_exe().ok();
    let beside = own.and_then(|own| Some(own.parent()?.parent()?.join("dlfs")));
    named.or(beside).filter(|path| path.is_file()).map(Dlfs)
}

impl Dlfs {
    fn run(&self, arguments: &[&str]) -> Result<String, Failure> {
        let output = Command::new(&self.0).args(arguments).output()?;
        if output.status.success() {
            Ok(String::from_utf8(output.stdout)?)
        } else {
            Err(format!("{arguments:?}: {}", String::from_utf8_lossy(&output.stderr)).into())
        }
    }

    fn reads(
        &self,
        target: &Target,
        policy: &str,
        tier: &str,
        order: &str,
    ) -> Result<Reads, Failure> {
        // Grouped order holds 8 lanes of 4 chunks of 4 MiB.
        let window = if order == "grouped" { 160 << 20 } else { WINDOW_BYTES };
        let address = text_of(target);
        let window = window.to_string();
        let seed = SEED.to_string();
        let epochs = EPOCHS.to_string();
        let batch = BATCH.to_string();
        let mut arguments = vec!["read", &address, "--quiet", "--json", "--order", order];
        arguments.extend(["--seed", &seed, "--epochs", &epochs, "--batch-size", &batch]);
        arguments.extend(["--window", &window]);
        if policy != "none" {
            arguments.extend(["--policy", policy, "--tier", tier]);
        }
        let report: serde_json::Value = serde_json::from_str(&self.run(&arguments)?)?;
        let number = |name: &str| report[name].as_f64().ok_or(format!("no {name}: {report}"));
        let seconds = number("seconds")?;
        Ok(Reads { seconds, mb_s: number("bytes")? / seconds / 1e6 })
    }
}

/// A target in this process with one namespace at `bytes_per_s`.
fn target(device: Arc<dyn Device>, bytes_per_s: u64) -> Result<Target, Failure> {
    let throttled: Arc<dyn Device> = Arc::new(Throttled::new(device, bytes_per_s));
    let options = TargetOptions::new("nqn.2026-11.io.dlfs:measured".parse()?);
    Ok(Target::bind(options, vec![throttled])?)
}

fn text_of(target: &Target) -> String {
    target.address(Nsid(1)).to_string()
}

/// Sizes of all samples, from the image's own directory.
fn sizes(image: &Path) -> Result<Vec<u32>, Failure> {
    let image = Image::open(&[Address::from_path(image)], &OpenOptions::default())?;
    let directory = image.directory();
    let ids = (0..directory.num_live()).map(|rank| directory.id_of_live(rank));
    Ok(ids.map(|id| directory.len_bytes(id).unwrap_or(0)).collect())
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a temporary folder has a name of letters")
}

const FILES: u64 = 1_800;
const FILE_BYTES: u64 = 110_592; // 27 blocks: about an image of ImageNet
const EPOCHS: u32 = 4;
const BATCH: u64 = 64;
const SEED: u64 = 5;
const WINDOW_BYTES: usize = 32 << 20;

/// Data in memory that need no decoding are read at the speed of memory.
const IN_MEMORY_MB_S: f64 = 5_000.0;
