//! The running targets of a service: how they start and end, their sockets, and how they match the configuration file
//! again.
//!
//! A reload has two steps, so that a bad file, machine or remote target changes nothing. First, [`super::openings`]
//! opens namespaces, and [`Service::prepare`] does everything else that can fail: it listens, starts the targets of
//! new subsystems without admitting hosts, and allocates all that running targets need. Then [`Service::commit`]
//! changes the service; it fails, and then in part, only if a target's thread hangs or is dead.
//!
//! The hosts of a subsystem that a reload has removed are sent away, and its target ends in the background: the
//! command's thread calls [`Leaving::step`] again and again. The end of a target may wait for a hanging device, so it
//! runs on its own thread.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use dlfs::nvme::Nqn;
use dlfs::qpair::{self, ConnectOptions, Cpus};
use dlfs::target::{
    AccessLog as TargetLog, AnaState, Limiter, PreparedNamespace, ServedNamespace, Target,
    TargetOptions,
};
use dlfs::units::Nsid;
use dlfs::{Error, ErrorKind, Result};

use super::config::{MAX_NSID, NamespaceConfig, ServiceConfig, SubsystemConfig};
use crate::log::{self, AccessLog, Output, Place};

/// One running target for each subsystem.
pub(crate) struct Service {
    pub(crate) subsystems: Vec<Running>,
    /// Subsystems that a reload has removed, whose hosts have until a deadline to leave.
    pub(super) draining: Vec<(Running, Instant)>,
    /// Removed subsystems whose targets are ending.
    ending: Vec<(Nqn, JoinHandle<()>)>,
    pub(crate) connect: ConnectOptions,
    /// Limits of the hosts and namespaces of all subsystems.
    pub(crate) limiter: Limiter,
    /// Sockets that the service manager has opened.
    inherited: Vec<TcpListener>,
    access: Option<AccessLog>,
    is_draining: bool,
    /// Services that take over, which wait for this one's end.
    pub(super) successors: Vec<UnixStream>,
}

/// A subsystem that is served.
pub(crate) struct Running {
    /// The current configuration, including changes by `dlfs ctl`.
    pub(crate) config: SubsystemConfig,
    pub(crate) target: Target,
    /// The addresses that the subsystem listens on.
    pub(crate) listen: Vec<SocketAddr>,
    /// The sockets of these addresses, for a subsystem that replaces this one.
    listeners: Vec<TcpListener>,
    access: Option<AccessLog>,
}

impl Service {
    /// A service without subsystems. `connect` holds the options for opening namespaces; `place` is the place
    /// of the access log.
    ///
    /// # Errors
    /// Errors of opening the access log.
    pub(crate) fn new(
        connect: ConnectOptions,
        inherited: Vec<TcpListener>,
        place: Option<&Place>,
    ) -> Result<Service> {
        let access = place.map(AccessLog::open).transpose()?;
        let service = Service {
            subsystems: Vec::new(),
            draining: Vec::new(),
            ending: Vec::new(),
            connect,
            limiter: Limiter::default(),
            inherited,
            access,
            is_draining: false,
            successors: Vec::new(),
        };
        let version = env!("CARGO_PKG_VERSION");
        let pid = std::process::id();
        service.note("started", json!({ "version": version, "pid": pid }));
        Ok(service)
    }

    /// Writes a line about the service to the access log.
    pub(crate) fn note(&self, event: &str, more: Value) {
        self.access.iter().for_each(|access| access.note(event, None, more.clone()));
    }

    /// Opens the access log's next output, if there is a log: the current file may have been moved away.
    ///
    /// # Errors
    /// `InvalidArgument`: there is a log but no place for it, or a place but no log. Otherwise errors of the
    /// operating system.
    pub(crate) fn next_access_log(&self, place: Option<&Place>) -> Result<Option<Output>> {
        match (&self.access, place) {
            (Some(_), Some(place)) => place.open().map(Some),
            (None, None) => Ok(None),
            (Some(_), None) | (None, Some(_)) => {
                let message = "an access log begins and ends with the service";
                Err(Error::new(ErrorKind::InvalidArgument, message)
                    .hint("restart the service; the path of its log may change while it runs"))
            }
        }
    }

    /// Switches the access log to `output`.
    pub(crate) fn switch_access_log(&self, output: Output) {
        if let Some(access) = &self.access {
            access.switch(output);
        }
    }

    /// Serves a subsystem.
    ///
    /// # Errors
    /// Errors of opening its namespaces and of listening.
    pub(crate) fn start(&mut self, config: SubsystemConfig) -> Result<()> {
        let opened = config.namespaces.iter().map(|namespace| open(namespace, &self.connect));
        let served = opened.collect::<Result<Vec<_>>>()?;
        let running = self.build(config, served, |_| {})?;
        self.add(running);
        Ok(())
    }

    /// Starts the target of a subsystem whose namespaces are open; `change` adjusts its options last.
    pub(crate) fn build(
        &self,
        config: SubsystemConfig,
        served: Vec<ServedNamespace>,
        change: impl FnOnce(&mut TargetOptions),
    ) -> Result<Running> {
        let listeners = config.listen.iter().map(|&address| self.listen(address));
        let listeners = listeners.collect::<Result<Vec<TcpListener>>>()?;
        let listen = listeners.iter().map(TcpListener::local_addr);
        let listen = listen.collect::<std::io::Result<Vec<SocketAddr>>>()?;
        let kept = listeners.iter().map(TcpListener::try_clone);
        let kept = kept.collect::<std::io::Result<Vec<TcpListener>>>()?;
        let access = self.access.clone();
        let mut options = options(&config, &self.connect);
        options.limiter = self.limiter.clone();
        options.access_log = access.clone().map(|access| Arc::new(access) as Arc<dyn TargetLog>);
        change(&mut options);
        let target = Target::serve(options, listeners, served)?;
        Ok(Running { config, target, listen, listeners: kept, access })
    }

    /// Adds a built subsystem to the service.
    pub(crate) fn add(&mut self, running: Running) {
        running.note("subsystem-added", Value::Null);
        running.target.namespaces().iter().for_each(|served| running.note_namespace(served));
        self.subsystems.push(running);
    }

    /// A socket that listens on this address: from a subsystem that a reload is about to replace, from the service
    /// manager, or else a new one.
    fn listen(&self, address: SocketAddr) -> Result<TcpListener> {
        let running = self.subsystems.iter().flat_map(|running| &running.listeners);
        let mut known = running.chain(&self.inherited);
        let is_it = |socket: &&TcpListener| socket.local_addr().is_ok_and(|local| local == address);
        match known.find(is_it) {
            Some(socket) => Ok(socket.try_clone()?),
            None => dlfs::target::listen(address),
        }
    }

    /// Refuses sockets of the service manager that no subsystem listens on.
    pub(crate) fn check_inherited(&self) -> Result<()> {
        for socket in &self.inherited {
            let address = socket.local_addr()?;
            if !self.subsystems.iter().any(|running| running.listen.contains(&address)) {
                let message = format!(
                    "the service manager passes a socket for {address}, and no subsystem listens there"
                );
                return Err(Error::new(ErrorKind::InvalidArgument, message)
                    .hint("give the socket unit and the configuration file the same addresses"));
            }
        }
        Ok(())
    }

    pub(crate) fn find(&self, nqn: &Nqn) -> Option<&Running> {
        self.subsystems.iter().find(|running| running.config.nqn == *nqn)
    }

    /// Returns whether a subsystem of this name was removed and is still ending.
    pub(crate) fn is_leaving(&self, nqn: &Nqn) -> bool {
        self.draining.iter().any(|(running, _)| running.config.nqn == *nqn)
            || self.ending.iter().any(|(known, _)| known == nqn)
    }

    fn find_mut(&mut self, nqn: &Nqn) -> Option<&mut Running> {
        self.subsystems.iter_mut().find(|running| running.config.nqn == *nqn)
    }

    /// Checks that all targets still serve.
    pub(crate) fn check(&self) -> Result<()> {
        self.subsystems.iter().try_for_each(|running| running.target.check())
    }

    /// Ends all targets, whose hosts were sent away.
    pub(crate) fn end(mut self) {
        let draining = std::mem::take(&mut self.draining);
        draining.into_iter().for_each(|(running, _)| self.cut_off(running));
        // In parallel: each may wait for a hanging device.
        thread::scope(|scope| {
            for running in self.subsystems.drain(..) {
                let end = move || drop(running);
                // If no thread can be started, the target ends on this thread.
                let _ = thread::Builder::new().spawn_scoped(scope, end);
            }
        });
        for (nqn, thread) in std::mem::take(&mut self.ending) {
            let _ = thread.join(); // a panic ends the target as well
            self.note_end(&nqn);
        }
        self.note("stopped", Value::Null);
        self.access.iter().for_each(AccessLog::finish);
    }

    /// Returns whether no host is connected any more.
    pub(crate) fn is_drained(&self) -> bool {
        let draining = self.draining.iter().map(|(running, _)| running);
        self.subsystems.iter().chain(draining).all(|running| running.target.is_drained())
    }

    /// The sockets that subsystems listen on.
    pub(super) fn sockets(&self) -> Vec<&TcpListener> {
        self.subsystems.iter().flat_map(|running| &running.listeners).collect()
    }

    /// Stops accepting connections: another process listens on the same sockets.
    ///
    /// # Errors
    /// `TimedOut`, `Internal`: a thread of a target does not answer, or is dead.
    pub(super) fn stop_listening(&self) -> Result<()> {
        self.subsystems.iter().try_for_each(|running| running.target.stop_listening())
    }

    /// Begins to send all hosts away; returns the number of controllers.
    pub(crate) fn begin_to_drain(&mut self, why: &str) -> usize {
        let controllers =
            self.subsystems.iter().map(|running| running.target.connected().len()).sum();
        if !std::mem::replace(&mut self.is_draining, true) {
            self.note("draining", json!({ "why": why, "controllers": controllers }));
        }
        self.subsystems.iter().for_each(|running| running.target.drain());
        controllers
    }
}

impl Running {
    /// Writes a line about the subsystem to the access log.
    pub(crate) fn note(&self, event: &str, more: Value) {
        let nqn = Some(&self.config.nqn);
        self.access.iter().for_each(|access| access.note(event, nqn, more.clone()));
    }

    fn note_namespace(&self, served: &ServedNamespace) {
        let namespace = served.device.namespace();
        let more = json!({
            "nsid": served.nsid,
            "address": namespace.address,
            "bytes": namespace.len_bytes(),
            "read_only": served.read_only || namespace.read_only,
        });
        self.note("namespace-added", more);
    }

    /// The hosts in the configuration, with keys or without.
    pub(crate) fn hosts(&self) -> BTreeSet<Nqn> {
        let keyed = self.config.host_keys.keys();
        keyed.chain(&self.config.allow_hosts).cloned().collect()
    }

    /// Notes a namespace that its target serves now.
    pub(crate) fn has_namespace(&mut self, config: NamespaceConfig) {
        let served = self.target.namespaces();
        served.iter().filter(|s| s.nsid == config.nsid).for_each(|s| self.note_namespace(s));
        self.config.namespaces.push(config);
    }

    pub(crate) fn remove_namespace(&mut self, nsid: Nsid) -> Result<()> {
        self.target.remove_namespace(nsid)?;
        self.note("namespace-removed", json!({ "nsid": nsid }));
        self.config.namespaces.retain(|config| config.nsid != nsid);
        Ok(())
    }

    /// Sets the ANA state of the namespaces.
    ///
    /// # Errors
    /// `InvalidArgument`: the target reports none.
    pub(crate) fn set_ana(&mut self, state: AnaState) -> Result<()> {
        self.target.set_ana(state)?;
        self.note("ana-changed", json!({ "state": state.name() }));
        self.config.ana = state;
        Ok(())
    }

    /// Begins to send all hosts away. No further host can connect, and the addresses are free for another
    /// subsystem.
    ///
    /// # Errors
    /// `TimedOut`, `Internal`: a thread of the target does not answer, or is dead. It may still accept
    /// connections, and refuse them.
    fn leave(&mut self) -> Result<()> {
        let controllers = self.target.connected().len();
        let why = "the configuration file has it no more";
        self.note("draining", json!({ "why": why, "controllers": controllers }));
        self.target.drain();
        self.listeners.clear();
        self.target.stop_listening()
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

/// The options of a subsystem's target. Namespaces may be added later, and each sets itself whether it is
/// writable.
fn options(config: &SubsystemConfig, connect: &ConnectOptions) -> TargetOptions {
    let threads = config.cpus.as_ref().map_or(1, Cpus::len);
    let mut options = TargetOptions {
        allow_hosts: config.allow_hosts.clone(),
        allow_any_host: config.allow_any_host,
        require_tls: config.require_tls,
        host_keys: config.host_keys.clone(),
        tls_derivation: connect.tls_derivation,
        writable: true,
        num_pollers: config.pollers.map_or(threads, usize::from),
        busy_poll: config.busy_poll,
        cpus: config.cpus.clone(),
        max_nsid: MAX_NSID,
        ana: Some(config.ana),
        ..TargetOptions::new(config.nqn.clone())
    };
    config.limits.apply(&mut options);
    options
}

/// Time limit for hosts to leave.
pub(crate) const DRAIN_LIMIT: Duration = Duration::from_secs(5);

impl Service {
    /// Begins to end a subsystem that the service no longer contains.
    ///
    /// # Errors
    /// Errors of [`Running::leave`]; the subsystem ends nevertheless.
    pub(super) fn begin_to_end(&mut self, mut running: Running) -> Result<()> {
        let left = running.leave();
        self.draining.push((running, Instant::now() + DRAIN_LIMIT));
        left
    }

    /// Advances all subsystems that are ending.
    pub(super) fn step_leaving(&mut self) {
        let now = Instant::now();
        let is_over = |(running, until): &mut (Running, Instant)| {
            running.target.is_drained() || now >= *until
        };
        let over: Vec<_> = self.draining.extract_if(.., is_over).collect();
        over.into_iter().for_each(|(running, _)| self.cut_off(running));
        let gone: Vec<_> = self.ending.extract_if(.., |(_, thread)| thread.is_finished()).collect();
        for (nqn, _) in gone {
            self.note_end(&nqn);
            log::say(&format!("subsystem {nqn} has ended"));
        }
    }

    /// Ends the target of a subsystem on a thread, and disconnects the remaining hosts.
    fn cut_off(&mut self, running: Running) {
        let nqn = running.config.nqn.clone();
        let late = running.target.connected().len();
        if late > 0 {
            let limit = DRAIN_LIMIT.as_secs();
            log::say(&format!(
                "subsystem {nqn}: {late} controllers were not gone after {limit} s and are cut off"
            ));
        }
        let end = move || running.target.stop();
        match thread::Builder::new().name("dlfs-serve-end".to_owned()).spawn(end) {
            Ok(thread) => self.ending.push((nqn, thread)),
            Err(_) => self.note_end(&nqn), // its target has ended on this thread
        }
    }

    fn note_end(&self, nqn: &Nqn) {
        let note = |access: &AccessLog| access.note("subsystem-removed", Some(nqn), Value::Null);
        self.access.iter().for_each(note);
    }
}

/// An open namespace for a subsystem.
pub(crate) struct Opened {
    pub(crate) nqn: Nqn,
    pub(crate) config: NamespaceConfig,
    pub(crate) served: ServedNamespace,
}

/// Everything that a reload needs, prepared in advance.
pub(crate) struct Prepared {
    subsystems: Vec<Ready>,
    access_log: Option<Output>,
}

/// A subsystem's part of a reload, prepared in advance.
#[allow(clippy::large_enum_variant)] // a few of them live as long as a reload
enum Ready {
    /// A new subsystem, which admits no host yet.
    New(Running),
    /// An existing subsystem, which gains these namespaces.
    Gains(SubsystemConfig, Vec<(NamespaceConfig, PreparedNamespace)>),
}

impl Service {
    /// The namespaces of `new` that are neither served nor in `opened`.
    ///
    /// # Errors
    /// `InvalidArgument`: `new` contains a change that needs a restart.
    pub(crate) fn missing(
        &self,
        new: &ServiceConfig,
        opened: &[Opened],
    ) -> Result<Vec<(Nqn, NamespaceConfig)>> {
        let mut missing = Vec::new();
        for config in &new.subsystems {
            if let Some(running) = self.find(&config.nqn) {
                running.config.check_change(config)?;
            }
            let added = self.added(config).filter(|namespace| {
                !opened.iter().any(|o| o.nqn == config.nqn && o.config == **namespace)
            });
            missing.extend(added.map(|namespace| (config.nqn.clone(), namespace.clone())));
        }
        Ok(missing)
    }

    /// The namespaces of `config` that are not served now.
    fn added<'a>(
        &'a self,
        config: &'a SubsystemConfig,
    ) -> impl Iterator<Item = &'a NamespaceConfig> {
        let present = self.find(&config.nqn).map_or(&[][..], |running| &running.config.namespaces);
        config.namespaces.iter().filter(|namespace| !present.contains(namespace))
    }

    /// Prepares everything to become `new`, without visible effect. `opened` has the namespaces that were
    /// missing; `place` is the access log's new place.
    ///
    /// # Errors
    /// Errors of listening, of starting a target, and of opening the access log. After an error nothing has
    /// changed.
    pub(crate) fn prepare(
        &mut self,
        new: &ServiceConfig,
        mut opened: Vec<Opened>,
        place: Option<&Place>,
    ) -> Result<Prepared> {
        let mut subsystems = Vec::new();
        for config in &new.subsystems {
            let added: BTreeSet<u32> = self.added(config).map(|added| added.nsid.0).collect();
            let its = opened.extract_if(.., |opened| opened.nqn == config.nqn);
            let its: Vec<Opened> = its.filter(|o| added.contains(&o.config.nsid.0)).collect();
            subsystems.push(match self.find_mut(&config.nqn) {
                Some(running) => running.prepare(config.clone(), its)?,
                None => {
                    let served = its.into_iter().map(|opened| opened.served).collect();
                    Ready::New(self.build(config.clone(), served, |options| options.hold = true)?)
                }
            });
        }
        // Last, since it may leave an empty file behind.
        let access_log = self.next_access_log(place)?;
        Ok(Prepared { subsystems, access_log })
    }

    /// Applies what was prepared, and returns a description of the changes.
    ///
    /// # Errors
    /// `TimedOut`, `Internal`: a target's thread does not answer, or is dead. Some changes have then been
    /// applied.
    pub(crate) fn commit(&mut self, new: &ServiceConfig, prepared: Prepared) -> Result<String> {
        let Prepared { subsystems, access_log } = prepared;
        if let Some(output) = access_log {
            self.switch_access_log(output);
        }
        let mut news = Vec::new();
        let is_gone =
            |running: &Running| !new.subsystems.iter().any(|c| c.nqn == running.config.nqn);
        while let Some(number) = self.subsystems.iter().position(is_gone) {
            let gone = self.subsystems.remove(number);
            news.push(format!("subsystem {} ends", gone.config.nqn));
            self.begin_to_end(gone)?;
        }
        for ready in subsystems {
            match ready {
                Ready::New(running) => {
                    news.push(format!("subsystem {} begins", running.config.nqn));
                    // Ends the hold: from now on hosts are admitted.
                    running.target.set_allowed_hosts(running.config.allow_hosts.clone());
                    self.add(running);
                }
                Ready::Gains(config, namespaces) => {
                    // Only this thread removes subsystems, so it is found.
                    let Some(running) = self.find_mut(&config.nqn) else { continue };
                    running.commit(config, namespaces, &mut news)?;
                }
            }
        }
        if self.limiter.rules() != new.rules() {
            self.limiter.set(new.rules());
            news.push("limits of hosts or namespaces change".to_owned());
        }
        if news.is_empty() {
            let text = "no subsystem, namespace or host has changed; keys are as the files say";
            news.push(text.to_owned());
        }
        Ok(news.join("; "))
    }
}

impl Running {
    fn prepare(&mut self, new: SubsystemConfig, opened: Vec<Opened>) -> Result<Ready> {
        self.target.prepare_host_keys(&new.host_keys)?;
        let prepared = opened.into_iter().map(|Opened { config, served, .. }| {
            let prepared = self.target.prepare_namespace(served);
            Ok((config, prepared.map_err(|error| of_subsystem(&new.nqn, error))?))
        });
        let prepared = prepared.collect::<Result<Vec<_>>>()?;
        Ok(Ready::Gains(new, prepared))
    }

    fn commit(
        &mut self,
        new: SubsystemConfig,
        namespaces: Vec<(NamespaceConfig, PreparedNamespace)>,
        news: &mut Vec<String>,
    ) -> Result<()> {
        let nqn = new.nqn.clone();
        let is_gone = |namespace: &&NamespaceConfig| !new.namespaces.contains(namespace);
        let gone: Vec<_> = self.config.namespaces.iter().filter(is_gone).cloned().collect();
        for gone in gone {
            self.remove_namespace(gone.nsid)?;
            news.push(format!("{nqn} loses namespace {}", gone.nsid.0));
        }
        let before = self.hosts();
        self.target.set_host_keys(new.host_keys.clone())?;
        self.target.set_allowed_hosts(new.allow_hosts.clone());
        if new.ana != self.config.ana {
            self.set_ana(new.ana)?;
            news.push(format!("{nqn} is {}", new.ana));
        }
        let wanted = new.namespaces.clone();
        let namespaces_left = std::mem::take(&mut self.config.namespaces);
        self.config = SubsystemConfig { namespaces: namespaces_left, ..new };
        let after = self.hosts();
        for host in before.difference(&after) {
            self.note("host-removed", json!({ "host": host }));
            news.push(format!("{nqn} no longer lists {host}"));
        }
        for host in self.unlisted(&after) {
            let ended = self.target.disconnect(&host);
            news.push(format!("{nqn} disconnects {host} ({ended} controllers)"));
        }
        for host in after.difference(&before) {
            self.note("host-added", json!({ "host": host }));
            news.push(format!("{nqn} lists {host}"));
        }
        // Last, so that a host that is no longer allowed never sees them.
        for (config, prepared) in namespaces {
            news.push(format!("{nqn} gains namespace {}", config.nsid.0));
            self.target.add_prepared(prepared)?;
            self.has_namespace(config);
        }
        self.config.namespaces = wanted;
        Ok(())
    }

    /// Connected hosts that the list no longer allows. An empty list allows either all hosts, or none: then
    /// no host can have connected.
    fn unlisted(&self, listed: &BTreeSet<Nqn>) -> BTreeSet<Nqn> {
        if self.config.allow_any_host || listed.is_empty() {
            return BTreeSet::new();
        }
        let connected = self.target.connected().into_iter().map(|controller| controller.host);
        connected.filter(|host| !listed.contains(host)).collect()
    }
}

fn of_subsystem(nqn: &Nqn, error: Error) -> Error {
    let kind = error.kind();
    Error::new(kind, format!("{nqn} cannot serve a namespace")).source(error)
}
