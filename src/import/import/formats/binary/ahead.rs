//! Decodes batches of rows on a thread of its own, ahead of those that are taken.

use arrow_array::RecordBatch;
use crossbeam_channel::{Receiver, bounded};

use super::arrow_cells::BatchCells;
use super::guard::caught;
use crate::import::formats::column::{Cells, Column, is_wanted};
use crate::import::formats::rows::{RowError, RowReader};
use crate::import::options::RowOptions;
use crate::import::sources::BadReason;
use crate::import::sources::sample_stream::StreamPlace;
use dlfs_base::Result;

/// A batch of rows.
pub(super) struct Batch {
    /// Its rows.
    pub(super) rows: RecordBatch,
    /// The position where a reader may enter the file to begin with this batch, if it may.
    pub(super) at: Option<u64>,
}

/// The batches of a file from a place on.
pub(super) struct Batches {
    /// One after the other.
    pub(super) each: Box<dyn Iterator<Item = Result<Batch, String>> + Send>,
    /// Rows at their beginning that are not wanted.
    pub(super) unwanted: u64,
}

/// Batches that a thread decodes.
struct Ahead(Receiver<Result<Batch, String>>);

impl Ahead {
    /// Starts to decode `batches`; the thread ends with them, or when this is dropped.
    ///
    /// # Errors
    /// The operating system cannot start a thread.
    fn start(
        mut batches: impl Iterator<Item = Result<Batch, String>> + Send + 'static,
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

/// Decoder of a file from a place on.
type Decode = Box<dyn FnOnce(StreamPlace) -> Result<Batches>>;

/// The rows of decoded batches.
pub(super) struct AheadRows {
    columns: Vec<Column>,
    /// The columns of a batch that are read; `None`: all.
    read: Option<Vec<usize>>,
    /// Until it has begun.
    decode: Option<Decode>,
    batches: Option<Ahead>,
    batch: Option<BatchCells>,
    /// The place of the next row.
    next: StreamPlace,
    /// Rows to leave out before it.
    unwanted: u64,
}

impl AheadRows {
    /// The rows of the batches that `decode` gives, which have these columns.
    pub(super) fn new(
        columns: Vec<Column>,
        decode: impl FnOnce(StreamPlace) -> Result<Batches> + 'static,
    ) -> AheadRows {
        let next = StreamPlace::default();
        let decode = Some(Box::new(decode) as Decode);
        AheadRows { columns, read: None, decode, batches: None, batch: None, next, unwanted: 0 }
    }

    /// The same, with the columns that `options` take: what others hold is no fault of a row.
    pub(super) fn only(mut self, options: &RowOptions) -> AheadRows {
        let wanted = |at: &usize| is_wanted(&self.columns[*at], options);
        let read: Vec<usize> = (0..self.columns.len()).filter(wanted).collect();
        if read.len() < self.columns.len() {
            self.columns = read.iter().map(|at| self.columns[*at].clone()).collect();
            self.read = Some(read);
        }
        self
    }

    /// Goes on with the rows of `batch`.
    ///
    /// # Errors
    /// What its decoder says of them.
    fn enter(&mut self, batch: &Batch) -> Result<(), String> {
        let mut cells = caught(|| Ok(BatchCells::new(&batch.rows, self.read.as_deref())))?;
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
    fn columns(&self) -> &[Column] {
        &self.columns
    }

    fn begin(&mut self, from: StreamPlace) -> Result<()> {
        let Some(decode) = self.decode.take() else { return Ok(()) };
        let Batches { each, unwanted } = decode(from)?;
        self.batches = Some(Ahead::start(each)?);
        self.unwanted = unwanted;
        self.next = StreamPlace { left_out: from.left_out.saturating_sub(unwanted), ..from };
        Ok(())
    }

    fn place(&self, _: u64) -> StreamPlace {
        self.next
    }

    fn next_row(&mut self, cells: &mut Cells) -> Result<bool, RowError> {
        loop {
            if let Some(row) = self.batch.as_mut().and_then(|batch| batch.next_row(cells)) {
                self.next.left_out += 1;
                return row.map(|()| true).map_err(RowError::Row);
            }
            self.batch = None;
            let Some(Ok(batch)) = self.batches.as_ref().map(|batches| batches.0.recv()) else {
                return Ok(false);
            };
            let entered = batch.and_then(|batch| self.enter(&batch));
            entered.map_err(|what| RowError::File(BadReason::Decoder(what)))?;
        }
    }
}

/// The name of the thread.
const NAME: &str = "dlfs-decode";
