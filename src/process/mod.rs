//! Which process this is, and what a child process must own anew.
//!
//! A fork copies memory and nothing else. A lock that another thread held at that moment stays locked in
//! the child for ever, a thread does not exist there, and a connection is the parent's: dropping any of
//! them in the child waits for ever or ends what the parent still uses. [`Forked`] holds such a value,
//! shows it to the process that made it alone, and lets a child leak it and make its own.

mod id;

use std::convert::Infallible;
use std::sync::OnceLock;

pub use id::process_id;

/// A value of the process that made it, and of each process that descends from it and made its own.
///
/// The values that a child inherits are never shown, locked or dropped there, but leaked.
#[derive(Debug)]
pub struct Forked<T> {
    pid: u32,
    /// Always there; taken only to be given away or leaked.
    value: Option<T>,
    child: OnceLock<Box<Forked<T>>>,
}

impl<T> Forked<T> {
    /// A value of the calling process.
    pub fn new(value: T) -> Forked<T> {
        Forked { pid: process_id(), value: Some(value), child: OnceLock::new() }
    }

    /// The value of the calling process; `None` in a child that has made none.
    pub fn get(&self) -> Option<&T> {
        let pid = process_id();
        let mut here = self;
        while here.pid != pid {
            here = here.child.get()?;
        }
        here.value.as_ref()
    }

    /// As [`Forked::get`], to change it.
    pub fn get_mut(&mut self) -> Option<&mut T> {
        let pid = process_id();
        let mut here = self;
        while here.pid != pid {
            here = here.child.get_mut()?;
        }
        here.value.as_mut()
    }

    /// Whether the calling process has a value.
    pub fn is_ours(&self) -> bool {
        self.get().is_some()
    }

    /// The value of the calling process, which `make` makes in a child that has none.
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        match self.get_or_try_init(|| Ok::<T, Infallible>(make())) {
            Ok(value) => value,
            Err(never) => match never {},
        }
    }

    /// As [`Forked::get_or_init`], where making it may fail.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn get_or_try_init<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<&T, E> {
        let mut last = self;
        while last.pid != process_id() {
            let Some(child) = last.child.get() else { break };
            last = child;
        }
        if last.pid != process_id() {
            // Made before it is stored, so that the cell is never locked for long. Another thread may be
            // faster: then its value is the one.
            let _ = last.child.set(Box::new(Forked::new(make()?)));
            last = last.child.get().expect("set above or by another thread");
        }
        Ok(last.value.as_ref().expect("a value is there until it is given away"))
    }

    /// The value, if the calling process made it; what is inherited is leaked.
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

    /// As a child of the process that made `value` sees it: the maker has another identifier.
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
}
