//! The words and locks of the code that `tests/loom` models: there these names are loom's, and the same source
//! is compiled with them.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};

pub(crate) use parking_lot::Mutex;
