//! An I/O queue over TCP with its socket, and the queue pairs of one poller that share it.
//!
//! Each of them is a *handle*: it submits for one namespace of the controller, and gets what it submitted.
//! Whichever is polled moves the bytes of all. What it finds for others it lays into their boxes, and marks
//! them. One of them, the *leader*, has the socket among its poller's descriptors and its time-outs among its
//! poller's; when it is dropped, another takes over. A handle with another poller looks by itself.
//!
//! A child process goes on with a queue of its own. Where no thread was at the parent's when it forked, that
//! takes over what handles have submitted. Otherwise nobody knows how far that thread had come: the queue
//! begins empty, each handle is added to it again, and fails what it had under way.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::link::{Link, SCRATCH_LEN};
use super::{Counters, Tcp};
use crate::error::Result;
use crate::process::Forked;
use crate::qpair::readiness::Registry;
use crate::qpair::remote::Remote;
use crate::qpair::session::IoQueue;
use crate::qpair::session::queue::Action;
use crate::qpair::{Completion, Fence, Io, Namespace, Wait};
use crate::units::deadline;

/// An I/O queue that handles share. Its lock is never waited for where one thread polls all handles.
pub(super) struct Connection {
    /// The controller, as the namespaces know it.
    remote: Arc<Remote<Tcp>>,
    counters: Arc<Counters>,
    core: Forked<Mutex<Core>>,
}

/// What the lock is around.
pub(super) struct Core {
    /// Tells it from the one that a child process may have instead.
    number: u64,
    /// The controller, as this process reaches it.
    remote: Arc<Remote<Tcp>>,
    /// As the namespaces know it: a further child begins with this one.
    known_as: Arc<Remote<Tcp>>,
    counters: Arc<Counters>,
    /// The socket, while there is one. Closed before a buffer of the queue is anybody else's.
    link: Option<Link>,
    queue: IoQueue,
    scratch: Vec<u8>,
    /// By the numbers that they have as members of the queue.
    handles: Vec<Option<Handle>>,
    leader: Option<usize>,
    /// Whether handles have submitted since the last send.
    has_unsent: bool,
    /// The time-out that the leader's poller knows.
    told: Option<Instant>,
    /// The last turn, and whose it was.
    last_turn: Option<(Instant, usize)>,
}

#[derive(Default)]
struct Handle {
    /// Completions that another handle found.
    found: VecDeque<Completion>,
    /// Where its poller watches descriptors.
    registry: Option<Registry>,
}

impl Connection {
    /// A connection that is in a session when this returns.
    pub(super) fn open(
        remote: Arc<Remote<Tcp>>,
        counters: Arc<Counters>,
    ) -> Result<Arc<Connection>> {
        let here = remote.for_this_process()?;
        here.add_pair()?;
        let limit = deadline(Instant::now(), here.options.connect_timeout);
        let mut core = Core::new(here, &remote, &counters);
        let joined = loop {
            match core.join_on(limit) {
                Ok(Some(left)) => sleep(core.wait(), left),
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        let core = Forked::new(Mutex::new(core));
        // Also where it has failed: dropping it gives back what it has taken.
        let connection = Connection { remote, counters, core };
        joined.map(|()| Arc::new(connection))
    }

    /// Waits until it is in a session: it was, but may have lost it meanwhile.
    pub(super) fn wait_joined(&self) -> Result<()> {
        let limit = deadline(Instant::now(), self.remote.options.connect_timeout);
        while self.core().join_on(limit)?.is_some() {
            std::thread::sleep(REJOIN_NAP);
        }
        Ok(())
    }

    /// What the lock is around, in this process.
    pub(super) fn core(&self) -> MutexGuard<'_, Core> {
        self.core.get_or_init(|| Mutex::new(self.inherit())).lock()
    }

    /// What a child process goes on with.
    fn inherit(&self) -> Core {
        // Until its first turn it is as if the parent's, and notices then that it is not.
        let empty = Core::new(Arc::clone(&self.remote), &self.remote, &self.counters);
        match self.core.inherited().and_then(Mutex::try_lock) {
            Some(mut inherited) => {
                let core = std::mem::replace(&mut *inherited, empty);
                // Giving it back could wait for a lock of the parent's: that of who waits for locks.
                std::mem::forget(inherited);
                core
            }
            None => empty,
        }
    }

    /// A handle on the core of this number is dropped.
    pub(super) fn remove_member(&self, number: u64, handle: usize) {
        // In a child that never used it, it is the parent's.
        let Some(core) = self.core.get() else { return };
        let mut core = core.lock();
        if core.number == number {
            core.remove_member(handle);
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let Some(core) = self.core.get_mut() else { return };
        let core = core.get_mut();
        if core.remote.is_ours() {
            core.queue.leave_session("the queue pair was dropped");
            core.obey();
            core.remote.remove_pair();
        }
    }
}

impl Core {
    fn new(
        remote: Arc<Remote<Tcp>>,
        known_as: &Arc<Remote<Tcp>>,
        counters: &Arc<Counters>,
    ) -> Core {
        let terms = super::terms(&remote, &remote.portals[0]);
        let queue = IoQueue::new(Instant::now(), terms, remote.options.ctrl_loss_tmo);
        Core {
            number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
            remote,
            known_as: Arc::clone(known_as),
            counters: Arc::clone(counters),
            link: None,
            queue,
            scratch: vec![0; SCRATCH_LEN],
            handles: Vec::new(),
            leader: None,
            has_unsent: false,
            told: None,
            last_turn: None,
        }
    }

    /// Tells it from the one that a child process may have instead.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Moves on into a session; how long to sleep before the next try, `None` once it is in one.
    fn join_on(&mut self, limit: Instant) -> Result<Option<Duration>> {
        let now = Instant::now();
        self.turn(now, true);
        if self.queue.is_joined() {
            return Ok(None);
        }
        let stage = self.queue.stage();
        self.remote.may_wait(now, limit, self.queue.backlog(), stage)?;
        let until = self.queue.poll_timeout().unwrap_or(limit).min(limit);
        Ok(Some(until.saturating_duration_since(now)))
    }

    /// What to sleep on while nobody else polls it.
    fn wait(&self) -> Option<Wait<'_>> {
        Some(self.link.as_ref()?.wait(self.queue.wants_writable()))
    }

    /// A handle on the namespace at `place`: its number.
    pub(super) fn add_member(&mut self, place: usize, namespace: Namespace) -> usize {
        let number = self.queue.add_member(place, namespace);
        if self.handles.len() <= number {
            self.handles.resize_with(number + 1, || None);
        }
        self.handles[number] = Some(Handle::default());
        if self.leader.is_none() {
            self.lead(Some(number));
        }
        number
    }

    fn remove_member(&mut self, handle: usize) {
        self.queue.remove_member(handle);
        self.obey();
        self.handles[handle] = None;
        if self.leader == Some(handle) {
            let joined = |(_, handle): &(usize, &Option<Handle>)| {
                handle.as_ref().is_some_and(|handle| handle.registry.is_some())
            };
            let joined = self.handles.iter().enumerate().find(joined);
            let next = joined.map(|(number, _)| number);
            let next = next.or_else(|| self.handles.iter().position(Option::is_some));
            self.lead(next);
        }
        self.tell_leader(handle);
    }

    /// From now on this handle's poller looks after the socket and the time.
    fn lead(&mut self, handle: Option<usize>) {
        (self.leader, self.told) = (handle, None);
        let writable = self.queue.wants_writable();
        if let Some(link) = &mut self.link {
            match handle.and_then(|handle| self.handles[handle].as_ref()?.registry.as_ref()) {
                Some(registry) => link.register(registry, writable),
                None => link.deregister(),
            }
        }
    }

    /// Where the poller of a handle watches descriptors from now on.
    pub(super) fn register(&mut self, handle: usize, registry: &Registry) {
        let leads = match self.leader {
            Some(leader) if leader == handle => true,
            Some(leader) => self.handles[leader].as_ref().is_none_or(|of| of.registry.is_none()),
            None => true,
        };
        let of = self.handle(handle);
        of.registry = Some(registry.clone());
        if !of.found.is_empty() {
            registry.mark();
        }
        if leads {
            self.lead(Some(handle));
        }
    }

    fn handle(&mut self, handle: usize) -> &mut Handle {
        self.handles[handle].as_mut().expect("there until it is dropped")
    }

    /// Takes what there is room for from a handle. The commands of all handles are sent together.
    pub(super) fn submit(&mut self, handle: usize, pending: &mut VecDeque<Io>) -> usize {
        let count = self.queue.take(handle, pending);
        self.has_unsent |= count > 0;
        count
    }

    /// Sends what handles have submitted since the last time.
    pub(super) fn start(&mut self, handle: usize) {
        if std::mem::take(&mut self.has_unsent) && self.remote.is_ours() {
            let now = Instant::now();
            self.queue.issue(now, &self.remote);
            self.send(now);
            self.tell_leader(handle);
        }
    }

    /// Moves everything on and hands out at most `max` completions of a handle.
    pub(super) fn poll(
        &mut self,
        handle: usize,
        now: Instant,
        max: usize,
        done: &mut Vec<Completion>,
    ) -> usize {
        self.start(handle);
        // The others of its poller have had the turn for it, if they have had theirs at this time.
        if self.last_turn.is_none_or(|(at, whose)| at != now || whose == handle) {
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

    /// When a handle's poller must poll it although nothing becomes ready.
    pub(super) fn next_timeout(&mut self, handle: usize) -> Option<Instant> {
        if self.leader == Some(handle) {
            self.told = self.queue.poll_timeout();
            return self.told;
        }
        let (last_turn, _) = self.last_turn?;
        if !self.handle(handle).found.is_empty() {
            return Some(last_turn);
        }
        self.is_elsewhere(handle).then(|| last_turn + LOOK_INTERVAL)
    }

    /// Whether the poller of a handle is not the leader's, so that it does not know when the socket is ready:
    /// then it looks.
    fn is_elsewhere(&self, handle: usize) -> bool {
        let registry = |handle: usize| self.handles[handle].as_ref()?.registry.as_ref();
        match self.leader {
            Some(leader) if leader != handle => match (registry(leader), registry(handle)) {
                (Some(one), Some(other)) => !one.is_of_poller_of(other),
                (None, None) => false,
                _ => true,
            },
            _ => false,
        }
    }

    /// Has the leader polled, where it is another and its poller believes that there is more time.
    fn tell_leader(&mut self, handle: usize) {
        let Some(leader) = self.leader.filter(|leader| *leader != handle) else { return };
        let until = self.queue.poll_timeout();
        if until.is_some_and(|until| self.told.is_none_or(|told| until < told))
            && let Some(registry) = &self.handle(leader).registry
        {
            registry.mark();
        }
    }

    /// The namespace of a handle, as I/Os are cut to it, where it may be other than before.
    pub(super) fn namespace_since(&self, handle: usize, num_joins: &mut u64) -> Option<&Namespace> {
        let before = std::mem::replace(num_joins, self.queue.num_joins());
        (before != *num_joins).then(|| self.queue.namespace(handle))
    }

    pub(super) fn use_fence(&mut self, handle: usize, fence: &Arc<Fence>) {
        self.queue.use_fence(handle, fence);
    }

    /// Everything but handing out completions. `must_look`: nobody tells when the socket is ready.
    fn turn(&mut self, now: Instant, must_look: bool) {
        if !self.notice_fork(now) {
            return;
        }
        self.queue.begin(now, &self.remote);
        self.obey();
        if let (Some(link), Some(channel)) = (&mut self.link, self.queue.channel()) {
            let moved = link.poll(now, channel, &mut self.scratch, must_look);
            self.counters.add(link.take_receives());
            self.queue.moved(moved);
            self.obey();
        }
        self.queue.finish(&self.remote);
        self.send(now);
    }

    /// Sends what is queued.
    fn send(&mut self, now: Instant) {
        if let (Some(link), Some(channel)) = (&mut self.link, self.queue.channel())
            && let Err(failure) = link.send(now, channel)
        {
            self.queue.moved(Err(failure));
            self.obey();
        }
        let is_expecting = self.queue.owed() > 0 || !self.queue.is_joined();
        if let Some(link) = &mut self.link {
            link.expect(is_expecting);
        }
    }

    /// Opens and closes the socket as the queue says.
    fn obey(&mut self) {
        while let Some(action) = self.queue.poll_action() {
            match action {
                Action::Open(address) => match Link::start(address) {
                    Ok(link) => {
                        self.link = Some(link);
                        self.lead(self.leader);
                    }
                    Err(failure) => self.queue.moved(Err(failure)),
                },
                Action::Close { owes_data } => {
                    if let Some(link) = self.link.take() {
                        link.close(owes_data);
                    }
                    self.queue.closed(&self.remote);
                }
            }
        }
    }

    /// In a child process the connection and what it shares are the parent's: nothing is sent on the
    /// one, no lock of the other is touched. Whether there is something to go on with.
    fn notice_fork(&mut self, now: Instant) -> bool {
        if self.remote.is_ours() {
            return true;
        }
        self.queue.leave_session("the process has forked");
        self.obey();
        self.queue.reset_after_fork(now);
        match self.known_as.for_this_process() {
            Ok(remote) => {
                self.remote = remote;
                // One too many is told by the target.
                let _ = self.remote.add_pair();
                true
            }
            Err(error) => {
                self.queue.backlog().fail_all(&error.to_string());
                false
            }
        }
    }
}

fn sleep(wait: Option<Wait<'_>>, limit: Duration) {
    let limit = Timespec::try_from(limit).ok();
    let mut fds: Vec<PollFd<'_>> = Vec::new();
    if let Some(Wait { fd, writable }) = wait {
        let flags = if writable { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        fds.push(PollFd::from_borrowed_fd(fd, flags));
    }
    let _ = rustix::event::poll(&mut fds, limit.as_ref()); // an error is a signal: look again
}

/// Of the next [`Core`].
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

/// How often a handle looks whose poller is not told.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);

/// How often a new handle on a connection that has lost its session looks for the next.
const REJOIN_NAP: Duration = Duration::from_millis(1);
