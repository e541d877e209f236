//! One queue pair shared by several threads, for devices that grant too few queue pairs.
//!
//! Each thread has a handle, which is a [`QueuePair`]. All handles submit to one queue pair of the device. The
//! handle that polls advances the queue pair for all handles, and marks the handles whose completions it finds.
//!
//! The descriptors of the shared queue pair are in a separate epoll set, and the descriptor of that set is
//! registered with each handle's poller. So every poller wakes up, even if the other pollers do nothing.
//!
//! This is for writers on a target that grants few I/O queues, not for the read path: every poll takes a
//! lock.
//!
//! A child process continues with the shared queue pair if no thread of the parent was using it at the fork.
//! Otherwise the queue pair's state is unknown, and its lock held for ever: then the inherited handles fail their I/Os
//! in the child, and the device opens another queue pair there.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use slab::Slab;

use super::readiness::{Readiness, Registry, Watched};
use super::{
    Capabilities, Completion, Device, Fence, Io, Namespace, Notice, Outstanding, PairScope,
    QueuePair,
};
use dlfs_base::buf::{Pool, SharedBuf};
use dlfs_base::error::Result;
use dlfs_base::process::Forked;
use dlfs_base::units::Lba;

/// A device whose queue pairs are handles of one shared queue pair.
pub struct SharedDevice {
    device: Arc<dyn Device>,
    /// The scope in which the shared queue pair is opened.
    scope: Arc<PairScope>,
    /// The shared queue pair, while it has handles. Locked while one is opened.
    current: Forked<Mutex<Weak<SharedQueue>>>,
}

/// The shared queue pair behind its lock. It holds `None` in a child process that could not continue it.
struct SharedQueue(Forked<Mutex<Option<SharedPair>>>);

/// The shared queue pair and its handles.
struct SharedPair {
    pair: Box<dyn QueuePair>,
    /// The descriptors of `pair`.
    readiness: Readiness,
    /// The owner of each I/O that `pair` has taken, by the I/O's tag in `pair`.
    owners: Slab<Owner>,
    /// The handles, by their numbers.
    handles: HashMap<u64, HandleState>,
    /// The number of the next handle.
    next_handle: u64,
    /// The number of I/Os that have completed, each of which made room.
    num_ended: u64,
    /// True if `pair` has the fence of a handle.
    is_fenced: bool,
    /// Empty between polls; kept for its memory.
    scratch: Vec<Completion>,
}

/// A handle's state, which the other handles use.
#[derive(Default)]
struct HandleState {
    /// Completions that the handle has not taken yet.
    arrived: VecDeque<Completion>,
    /// Set if the shared queue had no room for its last submission: a completion makes room.
    was_refused: bool,
    /// Marks this handle for its poller; `None` before the handle is registered.
    registry: Option<Registry>,
}

/// The handle that submitted an I/O, and the I/O's tag there.
struct Owner {
    /// The number of the handle.
    handle: u64,
    /// The I/O's tag in the handle.
    tag: u64,
}

impl SharedDevice {
    /// Wraps `device` and uses one queue pair of `device` at a time. Devices behind one controller that have the
    /// same `scope` share one I/O queue, whichever threads poll their handles.
    pub fn new(device: Arc<dyn Device>, scope: Arc<PairScope>) -> SharedDevice {
        SharedDevice { device, scope, current: Forked::new(Mutex::default()) }
    }

    /// The shared queue pair that a child process begins with.
    fn inherit(&self) -> Weak<SharedQueue> {
        let Some(current) = self.current.inherited().and_then(Mutex::try_lock) else {
            return Weak::new(); // a thread of the parent was opening another one
        };
        let inherited = current.clone();
        std::mem::forget(current); // as in `SharedQueue::inherit`
        inherited
    }
}

impl Device for SharedDevice {
    fn below(&self) -> Option<&dyn Device> {
        Some(&*self.device)
    }

    fn namespace(&self) -> Namespace {
        self.device.namespace()
    }

    fn queue_pair_in(&self, _: &PairScope) -> Result<Box<dyn QueuePair>> {
        let mut current = self.current.get_or_init(|| Mutex::new(self.inherit())).lock();
        let usable = current.upgrade().and_then(|queue| SharedHandle::on(&queue));
        Ok(Box::new(match usable {
            Some(handle) => handle,
            None => {
                let pair = SharedPair::on(self.device.queue_pair_in(&self.scope)?)?;
                let queue = Arc::new(SharedQueue(Forked::new(Mutex::new(Some(pair)))));
                *current = Arc::downgrade(&queue);
                SharedHandle::on(&queue).expect("it is of this process")
            }
        }))
    }

    /// Handles are unlimited.
    fn capabilities(&self) -> Capabilities {
        Capabilities { max_queue_pairs: usize::MAX, ..self.device.capabilities() }
    }
}

impl SharedQueue {
    /// The shared queue pair in this process.
    fn lock(&self) -> MutexGuard<'_, Option<SharedPair>> {
        self.0.get_or_init(|| Mutex::new(self.inherit())).lock()
    }

    /// The shared queue pair that a child process takes over from its parent.
    fn inherit(&self) -> Option<SharedPair> {
        let mut inherited = self.0.inherited()?.try_lock()?;
        let pair = inherited.take();
        // Dropping the guard could wait for a lock that another thread of the parent held at the fork.
        std::mem::forget(inherited);
        pair
    }
}

impl SharedPair {
    /// Shares this queue pair, which nobody else polls.
    fn on(mut pair: Box<dyn QueuePair>) -> Result<SharedPair> {
        let readiness = Readiness::new()?;
        pair.register(&readiness.registry(0));
        readiness.fall_asleep_between_turns();
        Ok(SharedPair {
            pair,
            readiness,
            owners: Slab::new(),
            handles: HashMap::new(),
            next_handle: 0,
            num_ended: 0,
            is_fenced: false,
            scratch: Vec::new(),
        })
    }

    /// Polls the shared queue pair, and marks the other handles that have completions or may have room. `poller` is
    /// the handle that polls.
    fn turn(&mut self, poller: u64, now: Instant) {
        self.notice_fork();
        self.readiness.get_up_for_a_turn();
        self.readiness.look(|_| {}); // sets the flags of ready descriptors; the pair is polled anyway
        self.pair.poll(now, usize::MAX, &mut self.scratch);
        let has_room = !self.scratch.is_empty();
        self.num_ended += self.scratch.len() as u64;
        for completion in self.scratch.drain(..) {
            let Owner { handle, tag } = self.owners.remove(completion.tag as usize);
            // The completions of a dropped handle are discarded.
            let Some(state) = self.handles.get_mut(&handle) else { continue };
            state.arrived.push_back(Completion { tag, ..completion });
            if handle != poller {
                state.mark();
            }
        }
        if has_room {
            let others = self.handles.iter().filter(|(handle, _)| **handle != poller);
            others.filter(|(_, state)| state.was_refused).for_each(|(_, state)| state.mark());
        }
        // From now on a mark makes the set ready. For a mark that was set meanwhile, some handle must poll again.
        if !self.readiness.fall_asleep_between_turns() {
            self.handles.values().for_each(HandleState::mark);
        }
    }

    /// In a child process, replaces the epoll set, which belongs to the parent.
    fn notice_fork(&mut self) {
        if !self.readiness.is_ours()
            && let Ok(readiness) = Readiness::new()
        {
            self.readiness = readiness;
            self.pair.register(&self.readiness.registry(0));
            self.readiness.fall_asleep_between_turns();
        }
    }
}

impl HandleState {
    /// Marks the handle, so that its poller polls it.
    fn mark(&self) {
        if let Some(registry) = &self.registry {
            registry.mark();
        }
    }
}

/// One thread's handle of the shared queue pair.
struct SharedHandle {
    queue: Arc<SharedQueue>,
    /// The handle's number in [`SharedPair::handles`].
    number: u64,
    /// The namespace as of the last poll.
    namespace: Namespace,
    outstanding: Outstanding,
    /// The value of `SharedPair::num_ended` when the handle found no room.
    refused_at: u64,
    /// Set once the poller was asked to submit again since `refused_at`.
    asked_again: bool,
    /// The fence of the handle's writes; `None`: no fence.
    fence: Option<Arc<Fence>>,
    /// The epoll set of the shared queue pair; `None` when the process has reached its limit of descriptors.
    set: Option<Watched<OwnedFd>>,
    /// The last `notice` of the shared queue pair; `Poll` while completions wait in the handle.
    notice: Notice,
    /// The time of the next poll: the timeout of the shared queue pair, or earlier if the handle waits for room.
    next_timeout: Option<Instant>,
}

impl SharedHandle {
    /// Creates a handle; `None` if this process could not continue the queue pair.
    fn on(queue: &Arc<SharedQueue>) -> Option<SharedHandle> {
        let mut shared = queue.lock();
        let shared = shared.as_mut()?;
        let number = shared.next_handle;
        let namespace = shared.pair.namespace().clone();
        shared.next_handle += 1;
        shared.handles.insert(number, HandleState::default());
        Some(SharedHandle {
            queue: Arc::clone(queue),
            number,
            namespace,
            outstanding: Outstanding::default(),
            refused_at: 0,
            asked_again: false,
            fence: None,
            set: None,
            notice: Notice::Poll,
            next_timeout: None,
        })
    }

    /// Polls in a child process that could not continue the queue pair: all I/Os fail.
    fn poll_lost(&mut self, now: Instant, max: usize, done: &mut Vec<Completion>) -> usize {
        self.set = None;
        self.outstanding.lose(LOST);
        let count = self.outstanding.fail_lost(max, done);
        self.next_timeout = self.outstanding.has_lost().then_some(now);
        count
    }

    /// Brings `next_timeout` forward for a handle that found no room. Its poller submits again after each wait, so it
    /// must not sleep once there is room. `num_ended`: that of the shared queue pair.
    fn poll_for_room(&mut self, now: Instant, num_ended: u64) {
        let has_room = num_ended != self.refused_at;
        let at = if has_room && !std::mem::replace(&mut self.asked_again, true) {
            now
        } else if has_room || self.notice == Notice::Poll {
            // The poller did not submit when asked, perhaps for lack of I/Os. Or only polling the shared queue pair
            // finds completions.
            now + ROOM_INTERVAL
        } else {
            return;
        };
        self.next_timeout = Some(self.next_timeout.map_or(at, |next| next.min(at)));
    }
}

impl QueuePair for SharedHandle {
    fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    fn submit(&mut self, pending: &mut VecDeque<Io>) -> usize {
        let queue = Arc::clone(&self.queue);
        let mut shared = queue.lock();
        let Some(SharedPair { pair, owners, handles, num_ended, is_fenced, .. }) = &mut *shared
        else {
            return self.outstanding.refuse(pending, LOST);
        };
        let number = self.number;
        // Another handle may have set its own fence.
        match &self.fence {
            Some(fence) => pair.use_fence(fence),
            None if *is_fenced => pair.use_fence(&Fence::open()),
            None => {}
        }
        *is_fenced = self.fence.is_some();
        let most = usize::from(self.namespace.queue_depth);
        let taken = self.outstanding.take(pending, most, |pending| {
            let with_key = |io: Io| {
                let key = owners.insert(Owner { handle: number, tag: io.tag });
                Io { tag: key as u64, ..io }
            };
            let mut offered: VecDeque<Io> = pending.drain(..).map(with_key).collect();
            let taken = pair.submit(&mut offered);
            for io in offered {
                let Owner { tag, .. } = owners.remove(io.tag as usize);
                pending.push_back(Io { tag, ..io });
            }
            taken
        });
        let state = handles.get_mut(&number).expect("there while the handle is");
        state.was_refused = !pending.is_empty();
        if state.was_refused {
            self.refused_at = *num_ended;
            self.asked_again = false;
            self.poll_for_room(Instant::now(), *num_ended);
        }
        taken
    }

    fn poll(&mut self, now: Instant, max: usize, done: &mut Vec<Completion>) -> usize {
        let queue = Arc::clone(&self.queue);
        let mut shared = queue.lock();
        let Some(shared) = &mut *shared else { return self.poll_lost(now, max, done) };
        shared.turn(self.number, now);
        let SharedPair { pair, handles, num_ended, .. } = shared;
        if *pair.namespace() != self.namespace {
            self.namespace = pair.namespace().clone();
        }
        self.notice = pair.notice();
        self.next_timeout = pair.next_timeout();
        let state = handles.get_mut(&self.number).expect("there while the handle is");
        if state.was_refused {
            self.poll_for_room(now, *num_ended);
        }
        let count = max.min(state.arrived.len());
        let before = done.len();
        done.extend(state.arrived.drain(..count));
        self.outstanding.forget(&done[before..]);
        if !state.arrived.is_empty() {
            self.notice = Notice::Poll;
        }
        if let Some(set) = &mut self.set {
            set.take_ready();
            set.expect(self.outstanding.len() > 0);
        }
        count
    }

    fn use_fence(&mut self, fence: &Arc<Fence>) {
        self.fence = Some(Arc::clone(fence));
    }

    fn start(&mut self) {
        if let Some(shared) = &mut *self.queue.lock() {
            shared.pair.start();
        }
    }

    fn use_pool(&mut self, pool: &Pool) {
        if let Some(shared) = &mut *self.queue.lock() {
            shared.pair.use_pool(pool);
        }
    }

    fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    fn report_corrupt(&mut self, slba: Lba, len_bytes: usize) {
        if let Some(shared) = &mut *self.queue.lock() {
            shared.pair.report_corrupt(slba, len_bytes);
        }
    }

    fn borrow(&self, slba: Lba, len_bytes: usize) -> Option<SharedBuf> {
        self.queue.lock().as_ref()?.pair.borrow(slba, len_bytes)
    }

    fn has_copies(&self, slba: Lba, len_bytes: usize) -> bool {
        self.queue.lock().as_ref().is_some_and(|shared| shared.pair.has_copies(slba, len_bytes))
    }

    fn shared_queue(&self) -> Option<usize> {
        Some(Arc::as_ptr(&self.queue).addr())
    }

    fn register(&mut self, registry: &Registry) {
        let mut shared = self.queue.lock();
        let Some(shared) = &mut *shared else {
            self.set = None;
            return;
        };
        shared.notice_fork();
        let set = shared.readiness.as_fd().try_clone_to_owned();
        self.set = set.ok().map(|set| {
            let mut set = Watched::new(set);
            set.register(registry, false);
            set
        });
        let state = shared.handles.get_mut(&self.number).expect("there while the handle is");
        state.registry = Some(registry.clone());
    }

    fn notice(&self) -> Notice {
        if self.set.is_none() { Notice::Poll } else { self.notice }
    }

    fn next_timeout(&self) -> Option<Instant> {
        // In a child process, the next turn decides whether the handle can continue.
        if self.queue.0.is_ours() { self.next_timeout } else { Some(Instant::now()) }
    }
}

impl Drop for SharedHandle {
    fn drop(&mut self) {
        // In a child process that never used the queue pair, the handle belongs to the parent.
        let Some(shared) = self.queue.0.get() else { return };
        let mut shared = shared.lock();
        let Some(shared) = &mut *shared else { return };
        shared.handles.remove(&self.number);
        // Handles that wait for room must now poll for the completions of this handle's outstanding I/Os.
        let refused = shared.handles.values().filter(|state| state.was_refused);
        refused.for_each(HandleState::mark);
    }
}

/// The reason with which I/Os of a handle fail in a child process that could not continue its queue pair.
const LOST: &str = "the process was forked while another thread used this queue pair, so that its I/Os stay \
                    with the parent; open the namespace again in this process";

/// The interval at which a handle that found no room polls, if no event signals room.
const ROOM_INTERVAL: Duration = Duration::from_micros(500);

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::qpair::blocking::Blocking;
    use crate::qpair::mem::MemNamespace;
    use crate::qpair::{Io, IoOp};
    use dlfs_base::buf::IoBuf;

    fn shared() -> SharedDevice {
        let device = MemNamespace::new(1 << 20, 512).unwrap().with_limits(4096, 3);
        SharedDevice::new(Arc::new(device), Arc::default())
    }

    fn write(block: u64, tag: u64) -> Io {
        Io { op: IoOp::Write, slba: Lba(block), buf: IoBuf::zeroed(512), tag }
    }

    #[test]
    fn each_handle_gets_its_own_completions_whichever_is_polled() {
        let device = shared();
        let mut one = device.queue_pair().unwrap();
        let mut two = device.queue_pair().unwrap();
        let mut of_one: VecDeque<Io> = (0..3).map(|tag| write(tag, tag)).collect();
        let mut of_two: VecDeque<Io> = (0..2).map(|tag| write(8 + tag, tag + 70)).collect();
        assert_eq!(one.submit(&mut of_one), 3);
        assert_eq!(two.submit(&mut of_two), 0, "the queue below is full");
        assert_eq!(of_two.iter().map(|io| io.tag).collect::<Vec<_>>(), [70, 71]);
        let mut done = Vec::new();
        assert_eq!(two.poll(Instant::now(), 9, &mut done), 0);
        let now = Instant::now();
        assert!(two.next_timeout().is_some_and(|at| at <= now), "its own turn has made room");
        assert_eq!(two.submit(&mut of_two), 2);
        assert_eq!((one.outstanding(), two.outstanding()), (3, 2));
        one.poll(Instant::now(), 2, &mut done);
        one.poll(Instant::now(), 9, &mut done);
        let mut tags: Vec<u64> = done.drain(..).map(|completion| completion.tag).collect();
        tags.sort_unstable();
        assert_eq!((tags, one.outstanding()), (vec![0, 1, 2], 0));
        two.poll(Instant::now(), 9, &mut done);
        assert_eq!((done.len(), two.outstanding()), (2, 0));
    }

    #[test]
    fn completions_of_a_dropped_handle_are_discarded() {
        let device = shared();
        let mut one = device.queue_pair().unwrap();
        let mut two = device.queue_pair().unwrap();
        assert_eq!(one.submit(&mut VecDeque::from([write(0, 1)])), 1);
        drop(one);
        assert_eq!(two.submit(&mut VecDeque::from([write(1, 1)])), 1);
        let mut done = Vec::new();
        two.poll(Instant::now(), 9, &mut done);
        assert_eq!((done.len(), two.outstanding()), (1, 0));
    }

    /// A queue pair that completes one I/O for each byte received, and counts polls.
    struct Slow {
        namespace: Namespace,
        socket: Watched<UnixStream>,
        taken: VecDeque<Io>,
        polls: Arc<AtomicUsize>,
    }

    impl QueuePair for Slow {
        fn namespace(&self) -> &Namespace {
            &self.namespace
        }

        fn submit(&mut self, pending: &mut VecDeque<Io>) -> usize {
            let room = usize::from(self.namespace.queue_depth) - self.taken.len();
            let count = room.min(pending.len());
            self.taken.extend(pending.drain(..count));
            count
        }

        fn poll(&mut self, _: Instant, _: usize, done: &mut Vec<Completion>) -> usize {
            self.polls.fetch_add(1, Ordering::Relaxed);
            let mut bytes = [0; 8];
            let count = if self.socket.take_ready() {
                self.socket.read(&mut bytes).unwrap_or(0)
            } else {
                0
            };
            for Io { tag, buf, .. } in self.taken.drain(..count) {
                done.push(Completion { tag, buf, result: Ok(()) });
            }
            count
        }

        fn outstanding(&self) -> usize {
            self.taken.len()
        }

        fn register(&mut self, registry: &Registry) {
            self.socket.register(registry, false);
        }

        fn notice(&self) -> Notice {
            Notice::Event
        }
    }

    /// A queue pair that tells which fence it has.
    struct Fenced(Box<dyn QueuePair>, Arc<Mutex<Option<Arc<Fence>>>>);

    impl QueuePair for Fenced {
        fn namespace(&self) -> &Namespace {
            self.0.namespace()
        }

        fn submit(&mut self, pending: &mut VecDeque<Io>) -> usize {
            self.0.submit(pending)
        }

        fn poll(&mut self, now: Instant, max: usize, done: &mut Vec<Completion>) -> usize {
            self.0.poll(now, max, done)
        }

        fn use_fence(&mut self, fence: &Arc<Fence>) {
            *self.1.lock() = Some(Arc::clone(fence));
        }

        fn outstanding(&self) -> usize {
            self.0.outstanding()
        }
    }

    #[test]
    fn the_fence_of_a_handle_is_not_that_of_others() {
        let memory = MemNamespace::new(1 << 20, 512).unwrap();
        let fence = Arc::default();
        let pair = Fenced(memory.queue_pair().unwrap(), Arc::clone(&fence));
        let shared = SharedPair::on(Box::new(pair)).unwrap();
        let queue = Arc::new(SharedQueue(Forked::new(Mutex::new(Some(shared)))));
        let mut with = SharedHandle::on(&queue).unwrap();
        let mut without = SharedHandle::on(&queue).unwrap();
        with.use_fence(&Fence::closed());
        let is_open = || fence.lock().as_ref().map(|fence| fence.is_open());
        for _ in 0..2 {
            with.submit(&mut VecDeque::from([write(0, 1)]));
            assert_eq!(is_open(), Some(false));
            without.submit(&mut VecDeque::from([write(0, 1)]));
            assert_eq!(is_open(), Some(true));
        }
    }

    /// A device that gives out its only queue pair once.
    struct Once(Mutex<Option<Slow>>, Namespace);

    impl Device for Once {
        fn namespace(&self) -> Namespace {
            self.1.clone()
        }

        fn queue_pair_in(&self, _: &PairScope) -> Result<Box<dyn QueuePair>> {
            Ok(Box::new(self.0.lock().take().expect("one queue pair")))
        }

        fn capabilities(&self) -> Capabilities {
            MemNamespace::new(512, 512).unwrap().capabilities()
        }
    }

    /// The shared queue has room for two, so the third handle's I/O waits for a completion of another handle.
    #[test]
    fn handles_sleep_until_one_of_them_has_something_and_look_at_nothing_meanwhile() {
        let namespace = MemNamespace::new(1 << 20, 512).unwrap().with_limits(4096, 2).namespace();
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let polls = Arc::new(AtomicUsize::new(0));
        let socket = Watched::new(ours);
        let slow = Slow {
            namespace: namespace.clone(),
            socket,
            taken: VecDeque::new(),
            polls: Arc::clone(&polls),
        };
        let device = Once(Mutex::new(Some(slow)), namespace);
        let device = SharedDevice::new(Arc::new(device), Arc::default());
        std::thread::scope(|scope| {
            for number in 0..3 {
                let mut io = Blocking::new(device.queue_pair().unwrap()).unwrap();
                scope.spawn(move || io.write(number << 12, IoBuf::zeroed(512)).unwrap());
            }
            let quiet = (0..600).any(|_| {
                let before = polls.load(Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(100));
                before > 3 && polls.load(Ordering::Relaxed) - before < 5
            });
            for _ in 0..3 {
                theirs.write_all(&[1]).unwrap(); // each ends a sleep, or the test hangs
                std::thread::sleep(Duration::from_millis(20));
            }
            assert!(quiet, "they look all the time");
        });
    }

    #[test]
    fn threads_write_and_read_through_one_queue_pair_at_once() {
        let device = shared();
        std::thread::scope(|scope| {
            for number in 0..4u8 {
                let mut io = Blocking::new(device.queue_pair().unwrap()).unwrap();
                scope.spawn(move || {
                    let offset = u64::from(number) << 16;
                    for round in 0..50 {
                        let bytes = [number ^ round; 20_480];
                        io.write_at(offset, &bytes).unwrap();
                        let mut found = [0; 20_480];
                        io.read_at(offset, &mut found).unwrap();
                        assert!(found == bytes, "thread {number}, round {round}");
                    }
                });
            }
        });
    }
}
