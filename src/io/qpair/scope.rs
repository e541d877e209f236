//! Connections shared by the queue pairs of one poller: one I/O queue for each controller.
//!
//! The namespaces of one subsystem are attached to one controller, and each command names its namespace. So a
//! poller that reads all of them needs one connection, not one for each namespace. It opens their queue pairs
//! in one [`PairScope`], where an engine finds the connection that it opened before.
//!
//! A poller with several scopes has as many I/O queues for each controller. A scope keeps nothing alive: a
//! shared connection lives as long as the queue pairs that share it.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use dlfs_base::error::{Error, Result};
use dlfs_base::metrics::PlaceCounters;
use dlfs_base::process::Forked;

/// Lets the queue pairs of one polling thread share connections. See the module page.
///
/// Several threads may use it while they open queue pairs; one thread polls these. A child process shares
/// nothing with its parent: the scope is empty there.
pub struct PairScope {
    slots: Forked<Mutex<HashMap<Key, Arc<Slot>>>>,
    places: Arc<PlaceCounters>,
}

/// The type of the shared value, and the address of its owner.
type Key = (TypeId, usize);

#[derive(Default)]
struct Slot {
    state: Mutex<State>,
    /// The number of failed openings; it changes only under the lock.
    failures: AtomicU64,
}

struct State {
    shared: Weak<dyn Any + Send + Sync>,
    /// The last error.
    failed: Option<Error>,
}

impl Default for State {
    fn default() -> State {
        State { shared: Weak::<()>::new(), failed: None }
    }
}

impl PairScope {
    /// Creates an empty scope.
    pub fn new() -> PairScope {
        PairScope { slots: Forked::new(Mutex::default()), places: Arc::default() }
    }

    /// Bytes that the queue pairs of this scope have read from places other than the origin. A queue pair with
    /// such places counts the bytes of a read once, when it completes.
    pub fn places(&self) -> &Arc<PlaceCounters> {
        &self.places
    }

    /// Returns the `T` of `owner` in this scope; `open` creates it if there is none. `T` must keep `owner`
    /// alive, so that no other owner can have its address.
    ///
    /// Different owners open in parallel. If a caller asks while another caller is opening the same `T`, it
    /// waits, and gets the same error if opening fails.
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
        let has_failed_meanwhile = failures != slot.failures.load(Ordering::Acquire);
        if has_failed_meanwhile && let Some(error) = &state.failed {
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

impl Default for PairScope {
    fn default() -> PairScope {
        PairScope::new()
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
