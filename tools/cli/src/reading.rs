//! A reading run: takes batches or rows of tokens from a loader until it ends or is stopped, and measures batch
//! latency, CPU time, stalls, and a checksum of the order.

use std::borrow::Borrow;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::Serialize;
use serde_json::{Value, json};

use dlfs::checksum::crc32c_append;
use dlfs::dataset::{Dataset, Loader, Mixture, TokenBatch, TokenLoader, TokenOptions};
use dlfs::directory::Directory;
use dlfs::prefetch::LoaderOptions;
use dlfs::reader::Batch;
use dlfs::tokens::{Arrays, Columns, Layout, TokensMut};
use dlfs::units::SampleId;
use dlfs::{Error, ErrorKind, Result};

use crate::exit::Failure;
use crate::out::{self, Meter};

/// The figures of one run as printed by `--json`; the field names are an interface.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct RunReport {
    /// Samples delivered.
    pub(crate) samples: u64,
    /// Bytes of these samples.
    pub(crate) bytes: u64,
    /// Time from [`RunStats::start`] to [`RunStats::finish`].
    pub(crate) seconds: f64,
    /// `samples / seconds`.
    pub(crate) samples_per_s: f64,
    /// The caller's wait for each batch.
    pub(crate) batch_us: Percentiles,
    /// CPU time of all threads of this process.
    pub(crate) cpu_s: CpuSeconds,
    /// The part of `seconds` that the caller waited for batches.
    pub(crate) stall_s: f64,
    /// CRC32C over the ids in the order of delivery, each as 8 bytes little-endian.
    pub(crate) order_crc32c: u32,
}

impl RunReport {
    /// `seconds` as a duration.
    pub(crate) fn time(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    /// CPU seconds per GB (10^9 bytes) of samples.
    pub(crate) fn cpu_s_per_gb(&self) -> f64 {
        let gigabytes = self.bytes as f64 / 1e9;
        if gigabytes > 0.0 { (self.cpu_s.user + self.cpu_s.sys) / gigabytes } else { 0.0 }
    }

    /// Latency, stalls and CPU time as lines of the report.
    pub(crate) fn lines(&self) -> [String; 2] {
        let Percentiles { p50, p99, max } = self.batch_us;
        let share = if self.seconds > 0.0 { 100.0 * self.stall_s / self.seconds } else { 0.0 };
        [
            format!(
                "  batch      p50 {}, p99 {}, max {}; stalled {:.2} s, {share:.0} % of the time",
                out::micros(p50),
                out::micros(p99),
                out::micros(max),
                self.stall_s
            ),
            format!(
                "  CPU        {:.2} s user, {:.2} s system: {:.2} s a GB",
                self.cpu_s.user,
                self.cpu_s.sys,
                self.cpu_s_per_gb()
            ),
        ]
    }
}

/// Latency of a batch in microseconds.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Percentiles {
    pub(crate) p50: u64,
    pub(crate) p99: u64,
    pub(crate) max: u64,
}

/// CPU time in seconds.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct CpuSeconds {
    user: f64,
    sys: f64,
}

/// Collects a [`RunReport`] while batches arrive.
pub(crate) struct RunStats {
    started: Instant,
    cpu_before: CpuClock,
    samples: u64,
    bytes: u64,
    waited: Duration,
    batches: Histogram<u64>,
    order_crc32c: u32,
}

impl RunStats {
    /// Starts to measure.
    pub(crate) fn start() -> RunStats {
        RunStats {
            started: Instant::now(),
            cpu_before: CpuClock::now(),
            samples: 0,
            bytes: 0,
            waited: Duration::ZERO,
            batches: Histogram::new(3).expect("3 significant digits are allowed"),
            order_crc32c: 0,
        }
    }

    /// Counts a batch that arrived after a wait of `waited`: the ids of its samples in order, and their total
    /// length.
    pub(crate) fn batch(&mut self, ids: impl Iterator<Item = u64>, bytes: u64, waited: Duration) {
        for id in ids {
            self.order_crc32c = crc32c_append(self.order_crc32c, &id.to_le_bytes());
            self.samples += 1;
        }
        self.bytes += bytes;
        self.waited += waited;
        let waited_us = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
        let recorded = self.batches.record(waited_us.min(MAX_WAIT_US));
        recorded.expect("the histogram grows as needed");
    }

    /// Samples and bytes so far.
    pub(crate) fn so_far(&self) -> (u64, u64) {
        (self.samples, self.bytes)
    }

    /// The figures so far.
    pub(crate) fn finish(&self) -> RunReport {
        let time = self.started.elapsed();
        RunReport {
            samples: self.samples,
            bytes: self.bytes,
            seconds: time.as_secs_f64(),
            samples_per_s: out::per_second(self.samples, time),
            batch_us: Percentiles {
                p50: self.batches.value_at_quantile(0.50),
                p99: self.batches.value_at_quantile(0.99),
                max: self.batches.max(),
            },
            cpu_s: CpuClock::now().since(&self.cpu_before),
            stall_s: self.waited.as_secs_f64(),
            order_crc32c: self.order_crc32c,
        }
    }
}

/// CPU time of this process. The total comes from its CPU clock, in nanoseconds; the split into user and
/// kernel mode comes from `/proc/self/stat`, in ticks. Without `/proc`, all of it counts as user time.
struct CpuClock {
    total_s: f64,
    user_ticks: u64,
    sys_ticks: u64,
}

impl CpuClock {
    fn now() -> CpuClock {
        let total = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let (user_ticks, sys_ticks) = ticks_of(&stat).unwrap_or((0, 0));
        let total_s = total.tv_sec as f64 + total.tv_nsec as f64 / 1e9;
        CpuClock { total_s, user_ticks, sys_ticks }
    }

    fn since(&self, earlier: &CpuClock) -> CpuSeconds {
        let total = (self.total_s - earlier.total_s).max(0.0);
        let user = self.user_ticks.saturating_sub(earlier.user_ticks) as f64;
        let sys = self.sys_ticks.saturating_sub(earlier.sys_ticks) as f64;
        let sys_share = if user + sys > 0.0 { sys / (user + sys) } else { 0.0 };
        CpuSeconds { user: total * (1.0 - sys_share), sys: total * sys_share }
    }
}

/// Fields 14 and 15 of `/proc/PID/stat`: ticks in user mode and in the kernel.
fn ticks_of(stat: &str) -> Option<(u64, u64)> {
    // The command's name, field 2, may contain spaces and parentheses.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// An hour: every call's deadline is shorter.
const MAX_WAIT_US: u64 = 3_600_000_000;

/// The end of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The last batch of the last epoch was delivered.
    Complete,
    /// The run was stopped between two batches.
    Stopped,
}

/// Checks that everything in the order was delivered. A loader that ends without an error should have done
/// so; commands check nevertheless.
///
/// # Errors
/// `Internal`: samples are missing.
pub(crate) fn check_complete(delivered: u64, owed: u64) -> Result<(), Error> {
    if delivered == owed {
        return Ok(());
    }
    let text = format!("the run ended after {delivered} samples, and the order has {owed}");
    Err(Error::new(ErrorKind::Internal, text).hint("this is a bug in dlfs: please report it"))
}

/// The number of samples, up to `most`, that fit in `most_bytes` if all are as long as the longest of every
/// `step`th sample.
pub(crate) fn samples_within(
    directory: &Directory,
    step: usize,
    most: usize,
    most_bytes: u64,
) -> usize {
    let ids = (0..directory.num_samples()).step_by(step.max(1)).map(SampleId);
    let longest = ids.filter_map(|id| directory.len_bytes(id)).max().unwrap_or(0);
    (most_bytes / u64::from(longest).max(1)).clamp(1, most as u64) as usize
}

/// Checks that there is something to read.
///
/// # Errors
/// `NotFound`: the data set is empty.
pub(crate) fn check_some(directory: &Directory) -> Result<(), Error> {
    if directory.num_live() > 0 {
        return Ok(());
    }
    let text = "there is no sample to read: all of the data set are deleted";
    Err(Error::new(ErrorKind::NotFound, text))
}

/// The ids of a batch. In a mixture, the number of the data set is in the upper bits, as in Python's keys.
pub(crate) fn keys(batch: &Batch) -> impl Iterator<Item = u64> + '_ {
    let sources = batch.sources();
    let source = move |at: usize| sources.map_or(0, |sources| u64::from(sources[at]));
    batch.ids().enumerate().map(move |(at, id)| source(at) << ID_BITS | id.0)
}

/// A data set has at most 2^40 samples.
const ID_BITS: u32 = 40;

/// The batches of a run, one at a time.
pub(crate) trait Batches {
    /// The loader behind them.
    fn loader(&self) -> &Loader;

    /// Waits for the next batch; `false` at the end.
    ///
    /// # Errors
    /// Errors of the loader.
    fn take(&mut self) -> Result<bool, Error>;

    /// The samples of the batch.
    fn samples(&self) -> &Batch;

    /// Makes of the batch what a job uses.
    ///
    /// # Errors
    /// The samples cannot be used so.
    fn unpack(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// The rows so far, if batches are rows of tokens.
    fn rows(&self) -> Option<RowsRead> {
        None
    }
}

/// Batches of samples.
pub(crate) struct Samples<L> {
    loader: L,
    batch: Batch,
}

impl<L: Borrow<Loader>> Samples<L> {
    pub(crate) fn of(loader: L) -> Samples<L> {
        Samples { loader, batch: Batch::new() }
    }
}

impl<L: Borrow<Loader>> Batches for Samples<L> {
    fn loader(&self) -> &Loader {
        self.loader.borrow()
    }

    fn take(&mut self) -> Result<bool, Error> {
        self.loader.borrow().next_into(&mut self.batch, &mut ())
    }

    fn samples(&self) -> &Batch {
        &self.batch
    }
}

/// Takes batches until the end, or until `each` returns `false`. `each` receives every batch, and
/// the loader with the state after it.
///
/// # Errors
/// Errors of the loader and of `each`.
pub(crate) fn read_batches(
    batches: &mut dyn Batches,
    stats: &mut RunStats,
    meter: &mut Meter,
    mut each: impl FnMut(&mut RunStats, &Batch, &Loader) -> Result<bool, Failure>,
) -> Result<End, Failure> {
    let mut samples = 0;
    let mut bytes = 0;
    loop {
        let asked = Instant::now();
        if !batches.take()? {
            return Ok(End::Complete);
        }
        let waited = asked.elapsed();
        batches.unpack()?;
        let batch = batches.samples();
        let batch_bytes = (0..batch.len()).map(|index| batch.bytes(index).len() as u64).sum();
        stats.batch(keys(batch), batch_bytes, waited);
        samples += batch.len() as u64;
        bytes += batch_bytes;
        meter.update(samples, bytes);
        if !each(stats, batch, batches.loader())? {
            return Ok(End::Stopped);
        }
    }
}

/// The loader of rows over `mixture`, or over `dataset`.
///
/// # Errors
/// As [`Dataset::token_loader`].
pub(crate) fn token_loader(
    dataset: &Dataset,
    mixture: Option<&Mixture>,
    rows: TokenOptions,
    options: LoaderOptions,
) -> Result<TokenLoader> {
    match mixture {
        Some(mixture) => mixture.token_loader(rows, options),
        None => dataset.token_loader(rows, options),
    }
}

/// Batches of rows, each written into the same arrays.
pub(crate) struct RowReader {
    loader: TokenLoader,
    batch: TokenBatch,
    columns: Columns,
    tokens: Vec<i64>,
    loss_mask: Option<Vec<u8>>,
    read: RowsRead,
}

/// The rows of a run.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RowsRead {
    /// The length of rows at the epoch's start.
    seq_len: u32,
    rows: u64,
    /// Tokens with a label: all of a row but the last one.
    tokens: u64,
    /// Columns of all rows, and those without a token.
    columns: u64,
    padding: u64,
}

impl RowReader {
    pub(crate) fn new(loader: TokenLoader) -> RowReader {
        let options = loader.options();
        let columns = Columns::all(options.seq_len);
        let len = loader.most_elements(&columns).expect("whole rows of any length");
        let loss_mask = options.loss_field.as_ref().map(|_| vec![0; len]);
        let read = RowsRead { seq_len: options.seq_len, ..RowsRead::default() };
        let batch = TokenBatch::new();
        RowReader { loader, batch, columns, tokens: vec![0; len], loss_mask, read }
    }
}

impl Batches for RowReader {
    fn loader(&self) -> &Loader {
        self.loader.loader()
    }

    fn take(&mut self) -> Result<bool, Error> {
        self.loader.next(&mut self.batch, &mut ())
    }

    fn samples(&self) -> &Batch {
        self.batch.samples()
    }

    fn unpack(&mut self) -> Result<(), Error> {
        let mut arrays = Arrays {
            tokens: TokensMut::I64(&mut self.tokens),
            segment_ids: None,
            position_ids: None,
            loss_mask: self.loss_mask.as_deref_mut(),
            cu_seqlens: None,
            sample_ids: None,
        };
        self.batch.fill(&self.columns, &mut arrays)?;
        self.read.count(self.batch.layout());
        Ok(())
    }

    fn rows(&self) -> Option<RowsRead> {
        Some(self.read)
    }
}

impl RowsRead {
    fn count(&mut self, layout: &Layout) {
        let Layout { num_rows, seq_len, segments } = layout;
        for (at, last) in segments.iter().enumerate() {
            if segments.get(at + 1).is_none_or(|next| next.row != last.row) {
                let filled = u64::from(last.column + last.len);
                self.tokens += filled - 1;
                self.padding += u64::from(*seq_len) + 1 - filled;
            }
        }
        self.rows += u64::from(*num_rows);
        self.columns += u64::from(*num_rows) * (u64::from(*seq_len) + 1);
    }

    /// The figures of a run of `time`; the names are an interface.
    pub(crate) fn json(&self, time: Duration) -> Value {
        json!({
            "rows": self.rows,
            "seq_len": self.seq_len,
            "tokens": self.tokens,
            "tokens_per_s": out::per_second(self.tokens, time),
            "padding": padding_share(self.padding, self.columns),
        })
    }

    /// The line of a report about a run of `time`.
    pub(crate) fn line(&self, time: Duration) -> String {
        let padding = padding_share(self.padding, self.columns);
        format!(
            "  rows       {} of {}: {} tokens/s, {:.2} % padding",
            out::counted(self.rows, "row"),
            out::counted(self.seq_len.into(), "token"),
            out::count(out::per_second(self.tokens, time) as u64),
            100.0 * padding,
        )
    }
}

/// The part of `columns` that is padding.
pub(crate) fn padding_share(padding: u64, columns: u64) -> f64 {
    padding as f64 / columns.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_of_seconds_are_told_as_such() {
        let mut stats = RunStats::start();
        for _ in 0..99 {
            stats.batch([0].into_iter(), 1, Duration::from_micros(100));
        }
        stats.batch([0].into_iter(), 1, Duration::from_secs(3));
        let report = stats.finish();
        assert!((100..=101).contains(&report.batch_us.p50), "{:?}", report.batch_us);
        assert!((2_990_000..=3_010_000).contains(&report.batch_us.max), "{:?}", report.batch_us);
        assert!((report.stall_s - 3.0099).abs() < 1e-6);
    }

    #[test]
    fn the_order_checksum_is_over_little_endian_ids_whatever_the_batches() {
        let mut whole = RunStats::start();
        whole.batch([1, 2, 3].into_iter(), 30, Duration::from_micros(5));
        let mut parts = RunStats::start();
        parts.batch([1].into_iter(), 10, Duration::ZERO);
        parts.batch([2, 3].into_iter(), 20, Duration::ZERO);
        let mut bytes = Vec::new();
        for id in [1_u64, 2, 3] {
            bytes.extend(id.to_le_bytes());
        }
        assert_eq!(whole.finish().order_crc32c, crc32c::crc32c(&bytes));
        assert_eq!(parts.finish().order_crc32c, crc32c::crc32c(&bytes));
        assert_eq!(whole.so_far(), (3, 30));
    }

    #[test]
    fn user_and_kernel_ticks_are_found_behind_a_hostile_command_name() {
        let stat = "1 (a) b (c) S 0 1 1 0 -1 4194560 1 2 3 4 70 30 0 0 20 0 1 0 1 1 1";
        assert_eq!(ticks_of(stat), Some((70, 30)));
        assert_eq!(ticks_of(""), None);
    }

    #[test]
    fn cpu_time_grows() {
        let before = CpuClock::now();
        let mut sum = 0_u64;
        for i in 0..5_000_000_u64 {
            sum = std::hint::black_box(sum.wrapping_add(i * i));
        }
        let used = CpuClock::now().since(&before);
        assert!(used.user + used.sys > 0.0);
    }
}
