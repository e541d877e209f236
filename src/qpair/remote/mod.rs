//! The remote namespaces behind one controller, whatever its transport: their paths, their present session,
//! their fate.
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
//! - A session is only ever replaced by one on the same namespaces: same identifiers, sizes, block lengths.
//! - Nothing waits without a limit.
//!
//! Read `session/lifecycle.rs` first, then this file, then `keeper.rs`.

mod identity;
mod joining;
pub(in crate::qpair) mod keeper;

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Instant;

pub(in crate::qpair) use super::session::{
    AdminEvent, Attached, Failure, HostIdentity, Identified,
};
use super::session::{Backlog, Lifecycle, Limits, Phase, Shared};
use super::{ConnectOptions, Wait};
use crate::error::{Error, ErrorKind, Result};
use crate::process::Forked;
use crate::units::Nsid;

/// A way of reaching controllers.
pub(in crate::qpair) trait Transport: Sized + Send + Sync + 'static {
    /// One way to the namespace; prints as what a connection goes to.
    type Portal: Portal;
    /// The admin queue of a controller, on its way up or up.
    type Admin: Admin<Self> + Send;
    /// What a queue pair needs in order to join a session.
    type JoinInfo: Send + Sync;

    /// What [`Admin::poll`] wants as scratch memory.
    const SCRATCH_LEN_BYTES: usize;

    /// Where the keepers of this transport are found.
    fn keepers() -> &'static keeper::Keepers<Self>;

    /// The engine, for people: `tcp (header digest)`.
    fn engine(remote: &Remote<Self>, identified: &Identified) -> String;
}

/// One way to the namespaces: an address that a name stands for, on one of the user's paths.
pub(in crate::qpair) trait Portal: Clone + fmt::Display + Send + Sync {
    /// The address, as the user knows it; with `nsid`, that of this namespace behind it.
    fn address(&self, nsid: Option<Nsid>) -> String;
}

/// Which namespaces behind a controller are wanted.
#[derive(Debug, Clone)]
pub(in crate::qpair) enum Wanted {
    /// The one that each path names, or the first where it names none.
    OfPath,
    /// These, on each path.
    These(Arc<[Nsid]>),
    /// All that are active when it is opened, or the one that a path names.
    All,
}

/// An admin queue. Nothing here blocks for long, so one thread can keep any number of controllers.
pub(in crate::qpair) trait Admin<T: Transport>: Sized {
    /// Begins to connect.
    fn start(now: Instant, remote: &Remote<T>, portal: &T::Portal) -> Result<Self, Failure>;

    /// Moves on. An error is the end of this controller.
    fn poll(&mut self, now: Instant, scratch: &mut [u8]) -> Result<AdminEvent, Failure>;

    /// What was identified; complete after [`AdminEvent::Ready`].
    fn identified(&self) -> &Identified;

    /// What queue pairs need to join the session; valid after [`AdminEvent::Ready`].
    fn join_info(&self) -> T::JoinInfo;

    /// What is being done, for people.
    fn stage(&self) -> &'static str;

    /// When to call [`Admin::poll`] although nothing moves.
    fn poll_timeout(&self) -> Option<Instant>;

    /// What to sleep on, if there is such a thing.
    fn wait(&self) -> Option<Wait<'_>>;

    /// Called before it is dropped because of a failure, not because nobody needs it any more.
    fn give_up(&mut self, _failure: &Failure) {}
}

/// What handles on the namespaces behind one controller share: its sessions, and how they are made.
pub(in crate::qpair) struct Remote<T: Transport> {
    pub(in crate::qpair) wanted: Wanted,
    pub(in crate::qpair) options: ConnectOptions,
    pub(in crate::qpair) host: HostIdentity,
    /// Never empty; the user's order.
    pub(in crate::qpair) portals: Arc<[T::Portal]>,
    shared: Shared<T::Portal, T::JoinInfo>,
    /// What takes its place in a child process; `None` in the process that made it, where it does so itself.
    successor: Forked<Option<Arc<Remote<T>>>>,
}

impl<T: Transport> Deref for Remote<T> {
    type Target = Shared<T::Portal, T::JoinInfo>;

    fn deref(&self) -> &Self::Target {
        &self.shared
    }
}

impl<T: Transport> Remote<T> {
    pub(in crate::qpair) fn new(
        options: ConnectOptions,
        portals: Vec<T::Portal>,
        wanted: Wanted,
        seen: Option<Arc<[Attached]>>,
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
            wanted,
            options,
            shared: Shared::new(lifecycle, portals.len() > 1, || T::keepers().wake()),
            portals,
            successor: Forked::new(None),
        })
    }

    /// The remote for the calling process: this one, or in a child process another that connects anew.
    ///
    /// Of several holders of one remote all get the same, so they keep this one and ask again in each process.
    pub(in crate::qpair) fn for_this_process(self: &Arc<Remote<T>>) -> Result<Arc<Remote<T>>> {
        let successor = self.successor.get_or_try_init(|| self.new_successor().map(Some))?;
        Ok(Arc::clone(successor.as_ref().unwrap_or(self)))
    }

    fn new_successor(&self) -> Result<Arc<Remote<T>>> {
        let keeper = T::keepers().of_this_process()?;
        let seen = self.identity().cloned();
        let (options, wanted) = (self.options.clone(), self.wanted.clone());
        let next = Remote::new(options, self.portals.to_vec(), wanted, seen);
        // The keeper lets go of it again if another thread has made the one that is used.
        keeper.keep(&next);
        Ok(next)
    }

    /// How the user knows what lies behind the controller.
    fn name(&self) -> String {
        self.portals[0].address(None)
    }

    /// How the user knows a namespace of `count`.
    fn name_of(&self, nsid: Nsid, count: usize) -> String {
        let is_named = match self.wanted {
            Wanted::OfPath => false,
            Wanted::These(_) => true,
            Wanted::All => count > 1,
        };
        self.portals[0].address(is_named.then_some(nsid))
    }

    /// The library's error for a failure of the controller, or of the namespace that it names.
    pub(in crate::qpair) fn error(&self, failure: &Failure) -> Error {
        let seen = self.identity().map_or(usize::MAX, |seen| seen.len());
        failure.to_error(&failure.nsid.map_or_else(|| self.name(), |nsid| self.name_of(nsid, seen)))
    }

    /// Waits until the namespaces are there or given up, at most until `deadline`: what they are.
    pub(in crate::qpair) fn wait_open(&self, deadline: Instant) -> Result<Arc<[Attached]>> {
        let left = deadline.saturating_duration_since(Instant::now());
        let opened = self.shared.wait(left, |lifecycle| match lifecycle.phase() {
            Phase::Live(_) => lifecycle.identity().cloned().map(Ok),
            Phase::Dead(failure) => Some(Err(failure)),
            Phase::Opening | Phase::Lost(_) => None,
        });
        match opened {
            Some(Ok(namespaces)) => Ok(namespaces),
            Some(Err(failure)) => Err(self.error(&failure)),
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

    /// The namespaces of `identified`, as queue pairs see them.
    pub(in crate::qpair) fn describe(&self, identified: &Identified) -> Vec<Attached> {
        let ConnectOptions { queue_size, writable, .. } = self.options;
        let count = identified.namespaces.len();
        let name = |nsid| self.name_of(nsid, count);
        identified.attached(name, &T::engine(self, identified), queue_size, writable)
    }
}

impl<T: Transport> Drop for Remote<T> {
    fn drop(&mut self) {
        if self.is_ours() {
            T::keepers().wake(); // to notice that nobody needs the controller any more
        }
    }
}
