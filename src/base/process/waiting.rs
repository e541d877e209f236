//! A mutex and a condition variable for threads that sleep for long.
//!
//! parking_lot keeps sleepers in a table of the process, with pointers into their stacks. A forked child has the table
//! and not the threads: when its own threads reuse those stacks, walking the table may never end. Here a sleeper is
//! known to the kernel alone, so a child inherits none. The names are parking_lot's; there is no poisoning.

use std::ops::{Deref, DerefMut};
use std::sync::{self, PoisonError};
use std::time::Instant;

/// A mutex whose waiters are unknown to a forked child.
#[derive(Debug, Default)]
pub struct Mutex<T>(sync::Mutex<T>);

/// The right to use what a [`Mutex`] holds.
#[derive(Debug)]
pub struct MutexGuard<'a, T>(Option<sync::MutexGuard<'a, T>>);

/// A condition variable whose waiters are unknown to a forked child.
#[derive(Debug, Default)]
pub struct Condvar(sync::Condvar);

impl<T> Mutex<T> {
    pub fn new(value: T) -> Mutex<T> {
        Mutex(sync::Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl Condvar {
    pub fn new() -> Condvar {
        Condvar::default()
    }

    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    pub fn notify_all(&self) {
        self.0.notify_all();
    }

    /// Waits for a notification; it may also return without one.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        guard.0 =
            guard.0.take().map(|inner| self.0.wait(inner).unwrap_or_else(PoisonError::into_inner));
    }

    /// The same, until then at most; whether that time has come.
    pub fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, until: Instant) -> bool {
        let limit = until.saturating_duration_since(Instant::now());
        let waited = guard
            .0
            .take()
            .map(|inner| self.0.wait_timeout(inner, limit).unwrap_or_else(PoisonError::into_inner));
        let has_timed_out = waited.as_ref().is_some_and(|(_, waited)| waited.timed_out());
        guard.0 = waited.map(|(inner, _)| inner);
        has_timed_out
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_deref().expect("a wait gives back what it takes")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_deref_mut().expect("a wait gives back what it takes")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_waiter_sees_what_was_changed_before_it_was_told() {
        let shared = Arc::new((Mutex::new(0), Condvar::new()));
        let other = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            *other.0.lock() = 7;
            other.1.notify_all();
        });
        let (value, changed) = &*shared;
        let mut guard = value.lock();
        while *guard == 0 {
            changed.wait(&mut guard);
        }
        assert_eq!(*guard, 7);
        assert!(changed.wait_until(&mut guard, Instant::now() + Duration::from_millis(1)));
        *guard += 1;
        drop(guard);
        thread.join().unwrap();
        assert_eq!(*value.lock(), 8);
    }
}
