//! Remote namespaces over NVMe/TCP: sockets, time and recovery around [`dlfs_nvme::tcp::host`].
//!
//! [`TcpNamespace`] is one namespace, reached over one or several paths. Namespaces of one subsystem that were
//! opened together share a controller. A *session* is one association with the controller: an admin queue,
//! which the keeper thread owns, and an I/O queue for each [`PairScope`], which the thread that uses the scope
//! polls. When a connection of a session fails, the whole session is replaced, on another path first if there
//! is one. Each queue pair then joins the new session and issues its reads again. If the user names several paths, a
//! session on a second path is usually live already. This module has the sockets; `session` and `remote` have the rest.
//!
//! This module has no policy about data: a read with a wrong digest or too few bytes ends with that error, and
//! the reader decides.
//!
//! Invariants:
//! - A socket is closed before the buffer of an I/O without an answer is returned.
//! - The invariants of `remote`.
//! - After a fork, the child sends nothing on its parent's sockets and takes none of its locks.
//! - Every wait has a limit.
//!
//! Read `queue.rs` first, then this file.

mod link;
mod queries;
mod queue;
mod terms;

pub use queries::{ana_state, discover, identify};

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use rustix::event::PollFd;

use super::remote::{self, Keepers, Remote, Selection, Transport};
use super::session::{
    AdminEvent, Controller, Failure, HostIdentity, Identified, JoinInfo, PathStats, Portal,
    SessionStats, Terms,
};
use super::{Capabilities, ConnectOptions, Device, Namespace, PairScope, QueuePair};
use crate::address::{Address, TcpAddress};
use dlfs_base::error::{Error, ErrorKind, Result, invalid};
use dlfs_base::metrics::{self, Measured, Snapshot};
use dlfs_base::registry::Registration;
use dlfs_base::units::{Nsid, deadline};
use dlfs_nvme::auth::TlsPsk;
use dlfs_nvme::nvme::Nqn;
use link::Link;
use queue::TcpQueuePair;
use terms::{check_tls, keyring_psk, portal_terms};

/// The transport NVMe/TCP, by this library's own host.
struct Tcp;

static KEEPERS: Keepers<Tcp> = Keepers::new();

impl Transport for Tcp {
    type Portal = Portal;
    type Admin = Admin;
    type JoinInfo = JoinInfo;
    type Counters = Counters;
    const KEEPS_TWO: bool = true;
    const SCRATCH_LEN_BYTES: usize = link::SCRATCH_LEN;

    fn keepers() -> &'static Keepers<Tcp> {
        &KEEPERS
    }

    fn engine(_: &Remote<Tcp>, identified: &Identified) -> String {
        let tls = identified.is_secured.then_some("TLS");
        let more: Vec<&str> = tls.into_iter().chain(identified.digests.as_text()).collect();
        if more.is_empty() { "tcp".to_owned() } else { format!("tcp ({})", more.join(", ")) }
    }
}

impl remote::Portal for Portal {
    fn address(&self, nsid: Option<Nsid>) -> String {
        match nsid {
            None => self.address.to_string(),
            nsid => TcpAddress { nsid, ..self.address.clone() }.to_string(),
        }
    }
}

/// A namespace of an NVMe/TCP target.
///
/// The namespace and its queue pairs stay usable when the engine reconnects, and in a child process after a
/// fork, where they connect again at first use.
pub struct TcpNamespace {
    remote: Arc<Remote<Tcp>>,
    /// The index among the namespaces of the controller.
    ns_index: usize,
    _metered: Arc<Registration>,
}

/// Reports the counters of a controller's namespaces as metrics.
struct Meter {
    remote: Arc<Remote<Tcp>>,
    /// The label of the metrics.
    subsystem: Nqn,
}

impl Measured for Meter {
    fn measure(&self, snapshot: &mut Snapshot) {
        let SessionStats { is_live, reconnects, failovers, paths, failed_paths, damaged, retried } =
            self.remote.stats();
        let TcpStats { receives, empty_receives } = self.remote.counters.read();
        for (metric, value) in [
            (&metrics::HOST_CONTROLLERS, u64::from(is_live)),
            (&metrics::HOST_PATHS, paths),
            (&metrics::HOST_FAILED_PATHS, failed_paths),
            (&metrics::HOST_RECONNECTS, reconnects),
            (&metrics::HOST_FAILOVERS, failovers),
            (&metrics::HOST_RETRIES, retried),
            (&metrics::HOST_DIGEST_ERRORS, damaged),
            (&metrics::HOST_RECEIVES, receives),
            (&metrics::HOST_EMPTY_RECEIVES, empty_receives),
        ] {
            snapshot.count(metric, &[self.subsystem.as_str()], value);
        }
        for (portal, path) in self.remote.path_stats() {
            let labels = [self.subsystem.as_str(), &portal.socket.to_string()];
            let PathStats { is_optimized, commands, latency_ns, losses } = path;
            for (metric, value) in [
                (&metrics::HOST_PATH_SESSIONS, u64::from(is_optimized.is_some())),
                (&metrics::HOST_PATH_OPTIMIZED, u64::from(is_optimized == Some(true))),
                (&metrics::HOST_PATH_COMMANDS, commands),
                (&metrics::HOST_PATH_LOSSES, losses),
            ] {
                snapshot.count(metric, &labels, value);
            }
            let seconds = Duration::from_nanos(latency_ns).as_secs_f64();
            snapshot.seconds(&metrics::HOST_PATH_SECONDS, &labels, seconds);
        }
    }
}

/// Counts of the system calls on the sockets of I/O queues, by all queue pairs of a controller's namespaces.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TcpStats<N = u64> {
    /// Calls of `readv`, or of `read` with TLS.
    pub receives: N,
    /// Calls that returned no bytes.
    pub empty_receives: N,
}

type Counters = TcpStats<AtomicU64>;

impl Counters {
    fn add(&self, TcpStats { receives, empty_receives }: TcpStats) {
        if receives > 0 {
            self.receives.fetch_add(receives, Ordering::Relaxed);
            self.empty_receives.fetch_add(empty_receives, Ordering::Relaxed);
        }
    }

    fn read(&self) -> TcpStats {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counters { receives, empty_receives } = self;
        TcpStats { receives: load(receives), empty_receives: load(empty_receives) }
    }
}

impl TcpNamespace {
    /// Connects to the namespace at `address`, or over one of `options.paths` when that address is down.
    ///
    /// Takes at most `options.connect_timeout` and a second.
    ///
    /// # Errors
    /// `Refused`: nothing listens there, or the target does not allow this host, or requires a key that it was not
    /// given. `NotFound`: the host name, the subsystem or the namespace does not exist. `TimedOut`: the error names
    /// the step that was not answered. `Unsupported`: the namespace or the controller requires something that this
    /// host does not support, or OpenSSL cannot be loaded for TLS. `InvalidArgument`: a path that is not NVMe/TCP, an
    /// address without `?ns=` of a subsystem with several namespaces, or contradictory options of authentication and
    /// TLS.
    pub fn connect(address: &TcpAddress, options: &ConnectOptions) -> Result<TcpNamespace> {
        let selection = match address.nsid {
            Some(_) => Selection::OfPath,
            None => Selection::All,
        };
        match <[_; 1]>::try_from(TcpNamespace::attach(address, selection, options)?) {
            Ok([only]) => Ok(only),
            Err(namespaces) => {
                let names = namespaces.iter().map(|namespace| namespace.namespace().address);
                Err(super::ambiguous(&Address::Tcp(address.clone()), names))
            }
        }
    }

    /// Connects once to all active namespaces of the subsystem at `address`, whose NSID is ignored, or to the
    /// namespace that a path in `options.paths` names. The namespaces share the controller.
    ///
    /// # Errors
    /// As [`TcpNamespace::connect`].
    pub fn connect_all(
        address: &TcpAddress,
        options: &ConnectOptions,
    ) -> Result<Vec<TcpNamespace>> {
        let address = TcpAddress { nsid: None, ..address.clone() };
        TcpNamespace::attach(&address, Selection::All, options)
    }

    /// As [`TcpNamespace::connect_all`], but to the namespaces `nsids`, in their order.
    ///
    /// # Errors
    /// As [`TcpNamespace::connect`]; the error names the first namespace that failed.
    pub fn connect_to(
        address: &TcpAddress,
        nsids: &[Nsid],
        options: &ConnectOptions,
    ) -> Result<Vec<TcpNamespace>> {
        let address = TcpAddress { nsid: None, ..address.clone() };
        TcpNamespace::attach(&address, Selection::These(nsids.into()), options)
    }

    /// Connects to the namespaces of `selection`, in its order.
    fn attach(
        address: &TcpAddress,
        selection: Selection,
        options: &ConnectOptions,
    ) -> Result<Vec<TcpNamespace>> {
        let started = Instant::now();
        let portals = resolve_all(address, options)?;
        let remote = Remote::new(options.clone(), portals, selection, None);
        Tcp::keepers().of_this_process()?.keep(&remote);
        // The keeper gives up in time with a reason; this limit is for a keeper that does not run.
        let limit = deadline(started, options.connect_timeout) + Duration::from_secs(1);
        let count = remote.wait_open(limit)?.len();
        let metered = Arc::new(Registration::new(&Arc::new(Meter {
            remote: Arc::clone(&remote),
            subsystem: address.subnqn.clone(),
        })));
        let namespace_at = |ns_index| TcpNamespace {
            remote: Arc::clone(&remote),
            ns_index,
            _metered: Arc::clone(&metered),
        };
        Ok((0..count).map(namespace_at).collect())
    }

    /// Counts of the system calls on the sockets of I/O queues so far.
    pub fn stats(&self) -> TcpStats {
        self.remote.counters.read()
    }
}

impl Device for TcpNamespace {
    fn namespace(&self) -> Namespace {
        self.remote.namespace(self.ns_index).expect("connected, so it was seen")
    }

    /// Waits until the queue is connected, for at most the connect timeout.
    fn queue_pair_in(&self, scope: &PairScope) -> Result<Box<dyn QueuePair>> {
        let pair = TcpQueuePair::connect(&self.remote, self.ns_index, self.namespace(), scope)?;
        Ok(Box::new(pair))
    }

    fn capabilities(&self) -> Capabilities {
        self.remote.capabilities(self.remote.was_always_digested())
    }

    fn last_failure(&self) -> Option<Failure> {
        self.remote.last_failure()
    }
}

/// The socket addresses of all paths, in the user's order: at most `MAX_SOCKETS_PER_NAME` of each.
fn resolve_all(address: &TcpAddress, options: &ConnectOptions) -> Result<Vec<Portal>> {
    if options.dhchap_ctrl_secret.is_some() && options.dhchap_secret.is_none() {
        // The controller authenticates only in answer to the host's own authentication.
        let error = invalid("the controller can prove itself only to a host that does so too")
            .target(address.to_string());
        return Err(error.hint("give dhchap_secret beside dhchap_ctrl_secret"));
    }
    check_tls(options).map_err(|error| error.target(address.to_string()))?;
    let mut addresses = vec![address];
    for path in &options.paths {
        let Address::Tcp(path) = path else {
            return Err(invalid(
                "a further path must be an NVMe/TCP address, without spdk:, as the first is",
            )
            .target(path.to_string()));
        };
        addresses.push(path);
    }
    let host = HostIdentity::new(options);
    let with_psk = addresses.into_iter().map(|address| {
        let psk = keyring_psk(options, &host.nqn, &address.subnqn);
        Ok((address, psk.map_err(|error| error.target(address.to_string()))?))
    });
    remote::portals_of(&with_psk.collect::<Result<Vec<_>>>()?, |(address, psk)| {
        let sockets = resolve(&address.traddr, address.trsvcid, options.connect_timeout)
            .map_err(|error| error.target(address.to_string()))?;
        let portal =
            |socket| Portal { address: TcpAddress::clone(address), socket, psk: psk.clone() };
        Ok(sockets.into_iter().map(portal).collect())
    })
}

/// The admin queue of a controller, with its socket.
struct Admin {
    /// Dropped, and so closed, before the controller's buffers are freed.
    link: Link,
    controller: Controller,
    address: SocketAddr,
}

impl remote::Admin<Tcp> for Admin {
    fn start(now: Instant, remote: &Remote<Tcp>, portal: &Portal) -> Result<Admin, Failure> {
        Admin::connect(now, portal.socket, portal_terms(remote, portal))
    }

    fn poll(&mut self, now: Instant, scratch: &mut [u8]) -> Result<AdminEvent, Failure> {
        let Admin { link, controller, .. } = self;
        let transferred = link.poll(now, &mut controller.channel, scratch, false);
        if link.refuses_identity
            && let Some(psk) = controller.terms.psk_v0.take()
        {
            return self.connect_again(now, psk);
        }
        let turn = controller.advance(now, transferred)?;
        if let Some(psk) = controller.generated.take() {
            return self.connect_again(now, psk);
        }
        let sent = link.send(now, &mut controller.channel);
        sent.map_err(|failure| failure.at(controller.stage()))?;
        Ok(turn)
    }

    fn identified(&self) -> &Identified {
        &self.controller.identified
    }

    fn join_info(&self) -> JoinInfo {
        self.controller.join_info.clone()
    }

    fn stage(&self) -> &'static str {
        self.controller.stage()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.controller.poll_timeout()
    }

    fn wait(&self) -> Option<PollFd<'_>> {
        Some(self.link.wait(self.controller.channel.wants_writable()))
    }
}

impl Admin {
    /// Starts to connect.
    fn connect(now: Instant, address: SocketAddr, terms: Terms) -> Result<Admin, Failure> {
        let link = Link::start(address)?;
        Ok(Admin { link, controller: Controller::new(now, terms), address })
    }

    /// Replaces the connection by one with this TLS PSK.
    fn connect_again(&mut self, now: Instant, psk: TlsPsk) -> Result<AdminEvent, Failure> {
        let terms = Terms { psk: Some(psk), psk_v0: None, ..self.controller.terms.clone() };
        *self = Admin::connect(now, self.address, terms)?;
        Ok(AdminEvent::Nothing)
    }
}

/// The socket addresses of a transport address: one, unless it is a host name.
pub(super) fn resolve(traddr: &str, trsvcid: u16, limit: Duration) -> Result<Vec<SocketAddr>> {
    if let Ok(ip) = traddr.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, trsvcid)]);
    }
    // The system's resolver has no time limit, so a thread runs it and may outlive this call.
    let (sender, receiver) = mpsc::channel();
    let name = traddr.to_owned();
    std::thread::Builder::new()
        .name("dlfs-resolve".into())
        .spawn(move || {
            // The receiver is gone once the limit has passed.
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

/// The most addresses of a name that are tried, so that each gets a share of the time.
const MAX_SOCKETS_PER_NAME: usize = 4;
