//! Namespaces through SPDK: over TCP, RDMA, vfio-user, or on a local PCIe drive.
//!
//! Sessions, paths, deadlines and retries work as in this library's NVMe/TCP host: see [`super::remote`].
//! This module has the differences. All namespaces of one subsystem that are opened with the same options share a
//! controller (`admin.rs`). Queues are polled without a file descriptor to sleep on (`queue.rs`). Except over TCP, a
//! device transfers data by DMA, so buffers must be in the driver's memory: pools allocate their pages there once such
//! a namespace was opened, and data in other buffers are copied.
//!
//! These namespaces cannot be used in a child process after a fork: SPDK does not support this, and its memory
//! belongs to the parent.
//!
//! Read `queue.rs` first.

mod admin;
mod queue;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::remote::{self, Failure, Identified, Keepers, Remote, Selection, Transport};
use super::{Capabilities, ConnectOptions, Device, Namespace, PairScope, QueuePair};
use crate::address::{Address, SpdkAddress};
use crate::spdk::{self, Controller, TransportId};
use dlfs_base::buf;
use dlfs_base::error::{Error, Result, invalid};
use dlfs_base::units::{Nsid, deadline};
use dlfs_nvme::nvme::Nqn;
use dlfs_nvme::tcp::Digests;

use admin::Admin;
use queue::SpdkQueuePair;

/// A namespace through SPDK.
///
/// The namespace and its queue pairs stay usable when the engine reconnects. In a child process they return
/// an error.
pub struct SpdkNamespace {
    remote: Arc<Remote<Spdk>>,
}

impl SpdkNamespace {
    /// Connects to the namespace at `address`, or over one of `options.paths` when that address is down.
    ///
    /// Starts SPDK's environment, once per process, which takes about 0.15 s.
    ///
    /// # Errors
    /// `OutOfMemory`, `Io`: the environment does not start. `InvalidArgument`: a drive without huge pages, or
    /// a path that SPDK does not support. `Refused`: nothing answers there, or the target does not allow this
    /// host. `NotFound`: the host name or the namespace does not exist. `TimedOut`: the target does not
    /// answer.
    pub fn connect(address: &SpdkAddress, options: &ConnectOptions) -> Result<SpdkNamespace> {
        let started = Instant::now();
        let addresses = all_addresses(address, options)?;
        let portals = resolve_all(&addresses, options)?;
        let environment = spdk::start(options.spdk.memory_bytes, options.spdk.huge_pages)
            .map_err(|error| error.target(address.to_string()))?;
        let needs_pci = addresses.iter().any(|a| matches!(a, SpdkAddress::Pcie(_)));
        if needs_pci && !environment.huge_pages {
            return Err(invalid(
                "a drive needs memory in huge pages, and SPDK was started without",
            )
            .target(address.to_string())
            .hint("sysctl vm.nr_hugepages=512 (as root), then start again; see dlfs doctor"));
        }
        if addresses.iter().any(|address| address.needs_dma_memory()) {
            buf::use_pages_of(spdk::driver_memory());
        }
        let remote = Remote::new(options.clone(), portals, Selection::OfPath, None);
        Spdk::keepers().of_this_process()?.keep(&remote);
        // The keeper gives up in time with a reason; this limit is for a keeper that does not run.
        remote.wait_open(deadline(started, options.connect_timeout) + Duration::from_secs(1))?;
        Ok(SpdkNamespace { remote })
    }
}

impl Device for SpdkNamespace {
    fn namespace(&self) -> Namespace {
        self.remote.namespace(NS_INDEX).expect("connected, so it was seen")
    }

    /// Waits until the queue is connected, for at most the connect timeout.
    fn queue_pair_in(&self, _: &PairScope) -> Result<Box<dyn QueuePair>> {
        if !self.remote.is_ours() {
            let options = &self.remote.options.spdk;
            // Returns the error in a child process.
            spdk::start(options.memory_bytes, options.huge_pages)?;
        }
        let pair = SpdkQueuePair::connect(Arc::clone(&self.remote), self.namespace())?;
        Ok(Box::new(pair))
    }

    fn capabilities(&self) -> Capabilities {
        // Over TCP SPDK does not report which digests the target has accepted, and RDMA has none.
        let is_here = |portal: &Portal| {
            matches!(portal.address, SpdkAddress::Pcie(_) | SpdkAddress::VfioUser(_))
        };
        self.remote.capabilities(self.remote.portals.iter().all(is_here))
    }

    fn last_failure(&self) -> Option<Failure> {
        self.remote.last_failure()
    }
}

/// The transport SPDK.
struct Spdk;

/// One route to the namespace.
#[derive(Debug, Clone)]
struct Portal {
    address: SpdkAddress,
    target: TransportId,
}

static KEEPERS: Keepers<Spdk> = Keepers::new();

impl Transport for Spdk {
    type Portal = Portal;
    type Admin = Admin;
    type JoinInfo = Arc<Controller>;
    type Counters = ();
    const SCRATCH_LEN_BYTES: usize = 0;

    fn keepers() -> &'static Keepers<Spdk> {
        &KEEPERS
    }

    fn engine(remote: &Remote<Spdk>, _: &Identified) -> String {
        let trtype = remote.portals[0].address.trtype().to_lowercase();
        let ConnectOptions { hdr_digest: header, data_digest: data, .. } = remote.options;
        let digests = Digests { header, data };
        match digests.as_text() {
            Some(digests) => format!("spdk ({trtype}, {digests})"),
            None => format!("spdk ({trtype})"),
        }
    }
}

impl remote::Portal for Portal {
    fn address(&self, _nsid: Option<Nsid>) -> String {
        self.address.to_string() // a remote has only the namespace that its address names
    }
}

impl fmt::Display for Portal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TransportId { trtype, traddr, trsvcid, subnqn, .. } = &self.target;
        write!(f, "{trtype} {traddr}")?;
        if !trsvcid.is_empty() {
            write!(f, " port {trsvcid}")?;
        }
        if subnqn.is_empty() { Ok(()) } else { write!(f, " ({subnqn})") }
    }
}

/// The address and the further paths of the options.
fn all_addresses(address: &SpdkAddress, options: &ConnectOptions) -> Result<Vec<SpdkAddress>> {
    let mut addresses = vec![address.clone()];
    for path in &options.paths {
        let Address::Spdk(path) = path else {
            return Err(invalid("a further path must be one that SPDK reaches, as the first is")
                .target(path.to_string()));
        };
        addresses.push(path.clone());
    }
    Ok(addresses)
}

/// All paths, with numeric addresses, because SPDK does not resolve host names.
fn resolve_all(addresses: &[SpdkAddress], options: &ConnectOptions) -> Result<Vec<Portal>> {
    remote::portals_of(addresses, |address| {
        let portal = |traddr, trsvcid, is_ipv6, subnqn: Option<&Nqn>| Portal {
            address: address.clone(),
            target: TransportId {
                trtype: address.trtype(),
                is_ipv6,
                traddr,
                trsvcid,
                subnqn: subnqn.map_or_else(String::new, Nqn::to_string),
            },
        };
        let local =
            |traddr: &String, subnqn| vec![portal(traddr.clone(), String::new(), false, subnqn)];
        Ok(match address {
            SpdkAddress::Pcie(drive) => local(&drive.traddr, None),
            SpdkAddress::VfioUser(device) => local(&device.traddr, device.subnqn.as_ref()),
            SpdkAddress::Tcp(tcp) | SpdkAddress::Rdma(tcp) => {
                let sockets =
                    super::tcp::resolve(&tcp.traddr, tcp.trsvcid, options.connect_timeout)
                        .map_err(|error| error.target(address.to_string()))?;
                let numeric = |socket: SocketAddr| {
                    let trsvcid = socket.port().to_string();
                    portal(socket.ip().to_string(), trsvcid, socket.is_ipv6(), Some(&tcp.subnqn))
                };
                sockets.into_iter().map(numeric).collect()
            }
        })
    })
}

/// The index of the namespace in its session, which has only this one.
const NS_INDEX: usize = 0;

/// Converts an error of SPDK to a failure of the session.
fn failure(error: &Error) -> Failure {
    Failure::new(error.kind(), error.to_string())
}
