//! The keeper: the one thread of a process that owns all admin queues of a transport.
//!
//! It brings controllers up, keeps them alive, takes their events, and reconnects when they are lost:
//! also while no queue pair is polled, so that a trainer that computes for a minute keeps its
//! connections. It starts with the first controller that is opened. A child process has none of its
//! parent's threads, so it starts its own.
//!
//! A mistake that one controller brings out ends that one: its remote is given up with the words of the
//! panic, and the others are looked after as before.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::{Admin, AdminEvent, Failure, Remote, Transport};
use crate::error::{Error, ErrorKind, Result};
use crate::process::Forked;
use crate::qpair::session::lifecycle::{Action, Level};
use crate::threads::caught;

/// The handle on the thread.
pub(in crate::qpair) struct Keeper<T: Transport> {
    event: OwnedFd,
    inbox: Mutex<Vec<Weak<Remote<T>>>>,
    /// Whether the thread has died. Set before the inbox is emptied for the last time.
    is_dead: AtomicBool,
}

/// Where the processes of a program find their keepers: each has at most one that lives.
pub(in crate::qpair) struct Keepers<T: Transport>(Forked<Mutex<Option<Arc<Keeper<T>>>>>);

impl<T: Transport> Keepers<T> {
    pub(in crate::qpair) const fn new() -> Keepers<T> {
        Keepers(Forked::empty())
    }

    /// The keeper of this process; started if there is none, or if it has died.
    ///
    /// # Errors
    /// The operating system gives no thread.
    pub(in crate::qpair) fn of_this_process(&self) -> Result<Arc<Keeper<T>>> {
        let keeper = self.0.get_or_init(Mutex::default);
        let mut keeper = keeper.lock().unwrap_or_else(PoisonError::into_inner);
        match &*keeper {
            Some(living) if living.is_alive() => Ok(Arc::clone(living)),
            _ => Ok(Arc::clone(keeper.insert(Keeper::start()?))),
        }
    }

    /// Wakes the keeper of this process, if there is one.
    pub(in crate::qpair) fn wake(&self) {
        let Some(keeper) = self.0.get() else { return };
        if let Some(keeper) = &*keeper.lock().unwrap_or_else(PoisonError::into_inner) {
            keeper.wake();
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
            is_dead: AtomicBool::new(false),
        });
        let thread = Arc::clone(&keeper);
        std::thread::Builder::new()
            .name("dlfs-keeper".into())
            .spawn(move || {
                let mut charges = Vec::new();
                let Err(error) = caught(WHO, || thread.run(&mut charges));
                thread.die(&charges, &error);
            })
            .map_err(|error| {
                Error::new(ErrorKind::Io, "cannot start the keeper thread").source(error)
            })?;
        Ok(keeper)
    }

    /// Whether its thread takes new charges.
    fn is_alive(&self) -> bool {
        !self.is_dead.load(Ordering::Acquire)
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

    fn run(&self, charges: &mut Vec<Charge<T>>) -> ! {
        let mut scratch = vec![0; T::SCRATCH_LEN_BYTES];
        loop {
            let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
            charges.extend(inbox.drain(..).map(|remote| Charge { remote, admin: None }));
            drop(inbox);
            charges.retain_mut(|charge| charge.turn_or_die(Instant::now(), &mut scratch));
            self.sleep(charges);
        }
    }

    /// The thread has died: nobody looks after these any more, and another takes what comes next.
    fn die(&self, charges: &[Charge<T>], error: &Error) {
        self.is_dead.store(true, Ordering::Release);
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

/// One remote that the keeper looks after, and the admin queue that it has at present.
struct Charge<T: Transport> {
    remote: Weak<Remote<T>>,
    admin: Option<Box<T::Admin>>,
}

impl<T: Transport> Charge<T> {
    fn poll_timeout(&self) -> Option<Instant> {
        let admin = self.admin.as_ref().and_then(|admin| admin.poll_timeout());
        // Nobody else may hold it any more: then the next turn is what lets go of it.
        let remote = self.remote.upgrade();
        let remote = remote.and_then(|remote| remote.with(|lifecycle| lifecycle.poll_timeout()));
        admin.into_iter().chain(remote).min()
    }

    fn poll_fd(&self) -> Option<PollFd<'_>> {
        let wait = self.admin.as_ref()?.wait()?;
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
        if let Some(admin) = &mut self.admin
            && !remote.with(|lifecycle| lifecycle.is_reset())
        {
            match admin.poll(now, scratch) {
                Ok(AdminEvent::Nothing) => {}
                Ok(AdminEvent::Ready) => {
                    let (join_info, identified) = (admin.join_info(), admin.identified());
                    let namespaces = remote.describe(identified);
                    remote.with(|lifecycle| {
                        lifecycle.handle_ready(now, join_info, identified, namespaces)
                    });
                }
                Ok(AdminEvent::Changed) => {
                    let namespaces = remote.describe(admin.identified());
                    remote.with(|lifecycle| lifecycle.handle_changed(now, namespaces));
                }
                Err(failure) => remote.with(|lifecycle| lifecycle.handle_failed(now, failure)),
            }
        }
        let stage = self.admin.as_ref().map_or("connecting", |admin| admin.stage());
        remote.with(|lifecycle| lifecycle.handle_time(now, stage));
        while let Some(action) = remote.with(|lifecycle| lifecycle.poll_action()) {
            self.obey(now, &remote, action);
        }
        !remote.with(|lifecycle| lifecycle.is_dead())
    }

    fn obey(&mut self, now: Instant, remote: &Remote<T>, action: Action) {
        match action {
            Action::Connect { portal } => {
                match T::Admin::start(now, remote, &remote.portals[portal]) {
                    Ok(admin) => self.admin = Some(Box::new(admin)),
                    Err(failure) => remote.with(|lifecycle| lifecycle.handle_failed(now, failure)),
                }
            }
            Action::Close(failure) => {
                if let Some(mut admin) = self.admin.take() {
                    admin.give_up(&failure);
                }
            }
            Action::Say { level: Level::Warn, text } => tracing::warn!("{text}"),
            Action::Say { level: Level::Info, text } => tracing::info!("{text}"),
            Action::Say { level: Level::Debug, text } => tracing::debug!("{text}"),
        }
    }
}

/// How errors name the thread.
const WHO: &str = "the thread dlfs-keeper";

/// What `poll` may wake too early by.
const GRANULARITY: Duration = Duration::from_micros(100);

#[cfg(test)]
mod tests;
