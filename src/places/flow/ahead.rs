//! How far a reader asks ahead: as far as that makes reading faster.

use std::time::Instant;

/// How many bytes a reader asks for ahead of those that it hands over.
///
/// Ranges in flight hide the delay of the network, and connections add up where each one is slow. What goes beyond
/// that costs memory, and time too: bytes that wait long for their turn leave the processor's caches. So a reader
/// begins with few, and asks for twice as many while it has to wait and that makes it faster by a quarter. Where it
/// does not, the reader goes back, and tries again later.
#[derive(Debug)]
pub(in crate::places) struct Ahead {
    bytes: u64,
    most: u64,
    /// What it was before the last step up, and the bytes a second then; `None` once the step is judged.
    before: Option<(u64, f64)>,
    /// Bytes still to come that were asked for before the last step.
    settling: u64,
    /// Since when bytes are counted, and how many came.
    began: Option<Instant>,
    counted: u64,
    ranges: u32,
    waits: u32,
    /// Measurements until the next step is tried.
    rest: u32,
}

impl Ahead {
    /// Ranges have `range_bytes`; no more than `most` are asked for.
    pub(in crate::places) fn new(range_bytes: u64, most: u64) -> Ahead {
        let bytes = LEAST_BYTES.max(LEAST_RANGES.saturating_mul(range_bytes)).min(most);
        Ahead {
            bytes,
            most,
            before: None,
            settling: bytes,
            began: None,
            counted: 0,
            ranges: 0,
            waits: 0,
            rest: 0,
        }
    }

    /// How many bytes to ask for ahead.
    pub(in crate::places) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A range of `len` bytes is handed over; `waited`: it had not arrived when its turn came.
    pub(in crate::places) fn handed_over(&mut self, now: Instant, len: u64, waited: bool) {
        let Some(began) = self.began else {
            self.settling = self.settling.saturating_sub(len);
            if self.settling == 0 {
                (self.began, self.counted, self.ranges, self.waits) = (Some(now), 0, 0, 0);
            }
            return;
        };
        self.counted += len;
        self.ranges += 1;
        self.waits += u32::from(waited);
        if self.counted >= self.bytes {
            let seconds = now.saturating_duration_since(began).as_secs_f64().max(1e-6);
            self.decide(self.counted as f64 / seconds);
            (self.began, self.settling) = (None, self.bytes);
        }
    }

    fn decide(&mut self, rate: f64) {
        if let Some((bytes, before)) = self.before.take()
            && rate < before * WORTH
        {
            (self.bytes, self.rest) = (bytes, REST);
            return;
        }
        if self.rest > 0 {
            self.rest -= 1;
            return;
        }
        if self.waits * WAITED >= self.ranges && self.bytes < self.most {
            self.before = Some((self.bytes, rate));
            self.bytes = self.bytes.saturating_mul(2).min(self.most);
        }
    }
}

/// At the beginning: more connections than one slow one, and little memory.
const LEAST_BYTES: u64 = 32 << 20;
const LEAST_RANGES: u64 = 4;
/// A step up must make reading faster by this factor.
const WORTH: f64 = 1.25;
/// Measurements after a step that was not worth it.
const REST: u32 = 8;
/// One range of so many must have been waited for: otherwise, whoever reads is what takes the time.
const WAITED: u32 = 8;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const RANGE: u64 = 8 << 20;
    const MOST: u64 = 256 << 20;

    /// Reads 8 GiB from a store that gives `rate(bytes in flight)` bytes a second; returns all sizes in turn.
    fn sizes(rate: impl Fn(u64) -> f64, waits: bool) -> Vec<u64> {
        let (mut ahead, mut now) = (Ahead::new(RANGE, MOST), Instant::now());
        let mut sizes = vec![ahead.bytes()];
        for _ in 0..1024 {
            now += Duration::from_secs_f64(RANGE as f64 / rate(ahead.bytes()));
            ahead.handed_over(now, RANGE, waits);
            if sizes.last() != Some(&ahead.bytes()) {
                sizes.push(ahead.bytes());
            }
        }
        sizes.iter().map(|bytes| bytes >> 20).collect()
    }

    #[test]
    fn it_doubles_while_that_makes_reading_faster_up_to_the_window() {
        assert_eq!(sizes(|bytes| bytes as f64 / 0.1, true), [32, 64, 128, 256]);
    }

    #[test]
    fn it_goes_back_where_the_line_is_full_and_tries_again_later() {
        let line = |bytes: u64| (bytes as f64 / 0.1).min(1e9);
        let sizes = sizes(line, true);
        assert_eq!(sizes[..5], [32, 64, 128, 256, 128], "128 MiB fill it");
        assert!(sizes[4..].chunks(2).all(|pair| pair[0] == 128), "{sizes:?}");
        assert!((6..20).contains(&sizes.len()), "it tries seldom: {sizes:?}");
    }

    #[test]
    fn who_never_waits_asks_for_no_more() {
        assert_eq!(sizes(|bytes| bytes as f64, false), [32]);
    }

    #[test]
    fn a_narrow_window_is_a_limit_from_the_beginning() {
        assert_eq!(Ahead::new(RANGE, 1 << 20).bytes(), 1 << 20);
        assert_eq!(Ahead::new(4096, 512 << 10).bytes(), 512 << 10);
        assert_eq!(Ahead::new(64 << 20, 1 << 30).bytes(), 256 << 20);
    }
}
