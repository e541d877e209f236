//! The thread that moves data: sockets on one side, queue pairs on the other.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use slab::Slab;

use super::complaints::{Complaint, Who};
use super::connection::{Closed, HostConnection, is_transient};
use super::hosts::{Hosts, Hunger};
use super::io::{Backend, GENERATION_MASK, MAX_CONNECTIONS, NamespaceQueue, RESERVE_BYTES, Tag};
use super::peers::{Full, Peer, Places};
use super::stats::{Counters, Tally};
use super::subsystem::Subsystem;
use crate::buf::{HugePages, Pool, PoolOptions};
use crate::error::{Error, ErrorKind, Result};
use crate::qpair::patience::Patience;
use crate::qpair::readiness::Readiness;
use crate::qpair::{Completion, Notice, PairScope};
use crate::tcp::turn::{TARGET_MAX_COMPLETIONS, TARGET_RECEIVE_BYTES, target_completions};

/// What a poller shares with the other threads of its target.
pub(super) struct Door {
    /// Connections that another poller accepted for this one.
    inbox: Mutex<Vec<(TcpStream, SocketAddr)>>,
    waker: OwnedFd,
    stop: AtomicBool,
    /// I/O queues, and connections that have yet to say which queue they are. Admin queues, which have
    /// next to nothing to do, do not count.
    load: AtomicUsize,
}

impl Door {
    pub(super) fn new() -> Result<Door> {
        let waker =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(io::Error::from)?;
        Ok(Door {
            inbox: Mutex::default(),
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

    /// How much there is to do behind it.
    pub(super) fn load(&self) -> usize {
        self.load.load(Ordering::Relaxed)
    }

    fn wake(&self) {
        // Any number wakes. It fails only when the counter is full, and then the poller is awake.
        let _ = rustix::io::write(&self.waker, &[1; 8]);
    }
}

/// One thread's connections, queue pairs and memory.
pub(super) struct Poller {
    backend: Backend,
    doors: Arc<[Door]>,
    /// Which of the doors is its own.
    number: usize,
    epoll: OwnedFd,
    /// What the devices' queue pairs wait for.
    devices: Readiness,
    /// The first poller accepts for all.
    listener: Option<TcpListener>,
    /// Whether accepting has been given up until the next tick.
    accept_paused: bool,
    /// A file descriptor to give up when there are no others: with it one connection can be accepted
    /// and closed, so that its host is told.
    spare: Option<OwnedFd>,
    /// Who has how many connections.
    places: Places,
    /// Which of several pollers that are equally loaded gets the next connection.
    next_door: usize,
    connections: Slab<HostConnection>,
    /// Connections that had no queue yet, by index and generation, oldest first. Those that have one by
    /// now, or are gone, are taken out as they are met.
    strangers: VecDeque<(usize, u32)>,
    next_generation: u32,
    /// Connections that have something to send.
    dirty: Vec<usize>,
    /// Connections with commands that wait for memory.
    starved: Vec<usize>,
    /// Connections from which nothing is received until there is memory.
    paused: Vec<usize>,
    scratch: Vec<u8>,
    done: Vec<Completion>,
    /// Bytes of the I/O that completed last: what the next ones will be like.
    last_len: usize,
    /// When time limits are looked at again.
    next_tick: Instant,
    patience: Patience,
}

impl Poller {
    pub(super) fn new(
        subsystem: Arc<Subsystem>,
        counters: Arc<Counters>,
        doors: Arc<[Door]>,
        number: usize,
        listener: Option<TcpListener>,
    ) -> Result<Poller> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io::Error::from)?;
        let add = |fd: &dyn AsFd, token| {
            epoll::add(&epoll, fd.as_fd(), EventData::new_u64(token), EventFlags::IN)
                .map_err(|errno| Error::from(io::Error::from(errno)))
        };
        add(&doors[number].waker, WAKER)?;
        if let Some(listener) = &listener {
            add(listener, LISTENER)?;
        }
        let busy_poll = subsystem.options.busy_poll;
        let places = places(&subsystem, doors.len());
        let devices = Readiness::new()?;
        Ok(Poller {
            backend: make_backend(subsystem, counters, &devices)?,
            doors,
            number,
            epoll,
            devices,
            listener,
            accept_paused: false,
            spare: spare_descriptor(),
            places,
            next_door: 0,
            connections: Slab::new(),
            strangers: VecDeque::new(),
            next_generation: 0,
            dirty: Vec::new(),
            starved: Vec::new(),
            paused: Vec::new(),
            scratch: vec![0; TARGET_RECEIVE_BYTES],
            done: Vec::with_capacity(TARGET_MAX_COMPLETIONS),
            last_len: 0,
            next_tick: Instant::now(),
            patience: Patience::new(busy_poll),
        })
    }

    /// Serves until the door says stop; then waits for what the devices still do, within limits.
    pub(super) fn run(&mut self) {
        while !self.doors[self.number].stop.load(Ordering::Acquire) {
            let now = Instant::now();
            if self.turn(now) {
                self.patience.worked(0);
            } else if !self.patience.spin(now) {
                self.sleep(now);
                self.patience.slept(now.elapsed());
            }
        }
        self.listener = None;
        self.close_all();
        let limit = Instant::now() + STOP_LIMIT;
        while self.backend.is_busy() && Instant::now() < limit {
            if !self.turn(Instant::now()) {
                self.sleep(Instant::now());
            }
        }
    }

    /// One turn of the pump; whether there was anything to do.
    fn turn(&mut self, now: Instant) -> bool {
        let mut events =
            [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 64];
        let num_events = self.wait_for_events(&mut events);
        for event in &events[..num_events] {
            // Copied out: the fields of the kernel's structure are not aligned.
            let (token, flags) = (event.data.u64(), event.flags);
            match token {
                WAKER => self.take_from_inbox(now),
                LISTENER => self.accept(now),
                index => self.socket_ready(index as usize, flags, now),
            }
        }
        let num_completed = self.run_devices(now);
        self.backend.tell(); // before the answers: who has one finds it counted
        self.send_dirty(now);
        let num_fed = self.feed_starved(now) + self.resume_paused(now);
        if now >= self.next_tick {
            self.tick(now);
        }
        num_events + num_completed + num_fed > 0
    }

    fn wait_for_events(&self, events: &mut [epoll::Event]) -> usize {
        let no_wait = Timespec { tv_sec: 0, tv_nsec: 0 };
        // An interrupted call is as good as one without events: the next turn asks again.
        epoll::wait(&self.epoll, events, Some(&no_wait)).unwrap_or(0)
    }

    /// Sleeps until a socket or a device is ready, or until the next tick. Allocates nothing.
    fn sleep(&mut self, now: Instant) {
        let mut until = self.next_tick;
        for NamespaceQueue { queue_pair, pending } in &self.backend.queues {
            until = queue_pair.next_timeout().map_or(until, |at| until.min(at));
            let is_busy = queue_pair.outstanding() > 0 || !pending.is_empty();
            if is_busy && queue_pair.notice() == Notice::Poll {
                return;
            }
        }
        let Some(_asleep) = self.devices.fall_asleep() else { return };
        let fds = [self.epoll.as_fd(), self.devices.as_fd()];
        let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let wait = until.saturating_duration_since(now);
        let timeout =
            Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) };
        // Whatever wakes us, the next turn finds out.
        let _ = poll(&mut fds, Some(&timeout));
    }

    fn take_from_inbox(&mut self, now: Instant) {
        let door = &self.doors[self.number];
        let mut count = [0; 8];
        let _ = rustix::io::read(&door.waker, &mut count); // empties it; it may be empty
        let streams = std::mem::take(&mut *door.inbox.lock());
        for (stream, peer) in streams {
            self.add(stream, peer, now);
        }
    }

    fn accept(&mut self, now: Instant) {
        for _ in 0..ACCEPTS_PER_TURN {
            let Some(listener) = &self.listener else { return };
            let (stream, peer) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if is_transient(&error) => return,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) if is_out_of_descriptors(&error) && self.find_descriptor(now) => {
                    continue;
                }
                Err(error) => {
                    let who = Who { peer: None, host: None };
                    let what = format_args!("cannot accept connections for now: {error}");
                    self.complain(now, Complaint::NoConnection, who, what);
                    self.next_tick = self.next_tick.min(now + TICK);
                    return self.pause_accepting(true);
                }
            };
            Counters::add(&self.backend.counters.accepted, 1);
            let door = self.least_loaded_door();
            self.doors[door].load.fetch_add(1, Ordering::Relaxed);
            if door == self.number {
                self.add(stream, peer, now);
            } else {
                self.doors[door].inbox.lock().push((stream, peer));
                self.doors[door].wake();
            }
        }
    }

    fn least_loaded_door(&mut self) -> usize {
        let doors = self.doors.len();
        let in_turn = (0..doors).map(|turn| (self.next_door + turn) % doors);
        let door = in_turn.min_by_key(|&door| self.doors[door].load()).expect("there is a poller");
        self.next_door = door + 1;
        door
    }

    /// A connection that counted as load is gone, or is an admin queue.
    fn relieve(&self) {
        self.doors[self.number].load.fetch_sub(1, Ordering::Relaxed);
    }

    /// Stops or goes on listening to the listener, which would otherwise be ready all the time.
    fn pause_accepting(&mut self, pause: bool) {
        let Some(listener) = &self.listener else { return };
        let flags = if pause { EventFlags::empty() } else { EventFlags::IN };
        // The listener is registered as long as it exists.
        let _ = epoll::modify(&self.epoll, listener, EventData::new_u64(LISTENER), flags);
        self.accept_paused = pause;
    }

    /// There is no file descriptor for a connection that wants to be accepted: closes one that has been
    /// silent, or else accepts the newcomer with the spare one and closes it. Whether to go on.
    fn find_descriptor(&mut self, now: Instant) -> bool {
        if self.close_stranger(None, now) {
            return true;
        }
        let Some(spare) = self.spare.take() else { return false };
        drop(spare);
        let accepted = self.listener.as_ref().map(TcpListener::accept);
        if let Some(Ok((stream, peer))) = accepted {
            drop(stream);
            self.refuse(peer, "no file descriptor is left", now);
        }
        self.spare = spare_descriptor();
        self.spare.is_some()
    }

    fn complain(&self, now: Instant, complaint: Complaint, who: Who<'_>, what: fmt::Arguments<'_>) {
        self.backend.subsystem.complaints.say(now, complaint, who, what);
    }

    fn refuse(&self, peer: SocketAddr, why: &str, now: Instant) {
        Counters::add(&self.backend.counters.dropped, 1);
        Counters::add(&self.backend.counters.refused, 1);
        let who = Who { peer: Some(peer), host: None };
        self.complain(now, Complaint::NoConnection, who, format_args!("refused: {why}"));
    }

    fn add(&mut self, stream: TcpStream, from: SocketAddr, now: Instant) {
        let peer = Peer::from(from.ip());
        while let Some(full) = self.places.full(peer) {
            if !self.make_room(full, peer, now) {
                let max = self.places.limit(full);
                let why = match full {
                    Full::Peer => "its address has (--max-connections-per-address)",
                    Full::All => "there are (--max-connections, or three quarters of the files)",
                };
                self.refuse(from, &format!("{max} connections, the most, {why}"), now);
                return self.relieve();
            }
        }
        self.next_generation = (self.next_generation + 1) & GENERATION_MASK;
        let entry = self.connections.vacant_entry();
        let index = entry.key();
        let max_transfer_bytes = self.backend.subsystem.max_transfer_bytes;
        let connection = prepare(&stream).and_then(|()| {
            let token = EventData::new_u64(index as u64);
            epoll::add(&self.epoll, &stream, token, EventFlags::IN)?;
            HostConnection::new(stream, from, index, self.next_generation, max_transfer_bytes, now)
        });
        match connection {
            Ok(connection) => {
                entry.insert(connection);
                self.strangers.push_back((index, self.next_generation));
                self.places.enter(peer);
                Counters::add(&self.backend.counters.connections, 1);
                self.next_tick = self.next_tick.min(now + TICK);
            }
            Err(error) => {
                tracing::debug!(%from, %error, "connection lost while it was accepted");
                self.relieve();
            }
        }
    }

    /// Makes room for a connection of `peer`: closes the oldest that has not connected to a queue, or
    /// else the longest silent one of the address that has by far the most.
    fn make_room(&mut self, full: Full, peer: Peer, now: Instant) -> bool {
        let greediest = self.places.greediest(peer);
        let whose = if full == Full::Peer { Some(peer) } else { greediest };
        if self.close_stranger(whose, now) {
            return true;
        }
        match (full, greediest) {
            (Full::Peer, _) => false,
            (Full::All, Some(greediest)) => {
                let those = self.connections.iter().filter(|(_, c)| c.is_from(greediest));
                let longest = those.min_by_key(|(_, c)| c.last_received()).map(|(index, _)| index);
                longest.is_some_and(|index| {
                    self.evict(index, "it made room for one of another address", now)
                })
            }
            (Full::All, None) => self.close_stranger(None, now),
        }
    }

    /// Closes the oldest connection, of `peer` if one is named, that has not connected to a queue.
    fn close_stranger(&mut self, peer: Option<Peer>, now: Instant) -> bool {
        self.forget_known();
        let oldest = self.strangers.iter().copied().find(|&(index, generation)| {
            self.is_stranger(index, generation)
                && peer.is_none_or(|peer| self.connections[index].is_from(peer))
        });
        oldest.is_some_and(|(index, _)| {
            self.evict(index, "it made room, having connected to no queue", now)
        })
    }

    fn is_stranger(&self, index: usize, generation: u32) -> bool {
        let connection = self.connections.get(index);
        connection.is_some_and(|c| c.generation() == generation && !c.is_connected())
    }

    /// Takes connections out of the front of the strangers that are none any more.
    fn forget_known(&mut self) {
        while let Some(&(index, generation)) = self.strangers.front()
            && !self.is_stranger(index, generation)
        {
            self.strangers.pop_front();
        }
    }

    fn evict(&mut self, index: usize, why: &'static str, now: Instant) -> bool {
        let who = self.connections[index].who();
        Counters::add(&self.backend.counters.evicted, 1);
        self.complain(now, Complaint::MadeRoom, who, format_args!("evicted: {why}"));
        self.close(index, Closed::Dropped(why), now);
        true
    }

    fn socket_ready(&mut self, index: usize, flags: EventFlags, now: Instant) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        let mut result = Ok(());
        if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            if connection.may_receive(&self.backend) {
                result = connection.receive(&mut self.backend, &mut self.scratch, now);
            } else if flags.intersects(EventFlags::HUP | EventFlags::ERR) {
                result = Err(Closed::ByHost); // it would be ready for ever
            } else if !connection.is_paused {
                connection.pause(true, now);
                watch(&self.epoll, index, connection);
                self.paused.push(index);
            }
        }
        if flags.contains(EventFlags::OUT) {
            connection.is_blocked = false;
            watch(&self.epoll, index, connection);
        }
        if let Err(closed) = result {
            return self.close(index, closed, now);
        }
        if connection.is_load && connection.is_admin() {
            connection.is_load = false;
            self.doors[self.number].load.fetch_sub(1, Ordering::Relaxed);
        }
        if connection.is_starved() && !connection.is_listed {
            connection.is_listed = true;
            self.starved.push(index);
        }
        self.mark_dirty(index);
    }

    fn mark_dirty(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        if connection.wants_to_send() && !connection.is_dirty && !connection.is_blocked {
            connection.is_dirty = true;
            self.dirty.push(index);
        }
    }

    /// Submits what is pending, and hands completions to their connections; returns how many.
    fn run_devices(&mut self, now: Instant) -> usize {
        let mut num_completed = 0;
        self.devices.look(|_| {}); // all are polled: this is for their descriptors
        for number in 0..self.backend.queues.len() {
            let queue = &mut self.backend.queues[number];
            if !queue.pending.is_empty() {
                queue.queue_pair.submit(&mut queue.pending);
            }
            let mut done = std::mem::take(&mut self.done);
            let max = target_completions(self.last_len);
            num_completed += queue.queue_pair.poll(now, max, &mut done);
            for completion in done.drain(..) {
                self.last_len = completion.buf.len();
                self.complete(number, completion);
            }
            self.done = done;
        }
        num_completed
    }

    fn complete(&mut self, queue: usize, completion: Completion) {
        let tag = Tag::from_u64(completion.tag);
        let connection = self.connections.get_mut(tag.connection);
        // The I/O of a connection that is gone ends here, and its buffer goes home.
        let Some(connection) = connection.filter(|c| c.generation() == tag.generation) else {
            return;
        };
        connection.complete(queue, tag, completion, &mut self.backend);
        self.mark_dirty(tag.connection);
    }

    fn send_dirty(&mut self, now: Instant) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for index in dirty.drain(..) {
            let Some(connection) = self.connections.get_mut(index) else { continue };
            connection.is_dirty = false;
            let sent = connection.send(now);
            connection.account(&mut self.backend);
            match sent {
                Err(closed) => self.close(index, closed, now),
                Ok(()) if connection.is_blocked => watch(&self.epoll, index, connection),
                Ok(()) => {}
            }
        }
        self.dirty = dirty;
    }

    /// Starts commands for which there is memory now; what that makes to do is the next turn's.
    /// Returns how many connections could go on.
    fn feed_starved(&mut self, now: Instant) -> usize {
        let mut num_fed = 0;
        let mut starved = std::mem::take(&mut self.starved);
        starved.retain(|&index| {
            let Some(connection) = self.connections.get_mut(index) else { return false };
            if !connection.is_listed {
                return false; // another connection that has its index now
            }
            let fed = connection.start_waiting(&mut self.backend, now);
            let is_starved = connection.is_starved();
            connection.is_listed = is_starved;
            if fed {
                num_fed += 1;
                self.mark_dirty(index);
            }
            is_starved
        });
        self.starved = starved;
        num_fed
    }

    /// Receives again where there is memory for what comes; returns from how many.
    fn resume_paused(&mut self, now: Instant) -> usize {
        let before = self.paused.len();
        let mut paused = std::mem::take(&mut self.paused);
        paused.retain(|&index| {
            let Some(connection) = self.connections.get_mut(index) else { return false };
            if connection.is_paused && connection.may_receive(&self.backend) {
                connection.pause(false, now);
                watch(&self.epoll, index, connection);
            }
            connection.is_paused
        });
        self.paused = paused;
        before - self.paused.len()
    }

    /// Where hosts wait for memory, closes those that hold it and do not do their part: those that hold
    /// most first, until a quarter of it will be free and none of those who wait holds too much of it.
    fn relieve_hungry(&mut self, now: Instant) {
        let limit = HUNGER.min(self.backend.subsystem.options.send_timeout);
        let connection_bytes = self.backend.connection_bytes;
        let hungry =
            self.connections.iter().filter_map(|(_, c)| c.hunger(now, limit, connection_bytes));
        let hungry: Vec<Hunger> = hungry.collect();
        if hungry.is_empty() {
            return;
        }
        let stalled = self.connections.iter().filter(|(_, c)| c.is_stalled(now, limit));
        let mut stalled: Vec<(usize, usize)> = stalled
            .map(|(index, c)| (c.holds_bytes(), index))
            .filter(|(held, _)| *held > 0)
            .collect();
        stalled.sort_unstable_by(|a, b| b.cmp(a));
        let mut free_bytes = self.backend.pool.free_bytes();
        for (number, (held, index)) in stalled.into_iter().enumerate() {
            let hosts = &self.backend.hosts;
            let is_enough = free_bytes >= connection_bytes
                && hungry.iter().all(|hunger| hosts.may_take(hunger, free_bytes));
            // Who waits although that is so needs it in one piece: one goes each tick until it has.
            if is_enough && number > 0 {
                break;
            }
            self.evict(index, "it held memory that others wait for, and moved no data", now);
            free_bytes += held;
        }
    }

    /// Looks at every time limit.
    fn tick(&mut self, now: Instant) {
        self.next_tick = now + if self.connections.is_empty() { IDLE_TICK } else { TICK };
        if self.accept_paused {
            self.pause_accepting(false);
        }
        let late: Vec<(usize, Closed)> = self
            .connections
            .iter_mut()
            .filter_map(|(index, c)| Some((index, c.check_time(&self.backend, now).err()?)))
            .collect();
        for (index, closed) in late {
            let connection = &self.connections[index];
            if matches!(closed, Closed::Dropped(_)) && !connection.is_terminated() {
                let what = format_args!("dropped: {closed}");
                self.complain(now, Complaint::Late, connection.who(), what);
            }
            self.close(index, closed, now);
        }
        self.forget_known();
        self.relieve_hungry(now);
    }

    fn close(&mut self, index: usize, closed: Closed, now: Instant) {
        let mut connection = self.connections.remove(index);
        connection.say_goodbye(closed, now);
        connection.leave(&mut self.backend);
        self.places.leave(Peer::from(connection.peer.ip()));
        if connection.is_load {
            self.relieve();
        }
        let counters = &self.backend.counters;
        counters.connections.fetch_sub(1, Ordering::Relaxed);
        let is_its_own = matches!(closed, Closed::ByHost | Closed::Lost(_) | Closed::Stopped);
        if !is_its_own || connection.is_terminated() {
            Counters::add(&counters.dropped, 1);
        }
        if connection.is_connected() {
            // The other queues of its controller may be orphans now.
            self.next_tick = Instant::now();
            for (number, door) in self.doors.iter().enumerate() {
                if number != self.number {
                    door.wake();
                }
            }
        }
    }

    fn close_all(&mut self) {
        let indices: Vec<usize> = self.connections.iter().map(|(index, _)| index).collect();
        for index in indices {
            self.close(index, Closed::Stopped, Instant::now());
        }
    }
}

fn make_backend(
    subsystem: Arc<Subsystem>,
    counters: Arc<Counters>,
    devices: &Readiness,
) -> Result<Backend> {
    let bytes = subsystem.options.buffer_bytes.max(4 * subsystem.max_transfer_bytes as usize);
    let pool = Pool::new(PoolOptions { bytes, slot_len_bytes: 4096, huge_pages: HugePages::Auto })?;
    let scope = PairScope::new();
    let queues = subsystem.devices.iter().enumerate().map(|(number, device)| {
        let mut queue_pair = device.queue_pair_in(&scope)?;
        queue_pair.join(&devices.registry(number));
        Ok(NamespaceQueue { queue_pair, pending: VecDeque::new() })
    });
    let queues = queues.collect::<Result<Vec<NamespaceQueue>>>()?;
    Ok(Backend {
        subsystem,
        counters,
        tally: Tally::default(),
        hosts: Hosts::default(),
        pool,
        reserve: Pool::new(PoolOptions {
            bytes: RESERVE_BYTES,
            slot_len_bytes: 4096,
            huge_pages: HugePages::Off,
        })?,
        num_waiting: 0,
        queues,
        connection_bytes: bytes / 4,
    })
}

/// Connections of a poller: as many as the options say, and no more than its share of three quarters of
/// the file descriptors that the process may have; the process needs some for itself.
fn places(subsystem: &Subsystem, num_pollers: usize) -> Places {
    let options = &subsystem.options;
    let (max, max_per_peer) = (options.max_connections, options.max_connections_per_address);
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let files = files.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX));
    let room = (files / 4 * 3 / num_pollers).clamp(MIN_CONNECTIONS, MAX_CONNECTIONS);
    if max <= room {
        return Places::new(max, max_per_peer);
    }
    // One address then has the same part of fewer places.
    let share = max_per_peer as f64 / max as f64;
    Places::new(room, (room as f64 * share).ceil() as usize)
}

/// A file descriptor that can be given up.
fn spare_descriptor() -> Option<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC).ok()
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Sets up an accepted socket: no waiting, no delay, and an end when the other machine is gone.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(Duration::from_secs(5))
        .with_interval(Duration::from_secs(5))
        .with_retries(3);
    let socket = socket2::SockRef::from(stream);
    if stream.peer_addr()?.ip().is_loopback() {
        // Without a wire there is no delay to bridge, and a deep queue only lets the bytes grow cold
        // before the host takes them: half the rate at 4 MiB outstanding. A wire keeps autotuning.
        socket.set_send_buffer_size(LOOPBACK_SEND_BUFFER_BYTES)?;
        // Nor is there anything to be fair to, and BBR, where it is the default, paces by timers. What
        // every kernel has; where it is forbidden the connection works as well, but slower.
        let _ = rustix::net::sockopt::set_tcp_congestion(stream, "reno");
    }
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(Duration::from_secs(30)))
}

fn watch(epoll: &OwnedFd, index: usize, connection: &HostConnection) {
    let mut flags = EventFlags::empty();
    flags.set(EventFlags::IN, !connection.is_paused);
    flags.set(EventFlags::OUT, connection.is_blocked);
    // The socket is registered as long as the connection is in the table.
    let _ = epoll::modify(epoll, &connection.stream, EventData::new_u64(index as u64), flags);
}

/// An error that names the address that could not be had.
pub(super) fn listen_error(address: SocketAddr, error: io::Error) -> Error {
    let (kind, hint) = match error.kind() {
        io::ErrorKind::AddrInUse => {
            (ErrorKind::Busy, "another process listens there: choose another port")
        }
        io::ErrorKind::AddrNotAvailable => {
            (ErrorKind::InvalidArgument, "this machine does not have that address")
        }
        io::ErrorKind::PermissionDenied => {
            (ErrorKind::Refused, "ports below 1024 need a privilege: choose another")
        }
        _ => (ErrorKind::Io, "check the address"),
    };
    Error::new(kind, format!("cannot listen on {address}")).source(error).hint(hint)
}

const WAKER: u64 = u64::MAX;
const LISTENER: u64 = u64::MAX - 1;
/// Bytes under way on a connection within one machine.
const LOOPBACK_SEND_BUFFER_BYTES: usize = 512 << 10;
const ACCEPTS_PER_TURN: usize = 64;
/// Connections that a poller has room for however few file descriptors there may be.
const MIN_CONNECTIONS: usize = 16;
/// How long a host waits for memory before those that hold it without moving data are closed.
const HUNGER: Duration = Duration::from_secs(1);
/// How often time limits are looked at.
pub(super) const TICK: Duration = Duration::from_millis(100);
/// The same while nobody is connected.
const IDLE_TICK: Duration = Duration::from_secs(60);
/// How long a stopped poller waits for its devices.
pub(super) const STOP_LIMIT: Duration = Duration::from_secs(5);
