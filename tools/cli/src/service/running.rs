//! The running targets of a service.
//!
//! This file starts and ends them, and finds their sockets. `reload.rs` changes them while they run; `leaving.rs` ends
//! those that a reload has removed.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use dlfs::nvme::Nqn;
use dlfs::qpair::{self, ConnectOptions, Cpus};
use dlfs::target::{
    AccessLog as TargetLog, AnaState, Limiter, ServedNamespace, Target, TargetOptions,
};
use dlfs::units::Nsid;
use dlfs::{Error, ErrorKind, Result};

use super::access_log::{AccessLog, Output, Place};
use super::config::{MAX_NSID, NamespaceConfig, SubsystemConfig};
use super::leaving::Leaving;

/// One running target for each subsystem.
pub(crate) struct Service {
    pub(crate) subsystems: Vec<Running>,
    /// Subsystems that a reload has removed and that are still ending.
    pub(super) leaving: Vec<Leaving>,
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
            leaving: Vec::new(),
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
        self.leaving.iter().any(|leaving| leaving.nqn() == nqn)
    }

    pub(crate) fn find_mut(&mut self, nqn: &Nqn) -> Option<&mut Running> {
        self.subsystems.iter_mut().find(|running| running.config.nqn == *nqn)
    }

    /// Checks that all targets still serve.
    pub(crate) fn check(&self) -> Result<()> {
        self.subsystems.iter().try_for_each(|running| running.target.check())
    }

    /// Ends all targets, whose hosts were sent away.
    pub(crate) fn end(mut self) {
        let leaving = std::mem::take(&mut self.leaving).into_iter();
        let ending: Vec<Leaving> = leaving.filter_map(Leaving::end).collect();
        // In parallel: each may wait for a hanging device.
        thread::scope(|scope| {
            for running in self.subsystems.drain(..) {
                let end = move || drop(running);
                // If no thread can be started, the target ends on this thread.
                let _ = thread::Builder::new().spawn_scoped(scope, end);
            }
        });
        ending.into_iter().for_each(Leaving::join);
        self.note("stopped", Value::Null);
        self.access.iter().for_each(AccessLog::finish);
    }

    /// Returns whether no host is connected any more.
    pub(crate) fn is_drained(&self) -> bool {
        let leaving = self.leaving.iter().filter_map(Leaving::running);
        self.subsystems.iter().chain(leaving).all(|running| running.target.is_drained())
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
    pub(super) fn leave(&mut self) -> Result<()> {
        let controllers = self.target.connected().len();
        let why = "the configuration file has it no more";
        self.note("draining", json!({ "why": why, "controllers": controllers }));
        self.target.drain();
        self.listeners.clear();
        self.target.stop_listening()
    }

    /// Returns a closure that writes the last line about the subsystem to the access log.
    pub(super) fn last_note(&self) -> impl FnOnce() + Send + 'static {
        let nqn = self.config.nqn.clone();
        let access = self.access.clone();
        move || {
            access.iter().for_each(|access| {
                access.note("subsystem-removed", Some(&nqn), Value::Null);
            });
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
