//! The command `dlfs-sim`: predicts how long a training takes on hypothetical machines.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};
use comfy_table::{CellAlignment, Table, presets};
use dlfs::address::Address;
use dlfs::dataset::{Image, OpenOptions};
use dlfs::report::text::safe_text;
use dlfs_sim::environment::{Config, Dataset};
use dlfs_sim::policy::{Policy, Simulation};
use dlfs_sim::search::{self, Prices};
use dlfs_sim::thesis;

/// Simulates how prefetching and caching policies feed a training.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Compare with the tables of the HDMLP thesis.
    Thesis {
        /// Only this scenario, 1 to 4.
        #[arg(long)]
        scenario: Option<u32>,
        /// Only the thesis's policies, not dlfs's.
        #[arg(long)]
        thesis_only: bool,
    },
    /// Simulate what `dlfs read` does with machines, data set and training of a TOML file.
    Run {
        /// The file; `dlfs-sim config` prints an example.
        config: PathBuf,
        /// Only these policies.
        #[arg(long, value_enum, value_delimiter = ',')]
        policy: Vec<Policy>,
        /// All policies, also those that `dlfs read` does not have.
        #[arg(long, conflicts_with = "policy")]
        all: bool,
        #[command(flatten)]
        input: InputArgs,
    },
    /// Simulate one policy with many tier sizes; without a file, the sweep of the thesis.
    Sweep {
        /// The file, with rates for two tiers.
        config: Option<PathBuf>,
        #[command(flatten)]
        input: InputArgs,
        /// The policy [default: peers-by-hash; hdmlp for the sweep of the thesis].
        #[arg(long, value_enum)]
        policy: Option<Policy>,
        /// Memory sizes per node, in GB.
        #[arg(long, value_delimiter = ',')]
        memory_gb: Vec<f64>,
        /// Disk sizes per node, in GB.
        #[arg(long, value_delimiter = ',')]
        disk_gb: Vec<f64>,
    },
    /// Find the cheapest tiers that reach a fraction of the lower bound's speed.
    Advise(AdviseArgs),
    /// Print the configuration of a scenario of the thesis as TOML.
    Config {
        /// 1 to 4.
        #[arg(long, default_value_t = 2)]
        scenario: u32,
        /// Nodes, instead of the scenario's.
        #[arg(long)]
        nodes: Option<u32>,
        #[command(flatten)]
        input: InputArgs,
    },
}

#[derive(Debug, Args)]
struct AdviseArgs {
    /// The file, with rates for two tiers and their cost_per_gb, the cost of 1,000 MB of each.
    config: PathBuf,
    #[command(flatten)]
    input: InputArgs,
    /// The required speed, as a fraction of the lower bound's.
    #[arg(long, default_value_t = 0.95)]
    fraction: f64,
    /// The policy, one that `dlfs read` has.
    #[arg(long, value_enum, default_value = "peers-by-hash")]
    policy: Policy,
    /// Memory sizes per node, in GB [default: 0,8,16,32,64,128,256,512, if the file has a tier].
    #[arg(long, value_delimiter = ',')]
    memory_gb: Option<Vec<f64>>,
    /// Disk sizes per node, in GB [default: 0,64,128,256,512,1024,2048, if the file has a second tier].
    #[arg(long, value_delimiter = ',')]
    disk_gb: Option<Vec<f64>>,
    /// The cost of a GB of memory, overriding the file [default: 4, if the file has none].
    #[arg(long)]
    memory_price: Option<f64>,
    /// The cost of a GB of disk, overriding the file [default: 0.1, if the file has none].
    #[arg(long)]
    disk_price: Option<f64>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let is_unread = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
            if !error.downcast_ref().is_some_and(is_unread) {
                complain(&safe_text(&error.to_string()));
            }
            ExitCode::from(2)
        }
    }
}

type Failure = Box<dyn std::error::Error>;

/// Prints a line to standard error, which may have no reader.
fn complain(text: &str) {
    let _ = writeln!(io::stderr(), "dlfs-sim: {text}"); // the exit code reports errors too
}

fn run(arguments: &Arguments) -> Result<(), Failure> {
    let json = arguments.json;
    match &arguments.command {
        Command::Thesis { scenario, thesis_only } => print_thesis(*scenario, *thesis_only, json),
        Command::Run { config, policy, all, input } => {
            let machines = input.machines(read_config(config)?)?;
            let simulation = Simulation::with_sizes(&machines, input.sizes(&machines)?)?;
            let name = config.display().to_string();
            let of_program = [&[Policy::LowerBound], Policy::of_program()].concat();
            let policies = match (&policy[..], all) {
                (_, true) => Policy::value_variants(),
                ([], false) => &of_program,
                (policies, false) => policies,
            };
            print_results(&name, &simulation, policies, json)
        }
        Command::Sweep { config, input, policy, memory_gb, disk_gb } => {
            sweep(config.as_deref(), input, *policy, (memory_gb, disk_gb), json)
        }
        Command::Advise(arguments) => advise(arguments, json),
        Command::Config { scenario, nodes, input } => {
            let mut config = thesis::config(*scenario)?;
            config.environment.nodes = nodes.unwrap_or(config.environment.nodes);
            let mut config = input.machines(config)?;
            if input.dataset.is_some() {
                config.dataset = Dataset::like(&input.sizes(&config)?);
            }
            write!(io::stdout(), "{}", toml::to_string(&config)?)?;
            Ok(())
        }
    }
}

fn advise(arguments: &AdviseArgs, json: bool) -> Result<(), Failure> {
    let AdviseArgs { config, input, fraction, policy, memory_gb, disk_gb, .. } = arguments;
    if !Policy::of_program().contains(policy) {
        let name = |policy: &Policy| policy.to_possible_value().map(|it| it.get_name().to_owned());
        let of_program: Vec<String> = Policy::of_program().iter().filter_map(name).collect();
        return Err(format!(
            "advice is for what `dlfs read` does: --policy {}; `dlfs-sim sweep` takes any policy",
            of_program.join(", ")
        )
        .into());
    }
    if !(*fraction > 0.0 && *fraction <= 1.0) {
        return Err(format!("--fraction is above 0 and at most 1, not {fraction}").into());
    }
    let mut config = input.machines(read_config(config)?)?;
    let prices = [arguments.memory_price, arguments.disk_price];
    for (tier, price) in config.environment.tiers.iter_mut().zip(prices) {
        tier.cost_per_gb = price.or(tier.cost_per_gb);
    }
    let prices = Prices::of(&config)?;
    let sizes = input.sizes(&config)?;
    let num_tiers = config.environment.tiers.len();
    let sizes_or = |given: &Option<Vec<f64>>, has_tier, default: &[f64]| match given {
        Some(sizes) => in_mb(sizes),
        None if has_tier => in_mb(default),
        None => vec![0.0],
    };
    let memory = sizes_or(memory_gb, num_tiers > 0, &MEMORY_GB);
    let disk = sizes_or(disk_gb, num_tiers > 1, &DISK_GB);
    let advice = search::advise(&config, &sizes, *policy, &memory, &disk, prices, *fraction)?;
    print_advice(&advice, json)
}

fn sweep(
    config: Option<&Path>,
    input: &InputArgs,
    policy: Option<Policy>,
    (memory_gb, disk_gb): (&[f64], &[f64]),
    json: bool,
) -> Result<(), Failure> {
    let is_bare = memory_gb.is_empty() && disk_gb.is_empty();
    let Some(config) = config else {
        return if is_bare && !input.is_given() {
            print_sweep_of_thesis(policy.unwrap_or(Policy::Hdmlp), json)
        } else {
            Err("the thesis's sweep has its own machines and sizes: name a file".into())
        };
    };
    if memory_gb.is_empty() || disk_gb.is_empty() {
        return Err("which sizes? --memory-gb 0,32,64 --disk-gb 0,256".into());
    }
    let config = input.machines(read_config(config)?)?;
    let sizes = input.sizes(&config)?;
    let policy = policy.unwrap_or(Policy::PeersByHash);
    let points = search::sweep(&config, &sizes, policy, &in_mb(memory_gb), &in_mb(disk_gb))?;
    print_sweep(&points, None, json)
}

fn print_thesis(scenario: Option<u32>, thesis_only: bool, json: bool) -> Result<(), Failure> {
    let policies = if thesis_only { Policy::of_thesis() } else { Policy::value_variants() };
    let scenarios = scenario.map_or(vec![1, 2, 3, 4], |scenario| vec![scenario]);
    let tables = scenarios.into_iter().map(|scenario| thesis::table(scenario, policies));
    let tables: Vec<thesis::Table> = tables.collect::<Result<_, _>>()?;
    for table in &tables {
        if json {
            writeln!(io::stdout(), "{}", serde_json::to_string(table)?)?;
            continue;
        }
        writeln!(io::stdout(), "Scenario {}", table.scenario)?;
        let mut text = text_table(&["policy", "seconds", "thesis", "ratio"]);
        for row in &table.rows {
            let cell = |value: Option<f64>, digits| {
                value.map_or("N/A".to_owned(), |value| format!("{value:.digits$}"))
            };
            let ratio = row.ratio.map_or(String::new(), |ratio| format!("{ratio:.4}"));
            let is_ours = Policy::of_thesis().iter().all(|policy| policy.name() != row.policy);
            let printed = if is_ours { String::new() } else { cell(row.thesis, 2) };
            text.add_row([row.policy, &cell(row.seconds, 2), &printed, &ratio]);
        }
        writeln!(io::stdout(), "{text}\n")?;
    }
    Ok(())
}

fn print_sweep_of_thesis(policy: Policy, json: bool) -> Result<(), Failure> {
    use search::thesis::{DISK_MB, MEMORY_MB, PRINTED, config};
    let config = config();
    let sizes = config.dataset.sizes(config.training.seed)?;
    let points = search::sweep(&config, &sizes, policy, &MEMORY_MB, &DISK_MB)?;
    print_sweep(&points, Some(&PRINTED), json)
}

/// Prints a sweep, with the times `printed` in the thesis if it has them.
fn print_sweep(
    points: &[search::Point],
    printed: Option<&[f64]>,
    json: bool,
) -> Result<(), Failure> {
    if json {
        writeln!(io::stdout(), "{}", serde_json::to_string(points)?)?;
        return Ok(());
    }
    let mut text = text_table(&["memory GB", "disk GB", "seconds", "thesis", "ratio"]);
    for (index, point) in points.iter().enumerate() {
        let printed = printed.map(|printed| printed[index]);
        text.add_row([
            format!("{:.1}", point.memory_mb / 1e3),
            format!("{:.1}", point.disk_mb / 1e3),
            format!("{:.2}", point.seconds),
            printed.map_or(String::new(), |printed| format!("{printed:.1}")),
            printed.map_or(String::new(), |printed| format!("{:.4}", point.seconds / printed)),
        ]);
    }
    writeln!(io::stdout(), "{text}")?;
    Ok(())
}

fn print_advice(advice: &search::Advice, json: bool) -> Result<(), Failure> {
    if json {
        writeln!(io::stdout(), "{}", serde_json::to_string(advice)?)?;
        return Ok(());
    }
    writeln!(
        io::stdout(),
        "lower bound: {:.2} s; {} environments simulated",
        advice.bound_seconds,
        advice.simulated
    )?;
    let describe = |point: &search::Point| {
        let memory = point.memory_mb / 1e3;
        let disk = point.disk_mb / 1e3;
        let reached = advice.bound_seconds / point.seconds * 100.0;
        format!(
            "{memory} GB of memory, {disk} GB of disk: {:.2} s, {reached:.1} % of the bound's speed",
            point.seconds
        )
    };
    match (&advice.cheapest, &advice.fastest) {
        (Some((point, cost)), _) => {
            writeln!(io::stdout(), "cheapest: {}, costs {cost:.2}", describe(point))?
        }
        (None, Some(point)) => {
            writeln!(io::stdout(), "none is fast enough; fastest: {}", describe(point))?
        }
        (None, None) => writeln!(io::stdout(), "no environment was given")?,
    }
    Ok(())
}

fn print_results(
    name: &str,
    simulation: &Simulation,
    policies: &[Policy],
    json: bool,
) -> Result<(), Failure> {
    let bound = simulation.cache_bound();
    let results = policies.iter().map(|&policy| (policy, simulation.run(policy)));
    if json {
        let rows = results.map(|(policy, result)| match result {
            Ok(outcome) => serde_json::json!({"policy": policy.name(), "outcome": outcome}),
            Err(error) => {
                serde_json::json!({"policy": policy.name(), "error": error.to_string()})
            }
        });
        let rows: Vec<serde_json::Value> = rows.collect();
        let report = serde_json::json!({"name": name, "cache_bound_seconds": bound, "rows": rows});
        writeln!(io::stdout(), "{report}")?;
        return Ok(());
    }
    writeln!(io::stdout(), "{name}; with tiers of this size nothing takes less than {bound:.2} s")?;
    let header = ["policy", "seconds", "load", "local MB", "remote MB", "origin MB", "filled MB"];
    let mut text = text_table(&header);
    let mut notes = Vec::new();
    for (policy, result) in results {
        match result {
            Ok(outcome) => {
                let mb = |bytes: u64| format!("{:.0}", bytes as f64 / 1e6);
                text.add_row([
                    policy.name().to_owned(),
                    format!("{:.2}", outcome.seconds),
                    format!("{:.2}", outcome.load_seconds),
                    mb(outcome.local_bytes),
                    mb(outcome.remote_bytes),
                    mb(outcome.origin_bytes),
                    mb(outcome.filled_bytes),
                ]);
            }
            Err(error) => {
                text.add_row([policy.name(), "N/A"]);
                notes.push(format!("{}: {error}", policy.name()));
            }
        }
    }
    writeln!(io::stdout(), "{text}")?;
    notes.iter().try_for_each(|note| writeln!(io::stdout(), "{note}"))?;
    writeln!(io::stdout())?;
    Ok(())
}

fn text_table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header(header);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Sizes in MB, of sizes in GB.
fn in_mb(gb: &[f64]) -> Vec<f64> {
    gb.iter().map(|gb| gb * 1e3).collect()
}

/// The sizes that `advise` tries by default.
const MEMORY_GB: [f64; 8] = [0.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0];
const DISK_GB: [f64; 7] = [0.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0];

/// Measured machines and real sizes, which replace those of the configuration.
#[derive(Debug, Clone, Default, Args)]
struct InputArgs {
    /// Take the tiers, and the origin if it was measured, from FILE, as written by `dlfs probe`
    #[arg(long, value_name = "FILE")]
    tiers: Option<PathBuf>,
    /// Take the sizes of the samples of this data set instead of random ones: ADDRESS[,ADDRESS...], or a plain folder
    #[arg(long, value_name = "IMAGE")]
    dataset: Option<String>,
}

impl InputArgs {
    /// `config` with the measured tiers and, if measured, the origin.
    fn machines(&self, config: Config) -> Result<Config, Failure> {
        let Some(file) = &self.tiers else { return Ok(config) };
        let probed = dlfs::cache::Environment::parse(&read(file)?)
            .map_err(|error| format!("{}: {}", file.display(), error.report()))?;
        if probed.copy_bandwidth.is_some() {
            complain("copy_bandwidth is not simulated: copying takes what is free");
        }
        let environment = config.environment.with_probed(&probed)?;
        Ok(Config { environment, ..config })
    }

    /// Returns whether any input was given.
    fn is_given(&self) -> bool {
        self.tiers.is_some() || self.dataset.is_some()
    }

    /// The sizes of all samples in bytes: real sizes, or sizes drawn by `config`.
    fn sizes(&self, config: &Config) -> Result<Vec<u32>, Failure> {
        let Some(dataset) = &self.dataset else {
            return Ok(config.dataset.sizes(config.training.seed)?);
        };
        let sizes = sizes_of_image(dataset)?;
        if sizes.is_empty() { Err(format!("{dataset} has no sample").into()) } else { Ok(sizes) }
    }
}

/// Reads a configuration file.
fn read_config(path: &Path) -> Result<Config, Failure> {
    let text = read(path)?;
    Ok(toml::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?)
}

fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()).into())
}

/// Sizes of the live samples of an image, in the order of their ids.
fn sizes_of_image(addresses: &str) -> Result<Vec<u32>, Failure> {
    let fail = |error: dlfs::Error| format!("{addresses}: {}", error.report());
    let image =
        Image::open(&Address::parse_list(addresses)?, &OpenOptions::default()).map_err(fail)?;
    let directory = image.directory();
    let ids = (0..directory.num_live()).map(|rank| directory.id_of_live(rank));
    Ok(ids.map(|id| directory.len_bytes(id).unwrap_or(0)).collect())
}
