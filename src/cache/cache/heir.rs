//! Thread of an attached process: when the owner of the tiers ends, takes over or attaches to the new
//! owner.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, select};
use parking_lot::Mutex;

use super::Shared;
use super::opening::{Opening, Owned};
use dlfs_base::threads::{self, Fate, Thread};

/// The thread of an attached process that waits for the owner's end.
pub(super) struct Heir {
    /// Dropped to end the thread.
    running: Sender<Infallible>,
    thread: Thread,
}

impl Heir {
    /// Starts the thread. The state that it opens succeeds `shared` and its successors. For the
    /// duration `yields` after an owner's end, the thread only attaches.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn start(
        opening: Opening,
        shared: &Arc<Shared>,
        owned: &Arc<Mutex<Option<Owned>>>,
        yields: Duration,
    ) -> dlfs_base::Result<Heir> {
        let (running, stopped) = bounded(0);
        let shared = Arc::clone(shared);
        let owned = Arc::clone(owned);
        let waiting = Waiting { opening, shared, owned, yields, stopped };
        let thread = threads::start(HEIR, &Fate::default(), waiting, Waiting::run)?;
        Ok(Heir { running, thread })
    }

    /// Ends the thread, and waits for it.
    pub(super) fn stop(self) {
        drop(self.running);
        self.thread.join_within(JOIN_TIMEOUT);
    }
}

struct Waiting {
    opening: Opening,
    /// The current state of the tiers.
    shared: Arc<Shared>,
    owned: Arc<Mutex<Option<Owned>>>,
    yields: Duration,
    /// Disconnected when the thread must end.
    stopped: Receiver<Infallible>,
}

impl Waiting {
    fn run(&mut self) {
        while !self.shared.is_owner() {
            // Without a connection there is no owner to wait for.
            if let Some(ended) = self.shared.link().map(|link| link.ended()) {
                select! {
                    recv(ended) -> _ => {}
                    recv(self.stopped) -> _ => return,
                }
            }
            if !self.succeed() {
                return;
            }
        }
    }

    /// Opens the tiers again, and retries until that succeeds; `false`: the cache is being dropped.
    fn succeed(&mut self) -> bool {
        let mut pause = FIRST_PAUSE;
        let ended = Instant::now();
        let (next, owned) = loop {
            let opened = if ended.elapsed() < self.yields {
                self.opening.attach().map(|shared| Some((shared?, None)))
            } else {
                self.opening.attach_or_own().map(Some)
            };
            match opened {
                Ok(Some(opened)) => break opened,
                Ok(None) => {}
                Err(error) => tracing::debug!(error = %error.report(), "the tiers stay without us"),
            }
            match self.stopped.recv_timeout(pause) {
                Err(RecvTimeoutError::Timeout) => pause = (pause * 2).min(LONGEST_PAUSE),
                _ => return false,
            }
        };
        match next.attached_to {
            Some(owner) => tracing::debug!(owner, "attached to the next owner of the tiers"),
            None => tracing::info!(
                "the owner of the tiers has ended, so this process owns them now: copies in files \
                 are used again, and tiers in memory begin empty"
            ),
        }
        *self.owned.lock() = owned;
        let before = std::mem::replace(&mut self.shared, Arc::clone(&next));
        // Cannot fail: only this thread sets it, once.
        let _ = before.next.set(Arc::clone(&next));
        // Must come after `next.set`: a plan that is set meanwhile is stored first, so either this call or
        // its caller passes it on.
        self.opening.tell_again(&next);
        true
    }
}

/// Name of the thread.
const HEIR: &str = "dlfs-tiers-heir";

/// Short, since another process may be taking over, and will share the tiers soon.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Timeout of opening the tiers once.
const JOIN_TIMEOUT: Duration = Duration::from_secs(12);
