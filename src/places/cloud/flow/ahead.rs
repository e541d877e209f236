//! Readahead distance of a reader: enough to hide the store's delay.

use std::time::Duration;

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

const DELAYS: f64 = 20.0;
/// Bytes per second of a 10 Gb/s link.
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
