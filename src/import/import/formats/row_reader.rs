//! The interface of the readers of row files, one for each format.

use super::column::{Cells, Column};
use crate::import::sources::BadReason;
use crate::import::sources::sample_stream::StreamPlace;
use dlfs_base::Result;

/// The columns of a file, and the reader of its rows.
pub(super) type OpenRows = (Vec<Column>, Box<dyn RowReader>);

/// Reads the rows of a file, front to back.
pub(super) trait RowReader {
    /// Begins to read rows at `from`. Before, only the data that defines the columns was read.
    ///
    /// # Errors
    /// The file cannot be read, or does not have its format.
    fn begin(&mut self, from: StreamPlace) -> Result<()>;

    /// The place of the next row, after `rows` rows of the file, in the form that this reader's [`begin`](Self::begin)
    /// takes. In a file with batches, `offset` is the offset or the number of a batch.
    fn place(&self, rows: u64) -> StreamPlace {
        StreamPlace { left_out: rows, ..StreamPlace::default() }
    }

    /// Records again the objects that the rows up to byte `to` (`None`: all rows) name. `named` is the hash of the
    /// objects that earlier files name; returns the hash with these objects added.
    ///
    /// # Errors
    /// Errors of the store.
    fn recall(&mut self, _to: Option<u64>, named: u64) -> Result<u64> {
        Ok(named)
    }

    /// The name that the last row read gives itself; `None`: rows have no names.
    fn row_name(&self) -> Option<&[u8]> {
        None
    }

    /// Reads the next row into `cells`, one cell per column; `false` after the last row.
    ///
    /// # Errors
    /// A defect of the row, or of the rest of the file.
    fn next_row(&mut self, cells: &mut Cells) -> Result<bool, RowError>;
}

/// The reason why a row cannot be read.
#[derive(Debug)]
pub(super) enum RowError {
    /// The row is bad; the next one can be read.
    Row(BadReason),
    /// The row and the rest of the file cannot be read.
    File(BadReason),
}

impl From<BadReason> for RowError {
    fn from(reason: BadReason) -> RowError {
        RowError::Row(reason)
    }
}
