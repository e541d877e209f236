//! The options of opening and reading a data set, each defined once: name, meaning, unit, default and bounds.
//!
//! All front ends use these structs. The command flattens them into its arguments, and their documentation is its help
//! (feature `clap`). Python passes options by name, through serde. C's structs have the same fields; the name of a
//! number ends with its unit where the unit is not obvious: `_ms`, `_bytes`. `tests/all/options.rs` compares the names
//! and the documentation of C and Python with these. To add an option, add it here, to C's struct, and to Python's.
//!
//! `None`, in C zero, means the default.
//!
//! This file has the options of opening: connections, tiers, peers and the store. `load.rs` has those of reading,
//! `tokens.rs` those of batches by tokens, and `values.rs` the types of values.

mod load;
mod tokens;
mod values;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::address::Address;
use crate::auth::Derivation;
use crate::cache::{Environment, TierOptions, TierSpec};
use crate::dataset::{OpenOptions, ViewSource};
use crate::error::{Error, ErrorKind, Result, ensure, invalid};
use crate::folders::{FolderOptions, Links};
use crate::format::Uuid;
use crate::keys::{KEYRING, is_key_text, secret_of, set_tls_key};
#[cfg(feature = "clap")]
use crate::nvme::Nqn;
use crate::peers::rendezvous::DEFAULT_TIMEOUT;
use crate::peers::{JobKey, JoinOptions, Means, PeerKeys, Serving};
use crate::qpair::{ConnectOptions, Direct, SpdkOptions};
use crate::shards::ShardOptions;
use crate::store::StoreOptions;
use crate::tier::{Policy, Stop};

pub use load::{DEFAULT_EXCHANGE, DEFAULT_GROUP, Load, Order, Read};
pub use tokens::{Rows, Tokens};
pub use values::{Choice, Kind, Named, Seconds, Size};

/// How to connect to namespaces, and how to read files and folders.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[cfg_attr(feature = "clap", command(next_help_heading = "Connection (named as in nvme-cli)"))]
pub struct Connect {
    /// Protect PDU headers with CRC32C.
    #[cfg_attr(feature = "clap", arg(long))]
    pub hdr_digest: bool,
    /// Protect PDU data with CRC32C; samples are verified in any case.
    #[cfg_attr(feature = "clap", arg(long))]
    pub data_digest: bool,
    /// The host NQN to present [default: that of /etc/nvme/hostnqn, else one of this machine's own].
    #[cfg_attr(feature = "clap", arg(long, value_name = "NQN", value_parser = text::<Nqn>))]
    pub hostnqn: Option<String>,
    /// The host identifier to present, a UUID [default: that of /etc/nvme/hostid].
    #[cfg_attr(feature = "clap", arg(long, value_name = "UUID", value_parser = checked(uuid)))]
    pub hostid: Option<String>,
    /// The host's key for DH-HMAC-CHAP: the path of a key file with mode 0600, which `dlfs key gen` makes, or the
    /// key itself, which others may see; through SPDK a file only.
    #[cfg_attr(feature = "clap", arg(long, value_name = "FILE|KEY"))]
    pub dhchap_secret: Option<String>,
    /// The subsystem's key, with which the target must authenticate itself, too; a file or the key.
    #[cfg_attr(feature = "clap", arg(long, value_name = "FILE|KEY", requires = "dhchap_secret"))]
    pub dhchap_ctrl_secret: Option<String>,
    /// Go on inside TLS with a key that the authentication generates (secure channel concatenation); needs
    /// dhchap_secret and OpenSSL 3.
    #[cfg_attr(feature = "clap", arg(long, requires = "dhchap_secret"))]
    #[cfg_attr(feature = "clap", arg(conflicts_with = "tls_key"))]
    pub concat: bool,
    /// Connect inside TLS 1.3; without a tls_key, with the key that nvme-cli has put into the kernel's keyring .nvme.
    #[cfg_attr(feature = "clap", arg(long, conflicts_with = "concat"))]
    pub tls: bool,
    /// The key with which each connection establishes TLS 1.3: the path of a key file with mode 0600, the key itself,
    /// or `keyring` for the kernel's keyring .nvme; through SPDK a file only. Needs OpenSSL 3.
    #[cfg_attr(feature = "clap", arg(long, value_name = "FILE|KEY"))]
    pub tls_key: Option<String>,
    /// Derive TLS keys as libnvme before July 2025 did, for targets whose keys it installed.
    #[cfg_attr(feature = "clap", arg(long))]
    pub tls_compat: bool,
    /// I/O queues to request, each a connection of its own.
    #[cfg_attr(feature = "clap", arg(long, value_name = "N"))]
    #[cfg_attr(feature = "clap", arg(value_parser = clap::value_parser!(u16).range(1..)))]
    #[cfg_attr(feature = "clap", arg(default_value_t = Connect::default().nr_io_queues))]
    pub nr_io_queues: u16,
    /// Entries of an I/O queue; one fewer may be outstanding.
    #[cfg_attr(feature = "clap", arg(long, value_name = "N"))]
    #[cfg_attr(feature = "clap", arg(value_parser = clap::value_parser!(u16).range(2..)))]
    #[cfg_attr(feature = "clap", arg(default_value_t = Connect::default().queue_size))]
    pub queue_size: u16,
    /// Keep-alive timeout: the silence after which a side closes the connection; 0 switches it off.
    #[cfg_attr(feature = "clap", arg(long, value_name = "SECONDS"))]
    #[cfg_attr(feature = "clap", arg(default_value_t = Connect::default().keep_alive_tmo))]
    pub keep_alive_tmo: Seconds,
    /// How long to keep reconnecting after a connection is lost.
    #[cfg_attr(feature = "clap", arg(long, value_name = "SECONDS"))]
    #[cfg_attr(feature = "clap", arg(default_value_t = Connect::default().ctrl_loss_tmo))]
    pub ctrl_loss_tmo: Seconds,
    /// How long a queue may make no progress before its reads are repeated on another connection.
    #[cfg_attr(feature = "clap", arg(long, value_name = "SECONDS"))]
    #[cfg_attr(feature = "clap", arg(default_value_t = Connect::default().io_timeout))]
    pub io_timeout: Seconds,
    /// How long connecting may take.
    #[cfg_attr(feature = "clap", arg(skip = Connect::default().connect_timeout))]
    pub connect_timeout: Seconds,
    /// More addresses of the same namespaces, used while the first is down.
    #[cfg_attr(feature = "clap", arg(long = "path", value_name = "ADDRESS"))]
    #[cfg_attr(feature = "clap", arg(value_parser = text::<Address>))]
    pub paths: Vec<String>,
    /// Bypass of the page cache for image files and block devices; auto: block devices, and files larger than half of
    /// the memory.
    #[cfg_attr(feature = "clap", arg(long, value_name = "WHEN", default_value_t))]
    pub direct: Choice<Direct>,
    /// Links to follow in a plain folder: all, as torchvision's ImageFolder does, but none back to a folder around it;
    /// those that stay inside; or none. Others are errors.
    #[cfg_attr(feature = "clap", arg(long, value_name = "WHICH", default_value_t))]
    pub links: Choice<Links>,
    /// Take hidden files of a plain folder, an archive or a store, and what file systems and tools leave behind (._*,
    /// .DS_Store, Thumbs.db, desktop.ini, @eaDir, __MACOSX).
    #[cfg_attr(feature = "clap", arg(long))]
    pub hidden: bool,
    /// Memory for SPDK and its devices; the first namespace that a process opens decides.
    #[cfg_attr(feature = "clap", arg(long, value_name = "SIZE"))]
    #[cfg_attr(feature = "clap", arg(default_value_t = Connect::default().spdk_memory))]
    pub spdk_memory: Size,
    /// Huge pages for SPDK's memory; auto: if enough are free.
    #[cfg_attr(feature = "clap", arg(long, value_name = "WHEN", default_value_t))]
    pub spdk_huge_pages: Choice<Direct>,
}

impl Default for Connect {
    fn default() -> Connect {
        let library = ConnectOptions::default();
        Connect {
            hdr_digest: library.hdr_digest,
            data_digest: library.data_digest,
            hostnqn: None,
            hostid: None,
            dhchap_secret: None,
            dhchap_ctrl_secret: None,
            concat: library.concat,
            tls: false,
            tls_key: None,
            tls_compat: false,
            nr_io_queues: library.nr_io_queues,
            queue_size: library.queue_size,
            keep_alive_tmo: Seconds(library.keep_alive_tmo),
            ctrl_loss_tmo: Seconds(library.ctrl_loss_tmo),
            io_timeout: Seconds(library.io_timeout),
            connect_timeout: Seconds(library.connect_timeout),
            paths: Vec::new(),
            direct: Choice(library.direct),
            links: Choice(library.folders.links),
            hidden: library.folders.hidden,
            spdk_memory: Size(library.spdk.memory_bytes as u64),
            spdk_huge_pages: Choice::default(),
        }
    }
}

impl Connect {
    /// The entries of a folder that are samples.
    pub fn folders(&self) -> FolderOptions {
        FolderOptions { hidden: self.hidden, links: self.links.0 }
    }

    /// The options of a connection.
    ///
    /// # Errors
    /// `InvalidArgument`: a value that has no meaning, or is out of range. Those of reading the files of keys.
    pub fn options(&self, writable: bool) -> Result<ConnectOptions> {
        within("nr_io_queues", self.nr_io_queues, 1)?;
        within("queue_size", self.queue_size, 2)?;
        ensure(!self.concat || self.dhchap_secret.is_some(), || "concat needs dhchap_secret")?;
        let secret = |name: &str, given: &Option<String>| {
            let read = given.as_deref().map(secret_of).transpose();
            read.map_err(|error| about(name, error))
        };
        let file = |given: Option<&str>| {
            given.filter(|given| !is_key_text(given) && *given != KEYRING).map(PathBuf::from)
        };
        let tls_key = self.tls_key.as_deref().or(self.tls.then_some(KEYRING));
        let parsed = |path: &String| path.parse::<Address>().map_err(Error::from);
        let hostnqn = self.hostnqn.as_ref().map(|nqn| nqn.parse());
        let mut options = ConnectOptions {
            hdr_digest: self.hdr_digest,
            data_digest: self.data_digest,
            hostnqn: hostnqn.transpose().map_err(|error| invalid(format!("hostnqn: {error}")))?,
            hostid: self.hostid.as_deref().map(uuid).transpose()?,
            dhchap_secret: secret("dhchap_secret", &self.dhchap_secret)?,
            dhchap_ctrl_secret: secret("dhchap_ctrl_secret", &self.dhchap_ctrl_secret)?,
            concat: self.concat,
            tls_derivation: if self.tls_compat {
                Derivation::Compatible
            } else {
                Derivation::Specification
            },
            nr_io_queues: self.nr_io_queues,
            queue_size: self.queue_size,
            keep_alive_tmo: self.keep_alive_tmo.0,
            ctrl_loss_tmo: self.ctrl_loss_tmo.0,
            io_timeout: self.io_timeout.0,
            paths: self.paths.iter().map(parsed).collect::<Result<_>>()?,
            direct: self.direct.0,
            writable,
            spdk: SpdkOptions {
                memory_bytes: usize::try_from(self.spdk_memory.0).unwrap_or(usize::MAX),
                huge_pages: match self.spdk_huge_pages.0 {
                    Direct::Auto => None,
                    Direct::On => Some(true),
                    Direct::Off => Some(false),
                },
                dhchap_key: file(self.dhchap_secret.as_deref()),
                dhchap_ctrl_key: file(self.dhchap_ctrl_secret.as_deref()),
                tls_key: file(tls_key),
            },
            folders: self.folders(),
            ..ConnectOptions::default()
        };
        options.set_connect_timeout(self.connect_timeout.0);
        if let Some(given) = tls_key {
            set_tls_key(&mut options, given).map_err(|error| about("tls_key", error))?;
        }
        Ok(options)
    }
}

/// The part of an image that is opened, and where its directory comes from.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
pub struct Open {
    /// A directory saved by `dlfs snapshot save`, used instead of the image's own; one of another generation is
    /// refused.
    #[cfg_attr(feature = "clap", arg(long, value_name = "FILE"))]
    pub snapshot: Option<PathBuf>,
    /// A view saved by `dlfs select`: its samples are the data set. The path of a file, and behind a colon the name of
    /// one of several views in it.
    #[cfg_attr(feature = "clap", arg(long, value_name = "FILE[:NAME]"))]
    pub view: Option<PathBuf>,
    /// Read the samples in tar archives, tables and other shards as they are, without an import.
    #[cfg_attr(feature = "clap", arg(long))]
    pub shards: bool,
    /// The place that keeps the indexes of shards, a folder or a prefix of a store; `dlfs index` or the first opening
    /// makes them.
    #[cfg_attr(feature = "clap", arg(long, value_name = "PLACE", requires = "shards"))]
    pub index: Option<PathBuf>,
}

impl Open {
    /// The options of an image whose namespaces are reached by `connect`, read through `tiers`.
    pub fn options(&self, connect: ConnectOptions, tiers: TierOptions) -> OpenOptions {
        let view = self.view.as_deref().map(ViewSource::of_text);
        OpenOptions {
            connect,
            tiers,
            view,
            snapshot: self.snapshot.clone(),
            shards: self
                .shards
                .then(|| ShardOptions { index: self.index.clone(), ..ShardOptions::default() }),
            ..OpenOptions::default()
        }
    }
}

/// Tiers: where copies of samples are kept, and of which samples.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "clap", derive(clap::Args), command(next_help_heading = "Tiers"))]
pub struct Tiers {
    /// Tiers that keep copies of samples after the first read, fastest first: ram:SIZE, or file:PATH:SIZE for a
    /// folder, file or block device that is empty or an earlier tier, with :overwrite behind it for any other; or
    /// nvme-tcp://HOST/NQN?ns=N:SIZE for a remote namespace that this node has to itself.
    #[cfg_attr(feature = "clap", arg(long = "tier", value_name = "TIER"))]
    #[cfg_attr(feature = "clap", arg(value_parser = text::<TierSpec>))]
    pub tiers: Vec<String>,
    /// A file that describes the tiers, as written by `dlfs probe` or for NoPFS, instead of them; auto, in the command:
    /// measure them and put them in order of speed, or use half of the free memory.
    #[cfg_attr(feature = "clap", arg(long, value_name = "FILE|auto"))]
    pub tiers_file: Option<PathBuf>,
    /// The samples that tiers keep: those read first, or those that the plan of the whole run names [default: that of
    /// the file, else first-touch].
    #[cfg_attr(feature = "clap", arg(long, value_name = "POLICY"))]
    pub policy: Option<Choice<Policy>>,
    /// The most bytes a second that the copier may read from the origin by itself [default: no limit].
    #[cfg_attr(feature = "clap", arg(long, value_name = "SIZE"))]
    pub copy_bandwidth: Option<Size>,
    /// Stop adding copies for good once a sample fits in no tier, as Monarch does.
    #[cfg_attr(feature = "clap", arg(long))]
    pub stop_at_first_failure: bool,
}

impl Tiers {
    /// The options of tiers on `node`.
    ///
    /// # Errors
    /// `InvalidArgument`: a tier that has no meaning. Those of reading `tiers_file`.
    pub fn options(&self, node: Option<String>) -> Result<TierOptions> {
        let Some(file) = &self.tiers_file else {
            let tiers = TierOptions { tiers: self.specs()?, ..TierOptions::default() };
            return self.with(tiers, node);
        };
        ensure(
            self.tiers.is_empty(),
            || "tiers_file names the tiers, and so do tiers: give one of both",
        )?;
        self.with(Environment::read(file)?.options().map_err(|error| error.path(file))?, node)
    }

    /// The tiers that are named one by one.
    ///
    /// # Errors
    /// `InvalidArgument`: one has no meaning.
    pub fn specs(&self) -> Result<Vec<TierSpec>> {
        self.tiers.iter().map(|tier| tier.parse()).collect()
    }

    /// `found` tiers, with all options but those that name them.
    ///
    /// # Errors
    /// `InvalidArgument`: as [`TierOptions::check`].
    pub fn with(&self, found: TierOptions, node: Option<String>) -> Result<TierOptions> {
        let options = TierOptions {
            policy: self.policy.map_or(found.policy, |policy| policy.0),
            stop: if self.stop_at_first_failure { Stop::AtFirstFailure } else { found.stop },
            bandwidth_bytes_per_s: self
                .copy_bandwidth
                .map(|size| size.0)
                .or(found.bandwidth_bytes_per_s),
            node,
            ..found
        };
        options.check()?;
        Ok(options)
    }
}

/// The job's other nodes, whose tiers are read, too.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "clap", derive(clap::Args), command(next_help_heading = "Peers"))]
pub struct Peers {
    /// Meeting place of the ranks, which then share the tiers of all nodes of the job: auto: at rank 0, as the
    /// launcher's MASTER_ADDR and MASTER_PORT name it; a folder that all nodes see; HOST:PORT,HOST:PORT,... of each
    /// rank, or a file with one a line.
    #[cfg_attr(feature = "clap", arg(long, value_name = "auto|DIR|LIST"))]
    pub peers: Option<String>,
    /// A name for this start of the job, the same on all ranks and not used before [default: the launcher's].
    #[cfg_attr(feature = "clap", arg(long, value_name = "NAME", requires = "peers"))]
    pub round: Option<String>,
    /// Placement of data on the nodes, and a node's answer to a peer that asks for data which its tiers lack.
    /// read-through: a hash names the holder, which reads them from the data set, keeps them and answers; copies: the
    /// same holder answers that they are not there, and fetches what it holds by itself; plan: a node holds what its
    /// ranks read most often, and answers as with copies (NoPFS; with the policy clairvoyant).
    #[cfg_attr(feature = "clap", arg(long, value_name = "MODE"))]
    #[cfg_attr(feature = "clap", arg(requires = "peers", default_value_t))]
    pub peer_mode: Choice<Serving>,
    /// Address at which peers reach this rank: IP, or IP:PORT [default: the address from which MASTER_ADDR is reached,
    /// any port].
    #[cfg_attr(feature = "clap", arg(long, value_name = "IP[:PORT]", requires = "peers"))]
    #[cfg_attr(feature = "clap", arg(value_parser = checked(listen)))]
    pub peer_address: Option<String>,
    /// The port on which rank 0 gathers the addresses of all ranks [default: MASTER_PORT + 1, or the list's first port
    /// + 1].
    #[cfg_attr(feature = "clap", arg(long, value_name = "PORT", requires = "peers"))]
    #[cfg_attr(feature = "clap", arg(value_parser = clap::value_parser!(u16).range(1..)))]
    pub rendezvous_port: Option<u16>,
    /// The key by which the ranks of the job prove themselves to each other, the same for all: the path of a key file
    /// with mode 0600, the key itself, or rendezvous: rank 0 draws one, and the others get it where they meet. Without
    /// one, whoever claims the name of a rank's host may read its tiers.
    #[cfg_attr(feature = "clap", arg(long, value_name = "FILE|KEY|rendezvous"))]
    #[cfg_attr(feature = "clap", arg(requires = "peers"))]
    pub job_key: Option<String>,
    /// Connect to peers inside TLS with the job's key, which needs OpenSSL 3; otherwise ranks with a key
    /// authenticate, and data are sent in clear.
    #[cfg_attr(feature = "clap", arg(long, requires = "job_key"))]
    pub peer_tls: bool,
    /// The name of this node, if several run on one machine: processes on nodes of other names do not share tiers in
    /// memory [default: the machine's identity].
    #[cfg_attr(feature = "clap", arg(long, value_name = "NAME", requires = "peers"))]
    pub node: Option<String>,
    /// How long to wait for all ranks, at the start and at the end.
    #[cfg_attr(feature = "clap", arg(long, value_name = "SECONDS", requires = "peers"))]
    #[cfg_attr(feature = "clap", arg(default_value_t = Peers::default().peer_timeout))]
    pub peer_timeout: Seconds,
}

impl Default for Peers {
    fn default() -> Peers {
        Peers {
            peers: None,
            round: None,
            peer_mode: Choice::default(),
            peer_address: None,
            rendezvous_port: None,
            job_key: None,
            peer_tls: false,
            node: None,
            peer_timeout: Seconds(DEFAULT_TIMEOUT),
        }
    }
}

impl Peers {
    /// How `place`, a rank and a world size, joins the others at `means`.
    ///
    /// # Errors
    /// `InvalidArgument`: a value that has no meaning. Those of reading the file of the key.
    pub fn join(&self, means: Means, place: Option<(u32, u32)>) -> Result<JoinOptions> {
        within("rendezvous_port", self.rendezvous_port.unwrap_or(1), 1)?;
        let tls = self.peer_tls;
        ensure(!tls || self.job_key.is_some(), || "peer_tls needs job_key")?;
        let key = self.job_key.as_deref().map(JobKey::of).transpose()?;
        let keys = key.map(|key| PeerKeys { key, tls });
        Ok(JoinOptions {
            place,
            round: self.round.clone(),
            address: self.peer_address.as_deref().map(listen).transpose()?,
            rendezvous_port: self.rendezvous_port,
            node: self.node.clone(),
            serving: self.peer_mode.0,
            timeout: self.peer_timeout.0,
            keys,
            ..JoinOptions::new(means)
        })
    }
}

/// The storage that holds this rank's share of the samples.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "clap", derive(clap::Args), command(next_help_heading = "Store"))]
pub struct Store {
    /// Store for this rank's share of the samples, in order partial or local: ram:SIZE or file:FOLDER:SIZE, a size that
    /// the ranks of a node share in equal parts. The share is read from the data set once; then the ranks exchange
    /// samples with each other, through their peers.
    #[cfg_attr(feature = "clap", arg(long, value_name = "ram:SIZE|file:DIR:SIZE"))]
    #[cfg_attr(feature = "clap", arg(value_parser = text::<TierSpec>))]
    pub store: Option<String>,
    /// Exchange samples at the end of each epoch instead of during it, for comparison.
    #[cfg_attr(feature = "clap", arg(long, requires = "store"))]
    pub blocking_exchange: bool,
    /// Resume between epochs with another world size: the ranks begin with new shares; what lies in the stores is used
    /// again.
    #[cfg_attr(feature = "clap", arg(long))]
    pub restart_shares: bool,
}

impl Store {
    /// The options of the store; `None` without one.
    ///
    /// # Errors
    /// `InvalidArgument`: it has no meaning.
    pub fn options(&self) -> Result<Option<StoreOptions>> {
        let blocking = self.blocking_exchange;
        let spec = self.store.as_deref().map(str::parse).transpose()?;
        Ok(spec.map(|spec| StoreOptions { blocking, ..StoreOptions::new(spec) }))
    }
}

/// `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`, or the 32 digits alone.
fn uuid(text: &str) -> Result<[u8; 16]> {
    text.parse().map(|Uuid(bytes)| bytes).map_err(|_| {
        invalid(format!("hostid is a UUID, as 00112233-4455-6677-8899-aabbccddeeff, not {text:?}"))
    })
}

/// An address to listen at; a free port if the text has none.
fn listen(text: &str) -> Result<SocketAddr> {
    let of_ip = |ip: IpAddr| SocketAddr::new(ip, 0);
    text.parse().or_else(|_| text.parse().map(of_ip)).map_err(|_| {
        invalid(format!("peer_address is IP or IP:PORT, as 10.0.0.7:4421, not {text:?}"))
    })
}

/// Parses an argument of the command as a `T`, so that errors are found before the command begins. Returns its text.
#[cfg(feature = "clap")]
fn text<T: std::str::FromStr>(text: &str) -> std::result::Result<String, T::Err> {
    text.parse::<T>().map(|_| text.to_owned())
}

/// As [`text`], with the parser `read`.
#[cfg(feature = "clap")]
fn checked<T: 'static>(read: fn(&str) -> Result<T>) -> impl Fn(&str) -> Result<String> + Clone {
    move |text| read(text).map(|_| text.to_owned())
}

/// Checks that the option `name` is at least `least`.
fn within(name: &str, number: impl Into<u64>, least: u64) -> Result<()> {
    let number = number.into();
    ensure(number >= least, || format!("{name} is at least {least}, not {number}"))
}

/// An error of the option `name`: if the text of the option is invalid, the error names the option; errors of a file
/// are returned unchanged.
fn about(name: &str, error: Error) -> Error {
    if error.kind() == ErrorKind::InvalidArgument {
        invalid(format!("{name}: {}", error.report()))
    } else {
        error
    }
}
