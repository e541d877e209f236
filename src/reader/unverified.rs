//! A switch for the bench alone: reads without comparing checksums, so that their cost can be shown.
//!
//! It exists only with the feature `unverified`, which no build for users has.

use std::sync::atomic::{AtomicBool, Ordering};

static UNVERIFIED: AtomicBool = AtomicBool::new(false);

/// Switches the comparison of checksums off or on again, for every reader of this process.
pub fn set(off: bool) {
    UNVERIFIED.store(off, Ordering::Relaxed);
}

/// Whether checksums are left uncompared.
pub(crate) fn is_set() -> bool {
    UNVERIFIED.load(Ordering::Relaxed)
}
