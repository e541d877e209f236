//! One value for each process that uses a handle: what a fork copies is never touched again.
//!
//! A lock that another thread held at the moment of a fork stays locked in the child for ever, a thread
//! does not exist there, and a connection is the parent's. So the child makes a value of its own, and
//! leaks the parent's.

use std::sync::OnceLock;

/// A value, and those of the processes that descend from the one that made it.
pub(super) struct PerProcess<T> {
    pid: u32,
    /// Always there; taken only to be leaked.
    value: Option<T>,
    child: OnceLock<Box<PerProcess<T>>>,
}

impl<T: Default> PerProcess<T> {
    /// The calling process begins with the default value, as each descendant does.
    pub(super) fn new() -> PerProcess<T> {
        PerProcess { pid: std::process::id(), value: Some(T::default()), child: OnceLock::new() }
    }

    /// The value of the calling process.
    pub(super) fn get(&self) -> &T {
        let pid = std::process::id();
        let mut here = self;
        while here.pid != pid {
            here = match here.child.get() {
                Some(child) => child,
                None => {
                    // Made before it is stored, so that the cell is never locked for long. Another
                    // thread may be faster: then its value is the one.
                    let _ = here.child.set(Box::new(PerProcess::new()));
                    here.child.get().expect("set above or by another thread")
                }
            };
        }
        here.value.as_ref().expect("a value is there until it is dropped")
    }
}

impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        if self.pid != std::process::id() {
            std::mem::forget(self.value.take());
        }
    }
}
