//! Rows of tokens: a loader of them, the arrays that `dlfs read` writes them into, and counts for the report.

use std::time::Duration;

use serde_json::{Value, json};

use dlfs::dataset::{Dataset, Loader, Mixture, TokenBatch, TokenLoader, TokenOptions};
use dlfs::prefetch::LoaderOptions;
use dlfs::reader::Batch;
use dlfs::tokens::{Arrays, Columns, Layout, TokensMut};
use dlfs::{Error, Result};

use crate::epochs::Batches;
use crate::text;

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
            "tokens_per_s": text::per_second(self.tokens, time),
            "padding": padding_share(self.padding, self.columns),
        })
    }

    /// The line of a report about a run of `time`.
    pub(crate) fn line(&self, time: Duration) -> String {
        let padding = padding_share(self.padding, self.columns);
        format!(
            "  rows       {} of {}: {} tokens/s, {:.2} % padding",
            text::counted(self.rows, "row"),
            text::counted(self.seq_len.into(), "token"),
            text::count(text::per_second(self.tokens, time) as u64),
            100.0 * padding,
        )
    }
}

/// The part of `columns` that is padding.
pub(crate) fn padding_share(padding: u64, columns: u64) -> f64 {
    padding as f64 / columns.max(1) as f64
}
