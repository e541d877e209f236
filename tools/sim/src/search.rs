//! Searches many environments: a sweep over tier sizes, and the cheapest environment that is fast enough.

use serde::Serialize;

use crate::environment::{Class, Config, ConfigError};
use crate::policy::{Policy, PolicyError, Simulation};

/// One environment of a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Point {
    /// Memory tier of a node; 0: no such tier.
    pub memory_mb: f64,
    /// Disk tier of a node; 0: no such tier.
    pub disk_mb: f64,
    /// Simulated time.
    pub seconds: f64,
}

/// The prices of a node's storage.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prices {
    /// 1,000 MB of memory.
    pub memory_gb: f64,
    /// 1,000 MB of disk.
    pub disk_gb: f64,
}

impl Prices {
    /// The prices of the first two tiers of `config`; 4 and 0.1 if the file has no prices.
    ///
    /// # Errors
    /// A price is invalid.
    pub fn of(config: &Config) -> Result<Prices, ConfigError> {
        let costs = config.environment.costs_per_gb()?;
        let cost = |tier: usize, default| costs.get(tier).copied().flatten().unwrap_or(default);
        Ok(Prices { memory_gb: cost(0, 4.0), disk_gb: cost(1, 0.1) })
    }
}

/// The result of [`advise`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Advice {
    /// The lower bound, in seconds.
    pub bound_seconds: f64,
    /// The number of simulated environments.
    pub simulated: usize,
    /// The cheapest environment that reaches the required fraction, if any, and its price for all nodes.
    pub cheapest: Option<(Point, f64)>,
    /// The fastest simulated environment.
    pub fastest: Option<Point>,
}

/// Simulates `policy` on samples of `sizes` with each memory and each disk size, in MB: a row for each disk size.
///
/// The rates are those of the configuration's first and second tier.
///
/// # Errors
/// The policy cannot run, a number is out of range, or a size is that of a tier that the configuration lacks.
pub fn sweep(
    config: &Config,
    sizes: &[u32],
    policy: Policy,
    memory_mb: &[f64],
    disk_mb: &[f64],
) -> Result<Vec<Point>, PolicyError> {
    let sizes_of_tiers = disk_mb.iter().flat_map(|&disk| memory_mb.iter().map(move |&m| (m, disk)));
    sizes_of_tiers.map(|(memory, disk)| point(config, sizes, policy, memory, disk)).collect()
}

/// The cheapest sizes of memory and disk with which `policy` reaches `fraction` of the lower
/// bound's speed on samples of `sizes`.
///
/// Simulates environments in ascending order of price. Skips an environment if one with at least as much
/// memory and disk was too slow, as if no policy were slower with more. The result holds for the program if
/// `policy` is one of [`Policy::of_program`].
///
/// # Errors
/// As [`sweep`].
pub fn advise(
    config: &Config,
    sizes: &[u32],
    policy: Policy,
    memory_mb: &[f64],
    disk_mb: &[f64],
    prices: Prices,
    fraction: f64,
) -> Result<Advice, PolicyError> {
    let simulation = Simulation::with_sizes(config, sizes.to_vec())?;
    let bound_seconds = simulation.run(Policy::LowerBound)?.seconds;
    let cost = |memory: f64, disk: f64| {
        let node = memory / 1e3 * prices.memory_gb + disk / 1e3 * prices.disk_gb;
        node * f64::from(config.environment.nodes)
    };
    let all = disk_mb.iter().flat_map(|&disk| memory_mb.iter().map(move |&m| (m, disk)));
    let mut candidates: Vec<(f64, f64)> = all.collect();
    candidates.sort_by(|a, b| cost(a.0, a.1).total_cmp(&cost(b.0, b.1)));
    let mut too_slow: Vec<Point> = Vec::new();
    let mut cheapest = None;
    for (memory, disk) in candidates {
        if too_slow.iter().any(|slow| memory <= slow.memory_mb && disk <= slow.disk_mb) {
            continue;
        }
        let point = point(config, sizes, policy, memory, disk)?;
        if point.seconds * fraction <= bound_seconds {
            cheapest = Some((point, cost(memory, disk)));
            break;
        }
        too_slow.push(point);
    }
    let simulated = too_slow.len() + usize::from(cheapest.is_some());
    let points = too_slow.into_iter().chain(cheapest.map(|(point, _)| point));
    let fastest = points.min_by(|a, b| a.seconds.total_cmp(&b.seconds));
    Ok(Advice { bound_seconds, simulated, cheapest, fastest })
}

/// Simulates `policy` with these sizes of the first and the second tier; 0: without that tier.
fn point(
    config: &Config,
    sizes: &[u32],
    policy: Policy,
    memory_mb: f64,
    disk_mb: f64,
) -> Result<Point, PolicyError> {
    let mut config = config.clone();
    if [memory_mb, disk_mb].iter().skip(config.environment.tiers.len()).any(|size| *size != 0.0) {
        let what =
            "a size is given for a tier that the configuration lacks: describe the tier, or give 0";
        return Err(ConfigError::Empty(what).into());
    }
    let tiers = config.environment.tiers.drain(..).zip([memory_mb, disk_mb]);
    let tiers = tiers.map(|(tier, capacity_mb)| Class { capacity_mb, ..tier });
    config.environment.tiers = tiers.filter(|tier| tier.capacity_mb != 0.0).collect();
    let outcome = Simulation::with_sizes(&config, sizes.to_vec())?.run(policy)?;
    Ok(Point { memory_mb, disk_mb, seconds: outcome.seconds })
}

/// The sweep of the thesis, section 5.2.3, figure 5.8: scenario 3 with a staging buffer of 4 GB.
pub mod thesis {
    use super::{Class, Config};

    /// Sizes of the memory, in MB.
    pub const MEMORY_MB: [f64; 4] = [0.0, 10_240.0, 20_480.0, 40_960.0];

    /// Sizes of the second tier, in MB.
    pub const DISK_MB: [f64; 4] = [0.0, 20_480.0, 40_960.0, 81_920.0];

    /// The published times, row by row: a row for each size of the second tier.
    pub const PRINTED: [f64; 16] = [
        9947.0, 9554.5, 9239.7, 8613.1, //
        9579.5, 9212.1, 8889.2, 8249.8, //
        9258.0, 8885.5, 8550.5, 8015.7, //
        8703.6, 8382.7, 8102.9, 7678.2,
    ];

    /// Scenario 3 with its sweep's staging buffer and second class.
    pub fn config() -> Config {
        let mut config = crate::thesis::config(3).expect("there is a scenario 3");
        config.environment.staging.capacity_mb = 4_096.0;
        let write_mb_s = config.environment.tiers[1].write_mb_s.take();
        config.environment.tiers[1] =
            Class { write_mb_s, ..Class::new(102_400.0, 2, &[(2, 100.0)]) };
        config
    }
}
