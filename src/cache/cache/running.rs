//! Threads that each process runs for the tiers: the process that opened them, and each forked child that
//! uses them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;

use super::heir::Heir;
use super::opening::{Opening, Owned};
use super::share::{Link, Owner};
use super::{Shared, copier};
use dlfs_base::error::Result;
use dlfs_base::process::Forked;
use dlfs_io::qpair::group::Waker;

/// The tiers of one data set, in this process and in the children that it forks.
pub(super) struct Tiers {
    pub(super) opening: Opening,
    running: Forked<Running>,
}

/// The part of one process.
struct Running {
    /// The first state of a chain: each takeover adds one.
    shared: Arc<Shared>,
    /// The owner's threads, if this process owns the tiers.
    owned: Arc<Mutex<Option<Owned>>>,
    /// Waits for the owner's end, if another process is the owner.
    heir: Mutex<Option<Heir>>,
}

impl Tiers {
    /// Wraps the tiers that `opening` has opened.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(super) fn new(
        opening: Opening,
        shared: Arc<Shared>,
        owned: Option<Owned>,
    ) -> Result<Tiers> {
        let running = Running::start(&opening, shared, owned, Duration::ZERO)?;
        Ok(Tiers { opening, running: Forked::new(running) })
    }

    /// The current state of the tiers. A forked child attaches at its first call.
    pub(super) fn latest(&self) -> &Arc<Shared> {
        let running = self.running.get_or_init(|| {
            // Another thread of this child may be attaching, too; one of the two states is then dropped.
            let known = self.running.inherited().or_else(|| self.running.get());
            let known = known.expect("the process that opened the tiers has its part");
            Running::in_child(&self.opening, known.shared.latest())
        });
        running.shared.latest()
    }

    /// Ends the threads of this process. Reads continue, and no more copies are made.
    pub(super) fn stop(&self) {
        // `get`: a forked child must not touch its parent's part, whose threads do not exist here and may
        // have held a lock.
        self.running.get().into_iter().for_each(Running::stop);
    }
}

impl Running {
    fn start(
        opening: &Opening,
        shared: Arc<Shared>,
        owned: Option<Owned>,
        yields: Duration,
    ) -> Result<Running> {
        let owned = Arc::new(Mutex::new(owned));
        let heir = if shared.is_owner() {
            None
        } else {
            Some(Heir::start(opening.clone(), &shared, &owned, yields)?)
        };
        Ok(Running { shared, owned, heir: Mutex::new(heir) })
    }

    /// Attaches as any other process does, since the inherited state does not follow takeovers. If the tiers
    /// are not shared, the child only reads the existing copies.
    fn in_child(opening: &Opening, of_parent: &Arc<Shared>) -> Running {
        let not_followed =
            |shared| Running { shared, owned: Arc::default(), heir: Mutex::default() };
        if of_parent.waker.is_some() && !of_parent.is_shared {
            return not_followed(Arc::clone(of_parent));
        }
        let attached = opening.attach().unwrap_or_else(|error| {
            tracing::debug!(error = %error.report(), "a forked child is not attached yet");
            None
        });
        let shared = attached.unwrap_or_else(|| opening.none());
        let running = Running::start(opening, Arc::clone(&shared), None, YIELDS);
        running.unwrap_or_else(|error| {
            tracing::debug!(error = %error.report(), "a forked child follows no takeover");
            not_followed(shared)
        })
    }

    fn stop(&self) {
        // First, so that this process does not take over any more.
        if let Some(heir) = self.heir.lock().take() {
            heir.stop();
        }
        let shared = self.shared.latest();
        shared.link().into_iter().for_each(Link::finish);
        let owned = self.owned.lock().take();
        let (copier, owner) = owned.map(|owned| (owned.copier, owned.owner)).unzip();
        // Before the copier ends, so that the copier also writes the pages that attached processes have sent.
        owner.flatten().into_iter().for_each(Owner::stop);
        shared.stop.store(true, Ordering::Release);
        shared.waker.iter().for_each(Waker::wake);
        copier.into_iter().for_each(|copier| {
            copier.join_within(copier::LAST_WRITES + LAST_ITERATION);
        });
    }
}

impl Drop for Running {
    /// Stops the threads: if two threads of a child create a `Running` at the same time, one of the two is
    /// dropped.
    fn drop(&mut self) {
        self.stop();
    }
}

/// Timeout of the copier's last iteration, after the last index writes; only a hanging device needs longer.
const LAST_ITERATION: Duration = Duration::from_secs(5);

/// Time in which a forked child, which may end soon, lets other processes take over first.
const YIELDS: Duration = Duration::from_secs(2);
