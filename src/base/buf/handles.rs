//! The number of handles on an allocation. `tests/loom` tries it in all orders of memory.

use crate::sync::{AtomicUsize, Ordering, fence};

/// Counts handles as `Arc` does. A count of zero belongs to whoever owns the memory.
pub(super) struct Handles(AtomicUsize);

impl Handles {
    pub(super) fn new(count: usize) -> Handles {
        Handles(AtomicUsize::new(count))
    }

    /// The owner of the memory gives out its first handle.
    pub(super) fn begin(&self) {
        // Relaxed: whatever passes the handle to another thread orders this store, too.
        self.0.store(1, Ordering::Relaxed);
    }

    /// A handle is cloned from another.
    pub(super) fn add(&self) {
        // Relaxed: the new handle is cloned from an existing one, as with `Arc`.
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns whether there is one handle. If the caller holds it, no other can appear, since handles are cloned
    /// from handles.
    pub(super) fn is_one(&self) -> bool {
        // Acquire: accesses through dropped handles happen before accesses through this one.
        self.0.load(Ordering::Acquire) == 1
    }

    /// A handle is dropped. Whether it was the last, so that the memory is the caller's.
    pub(super) fn remove(&self) -> bool {
        // Release here and acquire by the last handle: accesses through other handles happen before the memory
        // is reused.
        if self.0.fetch_sub(1, Ordering::Release) != 1 {
            return false;
        }
        fence(Ordering::Acquire);
        true
    }
}
