//! A histogram that one thread writes while others read it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::Histogram;

/// A [`Histogram`] with one writing thread and any number of readers.
///
/// Recording costs two plain additions, without an atomic read-modify-write. Two writers at once could lose
/// durations, so each recorder belongs to one poller or queue pair.
#[derive(Debug)]
pub struct Recorder {
    counts: [AtomicU64; Histogram::BUCKETS],
    sum_ns: AtomicU64,
}

impl Default for Recorder {
    fn default() -> Recorder {
        Recorder { counts: [const { AtomicU64::new(0) }; _], sum_ns: AtomicU64::new(0) }
    }
}

impl Recorder {
    /// Counts one duration.
    #[inline]
    pub fn record(&self, duration: Duration) {
        // 64 bits hold 584 years in nanoseconds.
        let duration_ns = duration.as_nanos() as u64;
        add(&self.counts[Histogram::bucket_of(duration_ns)], 1);
        add(&self.sum_ns, duration_ns);
    }

    /// The durations recorded so far.
    pub fn read(&self) -> Histogram {
        let load = |value: &AtomicU64| value.load(Ordering::Relaxed);
        Histogram::from_parts(self.counts.each_ref().map(load), load(&self.sum_ns))
    }
}

#[inline]
fn add(value: &AtomicU64, more: u64) {
    value.store(value.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_thread_records_another_reads() {
        let recorder = Recorder::default();
        std::thread::scope(|scope| {
            let work = || (0..1000).for_each(|_| recorder.record(Duration::from_micros(3)));
            scope.spawn(work).join().expect("it does not panic");
        });
        let read = recorder.read();
        assert_eq!((read.count(), read.sum()), (1000, Duration::from_millis(3)));
    }
}
