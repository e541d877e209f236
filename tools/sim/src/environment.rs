//! The simulated machines and job, as users write them: MB, MB/s and tables, as in HDMLP's files. `probed.rs` takes
//! machines from the measurements of `dlfs probe`.

use serde::{Deserialize, Serialize};

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
    /// A quantity that is negative, not finite, or too large to count in bytes.
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
}
