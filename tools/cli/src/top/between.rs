//! Changes between two pages of one address: growth of counters, and quantiles of durations.

use std::collections::BTreeMap;

use dlfs::metrics::Metric;

use super::page::{Labels, Page};
use super::report::Value;

/// Two pages of one process, `seconds` apart.
#[derive(Debug, Clone, Copy)]
pub(super) struct Between<'a> {
    /// `None` if the process started in between: its counters have grown from 0.
    before: Option<&'a Page>,
    after: &'a Page,
    seconds: f64,
}

impl<'a> Between<'a> {
    /// Compares two pages; `before` is ignored if another process answers now.
    pub(super) fn new(before: &'a Page, after: &'a Page, seconds: f64) -> Between<'a> {
        let before = (!is_restarted(before, after)).then_some(before);
        Between { before, after, seconds }
    }

    /// Seconds between the pages.
    pub(super) fn seconds(&self) -> f64 {
        self.seconds
    }

    /// The total growth of a metric's counters with these labels; `None` if there are no such counters.
    pub(super) fn growth(&self, metric: &Metric, labels: &[(&str, &str)]) -> Option<f64> {
        let grown = self.grown(&metric.name()).filter(|(found, _)| found.have(labels));
        grown.map(|(_, grown)| grown).reduce(|sum, more| sum + more)
    }

    /// The growth per second.
    pub(super) fn rate(&self, metric: &Metric, labels: &[(&str, &str)]) -> Option<f64> {
        self.growth(metric, labels).map(|grown| grown / self.seconds)
    }

    /// The growth of a metric's counters, by the value of `label`.
    pub(super) fn growth_by(&self, metric: &Metric, label: &str) -> BTreeMap<&'a str, f64> {
        let mut by = BTreeMap::new();
        for (labels, grown) in self.grown(&metric.name()) {
            if let Some(value) = labels.value(label) {
                *by.entry(value).or_default() += grown;
            }
        }
        by
    }

    /// The quantile `q` of the durations that a metric's histograms have counted in between. Only series
    /// whose labels `select` accepts count.
    pub(super) fn quantile(
        &self,
        metric: &Metric,
        select: impl Fn(&Labels) -> bool,
        q: f64,
    ) -> Value {
        let name = format!("{}_bucket", metric.name());
        let selected = self.grown(&name).filter(|(labels, _)| select(labels));
        let limit = |labels: &Labels| labels.value("le")?.parse::<f64>().ok();
        let counts = selected.map(|(labels, grown)| Some((limit(labels)?, grown)));
        // A histogram without an upper limit in a label is malformed.
        let Some(mut counts) = counts.collect::<Option<Vec<_>>>() else { return Value::Unknown };
        counts.sort_by(|a, b| a.0.total_cmp(&b.0));
        let buckets = counts.chunk_by(|a, b| a.0.total_cmp(&b.0).is_eq());
        let buckets = buckets.map(|same| (same[0].0, same.iter().map(|(_, count)| count).sum()));
        quantile(&buckets.collect::<Vec<_>>(), q)
    }

    /// The growth of each series of this name.
    fn grown(&self, name: &str) -> impl Iterator<Item = (&'a Labels, f64)> + use<'a> {
        let before = self.before.map(|page| page.series(name));
        self.after.series(name).iter().map(move |(labels, value)| {
            let before = before.and_then(|series| series.get(labels)).copied().unwrap_or(0.0);
            (labels, (value - before).max(0.0))
        })
    }
}

/// Returns whether a counter of `before` is smaller or missing in `after`: another process then answers.
///
/// Seconds are sums of fractions and may differ by rounding, so only whole numbers are compared.
pub(super) fn is_restarted(before: &Page, after: &Page) -> bool {
    let whole = |name: &str| name.ends_with("_total") && !name.ends_with("_seconds_total");
    let mut counters = before.families().filter(|(name, _)| whole(name));
    counters.any(|(name, series)| {
        let now = after.series(name);
        series.iter().any(|(labels, old)| now.get(labels).is_none_or(|new| new < old))
    })
}

/// The quantile `q` of cumulative counts, sorted by their upper limits, ascending.
fn quantile(buckets: &[(f64, f64)], q: f64) -> Value {
    let total = buckets.last().map_or(0.0, |(_, total)| *total);
    if total <= 0.0 {
        return Value::Unknown;
    }
    let rank = q * total;
    let mut lower = 0.0;
    let mut below = 0.0;
    for &(limit, count) in buckets {
        if count >= rank && count > below {
            if limit.is_infinite() {
                return Value::AtLeast(lower);
            }
            let share = ((rank - below) / (count - below)).clamp(0.0, 1.0);
            return Value::Number(lower + (limit - lower) * share);
        }
        (lower, below) = (limit, f64::max(below, count));
    }
    Value::Unknown
}

#[cfg(test)]
mod tests {
    use dlfs::metrics::{
        LOADER_SKIPPED as B, LOADER_STALL_SECONDS as S, READ_COMMAND_SECONDS as H,
        READ_COMMANDS as A,
    };

    use super::*;

    fn page(lines: &[&str]) -> Page {
        Page::parse(format!("{}\n# EOF\n", lines.join("\n")).as_bytes()).unwrap()
    }

    #[test]
    fn counters_grow_by_their_difference_and_new_series_from_0() {
        let before =
            page(&["dlfs_read_commands_total{x=\"1\"} 10", "dlfs_read_commands_total{x=\"2\"} 5"]);
        let after = page(&[
            "dlfs_read_commands_total{x=\"1\"} 14",
            "dlfs_read_commands_total{x=\"2\"} 5",
            "dlfs_read_commands_total{x=\"3\"} 2",
        ]);
        let between = Between::new(&before, &after, 2.0);
        assert_eq!(between.growth(&A, &[]), Some(6.0));
        assert_eq!(between.rate(&A, &[("x", "1")]), Some(2.0));
        assert_eq!(between.growth(&A, &[("x", "4")]), None);
        assert_eq!(between.growth(&B, &[]), None);
        let by = between.growth_by(&A, "x");
        assert_eq!(by, BTreeMap::from([("1", 4.0), ("2", 0.0), ("3", 2.0)]));
    }

    #[test]
    fn a_counter_that_went_backwards_or_away_is_another_process() {
        let before = page(&["dlfs_read_commands_total 10", "dlfs_loader_skipped_total 3"]);
        for after in [
            &["dlfs_read_commands_total 9", "dlfs_loader_skipped_total 30"][..],
            &["dlfs_loader_skipped_total 30"],
        ] {
            let after = page(after);
            assert!(is_restarted(&before, &after));
            let between = Between::new(&before, &after, 1.0);
            assert_eq!(between.growth(&B, &[]), Some(30.0));
        }
        let gauges =
            page(&["dlfs_read_commands_total 10", "dlfs_loader_skipped_total 3", "dlfs_c 1"]);
        assert!(!is_restarted(&gauges, &before));
        let more = page(&["dlfs_loader_stall_seconds_total 0.3"]);
        let less = page(&["dlfs_loader_stall_seconds_total 0.299999"]);
        assert!(!is_restarted(&more, &less), "rounding is no restart");
        let between = Between::new(&more, &less, 1.0);
        assert_eq!(between.growth(&S, &[]), Some(0.0));
    }

    fn histogram(counts: [u32; 3], x: &str) -> Vec<String> {
        let limits = ["0.001", "0.002", "+Inf"];
        let line = |(le, count)| {
            format!("dlfs_read_command_seconds_bucket{{x=\"{x}\",le=\"{le}\"}} {count}")
        };
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
        let a = |q| between.quantile(&H, of("a"), q);
        assert_eq!(a(0.5), Value::Number(0.0015));
        assert_eq!(a(0.05), Value::Number(0.0005));
        assert_eq!(a(0.99), Value::AtLeast(0.002));
        assert_eq!(
            between.quantile(&H, |_| true, 0.25),
            Value::Number(50.0 / 60.0 * 0.001),
            "series add up"
        );
        assert_eq!(between.quantile(&H, of("c"), 0.5), Value::Unknown);
        let still = Between::new(&after, &after, 1.0);
        assert_eq!(still.quantile(&H, |_| true, 0.5), Value::Unknown, "nothing was counted");
    }

    #[test]
    fn buckets_that_make_no_sense_make_no_panic() {
        for lines in [
            &["dlfs_read_command_seconds_bucket 1"][..],
            &["dlfs_read_command_seconds_bucket{le=\"x\"} 1"],
            &["dlfs_read_command_seconds_bucket{le=\"NaN\"} 1"],
            &[
                "dlfs_read_command_seconds_bucket{le=\"1\"} 5",
                "dlfs_read_command_seconds_bucket{le=\"2\"} 3",
            ],
            &["dlfs_read_command_seconds_bucket{le=\"+Inf\"} -3"],
            &["dlfs_read_command_seconds_bucket{le=\"-Inf\"} 3"],
        ] {
            let before = Page::default();
            let after = page(lines);
            for q in [0.0, 0.5, 0.99, 1.0] {
                let _ = Between::new(&before, &after, 1.0).quantile(&H, |_| true, q);
            }
        }
    }
}
