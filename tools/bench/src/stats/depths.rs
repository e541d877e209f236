//! The queue depth at each submission, and the sizes of bursts.

use super::ratio;

/// Counts by powers of two, as fio shows them.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Depths {
    /// I/Os by the depth at their submission (1, 2, 4, 8, 16, 32, 64 and more); submissions, then polls, by
    /// their number of I/Os (0, up to 4, 8, 16, 32, 64, more).
    counts: [[u64; 7]; 3],
}

impl Depths {
    /// Counts `count` I/Os that were submitted together; `depth` are outstanding now.
    #[inline]
    pub(crate) fn submitted(&mut self, count: usize, depth: usize) {
        for deep in depth.saturating_sub(count) + 1..=depth {
            self.counts[0][(deep.max(1).ilog2() as usize).min(6)] += 1;
        }
        self.counts[1][group(count)] += 1;
    }

    /// Counts `count` completions of one poll.
    #[inline]
    pub(crate) fn completed(&mut self, count: usize) {
        self.counts[2][group(count)] += 1;
    }

    pub(crate) fn add(&mut self, other: &Depths) {
        let all = self.counts.as_flattened_mut().iter_mut();
        all.zip(other.counts.as_flattened()).for_each(|(count, more)| *count += more);
    }

    /// The three counts in percent.
    pub(crate) fn percent(&self) -> [[f64; 7]; 3] {
        self.counts.map(|counts| {
            let all = counts.iter().sum::<u64>() as f64;
            counts.map(|count| 100.0 * ratio(count as f64, all))
        })
    }
}

#[inline]
fn group(count: usize) -> usize {
    [0, 4, 8, 16, 32, 64].iter().position(|&most| count <= most).unwrap_or(6)
}

/// The names of the groups: of depths, and of bursts and polls.
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
