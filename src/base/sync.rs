//! The words and locks of the code that `tests/loom` models: there these names are loom's, and the same source
//! is compiled with them.

pub use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};

pub use parking_lot::Mutex;
