//! A poller thread: moves data between sockets and queue pairs.
//!
//! Read [`Poller::poll_once`] first: one iteration of the poll loop. `accept.rs` adds connections, `turns.rs` starts
//! commands and sends responses, `changes.rs` follows changes of namespaces, listeners and controllers.

mod accept;
mod changes;
mod turns;

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{fmt, io};

use parking_lot::Mutex;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use slab::Slab;

use super::access_log::{WarningKind, Who};
use super::connection::{Closed, HostConnection, Scratch};
use super::exponentiations::Computed;
use super::hosts::{Hosts, MemoryRequest};
use super::io::{Backend, NamespaceQueue, RESERVE_BYTES, SILENCE, Tag};
use super::peers::{Peer, PeerLimits};
use super::sharing::Sharing;
use super::stats::{Counters, Tally};
use super::subsystem::Subsystem;
use accept::Listener;
pub(super) use changes::{Change, ChangeKind};
use dlfs_base::buf::{HugePages, Pool, PoolOptions};
use dlfs_base::error::{Error, Result};
use dlfs_io::qpair::group::Spinning;
use dlfs_io::qpair::readiness::Readiness;
use dlfs_io::qpair::{Completion, Notice, PairScope};
use dlfs_nvme::tcp::budget::{TARGET_MAX_COMPLETIONS, target_completions};

/// A message to a poller from another thread of the target.
pub(super) enum Mail {
    /// A connection that another poller accepted and assigned to this one.
    Accepted(TcpStream, SocketAddr),
    /// The result of an exponentiation, for a connection that authenticates.
    Computed(Computed),
    /// A change of namespaces or listeners.
    Change(Change),
    /// Controllers may have asynchronous events to report, or may have been removed.
    Events,
}

/// State that a poller shares with the target's other threads.
pub(super) struct Mailbox {
    /// Messages that the poller has not taken yet, oldest first.
    mail: Mutex<Vec<Mail>>,
    /// The scope within which the poller's queue pairs share connections to a device.
    pub(super) scope: PairScope,
    /// An eventfd that wakes the poller.
    waker: OwnedFd,
    /// Set to end the poller.
    stop: AtomicBool,
    /// Number of I/O queues and of connections without a Connect. Admin queues are nearly idle and do not
    /// count.
    load: AtomicUsize,
}

impl Mailbox {
    pub(super) fn new() -> Result<Mailbox> {
        let waker =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(io::Error::from)?;
        Ok(Mailbox {
            mail: Mutex::default(),
            scope: PairScope::new(),
            waker,
            stop: AtomicBool::new(false),
            load: AtomicUsize::new(0),
        })
    }

    /// Asks the poller to end.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }

    pub(super) fn send(&self, mail: Mail) {
        self.mail.lock().push(mail);
        self.wake();
    }

    /// The poller's load: I/O queues, and connections without a Connect.
    pub(super) fn load(&self) -> usize {
        self.load.load(Ordering::Relaxed)
    }

    fn wake(&self) {
        // Any value wakes the poller. The write fails only when the counter is full; the poller is then
        // awake already.
        let _ = rustix::io::write(&self.waker, &[1; 8]);
    }
}

/// One thread's connections, queue pairs and memory.
pub(super) struct Poller {
    backend: Backend,
    mailboxes: Arc<[Mailbox]>,
    /// Index of this poller and of its mailbox.
    number: usize,
    epoll: OwnedFd,
    /// Readiness of the devices' queue pairs.
    devices: Readiness,
    /// The first poller accepts for all pollers; the others have no listeners.
    listeners: Vec<Listener>,
    /// True while accepting is suspended, until the next tick.
    accept_paused: bool,
    /// A spare file descriptor. When the process runs out of descriptors, the poller closes it to accept
    /// one connection and close that at once, so that its host learns of the refusal.
    spare: Option<OwnedFd>,
    /// The number of connections of each peer address.
    peer_limits: PeerLimits,
    /// The first candidate for the next connection among equally loaded pollers.
    next_poller: usize,
    connections: Slab<HostConnection>,
    /// Connections without a queue, by index and generation, oldest first. An entry becomes stale
    /// when its connection gets a queue or closes; stale entries are removed lazily.
    unconnected: VecDeque<(usize, u32)>,
    next_generation: u32,
    /// Connections with bytes to send.
    dirty: Vec<usize>,
    /// Connections whose receiving is paused.
    paused: Vec<usize>,
    scratch: Scratch,
    /// Completions of one poll of a queue pair; empty between polls.
    done: Vec<Completion>,
    /// Bytes of the last completed I/O; predicts the length of the next.
    last_len: usize,
    /// Time of the next check of time limits.
    next_tick: Instant,
    spinning: Spinning,
}

impl Poller {
    pub(super) fn new(
        subsystem: Arc<Subsystem>,
        mailboxes: Arc<[Mailbox]>,
        number: usize,
        listeners: Vec<TcpListener>,
    ) -> Result<Poller> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io::Error::from)?;
        let add = |fd: &dyn AsFd, token| {
            epoll::add(&epoll, fd.as_fd(), EventData::new_u64(token), EventFlags::IN)
                .map_err(|errno| Error::from(io::Error::from(errno)))
        };
        add(&mailboxes[number].waker, WAKER)?;
        let listeners: Vec<Listener> = listeners.into_iter().map(Listener::new).collect();
        for (number, listener) in listeners.iter().enumerate() {
            add(&listener.socket, LISTENER - number as u64)?;
        }
        let busy_poll = subsystem.options.busy_poll;
        let peer_limits = accept::peer_limits(&subsystem, mailboxes.len());
        let devices = Readiness::new()?;
        Ok(Poller {
            backend: make_backend(subsystem, (&mailboxes, number), &devices)?,
            mailboxes,
            number,
            epoll,
            devices,
            listeners,
            accept_paused: false,
            spare: accept::spare_descriptor(),
            peer_limits,
            next_poller: 0,
            connections: Slab::new(),
            unconnected: VecDeque::new(),
            next_generation: 0,
            dirty: Vec::new(),
            paused: Vec::new(),
            scratch: Scratch::new(),
            done: Vec::with_capacity(TARGET_MAX_COMPLETIONS),
            last_len: 0,
            next_tick: Instant::now(),
            spinning: Spinning::new(busy_poll),
        })
    }

    /// Serves until told to stop; then waits up to [`STOP_LIMIT`] for outstanding device I/O.
    pub(super) fn run(&mut self) {
        while !self.mailboxes[self.number].stop.load(Ordering::Acquire) {
            let now = Instant::now();
            if self.poll_once(now) {
                self.spinning.worked(0);
                continue;
            }
            let spins = self.spinning.spin(now);
            // A poller that never sleeps raises the open limits of devices when another poller would sleep.
            let has_risen =
                (!spins || self.spinning.is_spent()) && self.backend.raise_open_limits();
            if !spins && !has_risen {
                self.sleep();
                self.spinning.slept(now.elapsed());
            }
        }
        self.backend.ended.record(Instant::now());
        self.stop_listening();
        self.close_all();
        let limit = Instant::now() + STOP_LIMIT;
        while self.backend.is_busy() && Instant::now() < limit {
            if !self.poll_once(Instant::now()) {
                self.sleep();
            }
        }
    }

    /// One iteration of the poll loop; returns whether there was work.
    fn poll_once(&mut self, now: Instant) -> bool {
        self.backend.now = now;
        self.backend.ended.record(now);
        self.backend.refresh_shares();
        let mut events =
            [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 64];
        let num_events = self.wait_for_events(&mut events);
        for event in &events[..num_events] {
            // Copied because the fields of the kernel's structure are not aligned.
            let token = event.data.u64();
            let flags = event.flags;
            match token {
                WAKER => self.take_mail(),
                _ if LISTENER - token < self.listeners.len() as u64 => {
                    self.accept((LISTENER - token) as usize);
                }
                index => self.socket_ready(index as usize, flags),
            }
        }
        let was_sending = !self.backend.sharing.sends.is_empty();
        let num_started = self.start_waiting();
        let num_completed = self.run_devices();
        self.backend.publish_counts(); // before the responses: a host that has one sees it counted
        self.send_dirty();
        let num_resumed = self.resume_paused();
        if now >= self.next_tick {
            self.tick();
        }
        num_events + num_completed + num_started + num_resumed > 0
            || was_sending
            || !self.backend.sharing.sends.is_empty()
    }

    fn wait_for_events(&self, events: &mut [epoll::Event]) -> usize {
        let no_wait = Timespec { tv_sec: 0, tv_nsec: 0 };
        // An interrupted call counts as no events; the next iteration asks again.
        epoll::wait(&self.epoll, events, Some(&no_wait)).unwrap_or(0)
    }

    /// Sleeps until a socket or device is ready, a queue pair or a rate limit is due, or the next check of time limits.
    /// Returns at once if a busy queue pair must be polled. Does not allocate.
    fn sleep(&mut self) {
        let mut until = self.next_tick;
        until = self.backend.sharing.wake_at.map_or(until, |at| until.min(at));
        for (_, queue) in &self.backend.queues {
            if queue.is_gated {
                until = until.min(self.backend.last_done + SILENCE);
            }
            until = queue.queue_pair.next_timeout().map_or(until, |at| until.min(at));
            if queue.is_busy() && queue.queue_pair.notice() == Notice::Poll {
                return;
            }
        }
        let Some(_asleep) = self.devices.fall_asleep() else { return };
        let fds = [self.epoll.as_fd(), self.devices.as_fd()];
        let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let wait = until.saturating_duration_since(self.backend.now);
        let timeout =
            Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) };
        // The next iteration finds the cause of the wakeup.
        let _ = poll(&mut fds, Some(&timeout));
        Counters::add(&self.backend.subsystem.counters.wakeups, 1);
    }

    /// Handles the messages of other threads.
    fn take_mail(&mut self) {
        let mailbox = &self.mailboxes[self.number];
        let mut count = [0; 8];
        let _ = rustix::io::read(&mailbox.waker, &mut count); // resets the counter; fails if it is zero
        let mail = std::mem::take(&mut *mailbox.mail.lock());
        for mail in mail {
            match mail {
                Mail::Accepted(stream, peer) => self.add(stream, peer),
                Mail::Change(change) => self.apply(change),
                Mail::Events => self.report_events(),
                Mail::Computed(Computed { connection: (index, generation), power }) => {
                    let connection = self.connections.get_mut(index);
                    // The result is dropped if the connection has closed.
                    if let Some(connection) = connection.filter(|c| c.generation == generation) {
                        connection.computed(power, &self.backend);
                        self.mark_dirty(index);
                    }
                }
            }
        }
    }

    /// Removes one connection from the load: it has closed, or has become an admin queue.
    fn reduce_load(&self) {
        self.mailboxes[self.number].load.fetch_sub(1, Ordering::Relaxed);
    }

    fn warn(&self, kind: WarningKind, who: Who<'_>, why: fmt::Arguments<'_>) {
        self.backend.subsystem.warnings.warn(self.backend.now, kind, who, why);
    }

    /// Closes a connection to free its resources. Returns `true`, for callers that tell whether they closed one.
    fn evict(&mut self, index: usize, why: &'static str) -> bool {
        let who = self.connections[index].who();
        Counters::add(&self.backend.subsystem.counters.evicted, 1);
        self.warn(WarningKind::Evicted, who, format_args!("{why}"));
        self.close(index, Closed::Dropped(why));
        true
    }

    /// Handles the readiness of a connection's socket: receives, or notes that the socket takes bytes again.
    fn socket_ready(&mut self, index: usize, flags: EventFlags) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        let mut result = Ok(());
        if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            if connection.may_receive(&self.backend) {
                result = connection.receive(&mut self.backend, &mut self.scratch);
            } else if flags.intersects(EventFlags::HUP | EventFlags::ERR) {
                result = Err(Closed::ByHost); // otherwise the socket would stay ready for ever
            } else if !connection.is_paused {
                connection.pause(true, self.backend.now);
                watch(&self.epoll, index, connection);
                self.paused.push(index);
            }
        }
        if flags.contains(EventFlags::OUT) {
            connection.is_blocked = false;
            watch(&self.epoll, index, connection);
        }
        if let Err(closed) = result {
            return self.close(index, closed);
        }
        connection.list_waiting(&mut self.backend.sharing.starts);
        if connection.is_load && connection.is_admin() {
            connection.is_load = false;
            self.reduce_load();
        }
        self.mark_dirty(index);
        if !self.connections[index].is_dirty {
            self.end_rest_if_busy(index);
        }
    }

    /// Lists a connection as dirty if it has bytes to send and its socket takes some.
    fn mark_dirty(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        if connection.wants_to_send() && !connection.is_dirty && !connection.is_blocked {
            connection.is_dirty = true;
            self.dirty.push(index);
        }
    }

    /// Submits pending I/O and hands completions to their connections; returns how many completed.
    fn run_devices(&mut self) -> usize {
        let mut num_completed = 0;
        self.devices.look(|_| {}); // resets the descriptors; all queue pairs are polled anyway
        let mut number = 0;
        while number < self.backend.queues.capacity() {
            let Some(queue) = self.backend.queues.get_mut(number) else {
                number += 1;
                continue;
            };
            if !queue.pending.is_empty() {
                queue.queue_pair.submit(&mut queue.pending);
            }
            let mut done = std::mem::take(&mut self.done);
            let max = target_completions(self.last_len);
            num_completed += queue.queue_pair.poll(self.backend.now, max, &mut done);
            for completion in done.drain(..) {
                self.last_len = completion.buf.len();
                let queue = &mut self.backend.queues[number];
                queue.open_bytes = queue.open_bytes.saturating_sub(self.last_len as u64);
                self.complete(number, completion);
            }
            self.done = done;
            self.drop_queue_if_done(number);
            number += 1;
        }
        if num_completed > 0 {
            self.backend.last_done = self.backend.now;
        }
        num_completed
    }

    /// Hands a completion of `queue` to its connection.
    fn complete(&mut self, queue: usize, completion: Completion) {
        let tag = Tag::from_u64(completion.tag);
        let connection = self.connections.get_mut(tag.connection);
        // The connection has closed: the completion is dropped, and the buffer returns to the pool.
        let Some(connection) = connection.filter(|c| c.generation == tag.generation) else {
            return;
        };
        connection.complete(queue, tag, completion, &mut self.backend);
        connection.list_waiting(&mut self.backend.sharing.starts);
        self.mark_dirty(tag.connection);
    }

    /// Resumes receiving on paused connections that may receive again; returns how many were resumed or have closed.
    fn resume_paused(&mut self) -> usize {
        let before = self.paused.len();
        let mut paused = std::mem::take(&mut self.paused);
        paused.retain(|&index| {
            let Some(connection) = self.connections.get_mut(index) else { return false };
            if connection.is_paused && connection.may_receive(&self.backend) {
                connection.pause(false, self.backend.now);
                watch(&self.epoll, index, connection);
            }
            connection.is_paused
        });
        self.paused = paused;
        before - self.paused.len()
    }

    /// While hosts wait for memory, closes stalled connections that hold some, largest first. Stops when a
    /// quarter of the memory is free and no waiting host exceeds its limit.
    fn evict_stalled(&mut self) {
        let limit = MEMORY_WAIT_LIMIT.min(self.backend.subsystem.options.send_timeout);
        let connection_bytes = self.backend.connection_bytes;
        let waits =
            self.connections.iter().filter_map(|(_, c)| c.memory_wait(&self.backend, limit));
        let waits: Vec<MemoryRequest> = waits.collect();
        if waits.is_empty() {
            return;
        }
        let stalled =
            self.connections.iter().filter(|(_, c)| c.is_stalled(self.backend.now, limit));
        let mut stalled: Vec<(usize, usize)> = stalled
            .map(|(index, c)| (c.holds_bytes(), index))
            .filter(|(held, _)| *held > 0)
            .collect();
        stalled.sort_unstable_by(|a, b| b.cmp(a));
        let mut free_bytes = self.backend.pool.free_bytes();
        for (number, (held, index)) in stalled.into_iter().enumerate() {
            let hosts = &self.backend.hosts;
            let is_enough = free_bytes >= connection_bytes
                && waits.iter().all(|request| hosts.may_take(request, free_bytes));
            // If hosts still wait, the free memory may be fragmented, so each tick closes at least one
            // connection.
            if is_enough && number > 0 {
                break;
            }
            self.evict(index, "it held memory that others wait for, and moved no data");
            free_bytes += held;
        }
    }

    /// Checks all time limits, and does what only time brings: resumes accepting, drains, and evicts stalled
    /// connections.
    fn tick(&mut self) {
        self.next_tick = self.following_tick();
        if self.accept_paused {
            self.pause_accepting(false);
        }
        let late: Vec<(usize, Closed)> = self
            .connections
            .iter_mut()
            .filter_map(|(index, c)| Some((index, c.check_time(&self.backend).err()?)))
            .collect();
        let draining_since = self.backend.subsystem.draining_since();
        for (_, connection) in &mut self.connections {
            connection.give_up_waiting(&mut self.backend);
            if let Some(since) = draining_since {
                connection.drain(&self.backend, since);
            }
        }
        // Connections that have something to send because time has passed.
        let wants = |c: &HostConnection| c.wants_to_send() && !c.is_dirty && !c.is_blocked;
        let indices = self.connections.iter().filter(|(_, c)| wants(c)).map(|(index, _)| index);
        for index in indices.collect::<Vec<_>>() {
            self.mark_dirty(index);
        }
        for (index, closed) in late {
            let connection = &self.connections[index];
            if matches!(closed, Closed::Dropped(_)) && connection.terminated.is_none() {
                let why = format_args!("{closed}");
                self.warn(WarningKind::TimedOut, connection.who(), why);
            }
            self.close(index, closed);
        }
        self.prune_unconnected();
        self.evict_stalled();
    }

    /// The time of the next check of time limits. A poller whose connections are all idle
    /// ([`HostConnection::is_idle`]) checks rarely.
    fn following_tick(&self) -> Instant {
        let now = self.backend.now;
        if self.connections.is_empty() {
            return now + IDLE_TICK;
        }
        let subsystem = &self.backend.subsystem;
        let is_busy = subsystem.draining_since().is_some()
            || self.connections.iter().any(|(_, connection)| !connection.is_idle());
        if is_busy {
            return now + TICK;
        }
        let ends = self.connections.iter().filter_map(|(_, c)| c.keep_alive_deadline());
        ends.min().map_or(now + REST, |end| end.clamp(now + TICK, now + REST))
    }

    /// Brings the next check of time limits forward if the connection has become busy.
    fn end_rest_if_busy(&mut self, index: usize) {
        let soon = self.backend.now + TICK;
        if self.next_tick > soon && !self.connections[index].is_idle() {
            self.next_tick = soon;
        }
    }

    /// Closes a connection: removes it from the poller's tables and accounts.
    fn close(&mut self, index: usize, closed: Closed) {
        let mut connection = self.connections.remove(index);
        // Closing alone would not remove it if a forked child had the socket, too. Cannot fail: it is registered.
        let _ = epoll::delete(&self.epoll, &connection.stream);
        if connection.is_dirty {
            self.dirty.retain(|&dirty| dirty != index);
        }
        connection.log_closed(closed, self.backend.now);
        connection.leave(&mut self.backend);
        self.peer_limits.remove(Peer::from(connection.peer.ip()));
        if connection.is_load {
            self.reduce_load();
        }
        let counters = &self.backend.subsystem.counters;
        counters.connections.fetch_sub(1, Ordering::Relaxed);
        let is_expected =
            matches!(closed, Closed::ByHost | Closed::Lost(_) | Closed::Drained | Closed::Stopped);
        if !is_expected || connection.terminated.is_some() {
            Counters::add(&counters.dropped, 1);
        }
        if connection.queue.is_some() {
            // Pollers may serve I/O queues of the controller that has just ended. This one checks at once; the others
            // are woken, and check with their next time limits.
            self.next_tick = Instant::now();
            for (number, mailbox) in self.mailboxes.iter().enumerate() {
                if number != self.number {
                    mailbox.wake();
                }
            }
        }
    }

    fn close_all(&mut self) {
        self.backend.now = Instant::now();
        let indices: Vec<usize> = self.connections.iter().map(|(index, _)| index).collect();
        for index in indices {
            self.close(index, Closed::Stopped);
        }
    }
}

/// Makes the state that the connections of poller `number` share, with a queue pair for each namespace.
fn make_backend(
    subsystem: Arc<Subsystem>,
    (mailboxes, number): (&[Mailbox], usize),
    devices: &Readiness,
) -> Result<Backend> {
    let bytes = subsystem.options.buffer_bytes.max(4 * subsystem.max_transfer_bytes as usize);
    let pool = Pool::new(PoolOptions { bytes, slot_len_bytes: 4096, huge_pages: HugePages::Auto })?;
    let served: Vec<_> = subsystem.namespaces.read().values().cloned().collect();
    let ended = subsystem.latencies.of_poller();
    let options = &subsystem.options;
    let mut backend = Backend {
        sharing: Sharing::new(
            options.limiter.clone(),
            options.nqn.clone(),
            (number, mailboxes.len()),
        ),
        now: Instant::now(),
        last_done: Instant::now(),
        subsystem,
        tally: Tally::default(),
        ended,
        hosts: Hosts::default(),
        pool,
        reserve: Pool::new(PoolOptions {
            bytes: RESERVE_BYTES,
            slot_len_bytes: 4096,
            huge_pages: HugePages::Off,
        })?,
        num_waiting: 0,
        queues: Slab::new(),
        by_nsid: Vec::new(),
        connection_bytes: bytes / 4,
    };
    for served in served {
        let queue =
            NamespaceQueue::new(&served, served.device.queue_pair_in(&mailboxes[number].scope)?);
        let index = backend.add_queue(queue);
        backend.queues[index].queue_pair.register(&devices.registry(index));
    }
    Ok(backend)
}

/// Sets the events of a connection's socket that wake the poller, by the connection's state.
fn watch(epoll: &OwnedFd, index: usize, connection: &HostConnection) {
    let mut flags = EventFlags::empty();
    flags.set(EventFlags::IN, !connection.is_paused);
    flags.set(EventFlags::OUT, connection.is_blocked);
    // Cannot fail: the socket is registered as long as the connection is in the table.
    let _ = epoll::modify(epoll, &connection.stream, EventData::new_u64(index as u64), flags);
}

/// Event token of the waker. Tokens of connections are their indices.
const WAKER: u64 = u64::MAX;
/// Event token of the first listener; further listeners count down from it.
const LISTENER: u64 = u64::MAX - 1;
/// Time for which a host waits for memory before the poller closes stalled connections that hold some.
const MEMORY_WAIT_LIMIT: Duration = Duration::from_secs(1);
/// Interval between checks of time limits while a connection is not idle.
pub(super) const TICK: Duration = Duration::from_millis(100);
/// Interval between checks of time limits while nothing is connected.
const IDLE_TICK: Duration = Duration::from_secs(60);
/// Longest interval between checks while all connections are idle: so late may a poller learn that another poller has
/// evicted or disabled a controller.
const REST: Duration = Duration::from_secs(5);
/// Interval at which the poller checks whether connections are still held: see
/// [`TargetOptions::hold`](super::TargetOptions::hold).
const HELD_TICK: Duration = Duration::from_millis(5);
/// Time limit for the pollers to apply a change.
pub(super) const CHANGE_LIMIT: Duration = Duration::from_secs(10);
/// Time limit for outstanding device I/O of a stopped poller.
pub(super) const STOP_LIMIT: Duration = Duration::from_secs(5);
