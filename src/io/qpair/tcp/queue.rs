//! A queue pair over TCP, and the I/O queue with its sockets that the queue pairs of one [`PairScope`] share.
//!
//! Each of these queue pairs is a *handle*: it submits for one namespace of the controller and receives the completions
//! of its I/Os. The handle that is polled transfers the bytes of all handles. It stores the completions of
//! other handles, and marks these handles. One handle, the *leader*, registers the sockets and the timeouts with
//! its poller; when the leader is dropped, another handle takes over. A handle with another poller polls the
//! sockets itself, at least once in `POLL_INTERVAL`.
//!
//! A child process continues with another queue. If no thread was using the parent's queue at the fork,
//! the child takes over the I/Os that handles have submitted. Otherwise the state of the parent's queue is
//! unknown: the child's queue begins empty, each handle is added to it again, and the handle's outstanding
//! I/Os fail.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use rustix::event::{PollFd, Timespec};

use super::link::{Link, SCRATCH_LEN};
use super::terms::portal_terms;
use super::{Counters, Tcp};
use crate::qpair::readiness::Registry;
use crate::qpair::remote::Remote;
use crate::qpair::session::lifecycle::NUM_SLOTS;
use crate::qpair::session::{Attempt, Carrier, Channel, Failure, IoQueue, Lifecycle};
use crate::qpair::{Completion, Fence, Io, Namespace, Notice, Outstanding, PairScope, QueuePair};
use dlfs_base::error::Result;
use dlfs_base::process::Forked;
use dlfs_base::units::{Lba, deadline};

/// A queue pair on a remote namespace.
pub(super) struct TcpQueuePair {
    connection: Arc<SharedConnection>,
    member: Membership,
}

/// A queue pair's membership in its connection.
struct Membership {
    /// The [`Core::number`] of the core that the queue pair was added to.
    core: u64,
    /// The queue pair's number among the core's handles.
    handle: usize,
    /// The index of the namespace in a session.
    ns_index: usize,
    /// The namespace as of the last session that this handle has noticed.
    namespace: Namespace,
    /// The number of sessions that the queue had joined then.
    num_joins: u64,
    /// The fence of the queue pair's writes; `None`: no fence.
    fence: Option<Arc<Fence>>,
    outstanding: Outstanding,
}

impl TcpQueuePair {
    /// Opens a queue pair on `namespace`, which has the index `ns_index`, and waits until it has joined a session.
    pub(super) fn connect(
        remote: &Arc<Remote<Tcp>>,
        ns_index: usize,
        namespace: Namespace,
        scope: &PairScope,
    ) -> Result<TcpQueuePair> {
        let open = || SharedConnection::open(Arc::clone(remote));
        let connection = scope.get_or_open(remote, open)?;
        connection.wait_joined()?;
        let mut core = connection.core();
        let member = Membership {
            core: core.number,
            handle: core.add_member(ns_index, namespace.clone()),
            ns_index,
            namespace,
            num_joins: 0,
            fence: None,
            outstanding: Outstanding::default(),
        };
        drop(core);
        Ok(TcpQueuePair { connection, member })
    }

    /// The core of this process, locked, and this queue pair's membership in it.
    fn enter(&mut self) -> (MutexGuard<'_, Core>, &mut Membership) {
        let mut core = self.connection.core();
        if core.number != self.member.core {
            self.member.join_new_core(&mut core);
        }
        (core, &mut self.member)
    }
}

impl Membership {
    /// Joins the new core of a child process. That core does not know this queue pair yet.
    fn join_new_core(&mut self, core: &mut Core) {
        self.core = core.number;
        self.handle = core.add_member(self.ns_index, self.namespace.clone());
        self.num_joins = 0;
        if let Some(fence) = &self.fence {
            core.queue.use_fence(self.handle, fence);
        }
        self.outstanding.lose(
            "the process was forked while another thread used this connection, so that its I/Os and their \
             buffers stay with the parent; submit them again",
        );
    }
}

impl QueuePair for TcpQueuePair {
    fn namespace(&self) -> &Namespace {
        &self.member.namespace
    }

    fn submit(&mut self, pending: &mut VecDeque<Io>) -> usize {
        let (mut core, member) = self.enter();
        let most = usize::from(member.namespace.queue_depth);
        let handle = member.handle;
        member.outstanding.take(pending, most, |pending| core.submit(handle, pending))
    }

    fn poll(&mut self, now: Instant, max: usize, done: &mut Vec<Completion>) -> usize {
        let (mut core, member) = self.enter();
        let failed = member.outstanding.fail_lost(max, done);
        let before = done.len();
        let count = core.poll(member.handle, now, max - failed, done);
        member.outstanding.forget(&done[before..]);
        let num_joins = core.queue.num_joins;
        if std::mem::replace(&mut member.num_joins, num_joins) != num_joins {
            member.namespace.clone_from(core.queue.namespace(member.handle));
        }
        failed + count
    }

    fn start(&mut self) {
        let (mut core, member) = self.enter();
        core.start(member.handle);
    }

    fn use_fence(&mut self, fence: &Arc<Fence>) {
        let (mut core, member) = self.enter();
        core.queue.use_fence(member.handle, fence);
        member.fence = Some(Arc::clone(fence));
    }

    fn outstanding(&self) -> usize {
        self.member.outstanding.len()
    }

    fn shared_queue(&self) -> Option<usize> {
        Some(Arc::as_ptr(&self.connection).addr())
    }

    /// The next read of these blocks has Force Unit Access: no cache of the controller may serve it.
    fn report_corrupt(&mut self, slba: Lba, len_bytes: usize) {
        let (mut core, member) = self.enter();
        let num_blocks = len_bytes.div_ceil(member.namespace.block_len_bytes as usize) as u64;
        core.queue.report_corrupt(member.handle, slba.0..slba.0.saturating_add(num_blocks));
    }

    fn register(&mut self, registry: &Registry) {
        let (mut core, member) = self.enter();
        core.register(member.handle, registry);
    }

    fn notice(&self) -> Notice {
        Notice::Event
    }

    fn next_timeout(&self) -> Option<Instant> {
        let mut core = self.connection.core();
        if core.number != self.member.core || self.member.outstanding.has_lost() {
            return Some(Instant::now()); // the next turn has something to fail
        }
        core.next_timeout(self.member.handle)
    }
}

impl Drop for TcpQueuePair {
    fn drop(&mut self) {
        // In a child process that never used the connection, its core belongs to the parent.
        let Some(core) = self.connection.core.get() else { return };
        let mut core = core.lock();
        if core.number == self.member.core {
            core.remove_member(self.member.handle);
        }
    }
}

/// An I/O queue that handles share. Its lock is never contended while one thread polls all handles.
struct SharedConnection {
    /// The controller's remote, as the namespaces hold it.
    remote: Arc<Remote<Tcp>>,
    core: Forked<Mutex<Core>>,
}

/// The state behind the lock.
struct Core {
    /// Distinguishes this core from the one that replaces it in a child process.
    number: u64,
    /// The controller's remote in this process.
    remote: Arc<Remote<Tcp>>,
    /// The remote that the namespaces hold: a further child process begins with it.
    original_remote: Arc<Remote<Tcp>>,
    /// The sockets of the queue's connections, which are closed before a buffer of the queue is returned.
    sockets: QueueSockets,
    queue: IoQueue,
    /// The handles, by their member numbers in the queue.
    handles: Vec<Option<CoreHandle>>,
    /// The number of the leader; `None` only while there are no handles.
    leader: Option<usize>,
    /// Set once a handle has submitted since the last send.
    has_unsent: bool,
    /// The time of the last turn, and the handle that ran it.
    last_turn: Option<(Instant, usize)>,
}

/// A handle, as the other handles see it.
#[derive(Default)]
struct CoreHandle {
    /// Completions that another handle received.
    found: VecDeque<Completion>,
    /// The registry of the handle's poller.
    registry: Option<Registry>,
}

impl SharedConnection {
    /// Opens a connection and waits until it has joined a session.
    fn open(original: Arc<Remote<Tcp>>) -> Result<Arc<SharedConnection>> {
        let remote = original.for_this_process()?;
        remote.add_pair()?;
        let limit = deadline(Instant::now(), remote.options.connect_timeout);
        let mut core = Core::new(remote, &original);
        let joined = loop {
            match core.join_on(limit) {
                Ok(Some(left)) => sleep(core.waits(), left),
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        let core = Forked::new(Mutex::new(core));
        // Created also after a failure, because dropping the connection releases its resources.
        let connection = SharedConnection { remote: original, core };
        joined.map(|()| Arc::new(connection))
    }

    /// Waits until the connection is in a session again: it may have lost its session since it was opened.
    fn wait_joined(&self) -> Result<()> {
        let limit = deadline(Instant::now(), self.remote.options.connect_timeout);
        while self.core().join_on(limit)?.is_some() {
            std::thread::sleep(REJOIN_NAP);
        }
        Ok(())
    }

    /// The core of this process, locked.
    fn core(&self) -> MutexGuard<'_, Core> {
        self.core.get_or_init(|| Mutex::new(self.inherit())).lock()
    }

    /// The core that a child process continues with.
    fn inherit(&self) -> Core {
        // It has the parent's remote until its first turn, which notices the fork.
        let empty = Core::new(Arc::clone(&self.remote), &self.remote);
        match self.core.inherited().and_then(Mutex::try_lock) {
            Some(mut inherited) => {
                let core = std::mem::replace(&mut *inherited, empty);
                // Dropping the guard could wait for a lock that another thread of the parent held at the fork.
                std::mem::forget(inherited);
                core
            }
            None => empty,
        }
    }
}

impl Drop for SharedConnection {
    fn drop(&mut self) {
        let Some(core) = self.core.get_mut() else { return };
        let core = core.get_mut();
        if core.remote.is_ours() {
            core.queue.leave("the queue pair was dropped", &core.remote, &mut core.sockets);
            core.remote.with(Lifecycle::remove_pair);
        }
    }
}

impl Core {
    /// Creates a core for `remote`, with which this process replaces or continues `original`.
    fn new(remote: Arc<Remote<Tcp>>, original: &Arc<Remote<Tcp>>) -> Core {
        let terms = portal_terms(&remote, &remote.portals[0]);
        let queue = IoQueue::new(Instant::now(), terms, remote.options.ctrl_loss_tmo);
        Core {
            number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
            remote,
            original_remote: Arc::clone(original),
            sockets: QueueSockets {
                links: Default::default(),
                registry: None,
                told: None,
                scratch: Vec::new(),
                counters: Arc::clone(&original.counters),
                must_read: false,
            },
            queue,
            handles: Vec::new(),
            leader: None,
            has_unsent: false,
            last_turn: None,
        }
    }

    /// Continues to join a session; returns the time to sleep before the next attempt, `None` once it has
    /// joined.
    fn join_on(&mut self, limit: Instant) -> Result<Option<Duration>> {
        let now = Instant::now();
        self.turn(now, true);
        if self.queue.is_joined() {
            return Ok(None);
        }
        let stage = self.queue.stage();
        self.remote.may_wait(now, limit, &self.queue.backlog, stage)?;
        let until = self.queue.poll_timeout().unwrap_or(limit).min(limit);
        Ok(Some(until.saturating_duration_since(now)))
    }

    /// The descriptors to sleep on while no poller polls the connection.
    fn waits(&self) -> impl Iterator<Item = PollFd<'_>> {
        let links = self.sockets.links.iter().enumerate();
        links.filter_map(|(slot, link)| Some(link.as_ref()?.wait(self.queue.wants_writable(slot))))
    }

    /// Adds a handle for the namespace at index `ns_index`; returns its number.
    fn add_member(&mut self, ns_index: usize, namespace: Namespace) -> usize {
        let number = self.queue.add_member(ns_index, namespace);
        if self.handles.len() <= number {
            self.handles.resize_with(number + 1, || None);
        }
        self.handles[number] = Some(CoreHandle::default());
        if self.leader.is_none() {
            self.set_leader(Some(number));
        }
        number
    }

    /// Removes a handle. If it was the leader, another handle takes over.
    fn remove_member(&mut self, handle: usize) {
        self.queue.remove_member(handle, &self.remote, &mut self.sockets);
        self.handles[handle] = None;
        if self.leader == Some(handle) {
            let has_poller = |handle: &Option<CoreHandle>| {
                handle.as_ref().is_some_and(|handle| handle.registry.is_some())
            };
            let next = self.handles.iter().position(has_poller);
            let next = next.or_else(|| self.handles.iter().position(Option::is_some));
            self.set_leader(next);
        }
        self.tell_leader(handle);
    }

    /// Makes this handle the leader: its poller watches the sockets and the timeouts.
    fn set_leader(&mut self, handle: Option<usize>) {
        self.leader = handle;
        self.sockets.registry =
            handle.and_then(|handle| self.handles[handle].as_ref()?.registry.clone());
        self.sockets.told = None;
        for (slot, link) in self.sockets.links.iter_mut().enumerate() {
            match (link, &self.sockets.registry) {
                (Some(link), Some(registry)) => {
                    link.register(registry, self.queue.wants_writable(slot));
                }
                (Some(link), None) => link.socket.deregister(),
                (None, _) => {}
            }
        }
    }

    /// Sets the registry of a handle's poller.
    fn register(&mut self, handle: usize, registry: &Registry) {
        let leads =
            self.leader.is_none_or(|leader| leader == handle) || self.sockets.registry.is_none();
        let state = self.handle(handle);
        state.registry = Some(registry.clone());
        if !state.found.is_empty() {
            registry.mark();
        }
        if leads {
            self.set_leader(Some(handle));
        }
    }

    fn handle(&mut self, handle: usize) -> &mut CoreHandle {
        self.handles[handle].as_mut().expect("there until it is dropped")
    }

    /// Takes I/Os of a handle while there is room. The commands of all handles are sent together.
    fn submit(&mut self, handle: usize, pending: &mut VecDeque<Io>) -> usize {
        let count = self.queue.take(handle, pending);
        self.has_unsent |= count > 0;
        count
    }

    /// Sends the commands that handles have submitted since the last send.
    fn start(&mut self, handle: usize) {
        if std::mem::take(&mut self.has_unsent) && self.remote.is_ours() {
            let now = Instant::now();
            let Core { queue, remote, sockets, .. } = self;
            queue.issue(now, remote);
            queue.send(now, remote, sockets);
            self.expect();
            self.tell_leader(handle);
        }
    }

    /// Runs a turn and appends at most `max` completions of a handle.
    fn poll(
        &mut self,
        handle: usize,
        now: Instant,
        max: usize,
        done: &mut Vec<Completion>,
    ) -> usize {
        self.start(handle);
        // A poller passes one time to all its queue pairs: another handle may have run this turn already.
        if self.last_turn.is_none_or(|(at, by)| at != now || by == handle) {
            self.turn(now, self.is_elsewhere(handle));
            self.last_turn = Some((now, handle));
        }
        let found = &mut self.handle(handle).found;
        let mut count = found.len().min(max);
        done.extend(found.drain(..count));
        while count < max {
            let Some(answer) = self.queue.next_completion(&self.remote) else { break };
            if answer.member == handle {
                done.push(answer.completion);
                count += 1;
                continue;
            }
            let other = self.handle(answer.member);
            other.found.push_back(answer.completion);
            if let Some(registry) = &other.registry {
                registry.mark();
            }
        }
        self.tell_leader(handle);
        count
    }

    /// The time at which a handle's poller must poll it, even if no descriptor becomes ready.
    fn next_timeout(&mut self, handle: usize) -> Option<Instant> {
        if self.leader == Some(handle) {
            self.sockets.told = self.queue.poll_timeout();
            return self.sockets.told;
        }
        let (last_turn, _) = self.last_turn?;
        if !self.handle(handle).found.is_empty() {
            return Some(last_turn);
        }
        self.is_elsewhere(handle).then(|| last_turn + POLL_INTERVAL)
    }

    /// Returns whether the handle's poller is not the leader's: then that poller does not learn when a socket is ready,
    /// and the handle polls the sockets itself.
    fn is_elsewhere(&self, handle: usize) -> bool {
        if self.leader.is_none_or(|leader| leader == handle) {
            return false;
        }
        let registry = self.handles[handle].as_ref().and_then(|state| state.registry.as_ref());
        match (&self.sockets.registry, registry) {
            (Some(one), Some(other)) => !one.is_of_poller_of(other),
            (None, None) => false,
            _ => true,
        }
    }

    /// Marks the leader, if it is another handle and the timeout is now earlier than its poller knows.
    fn tell_leader(&mut self, handle: usize) {
        if self.leader.is_none_or(|leader| leader == handle) {
            return;
        }
        if let (Some(until), Some(registry)) = (self.queue.poll_timeout(), &self.sockets.registry)
            && self.sockets.told.is_none_or(|told| until < told)
        {
            registry.mark();
        }
    }

    /// Runs a turn without returning completions. `must_read`: no event reports that a socket is ready.
    fn turn(&mut self, now: Instant, must_read: bool) {
        if !self.notice_fork(now) {
            return;
        }
        self.sockets.must_read = must_read;
        self.queue.turn(now, &self.remote, &mut self.sockets);
        self.expect();
    }

    /// Tells the sockets whether an answer of the target is expected.
    fn expect(&mut self) {
        let is_expecting = self.queue.owed() > 0 || !self.queue.is_joined();
        self.sockets.links.iter_mut().flatten().for_each(|link| link.socket.expect(is_expecting));
    }

    /// In a child process the connection and its shared state belong to the parent: the child sends nothing
    /// on the connection and takes no lock of the shared state. Returns `false` if the child cannot connect, and all
    /// I/Os were failed.
    fn notice_fork(&mut self, now: Instant) -> bool {
        if self.remote.is_ours() {
            return true;
        }
        self.queue.leave("the process has forked", &self.remote, &mut self.sockets);
        self.queue.backlog.down_since = Some(now);
        match self.original_remote.for_this_process() {
            Ok(remote) => {
                self.remote = remote;
                self.remote.with(Lifecycle::inherit_pair);
                true
            }
            Err(error) => {
                self.queue.backlog.fail_all(&error.to_string());
                false
            }
        }
    }
}

/// The sockets of an I/O queue.
struct QueueSockets {
    /// The socket of each slot of the queue; `None`: no connection.
    links: [Option<Link>; NUM_SLOTS],
    /// The registry of the leader's poller.
    registry: Option<Registry>,
    /// The timeout that the leader last told its poller. `None`: none, or it may have changed since.
    told: Option<Instant>,
    /// Memory for [`Link::poll`], allocated with the first socket.
    scratch: Vec<u8>,
    counters: Arc<Counters>,
    /// True if no event reports that a socket is ready.
    must_read: bool,
}

impl Carrier for QueueSockets {
    fn open(&mut self, slot: usize, address: SocketAddr) -> Result<(), Failure> {
        if self.scratch.is_empty() {
            self.scratch = vec![0; SCRATCH_LEN];
        }
        let link = self.links[slot].insert(Link::start(address)?);
        if let Some(registry) = &self.registry {
            link.register(registry, true); // it is writable once it is connected
        }
        self.told = None;
        Ok(())
    }

    fn transfer(
        &mut self,
        slot: usize,
        now: Instant,
        channel: &mut Channel<Attempt>,
    ) -> Result<(), Failure> {
        let Some(link) = &mut self.links[slot] else { return Ok(()) };
        let transferred = link.poll(now, channel, &mut self.scratch, self.must_read);
        self.counters.add(std::mem::take(&mut link.receives));
        transferred
    }

    fn send(
        &mut self,
        slot: usize,
        now: Instant,
        channel: &mut Channel<Attempt>,
    ) -> Result<(), Failure> {
        self.links[slot].as_mut().map_or(Ok(()), |link| link.send(now, channel))
    }

    fn close(&mut self, slot: usize, owes_data: bool) {
        if let Some(link) = self.links[slot].take() {
            link.close(owes_data);
        }
    }
}

/// Sleeps until one of the descriptors is ready, for at most `limit`; may return early.
pub(super) fn sleep<'a>(waits: impl IntoIterator<Item = PollFd<'a>>, limit: Duration) {
    let limit = Timespec::try_from(limit).ok();
    let mut fds: Vec<PollFd<'_>> = waits.into_iter().collect();
    let _ = rustix::event::poll(&mut fds, limit.as_ref()); // an error is a signal: the caller polls again
}

/// The number of the next [`Core`].
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

/// The polling interval of a handle whose poller gets no events of the sockets.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The polling interval of a new handle on a connection that has lost its session.
const REJOIN_NAP: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests;
