//! Several queue pairs polled by one thread, and how that thread waits when nothing moves.
//!
//! This is DLFS's shared completion queue: whoever owns the group sees the completions of all pairs in
//! one list. A loop over it reads
//!
//! ```text
//! group.submit(index, &mut pending);
//! if group.poll(now, max, &mut done) == 0 { group.wait(until) }
//! ```
//!
//! Waiting is adaptive. While I/Os are outstanding a wait returns at once, so that the loop spins, but
//! for at most 50 µs since the last completion and a microsecond for each one before it, 250 µs in all;
//! then it sleeps on what the pairs name (`patience.rs`). An idle group costs no processor time.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::patience::Patience;
use super::{Completion, Io, QueuePair};
use crate::buf::Pool;
use crate::error::Result;
use crate::units::Lba;

/// Queue pairs that one thread polls together. See the module for the loop around it.
pub struct PollGroup {
    pairs: Vec<Box<dyn QueuePair>>,
    /// Who is polled first; moves on by one a turn, so that `max` starves nobody.
    first: usize,
    scratch: Vec<Completion>,
    patience: Patience,
    wake: Arc<Wake>,
}

impl PollGroup {
    /// A group without queue pairs.
    ///
    /// # Errors
    /// The operating system gives no event descriptor.
    pub fn new() -> Result<PollGroup> {
        let patience = Patience::new(false);
        let wake = Arc::new(Wake {
            woken: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map_err(std::io::Error::from)?,
        });
        Ok(PollGroup { pairs: Vec::new(), first: 0, scratch: Vec::new(), patience, wake })
    }

    /// Never sleep while I/Os are outstanding: the lowest latency, at the price of a whole core.
    pub fn set_busy_poll(&mut self, busy_poll: bool) {
        self.patience = Patience::new(busy_poll);
    }

    /// Adds a queue pair; the index names it from now on.
    pub fn add(&mut self, pair: Box<dyn QueuePair>) -> usize {
        self.pairs.push(pair);
        self.pairs.len() - 1
    }

    /// The queue pair `index`.
    ///
    /// # Panics
    /// `add` never returned this index.
    pub fn pair(&self, index: usize) -> &dyn QueuePair {
        &*self.pairs[index]
    }

    /// How many queue pairs there are.
    pub fn num_pairs(&self) -> usize {
        self.pairs.len()
    }

    /// Takes I/O from the front of `pending` for pair `index`, as [`QueuePair::submit`] does.
    ///
    /// # Panics
    /// `add` never returned this index.
    pub fn submit(&mut self, index: usize, pending: &mut VecDeque<Io>) -> usize {
        self.pairs[index].submit(pending)
    }

    /// As [`QueuePair::distrust`], for pair `index`.
    pub fn distrust(&mut self, index: usize, slba: Lba, len_bytes: usize) {
        self.pairs[index].distrust(slba, len_bytes);
    }

    /// Tells every pair of the pool that most buffers come from, see [`QueuePair::use_pool`].
    pub fn use_pool(&mut self, pool: &Pool) {
        self.pairs.iter_mut().for_each(|pair| pair.use_pool(pool));
    }

    /// I/Os taken by all pairs together and not yet completed.
    pub fn outstanding(&self) -> usize {
        self.pairs.iter().map(|pair| pair.outstanding()).sum()
    }

    /// Polls every pair once; appends at most `max` completions, each with the index of its pair, and
    /// returns how many.
    pub fn poll(&mut self, now: Instant, max: usize, done: &mut Vec<(usize, Completion)>) -> usize {
        let num_pairs = self.pairs.len();
        let mut count = 0;
        for turn in 0..num_pairs {
            let index = (self.first + turn) % num_pairs;
            count += self.pairs[index].poll(now, max - count, &mut self.scratch);
            done.extend(self.scratch.drain(..).map(|completion| (index, completion)));
        }
        self.first = (self.first + 1) % num_pairs.max(1);
        if count > 0 {
            self.patience.worked(count);
        }
        count
    }

    /// Starts what was submitted to devices that move bytes by themselves, without completing anything.
    pub fn start(&mut self) {
        self.pairs.iter_mut().for_each(|pair| pair.start());
    }

    /// Waits until polling again may bring something, a [`Waker`] calls, or `until` has come.
    ///
    /// May return early for no reason; after at most 250 µs of returning at once it sleeps. To be
    /// called after a `poll` that brought nothing.
    pub fn wait(&mut self, until: Instant) {
        let now = Instant::now();
        if self.wake.woken.swap(false, Ordering::SeqCst) || until <= now {
            return;
        }
        if self.outstanding() > 0 && self.patience.spin(now) {
            std::hint::spin_loop();
            return;
        }
        if self.pairs.iter().any(|pair| completes_in_poll_alone(&**pair)) {
            return;
        }
        let until =
            self.pairs.iter().filter_map(|pair| pair.next_timeout()).fold(until, Instant::min);
        self.sleep(until.saturating_duration_since(now));
        self.patience.slept(now.elapsed());
    }

    /// A handle that ends a [`PollGroup::wait`] from another thread.
    pub fn waker(&self) -> Waker {
        Waker(Arc::clone(&self.wake))
    }

    fn sleep(&self, limit: Duration) {
        self.wake.asleep.store(true, Ordering::SeqCst);
        if !self.wake.woken.swap(false, Ordering::SeqCst) {
            let limit = Timespec::try_from(limit).ok(); // beyond i64 seconds: no limit
            let event = || PollFd::from_borrowed_fd(self.wake.event.as_fd(), PollFlags::IN);
            let pairs = self.pairs.iter().filter_map(|pair| poll_fd(&**pair));
            // An error is a signal, or no memory for the call: the caller polls, and waits again.
            let _ = if self.pairs.len() < FEW {
                let mut fds: [PollFd<'_>; FEW] = std::array::from_fn(|_| event());
                let used = fds[1..].iter_mut().zip(pairs).map(|(fd, pair)| *fd = pair).count();
                poll(&mut fds[..=used], limit.as_ref())
            } else {
                poll(&mut pairs.chain([event()]).collect::<Vec<_>>(), limit.as_ref())
            };
        }
        self.wake.asleep.store(false, Ordering::SeqCst);
        self.wake.drain();
    }
}

/// Whether there is nothing to sleep on although something is to be done.
fn completes_in_poll_alone(pair: &dyn QueuePair) -> bool {
    pair.outstanding() > 0 && pair.wait_fd().is_none() && pair.next_timeout().is_none()
}

fn poll_fd(pair: &dyn QueuePair) -> Option<PollFd<'_>> {
    let wait = pair.wait_fd()?;
    let mut events = PollFlags::IN;
    if wait.writable {
        events |= PollFlags::OUT;
    }
    Some(PollFd::from_borrowed_fd(wait.fd, events))
}

/// Ends the wait of a [`PollGroup`] from another thread. A call while nobody waits ends the next wait.
#[derive(Clone)]
pub struct Waker(Arc<Wake>);

impl Waker {
    /// Ends the wait. Makes a system call only while the group's thread sleeps.
    pub fn wake(&self) {
        self.0.woken.store(true, Ordering::SeqCst);
        // Either this load sees the sleeper, or the sleeper's look at `woken` sees the store above.
        if self.0.asleep.load(Ordering::SeqCst) {
            self.0.ring();
        }
    }

    /// The descriptor that becomes readable when a sleeping group is woken.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.event.as_fd()
    }
}

struct Wake {
    woken: AtomicBool,
    asleep: AtomicBool,
    event: OwnedFd,
}

impl Wake {
    fn ring(&self) {
        // The only failure is a counter at its maximum, and then it is readable anyway.
        let _ = rustix::io::write(&self.event, &[1; 8]); // not zero in any byte order
    }

    fn drain(&self) {
        // The only failure is that nobody rang.
        let _ = rustix::io::read(&self.event, &mut [0u8; 8]);
        // The wait ends now, so whoever called until here has what it wanted.
        self.woken.swap(false, Ordering::SeqCst);
    }
}

/// Descriptors that are waited on without an allocation.
const FEW: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buf::IoBuf;
    use crate::qpair::mem::MemNamespace;
    use crate::qpair::{Device, IoOp, Namespace, Wait};

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
    fn a_wait_ends_when_its_time_has_come() {
        let until = Instant::now() + Duration::from_millis(20);
        let mut group = PollGroup::new().unwrap();
        while Instant::now() < until {
            group.wait(until);
        }
        group.wait(until); // of the past: returns
    }

    #[test]
    fn a_waker_ends_a_wait_before_it_and_during_it() {
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
            group.wake.woken.store(false, Ordering::SeqCst); // it may have ended for an older ring
        }
    }

    /// Never completes, never becomes ready, but wants to be polled at a certain time.
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
        fn wait_fd(&self) -> Option<Wait<'_>> {
            None
        }
        fn next_timeout(&self) -> Option<Instant> {
            self.1
        }
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
}
