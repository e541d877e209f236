//! The keeper: the one thread of a process that owns all admin queues of a transport.
//!
//! It brings controllers up, keeps them alive, takes their events, and reconnects when they are lost:
//! also while no queue pair is polled, so that a trainer that computes for a minute keeps its
//! connections. It starts with the first namespace that is opened. A child process has none of its
//! parent's threads, so it starts its own.
//!
//! A mistake that one controller brings out ends that one: its remote is given up with the words of the
//! panic, and the others are looked after as before.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::backoff::Backoff;
use super::{Admin, Failure, Remote, Session, Transport, Turn};
use crate::error::{Error, ErrorKind, Result};
use crate::threads::caught;

/// The handle on the thread.
pub(in crate::qpair) struct Keeper<T: Transport> {
    event: OwnedFd,
    inbox: Mutex<Vec<Weak<Remote<T>>>>,
    /// Another thread of this process was faster, or this one has died: it has nothing to do, ever.
    retired: AtomicBool,
}

/// Keepers of this process and of those it descends from: a list that only grows.
pub(in crate::qpair) struct Keepers<T: Transport>(OnceLock<Box<Generation<T>>>);

struct Generation<T: Transport> {
    pid: u32,
    keeper: Arc<Keeper<T>>,
    next: Keepers<T>,
}

impl<T: Transport> Keepers<T> {
    pub(in crate::qpair) const fn new() -> Keepers<T> {
        Keepers(OnceLock::new())
    }

    /// The keeper of this process, started if need be.
    ///
    /// # Errors
    /// The operating system gives no thread.
    pub(in crate::qpair) fn of_this_process(&'static self) -> Result<&'static Keeper<T>> {
        let pid = std::process::id();
        let mut keepers = self;
        loop {
            match keepers.0.get() {
                Some(generation) if generation.pid == pid && generation.keeper.is_alive() => {
                    return Ok(&generation.keeper);
                }
                Some(generation) => keepers = &generation.next,
                None => {
                    // Made before it is stored, so that the cell is never locked for long: a process
                    // that forks meanwhile would find it locked for ever.
                    let keeper = Keeper::start()?;
                    let next = Keepers::new();
                    if let Err(late) = keepers.0.set(Box::new(Generation { pid, keeper, next })) {
                        late.keeper.retired.store(true, Ordering::Release);
                        late.keeper.wake();
                    }
                }
            }
        }
    }

    /// Wakes the keeper of this process, if there is one.
    pub(in crate::qpair) fn wake(&self) {
        let pid = std::process::id();
        let mut keepers = self;
        while let Some(generation) = keepers.0.get() {
            if generation.pid == pid {
                generation.keeper.wake();
            }
            keepers = &generation.next;
        }
    }
}

impl<T: Transport> Keeper<T> {
    fn start() -> Result<Arc<Keeper<T>>> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(std::io::Error::from)?;
        let keeper = Arc::new(Keeper {
            event,
            inbox: Mutex::new(Vec::new()),
            retired: AtomicBool::new(false),
        });
        let thread = Arc::clone(&keeper);
        std::thread::Builder::new()
            .name("dlfs-keeper".into())
            .spawn(move || {
                let mut charges = Vec::new();
                if let Err(error) = caught(WHO, || thread.run(&mut charges)) {
                    thread.die(&charges, &error);
                }
            })
            .map_err(|error| {
                Error::new(ErrorKind::Io, "cannot start the keeper thread").source(error)
            })?;
        Ok(keeper)
    }

    /// Whether its thread takes new charges.
    fn is_alive(&self) -> bool {
        !self.retired.load(Ordering::Acquire)
    }

    /// Brings `remote` up and looks after it while somebody else holds it.
    pub(in crate::qpair) fn keep(&self, remote: &Arc<Remote<T>>) {
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_alive() {
            inbox.push(Arc::downgrade(remote));
        } else {
            remote.give_up(Failure::new(ErrorKind::Internal, format!("{WHO} has just died")));
        }
        drop(inbox);
        self.wake();
    }

    fn wake(&self) {
        // It fails when the counter is full: then the thread is awake already.
        let _ = rustix::io::write(&self.event, &[1; 8]);
    }

    fn run(&self, charges: &mut Vec<Charge<T>>) {
        let mut scratch = vec![0; T::SCRATCH_LEN_BYTES];
        while !self.retired.load(Ordering::Acquire) {
            let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Instant::now();
            charges.extend(inbox.drain(..).filter_map(|remote| Charge::new(now, remote)));
            drop(inbox);
            charges.retain_mut(|charge| charge.turn_or_die(Instant::now(), &mut scratch));
            self.sleep(charges);
        }
    }

    /// The thread has died: nobody looks after these any more, and another takes what comes next.
    fn die(&self, charges: &[Charge<T>], error: &Error) {
        self.retired.store(true, Ordering::Release);
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = inbox.drain(..).collect::<Vec<_>>();
        drop(inbox);
        let remotes = charges.iter().map(|charge| &charge.remote).chain(&waiting);
        for remote in remotes.filter_map(Weak::upgrade) {
            remote.give_up(Failure::new(ErrorKind::Internal, error.to_string()));
        }
    }

    /// Sleeps until a controller has something to say, a time has come, or somebody wakes it.
    fn sleep(&self, charges: &[Charge<T>]) {
        let now = Instant::now();
        let until = charges.iter().filter_map(Charge::poll_timeout).min();
        // Rounded up, or the last part of a millisecond would be spun away.
        let limit = until.map(|until| until.saturating_duration_since(now) + GRANULARITY);
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let mut fds: Vec<PollFd<'_>> = charges.iter().filter_map(Charge::poll_fd).collect();
        fds.push(PollFd::from_borrowed_fd(self.event.as_fd(), PollFlags::IN));
        let _ = poll(&mut fds, limit.as_ref()); // an error is a signal: go round once more
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.event, &mut count); // fails when nobody has woken it
    }
}

/// One remote that the keeper looks after.
struct Charge<T: Transport> {
    remote: Weak<Remote<T>>,
    activity: Activity<T>,
    /// The portal in use, or tried last.
    portal: usize,
    /// Portals tried since the round began.
    tried: usize,
    /// The number of the next session.
    next_number: u64,
    /// When the last session was lost, or opening began.
    since: Instant,
    backoff: Backoff,
    /// How many more rounds opening may take, if what it met may pass.
    rounds: u32,
    /// Why each portal failed last.
    failures: Vec<Option<Failure>>,
}

enum Activity<T: Transport> {
    Connecting {
        admin: Box<T::Admin>,
        deadline: Instant,
    },
    /// All portals have been tried.
    Waiting {
        until: Instant,
    },
    Live {
        admin: Box<T::Admin>,
        session: Arc<Session<T>>,
        since: Instant,
    },
}

impl<T: Transport> Charge<T> {
    fn new(now: Instant, remote: Weak<Remote<T>>) -> Option<Charge<T>> {
        let num_portals = remote.upgrade()?.portals.len();
        Some(Charge {
            remote,
            activity: Activity::Waiting { until: now },
            portal: num_portals - 1, // the first is next
            tried: 0,
            next_number: 1,
            since: now,
            backoff: Backoff::new(),
            rounds: OPENING_ROUNDS,
            failures: vec![None; num_portals],
        })
    }

    fn poll_timeout(&self) -> Option<Instant> {
        match &self.activity {
            Activity::Connecting { admin, deadline } => {
                Some(admin.poll_timeout().map_or(*deadline, |at| at.min(*deadline)))
            }
            Activity::Waiting { until } => Some(*until),
            Activity::Live { admin, .. } => admin.poll_timeout(),
        }
    }

    fn poll_fd(&self) -> Option<PollFd<'_>> {
        let wait = match &self.activity {
            Activity::Connecting { admin, .. } | Activity::Live { admin, .. } => admin.wait()?,
            Activity::Waiting { .. } => return None,
        };
        let flags = if wait.writable { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        Some(PollFd::from_borrowed_fd(wait.fd, flags))
    }

    /// As [`Charge::turn`]; a panic in it is the end of this remote alone.
    fn turn_or_die(&mut self, now: Instant, scratch: &mut [u8]) -> bool {
        caught(WHO, || self.turn(now, scratch)).unwrap_or_else(|error| {
            if let Some(remote) = self.remote.upgrade() {
                remote.give_up(Failure::new(ErrorKind::Internal, error.to_string()));
            }
            false
        })
    }

    /// Moves on; `false` when there is nothing left to look after.
    fn turn(&mut self, now: Instant, scratch: &mut [u8]) -> bool {
        let Some(remote) = self.remote.upgrade() else { return false };
        let outcome = match &mut self.activity {
            Activity::Connecting { admin, deadline } => match admin.poll(now, scratch) {
                Ok(Turn::Ready) => self.begin_session(now, &remote),
                Ok(_) if now < *deadline => Ok(()),
                Ok(_) => {
                    let message = "no answer within its time";
                    Err(Failure::new(ErrorKind::TimedOut, message).at(admin.stage()))
                }
                Err(failure) => Err(failure),
            },
            Activity::Waiting { until } if now < *until => Ok(()),
            Activity::Waiting { .. } => {
                self.tried = 0;
                self.try_next(now, &remote)
            }
            Activity::Live { .. } => self.keep_session(now, &remote, scratch),
        };
        match outcome {
            Ok(()) => true,
            Err(failure) => self.handle_failure(now, &remote, failure),
        }
    }

    /// The controller is up: hands it to the queue pairs.
    fn begin_session(&mut self, now: Instant, remote: &Remote<T>) -> Result<(), Failure> {
        let waiting = Activity::Waiting { until: now };
        let Activity::Connecting { admin, .. } = std::mem::replace(&mut self.activity, waiting)
        else {
            unreachable!("only a connecting controller becomes ready")
        };
        let number = self.next_number;
        let portal = &remote.portals[self.portal];
        let session = remote.publish(number, portal, admin.joint(), admin.facts())?;
        if number > 1 {
            tracing::info!("reconnected to {portal}");
        }
        self.next_number += 1;
        self.failures.iter_mut().filter(|failure| !is_stale(failure)).for_each(|f| *f = None);
        self.activity = Activity::Live { admin, session, since: now };
        Ok(())
    }

    fn keep_session(
        &mut self,
        now: Instant,
        remote: &Remote<T>,
        scratch: &mut [u8],
    ) -> Result<(), Failure> {
        let Activity::Live { admin, session, since } = &mut self.activity else {
            unreachable!("the caller has looked")
        };
        let result = match remote.take_reset() {
            Some(reason) => Err(reason),
            None => match admin.poll(now, scratch) {
                Ok(Turn::Changed) => remote.check(admin.facts()),
                Ok(_) => Ok(()),
                Err(failure) => Err(failure),
            },
        };
        if result.is_err() {
            let lived = now.saturating_duration_since(*since);
            if lived >= PROVEN_AFTER || session.proven.load(Ordering::Relaxed) {
                self.backoff = Backoff::new();
            } else {
                self.backoff.hurry_no_more();
            }
            self.since = now;
            self.tried = 0;
        }
        result
    }

    /// An attempt has failed, or a session is lost; `false` when that is the end.
    fn handle_failure(&mut self, now: Instant, remote: &Remote<T>, failure: Failure) -> bool {
        let opening = remote.identity().is_none();
        let limit =
            if opening { remote.options.connect_timeout } else { remote.options.ctrl_loss_tmo };
        let too_late = now.saturating_duration_since(self.since) >= limit;
        let mut failure = failure;
        loop {
            let portal = &remote.portals[self.portal];
            failure = failure.at(portal);
            // Opened over the only path, the caller gets it as the error; and once a loss is told, that
            // it goes on is not news.
            match &self.activity {
                _ if opening && remote.portals.len() > 1 => tracing::warn!("{failure}"),
                Activity::Live { .. } => tracing::warn!("lost {failure}; reconnecting"),
                _ => tracing::debug!("{failure}"),
            }
            let known = &mut self.failures[self.portal];
            // Silence says less than what was said before: somebody else may be listening there.
            let says_less = |known: &Failure| {
                failure.kind == ErrorKind::TimedOut && known.kind == ErrorKind::Corrupt
            };
            if !(opening && known.as_ref().is_some_and(says_less)) {
                *known = Some(failure.clone());
            }
            if self.failures.iter().all(is_stale) {
                remote.give_up(failure);
                return false;
            }
            if too_late || opening && self.tried >= remote.portals.len() && !self.next_round() {
                remote.give_up(self.last_words(opening, limit));
                return false;
            }
            if let Activity::Connecting { admin, .. } | Activity::Live { admin, .. } =
                &mut self.activity
            {
                admin.give_up(&failure);
            }
            remote.lose(failure);
            // Lets go of the old controller before the next is begun.
            self.activity = Activity::Waiting { until: now };
            // At once on the other portals and then on this; after that more and more slowly.
            if self.tried >= remote.portals.len() || !self.backoff.is_fresh() {
                self.activity = Activity::Waiting { until: now + self.backoff.next() };
                return true;
            }
            match self.try_next(now, remote) {
                Ok(()) => return true,
                Err(next) => failure = next,
            }
        }
    }

    /// Whether opening may go round once more: a byte that was damaged on its way, or a connection that
    /// broke, may be the only one. What was refused, or not answered in its time, stays so.
    fn next_round(&mut self) -> bool {
        let may_pass = |failure: &Failure| {
            matches!(failure.kind, ErrorKind::Corrupt | ErrorKind::Disconnected)
        };
        self.rounds = self.rounds.saturating_sub(1);
        self.rounds > 0 && self.failures.iter().flatten().any(may_pass)
    }

    /// The failure to end with: that of the first portal, and what the others said.
    fn last_words(&self, opening: bool, limit: Duration) -> Failure {
        let mut failures = self.failures.iter().flatten();
        let mut last = failures.next().cloned().expect("something has failed");
        for other in failures {
            last.message.push_str(&format!("; {other}"));
        }
        if !opening {
            last.kind = ErrorKind::Disconnected;
            last.message = format!("given up after {} s: {}", limit.as_secs(), last.message);
        }
        last
    }

    /// Begins to connect to the next portal, but never to one whose namespace was another.
    fn try_next(&mut self, now: Instant, remote: &Remote<T>) -> Result<(), Failure> {
        let num_portals = remote.portals.len();
        for _ in 0..num_portals {
            self.portal = (self.portal + 1) % num_portals;
            self.tried += 1;
            if !is_stale(&self.failures[self.portal]) {
                break;
            }
        }
        let admin = Box::new(T::Admin::start(now, remote, &remote.portals[self.portal])?);
        let share = remote.options.connect_timeout / num_portals as u32;
        self.activity = Activity::Connecting { admin, deadline: now + share };
        Ok(())
    }
}

fn is_stale(failure: &Option<Failure>) -> bool {
    failure.as_ref().is_some_and(|failure| failure.kind == ErrorKind::Stale)
}

/// Rounds over all portals while a namespace is opened.
const OPENING_ROUNDS: u32 = 3;

/// How errors name the thread.
const WHO: &str = "the thread dlfs-keeper";

/// A session that lasted this long did work, even if nothing was read.
const PROVEN_AFTER: Duration = Duration::from_secs(1);

/// What `poll` may wake too early by.
const GRANULARITY: Duration = Duration::from_micros(100);

#[cfg(test)]
mod tests;
