//! A remote namespace, whatever its transport: its paths, its present session, its fate.
//!
//! A *session* is one association with a controller. The keeper thread brings it up, keeps it alive and
//! replaces it when it is lost; queue pairs join it, and issue their reads again in the next. What is to be
//! done when, [`super::session`] decides without a socket, a thread or a clock; here are those. A
//! [`Transport`] says how a controller is reached.
//!
//! The keeper thread writes a [`Remote`], queue pairs read it. A child process gets one of its own,
//! because a lock of the parent's may be held for ever in the child's copy.
//!
//! Invariants:
//! - A write or flush that was sent is never sent again, unless the controller said that it did nothing.
//! - A flush succeeds only if no write that it should cover was lost with an earlier session.
//! - A session is only ever replaced by one on the same namespace: same identifier, size, block length.
//! - Nothing waits without a limit.
//!
//! Read `session/lifecycle.rs` first, then this file, then `keeper.rs`.

mod identity;
mod joining;
pub(in crate::qpair) mod keeper;

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::Deref;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use super::session::{Backlog, Lifecycle, Limits, Phase, Shared};
pub(in crate::qpair) use super::session::{Facts, Failure, HostIdentity, Turn};
use super::{ConnectOptions, Namespace, Wait};
use crate::error::{Error, ErrorKind, Result};
use crate::process::process_id;

/// A way of reaching controllers.
pub(in crate::qpair) trait Transport: Sized + Send + Sync + 'static {
    /// One way to the namespace; prints as what a connection goes to.
    type Portal: Portal;
    /// The admin queue of a controller, on its way up or up.
    type Admin: Admin<Self> + Send;
    /// What a queue pair needs in order to join a session.
    type Joint: Send + Sync;

    /// What [`Admin::poll`] wants as scratch memory.
    const SCRATCH_LEN_BYTES: usize;

    /// Where the keepers of this transport are found.
    fn keepers() -> &'static keeper::Keepers<Self>;

    /// The engine, for people: `tcp (header digest)`.
    fn engine(remote: &Remote<Self>, facts: &Facts) -> String;
}

/// One way to the namespace: an address that a name stands for, on one of the user's paths.
pub(in crate::qpair) trait Portal: Clone + fmt::Display + Send + Sync {
    /// The address, as the user knows it.
    fn address(&self) -> String;
}

/// An admin queue. Nothing here blocks for long, so one thread can keep any number of controllers.
pub(in crate::qpair) trait Admin<T: Transport>: Sized {
    /// Begins to connect.
    fn start(now: Instant, remote: &Remote<T>, portal: &T::Portal) -> Result<Self, Failure>;

    /// Moves on. An error is the end of this controller.
    fn poll(&mut self, now: Instant, scratch: &mut [u8]) -> Result<Turn, Failure>;

    /// What has been learnt; all of it once a turn was [`Turn::Ready`].
    fn facts(&self) -> &Facts;

    /// What queue pairs join the session with, once a turn was [`Turn::Ready`].
    fn joint(&self) -> T::Joint;

    /// What is being done, for people.
    fn stage(&self) -> &'static str;

    /// When to call [`Admin::poll`] although nothing moves.
    fn poll_timeout(&self) -> Option<Instant>;

    /// What to sleep on, if there is such a thing.
    fn wait(&self) -> Option<Wait<'_>>;

    /// Called before it is dropped because of a failure, not because nobody needs it any more.
    fn give_up(&mut self, _failure: &Failure) {}
}

/// What handles on one remote namespace share: its sessions, and how they are made.
pub(in crate::qpair) struct Remote<T: Transport> {
    pub(in crate::qpair) options: ConnectOptions,
    pub(in crate::qpair) host: HostIdentity,
    /// Never empty; the user's order.
    pub(in crate::qpair) portals: Arc<[T::Portal]>,
    shared: Shared<T::Portal, T::Joint>,
    /// What takes its place in a child process.
    successor: OnceLock<Arc<Remote<T>>>,
}

impl<T: Transport> Deref for Remote<T> {
    type Target = Shared<T::Portal, T::Joint>;

    fn deref(&self) -> &Self::Target {
        &self.shared
    }
}

impl<T: Transport> Remote<T> {
    pub(in crate::qpair) fn new(
        options: ConnectOptions,
        portals: Vec<T::Portal>,
        seen: Option<Namespace>,
    ) -> Arc<Remote<T>> {
        let limits = Limits {
            connect_timeout: options.connect_timeout,
            ctrl_loss_tmo: options.ctrl_loss_tmo,
        };
        let portals: Arc<[T::Portal]> = portals.into();
        let random = RandomState::new().build_hasher().finish();
        let now = Instant::now();
        let lifecycle = Lifecycle::new(now, limits, Arc::clone(&portals), seen, random);
        Arc::new(Remote {
            host: HostIdentity::new(&options),
            options,
            shared: Shared::new(lifecycle, portals.len() > 1, || T::keepers().wake()),
            portals,
            successor: OnceLock::new(),
        })
    }

    /// The remote for the calling process: this one, or after a fork another that connects anew.
    pub(in crate::qpair) fn for_this_process(self: &Arc<Remote<T>>) -> Result<Arc<Remote<T>>> {
        let pid = process_id();
        let mut remote = self;
        while remote.pid() != pid {
            remote = match remote.successor.get() {
                Some(next) => next,
                None => remote.make_successor()?,
            };
        }
        Ok(Arc::clone(remote))
    }

    fn make_successor(&self) -> Result<&Arc<Remote<T>>> {
        let keeper = T::keepers().of_this_process()?;
        let seen = self.identity().cloned();
        let next = Remote::new(self.options.clone(), self.portals.to_vec(), seen);
        // Another thread may have been faster: then its remote is the one.
        if self.successor.set(Arc::clone(&next)).is_ok() {
            keeper.keep(&next);
        }
        Ok(self.successor.get().expect("set above or by another thread"))
    }

    /// How the user knows it.
    pub(in crate::qpair) fn name(&self) -> String {
        self.portals[0].address()
    }

    /// Waits until the namespace is there or given up, at most until `deadline`.
    pub(in crate::qpair) fn wait_open(&self, deadline: Instant) -> Result<Namespace> {
        let left = deadline.saturating_duration_since(Instant::now());
        let opened = self.shared.wait(left, |lifecycle| match lifecycle.phase() {
            Phase::Live(session) => Some(Ok(session.namespace.clone())),
            Phase::Dead(failure) => Some(Err(failure)),
            Phase::Opening | Phase::Lost(_) => None,
        });
        match opened {
            Some(Ok(namespace)) => Ok(namespace),
            Some(Err(failure)) => Err(failure.to_error(&self.name())),
            None => {
                let error = Error::new(ErrorKind::TimedOut, "connecting took too long");
                Err(error.target(self.name()))
            }
        }
    }

    /// Counts one queue pair more.
    ///
    /// # Errors
    /// `Refused`: each I/O queue that the target granted is in use.
    pub(in crate::qpair) fn add_pair(&self) -> Result<()> {
        self.shared.with(Lifecycle::add_pair).map_err(|granted| {
            let message = format!("all {granted} I/O queues are in use");
            let error = Error::new(ErrorKind::Refused, message).target(self.name());
            error.hint("ask for more with --nr-io-queues, if the target grants more")
        })
    }

    /// I/O queues that the live session grants, or that will be asked for.
    pub(in crate::qpair) fn num_io_queues(&self) -> usize {
        match self.phase() {
            Phase::Live(session) => session.num_io_queues.into(),
            _ => self.options.nr_io_queues.into(),
        }
    }

    /// There will be no session any more.
    pub(in crate::qpair) fn give_up(&self, failure: Failure) {
        self.shared.with(|lifecycle| lifecycle.give_up(failure));
    }

    /// What `facts` make of the namespace.
    pub(in crate::qpair) fn describe(&self, facts: &Facts) -> Namespace {
        let ConnectOptions { queue_size, writable, .. } = self.options;
        facts.namespace(self.name(), T::engine(self, facts), queue_size, writable)
    }
}

impl<T: Transport> Drop for Remote<T> {
    fn drop(&mut self) {
        if self.is_ours() {
            T::keepers().wake(); // to notice that nobody needs the controller any more
        }
    }
}
