//! TOML description of an environment: tiers in HDMLP's terms (capacity, threads, bandwidth tables) and
//! the origin's bandwidth table. `dlfs probe` writes it, `--tiers-file FILE` reads it, people may edit
//! it.

use serde::{Deserialize, Serialize};

use super::options::{TierKind, TierOptions, TierSpec};
use dlfs_base::error::{Error, ErrorKind, Result};
use dlfs_base::units::parse_size;
use dlfs_order::plan::{Curve, OriginClient, Rate, SourceRates, Stage};
use dlfs_order::tier::{Policy, Stop};

/// Tiers and their speeds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Environment {
    /// `none`, `first-touch` or `clairvoyant`; `None`: the program decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Limit of the copier's reads of the origin, as a size per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy_bandwidth: Option<String>,
    /// Ends admission for good when a sample first fits no tier, as in Monarch.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stop_at_first_failure: bool,
    /// Aggregate read rate of the origin by number of clients; empty if it was not measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub origin: Vec<Point>,
    /// Clients of the table `origin`: `threads`, or `processes` (with any number of threads).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin_by: Option<String>,
    /// Maximum rate at which one process reads from the origin, in 10^6 bytes per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin_link_mb_per_s: Option<f64>,
    /// Maximum rate at which one process reads from another node, in 10^6 bytes per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_mb_per_s: Option<f64>,
    /// The tiers, fastest first.
    #[serde(default, rename = "tier")]
    pub tiers: Vec<TierTable>,
}

/// One entry of a bandwidth table.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// Number of threads, or of clients of the origin.
    pub threads: u32,
    /// Their aggregate rate, in 10^6 bytes per second.
    pub mb_per_s: f64,
}

/// One tier.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TierTable {
    /// `memory` or `filesystem`: the backend, by HDMLP's name.
    pub backend: String,
    /// Path of a `filesystem` tier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Quota, as a size: `20G`.
    pub capacity: String,
    /// Allows the tier to destroy existing data at `path`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overwrite: bool,
    /// Threads that read from the tier and write to it, each up to 1 MiB at a time.
    #[serde(default = "two")]
    pub threads: u32,
    /// Aggregate read rate by number of threads.
    pub read: Vec<Point>,
    /// Aggregate write rate by number of threads; the read rate if missing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub write: Vec<Point>,
}

impl Environment {
    /// Formats as TOML.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("tables of numbers and texts")
    }

    /// Options of the tiers in this environment.
    ///
    /// # Errors
    /// `InvalidArgument`: see [`Environment::parse`].
    pub fn options(&self) -> Result<TierOptions> {
        let policy = self.policy.as_deref().map(str::parse::<Policy>).transpose();
        let policy = policy.map_err(refuse)?;
        let bandwidth = self.copy_bandwidth.as_deref().map(parse_size).transpose();
        let options = TierOptions {
            tiers: self.tiers.iter().map(TierTable::spec).collect::<Result<_>>()?,
            policy: policy.unwrap_or_default(),
            stop: if self.stop_at_first_failure { Stop::AtFirstFailure } else { Stop::Never },
            bandwidth_bytes_per_s: bandwidth
                .map_err(|why| refuse(format!("copy_bandwidth: {why}")))?,
            rates: self.rates()?,
            ..TierOptions::default()
        };
        options.check()?;
        Ok(options)
    }

    /// The rates by which a run chooses the source of each read.
    fn rates(&self) -> Result<SourceRates> {
        let (stages, origin) = self.stages()?;
        let client = match self.origin_by.as_deref() {
            None | Some("threads") => OriginClient::Thread,
            Some("processes") => OriginClient::Process,
            Some(other) => {
                return Err(refuse(format!(
                    "origin_by '{other}' is neither threads nor processes"
                )));
            }
        };
        let link = self.origin_link_mb_per_s.map(|link| rate("the origin's link", link));
        let network = self.network_mb_per_s.map(|network| rate("the network", network));
        let tiers = stages.into_iter().map(Some).collect();
        let origin_link = link.transpose()?;
        let network = network.transpose()?;
        Ok(SourceRates { tiers, origin, client, origin_link, network })
    }

    /// The tiers as stages of the performance model, and the origin's table.
    ///
    /// # Errors
    /// `InvalidArgument`: an empty or unsorted table, a rate of 0 or less, or a tier without threads.
    pub fn stages(&self) -> Result<(Vec<Stage>, Option<Curve>)> {
        let mut stages = Vec::new();
        for (number, tier) in self.tiers.iter().enumerate() {
            let read = curve(&format!("tier {number}, read"), &tier.read)?;
            let write = if tier.write.is_empty() {
                read.clone()
            } else {
                curve(&format!("tier {number}, write"), &tier.write)?
            };
            if tier.threads == 0 {
                return Err(refuse(format!("tier {number} has no thread")));
            }
            let stage = Stage { threads: tier.threads, read, write };
            if stage.read_of_thread() == Rate(0) {
                let text = format!("tier {number} gives each of {} threads nothing", tier.threads);
                return Err(refuse(text));
            }
            stages.push(stage);
        }
        let origin =
            (!self.origin.is_empty()).then(|| curve("origin", &self.origin)).transpose()?;
        Ok((stages, origin))
    }
}

impl TierTable {
    fn spec(&self) -> Result<TierSpec> {
        let quota_bytes = parse_size(&self.capacity)
            .map_err(|why| refuse(format!("capacity '{}': {why}", self.capacity)))?;
        let kind = match (self.backend.as_str(), &self.path) {
            ("memory", None) => TierKind::Ram,
            ("filesystem", Some(path)) => TierKind::File(path.into()),
            ("memory", Some(_)) => return Err(refuse("a tier in memory takes no path".to_owned())),
            ("filesystem", None) => {
                return Err(refuse("a tier in a file system needs a path".to_owned()));
            }
            (other, _) => {
                return Err(refuse(format!("backend '{other}' is neither memory nor filesystem")));
            }
        };
        Ok(TierSpec { kind, quota_bytes, overwrite: self.overwrite })
    }
}

fn curve(what: &str, points: &[Point]) -> Result<Curve> {
    let mut list = Vec::with_capacity(points.len());
    for point in points {
        list.push((point.threads, rate(&format!("the table of {what}"), point.mb_per_s)?));
    }
    Curve::new(what, list)
}

fn rate(what: &str, mb_per_s: f64) -> Result<Rate> {
    if mb_per_s.is_finite() && mb_per_s > 0.0 {
        Ok(Rate((mb_per_s * 1e6).min(1e18) as u64))
    } else {
        Err(refuse(format!("{what} has a rate of {mb_per_s} MB/s; it must be above 0")))
    }
}

pub(super) fn refuse(text: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, text).hint("dlfs probe writes such a file")
}

fn two() -> u32 {
    2
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        policy = "clairvoyant"
        origin = [{ threads = 1, mb_per_s = 66 }, { threads = 2, mb_per_s = 86 }]
        [[tier]]
        backend = "memory"
        capacity = "2G"
        threads = 2
        read = [{ threads = 1, mb_per_s = 16550 }, { threads = 2, mb_per_s = 21164 }]
        [[tier]]
        backend = "filesystem"
        path = "/fast/cache"
        capacity = "20G"
        read = [{ threads = 1, mb_per_s = 192.5 }]
        write = [{ threads = 1, mb_per_s = 90 }]
    "#;

    #[test]
    fn hdmlps_settings_are_read_from_toml_and_written_back() {
        let environment = Environment::parse(TEXT).unwrap();
        let options = environment.options().unwrap();
        assert_eq!((options.policy, options.stop), (Policy::Clairvoyant, Stop::Never));
        let stops = Environment::parse(&format!("stop_at_first_failure = true\n{TEXT}")).unwrap();
        assert_eq!(stops.options().unwrap().stop, Stop::AtFirstFailure);
        let tiers: Vec<String> = options.tiers.iter().map(ToString::to_string).collect();
        assert_eq!(tiers, ["ram:2147483648", "file:/fast/cache:21474836480"]);
        let (stages, origin) = environment.stages().unwrap();
        assert_eq!(stages[0].read_of_thread(), Rate(10_582_000_000));
        assert_eq!(stages[1].write.at(7), Rate::mb_per_s(90));
        assert_eq!(origin.unwrap().at(2), Rate::mb_per_s(86));
        assert_eq!(Environment::parse(&environment.to_toml()).unwrap(), environment);
    }

    #[test]
    fn impossible_tables_and_values_are_refused_by_name() {
        let refuse = |from: &str, to: &str, word: &str| {
            assert!(TEXT.contains(from), "{from}");
            let error = Environment::parse(&TEXT.replacen(from, to, 1)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains(word), "{to}: {error}");
        };
        refuse("[{ threads = 1, mb_per_s = 192.5 }]", "[]", "tier 1, read is empty");
        refuse("threads = 2, mb_per_s = 21164", "threads = 1, mb_per_s = 5", "not sorted");
        refuse("192.5", "-192.5", "-192.5 MB/s");
        refuse("192.5", "nan", "NaN MB/s");
        refuse("mb_per_s = 66", "mb_per_s = 0", "origin");
        refuse("\"20G\"", "\"20X\"", "20X");
        refuse("\"20G\"", "\"0\"", "a quota of 0 bytes");
        refuse("\"filesystem\"", "\"tape\"", "tape");
        refuse("path = \"/fast/cache\"", "", "needs a path");
        refuse("\"clairvoyant\"", "\"psychic\"", "psychic");
        refuse("threads = 2\n", "threads = 0\n", "no thread");
        refuse("policy =", "origin_by = \"nodes\"\npolicy =", "nodes");
        refuse("policy =", "origin_link_mb_per_s = 0\npolicy =", "link");
        refuse("policy =", "network_mb_per_s = -1\npolicy =", "network");
        refuse("policy =", "copy_bandwidth = \"0\"\npolicy =", "0 bytes");
        refuse("policy =", "copy_bandwidth = \"-5M\"\npolicy =", "copy_bandwidth");
        refuse("capacity = \"2G\"", "capacity = \"2G\"\ncolour = 1", "colour");
        refuse("policy =", "policy", "TOML");
    }
}
