//! The NVM subsystem: its namespaces, its controllers, and the hosts that may connect.
//!
//! All pollers share it. I/O commands take no lock here: they read the atomics of their controller
//! (`subsystem/controller.rs`).

mod controller;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use parking_lot::{Mutex, RwLock};

use super::access_log::{
    AccessKind, ControllerEnd, Refusal, Teller, WarningKind, Warnings, Who, busy,
};
use super::ana::{Ana, AnaState};
use super::events::{ANA, Events, NAMESPACES};
use super::exponentiations::Exponentiations;
use super::generated_keys::GeneratedKeys;
use super::options::{HostKeys, TargetOptions};
use super::peers::{Limit, Peer, PeerLimits};
use super::served::{Namespaces, ServedNamespace};
use super::stats::{Counters, Latencies, TargetStats};
pub(super) use controller::{Controller, Queue};
use dlfs_base::units::Nsid;
use dlfs_io::qpair::{Namespace, machine_uuid};
use dlfs_nvme::auth::{Concatenation, IdentityParts, Origin};
use dlfs_nvme::nvme::{Cap, ConnectData, Nqn, Sqe, Status};

/// The subsystem that a target serves, and its discovery service.
pub(super) struct Subsystem {
    pub(super) options: TargetOptions,
    pub(super) namespaces: Namespaces,
    /// The ANA state of the namespaces.
    pub(super) ana: Ana,
    /// True if the target listens on loopback addresses only.
    is_local: bool,
    /// Maximum data of a command in bytes (MDTS): a power of two of at least 4,096.
    pub(super) max_transfer_bytes: u32,
    pub(super) warnings: Warnings,
    pub(super) access: Arc<Teller>,
    pub(super) counters: Counters,
    pub(super) latencies: Latencies,
    /// Hosts that may connect without keys: those of the options, until they are replaced.
    allowed: RwLock<Vec<Nqn>>,
    /// The keys of hosts: those of the options, until they are replaced.
    keys: RwLock<BTreeMap<Nqn, Arc<HostKeys>>>,
    /// The number of replacements of the allowed hosts or the keys.
    pub(super) replacements: AtomicU64,
    pub(super) exponentiations: Exponentiations,
    /// TLS PSKs that authentications have generated.
    pub(super) generated: GeneratedKeys,
    /// Times are stored as milliseconds since this instant, so that they fit into atomics.
    start: Instant,
    /// Start of draining: since then no host may connect, and connected hosts are sent away.
    draining_since: OnceLock<Instant>,
    /// Locked by Connect, by disconnections, for statistics, and to note events; never by I/O commands.
    controllers: Mutex<Controllers>,
}

struct Controllers {
    by_cntlid: BTreeMap<u16, Arc<Controller>>,
    /// The CNTLID that was assigned last.
    last_cntlid: u16,
    /// Limits of controllers, without those of the discovery service.
    io_limits: PeerLimits,
    discovery_limits: PeerLimits,
}

/// A controller of a connected host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectedController {
    /// The controller's identifier.
    pub cntlid: u16,
    /// The host's NQN, as stated in Connect or proved by authentication.
    pub host: Nqn,
    /// The address from which the admin queue connected.
    pub peer: SocketAddr,
    /// Number of connected I/O queues.
    pub num_io_queues: usize,
    /// True if the controller's connections are inside TLS.
    pub is_secured: bool,
    /// Seconds since the controller was created.
    pub connected_s: u64,
}

/// The identity of the PSK that a connection's TLS session uses.
#[derive(Debug)]
pub(super) struct TlsIdentity {
    /// The identity as TLS has it.
    pub(super) text: String,
    /// The same, parsed: it names the host, the subsystem and the origin of the PSK.
    pub(super) parts: IdentityParts,
}

impl Subsystem {
    pub(super) fn new(
        options: TargetOptions,
        served: Vec<ServedNamespace>,
        addresses: &[SocketAddr],
    ) -> Subsystem {
        let limits = served.iter().map(|served| served.device.namespace().max_transfer_bytes);
        let wanted = options.max_transfer_bytes.min(limits.min().unwrap_or(4096)).max(4096);
        let held = u32::try_from(options.buffer_bytes / 4).unwrap_or(u32::MAX).max(4096);
        let max_transfer_bytes = 1 << wanted.min(held).ilog2();
        let access = Arc::new(Teller::new(options.nqn.clone(), options.access_log.clone()));
        let controllers = Controllers {
            by_cntlid: BTreeMap::new(),
            last_cntlid: last_cntlid(addresses),
            io_limits: PeerLimits::new(
                options.max_controllers.into(),
                options.max_controllers_per_address.into(),
            ),
            discovery_limits: PeerLimits::new(
                options.max_discovery_controllers.into(),
                options.max_discovery_controllers_per_address.into(),
            ),
        };
        Subsystem {
            allowed: RwLock::new(options.allow_hosts.clone()),
            keys: RwLock::new(shared_keys(options.host_keys.clone())),
            replacements: AtomicU64::new(0),
            ana: Ana::new(options.ana.unwrap_or(AnaState::Optimized)),
            options,
            namespaces: RwLock::new(served.into_iter().map(|one| (one.nsid, one)).collect()),
            is_local: addresses.iter().all(|address| address.ip().is_loopback()),
            max_transfer_bytes,
            warnings: Warnings::new(Instant::now(), access.clone()),
            access,
            counters: Counters::default(),
            latencies: Latencies::default(),
            exponentiations: Exponentiations::new(),
            generated: GeneratedKeys::default(),
            start: Instant::now(),
            draining_since: OnceLock::new(),
            controllers: Mutex::new(controllers),
        }
    }

    /// The NSIDs of the namespaces, ascending.
    pub(super) fn nsids(&self) -> Vec<Nsid> {
        self.namespaces.read().keys().copied().collect()
    }

    /// The namespace `nsid` as hosts see it, if it exists.
    pub(super) fn namespace(&self, nsid: u32) -> Option<Namespace> {
        let served = self.namespaces.read().get(&Nsid(nsid)).cloned()?;
        let mut namespace = served.device.namespace();
        namespace.read_only |= served.read_only || !self.options.writable;
        if namespace.nguid == [0; 16] {
            namespace.nguid = self.nguid_of(nsid);
        }
        Some(namespace)
    }

    /// Bytes of the allocated blocks of namespace `nsid`, if it is thinly provisioned.
    pub(super) fn allocated_bytes(&self, nsid: u32) -> Option<u64> {
        let served = self.namespaces.read().get(&Nsid(nsid)).cloned()?;
        served.device.capabilities().allocated_bytes
    }

    /// Returns whether any namespace is thinly provisioned, so that it may have deallocated blocks.
    pub(super) fn is_thin(&self) -> bool {
        let served: Vec<ServedNamespace> = self.namespaces.read().values().cloned().collect();
        served.iter().any(|one| one.device.capabilities().allocated_bytes.is_some())
    }

    /// The highest NSID that hosts are told of (NN).
    pub(super) fn max_nsid(&self) -> u32 {
        let highest = self.nsids().last().map_or(0, |nsid| nsid.0);
        highest.max(self.options.max_nsid)
    }

    /// Asynchronous events that the target may send (OAES).
    pub(super) fn optional_events(&self) -> u32 {
        NAMESPACES | if self.options.ana.is_some() { ANA } else { 0 }
    }

    /// Tells each controller with access to the namespace that it was added or removed.
    pub(super) fn namespace_changed(&self, nsid: Nsid) {
        for controller in self.controllers.lock().by_cntlid.values() {
            if !controller.is_discovery && controller.access.has(nsid) {
                controller.events.namespace_changed(nsid);
            }
        }
    }

    /// Starts draining: from now on no host may connect, and connected hosts are sent away.
    pub(super) fn begin_to_drain(&self, now: Instant) {
        if self.draining_since.set(now).is_ok() && self.options.ana.is_some() {
            self.tell_ana_changed();
        }
    }

    /// Sets the ANA state, and tells all controllers if it has changed; returns whether it has.
    pub(super) fn set_ana(&self, state: AnaState) -> bool {
        let is_other = self.ana.set(state);
        if is_other {
            self.tell_ana_changed();
        }
        is_other
    }

    fn tell_ana_changed(&self) {
        let controllers = self.controllers.lock();
        controllers.by_cntlid.values().for_each(|controller| controller.events.ana_changed());
    }

    /// Start of draining, if the target drains.
    pub(super) fn draining_since(&self) -> Option<Instant> {
        self.draining_since.get().copied()
    }

    /// Returns whether the controller's commands fail as *inaccessible*: the target drains, and the host
    /// supports ANA.
    pub(super) fn is_inaccessible_to(&self, controller: &Controller) -> bool {
        self.draining_since.get().is_some()
            && self.options.ana.is_some()
            && controller.events.knows_ana()
    }

    /// The status with which the controller's I/O commands fail; `None`: its namespaces are accessible.
    pub(super) fn refusal_of(&self, controller: &Controller) -> Option<Status> {
        let is_inaccessible = self.is_inaccessible_to(controller);
        is_inaccessible.then_some(Status::ANA_INACCESSIBLE).or_else(|| self.ana.refusal())
    }

    /// Removes a host's controllers, except those of the discovery service; returns how many there were.
    pub(super) fn disconnect(&self, hostnqn: &Nqn) -> usize {
        let mut controllers = self.controllers.lock();
        let is_of_host = |controller: &&Arc<Controller>| {
            !controller.is_discovery && controller.hostnqn == *hostnqn
        };
        let removed: Vec<_> = controllers.by_cntlid.values().filter(is_of_host).cloned().collect();
        for controller in &removed {
            controller.end.because("the operator disconnects the host");
            controllers.remove(controller);
        }
        removed.len()
    }

    /// The controllers of all hosts, without those of the discovery service.
    pub(super) fn connected(&self, now: Instant) -> Vec<ConnectedController> {
        let controllers = self.controllers.lock();
        let hosts = controllers.by_cntlid.values().filter(|controller| !controller.is_discovery);
        let describe = |controller: &Arc<Controller>| ConnectedController {
            cntlid: controller.cntlid,
            host: controller.hostnqn.clone(),
            peer: controller.from,
            num_io_queues: controller.queues.lock().connected.len(),
            is_secured: controller.is_secured,
            connected_s: now.saturating_duration_since(controller.since).as_secs(),
        };
        hosts.map(describe).collect()
    }

    /// An NGUID for a namespace whose device has none: a hash of subsystem NQN and NSID.
    fn nguid_of(&self, nsid: u32) -> [u8; 16] {
        let name = format!("{}/{nsid}", self.options.nqn);
        xxhash_rust::xxh3::xxh3_128(name.as_bytes()).to_le_bytes()
    }

    /// Returns whether the host may connect, with keys or without.
    pub(super) fn allows(&self, host: &Nqn) -> bool {
        let options = &self.options;
        let keys = self.keys.read();
        let allowed = self.allowed.read();
        let is_open = allowed.is_empty() && keys.is_empty();
        let any = is_open && self.is_local;
        options.allow_any_host || any || allowed.contains(host) || keys.contains_key(host)
    }

    /// The keys of a host, if it has any.
    pub(super) fn keys_of(&self, host: &Nqn) -> Option<Arc<HostKeys>> {
        self.keys.read().get(host).cloned()
    }

    /// Replaces the hosts that may connect without keys. Connected hosts stay connected.
    pub(super) fn set_allowed(&self, hosts: Vec<Nqn>) {
        *self.allowed.write() = hosts;
        self.replacements.fetch_add(1, Ordering::Release);
    }

    /// Replaces the keys of all hosts. Connected hosts stay connected; a later Connect needs the new keys.
    pub(super) fn set_keys(&self, keys: BTreeMap<Nqn, HostKeys>) {
        *self.keys.write() = shared_keys(keys);
        self.replacements.fetch_add(1, Ordering::Release);
    }

    /// Returns whether new connections wait: see [`TargetOptions::hold`].
    pub(super) fn is_held(&self) -> bool {
        self.options.hold && self.replacements.load(Ordering::Acquire) == 0
    }

    /// Returns whether any host has a TLS PSK, configured or generated.
    pub(super) fn offers_tls(&self) -> bool {
        let has_keys = self.keys.read().values().any(|keys| !keys.tls_keys.is_empty());
        has_keys || !self.generated.is_empty(Instant::now())
    }

    pub(super) fn stats(&self) -> TargetStats {
        self.counters.read(self.num_controllers() as u64)
    }

    pub(super) fn num_controllers(&self) -> usize {
        self.controllers.lock().by_cntlid.len()
    }

    pub(super) fn cap(&self) -> Cap {
        Cap::new(self.options.max_queue_entries, READY_TIMEOUT_MS)
    }

    /// Milliseconds from the start to `now`.
    fn millis(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.start).as_millis() as u64
    }

    /// Executes a Connect, and logs its result. `tls_identity`: that of the connection's PSK; `None` outside TLS.
    pub(super) fn connect(
        self: &Arc<Self>,
        sqe: &Sqe,
        data: &ConnectData,
        peer: SocketAddr,
        tls_identity: Option<&TlsIdentity>,
        now: Instant,
    ) -> Result<Queue, Refusal> {
        let result = self.admit(sqe, data, peer, tls_identity, now);
        match &result {
            Ok(queue) => queue.log_connected(peer),
            Err(refusal) => self.log_refused(refusal, data, peer, now),
        }
        result
    }

    /// Logs a refused Connect. A refusal with a kind is a warning and is counted.
    fn log_refused(&self, refusal: &Refusal, data: &ConnectData, peer: SocketAddr, now: Instant) {
        let hostnqn = data.hostnqn().ok();
        let why = &refusal.why;
        let who = Who { peer: Some(peer), host: hostnqn.as_ref() };
        let Some(kind) = refusal.kind else {
            let host = hostnqn.as_ref().map(Nqn::as_str);
            self.access.tell(who, None, AccessKind::Refused { why });
            return tracing::info!(%peer, host, "refused: {why}");
        };
        Counters::add(&self.counters.refused, 1);
        self.warnings.warn(now, kind, who, format_args!("{why}"));
    }

    /// Checks a Connect; creates its controller, or adds its queue to the controller that it names.
    fn admit(
        self: &Arc<Self>,
        sqe: &Sqe,
        data: &ConnectData,
        peer: SocketAddr,
        tls_identity: Option<&TlsIdentity>,
        now: Instant,
    ) -> Result<Queue, Refusal> {
        self.check_command(sqe)?;
        let is_no_name = |offset| move |_| Refusal::data(offset, "a name that cannot be an NQN");
        let hostnqn = data.hostnqn().map_err(is_no_name(ConnectData::HOSTNQN_OFFSET))?;
        let subnqn = data.subnqn().map_err(is_no_name(ConnectData::SUBNQN_OFFSET))?;
        let is_discovery = subnqn.as_str() == Nqn::DISCOVERY;
        self.check_names(&hostnqn, &subnqn, is_discovery)?;
        let keys = self.keys_of(&hostnqn).filter(|_| !is_discovery);
        let qid = sqe.connect_qid();
        // With `must_concat`, the admin queue starts outside TLS: its authentication generates the PSK.
        let require_tls = self.options.require_tls;
        let must_secure = |keys: &HostKeys| {
            let must_concat = keys.must_concat || require_tls && !keys.secrets.is_empty();
            !keys.tls_keys.is_empty() || if must_concat { qid != 0 } else { require_tls }
        };
        let must_secure = keys.as_deref().map_or(require_tls, must_secure);
        check_secured(tls_identity, must_secure, &hostnqn, &subnqn)?;
        let concatenation = match &keys {
            Some(keys) if tls_identity.is_none() && qid == 0 => keys.concatenation(require_tls),
            _ => Concatenation::No,
        };
        let is_generated = tls_identity.is_some_and(|it| it.parts.origin == Origin::Generated);
        let controller = match qid {
            0 => {
                self.add_controller(sqe, data, hostnqn, is_discovery, (peer, tls_identity), now)?
            }
            qid => {
                self.join_controller(qid, data, &hostnqn, is_discovery, tls_identity.is_some())?
            }
        };
        Ok(Queue {
            must_authenticate: keys.is_some_and(|keys| !keys.secrets.is_empty()) && !is_generated,
            concatenation,
            resets: controller.resets.load(Ordering::Relaxed),
            controller,
            qid,
            sqsize: sqe.connect_sqsize(),
            sq_flow_control: !sqe.connect_disables_sq_flow_control(),
            subsystem: self.clone(),
        })
    }

    /// Checks the record format and the queue length of a Connect.
    fn check_command(&self, sqe: &Sqe) -> Result<(), Refusal> {
        if sqe.connect_recfmt() != 0 {
            return Err(Refusal::of(Status::CONNECT_INCOMPATIBLE_FORMAT, "unknown record format"));
        }
        let sqsize = sqe.connect_sqsize();
        if sqsize == 0 || sqsize >= self.options.max_queue_entries {
            let max = self.options.max_queue_entries;
            let entries = u32::from(sqsize) + 1;
            let why = format!(
                "a queue of {entries} entries; allowed are 2 to {max} (--max-queue-entries)"
            );
            return Err(Refusal::command(SQSIZE_OFFSET, why));
        }
        Ok(())
    }

    /// Checks that the target serves this subsystem, and serves it to this host.
    fn check_names(&self, hostnqn: &Nqn, subnqn: &Nqn, is_discovery: bool) -> Result<(), Refusal> {
        if !is_discovery && *subnqn != self.options.nqn {
            let why = format!("there is no subsystem {:?} here", subnqn.as_str());
            return Err(Refusal::data(ConnectData::SUBNQN_OFFSET, why));
        }
        if self.draining_since.get().is_some() {
            return Err(Refusal { kind: None, ..busy("the target drains before it stops") });
        }
        if !is_discovery && !self.allows(hostnqn) {
            let refusal =
                Refusal::of(Status::CONNECT_INVALID_HOST, "the host is not on the allow-list");
            return Err(Refusal { kind: Some(WarningKind::HostNotAllowed), ..refusal });
        }
        Ok(())
    }

    /// Creates a controller for an admin queue, if the limits permit it or another controller can be evicted.
    fn add_controller(
        &self,
        sqe: &Sqe,
        data: &ConnectData,
        hostnqn: Nqn,
        is_discovery: bool,
        (from, tls_identity): (SocketAddr, Option<&TlsIdentity>),
        now: Instant,
    ) -> Result<Arc<Controller>, Refusal> {
        if data.cntlid.get() != ConnectData::CNTLID_DYNAMIC {
            return Err(Refusal::data(
                ConnectData::CNTLID_OFFSET,
                "only dynamic controllers are supported",
            ));
        }
        let generated = match tls_identity {
            Some(TlsIdentity { parts, text }) if parts.origin == Origin::Generated => {
                let held = self.generated.hold(text, now);
                let why = "its generated TLS key is no longer valid";
                Some(held.ok_or_else(|| Refusal::of(Status::CONNECT_INVALID_HOST, why))?)
            }
            _ => None,
        };
        let access = self.keys_of(&hostnqn).map(|keys| keys.access.clone()).unwrap_or_default();
        let peer = Peer::from(from.ip());
        let kato_ms = self.keep_alive_ms(sqe.connect_kato_ms(), is_discovery);
        let mut controllers = self.controllers.lock();
        while let Some(limit) = controllers.peer_limits(is_discovery).reached(peer) {
            if !self.make_room(&mut controllers, limit, peer, is_discovery, now) {
                drop(controllers);
                return Err(self.limit_reached(limit, is_discovery));
            }
        }
        let cntlid =
            controllers.next_cntlid().ok_or_else(|| busy("no controller identifier is left"))?;
        let controller = Arc::new(Controller {
            cntlid,
            from,
            hostnqn,
            hostid: data.hostid,
            is_discovery,
            is_secured: tls_identity.is_some(),
            _generated: generated,
            access,
            is_dead: AtomicBool::new(false),
            cc: AtomicU32::new(0),
            csts: AtomicU32::new(0),
            resets: AtomicU32::new(0),
            kato_ms: AtomicU32::new(kato_ms),
            last_seen_ms: AtomicU64::new(self.millis(now)),
            events: Events::default(),
            since: now,
            hides_unwritten: AtomicBool::new(false),
            end: ControllerEnd::new(self.access.clone()),
            queues: Mutex::default(),
        });
        controllers.by_cntlid.insert(cntlid, controller.clone());
        controllers.peer_limits(is_discovery).add(peer);
        Ok(controller)
    }

    /// The Keep Alive Timeout (KATO) for a controller that asks for `asked_ms`, in milliseconds; 0: none.
    pub(super) fn keep_alive_ms(&self, asked_ms: u32, is_discovery: bool) -> u32 {
        let max_ms = u32::try_from(self.options.max_keep_alive.as_millis()).unwrap_or(u32::MAX);
        match asked_ms {
            0 if is_discovery => DISCOVERY_KATO_MS.min(max_ms),
            _ if is_discovery => asked_ms.min(max_ms),
            // A host may go without Keep Alive: TCP detects its death, and the limit of controllers evicts
            // it.
            _ => asked_ms,
        }
    }

    /// Evicts a controller to make room for one of `peer`; returns whether one could be evicted. Of those that may be
    /// evicted, it is the one that has been silent longest. At the limit of one peer, controllers of that peer may be
    /// evicted that have been silent for long enough. At the limit of all peers, all that have been silent for long
    /// enough may be, and any of the peer with by far the most.
    fn make_room(
        &self,
        controllers: &mut Controllers,
        limit: Limit,
        peer: Peer,
        is_discovery: bool,
        now: Instant,
    ) -> bool {
        let peer_with_most = controllers.peer_limits(is_discovery).peer_with_most(peer);
        // Minimum silence that makes a controller evictable.
        let min_silent_ms = if is_discovery {
            DISCOVERY_EVICTABLE_MS
        } else {
            u64::try_from(2 * self.options.max_keep_alive.as_millis()).unwrap_or(u64::MAX)
        };
        let now_ms = self.millis(now);
        let silent_ms = |controller: &Controller| {
            now_ms.saturating_sub(controller.last_seen_ms.load(Ordering::Relaxed))
        };
        let of_kind = |controller: &&Arc<Controller>| controller.is_discovery == is_discovery;
        let may_go = |controller: &&Arc<Controller>| match limit {
            Limit::Peer => controller.peer() == peer && silent_ms(controller) >= min_silent_ms,
            Limit::All => {
                silent_ms(controller) >= min_silent_ms || peer_with_most == Some(controller.peer())
            }
        };
        let candidates = controllers.by_cntlid.values().filter(of_kind).filter(may_go);
        let seen = |controller: &&Arc<Controller>| controller.last_seen_ms.load(Ordering::Relaxed);
        let longest = candidates.min_by_key(seen).cloned();
        let Some(controller) = longest else { return false };
        controller.end.because("evicted in favour of another controller");
        controllers.remove(&controller);
        Counters::add(&self.counters.evicted, 1);
        let who = Who { peer: Some(controller.from), host: Some(&controller.hostnqn) };
        let silent_s = silent_ms(&controller) / 1000;
        let why = format_args!("in favour of another controller, after {silent_s} s of silence");
        self.warnings.warn(now, WarningKind::Evicted, who, why);
        true
    }

    /// The refusal because of a reached limit; names the option that sets the limit.
    fn limit_reached(&self, limit: Limit, is_discovery: bool) -> Refusal {
        let options = &self.options;
        let (max, option) = match (limit, is_discovery) {
            (Limit::All, false) => (options.max_controllers, ""),
            (Limit::Peer, false) => (options.max_controllers_per_address, "-per-address"),
            (Limit::All, true) => (options.max_discovery_controllers, ""),
            (Limit::Peer, true) => (options.max_discovery_controllers_per_address, "-per-address"),
        };
        let kind = if is_discovery { "discovery-controllers" } else { "controllers" };
        let whose = match limit {
            Limit::All => "the limit of controllers is reached",
            Limit::Peer => "its address has reached its limit",
        };
        busy(format!("{whose} (--max-{kind}{option} {max})"))
    }

    /// Adds an I/O queue to the controller that a Connect names.
    fn join_controller(
        &self,
        qid: u16,
        data: &ConnectData,
        hostnqn: &Nqn,
        is_discovery: bool,
        is_secured: bool,
    ) -> Result<Arc<Controller>, Refusal> {
        let controller = self.controllers.lock().by_cntlid.get(&data.cntlid.get()).cloned();
        let controller = controller
            .filter(|controller| controller.is_discovery == is_discovery)
            .ok_or_else(|| {
                Refusal::data(
                    ConnectData::CNTLID_OFFSET,
                    "the controller does not exist (any more)",
                )
            })?;
        if controller.hostnqn != *hostnqn {
            return Err(Refusal::data(
                ConnectData::HOSTNQN_OFFSET,
                "the controller belongs to another host",
            ));
        }
        if controller.hostid != data.hostid {
            return Err(Refusal::data(0, "the host identifier differs from the controller's"));
        }
        if is_discovery {
            return Err(Refusal::command(QID_OFFSET, "the discovery service has no I/O queues"));
        }
        if controller.is_secured != is_secured {
            let why = "an I/O queue is inside TLS if and only if the admin queue is";
            return Err(Refusal::of(Status::CONNECT_INVALID_HOST, why));
        }
        if !controller.is_enabled() {
            let why = "the controller is not enabled";
            return Err(Refusal::of(Status::COMMAND_SEQUENCE_ERROR, why));
        }
        controller.add_queue(qid)?;
        Ok(controller)
    }
}

impl Controllers {
    fn peer_limits(&mut self, is_discovery: bool) -> &mut PeerLimits {
        if is_discovery { &mut self.discovery_limits } else { &mut self.io_limits }
    }

    /// Removes a controller, unless it has been removed already.
    fn remove(&mut self, controller: &Controller) {
        if !controller.is_dead.swap(true, Ordering::Relaxed) {
            self.by_cntlid.remove(&controller.cntlid);
            self.peer_limits(controller.is_discovery).remove(controller.peer());
        }
    }

    /// A free CNTLID, counting up from the last one, so that an identifier is reused as late as possible.
    fn next_cntlid(&mut self) -> Option<u16> {
        if self.by_cntlid.len() >= usize::from(MAX_CNTLID) {
            return None;
        }
        loop {
            self.last_cntlid = self.last_cntlid % MAX_CNTLID + 1;
            if !self.by_cntlid.contains_key(&self.last_cntlid) {
                return Some(self.last_cntlid);
            }
        }
    }
}

/// Refuses a host whose TLS PSK is for another host or subsystem, or that connects without TLS and must use it.
fn check_secured(
    tls_identity: Option<&TlsIdentity>,
    must_secure: bool,
    hostnqn: &Nqn,
    subnqn: &Nqn,
) -> Result<(), Refusal> {
    let why = match tls_identity.map(|identity| &identity.parts) {
        Some(parts) if parts.hostnqn != *hostnqn => "its TLS key is that of another host",
        Some(parts) if parts.subnqn != *subnqn => "its TLS key is for another subsystem",
        None if must_secure => "it must connect inside TLS",
        _ => return Ok(()),
    };
    let refusal = Refusal::of(Status::CONNECT_INVALID_HOST, why);
    Err(Refusal { kind: Some(WarningKind::NotAuthenticated), ..refusal })
}

fn shared_keys(keys: BTreeMap<Nqn, HostKeys>) -> BTreeMap<Nqn, Arc<HostKeys>> {
    keys.into_iter().map(|(host, keys)| (host, Arc::new(keys))).collect()
}

/// The CNTLID before the first one that is assigned. Hosts refuse a controller whose identifier they know from another
/// target of the same subsystem, so it depends on machine and addresses.
fn last_cntlid(addresses: &[SocketAddr]) -> u16 {
    let text = format!("{:?} {addresses:?}", machine_uuid());
    (xxhash_rust::xxh3::xxh3_64(text.as_bytes()) % u64::from(MAX_CNTLID)) as u16
}

/// Offset of QID in the Connect command.
const QID_OFFSET: u16 = 42;
/// Offset of SQSIZE in the Connect command.
const SQSIZE_OFFSET: u16 = 44;
/// The highest controller identifier that the specification allows.
const MAX_CNTLID: u16 = 0xFFEF;
/// CAP.TO in milliseconds: the maximum time to become ready; this target is ready at once.
const READY_TIMEOUT_MS: u32 = 5_000;
/// Keep Alive Timeout, in milliseconds, of a discovery controller that asks for none.
const DISCOVERY_KATO_MS: u32 = 60_000;
/// Silence, in milliseconds, after which a discovery controller may be evicted: discovery takes milliseconds, and hosts
/// that stay connected for its events reconnect.
const DISCOVERY_EVICTABLE_MS: u64 = 1_000;
