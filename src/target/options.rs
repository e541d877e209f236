//! What a target offers, to whom, and within which limits.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use crate::nvme::Nqn;
use crate::qpair::Cpus;

/// What a [`super::Target`] offers, to whom, and within which limits.
#[derive(Debug, Clone)]
pub struct TargetOptions {
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Name of the subsystem.
    pub nqn: Nqn,
    /// Hosts that may connect. Empty: any host when listening on loopback, else none.
    ///
    /// A host NQN is sent in clear and proves nothing: this keeps out mistakes, not attackers.
    pub allow_hosts: Vec<Nqn>,
    /// Lets any host connect, whatever the address.
    pub allow_any_host: bool,
    /// Lets hosts write, where the device can be written.
    pub writable: bool,
    /// Threads that move data, each with queue pairs of its own. A connection stays on one: that which
    /// had the fewest queues when it came.
    pub num_pollers: usize,
    /// Whether the pollers never sleep, which costs a core each.
    pub busy_poll: bool,
    /// What the pollers are bound to, one processor each in turn; their memory lies near. `None`: they
    /// run anywhere.
    pub cpus: Option<Cpus>,
    /// Memory for data on their way, of each poller. One connection holds a quarter of it at most, and
    /// one host no more than it leaves free, so that no host can hold up the others.
    pub buffer_bytes: usize,
    /// The most of one command's data (MDTS), rounded down to a power of two that is no more than
    /// the devices allow and a quarter of the buffers.
    pub max_transfer_bytes: u32,
    /// The most entries of a queue.
    pub max_queue_entries: u16,
    /// The most I/O queues of a controller.
    pub max_io_queues: u16,
    /// The most controllers at a time, those of the discovery service not counted. When all places are
    /// taken, the address that has most gives way to one that has few.
    pub max_controllers: u16,
    /// Of those, the most that hosts at one address may have: an IPv4 address, or the /64 of an IPv6
    /// address. Hosts behind one router that translates addresses are one address.
    pub max_controllers_per_address: u16,
    /// The most controllers of the discovery service at a time. When all places are taken, the one that
    /// has been silent longest gives way.
    pub max_discovery_controllers: u16,
    /// Of those, the most of one address.
    pub max_discovery_controllers_per_address: u16,
    /// The most TCP connections at a time, of each poller; fewer where the process may not have as many
    /// file descriptors, of which the target takes three quarters at most.
    pub max_connections: usize,
    /// Of those, the most of one address.
    pub max_connections_per_address: usize,
    /// The longest keep alive time-out that is worth a place. A controller without one, or with a longer
    /// one, is left alone while there is room; silent for twice this, it gives way when there is none.
    /// Discovery controllers have none that is longer.
    pub max_keep_alive: Duration,
    /// How long a connection may take until its Connect succeeds.
    pub connect_timeout: Duration,
    /// How long a host may take to read 64 KiB of its answers, or to send 64 KiB of the data that it was
    /// asked for. While others wait for memory, it is a second.
    pub send_timeout: Duration,
}

impl TargetOptions {
    /// A read-only subsystem `nqn` on a free port of loopback, for any host.
    pub fn new(nqn: Nqn) -> TargetOptions {
        TargetOptions {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            nqn,
            allow_hosts: Vec::new(),
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
        }
    }
}
