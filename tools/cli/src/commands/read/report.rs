//! The report of a run, as text or as one line of JSON.

use serde_json::json;

use dlfs::cache::{Cache, CacheStats};
use dlfs::dataset::Dataset;
use dlfs::peers::{PeerStats, Peers};
use dlfs::prefetch::LoaderStats;
use dlfs::report::Stalls;
use dlfs::store::StoreStats;

use super::ReadArgs;
use crate::args::engines;
use crate::exit::Failure;
use crate::mix::{SourceCount, SourceCounts};
use crate::out::{self, Out, joined, known};
use crate::reading::RowCounts;
use crate::run_stats::RunReport;

/// Prints the report of a run over `datasets`.
pub(super) fn print_report(
    args: &ReadArgs,
    datasets: &[Dataset],
    sources: &SourceCounts,
    rows: Option<RowCounts>,
    report: &RunReport,
    stats: &LoaderStats,
) -> Result<(), Failure> {
    let image = datasets[0].image(); // tiers, peers and stores do not go with a mixture
    let engine = engines(datasets.iter().map(Dataset::image));
    let mixed = args.mix.is_given().then_some(sources);
    let tiers = image.tiers().map(Cache::stats);
    let store = image.store().map(|store| store.stats());
    // The exchange of a store is not counted as reads through peers.
    let peers = image.peers().filter(|_| store.is_none()).map(Peers::stats);
    let mut out = Out::new();
    if args.run.json {
        let facts = json!({
            "stalls_s": stats.stalls,
            "commands": stats.read.commands,
            "read_bytes": stats.read.bytes,
            "engine": engine,
            "resident": stats.resident, // samples in the window at the end
            "pages": stats.pages,
            "loader": stats, // all counters, as in Python
        });
        let some = known(json!({
            "tiers": tiers,
            "peers": peers,
            "store": store,
            "places": image.places(), // with the same keys as in Python and C
            "sources": mixed.map(|sources| &sources.0),
            "rows": rows.map(|rows| rows.json(report.time())),
        }));
        out.json(&joined(&joined(report, facts), some))?;
        return out.flush();
    }
    print_rate(&mut out, report)?;
    let of_rows = rows.map(|rows| rows.line(report.time())).into_iter();
    let lines = of_rows.chain(mixed.iter().flat_map(|sources| sources.lines()));
    let mut lines = lines.chain(report.lines()).chain(stall_line(&stats.stalls));
    lines.try_for_each(|line| out.line(line))?;
    out.line(format!(
        "  commands   {}, {} read; engine {engine}",
        out::count(stats.read.commands),
        out::bytes(stats.read.bytes)
    ))?;
    if let Some(pages) = stats.pages {
        let resident = out::counted(stats.resident, "sample");
        out.line(format!("  window     {pages}; {resident} in it at the end"))?;
    }
    let lines = tiers.iter().flat_map(tier_lines).chain(peers.iter().map(peer_line));
    lines.chain(store.iter().map(store_line)).try_for_each(|line| out.line(line))?;
    let verified = verified(datasets, sources);
    out.line(format!("  order      CRC32C {:08x}; {verified}", report.order_crc32c))?;
    out.flush()
}

/// Prints the line with the totals and the rates.
pub(super) fn print_rate(out: &mut Out, report: &RunReport) -> Result<(), Failure> {
    let samples = out.bold(&out::counted(report.samples, "sample"));
    let line = format!(
        "{samples}, {}, in {}: {} samples/s, {}",
        out::bytes(report.bytes),
        out::duration(report.time()),
        out.bold(&out::count(report.samples_per_s as u64)),
        out.bold(&out::rate(report.bytes, report.time())),
    );
    out.line(line)
}

/// The line about the causes of stalls, the longest first, without those below a hundredth; `None` without a stall.
fn stall_line(stalls: &Stalls) -> Option<String> {
    let least = stalls.total() / 100;
    let mut causes: Vec<_> = stalls.each().filter(|(_, waited)| *waited > least).collect();
    causes.sort_by_key(|(_, waited)| std::cmp::Reverse(*waited));
    let causes = causes
        .iter()
        .map(|(cause, waited)| format!("{} {:.2} s", cause.name(), waited.as_secs_f64()));
    let causes: Vec<String> = causes.collect();
    (!causes.is_empty()).then(|| format!("  stalls     {}", causes.join(", ")))
}

/// Describes the verification. A plain folder stores no checksums: the first read of a sample only learns its
/// checksum.
fn verified(datasets: &[Dataset], sources: &SourceCounts) -> String {
    let mut is_learned = false;
    let mut learned = 0;
    let mut later = 0;
    for (dataset, SourceCount { samples, .. }) in datasets.iter().zip(&sources.0) {
        let first = dataset.directory().learned().map(|learned| learned.count().min(*samples));
        is_learned |= first.is_some();
        learned += first.unwrap_or(0);
        later += samples - first.unwrap_or(0);
    }
    if !is_learned {
        return "every sample verified".to_owned();
    }
    let checksums = out::counted(learned, "checksum");
    let later = out::counted(later, "later read");
    format!("{checksums} learned at first read, {later} verified")
}

/// The lines about the tiers and the origin.
fn tier_lines(stats: &CacheStats) -> Vec<String> {
    let mut lines = Vec::new();
    for tier in &stats.tiers {
        let mut line = format!(
            "  tier       {}: {} hits, {}, {:.0} us each; {} copied, {} of {} used",
            tier.name,
            out::count(tier.hits),
            out::bytes(tier.hit_bytes),
            1e6 * tier.hit_s / tier.hits.max(1) as f64,
            out::bytes(tier.fill_bytes),
            out::bytes(tier.used_bytes),
            out::bytes(tier.capacity_bytes)
        );
        for (count, what) in [
            (tier.restored, "reused"),
            (tier.left, "evicted"),
            (tier.damaged, "damaged and read again"),
        ] {
            if count > 0 {
                line.push_str(&format!(", {} {what}", out::count(count)));
            }
        }
        if tier.is_off {
            line.push_str(", switched off");
        }
        lines.push(line);
    }
    if let Some(died) = &stats.died {
        lines.push(format!("  tiers      copy nothing more: {died}"));
    }
    let origin = stats.origin;
    lines.push(format!(
        "  origin     {} reads, {}, {:.0} us each; and {} by copying",
        out::count(origin.reads),
        out::bytes(origin.bytes),
        1e6 * origin.read_s / origin.reads.max(1) as f64,
        out::bytes(origin.copier_bytes)
    ));
    lines
}

/// The line about reads from other nodes.
fn peer_line(stats: &PeerStats) -> String {
    let used: Vec<_> = stats.nodes.iter().filter(|node| node.reads > 0).collect();
    let (reads, bytes) =
        used.iter().fold((0, 0), |(reads, bytes), node| (reads + node.reads, bytes + node.bytes));
    let seconds: f64 = used.iter().map(|node| node.read_s).sum();
    let mut line = format!(
        "  peers      {} of {} other nodes: {} reads, {}, {:.0} us each",
        used.len(),
        stats.nodes.len().saturating_sub(1),
        out::count(reads),
        out::bytes(bytes),
        1e6 * seconds / reads.max(1) as f64
    );
    for (bytes, what) in [
        (stats.not_there_bytes, "not there"),
        (stats.rerouted_bytes, "read elsewhere"),
        (stats.mismatched_bytes, "differed and were read again"),
    ] {
        if bytes > 0 {
            line.push_str(&format!("; {} {what}", out::bytes(bytes)));
        }
    }
    line
}

/// The line about this rank's store.
fn store_line(stats: &StoreStats) -> String {
    let mut line = format!(
        "  store      {} now, {} at most; {} staged",
        out::bytes(stats.held_bytes),
        out::bytes(stats.peak_bytes),
        out::counted(stats.staged, "sample"),
    );
    for (count, what) in [
        (stats.found, "found there"),
        (stats.received, "received"),
        (stats.from_origin, "from the data set in place of a rank"),
        (stats.deleted, "deleted"),
        (stats.mismatched, "damaged and fetched elsewhere"),
    ] {
        if count > 0 {
            line.push_str(&format!(", {} {what}", out::count(count)));
        }
    }
    line
}
