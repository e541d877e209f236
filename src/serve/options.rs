//! Options of a target: the hosts that may connect, how they prove their identity, and all limits.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use super::access_log::AccessLog;
use super::ana::AnaState;
use super::shares::rules::Limiter;
use dlfs_base::units::Nsid;
use dlfs_io::qpair::Cpus;
use dlfs_io::tls;
use dlfs_nvme::auth::{Concatenation, ConfiguredPsk, Derivation, Group, Hash, Secret};
use dlfs_nvme::nvme::Nqn;

/// Options of a [`super::Target`]: what it serves, to whom, and its limits.
#[derive(Debug, Clone)]
pub struct TargetOptions {
    /// Address to listen on; port 0 chooses a free port.
    pub listen: SocketAddr,
    /// NQN of the subsystem.
    pub nqn: Nqn,
    /// NQNs of hosts that may connect without keys; hosts in `host_keys` may connect with them. If both are
    /// empty, any host may connect to a loopback address, and no host to another address.
    ///
    /// A host NQN is sent in the clear and proves nothing. The list protects against mistakes, not attackers.
    pub allow_hosts: Vec<Nqn>,
    /// Hosts that must prove their identity: by DH-HMAC-CHAP on each queue, by TLS, or both.
    pub host_keys: BTreeMap<Nqn, HostKeys>,
    /// Derivation of TLS PSKs with a version 0 identity. A version 1 identity implies its derivation.
    pub tls_derivation: Derivation,
    /// Permitted DH-HMAC-CHAP hashes, most preferred first.
    pub dhchap_hashes: Vec<Hash>,
    /// Permitted Diffie-Hellman groups of DH-HMAC-CHAP, most preferred first.
    pub dhchap_groups: Vec<Group>,
    /// Lets any host connect, on any address.
    pub allow_any_host: bool,
    /// Refuses connections without TLS, also to the discovery service. Hosts that have only secrets must generate a
    /// TLS PSK by authenticating, as with [`HostKeys::must_concat`]; hosts without keys cannot connect.
    pub require_tls: bool,
    /// Lets hosts write, if the device is writable.
    pub writable: bool,
    /// Number of poller threads, each with queue pairs of its own. A new connection goes to the
    /// poller with the fewest I/O queues and stays there.
    pub num_pollers: usize,
    /// Pollers never sleep: each occupies one core.
    pub busy_poll: bool,
    /// Processors to bind the pollers to, round-robin; each poller's memory is local to its processor.
    /// `None`: pollers are not bound.
    pub cpus: Option<Cpus>,
    /// Memory for data in transit, per poller. A connection may hold a quarter of it. A host may hold as
    /// much as remains free, so that no host can block the others.
    pub buffer_bytes: usize,
    /// Maximum data of one command (MDTS), rounded down to a power of two. The devices' limit and a quarter
    /// of `buffer_bytes` cap it.
    pub max_transfer_bytes: u32,
    /// Maximum entries of a queue.
    pub max_queue_entries: u16,
    /// Maximum I/O queues of a controller.
    pub max_io_queues: u16,
    /// Maximum controllers, without those of the discovery service. At the limit, one that has been silent for
    /// twice `max_keep_alive` is evicted, or one of the address with the most.
    pub max_controllers: u16,
    /// Maximum controllers per address: an IPv4 address, or the /64 of an IPv6 address. Hosts behind one
    /// NAT router share an address.
    pub max_controllers_per_address: u16,
    /// Maximum discovery controllers. At the limit, one that has been silent for a second is evicted, or one of
    /// the address with the most.
    pub max_discovery_controllers: u16,
    /// Maximum discovery controllers per address.
    pub max_discovery_controllers_per_address: u16,
    /// Maximum TCP connections per poller. The limit is lower if the process's file descriptor limit is
    /// low: the target uses at most three quarters of that.
    pub max_connections: usize,
    /// Maximum TCP connections per address, on one poller.
    pub max_connections_per_address: usize,
    /// The longest Keep Alive Timeout (KATO) that protects a controller from eviction. A controller with a
    /// longer KATO or none stays while there is room; at the limit of controllers, it is evicted once it
    /// has been silent for twice this time. It caps the KATO of discovery controllers.
    pub max_keep_alive: Duration,
    /// Time limit from accepting a connection to its successful Connect and, if the host must authenticate, to its
    /// authentication.
    pub connect_timeout: Duration,
    /// Time limit for a host to read 64 KiB of responses, or to send 64 KiB of a write's data or of a PDU
    /// that it has begun. While other hosts wait for memory, the limit is one second.
    pub send_timeout: Duration,
    /// Time limit for reads that wait for memory. They then fail with *Deallocated or Unwritten Logical
    /// Block*, so that hosts read from another copy. `None`: reads wait until memory is free.
    pub max_memory_wait: Option<Duration>,
    /// Holds new connections until [`Target::set_allowed_hosts`] or [`Target::set_host_keys`] names the
    /// permitted hosts. For a target that must listen before it knows its hosts.
    ///
    /// [`Target::set_allowed_hosts`]: super::Target::set_allowed_hosts
    /// [`Target::set_host_keys`]: super::Target::set_host_keys
    pub hold: bool,
    /// The highest NSID that hosts are told of (NN), for a target that adds namespaces while it serves. At
    /// least the highest NSID at the start.
    pub max_nsid: u32,
    /// Reports Asymmetric Namespace Access (ANA), with this state at first;
    /// [`Target::set_ana`](super::Target::set_ana) sets another. [`Target::drain`](super::Target::drain) tells hosts
    /// that the namespaces are inaccessible here, so that they use other paths.
    pub ana: Option<AnaState>,
    /// Limits and weights of hosts and namespaces, which may change at any time. Several targets may share it.
    pub limiter: Limiter,
    /// Receives an event for each host that connects, is refused or leaves, and others of [`super::AccessKind`].
    pub access_log: Option<Arc<dyn AccessLog>>,
}

/// The keys of a host: some prove the host's identity, and `ctrl_secret` proves the target's.
#[derive(Debug, Clone, Default)]
pub struct HostKeys {
    /// The host's secrets; any one is accepted, so that a new secret can replace an old one. Empty: the
    /// host authenticates by TLS alone.
    pub secrets: Vec<Secret>,
    /// The subsystem's secret. Without it, a host that asks the target to authenticate is refused.
    pub ctrl_secret: Option<Secret>,
    /// Requires secure channel concatenation: the host's authentication generates a TLS PSK, and the host
    /// then connects inside TLS with that PSK. If false, concatenation is optional where OpenSSL is, unless
    /// [`TargetOptions::require_tls`].
    pub must_concat: bool,
    /// The host's TLS PSKs. If there are any, the host must connect inside TLS. Any one is accepted, but a
    /// version 0 identity always means the first PSK with its hash.
    pub tls_keys: Vec<ConfiguredPsk>,
    /// The host's access once it has proved its identity.
    pub access: Access,
}

/// The access of a host: its namespaces, and whether it may write. Fixed when its controller is created.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Access {
    /// The namespaces that the host may see; `None`: all.
    pub namespaces: Option<Vec<Nsid>>,
    /// True if this host may not write, even if other hosts may.
    pub read_only: bool,
}

impl Access {
    /// Returns whether the host may see the namespace.
    pub(super) fn has(&self, nsid: Nsid) -> bool {
        self.namespaces.as_ref().is_none_or(|namespaces| namespaces.contains(&nsid))
    }
}

impl HostKeys {
    /// Generation of a TLS PSK by authentication on a plain connection: no, optional or required.
    pub(super) fn concatenation(&self, require_tls: bool) -> Concatenation {
        if self.must_concat || require_tls {
            Concatenation::Required
        } else if tls::load().is_ok() {
            Concatenation::Optional
        } else {
            Concatenation::No
        }
    }
}

impl TargetOptions {
    /// A read-only subsystem `nqn` on a free port of loopback, for any host.
    pub fn new(nqn: Nqn) -> TargetOptions {
        TargetOptions {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            nqn,
            allow_hosts: Vec::new(),
            host_keys: BTreeMap::new(),
            tls_derivation: Derivation::Specification,
            dhchap_hashes: vec![Hash::Sha256, Hash::Sha384, Hash::Sha512],
            dhchap_groups: vec![Group::Ffdhe2048, Group::Ffdhe3072, Group::Null],
            allow_any_host: false,
            require_tls: false,
            writable: false,
            num_pollers: 1,
            busy_poll: false,
            cpus: None,
            buffer_bytes: 64 << 20,
            max_transfer_bytes: 1 << 20,
            max_queue_entries: 1024,
            max_io_queues: 64,
            // 1,000 nodes of 8 ranks are 8,000 controllers, with two connections each.
            max_controllers: 16_384,
            max_controllers_per_address: 4_096,
            max_discovery_controllers: 256,
            max_discovery_controllers_per_address: 64,
            max_connections: 32_768,
            max_connections_per_address: 8_192,
            max_keep_alive: Duration::from_secs(300),
            connect_timeout: Duration::from_secs(10),
            send_timeout: Duration::from_secs(30),
            max_memory_wait: None,
            hold: false,
            max_nsid: 0,
            ana: None,
            limiter: Limiter::default(),
            access_log: None,
        }
    }
}
