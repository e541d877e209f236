//! The data of a report as JSON.

use serde::Serialize;

use super::advice;
use super::run::{Facts, Reads, Report, StoreUse, TierUse};
use super::timeline::{Counts, Epoch};
use crate::metrics::Histogram;

/// The data of a report, as programs read it.
#[derive(Serialize)]
struct Data<'a> {
    name: &'a str,
    seconds: f64,
    total: &'a Counts,
    reads: &'a Reads,
    facts: &'a Facts,
    tiers: &'a [TierUse],
    #[serde(skip_serializing_if = "Option::is_none")]
    store: Option<StoreUse>,
    epochs: &'a [Epoch],
    epochs_left_out: u64,
    buckets: Vec<Bucket<'a>>,
    /// Durations of the calls for a batch.
    wait_s: Vec<HistogramBucket>,
    #[serde(skip_serializing_if = "Option::is_none")]
    latency_s: Option<Vec<HistogramBucket>>,
    settings: serde_json::Map<String, serde_json::Value>,
    advice: Vec<String>,
}

#[derive(Serialize)]
struct Bucket<'a> {
    begin_s: f64,
    seconds: f64,
    #[serde(flatten)]
    counts: &'a Counts,
}

/// How many durations were at most so long, and longer than those of the bucket before.
#[derive(Serialize)]
struct HistogramBucket {
    /// `None`: no limit.
    le: Option<f64>,
    count: u64,
}

/// One JSON object. Times are in seconds, lengths in bytes.
pub(super) fn of(report: &Report) -> String {
    let timeline = &report.timeline;
    let buckets = timeline.buckets().map(|(begin, len, counts)| Bucket {
        begin_s: begin.as_secs_f64(),
        seconds: len.as_secs_f64(),
        counts,
    });
    let setting = |(name, value): &(String, String)| (name.clone(), value.clone().into());
    let data = Data {
        name: &report.name,
        seconds: timeline.time().as_secs_f64(),
        total: timeline.total(),
        reads: &report.reads,
        facts: &report.facts,
        tiers: &report.tiers,
        store: report.store,
        epochs: timeline.epochs(),
        epochs_left_out: timeline.epochs_left_out(),
        buckets: buckets.collect(),
        wait_s: histogram(timeline.waits()),
        latency_s: report.latency.as_ref().map(histogram),
        settings: report.settings.iter().map(setting).collect(),
        advice: advice::of(report),
    };
    serde_json::to_string(&data).expect("numbers and text can be written")
}

/// The buckets with a count.
fn histogram(durations: &Histogram) -> Vec<HistogramBucket> {
    let counts = durations.octaves().into_iter().enumerate().filter(|(_, count)| *count > 0);
    let bucket = |(octave, count)| HistogramBucket {
        le: Histogram::octave_limit(octave).map(|limit| limit.as_secs_f64()),
        count,
    };
    counts.map(bucket).collect()
}
