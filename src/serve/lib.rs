//! Serves the namespaces of any [`Device`] over NVMe/TCP: for `dlfs serve`, and for the tiers that each node exports to
//! its peers.
//!
//! One [`Target`] is one subsystem, with one namespace per [`Device`] and a discovery service on
//! the same port. It runs one or more *pollers*: threads that each own connections, one queue pair
//! per namespace and a pool of buffers. A read goes through these steps: capsule, check, buffer
//! from the pool, queue pair, one gathered send from that buffer. Only the kernel copies the
//! data. A device that holds its bytes in memory can lend them; the read then skips the buffer
//! and the queue pair.
//!
//! The target is not a volume manager: it changes no bytes on its own and knows nothing about images. Hosts with keys
//! ([`TargetOptions::host_keys`]) prove their identity by DH-HMAC-CHAP on each queue (`connection/authentication.rs`),
//! by TLS (`connection/tls.rs`), or both. Others are identified by their NQN only, which protects against mistakes, not
//! against attackers.
//!
//! Invariants:
//! - Read-only unless the options say otherwise; listens on other addresses than loopback only if the options say which
//!   hosts may connect.
//! - No allocation is sized by unchecked input. Before Connect, a connection owns only its state
//!   and 1,024 bytes of Connect data.
//! - The memory that hosts can occupy on a poller is bounded, whether or not they read:
//!   `buffer_bytes` plus 4 MiB for all data, about 10 KiB per connection, about 200 bytes per
//!   command. A queue never has more commands (unsent responses included) than it has entries.
//! - One address cannot exhaust a limit. When a limit is reached, the address with the most
//!   connections or controllers loses one to an address with few. Everything refused or closed because of a limit is
//!   counted, with rate-limited warnings.
//! - A write reaches the device only after all its data have arrived with correct digests.
//! - Waits for a host have limits: Connect, authentication, unread responses, data of writes, and Keep Alive if the
//!   host asks for it. Stopping has one, too.
//!
//! Hosts share a poller by turns, and may have limits (`sharing.rs`).
//!
//! Read `poller.rs` first (the poll loop), then `connection.rs`.

mod access_log;
mod admin;
mod ana;
mod connection;
mod events;
mod exponentiations;
mod generated_keys;
mod hosts;
mod io;
pub mod keys;
mod options;
mod peers;
mod poller;
mod served;
mod shares;
mod sharing;
mod stats;
mod subsystem;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

pub use access_log::{AccessEvent, AccessKind, AccessLog};
pub use ana::AnaState;
pub use options::{Access, HostKeys, TargetOptions};
pub use served::{MAX_NSID, PreparedNamespace, ServedNamespace};
pub use shares::limits::Limits;
pub use shares::rules::{HostPattern, HostRule, HostUsage, Limiter, Rules};
pub use stats::{CommandLatency, Commands, TargetStats};
pub use subsystem::ConnectedController;

use dlfs_base::error::{Error, ErrorKind, Result, cannot_listen, invalid};
use dlfs_base::metrics::{Measured, Snapshot};
use dlfs_base::process::Forked;
use dlfs_base::registry::Registration;
use dlfs_base::threads::{self, Fate, Thread, caught};
use dlfs_base::units::Nsid;
use dlfs_io::address::{Address, TcpAddress};
use dlfs_io::qpair::Device;
use dlfs_io::tls;
use dlfs_nvme::nvme::Nqn;
use io::NamespaceQueue;
use poller::{Change, ChangeKind, Mail, Mailbox, Poller};
use subsystem::Subsystem;

/// A running NVMe/TCP target. Dropping it stops it; if one of its threads dies, the whole target
/// stops.
pub struct Target {
    subsystem: Arc<Subsystem>,
    mailboxes: Arc<[Mailbox]>,
    threads: Vec<Thread>,
    /// True once the thread that computes exponentiations for DH-HMAC-CHAP has been started.
    authenticates: bool,
    /// The error that killed one of the threads, if one died.
    fate: Fate,
    local_addr: SocketAddr,
    /// The process that owns the threads. A forked child inherits the handle, but not the threads.
    home: Forked<()>,
    _metered: Registration,
}

impl Measured for Subsystem {
    /// Adds a target's counters and latencies to the process's metrics, under the target's NQN.
    fn measure(&self, snapshot: &mut Snapshot) {
        let subsystem = self.options.nqn.as_str();
        self.stats().measure(subsystem, snapshot);
        self.latencies.read().measure(subsystem, snapshot);
        self.options.limiter.measure(&self.options.nqn, snapshot);
    }
}

impl Target {
    /// Listens, starts the target's threads, and serves `devices` as namespaces 1, 2, ...
    ///
    /// # Errors
    /// `InvalidArgument`: no device, a non-loopback address without allowed hosts, or options or a device that cannot
    /// be served. `Unsupported`: the options require TLS, and OpenSSL is missing. The errors of [`listen`]. Otherwise
    /// the device's error when it cannot create a queue pair, or the operating system's.
    pub fn bind(options: TargetOptions, devices: Vec<Arc<dyn Device>>) -> Result<Target> {
        if devices.is_empty() {
            return Err(invalid("a target needs at least one namespace"));
        }
        let served = ServedNamespace::numbered(devices);
        check(&options, &[options.listen], &served)?;
        let listener = listen(options.listen)?;
        Target::serve(options, vec![listener], served)
    }

    /// Starts the target's threads, and serves `served` to hosts that connect to `listeners`.
    /// Ignores the address in the options.
    ///
    /// # Errors
    /// `InvalidArgument`: no listener, or two namespaces with one NSID. Otherwise as for [`Target::bind`], but `served`
    /// may be empty.
    pub fn serve(
        options: TargetOptions,
        listeners: Vec<TcpListener>,
        served: Vec<ServedNamespace>,
    ) -> Result<Target> {
        let addresses = listeners.iter().map(TcpListener::local_addr);
        let addresses = addresses.collect::<std::io::Result<Vec<SocketAddr>>>()?;
        check(&options, &addresses, &served)?;
        for listener in &listeners {
            // A thousand hosts may connect at once; the standard library's backlog is 128.
            rustix::net::listen(listener, LISTEN_BACKLOG).map_err(std::io::Error::from)?;
            listener.set_nonblocking(true)?;
        }
        let local_addr = addresses[0];
        let num_pollers = options.num_pollers.max(1);
        let mailboxes =
            (0..num_pollers).map(|_| Mailbox::new()).collect::<Result<Arc<[Mailbox]>>>()?;
        let subsystem = Arc::new(Subsystem::new(options, served, &addresses));
        let mut target = Target {
            _metered: Registration::new(&subsystem),
            subsystem,
            mailboxes,
            threads: Vec::new(),
            authenticates: false,
            fate: Fate::default(),
            local_addr,
            home: Forked::new(()),
        };
        let mut listeners = Some(listeners);
        for number in 0..num_pollers {
            let subsystem = target.subsystem.clone();
            let mailboxes = target.mailboxes.clone();
            let cpu = subsystem.options.cpus.as_ref().map(|cpus| cpus.nth(number));
            let listeners = listeners.take().unwrap_or_default(); // the first poller accepts
            let make = || Poller::new(subsystem, mailboxes, number, listeners);
            // Created on the poller's own processor, so that its memory is local to that processor.
            let poller = match &cpu {
                None => make()?,
                Some(cpu) => cpu.run(make)??,
            };
            let name = format!("dlfs-target-{number}");
            let fate = target.fate.clone();
            let who = format!("the thread {name}");
            let all = target.mailboxes.clone();
            target.threads.push(threads::start(name, &target.fate, poller, move |poller| {
                if let Some(Err(error)) = cpu.map(|cpu| cpu.bind_this_thread()) {
                    // The binding worked a moment ago, when the poller was created on this
                    // processor.
                    tracing::warn!(%error, "cannot bind a poller to its processor; it runs on any");
                }
                if let Err(error) = caught(&who, || poller.run()) {
                    // A target without this poller would leave its hosts waiting, so the whole
                    // target stops.
                    fate.tell(&error);
                    all.iter().for_each(Mailbox::stop);
                }
            })?);
        }
        if !target.subsystem.options.host_keys.is_empty() {
            target.start_authenticating()?;
        }
        Ok(target)
    }

    /// Replaces the hosts that must authenticate and their keys. Connected hosts stay connected; each later
    /// Connect and reauthentication needs the new keys.
    ///
    /// # Errors
    /// On an error nothing has changed. `Unsupported`: a host needs TLS, and OpenSSL is missing.
    /// `InvalidArgument`: a host's namespace does not exist. Otherwise the operating system cannot start
    /// the thread that computes exponentiations.
    pub fn set_host_keys(&mut self, keys: BTreeMap<Nqn, HostKeys>) -> Result<()> {
        self.prepare_host_keys(&keys)?;
        self.subsystem.set_keys(keys);
        Ok(())
    }

    /// Does every step of [`Target::set_host_keys`] that can fail, without changing a key.
    ///
    /// # Errors
    /// The errors of [`Target::set_host_keys`].
    pub fn prepare_host_keys(&mut self, keys: &BTreeMap<Nqn, HostKeys>) -> Result<()> {
        check_hosts(keys, &self.subsystem.nsids(), self.subsystem.options.max_nsid)?;
        self.start_authenticating()
    }

    /// Replaces the hosts that may connect without keys. Connected hosts stay connected.
    pub fn set_allowed_hosts(&self, hosts: Vec<Nqn>) {
        self.subsystem.set_allowed(hosts);
    }

    /// Closes a host's connections, without those of the discovery service; returns how many controllers they had.
    /// The host may connect again if it could before.
    pub fn disconnect(&self, host: &Nqn) -> usize {
        let ended = self.subsystem.disconnect(host);
        self.look_at_controllers();
        ended
    }

    /// The connected controllers, without those of the discovery service. A host has one entry for each controller.
    pub fn connected(&self) -> Vec<ConnectedController> {
        self.subsystem.connected(Instant::now())
    }

    /// The namespaces, by NSID.
    pub fn namespaces(&self) -> Vec<ServedNamespace> {
        self.subsystem.namespaces.read().values().cloned().collect()
    }

    /// Adds a namespace. Connected hosts that have access to it get an asynchronous event.
    ///
    /// # Errors
    /// `InvalidArgument`: the NSID is in use, the namespace cannot be served, or its largest transfer is
    /// below the MDTS that hosts were told. `TimedOut`, `Internal`: as for [`Target::add_prepared`]. Otherwise the
    /// device's error when it cannot create a queue pair.
    pub fn add_namespace(&mut self, served: ServedNamespace) -> Result<()> {
        self.refuse_taken(served.nsid)?;
        let prepared = self.prepare_namespace(served)?;
        self.add_prepared(prepared)
    }

    /// Does every step of [`Target::add_namespace`] that can fail because of the namespace, without
    /// changing the target. The NSID may still be in use.
    ///
    /// # Errors
    /// The errors of [`Target::add_namespace`].
    pub fn prepare_namespace(&self, served: ServedNamespace) -> Result<PreparedNamespace> {
        served::check_one(&served)?;
        let nsid = served.nsid;
        let subsystem = &self.subsystem;
        let takes = served.device.namespace().max_transfer_bytes;
        let told = subsystem.max_transfer_bytes;
        if takes < told {
            let error = invalid(format!(
                "its transfers have at most {takes} bytes, and hosts were told that {told} are possible"
            )).nsid(nsid);
            return Err(error.hint("restart the target with it"));
        }
        let make = |mailbox: &Mailbox| served.device.queue_pair_in(&mailbox.scope);
        let queue_pairs = self.mailboxes.iter().map(make).collect::<Result<Vec<_>>>()?;
        Ok(PreparedNamespace { served, queue_pairs })
    }

    /// Adds a prepared namespace. Connected hosts that have access to it get an asynchronous event.
    ///
    /// # Errors
    /// `InvalidArgument`: the NSID is in use. `TimedOut`: a thread of the target does not answer. `Internal`: a thread
    /// is dead.
    pub fn add_prepared(&mut self, prepared: PreparedNamespace) -> Result<()> {
        let PreparedNamespace { served, queue_pairs } = prepared;
        let nsid = served.nsid;
        self.refuse_taken(nsid)?;
        let queue = |queue_pair| ChangeKind::Add(NamespaceQueue::new(&served, queue_pair));
        let queues = queue_pairs.into_iter().map(queue);
        self.apply(queues.collect())?;
        self.subsystem.namespaces.write().insert(nsid, served);
        self.report_change(nsid);
        Ok(())
    }

    fn refuse_taken(&self, nsid: Nsid) -> Result<()> {
        if !self.subsystem.namespaces.read().contains_key(&nsid) {
            return Ok(());
        }
        Err(invalid(format!("{} has a namespace {} already", self.nqn(), nsid.0)).nsid(nsid))
    }

    /// Removes a namespace. Connected hosts that have access to it get an asynchronous event. New commands to the
    /// namespace, and those that wait to begin, fail with *Invalid Namespace or Format*; others complete normally.
    ///
    /// # Errors
    /// `NotFound`: there is no such namespace. `TimedOut`, `Internal`: as for [`Target::add_prepared`].
    pub fn remove_namespace(&mut self, nsid: Nsid) -> Result<()> {
        let removed = self.subsystem.namespaces.write().remove(&nsid);
        if removed.is_none() {
            let message = format!("{} has no namespace {}", self.nqn(), nsid.0);
            return Err(Error::new(ErrorKind::NotFound, message).nsid(nsid));
        }
        self.apply(self.mailboxes.iter().map(|_| ChangeKind::Remove(nsid)).collect())?;
        self.report_change(nsid);
        Ok(())
    }

    /// Sends each poller its change, and waits until all pollers have applied theirs.
    fn apply(&self, changes: Vec<ChangeKind>) -> Result<()> {
        let (applied, all) = channel();
        for (mailbox, kind) in self.mailboxes.iter().zip(changes) {
            mailbox.send(Mail::Change(Change { kind, applied: applied.clone() }));
        }
        drop(applied);
        self.await_pollers(&all)
    }

    /// Waits for one message of each poller, for [`poller::CHANGE_LIMIT`] at most.
    fn await_pollers(&self, all: &Receiver<()>) -> Result<()> {
        let until = Instant::now() + poller::CHANGE_LIMIT;
        for _ in self.mailboxes.iter() {
            if all.recv_timeout(until.saturating_duration_since(Instant::now())).is_err() {
                self.check()?;
                let message = "a thread of the target does not answer: a device may be stuck";
                return Err(Error::new(ErrorKind::TimedOut, message));
            }
        }
        Ok(())
    }

    /// Has each poller report events, and close the connections of removed controllers.
    fn look_at_controllers(&self) {
        self.mailboxes.iter().for_each(|mailbox| mailbox.send(Mail::Events));
    }

    /// The ANA state of the namespaces; `None`: the target reports none.
    pub fn ana(&self) -> Option<AnaState> {
        self.subsystem.options.ana.map(|_| self.subsystem.ana.state())
    }

    /// Sets the ANA state of the namespaces. If it changes, connected hosts get an asynchronous event. Commands that
    /// have begun complete normally.
    ///
    /// # Errors
    /// `InvalidArgument`: the target reports no ANA states.
    pub fn set_ana(&self, state: AnaState) -> Result<()> {
        if self.subsystem.options.ana.is_none() {
            let error = invalid(format!("{} reports no ANA states", self.nqn()));
            return Err(error.hint("start it with --ana-state STATE, or by a configuration file"));
        }
        if self.subsystem.set_ana(state) {
            self.look_at_controllers();
        }
        Ok(())
    }

    fn report_change(&self, nsid: Nsid) {
        self.subsystem.namespace_changed(nsid);
        self.look_at_controllers();
    }

    /// Starts to disconnect all hosts, and returns at once. Further Connects are refused. Hosts that support
    /// ANA ([`TargetOptions::ana`]) learn that the namespaces are inaccessible here. A connection closes
    /// once its outstanding commands have completed. [`Target::is_drained`] tells when all are closed.
    pub fn drain(&self) {
        self.subsystem.begin_to_drain(Instant::now());
        self.look_at_controllers();
    }

    /// Stops accepting connections, and keeps those already accepted. Other processes that listen on the
    /// same sockets get the new ones.
    ///
    /// # Errors
    /// `TimedOut`: a thread of the target does not answer. `Internal`: a thread is dead.
    pub fn stop_listening(&self) -> Result<()> {
        self.apply(self.mailboxes.iter().map(|_| ChangeKind::StopListening).collect())
    }

    /// Returns whether no host is connected any more.
    pub fn is_drained(&self) -> bool {
        self.subsystem.num_controllers() == 0
    }

    /// Starts the thread that computes exponentiations, unless it runs already.
    fn start_authenticating(&mut self) -> Result<()> {
        if self.authenticates {
            return Ok(());
        }
        let subsystem = self.subsystem.clone();
        let mailboxes = self.mailboxes.clone();
        let fate = self.fate.clone();
        let name = "dlfs-target-auth";
        let thread = threads::start(name, &self.fate, (), move |()| {
            let deliver =
                |poller: usize, computed| mailboxes[poller].send(Mail::Computed(computed));
            let work = || subsystem.exponentiations.run(&subsystem.counters, deliver);
            if let Err(error) = caught("the thread dlfs-target-auth", work) {
                // Without this thread, hosts that authenticate would wait for ever, so the whole target
                // stops.
                fate.tell(&error);
                mailboxes.iter().for_each(Mailbox::stop);
            }
        })?;
        self.threads.push(thread);
        self.authenticates = true;
        Ok(())
    }

    /// The address of the target's first listener.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// The subsystem's NQN.
    pub fn nqn(&self) -> &Nqn {
        &self.subsystem.options.nqn
    }

    /// The address by which a host on this machine reaches namespace `nsid`; NSIDs start at 1.
    pub fn address(&self, nsid: Nsid) -> Address {
        Address::Tcp(TcpAddress {
            traddr: TcpAddress::traddr_of(self.local_addr),
            trsvcid: self.local_addr.port(),
            subnqn: self.nqn().clone(),
            nsid: Some(nsid),
        })
    }

    /// Counters since the start, and the current numbers of connections and controllers.
    pub fn stats(&self) -> TargetStats {
        self.subsystem.stats()
    }

    /// Latencies of the commands completed so far.
    pub fn latency(&self) -> CommandLatency {
        self.subsystem.latencies.read()
    }

    /// I/O queues on each poller, including connections that have not sent Connect yet.
    pub fn queues_by_poller(&self) -> Vec<usize> {
        self.mailboxes.iter().map(Mailbox::load).collect()
    }

    /// Checks that the target still serves.
    ///
    /// # Errors
    /// `Internal`: one of its threads has died, which stopped the target.
    pub fn check(&self) -> Result<()> {
        self.fate.died().map_or(Ok(()), Err)
    }

    /// Closes all connections, waits up to 5 s for outstanding device I/O, and ends the threads. Abandons a
    /// thread that hangs in a device call. Dropping the target does the same.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if !self.home.is_ours() {
            // The threads belong to the parent process, which goes on serving.
            std::mem::take(&mut self.threads).into_iter().for_each(std::mem::forget);
            return;
        }
        self.mailboxes.iter().for_each(Mailbox::stop);
        self.subsystem.exponentiations.stop();
        let until = Instant::now() + poller::STOP_LIMIT + poller::TICK;
        for thread in self.threads.drain(..) {
            thread.join_within(until.saturating_duration_since(Instant::now()));
        }
    }
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Target({} on {})", self.nqn(), self.local_addr)
    }
}

/// Listen backlog: connections that wait for `accept`.
const LISTEN_BACKLOG: i32 = 4096;

/// Listens on `address`; port 0 chooses a free port.
///
/// # Errors
/// `Busy`: the port is in use. `InvalidArgument`: the machine does not have this address. `Refused`: the
/// port needs a privilege.
pub fn listen(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).map_err(|error| cannot_listen("listen", address, error))
}

/// Refuses keys that name NSIDs which neither exist nor can be added, and keys that need TLS where OpenSSL is missing.
fn check_hosts(keys: &BTreeMap<Nqn, HostKeys>, nsids: &[Nsid], max_nsid: u32) -> Result<()> {
    for (host, keys) in keys {
        let may_exist = |nsid: &Nsid| nsids.contains(nsid) || (1..=max_nsid).contains(&nsid.0);
        let is_missing = |nsid: &&Nsid| !may_exist(nsid);
        if let Some(nsid) = keys.access.namespaces.iter().flatten().find(is_missing) {
            let message = format!("{host} may use namespace {}, which does not exist", nsid.0);
            let hint = "namespaces are numbered from 1 in the order of the addresses";
            return Err(invalid(message).hint(hint));
        }
    }
    match keys.iter().find(|(_, keys)| !keys.tls_keys.is_empty() || keys.must_concat) {
        Some((host, _)) => load_tls(host),
        None => Ok(()),
    }
}

/// Loads OpenSSL; the error says that `whom` must connect inside TLS.
fn load_tls(whom: &dyn Display) -> Result<()> {
    tls::load().map_err(|error| {
        let message = format!("{whom} must connect inside TLS: {error}");
        Error::new(ErrorKind::Unsupported, message).hint(tls::HOW_TO_INSTALL)
    })
}

/// Refuses options and devices that cannot be served.
fn check(options: &TargetOptions, listen: &[SocketAddr], served: &[ServedNamespace]) -> Result<()> {
    if listen.is_empty() {
        return Err(invalid("a target needs an address to listen on"));
    }
    if options.max_queue_entries < 2 {
        return Err(invalid("a queue has at least 2 entries"));
    }
    let nsids: Vec<Nsid> = served.iter().map(|served| served.nsid).collect();
    check_hosts(&options.host_keys, &nsids, options.max_nsid)?;
    if options.require_tls {
        load_tls(&"every host")?;
    }
    if options.nqn.as_str() == Nqn::DISCOVERY {
        return Err(invalid("a subsystem cannot have the name of the discovery service"));
    }
    let is_open =
        options.allow_any_host || !options.allow_hosts.is_empty() || !options.host_keys.is_empty();
    let far = listen.iter().find(|address| !address.ip().is_loopback());
    if let Some(address) = far.filter(|_| !is_open) {
        let message = format!("{address} is reachable from other machines, and no host is allowed");
        return Err(invalid(message)
            .hint("name the hosts (--allow-host NQN), or allow all (--allow-any-host)"));
    }
    served::check(served)
}
