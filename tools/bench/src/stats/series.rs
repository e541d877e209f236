//! A rate over time: one value per interval, and a summary.

/// Values of equal intervals.
#[derive(Debug, Clone, Default)]
pub(crate) struct Series {
    values: Vec<f64>,
}

/// Minimum, mean, maximum, deviation and number of values.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Summary {
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) mean: f64,
    pub(crate) deviation: f64,
    pub(crate) samples: usize,
}

impl Series {
    pub(crate) fn push(&mut self, value: f64) {
        self.values.push(value);
    }

    pub(crate) fn values(&self) -> &[f64] {
        &self.values
    }

    /// Adds the values of a concurrent job in the same intervals.
    pub(crate) fn add_beside(&mut self, other: &Series) {
        let both = self.values.len().min(other.values.len());
        for (value, more) in self.values.iter_mut().zip(&other.values) {
            *value += more;
        }
        self.values.extend_from_slice(&other.values[both..]);
    }

    pub(crate) fn summary(&self) -> Summary {
        let samples = self.values.len();
        if samples == 0 {
            return Summary::default();
        }
        let mean = self.values.iter().sum::<f64>() / samples as f64;
        let squares: f64 = self.values.iter().map(|v| (v - mean) * (v - mean)).sum();
        let deviation = if samples > 1 { (squares / (samples - 1) as f64).sqrt() } else { 0.0 };
        let min = self.values.iter().copied().fold(f64::INFINITY, f64::min);
        let max = self.values.iter().copied().fold(0.0, f64::max);
        Summary { min, max, mean, deviation, samples }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_beside_each_other_add_up_interval_by_interval() {
        let mut one = Series { values: vec![1.0, 3.0] };
        one.add_beside(&Series { values: vec![10.0, 10.0, 5.0] });
        assert_eq!(one.values(), [11.0, 13.0, 5.0]);
        let summary = one.summary();
        assert_eq!((summary.min, summary.max, summary.samples), (5.0, 13.0, 3));
        assert!((summary.mean - 29.0 / 3.0).abs() < 1e-9);
        assert_eq!(Series::default().summary(), Summary::default());
    }
}
