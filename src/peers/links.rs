//! Connections to peers: opened at first use, on threads of their own, and allowed to fail.
//!
//! A poller requests a queue pair and continues. Later it gets the queue pair, or an error if the peer
//! cannot be reached: then nobody asks that peer for a while ([`AWAY`]), and its chunks come from the next
//! node in their order.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::identity::nguid_of;
use crate::error::{Error, ErrorKind, Result};
use crate::nvme::{Address, Nqn, TcpAddress};
use crate::order::ImageId;
use crate::process::Forked;
use crate::qpair::readiness::Registry;
use crate::qpair::{self, ConnectOptions, Device, PairScope, QueuePair};
use crate::threads::{self, Fate};
use crate::units::Generation;

/// The peers of this process.
pub(super) struct Links {
    peers: Vec<Peer>,
    image: ImageId,
    generation: Generation,
    /// Bytes of each origin namespace, in their order: a peer serves as many, of the same size.
    lens_bytes: Vec<u64>,
    connect: ConnectOptions,
    began: Instant,
}

/// The link from this process to one node.
struct Peer {
    host: String,
    address: Option<Address>,
    /// Its namespaces, once it is connected. A forked child connects anew.
    devices: Forked<Mutex<Option<Namespaces>>>,
    /// Nobody asks it before this time, in milliseconds since `Links::began`.
    away_until: AtomicU64,
    /// How often it has failed since it last connected.
    failures: AtomicU32,
    /// When it last delivered wrong bytes, in the same unit; the oldest first.
    mismatches: Mutex<VecDeque<u64>>,
}

/// What a peer serves, in the order of the image.
type Namespaces = Vec<Arc<dyn Device>>;

/// What links need to know about a node.
pub(super) struct Reached {
    /// Its name, for messages.
    pub(super) host: String,
    /// Where it listens; `None` for this node, and for one that serves nothing.
    pub(super) address: Option<SocketAddr>,
}

/// The slot in which a requested queue pair arrives.
pub(super) struct Slot {
    arrived: Mutex<Option<Result<Box<dyn QueuePair>>>>,
    /// Whom to mark when it arrives.
    registry: Mutex<Option<Registry>>,
}

impl Links {
    /// Links to `nodes`, in the order of the round.
    pub(super) fn new(
        nodes: Vec<Reached>,
        (image, generation): (ImageId, Generation),
        lens_bytes: Vec<u64>,
        nqn: &Nqn,
        connect: &ConnectOptions,
    ) -> Links {
        let peer = |node: Reached| Peer {
            host: node.host,
            address: node.address.map(|address| {
                Address::Tcp(TcpAddress {
                    traddr: address.ip().to_string(),
                    trsvcid: address.port(),
                    subnqn: nqn.clone(),
                    nsid: None,
                })
            }),
            devices: Forked::new(Mutex::default()),
            away_until: AtomicU64::new(0),
            failures: AtomicU32::new(0),
            mismatches: Mutex::default(),
        };
        let connect = ConnectOptions {
            nr_io_queues: 1,
            connect_timeout: CONNECT_TIMEOUT,
            tcp_connect_timeout: CONNECT_TIMEOUT,
            io_timeout: NO_PROGRESS,
            // A lost peer is not waited for: others have its chunks, or the origin.
            ctrl_loss_tmo: Duration::ZERO,
            paths: Vec::new(),
            writable: false,
            ..connect.clone()
        };
        let peers = nodes.into_iter().map(peer).collect();
        Links { peers, image, generation, lens_bytes, connect, began: Instant::now() }
    }

    /// Whether `node` can be asked now.
    pub(super) fn is_there(&self, node: u16, now: Instant) -> bool {
        let peer = &self.peers[usize::from(node)];
        peer.address.is_some() && self.millis(now) >= peer.away_until.load(Ordering::Relaxed)
    }

    /// Records that `node` has failed: nobody asks it for a while.
    pub(super) fn set_away(&self, node: u16, now: Instant, why: &str) {
        if !self.is_there(node, now) {
            return; // another queue pair has noticed
        }
        let failures = self.peers[usize::from(node)].failures.load(Ordering::Relaxed);
        self.set_away_for(AWAY * (1 << failures.min(MOST_DOUBLINGS)), node, now, why);
    }

    /// Records that `node` has delivered wrong bytes. After the third time within a minute nobody asks it for long.
    pub(super) fn mismatched(&self, node: u16, now: Instant) {
        let peer = &self.peers[usize::from(node)];
        let now_millis = self.millis(now);
        let mut times = peer.mismatches.lock();
        times.retain(|time| now_millis - time < MISMATCH_SPAN.as_millis() as u64);
        times.push_back(now_millis);
        if times.len() < MISMATCHES {
            return;
        }
        times.clear();
        drop(times);
        self.set_away_for(SET_ASIDE, node, now, "it has delivered wrong bytes several times");
    }

    fn set_away_for(&self, span: Duration, node: u16, now: Instant, why: &str) {
        let peer = &self.peers[usize::from(node)];
        let until = self.millis(now) + span.as_millis() as u64;
        if peer.away_until.fetch_max(until, Ordering::Relaxed) <= self.millis(now) {
            peer.failures.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(
                node = peer.host,
                "a peer is out of reach, its chunks come from elsewhere: {why}"
            );
        }
        // The next use connects again. If another thread is connecting now, that connection is new anyway.
        if let Some(devices) = peer.devices.get()
            && let Some(mut devices) = devices.try_lock()
        {
            *devices = None;
        }
    }

    /// Requests a queue pair on namespace `number` of `node`; it arrives in the slot.
    pub(super) fn ask(
        self: &Arc<Links>,
        node: u16,
        number: u16,
        scope: &Arc<PairScope>,
    ) -> Arc<Slot> {
        let slot = Arc::new(Slot { arrived: Mutex::new(None), registry: Mutex::new(None) });
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

    fn connect(&self, node: u16, number: u16, scope: &PairScope) -> Result<Box<dyn QueuePair>> {
        let peer = &self.peers[usize::from(node)];
        let devices = peer.devices.get_or_init(Mutex::default);
        let mut devices = devices.lock();
        let opened = match &mut *devices {
            Some(opened) => opened,
            none => {
                let opened = self.open(peer)?;
                peer.failures.store(0, Ordering::Relaxed);
                none.insert(opened)
            }
        };
        let device = Arc::clone(&opened[usize::from(number)]);
        // Outside the lock: it waits for another connection.
        drop(devices);
        device.queue_pair_in(scope)
    }

    /// Connects to a peer, and checks that it serves what this process would serve.
    fn open(&self, peer: &Peer) -> Result<Namespaces> {
        let address = peer.address.clone().into_iter().collect::<Vec<_>>();
        let found: Vec<_> =
            qpair::open_all(&address, &self.connect)?.into_iter().flatten().collect();
        if found.len() != self.lens_bytes.len() {
            let message =
                format!("it serves {} namespaces, not {}", found.len(), self.lens_bytes.len());
            return Err(Error::new(ErrorKind::Refused, message).target(peer.host.clone()));
        }
        for ((number, device), len_bytes) in (0..).zip(&found).zip(&self.lens_bytes) {
            let namespace = device.namespace();
            let is_same = namespace.nguid == nguid_of(self.image, self.generation, number)
                && namespace.len_bytes() == *len_bytes;
            if !is_same {
                let message = "it serves the cache of another image or generation";
                return Err(Error::new(ErrorKind::Stale, message).target(namespace.address));
            }
        }
        Ok(found)
    }

    fn millis(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.began).as_millis() as u64
    }
}

impl Slot {
    /// Names whom to mark when the queue pair arrives.
    pub(super) fn register(&self, registry: &Registry) {
        *self.registry.lock() = Some(registry.clone());
        if self.arrived.lock().is_some() {
            registry.mark();
        }
    }

    /// Takes the queue pair or the error, if one has arrived.
    pub(super) fn take(&self) -> Option<Result<Box<dyn QueuePair>>> {
        self.arrived.lock().take()
    }

    fn put(&self, pair: Result<Box<dyn QueuePair>>) {
        *self.arrived.lock() = Some(pair);
        if let Some(registry) = &*self.registry.lock() {
            registry.mark();
        }
    }
}

/// The name of the threads.
const CONNECT: &str = "dlfs-peer";

/// How long a peer may take to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a peer with outstanding reads may go without progress.
const NO_PROGRESS: Duration = Duration::from_secs(1);

/// How long nobody asks a peer that has failed.
const AWAY: Duration = Duration::from_secs(5);

/// Each failure without a connection between doubles that time, up to this often: a peer that stays away costs
/// a second each time that somebody tries.
const MOST_DOUBLINGS: u32 = 7;

/// How long nobody asks a peer that has delivered wrong bytes [`MISMATCHES`] times within [`MISMATCH_SPAN`].
const SET_ASIDE: Duration = Duration::from_secs(600);

/// Wrong bytes of one sample may be one bad page; of several, a bad machine.
const MISMATCHES: usize = 3;

/// The time in which mismatches count together.
const MISMATCH_SPAN: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_stays_away_is_asked_ever_more_rarely() {
        let node = Reached { host: "there".to_owned(), address: Some(([127, 0, 0, 1], 9).into()) };
        let of = (ImageId([1; 16]), Generation(1));
        let nqn = Nqn::new("nqn.2026-11.io.dlfs:cache").unwrap();
        let links = Links::new(vec![node], of, vec![4096], &nqn, &ConnectOptions::default());
        let mut now = links.began;
        for doublings in [0, 1, 2, 3, 4, 5, 6, 7, 7] {
            assert!(links.is_there(0, now));
            links.set_away(0, now, "it does not answer");
            // The other queue pairs notice, too; that is one failure.
            links.set_away(0, now, "it does not answer");
            let away = AWAY * (1 << doublings);
            assert!(!links.is_there(0, now + away - Duration::from_millis(1)));
            now += away;
        }
    }
}
