//! Connections to peers: opened at first use, each on its own thread. A connection that fails makes no read fail.
//!
//! A poller requests a queue pair and continues. Later it gets the queue pair, or an error if the peer cannot
//! be reached. In that case nobody asks the peer until a thread has connected to it again ([`Presence`]),
//! and the next node in the order of each of its chunks serves that chunk.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::job_key::{RoundKeys, without_keys};
use dlfs_base::error::{Error, ErrorKind, Result};
use dlfs_base::process::Forked;
use dlfs_base::threads::{self, Fate};
use dlfs_io::address::{Address, TcpAddress};
use dlfs_io::qpair::readiness::Registry;
use dlfs_io::qpair::{self, ConnectOptions, Device, PairScope, QueuePair, hostnqn};
use dlfs_nvme::nvme::Nqn;

/// The peers of this process.
pub(super) struct Links {
    peers: Vec<Peer>,
    /// NGUID and size in bytes of each namespace that a peer serves, in the order of the image.
    expected: Vec<([u8; 16], u64)>,
    connect: ConnectOptions,
    /// The keys by which this process authenticates, if the job has a key.
    keys: Option<RoundKeys>,
}

/// The link from this process to one node.
struct Peer {
    host: String,
    /// The address at which the node serves, and the rank that serves there.
    address: Option<(Address, u32)>,
    /// The node's namespaces, once connected. A forked child connects again.
    devices: Forked<Mutex<Option<Namespaces>>>,
    /// A forked child starts afresh: the parent's threads do not connect for it.
    presence: Forked<Presence>,
    /// Times at which the node delivered wrong bytes, the oldest first.
    mismatches: Mutex<VecDeque<Instant>>,
}

/// The namespaces that a peer serves, in the order of the image.
pub(super) type Namespaces = Vec<Arc<dyn Device>>;

/// A node's name, for messages; and its address with the rank that listens there: `None` for this node, and for
/// a node that serves nothing.
pub(super) type Reached = (String, Option<(SocketAddr, u32)>);

/// Slot for a requested queue pair, filled when the connection is made or has failed.
#[derive(Default)]
pub(super) struct Slot(Mutex<SlotState>);

#[derive(Default)]
struct SlotState {
    /// The queue pair or the error of connecting, from its arrival until it is taken.
    pair: Option<Result<Box<dyn QueuePair>>>,
    /// The poller to wake at the arrival.
    poller: Option<Registry>,
}

impl Links {
    /// Links to `nodes`, in the order of the round.
    pub(super) fn new(
        nodes: Vec<Reached>,
        expected: Vec<([u8; 16], u64)>,
        nqn: &Nqn,
        connect: &ConnectOptions,
        keys: Option<RoundKeys>,
    ) -> Links {
        let peer = |(host, address): Reached| Peer {
            host,
            address: address.map(|(address, rank)| {
                let address = TcpAddress {
                    traddr: address.ip().to_string(),
                    trsvcid: address.port(),
                    subnqn: nqn.clone(),
                    nsid: None,
                };
                (Address::Tcp(address), rank)
            }),
            devices: Forked::new(Mutex::default()),
            presence: Forked::new(Presence::default()),
            mismatches: Mutex::default(),
        };
        let connect = ConnectOptions {
            nr_io_queues: 1,
            connect_timeout: CONNECT_TIMEOUT,
            tcp_connect_timeout: CONNECT_TIMEOUT,
            io_timeout: NO_PROGRESS,
            least_progress_bytes: LEAST_PROGRESS_BYTES,
            // Does not wait for a lost peer: other nodes or the origin have its chunks.
            ctrl_loss_tmo: Duration::ZERO,
            paths: Vec::new(),
            writable: false,
            ..without_keys(connect)
        };
        let peers = nodes.into_iter().map(peer).collect();
        Links { peers, expected, connect, keys }
    }

    /// Returns whether `node` can be asked now. If it is away, a thread connects to it again when that is
    /// due.
    pub(super) fn is_there(self: &Arc<Links>, node: u16, now: Instant) -> bool {
        let peer = &self.peers[usize::from(node)];
        let presence = peer.presence();
        if peer.address.is_none() || presence.is_there() {
            return peer.address.is_some();
        }
        if presence.begin_connecting(now) {
            self.connect_again(node);
        }
        false
    }

    /// Records that `node` has delivered wrong bytes. After the third time within a minute nobody asks it for
    /// ten minutes.
    pub(super) fn mismatched(&self, node: u16, now: Instant) {
        let mut times = self.peers[usize::from(node)].mismatches.lock();
        times.retain(|time| now.saturating_duration_since(*time) < MISMATCH_SPAN);
        times.push_back(now);
        if times.len() < MISMATCHES {
            return;
        }
        times.clear();
        drop(times);
        let why = "it has delivered wrong bytes several times";
        self.set_away(Some(SET_ASIDE), node, now, why);
    }

    /// As [`Presence::set_away`]; also warns if the node was there, and drops its namespaces unless a thread is
    /// connecting to it.
    pub(super) fn set_away(&self, span: Option<Duration>, node: u16, now: Instant, why: &str) {
        let peer = &self.peers[usize::from(node)];
        if peer.presence().set_away(now, span) {
            tracing::warn!(
                node = peer.host,
                "a peer is out of reach, its chunks come from elsewhere: {why}"
            );
        }
        // If the lock is taken, another thread is connecting now, and its connection is new anyway.
        if let Some(devices) = peer.devices.get()
            && let Some(mut devices) = devices.try_lock()
        {
            *devices = None;
        }
    }

    /// Connects to a lost node on a new thread.
    fn connect_again(self: &Arc<Links>, node: u16) {
        let links = Arc::clone(self);
        let started = threads::start(CONNECT, &Fate::default(), (), move |()| {
            let peer = &links.peers[usize::from(node)];
            let who = format!("the thread {CONNECT}");
            let opened = threads::caught(&who, || {
                let mut devices = peer.devices.get_or_init(Mutex::default).lock();
                *devices = Some(links.open(node)?);
                Ok(())
            });
            match opened.and_then(|opened: Result<()>| opened) {
                Ok(()) => {
                    tracing::info!(node = peer.host, "a peer is back");
                    peer.presence().set_back(Instant::now());
                }
                Err(error) => {
                    tracing::debug!(node = peer.host, error = %error.report(), "it stays away");
                    peer.presence().set_still_away(Instant::now());
                }
            }
        });
        if started.is_err() {
            self.peers[usize::from(node)].presence().set_still_away(Instant::now());
        }
    }

    /// Requests a queue pair on namespace `number` of `node`; it arrives in the slot.
    pub(super) fn ask(
        self: &Arc<Links>,
        node: u16,
        number: u16,
        scope: &Arc<PairScope>,
    ) -> Arc<Slot> {
        let slot = Arc::<Slot>::default();
        let asked = (Arc::clone(self), Arc::clone(scope), Arc::clone(&slot));
        let fate = Fate::default();
        let started = threads::start(CONNECT, &fate, asked, move |(links, scope, slot)| {
            let who = format!("the thread {CONNECT}");
            let pair = threads::caught(&who, || links.connect(node, number, scope));
            slot.put(pair.and_then(|pair| pair));
        });
        if let Err(error) = started {
            slot.put(Err(error));
        }
        slot
    }

    /// Opens a queue pair on namespace `number` of `node`; connects to the node first if necessary.
    fn connect(&self, node: u16, number: u16, scope: &PairScope) -> Result<Box<dyn QueuePair>> {
        let peer = &self.peers[usize::from(node)];
        let devices = peer.devices.get_or_init(Mutex::default);
        let mut devices = devices.lock();
        let opened = match &mut *devices {
            Some(opened) => opened,
            none => {
                let opened = self.open(node)?;
                none.insert(opened)
            }
        };
        let device = Arc::clone(&opened[usize::from(number)]);
        // Outside the lock, since this waits for another connection.
        drop(devices);
        device.queue_pair_in(scope)
    }

    /// Connects to a peer, and checks that it serves the image and generation that this process reads.
    ///
    /// # Errors
    /// `Disconnected`: the node serves nothing. `Refused`: it serves another number of namespaces. `Stale`: another
    /// image or generation. Errors of connecting.
    pub(super) fn open(&self, node: u16) -> Result<Namespaces> {
        let peer = &self.peers[usize::from(node)];
        let Some((address, rank)) = &peer.address else {
            let error = Error::new(ErrorKind::Disconnected, "it serves nothing");
            return Err(error.target(peer.host.clone()));
        };
        let connect = match &self.keys {
            Some(keys) => &keys.connect(&self.connect, &hostnqn(&self.connect), *rank),
            None => &self.connect,
        };
        let address = std::slice::from_ref(address);
        let found: Vec<_> = qpair::open_all(address, connect)?.into_iter().flatten().collect();
        if found.len() != self.expected.len() {
            let message =
                format!("it serves {} namespaces, not {}", found.len(), self.expected.len());
            return Err(Error::new(ErrorKind::Refused, message).target(peer.host.clone()));
        }
        for (device, expected) in found.iter().zip(&self.expected) {
            let namespace = device.namespace();
            if (namespace.nguid, namespace.len_bytes()) != *expected {
                let message = "it serves the cache of another image or generation";
                return Err(Error::new(ErrorKind::Stale, message).target(namespace.address));
            }
        }
        Ok(found)
    }
}

impl Peer {
    fn presence(&self) -> &Presence {
        self.presence.get_or_init(Presence::default)
    }
}

impl Slot {
    /// Sets the poller to wake when the queue pair arrives.
    pub(super) fn register(&self, registry: &Registry) {
        let mut slot = self.0.lock();
        slot.poller = Some(registry.clone());
        if slot.pair.is_some() {
            registry.mark();
        }
    }

    /// Takes the queue pair or the error, if one has arrived.
    pub(super) fn take(&self) -> Option<Result<Box<dyn QueuePair>>> {
        self.0.lock().pair.take()
    }

    fn put(&self, pair: Result<Box<dyn QueuePair>>) {
        let mut slot = self.0.lock();
        slot.pair = Some(pair);
        slot.poller.iter().for_each(Registry::mark);
    }
}

/// Presence of one peer. Readers check it for every read, without waiting.
#[derive(Debug, Default)]
pub(super) struct Presence {
    is_away: AtomicBool,
    absence: Mutex<Absence>,
}

/// The times and the number of a peer's failures.
#[derive(Debug, Default)]
struct Absence {
    /// Time of the next connection; `None`: the peer is there, or a thread is connecting.
    again_at: Option<Instant>,
    /// Number of failures since the peer was last steady.
    failures: u32,
    /// Time of its last connection after a failure.
    back_at: Option<Instant>,
}

impl Presence {
    /// Returns whether the peer can be asked now.
    pub(super) fn is_there(&self) -> bool {
        !self.is_away.load(Ordering::Acquire)
    }

    /// Records that the peer has failed: nobody asks it until it has connected again, after `span` at the
    /// earliest. Without `span` the pause doubles with each failure. A connection that lasts less than
    /// [`STEADY`] does not reset the pause: if overload ends connections, connecting again soon would add to
    /// the overload. Returns `false` if the peer was away already.
    pub(super) fn set_away(&self, now: Instant, span: Option<Duration>) -> bool {
        let mut absence = self.absence.lock();
        let was_there = !self.is_away.swap(true, Ordering::AcqRel);
        if was_there && absence.back_at.is_none_or(|back| now >= back + STEADY) {
            absence.failures = 0;
        }
        if was_there || span.is_some() {
            absence.fail(now, span);
        }
        was_there
    }

    /// Returns whether it is time to connect again. The caller that gets `true` must connect, and report the
    /// result.
    fn begin_connecting(&self, now: Instant) -> bool {
        let mut absence = self.absence.lock();
        let is_due = absence.again_at.is_some_and(|at| now >= at);
        if is_due {
            absence.again_at = None;
        }
        is_due
    }

    /// Records that the peer could not be reached again.
    fn set_still_away(&self, now: Instant) {
        self.absence.lock().fail(now, None);
    }

    /// Records that the peer has connected.
    pub(super) fn set_back(&self, now: Instant) {
        let mut absence = self.absence.lock();
        (absence.again_at, absence.back_at) = (None, Some(now));
        self.is_away.store(false, Ordering::Release);
    }
}

impl Absence {
    /// Counts a failure; the next connection is due after `span`, or after a pause that doubles.
    fn fail(&mut self, now: Instant, span: Option<Duration>) {
        let span = span.unwrap_or(AWAY * (1 << self.failures.min(MOST_DOUBLINGS)));
        self.failures += 1;
        self.again_at = Some(now + span);
    }
}

/// The name of the threads.
const CONNECT: &str = "dlfs-peer";

/// Timeout of connecting to a peer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Timeout of a peer with outstanding reads that makes no progress: no read ends, and fewer than
/// [`LEAST_PROGRESS_BYTES`] arrive.
const NO_PROGRESS: Duration = Duration::from_secs(1);

/// Bytes that count as progress. A peer sends an answer once it has all bytes of it. So while the answer arrives, only
/// the network and the peer itself can delay it, and a slower peer is of no use. Before the answer, the peer's origin
/// may be slow; then every read that ends counts as progress.
const LEAST_PROGRESS_BYTES: u32 = 128 << 10;

/// Timeout of reads that wait for a connection. The steps of connecting have their own timeouts, which may
/// add up to more.
pub(super) const CONNECT_WAIT: Duration = Duration::from_millis(1500);

/// Time for which nobody asks a peer that has delivered wrong bytes [`MISMATCHES`] times within
/// [`MISMATCH_SPAN`].
const SET_ASIDE: Duration = Duration::from_secs(600);

/// Number of mismatches that set a peer aside: wrong bytes of one sample may mean one bad page; of several samples, a
/// bad machine.
const MISMATCHES: usize = 3;

/// Time within which mismatches are counted together.
const MISMATCH_SPAN: Duration = Duration::from_secs(60);

/// Pause after a peer's first failure, before the next connection.
const AWAY: Duration = Duration::from_secs(1);

/// Time that a peer must stay connected for its failures to be forgotten.
const STEADY: Duration = Duration::from_secs(30);

/// Limit of the doublings of [`AWAY`], one for each failure without a steady connection in between.
const MOST_DOUBLINGS: u32 = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_stays_away_is_connected_to_ever_more_rarely() {
        let presence = Presence::default();
        let mut now = Instant::now();
        assert!(presence.is_there() && !presence.begin_connecting(now));
        assert!(presence.set_away(now, None));
        // Failures that other queue pairs notice at the same time count as one.
        assert!(!presence.set_away(now, None));
        for doublings in [0, 1, 2, 3, 4, 5, 6, 6] {
            let away = AWAY * (1 << doublings);
            assert!(!presence.is_there());
            assert!(!presence.begin_connecting(now + away - Duration::from_millis(1)));
            now += away;
            assert!(presence.begin_connecting(now));
            assert!(!presence.begin_connecting(now + AWAY * 1000), "somebody is connecting");
            presence.set_still_away(now);
        }
        assert!(presence.begin_connecting(now + AWAY * 1000));
        presence.set_back(now);
        assert!(presence.is_there());
        now += STEADY;
        presence.set_away(now, None);
        assert!(presence.begin_connecting(now + AWAY), "it begins anew");
    }

    #[test]
    fn a_peer_that_is_lost_again_soon_is_connected_to_ever_more_rarely() {
        let presence = Presence::default();
        let mut now = Instant::now();
        for doublings in [0, 1, 2] {
            assert!(presence.set_away(now, None));
            let away = AWAY * (1 << doublings);
            assert!(!presence.begin_connecting(now + away - Duration::from_millis(1)));
            now += away;
            assert!(presence.begin_connecting(now));
            presence.set_back(now);
            now += STEADY - Duration::from_millis(1);
        }
    }

    #[test]
    fn a_peer_that_is_set_aside_stays_so_for_its_time() {
        let presence = Presence::default();
        let now = Instant::now();
        presence.set_away(now, None);
        presence.set_away(now, Some(AWAY * 100));
        assert!(
            !presence.begin_connecting(now + AWAY * 99)
                && presence.begin_connecting(now + AWAY * 100)
        );
    }
}
