//! Sums of counters and latencies, over loaders and over readers that come and go.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::metrics::{Histogram, Recorder};
use crate::prefetch::LoaderStats;

/// The sum of two loaders' counters, except `pages`, which are those of `b`, or of `a` if `b` has none.
pub fn sum_stats(a: LoaderStats, b: LoaderStats) -> LoaderStats {
    a.plus(b)
}

/// The recorders of several threads that start and end at any time, and their sum.
#[derive(Debug, Default)]
pub(super) struct Latencies(Mutex<Recorders>);

#[derive(Debug, Default)]
struct Recorders {
    /// The recorders that somebody else still holds.
    live: Vec<Arc<Recorder>>,
    /// The latencies of the recorders that have ended.
    ended: Histogram,
}

impl Latencies {
    /// Adds a recorder. Once all its other owners have dropped it, its latencies are moved to `ended`.
    pub(super) fn add(&self, recorder: &Arc<Recorder>) {
        let mut recorders = self.0.lock();
        recorders.forget_ended();
        recorders.live.push(Arc::clone(recorder));
    }

    /// The sum of the latencies of all recorders, ended ones included.
    pub(super) fn read(&self) -> Histogram {
        let mut recorders = self.0.lock();
        recorders.forget_ended();
        let mut sum = recorders.ended;
        recorders.live.iter().for_each(|recorder| sum.add(&recorder.read()));
        sum
    }
}

impl Recorders {
    /// Moves the latencies of recorders that nobody else holds to `ended`.
    fn forget_ended(&mut self) {
        let ended = &mut self.ended;
        self.live.retain(|recorder| {
            let is_live = Arc::strong_count(recorder) > 1;
            if !is_live {
                ended.add(&recorder.read());
            }
            is_live
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_is_recorded_is_read_by_other_threads_and_survives_its_recorder() {
        let all = Latencies::default();
        let threads: Vec<_> = (1..=3)
            .map(|micros| {
                let recorder = Arc::new(Recorder::default());
                all.add(&recorder);
                std::thread::spawn(move || {
                    (0..1000).for_each(|_| recorder.record(Duration::from_micros(micros)));
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("it does not panic"));
        for _ in 0..2 {
            let sum = all.read();
            assert_eq!((sum.count(), sum.sum()), (3000, Duration::from_millis(6)));
        }
        assert!(all.0.lock().live.is_empty());
    }
}
