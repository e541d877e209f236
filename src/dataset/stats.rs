//! Adds up the counters of several readers or loaders.

use crate::prefetch::LoaderStats;
use crate::reader::ReadStats;

/// The sum of two loaders' counters.
pub fn sum(a: LoaderStats, b: LoaderStats) -> LoaderStats {
    let mut read = a.read;
    add_difference(&mut read, ReadStats::default(), b.read);
    let stalls = a.stalls.plus(&b.stalls);
    let mut latency = a.latency;
    latency.add(&b.latency);
    LoaderStats {
        read,
        latency,
        batches: a.batches + b.batches,
        samples: a.samples + b.samples,
        sample_bytes: a.sample_bytes + b.sample_bytes,
        skipped: a.skipped + b.skipped,
        copied_bytes: a.copied_bytes + b.copied_bytes,
        over_window: a.over_window + b.over_window,
        rewritten: a.rewritten + b.rewritten,
        stall_s: stalls.total().as_secs_f64(),
        stalls,
        blocked_s: a.blocked_s + b.blocked_s,
        window_bytes: a.window_bytes + b.window_bytes,
        window_used_bytes: a.window_used_bytes + b.window_used_bytes,
        registered_bytes: a.registered_bytes + b.registered_bytes,
        resident: a.resident + b.resident,
        pages: b.pages.or(a.pages),
    }
}

/// Adds to `total` the counts of one reader between `before` and `after`.
pub(super) fn add_difference(total: &mut ReadStats, before: ReadStats, after: ReadStats) {
    let ReadStats { commands, bytes, places, repeated, corrupt, verified } = after;
    total.commands += commands - before.commands;
    total.bytes += bytes - before.bytes;
    total.places = total.places.plus(&places.since(&before.places));
    total.repeated += repeated - before.repeated;
    total.corrupt += corrupt - before.corrupt;
    total.verified += verified - before.verified;
}
