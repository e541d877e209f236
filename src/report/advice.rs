//! Advice on what to try next: sentences by rule, each with the figure that it follows from.

use std::time::Duration;

use super::cause::Cause;
use super::run::Report;
use super::text::{bytes, count, duration, percent, percent_of, rate, share};
use crate::metrics::Place;

/// How many sentences there are.
const SENTENCES: usize = 3;

/// Three sentences, the most useful first.
pub(super) fn of(report: &Report) -> Vec<String> {
    let mut found: Vec<(f64, String)> = RULES.iter().filter_map(|rule| rule(report)).collect();
    // The largest saving comes first; a stable sort keeps the order of the rules.
    found.sort_by(|one, other| other.0.total_cmp(&one.0));
    found.into_iter().map(|(_, sentence)| sentence).take(SENTENCES).collect()
}

/// The share of the run's time that following the advice may save, and the sentence.
type Advice = Option<(f64, String)>;

/// The last ones always hold, so that there are three.
const RULES: &[fn(&Report) -> Advice] = &[
    damaged_data,
    slow_start,
    reads_again,
    reads_from_afar,
    narrow_window,
    few_processors,
    slow_order,
    gathering,
    amplification,
    tiny_batches,
    kept_up,
    rate_without_stalls,
    bytes_for_each_byte,
    nothing_repeated,
];

fn waited(report: &Report, cause: Cause) -> (Duration, f64) {
    let waited = report.timeline.total().stalls.of(cause);
    (waited, share(waited, report.timeline.time()))
}

/// Advice that is worth `saved` of the time, if that matters.
fn worth(saved: f64, sentence: impl FnOnce() -> String) -> Advice {
    (saved >= 0.01).then(|| (saved, sentence()))
}

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

fn slow_start(report: &Report) -> Advice {
    let (start, saved) = waited(report, Cause::Start);
    worth(saved, || {
        format!(
            "Starting took {} of {}: call prepare() before the model is built, so that the window is allocated \
             meanwhile.",
            duration(start),
            duration(report.timeline.time())
        )
    })
}

/// Later epochs read the same bytes from afar, and there is no tier.
fn reads_again(report: &Report) -> Advice {
    let (network, saved) = waited(report, Cause::Network);
    let is_repeated = report.timeline.epochs().len() > 1 && report.tiers.is_empty();
    is_repeated.then_some(())?;
    worth(saved, || {
        format!(
            "{} of waiting was for reads, and each epoch reads the same {} again: a tier of memory or of a local drive \
             (--tier ram:SIZE, --tier file:FOLDER:SIZE) keeps them.",
            duration(network),
            bytes(report.facts.data_bytes)
        )
    })
}

fn reads_from_afar(report: &Report) -> Advice {
    let (network, saved) = waited(report, Cause::Network);
    let places = &report.timeline.total().places;
    let full = report.tiers.iter().find(|tier| tier.used_bytes * 20 >= tier.capacity_bytes * 19);
    let afar = places.of(Place::Origin);
    worth(saved, || match full {
        Some(tier) => format!(
            "{} of waiting was for reads, {} of {} came from the origin, and the tier {} is full at {}: give it more.",
            duration(network),
            bytes(afar),
            bytes(places.total()),
            tier.name,
            bytes(tier.capacity_bytes)
        ),
        None => format!(
            "{} of waiting was for reads at {}/s: dlfs doctor ADDRESS measures whether the path, the target or one \
             queue pair bounds that ({} now).",
            duration(network),
            bytes((report.reads.bytes as f64 / report.timeline.time().as_secs_f64()) as u64),
            report.facts.queue_pairs
        ),
    })
}

fn narrow_window(report: &Report) -> Advice {
    let (window, saved) = waited(report, Cause::Window);
    worth(saved, || {
        let now = report.facts.window_bytes;
        let outside = report.reads.over_window;
        let outside = match outside {
            0 => String::new(),
            outside => format!(", and {} buffers did not fit it", count(outside)),
        };
        format!(
            "{} of waiting was for room in the window of {}{outside}: keep fewer batches, or double it (--window, \
             prefetch_bytes).",
            duration(window),
            bytes(now)
        )
    })
}

fn few_processors(report: &Report) -> Advice {
    let (checksum, saved) = waited(report, Cause::Checksum);
    worth(saved, || {
        format!(
            "{} of waiting was for checksums, which one thread computes: give it a processor of its own (--cpus; there \
             are {}), or divide the data set among more ranks.",
            duration(checksum),
            report.facts.cpus
        )
    })
}

fn slow_order(report: &Report) -> Advice {
    let (order, saved) = waited(report, Cause::Order);
    worth(saved, || {
        let other = if report.facts.is_grouped {
            "larger batches"
        } else {
            "the grouped order, which plans chunks instead of samples, or larger batches"
        };
        format!("{} of waiting was for the order to be computed: try {other}.", duration(order))
    })
}

fn gathering(report: &Report) -> Advice {
    let (copy, saved) = waited(report, Cause::Copy);
    worth(saved, || {
        format!(
            "{} of waiting was for {} to be gathered into one buffer a batch: use more threads (--copy-threads), \
             or take samples where they lie.",
            duration(copy),
            bytes(report.reads.copied_bytes)
        )
    })
}

/// Much more is read than delivered, and the consumer waits for reads.
fn amplification(report: &Report) -> Advice {
    let total = report.timeline.total();
    let (_, network) = waited(report, Cause::Network);
    let factor = report.reads.bytes as f64 / total.bytes.max(1) as f64;
    (factor > 1.5).then_some(())?;
    worth(network * (1.0 - 1.0 / factor), || {
        let remedy = if report.facts.is_grouped {
            "a larger window, or lanes that are a multiple of the ranks, reads chunks once"
        } else {
            "the grouped order reads each chunk once"
        };
        format!(
            "{} were read for {} delivered, {factor:.1} times as much: {remedy}.",
            bytes(report.reads.bytes),
            bytes(total.bytes)
        )
    })
}

fn tiny_batches(report: &Report) -> Advice {
    let total = report.timeline.total();
    let time = report.timeline.time();
    let of_batch = total.samples as f64 / total.batches.max(1) as f64;
    (of_batch < 16.0).then_some(())?;
    worth(share(total.handing, time), || {
        format!(
            "Handing over {} batches of {of_batch:.1} samples took {} of the time: take larger batches.",
            count(total.batches),
            percent(total.handing, time)
        )
    })
}

fn kept_up(report: &Report) -> Advice {
    let total = report.timeline.total();
    let time = report.timeline.time();
    let waited = share(total.stalls.total(), time);
    (waited < 0.1 && total.batches > 0).then(|| {
        let text = format!(
            "The loader kept up: {} of the time was the consumer's own, and {} waiting, so a faster step comes from \
             the step itself.",
            percent(total.consumer, time),
            percent(total.stalls.total(), time)
        );
        (0.009, text)
    })
}

fn rate_without_stalls(report: &Report) -> Advice {
    let total = report.timeline.total();
    let own = total.time().saturating_sub(total.stalls.total()).as_secs_f64();
    let text = match total.batches {
        0 => "No batch was delivered in 0 s: let the run read some, then report again.".to_owned(),
        _ => format!(
            "Without waiting, the same steps would take {} samples/s instead of {}: that is all there is to gain.",
            rate(total.samples as f64 / own.max(1e-9)),
            rate(total.samples_per_s())
        ),
    };
    Some((0.003, text))
}

fn bytes_for_each_byte(report: &Report) -> Advice {
    let total = report.timeline.total();
    let factor = report.reads.bytes as f64 / total.bytes.max(1) as f64;
    let text = format!(
        "{factor:.2} bytes were read for each byte delivered, {} in {} commands{}.",
        bytes(report.reads.bytes),
        count(report.reads.commands),
        if factor <= 1.2 { ": another order would read no less" } else { "" }
    );
    Some((0.002, text))
}

fn nothing_repeated(report: &Report) -> Advice {
    let time = report.timeline.time();
    let reads = &report.reads;
    let repeated = match reads.repeated {
        0 => "No read had to be repeated".to_owned(),
        repeated => format!(
            "{} reads of {} had to be repeated ({}): dlfs verify tells whether the data or the path is damaged",
            count(repeated),
            count(reads.commands),
            percent_of(repeated as f64 / reads.commands.max(1) as f64)
        ),
    };
    Some((0.001, format!("{repeated}, in {}.", duration(time))))
}
