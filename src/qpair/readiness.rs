//! Which descriptors have something: one epoll set a poller, in which queue pairs register all that they
//! have.
//!
//! A poller owns a [`Readiness`] and gives each of its queue pairs a [`Registry`]
//! ([`QueuePair::join`](super::QueuePair::join)); the pair keeps its descriptors as [`Watched`], one for
//! each connection that it has at the time. [`Readiness::look`] then says which pairs to poll, and a pair
//! asks each of its descriptors whether a system call on it is worth its price. A pair that has something
//! without a descriptor is *marked* ([`Registry::mark`]), and told of by the same look.
//!
//! Looking at the set costs about as much as an empty `readv`. So while only `FEW` descriptors are to
//! be asked by system calls, a look counts those of them as ready from which something is expected, without
//! asking the kernel: their owner spins on them directly.
//!
//! The set is level-triggered: bytes that were left in a socket are told again. A descriptor leaves the
//! set before it is closed, since a forked child may keep the same socket open. The set itself is shared
//! by a fork, so a child neither uses nor changes it: it makes its own ([`Readiness::is_ours`]).

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
use crate::error::{Error, Result};
use crate::process::Forked;

/// A poller's epoll set. See the module.
pub struct Readiness {
    set: Arc<Set>,
}

/// Where the descriptors of one queue pair are registered.
#[derive(Clone)]
pub struct Registry {
    set: Arc<Set>,
    member: usize,
    mark: Arc<Mark>,
}

struct Set {
    epoll: OwnedFd,
    bell: Arc<Bell>,
    home: Forked<()>,
    sources: Mutex<Slab<Arc<Source>>>,
    /// Sources that a system call asks.
    num_asked: AtomicUsize,
    /// Sources that the kernel refused to watch.
    num_unwatched: AtomicUsize,
}

struct Source {
    member: usize,
    /// Whether a system call asks it; otherwise it only ends a sleep.
    is_asked: bool,
    is_watched: bool,
    ready: AtomicBool,
    /// Whether its owner waits for something from it.
    is_expected: AtomicBool,
}

/// What ends a sleep without a descriptor of a queue pair.
struct Bell {
    wake: Wake,
    /// Part of the epoll set, so a sleeper sees it.
    event: OwnedFd,
    /// Whether `event` is to be emptied.
    has_rung: AtomicBool,
}

impl Readiness {
    /// A set without descriptors.
    ///
    /// # Errors
    /// The process may have no more descriptors.
    pub fn new() -> Result<Readiness> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(std::io::Error::from)?;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(std::io::Error::from)?;
        epoll::add(&epoll, &event, EventData::new_u64(BELL), EventFlags::IN)
            .map_err(|errno| Error::from(std::io::Error::from(errno)))?;
        let bell = Bell { wake: Wake::default(), event, has_rung: AtomicBool::new(false) };
        let set = Arc::new(Set {
            epoll,
            bell: Arc::new(bell),
            home: Forked::new(()),
            sources: Mutex::default(),
            num_asked: AtomicUsize::new(0),
            num_unwatched: AtomicUsize::new(0),
        });
        Ok(Readiness { set })
    }

    /// Whether it was made by this process, and not by the parent that it was forked from.
    pub fn is_ours(&self) -> bool {
        self.set.is_ours()
    }

    /// Where queue pair `member` registers its descriptors.
    pub fn registry(&self, member: usize) -> Registry {
        Registry { set: Arc::clone(&self.set), member, mark: Arc::new(Mark::new(member)) }
    }

    /// A handle that ends a sleep from another thread.
    pub fn waker(&self) -> Waker {
        Waker(Arc::clone(&self.set.bell))
    }

    /// Whether a [`Waker`] has called since this was asked last.
    pub fn take_woken(&self) -> bool {
        self.set.bell.wake.take_woken()
    }

    /// Whether a queue pair is marked. Costs one load.
    pub fn has_marks(&self) -> bool {
        self.set.bell.wake.has_marks()
    }

    /// Tells `found` the queue pairs that are marked, and takes the marks off. Costs one load where none is.
    pub fn take_marks(&self, found: impl FnMut(usize)) {
        self.set.bell.wake.take_marks(found);
    }

    /// Tells `found` the queue pairs that may have something. Never waits.
    pub fn look(&self, mut found: impl FnMut(usize)) {
        self.take_marks(&mut found);
        match self.set.num_asked.load(Ordering::Relaxed) {
            0 => {}
            1..=FEW => self.set.count_as_ready(Source::is_worth_a_guess, &mut found),
            _ => self.ask_kernel(found),
        }
    }

    /// As [`Readiness::look`], with all that the kernel knows.
    pub(super) fn ask(&self, mut found: impl FnMut(usize)) {
        self.take_marks(&mut found);
        self.ask_kernel(found);
    }

    fn ask_kernel(&self, mut found: impl FnMut(usize)) {
        let mut events = [const { MaybeUninit::uninit() }; EVENTS];
        let no_wait = Timespec::default();
        // An interrupted call is as good as one without events: the next look asks again.
        let events = epoll::wait(&self.set.epoll, &mut events, Some(&no_wait));
        let events = events.map_or(&[][..], |(events, _)| &*events);
        let sources = self.set.sources.lock();
        for event in events {
            // The bell is none of them, and who has left the set is told of no more.
            let Some(source) = sources.get(event.data.u64() as usize) else { continue };
            source.ready.store(true, Ordering::Relaxed);
            found(source.member);
        }
        drop(sources);
        if self.set.num_unwatched.load(Ordering::Relaxed) > 0 {
            self.set.count_as_ready(|source| !source.is_watched, &mut found);
        }
    }

    /// Sleeps until a descriptor is ready, a queue pair is marked or a [`Waker`] calls, at most for `limit`.
    /// [`Readiness::look`] says which.
    pub fn sleep(&self, limit: Duration) {
        let Some(_asleep) = self.fall_asleep() else { return };
        let unwatched = self.set.num_unwatched.load(Ordering::Relaxed) > 0;
        let limit = if unwatched { limit.min(UNWATCHED_NAP) } else { limit };
        let limit = Timespec::try_from(limit).ok(); // beyond i64 seconds: no limit
        let mut fds = [PollFd::new(&self.set.epoll, PollFlags::IN)];
        // An error is a signal, or no memory for the call: the caller polls, and sleeps again.
        let _ = poll(&mut fds, limit.as_ref());
    }

    /// For who sleeps on the descriptor among others: marks and wakers make it readable while what this
    /// returns lives. `None`: there is one already, so do not sleep.
    pub fn fall_asleep(&self) -> Option<Asleep<'_>> {
        let bell = &*self.set.bell;
        bell.wake.fall_asleep().then_some(Asleep { bell })
    }
}

/// For a set that lies in the sets of others: none of these can say when it sleeps on it, so it sleeps whenever
/// nobody is at its turn.
impl Readiness {
    /// Ends a turn: marks make the descriptor readable from now on. `false`: one is set already, and does not.
    pub(super) fn fall_asleep_between_turns(&self) -> bool {
        self.fall_asleep().map(std::mem::forget).is_some()
    }

    /// Begins a turn, in which marks are taken.
    pub(super) fn get_up_for_a_turn(&self) {
        drop(Asleep { bell: &self.set.bell });
    }
}

/// A sleep under way, see [`Readiness::fall_asleep`].
pub struct Asleep<'a> {
    bell: &'a Bell,
}

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        self.bell.wake.get_up();
        if self.bell.has_rung.swap(false, Ordering::AcqRel) {
            // The only failure is that it is empty.
            let _ = rustix::io::read(&self.bell.event, &mut [0u8; 8]);
        }
    }
}

impl Bell {
    fn ring(&self) {
        // The only failure is a counter at its maximum, and then it is readable anyway.
        let _ = rustix::io::write(&self.event, &[1; 8]); // not zero in any byte order
        // After the write, so that who sees this finds something to read.
        self.has_rung.store(true, Ordering::Release);
    }
}

/// Ends the sleep of a poller from another thread. A call while nobody sleeps ends the next sleep.
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
    /// Whether both are of one poller.
    pub fn is_of_poller_of(&self, other: &Registry) -> bool {
        Arc::ptr_eq(&self.set, &other.set)
    }

    /// Says that the queue pair has something, though no descriptor of its own is ready: it is polled in the
    /// turn under way or the next, and a sleep of its poller ends. From any thread.
    ///
    /// Costs nothing but a word while the mark is set; a system call only while the poller sleeps.
    pub fn mark(&self) {
        // The poller of a parent process is not ours to call, nor is its lock to be taken.
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

impl Set {
    fn is_ours(&self) -> bool {
        self.home.is_ours()
    }

    fn count_as_ready(&self, which: impl Fn(&Source) -> bool, found: &mut impl FnMut(usize)) {
        for (_, source) in self.sources.lock().iter().filter(|(_, source)| which(source)) {
            source.ready.store(true, Ordering::Relaxed);
            found(source.member);
        }
    }
}

impl Source {
    /// Whether a look may take it for ready without asking the kernel.
    fn is_worth_a_guess(&self) -> bool {
        self.is_asked && self.is_expected.load(Ordering::Relaxed)
    }
}

/// A descriptor, and its place in the epoll set of whoever polls its owner, if it has one.
///
/// Without a place it always counts as ready.
pub struct Watched<F: AsFd> {
    place: Option<Place>,
    /// Whether something is expected from it.
    is_expected: bool,
    fd: F,
}

struct Place {
    set: Arc<Set>,
    key: usize,
    source: Arc<Source>,
    writable: bool,
}

impl<F: AsFd> Watched<F> {
    /// A descriptor that nobody watches yet.
    pub fn new(fd: F) -> Watched<F> {
        Watched { place: None, is_expected: true, fd }
    }

    /// Has it watched, for room to write as well if `writable`: one that is asked by system calls, so
    /// that [`Watched::take_ready`] is worth a question before.
    pub fn join(&mut self, registry: &Registry, writable: bool) {
        self.enter(registry, writable, true);
    }

    /// Has it watched to end sleeps: what it stands for is seen without a system call.
    pub fn join_to_sleep(&mut self, registry: &Registry) {
        self.enter(registry, false, false);
    }

    fn enter(&mut self, registry: &Registry, writable: bool, is_asked: bool) {
        self.leave();
        if !registry.set.is_ours() {
            return; // a child that could not make a set of its own
        }
        let set = Arc::clone(&registry.set);
        let mut sources = set.sources.lock();
        let entry = sources.vacant_entry();
        let key = entry.key();
        let added =
            epoll::add(&set.epoll, &self.fd, EventData::new_u64(key as u64), flags(writable));
        if let Err(error) = &added {
            tracing::debug!(%error, "a descriptor cannot be watched: it is looked at in every turn");
        }
        // What lies there already is told as well.
        let (is_watched, ready) = (added.is_ok(), AtomicBool::new(false));
        let is_expected = AtomicBool::new(self.is_expected);
        let member = registry.member;
        let source = Arc::new(Source { member, is_asked, is_watched, ready, is_expected });
        entry.insert(Arc::clone(&source));
        drop(sources);
        set.num_asked.fetch_add(usize::from(is_asked), Ordering::Relaxed);
        set.num_unwatched.fetch_add(usize::from(!is_watched), Ordering::Relaxed);
        self.place = Some(Place { set, key, source, writable });
    }

    /// Has room to write matter from now on, or not.
    pub fn set_writable(&mut self, writable: bool) {
        let Some(place) = &mut self.place else { return };
        if place.writable == writable || !place.set.is_ours() {
            return;
        }
        place.writable = writable;
        let token = EventData::new_u64(place.key as u64);
        if place.source.is_watched
            && epoll::modify(&place.set.epoll, &self.fd, token, flags(writable)).is_err()
        {
            // It cannot fail for a descriptor of the set, but for one without memory in the kernel.
            place.source.ready.store(true, Ordering::Relaxed);
            place.writable = !writable;
        }
    }

    /// Says whether something is expected from it, as long as nobody says so again: of few descriptors only
    /// those are asked without need. What comes unexpected is told of as well, when the poller sleeps or
    /// there are more.
    pub fn expect(&mut self, is_expected: bool) {
        if self.is_expected != is_expected {
            self.is_expected = is_expected;
            if let Some(place) = &self.place {
                place.source.is_expected.store(is_expected, Ordering::Relaxed);
            }
        }
    }

    /// Whether it may have something; not again before it is told again.
    pub fn take_ready(&mut self) -> bool {
        self.place.as_ref().is_none_or(|place| place.source.ready.swap(false, Ordering::Relaxed))
    }

    /// Has nobody watch it from now on.
    pub fn leave(&mut self) {
        let Some(Place { set, key, source, .. }) = self.place.take() else { return };
        if !set.is_ours() {
            return; // the set is the parent's, which still uses it
        }
        if source.is_watched {
            // The only failure is that it is not there.
            let _ = epoll::delete(&set.epoll, &self.fd);
        }
        set.sources.lock().remove(key);
        set.num_asked.fetch_sub(usize::from(source.is_asked), Ordering::Relaxed);
        set.num_unwatched.fetch_sub(usize::from(!source.is_watched), Ordering::Relaxed);
    }
}

impl<F: AsFd> Drop for Watched<F> {
    fn drop(&mut self) {
        self.leave();
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

fn flags(writable: bool) -> EventFlags {
    if writable { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN }
}

/// Descriptors that are asked directly, without a look at the set before.
const FEW: usize = 2;

/// Descriptors that one look tells of; others are told by the next.
const EVENTS: usize = 256;

/// The bell's number in the set: no source has it.
const BELL: u64 = u64::MAX;

/// The longest sleep while a descriptor is not watched.
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
    fn among_many_only_those_are_told_that_have_something_until_it_is_taken() {
        let readiness = Readiness::new().unwrap();
        let (ours, mut theirs) = connections(300);
        let mut watched: Vec<_> = ours.into_iter().map(Watched::new).collect();
        for (member, watched) in watched.iter_mut().enumerate() {
            assert!(watched.take_ready(), "nobody watches it");
            watched.join(&readiness.registry(member), false);
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
    fn few_are_told_in_each_look_and_those_that_only_end_sleeps_never() {
        let readiness = Readiness::new().unwrap();
        let (ours, _theirs) = connections(4);
        let mut watched: Vec<_> = ours.into_iter().map(Watched::new).collect();
        for (member, watched) in watched.iter_mut().enumerate() {
            match member {
                0 | 2 => watched.join(&readiness.registry(member), false),
                _ => watched.join_to_sleep(&readiness.registry(member)),
            }
        }
        assert_eq!([look(&readiness), look(&readiness)], [[0, 2], [0, 2]]);
    }

    #[test]
    fn of_few_only_those_are_guessed_from_which_something_is_expected() {
        let readiness = Readiness::new().unwrap();
        let (ours, mut theirs) = connections(2);
        let mut watched: Vec<_> = ours.into_iter().map(Watched::new).collect();
        watched[0].expect(false);
        for (member, watched) in watched.iter_mut().enumerate() {
            watched.join(&readiness.registry(member), false);
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
    fn a_mark_is_told_once_and_ends_a_sleep_before_it_and_during_it() {
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
            readiness.take_marks(|member| assert_eq!(member, 5));
        }
        let nap = std::time::Instant::now();
        readiness.sleep(Duration::from_millis(20)); // a bell that was rung for an older sleep
        readiness.sleep(Duration::from_millis(20));
        assert!(nap.elapsed() >= Duration::from_millis(20), "it rings no more");
    }

    #[test]
    fn a_sleep_ends_with_any_of_them_and_with_room_to_write_where_that_matters() {
        let readiness = Readiness::new().unwrap();
        let (ours, mut theirs) = connections(3);
        let mut watched: Vec<_> = ours.into_iter().map(Watched::new).collect();
        for (member, watched) in watched.iter_mut().enumerate() {
            watched.join(&readiness.registry(member), false);
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
    fn a_descriptor_that_leaves_is_not_told_of_though_its_socket_stays_open() {
        let readiness = Readiness::new().unwrap();
        let (ours, mut theirs) = connections(4);
        let copy = ours[3].try_clone().unwrap(); // as a forked child has one
        let mut watched: Vec<_> = ours.into_iter().map(Watched::new).collect();
        for (member, watched) in watched.iter_mut().enumerate() {
            watched.join(&readiness.registry(member), false);
        }
        drop(watched.pop());
        theirs[3].write_all(b"a").unwrap();
        let mut found = Vec::new();
        readiness.ask(|member| found.push(member));
        assert!(found.is_empty());
        drop(copy);
    }
}
