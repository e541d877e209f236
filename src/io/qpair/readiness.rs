//! The epoll set of a poller, which reports the ready descriptors of its queue pairs.
//!
//! A poller owns a [`Readiness`] and gives each of its queue pairs a [`Registry`]
//! ([`QueuePair::register`](super::QueuePair::register)). The queue pair wraps each of its descriptors in
//! [`Watched`] and registers it there. [`Readiness::look`] finds the queue pairs to poll, and
//! `Watched::take_ready` says whether a system call on a descriptor is worth its cost. A queue pair that
//! has work without a ready descriptor is *marked* ([`Registry::mark`]); a look finds it, too.
//!
//! Asking the kernel costs about as much as an empty `readv`. So while at most `FEW` descriptors are read by system
//! calls, [`Readiness::look`] does not ask. It treats a descriptor as ready if its owner expects data from it, and the
//! owner spins on the descriptor.
//!
//! The set is level-triggered: a socket with unread bytes is reported again. A descriptor is removed from the
//! set before it is closed, because a forked child may keep the same socket open. After a fork, parent and child share
//! the set, so the child neither uses nor changes it, and creates another one (`Readiness::is_ours`).

use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use slab::Slab;

use super::wake::{Mark, Wake};
use dlfs_base::error::{Error, Result};
use dlfs_base::process::{Forked, mark_ours};

/// A poller's epoll set. See the module's page.
pub struct Readiness {
    set: Arc<EpollSet>,
}

/// Registers the descriptors of one queue pair.
#[derive(Clone)]
pub struct Registry {
    set: Arc<EpollSet>,
    /// The queue pair's index in the poller.
    member: usize,
    mark: Arc<Mark>,
}

/// The epoll set, with the descriptors that it watches.
struct EpollSet {
    epoll: OwnedFd,
    bell: Arc<Bell>,
    /// Tells the process that created the set from a forked child.
    process: Forked<()>,
    /// The registered descriptors, by their tokens in the epoll set.
    sources: Mutex<Slab<Arc<Source>>>,
    /// Sources whose owner reads them by system calls.
    num_read: AtomicUsize,
    /// Sources that the kernel refused to watch.
    num_unwatched: AtomicUsize,
}

/// A registered descriptor, as the poller sees it.
struct Source {
    /// The index of the descriptor's queue pair in the poller.
    member: usize,
    /// True if the owner reads the descriptor by system calls; otherwise it only ends a sleep.
    is_read: bool,
    /// False if the kernel refused to watch the descriptor.
    is_watched: bool,
    /// True if the descriptor may be ready; the owner takes the flag before it reads.
    ready: AtomicBool,
    /// True while the owner expects data.
    is_expected: AtomicBool,
}

/// Ends a sleep when no descriptor of a queue pair is ready.
struct Bell {
    wake: Wake,
    /// An eventfd in the epoll set: writing to it wakes a sleeper.
    event: OwnedFd,
    /// Set once `event` was written to, so that it must be read.
    has_rung: AtomicBool,
}

impl Readiness {
    /// Creates an empty set.
    ///
    /// # Errors
    /// The process has reached its limit of descriptors.
    pub fn new() -> Result<Readiness> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(std::io::Error::from)?;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(std::io::Error::from)?;
        mark_ours(&epoll);
        mark_ours(&event);
        epoll::add(&epoll, &event, EventData::new_u64(BELL), EventFlags::IN)
            .map_err(|errno| Error::from(std::io::Error::from(errno)))?;
        let bell = Bell { wake: Wake::default(), event, has_rung: AtomicBool::new(false) };
        let set = Arc::new(EpollSet {
            epoll,
            bell: Arc::new(bell),
            process: Forked::new(()),
            sources: Mutex::default(),
            num_read: AtomicUsize::new(0),
            num_unwatched: AtomicUsize::new(0),
        });
        Ok(Readiness { set })
    }

    /// Returns whether this process created the set, rather than a parent process.
    pub(crate) fn is_ours(&self) -> bool {
        self.set.is_ours()
    }

    /// The registry for the descriptors of queue pair `member`.
    pub fn registry(&self, member: usize) -> Registry {
        Registry { set: Arc::clone(&self.set), member, mark: Arc::new(Mark::new(member)) }
    }

    /// A handle by which another thread ends a sleep.
    pub fn waker(&self) -> Waker {
        Waker(Arc::clone(&self.set.bell))
    }

    /// The flags of the poller: calls of its [`Waker`]s, and marks of its queue pairs.
    pub(super) fn flags(&self) -> &Wake {
        &self.set.bell.wake
    }

    /// Passes the marked queue pairs to `found`, and those with a descriptor that is ready or treated as ready; a queue
    /// pair may be passed several times. Never waits.
    pub fn look(&self, mut found: impl FnMut(usize)) {
        self.flags().take_marks(&mut found);
        match self.set.num_read.load(Ordering::Relaxed) {
            0 => {}
            1..=FEW => self.set.count_as_ready(Source::may_be_ready, &mut found),
            _ => self.ask_kernel(found),
        }
    }

    /// As [`Readiness::look`], but always asks the kernel.
    pub(super) fn ask(&self, mut found: impl FnMut(usize)) {
        self.flags().take_marks(&mut found);
        self.ask_kernel(found);
    }

    /// Sets the flags of ready descriptors, and passes their queue pairs to `found`.
    fn ask_kernel(&self, mut found: impl FnMut(usize)) {
        let mut events = [const { MaybeUninit::uninit() }; EVENTS];
        let no_wait = Timespec::default();
        // An interrupted call counts as one without events: the next call asks again.
        let events = epoll::wait(&self.set.epoll, &mut events, Some(&no_wait));
        let events = events.map_or(&[][..], |(events, _)| &*events);
        let sources = self.set.sources.lock();
        for event in events {
            // The bell has no source; a source may have been removed since the kernel reported it.
            let Some(source) = sources.get(event.data.u64() as usize) else { continue };
            source.ready.store(true, Ordering::Relaxed);
            found(source.member);
        }
        drop(sources);
        if self.set.num_unwatched.load(Ordering::Relaxed) > 0 {
            self.set.count_as_ready(|source| !source.is_watched, &mut found);
        }
    }

    /// Sleeps until a descriptor is ready, a queue pair is marked or a [`Waker`] calls, for at most `limit`; may return
    /// early. A look then finds the queue pairs.
    pub fn sleep(&self, limit: Duration) {
        let Some(_asleep) = self.fall_asleep() else { return };
        let unwatched = self.set.num_unwatched.load(Ordering::Relaxed) > 0;
        let limit = if unwatched { limit.min(UNWATCHED_NAP) } else { limit };
        let limit = Timespec::try_from(limit).ok(); // beyond i64 seconds: no limit
        let mut fds = [PollFd::new(&self.set.epoll, PollFlags::IN)];
        // An error is a signal or a lack of memory: the caller polls and sleeps again.
        let _ = poll(&mut fds, limit.as_ref());
    }

    /// Call this before sleeping on the set's descriptor among others. While the returned value lives, marks
    /// and wakers make the descriptor readable. `None`: something is pending already, so do not sleep.
    pub fn fall_asleep(&self) -> Option<Asleep<'_>> {
        let bell = &*self.set.bell;
        bell.wake.fall_asleep().then_some(Asleep { bell })
    }
}

/// Methods for a set whose descriptor is registered in the sets of other pollers. Those pollers do not announce
/// when they sleep on this set, so its poller counts as asleep whenever no thread polls it.
impl Readiness {
    /// Ends a turn of polling: from now on marks make the descriptor readable. Returns `false` if a mark was set
    /// before: that one does not make the descriptor readable.
    pub(super) fn fall_asleep_between_turns(&self) -> bool {
        self.fall_asleep().map(std::mem::forget).is_some()
    }

    /// Begins a turn of polling, which takes the marks.
    pub(super) fn get_up_for_a_turn(&self) {
        drop(Asleep { bell: &self.set.bell });
    }
}

/// A sleep in progress, see [`Readiness::fall_asleep`].
pub struct Asleep<'a> {
    bell: &'a Bell,
}

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        self.bell.wake.get_up();
        if self.bell.has_rung.swap(false, Ordering::AcqRel) {
            // The only possible failure is that it is empty.
            let _ = rustix::io::read(&self.bell.event, &mut [0u8; 8]);
        }
    }
}

impl Bell {
    /// Makes the event readable, which ends a sleep.
    fn ring(&self) {
        // The only possible failure is a counter at its maximum, and then it is readable anyway.
        let _ = rustix::io::write(&self.event, &[1; 8]); // not zero in any byte order
        // After the write, so that a thread which sees this flag finds something to read.
        self.has_rung.store(true, Ordering::Release);
    }
}

/// Ends the sleep of a poller from another thread. A call while the poller is awake ends its next sleep.
#[derive(Clone)]
pub struct Waker(Arc<Bell>);

impl Waker {
    /// Ends the sleep. Makes a system call only while the poller's thread sleeps.
    pub fn wake(&self) {
        if self.0.wake.wake() {
            self.0.ring();
        }
    }
}

impl Registry {
    /// Returns whether both belong to the same poller.
    pub(crate) fn is_of_poller_of(&self, other: &Registry) -> bool {
        Arc::ptr_eq(&self.set, &other.set)
    }

    /// Marks the queue pair: it has work, though none of its descriptors is ready. Its poller polls it in the
    /// current turn or the next, and a sleep of the poller ends. Any thread may call this.
    ///
    /// Costs one atomic exchange while the mark is set, and a system call only while the poller sleeps.
    pub fn mark(&self) {
        // After a fork the poller belongs to the parent: do not wake it, and do not take its lock.
        if self.set.is_ours() && self.set.bell.wake.mark(&self.mark) {
            self.set.bell.ring();
        }
    }
}

/// Readable while a descriptor of the set is ready.
impl AsFd for Readiness {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.set.epoll.as_fd()
    }
}

impl EpollSet {
    fn is_ours(&self) -> bool {
        self.process.is_ours()
    }

    /// Treats the descriptors that `is_ready` accepts as ready, and passes their queue pairs to `found`.
    fn count_as_ready(&self, is_ready: impl Fn(&Source) -> bool, found: &mut impl FnMut(usize)) {
        for (_, source) in self.sources.lock().iter().filter(|(_, source)| is_ready(source)) {
            source.ready.store(true, Ordering::Relaxed);
            found(source.member);
        }
    }
}

impl Source {
    /// Returns whether [`Readiness::look`] may treat the descriptor as ready without asking the kernel.
    fn may_be_ready(&self) -> bool {
        self.is_read && self.is_expected.load(Ordering::Relaxed)
    }
}

/// A descriptor, and its registration in the epoll set of its owner's poller.
///
/// A descriptor that is not registered always counts as ready.
pub struct Watched<F: AsFd> {
    /// `None`: the descriptor is not registered.
    registration: Option<Registration>,
    /// True while the owner expects data.
    is_expected: bool,
    fd: F,
}

/// The registration of a descriptor in an epoll set.
struct Registration {
    set: Arc<EpollSet>,
    /// The descriptor's token in the set.
    key: usize,
    source: Arc<Source>,
    /// True if room to write makes the descriptor ready.
    writable: bool,
}

impl<F: AsFd> Watched<F> {
    /// Wraps a descriptor, which is not registered yet.
    pub fn new(fd: F) -> Watched<F> {
        Watched { registration: None, is_expected: true, fd }
    }

    /// Registers a descriptor that its owner reads by system calls, so that [`Watched::take_ready`] can save a call.
    /// With `writable`, the descriptor is also reported when there is room to write.
    pub(crate) fn register(&mut self, registry: &Registry, writable: bool) {
        self.enter(registry, writable, true);
    }

    /// Registers a descriptor that only ends sleeps: its owner sees without a system call whether there is
    /// work.
    pub fn register_for_sleep(&mut self, registry: &Registry) {
        self.enter(registry, false, false);
    }

    /// Adds the descriptor to the set of `registry`, and removes it from the earlier one.
    fn enter(&mut self, registry: &Registry, writable: bool, is_read: bool) {
        self.deregister();
        if !registry.set.is_ours() {
            return; // a child process that could not create its own set
        }
        let set = Arc::clone(&registry.set);
        let mut sources = set.sources.lock();
        let entry = sources.vacant_entry();
        let key = entry.key();
        let added =
            epoll::add(&set.epoll, &self.fd, EventData::new_u64(key as u64), event_flags(writable));
        if let Err(error) = &added {
            tracing::debug!(%error, "epoll cannot watch a descriptor: it is polled in every turn");
        }
        let is_watched = added.is_ok();
        let source = Arc::new(Source {
            member: registry.member,
            is_read,
            is_watched,
            // The set is level-triggered, so data that arrived before the registration are reported too.
            ready: AtomicBool::new(false),
            is_expected: AtomicBool::new(self.is_expected),
        });
        entry.insert(Arc::clone(&source));
        drop(sources);
        set.num_read.fetch_add(usize::from(is_read), Ordering::Relaxed);
        set.num_unwatched.fetch_add(usize::from(!is_watched), Ordering::Relaxed);
        self.registration = Some(Registration { set, key, source, writable });
    }

    /// Sets whether room to write makes the descriptor ready.
    pub(crate) fn set_writable(&mut self, writable: bool) {
        let Some(registration) = &mut self.registration else { return };
        if registration.writable == writable || !registration.set.is_ours() {
            return;
        }
        registration.writable = writable;
        let token = EventData::new_u64(registration.key as u64);
        if registration.source.is_watched
            && epoll::modify(&registration.set.epoll, &self.fd, token, event_flags(writable))
                .is_err()
        {
            // For a registered descriptor this fails only when the kernel lacks memory. The old state is kept, and the
            // descriptor counts as ready, so the owner tries to write at its next poll and calls this again.
            registration.source.ready.store(true, Ordering::Relaxed);
            registration.writable = !writable;
        }
    }

    /// Sets whether the owner expects data from the descriptor. While few descriptors are read by system calls,
    /// [`Readiness::look`] treats only those with expected data as ready. Unexpected data still end a sleep, and
    /// `Readiness::ask` reports them; with more descriptors, so does `look`.
    pub fn expect(&mut self, is_expected: bool) {
        if self.is_expected != is_expected {
            self.is_expected = is_expected;
            if let Some(registration) = &self.registration {
                registration.source.is_expected.store(is_expected, Ordering::Relaxed);
            }
        }
    }

    /// Returns whether the descriptor may be ready. If it is registered, the next call returns `false` until it is
    /// reported again.
    pub(crate) fn take_ready(&mut self) -> bool {
        self.registration
            .as_ref()
            .is_none_or(|registration| registration.source.ready.swap(false, Ordering::Relaxed))
    }

    /// Removes the descriptor from the set.
    pub(crate) fn deregister(&mut self) {
        let Some(Registration { set, key, source, .. }) = self.registration.take() else { return };
        if !set.is_ours() {
            return; // the set is the parent's, which still uses it
        }
        if source.is_watched {
            // The only possible failure is that the set does not hold it.
            let _ = epoll::delete(&set.epoll, &self.fd);
        }
        set.sources.lock().remove(key);
        set.num_read.fetch_sub(usize::from(source.is_read), Ordering::Relaxed);
        set.num_unwatched.fetch_sub(usize::from(!source.is_watched), Ordering::Relaxed);
    }
}

impl<F: AsFd> Drop for Watched<F> {
    fn drop(&mut self) {
        self.deregister();
    }
}

impl<F: AsFd> Deref for Watched<F> {
    type Target = F;

    fn deref(&self) -> &F {
        &self.fd
    }
}

impl<F: AsFd> DerefMut for Watched<F> {
    fn deref_mut(&mut self) -> &mut F {
        &mut self.fd
    }
}

/// The events for which epoll watches a descriptor.
fn event_flags(writable: bool) -> EventFlags {
    if writable { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN }
}

/// The most descriptors that are read directly, without asking the kernel first.
const FEW: usize = 2;

/// The most descriptors that one call reports; the next call reports the others.
const EVENTS: usize = 256;

/// The bell's token in the set; no source has it.
const BELL: u64 = u64::MAX;

/// The longest sleep while the kernel does not watch some descriptor.
const UNWATCHED_NAP: Duration = Duration::from_micros(500);

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    fn connections(count: usize) -> (Vec<UnixStream>, Vec<UnixStream>) {
        (0..count).map(|_| UnixStream::pair().unwrap()).unzip()
    }

    fn look(readiness: &Readiness) -> Vec<usize> {
        let mut found = Vec::new();
        readiness.look(|member| found.push(member));
        found.sort_unstable();
        found
    }

    #[test]
    fn with_many_descriptors_only_ready_ones_are_reported_until_they_are_drained() {
        let readiness = Readiness::new().unwrap();
        let (ours, mut theirs) = connections(300);
        let mut watched: Vec<_> = ours.into_iter().map(Watched::new).collect();
        for (member, watched) in watched.iter_mut().enumerate() {
            assert!(watched.take_ready(), "nobody watches it");
            watched.register(&readiness.registry(member), false);
            assert!(!watched.take_ready());
        }
        assert!(look(&readiness).is_empty());
        theirs[7].write_all(b"ab").unwrap();
        theirs[250].write_all(b"ab").unwrap();
        assert_eq!(look(&readiness), [7, 250]);
        assert!(watched[7].take_ready() && !watched[7].take_ready() && !watched[8].take_ready());
        watched[7].read_exact(&mut [0]).unwrap();
        watched[250].read_exact(&mut [0, 0]).unwrap();
        assert_eq!(look(&readiness), [7], "a byte is left");
        watched.remove(7);
        assert!(look(&readiness).is_empty());
        theirs.iter_mut().for_each(|stream| drop(stream.write(b"c")));
        let mut all = look(&readiness);
        all.extend(look(&readiness));
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 299, "more than one look tells of");
    }

    #[test]
    fn few_descriptors_count_as_ready_at_each_look_except_those_that_only_end_sleeps() {
        let readiness = Readiness::new().unwrap();
        let (ours, _theirs) = connections(4);
        let mut watched: Vec<_> = ours.into_iter().map(Watched::new).collect();
        for (member, watched) in watched.iter_mut().enumerate() {
            match member {
                0 | 2 => watched.register(&readiness.registry(member), false),
                _ => watched.register_for_sleep(&readiness.registry(member)),
            }
        }
        assert_eq!([look(&readiness), look(&readiness)], [[0, 2], [0, 2]]);
    }

    #[test]
    fn of_few_descriptors_only_expected_ones_count_as_ready() {
        let readiness = Readiness::new().unwrap();
        let (ours, mut theirs) = connections(2);
        let mut watched: Vec<_> = ours.into_iter().map(Watched::new).collect();
        watched[0].expect(false);
        for (member, watched) in watched.iter_mut().enumerate() {
            watched.register(&readiness.registry(member), false);
        }
        assert_eq!(look(&readiness), [1]);
        watched[0].expect(true);
        watched[1].expect(false);
        assert_eq!(look(&readiness), [0]);
        theirs[1].write_all(b"a").unwrap();
        readiness.sleep(Duration::from_secs(3600)); // would hang
        let mut found = Vec::new();
        readiness.ask(|member| found.push(member));
        assert_eq!(found, [1], "a sleeper is told of all");
    }

    #[test]
    fn a_mark_is_reported_once_and_ends_a_sleep_that_is_next_or_in_progress() {
        let readiness = Readiness::new().unwrap();
        let far = Duration::from_secs(3600);
        let registry = readiness.registry(5);
        registry.mark();
        registry.clone().mark();
        readiness.sleep(far); // would hang
        assert_eq!([look(&readiness), look(&readiness)], [vec![5], vec![]]);
        for _ in 0..1000 {
            let registry = registry.clone();
            let other = std::thread::spawn(move || registry.mark());
            readiness.sleep(far);
            other.join().unwrap();
            readiness.flags().take_marks(|member| assert_eq!(member, 5));
        }
        readiness.sleep(Duration::from_millis(1)); // the bell may have rung for an earlier sleep
        let asleep = readiness.fall_asleep().expect("no mark is left");
        let mut fds = [PollFd::new(&readiness, PollFlags::IN)];
        assert_eq!(poll(&mut fds, Some(&Timespec::default())), Ok(0), "it rings no more");
        drop(asleep);
    }

    #[test]
    fn a_sleep_ends_when_a_descriptor_is_readable_or_writable_if_asked() {
        let readiness = Readiness::new().unwrap();
        let (ours, mut theirs) = connections(3);
        let mut watched: Vec<_> = ours.into_iter().map(Watched::new).collect();
        for (member, watched) in watched.iter_mut().enumerate() {
            watched.register(&readiness.registry(member), false);
        }
        let far = Duration::from_secs(3600);
        theirs[2].write_all(b"a").unwrap();
        readiness.sleep(far); // would hang
        assert_eq!(look(&readiness), [2]);
        watched[2].read_exact(&mut [0]).unwrap();
        watched[1].set_writable(true);
        readiness.sleep(far);
        assert_eq!(look(&readiness), [1]);
        watched[1].set_writable(false);
        assert!(look(&readiness).is_empty());
    }

    #[test]
    fn a_removed_descriptor_is_not_reported_although_its_socket_stays_open() {
        let readiness = Readiness::new().unwrap();
        let (ours, mut theirs) = connections(4);
        let copy = ours[3].try_clone().unwrap(); // as a forked child has one
        let mut watched: Vec<_> = ours.into_iter().map(Watched::new).collect();
        for (member, watched) in watched.iter_mut().enumerate() {
            watched.register(&readiness.registry(member), false);
        }
        drop(watched.pop());
        theirs[3].write_all(b"a").unwrap();
        let mut found = Vec::new();
        readiness.ask(|member| found.push(member));
        assert!(found.is_empty());
        drop(copy);
    }
}
