//! A remote namespace over NVMe/TCP: sockets, time and recovery around [`crate::tcp::host`].
//!
//! [`TcpNamespace`] is one namespace, reached over one or several paths. A *session* is one association
//! with a controller: an admin queue, which the keeper thread owns, and an I/O queue for
//! each queue pair, which is polled by the thread that uses it. When any connection of a session fails,
//! the whole session is replaced, on another path first if there is one; each queue pair then joins the
//! new session and issues its reads again. All but the sockets of this is in `session`
//! and `remote`.
//!
//! It is not a place for policy about data: a read that fails its digest or comes short ends with that
//! error, and the reader decides. Nor does it know authentication or TLS.
//!
//! Invariants:
//! - A socket is closed before a buffer that was aimed at by it is given back.
//! - Those of `remote`.
//! - After a fork the child sends nothing on its parent's sockets and takes none of its locks.
//! - Nothing waits without a limit.
//!
//! Read `queue.rs` first, then `admin.rs`.

mod admin;
mod discover;
mod link;
mod queue;

pub use discover::discover;

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use self::admin::Admin;
use self::link::Receives;
use self::queue::TcpQueuePair;
use super::remote::keeper::Keepers;
use super::remote::{self, Remote, Transport};
use super::session::{Facts, Goal, Joint, Portal, Terms};
use super::{Capabilities, ConnectOptions, Device, Namespace, PairScope, QueuePair};
use crate::error::{Error, ErrorKind, Result};
use crate::nvme::{Address, TcpAddress};
use crate::tcp::Digests;
use crate::units::deadline;

/// NVMe/TCP by this library's own host.
struct Tcp;

static KEEPERS: Keepers<Tcp> = Keepers::new();

impl Transport for Tcp {
    type Portal = Portal;
    type Admin = Admin;
    type Joint = Joint;
    const SCRATCH_LEN_BYTES: usize = link::SCRATCH_LEN;

    fn keepers() -> &'static Keepers<Tcp> {
        &KEEPERS
    }

    fn engine(_: &Remote<Tcp>, facts: &Facts) -> String {
        let digests = match (facts.hdr_digest, facts.data_digest) {
            (false, false) => "tcp",
            (true, false) => "tcp (header digest)",
            (false, true) => "tcp (data digest)",
            (true, true) => "tcp (header and data digest)",
        };
        digests.to_owned()
    }
}

impl remote::Portal for Portal {
    fn address(&self) -> String {
        self.address.to_string()
    }
}

/// With what to connect to a portal.
fn terms(remote: &Remote<Tcp>, portal: &Portal) -> Terms {
    let options = &remote.options;
    Terms {
        subnqn: portal.address.subnqn.clone(),
        goal: Goal::Namespace(portal.address.nsid),
        host: remote.host.clone(),
        digests: Digests {
            header: options.hdr_digest || options.prefer_digests,
            data: options.data_digest || options.prefer_digests,
        },
        required: Digests { header: options.hdr_digest, data: options.data_digest },
        nr_io_queues: options.nr_io_queues,
        keep_alive_tmo: options.keep_alive_tmo,
        tcp_timeout: options.tcp_connect_timeout,
        io_timeout: options.io_timeout,
    }
}

/// A namespace of an NVMe/TCP target.
///
/// Handle and queue pairs stay usable over reconnects, and in a child process after a fork: there
/// they make connections of their own at first use.
pub struct TcpNamespace {
    remote: Arc<Remote<Tcp>>,
    counters: Arc<Counters>,
}

/// What was asked of the sockets of I/O queues so far, by all queue pairs of a namespace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TcpStats {
    /// Calls of `readv`.
    pub receives: u64,
    /// Of those, the ones that brought nothing.
    pub empty_receives: u64,
}

#[derive(Default)]
struct Counters {
    receives: AtomicU64,
    empty_receives: AtomicU64,
}

impl Counters {
    fn add(&self, Receives { calls, empty }: Receives) {
        if calls > 0 {
            self.receives.fetch_add(calls, Ordering::Relaxed);
            self.empty_receives.fetch_add(empty, Ordering::Relaxed);
        }
    }
}

impl TcpNamespace {
    /// Connects to the namespace at `address`, or over one of `options.paths` when that is down.
    ///
    /// Takes at most `options.connect_timeout`.
    ///
    /// # Errors
    /// `Refused`: nothing listens there, or the target does not allow this host. `NotFound`: the host
    /// name, the subsystem or the namespace does not exist. `TimedOut`: the error names the step that
    /// was not answered. `Unsupported`: the namespace or the controller has what this host has not.
    /// `InvalidArgument`: a path that is not NVMe/TCP.
    pub fn connect(address: &TcpAddress, options: &ConnectOptions) -> Result<TcpNamespace> {
        let started = Instant::now();
        let portals = resolve_all(address, options)?;
        let remote = Remote::new(options.clone(), portals, None);
        Tcp::keepers().of_this_process()?.keep(&remote);
        // The keeper ends it in time and knows why; this is for a keeper that does not get to run.
        remote.wait_open(deadline(started, options.connect_timeout) + Duration::from_secs(1))?;
        Ok(TcpNamespace { remote, counters: Arc::default() })
    }

    /// What was asked of the sockets of I/O queues so far.
    pub fn stats(&self) -> TcpStats {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counters { receives, empty_receives } = &*self.counters;
        TcpStats { receives: load(receives), empty_receives: load(empty_receives) }
    }
}

impl Device for TcpNamespace {
    fn namespace(&self) -> Namespace {
        // A child process inherits what was seen, but must not take the parent's lock.
        let seen = || self.remote.identity().cloned();
        let now = self.remote.is_ours().then(|| self.remote.namespace()).flatten();
        now.or_else(seen).expect("connected, so it was seen")
    }

    /// Waits until the queue is connected, at most the whole connect time.
    fn queue_pair_in(&self, _: &PairScope) -> Result<Box<dyn QueuePair>> {
        let remote = self.remote.for_this_process()?;
        let counters = Arc::clone(&self.counters);
        Ok(Box::new(TcpQueuePair::connect(remote, self.namespace(), counters)?))
    }

    fn capabilities(&self) -> Capabilities {
        let options = &self.remote.options;
        let max_queue_pairs = match self.remote.is_ours() {
            true => self.remote.num_io_queues(),
            false => options.nr_io_queues.into(), // the lock is the parent's
        };
        Capabilities {
            max_queue_pairs,
            can_grow: false,
            is_exclusive: false,
            late_writes: options.late_writes(),
            checks_writes: self.remote.was_always_digested(),
            is_page_cached: false,
            local_path: None,
        }
    }

    fn grow(&self, len_bytes: u64) -> Result<()> {
        self.namespace().must_hold(len_bytes)
    }
}

/// Every socket address of every path, in the user's order.
fn resolve_all(address: &TcpAddress, options: &ConnectOptions) -> Result<Vec<Portal>> {
    let mut addresses = vec![address];
    for path in &options.paths {
        match path {
            Address::Tcp(path) => addresses.push(path),
            Address::Path(_) | Address::Spdk(_) => {
                let message =
                    "a further path must be an NVMe/TCP address, without spdk:, as the first is";
                return Err(
                    Error::new(ErrorKind::InvalidArgument, message).target(path.to_string())
                );
            }
        }
    }
    let mut portals = Vec::new();
    let mut first_error = None;
    for address in addresses {
        match resolve(&address.traddr, address.trsvcid, options.connect_timeout) {
            Ok(sockets) => portals.extend(
                sockets.into_iter().map(|socket| Portal { address: address.clone(), socket }),
            ),
            Err(error) => {
                first_error.get_or_insert(error.target(address.to_string()));
            }
        }
    }
    match first_error {
        Some(error) if portals.is_empty() => Err(error),
        _ => Ok(portals),
    }
}

/// The socket addresses that a transport address stands for: one, unless it is a name.
pub(super) fn resolve(traddr: &str, trsvcid: u16, limit: Duration) -> Result<Vec<SocketAddr>> {
    if let Ok(ip) = traddr.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, trsvcid)]);
    }
    // The system's resolver has no limit of its own, so it may stay behind in a thread.
    let (sender, receiver) = mpsc::channel();
    let name = traddr.to_owned();
    std::thread::Builder::new()
        .name("dlfs-resolve".into())
        .spawn(move || {
            // Nobody listens any more once the limit has passed.
            let _ = sender.send((name.as_str(), trsvcid).to_socket_addrs().map(Vec::from_iter));
        })
        .map_err(|error| Error::new(ErrorKind::Io, "cannot start a thread").source(error))?;
    let failed = |kind| Error::new(kind, format!("cannot resolve the host name '{traddr}'"));
    match receiver.recv_timeout(limit) {
        Ok(Ok(mut sockets)) if !sockets.is_empty() => {
            sockets.dedup();
            sockets.truncate(MAX_SOCKETS_PER_NAME);
            Ok(sockets)
        }
        Ok(Ok(_)) => Err(failed(ErrorKind::NotFound)),
        Ok(Err(error)) => Err(failed(ErrorKind::NotFound).source(error)),
        Err(mpsc::RecvTimeoutError::Timeout) => Err(failed(ErrorKind::TimedOut)),
        Err(mpsc::RecvTimeoutError::Disconnected) => Err(failed(ErrorKind::Internal)),
    }
}

/// Addresses of one name that are tried, so that each has its share of the time.
const MAX_SOCKETS_PER_NAME: usize = 4;
