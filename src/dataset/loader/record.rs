//! Record of a loader's batches and of the waits for them.
//!
//! It is always on: each batch costs one clock reading and a few additions.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::prefetch::{LoaderOptions, LoaderStats, Trace};
use crate::report::{Delivered, Event, PlaceBytes, Stalls, Timeline, What};

/// The timeline of the loader, and its trace if it has one.
pub(super) struct Record {
    began: Instant,
    pub(super) timeline: Timeline,
    trace: Option<Arc<Trace>>,
    pub(super) window_bytes: usize,
    /// The totals when the last batch was delivered.
    samples: u64,
    bytes: u64,
    stalls: Stalls,
    /// The time of the last delivery since `began`.
    last: Duration,
}

impl Record {
    /// A record that begins at `now`, when the first batch is requested; the loader's window has
    /// `window_bytes`.
    pub(super) fn new(now: Instant, options: &LoaderOptions, window_bytes: usize) -> Record {
        let trace = options.trace.clone();
        Record {
            began: trace.as_ref().map_or(now, |trace| trace.began(now)),
            timeline: Timeline::new(),
            trace,
            window_bytes,
            samples: 0,
            bytes: 0,
            stalls: Stalls::default(),
            last: Duration::ZERO,
        }
    }

    /// Records a batch of `epoch` that was requested at `asked`. `sums` are the totals of the run including
    /// this batch; `places` is called only now and then.
    pub(super) fn delivered(
        &mut self,
        asked: Instant,
        epoch: u64,
        sums: &LoaderStats,
        places: impl FnOnce() -> PlaceBytes,
    ) {
        let at = Instant::now().saturating_duration_since(self.began);
        let asked = asked.saturating_duration_since(self.began);
        let stalls = sums.stalls.since(&self.stalls);
        let samples = sums.samples - self.samples;
        let bytes = sums.sample_bytes - self.bytes;
        (self.samples, self.bytes, self.stalls) = (sums.samples, sums.sample_bytes, sums.stalls);
        if self.timeline.is_due(at, epoch) {
            self.timeline.places(places());
        }
        self.timeline.batch(&Delivered { asked, at, epoch, samples, bytes, stalls });
        if let Some(trace) = &self.trace {
            // Calls of several threads may overlap, but events on one track of the trace must not.
            let begin = asked.clamp(self.last, at.max(self.last));
            let len = at.saturating_sub(begin);
            let stalls = if stalls.total() > len { stalls.scaled(len) } else { stalls };
            trace.consumer(Event {
                begin,
                len,
                what: What::Next { epoch, samples, bytes, stalls },
            });
        }
        self.last = at.max(self.last);
    }
}
