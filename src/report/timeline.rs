//! A loader's deliveries and waits over the course of a run, by cause, in bounded memory.
//!
//! The run is divided into buckets of equal length. When all buckets are in use, pairs of neighbours are
//! merged. So the buckets always cover the whole run, and from the first merge on at least half of them are in
//! use.

use std::ops::Range;
use std::time::Duration;

use serde::{Serialize, Serializer};

use super::stalls::{Stalls, nanos};
use crate::metrics::{Histogram, Place, PlaceBytes};

/// Counters of one part of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Counts {
    /// Batches delivered.
    pub batches: u64,
    /// Samples of these batches.
    pub samples: u64,
    /// Bytes of these samples.
    pub bytes: u64,
    /// The consumer's own time, between its calls.
    #[serde(rename = "consumer_s", serialize_with = "seconds")]
    pub consumer: Duration,
    /// Time for which the consumer waited, by cause.
    #[serde(rename = "stalls_s")]
    pub stalls: Stalls,
    /// The rest of the time inside calls: the hand-over of batches that were ready.
    #[serde(rename = "handing_s", serialize_with = "seconds")]
    pub handing: Duration,
    /// Bytes read during this part, by the place that they came from.
    #[serde(rename = "read_bytes")]
    pub places: PlaceBytes,
}

impl Counts {
    /// The whole time: the consumer's own, and its calls'.
    pub fn time(&self) -> Duration {
        self.consumer + self.stalls.total() + self.handing
    }

    /// Samples a second.
    pub(crate) fn samples_per_s(&self) -> f64 {
        let seconds = self.time().as_secs_f64();
        if seconds > 0.0 { self.samples as f64 / seconds } else { 0.0 }
    }

    pub(super) fn plus(&self, other: &Counts) -> Counts {
        Counts {
            batches: self.batches + other.batches,
            samples: self.samples + other.samples,
            bytes: self.bytes + other.bytes,
            consumer: self.consumer + other.consumer,
            stalls: self.stalls.plus(&other.stalls),
            handing: self.handing + other.handing,
            places: self.places.plus(&other.places),
        }
    }
}

/// A delivered batch. Times count from the start of the run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Delivered {
    /// Time when the consumer asked for the batch.
    pub(crate) asked: Duration,
    /// Time when the consumer received the batch.
    pub(crate) at: Duration,
    /// Epoch of the batch.
    pub(crate) epoch: u64,
    /// Samples of the batch.
    pub(crate) samples: u64,
    /// Bytes of the samples.
    pub(crate) bytes: u64,
    /// The consumer's waits since it received the batch before.
    pub(crate) stalls: Stalls,
}

/// An epoch, or the part of it that was read.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Epoch {
    /// Number of the epoch.
    pub epoch: u64,
    /// Time of the last delivery before the epoch, from the start of the run.
    #[serde(rename = "begin_s", serialize_with = "seconds")]
    pub begin: Duration,
    /// Counters of the epoch.
    #[serde(flatten)]
    pub counts: Counts,
}

/// The course of a run over time. Times count from the start of the run.
#[derive(Debug, Clone)]
pub struct Timeline {
    /// Length of a bucket.
    width_ns: u64,
    /// Counters of consecutive buckets from the start of the run.
    buckets: Vec<Counts>,
    /// The first and the last epochs.
    epochs: Vec<Epoch>,
    /// The number of epochs between them that are left out.
    epochs_left_out: u64,
    /// Counters of the whole run.
    total: Counts,
    /// Durations of the calls for batches.
    waits: Histogram,
    /// Time of the last delivery.
    end_ns: u64,
    /// Time of the last call of [`Timeline::record_places`], and its argument.
    placed_ns: u64,
    placed: PlaceBytes,
}

impl Timeline {
    /// The most buckets.
    pub(crate) const MAX_BUCKETS: usize = 1024;

    /// The most epochs that are listed; a longer run lists its first 8 and its last 192.
    pub(crate) const MAX_EPOCHS: usize = 200;

    /// A timeline without deliveries.
    pub(crate) fn new() -> Timeline {
        Timeline {
            width_ns: FIRST_WIDTH_NS,
            buckets: Vec::with_capacity(Timeline::MAX_BUCKETS),
            epochs: Vec::with_capacity(Timeline::MAX_EPOCHS),
            epochs_left_out: 0,
            total: Counts::default(),
            waits: Histogram::new(),
            end_ns: 0,
            placed_ns: 0,
            placed: PlaceBytes::default(),
        }
    }

    /// Returns whether [`Timeline::record_places`] should be called before the next batch, which belongs to `epoch`
    /// and came at `at`.
    pub(crate) fn is_due(&self, at: Duration, epoch: u64) -> bool {
        let is_new_epoch = self.epochs.last().is_some_and(|last| last.epoch != epoch);
        is_new_epoch || nanos(at) / self.width_ns != self.placed_ns / self.width_ns
    }

    /// Records the bytes read so far, by place; spreads the increase over the time since the last call.
    pub(crate) fn record_places(&mut self, now: PlaceBytes) {
        let range = self.placed_ns..self.end_ns;
        for place in Place::ALL {
            let more = now.of(place).saturating_sub(self.placed.of(place));
            if more == 0 {
                continue;
            }
            self.total.places.add(place, more);
            if let Some(epoch) = self.epochs.last_mut() {
                epoch.counts.places.add(place, more);
            }
            self.spread(range.clone(), more, |counts, bytes| counts.places.add(place, bytes));
        }
        (self.placed, self.placed_ns) = (now, self.end_ns);
    }

    /// Counts a delivered batch.
    pub(crate) fn batch(&mut self, batch: &Delivered) {
        let begin_ns = self.end_ns;
        let at_ns = nanos(batch.at).max(begin_ns);
        let waited_ns = nanos(batch.stalls.total()).min(at_ns - begin_ns);
        let asked_ns = nanos(batch.asked).clamp(begin_ns, at_ns - waited_ns);
        let mut added = Counts {
            batches: 1,
            samples: batch.samples,
            bytes: batch.bytes,
            consumer: Duration::from_nanos(asked_ns - begin_ns),
            stalls: batch.stalls.scaled(Duration::from_nanos(waited_ns)),
            handing: Duration::from_nanos(at_ns - asked_ns - waited_ns),
            places: PlaceBytes::default(),
        };
        self.waits.record(Duration::from_nanos(at_ns - asked_ns));
        self.total = self.total.plus(&added);
        let epoch = self.epoch(batch.epoch, begin_ns);
        epoch.counts = epoch.counts.plus(&added);
        self.end_ns = at_ns;
        let index = self.bucket_at(at_ns);
        if self.bucket_at(begin_ns) != index {
            self.spread_times(begin_ns..asked_ns, asked_ns..at_ns, &added);
            (added.consumer, added.handing) = (Duration::ZERO, Duration::ZERO);
            added.stalls = Stalls::default();
        }
        let index = self.bucket_at(at_ns);
        self.buckets[index] = self.buckets[index].plus(&added);
    }

    /// The counters of the whole run.
    pub fn total(&self) -> &Counts {
        &self.total
    }

    /// Time from the start of the run to the last delivery.
    pub fn time(&self) -> Duration {
        Duration::from_nanos(self.end_ns)
    }

    /// The buckets, each with its start and its length.
    pub(crate) fn buckets(&self) -> impl ExactSizeIterator<Item = (Duration, Duration, &Counts)> {
        let width = self.width_ns;
        let end = self.end_ns;
        self.buckets.iter().enumerate().map(move |(index, counts)| {
            let begin = index as u64 * width;
            let len = width.min(end.saturating_sub(begin));
            (Duration::from_nanos(begin), Duration::from_nanos(len), counts)
        })
    }

    /// The epochs, in the order in which they were read.
    pub fn epochs(&self) -> &[Epoch] {
        &self.epochs
    }

    /// Number of epochs that are left out after the first ones.
    pub(crate) fn epochs_left_out(&self) -> u64 {
        self.epochs_left_out
    }

    /// Durations of the calls for batches, each with its waits and its hand-over.
    pub(crate) fn waits(&self) -> &Histogram {
        &self.waits
    }

    /// Counts of this epoch, which is added if it is new.
    fn epoch(&mut self, epoch: u64, begin_ns: u64) -> &mut Epoch {
        if self.epochs.last().is_none_or(|last| last.epoch != epoch) {
            if self.epochs.len() == Timeline::MAX_EPOCHS {
                self.epochs.remove(FIRST_EPOCHS);
                self.epochs_left_out += 1;
            }
            let begin = Duration::from_nanos(begin_ns);
            let counts = Counts::default();
            self.epochs.push(Epoch { epoch, begin, counts });
        }
        self.epochs.last_mut().expect("pushed above if there was none")
    }

    /// The index of the bucket for this time; merges neighbours until it exists.
    fn bucket_at(&mut self, at_ns: u64) -> usize {
        while at_ns / self.width_ns >= Timeline::MAX_BUCKETS as u64 {
            self.merge();
        }
        let index = (at_ns / self.width_ns) as usize;
        if index >= self.buckets.len() {
            self.buckets.resize(index + 1, Counts::default());
        }
        index
    }

    /// Merges pairs of neighbouring buckets.
    fn merge(&mut self) {
        let len = self.buckets.len();
        for index in 0..len.div_ceil(2) {
            let second = self.buckets.get(2 * index + 1).copied().unwrap_or_default();
            self.buckets[index] = self.buckets[2 * index].plus(&second);
        }
        self.buckets.truncate(len.div_ceil(2));
        self.width_ns *= 2;
    }

    /// Spreads the times of a batch over the buckets: the consumer's own time, and the call.
    fn spread_times(&mut self, consumer: Range<u64>, call: Range<u64>, added: &Counts) {
        let own_ns = nanos(added.consumer);
        self.spread(consumer, own_ns, |counts, ns| counts.consumer += Duration::from_nanos(ns));
        let stalls = added.stalls;
        let waited_ns = nanos(added.stalls.total());
        self.spread(call.clone(), waited_ns, |counts, ns| {
            counts.stalls = counts.stalls.plus(&stalls.scaled(Duration::from_nanos(ns)));
        });
        let handing_ns = nanos(added.handing);
        self.spread(call, handing_ns, |counts, ns| counts.handing += Duration::from_nanos(ns));
    }

    /// Divides `amount` among the buckets of `range`, in ns, in proportion to each bucket's part of the range. `add`
    /// adds a part to a bucket.
    fn spread(&mut self, range: Range<u64>, amount: u64, mut add: impl FnMut(&mut Counts, u64)) {
        if amount == 0 {
            return;
        }
        let last = self.bucket_at(range.end); // must come first, since this call may merge buckets
        let first = self.bucket_at(range.start);
        let len = (range.end - range.start).max(1);
        let mut given = 0;
        for index in first..=last {
            let end = ((index as u64 + 1) * self.width_ns).min(range.end) - range.start;
            let until = if index == last {
                amount
            } else {
                (u128::from(amount) * u128::from(end) / u128::from(len)) as u64
            };
            add(&mut self.buckets[index], until - given);
            given = until;
        }
    }
}

/// A duration as seconds.
fn seconds<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_secs_f64())
}

/// Initial width of a bucket: 4 ms.
const FIRST_WIDTH_NS: u64 = 4_000_000;

/// The first epochs, which are never left out.
const FIRST_EPOCHS: usize = 8;

#[cfg(test)]
mod tests {
    use super::super::stalls::Cause;
    use super::*;

    fn stalls(parts: &[(Cause, u64)]) -> Stalls {
        let mut stalls = Stalls::default();
        parts.iter().for_each(|(cause, us)| stalls.add(*cause, Duration::from_micros(*us)));
        stalls
    }

    fn delivered(asked_us: u64, at_us: u64, epoch: u64, stalls: Stalls) -> Delivered {
        let asked = Duration::from_micros(asked_us);
        let at = Duration::from_micros(at_us);
        Delivered { asked, at, epoch, samples: 10, bytes: 1000, stalls }
    }

    /// Checks that the sums over all buckets equal the totals of the run.
    fn check(timeline: &Timeline) {
        let sum = timeline.buckets().fold(Counts::default(), |sum, (.., c)| sum.plus(c));
        let total = timeline.total();
        assert_eq!(
            (sum.batches, sum.samples, sum.bytes),
            (total.batches, total.samples, total.bytes)
        );
        assert_eq!((sum.time(), sum.places), (total.time(), total.places));
        assert_eq!(total.time(), timeline.time(), "each moment is somebody's");
        assert!(timeline.buckets().len() <= Timeline::MAX_BUCKETS);
    }

    #[test]
    fn a_long_wait_is_seen_where_it_was() {
        let mut timeline = Timeline::new();
        timeline.batch(&delivered(1000, 2000, 0, stalls(&[(Cause::Start, 900)])));
        let wait = stalls(&[(Cause::Network, 30_000), (Cause::Window, 10_000)]);
        timeline.batch(&delivered(10_000, 50_000, 0, wait));
        check(&timeline);
        let seen: Vec<Counts> = timeline.buckets().map(|(.., counts)| *counts).collect();
        assert_eq!(seen.len(), 13, "of 4 ms each");
        assert_eq!(seen[0].handing, Duration::from_micros(100));
        assert_eq!(seen[1].consumer, Duration::from_millis(4));
        assert_eq!(seen[2].consumer, Duration::from_millis(2));
        assert_eq!(seen[5].stalls.of(Cause::Network), Duration::from_millis(3));
        assert_eq!(seen[5].stalls.of(Cause::Window), Duration::from_millis(1));
        assert_eq!((seen[5].batches, seen[12].batches), (0, 1));
        assert_eq!(
            timeline.buckets().last().map(|(_, len, _)| len),
            Some(Duration::from_millis(2))
        );
    }

    #[test]
    fn bytes_are_of_the_time_and_the_epoch_in_which_they_came() {
        let mut timeline = Timeline::new();
        let places = |origin, memory| {
            let mut places = PlaceBytes::default();
            places.add(Place::Origin, origin);
            places.add(Place::Memory, memory);
            places
        };
        for (epoch, at_us) in [(0, 4000), (0, 8000), (1, 12_000), (1, 16_000)] {
            if timeline.is_due(Duration::from_micros(at_us), epoch) {
                timeline.record_places(places(if epoch == 0 { 0 } else { 800 }, 0));
            }
            timeline.batch(&delivered(at_us, at_us, epoch, Stalls::default()));
        }
        timeline.record_places(places(800, 77));
        check(&timeline);
        let epochs: Vec<_> = timeline.epochs().iter().map(|epoch| epoch.counts.places).collect();
        assert_eq!(epochs, [places(800, 0), places(0, 77)]);
        assert_eq!(timeline.epochs()[1].begin, Duration::from_millis(8));
    }

    #[test]
    fn a_run_of_any_length_has_a_bounded_timeline() {
        let mut timeline = Timeline::new();
        let mut at = 0;
        for number in 0..1_000_000_u64 {
            at += 3000 + number % 7;
            timeline.batch(&delivered(at - 900, at, number / 1000, stalls(&[(Cause::Order, 850)])));
        }
        check(&timeline);
        assert!(timeline.buckets().len() > Timeline::MAX_BUCKETS / 2);
        assert_eq!(timeline.waits().count(), 1_000_000);
        assert_eq!(timeline.epochs().len(), Timeline::MAX_EPOCHS);
        assert_eq!(timeline.epochs_left_out(), 1000 - Timeline::MAX_EPOCHS as u64);
        let numbers: Vec<u64> = timeline.epochs().iter().map(|epoch| epoch.epoch).collect();
        assert_eq!((numbers[7], numbers[8], numbers[199]), (7, 808, 999));
        // A batch that is years late.
        timeline.batch(&delivered(at, at + (1 << 50), 5, Stalls::default()));
        check(&timeline);
    }

    #[test]
    fn times_that_contradict_each_other_add_up_nevertheless() {
        let mut timeline = Timeline::new();
        timeline.batch(&delivered(5000, 2000, 0, stalls(&[(Cause::Network, 9000)])));
        timeline.batch(&delivered(0, 1000, 0, stalls(&[(Cause::Copy, 1)])));
        check(&timeline);
        assert_eq!(timeline.time(), Duration::from_millis(2));
    }
}
