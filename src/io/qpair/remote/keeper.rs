//! The keeper: the thread of a process that owns the admin queues of all remotes of a transport.
//!
//! It connects controllers, keeps them alive, handles their events, and reconnects when they are lost. It does so also
//! while no queue pair is polled: a trainer that computes for a minute keeps its connections. It starts with the first
//! controller. A child process has none of its parent's threads, so it starts another keeper.
//!
//! A panic while serving one controller ends that controller only: its remote is given up with the message of
//! the panic, and the others are served as before.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::{Admin, Remote, Transport};
use crate::qpair::session::lifecycle::{Level, NUM_SLOTS};
use crate::qpair::session::{self, AdminEvent, Attached, Failure, Identified, Keeping};
use dlfs_base::error::{Error, ErrorKind, Result};
use dlfs_base::process::{Forked, mark_ours};
use dlfs_base::threads::caught;

/// The keeper of a process, as its thread and all others see it.
pub(in crate::qpair) struct Keeper<T: Transport> {
    /// Readable once a thread wakes the keeper.
    event: OwnedFd,
    /// Remotes that the thread has not taken over yet.
    inbox: Mutex<Vec<Weak<Remote<T>>>>,
    /// Set when the thread has died, before the inbox is emptied for the last time.
    is_dead: AtomicBool,
}

/// The keepers of a transport: each process has at most one that is alive.
pub(in crate::qpair) struct Keepers<T: Transport>(Forked<Mutex<Option<Arc<Keeper<T>>>>>);

impl<T: Transport> Keepers<T> {
    pub(in crate::qpair) const fn new() -> Keepers<T> {
        Keepers(Forked::empty())
    }

    /// The keeper of this process; starts one if there is none or if it has died.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(in crate::qpair) fn of_this_process(&self) -> Result<Arc<Keeper<T>>> {
        let mut keeper = self.0.get_or_init(Mutex::default).lock();
        match &*keeper {
            Some(living) if living.is_alive() => Ok(Arc::clone(living)),
            _ => Ok(Arc::clone(keeper.insert(Keeper::start()?))),
        }
    }

    /// Wakes the keeper of this process, if there is one.
    pub(in crate::qpair) fn wake(&self) {
        let Some(keeper) = self.0.get() else { return };
        if let Some(keeper) = &*keeper.lock() {
            keeper.wake();
        }
    }
}

impl<T: Transport> Keeper<T> {
    /// Starts the thread.
    fn start() -> Result<Arc<Keeper<T>>> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(std::io::Error::from)?;
        mark_ours(&event);
        let keeper = Arc::new(Keeper {
            event,
            inbox: Mutex::new(Vec::new()),
            is_dead: AtomicBool::new(false),
        });
        let thread = Arc::clone(&keeper);
        std::thread::Builder::new()
            .name("dlfs-keeper".into())
            .spawn(move || {
                let mut remotes = Vec::new();
                let Err(error) = caught(THREAD, || thread.run(&mut remotes));
                thread.die(&remotes, &error);
            })
            .map_err(|error| {
                Error::new(ErrorKind::Io, "cannot start the keeper thread").source(error)
            })?;
        Ok(keeper)
    }

    /// Returns whether the thread accepts new remotes.
    fn is_alive(&self) -> bool {
        !self.is_dead.load(Ordering::Acquire)
    }

    /// Hands `remote` to the thread, which connects it and serves it as long as another owner holds it. If the thread
    /// has died, gives the remote up.
    pub(in crate::qpair) fn keep(&self, remote: &Arc<Remote<T>>) {
        let mut inbox = self.inbox.lock();
        if self.is_alive() {
            inbox.push(Arc::downgrade(remote));
        } else {
            remote.give_up(Failure::new(ErrorKind::Internal, format!("{THREAD} has just died")));
        }
        drop(inbox);
        self.wake();
    }

    /// Ends a sleep of the thread.
    fn wake(&self) {
        // It fails when the counter is full; then the thread is awake already.
        let _ = rustix::io::write(&self.event, &[1; 8]);
    }

    /// The work of the thread: serves `remotes` and those in the inbox.
    fn run(&self, remotes: &mut Vec<KeptRemote<T>>) -> ! {
        let mut scratch = vec![0; T::SCRATCH_LEN_BYTES];
        loop {
            let new = |remote| KeptRemote { remote, admins: [None, None] };
            remotes.extend(self.inbox.lock().drain(..).map(new));
            remotes.retain_mut(|kept| kept.turn_or_give_up(Instant::now(), &mut scratch));
            self.sleep(remotes);
        }
    }

    /// Handles the thread's death: gives up its remotes. Another thread will serve later ones.
    fn die(&self, remotes: &[KeptRemote<T>], error: &Error) {
        self.is_dead.store(true, Ordering::Release);
        let waiting = self.inbox.lock().drain(..).collect::<Vec<_>>();
        let remotes = remotes.iter().map(|kept| &kept.remote).chain(&waiting);
        for remote in remotes.filter_map(Weak::upgrade) {
            remote.give_up(Failure::new(ErrorKind::Internal, error.to_string()));
        }
    }

    /// Sleeps until the descriptor of an admin queue is ready, a timeout expires, or another thread wakes this one.
    fn sleep(&self, remotes: &[KeptRemote<T>]) {
        let now = Instant::now();
        let until = remotes.iter().filter_map(KeptRemote::poll_timeout).min();
        // `poll` may wake too early by its granularity, and the thread would sleep again.
        let limit = until.map(|until| until.saturating_duration_since(now) + GRANULARITY);
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let admins = remotes.iter().flat_map(|kept| kept.admins.iter().flatten());
        let mut fds: Vec<PollFd<'_>> = admins.filter_map(|admin| admin.wait()).collect();
        fds.push(PollFd::from_borrowed_fd(self.event.as_fd(), PollFlags::IN));
        let _ = poll(&mut fds, limit.as_ref()); // an error is a signal: the loop continues
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.event, &mut count); // fails if no thread has called `wake`
    }
}

/// One remote that the keeper serves, and the admin queue of each slot.
struct KeptRemote<T: Transport> {
    remote: Weak<Remote<T>>,
    admins: [Option<Box<T::Admin>>; NUM_SLOTS],
}

impl<T: Transport> KeptRemote<T> {
    /// The time of the next turn, even if no descriptor becomes ready.
    fn poll_timeout(&self) -> Option<Instant> {
        let admins = self.admins.iter().flatten().filter_map(|admin| admin.poll_timeout());
        // If every other owner has dropped the remote meanwhile, dropping it here wakes the keeper, and the next
        // turn forgets it.
        let remote = self.remote.upgrade();
        let remote = remote.and_then(|remote| remote.with(|lifecycle| lifecycle.poll_timeout()));
        admins.chain(remote).min()
    }

    /// As [`KeptRemote::turn`]; a panic in it ends this remote only.
    fn turn_or_give_up(&mut self, now: Instant, scratch: &mut [u8]) -> bool {
        caught(THREAD, || self.turn(now, scratch)).unwrap_or_else(|error| {
            if let Some(remote) = self.remote.upgrade() {
                remote.give_up(Failure::new(ErrorKind::Internal, error.to_string()));
            }
            false
        })
    }

    /// Serves the remote once; returns `false` when it is finished.
    fn turn(&mut self, now: Instant, scratch: &mut [u8]) -> bool {
        let Some(remote) = self.remote.upgrade() else { return false };
        let mut service = Service { remote: &remote, scratch };
        session::turn(now, &remote, &mut self.admins, &mut service)
    }
}

/// Serves one remote over its transport.
struct Service<'a, T: Transport> {
    remote: &'a Remote<T>,
    scratch: &'a mut [u8],
}

impl<T: Transport> Keeping for Service<'_, T> {
    type Portal = T::Portal;
    type JoinInfo = T::JoinInfo;
    type Admin = Box<T::Admin>;

    fn connect(&mut self, now: Instant, portal: usize) -> Result<Box<T::Admin>, Failure> {
        T::Admin::start(now, self.remote, &self.remote.portals[portal]).map(Box::new)
    }

    fn poll(&mut self, now: Instant, admin: &mut Box<T::Admin>) -> Result<AdminEvent, Failure> {
        admin.poll(now, self.scratch)
    }

    fn close(&mut self, _now: Instant, mut admin: Box<T::Admin>, failure: &Failure) {
        admin.give_up(failure);
    }

    fn identified<'a>(&self, admin: &'a Box<T::Admin>) -> &'a Identified {
        admin.identified()
    }

    fn join_info(&self, admin: &Box<T::Admin>) -> T::JoinInfo {
        admin.join_info()
    }

    fn describe(&self, identified: &Identified) -> Vec<Attached> {
        self.remote.describe(identified)
    }

    fn stage(&self, admin: &Box<T::Admin>) -> &'static str {
        admin.stage()
    }

    fn say(&mut self, level: Level, text: String) {
        match level {
            Level::Warn => tracing::warn!("{text}"),
            Level::Info => tracing::info!("{text}"),
            Level::Debug => tracing::debug!("{text}"),
        }
    }
}

/// The name of the thread in errors.
const THREAD: &str = "the thread dlfs-keeper";

/// The granularity of `poll`, which may wake too early by this much.
const GRANULARITY: Duration = Duration::from_micros(100);
