//! The command `dlfs-sim`: what would a training take on machines that are not there?

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};
use comfy_table::{CellAlignment, Table, presets};
use dlfs_sim::chart::{self, Panel};
use dlfs_sim::environment::Config;
use dlfs_sim::policy::{Policy, PolicyError, Simulation};
use dlfs_sim::sc21::SETUPS;
use dlfs_sim::search::{self, Prices};
use dlfs_sim::thesis;

/// Simulates how policies of prefetching and caching feed a training.
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
    /// The tables of the HDMLP thesis beside ours.
    Thesis {
        /// Only this scenario, 1 to 4.
        #[arg(long)]
        scenario: Option<u32>,
        /// Only the thesis's policies, not dlfs's.
        #[arg(long)]
        thesis_only: bool,
        /// Write a chart too.
        #[arg(long)]
        svg: Option<PathBuf>,
    },
    /// The set-ups of SC'21.
    Sc21 {
        /// Only this data set: mnist, imagenet-1k, openimages, imagenet-22k, cosmoflow, cosmoflow-512.
        #[arg(long)]
        dataset: Option<String>,
        /// Epochs; the paper prints none.
        #[arg(long, default_value_t = 5)]
        epochs: u32,
        /// Only these policies.
        #[arg(long, value_enum, value_delimiter = ',')]
        policy: Vec<Policy>,
        /// Write a chart too.
        #[arg(long)]
        svg: Option<PathBuf>,
    },
    /// Policies on machines, data set and training of a TOML file.
    Run {
        /// The file; `dlfs-sim config` prints one to begin with.
        config: PathBuf,
        /// Only these policies.
        #[arg(long, value_enum, value_delimiter = ',')]
        policy: Vec<Policy>,
        /// Take the sizes of the files below this folder instead of drawn ones.
        #[arg(long)]
        folder: Option<PathBuf>,
        /// Write a chart too.
        #[arg(long)]
        svg: Option<PathBuf>,
    },
    /// One policy with many tier sizes; without a file, the sweep of the thesis.
    Sweep {
        /// The file, with rates for two tiers.
        config: Option<PathBuf>,
        /// The policy.
        #[arg(long, value_enum, default_value = "hdmlp")]
        policy: Policy,
        /// Memory sizes of a node, in GB.
        #[arg(long, value_delimiter = ',')]
        memory_gb: Vec<f64>,
        /// Disk sizes of a node, in GB.
        #[arg(long, value_delimiter = ',')]
        disk_gb: Vec<f64>,
    },
    /// The cheapest tiers that reach a fraction of the lower bound's speed.
    Advise {
        /// The file, with rates for two tiers.
        config: PathBuf,
        /// Wanted speed, as a fraction of the lower bound's.
        #[arg(long, default_value_t = 0.95)]
        fraction: f64,
        /// The policy.
        #[arg(long, value_enum, default_value = "clairvoyant")]
        policy: Policy,
        /// Memory sizes of a node, in GB.
        #[arg(long, value_delimiter = ',', default_value = "0,8,16,32,64,128,256,512")]
        memory_gb: Vec<f64>,
        /// Disk sizes of a node, in GB.
        #[arg(long, value_delimiter = ',', default_value = "0,64,128,256,512,1024,2048")]
        disk_gb: Vec<f64>,
        /// Price of a GB of memory.
        #[arg(long, default_value_t = 4.0)]
        memory_price: f64,
        /// Price of a GB of disk.
        #[arg(long, default_value_t = 0.1)]
        disk_price: f64,
    },
    /// Print the configuration of a scenario of the thesis as TOML.
    Config {
        /// 1 to 4.
        #[arg(long, default_value_t = 2)]
        scenario: u32,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("dlfs-sim: {error}");
            ExitCode::from(2)
        }
    }
}

type Failure = Box<dyn std::error::Error>;

fn run(arguments: &Arguments) -> Result<(), Failure> {
    let json = arguments.json;
    match &arguments.command {
        Command::Thesis { scenario, thesis_only, svg } => {
            print_thesis(*scenario, *thesis_only, svg.as_deref(), json)
        }
        Command::Sc21 { dataset, epochs, policy, svg } => {
            print_sc21(dataset.as_deref(), *epochs, policy, svg.as_deref(), json)
        }
        Command::Run { config, policy, folder, svg } => {
            let simulation = match folder {
                None => Simulation::new(&read_config(config)?)?,
                Some(folder) => {
                    Simulation::with_sizes(&read_config(config)?, sizes_below(folder)?)?
                }
            };
            let name = config.display().to_string();
            let results = simulate(&simulation, policy);
            write_chart(svg.as_deref(), &[panel(&name, &results)])?;
            print_results(&name, simulation.cache_bound(), &results, json)
        }
        Command::Sweep { config, policy, memory_gb, disk_gb } => {
            print_sweep(config.as_deref(), *policy, memory_gb, disk_gb, json)
        }
        Command::Advise {
            config,
            fraction,
            policy,
            memory_gb,
            disk_gb,
            memory_price,
            disk_price,
        } => {
            if !(*fraction > 0.0 && *fraction <= 1.0) {
                return Err(format!("a fraction is above 0 and at most 1, not {fraction}").into());
            }
            if !(*memory_price >= 0.0 && *disk_price >= 0.0) {
                return Err("a price is not negative".into());
            }
            let prices = Prices { memory_gb: *memory_price, disk_gb: *disk_price };
            let (memory, disk) = (in_mb(memory_gb), in_mb(disk_gb));
            let config = read_config(config)?;
            let advice = search::advise(&config, *policy, &memory, &disk, prices, *fraction)?;
            print_advice(&advice, json)
        }
        Command::Config { scenario } => {
            print!("{}", toml::to_string(&thesis::config(*scenario)?)?);
            Ok(())
        }
    }
}

fn print_thesis(
    scenario: Option<u32>,
    thesis_only: bool,
    svg: Option<&Path>,
    json: bool,
) -> Result<(), Failure> {
    let policies = if thesis_only { Policy::of_thesis() } else { Policy::value_variants() };
    let scenarios = scenario.map_or(vec![1, 2, 3, 4], |scenario| vec![scenario]);
    let tables = scenarios.into_iter().map(|scenario| thesis::table(scenario, policies));
    let tables: Vec<thesis::Table> = tables.collect::<Result<_, _>>()?;
    let panels = tables.iter().map(|table| {
        let rows = table
            .rows
            .iter()
            .filter_map(|row| Some((row.policy.to_owned(), row.seconds?, row.thesis)));
        Panel { title: format!("Scenario {}", table.scenario), bars: rows.collect() }
    });
    write_chart(svg, &panels.collect::<Vec<_>>())?;
    for table in &tables {
        if json {
            println!("{}", serde_json::to_string(table)?);
            continue;
        }
        println!("Scenario {}", table.scenario);
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
        println!("{text}\n");
    }
    Ok(())
}

fn print_sc21(
    dataset: Option<&str>,
    epochs: u32,
    policies: &[Policy],
    svg: Option<&Path>,
    json: bool,
) -> Result<(), Failure> {
    let wanted = |name: &str| dataset.is_none_or(|dataset| dataset == name);
    let mut panels = Vec::new();
    for setup in SETUPS.iter().filter(|setup| wanted(setup.name)) {
        let simulation = Simulation::new(&setup.config(epochs))?;
        let results = simulate(&simulation, policies);
        print_results(setup.name, simulation.cache_bound(), &results, json)?;
        panels.push(panel(setup.name, &results));
    }
    if panels.is_empty() {
        let names: Vec<&str> = SETUPS.iter().map(|setup| setup.name).collect();
        return Err(format!("no such data set; there are {}", names.join(", ")).into());
    }
    write_chart(svg, &panels)
}

fn print_sweep(
    config: Option<&Path>,
    policy: Policy,
    memory_gb: &[f64],
    disk_gb: &[f64],
    json: bool,
) -> Result<(), Failure> {
    let points = match config {
        Some(config) => {
            let config = read_config(config)?;
            search::sweep(&config, policy, &in_mb(memory_gb), &in_mb(disk_gb))?
        }
        None => {
            use search::thesis::{DISK_MB, MEMORY_MB, config};
            search::sweep(&config(), policy, &MEMORY_MB, &DISK_MB)?
        }
    };
    if json {
        println!("{}", serde_json::to_string(&points)?);
        return Ok(());
    }
    let mut text = text_table(&["memory GB", "disk GB", "seconds", "thesis", "ratio"]);
    for (index, point) in points.iter().enumerate() {
        let printed = config.is_none().then(|| search::thesis::PRINTED[index]);
        text.add_row([
            format!("{:.1}", point.memory_mb / 1e3),
            format!("{:.1}", point.disk_mb / 1e3),
            format!("{:.2}", point.seconds),
            printed.map_or(String::new(), |printed| format!("{printed:.1}")),
            printed.map_or(String::new(), |printed| format!("{:.4}", point.seconds / printed)),
        ]);
    }
    println!("{text}");
    Ok(())
}

fn print_advice(advice: &search::Advice, json: bool) -> Result<(), Failure> {
    if json {
        println!("{}", serde_json::to_string(advice)?);
        return Ok(());
    }
    println!(
        "lower bound: {:.2} s; {} environments simulated",
        advice.bound_seconds, advice.simulated
    );
    let describe = |point: &search::Point| {
        let (memory, disk) = (point.memory_mb / 1e3, point.disk_mb / 1e3);
        let reached = advice.bound_seconds / point.seconds * 100.0;
        format!(
            "{memory} GB of memory, {disk} GB of disk: {:.2} s, {reached:.1} % of the bound's speed",
            point.seconds
        )
    };
    match (&advice.cheapest, &advice.fastest) {
        (Some((point, cost)), _) => println!("cheapest: {}, costs {cost:.2}", describe(point)),
        (None, Some(point)) => println!("none is fast enough; fastest: {}", describe(point)),
        (None, None) => println!("no environment was given"),
    }
    Ok(())
}

/// A policy's name and result.
type Results = Vec<(Policy, Result<dlfs_sim::engine::Outcome, PolicyError>)>;

fn simulate(simulation: &Simulation, policies: &[Policy]) -> Results {
    let policies = if policies.is_empty() { Policy::value_variants() } else { policies };
    policies.iter().map(|&policy| (policy, simulation.run(policy))).collect()
}

fn print_results(name: &str, bound: f64, results: &Results, json: bool) -> Result<(), Failure> {
    if json {
        let rows = results.iter().map(|(policy, result)| match result {
            Ok(outcome) => serde_json::json!({"policy": policy.name(), "outcome": outcome}),
            Err(error) => {
                serde_json::json!({"policy": policy.name(), "error": error.to_string()})
            }
        });
        let rows: Vec<serde_json::Value> = rows.collect();
        let report = serde_json::json!({"name": name, "cache_bound_seconds": bound, "rows": rows});
        println!("{report}");
        return Ok(());
    }
    println!("{name}; with tiers of this size nothing takes less than {bound:.2} s");
    let header = ["policy", "seconds", "load", "local MB", "remote MB", "origin MB", "filled MB"];
    let mut text = text_table(&header);
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
                text.add_row([policy.name(), "N/A", &error.to_string()]);
            }
        }
    }
    println!("{text}\n");
    Ok(())
}

fn panel(name: &str, results: &Results) -> Panel {
    let bars = results.iter().filter_map(|(policy, result)| {
        Some((policy.name().to_owned(), result.as_ref().ok()?.seconds, None))
    });
    Panel { title: name.to_owned(), bars: bars.collect() }
}

fn write_chart(path: Option<&Path>, panels: &[Panel]) -> Result<(), Failure> {
    let Some(path) = path else { return Ok(()) };
    std::fs::write(path, chart::svg(panels)?)
        .map_err(|error| format!("cannot write {}: {error}", path.display()).into())
}

fn text_table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header(header);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn read_config(path: &Path) -> Result<Config, Failure> {
    let fail = |why: String| format!("{}: {why}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| fail(error.to_string()))?;
    Ok(toml::from_str(&text).map_err(|error| fail(error.to_string()))?)
}

/// Sizes of all files below `folder`, in the order of their paths.
fn sizes_below(folder: &Path) -> Result<Vec<u32>, Failure> {
    let (mut sizes, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        let fail = |error: std::io::Error| format!("{}: {error}", folder.display());
        for entry in std::fs::read_dir(&folder).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let metadata = entry.metadata().map_err(fail)?;
            if metadata.is_dir() {
                folders.push(entry.path());
            } else if metadata.is_file() {
                let size = u32::try_from(metadata.len())
                    .map_err(|_| format!("{} is larger than 4 GiB", entry.path().display()))?;
                sizes.push((entry.path(), size));
            }
        }
    }
    sizes.sort();
    Ok(sizes.into_iter().map(|(_, size)| size).collect())
}

fn in_mb(gb: &[f64]) -> Vec<f64> {
    gb.iter().map(|gb| gb * 1e3).collect()
}
