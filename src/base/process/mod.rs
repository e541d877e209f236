//! Values, locks and descriptors that are safe across a fork, and the identity and memory of this process.
//!
//! A fork copies memory, but no other threads. In the child, a lock that another thread held stays locked
//! for ever. Connections belong to the parent: dropping them in the child would end what the parent still
//! uses. [`Forked`] holds such a value and gives access only to the process that created it; a child leaks
//! the inherited value and creates its own. The creating code may look at the inherited value with
//! [`Forked::inherited`], but must not wait for its locks.
//!
//! [`NotInherited`] keeps locks and connections out of the child. Threads that may wait for long while the process
//! forks use [`Mutex`] and [`Condvar`]. [`send_files`] gives file descriptors to another process on purpose, and
//! [`mark_ours`] marks those that a program must not close. [`process_id`] tells processes apart, and [`memory_bytes`]
//! is the memory that this one may use.

mod at_fork;
mod files;
mod id;
mod locks;
mod marks;
mod memory;

pub use at_fork::NotInherited;
pub use files::{receive_files, send_files};
pub use id::process_id;
pub use locks::{Condvar, Mutex, MutexGuard};
pub use marks::{is_ours, mark_ours};
pub use memory::memory_bytes;

use std::convert::Infallible;
use std::sync::OnceLock;

/// A value that belongs to the process that created it; a child process may create its own.
///
/// A child leaks an inherited value instead of dropping it.
#[derive(Debug)]
pub struct Forked<T> {
    /// The process that created the value; 0: none, see [`Forked::empty`].
    pid: u32,
    /// `Some` until the value is moved out or leaked; `None` for [`Forked::empty`].
    value: Option<T>,
    /// The value that a forked child has created; set only in that child, and inherited by its own children.
    child: OnceLock<Box<Forked<T>>>,
}

impl<T> Forked<T> {
    /// Wraps a value of the calling process.
    pub fn new(value: T) -> Forked<T> {
        Forked { pid: process_id(), value: Some(value), child: OnceLock::new() }
    }

    /// A value that is not created yet: each process, including the first, creates its own. For statics.
    pub const fn empty() -> Forked<T> {
        Forked { pid: 0, value: None, child: OnceLock::new() }
    }

    /// The value of the nearest ancestor that has one, for a child that has not created its own.
    ///
    /// A thread that does not exist in the child may hold the value's locks for ever: never wait for them,
    /// at most use `try_lock`. The connections and threads that the value describes are the ancestor's.
    pub fn inherited(&self) -> Option<&T> {
        let (last, is_ours) = self.last();
        if is_ours { None } else { last.value.as_ref() }
    }

    /// The value of the calling process; `None` in a child that has not created one.
    pub fn get(&self) -> Option<&T> {
        let (last, is_ours) = self.last();
        if is_ours { last.value.as_ref() } else { None }
    }

    /// The [`Forked`] of the calling process and `true`, or else that of its nearest ancestor and `false`.
    fn last(&self) -> (&Forked<T>, bool) {
        let pid = process_id();
        let mut last = self;
        while last.pid != pid {
            let Some(child) = last.child.get() else { return (last, false) };
            last = child;
        }
        (last, true)
    }

    /// [`Forked::get`] with mutable access.
    pub fn get_mut(&mut self) -> Option<&mut T> {
        let pid = process_id();
        let mut owner = self;
        while owner.pid != pid {
            owner = owner.child.get_mut()?;
        }
        owner.value.as_mut()
    }

    /// Returns whether the calling process has a value.
    pub fn is_ours(&self) -> bool {
        self.get().is_some()
    }

    /// The value of the calling process; created with `make` if there is none.
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        match self.get_or_try_init(|| Ok::<T, Infallible>(make())) {
            Ok(value) => value,
            Err(never) => match never {},
        }
    }

    /// [`Forked::get_or_init`] for a `make` that may fail.
    ///
    /// # Errors
    /// The errors of `make`.
    pub fn get_or_try_init<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<&T, E> {
        let (mut last, is_ours) = self.last();
        if !is_ours {
            // Created before it is stored, so that the cell is locked only briefly. If another thread
            // stores its value first, that value is used.
            let _ = last.child.set(Box::new(Forked::new(make()?)));
            last = last.child.get().expect("set above or by another thread");
        }
        Ok(last.value.as_ref().expect("a value is there until it is given away"))
    }

    /// Returns the value if the calling process created it; leaks an inherited one.
    pub fn into_inner(mut self) -> Option<T> {
        match self.child.take() {
            Some(child) => child.into_inner(),
            None if self.pid == process_id() => self.value.take(),
            None => None,
        }
    }
}

impl<T> Drop for Forked<T> {
    fn drop(&mut self) {
        if self.pid != process_id() {
            std::mem::forget(self.value.take());
        }
    }
}

impl<T> Default for Forked<T> {
    fn default() -> Forked<T> {
        Forked::empty()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    /// Counts its drops.
    struct Counted(Rc<Cell<u32>>);

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }

    /// A value as a forked child sees it: its creator has another process identifier.
    fn inherited<T>(value: T) -> Forked<T> {
        Forked { pid: process_id().wrapping_add(1), value: Some(value), child: OnceLock::new() }
    }

    #[test]
    fn the_process_that_made_a_value_sees_changes_drops_and_gives_it_away() {
        let drops = Rc::new(Cell::new(0));
        let mut forked = Forked::new((7, Counted(Rc::clone(&drops))));
        assert!(forked.is_ours());
        forked.get_mut().expect("ours").0 = 8;
        assert_eq!(forked.get().map(|value| value.0), Some(8));
        assert_eq!(forked.get_or_init(|| unreachable!("there is one")).0, 8);
        assert_eq!(forked.into_inner().map(|value| value.0), Some(8));
        assert_eq!(drops.get(), 1);
        drop(Forked::new(Counted(Rc::clone(&drops))));
        assert_eq!(drops.get(), 2);
    }

    #[test]
    fn what_is_inherited_is_never_shown_or_dropped_and_a_child_makes_its_own() {
        let drops = Rc::new(Cell::new(0));
        let counted = || Counted(Rc::clone(&drops));
        let mut forked = inherited((1, counted()));
        assert!(!forked.is_ours() && forked.get().is_none() && forked.get_mut().is_none());
        assert_eq!(
            forked.get_or_try_init(|| Err("no threads")).map(|value| value.0),
            Err("no threads")
        );
        assert!(!forked.is_ours(), "nothing was made");
        assert_eq!(forked.get_or_init(|| (2, counted())).0, 2);
        forked.get_mut().expect("ours now").0 = 3;
        assert_eq!(forked.get_or_init(|| unreachable!("there is one")).0, 3);
        assert_eq!(forked.into_inner().map(|value| value.0), Some(3));
        assert_eq!(drops.get(), 1, "the inherited one is leaked");
        let forked = inherited(counted());
        forked.get_or_init(counted);
        drop(forked);
        assert_eq!(drops.get(), 2);
        assert!(inherited(counted()).into_inner().is_none());
        assert_eq!(drops.get(), 2);
    }

    #[test]
    fn an_inherited_value_can_be_looked_at_until_the_process_has_its_own() {
        assert_eq!(Forked::new(1).inherited(), None);
        let forked = inherited(1);
        assert_eq!(forked.inherited(), Some(&1));
        assert_eq!(forked.get_or_init(|| 2), &2);
        assert_eq!(forked.inherited(), None);
    }

    #[test]
    fn an_empty_value_is_filled_once_the_process_creates_it() {
        static EMPTY: Forked<u32> = Forked::empty();
        assert_eq!((EMPTY.get(), EMPTY.inherited(), EMPTY.is_ours()), (None, None, false));
        assert_eq!(EMPTY.get_or_init(|| 3), &3);
        assert_eq!(EMPTY.get(), Some(&3));
        let drops = Rc::new(Cell::new(0));
        let forked = Forked::empty();
        forked.get_or_init(|| Counted(Rc::clone(&drops)));
        drop(forked);
        assert_eq!(drops.get(), 1);
        assert!(Forked::<u32>::empty().into_inner().is_none());
    }
}
