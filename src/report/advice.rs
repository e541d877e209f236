//! Advice on what to try next: a sentence, with a figure, for each cause of waits, and for damaged samples, for
//! repeated reading of the same bytes and for small batches. Only the most useful are given.

use super::cause::Cause;
use super::run::Report;
use super::text::{bytes, count, duration, percent, share};
use crate::metrics::Place;

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
        let others = [damaged_data(self), amplification(self), tiny_batches(self)];
        let mut found: Vec<(f64, String)> =
            others.into_iter().flatten().chain(waits).filter(|(saved, _)| *saved >= 0.01).collect();
        if found.is_empty() {
            return vec![format!(
                "The loader kept up: {} of the time was the consumer's own, and {} waiting.",
                percent(share(total.consumer, time)),
                percent(share(total.stalls.total(), time))
            )];
        }
        found.sort_by(|one, other| other.0.total_cmp(&one.0));
        found.into_iter().map(|(_, sentence)| sentence).take(3).collect()
    }
}

/// The cause as a noun phrase, and its remedy.
fn remedy(report: &Report, cause: Cause) -> String {
    let facts = &report.facts;
    let remedy = match cause {
        Cause::Start => {
            "call prepare() before the model is built, which allocates the window meanwhile"
                .to_owned()
        }
        Cause::Order if facts.is_grouped => "try larger batches".to_owned(),
        Cause::Order => {
            "try the grouped order, which plans chunks instead of samples, or larger batches"
                .to_owned()
        }
        Cause::Window => format!(
            "it has {}, which {} buffers did not fit: keep fewer batches, or double it (--window, window in Python, \
             window_bytes in C)",
            bytes(facts.window_bytes),
            count(report.reads.over_window)
        ),
        Cause::Network => faster_reads(report),
        Cause::Checksum => format!(
            "one thread computes them: give it a processor of its own (--cpus; there are {}), or divide the data set \
             among more ranks",
            facts.cpus
        ),
        Cause::Copy => format!(
            "{} were gathered: use more threads (--copy-threads), or take samples where they lie",
            bytes(report.reads.copied_bytes)
        ),
    };
    format!("{}: {remedy}", cause.noun())
}

fn faster_reads(report: &Report) -> String {
    let places = &report.timeline.total().places;
    let full = report.tiers.iter().find(|tier| tier.used_bytes * 20 >= tier.capacity_bytes * 19);
    if let Some(tier) = full {
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
             file:FOLDER:SIZE) keeps them",
            bytes(report.facts.data_bytes)
        );
    }
    let seconds = report.timeline.time().as_secs_f64();
    format!(
        "they came at {}/s over {} queue pairs: dlfs doctor ADDRESS measures whether the path, the target or one queue \
         pair bounds that",
        bytes((report.reads.bytes as f64 / seconds) as u64),
        report.facts.queue_pairs
    )
}

/// The share of the run's time that the advice may save, and the sentence. The share is 1 for damaged data, to
/// put that sentence first.
type Advice = Option<(f64, String)>;

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

/// Advice for a run that reads much more than it delivers, and whose consumer waits for reads.
fn amplification(report: &Report) -> Advice {
    let total = report.timeline.total();
    let network = share(total.stalls.of(Cause::Network), report.timeline.time());
    let factor = report.reads.bytes as f64 / total.bytes.max(1) as f64;
    let remedy = if report.facts.is_grouped {
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
        (network * (1.0 - 1.0 / factor), text)
    })
}

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
