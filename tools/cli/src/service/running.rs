//! The running targets of a service: their start, their sockets, and their end.
//!
//! A subsystem that a reload has removed *drains* until its hosts have left or [`DRAIN_LIMIT`] has passed; then its
//! target *ends*, on a thread of its own, since a hanging device may block it. The command's thread advances both by
//! calling [`Service::step_leaving`] repeatedly.

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
    AccessLog as TargetLog, AnaState, Limiter, ServedNamespace, Target, TargetOptions,
};
use dlfs::units::Nsid;
use dlfs::{Error, ErrorKind, Result};

use super::access_log::{AccessLog, LogDestination, LogOutput};
use super::config::{MAX_NSID, NamespaceConfig, SubsystemConfig};
use crate::log;

/// One running target for each subsystem.
pub(crate) struct Service {
    pub(crate) subsystems: Vec<Running>,
    /// Subsystems that a reload has removed, whose hosts have until a deadline to leave.
    pub(super) draining: Vec<(Running, Instant)>,
    /// Removed subsystems whose targets are ending.
    ending: Vec<(Nqn, JoinHandle<()>)>,
    /// The options for opening namespaces.
    pub(crate) connect: ConnectOptions,
    /// Limits of the hosts and namespaces of all subsystems.
    pub(crate) limiter: Limiter,
    /// Sockets of the service manager, or of the service that this one replaces.
    inherited: Vec<TcpListener>,
    /// The access log, if the service keeps one.
    access: Option<AccessLog>,
    /// Set once all hosts are being sent away.
    is_draining: bool,
    /// The services that take over. The streams close when this process ends, which tells them.
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
    /// The access log of the service.
    access: Option<AccessLog>,
}

impl Service {
    /// A service without subsystems. `connect` has the options for opening namespaces, `inherited` the sockets of the
    /// service manager or of the service that this one replaces; `destination` is that of the access log.
    ///
    /// # Errors
    /// Errors of opening the access log.
    pub(crate) fn new(
        connect: ConnectOptions,
        inherited: Vec<TcpListener>,
        destination: Option<&LogDestination>,
    ) -> Result<Service> {
        let access = destination.map(AccessLog::open).transpose()?;
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
    /// `InvalidArgument`: there is a log but no destination, or a destination but no log. Otherwise errors of the
    /// operating system.
    pub(crate) fn next_access_log(
        &self,
        destination: Option<&LogDestination>,
    ) -> Result<Option<LogOutput>> {
        match (&self.access, destination) {
            (Some(_), Some(destination)) => destination.open().map(Some),
            (None, None) => Ok(None),
            (Some(_), None) | (None, Some(_)) => {
                let message = "an access log begins and ends with the service";
                Err(Error::new(ErrorKind::InvalidArgument, message)
                    .hint("restart the service; the path of its log may change while it runs"))
            }
        }
    }

    /// Switches the access log to `output`.
    pub(crate) fn switch_access_log(&self, output: LogOutput) {
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
    /// manager or the service that this one replaces, or else a new one.
    fn listen(&self, address: SocketAddr) -> Result<TcpListener> {
        let running = self.subsystems.iter().flat_map(|running| &running.listeners);
        let mut known = running.chain(&self.inherited);
        let is_there =
            |socket: &&TcpListener| socket.local_addr().is_ok_and(|local| local == address);
        match known.find(is_there) {
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

    /// The running subsystem of this name.
    pub(crate) fn find(&self, nqn: &Nqn) -> Option<&Running> {
        self.subsystems.iter().find(|running| running.config.nqn == *nqn)
    }

    /// Returns whether a subsystem of this name was removed and is still ending.
    pub(crate) fn is_leaving(&self, nqn: &Nqn) -> bool {
        self.draining.iter().any(|(running, _)| running.config.nqn == *nqn)
            || self.ending.iter().any(|(known, _)| known == nqn)
    }

    pub(super) fn find_mut(&mut self, nqn: &Nqn) -> Option<&mut Running> {
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

    /// Begins to send all hosts away; returns the number of connected controllers.
    pub(crate) fn begin_to_drain(&mut self, why: &str) -> usize {
        let controllers =
            self.subsystems.iter().map(|running| running.target.connected().len()).sum();
        if !std::mem::replace(&mut self.is_draining, true) {
            self.note("draining", json!({ "why": why, "controllers": controllers }));
        }
        self.subsystems.iter().for_each(|running| running.target.drain());
        controllers
    }

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

    /// Writes the line about a subsystem that has ended to the access log.
    fn note_end(&self, nqn: &Nqn) {
        let note = |access: &AccessLog| access.note("subsystem-removed", Some(nqn), Value::Null);
        self.access.iter().for_each(note);
    }
}

impl Running {
    /// Writes a line about the subsystem to the access log.
    pub(crate) fn note(&self, event: &str, more: Value) {
        let nqn = Some(&self.config.nqn);
        self.access.iter().for_each(|access| access.note(event, nqn, more.clone()));
    }

    /// Writes the line about a new namespace to the access log.
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

    /// Adds a namespace that the target already serves to the configuration, and logs it.
    pub(crate) fn namespace_added(&mut self, config: NamespaceConfig) {
        let served = self.target.namespaces();
        served.iter().filter(|s| s.nsid == config.nsid).for_each(|s| self.note_namespace(s));
        self.config.namespaces.push(config);
    }

    /// Removes a namespace from the target and from the configuration, and logs it.
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

/// The options of a subsystem's target. Namespaces may be added later, and each has its own `read_only`.
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
