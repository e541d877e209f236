//! A reading run: takes batches of samples, or of rows of tokens, from a loader until it ends or is stopped.

use std::borrow::Borrow;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use dlfs::dataset::{Dataset, Loader, Mixture, TokenBatch, TokenLoader, TokenOptions};
use dlfs::directory::Directory;
use dlfs::prefetch::LoaderOptions;
use dlfs::reader::Batch;
use dlfs::tokens::{Arrays, Columns, Layout, TokensMut};
use dlfs::units::SampleId;
use dlfs::{Error, ErrorKind, Result};

use crate::exit::Failure;
use crate::out::{self, Meter};
use crate::run_stats::RunStats;

/// The end of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The last batch of the last epoch was delivered.
    Complete,
    /// The run was stopped between two batches.
    Stopped,
}

/// Checks that all `owed` samples were delivered. A loader that ends without an error has delivered them; commands
/// check nevertheless.
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

/// The number of samples, from 1 to `most`, that fit in `most_bytes` if all are as long as the longest of every
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

/// The ids of a batch. In a mixture, the bits from [`ID_BITS`] on have the number of the data set, as in Python's keys.
pub(crate) fn keys(batch: &Batch) -> impl Iterator<Item = u64> + '_ {
    let sources = batch.sources();
    let source = move |at: usize| sources.map_or(0, |sources| u64::from(sources[at]));
    batch.ids().enumerate().map(move |(at, id)| source(at) << ID_BITS | id.0)
}

/// A data set has at most 2^40 samples.
const ID_BITS: u32 = 40;

/// The batches of a run, one at a time.
pub(crate) trait Batches {
    /// The loader of the batches.
    fn loader(&self) -> &Loader;

    /// Waits for the next batch; `false` at the end.
    ///
    /// # Errors
    /// Errors of the loader.
    fn take(&mut self) -> Result<bool, Error>;

    /// The samples of the batch.
    fn samples(&self) -> &Batch;

    /// Converts the batch into the arrays of a job, for rows of tokens.
    ///
    /// # Errors
    /// The samples cannot be converted.
    fn unpack(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// The rows so far, if batches are rows of tokens.
    fn rows(&self) -> Option<RowCounts> {
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

/// The loader of rows of tokens over `mixture`; without a mixture, over `dataset`.
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

/// Batches of rows of tokens. All are written into the same arrays.
pub(crate) struct RowReader {
    loader: TokenLoader,
    batch: TokenBatch,
    columns: Columns,
    tokens: Vec<i64>,
    /// `None` without a field of losses.
    loss_mask: Option<Vec<u8>>,
    counts: RowCounts,
}

/// Counters of the rows that a run has delivered.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RowCounts {
    /// The length of rows at the epoch's start, in tokens.
    seq_len: u32,
    rows: u64,
    /// Tokens with a label: all of a row but the last one.
    tokens: u64,
    /// Columns of all rows: each row has one more than its length in tokens.
    columns: u64,
    /// Columns without a token.
    padding: u64,
}

impl RowReader {
    pub(crate) fn new(loader: TokenLoader) -> RowReader {
        let options = loader.options();
        let columns = Columns::all(options.seq_len);
        let len = loader.most_elements(&columns).expect("whole rows of any length");
        let loss_mask = options.loss_field.as_ref().map(|_| vec![0; len]);
        let counts = RowCounts { seq_len: options.seq_len, ..RowCounts::default() };
        let batch = TokenBatch::new();
        RowReader { loader, batch, columns, tokens: vec![0; len], loss_mask, counts }
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
        self.counts.count(self.batch.layout());
        Ok(())
    }

    fn rows(&self) -> Option<RowCounts> {
        Some(self.counts)
    }
}

impl RowCounts {
    /// Counts the rows of a batch.
    fn count(&mut self, layout: &Layout) {
        let Layout { num_rows, seq_len, segments } = layout;
        for (at, last) in segments.iter().enumerate() {
            // `last` is the last segment of its row.
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

/// The share of `columns` that is padding, from 0 to 1.
pub(crate) fn padding_share(padding: u64, columns: u64) -> f64 {
    padding as f64 / columns.max(1) as f64
}
