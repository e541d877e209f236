//! The progress of imports as metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::options::{Progress, Stage};
use dlfs_base::metrics::{self, Measured, Snapshot};
use dlfs_base::registry::Registration;

/// Counts what it passes on.
pub(super) struct Metered<'a> {
    progress: &'a mut dyn Progress,
    counters: Arc<Counters>,
    stage: Option<Stage>,
    _registration: Registration,
}

impl<'a> Metered<'a> {
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
            let of = &self.counters.stages[stage as usize];
            of.samples.fetch_add(samples, Ordering::Relaxed);
            of.bytes.fetch_add(bytes, Ordering::Relaxed);
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

#[derive(Default)]
struct Counters {
    stages: [OfStage; 3],
    time: Mutex<Time>,
}

/// The work that a stage has done.
#[derive(Default)]
struct OfStage {
    samples: AtomicU64,
    bytes: AtomicU64,
}

/// How long the stages have taken.
#[derive(Clone, Copy, Default)]
struct Time {
    /// Those that have ended.
    ended: [Duration; 3],
    /// The one that runs, since when.
    running: Option<(usize, Instant)>,
}

impl Time {
    fn so_far(&self) -> [Duration; 3] {
        let mut times = self.ended;
        if let Some((stage, began)) = self.running {
            times[stage] += began.elapsed();
        }
        times
    }
}

impl Counters {
    /// A stage begins, or none; the one before has ended.
    fn begin(&self, stage: Option<Stage>) {
        let mut time = self.time.lock();
        let running = stage.map(|stage| (stage as usize, Instant::now()));
        *time = Time { ended: time.so_far(), running };
    }
}

impl Measured for Counters {
    fn measure(&self, snapshot: &mut Snapshot) {
        let times = self.time.lock().so_far();
        for ((stage, of), time) in STAGES.into_iter().zip(&self.stages).zip(times) {
            let load = |value: &AtomicU64| value.load(Ordering::Relaxed);
            snapshot.count(&metrics::IMPORT_SAMPLES, &[stage], load(&of.samples));
            snapshot.count(&metrics::IMPORT_BYTES, &[stage], load(&of.bytes));
            snapshot.seconds(&metrics::IMPORT_SECONDS, &[stage], time.as_secs_f64());
        }
    }
}

/// The stages as a label has them, in the order of [`Stage`].
const STAGES: [&str; 3] = ["indexing", "writing", "committing"];
