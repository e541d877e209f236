//! The library's metrics: every counter under a fixed name, in snapshots.
//!
//! `table` names all metrics: counters, gauges, histograms and information, with unit, labels and help.
//! Structs such as `TargetStats` do the counting. [`Measured`] converts their counters into a [`Snapshot`] on
//! request, so names and labels cost nothing until then. `openmetrics.rs` writes a snapshot as text; the library's
//! module `exporter` collects the snapshot of a process and serves that text over HTTP.
//!
//! Invariants: a snapshot contains only metrics of the table, each with the labels given there; the number
//! of series of a metric is bounded, whatever the label values are.
//!
//! Read `table.rs` first. `places.rs` counts bytes of reads by the [`Place`] that served them.

mod histogram;
mod openmetrics;
mod places;
mod table;

pub use histogram::{Histogram, Recorder, Summary};
pub use openmetrics::CONTENT_TYPE;
pub use places::{Place, PlaceBytes, PlaceCounters};
pub use table::*;

use std::collections::BTreeMap;

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
    /// A number, for example of events or bytes.
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
    /// By the name of the metric's family.
    families: BTreeMap<&'static str, Family>,
}

/// A metric, and its values by label values.
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

/// The first [`MAX_LABEL_BYTES`] of a label, or fewer so that no character is cut: a label may be a path of any length.
fn shortened(label: &str) -> String {
    let mut end = label.len().min(MAX_LABEL_BYTES);
    while !label.is_char_boundary(end) {
        end -= 1;
    }
    label[..end].to_owned()
}

/// The label value of the series that collects the excess.
pub const OTHER: &str = "other";
/// Maximum number of series of a metric, besides the one for the excess.
const MAX_SERIES: usize = 1000;
const MAX_LABEL_BYTES: usize = 256;

#[cfg(test)]
mod tests {
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
}
