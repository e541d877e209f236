//! The library's metrics: every counter under a fixed name, and their format, OpenMetrics 1.0.
//!
//! `table` names all metrics: counters, gauges, histograms and information, with unit, labels and help.
//! Structs such as `TargetStats` do the counting. [`Measured`] converts their counters into a [`Snapshot`] on
//! request, so names and labels cost nothing until then. The library's module `exporter` collects the
//! snapshot of a process and serves it over HTTP.
//!
//! Invariants: a snapshot contains only metrics of the table, each with the labels given there; the number
//! of series of a metric is bounded, whatever the label values are.
//!
//! Bytes are also counted by the [`Place`] that served them.
//!
//! Read `table.rs` first.

mod histogram;
mod table;

pub use histogram::{Histogram, Recorder, Summary};
pub use table::*;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

/// A metric. The meaning of its name never changes.
#[derive(Debug, PartialEq, Eq)]
pub struct Metric {
    /// The name of the metric family, without `_total` or `_info`.
    pub family: &'static str,
    /// The metric's type.
    pub kind: Kind,
    /// Names of the labels.
    pub labels: &'static [&'static str],
    /// The meaning, as a sentence.
    pub help: &'static str,
}

/// The type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A value that only grows, from 0 at the start of the process.
    Counter,
    /// A current value, which may rise and fall.
    Gauge,
    /// Durations, counted in buckets.
    Histogram,
    /// Always 1; the labels carry the information.
    Info,
}

impl Metric {
    /// The name used in queries: counters end in `_total`, information in `_info`.
    pub fn name(&self) -> String {
        match self.kind {
            Kind::Counter => format!("{}_total", self.family),
            Kind::Info => format!("{}_info", self.family),
            Kind::Gauge | Kind::Histogram => self.family.to_owned(),
        }
    }

    /// The unit, which is the suffix of the family name: `bytes`, `seconds`, or none for counts.
    pub(crate) fn unit(&self) -> Option<&'static str> {
        ["bytes", "seconds"]
            .into_iter()
            .find(|unit| self.family.strip_suffix(unit).is_some_and(|before| before.ends_with('_')))
    }
}

/// A value of a metric.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A number of events or bytes.
    Count(u64),
    /// Seconds.
    Seconds(f64),
    /// Durations.
    Histogram(Box<Histogram>),
}

impl Value {
    fn add(&mut self, other: &Value) {
        match (self, other) {
            (Value::Count(sum), Value::Count(more)) => *sum = sum.saturating_add(*more),
            (Value::Seconds(sum), Value::Seconds(more)) => *sum += more,
            (Value::Histogram(sum), Value::Histogram(more)) => sum.add(more),
            (mine, other) => unreachable!("a metric has one kind of values: {mine:?}, {other:?}"),
        }
    }
}

/// A source of metrics.
pub trait Measured {
    /// Adds the source's values to `snapshot`. Holds a lock only while it copies a few counters.
    fn measure(&self, snapshot: &mut Snapshot);
}

/// Values of metrics at one moment.
///
/// Values of the same metric with the same labels are added: two loaders of a process are one series. A
/// metric has at most 1,000 series; further values go to one more series, whose labels are all [`OTHER`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Snapshot {
    families: BTreeMap<&'static str, Family>,
}

#[derive(Debug, Clone, PartialEq)]
struct Family {
    metric: &'static Metric,
    series: BTreeMap<Vec<String>, Value>,
}

impl Snapshot {
    /// An empty snapshot.
    pub fn new() -> Snapshot {
        Snapshot::default()
    }

    /// A snapshot of `source` only.
    pub fn of(source: &(impl Measured + ?Sized)) -> Snapshot {
        let mut snapshot = Snapshot::new();
        source.measure(&mut snapshot);
        snapshot
    }

    /// Adds a count or a number of bytes. `labels` are the label values, in the metric's order.
    ///
    /// # Panics
    /// If the number of labels is wrong, or the metric has another kind of value.
    pub fn count(&mut self, metric: &'static Metric, labels: &[&str], value: u64) {
        self.put(metric, labels, Value::Count(value));
    }

    /// Adds seconds.
    ///
    /// # Panics
    /// As [`Snapshot::count`].
    pub fn seconds(&mut self, metric: &'static Metric, labels: &[&str], value: f64) {
        self.put(metric, labels, Value::Seconds(value));
    }

    /// Adds durations.
    ///
    /// # Panics
    /// As [`Snapshot::count`].
    pub fn durations(&mut self, metric: &'static Metric, labels: &[&str], value: &Histogram) {
        self.put(metric, labels, Value::Histogram(Box::new(*value)));
    }

    /// Adds all values of `other`.
    pub fn add(&mut self, other: &Snapshot) {
        for family in other.families.values() {
            for (labels, value) in &family.series {
                let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
                self.put(family.metric, &labels, value.clone());
            }
        }
    }

    /// The counters and histograms, which remain when their source has ended; gauges and information do not.
    #[must_use]
    pub fn ended(mut self) -> Snapshot {
        self.families
            .retain(|_, family| matches!(family.metric.kind, Kind::Counter | Kind::Histogram));
        self
    }

    /// All series with their label values; metrics are in the order of [`ALL`].
    pub fn series(&self) -> impl Iterator<Item = (&'static Metric, &[String], &Value)> {
        let families = ALL.iter().filter_map(|metric| self.families.get(metric.family));
        families.flat_map(|family| {
            family.series.iter().map(|(labels, value)| (family.metric, &labels[..], value))
        })
    }

    /// The sum of all series of `metric`; 0 if there is none. For a histogram, the number of durations.
    pub fn sum(&self, metric: &Metric) -> f64 {
        let Some(family) = self.families.get(metric.family) else { return 0.0 };
        let number = |value: &Value| match value {
            Value::Count(count) => *count as f64,
            Value::Seconds(seconds) => *seconds,
            Value::Histogram(durations) => durations.count() as f64,
        };
        family.series.values().map(number).sum()
    }

    fn put(&mut self, metric: &'static Metric, labels: &[&str], value: Value) {
        assert_eq!(labels.len(), metric.labels.len(), "the labels of {}", metric.family);
        let is_histogram = matches!(value, Value::Histogram(_));
        assert_eq!(is_histogram, metric.kind == Kind::Histogram, "the kind of {}", metric.family);
        let family = self.families.entry(metric.family);
        let Family { series, .. } =
            family.or_insert_with(|| Family { metric, series: BTreeMap::new() });
        let mut key: Vec<String> = labels.iter().map(|label| shortened(label)).collect();
        if series.len() >= MAX_SERIES && !series.contains_key(&key) {
            key.fill(OTHER.to_owned());
        }
        match series.get_mut(&key) {
            None => _ = series.insert(key, value),
            // Repeated information is not added up.
            Some(_) if metric.kind == Kind::Info => {}
            Some(sum) => sum.add(&value),
        }
    }
}

/// The first 256 bytes of a label, or fewer so that no character is cut: a label may be a path of any length.
fn shortened(label: &str) -> String {
    let mut end = label.len().min(MAX_LABEL_BYTES);
    while !label.is_char_boundary(end) {
        end -= 1;
    }
    label[..end].to_owned()
}

/// The place that served bytes of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The data set itself: a target, a drive, files or an object store.
    Origin,
    /// Another read of the origin on behalf of a tier: by readahead, or a concurrent fetch of the same pages.
    Ahead,
    /// Memory of this node: a tier or the rank's store.
    Memory,
    /// Drives of this node, remote namespaces used as its tiers, or the rank's store.
    Drive,
    /// Tiers of other nodes.
    Peer,
}

impl Place {
    /// The number of places.
    pub(crate) const COUNT: usize = 5;

    /// All places.
    pub const ALL: [Place; Place::COUNT] =
        [Place::Origin, Place::Ahead, Place::Memory, Place::Drive, Place::Peer];

    /// The place's name in reports and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Place::Origin => "origin",
            Place::Ahead => "ahead",
            Place::Memory => "memory",
            Place::Drive => "drive",
            Place::Peer => "peer",
        }
    }
}

/// Byte counts by place.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PlaceBytes([u64; Place::COUNT]);

impl PlaceBytes {
    /// Adds bytes that came from `place`.
    pub fn add(&mut self, place: Place, bytes: u64) {
        self.0[place as usize] += bytes;
    }

    /// The bytes that came from `place`.
    pub fn of(&self, place: Place) -> u64 {
        self.0[place as usize]
    }

    /// Each place with its bytes.
    pub fn each(&self) -> impl Iterator<Item = (Place, u64)> {
        Place::ALL.into_iter().zip(self.0)
    }

    /// The bytes added since `earlier`, an older copy of these counts.
    #[must_use]
    pub fn since(mut self, earlier: &PlaceBytes) -> PlaceBytes {
        for (sum, before) in self.0.iter_mut().zip(&earlier.0) {
            *sum = sum.saturating_sub(*before);
        }
        self
    }

    /// The sum of both.
    #[must_use]
    pub fn plus(mut self, other: &PlaceBytes) -> PlaceBytes {
        for (sum, more) in self.0.iter_mut().zip(&other.0) {
            *sum += more;
        }
        self
    }

    /// The bytes from all places.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

/// Serializes as a map from place names to bytes.
impl Serialize for PlaceBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(Place::COUNT))?;
        for (place, bytes) in self.each() {
            map.serialize_entry(place.name(), &bytes)?;
        }
        map.end()
    }
}

/// Counts bytes of reads by place, except the origin's. One thread adds.
#[derive(Debug, Default)]
pub struct PlaceCounters([AtomicU64; Place::COUNT]);

impl PlaceCounters {
    /// Counts a completed read, or part of one, of `len_bytes` that `place` served. The origin is not
    /// counted: its bytes are the rest of all bytes read.
    pub fn add(&self, place: Place, len_bytes: usize) {
        if place != Place::Origin {
            self.0[place as usize].fetch_add(len_bytes as u64, Ordering::Relaxed);
        }
    }

    /// The byte counts so far.
    pub fn read(&self) -> PlaceBytes {
        PlaceBytes(std::array::from_fn(|at| self.0[at].load(Ordering::Relaxed)))
    }
}

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

fn line(text: &mut String, name: &str, labels: &[(&str, &str)], value: &str) {
    text.push_str(&series_name(name, labels));
    text.push(' ');
    text.push_str(value);
    text.push('\n');
}

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

/// The label value of the series that collects the excess.
pub const OTHER: &str = "other";
const MAX_SERIES: usize = 1000;
const MAX_LABEL_BYTES: usize = 256;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn values_with_the_same_labels_add_up_and_only_counters_outlive_their_source() {
        let mut first = Snapshot::new();
        first.count(&TARGET_READS, &["a"], 2);
        first.count(&TARGET_CONNECTIONS, &["a"], 5);
        let mut second = Snapshot::new();
        second.count(&TARGET_READS, &["a"], 3);
        second.count(&TARGET_READS, &["b"], 7);
        second.add(&first.clone().ended());
        let series: Vec<_> = second.series().collect();
        let a = ["a".to_owned()];
        let b = ["b".to_owned()];
        assert_eq!(
            series,
            [(&TARGET_READS, &a[..], &Value::Count(5)), (&TARGET_READS, &b[..], &Value::Count(7))]
        );
        assert_eq!(second.sum(&TARGET_READS), 12.0);
        assert_eq!((first.sum(&TARGET_CONNECTIONS), second.sum(&TARGET_CONNECTIONS)), (5.0, 0.0));
    }

    #[test]
    fn the_number_of_series_is_bounded_and_nothing_is_lost() {
        let mut snapshot = Snapshot::new();
        for node in 0..5000 {
            snapshot.count(&PEER_READS, &[&node.to_string()], 1);
        }
        snapshot.count(&PEER_READS, &["7"], 1);
        assert_eq!(snapshot.series().count(), MAX_SERIES + 1);
        assert_eq!(snapshot.sum(&PEER_READS), 5001.0);
        let other = snapshot.series().find(|(_, labels, _)| labels[0] == OTHER);
        assert_eq!(other.expect("it is there").2, &Value::Count(4000));
    }

    #[test]
    fn a_long_label_is_cut_between_characters() {
        let label = "é".repeat(200);
        assert_eq!(shortened(&label), "é".repeat(128));
        assert_eq!(shortened(&format!("x{label}")), format!("x{}", "é".repeat(127)));
    }

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
