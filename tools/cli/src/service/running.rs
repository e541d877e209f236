//! The running targets of a service, and how they become what the configuration says.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use dlfs::nvme::Nqn;
use dlfs::qpair::{self, ConnectOptions, Cpus};
use dlfs::target::{AccessLog as TargetLog, ServedNamespace, Target, TargetOptions};
use dlfs::units::Nsid;
use dlfs::{Error, ErrorKind, Result};

use super::access_log::{AccessLog, More, Place};
use super::config::{MAX_NSID, NamespaceConfig, ServiceConfig, SubsystemConfig};

/// One running target for each subsystem.
pub(crate) struct Service {
    pub(crate) subsystems: Vec<Running>,
    connect: ConnectOptions,
    /// Sockets that the service manager has opened, and that no subsystem has taken yet.
    inherited: Vec<TcpListener>,
    access: Option<AccessLog>,
    is_draining: bool,
}

/// A subsystem that is served.
pub(crate) struct Running {
    /// What it is now, including what `dlfs ctl` has changed.
    pub(crate) config: SubsystemConfig,
    pub(crate) target: Target,
    /// The addresses that it listens on.
    pub(crate) listen: Vec<SocketAddr>,
    access: Option<AccessLog>,
}

impl Service {
    /// A service without a subsystem. `connect` says how namespaces are opened; `place`, where the access log goes.
    ///
    /// # Errors
    /// Those of opening the access log.
    pub(crate) fn new(
        connect: ConnectOptions,
        inherited: Vec<TcpListener>,
        place: Option<&Place>,
    ) -> Result<Service> {
        let access = place.map(AccessLog::open).transpose()?;
        let subsystems = Vec::new();
        let service = Service { subsystems, connect, inherited, access, is_draining: false };
        let (version, pid) = (env!("CARGO_PKG_VERSION"), std::process::id());
        service.note("started", More::Started { version, pid });
        Ok(service)
    }

    /// Writes a line about the service to the access log.
    pub(crate) fn note(&self, event: &str, more: More<'_>) {
        self.access.iter().for_each(|access| access.note(event, None, more.clone()));
    }

    /// Opens the access log anew, at `place`.
    ///
    /// # Errors
    /// `InvalidArgument`: there is a log and no place for it, or the other way round. Otherwise those of the
    /// operating system. The log then goes where it went before.
    pub(crate) fn reopen_access_log(&self, place: Option<&Place>) -> Result<()> {
        match (&self.access, place) {
            (Some(access), Some(place)) => access.reopen(place),
            (None, None) => Ok(()),
            (Some(_), None) | (None, Some(_)) => {
                let message = "an access log begins and ends with the service";
                Err(Error::new(ErrorKind::InvalidArgument, message)
                    .hint("restart the service; the path of its log may change while it runs"))
            }
        }
    }

    /// Serves a subsystem.
    ///
    /// # Errors
    /// Those of opening its namespaces and of listening.
    pub(crate) fn start(&mut self, config: SubsystemConfig) -> Result<()> {
        let served = self.open_all(&config.namespaces)?;
        self.serve(config, served, |_| {})
    }

    /// Serves a subsystem whose namespaces are open; `change` has the last word on its options.
    pub(crate) fn serve(
        &mut self,
        config: SubsystemConfig,
        served: Vec<ServedNamespace>,
        change: impl FnOnce(&mut TargetOptions),
    ) -> Result<()> {
        let listeners = config.listen.iter().map(|&address| self.listen(address));
        let listeners = listeners.collect::<Result<Vec<TcpListener>>>()?;
        let listen = listeners.iter().map(TcpListener::local_addr);
        let listen = listen.collect::<std::io::Result<Vec<SocketAddr>>>()?;
        let mut options = options(&config, &self.connect);
        change(&mut options);
        let access = self.access.clone();
        options.access_log = access.clone().map(|access| Arc::new(access) as Arc<dyn TargetLog>);
        let target = Target::serve(options, listeners, served)?;
        let running = Running { config, target, listen, access };
        running.note("subsystem-added", More::Nothing {});
        running.target.namespaces().iter().for_each(|served| running.note_namespace(served));
        self.subsystems.push(running);
        Ok(())
    }

    /// A socket of the service manager with this address, or else a new one.
    fn listen(&mut self, address: SocketAddr) -> Result<TcpListener> {
        let is_it = |socket: &TcpListener| socket.local_addr().is_ok_and(|local| local == address);
        match self.inherited.iter().position(is_it) {
            Some(number) => Ok(self.inherited.swap_remove(number)),
            None => dlfs::target::listen(address),
        }
    }

    /// Refuses sockets of the service manager that no subsystem listens on.
    pub(crate) fn check_inherited(&self) -> Result<()> {
        let Some(unused) = self.inherited.first() else { return Ok(()) };
        let address = unused.local_addr()?;
        let message = format!(
            "the service manager passes a socket for {address}, and no subsystem listens there"
        );
        Err(Error::new(ErrorKind::InvalidArgument, message)
            .hint("give the socket unit and the configuration file the same addresses"))
    }

    /// Makes the service what `new` says: subsystems, namespaces, hosts and keys come and go. Hosts that may no
    /// longer connect are disconnected; others notice nothing but the namespaces.
    ///
    /// All namespaces are opened first. If one cannot be opened, nothing changes.
    ///
    /// # Errors
    /// `InvalidArgument`: it changes what only a restart can; otherwise those of [`Service::start`].
    pub(crate) fn become_what(&mut self, new: ServiceConfig) -> Result<String> {
        let mut opened = Vec::new();
        for config in &new.subsystems {
            let added = match self.find(&config.nqn) {
                None => config.namespaces.clone(),
                Some(running) => {
                    running.config.check_change(config)?;
                    difference(&config.namespaces, &running.config.namespaces)
                }
            };
            opened.push(self.open_all(&added)?);
        }
        let mut news = News::default();
        let is_gone =
            |running: &Running| !new.subsystems.iter().any(|c| c.nqn == running.config.nqn);
        while let Some(number) = self.subsystems.iter().position(is_gone) {
            let gone = self.subsystems.swap_remove(number);
            news.add(format!("subsystem {} ends", gone.config.nqn));
            drain(&[&gone], DRAIN_LIMIT);
            gone.note("subsystem-removed", More::Nothing {});
        }
        for (config, opened) in new.subsystems.into_iter().zip(opened) {
            match self.subsystems.iter_mut().find(|running| running.config.nqn == config.nqn) {
                Some(running) => running.become_what(config, opened, &mut news)?,
                None => {
                    news.add(format!("subsystem {} begins", config.nqn));
                    self.serve(config, opened, |_| {})?;
                }
            }
        }
        Ok(news.to_string())
    }

    pub(crate) fn find(&self, nqn: &Nqn) -> Option<&Running> {
        self.subsystems.iter().find(|running| running.config.nqn == *nqn)
    }

    /// Opens the device of each namespace.
    pub(crate) fn open_all(&self, namespaces: &[NamespaceConfig]) -> Result<Vec<ServedNamespace>> {
        namespaces.iter().map(|namespace| open(namespace, &self.connect)).collect()
    }

    /// Checks that all targets still serve.
    pub(crate) fn check(&self) -> Result<()> {
        self.subsystems.iter().try_for_each(|running| running.target.check())
    }

    /// Sends all hosts away in order, and waits until they are gone, for a while; then ends the targets.
    pub(crate) fn end(mut self) {
        drain(&self.subsystems.iter().collect::<Vec<_>>(), DRAIN_LIMIT);
        self.subsystems.clear();
        self.note("stopped", More::Nothing {});
        self.access.iter().for_each(AccessLog::finish);
    }

    /// Begins to send all hosts away; returns how many controllers there are.
    pub(crate) fn begin_to_drain(&mut self, why: &str) -> usize {
        let controllers =
            self.subsystems.iter().map(|running| running.target.connected().len()).sum();
        if !std::mem::replace(&mut self.is_draining, true) {
            self.note("draining", More::Draining { why, controllers });
        }
        self.subsystems.iter().for_each(|running| running.target.drain());
        controllers
    }
}

impl Running {
    fn become_what(
        &mut self,
        new: SubsystemConfig,
        opened: Vec<ServedNamespace>,
        news: &mut News,
    ) -> Result<()> {
        let nqn = new.nqn.clone();
        for gone in difference(&self.config.namespaces, &new.namespaces) {
            self.remove_namespace(gone.nsid)?;
            news.add(format!("{nqn} loses namespace {}", gone.nsid.0));
        }
        for served in opened {
            let added = new.namespaces.iter().find(|config| config.nsid == served.nsid);
            news.add(format!("{nqn} gains namespace {}", served.nsid.0));
            self.add_namespace(served, added.expect("it was opened because it is there").clone())?;
        }
        let before = self.hosts();
        self.target.set_host_keys(new.host_keys.clone())?;
        self.target.set_allowed_hosts(new.allow_hosts.clone());
        self.config = new;
        let after = self.hosts();
        for host in before.difference(&after) {
            self.note("host-removed", More::Host { host });
            news.add(format!("{nqn} no longer lists {host}"));
        }
        for host in self.unlisted(&after) {
            let ended = self.target.disconnect(&host);
            news.add(format!("{nqn} disconnects {host} ({ended} controllers)"));
        }
        for host in after.difference(&before) {
            self.note("host-added", More::Host { host });
            news.add(format!("{nqn} lists {host}"));
        }
        Ok(())
    }

    /// Hosts that are connected and, by this list, may no longer be. An empty list lets all in, or nobody: then
    /// nobody can have connected.
    fn unlisted(&self, listed: &BTreeSet<Nqn>) -> BTreeSet<Nqn> {
        if self.config.allow_any_host || listed.is_empty() {
            return BTreeSet::new();
        }
        let connected = self.target.connected().into_iter().map(|controller| controller.host);
        connected.filter(|host| !listed.contains(host)).collect()
    }

    /// Writes a line about the subsystem to the access log.
    pub(crate) fn note(&self, event: &str, more: More<'_>) {
        let nqn = Some(&self.config.nqn);
        self.access.iter().for_each(|access| access.note(event, nqn, more.clone()));
    }

    fn note_namespace(&self, served: &ServedNamespace) {
        let namespace = served.device.namespace();
        let more = More::Namespace {
            nsid: served.nsid.0,
            bytes: namespace.len_bytes(),
            read_only: served.read_only || namespace.read_only,
            address: namespace.address,
        };
        self.note("namespace-added", more);
    }

    /// The hosts that are named, with keys or without.
    pub(crate) fn hosts(&self) -> BTreeSet<Nqn> {
        let keyed = self.config.host_keys.keys();
        keyed.chain(&self.config.allow_hosts).cloned().collect()
    }

    pub(crate) fn add_namespace(
        &mut self,
        served: ServedNamespace,
        config: NamespaceConfig,
    ) -> Result<()> {
        self.target.add_namespace(served.clone())?;
        self.note_namespace(&served);
        self.config.namespaces.push(config);
        Ok(())
    }

    pub(crate) fn remove_namespace(&mut self, nsid: Nsid) -> Result<()> {
        self.target.remove_namespace(nsid)?;
        self.note("namespace-removed", More::NamespaceGone { nsid: nsid.0 });
        self.config.namespaces.retain(|config| config.nsid != nsid);
        Ok(())
    }
}

/// What a reload has changed.
#[derive(Default)]
struct News(Vec<String>);

impl News {
    fn add(&mut self, line: String) {
        self.0.push(line);
    }
}

impl std::fmt::Display for News {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0[..] {
            [] => f.write_str(
                "no subsystem, namespace or host has changed; keys are as the files say",
            ),
            [lines @ .., last] => {
                lines.iter().try_for_each(|line| write!(f, "{line}; "))?;
                f.write_str(last)
            }
        }
    }
}

/// Opens the device of a namespace.
pub(crate) fn open(
    namespace: &NamespaceConfig,
    connect: &ConnectOptions,
) -> Result<ServedNamespace> {
    let connect = ConnectOptions { writable: !namespace.read_only, ..connect.clone() };
    let device = qpair::open(&namespace.address, &connect)?;
    Ok(ServedNamespace { nsid: namespace.nsid, device, read_only: namespace.read_only })
}

/// The options of a subsystem's target. Namespaces may come later, and each says itself whether it is writable.
fn options(config: &SubsystemConfig, connect: &ConnectOptions) -> TargetOptions {
    let threads = config.cpus.as_ref().map_or(1, Cpus::len);
    let mut options = TargetOptions {
        allow_hosts: config.allow_hosts.clone(),
        allow_any_host: config.allow_any_host,
        host_keys: config.host_keys.clone(),
        tls_derivation: connect.tls_derivation,
        writable: true,
        num_pollers: config.pollers.map_or(threads, usize::from),
        busy_poll: config.busy_poll,
        cpus: config.cpus.clone(),
        max_nsid: MAX_NSID,
        ana: true,
        ..TargetOptions::new(config.nqn.clone())
    };
    config.limits.apply(&mut options);
    options
}

/// Those of `left` that are not the same in `right`.
fn difference(left: &[NamespaceConfig], right: &[NamespaceConfig]) -> Vec<NamespaceConfig> {
    left.iter().filter(|namespace| !right.contains(namespace)).cloned().collect()
}

/// Sends all hosts of these subsystems away, and waits until they are gone, at most for `limit`.
fn drain(subsystems: &[&Running], limit: Duration) {
    subsystems.iter().for_each(|running| running.target.drain());
    let until = Instant::now() + limit;
    let is_over = || subsystems.iter().all(|running| running.target.is_drained());
    while !is_over() && Instant::now() < until {
        thread::sleep(LOOK);
    }
}

/// How long hosts may take to go.
pub(crate) const DRAIN_LIMIT: Duration = Duration::from_secs(5);
/// How often to look whether they are gone.
const LOOK: Duration = Duration::from_millis(10);
