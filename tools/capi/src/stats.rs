//! Counters of mounts, sequences and stores, and reports on a sequence.

use std::ffi::{c_char, c_int};

use dlfs::buf::Pages;
use dlfs::cache::CacheStats;
use dlfs::prefetch::LoaderStats;
use dlfs::store::StoreStats;
use dlfs::units::SampleId;

use crate::error::{DLFS_E_NOT_FOUND, Failure, guard_long};
use crate::handles::get;
use crate::mount::Fs;
use crate::sequence::Seq;
use crate::structs::{Struct, fill, fill_text};

/// Nothing was read yet, so no memory is allocated.
pub const DLFS_PAGES_NONE: u64 = 0;
/// Pages of 4 KiB.
pub const DLFS_PAGES_BASE: u64 = 1;
/// Transparent huge pages, used where the kernel has them.
pub const DLFS_PAGES_TRANSPARENT: u64 = 2;
/// Huge pages that the administrator reserved (`vm.nr_hugepages`).
pub const DLFS_PAGES_HUGE: u64 = 3;
/// Memory of SPDK.
pub const DLFS_PAGES_DRIVER: u64 = 4;

/// Counters, in this process. Set `size` to `sizeof(dlfs_stats_t)` before it is filled.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Stats {
    /// sizeof(dlfs_stats_t).
    pub size: usize,
    /// Read commands completed, including repeated ones.
    pub commands: u64,
    /// Bytes requested by those commands.
    pub read_bytes: u64,
    /// Reads repeated after an error or a wrong checksum.
    pub repeated: u64,
    /// Samples whose checksum was verified.
    pub verified: u64,
    /// Batches delivered by a sequence.
    pub batches: u64,
    /// Samples of those batches.
    pub samples: u64,
    /// Bytes of those samples.
    pub sample_bytes: u64,
    /// Samples skipped because they could not be read.
    pub skipped: u64,
    /// Bytes copied to gather batches into one buffer.
    pub copied_bytes: u64,
    /// Buffers that did not fit the window and were allocated outside it.
    pub over_window: u64,
    /// The time that dlfs_bread has waited, in ns.
    pub stall_ns: u64,
    /// Reads served by tiers; this and the next fields, up to `origin_bytes`, are only in dlfs_stats.
    pub tier_hits: u64,
    /// Bytes of those reads.
    pub tier_hit_bytes: u64,
    /// Bytes copied into tiers.
    pub tier_copied_bytes: u64,
    /// Copies of an earlier run that were verified and reused.
    pub tier_restored: u64,
    /// Bytes read from the origin, for readers and for copies.
    pub origin_bytes: u64,
    /// Samples of a sequence that are in memory now; 0 unless it reads whole chunks.
    pub resident: u64,
    /// The pages that back the sequence's memory: DLFS_PAGES_...
    pub pages: u64,
}
// SAFETY: numbers alone, the size first.
unsafe impl Struct for Stats {
    const NAME: &str = "dlfs_stats_t";
    const EARLIER: &[usize] = &[std::mem::offset_of!(Stats, resident)];
}

/// Counters of a rank's store. Set `size` to `sizeof(dlfs_store_stats_t)` before it is filled.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct StoreStatsOut {
    /// sizeof(dlfs_store_stats_t).
    pub size: usize,
    /// Bytes of the pages that it has now.
    pub held_bytes: u64,
    /// The most bytes of pages that it ever had.
    pub peak_bytes: u64,
    /// Samples that lay there when it was opened, and were right.
    pub found: u64,
    /// Samples that were brought from the origin before an epoch began.
    pub staged: u64,
    /// Samples that came from the ranks that had them.
    pub received: u64,
    /// Bytes of the pages of those samples.
    pub received_bytes: u64,
    /// The part of `received_bytes` that came from ranks on the same node, and crossed no network.
    pub near_bytes: u64,
    /// Samples that came from the origin, because the rank that had them was late or dead, or a copy was damaged.
    pub from_origin: u64,
    /// Samples that were deleted after their new ranks had them.
    pub deleted: u64,
    /// Samples that a peer delivered with another checksum. None of them was stored.
    pub mismatched: u64,
    /// Steps of exchanges that have become due, those included in which this rank kept its own sample.
    pub steps: u64,
    /// Reads that waited for a sample that had not arrived.
    pub waits: u64,
}
// SAFETY: numbers alone, the size first.
unsafe impl Struct for StoreStatsOut {
    const NAME: &str = "dlfs_store_stats_t";
}

/// Stores the counters of reads by id and name on this mount, and of its tiers. Any thread.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_stats(fs: *const Fs, stats: *mut Stats) -> c_int {
    // SAFETY: by the header `stats` is NULL or points to a struct of the size in its first
    // field, which nobody else accesses meanwhile.
    unsafe {
        fill(stats, || {
            let dataset = &get(fs)?.dataset;
            let read = dataset.stats();
            let mut found = of_loader(LoaderStats { read, ..LoaderStats::default() });
            if let Some(tiers) = dataset.tier_stats() {
                add_tiers(&mut found, &tiers);
            }
            Ok(found)
        })
    }
}

/// Copies the places that the bytes of this mount and of its sequences came from, as one line of JSON
/// and a NUL, to `json`, which has `len` bytes; `needed` as for dlfs_name. Any thread.
///
/// `places`: each tier, each other node and the data set, with `place` ("memory", "drive", "peer",
/// "origin"), `name`, `reads`, `bytes` and `read_s`; then `not_there_bytes`, `not_there_reads`,
/// `rerouted_bytes` and `mismatched_bytes` of peers. The same as `places` of `dlfs read --json`.
///
/// DLFS_E_NOT_FOUND: the mount has no tiers.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_places(
    fs: *const Fs,
    json: *mut c_char,
    len: usize,
    needed: *mut usize,
) -> c_int {
    // SAFETY: by the header `json` is NULL or has `len` bytes, and `needed` is NULL or points to a `size_t`.
    unsafe {
        fill_text(json, len, needed, || {
            let places = get(fs)?.latest().places();
            let none = || Failure::new(DLFS_E_NOT_FOUND, "the mount has no tiers");
            Ok(places.ok_or_else(none)?.to_json())
        })
    }
}

/// Copies the metrics of this process as OpenMetrics text and a NUL to `text`, which has `len` bytes; `needed` as for
/// dlfs_name. Any thread.
///
/// They are the counts of all mounts, sequences, tiers and stores, also of closed ones; docs/metrics.md lists the
/// names. The text is longer after the next mount: ask again where DLFS_E_TOO_SMALL comes.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_metrics(text: *mut c_char, len: usize, needed: *mut usize) -> c_int {
    // SAFETY: by the header `text` is NULL or has `len` bytes, and `needed` is NULL or points to a `size_t`.
    unsafe { fill_text(text, len, needed, || Ok(dlfs::exporter::snapshot().to_openmetrics())) }
}

/// Copies a report of a sequence and a NUL to `html`, which has `len` bytes; `needed` as for
/// dlfs_name. Any thread.
///
/// One HTML page that needs nothing else: what was delivered and waited for, over time, by cause
/// and by place, and what to try next. The text is longer after the next batch: ask again where
/// DLFS_E_TOO_SMALL comes.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_sequence_report(
    seq: *const Seq,
    html: *mut c_char,
    len: usize,
    needed: *mut usize,
) -> c_int {
    // SAFETY: by the header `html` is NULL or has `len` bytes, and `needed` is NULL or points to a `size_t`.
    unsafe { fill_text(html, len, needed, || Ok(get(seq)?.loader.report().to_html())) }
}

/// Copies the newest events of a sequence and a NUL to `json`, which has `len` bytes; `needed` as for
/// dlfs_name. Any thread.
///
/// Chrome's trace format, which https://ui.perfetto.dev shows: calls for batches and what they
/// waited for, bursts of reads, sleeps, and rates; what `dlfs read --trace` writes. The text is
/// longer after the next batch: ask again where DLFS_E_TOO_SMALL comes.
///
/// DLFS_E_NOT_FOUND: `trace` of its options is 0.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_sequence_trace(
    seq: *const Seq,
    json: *mut c_char,
    len: usize,
    needed: *mut usize,
) -> c_int {
    // SAFETY: by the header `json` is NULL or has `len` bytes, and `needed` is NULL or points to a `size_t`.
    unsafe {
        fill_text(json, len, needed, || {
            let none = "the sequence keeps no events: set trace in its options";
            let events = get(seq)?.loader.trace_json();
            events.ok_or_else(|| Failure::new(DLFS_E_NOT_FOUND, none))
        })
    }
}

/// Stores the counters of a sequence. Any thread.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_sequence_stats(seq: *const Seq, stats: *mut Stats) -> c_int {
    // SAFETY: by the header `stats` is NULL or points to a struct of the size in its first
    // field, which nobody else accesses meanwhile.
    unsafe { fill(stats, || Ok(of_loader(get(seq)?.loader.stats()))) }
}

/// 1 while the verified bytes of sample `id` are in the sequence's memory in this process, otherwise 0: always
/// unless it reads whole chunks. Any thread.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_is_resident(seq: *const Seq, id: u64) -> c_int {
    guard_long(|| Ok(get(seq)?.loader.is_resident(SampleId(id)).into())) as c_int
}

/// Stores the counters of the store of a sequence. Any thread.
///
/// DLFS_E_NOT_FOUND: the sequence has no store.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_store_stats(seq: *const Seq, stats: *mut StoreStatsOut) -> c_int {
    // SAFETY: by the header `stats` is NULL or points to a struct of the size in its first
    // field, which nobody else accesses meanwhile.
    unsafe {
        fill(stats, || {
            let done = get(seq)?.loader.store_stats();
            let done = done.ok_or_else(|| Failure::new(DLFS_E_NOT_FOUND, "there is no store"))?;
            Ok(of_store(&done))
        })
    }
}

fn of_store(stats: &StoreStats) -> StoreStatsOut {
    StoreStatsOut {
        size: 0,
        held_bytes: stats.held_bytes,
        peak_bytes: stats.peak_bytes,
        found: stats.found,
        staged: stats.staged,
        received: stats.received,
        received_bytes: stats.received_bytes,
        near_bytes: stats.near_bytes,
        from_origin: stats.from_origin,
        deleted: stats.deleted,
        mismatched: stats.mismatched,
        steps: stats.steps,
        waits: stats.waits,
    }
}

/// The counters of a loader; those of tiers are 0.
fn of_loader(stats: LoaderStats) -> Stats {
    Stats {
        commands: stats.read.commands,
        read_bytes: stats.read.bytes,
        repeated: stats.read.repeated,
        verified: stats.read.verified,
        batches: stats.batches,
        samples: stats.samples,
        sample_bytes: stats.sample_bytes,
        skipped: stats.skipped,
        copied_bytes: stats.copied_bytes,
        over_window: stats.over_window,
        stall_ns: (stats.stall_s * 1e9) as u64,
        resident: stats.resident,
        pages: match stats.pages {
            None => DLFS_PAGES_NONE,
            Some(Pages::Base) => DLFS_PAGES_BASE,
            Some(Pages::Transparent) => DLFS_PAGES_TRANSPARENT,
            Some(Pages::Huge) => DLFS_PAGES_HUGE,
            Some(Pages::Driver) => DLFS_PAGES_DRIVER,
        },
        ..Stats::zeroed()
    }
}

/// Adds the counters of all tiers.
fn add_tiers(stats: &mut Stats, found: &CacheStats) {
    for tier in &found.tiers {
        stats.tier_hits += tier.hits;
        stats.tier_hit_bytes += tier.hit_bytes;
        stats.tier_copied_bytes += tier.fill_bytes;
        stats.tier_restored += tier.restored;
    }
    stats.origin_bytes = found.origin.bytes + found.origin.copier_bytes;
}
