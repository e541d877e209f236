//! The thread that computes the exponentiations of authentications, so that pollers never wait for one.
//!
//! An exponentiation costs a host that knows no key one message and the target milliseconds. So hosts
//! that have not authenticated before share a small budget while the target serves data: 2 % of one core,
//! and a queue of [`MAX_UNPROVEN`], of which one address has a quarter; beyond that a host is told to try
//! again. Hosts that have go first, up
//! to [`PROVEN_PER_S`] a second, so that an attack does not keep them from reconnecting.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::peers::Peer;
use super::stats::Counters;
use dlfs_nvme::auth::{Exponentiation, Power};
use dlfs_nvme::nvme::Nqn;

/// The queue between the pollers and the thread.
pub(super) struct Exponentiations {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    proven: VecDeque<Job>,
    unproven: VecDeque<(Peer, Job)>,
    /// Hosts that have authenticated from an address, oldest first in `order`.
    hosts: HashSet<(Peer, Nqn)>,
    order: VecDeque<(Peer, Nqn)>,
    budget: Budget,
    is_stopped: bool,
}

/// One exponentiation, and who waits for it.
pub(super) struct Job {
    pub(super) poller: usize,
    /// Index and generation of the connection.
    pub(super) connection: (usize, u32),
    pub(super) work: Exponentiation,
}

/// The result of a [`Job`].
pub(super) struct Computed {
    pub(super) connection: (usize, u32),
    pub(super) power: Power,
}

/// How many may be computed, and when.
struct Budget {
    /// Exponentiations of proven hosts that may still go first in this second.
    first_left: u32,
    second: Instant,
    /// When the next one of an unproven host may begin while data is served.
    next_unproven: Instant,
}

impl Budget {
    fn new(now: Instant) -> Budget {
        Budget { first_left: PROVEN_PER_S, second: now, next_unproven: now }
    }

    /// Returns whether one more of a proven host may go first; if so, counts it.
    fn may_go_first(&mut self, now: Instant) -> bool {
        if now.saturating_duration_since(self.second) >= Duration::from_secs(1) {
            (self.first_left, self.second) = (PROVEN_PER_S, now);
        }
        let may = self.first_left > 0;
        self.first_left -= u32::from(may);
        may
    }

    /// An unproven one took `lasted` and has ended: when the next may begin.
    fn spent(&mut self, lasted: Duration, now: Instant) {
        self.next_unproven = now + lasted * (100 / UNPROVEN_PERCENT - 1);
    }
}

impl Exponentiations {
    pub(super) fn new() -> Exponentiations {
        let state = State {
            proven: VecDeque::new(),
            unproven: VecDeque::new(),
            hosts: HashSet::new(),
            order: VecDeque::new(),
            budget: Budget::new(Instant::now()),
            is_stopped: false,
        };
        Exponentiations { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Queues a job for `host` at `peer`; `false`: the queue is full, or has the peer's share.
    pub(super) fn push(&self, job: Job, peer: Peer, host: &Nqn, now: Instant) -> bool {
        let mut state = self.state.lock();
        let is_proven = state.hosts.contains(&(peer, host.clone()));
        if is_proven && state.budget.may_go_first(now) {
            state.proven.push_back(job);
        } else if state.unproven.len() < MAX_UNPROVEN
            && state.unproven.iter().filter(|(of, _)| *of == peer).count() < MAX_UNPROVEN_PER_PEER
        {
            state.unproven.push_back((peer, job));
        } else {
            return false;
        }
        drop(state);
        self.changed.notify_one();
        true
    }

    /// `host` has authenticated from `peer`.
    pub(super) fn prove(&self, peer: Peer, host: &Nqn) {
        let mut state = self.state.lock();
        let entry = (peer, host.clone());
        if state.hosts.insert(entry.clone()) {
            state.order.push_back(entry);
        }
        while state.order.len() > MAX_PROVEN_HOSTS {
            let oldest = state.order.pop_front().expect("it is longer than its limit");
            state.hosts.remove(&oldest);
        }
    }

    /// Ends [`Exponentiations::run`].
    pub(super) fn stop(&self) {
        self.state.lock().is_stopped = true;
        self.changed.notify_all();
    }

    /// Computes until stopped, and hands each result, with the number of its poller, to `deliver`.
    pub(super) fn run(&self, counters: &Counters, deliver: impl Fn(usize, Computed)) {
        let mut served = counters.reads.load(Ordering::Relaxed);
        let mut served_at = None;
        while let Some((job, is_proven)) = self.next(|now| {
            let reads = counters.reads.load(Ordering::Relaxed);
            if std::mem::replace(&mut served, reads) != reads {
                served_at = Some(now);
            }
            served_at.is_some_and(|at| now.saturating_duration_since(at) < SERVING_FOR)
        }) {
            let began = Instant::now();
            let Job { poller, connection, work } = job;
            let power = work.compute();
            let now = Instant::now();
            if !is_proven {
                self.state.lock().budget.spent(now - began, now);
            }
            deliver(poller, Computed { connection, power });
        }
    }

    /// The next job and whether its host is proven, once it may begin; `None`: stopped.
    fn next(&self, mut is_serving: impl FnMut(Instant) -> bool) -> Option<(Job, bool)> {
        let mut state = self.state.lock();
        loop {
            if state.is_stopped {
                return None;
            }
            if let Some(job) = state.proven.pop_front() {
                return Some((job, true));
            }
            let now = Instant::now();
            let until = state.budget.next_unproven;
            if state.unproven.is_empty() {
                self.changed.wait(&mut state);
            } else if now >= until || !is_serving(now) {
                return state.unproven.pop_front().map(|(_, job)| (job, false));
            } else {
                // Looks again whether data is still served.
                self.changed.wait_until(&mut state, until.min(now + SERVING_FOR));
            }
        }
    }
}

/// The percentage of one core that unproven hosts may use while data is served.
const UNPROVEN_PERCENT: u32 = 2;
/// The most jobs of unproven hosts that wait.
const MAX_UNPROVEN: usize = 64;
/// The most of them from one address, so that one alone does not keep all others out.
const MAX_UNPROVEN_PER_PEER: usize = 16;
/// How many jobs of proven hosts go first in a second.
const PROVEN_PER_S: u32 = 20;
/// How many hosts are remembered as proven.
const MAX_PROVEN_HOSTS: usize = 16_384;
/// How long after a read data counts as being served.
const SERVING_FOR: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    fn job(number: usize) -> Job {
        let work = Exponentiation::example(dlfs_nvme::auth::Group::Ffdhe2048);
        Job { poller: 0, connection: (number, 0), work }
    }

    fn peer() -> Peer {
        peer_at(0)
    }

    fn peer_at(number: usize) -> Peer {
        Peer::from(std::net::IpAddr::from([127, 0, 0, number as u8]))
    }

    fn host(name: &str) -> Nqn {
        Nqn::new(format!("nqn.2026-11.io.dlfs:{name}")).unwrap()
    }

    #[test]
    fn strangers_wait_in_a_short_queue_and_known_hosts_go_first() {
        let all = Exponentiations::new();
        let now = Instant::now();
        let stranger = host("stranger");
        let known = host("known");
        for number in 0..MAX_UNPROVEN {
            let of = peer_at(number / MAX_UNPROVEN_PER_PEER);
            assert!(all.push(job(number), of, &stranger, now));
            let is_last = (number + 1).is_multiple_of(MAX_UNPROVEN_PER_PEER);
            assert!(!is_last || !all.push(job(99), of, &stranger, now), "it has its share");
        }
        assert!(!all.push(job(99), peer_at(99), &stranger, now), "the queue is full");
        all.prove(peer(), &known);
        for number in 0..PROVEN_PER_S as usize {
            assert!(all.push(job(100 + number), peer(), &known, now));
        }
        assert!(!all.push(job(99), peer(), &known, now), "more than may go first in a second");
        let next = |all: &Exponentiations| {
            all.next(|_| true).map(|(job, is_proven)| (job.connection.0, is_proven))
        };
        for number in 0..PROVEN_PER_S as usize {
            assert_eq!(next(&all), Some((100 + number, true)));
        }
        assert_eq!(next(&all), Some((0, false)));
        all.stop();
        assert_eq!(next(&all), None);
    }

    #[test]
    fn unproven_hosts_get_a_fiftieth_of_a_core_while_data_is_served() {
        let now = Instant::now();
        let mut budget = Budget::new(now);
        budget.spent(Duration::from_millis(3), now);
        assert_eq!(budget.next_unproven - now, Duration::from_millis(3 * 49));
        assert!((0..PROVEN_PER_S).all(|_| budget.may_go_first(now)) && !budget.may_go_first(now));
        assert!(budget.may_go_first(now + Duration::from_secs(1)));
    }
}
