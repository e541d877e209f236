//! The remote namespaces of one controller, over any transport: their paths and their current session.
//!
//! A *session* is one association with a controller. The keeper thread connects it, keeps it alive and
//! replaces it when it is lost. Queue pairs join the session, and issue their reads again in the next one. Over TCP, if
//! the user names several paths, two sessions are live at a time, on two paths: see `session/lifecycle.rs`.
//! [`super::session`] decides what to do and when, without a socket, a thread or a clock; this module
//! provides them. A [`Transport`] defines how to reach a controller.
//!
//! The keeper thread sets the session of a [`Remote`]; queue pairs follow it, and report a session that they
//! find broken. A child process creates its own remote, because the child's copy of a lock may be held for ever.
//!
//! Invariants:
//! - A write or flush that was sent is never sent again, unless the controller said that it did nothing.
//! - A flush succeeds only if no write that it should cover was lost with an earlier session.
//! - Writes and flushes use one session at a time, and so do the reads of a host that writes. Those on their way in a
//!   session whose path became inaccessible end there.
//! - A session is only ever replaced by one on the same namespaces: same identifiers, sizes, block lengths.
//! - Every wait has a limit.
//!
//! Read `session/lifecycle.rs` first, then this file, then `keeper.rs`.

mod identity;
mod keeper;

pub(in crate::qpair) use super::session::{
    AdminEvent, Attached, Failure, HostIdentity, Identified,
};
pub use identity::{host_identity, hostnqn, machine_uuid};
pub(in crate::qpair) use keeper::Keepers;

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Instant;

use rustix::event::PollFd;

use super::session::{Backlog, Lifecycle, Limits, Phase, Shared};
use super::{Capabilities, ConnectOptions};
use dlfs_base::error::{Error, ErrorKind, Result};
use dlfs_base::process::Forked;
use dlfs_base::threads::map_at_once;
use dlfs_base::units::Nsid;

/// A transport: how to reach controllers.
pub(in crate::qpair) trait Transport: Sized + Send + Sync + 'static {
    /// One route to the namespace; prints as the address of a connection.
    type Portal: Portal;
    /// The admin queue of a controller, while it connects and afterwards.
    type Admin: Admin<Self> + Send;
    /// The data that a queue pair needs in order to join a session.
    type JoinInfo: Send + Sync;
    /// Counters of the connections to a controller.
    type Counters: Default + Send + Sync;

    /// True if its queue pairs use two sessions at a time, where the user names several paths.
    const KEEPS_TWO: bool = false;

    /// The scratch memory of [`Admin::poll`], in bytes.
    const SCRATCH_LEN_BYTES: usize;

    /// The keepers of this transport.
    fn keepers() -> &'static Keepers<Self>;

    /// The name of the engine, such as `tcp (header digest)`.
    fn engine(remote: &Remote<Self>, identified: &Identified) -> String;
}

/// One route to the namespaces: over a network, a socket address that the name in one of the user's paths resolves to.
pub(in crate::qpair) trait Portal: Clone + fmt::Display + Send + Sync {
    /// The user's address; with `nsid`, the address of that namespace.
    fn address(&self, nsid: Option<Nsid>) -> String;
}

/// The namespaces of a controller to open.
#[derive(Debug, Clone)]
pub(in crate::qpair) enum Selection {
    /// The namespace that each path names, or the first active one if the path names none.
    OfPath,
    /// These namespaces, on each path.
    These(Arc<[Nsid]>),
    /// All namespaces that are active at the time of opening, or the one that a path names.
    All,
}

/// An admin queue. No method blocks for long, so one thread serves any number of controllers.
pub(in crate::qpair) trait Admin<T: Transport>: Sized {
    /// Starts to connect.
    fn start(now: Instant, remote: &Remote<T>, portal: &T::Portal) -> Result<Self, Failure>;

    /// Polls the queue. After an error the controller is lost.
    fn poll(&mut self, now: Instant, scratch: &mut [u8]) -> Result<AdminEvent, Failure>;

    /// The identified controller and namespaces; complete after [`AdminEvent::Ready`].
    fn identified(&self) -> &Identified;

    /// The data that queue pairs need to join the session; valid after [`AdminEvent::Ready`].
    fn join_info(&self) -> T::JoinInfo;

    /// The name of the current step.
    fn stage(&self) -> &'static str;

    /// The time at which to call [`Admin::poll`], even if no bytes arrive.
    fn poll_timeout(&self) -> Option<Instant>;

    /// The descriptor to sleep on, if there is one.
    fn wait(&self) -> Option<PollFd<'_>>;

    /// Called before the queue is dropped because of a failure; not when it is no longer needed.
    fn give_up(&mut self, _failure: &Failure) {}
}

/// The state that a controller's open namespaces share: the sessions, and the options for connecting them.
pub(in crate::qpair) struct Remote<T: Transport> {
    pub(in crate::qpair) selection: Selection,
    pub(in crate::qpair) options: ConnectOptions,
    pub(in crate::qpair) host: HostIdentity,
    pub(in crate::qpair) counters: Arc<T::Counters>,
    /// The paths: never empty, in the user's order.
    pub(in crate::qpair) portals: Arc<[T::Portal]>,
    shared: Shared<T::Portal, T::JoinInfo>,
    /// The remote that replaces this one in a child process; `None` in the process that created this one.
    successor: Forked<Option<Arc<Remote<T>>>>,
}

impl<T: Transport> Deref for Remote<T> {
    type Target = Shared<T::Portal, T::JoinInfo>;

    fn deref(&self) -> &Self::Target {
        &self.shared
    }
}

impl<T: Transport> Remote<T> {
    /// Creates the state of a controller's namespaces; the keeper connects once it has the remote. `portals` are not
    /// empty. `seen`: the namespaces, if they were identified before, which every session must then have.
    pub(in crate::qpair) fn new(
        options: ConnectOptions,
        portals: Vec<T::Portal>,
        selection: Selection,
        seen: Option<Arc<[Attached]>>,
    ) -> Arc<Remote<T>> {
        let limits = Limits {
            connect_timeout: options.connect_timeout,
            ctrl_loss_tmo: options.ctrl_loss_tmo,
        };
        let portals: Arc<[T::Portal]> = portals.into();
        let random = RandomState::new().build_hasher().finish();
        let now = Instant::now();
        let mut lifecycle = Lifecycle::new(now, limits, Arc::clone(&portals), seen, random);
        // The addresses of one name usually lead to the same port of a target.
        if T::KEEPS_TWO && !options.paths.is_empty() {
            lifecycle = lifecycle.keep_two(!options.writable);
        }
        Arc::new(Remote {
            host: HostIdentity::new(&options),
            selection,
            options,
            shared: Shared::new(lifecycle, portals.len() > 1, || T::keepers().wake()),
            portals,
            counters: Arc::default(),
            successor: Forked::new(None),
        })
    }

    /// The remote of the calling process: this one, or after a fork a new one that connects again.
    ///
    /// All holders of one remote get the same result. They keep the original, and call this again in each
    /// process.
    pub(in crate::qpair) fn for_this_process(self: &Arc<Remote<T>>) -> Result<Arc<Remote<T>>> {
        let successor = self.successor.get_or_try_init(|| self.new_successor().map(Some))?;
        Ok(Arc::clone(successor.as_ref().unwrap_or(self)))
    }

    /// Creates the remote with which a child process replaces its parent's.
    fn new_successor(&self) -> Result<Arc<Remote<T>>> {
        let keeper = T::keepers().of_this_process()?;
        let seen = self.identity().cloned();
        let options = self.options.clone();
        let selection = self.selection.clone();
        let next = Remote::new(options, self.portals.to_vec(), selection, seen);
        // If another thread creates the successor that is used, the keeper drops this one.
        keeper.keep(&next);
        Ok(next)
    }

    /// The user's address of the controller's namespaces.
    fn name(&self) -> String {
        self.portals[0].address(None)
    }

    /// The user's address of a namespace, one of `count`.
    fn name_of(&self, nsid: Nsid, count: usize) -> String {
        let is_named = match self.selection {
            Selection::OfPath => false,
            Selection::These(_) => true,
            Selection::All => count > 1,
        };
        self.portals[0].address(is_named.then_some(nsid))
    }

    /// The library's error for a failure of the controller, or of the namespace that the failure names.
    pub(in crate::qpair) fn error(&self, failure: &Failure) -> Error {
        let seen = self.identity().map_or(usize::MAX, |seen| seen.len());
        failure.to_error(&failure.nsid.map_or_else(|| self.name(), |nsid| self.name_of(nsid, seen)))
    }

    /// Waits until the namespaces are identified or given up, at most until `deadline`; returns them.
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

    /// Checks that a new queue pair, which has not joined a session yet, may keep trying; `stage` names its
    /// current step.
    ///
    /// # Errors
    /// The controller was given up, or `deadline` has passed.
    pub(in crate::qpair) fn may_wait(
        &self,
        now: Instant,
        deadline: Instant,
        backlog: &Backlog,
        stage: &str,
    ) -> Result<()> {
        if let Phase::Dead(failure) = self.phase() {
            return Err(self.error(&failure));
        }
        if now < deadline {
            return Ok(());
        }
        let mut error = Error::new(ErrorKind::TimedOut, format!("no I/O queue: {stage}"));
        if let Some(failure) = &backlog.last_failure {
            error = error.source(self.error(failure));
        }
        Err(error.target(self.name()))
    }

    /// Adds a queue pair to the count.
    ///
    /// # Errors
    /// `Refused`: all I/O queues that the target granted are in use.
    pub(in crate::qpair) fn add_pair(&self) -> Result<()> {
        self.shared.with(Lifecycle::add_pair).map_err(|granted| {
            let message = format!("all {granted} I/O queues are in use");
            let error = Error::new(ErrorKind::Refused, message).target(self.name());
            error.hint("ask for more with --nr-io-queues, if the target grants more")
        })
    }

    /// The capabilities of a namespace. Its number of queue pairs is what the live session grants; without one, or in a
    /// child process, what a session will ask for.
    pub(in crate::qpair) fn capabilities(&self, checks_writes: bool) -> Capabilities {
        // In a child process the lock is the parent's.
        let max_queue_pairs = match self.is_ours().then(|| self.phase()) {
            Some(Phase::Live(session)) => session.num_io_queues.into(),
            _ => self.options.nr_io_queues.into(),
        };
        let late_writes = self.options.late_writes();
        Capabilities { max_queue_pairs, late_writes, checks_writes, ..Capabilities::default() }
    }

    /// Ends the sessions for good.
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

/// The portals of all `addresses`. `resolve` finds those of one address; it runs for all addresses at a time, so that a
/// slow host name does not take the time of the others.
///
/// # Errors
/// The first error of `resolve`, if no address has a portal.
pub(in crate::qpair) fn portals_of<A: Sync, P: Send>(
    addresses: &[A],
    resolve: impl Fn(&A) -> Result<Vec<P>> + Sync,
) -> Result<Vec<P>> {
    let mut portals = Vec::new();
    let mut first_error = None;
    for found in map_at_once("dlfs-resolve", addresses, |address| Ok(resolve(address)))? {
        match found {
            Ok(found) => portals.extend(found),
            Err(error) => _ = first_error.get_or_insert(error),
        }
    }
    match first_error {
        Some(error) if portals.is_empty() => Err(error),
        _ => Ok(portals),
    }
}

impl<T: Transport> Drop for Remote<T> {
    fn drop(&mut self) {
        if self.is_ours() {
            T::keepers().wake(); // so that it drops a controller that nobody uses
        }
    }
}

#[cfg(test)]
mod tests;
