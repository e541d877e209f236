//! Medians and their confidence intervals.

/// The median and its 90 % bootstrap interval.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Estimate {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// The estimate from `values`; `None` if there are none. The same values and seed give the same
/// interval.
pub(crate) fn estimate(values: &[f64], seed: u64) -> Option<Estimate> {
    if values.is_empty() {
        return None;
    }
    let mut random = Random(seed);
    let mut medians: Vec<f64> = (0..RESAMPLES)
        .map(|_| median(values.iter().map(|_| values[random.below(values.len())]).collect()))
        .collect();
    medians.sort_by(f64::total_cmp);
    let low = medians[RESAMPLES / 20];
    let high = medians[RESAMPLES - 1 - RESAMPLES / 20];
    Some(Estimate { median: median(values.to_vec()), low, high })
}

/// The middle one, or the mean of the two in the middle.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        len if len % 2 == 1 => values[half],
        _ => (values[half - 1] + values[half]) / 2.0,
    }
}

/// Random numbers determined by a seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        let mixed = (self.0 ^ (self.0 >> 31)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        mixed >> 32
    }

    /// A number below `count`, which is at most 2^32.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        ((self.next() * count as u64) >> 32) as usize
    }

    /// A number greater than 0 and at most 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() + 1) as f64 / (1u64 << 32) as f64
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

const RESAMPLES: usize = 2000;
