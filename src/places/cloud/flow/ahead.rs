//! Distance to which a reader asks ahead: as far as the store's delay needs.

use std::time::Duration;

/// How many bytes to ask for ahead, at most `window_bytes`, of a store that begins to answer after `delay`.
///
/// Ranges in flight hide the delay. More of them than that needs cost time: bytes that wait long for their turn leave
/// the processor's caches, and each buffer is fresh memory once. Ranges that share a line end at about the same time,
/// and for one delay nothing comes: so the bytes ahead take [`DELAYS`] times as long as it, at [`RATE`].
pub(crate) fn ahead(delay: Option<Duration>, range_bytes: u64, window_bytes: u64) -> u64 {
    let Some(delay) = delay else { return window_bytes };
    let bytes = (delay.as_secs_f64() * DELAYS * RATE) as u64; // saturates
    bytes.max(LEAST_BYTES).max(LEAST_RANGES.saturating_mul(range_bytes)).min(window_bytes)
}

const DELAYS: f64 = 20.0;
/// Bytes a second: a line of 10 Gb/s.
const RATE: f64 = 1.25e9;
const LEAST_BYTES: u64 = 32 << 20;
const LEAST_RANGES: u64 = 4;

#[cfg(test)]
mod tests {
    use super::*;

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
