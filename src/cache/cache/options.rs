//! Options of tiers, from a command line or a program.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use dlfs_base::error::{Error, ErrorKind, Result};
use dlfs_base::units::parse_size;
use dlfs_io::address::{Address, TcpAddress};
use dlfs_io::qpair::ConnectOptions;
use dlfs_order::plan::SourceRates;
use dlfs_order::tier::{Policy, Stop};

/// Options of tiers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TierOptions {
    /// The tiers, fastest first; empty: the origin is read directly.
    pub tiers: Vec<TierSpec>,
    /// The policy that decides which samples are kept.
    pub policy: Policy,
    /// The point at which first-touch stops looking for room.
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

/// One tier: its storage and its quota.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TierSpec {
    /// Its storage.
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

/// The suffix that allows destroying existing data.
const OVERWRITE: &str = ":overwrite";

/// Limit of tiers: the address of a planned copy (`dlfs_order::plan`) encodes the tier in 4 bits; all ones: none.
pub(super) const MAX_TIERS: usize = 15;

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
}
