//! The simulated machines and job, as users write them: MB, MB/s and tables, as in HDMLP's files. Machines may also be
//! taken from the measurements of `dlfs probe` ([`Environment::with_probed`]).

use serde::{Deserialize, Serialize};

use dlfs::cache::Environment as Probed;
use dlfs::permutation::Key;
use dlfs::plan::{Curve, Model, Rate, Stage};

/// Machines, data set and training: all inputs of a simulation. A TOML file holds one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The machines.
    pub environment: Environment,
    /// The data set.
    pub dataset: Dataset,
    /// The training.
    pub training: Training,
}

/// The machines. MB are 10^6 bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Environment {
    /// The number of nodes.
    pub nodes: u32,
    /// The rate at which a node's training consumes data.
    pub compute_mb_s: f64,
    /// The rate at which a thread decodes.
    pub preprocess_mb_s: f64,
    /// The rate between two nodes.
    pub network_mb_s: f64,
    /// The rate between a node and the origin.
    pub origin_link_mb_s: f64,
    /// Aggregate random-read rates of the origin by the number of reading nodes.
    pub origin_mb_s: Vec<(u32, f64)>,
    /// The way these rates are shared.
    #[serde(default)]
    pub origin_shared_by: Sharing,
    /// The same rates for reads of whole chunks; `origin_mb_s` if missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin_chunks_mb_s: Option<Vec<(u32, f64)>>,
    /// The buffer from which samples are consumed.
    pub staging: Class,
    /// Tiers of each node, fastest first.
    #[serde(default)]
    pub tiers: Vec<Class>,
}

/// A storage class of a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Class {
    /// Its capacity.
    pub capacity_mb: f64,
    /// The number of threads that fill it.
    pub threads: u32,
    /// Aggregate read rates by the number of threads.
    pub read_mb_s: Vec<(u32, f64)>,
    /// Aggregate write rates by the number of threads; `read_mb_s` if missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_mb_s: Option<Vec<(u32, f64)>>,
    /// The cost of 1,000 MB, to search for the cheapest environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_per_gb: Option<f64>,
}

/// Samples with normally distributed sizes, none less than 0.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dataset {
    /// The number of samples.
    pub samples: u64,
    /// Mean size.
    pub mean_mb: f64,
    /// Standard deviation.
    #[serde(default)]
    pub deviation_mb: f64,
}

/// The reading of the data set.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Training {
    /// The number of passes over the data set.
    pub epochs: u32,
    /// Samples of a global batch, before the scheme changes the number.
    pub batch: u64,
    /// Division of a batch among nodes.
    #[serde(default)]
    pub scheme: Scheme,
    /// Drops the last batch of an epoch if it is smaller than the others.
    #[serde(default)]
    pub drop_last: bool,
    /// The seed of order and sizes.
    #[serde(default)]
    pub seed: u64,
}

/// Division of a global batch of B samples among N nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scheme {
    /// Shares of ceil(B / N), node after node, until none of B is left. A smaller batch at the end of an epoch
    /// is shared as in `dlfs`: the shares differ by at most one sample.
    #[default]
    Uniform,
    /// Each node has its own B samples in each step.
    Whole,
    /// Each node of the first half gets 2 * ceil(B / N), each other one ceil(B / N) / 2, rounded up.
    Imbalanced,
}

/// The way the origin's rate is shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sharing {
    /// By nodes: each thread of a node gets the node's whole share, as in the thesis's model.
    Nodes,
    /// By transfers of all nodes, as on a link or a throttled device.
    #[default]
    Transfers,
}

/// Errors of a configuration.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// A quantity that is negative, not finite, or too large.
    #[error("{what} is {value}; it must be {range}")]
    Number {
        /// The quantity.
        what: String,
        /// The quantity's value.
        value: f64,
        /// The allowed range.
        range: &'static str,
    },
    /// Rates that do not make a valid model.
    #[error("{0}")]
    Model(String),
    /// Nothing to simulate: for example no samples, empty batches, or no such scenario.
    #[error("{0}")]
    Empty(&'static str),
    /// The tables of `dlfs probe` cannot be used.
    #[error("the probed tiers: {0}")]
    Probed(String),
}

impl From<dlfs::Error> for ConfigError {
    fn from(error: dlfs::Error) -> ConfigError {
        ConfigError::Model(error.to_string())
    }
}

impl Environment {
    /// The planner's model of these machines.
    ///
    /// # Errors
    /// The first number that is out of its range.
    pub(crate) fn model(&self) -> Result<Model, ConfigError> {
        let model = Model {
            nodes: self.nodes,
            compute: rate("compute_mb_s", self.compute_mb_s)?,
            preprocess: rate("preprocess_mb_s", self.preprocess_mb_s)?,
            network: rate("network_mb_s", self.network_mb_s)?,
            origin_link: rate("origin_link_mb_s", self.origin_link_mb_s)?,
            origin: curve("origin_mb_s", &self.origin_mb_s)?,
            staging: self.staging.stage("staging")?,
            tiers: (self.tiers.iter().enumerate())
                .map(|(index, tier)| tier.stage(&format!("tiers[{index}]")))
                .collect::<Result<_, _>>()?,
        };
        model.check()?;
        self.costs_per_gb()?;
        Ok(model)
    }

    /// The cost of 1,000 MB of each tier, if given.
    ///
    /// # Errors
    /// A cost that is negative, not finite or too large.
    pub(crate) fn costs_per_gb(&self) -> Result<Vec<Option<f64>>, ConfigError> {
        let costs = self.tiers.iter().enumerate().map(|(index, tier)| match tier.cost_per_gb {
            Some(cost) if !(0.0..MAX_COST).contains(&cost) => {
                Err(out_of_range(&format!("tiers[{index}].cost_per_gb"), cost, "from 0 to 10^9"))
            }
            cost => Ok(cost),
        });
        costs.collect()
    }

    /// The origin's rates if whole chunks are read.
    ///
    /// # Errors
    /// The rates are not a valid table.
    pub(crate) fn origin_chunks(&self) -> Result<Curve, ConfigError> {
        let table = self.origin_chunks_mb_s.as_ref().unwrap_or(&self.origin_mb_s);
        curve("origin_chunks_mb_s", table)
    }

    /// Length of the staging buffer in bytes.
    ///
    /// # Errors
    /// The capacity is invalid.
    pub(crate) fn staging_bytes(&self) -> Result<u64, ConfigError> {
        bytes("staging.capacity_mb", self.staging.capacity_mb)
    }

    /// Length of each tier in bytes.
    ///
    /// # Errors
    /// A capacity is invalid.
    pub(crate) fn tier_bytes(&self) -> Result<Vec<u64>, ConfigError> {
        let tiers = self.tiers.iter().enumerate();
        tiers.map(|(i, tier)| bytes(&format!("tiers[{i}].capacity_mb"), tier.capacity_mb)).collect()
    }

    /// These machines with the tiers of `probed`, and with its origin if that was measured.
    ///
    /// The probe ran on one machine. Its rate for a number of clients is taken as the rate of that many clients
    /// on all nodes together; each staging thread of a node is a client. A node alone gets at most the link's
    /// rate or, if that was not measured, the highest rate of the probe. In a table by processes, like HDMLP's,
    /// a node is one process. Not used: the limit of copying (`copy_bandwidth`) and the policy, which are not
    /// properties of the machines.
    ///
    /// # Errors
    /// A table, a size or a policy is invalid.
    pub fn with_probed(self, probed: &Probed) -> Result<Environment, ConfigError> {
        let refuse = |error: dlfs::Error| ConfigError::Probed(error.to_string());
        let quotas = probed.options().map_err(refuse)?.tiers;
        let (stages, origin) = probed.stages().map_err(refuse)?;
        let tiers = stages.iter().zip(&quotas).zip(&probed.tiers).map(|((stage, quota), table)| {
            let read: Vec<u32> = table.read.iter().map(|point| point.threads).collect();
            let write: Vec<u32> = table.write.iter().map(|point| point.threads).collect();
            class(quota.quota_bytes, stage, &read, &write)
        });
        let environment = Environment { tiers: tiers.collect(), ..self };
        let Some(origin) = origin else { return Ok(environment) };
        let rates = probed.origin.iter().map(|point| point.mb_per_s);
        let (clients, origin_shared_by) = match probed.origin_by.as_deref() {
            Some("processes") => (1, Sharing::Nodes),
            _ => (environment.staging.threads, Sharing::Transfers),
        };
        let link = probed.origin_link_mb_per_s;
        Ok(Environment {
            origin_link_mb_s: link.unwrap_or_else(|| rates.fold(0.0, f64::max)),
            origin_mb_s: of_nodes(&origin, environment.nodes, clients),
            origin_shared_by,
            origin_chunks_mb_s: None,
            ..environment
        })
    }
}

impl Class {
    /// A class with the same rates for reads and writes.
    pub fn new(capacity_mb: f64, threads: u32, mb_s: &[(u32, f64)]) -> Class {
        let read_mb_s = mb_s.to_vec();
        Class { capacity_mb, threads, read_mb_s, write_mb_s: None, cost_per_gb: None }
    }

    fn stage(&self, what: &str) -> Result<Stage, ConfigError> {
        let read = curve(&format!("{what}.read_mb_s"), &self.read_mb_s)?;
        let write = match &self.write_mb_s {
            Some(table) => curve(&format!("{what}.write_mb_s"), table)?,
            None => read.clone(),
        };
        Ok(Stage { threads: self.threads, read, write })
    }
}

impl Dataset {
    /// A data set with the number, mean and deviation of `sizes`.
    pub fn like(sizes: &[u32]) -> Dataset {
        let count = sizes.len().max(1) as f64;
        let mean = sizes.iter().map(|&size| f64::from(size)).sum::<f64>() / count;
        let squares = sizes.iter().map(|&size| (f64::from(size) - mean).powi(2)).sum::<f64>();
        Dataset {
            samples: sizes.len() as u64,
            mean_mb: mean / 1e6,
            deviation_mb: (squares / count).sqrt() / 1e6,
        }
    }

    /// The sizes of all samples, in bytes.
    ///
    /// Draws less than 0 become 0, and then all are scaled, so that the mean remains `mean_mb` even
    /// if the deviation is large.
    ///
    /// # Errors
    /// There are no samples, there are 2^32 - 1 or more, or a size reaches 2^32 - 1 bytes; the mean or the
    /// deviation is out of range.
    pub fn sizes(&self, seed: u64) -> Result<Vec<u32>, ConfigError> {
        let mean = bytes("dataset.mean_mb", self.mean_mb)? as f64;
        let deviation = bytes("dataset.deviation_mb", self.deviation_mb)? as f64;
        if self.samples == 0 {
            return Err(ConfigError::Empty("a data set has at least one sample"));
        }
        if self.samples >= u64::from(u32::MAX) {
            return Err(out_of_range("dataset.samples", self.samples as f64, "below 2^32 - 1"));
        }
        let draw = |index| (mean + deviation * normal(seed, index)).max(0.0);
        let total: f64 = (0..self.samples).map(draw).sum();
        let scale = if total > 0.0 { mean * self.samples as f64 / total } else { 1.0 };
        let sizes = (0..self.samples).map(|index| {
            let size = draw(index) * scale;
            if size < f64::from(u32::MAX) {
                Ok(size.round() as u32)
            } else {
                Err(out_of_range("dataset.mean_mb", self.mean_mb, "below 4 GiB for a sample"))
            }
        });
        sizes.collect()
    }
}

/// The standard normal deviate of `index`: a Box-Muller transform of two words hashed from seed and index.
fn normal(seed: u64, index: u64) -> f64 {
    let word = |nth: u64| {
        let place = (2 * index + nth).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (Key::new(seed.wrapping_add(place)).word() >> 11) as f64 / (1_u64 << 53) as f64
    };
    (-2.0 * (1.0 - word(0)).ln()).sqrt() * (std::f64::consts::TAU * word(1)).cos()
}

/// A tier of `quota_bytes` with the rates of `stage` at the measured numbers of threads.
fn class(quota_bytes: u64, stage: &Stage, read: &[u32], write: &[u32]) -> Class {
    let table = |curve: &Curve, threads: &[u32]| -> Vec<(u32, f64)> {
        threads.iter().map(|&threads| (threads, mb_s(curve, threads))).collect()
    };
    Class {
        capacity_mb: quota_bytes as f64 / 1e6,
        threads: stage.threads,
        read_mb_s: table(&stage.read, read),
        write_mb_s: (!write.is_empty()).then(|| table(&stage.write, write)),
        cost_per_gb: None,
    }
}

/// The rates that 1, 2, 4 ... and all nodes get together, with `clients` each.
fn of_nodes(origin: &Curve, nodes: u32, clients: u32) -> Vec<(u32, f64)> {
    let next = |&count: &u32| (count < nodes).then(|| count.saturating_mul(2).min(nodes));
    let counts = std::iter::successors(Some(1), next);
    counts.map(|count| (count, mb_s(origin, count.saturating_mul(clients)))).collect()
}

/// The rate at `count`, in MB/s.
fn mb_s(curve: &Curve, count: u32) -> f64 {
    curve.at(count).0 as f64 / 1e6
}

fn curve(what: &str, table: &[(u32, f64)]) -> Result<Curve, ConfigError> {
    let points = table.iter().map(|&(count, mb_s)| Ok((count, rate(what, mb_s)?)));
    Ok(Curve::new(what, points.collect::<Result<_, ConfigError>>()?)?)
}

fn rate(what: &str, mb_s: f64) -> Result<Rate, ConfigError> {
    Ok(Rate(bytes(what, mb_s)?))
}

fn bytes(what: &str, mb: f64) -> Result<u64, ConfigError> {
    if (0.0..MAX_MB).contains(&mb) {
        Ok((mb * 1e6).round() as u64)
    } else {
        Err(out_of_range(what, mb, "from 0 to 10^9 MB"))
    }
}

fn out_of_range(what: &str, value: f64, range: &'static str) -> ConfigError {
    ConfigError::Number { what: what.to_owned(), value, range }
}

/// The cost of 1,000 MB must be less than this.
const MAX_COST: f64 = 1e9;

/// Sizes and rates must be less than this: a petabyte, or a petabyte per second.
const MAX_MB: f64 = 1e9;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thesis;

    #[test]
    fn sizes_have_the_mean_and_the_deviation_that_were_asked_for() {
        let dataset = Dataset { samples: 150_000, mean_mb: 1.0, deviation_mb: 0.1 };
        let sizes = dataset.sizes(1).unwrap();
        let drawn = Dataset::like(&sizes);
        assert_eq!(drawn.samples, 150_000);
        assert!((drawn.mean_mb - 1.0).abs() < 1e-5, "{drawn:?}");
        assert!((drawn.deviation_mb - 0.1).abs() < 1e-3, "{drawn:?}");
        let few = Dataset::like(&[1_000_000, 3_000_000]);
        assert_eq!(few, Dataset { samples: 2, mean_mb: 2.0, deviation_mb: 1.0 });
        assert_ne!(dataset.sizes(2).unwrap(), sizes);
    }

    #[test]
    fn a_deviation_larger_than_the_mean_leaves_the_mean_and_no_size_is_negative() {
        let dataset = Dataset { samples: 10_000, mean_mb: 0.1, deviation_mb: 0.2 };
        let sizes = dataset.sizes(0).unwrap();
        let mean = sizes.iter().map(|&size| f64::from(size)).sum::<f64>() / 10_000.0;
        assert!((mean - 1e5).abs() < 10.0 && sizes.contains(&0), "{mean}");
    }

    #[test]
    fn impossible_data_sets_are_refused() {
        let dataset = Dataset { samples: 10, mean_mb: 1.0, deviation_mb: 0.1 };
        let refuse = |dataset: Dataset| dataset.sizes(0).unwrap_err().to_string();
        assert!(refuse(Dataset { samples: 0, ..dataset }).contains("at least one"));
        assert!(refuse(Dataset { samples: 1 << 32, ..dataset }).contains("dataset.samples"));
        assert!(refuse(Dataset { mean_mb: -1.0, ..dataset }).contains("mean_mb is -1"));
        assert!(refuse(Dataset { mean_mb: 5e3, ..dataset }).contains("4 GiB"));
        assert!(refuse(Dataset { deviation_mb: f64::NAN, ..dataset }).contains("NaN"));
    }

    const PROBED: &str = r#"
    policy = "clairvoyant"
    origin = [{ threads = 1, mb_per_s = 60 }, { threads = 4, mb_per_s = 150.5 }]
    [[tier]]
    backend = "memory"
    capacity = "4000000000"
    threads = 2
    read = [{ threads = 1, mb_per_s = 9000 }, { threads = 4, mb_per_s = 20000 }]
    write = [{ threads = 1, mb_per_s = 5000 }]
    [[tier]]
    backend = "filesystem"
    path = "/fast"
    capacity = "1G"
    threads = 3
    read = [{ threads = 1, mb_per_s = 500 }]
    "#;

    #[test]
    fn probed_rates_replace_those_of_tiers_and_origin() {
        let probed = Probed::parse(PROBED).unwrap();
        let environment = Environment { nodes: 3, ..thesis::environment() };
        let environment = environment.with_probed(&probed).unwrap();
        let [memory, disk] = &environment.tiers[..] else { panic!("{environment:?}") };
        assert_eq!((memory.capacity_mb, memory.threads), (4_000.0, 2));
        assert_eq!(memory.read_mb_s, [(1, 9_000.0), (4, 20_000.0)]);
        assert_eq!(memory.write_mb_s, Some(vec![(1, 5_000.0)]));
        assert_eq!((disk.capacity_mb, disk.threads), (1_073.741_824, 3));
        assert_eq!((&disk.read_mb_s[..], &disk.write_mb_s), (&[(1, 500.0)][..], &None));
        // A node with two threads is two clients: a third of the way from 1 to 4, then all of it.
        let third = 60.0 + 90.5 / 3.0;
        let [(1, one), (2, two), (3, three)] = environment.origin_mb_s[..] else {
            panic!("{environment:?}")
        };
        assert!((one - third).abs() < 1e-5 && (two, three) == (150.5, 150.5), "{one} {two}");
        assert_eq!(environment.origin_link_mb_s, 150.5);
        assert_eq!(environment.origin_shared_by, Sharing::Transfers);
        assert_eq!(environment.model().unwrap().tiers.len(), 2);
    }

    #[test]
    fn of_a_table_by_processes_a_node_is_one() {
        let text = format!("origin_by = \"processes\"\norigin_link_mb_per_s = 70\n{PROBED}");
        let probed = Probed::parse(&text).unwrap();
        let environment = Environment { nodes: 4, ..thesis::environment() };
        let environment = environment.with_probed(&probed).unwrap();
        let [(1, one), (2, _), (4, four)] = environment.origin_mb_s[..] else {
            panic!("{environment:?}")
        };
        assert_eq!((one, four, environment.origin_link_mb_s), (60.0, 150.5, 70.0));
        assert_eq!(environment.origin_shared_by, Sharing::Nodes);
    }

    #[test]
    fn without_a_measured_origin_the_old_one_stays() {
        let text = PROBED.lines().filter(|line| !line.contains("origin")).collect::<Vec<_>>();
        let probed = Probed::parse(&text.join("\n")).unwrap();
        let environment = thesis::environment().with_probed(&probed).unwrap();
        assert_eq!(environment.origin_mb_s, thesis::environment().origin_mb_s);
        assert_eq!(environment.origin_shared_by, Sharing::Nodes);
    }

    #[test]
    fn nonsensical_tables_are_refused_by_name() {
        for (from, to, says) in [
            ("threads = 4, mb_per_s = 20000", "threads = 1, mb_per_s = 1", "not sorted"),
            ("mb_per_s = 500 }", "mb_per_s = -500 }", "-500 MB/s"),
            ("read = [{ threads = 1, mb_per_s = 500 }]", "read = []", "tier 1, read is empty"),
            ("\"1G\"", "\"much\"", "much"),
        ] {
            assert!(PROBED.contains(from), "{from}");
            // A program may make such a value; a file is refused when it is parsed.
            let probed: Probed = toml::from_str(&PROBED.replacen(from, to, 1)).unwrap();
            let error = thesis::environment().with_probed(&probed).unwrap_err().to_string();
            assert!(error.contains(says) && error.contains("probed"), "{to}: {error}");
        }
    }
}
