//! Snapshots of metrics as OpenMetrics 1.0 text.

use super::{Histogram, Kind, Metric, Snapshot, Value};

/// The media type of [`Snapshot::to_openmetrics`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

impl Snapshot {
    /// All values as OpenMetrics text: `# TYPE`, `# UNIT` and `# HELP` of each metric, its series, and `# EOF`.
    pub fn to_openmetrics(&self) -> String {
        let mut text = String::new();
        let mut last: Option<&Metric> = None;
        for (metric, labels, value) in self.series() {
            if last != Some(metric) {
                describe(&mut text, metric);
                last = Some(metric);
            }
            let pairs = metric.labels.iter().copied().zip(labels.iter().map(String::as_str));
            let pairs: Vec<(&str, &str)> = pairs.collect();
            match value {
                Value::Count(count) => line(&mut text, &metric.name(), &pairs, &count.to_string()),
                Value::Seconds(seconds) => {
                    line(&mut text, &metric.name(), &pairs, &number(*seconds))
                }
                Value::Histogram(histogram) => {
                    buckets(&mut text, metric.family, &pairs, histogram);
                }
            }
        }
        text.push_str("# EOF\n");
        text
    }

    /// All values by the name of their series in the OpenMetrics text: `name{label="value"}`. A histogram
    /// gives two values: number and sum of the durations.
    pub fn by_series(&self) -> Vec<(String, Value)> {
        let mut found = Vec::new();
        for (metric, labels, value) in self.series() {
            let pairs = metric.labels.iter().copied().zip(labels.iter().map(String::as_str));
            let pairs: Vec<(&str, &str)> = pairs.collect();
            match value {
                Value::Histogram(histogram) => {
                    let of = |end| series_name(&format!("{}{end}", metric.family), &pairs);
                    found.push((of("_count"), Value::Count(histogram.count())));
                    found.push((of("_sum"), Value::Seconds(histogram.sum().as_secs_f64())));
                }
                value => found.push((series_name(&metric.name(), &pairs), value.clone())),
            }
        }
        found
    }
}

/// Appends `# TYPE`, `# UNIT` and `# HELP` of a metric.
fn describe(text: &mut String, metric: &Metric) {
    let Metric { family: name, help, .. } = metric;
    let kind = match metric.kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram => "histogram",
        Kind::Info => "info",
    };
    text.push_str(&format!("# TYPE {name} {kind}\n"));
    if let Some(unit) = metric.unit() {
        text.push_str(&format!("# UNIT {name} {unit}\n"));
    }
    text.push_str(&format!("# HELP {name} {}\n", escaped(help)));
}

/// Appends the series of a histogram: a bucket for each octave, the count and the sum.
fn buckets(text: &mut String, name: &str, labels: &[(&str, &str)], histogram: &Histogram) {
    let mut below = 0;
    for (octave, count) in histogram.octaves().into_iter().enumerate() {
        below += count;
        let limit = Histogram::octave_limit(octave).map(|limit| number(limit.as_secs_f64()));
        let limit = limit.as_deref().unwrap_or("+Inf");
        let labels: Vec<_> = labels.iter().copied().chain([("le", limit)]).collect();
        line(text, &format!("{name}_bucket"), &labels, &below.to_string());
    }
    line(text, &format!("{name}_count"), labels, &below.to_string());
    line(text, &format!("{name}_sum"), labels, &number(histogram.sum().as_secs_f64()));
}

/// Appends a series and its value as a line.
fn line(text: &mut String, name: &str, labels: &[(&str, &str)], value: &str) {
    text.push_str(&series_name(name, labels));
    text.push(' ');
    text.push_str(value);
    text.push('\n');
}

/// A series as OpenMetrics writes it: `name{label="value"}`.
fn series_name(name: &str, labels: &[(&str, &str)]) -> String {
    if labels.is_empty() {
        return name.to_owned();
    }
    let pair = |(label, value): &(&str, &str)| format!("{label}=\"{}\"", escaped(value));
    let pairs: Vec<String> = labels.iter().map(pair).collect();
    format!("{name}{{{}}}", pairs.join(","))
}

/// Formats seconds without an exponent. Whole numbers keep a decimal point, as in the canonical form.
fn number(value: f64) -> String {
    if value.fract() == 0.0 { format!("{value:.1}") } else { value.to_string() }
}

/// Escapes backslash, line feed and quotation mark; leaves all other UTF-8 unchanged.
fn escaped(text: &str) -> String {
    text.replace('\\', r"\\").replace('\n', r"\n").replace('"', "\\\"")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{BUILD, LOADER_STALL_SECONDS, TARGET_COMMANDS, TIER_USED_BYTES};
    use super::*;

    #[test]
    fn a_snapshot_is_written_with_types_units_and_escaped_labels() {
        let mut snapshot = Snapshot::new();
        assert_eq!(snapshot.to_openmetrics(), "# EOF\n");
        snapshot.count(&TIER_USED_BYTES, &["file:/a \"b\"\\c\nd:1G"], 4096);
        snapshot.seconds(&LOADER_STALL_SECONDS, &[], 0.000_001_5);
        snapshot.count(&TARGET_COMMANDS, &["nqn.x", "read"], u64::MAX);
        snapshot.count(&BUILD, &["0.1.0", "abc"], 1);
        let text = snapshot.to_openmetrics();
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("# HELP")).collect();
        assert_eq!(
            lines,
            [
                "# TYPE dlfs_build info",
                "dlfs_build_info{version=\"0.1.0\",commit=\"abc\"} 1",
                "# TYPE dlfs_target_commands counter",
                "dlfs_target_commands_total{subsystem=\"nqn.x\",command=\"read\"} 18446744073709551615",
                "# TYPE dlfs_loader_stall_seconds counter",
                "# UNIT dlfs_loader_stall_seconds seconds",
                "dlfs_loader_stall_seconds_total 0.0000015",
                "# TYPE dlfs_tier_used_bytes gauge",
                "# UNIT dlfs_tier_used_bytes bytes",
                "dlfs_tier_used_bytes{tier=\"file:/a \\\"b\\\"\\\\c\\nd:1G\"} 4096",
                "# EOF",
            ]
        );
        let values: Vec<String> = snapshot
            .by_series()
            .into_iter()
            .map(|(series, value)| format!("{series} {value:?}"))
            .collect();
        assert_eq!(values[2], "dlfs_loader_stall_seconds_total Seconds(1.5e-6)");
        assert_eq!(values[0], "dlfs_build_info{version=\"0.1.0\",commit=\"abc\"} Count(1)");
    }

    #[test]
    fn buckets_are_cumulative_and_the_last_has_no_limit() {
        let mut histogram = Histogram::new();
        for micros in [1, 3, 3, 40_000_000] {
            histogram.record(Duration::from_micros(micros));
        }
        let mut text = String::new();
        buckets(&mut text, "x_seconds", &[("a", "b")], &histogram);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), Histogram::OCTAVES + 2);
        assert_eq!(lines[0], "x_seconds_bucket{a=\"b\",le=\"0.000001\"} 1");
        assert_eq!(lines[2], "x_seconds_bucket{a=\"b\",le=\"0.000004\"} 3");
        assert_eq!(lines[24], "x_seconds_bucket{a=\"b\",le=\"16.777216\"} 3");
        assert_eq!(lines[25], "x_seconds_bucket{a=\"b\",le=\"+Inf\"} 4");
        assert_eq!(lines[26], "x_seconds_count{a=\"b\"} 4");
        assert_eq!(lines[27], "x_seconds_sum{a=\"b\"} 40.000007");
    }

    #[test]
    fn numbers_have_no_exponent() {
        for (value, text) in
            [(0.0, "0.0"), (1e-9, "0.000000001"), (1e20, "100000000000000000000.0")]
        {
            assert_eq!(number(value), text);
        }
    }
}
