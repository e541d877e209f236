//! The rows: which cases are compared, and the bar for each comparison.

use Bar::{AtLeast, AtMost, Shown};
use Measure::*;

use crate::slice::Slice;

/// One row of the table.
pub(crate) struct Row {
    pub(crate) id: &'static str,
    pub(crate) title: &'static str,
    /// The case that is judged.
    pub(crate) ours: &'static str,
    /// The case that it is compared with; none: a value by itself.
    pub(crate) other: Option<&'static str>,
    pub(crate) measure: Measure,
    pub(crate) bar: Bar,
}

/// The quantity that a row compares.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Measure {
    OpsPerS,
    BytesPerS,
    HostCpuPerMillion,
    HostCpuPerGb,
    HostCpuShare,
    TargetCpuShare,
    WallMs,
    AllocationsPerBatch,
}

/// The bar of a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Bar {
    AtLeast(f64),
    AtMost(f64),
    /// None: the value is only shown.
    Shown,
}

impl Measure {
    pub(crate) fn of(self, slice: &Slice) -> f64 {
        match self {
            Measure::OpsPerS => slice.ops_s(),
            Measure::BytesPerS => slice.bytes_s(),
            Measure::HostCpuPerMillion => slice.host_cpu_s_per_million(),
            Measure::HostCpuPerGb => slice.host_cpu_s_per_gb(),
            Measure::HostCpuShare => 100.0 * slice.host_cpu_s / slice.wall_s,
            Measure::TargetCpuShare => {
                slice.target_cpu_s.map_or(f64::NAN, |cpu| 100.0 * cpu / slice.wall_s)
            }
            Measure::WallMs => 1e3 * slice.wall_s,
            Measure::AllocationsPerBatch => slice.allocations as f64 / slice.done.batches as f64,
        }
    }

    /// The value with its unit, as text.
    pub(crate) fn show(self, value: f64) -> String {
        match self {
            Measure::OpsPerS => format!("{:.0} k/s", value / 1e3),
            Measure::BytesPerS => format!("{:.2} GB/s", value / 1e9),
            Measure::HostCpuPerMillion => format!("{value:.3} s/M"),
            Measure::HostCpuPerGb => format!("{value:.3} s/GB"),
            Measure::HostCpuShare | Measure::TargetCpuShare => format!("{value:.2} %"),
            Measure::WallMs => format!("{value:.1} ms"),
            Measure::AllocationsPerBatch => format!("{value:.2}"),
        }
    }
}

impl Bar {
    /// Returns whether an estimate meets the bar: the interval reaches it, and the median is within 3 % of it.
    pub(crate) fn met(self, low: f64, median: f64, high: f64) -> Option<bool> {
        match self {
            Bar::AtLeast(bar) => Some(high >= bar && median >= 0.97 * bar),
            Bar::AtMost(bar) => Some(low <= bar && 0.97 * median <= bar),
            Bar::Shown => None,
        }
    }

    pub(crate) fn show(self) -> String {
        match self {
            Bar::AtLeast(bar) => format!(">= {bar:.2}"),
            Bar::AtMost(bar) => format!("<= {bar:.2}"),
            Bar::Shown => String::new(),
        }
    }
}

/// All rows, in the order of the table.
pub(crate) fn all() -> impl Iterator<Item = &'static Row> {
    [TCP, SAMPLES, LOCAL, VERIFICATION, SCALING, BEYOND].into_iter().flatten()
}

/// A comparison of two cases.
const fn ratio(
    id: &'static str,
    title: &'static str,
    ours: &'static str,
    other: &'static str,
    measure: Measure,
    bar: Bar,
) -> Row {
    Row { id, title, ours, other: Some(other), measure, bar }
}

/// A value by itself.
const fn value(
    id: &'static str,
    title: &'static str,
    ours: &'static str,
    measure: Measure,
    bar: Bar,
) -> Row {
    Row { id, title, ours, other: None, measure, bar }
}

/// Blocks over NVMe/TCP, beside raw TCP and SPDK.
const TCP: &[Row] = &[
    ratio(
        "tcp-4k-32",
        "4 KiB, depth 32 / ping-pong",
        "raw-4k-32",
        "ping-pong-4k-32",
        OpsPerS,
        AtLeast(0.80),
    ),
    ratio(
        "tcp-4k-128",
        "4 KiB, depth 128 / ping-pong",
        "raw-4k-128",
        "ping-pong-4k-128",
        OpsPerS,
        AtLeast(0.80),
    ),
    ratio(
        "spdk-4k-32",
        "4 KiB, depth 32 / SPDK on SPDK",
        "raw-4k-32",
        "spdk-4k-32",
        OpsPerS,
        AtLeast(1.0),
    ),
    ratio(
        "spdk-4k-128",
        "4 KiB, depth 128 / SPDK on SPDK",
        "raw-4k-128",
        "spdk-4k-128",
        OpsPerS,
        AtLeast(1.0),
    ),
    ratio(
        "spdk-128k",
        "128 KiB, depth 32 / SPDK on SPDK",
        "raw-128k-32",
        "spdk-128k-32",
        BytesPerS,
        Shown,
    ),
    ratio(
        "on-spdk-4k-32",
        "our host on SPDK's target, 4 KiB, 32 / SPDK's host",
        "raw-4k-32-on-spdk",
        "spdk-4k-32",
        OpsPerS,
        AtLeast(1.0),
    ),
    ratio(
        "on-spdk-4k-128",
        "our host on SPDK's target, 4 KiB, 128 / SPDK's host",
        "raw-4k-128-on-spdk",
        "spdk-4k-128",
        OpsPerS,
        AtLeast(1.0),
    ),
    ratio(
        "on-spdk-128k",
        "our host on SPDK's target, 128 KiB / SPDK's host",
        "raw-128k-32-on-spdk",
        "spdk-128k-32",
        BytesPerS,
        AtLeast(1.0),
    ),
    ratio(
        "spdk-on-ours-4k-32",
        "SPDK's host on our target, 4 KiB, 32 / on its own",
        "spdk-4k-32-on-ours",
        "spdk-4k-32",
        OpsPerS,
        AtLeast(1.0),
    ),
    ratio(
        "spdk-on-ours-4k-128",
        "SPDK's host on our target, 4 KiB, 128 / on its own",
        "spdk-4k-128-on-ours",
        "spdk-4k-128",
        OpsPerS,
        AtLeast(1.0),
    ),
    ratio(
        "spdk-on-ours-128k",
        "SPDK's host on our target, 128 KiB / on its own",
        "spdk-128k-32-on-ours",
        "spdk-128k-32",
        BytesPerS,
        AtLeast(1.0),
    ),
    ratio(
        "cpu-4k-32",
        "host CPU, 4 KiB, 32 / SPDK's host",
        "raw-4k-32",
        "spdk-4k-32",
        HostCpuPerGb,
        AtMost(1.0),
    ),
    ratio(
        "cpu-4k-128",
        "host CPU, 4 KiB, 128 / SPDK's host",
        "raw-4k-128",
        "spdk-4k-128",
        HostCpuPerGb,
        AtMost(1.0),
    ),
    ratio(
        "cpu-128k",
        "host CPU, 128 KiB / SPDK's host",
        "raw-128k-32",
        "spdk-128k-32",
        HostCpuPerGb,
        AtMost(1.0),
    ),
    ratio(
        "tcp-128k",
        "128 KiB, depth 32 / raw TCP",
        "raw-128k-32",
        "stream-128k",
        BytesPerS,
        AtLeast(0.95),
    ),
    ratio("iperf3", "raw TCP / iperf3", "stream-128k", "iperf3-128k", BytesPerS, Shown),
    ratio(
        "digests",
        "128 KiB, both digests / without",
        "raw-128k-32-digests",
        "raw-128k-32",
        BytesPerS,
        AtLeast(0.85),
    ),
    ratio(
        "tls-4k-128",
        "4 KiB, depth 128, TLS / plain",
        "tls-4k-128",
        "raw-4k-128",
        OpsPerS,
        Shown,
    ),
    ratio(
        "tls-128k",
        "128 KiB, depth 32, TLS / plain",
        "tls-128k-32",
        "raw-128k-32",
        BytesPerS,
        Shown,
    ),
    ratio(
        "tls-4k-128-spdk",
        "4 KiB, depth 128, TLS / SPDK on SPDK, TLS",
        "tls-4k-128",
        "spdk-tls-4k-128",
        OpsPerS,
        AtLeast(1.0),
    ),
    ratio(
        "tls-128k-spdk",
        "128 KiB, depth 32, TLS / SPDK on SPDK, TLS",
        "tls-128k-32",
        "spdk-tls-128k-32",
        BytesPerS,
        AtLeast(1.0),
    ),
    ratio(
        "tls-openssl",
        "128 KiB, depth 32, TLS / openssl speed of AES-128-GCM",
        "tls-128k-32",
        "openssl-speed",
        BytesPerS,
        Shown,
    ),
];

/// Samples over NVMe/TCP, and grouped order beside global.
const SAMPLES: &[Row] = &[
    ratio(
        "samples-4k-grouped",
        "samples of 4 KiB, grouped / 128 KiB reads",
        "samples-4k-grouped",
        "raw-128k-32",
        BytesPerS,
        AtLeast(0.75),
    ),
    ratio(
        "files",
        "samples of 4 KiB, grouped, TCP / open-read-close, warm",
        "samples-4k-grouped",
        "files-4k",
        OpsPerS,
        Shown,
    ),
    ratio(
        "samples-4k-global",
        "samples of 4 KiB, global / 4 KiB reads, 128",
        "samples-4k-global",
        "raw-4k-128",
        OpsPerS,
        AtLeast(0.80),
    ),
    ratio(
        "samples-110k-grouped",
        "samples of 110 KiB, grouped / 128 KiB reads",
        "samples-110k-grouped",
        "raw-128k-32",
        BytesPerS,
        AtLeast(0.90),
    ),
    ratio(
        "samples-110k-global",
        "samples of 110 KiB, global / 128 KiB reads",
        "samples-110k-global",
        "raw-128k-32",
        BytesPerS,
        AtLeast(0.90),
    ),
    ratio(
        "samples-8m-grouped",
        "samples of 8 MiB, grouped / 128 KiB reads",
        "samples-8m-grouped",
        "raw-128k-32",
        BytesPerS,
        Shown,
    ),
    ratio(
        "samples-8m-global",
        "samples of 8 MiB, global / 128 KiB reads",
        "samples-8m-global",
        "raw-128k-32",
        BytesPerS,
        Shown,
    ),
    ratio(
        "orders-100",
        "100 B, TCP, grouped / global, same window",
        "orders-100-grouped",
        "orders-100-global",
        OpsPerS,
        AtLeast(0.90),
    ),
    ratio(
        "orders-100-file",
        "100 B, page cache, grouped / global, same window",
        "orders-100-file-grouped",
        "orders-100-file-global",
        OpsPerS,
        AtLeast(0.90),
    ),
    ratio(
        "orders-1k",
        "1 KiB, TCP, grouped / global, same window",
        "orders-1k-grouped",
        "orders-1k-global",
        OpsPerS,
        AtLeast(0.90),
    ),
    ratio(
        "orders-1k-file",
        "1 KiB, page cache, grouped / global, same window",
        "orders-1k-file-grouped",
        "orders-1k-file-global",
        OpsPerS,
        AtLeast(0.90),
    ),
    ratio(
        "orders-4k",
        "4 KiB, TCP, grouped / global, same window",
        "orders-4k-grouped",
        "orders-4k-global",
        OpsPerS,
        AtLeast(0.90),
    ),
    ratio(
        "orders-4k-file",
        "4 KiB, page cache, grouped / global, same window",
        "orders-4k-file-grouped",
        "orders-4k-file-global",
        OpsPerS,
        AtLeast(0.90),
    ),
    ratio(
        "orders-110k",
        "110 KiB, TCP, grouped / global, same window",
        "orders-110k-grouped",
        "orders-110k-global",
        OpsPerS,
        AtLeast(0.90),
    ),
    ratio(
        "orders-110k-file",
        "110 KiB, page cache, grouped / global, same window",
        "orders-110k-file-grouped",
        "orders-110k-file-global",
        OpsPerS,
        AtLeast(0.90),
    ),
];

/// Files, the page cache and memory.
const LOCAL: &[Row] = &[
    ratio(
        "direct-4k",
        "file, O_DIRECT, 4 KiB / fio io_uring",
        "direct-4k",
        "fio-4k",
        OpsPerS,
        AtLeast(0.95),
    ),
    ratio(
        "direct-128k",
        "file, O_DIRECT, 128 KiB / fio io_uring",
        "direct-128k",
        "fio-128k",
        OpsPerS,
        AtLeast(0.95),
    ),
    ratio(
        "cached-grouped",
        "page cache, grouped, CPU / pread loop",
        "cached-grouped",
        "pread",
        HostCpuPerMillion,
        AtMost(0.60),
    ),
    ratio(
        "cached-pieces",
        "page cache, grouped, CPU / pread of 256 KiB pieces into 128 MiB",
        "cached-grouped",
        "pread-pieces",
        HostCpuPerMillion,
        Shown,
    ),
    ratio(
        "cached-global",
        "page cache, global, CPU / pread loop",
        "cached-global",
        "pread",
        HostCpuPerMillion,
        AtMost(1.2),
    ),
    ratio(
        "memory",
        "memory, global / memcpy and CRC32C",
        "memory-global",
        "memcpy-crc32c",
        OpsPerS,
        AtLeast(0.75),
    ),
];

/// The cost of checksums.
const VERIFICATION: &[Row] = &[
    ratio(
        "verify-4k-grouped",
        "verified / not: 4 KiB, grouped, TCP",
        "samples-4k-grouped",
        "samples-4k-grouped-unverified",
        BytesPerS,
        AtLeast(0.85),
    ),
    ratio(
        "verify-4k-global",
        "verified / not: 4 KiB, global, TCP",
        "samples-4k-global",
        "samples-4k-global-unverified",
        BytesPerS,
        AtLeast(0.85),
    ),
    ratio(
        "verify-110k-grouped",
        "verified / not: 110 KiB, grouped, TCP",
        "samples-110k-grouped",
        "samples-110k-grouped-unverified",
        BytesPerS,
        AtLeast(0.85),
    ),
    ratio(
        "verify-110k-global",
        "verified / not: 110 KiB, global, TCP",
        "samples-110k-global",
        "samples-110k-global-unverified",
        BytesPerS,
        AtLeast(0.85),
    ),
    ratio(
        "verify-cached-grouped",
        "verified / not: page cache, grouped",
        "cached-grouped",
        "cached-grouped-unverified",
        BytesPerS,
        AtLeast(0.85),
    ),
    ratio(
        "verify-memory",
        "verified / not: memory, global",
        "memory-global",
        "memory-global-unverified",
        BytesPerS,
        AtLeast(0.85),
    ),
];

/// Several queue pairs.
const SCALING: &[Row] = &[
    ratio(
        "scaling-4k-2-1",
        "4 KiB, 2 queue pairs of 32, 1 poller / 1 queue pair",
        "scaling-4k-2-1",
        "scaling-4k-1-1",
        OpsPerS,
        Shown,
    ),
    ratio(
        "scaling-4k-2-2",
        "4 KiB, 2 queue pairs of 32, 2 pollers / 1 queue pair",
        "scaling-4k-2-2",
        "scaling-4k-1-1",
        OpsPerS,
        Shown,
    ),
    ratio(
        "scaling-4k-4-1",
        "4 KiB, 4 queue pairs of 32, 1 poller / 1 queue pair",
        "scaling-4k-4-1",
        "scaling-4k-1-1",
        OpsPerS,
        Shown,
    ),
    ratio(
        "scaling-4k-4-4",
        "4 KiB, 4 queue pairs of 32, 4 pollers / 1 queue pair",
        "scaling-4k-4-4",
        "scaling-4k-1-1",
        OpsPerS,
        Shown,
    ),
    ratio(
        "scaling-4k-8-1",
        "4 KiB, 8 queue pairs of 32, 1 poller / 1 queue pair",
        "scaling-4k-8-1",
        "scaling-4k-1-1",
        OpsPerS,
        Shown,
    ),
    ratio(
        "scaling-4k-8-8",
        "4 KiB, 8 queue pairs of 32, 8 pollers / 1 queue pair",
        "scaling-4k-8-8",
        "scaling-4k-1-1",
        OpsPerS,
        Shown,
    ),
    ratio(
        "scaling-128k-2-1",
        "128 KiB, 2 queue pairs of 32, 1 poller / 1 queue pair",
        "scaling-128k-2-1",
        "scaling-128k-1-1",
        BytesPerS,
        Shown,
    ),
    ratio(
        "scaling-128k-2-2",
        "128 KiB, 2 queue pairs of 32, 2 pollers / 1 queue pair",
        "scaling-128k-2-2",
        "scaling-128k-1-1",
        BytesPerS,
        Shown,
    ),
    ratio(
        "scaling-128k-4-1",
        "128 KiB, 4 queue pairs of 32, 1 poller / 1 queue pair",
        "scaling-128k-4-1",
        "scaling-128k-1-1",
        BytesPerS,
        Shown,
    ),
    ratio(
        "scaling-128k-4-4",
        "128 KiB, 4 queue pairs of 32, 4 pollers / 1 queue pair",
        "scaling-128k-4-4",
        "scaling-128k-1-1",
        BytesPerS,
        Shown,
    ),
    ratio(
        "scaling-128k-8-1",
        "128 KiB, 8 queue pairs of 32, 1 poller / 1 queue pair",
        "scaling-128k-8-1",
        "scaling-128k-1-1",
        BytesPerS,
        Shown,
    ),
    ratio(
        "scaling-128k-8-8",
        "128 KiB, 8 queue pairs of 32, 8 pollers / 1 queue pair",
        "scaling-128k-8-8",
        "scaling-128k-1-1",
        BytesPerS,
        Shown,
    ),
];

/// Beside rates: idling, the first batch, opening, allocations.
const BEYOND: &[Row] = &[
    value("idle-host", "idle host, of a core", "idle", HostCpuShare, AtMost(1.0)),
    value("idle-target", "idle target, of a core", "idle", TargetCpuShare, AtMost(1.0)),
    value(
        "first-100-grouped",
        "first batch of 1 M samples of 100 B, grouped, ms",
        "first-batch-100-grouped",
        WallMs,
        AtMost(50.0),
    ),
    value(
        "first-100-global",
        "first batch of 1 M samples of 100 B, global, ms",
        "first-batch-100-global",
        WallMs,
        AtMost(50.0),
    ),
    value(
        "first-4k-grouped",
        "first batch of 1 M samples of 4 KiB, grouped, ms",
        "first-batch-4k-grouped",
        WallMs,
        AtMost(50.0),
    ),
    value(
        "first-4k-global",
        "first batch of 1 M samples of 4 KiB, global, ms",
        "first-batch-4k-global",
        WallMs,
        AtMost(50.0),
    ),
    value(
        "first-110k-grouped",
        "first batch of 10,000 samples of 110 KiB, grouped, ms",
        "first-batch-110k-grouped",
        WallMs,
        AtMost(50.0),
    ),
    value(
        "first-110k-global",
        "first batch of 10,000 samples of 110 KiB, global, ms",
        "first-batch-110k-global",
        WallMs,
        AtMost(50.0),
    ),
    value("open", "opening 10 M samples, page cache, ms", "open-10m", WallMs, AtMost(1000.0)),
    value(
        "allocations-grouped",
        "allocations a batch, grouped, TCP",
        "samples-4k-grouped",
        AllocationsPerBatch,
        AtMost(0.004),
    ),
    value(
        "allocations-global",
        "allocations a batch, global, TCP",
        "samples-4k-global",
        AllocationsPerBatch,
        AtMost(0.004),
    ),
    value(
        "allocations-cached-grouped",
        "allocations a batch, grouped, page cache",
        "cached-grouped",
        AllocationsPerBatch,
        AtMost(0.004),
    ),
    value(
        "allocations-cached-global",
        "allocations a batch, global, page cache",
        "cached-global",
        AllocationsPerBatch,
        AtMost(0.004),
    ),
];
