//! Decides how many requests are in flight, which are retried, and which ranges come next. Pure.
//!
//! Times and random numbers are arguments. `fetch.rs` and `reader.rs` carry out the decisions. The window of requests
//! in flight grows by one at a time, and halves when the store gets too many requests. A second request for the same
//! bytes hedges a request that is unusually slow.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Number of requests that may be in flight at once.
///
/// A store that gets too many requests answers 503 or 429; the window then halves. Otherwise, while it is
/// full, the window grows by one per second.
#[derive(Debug)]
pub(crate) struct Window {
    size: usize,
    /// Time of the last change.
    changed: Instant,
    /// Time of the last halving.
    halved: Option<Instant>,
}

impl Window {
    /// The initial window.
    pub(crate) fn new(now: Instant) -> Window {
        Window { size: FIRST, changed: now, halved: None }
    }

    /// Number of requests that may be in flight.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Notes a successful request; `is_full` tells whether as many requests were in flight as are allowed.
    pub(crate) fn succeeded(&mut self, now: Instant, is_full: bool) {
        if is_full && now.saturating_duration_since(self.changed) >= STEP {
            self.size = (self.size + 1).min(MOST);
            self.changed = now;
        }
    }

    /// Notes that the store refused a request, sent at `sent`, because there were too many.
    ///
    /// Ignores requests sent before the last halving: they do not show that the new size is too large.
    pub(crate) fn throttled(&mut self, now: Instant, sent: Instant) {
        if self.halved.is_none_or(|halved| sent >= halved) {
            self.size = (self.size / 2).max(1);
            self.changed = now;
            self.halved = Some(now);
        }
    }
}

/// Limits for retrying a failed request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Patience {
    /// Maximum time since the first failure; after that, the request is given up.
    pub(crate) total: Duration,
    /// Cap on the pause that a store can ask for.
    pub(crate) longest: Duration,
}

/// The failed attempts of one request.
#[derive(Debug, Default)]
pub(crate) struct Retry {
    /// Number of failures so far.
    pub(crate) failures: u32,
    /// Time of the first failure.
    first: Option<Instant>,
}

impl Retry {
    /// Notes a failure. Returns the pause before the next attempt; `None`: give up.
    ///
    /// The pause is the one that the store asks for (`after`, the header `Retry-After`), plus a random time
    /// from zero to an exponentially growing limit ("full jitter"). So requests that failed together are not
    /// retried together. `random` is any number.
    pub(crate) fn failed(
        &mut self,
        now: Instant,
        after: Option<Duration>,
        random: u64,
        patience: &Patience,
    ) -> Option<Duration> {
        let first = *self.first.get_or_insert(now);
        let limit = BASE.saturating_mul(1 << self.failures.min(16)).min(LONGEST);
        self.failures += 1;
        let jitter = Duration::from_micros(random % (limit.as_micros() as u64 + 1)); // at most LONGEST
        let pause = after.unwrap_or_default().min(patience.longest) + jitter;
        let elapsed = now.saturating_duration_since(first);
        (elapsed + pause <= patience.total).then_some(pause)
    }
}

/// Latencies of recent requests of similar size.
///
/// The slowest of a hundred requests holds up all that follow it in order. A second request, sent after
/// twice the 99th percentile, usually answers first. At most one request in fifty, and one more, is hedged,
/// which costs little.
#[derive(Debug, Default)]
pub(crate) struct Latencies {
    /// The last [`KEPT`] latencies, the oldest first.
    recent: VecDeque<Duration>,
    /// Number of successful requests.
    requests: u64,
    /// Number of hedged requests.
    hedges: u64,
}

impl Latencies {
    /// Notes a successful request that took `took`.
    pub(crate) fn succeeded(&mut self, took: Duration) {
        self.requests += 1;
        self.recent.push_back(took);
        if self.recent.len() > KEPT {
            self.recent.pop_front();
        }
    }

    /// Time from a request to the one that hedges it; `None` while too few latencies are known.
    pub(crate) fn hedge_after(&self) -> Option<Duration> {
        if self.recent.len() < KNOWN {
            return None;
        }
        let mut sorted = Vec::from(self.recent.clone());
        sorted.sort_unstable();
        let p99 = sorted[sorted.len() * 99 / 100];
        Some((p99 * 2).max(SOONEST))
    }

    /// Returns whether one more request may be hedged, and counts it if so.
    pub(crate) fn may_hedge(&mut self) -> bool {
        let may = self.hedges < 1 + self.requests / 50;
        self.hedges += u64::from(may);
        may
    }
}

/// A range of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObjectRange {
    /// The object's index in the list.
    pub(crate) object: usize,
    /// The bytes of the object.
    pub(crate) bytes: Range<u64>,
}

impl ObjectRange {
    pub(crate) fn len(&self) -> u64 {
        self.bytes.end - self.bytes.start
    }
}

/// Hands out the ranges of a list of objects in order, while the budget has room for their bytes.
#[derive(Debug)]
pub(crate) struct Ranges {
    /// Lengths of the objects from index `object` on.
    lens: VecDeque<u64>,
    /// Index of the object that has the next range.
    object: usize,
    /// The offset of the next range in this object.
    at: u64,
    /// Maximum length of a range.
    range_bytes: u64,
    /// Maximum bytes handed out at once.
    budget_bytes: u64,
    /// Bytes and number of the ranges handed out and not given back.
    held_bytes: u64,
    held: usize,
}

impl Ranges {
    /// Splits objects with these lengths into ranges of `range_bytes`; starts at offset `at` of the first
    /// object. At most `budget_bytes` are handed out at once, but always one range.
    pub(crate) fn new(
        lens: impl IntoIterator<Item = u64>,
        at: u64,
        range_bytes: u64,
        budget_bytes: u64,
    ) -> Ranges {
        let lens: VecDeque<u64> = lens.into_iter().collect();
        assert!(lens.front().is_none_or(|len| at <= *len), "a place within the object");
        Ranges { lens, object: 0, at, range_bytes, budget_bytes, held_bytes: 0, held: 0 }
    }

    /// The next range. `None`: all have been handed out, or the budget or [`MOST_HELD`] is reached and at
    /// least one range is held. Empty objects have no range.
    pub(crate) fn next(&mut self) -> Option<ObjectRange> {
        while *self.lens.front()? == self.at {
            self.skip_to(self.object + 1);
        }
        let len = (self.lens[0] - self.at).min(self.range_bytes);
        let is_full = self.held_bytes + len > self.budget_bytes || self.held == MOST_HELD;
        if is_full && self.held > 0 {
            return None;
        }
        let range = ObjectRange { object: self.object, bytes: self.at..self.at + len };
        self.at += len;
        self.held_bytes += len;
        self.held += 1;
        Some(range)
    }

    /// Gives back a range of `len` bytes.
    pub(crate) fn give_back(&mut self, len: u64) {
        self.held_bytes -= len;
        self.held -= 1;
    }

    /// Skips the remaining ranges of the objects before `object`.
    pub(crate) fn skip_to(&mut self, object: usize) {
        while self.object < object && self.lens.pop_front().is_some() {
            self.object += 1;
            self.at = 0;
        }
    }
}

/// Number of bytes to request ahead, at most `window_bytes`, from a store whose responses begin after
/// `delay`; `None`: the delay is not known yet.
///
/// Ranges in flight hide the delay. More ranges than that cost time: bytes that wait long for their turn
/// leave the CPU caches, and each further buffer is fresh memory. But ranges that share a link end at about
/// the same time, and then nothing arrives for one delay. So that this loss is small, the readahead covers
/// [`DELAYS`] delays at [`RATE`].
pub(crate) fn ahead(delay: Option<Duration>, range_bytes: u64, window_bytes: u64) -> u64 {
    let Some(delay) = delay else { return window_bytes };
    let bytes = (delay.as_secs_f64() * DELAYS * RATE) as u64; // saturates
    bytes.max(LEAST_BYTES).max(LEAST_RANGES.saturating_mul(range_bytes)).min(window_bytes)
}

/// Initial window: twice what 10 Gb/s need at 90 MB/s per connection.
const FIRST: usize = 32;

/// Maximum window: more than any network needs, and a bound on open sockets.
const MOST: usize = 512;

/// Minimum time between two growth steps.
const STEP: Duration = Duration::from_secs(1);

/// Limit of the random pause after the first failure. The limit doubles with each failure.
const BASE: Duration = Duration::from_millis(100);
/// Maximum of this limit.
const LONGEST: Duration = Duration::from_secs(10);

/// Number of remembered latencies.
const KEPT: usize = 128;
/// Number of latencies needed before hedging.
const KNOWN: usize = 16;
/// Minimum time before a request is hedged: hedging earlier is not worth a request.
const SOONEST: Duration = Duration::from_millis(500);

/// Maximum ranges handed out at once: small objects need many, and each range costs memory beside its bytes.
const MOST_HELD: usize = 1024;

/// Number of delays that the readahead covers: nothing arrives for at most one delay in this many.
const DELAYS: f64 = 20.0;
/// Bytes per second of a 10 Gb/s link.
const RATE: f64 = 1.25e9;
/// Minimum readahead in bytes and in ranges, within the reader's `window_bytes`.
const LEAST_BYTES: u64 = 32 << 20;
const LEAST_RANGES: u64 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_by_one_a_second_only_while_requests_wait() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut window = Window::new(start);
        window.succeeded(at(900), true);
        assert_eq!(window.size(), FIRST, "not yet");
        window.succeeded(at(1000), false);
        assert_eq!(window.size(), FIRST, "nothing waits");
        for second in 1..=10 {
            window.succeeded(at(second * 1000), true);
            window.succeeded(at(second * 1000 + 10), true);
        }
        assert_eq!(window.size(), FIRST + 10);
    }

    #[test]
    fn a_storm_halves_it_once_for_the_requests_of_one_window_and_never_below_one() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut window = Window::new(start);
        for answered in 0..20 {
            window.throttled(at(100 + answered), at(answered));
        }
        assert_eq!(window.size(), FIRST / 2, "they were sent before it shrank");
        for round in 1..10 {
            window.throttled(at(1000 * round), at(1000 * round - 1));
        }
        assert_eq!(window.size(), 1);
    }

    #[test]
    fn a_storm_halves_a_window_that_has_grown_once_also_by_requests_sent_before_it_grew() {
        let start = Instant::now();
        let at = |seconds: usize| start + Duration::from_secs(seconds as u64);
        let mut window = Window::new(start);
        (1..=FIRST).for_each(|second| window.succeeded(at(second), true));
        assert_eq!(window.size(), 2 * FIRST);
        for sent in 0..FIRST {
            window.throttled(at(FIRST), at(sent));
            assert_eq!(window.size(), FIRST, "sent after {sent} s");
        }
        window.throttled(at(FIRST + 2), at(FIRST + 1));
        assert_eq!(window.size(), FIRST / 2);
    }

    const PATIENCE: Patience =
        Patience { total: Duration::from_secs(60), longest: Duration::from_secs(20) };

    #[test]
    fn pauses_grow_to_a_limit_and_end_with_the_patience() {
        let start = Instant::now();
        let mut retry = Retry::default();
        let mut waited = Duration::ZERO;
        let mut pauses = Vec::new();
        // u64::MAX % (n + 1) does not give n, so the largest pause needs the limit itself as the random
        // number.
        loop {
            let limit = BASE.saturating_mul(1 << retry.failures.min(16)).min(LONGEST);
            let random = limit.as_micros() as u64;
            let Some(pause) = retry.failed(start + waited, None, random, &PATIENCE) else { break };
            pauses.push(pause.as_millis());
            waited += pause;
        }
        assert_eq!(pauses[..8], [100, 200, 400, 800, 1600, 3200, 6400, 10_000]);
        assert!(waited <= PATIENCE.total && waited + LONGEST > PATIENCE.total, "{waited:?}");
    }

    #[test]
    fn any_random_number_gives_a_pause_between_nothing_and_the_limit() {
        for random in [0, 1, 99_999, 100_000, 100_001, u64::MAX] {
            let pause = Retry::default().failed(Instant::now(), None, random, &PATIENCE).unwrap();
            assert!(pause <= BASE, "{random}: {pause:?}");
        }
    }

    #[test]
    fn what_the_store_asks_for_is_waited_for_up_to_a_limit() {
        let now = Instant::now();
        let pause = |seconds| {
            let after = Some(Duration::from_secs(seconds));
            Retry::default().failed(now, after, 0, &PATIENCE)
        };
        assert_eq!(pause(7), Some(Duration::from_secs(7)));
        assert_eq!(pause(1 << 40), Some(PATIENCE.longest));
    }

    #[test]
    fn a_second_request_comes_after_twice_the_99th_percentile_of_the_last_requests() {
        let mut latencies = Latencies::default();
        (0..KNOWN - 1).for_each(|_| latencies.succeeded(Duration::from_secs(9)));
        assert_eq!(latencies.hedge_after(), None);
        (0..KEPT).for_each(|n| latencies.succeeded(Duration::from_millis(1000 + n as u64)));
        assert_eq!(latencies.hedge_after(), Some(Duration::from_millis(2 * (1000 + 126))));
        (0..KEPT).for_each(|_| latencies.succeeded(Duration::from_millis(1)));
        assert_eq!(latencies.hedge_after(), Some(SOONEST));
    }

    #[test]
    fn at_most_one_request_in_fifty_is_sent_twice() {
        let mut latencies = Latencies::default();
        let mut hedges = 0;
        for _ in 0..1000 {
            latencies.succeeded(Duration::from_millis(1));
            hedges += u32::from(latencies.may_hedge());
        }
        assert_eq!(hedges, 21);
    }

    fn of_object(object: usize, bytes: Range<u64>) -> Option<ObjectRange> {
        Some(ObjectRange { object, bytes })
    }

    #[test]
    fn objects_are_cut_into_ranges_in_order_and_empty_ones_have_none() {
        let mut ranges = Ranges::new([0, 25, 0, 10, 3, 0], 0, 10, 1000);
        let expected = [(1, 0..10), (1, 10..20), (1, 20..25), (3, 0..10), (4, 0..3)];
        for (object, range) in expected {
            assert_eq!(ranges.next(), of_object(object, range));
        }
        assert_eq!(ranges.next(), None);
    }

    #[test]
    fn a_full_budget_hands_out_nothing_until_something_is_given_back_but_always_one() {
        let mut ranges = Ranges::new([100], 0, 10, 25);
        assert_eq!((ranges.next(), ranges.next()), (of_object(0, 0..10), of_object(0, 10..20)));
        assert_eq!(ranges.next(), None);
        ranges.give_back(10);
        assert_eq!((ranges.next(), ranges.next()), (of_object(0, 20..30), None));
        let mut narrow = Ranges::new([100], 0, 10, 5);
        assert_eq!((narrow.next(), narrow.next()), (of_object(0, 0..10), None));
        let mut small = Ranges::new(vec![1; 5000], 0, 10, 1 << 20);
        assert_eq!(std::iter::from_fn(|| small.next()).count(), MOST_HELD);
    }

    #[test]
    fn the_first_object_may_begin_at_any_byte_up_to_its_end() {
        for (at, first) in
            [(0, of_object(0, 0..10)), (15, of_object(0, 15..20)), (20, of_object(1, 0..5))]
        {
            let mut ranges = Ranges::new([20, 5], at, 10, 1000);
            assert_eq!(ranges.next(), first, "{at}");
        }
    }

    #[test]
    fn what_is_skipped_is_not_handed_out() {
        let mut ranges = Ranges::new([30, 10, 10], 0, 10, 1000);
        assert_eq!(ranges.next(), of_object(0, 0..10));
        ranges.skip_to(2);
        assert_eq!((ranges.next(), ranges.next()), (of_object(2, 0..10), None));
    }

    #[test]
    fn the_delay_of_a_store_decides_within_the_window() {
        let range = 8 << 20;
        let window = 256 << 20;
        let of = |ms| ahead(Some(Duration::from_millis(ms)), range, window);
        assert_eq!((of(0), of(1), of(4), of(50)), (32 << 20, 32 << 20, 100_000_000, window));
        assert_eq!(ahead(Some(Duration::MAX), range, window), window);
        assert_eq!(ahead(None, range, window), window, "nothing is known of it");
        assert_eq!(ahead(Some(Duration::ZERO), 64 << 20, 1 << 30), 256 << 20);
        assert_eq!(ahead(Some(Duration::ZERO), range, 1 << 20), 1 << 20);
    }
}
