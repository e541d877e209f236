//! The window of requests in flight: additive increase, multiplicative decrease.

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

/// Initial window: twice what 10 Gb/s need at 90 MB/s per connection.
const FIRST: usize = 32;

/// Maximum window: more than any network needs, and a bound on open sockets.
const MOST: usize = 512;

/// Minimum time between two growth steps.
const STEP: Duration = Duration::from_secs(1);

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
}
