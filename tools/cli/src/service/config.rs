//! A service's configuration: its subsystems and their hosts, and the file that defines them.

use std::collections::BTreeMap;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::Spanned;

use dlfs::address::Address;
use dlfs::keys::read_hosts;
use dlfs::nvme::Nqn;
use dlfs::qpair::Cpus;
use dlfs::target::{AnaState, HostKeys, HostRule, Limits, Rules};
use dlfs::units::Nsid;
use dlfs::{Error, ErrorKind, Result, tls};

use super::access_log::LogDestination;
use super::limits::{self, LimitArgs, parse_table};

/// The whole configuration of a service.
#[derive(Debug, Clone, Default)]
pub(crate) struct ServiceConfig {
    /// The destination of the access log, if there is one.
    pub(crate) access_log: Option<LogDestination>,
    pub(crate) subsystems: Vec<SubsystemConfig>,
    /// Limits and weights of hosts and groups.
    pub(crate) hosts: Vec<HostRule>,
}

impl ServiceConfig {
    /// The limits of hosts, groups and namespaces.
    pub(crate) fn rules(&self) -> Rules {
        let namespaces = self.subsystems.iter().flat_map(|subsystem| {
            let limits = subsystem.namespace_limits.iter();
            limits.map(|(nsid, limits)| ((subsystem.nqn.clone(), *nsid), *limits))
        });
        Rules { hosts: self.hosts.clone(), namespaces: namespaces.collect() }
    }
}

/// One subsystem: its namespaces, its addresses, and the hosts that may connect.
#[derive(Debug, Clone)]
pub(crate) struct SubsystemConfig {
    pub(crate) nqn: Nqn,
    pub(crate) listen: Vec<SocketAddr>,
    pub(crate) namespaces: Vec<NamespaceConfig>,
    /// Limits on the use of a namespace by all hosts together.
    pub(crate) namespace_limits: BTreeMap<Nsid, Limits>,
    /// Hosts that may connect without keys.
    pub(crate) allow_hosts: Vec<Nqn>,
    pub(crate) allow_any_host: bool,
    /// Hosts that must authenticate or connect inside TLS, with their keys.
    pub(crate) host_keys: BTreeMap<Nqn, HostKeys>,
    pub(crate) require_tls: bool,
    /// The ANA state of the namespaces through this service.
    pub(crate) ana: AnaState,
    /// Threads that move data; by default one per processor of `cpus`, else 1.
    pub(crate) pollers: Option<u16>,
    /// The processors of these threads; `None`: any.
    pub(crate) cpus: Option<Cpus>,
    pub(crate) busy_poll: bool,
    /// Limits on the resources of the target.
    pub(crate) limits: LimitArgs,
}

/// One namespace.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NamespaceConfig {
    pub(crate) nsid: Nsid,
    pub(crate) address: Address,
    pub(crate) read_only: bool,
}

impl SubsystemConfig {
    /// Returns whether hosts may write to a namespace.
    pub(crate) fn is_writable(&self) -> bool {
        self.namespaces.iter().any(|namespace| !namespace.read_only)
    }

    /// The options that only a restart can change, as a string to compare.
    fn fixed(&self) -> String {
        let SubsystemConfig { listen, allow_any_host, require_tls, pollers, cpus, .. } = self;
        let hosts = (allow_any_host, require_tls);
        format!("{:?}", (listen, hosts, pollers, cpus, self.busy_poll, &self.limits))
    }

    /// Refuses a change that needs a restart.
    pub(crate) fn check_change(&self, new: &SubsystemConfig) -> Result<()> {
        if self.fixed() == new.fixed() {
            return Ok(());
        }
        let message = format!(
            "{}: listen, allow_any_host, require_tls, pollers, cpus, busy_poll and limits do not change while it \
             serves",
            self.nqn
        );
        Err(Error::new(ErrorKind::InvalidArgument, message).hint("restart the service for these"))
    }
}

/// The file as it is written. Unknown keys are refused.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigFile {
    access_log: Option<String>,
    #[serde(default)]
    subsystem: Vec<SubsystemTable>,
    #[serde(default)]
    host: Vec<Spanned<toml::Table>>,
    #[serde(default)]
    group: Vec<Spanned<toml::Table>>,
}

/// A table `[[subsystem]]` of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SubsystemTable {
    nqn: Spanned<Nqn>,
    listen: Spanned<OneOrMore>,
    #[serde(default)]
    namespace: Vec<NamespaceTable>,
    #[serde(default)]
    allow_hosts: Vec<Nqn>,
    #[serde(default)]
    allow_any_host: bool,
    #[serde(default)]
    require_tls: bool,
    hosts: Option<PathBuf>,
    ana: Option<Spanned<String>>,
    pollers: Option<Spanned<u16>>,
    cpus: Option<Spanned<String>>,
    #[serde(default)]
    busy_poll: bool,
    limits: Option<Spanned<toml::Table>>,
}

/// A table `[[subsystem.namespace]]` of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NamespaceTable {
    nsid: Spanned<u32>,
    address: Spanned<String>,
    #[serde(default = "default_true")]
    read_only: bool,
    limit: Option<Spanned<toml::Table>>,
}

/// A string, or a list of strings.
#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

/// The default of options that are on, for serde.
pub(super) fn default_true() -> bool {
    true
}

/// Reads a configuration file and the hosts files that it names. Relative paths start at its folder.
///
/// # Errors
/// `NotFound`: the file does not exist. `InvalidArgument`: the file is not valid; the message names the line
/// and column. Errors of reading the hosts files.
pub(crate) fn read(path: &Path) -> Result<ServiceConfig> {
    let read =
        std::fs::read_to_string(path).and_then(|text| Ok((text, std::path::absolute(path)?)));
    let (text, absolute) = read.map_err(|error| Error::from(error).path(path))?;
    // Absolute, as the paths from `dlfs ctl` are: a namespace added by `dlfs ctl` and later to the file is
    // then the same.
    parse(&text, path, absolute.parent().unwrap_or(Path::new("")))
}

fn parse(text: &str, path: &Path, folder: &Path) -> Result<ServiceConfig> {
    let reader = ConfigReader { text, path, folder };
    let file: ConfigFile = toml::from_str(text).map_err(|error| {
        reader.wrong(error.span().map_or(0, |span| span.start), error.message())
    })?;
    if file.subsystem.is_empty() {
        return Err(reader.wrong(0, "no [[subsystem]]: there is nothing to serve"));
    }
    let access_log = file.access_log.map(|text| LogDestination::parse(&text, reader.folder));
    let mut config = ServiceConfig { access_log, ..ServiceConfig::default() };
    for subsystem in file.subsystem {
        let at = subsystem.nqn.span().start;
        let listen_at = subsystem.listen.span().start;
        let subsystem = reader.subsystem(subsystem)?;
        for other in &config.subsystems {
            if other.nqn == subsystem.nqn {
                return Err(reader.wrong(at, &format!("two subsystems are named {}", other.nqn)));
            }
            let taken =
                |address: &&SocketAddr| address.port() != 0 && other.listen.contains(address);
            if let Some(address) = subsystem.listen.iter().find(taken) {
                let what = format!(
                    "{} listens on {address}, and subsystems share no address: take another port",
                    other.nqn
                );
                return Err(reader.wrong(listen_at, &what));
            }
        }
        config.subsystems.push(subsystem);
    }
    for (tables, is_group) in [(file.host, false), (file.group, true)] {
        for table in tables {
            let rule = limits::rule_of(table.get_ref(), is_group).and_then(|rule| {
                limits::check_known(&rule, config.subsystems.iter())?;
                if is_group && config.hosts.iter().any(|other| other.group == rule.group) {
                    return Err(format!(
                        "two groups are named {:?}",
                        rule.group.unwrap_or_default()
                    ));
                }
                Ok(rule)
            });
            config.hosts.push(rule.map_err(|what| reader.wrong(table.span().start, &what))?);
        }
    }
    Ok(config)
}

/// Turns the tables of a file into the configuration. Errors name the line and column.
struct ConfigReader<'a> {
    text: &'a str,
    path: &'a Path,
    /// The folder at which relative paths start.
    folder: &'a Path,
}

impl ConfigReader<'_> {
    /// The error `what` at byte `at` of the file.
    fn wrong(&self, at: usize, what: &str) -> Error {
        let before = self.text.get(..at).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        let what = format!("line {line}, column {column}: {}", what.replace('\n', " "));
        Error::new(ErrorKind::InvalidArgument, what).path(self.path).hint(
            "docs/operations.md describes the file; dlfs serve --config FILE --check checks it",
        )
    }

    fn subsystem(&self, file: SubsystemTable) -> Result<SubsystemConfig> {
        let at = file.nqn.span().start;
        let nqn = file.nqn.into_inner();
        if nqn.as_str() == Nqn::DISCOVERY {
            return Err(self.wrong(at, "that is the name of the discovery service"));
        }
        let host_keys = file.hosts.map(|hosts| read_hosts(&self.folder.join(hosts)));
        let ana = file.ana.as_ref().map(|ana| {
            ana.get_ref().parse().map_err(|error: String| self.wrong(ana.span().start, &error))
        });
        let cpus = file.cpus.as_ref().map(|cpus| {
            let wrong = |error: Error| self.wrong(cpus.span().start, &error.to_string());
            Cpus::parse(cpus.get_ref()).map_err(wrong)
        });
        let limits = file.limits.as_ref().map(|table| {
            let wrong = |error: String| self.wrong(table.span().start, &error);
            parse_table::<LimitArgs>("limits", table.get_ref()).map_err(wrong)
        });
        if let Some(pollers) = &file.pollers
            && !(1..=256).contains(pollers.get_ref())
        {
            return Err(self.wrong(pollers.span().start, "pollers are 1 to 256"));
        }
        let subsystem = SubsystemConfig {
            nqn,
            listen: self.listen(&file.listen)?,
            namespace_limits: self.namespace_limits(&file.namespace)?,
            namespaces: self.namespaces(file.namespace)?,
            allow_hosts: file.allow_hosts,
            allow_any_host: file.allow_any_host,
            host_keys: host_keys.transpose()?.unwrap_or_default(),
            require_tls: file.require_tls,
            ana: ana.transpose()?.unwrap_or(AnaState::Optimized),
            pollers: file.pollers.map(Spanned::into_inner),
            cpus: cpus.transpose()?,
            busy_poll: file.busy_poll,
            limits: limits.transpose()?.unwrap_or_default(),
        };
        self.check_hosts(&subsystem, at)?;
        Ok(subsystem)
    }

    /// Checks which hosts may connect to a subsystem, and how. `at` is the position for errors.
    fn check_hosts(&self, subsystem: &SubsystemConfig, at: usize) -> Result<()> {
        let SubsystemConfig { listen, allow_hosts, host_keys, allow_any_host, .. } = subsystem;
        if *allow_any_host && !allow_hosts.is_empty() {
            return Err(self.wrong(at, "allow_any_host and allow_hosts contradict each other"));
        }
        let is_open = *allow_any_host || !allow_hosts.is_empty() || !host_keys.is_empty();
        let far = listen.iter().find(|address| !address.ip().is_loopback());
        if let Some(address) = far.filter(|_| !is_open) {
            let what = format!(
                "{address} can be reached from elsewhere: say who may connect with hosts, allow_hosts or \
                 allow_any_host"
            );
            return Err(self.wrong(at, &what));
        }
        if subsystem.require_tls && host_keys.is_empty() {
            return Err(self.wrong(at, "require_tls needs hosts, a file with the keys of hosts"));
        }
        let needs_tls = |keys: &HostKeys| !keys.tls_keys.is_empty() || keys.must_concat;
        if (subsystem.require_tls || host_keys.values().any(needs_tls))
            && let Err(error) = tls::load()
        {
            let how = tls::HOW_TO_INSTALL;
            return Err(self.wrong(at, &format!("hosts must connect inside TLS: {error}: {how}")));
        }
        let exists = |nsid: &Nsid| subsystem.namespaces.iter().any(|known| known.nsid == *nsid);
        for (host, keys) in host_keys {
            if let Some(nsid) = keys.access.namespaces.iter().flatten().find(|nsid| !exists(nsid)) {
                let what = format!("{host} may use namespace {}, which does not exist", nsid.0);
                return Err(self.wrong(at, &what));
            }
        }
        Ok(())
    }

    fn listen(&self, listen: &Spanned<OneOrMore>) -> Result<Vec<SocketAddr>> {
        let texts = match listen.get_ref() {
            OneOrMore::One(text) => std::slice::from_ref(text),
            OneOrMore::More(texts) => texts,
        };
        let at = listen.span().start;
        if texts.is_empty() {
            return Err(self.wrong(at, "listen names no address"));
        }
        texts.iter().map(|text| resolve(text).map_err(|what| self.wrong(at, &what))).collect()
    }

    fn namespace_limits(&self, file: &[NamespaceTable]) -> Result<BTreeMap<Nsid, Limits>> {
        let limited = file.iter().filter_map(|file| Some((file, file.limit.as_ref()?)));
        let limits = |(file, table): (&NamespaceTable, &Spanned<toml::Table>)| {
            let limits = limits::of_namespace(table.get_ref());
            let limits = limits.map_err(|what| self.wrong(table.span().start, &what))?;
            Ok((Nsid(*file.nsid.get_ref()), limits))
        };
        limited.map(limits).collect()
    }

    fn namespaces(&self, file: Vec<NamespaceTable>) -> Result<Vec<NamespaceConfig>> {
        let mut namespaces: Vec<NamespaceConfig> = Vec::new();
        for NamespaceTable { nsid, address, read_only, .. } in file {
            let at = nsid.span().start;
            let nsid = Nsid(nsid.into_inner());
            if !(1..=MAX_NSID).contains(&nsid.0) {
                return Err(self.wrong(at, &format!("nsid {} is not 1 to {MAX_NSID}", nsid.0)));
            }
            if namespaces.iter().any(|known| known.nsid == nsid) {
                return Err(self.wrong(at, &format!("two namespaces have the nsid {}", nsid.0)));
            }
            let wrong = |error: String| self.wrong(address.span().start, &error);
            let address = parse_address(address.get_ref(), self.folder).map_err(wrong)?;
            namespaces.push(NamespaceConfig { nsid, address, read_only });
        }
        Ok(namespaces)
    }
}

/// Parses the address of a namespace; a relative path starts at `folder`.
pub(crate) fn parse_address(text: &str, folder: &Path) -> Result<Address, String> {
    match text.parse::<Address>() {
        Ok(Address::Path(path)) => Ok(Address::Path(folder.join(path))),
        Ok(address) => Ok(address),
        Err(error) => Err(format!("{text:?} is no address: {error}")),
    }
}

/// Resolves `HOST:PORT` to an address to listen on.
pub(crate) fn resolve(listen: &str) -> Result<SocketAddr, String> {
    let Some((host, port)) = listen.rsplit_once(':') else {
        return Err(format!("{listen:?} is not HOST:PORT"));
    };
    let number: u16 = port.parse().map_err(|_| format!("{listen:?}: {port:?} is not a port"))?;
    // Only the system's resolver knows the scope in `[fe80::1%eth0]:4420`, and it expects no brackets.
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let mut found = (bare.unwrap_or(host), number)
        .to_socket_addrs()
        .map_err(|error| format!("cannot listen on {listen:?}: {error}"))?;
    found.next().ok_or_else(|| format!("{listen:?} has no address"))
}

/// The highest NSID of a service. Hosts learn this number when they connect, and size tables by it.
pub(crate) const MAX_NSID: u32 = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"access_log = "access.jsonl"
[[subsystem]]
nqn = "nqn.2026-11.io.dlfs:a"
listen = ["127.0.0.1:4420", "[::1]:4420"]
[[subsystem.namespace]]
nsid = 3
address = "a.dlfs"
[[subsystem.namespace]]
nsid = 5
address = "/b.dlfs"
read_only = false
[subsystem.limits]
max_io_queues = 8

[[subsystem]]
nqn = "nqn.2026-11.io.dlfs:b"
listen = "0.0.0.0:4421"
allow_hosts = ["nqn.2026-11.io.dlfs:host"]
ana = "non-optimized"
    "#;

    fn parsed(text: &str) -> Result<ServiceConfig> {
        parse(text, Path::new("/etc/dlfs/targets.toml"), Path::new("/etc/dlfs"))
    }

    #[test]
    fn a_file_becomes_its_value() {
        let config = parsed(GOOD).unwrap();
        assert_eq!(config.access_log, Some(LogDestination::File("/etc/dlfs/access.jsonl".into())));
        let [a, b] = &config.subsystems[..] else { panic!("{config:?}") };
        assert_eq!(a.listen.len(), 2);
        assert!(format!("{:?}", a.limits).contains("max_io_queues: Some(8)"));
        let namespace = |nsid, path: &str, read_only| NamespaceConfig {
            nsid: Nsid(nsid),
            address: Address::Path(path.into()),
            read_only,
        };
        let expected = [namespace(3, "/etc/dlfs/a.dlfs", true), namespace(5, "/b.dlfs", false)];
        assert_eq!(a.namespaces, expected);
        assert!(b.namespaces.is_empty() && b.allow_hosts.len() == 1);
        assert_eq!((a.ana, b.ana), (AnaState::Optimized, AnaState::NonOptimized));
    }

    #[test]
    fn limits_of_hosts_groups_and_namespaces_become_rules() {
        let limited = GOOD.replace("nsid = 3", "nsid = 3\nlimit = { read_iops = 7 }");
        let text = format!("{limited}[[host]]\nnqn = 'nqn.2026*'\nweight = 3\n");
        let rules = parsed(&text).unwrap().rules();
        assert_eq!((rules.hosts.len(), rules.namespaces.len()), (1, 1));
        assert_eq!(rules.namespaces.values().next().unwrap().read_iops, Some(7));
        let group = "[[group]]\nname = 'g'\nhosts = ['nqn.2026*']\nread_iops = 1\n";
        let error = parsed(&format!("{GOOD}{group}{group}")).unwrap_err().report();
        assert!(error.contains("two groups are named"), "{error}");
        // The first subsystem is open to all hosts of this machine.
        let strange = "[[host]]\nnqn = 'nqn.strange'\nweight = 3\n";
        assert!(parsed(&format!("{GOOD}{strange}")).is_ok());
        let closed = GOOD.replace("dlfs:a\"", "dlfs:a\"\nallow_hosts = ['nqn.known']");
        let error = parsed(&format!("{closed}{strange}")).unwrap_err().report();
        assert!(error.contains("nqn.strange: correct it, or list the host"), "{error}");
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line_and_column() {
        let cases = [
            ("nsid = 5", "nsid = 3", (9, 8), "two namespaces have the nsid 3"),
            ("nsid = 3", "nsid = 0", (6, 8), "nsid 0 is not 1 to 1024"),
            ("dlfs:b", "dlfs:a", (16, 7), "two subsystems are named"),
            ("read_only = false", "readonly = false", (11, 1), "readonly"),
            ("max_io_queues = 8", "max_io_queues = 0", (12, 1), "max-io-queues"),
            ("0.0.0.0:4421", "127.0.0.1:4420", (17, 10), "take another port"),
            ("0.0.0.0:4421", "nowhere", (17, 10), "HOST:PORT"),
            ("allow_hosts =", "allow_any_host = true\nallow_hosts =", (16, 7), "contradict"),
            ("allow_hosts = [\"nqn.2026-11.io.dlfs:host\"]", "", (16, 7), "reached from elsewhere"),
            ("\"/b.dlfs\"", "\"nvme-tcp://\"", (10, 11), "is no address"),
            ("allow_hosts =", "require_tls = true\nallow_hosts =", (16, 7), "require_tls needs"),
            ("\"non-optimized\"", "\"fast\"", (19, 7), "is no ANA state"),
        ];
        for (from, to, (line, column), named) in cases {
            let error = parsed(&GOOD.replacen(from, to, 9)).unwrap_err().report();
            let place = format!("line {line}, column {column}:");
            assert!(error.contains(&place) && error.contains(named), "{to}: {error}");
            assert!(error.contains("/etc/dlfs/targets.toml"), "{error}");
        }
        // Columns count characters, not bytes.
        let error = parsed("\"größe\" = 1").unwrap_err().report();
        assert!(error.contains("line 1, column 1:") && error.contains("größe"), "{error}");
        let error = parsed("access_log = \"größe\" subsystem").unwrap_err().report();
        assert!(error.contains("line 1, column 22:"), "{error}");
        assert!(parsed("").unwrap_err().report().contains("no [[subsystem]]"));
    }

    #[test]
    fn a_change_that_needs_a_restart_is_told_from_others() {
        let [config, other] = [GOOD, &GOOD.replace("max_io_queues = 8", "max_io_queues = 9")]
            .map(|text| parsed(text).unwrap().subsystems.remove(0));
        assert!(config.check_change(&other).unwrap_err().report().contains("restart"));
        let namespaces = Vec::new();
        assert!(config.check_change(&SubsystemConfig { namespaces, ..config.clone() }).is_ok());
    }
}
