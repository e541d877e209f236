//! The thread that computes the Diffie-Hellman exponentiations of authentications, so that pollers never
//! block on one.
//!
//! A host without a key can make the target compute for milliseconds with one message. So unproven hosts,
//! which have not authenticated from their address before, share a queue of [`MAX_UNPROVEN`] jobs, of which one
//! address may use a quarter. When the queue is full, a host is told to try again. While the target serves data, this
//! queue gets 2 % of one core. Jobs of proven hosts have a queue of their own and go first, so that an attack does not
//! keep these hosts from reconnecting; beyond [`PROVEN_PER_S`] per second, they join the queue of the others.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::peers::Peer;
use super::stats::Counters;
use dlfs_nvme::auth::{Exponentiation, Power};
use dlfs_nvme::nvme::Nqn;

/// The queues between the pollers and the thread.
pub(super) struct Exponentiations {
    state: Mutex<QueueState>,
    /// Notified when a job arrives or the thread is to end.
    changed: Condvar,
}

struct QueueState {
    /// Jobs of proven hosts within [`PROVEN_PER_S`], which go first.
    proven: VecDeque<Job>,
    /// Other jobs, with the address that asked for each.
    unproven: VecDeque<(Peer, Job)>,
    /// Proven hosts, with the address from which they authenticated.
    hosts: HashSet<(Peer, Nqn)>,
    /// The same hosts, oldest first.
    order: VecDeque<(Peer, Nqn)>,
    budget: Budget,
    is_stopped: bool,
}

/// One exponentiation, and the connection that waits for it.
pub(super) struct Job {
    /// Index of the connection's poller.
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

/// Limits on the number and the time of exponentiations.
struct Budget {
    /// Remaining jobs of proven hosts that may go first in this second.
    first_left: u32,
    /// Start of that second.
    second: Instant,
    /// The earliest start of the next job of `unproven` while the target serves data.
    next_unproven: Instant,
}

impl Budget {
    fn new(now: Instant) -> Budget {
        Budget { first_left: PROVEN_PER_S, second: now, next_unproven: now }
    }

    /// Returns whether one more job of a proven host may go first, and counts it if so.
    fn may_go_first(&mut self, now: Instant) -> bool {
        if now.saturating_duration_since(self.second) >= Duration::from_secs(1) {
            (self.first_left, self.second) = (PROVEN_PER_S, now);
        }
        let may = self.first_left > 0;
        self.first_left -= u32::from(may);
        may
    }

    /// Sets the earliest start of the next job of `unproven`, after one that took `lasted`.
    fn spent(&mut self, lasted: Duration, now: Instant) {
        self.next_unproven = now + lasted * (100 / UNPROVEN_PERCENT - 1);
    }
}

impl Exponentiations {
    pub(super) fn new() -> Exponentiations {
        let state = QueueState {
            proven: VecDeque::new(),
            unproven: VecDeque::new(),
            hosts: HashSet::new(),
            order: VecDeque::new(),
            budget: Budget::new(Instant::now()),
            is_stopped: false,
        };
        Exponentiations { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Queues a job for `host` at `peer`. Returns `false` if the queue is full or `peer` has used up its
    /// share.
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

    /// Remembers that `host` has authenticated from `peer`.
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

    /// Computes until stopped. Passes each result to `deliver`, with the index of the job's poller. The target counts
    /// as serving data if a poller has counted a read in the last [`SERVING_FOR`].
    pub(super) fn run(&self, counters: &Counters, deliver: impl Fn(usize, Computed)) {
        let mut served = counters.reads.load(Ordering::Relaxed);
        let mut served_at = None;
        while let Some((job, went_first)) = self.next(|now| {
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
            if !went_first {
                self.state.lock().budget.spent(now - began, now);
            }
            deliver(poller, Computed { connection, power });
        }
    }

    /// Waits until a job may start; returns it, and whether it was one of those that go first. Returns `None` once
    /// stopped.
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
                // Wakes early enough to notice that data are no longer served.
                self.changed.wait_until(&mut state, until.min(now + SERVING_FOR));
            }
        }
    }
}

/// The percentage of one core that unproven hosts may use while data is served.
const UNPROVEN_PERCENT: u32 = 2;
/// Maximum queued jobs of unproven hosts.
const MAX_UNPROVEN: usize = 64;
/// Maximum queued unproven jobs from one address, so that one address cannot block all others.
const MAX_UNPROVEN_PER_PEER: usize = 16;
/// Jobs of proven hosts that may go first, per second.
const PROVEN_PER_S: u32 = 20;
/// Maximum number of remembered proven hosts.
const MAX_PROVEN_HOSTS: usize = 16_384;
/// Time after a read for which the target counts as serving data.
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
