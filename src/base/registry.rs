//! Registry of this process's sources of metrics, such as targets, data sets, loaders, tiers, peers and stores.
//!
//! Each process has its own registry: a forked child starts with an empty one, which lists what the child
//! opens.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::metrics::{Measured, Snapshot};
use crate::process::{Forked, process_id};

/// A registered source: [`collect`] reads its metrics until this handle is dropped. The source's final
/// counts remain part of the process's counters.
pub struct Registration {
    /// Identifies the source in the registry.
    id: u64,
    source: Arc<dyn Measured + Send + Sync>,
    /// The process that registered the source. A forked child must not use the source: a thread that does
    /// not exist in the child may hold the source's locks.
    pid: u32,
}

/// The sources of one process.
#[derive(Default)]
struct Registry {
    /// The registered sources by id. Weak, so that a forked child's copy of the list keeps no source alive. Every
    /// entry can be upgraded, because a registration leaves the list before it drops its source.
    sources: Vec<(u64, Weak<dyn Measured + Send + Sync>)>,
    /// The final counts of sources whose registration has ended.
    ended: Snapshot,
}

/// The registry of this process. The lock guards both of its fields.
static REGISTRY: Forked<Mutex<Registry>> = Forked::empty();
/// The id of the next registration.
static NEXT_ID: AtomicU64 = AtomicU64::new(0);

impl Registration {
    /// Registers `source`.
    pub fn new<T: Measured + Send + Sync + 'static>(source: &Arc<T>) -> Registration {
        let source: Arc<dyn Measured + Send + Sync> = Arc::<T>::clone(source);
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        registry().lock().sources.push((id, Arc::downgrade(&source)));
        Registration { id, source, pid: process_id() }
    }
}

/// Measures nothing in a forked child.
impl<T: Measured> Measured for Forked<T> {
    fn measure(&self, snapshot: &mut Snapshot) {
        if let Some(source) = self.get() {
            source.measure(snapshot);
        }
    }
}

impl<T: Measured> Measured for Mutex<T> {
    fn measure(&self, snapshot: &mut Snapshot) {
        self.lock().measure(snapshot);
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if self.pid != process_id() {
            return;
        }
        let last = Snapshot::of(&*self.source).ended();
        // Leaves the list and adds its counts under one lock, so that a snapshot contains them exactly once.
        let mut registry = registry().lock();
        registry.sources.retain(|(id, _)| *id != self.id);
        registry.ended.add(&last);
    }
}

impl std::fmt::Debug for Registration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Registration({})", self.id)
    }
}

/// The registry of this process, created at the first call.
fn registry() -> &'static Mutex<Registry> {
    REGISTRY.get_or_init(Mutex::default)
}

/// The metrics of all registered sources, and the final counts of earlier ones.
///
/// May block for up to 100 ms for each loader whose consumer is waiting for a batch.
pub fn collect() -> Snapshot {
    let (mut snapshot, sources) = {
        let registry = registry().lock();
        let sources: Vec<_> =
            registry.sources.iter().filter_map(|(_, source)| source.upgrade()).collect();
        (registry.ended.clone(), sources)
    };
    sources.iter().for_each(|source| source.measure(&mut snapshot));
    snapshot
}

#[cfg(test)]
mod tests {
    use crate::metrics::{STORE_FOUND, STORE_HELD_BYTES};

    use super::*;

    /// Counts one sample and has one byte.
    struct Source;

    impl Measured for Source {
        fn measure(&self, snapshot: &mut Snapshot) {
            snapshot.count(&STORE_FOUND, &[], 1);
            snapshot.count(&STORE_HELD_BYTES, &[], 1);
        }
    }

    /// The only test of this program with metrics of stores.
    #[test]
    fn counters_outlive_their_source_and_gauges_do_not() {
        let values = || {
            let snapshot = collect();
            (snapshot.sum(&STORE_FOUND), snapshot.sum(&STORE_HELD_BYTES))
        };
        assert_eq!(values(), (0.0, 0.0));
        let first = Registration::new(&Arc::new(Source));
        let second = Registration::new(&Arc::new(Source));
        assert_eq!(values(), (2.0, 2.0));
        drop(first);
        assert_eq!(values(), (2.0, 1.0));
        drop(second);
        assert_eq!(values(), (2.0, 0.0));
    }
}
