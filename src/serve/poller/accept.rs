//! Acceptance of connections: by the first poller for all pollers, within the limits of connections and descriptors.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};

use super::{HELD_TICK, LISTENER, Mail, Poller, TICK};
use crate::access_log::{WarningKind, Who};
use crate::connection::{HostConnection, is_transient};
use crate::io::{GENERATION_MASK, MAX_CONNECTIONS};
use crate::peers::{Limit, Peer, PeerLimits};
use crate::stats::Counters;
use crate::subsystem::Subsystem;
use dlfs_base::process::NotInherited;

/// A listening socket.
pub(super) struct Listener {
    /// Keeps forked children from listening on.
    _own: NotInherited,
    pub(super) socket: TcpListener,
}

impl Listener {
    pub(super) fn new(socket: TcpListener) -> Listener {
        Listener { _own: NotInherited::close(socket.as_fd()), socket }
    }
}

impl Poller {
    /// Accepts connections of listener `number`, and hands each to the least loaded poller.
    pub(super) fn accept(&mut self, number: usize) {
        let now = self.backend.now;
        if self.backend.subsystem.is_held() {
            self.next_tick = self.next_tick.min(now + HELD_TICK);
            return self.pause_accepting(true);
        }
        for _ in 0..ACCEPTS_PER_ITERATION {
            let (stream, peer) = match self.listeners[number].socket.accept() {
                Ok(accepted) => accepted,
                Err(error) if is_transient(&error) => return,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) if is_out_of_descriptors(&error) && self.find_descriptor(number) => {
                    continue;
                }
                Err(error) => {
                    let who = Who { peer: None, host: None };
                    let why = format_args!("no connection can be accepted for now: {error}");
                    self.warn(WarningKind::NoConnection, who, why);
                    self.next_tick = self.next_tick.min(now + TICK);
                    return self.pause_accepting(true);
                }
            };
            Counters::add(&self.backend.subsystem.counters.accepted, 1);
            let mailbox = self.least_loaded_poller();
            self.mailboxes[mailbox].load.fetch_add(1, Ordering::Relaxed);
            if mailbox == self.number {
                self.add(stream, peer);
            } else {
                self.mailboxes[mailbox].send(Mail::Accepted(stream, peer));
            }
        }
    }

    /// The poller with the least load for the next connection; equally loaded ones take turns.
    fn least_loaded_poller(&mut self) -> usize {
        let mailboxes = self.mailboxes.len();
        let in_rotation = (0..mailboxes).map(|offset| (self.next_poller + offset) % mailboxes);
        let mailbox = in_rotation
            .min_by_key(|&mailbox| self.mailboxes[mailbox].load())
            .expect("there is a poller");
        self.next_poller = mailbox + 1;
        mailbox
    }

    /// Suspends or resumes polling the listeners, which would otherwise stay ready all the time.
    pub(super) fn pause_accepting(&mut self, pause: bool) {
        let flags = if pause { EventFlags::empty() } else { EventFlags::IN };
        for (number, listener) in self.listeners.iter().enumerate() {
            let token = EventData::new_u64(LISTENER - number as u64);
            // Cannot fail: the listener is registered as long as it exists.
            let _ = epoll::modify(&self.epoll, &listener.socket, token, flags);
        }
        self.accept_paused = pause;
    }

    /// Handles a lack of file descriptors for `accept`: closes the oldest connection without a queue, or
    /// else accepts the new connection with the spare descriptor and closes it. Returns whether to continue
    /// accepting.
    fn find_descriptor(&mut self, number: usize) -> bool {
        if self.close_unconnected(None) {
            return true;
        }
        let Some(spare) = self.spare.take() else { return false };
        drop(spare);
        if let Ok((stream, peer)) = self.listeners[number].socket.accept() {
            drop(stream);
            self.refuse(peer, "no file descriptor is left");
        }
        self.spare = spare_descriptor();
        self.spare.is_some()
    }

    /// Counts and logs a connection that is closed at once.
    fn refuse(&self, peer: SocketAddr, why: &str) {
        Counters::add(&self.backend.subsystem.counters.dropped, 1);
        Counters::add(&self.backend.subsystem.counters.refused, 1);
        let who = Who { peer: Some(peer), host: None };
        self.warn(WarningKind::NoConnection, who, format_args!("{why}"));
    }

    /// Adds an accepted connection to this poller, or refuses it at a limit.
    pub(super) fn add(&mut self, stream: TcpStream, from: SocketAddr) {
        let peer = Peer::from(from.ip());
        while let Some(limit) = self.peer_limits.reached(peer) {
            if !self.make_room(limit, peer) {
                let max = self.peer_limits.value(limit);
                let why = match limit {
                    Limit::Peer => {
                        format!("its address has {max} connections (--max-connections-per-address)")
                    }
                    Limit::All => format!(
                        "the target has {max} connections (--max-connections, or three quarters of \
                         the file descriptors)"
                    ),
                };
                self.refuse(from, &why);
                return self.reduce_load();
            }
        }
        self.next_generation = (self.next_generation + 1) & GENERATION_MASK;
        let entry = self.connections.vacant_entry();
        let index = entry.key();
        let max_transfer_bytes = self.backend.subsystem.max_transfer_bytes;
        let connection = prepare(&stream).and_then(|()| {
            let token = EventData::new_u64(index as u64);
            epoll::add(&self.epoll, &stream, token, EventFlags::IN)?;
            let identity = (self.number, index, self.next_generation);
            HostConnection::new(stream, from, identity, max_transfer_bytes, self.backend.now)
        });
        match connection {
            Ok(connection) => {
                entry.insert(connection);
                self.unconnected.push_back((index, self.next_generation));
                self.peer_limits.add(peer);
                Counters::add(&self.backend.subsystem.counters.connections, 1);
                self.next_tick = self.next_tick.min(self.backend.now + TICK);
            }
            Err(error) => {
                tracing::debug!(%from, %error, "connection lost while it was accepted");
                self.reduce_load();
            }
        }
    }

    /// Closes one connection so that `peer` can have another; returns whether it did.
    ///
    /// At the limit of one peer, that is its oldest connection without a queue. At the limit of all peers, it is a
    /// connection of the peer with by far the most: the oldest without a queue, or else the longest silent one. If no
    /// peer has by far the most, it is the oldest connection without a queue.
    fn make_room(&mut self, limit: Limit, peer: Peer) -> bool {
        let peer_with_most = self.peer_limits.peer_with_most(peer);
        let whose = if limit == Limit::Peer { Some(peer) } else { peer_with_most };
        if self.close_unconnected(whose) {
            return true;
        }
        let Some(most) = peer_with_most.filter(|_| limit == Limit::All) else { return false };
        let those = self.connections.iter().filter(|(_, c)| c.is_from(most));
        let longest = those.min_by_key(|(_, c)| c.last_received).map(|(index, _)| index);
        longest.is_some_and(|index| {
            self.evict(index, "closed in favour of a connection from another address")
        })
    }

    /// Closes the oldest connection without a queue; if `peer` is given, the oldest of that peer. Returns whether there
    /// was one.
    fn close_unconnected(&mut self, peer: Option<Peer>) -> bool {
        self.prune_unconnected();
        let oldest = self.unconnected.iter().copied().find(|&(index, generation)| {
            self.is_unconnected(index, generation)
                && peer.is_none_or(|peer| self.connections[index].is_from(peer))
        });
        oldest.is_some_and(|(index, _)| {
            self.evict(index, "closed in favour of another connection; it had no queue yet")
        })
    }

    fn is_unconnected(&self, index: usize, generation: u32) -> bool {
        let connection = self.connections.get(index);
        connection.is_some_and(|c| c.generation == generation && c.queue.is_none())
    }

    /// Removes stale entries from the front of `unconnected`.
    pub(super) fn prune_unconnected(&mut self) {
        while let Some(&(index, generation)) = self.unconnected.front()
            && !self.is_unconnected(index, generation)
        {
            self.unconnected.pop_front();
        }
    }
}

/// Connection limits of a poller: the configured ones, capped at this poller's share of three quarters of
/// the process's file descriptor limit. The rest is for other parts of the process.
pub(super) fn peer_limits(subsystem: &Subsystem, num_pollers: usize) -> PeerLimits {
    let options = &subsystem.options;
    let max = options.max_connections;
    let max_per_peer = options.max_connections_per_address;
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let files = files.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX));
    let room = (files / 4 * 3 / num_pollers).clamp(MIN_CONNECTIONS, MAX_CONNECTIONS);
    if max <= room {
        return PeerLimits::new(max, max_per_peer);
    }
    // The limit per address shrinks in the same proportion.
    let share = max_per_peer as f64 / max as f64;
    PeerLimits::new(room, (room as f64 * share).ceil() as usize)
}

/// Opens a descriptor to close when the process runs out of them.
pub(super) fn spare_descriptor() -> Option<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC).ok()
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Sets up an accepted socket: non-blocking, no Nagle delay, keepalive and a limit for unacknowledged data to detect a
/// dead peer.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(Duration::from_secs(5))
        .with_interval(Duration::from_secs(5))
        .with_retries(3);
    let socket = socket2::SockRef::from(stream);
    if stream.peer_addr()?.ip().is_loopback() {
        // Loopback has no latency to hide. With a deep send buffer the data leave the CPU cache before the
        // host reads them, which halves the throughput with 4 MiB outstanding. Real networks keep
        // autotuning.
        socket.set_send_buffer_size(LOOPBACK_SEND_BUFFER_BYTES)?;
        // Loopback needs no fair congestion control either: BBR, where it is the default, paces by timers.
        // Every kernel has Reno; if setting it is forbidden, the connection is slower but works.
        let _ = rustix::net::sockopt::set_tcp_congestion(stream, "reno");
    }
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(Duration::from_secs(30)))
}

/// Send buffer of a loopback connection.
const LOOPBACK_SEND_BUFFER_BYTES: usize = 512 << 10;
/// Connections accepted in one iteration, so that the poller looks at its other work in between.
const ACCEPTS_PER_ITERATION: usize = 64;
/// Minimum of a poller's connection limit, whatever the file descriptor limit.
const MIN_CONNECTIONS: usize = 16;
