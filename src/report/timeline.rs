//! A loader's deliveries and waits over the course of a run, by cause, in bounded memory.
//!
//! The run is divided into buckets of equal length. When all buckets are in use, pairs of neighbours are
//! merged. So the buckets always cover the whole run, and from the first merge on at least half of them are in
//! use.
//!
//! Also writes the events of a run in Chrome's trace format, for <https://ui.perfetto.dev> and `chrome://tracing`.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use serde_json::{Value, json};

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
    /// The rest of the calls: handing over batches that were ready.
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

/// The course of a run over time.
#[derive(Debug, Clone)]
pub struct Timeline {
    width_ns: u64,
    buckets: Vec<Counts>,
    epochs: Vec<Epoch>,
    epochs_left_out: u64,
    total: Counts,
    waits: Histogram,
    /// Time of the last delivery.
    end_ns: u64,
    /// Time of the last call of [`Timeline::places`], and its argument.
    placed_ns: u64,
    placed: PlaceBytes,
}

impl Timeline {
    /// The most buckets.
    pub(crate) const MAX_BUCKETS: usize = 1024;

    /// The most epochs that are listed; of a longer run, the first and the last ones.
    pub(crate) const MAX_EPOCHS: usize = 200;

    /// Nothing has happened yet.
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

    /// Returns whether [`Timeline::places`] should be called before the next batch, which belongs to `epoch`
    /// and came at `at`.
    pub(crate) fn is_due(&self, at: Duration, epoch: u64) -> bool {
        let is_new_epoch = self.epochs.last().is_some_and(|last| last.epoch != epoch);
        is_new_epoch || nanos(at) / self.width_ns != self.placed_ns / self.width_ns
    }

    /// Takes the bytes read so far, by place. The increase since the last call is spread over the time since
    /// then.
    pub(crate) fn places(&mut self, now: PlaceBytes) {
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

    /// A batch was delivered.
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

    /// Durations of the calls for batches, each with its waits and its handing over.
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
        self.epochs.last_mut().expect("it was pushed just now, or is there")
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

    /// Divides `amount` among the buckets of `range`, in proportion to each bucket's part of the range.
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

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A duration as seconds.
fn seconds<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_secs_f64())
}

/// The reason why no batch was ready when the consumer asked for one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The loader was starting: it connected, met its peers, or allocated the window.
    Start,
    /// The order was being computed, and no read was outstanding.
    Order,
    /// The window was full, with batches that the consumer holds or with chunks that later batches need.
    Window,
    /// Reads were outstanding, at a target, a drive, a tier or a peer.
    Network,
    /// Reads had arrived, and their checksums were still being computed.
    Checksum,
    /// The batch was being gathered into one buffer.
    Copy,
}

impl Cause {
    /// The number of causes.
    pub(crate) const COUNT: usize = 6;

    /// All causes, in the order in which a batch meets them.
    pub const ALL: [Cause; Cause::COUNT] =
        [Cause::Start, Cause::Order, Cause::Window, Cause::Network, Cause::Checksum, Cause::Copy];

    /// The name in metrics and statistics.
    pub const fn name(self) -> &'static str {
        NAMES[self as usize].0
    }

    /// A noun phrase for the awaited thing, to end a sentence with.
    pub(super) const fn noun(self) -> &'static str {
        NAMES[self as usize].1
    }
}

/// Name and noun phrase of each cause, in their order.
const NAMES: [(&str, &str); Cause::COUNT] = [
    ("start", "the loader to start"),
    ("order", "the order"),
    ("window", "room in the window"),
    ("network", "reads"),
    ("checksum", "checksums"),
    ("copy", "copies into one buffer"),
];

/// The time that a consumer has waited, by cause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stalls {
    ns: [u64; Cause::COUNT],
}

impl Stalls {
    /// Adds a wait.
    pub(crate) fn add(&mut self, cause: Cause, waited: Duration) {
        let waited_ns = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        let sum = &mut self.ns[cause as usize];
        *sum = sum.saturating_add(waited_ns);
    }

    /// Adds a wait, divided in proportion to `shares`, one for each cause; `false` if all shares are 0.
    pub(crate) fn divide(&mut self, waited: Duration, shares: &[u64; Cause::COUNT]) -> bool {
        let waited_ns = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        let sum: u128 = shares.iter().map(|&share| u128::from(share)).sum();
        if sum == 0 {
            return false;
        }
        // Each part is a difference of rounded running totals, so that the parts add up to the whole.
        let mut before = 0_u128;
        let mut given = 0_u64;
        for (total, &share) in self.ns.iter_mut().zip(shares) {
            before += u128::from(share);
            let end = (u128::from(waited_ns) * before / sum) as u64;
            *total = total.saturating_add(end - given);
            given = end;
        }
        true
    }

    /// The time waited for `cause`.
    pub fn of(&self, cause: Cause) -> Duration {
        Duration::from_nanos(self.ns[cause as usize])
    }

    /// The time of all causes.
    pub fn total(&self) -> Duration {
        Duration::from_nanos(self.ns.iter().fold(0, |sum, &ns| sum.saturating_add(ns)))
    }

    /// Each cause with its time.
    pub fn each(&self) -> impl Iterator<Item = (Cause, Duration)> + '_ {
        Cause::ALL.into_iter().map(|cause| (cause, self.of(cause)))
    }

    /// The sum of both.
    #[must_use]
    pub(crate) fn plus(mut self, other: &Stalls) -> Stalls {
        for (sum, more) in self.ns.iter_mut().zip(&other.ns) {
            *sum = sum.saturating_add(*more);
        }
        self
    }

    /// Stalls of `total` in all, in the same proportions.
    #[must_use]
    pub(crate) fn scaled(&self, total: Duration) -> Stalls {
        let mut scaled = Stalls::default();
        scaled.divide(total, &self.ns);
        scaled
    }

    /// The waits since `earlier`, an earlier value of the same sums.
    #[must_use]
    pub(crate) fn since(mut self, earlier: &Stalls) -> Stalls {
        for (sum, before) in self.ns.iter_mut().zip(&earlier.ns) {
            *sum = sum.saturating_sub(*before);
        }
        self
    }
}

/// A map from the name of each cause to seconds.
impl Serialize for Stalls {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(Cause::COUNT))?;
        for (cause, waited) in self.each() {
            map.serialize_entry(cause.name(), &waited.as_secs_f64())?;
        }
        map.end()
    }
}

/// A span of time on one of the two threads, or a count at one moment, `begin`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Event {
    /// Start, counted from the start of the run.
    pub(crate) begin: Duration,
    /// Duration.
    pub(crate) len: Duration,
    /// The kind of event.
    pub(crate) what: What,
}

/// The kind of an event.
#[derive(Debug, Clone, Copy)]
pub(crate) enum What {
    /// A call of the consumer for a batch; its waits lie within.
    Next {
        /// The epoch of the batch.
        epoch: u64,
        /// Samples of the batch.
        samples: u64,
        /// Bytes of the samples.
        bytes: u64,
        /// The waits within the call.
        stalls: Stalls,
    },
    /// A pass of the poller that started reads: a burst.
    Burst {
        /// Fetches started, of one or more commands each.
        begun: u64,
    },
    /// A pass of the poller that verified or planned.
    Work,
    /// The poller waited for completions.
    Sleep {
        /// The cause of the wait.
        cause: Cause,
    },
    /// Fetches outstanding after a pass.
    InFlight {
        /// Number of fetches.
        fetches: u64,
    },
}

/// The newest events of a thread.
#[derive(Debug, Clone, Default)]
pub(crate) struct Events {
    kept: VecDeque<Event>,
    dropped: u64,
}

impl Events {
    /// The most events that are kept; older events are dropped.
    pub(crate) const MAX: usize = 1 << 16;

    /// Adds an event; events come in the order of their start.
    pub(crate) fn push(&mut self, event: Event) {
        if self.kept.len() == Events::MAX {
            self.kept.pop_front();
            self.dropped += 1;
        }
        self.kept.push_back(event);
    }

    /// The event that was added last.
    pub(crate) fn last_mut(&mut self) -> Option<&mut Event> {
        self.kept.back_mut()
    }

    /// The events, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Event> {
        self.kept.iter()
    }
}

/// The events of a run as a JSON object. Times are microseconds from the start of the run.
pub(crate) fn to_json(consumer: &Events, poller: &Events, timeline: Option<&Timeline>) -> String {
    let mut lines = Lines(Vec::new());
    lines.name("process_name", CONSUMER, "dlfs loader");
    lines.name("thread_name", CONSUMER, "consumer: calls for batches");
    lines.name("thread_name", POLLER, "poller: reads ahead");
    consumer.iter().for_each(|event| lines.event(CONSUMER, event));
    poller.iter().for_each(|event| lines.event(POLLER, event));
    if let Some(timeline) = timeline {
        lines.counters(timeline);
    }
    let other = json!({
        "producer": format!("dlfs {}", env!("CARGO_PKG_VERSION")),
        "dropped_events": (consumer.dropped + poller.dropped).to_string(),
        "kept": format!("the newest {} events of each thread", Events::MAX),
    });
    let events = lines.0.join(",\n");
    format!("{{\"displayTimeUnit\":\"ms\",\"otherData\":{other},\"traceEvents\":[\n{events}\n]}}\n")
}

/// Events as JSON, one per line.
struct Lines(Vec<String>);

impl Lines {
    fn name(&mut self, what: &str, thread: u32, name: &str) {
        self.push(
            json!({"ph": "M", "name": what, "pid": 1, "tid": thread, "args": {"name": name}}),
        );
    }

    fn event(&mut self, thread: u32, event: &Event) {
        let Event { begin, len, what } = *event;
        match what {
            What::Next { epoch, samples, bytes, stalls } => {
                let args = json!({"epoch": epoch, "samples": samples, "bytes": bytes});
                self.slice(thread, "next batch", (begin, len), args);
                // Only the sum of each cause is known, so its waits are drawn as one, after those of the cause before.
                let mut begin = begin;
                for (cause, waited) in stalls.each().filter(|(_, waited)| !waited.is_zero()) {
                    self.slice(
                        thread,
                        &format!("wait: {}", cause.name()),
                        (begin, waited),
                        json!({}),
                    );
                    begin += waited;
                }
            }
            What::Burst { begun } => {
                self.slice(thread, "burst", (begin, len), json!({"fetches": begun}));
            }
            What::Work => self.slice(thread, "verify and plan", (begin, len), json!({})),
            What::Sleep { cause } => {
                self.slice(thread, "sleep", (begin, len), json!({"cause": cause.name()}));
            }
            What::InFlight { fetches } => {
                self.counter(thread, "fetches in flight", begin, json!({"fetches": fetches}));
            }
        }
    }

    fn counters(&mut self, timeline: &Timeline) {
        for (begin, len, counts) in timeline.buckets() {
            let seconds = len.as_secs_f64().max(1e-9);
            let rate = (counts.samples as f64 / seconds).round();
            self.counter(CONSUMER, "samples/s", begin, json!({"samples": rate}));
            let rates = counts.places.each().map(|(place, bytes)| {
                (place.name().to_owned(), json!((bytes as f64 / seconds / 1e3).round() / 1e3))
            });
            self.counter(CONSUMER, "MB/s read, by place", begin, Value::Object(rates.collect()));
        }
    }

    fn slice(&mut self, thread: u32, name: &str, (begin, len): (Duration, Duration), args: Value) {
        self.push(json!({
            "ph": "X", "cat": "dlfs", "name": name, "pid": 1, "tid": thread, "ts": micros(begin),
            "dur": micros(len), "args": args,
        }));
    }

    fn counter(&mut self, thread: u32, name: &str, at: Duration, args: Value) {
        self.push(json!({
            "ph": "C", "cat": "dlfs", "name": name, "pid": 1, "tid": thread, "ts": micros(at), "args": args,
        }));
    }

    fn push(&mut self, event: Value) {
        self.0.push(event.to_string());
    }
}

/// Microseconds with three decimals, the resolution of the clock.
fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

/// Initial width of a bucket: 4 ms.
const FIRST_WIDTH_NS: u64 = 4_000_000;

/// The first epochs, which are never left out.
const FIRST_EPOCHS: usize = 8;

/// Numbers of the threads in the trace.
const CONSUMER: u32 = 1;
const POLLER: u32 = 2;

#[cfg(test)]
mod tests {
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
                timeline.places(places(if epoch == 0 { 0 } else { 800 }, 0));
            }
            timeline.batch(&delivered(at_us, at_us, epoch, Stalls::default()));
        }
        timeline.places(places(800, 77));
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

    #[test]
    fn parts_of_a_wait_add_up_to_it_whatever_the_shares() {
        let mut stalls = Stalls::default();
        let waited = Duration::from_nanos(1_000_003);
        for shares in [[1, 1, 1, 0, 0, 0], [0, 7, 0, u64::MAX, 3, 1], [0, 0, 0, 0, 0, 1]] {
            let before = stalls;
            assert!(stalls.divide(waited, &shares));
            let added = stalls.since(&before);
            assert_eq!(added.total(), waited);
            for (cause, part) in added.each() {
                assert!(shares[cause as usize] > 0 || part == Duration::ZERO, "{cause:?} {part:?}");
            }
        }
        assert!(!stalls.divide(waited, &[0; Cause::COUNT]), "nobody has a share");
        assert_eq!(stalls.total(), 3 * waited);
    }

    #[test]
    fn causes_have_their_own_places_and_names() {
        let mut stalls = Stalls::default();
        for (nth, cause) in (1..).zip(Cause::ALL) {
            assert_eq!(cause as usize + 1, nth as usize);
            stalls.add(cause, Duration::from_secs(nth));
        }
        let json = serde_json::to_string(&stalls).unwrap();
        let expected =
            r#"{"start":1.0,"order":2.0,"window":3.0,"network":4.0,"checksum":5.0,"copy":6.0}"#;
        assert_eq!(json, expected);
        assert_eq!(stalls.plus(&stalls).since(&stalls), stalls);
    }

    fn burst(at_us: u64) -> Event {
        let begin = Duration::from_micros(at_us);
        let len = Duration::from_micros(1);
        Event { begin, len, what: What::Burst { begun: at_us } }
    }

    #[test]
    fn the_newest_events_are_kept_in_order_and_the_others_counted() {
        let mut events = Events::default();
        assert!(events.last_mut().is_none());
        for at in 0..Events::MAX as u64 + 100 {
            events.push(burst(at));
            assert_eq!(events.last_mut().map(|event| event.begin), Some(burst(at).begin));
        }
        assert_eq!(events.dropped, 100);
        let begins: Vec<u128> = events.iter().map(|event| event.begin.as_micros()).collect();
        let expected: Vec<u128> = (100..100 + Events::MAX as u128).collect();
        assert_eq!(begins, expected);
    }

    #[test]
    fn the_text_is_json_also_without_an_event_and_says_what_was_dropped() {
        let empty = to_json(&Events::default(), &Events::default(), None);
        let parsed: serde_json::Value = serde_json::from_str(&empty).unwrap();
        assert_eq!(parsed["otherData"]["dropped_events"], "0");
        assert_eq!(parsed["traceEvents"].as_array().map(Vec::len), Some(3), "names alone");
        let mut poller = Events::default();
        (0..Events::MAX as u64 + 5).for_each(|at| poller.push(burst(at)));
        let mut timeline = Timeline::new();
        let mut stalls = Stalls::default();
        stalls.add(Cause::Network, Duration::from_micros(3));
        let asked = Duration::from_micros(2);
        let at = Duration::from_micros(9);
        timeline.batch(&Delivered { asked, at, epoch: 0, samples: 1, bytes: 1, stalls });
        let text = to_json(&Events::default(), &poller, Some(&timeline));
        let parsed: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(parsed["otherData"]["dropped_events"], "5");
        assert!(text.len() < 20 << 20, "{} bytes", text.len());
    }
}
