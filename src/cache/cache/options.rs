//! Options of tiers, given on a command line, by a program, or by a TOML file (`--tiers-file`).
//!
//! The file describes an *environment* in HDMLP's terms: each tier's capacity, threads and bandwidth table, and the
//! origin's bandwidth table. `dlfs probe` writes it, and people may edit it.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use dlfs_base::error::{Error, ErrorKind, Result};
use dlfs_base::units::parse_size;
use dlfs_io::address::{Address, TcpAddress};
use dlfs_io::qpair::ConnectOptions;
use dlfs_order::plan::{Curve, MAX_TIERS, OriginClient, Rate, SourceRates, Stage};
use dlfs_order::tier::{Policy, Stop};

/// Options of tiers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TierOptions {
    /// The tiers, fastest first; empty: the origin is read directly.
    pub tiers: Vec<TierSpec>,
    /// The policy that decides which samples are kept.
    pub policy: Policy,
    /// The point at which first-touch stops admitting samples.
    pub stop: Stop,
    /// Limit of the copier's own reads of the origin, in bytes per second; `None`: no limit.
    pub bandwidth_bytes_per_s: Option<u64>,
    /// The known rates of the tiers and of the origin. They decide which copies are worth reading, and
    /// the number of reads and writes in flight at a tier.
    pub rates: SourceRates,
    /// The name of this node, if several nodes run on one machine: processes on nodes with different
    /// names do not share tiers in memory.
    pub node: Option<String>,
    /// Options for connecting to tiers in remote namespaces; taken from the options of the image when
    /// an image is opened.
    pub connect: ConnectOptions,
}

/// A tier as the user asks for it: `ram:4G`, for example.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TierSpec {
    pub(crate) kind: TierKind,
    /// Its quota in bytes, including its index.
    pub quota_bytes: u64,
    /// Allows the tier to destroy existing data at the path. Otherwise only an empty file or device, or
    /// an earlier tier, is used.
    pub overwrite: bool,
}

/// The storage of a tier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TierKind {
    /// In this process's memory.
    Ram,
    /// In a file in this folder, or in this block device or file itself.
    File(PathBuf),
    /// In a remote namespace, which this node has to itself.
    Namespace(TcpAddress),
}

impl TierOptions {
    /// Returns whether any tier is used.
    pub fn is_active(&self) -> bool {
        !self.tiers.is_empty() && self.policy != Policy::None
    }

    /// Checks the options for contradictions.
    ///
    /// # Errors
    /// `InvalidArgument`: too many tiers, a tier without room, two tiers in the same place, or a bandwidth of 0.
    pub fn check(&self) -> Result<()> {
        let refuse = |text: String| Err(Error::new(ErrorKind::InvalidArgument, text));
        if self.tiers.len() > MAX_TIERS {
            return refuse(format!("{} tiers, more than {MAX_TIERS}", self.tiers.len()));
        }
        for (index, tier) in self.tiers.iter().enumerate() {
            if tier.quota_bytes == 0 {
                return refuse(format!("the tier {tier} has a quota of 0 bytes"));
            }
            let is_named = tier.kind != TierKind::Ram;
            if is_named && self.tiers[..index].iter().any(|other| other.kind == tier.kind) {
                return refuse(format!("two tiers use the same place: {tier}"));
            }
        }
        match self.bandwidth_bytes_per_s {
            Some(0) => refuse("a copier of 0 bytes a second never ends".to_owned()),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for TierSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let overwrite = if self.overwrite { OVERWRITE } else { "" };
        let quota = self.quota_bytes;
        match &self.kind {
            TierKind::Ram => write!(f, "ram:{quota}"),
            TierKind::File(path) => write!(f, "file:{}:{quota}{overwrite}", path.display()),
            TierKind::Namespace(address) => write!(f, "{address}:{quota}{overwrite}"),
        }
    }
}

impl FromStr for TierSpec {
    type Err = Error;

    /// Parses `ram:SIZE`, `file:PATH:SIZE` or `nvme-tcp://HOST/NQN?ns=N:SIZE`; `:overwrite` may follow the last two.
    fn from_str(text: &str) -> Result<TierSpec> {
        let refuse = |why: &str| {
            Error::new(ErrorKind::InvalidArgument, format!("'{text}' is not a tier: {why}")).hint(
                "ram:4G, file:/fast/cache:20G for a folder, file or block device, or \
                     nvme-tcp://HOST/NQN?ns=N:200G for a remote namespace",
            )
        };
        let size = |text: &str| parse_size(text).map_err(|why| refuse(&why));
        if let Some(rest) = text.strip_prefix("ram:") {
            let quota_bytes = size(rest)?;
            return Ok(TierSpec { kind: TierKind::Ram, quota_bytes, overwrite: false });
        }
        let (rest, overwrite) = match text.strip_suffix(OVERWRITE) {
            Some(rest) => (rest, true),
            None => (text, false),
        };
        let (place, quota) = rest.rsplit_once(':').ok_or_else(|| refuse("no size"))?;
        let kind = match place.strip_prefix("file:") {
            Some("") => return Err(refuse("no path")),
            Some(path) => TierKind::File(path.into()),
            None if place.starts_with("nvme-tcp:") => match place.parse() {
                Ok(Address::Tcp(address)) => TierKind::Namespace(address),
                Ok(_) => return Err(refuse("no address of a remote namespace")),
                Err(why) => return Err(refuse(&why.to_string())),
            },
            None => return Err(refuse("neither ram:, file: nor nvme-tcp:")),
        };
        Ok(TierSpec { kind, quota_bytes: size(quota)?, overwrite })
    }
}

/// Tiers and their speeds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Environment {
    /// `none`, `first-touch` or `clairvoyant`; `None`: the program decides.
    pub policy: Option<String>,
    /// Limit of the copier's reads of the origin, as a size per second.
    pub copy_bandwidth: Option<String>,
    /// Ends admission for good when a sample first fits no tier, as in Monarch.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stop_at_first_failure: bool,
    /// Aggregate read rate of the origin by number of clients; empty if it was not measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub origin: Vec<Point>,
    /// Clients of the table `origin`: `threads` (also if missing), or `processes` (with any number of threads).
    pub origin_by: Option<String>,
    /// Maximum rate at which one process reads from the origin, in 10^6 bytes per second.
    pub origin_link_mb_per_s: Option<f64>,
    /// Maximum rate at which one process reads from another node, in 10^6 bytes per second.
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

/// A `[[tier]]` of the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TierTable {
    /// `memory` or `filesystem`: the backend, by HDMLP's name.
    pub backend: String,
    /// Path of a `filesystem` tier.
    pub path: Option<String>,
    /// Quota, as a size: `20G`.
    pub capacity: String,
    /// Allows the tier to destroy existing data at `path`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overwrite: bool,
    /// Threads that read from the tier and write to it, each up to 1 MiB at a time.
    #[serde(default = "default_threads")]
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
    /// The tier that the table describes.
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

/// The curve of a bandwidth table; `what` names the table in errors.
fn curve(what: &str, points: &[Point]) -> Result<Curve> {
    let mut list = Vec::with_capacity(points.len());
    for point in points {
        list.push((point.threads, rate(&format!("the table of {what}"), point.mb_per_s)?));
    }
    Curve::new(what, list)
}

/// The rate in bytes per second, at most 10^18; `what` names it in errors.
fn rate(what: &str, mb_per_s: f64) -> Result<Rate> {
    if mb_per_s.is_finite() && mb_per_s > 0.0 {
        Ok(Rate((mb_per_s * 1e6).min(1e18) as u64))
    } else {
        Err(refuse(format!("{what} has a rate of {mb_per_s} MB/s; it must be above 0")))
    }
}

/// The error of an environment that cannot be used.
pub(super) fn refuse(text: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, text).hint("dlfs probe writes such a file")
}

/// The number of threads of a tier whose table has none.
pub(super) fn default_threads() -> u32 {
    2
}

/// The suffix that allows destroying existing data.
const OVERWRITE: &str = ":overwrite";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiers_are_parsed_from_text_and_other_text_is_refused_with_examples() {
        let tier: TierSpec = "ram:4G".parse().unwrap();
        assert_eq!(tier, TierSpec { kind: TierKind::Ram, quota_bytes: 4 << 30, overwrite: false });
        let tier: TierSpec = "file:/a:b:20M".parse().unwrap();
        let kind = TierKind::File("/a:b".into());
        assert_eq!(tier, TierSpec { kind, quota_bytes: 20 << 20, overwrite: false });
        let consent: TierSpec = "file:/a:b:20M:overwrite".parse().unwrap();
        assert_eq!(consent, TierSpec { overwrite: true, ..tier.clone() });
        let remote = "nvme-tcp://[::1]:4420/nqn.2026-11.io.dlfs:cache?ns=2:200G";
        let remote: TierSpec = remote.parse().unwrap();
        assert!(
            matches!(&remote.kind, TierKind::Namespace(at) if at.subnqn.as_str().ends_with(":cache"))
        );
        assert_eq!((remote.quota_bytes, remote.overwrite), (200 << 30, false));
        for tier in [tier, consent, remote] {
            assert_eq!(tier.to_string().parse::<TierSpec>().unwrap(), tier);
        }
        for text in [
            "",
            "4G",
            "ram",
            "ram:",
            "ram:x",
            "file:/a",
            "file::4G",
            "disk:/a:4G",
            "nvme-tcp://h/nqn.a:b",
            "nvme-tcp:4G",
        ] {
            let error = text.parse::<TierSpec>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.report().contains("ram:4G"), "{text}: {}", error.report());
        }
    }

    #[test]
    fn impossible_tiers_are_refused_by_name() {
        let refuse = |tiers: &[&str], bandwidth_bytes_per_s| {
            let tiers = tiers.iter().map(|tier| tier.parse().unwrap()).collect();
            let options = TierOptions { tiers, bandwidth_bytes_per_s, ..TierOptions::default() };
            options.check().err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert_eq!(refuse(&["ram:1M", "ram:2M", "file:/a:1M"], Some(1)), "");
        assert!(refuse(&["ram:0"], None).contains("ram:0"));
        assert!(refuse(&["file:/a:1M", "file:/a:2M"], None).contains("/a"));
        assert!(refuse(&["ram:1M"; 16], None).contains("16 tiers"));
        assert!(refuse(&[], Some(0)).contains("0 bytes"));
    }

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
