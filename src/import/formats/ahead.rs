//! Decodes batches of rows on a thread of its own, ahead of those that are taken.

use std::panic::{AssertUnwindSafe, catch_unwind};

use arrow_array::RecordBatch;
use crossbeam::channel::{Receiver, bounded};

use super::arrow_cells::BatchCells;
use super::column::{Cells, Column};
use super::rows::{RowError, RowReader};
use crate::Result;
use crate::import::sources::BadReason;

/// What `decode` gives; a panic of the decoder is an error of the file that it reads.
pub(super) fn caught<T>(
    decode: impl FnOnce() -> std::result::Result<T, String>,
) -> std::result::Result<T, String> {
    let panicked = |_| Err("its decoder panicked".to_owned());
    catch_unwind(AssertUnwindSafe(decode)).unwrap_or_else(panicked)
}

/// Batches that a thread decodes.
pub(super) struct Ahead(Receiver<std::result::Result<RecordBatch, String>>);

impl Ahead {
    /// Starts to decode `batches`; the thread ends with them, or when this is dropped.
    ///
    /// # Errors
    /// The operating system cannot start a thread.
    pub(super) fn start(
        mut batches: impl Iterator<Item = std::result::Result<RecordBatch, String>> + Send + 'static,
    ) -> Result<Ahead> {
        let (send, batch) = bounded(1);
        std::thread::Builder::new().name(NAME.to_owned()).spawn(move || {
            loop {
                let next = match caught(|| batches.next().transpose()).transpose() {
                    Some(next) => next,
                    None => return,
                };
                let is_last = next.is_err();
                if send.send(next).is_err() || is_last {
                    return;
                }
            }
        })?;
        Ok(Ahead(batch))
    }
}

/// The rows of decoded batches.
pub(super) struct AheadRows {
    columns: Vec<Column>,
    batches: Ahead,
    batch: Option<BatchCells>,
}

impl AheadRows {
    /// The rows of `batches`, which have these columns.
    pub(super) fn new(columns: Vec<Column>, batches: Ahead) -> AheadRows {
        AheadRows { columns, batches, batch: None }
    }
}

impl RowReader for AheadRows {
    fn columns(&self) -> &[Column] {
        &self.columns
    }

    fn next_row(&mut self, cells: &mut Cells) -> std::result::Result<bool, RowError> {
        loop {
            if let Some(row) = self.batch.as_mut().and_then(|batch| batch.next_row(cells)) {
                return row.map(|()| true).map_err(RowError::Row);
            }
            self.batch = match self.batches.0.recv() {
                Ok(Ok(batch)) => Some(BatchCells::new(&batch)),
                Ok(Err(what)) => return Err(RowError::File(BadReason::Decoder(what))),
                Err(_) => return Ok(false),
            };
        }
    }
}

/// The name of the thread.
const NAME: &str = "dlfs-decode";
