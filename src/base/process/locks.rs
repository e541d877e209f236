//! A mutex and a condition variable that a forked child inherits without waiters.
//!
//! parking_lot keeps waiting threads in a table of the process, which points into their stacks. A forked
//! child inherits the table without the threads. Once its own threads reuse these stacks, a walk of the
//! table may never end. The standard library's types wait in the kernel, so a child inherits no waiters.
//! These wrappers ignore poisoning.

pub use std::sync::MutexGuard;

use std::sync::{self, PoisonError};
use std::time::Instant;

/// A mutex that a forked child inherits without waiters.
#[derive(Debug, Default)]
pub struct Mutex<T>(sync::Mutex<T>);

/// A condition variable that a forked child inherits without waiters.
#[derive(Debug, Default)]
pub struct Condvar(sync::Condvar);

impl<T> Mutex<T> {
    /// A mutex that holds `value`.
    pub fn new(value: T) -> Mutex<T> {
        Mutex(sync::Mutex::new(value))
    }

    /// Waits for the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Condvar {
    /// Wakes one waiting thread.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all waiting threads.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }

    /// Waits for a notification; spurious wakeups are possible.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a notification until a deadline; returns whether the deadline has passed.
    pub fn wait_until<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        until: Instant,
    ) -> (MutexGuard<'a, T>, bool) {
        let limit = until.saturating_duration_since(Instant::now());
        let waited = self.0.wait_timeout(guard, limit).unwrap_or_else(PoisonError::into_inner);
        (waited.0, waited.1.timed_out())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_waiter_sees_what_was_changed_before_it_was_told() {
        let shared = Arc::new((Mutex::new(0), Condvar::default()));
        let other = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            *other.0.lock() = 7;
            other.1.notify_all();
        });
        let (value, changed) = &*shared;
        let mut guard = value.lock();
        while *guard == 0 {
            guard = changed.wait(guard);
        }
        assert_eq!(*guard, 7);
        let (mut guard, is_late) =
            changed.wait_until(guard, Instant::now() + Duration::from_millis(1));
        assert!(is_late);
        *guard += 1;
        drop(guard);
        thread.join().unwrap();
        assert_eq!(*value.lock(), 8);
    }
}
