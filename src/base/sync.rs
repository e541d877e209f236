//! Atomics and locks of the code that `tests/loom` models. There, the same source is compiled with loom's
//! types under these names.

pub use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};

pub use parking_lot::Mutex;
