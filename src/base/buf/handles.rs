//! Counts the handles on an allocation. `tests/loom` checks it under all memory orders.

use crate::sync::{AtomicUsize, Ordering, fence};

/// Counts handles as `Arc` does. While the count is zero, the memory belongs to its owner, such as the pool.
pub(super) struct Handles(AtomicUsize);

impl Handles {
    pub(super) fn new(count: usize) -> Handles {
        Handles(AtomicUsize::new(count))
    }

    /// Counts the first handle, which the owner of the memory gives out.
    pub(super) fn begin(&self) {
        // Relaxed: passing the handle to another thread orders this store, too.
        self.0.store(1, Ordering::Relaxed);
    }

    /// Counts a handle cloned from another.
    pub(super) fn add(&self) {
        // Relaxed: the new handle is cloned from an existing one, as with `Arc`.
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns whether there is only one handle. If the caller holds it, no other can appear, since handles
    /// are only cloned from handles.
    pub(super) fn is_one(&self) -> bool {
        // Acquire: accesses through dropped handles happen before accesses through this one.
        self.0.load(Ordering::Acquire) == 1
    }

    /// Counts a dropped handle. Returns whether it was the last, so that the caller now owns the memory.
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
