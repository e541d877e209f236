//! The data of a report as JSON.

use serde_json::{Map, Value, json};

use super::run::Report;
use crate::metrics::Histogram;

impl Report {
    /// The data as one JSON object. Times are in seconds, lengths in bytes.
    pub fn to_json(&self) -> String {
        let timeline = &self.timeline;
        let buckets = timeline.buckets().map(|(begin, len, counts)| {
            let mut bucket = json!(counts);
            bucket["begin_s"] = begin.as_secs_f64().into();
            bucket["seconds"] = len.as_secs_f64().into();
            bucket
        });
        let setting = |(name, value): &(String, String)| (name.clone(), value.clone().into());
        let mut data = json!({
            "name": self.name,
            "seconds": timeline.time().as_secs_f64(),
            "total": timeline.total(),
            "reads": self.reads,
            "facts": self.facts,
            "tiers": self.tiers,
            "epochs": timeline.epochs(),
            "epochs_left_out": timeline.epochs_left_out(),
            "buckets": buckets.collect::<Vec<_>>(),
            "wait_s": histogram(timeline.waits()), // durations of the calls for a batch
            "settings": self.settings.iter().map(setting).collect::<Map<_, _>>(),
            "advice": self.advice(),
        });
        if let Some(store) = &self.store {
            data["store"] = json!(store);
        }
        if let Some(latency) = &self.latency {
            data["latency_s"] = histogram(latency);
        }
        data.to_string()
    }
}

/// The non-empty buckets: for each, its upper bound and the number of durations between the bucket before and
/// this bound.
fn histogram(durations: &Histogram) -> Value {
    let counts = durations.octaves().into_iter().enumerate().filter(|(_, count)| *count > 0);
    let bucket = |(octave, count)| {
        let limit = Histogram::octave_limit(octave).map(|limit| limit.as_secs_f64());
        json!({"le": limit, "count": count})
    };
    counts.map(bucket).collect()
}
