//! Connections that the queue pairs of one poller share: one I/O queue for each controller.
//!
//! The namespaces of a subsystem are attached to one controller, and each command names its namespace. So a poller
//! that reads all of them needs one connection, not one for each namespace. It opens their queue pairs in one
//! [`PairScope`], where an engine finds the connection that it opened before.
//!
//! A poller with several scopes has as many I/O queues for each controller. A scope keeps no connection alive: a
//! shared connection lives as long as the queue pairs that share it.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use dlfs_base::error::{Error, Result};
use dlfs_base::metrics::PlaceCounters;
use dlfs_base::process::Forked;

/// Lets the queue pairs of one polling thread share connections.
///
/// Several threads may open queue pairs in a scope; one thread polls all of them. After a fork the scope is empty in
/// the child, so a child process shares no connection with its parent.
#[derive(Default)]
pub struct PairScope {
    /// One slot for each shared value that was ever asked for.
    slots: Forked<Mutex<HashMap<ScopeKey, Arc<ScopeSlot>>>>,
    places: Arc<PlaceCounters>,
}

/// The type of a shared value, and the address of its owner.
type ScopeKey = (TypeId, usize);

/// One shared value, or the error of its last opening.
#[derive(Default)]
struct ScopeSlot {
    /// Locked while the value is opened, so that other callers wait for the result.
    state: Mutex<SlotState>,
    /// The number of failed openings; it changes only under the lock.
    failures: AtomicU64,
}

/// The state of a slot.
struct SlotState {
    /// The value, while a queue pair holds it.
    shared: Weak<dyn Any + Send + Sync>,
    /// The error of the last opening; `None` after a success.
    failed: Option<Error>,
}

impl Default for SlotState {
    fn default() -> SlotState {
        SlotState { shared: Weak::<()>::new(), failed: None }
    }
}

impl PairScope {
    /// Creates an empty scope.
    pub fn new() -> PairScope {
        PairScope::default()
    }

    /// Counters of the bytes that the queue pairs of this scope have read from places other than the origin, such as
    /// a cache. A queue pair with such places counts the bytes of a read when the read completes.
    pub fn places(&self) -> &Arc<PlaceCounters> {
        &self.places
    }

    /// Returns the `T` of `owner` in this scope; `open` creates it if there is none. `T` must keep `owner`
    /// alive, so that no other owner can have its address.
    ///
    /// Values of different owners are opened in parallel. A caller that asks while another one is opening the same
    /// value waits, and gets the same error if opening fails.
    ///
    /// # Errors
    /// Errors of `open`.
    pub fn get_or_open<K, T: Send + Sync + 'static>(
        &self,
        owner: &Arc<K>,
        open: impl FnOnce() -> Result<Arc<T>>,
    ) -> Result<Arc<T>> {
        let key = (TypeId::of::<T>(), Arc::as_ptr(owner).addr());
        let slot = {
            let mut slots = self.slots.get_or_init(Mutex::default).lock();
            Arc::clone(slots.entry(key).or_default())
        };
        let failures = slot.failures.load(Ordering::Acquire);
        let mut state = slot.state.lock();
        if let Some(shared) = state.shared.upgrade() {
            return Ok(shared.downcast().expect("the key names its type"));
        }
        let has_failed_since = failures != slot.failures.load(Ordering::Acquire);
        if has_failed_since && let Some(error) = &state.failed {
            return Err(error.to_others());
        }
        match open() {
            Ok(shared) => {
                state.failed = None;
                let weak: Weak<T> = Arc::downgrade(&shared);
                state.shared = weak;
                Ok(shared)
            }
            Err(error) => {
                state.failed = Some(error.to_others());
                slot.failures.fetch_add(1, Ordering::Release);
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use super::*;
    use dlfs_base::error::ErrorKind;

    /// A shared value that keeps its owner alive.
    struct Connection {
        _owner: Arc<u32>,
        number: usize,
    }

    fn open(opened: &AtomicUsize, owner: &Arc<u32>) -> Result<Arc<Connection>> {
        let number = opened.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(Connection { _owner: Arc::clone(owner), number }))
    }

    #[test]
    fn one_connection_is_opened_for_each_owner_and_scope_while_it_is_held() {
        let scopes = [PairScope::new(), PairScope::new()];
        let opened = AtomicUsize::new(0);
        let owners = [Arc::new(5), Arc::new(5)];
        let mut held = Vec::new();
        for _ in 0..3 {
            for scope in &scopes {
                for owner in &owners {
                    held.push(scope.get_or_open(owner, || open(&opened, owner)).unwrap());
                }
            }
        }
        let numbers: Vec<usize> = held.iter().map(|connection| connection.number).collect();
        assert_eq!(numbers, [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3]);
        drop(held);
        let again = scopes[0].get_or_open(&owners[0], || open(&opened, &owners[0])).unwrap();
        assert_eq!(again.number, 4, "nobody held it any more");
    }

    #[test]
    fn waiting_callers_get_the_error_of_a_failed_open_and_the_next_call_tries_again() {
        const THREADS: usize = 8;
        let scope = PairScope::new();
        let owner = Arc::new(0);
        let opened = AtomicUsize::new(0);
        let waiting = AtomicUsize::new(0);
        let texts = std::thread::scope(|threads| {
            let ask = || {
                waiting.fetch_add(1, Ordering::SeqCst);
                let asked = scope.get_or_open(&owner, || {
                    opened.fetch_add(1, Ordering::SeqCst);
                    while waiting.load(Ordering::SeqCst) < THREADS {
                        std::thread::yield_now();
                    }
                    // They have announced themselves and now call.
                    std::thread::sleep(Duration::from_millis(50));
                    Err::<Arc<Connection>, _>(Error::new(ErrorKind::TimedOut, "no answer"))
                });
                asked.map(drop).unwrap_err().to_string()
            };
            let asked: Vec<_> = (0..THREADS).map(|_| threads.spawn(ask)).collect();
            asked.into_iter().map(|asked| asked.join().unwrap()).collect::<Vec<_>>()
        });
        assert!(texts.iter().all(|text| text == "no answer"), "{texts:?}");
        let tries = opened.load(Ordering::SeqCst);
        assert!(tries < THREADS, "{tries} tries: each waited for its own");
        assert!(scope.get_or_open(&owner, || open(&opened, &owner)).is_ok());
    }
}
