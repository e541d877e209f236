//! Changes between two pages of one address: growth of counters, and quantiles of durations.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::page::{Labels, Page};

/// Two pages of one process, `seconds` apart.
#[derive(Debug, Clone, Copy)]
pub(super) struct Between<'a> {
    /// `None` if the process began in between: its counters have grown from 0.
    before: Option<&'a Page>,
    after: &'a Page,
    seconds: f64,
}

/// A quantile of durations, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
#[serde(into = "f64")]
pub(super) enum Quantile {
    /// Interpolated within its bucket.
    About(f64),
    /// In the last bucket, which has no upper limit.
    AtLeast(f64),
}

impl From<Quantile> for f64 {
    fn from(quantile: Quantile) -> f64 {
        match quantile {
            Quantile::About(seconds) | Quantile::AtLeast(seconds) => seconds,
        }
    }
}

impl<'a> Between<'a> {
    /// The pages of a process; `before` does not count if another process answers now.
    pub(super) fn new(before: &'a Page, after: &'a Page, seconds: f64) -> Between<'a> {
        let before = (!is_restarted(before, after)).then_some(before);
        Between { before, after, seconds }
    }

    /// Seconds between the pages.
    pub(super) fn seconds(&self) -> f64 {
        self.seconds
    }

    /// How much the counters of that name with these labels have grown, all together; `None` if there are none.
    pub(super) fn growth(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let grown = self.grown(name).filter(|(found, _)| found.have(labels));
        grown.map(|(_, grown)| grown).reduce(|sum, more| sum + more)
    }

    /// The growth per second.
    pub(super) fn rate(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        self.growth(name, labels).map(|grown| grown / self.seconds)
    }

    /// The growth of the counters of that name, by the value of `label`.
    pub(super) fn growth_by(&self, name: &str, label: &str) -> BTreeMap<&'a str, f64> {
        let mut by = BTreeMap::new();
        for (labels, grown) in self.grown(name) {
            if let Some(value) = labels.value(label) {
                *by.entry(value).or_default() += grown;
            }
        }
        by
    }

    /// The quantile `q` of the durations that the histograms of that name have counted in between, those whose
    /// labels `select` accepts; `None` if there are none.
    pub(super) fn quantile(
        &self,
        name: &str,
        select: impl Fn(&Labels) -> bool,
        q: f64,
    ) -> Option<Quantile> {
        let name = format!("{name}_bucket");
        let mut buckets: BTreeMap<Limit, f64> = BTreeMap::new();
        for (labels, grown) in self.grown(&name).filter(|(labels, _)| select(labels)) {
            let limit: f64 = labels.value("le")?.parse().ok()?;
            *buckets.entry(Limit(limit)).or_default() += grown;
        }
        let buckets: Vec<(f64, f64)> =
            buckets.into_iter().map(|(Limit(limit), count)| (limit, count)).collect();
        quantile(&buckets, q)
    }

    /// The growth of each series of that name.
    fn grown(&self, name: &str) -> impl Iterator<Item = (&'a Labels, f64)> {
        let before = self.before.map(|page| page.series(name));
        self.after.series(name).iter().map(move |(labels, value)| {
            let before = before.and_then(|series| series.get(labels)).copied().unwrap_or(0.0);
            (labels, (value - before).max(0.0))
        })
    }
}

/// The upper limit of a bucket, in seconds.
#[derive(Debug, Clone, Copy)]
struct Limit(f64);

impl Ord for Limit {
    fn cmp(&self, other: &Limit) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Limit {
    fn partial_cmp(&self, other: &Limit) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Limit {
    fn eq(&self, other: &Limit) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Limit {}

/// Returns whether a counter of `before` is smaller or gone in `after`: then another process answers.
///
/// Seconds are sums of fractions and may differ by their rounding, so only whole numbers are compared.
pub(super) fn is_restarted(before: &Page, after: &Page) -> bool {
    let whole = |name: &str| name.ends_with("_total") && !name.ends_with("_seconds_total");
    let mut counters = before.families().filter(|(name, _)| whole(name));
    counters.any(|(name, series)| {
        let now = after.series(name);
        series.iter().any(|(labels, old)| now.get(labels).is_none_or(|new| new < old))
    })
}

/// The quantile `q` of cumulative counts, which are by upper limit, ascending.
fn quantile(buckets: &[(f64, f64)], q: f64) -> Option<Quantile> {
    let (_, total) = *buckets.last()?;
    if total <= 0.0 {
        return None;
    }
    let rank = q * total;
    let mut lower = 0.0;
    let mut below = 0.0;
    for &(limit, count) in buckets {
        if count >= rank && count > below {
            if limit.is_infinite() {
                return Some(Quantile::AtLeast(lower));
            }
            let share = ((rank - below) / (count - below)).clamp(0.0, 1.0);
            return Some(Quantile::About(lower + (limit - lower) * share));
        }
        (lower, below) = (limit, f64::max(below, count));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(lines: &[&str]) -> Page {
        Page::parse(format!("{}\n# EOF\n", lines.join("\n")).as_bytes()).unwrap()
    }

    #[test]
    fn counters_grow_by_their_difference_and_new_series_from_0() {
        let before = page(&["dlfs_a_total{x=\"1\"} 10", "dlfs_a_total{x=\"2\"} 5"]);
        let after = page(&[
            "dlfs_a_total{x=\"1\"} 14",
            "dlfs_a_total{x=\"2\"} 5",
            "dlfs_a_total{x=\"3\"} 2",
        ]);
        let between = Between::new(&before, &after, 2.0);
        assert_eq!(between.growth("dlfs_a_total", &[]), Some(6.0));
        assert_eq!(between.rate("dlfs_a_total", &[("x", "1")]), Some(2.0));
        assert_eq!(between.growth("dlfs_a_total", &[("x", "4")]), None);
        assert_eq!(between.growth("dlfs_b_total", &[]), None);
        let by = between.growth_by("dlfs_a_total", "x");
        assert_eq!(by, BTreeMap::from([("1", 4.0), ("2", 0.0), ("3", 2.0)]));
    }

    #[test]
    fn a_counter_that_went_backwards_or_away_is_another_process() {
        let before = page(&["dlfs_a_total 10", "dlfs_b_total 3"]);
        for after in [&["dlfs_a_total 9", "dlfs_b_total 30"][..], &["dlfs_b_total 30"]] {
            let after = page(after);
            assert!(is_restarted(&before, &after));
            let between = Between::new(&before, &after, 1.0);
            assert_eq!(between.growth("dlfs_b_total", &[]), Some(30.0));
        }
        let gauges = page(&["dlfs_a_total 10", "dlfs_b_total 3", "dlfs_c 1"]);
        assert!(!is_restarted(&gauges, &before));
        let more = page(&["dlfs_s_seconds_total 0.3"]);
        let less = page(&["dlfs_s_seconds_total 0.299999"]);
        assert!(!is_restarted(&more, &less), "rounding is no restart");
        let between = Between::new(&more, &less, 1.0);
        assert_eq!(between.growth("dlfs_s_seconds_total", &[]), Some(0.0));
    }

    fn histogram(counts: [u32; 3], x: &str) -> Vec<String> {
        let limits = ["0.001", "0.002", "+Inf"];
        let line = |(le, count)| format!("dlfs_h_seconds_bucket{{x=\"{x}\",le=\"{le}\"}} {count}");
        limits.into_iter().zip(counts).map(line).collect()
    }

    #[test]
    fn quantiles_are_those_of_what_was_counted_in_between() {
        let lines = |parts: &[Vec<String>]| {
            let lines = parts.concat();
            page(&lines.iter().map(String::as_str).collect::<Vec<_>>())
        };
        let before = lines(&[histogram([1000, 1000, 1000], "a"), histogram([0, 0, 0], "b")]);
        let after = lines(&[histogram([1010, 1090, 1100], "a"), histogram([50, 100, 100], "b")]);
        let between = Between::new(&before, &after, 1.0);
        let of = |x: &'static str| move |labels: &Labels| labels.have(&[("x", x)]);
        let a = |q| between.quantile("dlfs_h_seconds", of("a"), q);
        assert_eq!(a(0.5), Some(Quantile::About(0.0015)));
        assert_eq!(a(0.05), Some(Quantile::About(0.0005)));
        assert_eq!(a(0.99), Some(Quantile::AtLeast(0.002)));
        assert_eq!(
            between.quantile("dlfs_h_seconds", |_| true, 0.25),
            Some(Quantile::About(50.0 / 60.0 * 0.001)),
            "series add up"
        );
        assert_eq!(between.quantile("dlfs_h_seconds", of("c"), 0.5), None);
        let still = Between::new(&after, &after, 1.0);
        assert_eq!(still.quantile("dlfs_h_seconds", |_| true, 0.5), None, "nothing was counted");
    }

    #[test]
    fn buckets_that_make_no_sense_make_no_panic() {
        for lines in [
            &["dlfs_h_seconds_bucket 1"][..],
            &["dlfs_h_seconds_bucket{le=\"x\"} 1"],
            &["dlfs_h_seconds_bucket{le=\"NaN\"} 1"],
            &["dlfs_h_seconds_bucket{le=\"1\"} 5", "dlfs_h_seconds_bucket{le=\"2\"} 3"],
            &["dlfs_h_seconds_bucket{le=\"+Inf\"} -3"],
            &["dlfs_h_seconds_bucket{le=\"-Inf\"} 3"],
        ] {
            let before = Page::default();
            let after = page(lines);
            for q in [0.0, 0.5, 0.99, 1.0] {
                let _ = Between::new(&before, &after, 1.0).quantile("dlfs_h_seconds", |_| true, q);
            }
        }
    }
}
