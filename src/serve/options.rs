//! Options of a target: what it serves, to whom, and its limits.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use super::access_log::AccessLog;
use dlfs_base::units::Nsid;
use dlfs_io::qpair::Cpus;
use dlfs_io::tls;
use dlfs_nvme::auth::{Concatenation, ConfiguredPsk, Derivation, Group, Hash, Secret};
use dlfs_nvme::nvme::Nqn;

/// Options of a [`super::Target`]: what it serves, to whom, and its limits.
#[derive(Debug, Clone)]
pub struct TargetOptions {
    /// Address to listen on; port 0 takes a free port.
    pub listen: SocketAddr,
    /// NQN of the subsystem.
    pub nqn: Nqn,
    /// Hosts that may connect, beside those of `host_keys`. Empty: without `host_keys` any host on a
    /// loopback address, else none.
    ///
    /// A host NQN is sent in clear and proves nothing: it protects against mistakes, not against
    /// attackers.
    pub allow_hosts: Vec<Nqn>,
    /// Hosts that may connect if they prove who they are: by DH-HMAC-CHAP on each queue, by TLS, or both.
    pub host_keys: BTreeMap<Nqn, HostKeys>,
    /// How keys of TLS with an identity of version 0 are derived. An identity of version 1 says it itself.
    pub tls_derivation: Derivation,
    /// Hashes of DH-HMAC-CHAP that may be used, most wanted first.
    pub dhchap_hashes: Vec<Hash>,
    /// Diffie-Hellman groups of DH-HMAC-CHAP that may be used, most wanted first.
    pub dhchap_groups: Vec<Group>,
    /// Lets any host connect, whatever the address.
    pub allow_any_host: bool,
    /// Lets hosts write, if the device is writable.
    pub writable: bool,
    /// Number of poller threads, each with queue pairs of its own. A new connection goes to the
    /// poller with the fewest queues and stays there.
    pub num_pollers: usize,
    /// Pollers never sleep; each occupies a core.
    pub busy_poll: bool,
    /// Processors to bind the pollers to, one each in turn; their memory is allocated near them.
    /// `None`: not bound.
    pub cpus: Option<Cpus>,
    /// Memory for data in transit, per poller. One connection holds at most a quarter of it, and
    /// one host no more than is left free, so that no host can block the others.
    pub buffer_bytes: usize,
    /// The most data of one command (MDTS), rounded down to a power of two within the devices'
    /// limit and a quarter of `buffer_bytes`.
    pub max_transfer_bytes: u32,
    /// The most entries of a queue.
    pub max_queue_entries: u16,
    /// The most I/O queues of a controller.
    pub max_io_queues: u16,
    /// The most controllers at a time, without those of the discovery service. At the limit, the
    /// address that has most loses one to an address that has few.
    pub max_controllers: u16,
    /// The most of those per address: an IPv4 address, or the /64 of an IPv6 address. Hosts behind
    /// one NAT router share an address.
    pub max_controllers_per_address: u16,
    /// The most controllers of the discovery service at a time. At the limit, the one that has been
    /// silent longest is evicted.
    pub max_discovery_controllers: u16,
    /// The most of those per address.
    pub max_discovery_controllers_per_address: u16,
    /// The most TCP connections at a time, per poller; fewer if the process's file descriptor limit
    /// is low, of which the target uses at most three quarters.
    pub max_connections: usize,
    /// The most of those per address.
    pub max_connections_per_address: usize,
    /// The longest keep alive time-out that protects from eviction. A controller with a longer one
    /// or with none stays while there is room; at the limit, it is evicted once it has been silent
    /// for twice this time. It caps the keep alive time-out of discovery controllers.
    pub max_keep_alive: Duration,
    /// How long a connection may take until its Connect succeeds.
    pub connect_timeout: Duration,
    /// How long a host may take to read 64 KiB of responses, or to send 64 KiB of requested data or of a PDU that
    /// it has begun. While others wait for memory, the limit is one second.
    pub send_timeout: Duration,
    /// How long reads may wait for memory before they end with *Deallocated or Unwritten Logical Block*, for
    /// hosts that can read elsewhere; `None`: until there is memory.
    pub max_memory_wait: Option<Duration>,
    /// Holds connections until [`Target::set_allowed_hosts`] or [`Target::set_host_keys`] has said which hosts may
    /// connect: for a target that must listen before it knows its hosts, some of which may connect sooner.
    ///
    /// [`Target::set_allowed_hosts`]: super::Target::set_allowed_hosts
    /// [`Target::set_host_keys`]: super::Target::set_host_keys
    pub hold: bool,
    /// The highest NSID that hosts are told of (NN), if namespaces may be added while the target serves; else
    /// that of the namespaces it starts with.
    pub max_nsid: u32,
    /// Reports Asymmetric Namespace Access: [`Target::drain`](super::Target::drain) then tells hosts that the
    /// namespaces are inaccessible here, so that they go on by other paths.
    pub ana: bool,
    /// Receives an event for each host that connects, is refused or leaves.
    pub access_log: Option<Arc<dyn AccessLog>>,
}

/// The keys of a host: those that prove its identity, and the secret that proves the target's identity to it.
#[derive(Debug, Clone, Default)]
pub struct HostKeys {
    /// The host's secrets. Any of them will do: two are valid while one replaces the other. None: it proves
    /// itself by TLS alone.
    pub secrets: Vec<Secret>,
    /// The subsystem's secret. Without one, a host that asks the target to prove itself is refused.
    pub ctrl_secret: Option<Secret>,
    /// Requires that the host's authentication generates a key of TLS, and that the host connects inside TLS with it
    /// (secure channel concatenation). Otherwise the host may do so, in a build with TLS.
    pub must_concat: bool,
    /// The host's keys of TLS. With any, the host must connect inside TLS. Any of them will do, but an identity
    /// of version 0 always means the first with its hash.
    pub tls_keys: Vec<ConfiguredPsk>,
    /// The host's access once it has proved its identity.
    pub access: Access,
}

/// The access of a host: its namespaces, and whether it may write. Decided when its controller connects.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Access {
    /// The namespaces that exist for the host; `None`: all.
    pub namespaces: Option<Vec<Nsid>>,
    /// True if the host may not write, although others may.
    pub read_only: bool,
}

impl Access {
    /// Returns whether the namespace exists for the host.
    pub(super) fn has(&self, nsid: Nsid) -> bool {
        self.namespaces.as_ref().is_none_or(|namespaces| namespaces.contains(&nsid))
    }
}

impl HostKeys {
    /// The rule for authentications on plain connections to generate a key of TLS: no, optional or required.
    pub(super) fn concatenation(&self) -> Concatenation {
        if self.must_concat {
            Concatenation::Required
        } else if tls::IS_SUPPORTED {
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
            writable: false,
            num_pollers: 1,
            busy_poll: false,
            cpus: None,
            buffer_bytes: 64 << 20,
            max_transfer_bytes: 1 << 20,
            max_queue_entries: 1024,
            max_io_queues: 64,
            // A thousand nodes of 8 ranks are 8,000 controllers, with two connections each.
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
            ana: false,
            access_log: None,
        }
    }
}
