//! `crate::sync` of the modelled files: loom's types, with a switch that weakens all orderings.

use std::sync::atomic::{AtomicBool as Flag, Ordering as Std};

pub(crate) use loom::sync::atomic::Ordering;

/// Set if every ordering is `Relaxed` and fences are removed.
static WEAKENED: Flag = Flag::new(false);

pub(crate) fn weaken(weakened: bool) {
    WEAKENED.store(weakened, Std::SeqCst);
}

fn as_told(ordering: Ordering) -> Ordering {
    if WEAKENED.load(Std::SeqCst) { Ordering::Relaxed } else { ordering }
}

pub(crate) fn fence(ordering: Ordering) {
    if !WEAKENED.load(Std::SeqCst) {
        loom::sync::atomic::fence(ordering);
    }
}

macro_rules! atomic {
    ($name:ident, $value:ty) => {
        #[derive(Debug, Default)]
        pub(crate) struct $name(loom::sync::atomic::$name);

        impl $name {
            pub(crate) fn new(value: $value) -> $name {
                $name(loom::sync::atomic::$name::new(value))
            }

            pub(crate) fn load(&self, ordering: Ordering) -> $value {
                self.0.load(as_told(ordering))
            }

            pub(crate) fn store(&self, value: $value, ordering: Ordering) {
                self.0.store(value, as_told(ordering));
            }

            pub(crate) fn swap(&self, value: $value, ordering: Ordering) -> $value {
                self.0.swap(value, as_told(ordering))
            }

            pub(crate) fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.0.compare_exchange(current, new, as_told(success), as_told(failure))
            }

            pub(crate) fn fetch_update(
                &self,
                set: Ordering,
                fetch: Ordering,
                change: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                self.0.fetch_update(as_told(set), as_told(fetch), change)
            }
        }
    };
}

macro_rules! number {
    ($name:ident, $value:ty) => {
        atomic!($name, $value);

        impl $name {
            pub(crate) fn fetch_add(&self, value: $value, ordering: Ordering) -> $value {
                self.0.fetch_add(value, as_told(ordering))
            }

            pub(crate) fn fetch_sub(&self, value: $value, ordering: Ordering) -> $value {
                self.0.fetch_sub(value, as_told(ordering))
            }

            pub(crate) fn fetch_min(&self, value: $value, ordering: Ordering) -> $value {
                self.0.fetch_min(value, as_told(ordering))
            }

            pub(crate) fn fetch_or(&self, value: $value, ordering: Ordering) -> $value {
                self.0.fetch_or(value, as_told(ordering))
            }

            pub(crate) fn fetch_and(&self, value: $value, ordering: Ordering) -> $value {
                self.0.fetch_and(value, as_told(ordering))
            }
        }
    };
}

atomic!(AtomicBool, bool);
number!(AtomicU64, u64);
number!(AtomicUsize, usize);

/// A lock whose guard is returned without a `Result`, like parking_lot's.
#[derive(Default)]
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
        self.0.lock().expect("no model panics with it")
    }
}
