//! The queue depth at each submission, and the sizes of bursts.

/// Counts by powers of two, as fio shows them.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Depths {
    /// I/Os by the depth at their submission: 1, 2, 4, 8, 16, 32, 64 and more.
    level: [u64; 7],
    /// Calls by the number of I/Os: 0, up to 4, 8, 16, 32, 64, more.
    submit: [u64; 7],
    complete: [u64; 7],
}

impl Depths {
    /// `count` I/Os were submitted together, and `depth` are outstanding now.
    #[inline]
    pub(crate) fn submitted(&mut self, count: usize, depth: usize) {
        for deep in depth.saturating_sub(count) + 1..=depth {
            self.level[(deep.max(1).ilog2() as usize).min(6)] += 1;
        }
        self.submit[group(count)] += 1;
    }

    /// `count` completions were taken together.
    #[inline]
    pub(crate) fn completed(&mut self, count: usize) {
        self.complete[group(count)] += 1;
    }

    pub(crate) fn add(&mut self, other: &Depths) {
        let all = self.level.iter_mut().zip(&other.level);
        let all = all.chain(self.submit.iter_mut().zip(&other.submit));
        for (count, more) in all.chain(self.complete.iter_mut().zip(&other.complete)) {
            *count += more;
        }
    }

    /// Level, submit and complete in percent.
    pub(crate) fn percent(&self) -> [[f64; 7]; 3] {
        [&self.level, &self.submit, &self.complete].map(|counts| {
            let all: u64 = counts.iter().sum();
            counts.map(|count| if all == 0 { 0.0 } else { 100.0 * count as f64 / all as f64 })
        })
    }
}

#[inline]
fn group(count: usize) -> usize {
    match count {
        0 => 0,
        1..=4 => 1,
        5..=8 => 2,
        9..=16 => 3,
        17..=32 => 4,
        33..=64 => 5,
        _ => 6,
    }
}

/// The names of the groups.
pub(crate) const LEVELS: [&str; 7] = ["1", "2", "4", "8", "16", "32", ">=64"];
pub(crate) const CALLS: [&str; 7] = ["0", "4", "8", "16", "32", "64", ">=64"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depths_are_counted_for_each_io_and_calls_for_each_burst() {
        let mut depths = Depths::default();
        depths.submitted(4, 4); // at depths 1, 2, 3, 4
        depths.completed(4);
        depths.submitted(1, 100);
        let [level, submit, complete] = depths.percent();
        assert_eq!(level, [20.0, 40.0, 20.0, 0.0, 0.0, 0.0, 20.0]);
        assert_eq!((submit[1], complete[1]), (100.0, 100.0));
    }
}
