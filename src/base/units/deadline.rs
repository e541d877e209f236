//! Deadlines that cannot overflow the clock.

use std::time::{Duration, Instant};

/// The time `limit` after `now`. Caps `limit` at a century, since adding a larger value could overflow the
/// clock, which panics.
pub fn deadline(now: Instant, limit: Duration) -> Instant {
    now + limit.min(FOREVER)
}

/// A century: longer than any process runs.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 86_400);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_infinite_limit_is_a_deadline_that_never_comes() {
        let now = Instant::now();
        assert_eq!(deadline(now, Duration::from_secs(5)) - now, Duration::from_secs(5));
        assert_eq!(deadline(now, Duration::MAX) - now, FOREVER);
    }
}
