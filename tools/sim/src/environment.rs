//! The simulated machines and job, as a user writes them: MB, MB/s and tables, as HDMLP's files have.

use dlfs::plan::{Curve, Model, PlanError, Rate, Stage};
use serde::{Deserialize, Serialize};

/// Machines, data set and training: all that a simulation depends on. A TOML file is one of these.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The machines.
    pub environment: Environment,
    /// What is read.
    pub dataset: Dataset,
    /// How it is read.
    pub training: Training,
}

/// The machines. MB are 10^6 bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Environment {
    /// Nodes that train.
    pub nodes: u32,
    /// What a node's training consumes.
    pub compute_mb_s: f64,
    /// What a thread decodes.
    pub preprocess_mb_s: f64,
    /// Between two nodes.
    pub network_mb_s: f64,
    /// Between a node and the origin.
    pub origin_link_mb_s: f64,
    /// Aggregate random reads of the origin by the number of nodes that read.
    pub origin_mb_s: Vec<(u32, f64)>,
    /// What shares those rates.
    #[serde(default)]
    pub origin_shared_by: Sharing,
    /// The same when whole chunks are read; as `origin_mb_s` where it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin_chunks_mb_s: Option<Vec<(u32, f64)>>,
    /// The buffer that samples are consumed from.
    pub staging: Class,
    /// Tiers of each node, fastest first.
    #[serde(default)]
    pub tiers: Vec<Class>,
}

/// A storage class of a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Class {
    /// What it holds.
    pub capacity_mb: f64,
    /// Threads that fill it.
    pub threads: u32,
    /// Aggregate reads by the number of threads.
    pub read_mb_s: Vec<(u32, f64)>,
    /// Aggregate writes by the number of threads; as `read_mb_s` where it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_mb_s: Option<Vec<(u32, f64)>>,
    /// What 1,000 MB of it cost, for those who look for the cheapest environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_per_gb: Option<f64>,
}

/// Samples whose sizes are normally distributed, none below 0.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dataset {
    /// How many.
    pub samples: u64,
    /// Mean size.
    pub mean_mb: f64,
    /// Standard deviation.
    #[serde(default)]
    pub deviation_mb: f64,
}

/// How the data set is read.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Training {
    /// Passes over it.
    pub epochs: u32,
    /// Samples of a global batch, before the scheme changes it.
    pub batch: u64,
    /// How a batch is divided.
    #[serde(default)]
    pub scheme: Scheme,
    /// Whether the last batch of an epoch is left out when it is smaller than the others.
    #[serde(default)]
    pub drop_last: bool,
    /// What the order and the sizes are drawn by.
    #[serde(default)]
    pub seed: u64,
}

/// How a global batch of B samples is divided among N nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scheme {
    /// Equal parts of ceil(B / N); the last node has what remains.
    #[default]
    Uniform,
    /// Each node has B samples of its own in each step.
    Whole,
    /// The first half of the nodes has 2 * ceil(B / N), the others ceil(B / N) / 2.
    Imbalanced,
}

/// What shares the origin's rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sharing {
    /// Nodes, and each thread of a node gets the node's whole share: the thesis's model.
    Nodes,
    /// Transfers, whoever makes them: a link, or a throttled device.
    #[default]
    Transfers,
}

/// Why nothing can be simulated.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// A quantity that is negative, not finite, or beyond what is counted in bytes.
    #[error("{what} is {value}; it has to be {range}")]
    Number {
        /// Which.
        what: String,
        /// What it is.
        value: f64,
        /// What it may be.
        range: &'static str,
    },
    /// Rates that are no model.
    #[error(transparent)]
    Model(#[from] PlanError),
    /// Nothing to read, or in no batch.
    #[error("{0}")]
    Empty(&'static str),
    /// The tables of `dlfs probe` cannot be used.
    #[error("the probed tiers: {0}")]
    Probed(String),
}

impl Environment {
    /// The planner's model of these machines.
    ///
    /// # Errors
    /// The first number that is out of its range.
    pub fn model(&self) -> Result<Model, ConfigError> {
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

    /// What 1,000 MB of each tier cost, where it is said.
    ///
    /// # Errors
    /// A cost that is negative, not finite or beyond counting.
    pub fn costs_per_gb(&self) -> Result<Vec<Option<f64>>, ConfigError> {
        let costs = self.tiers.iter().enumerate().map(|(index, tier)| match tier.cost_per_gb {
            Some(cost) if !(0.0..MAX_COST).contains(&cost) => {
                Err(out_of(&format!("tiers[{index}].cost_per_gb"), cost, "from 0 to 10^9"))
            }
            cost => Ok(cost),
        });
        costs.collect()
    }

    /// The origin's rates where whole chunks are read.
    ///
    /// # Errors
    /// It is no table.
    pub fn origin_chunks(&self) -> Result<Curve, ConfigError> {
        let table = self.origin_chunks_mb_s.as_ref().unwrap_or(&self.origin_mb_s);
        curve("origin_chunks_mb_s", table)
    }

    /// Bytes of the staging buffer.
    ///
    /// # Errors
    /// No such capacity.
    pub fn staging_bytes(&self) -> Result<u64, ConfigError> {
        bytes("staging.capacity_mb", self.staging.capacity_mb)
    }

    /// Bytes of each tier.
    ///
    /// # Errors
    /// No such capacity.
    pub fn tier_bytes(&self) -> Result<Vec<u64>, ConfigError> {
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
    /// As many samples as `sizes`, of the same mean and deviation.
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
    /// Draws below 0 are taken as 0 and then all are scaled, so that the mean stays `mean_mb` where
    /// the deviation is not small against it.
    ///
    /// # Errors
    /// No sample, more than 2^32 - 1, or sizes beyond 4 GiB.
    pub fn sizes(&self, seed: u64) -> Result<Vec<u32>, ConfigError> {
        let mean = bytes("dataset.mean_mb", self.mean_mb)? as f64;
        let deviation = bytes("dataset.deviation_mb", self.deviation_mb)? as f64;
        if self.samples == 0 {
            return Err(ConfigError::Empty("a data set has at least one sample"));
        }
        if self.samples >= u64::from(u32::MAX) {
            return Err(out_of("dataset.samples", self.samples as f64, "below 2^32 - 1"));
        }
        let draw = |index| (mean + deviation * normal(seed, index)).max(0.0);
        let total: f64 = (0..self.samples).map(draw).sum();
        let scale = if total > 0.0 { mean * self.samples as f64 / total } else { 1.0 };
        let sizes = (0..self.samples).map(|index| {
            let size = draw(index) * scale;
            match size < f64::from(u32::MAX) {
                true => Ok(size.round() as u32),
                false => Err(out_of("dataset.mean_mb", self.mean_mb, "below 4 GiB for a sample")),
            }
        });
        sizes.collect()
    }
}

/// The standard normal deviate of `index`: Box and Muller's, of two words drawn by a key.
fn normal(seed: u64, index: u64) -> f64 {
    let word = |nth: u64| {
        let mut word = seed.wrapping_add((2 * index + nth + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((word ^ (word >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
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
    match (0.0..MAX_MB).contains(&mb) {
        true => Ok((mb * 1e6).round() as u64),
        false => Err(out_of(what, mb, "from 0 to 10^9 MB")),
    }
}

fn out_of(what: &str, value: f64, range: &'static str) -> ConfigError {
    ConfigError::Number { what: what.to_owned(), value, range }
}

/// Costs of 1,000 MB are below this.
const MAX_COST: f64 = 1e9;

/// A petabyte, or a petabyte a second.
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
    fn data_sets_that_cannot_be_are_refused() {
        let dataset = Dataset { samples: 10, mean_mb: 1.0, deviation_mb: 0.1 };
        let refuse = |dataset: Dataset| dataset.sizes(0).unwrap_err().to_string();
        assert!(refuse(Dataset { samples: 0, ..dataset }).contains("at least one"));
        assert!(refuse(Dataset { samples: 1 << 32, ..dataset }).contains("dataset.samples"));
        assert!(refuse(Dataset { mean_mb: -1.0, ..dataset }).contains("mean_mb is -1"));
        assert!(refuse(Dataset { mean_mb: 5e3, ..dataset }).contains("4 GiB"));
        assert!(refuse(Dataset { deviation_mb: f64::NAN, ..dataset }).contains("NaN"));
    }
}
