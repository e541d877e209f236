//! A switch for the bench alone: reads without verification, to measure what verification costs.
//!
//! It exists only with the feature `unverified`, which no release build enables.

use std::sync::atomic::{AtomicBool, Ordering};

static UNVERIFIED: AtomicBool = AtomicBool::new(false);

/// Switches verification off or on, for every reader of this process.
pub fn set(off: bool) {
    UNVERIFIED.store(off, Ordering::Relaxed);
}

/// Returns whether verification is off.
pub(crate) fn is_set() -> bool {
    UNVERIFIED.load(Ordering::Relaxed)
}
