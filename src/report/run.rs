//! The report on a run: its contents, their JSON, and advice on what to try next.
//!
//! There is one sentence of advice, with a figure, for each cause of waits, for damaged samples, for a consumer that
//! takes most of the time itself, for reading the same bytes repeatedly, and for small batches. Only the most useful
//! sentences are given.

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::stalls::Cause;
use super::text::{bytes, count, duration, percent, share};
use super::timeline::Timeline;
use crate::metrics::{Histogram, Place, PlaceBytes};

/// All data of a run's report.
#[derive(Debug, Clone)]
pub struct Report {
    /// The data set, or the data sets of a mixture.
    pub name: String,
    /// Options of the run with their values, as the user would write them.
    pub settings: Vec<(String, String)>,
    /// Facts that follow from the options, for the advice on what to try next.
    pub facts: Facts,
    /// Counters of reads.
    pub reads: Reads,
    /// The tiers, fastest first.
    pub tiers: Vec<TierUse>,
    /// The store of the rank, if it has one.
    pub store: Option<StoreUse>,
    /// Latency of read commands from submission to completion; `None` if it was not measured.
    pub latency: Option<Histogram>,
    /// The course of the run over time.
    pub timeline: Timeline,
}

/// Facts that follow from the options and the data set.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Facts {
    /// Bytes of all samples of the data set.
    pub data_bytes: u64,
    /// Capacity of the window, in bytes.
    pub window_bytes: u64,
    /// True if the order visits whole chunks.
    pub is_grouped: bool,
    /// Queue pairs per namespace.
    pub queue_pairs: u64,
    /// Processors of this machine that the process may use.
    pub cpus: u64,
}

/// Counters of reads and of the window.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Reads {
    /// Read commands completed.
    pub commands: u64,
    /// Bytes that these commands requested.
    pub bytes: u64,
    /// Reads that were repeated after an error or a wrong checksum.
    pub repeated: u64,
    /// Samples left out because they could not be read.
    pub skipped: u64,
    /// Buffers allocated outside the window.
    pub over_window: u64,
    /// Bytes copied to gather batches into one buffer.
    pub copied_bytes: u64,
    /// Samples in cached memory that something had overwritten.
    pub rewritten: u64,
}

/// The store of a rank, and the bytes brought into it since it was opened. The rank reads only from the
/// store.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct StoreUse {
    /// Bytes of the pages that the store holds now.
    pub held_bytes: u64,
    /// Bytes that were brought from the data set before an epoch.
    pub staged_bytes: u64,
    /// Bytes that came from other ranks.
    pub received_bytes: u64,
    /// Bytes of these that came from ranks on the same node.
    pub near_bytes: u64,
    /// Bytes that came from the data set because the rank that held them was late or dead, or a copy was damaged.
    pub from_origin_bytes: u64,
}

/// A tier, and its counters.
#[derive(Debug, Clone, Default, Serialize)]
pub struct TierUse {
    /// The tier's name as the user wrote it.
    pub name: String,
    /// The tier's quota in bytes.
    pub capacity_bytes: u64,
    /// Bytes that are reserved.
    pub used_bytes: u64,
    /// Bytes served by the tier.
    pub hit_bytes: u64,
}

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

/// The non-empty buckets: for each, its upper bound in seconds (`null` for the last bucket, which has none) and its
/// number of durations.
fn histogram(durations: &Histogram) -> Value {
    let counts = durations.octaves().into_iter().enumerate().filter(|(_, count)| *count > 0);
    let bucket = |(octave, count)| {
        let limit = Histogram::octave_limit(octave).map(|limit| limit.as_secs_f64());
        json!({"le": limit, "count": count})
    };
    counts.map(bucket).collect()
}

impl Report {
    /// Advice on what to try next: up to three sentences, each with its figure, the most useful first. Samples
    /// left out as unreadable come first of all. Other advice is given only if it may save a hundredth of the time.
    /// If there is none, or if no batch was delivered, one sentence says so.
    pub fn advice(&self) -> Vec<String> {
        let total = self.timeline.total();
        let time = self.timeline.time();
        if total.batches == 0 {
            return vec!["No batch was delivered in 0 s: read some, then report again.".to_owned()];
        }
        let waits = total.stalls.each().map(|(cause, waited)| {
            (
                share(waited, time),
                format!("{} of waiting was for {}.", duration(waited), remedy(self, cause)),
            )
        });
        let others = [damaged_data(self), own_work(self), amplification(self), tiny_batches(self)];
        let mut found: Vec<(f64, String)> =
            others.into_iter().flatten().chain(waits).filter(|(saved, _)| *saved >= 0.01).collect();
        if found.is_empty() {
            return vec![format!(
                "The loader kept up: {} of the time was the consumer's own, and {} waiting. {OVERLAP}",
                percent(share(total.consumer, time)),
                percent(share(total.stalls.total(), time))
            )];
        }
        found.sort_by(|one, other| other.0.total_cmp(&one.0));
        found.into_iter().map(|(_, sentence)| sentence).take(3).collect()
    }
}

/// The cause as a noun phrase, and what to do about it.
fn remedy(report: &Report, cause: Cause) -> String {
    let facts = &report.facts;
    let remedy = match cause {
        Cause::Start => {
            "call prepare() before the model is built, which allocates the window meanwhile"
                .to_owned()
        }
        Cause::Order | Cause::Window if report.reads.over_window > 0 => format!(
            "{} buffers did not fit the window of {}, and were read one at a time: keep fewer batches, or give it more \
             (--window, window in Python, window_bytes in C)",
            count(report.reads.over_window),
            bytes(facts.window_bytes)
        ),
        Cause::Order if facts.is_grouped => "try larger batches".to_owned(),
        Cause::Order => {
            "try the grouped order, which plans chunks instead of samples, or larger batches"
                .to_owned()
        }
        Cause::Window => format!(
            "it has {}: double it (--window, window in Python, window_bytes in C)",
            bytes(facts.window_bytes)
        ),
        Cause::Network => faster_reads(report),
        Cause::Checksum => format!(
            "one thread computes them: give it a processor of its own (--cpus of dlfs read; there are {}), or divide \
             the data set among more ranks",
            facts.cpus
        ),
        Cause::Copy => format!(
            "{} were gathered: use more threads (--copy-threads, copy_threads in Python), or take samples where they \
             lie",
            bytes(report.reads.copied_bytes)
        ),
    };
    format!("{}: {remedy}", cause.noun())
}

/// The remedy for waits for reads.
fn faster_reads(report: &Report) -> String {
    let places = &report.timeline.total().places;
    // A tier that holds all data is full, too. It lacks room only if data come from the origin again behind the first
    // epoch, which reads all from there.
    let epochs = report.timeline.epochs().iter().skip(1);
    let later = epochs.fold(PlaceBytes::default(), |sum, epoch| sum.plus(&epoch.counts.places));
    let is_first = later.total() == 0;
    let comes_again = is_first || later.of(Place::Origin).saturating_mul(20) > later.total();
    let room = report.tiers.iter().fold(0_u64, |sum, tier| sum.saturating_add(tier.capacity_bytes));
    let lacks_room = comes_again && room < report.facts.data_bytes;
    let is_full =
        |tier: &&TierUse| u128::from(tier.used_bytes) * 20 >= u128::from(tier.capacity_bytes) * 19;
    if let Some(tier) = report.tiers.iter().find(is_full).filter(|_| lacks_room) {
        let afar = bytes(places.of(Place::Origin));
        let all = bytes(places.total());
        let capacity = bytes(tier.capacity_bytes);
        return format!(
            "{afar} of {all} came from the origin, and the tier {} is full at {capacity}: give it more",
            tier.name
        );
    }
    if report.timeline.epochs().len() > 1 && report.tiers.is_empty() {
        return format!(
            "each epoch reads the same {} again: a tier of memory or of a local drive (--tier ram:SIZE, --tier \
             file:FOLDER:SIZE; tiers in Python and C) keeps them",
            bytes(report.facts.data_bytes)
        );
    }
    let seconds = report.timeline.time().as_secs_f64();
    format!(
        "on average over the run they came at {}/s over {} queue pairs: dlfs doctor ADDRESS measures whether the path, \
         the target or one queue pair bounds that; at a target of dlfs, dlfs ctl list-hosts tells for how long limits \
         held hosts back (throttled_s)",
        bytes((report.reads.bytes as f64 / seconds) as u64),
        report.facts.queue_pairs
    )
}

/// The share of the run's time that the advice may save, and the sentence. The share is 1 for damaged data, to
/// put that sentence first.
type Advice = Option<(f64, String)>;

/// Advice for a run that left out samples as unreadable.
fn damaged_data(report: &Report) -> Advice {
    let reads = &report.reads;
    (reads.skipped > 0).then(|| {
        let skipped = count(reads.skipped);
        let repeated = count(reads.repeated);
        let text = format!(
            "{skipped} samples could not be read and were left out, after {repeated} repeated reads: run dlfs verify, \
             which names them."
        );
        (1.0, text)
    })
}

/// Advice for a run whose time was mostly the consumer's own. It comes before all other advice but that on damage.
fn own_work(report: &Report) -> Advice {
    let total = report.timeline.total();
    let own = share(total.consumer, report.timeline.time());
    let waited = total.stalls.total();
    (own >= 0.8 && share(waited, report.timeline.time()) >= 0.01).then(|| {
        let text = format!(
            "{} of the time was the consumer's own, between batches, so reading faster saves at most {}. {OVERLAP}",
            percent(own),
            duration(waited)
        );
        (0.99, text)
    })
}

const OVERLAP: &str = "If a GPU waits, overlap decoding, transforms and collating with its step, by more threads or \
                       processes.";

/// Advice for a run that reads much more than it delivers, and whose consumer waits for reads. It comes before that on
/// the waits, which reading less shortens.
fn amplification(report: &Report) -> Advice {
    let total = report.timeline.total();
    let network = share(total.stalls.of(Cause::Network), report.timeline.time());
    let factor = report.reads.bytes as f64 / total.bytes.max(1) as f64;
    let remedy = if report.reads.over_window > 0 {
        "keep fewer batches, or give the window more, so that chunks stay in it"
    } else if report.facts.is_grouped {
        "a larger window, or lanes that are a multiple of the ranks, reads chunks once"
    } else {
        "the grouped order reads each chunk once"
    };
    (factor > 1.5).then(|| {
        let read = bytes(report.reads.bytes);
        let delivered = bytes(total.bytes);
        let text = format!(
            "{read} were read for {delivered} delivered, {factor:.1} times as much: {remedy}."
        );
        (network, text)
    })
}

/// Advice for a run whose batches have fewer than 16 samples on average.
fn tiny_batches(report: &Report) -> Advice {
    let total = report.timeline.total();
    let handing = share(total.handing, report.timeline.time());
    let of_batch = total.samples as f64 / total.batches as f64;
    (of_batch < 16.0).then(|| {
        let batches = count(total.batches);
        let part = percent(handing);
        let text = format!(
            "Handing over {batches} batches of {of_batch:.1} samples took {part} of the time: take larger batches."
        );
        (handing, text)
    })
}
