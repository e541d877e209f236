//! The progress of an import, for the caller and as metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use dlfs_base::metrics::{self, Measured, Snapshot};
use dlfs_base::registry::Registration;

/// Receives the progress of an import, a purge, a rebuild or the indexing of shards, on the calling thread.
pub trait Progress {
    /// Called when a stage begins. `samples` and `bytes` are its totals; 0 if unknown. When a rebuild searches for
    /// chunks, `samples` counts the cells to search.
    fn stage(&mut self, stage: Stage, samples: u64, bytes: u64);

    /// Called when this many more samples and bytes of the stage are done.
    fn advance(&mut self, samples: u64, bytes: u64);

    /// Called periodically, except by a rebuild. Returns whether to stop. An import can be resumed then; the
    /// generations that a purge has committed stay.
    fn stop(&mut self) -> bool {
        false
    }
}

/// Ignores progress.
impl Progress for () {
    fn stage(&mut self, _: Stage, _: u64, _: u64) {}
    fn advance(&mut self, _: u64, _: u64) {}
}

/// The stage of an import.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stage {
    /// Indexing the source; in a rebuild, searching for chunks.
    Indexing,
    /// Reading samples and writing chunks.
    Writing,
    /// Writing the directory and making everything durable.
    Committing,
}

/// Counts the progress of an import, and passes it on.
pub(super) struct Metered<'a> {
    progress: &'a mut dyn Progress,
    counters: Arc<Counters>,
    /// The running stage; `None` before the first.
    stage: Option<Stage>,
    /// Keeps the counters among the metrics of the process.
    _registration: Registration,
}

impl<'a> Metered<'a> {
    /// Counts what is reported to the result, and passes it to `progress`.
    pub(super) fn new(progress: &'a mut dyn Progress) -> Metered<'a> {
        let counters = Arc::<Counters>::default();
        let registration = Registration::new(&counters);
        Metered { progress, counters, stage: None, _registration: registration }
    }
}

impl Progress for Metered<'_> {
    fn stage(&mut self, stage: Stage, samples: u64, bytes: u64) {
        self.stage = Some(stage);
        self.counters.begin(Some(stage));
        self.progress.stage(stage, samples, bytes);
    }

    fn advance(&mut self, samples: u64, bytes: u64) {
        if let Some(stage) = self.stage {
            let counters = &self.counters.stages[stage as usize];
            counters.samples.fetch_add(samples, Ordering::Relaxed);
            counters.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        self.progress.advance(samples, bytes);
    }

    fn stop(&mut self) -> bool {
        self.progress.stop()
    }
}

impl Drop for Metered<'_> {
    fn drop(&mut self) {
        self.counters.begin(None);
    }
}

/// The metrics of one import.
#[derive(Default)]
struct Counters {
    stages: [StageCounters; 3],
    /// The running stage, as an index of `stages`, and its start time. The lock also guards changes of `nanoseconds`.
    running: Mutex<Option<(usize, Instant)>>,
}

/// The work and time of a stage.
#[derive(Default)]
struct StageCounters {
    samples: AtomicU64,
    bytes: AtomicU64,
    /// Duration of the stage's completed runs; [`Counters::measure`] adds the running one.
    nanoseconds: AtomicU64,
}

impl Counters {
    /// Ends the running stage, if any, and begins `stage`, if any.
    fn begin(&self, stage: Option<Stage>) {
        let mut running = self.running.lock();
        if let Some((ended, began)) = *running {
            let took = began.elapsed().as_nanos() as u64;
            self.stages[ended].nanoseconds.fetch_add(took, Ordering::Relaxed);
        }
        *running = stage.map(|stage| (stage as usize, Instant::now()));
    }
}

impl Measured for Counters {
    fn measure(&self, snapshot: &mut Snapshot) {
        let running = self.running.lock(); // locked so that no stage ends meanwhile
        for (at, (stage, of)) in STAGES.into_iter().zip(&self.stages).enumerate() {
            let load = |value: &AtomicU64| value.load(Ordering::Relaxed);
            let began = running.filter(|(stage, _)| *stage == at).map(|(_, began)| began);
            let time = began.map_or(Duration::ZERO, |began| began.elapsed())
                + Duration::from_nanos(load(&of.nanoseconds));
            snapshot.count(&metrics::IMPORT_SAMPLES, &[stage], load(&of.samples));
            snapshot.count(&metrics::IMPORT_BYTES, &[stage], load(&of.bytes));
            snapshot.seconds(&metrics::IMPORT_SECONDS, &[stage], time.as_secs_f64());
        }
    }
}

/// The stages as label values, in the order of [`Stage`].
const STAGES: [&str; 3] = ["indexing", "writing", "committing"];
