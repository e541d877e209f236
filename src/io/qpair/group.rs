//! A poll group: several queue pairs that one thread polls, and the thread's waits while no I/O completes.
//!
//! This is the shared completion queue of the DLFS paper: the owner of the group receives the completions of
//! all queue pairs in one list. Its loop is
//!
//! ```text
//! group.submit(index, &mut pending);
//! if group.poll(now, max, &mut done) == 0 { group.wait(until) }
//! ```
//!
//! The cost of a turn depends on the number of ready queue pairs, not on the number of all queue pairs. A turn
//! polls a queue pair if one of its descriptors is ready ([`Readiness`]), its [`Notice`] asks for it, it took
//! new I/O, its last poll reached the limit of completions, it is marked, or its timeout has expired. A queue pair
//! that receives a completion of another queue pair on the same connection marks the other one, which is polled in
//! the same turn. All queue pairs are polled once in `ALL_INTERVAL`, to notice changes by other threads; this costs
//! no system call.
//!
//! Waiting is adaptive. While I/Os are outstanding, a wait first returns at once, so that the loop spins, for at most
//! 250 µs ([`Spinning`]). Then a wait sleeps on the registered descriptors, unless busy polling is set or a queue pair
//! must be polled in every turn ([`Notice::Poll`]). An idle group uses no processor time.

pub use super::readiness::Waker;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::cpus::online;
use super::readiness::Readiness;
use super::{Completion, Io, Notice, QueuePair};
use dlfs_base::buf::Pool;
use dlfs_base::error::Result;
use dlfs_base::units::Lba;

/// Queue pairs that one thread polls together. The module page has the loop around it.
pub struct PollGroup {
    members: Vec<GroupMember>,
    /// The members to poll next, in FIFO order, so that a small `max` starves none of them.
    queue: VecDeque<usize>,
    /// I/Os taken by all pairs together and not yet completed.
    outstanding: usize,
    /// The earliest timeout of a member, or an earlier time; `None`: no member has a timeout.
    next_due: Option<Instant>,
    /// The time at which all members are polled again; `None`: with the next turn.
    all_due: Option<Instant>,
    readiness: Readiness,
    /// Set if the kernel was asked for ready descriptors since the last turn.
    is_asked: bool,
    /// Empty between polls; kept for its memory.
    scratch: Vec<Completion>,
    spinning: Spinning,
}

/// A queue pair, and its state after it was last polled or submitted to.
struct GroupMember {
    pair: Box<dyn QueuePair>,
    /// I/Os that the pair has taken and not completed.
    outstanding: usize,
    /// The pair's timeout.
    due: Option<Instant>,
    /// True while it is in `queue`.
    is_queued: bool,
    /// True if it must be polled before the thread sleeps, since no event would end a sleep for it.
    is_restless: bool,
}

impl PollGroup {
    /// Creates a group without queue pairs.
    ///
    /// # Errors
    /// The process has reached its limit of descriptors.
    pub fn new() -> Result<PollGroup> {
        let readiness = Readiness::new()?;
        Ok(PollGroup {
            members: Vec::new(),
            queue: VecDeque::new(),
            outstanding: 0,
            next_due: None,
            all_due: None,
            readiness,
            is_asked: false,
            scratch: Vec::new(),
            spinning: Spinning::new(false),
        })
    }

    /// With `busy_poll`, never sleeps while I/Os are outstanding: the lowest latency, at the cost of a
    /// processor.
    pub fn set_busy_poll(&mut self, busy_poll: bool) {
        self.spinning = Spinning::new(busy_poll);
    }

    /// Adds a queue pair and returns its index.
    pub fn add(&mut self, mut pair: Box<dyn QueuePair>) -> usize {
        let index = self.members.len();
        pair.register(&self.readiness.registry(index));
        self.members.push(GroupMember {
            pair,
            outstanding: 0,
            due: None,
            is_queued: false,
            is_restless: false,
        });
        self.queue.reserve(self.members.len());
        self.settle(index, true);
        index
    }

    /// The queue pair `index`.
    ///
    /// # Panics
    /// `add` never returned this index.
    pub fn pair(&self, index: usize) -> &dyn QueuePair {
        &*self.members[index].pair
    }

    /// The number of queue pairs.
    pub fn num_pairs(&self) -> usize {
        self.members.len()
    }

    /// Takes I/O from the front of `pending` for pair `index`, as [`QueuePair::submit`] does.
    ///
    /// # Panics
    /// `add` never returned this index.
    pub fn submit(&mut self, index: usize, pending: &mut VecDeque<Io>) -> usize {
        let taken = self.members[index].pair.submit(pending);
        self.settle(index, taken > 0);
        taken
    }

    /// As [`QueuePair::report_corrupt`], for pair `index`.
    pub fn report_corrupt(&mut self, index: usize, slba: Lba, len_bytes: usize) {
        self.members[index].pair.report_corrupt(slba, len_bytes);
    }

    /// Passes the pool that most buffers come from to every pair, see [`QueuePair::use_pool`].
    pub fn use_pool(&mut self, pool: &Pool) {
        self.members.iter_mut().for_each(|member| member.pair.use_pool(pool));
    }

    /// I/Os taken by all pairs together and not yet completed.
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Polls every pair that may have work. Appends at most `max` completions, each with the index of its pair,
    /// and returns their number. With `max` 0, the pairs send and receive, but complete nothing.
    pub fn poll(&mut self, now: Instant, max: usize, done: &mut Vec<(usize, Completion)>) -> usize {
        self.find_work(now);
        let mut count = 0;
        for _ in 0..self.queue.len() {
            if count == max && max > 0 {
                break; // the next turn begins with the remaining members
            }
            let Some(index) = self.queue.pop_front() else { break };
            count += self.poll_member(index, now, max - count, done);
        }
        // Polls the members that these have marked: they are queued behind `waiting` members, which are for the
        // next turn.
        let waiting = self.queue.len();
        let PollGroup { members, queue, readiness, .. } = self;
        readiness.flags().take_marks(|index| enqueue(queue, members, index));
        for _ in waiting..self.queue.len() {
            if count == max && max > 0 {
                break;
            }
            let Some(index) = self.queue.remove(waiting) else { break };
            count += self.poll_member(index, now, max - count, done);
        }
        if count > 0 {
            self.spinning.worked(count);
        }
        count
    }

    /// Polls a pair that was taken from the queue; returns the number of its completions.
    fn poll_member(
        &mut self,
        index: usize,
        now: Instant,
        limit: usize,
        done: &mut Vec<(usize, Completion)>,
    ) -> usize {
        let member = &mut self.members[index];
        member.is_queued = false;
        member.is_restless = false;
        let found = member.pair.poll(now, limit, &mut self.scratch);
        done.extend(self.scratch.drain(..).map(|completion| (index, completion)));
        self.settle(index, found == limit);
        found
    }

    /// Starts submitted I/O on devices that transfer bytes by themselves, without completing any.
    pub fn start(&mut self) {
        for &index in &self.queue {
            self.members[index].pair.start();
        }
    }

    /// Waits until polling may find something, a [`Waker`] calls, or `until` has passed.
    ///
    /// Call it after a `poll` that returned nothing. It may return early for no reason. While I/Os are
    /// outstanding, it returns at once for up to 250 µs, so that the caller spins; then it sleeps. It does not sleep
    /// with busy polling, or while a queue pair has no event to wait for ([`Notice::Poll`]).
    pub fn wait(&mut self, until: Instant) {
        self.notice_fork();
        let now = Instant::now();
        let flags = self.readiness.flags();
        if flags.take_woken() || flags.has_marks() || until <= now {
            return;
        }
        if self.outstanding > 0 && self.spinning.spin(now) {
            std::hint::spin_loop();
            return;
        }
        if self.queue.iter().any(|&index| self.members[index].is_restless) {
            return;
        }
        let until = self.next_due.map_or(until, |due| until.min(due));
        self.sleep(until.saturating_duration_since(now));
        self.spinning.slept(now.elapsed());
    }

    /// A handle by which another thread ends a [`PollGroup::wait`].
    pub fn waker(&self) -> Waker {
        self.readiness.waker()
    }

    /// Sleeps for at most `limit`, and queues the pairs that became ready.
    fn sleep(&mut self, limit: Duration) {
        self.readiness.sleep(limit);
        let PollGroup { members, queue, readiness, .. } = self;
        readiness.ask(|index| enqueue(queue, members, index));
        // The wait ends here, so a call of the waker until now has had its effect.
        readiness.flags().take_woken();
        self.is_asked = true;
    }

    /// Queues the pairs that may have work.
    fn find_work(&mut self, now: Instant) {
        self.notice_fork();
        let PollGroup { members, queue, readiness, .. } = self;
        if !std::mem::take(&mut self.is_asked) && self.outstanding > 0 {
            // Also for pairs without outstanding I/O: one of them may hold the descriptor of a shared
            // connection.
            readiness.look(|index| enqueue(queue, members, index));
        }
        readiness.flags().take_marks(|index| enqueue(queue, members, index));
        if self.all_due.is_none_or(|at| at <= now) {
            self.all_due = Some(now + ALL_INTERVAL);
            (0..members.len()).for_each(|index| enqueue(queue, members, index));
        }
        if self.next_due.is_some_and(|at| at <= now) {
            self.next_due = None;
            for index in 0..members.len() {
                match members[index].due {
                    Some(at) if at <= now => {
                        members[index].is_restless = true;
                        enqueue(queue, members, index);
                    }
                    at => self.next_due = earlier(self.next_due, at),
                }
            }
        }
    }

    /// Updates the record of a pair after polling it or submitting to it: its outstanding I/Os, and the time of its
    /// next poll. With `is_restless`, it is polled in the next turn.
    fn settle(&mut self, index: usize, is_restless: bool) {
        let member = &mut self.members[index];
        let outstanding = member.pair.outstanding();
        self.outstanding = self.outstanding + outstanding - member.outstanding;
        member.outstanding = outstanding;
        member.due = member.pair.next_timeout();
        self.next_due = earlier(self.next_due, member.due);
        let notice = if outstanding > 0 { member.pair.notice() } else { Notice::Event };
        member.is_restless |= is_restless || notice == Notice::Poll;
        if member.is_restless || notice > Notice::Event {
            enqueue(&mut self.queue, &mut self.members, index);
        }
    }

    /// In a child process, replaces the epoll set and the waker's descriptor, which belong to the parent.
    fn notice_fork(&mut self) {
        if self.readiness.is_ours() {
            return;
        }
        // Without another set the child would wait on the parent's one, so it spins instead.
        let Ok(readiness) = Readiness::new() else {
            (0..self.members.len()).for_each(|index| self.settle(index, true));
            return;
        };
        self.readiness = readiness;
        for index in 0..self.members.len() {
            self.members[index].pair.register(&self.readiness.registry(index));
            self.settle(index, true);
        }
    }
}

fn enqueue(queue: &mut VecDeque<usize>, members: &mut [GroupMember], index: usize) {
    if !std::mem::replace(&mut members[index].is_queued, true) {
        queue.push_back(index);
    }
}

fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}

/// Adaptive spinning: decides how long a poller polls without finding work before it sleeps.
///
/// A poller spins for at most 50 µs after the last work that it found. A long sleep halves the next spin, so that rare
/// work costs little processor time. A sleep so short that a spin would have caught its end restores the full 50 µs.
///
/// Each I/O that completes extends the next spin by a microsecond, by 200 µs in all. With many I/Os outstanding, a
/// target may work on all of them together and be silent for longer than 50 µs. A poller that sleeps must be woken, and
/// the target pays for that, although it is often the busier side. So an I/O costs at most one microsecond of extra
/// spinning, and a queue of few large I/Os sleeps about as early as without the extension.
#[derive(Debug)]
pub struct Spinning {
    /// The longest duration of a spin that finds nothing, without `credit`: at most `SPIN`, halved by each long sleep.
    budget: Duration,
    /// Spin time beyond `budget` that completed I/Os have earned since the last sleep: at most 200 µs.
    credit: Duration,
    /// The duration of the current spin so far.
    spun: Duration,
    /// The time of the first poll that found nothing since the last work; `None`: the last poll found work.
    quiet_since: Option<Instant>,
    /// True if the poller never sleeps while I/Os are outstanding.
    busy_poll: bool,
    /// True if the machine has one processor: a thread that could produce work needs it, so spinning only delays work.
    alone: bool,
}

impl Spinning {
    /// Starts with the full budget. With `busy_poll`, every [`Spinning::spin`] asks to poll again.
    pub fn new(busy_poll: bool) -> Spinning {
        Spinning {
            budget: SPIN,
            credit: Duration::ZERO,
            spun: Duration::ZERO,
            quiet_since: None,
            busy_poll,
            // The affinity of this thread does not matter: the other side, even if it is this machine's kernel, may
            // run on another processor.
            alone: online().len() == 1,
        }
    }

    /// Records that a poll found work, which completed `ended` I/Os.
    pub fn worked(&mut self, ended: usize) {
        let used = self.spun.saturating_sub(self.budget);
        let earned = EARNED * ended.min(EARNED_MAX) as u32;
        self.credit = (self.credit.saturating_sub(used) + earned).min(EARNED * EARNED_MAX as u32);
        self.spun = Duration::ZERO;
        self.quiet_since = None;
    }

    /// Records that a poll found nothing; returns whether to poll again at once.
    pub fn spin(&mut self, now: Instant) -> bool {
        let quiet_since = *self.quiet_since.get_or_insert(now);
        self.spun = now.saturating_duration_since(quiet_since);
        self.busy_poll || !self.alone && !self.is_spent()
    }

    /// Returns whether the spin has used up its time. Busy polling continues even so.
    pub fn is_spent(&self) -> bool {
        self.spun >= self.budget + self.credit
    }

    /// Records the length of a sleep that followed a spin without work.
    pub fn slept(&mut self, slept: Duration) {
        // A wake-up itself takes tens of microseconds, so a sleep of 2 × SPIN was for about one SPIN.
        self.budget = if slept < 2 * SPIN { SPIN } else { self.budget / 2 };
        self.credit = Duration::ZERO;
        self.spun = Duration::ZERO;
        self.quiet_since = None;
    }
}

/// The interval at which every pair is polled even if nothing is ready.
const ALL_INTERVAL: Duration = Duration::from_millis(10);

/// The longest spin that finds nothing, without the extension that I/Os have earned.
const SPIN: Duration = Duration::from_micros(50);

/// The spin time that a completed I/O earns, and the number of I/Os that may earn it at once.
const EARNED: Duration = Duration::from_micros(1);
const EARNED_MAX: usize = 200;

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;
    use crate::qpair::mem::MemNamespace;
    use crate::qpair::readiness::{Registry, Watched};
    use crate::qpair::{Device, IoOp, Namespace};
    use dlfs_base::buf::IoBuf;

    fn read(tag: u64) -> Io {
        Io { op: IoOp::Read, slba: Lba(tag), buf: IoBuf::zeroed(512), tag }
    }

    #[test]
    fn completions_of_all_pairs_come_in_one_list_and_max_starves_nobody() {
        let device = MemNamespace::new(1 << 16, 512).unwrap();
        let mut group = PollGroup::new().unwrap();
        for index in 0..3 {
            assert_eq!(group.add(device.queue_pair().unwrap()), index);
            group.submit(index, &mut (0..4).map(read).collect());
        }
        assert_eq!((group.outstanding(), group.num_pairs()), (12, 3));
        let mut done = Vec::new();
        for turn in 0..3 {
            assert_eq!(group.poll(Instant::now(), 4, &mut done), 4, "turn {turn}");
        }
        let firsts: Vec<usize> = done.iter().step_by(4).map(|(index, _)| *index).collect();
        assert_eq!((firsts, group.outstanding()), (vec![0, 1, 2], 0));
        assert_eq!(group.poll(Instant::now(), 4, &mut done), 0);
    }

    #[test]
    fn a_wait_does_not_sleep_while_polling_alone_completes() {
        let device = MemNamespace::new(1 << 16, 512).unwrap();
        let mut group = PollGroup::new().unwrap();
        group.add(device.queue_pair().unwrap());
        group.submit(0, &mut VecDeque::from([read(0)]));
        let far = Instant::now() + Duration::from_secs(3600);
        (0..10_000).for_each(|_| group.wait(far)); // would hang if it slept
        assert_eq!(group.outstanding(), 1);
    }

    #[test]
    fn a_wait_ends_at_its_deadline() {
        let until = Instant::now() + Duration::from_millis(20);
        let mut group = PollGroup::new().unwrap();
        while Instant::now() < until {
            group.wait(until);
        }
        group.wait(until); // in the past: returns at once
    }

    #[test]
    fn a_waker_ends_the_next_wait_or_the_current_one() {
        let far = Instant::now() + Duration::from_secs(3600);
        let mut group = PollGroup::new().unwrap();
        let waker = group.waker();
        waker.wake();
        group.wait(far);
        for _ in 0..1000 {
            let waker = waker.clone();
            let other = std::thread::spawn(move || waker.wake());
            group.wait(far);
            other.join().unwrap();
            group.readiness.flags().take_woken(); // an earlier call may have ended it
        }
    }

    /// A queue pair that never completes an I/O and never becomes ready, but has a timeout.
    struct Stuck(Namespace, Option<Instant>);

    impl QueuePair for Stuck {
        fn namespace(&self) -> &Namespace {
            &self.0
        }
        fn submit(&mut self, _pending: &mut VecDeque<Io>) -> usize {
            0
        }
        fn poll(&mut self, _: Instant, _: usize, _: &mut Vec<Completion>) -> usize {
            0
        }
        fn outstanding(&self) -> usize {
            1
        }

        fn notice(&self) -> Notice {
            Notice::Look
        }
        fn next_timeout(&self) -> Option<Instant> {
            self.1
        }
    }

    /// The state that two handles share: a socket, which the first one watches, and completions for the
    /// second one.
    struct Shared {
        socket: Watched<UnixStream>,
        for_the_second: Vec<Completion>,
        second: Option<Registry>,
    }

    /// A handle of a connection. Each received byte completes an I/O of the second handle.
    struct Handle {
        shared: Arc<Mutex<Shared>>,
        namespace: Namespace,
        is_first: bool,
        owed: usize,
    }

    impl QueuePair for Handle {
        fn namespace(&self) -> &Namespace {
            &self.namespace
        }
        fn submit(&mut self, pending: &mut VecDeque<Io>) -> usize {
            self.owed += pending.drain(..).count();
            self.owed
        }
        fn poll(&mut self, _: Instant, _: usize, done: &mut Vec<Completion>) -> usize {
            let mut shared = self.shared.lock();
            if self.is_first {
                let mut bytes = [0; 8];
                let len = shared.socket.read(&mut bytes).unwrap_or(0);
                for &tag in &bytes[..len] {
                    let tag = tag.into();
                    let buf = IoBuf::empty();
                    let result = Ok(());
                    shared.for_the_second.push(Completion { tag, buf, result });
                    shared.second.as_ref().unwrap().mark();
                }
                return 0;
            }
            let count = shared.for_the_second.len();
            done.append(&mut shared.for_the_second);
            self.owed -= count;
            count
        }
        fn outstanding(&self) -> usize {
            self.owed
        }
        fn shared_queue(&self) -> Option<usize> {
            Some(1)
        }
        fn register(&mut self, registry: &Registry) {
            let mut shared = self.shared.lock();
            if self.is_first {
                shared.socket.register(registry, false)
            } else {
                shared.second = Some(registry.clone())
            }
        }
        fn notice(&self) -> Notice {
            Notice::Event
        }
    }

    #[test]
    fn completions_that_an_idle_pair_receives_for_another_come_in_the_same_turn_and_end_a_sleep() {
        let namespace = MemNamespace::new(512, 512).unwrap().namespace();
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let socket = Watched::new(ours);
        let for_the_second = Vec::new();
        let second = None;
        let shared = Arc::new(Mutex::new(Shared { socket, for_the_second, second }));
        let mut group = PollGroup::new().unwrap();
        for is_first in [true, false] {
            let shared = Arc::clone(&shared);
            let namespace = namespace.clone();
            group.add(Box::new(Handle { shared, namespace, is_first, owed: 0 }));
        }
        let far = Instant::now() + Duration::from_secs(3600);
        let mut done = Vec::new();
        group.poll(Instant::now(), usize::MAX, &mut done); // new members are polled once
        for round in 0..20 {
            group.submit(1, &mut VecDeque::from([read(round)]));
            group.poll(Instant::now(), usize::MAX, &mut done);
            assert!(done.is_empty());
            theirs.write_all(&[round as u8]).unwrap();
            assert_eq!(group.poll(Instant::now(), usize::MAX, &mut done), 1, "round {round}");
            assert_eq!(done.pop().map(|(pair, done)| (pair, done.tag)), Some((1, round)));
        }
        group.submit(1, &mut VecDeque::from([read(0)]));
        let mut waker = theirs.try_clone().unwrap();
        let other = std::thread::spawn(move || waker.write_all(&[7]).unwrap());
        while group.poll(Instant::now(), usize::MAX, &mut done) == 0 {
            group.wait(far); // would hang
        }
        other.join().unwrap();
        // Another thread may find the completion as well.
        group.submit(1, &mut VecDeque::from([read(0)]));
        let other = std::thread::spawn(move || {
            let tag = 9;
            let buf = IoBuf::empty();
            let result = Ok(());
            let mut shared = shared.lock();
            shared.for_the_second.push(Completion { tag, buf, result });
            shared.second.as_ref().unwrap().mark();
        });
        while group.poll(Instant::now(), usize::MAX, &mut done) == 0 {
            group.wait(far);
        }
        other.join().unwrap();
        assert_eq!((done.len(), group.outstanding()), (2, 0));
    }

    #[test]
    fn a_wait_ends_when_a_pair_wants_to_be_polled() {
        let namespace = MemNamespace::new(512, 512).unwrap().namespace();
        let mut group = PollGroup::new().unwrap();
        let wanted = Instant::now() + Duration::from_millis(5);
        group.add(Box::new(Stuck(namespace, Some(wanted))));
        let far = wanted + Duration::from_secs(3600);
        while Instant::now() < wanted {
            group.wait(far);
        }
    }

    fn spinning(busy_poll: bool) -> Spinning {
        Spinning { busy_poll, alone: false, ..Spinning::new(false) }
    }

    #[test]
    fn spins_halve_when_they_find_nothing_and_are_restored_by_a_short_sleep() {
        let mut spinning = spinning(false);
        let start = Instant::now();
        assert!(spinning.spin(start) && spinning.spin(start + SPIN / 2));
        assert!(!spinning.spin(start + SPIN));
        spinning.slept(Duration::from_millis(3));
        assert!(spinning.spin(start));
        assert!(!spinning.spin(start + SPIN / 2));
        spinning.slept(Duration::from_micros(30));
        assert!(spinning.spin(start) && spinning.spin(start + SPIN / 2));
        spinning.worked(0);
        assert!(spinning.spin(start + SPIN), "work begins a new spin");
    }

    #[test]
    fn completed_ios_extend_the_spin_until_the_extension_is_used_up() {
        let mut spinning = spinning(false);
        let start = Instant::now();
        spinning.worked(100);
        assert!(spinning.spin(start) && spinning.spin(start + SPIN + 99 * EARNED));
        assert!(!spinning.spin(start + SPIN + 100 * EARNED));
        spinning.worked(0);
        assert!(spinning.spin(start) && !spinning.spin(start + SPIN), "it was used up");
        spinning.worked(usize::MAX);
        assert!(spinning.spin(start) && !spinning.spin(start + SPIN + EARNED * EARNED_MAX as u32));
        spinning.slept(SPIN);
        assert!(spinning.spin(start) && !spinning.spin(start + SPIN), "a sleep forgets it");
        // Few I/Os between spins of a usual length keep their credit, and it is bounded.
        for _ in 0..1000 {
            spinning.worked(1);
            assert!(spinning.spin(start) && spinning.spin(start + SPIN - EARNED));
        }
        assert!(!spinning.spin(start + SPIN + EARNED * EARNED_MAX as u32));
    }

    #[test]
    fn busy_polling_never_sleeps_and_a_single_processor_never_spins() {
        let start = Instant::now();
        let mut busy = Spinning { alone: true, ..spinning(true) };
        assert!(busy.spin(start) && !busy.is_spent());
        assert!(busy.spin(start + 10 * SPIN) && busy.is_spent());
        let mut alone = Spinning { alone: true, ..spinning(false) };
        assert!(!alone.spin(start));
    }
}
