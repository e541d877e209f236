//! When a node consumes what: the recurrence of the performance model.
//!
//! With its symbols, sample f of a node's string R is consumed at
//! t(f) = max(avail(f), t(f - 1) + s(R(f - 1)) / c), where avail(f) is the sum of the read times of the
//! samples up to f over the threads p_0 of the staging buffer, and a read time is fetch + write.

use super::{Model, Source};

/// The times of one node, sample after sample; a few words, whatever the length of the string.
#[derive(Debug, Clone)]
pub struct Timeline<'a> {
    model: &'a Model,
    /// Read times of all samples so far.
    reading_ns: u128,
    /// When the node is through with the last sample.
    done_ns: u128,
    stalled_ns: u128,
}

impl<'a> Timeline<'a> {
    /// A node of `model` before its first sample.
    pub fn new(model: &'a Model) -> Timeline<'a> {
        Timeline { model, reading_ns: 0, done_ns: 0, stalled_ns: 0 }
    }

    /// The next sample, of `len_bytes` and from `source`; returns when its consumption begins.
    pub fn push(&mut self, source: Source, len_bytes: u64) -> u128 {
        let read_ns = u128::from(self.model.fetch_ns(source, len_bytes))
            + u128::from(self.model.write_ns(len_bytes));
        self.reading_ns += read_ns;
        let available = self.reading_ns / u128::from(self.model.staging.threads.max(1));
        let begins = available.max(self.done_ns);
        self.stalled_ns += begins - self.done_ns;
        self.done_ns = begins + u128::from(self.model.compute.time_ns(len_bytes));
        begins
    }

    /// When the node is through with all samples so far.
    pub fn done_ns(&self) -> u128 {
        self.done_ns
    }

    /// How long the node has waited for samples, the first included.
    pub fn stalled_ns(&self) -> u128 {
        self.stalled_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Curve, Rate, Stage};

    fn model(compute: u64, threads: u32) -> Model {
        let stage = |rate, threads| {
            let curve = Curve::flat(Rate::mb_per_s(rate));
            Stage { threads, read: curve.clone(), write: curve }
        };
        Model {
            nodes: 1,
            compute: Rate::mb_per_s(compute),
            preprocess: Rate::mb_per_s(200),
            network: Rate::mb_per_s(10_000),
            origin_link: Rate::mb_per_s(2_000),
            origin: Curve::flat(Rate::mb_per_s(50)),
            staging: stage(10_000, threads),
            tiers: vec![stage(1_000, 1)],
        }
    }

    #[test]
    fn a_node_that_computes_slowly_waits_for_the_first_sample_only() {
        let model = model(10, 2);
        let mut timeline = Timeline::new(&model);
        let begins: Vec<u128> = (0..4).map(|_| timeline.push(Source::Origin, 1_000_000)).collect();
        // 1 MB: 20 ms to fetch, 5 ms to decode, over 2 threads; then 100 ms of computing each.
        assert_eq!(begins, [12_500_000, 112_500_000, 212_500_000, 312_500_000]);
        assert_eq!((timeline.done_ns(), timeline.stalled_ns()), (412_500_000, 12_500_000));
    }

    #[test]
    fn a_node_that_computes_fast_goes_at_the_speed_of_reading() {
        let model = model(1_000, 1);
        let mut timeline = Timeline::new(&model);
        let sources = [Source::Origin, Source::Local(0), Source::Origin];
        let begins = sources.map(|source| timeline.push(source, 1_000_000));
        assert_eq!(begins, [25_000_000, 31_000_000, 56_000_000]);
        assert_eq!((timeline.done_ns(), timeline.stalled_ns()), (57_000_000, 54_000_000));
    }

    #[test]
    fn the_longest_transfers_do_not_overflow() {
        let mut model = model(1, 1);
        model.origin = Curve::flat(Rate(1));
        let mut timeline = Timeline::new(&model);
        for _ in 0..3 {
            timeline.push(Source::Origin, u64::MAX);
        }
        assert!(timeline.done_ns() > 3 * u128::from(u64::MAX));
    }
}
