//! Rows of Arrow files: those with an index at their end, and streams, as Hugging Face keeps them.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use arrow_array::RecordBatch;
use arrow_ipc::reader::{FileReader, StreamReader};
use arrow_schema::ArrowError;

use super::ahead::{Ahead, AheadRows, caught};
use super::arrow_cells;
use super::rows::RowReader;
use crate::{Error, ErrorKind, Result};

/// Opens the Arrow file at `path`.
///
/// # Errors
/// It cannot be read, or is none.
pub(super) fn open(path: &Path) -> Result<Box<dyn RowReader>> {
    let at = |error: std::io::Error| Error::from(error).path(path);
    let bad = |what: String| {
        let text = format!("the Arrow file cannot be read: {what}");
        Error::new(ErrorKind::BadSource, text).path(path)
    };
    let text = |error: ArrowError| error.to_string();
    let mut file = File::open(path).map_err(at)?;
    let mut magic = [0; MAGIC.len()];
    let is_file = file.read_exact(&mut magic).is_ok() && magic == *MAGIC;
    file.seek(SeekFrom::Start(0)).map_err(at)?;
    if is_file {
        let open = || FileReader::try_new(file, None).map_err(text);
        let reader = caught(open).map_err(bad)?;
        let columns = arrow_cells::columns(&reader.schema());
        return Ok(Box::new(AheadRows::new(columns, Ahead::start(reader.map(text_of_error))?)));
    }
    let from = BufReader::with_capacity(BUFFER_BYTES, file);
    let reader = caught(|| StreamReader::try_new(from, None).map_err(text)).map_err(bad)?;
    let columns = arrow_cells::columns(&reader.schema());
    Ok(Box::new(AheadRows::new(columns, Ahead::start(reader.map(text_of_error))?)))
}

fn text_of_error(
    batch: std::result::Result<RecordBatch, ArrowError>,
) -> std::result::Result<RecordBatch, String> {
    batch.map_err(|error| error.to_string())
}

/// What an Arrow file begins with.
const MAGIC: &[u8; 6] = b"ARROW1";
const BUFFER_BYTES: usize = 1 << 20;
