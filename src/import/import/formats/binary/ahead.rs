//! Decodes batches of rows on a separate thread, one batch ahead of the reader.

use std::thread::JoinHandle;

use arrow_array::RecordBatch;
use crossbeam_channel::{Receiver, bounded};

use super::arrays::BatchCells;
use super::panics::guarded;
use crate::import::formats::column::Cells;
use crate::import::formats::{RowError, RowReader};
use crate::import::sources::BadReason;
use crate::import::sources::sample_stream::StreamPlace;
use dlfs_base::Result;

/// A batch of rows.
pub(super) struct Batch {
    pub(super) rows: RecordBatch,
    /// The `offset` of a place from which a reader begins with this batch: for Arrow's file format the number of the
    /// batch, for its stream format an offset in bytes. `None`: no reader begins here.
    pub(super) at: Option<u64>,
}

/// The batches of a file from a place on, in order, or the decoder's message.
pub(super) type Batches = Box<dyn Iterator<Item = Result<Batch, String>> + Send>;

/// The batches that a thread decodes, and the thread.
type Decoding = (Receiver<Result<Batch, String>>, JoinHandle<()>);

/// Starts a thread that decodes `batches`. The thread ends after the last batch or the first error, or when the
/// receiver is dropped.
///
/// # Errors
/// The operating system cannot start a thread.
fn decoded(mut batches: Batches) -> Result<Decoding> {
    let (send, batch) = bounded(0); // the batch ahead waits in its thread
    let thread = std::thread::Builder::new().name(NAME.to_owned()).spawn(move || {
        while let Some(next) = guarded(|| batches.next().transpose()).transpose() {
            let is_last = next.is_err();
            if send.send(next).is_err() || is_last {
                return;
            }
        }
    })?;
    Ok((batch, thread))
}

/// Decoder of a file from a place on.
type Decode = Box<dyn FnOnce(StreamPlace) -> Result<Batches>>;

/// The rows of decoded batches.
#[derive(Default)]
pub(super) struct AheadRows {
    /// The columns of a batch that are read; `None`: all.
    pub(super) read: Option<Vec<usize>>,
    /// The decoder, until it has begun.
    decode: Option<Decode>,
    /// Set if batches begin at the row of a place, not before it.
    is_exact: bool,
    /// The decoded batches; `None` before the decoder has begun.
    batches: Option<Receiver<Result<Batch, String>>>,
    /// The thread that decodes; it ends once the last batch is read.
    thread: Option<JoinHandle<()>>,
    /// The rest of the batch that is read.
    batch: Option<BatchCells>,
    /// The place of the next row.
    next: StreamPlace,
    /// Number of rows to skip before the next row is returned.
    unwanted: u64,
    /// The first row and the offset in bytes of each row group, ascending. If there are any, the place of a row is the
    /// offset of its group and the number of earlier rows in the group.
    pub(super) groups: Vec<(u64, u64)>,
}

impl AheadRows {
    /// The rows of the batches that `decode` returns. `is_exact`: they begin at the row of the place, not before it.
    pub(super) fn new(
        is_exact: bool,
        decode: impl FnOnce(StreamPlace) -> Result<Batches> + 'static,
    ) -> AheadRows {
        AheadRows { decode: Some(Box::new(decode)), is_exact, ..AheadRows::default() }
    }

    /// Continues with the rows of `batch`.
    ///
    /// # Errors
    /// The decoder's message.
    fn enter(&mut self, batch: &Batch) -> Result<(), String> {
        let mut cells = guarded(|| Ok(BatchCells::new(&batch.rows, self.read.as_deref())))?;
        if let Some(at) = batch.at {
            self.next = StreamPlace { offset: at, ..StreamPlace::default() };
        }
        let left_out = cells.leave_out(self.unwanted);
        self.unwanted -= left_out;
        self.next.left_out += left_out;
        self.batch = Some(cells);
        Ok(())
    }
}

impl RowReader for AheadRows {
    fn begin(&mut self, from: StreamPlace) -> Result<()> {
        let Some(decode) = self.decode.take() else { return Ok(()) };
        let (batches, thread) = decoded(decode(from)?)?;
        (self.batches, self.thread) = (Some(batches), Some(thread));
        self.unwanted = if self.is_exact { 0 } else { from.left_out };
        self.next = StreamPlace { left_out: from.left_out - self.unwanted, ..from };
        Ok(())
    }

    fn is_decoded(&self) -> bool {
        self.thread.as_ref().is_some_and(JoinHandle::is_finished)
    }

    fn place(&self, rows: u64) -> StreamPlace {
        let begun = self.groups.partition_point(|(first, _)| *first <= rows);
        let Some((first, offset)) = begun.checked_sub(1).map(|at| self.groups[at]) else {
            return self.next;
        };
        StreamPlace { offset, left_out: rows - first, ..self.next }
    }

    fn next_row(&mut self, cells: &mut Cells) -> Result<bool, RowError> {
        loop {
            if let Some(row) = self.batch.as_mut().and_then(|batch| batch.next_row(cells)) {
                self.next.left_out += 1;
                return row.map(|()| true).map_err(RowError::Row);
            }
            self.batch = None;
            let Some(Ok(batch)) = self.batches.as_ref().map(Receiver::recv) else {
                return Ok(false);
            };
            let entered = batch.and_then(|batch| self.enter(&batch));
            entered.map_err(|what| RowError::File(BadReason::Decoder(what)))?;
        }
    }
}

/// The name of the thread.
const NAME: &str = "dlfs-decode";
