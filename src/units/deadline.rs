//! When a wait ends, whatever time the caller allows it.

use std::time::{Duration, Instant};

/// The moment `limit` after `now`. A limit beyond [`FOREVER`] ends then: adding it could leave what the
/// clock can tell, which panics.
pub(crate) fn deadline(now: Instant, limit: Duration) -> Instant {
    now + limit.min(FOREVER)
}

/// Longer than any process lives: a century.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 86_400);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_without_an_end_is_a_deadline_that_does_not_come() {
        let now = Instant::now();
        assert_eq!(deadline(now, Duration::from_secs(5)) - now, Duration::from_secs(5));
        assert_eq!(deadline(now, Duration::MAX) - now, FOREVER);
    }
}
