//! Rows of Arrow files: those with an index at their end, and streams, as Hugging Face keeps them.
//!
//! The specification allows a stream to end without its end-of-stream marker, and a stream that was cut between two
//! messages does too. All writers in use write the marker, so dlfs takes a stream without it for a cut one.

use std::fs::File;
use std::io::{BufReader, Read, Seek};

use arrow_array::RecordBatch;
use arrow_ipc::reader::{FileReader, StreamReader};
use arrow_schema::ArrowError;

use super::ahead::{Ahead, AheadRows, caught};
use super::arrow_cells;
use super::blocks::{BlockReader, Blocks};
use super::input::Input;
use super::rows::RowReader;
use crate::import::sources::compression::read_some;
use crate::{Error, ErrorKind, Result};

/// Opens the Arrow file `input`.
///
/// # Errors
/// It cannot be read, or is none.
pub(super) fn open(input: &Input) -> Result<Box<dyn RowReader>> {
    let Some(object) = &input.object else {
        let from = File::open(&input.path).map_err(|error| input.named(error))?;
        return file_or_stream(BufReader::with_capacity(BUFFER_BYTES, from), input);
    };
    let blocks = Blocks::new(object.clone());
    blocks.set_places(1);
    file_or_stream(BlockReader::new(blocks), input)
}

fn file_or_stream(
    mut from: impl Read + Seek + Send + 'static,
    input: &Input,
) -> Result<Box<dyn RowReader>> {
    let mut head = [0; MAGIC.len()];
    read_some(&mut from, &mut head).map_err(|error| input.named(error))?;
    match head == *MAGIC {
        true => file(from, input),
        false => stream(input.read()?, input),
    }
}

fn file(from: impl Read + Seek + Send + 'static, input: &Input) -> Result<Box<dyn RowReader>> {
    let reader = opened(|| FileReader::try_new(from, None), input)?;
    let columns = arrow_cells::columns(&reader.schema());
    let batches = reader.map(|batch| batch.map_err(|error| error.to_string()));
    Ok(Box::new(AheadRows::new(columns, Ahead::start(batches)?)))
}

/// The rows of a stream, up to its end-of-stream marker.
///
/// # Errors
/// It cannot be read.
pub(super) fn stream(
    from: impl Read + Send + 'static,
    input: &Input,
) -> Result<Box<dyn RowReader>> {
    let from = EndSeen { from, has_ended: false };
    let reader = opened(|| StreamReader::try_new(from, None), input)?;
    let columns = arrow_cells::columns(&reader.schema());
    let batches = StreamBatches { reader, is_over: false };
    Ok(Box::new(AheadRows::new(columns, Ahead::start(batches)?)))
}

fn opened<R>(
    open: impl FnOnce() -> std::result::Result<R, ArrowError>,
    input: &Input,
) -> Result<R> {
    caught(|| open().map_err(|error| error.to_string())).map_err(|what| {
        let text = format!("the Arrow file cannot be read: {what}");
        Error::new(ErrorKind::BadSource, text).path(&input.path)
    })
}

/// The batches of a stream up to its end-of-stream marker.
struct StreamBatches<R> {
    reader: StreamReader<EndSeen<R>>,
    is_over: bool,
}

impl<R: Read> Iterator for StreamBatches<R> {
    type Item = std::result::Result<RecordBatch, String>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        if let Some(batch) = self.reader.next() {
            return Some(batch.map_err(|error| error.to_string()));
        }
        self.is_over = true;
        // The reader stops behind the marker, and meets the end of the file only where there is none.
        self.reader.get_ref().has_ended.then(|| Err(NO_MARKER.to_owned()))
    }
}

/// Notices that a reader wants bytes behind the last one.
struct EndSeen<R> {
    from: R,
    has_ended: bool,
}

impl<R: Read> Read for EndSeen<R> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let read = self.from.read(into)?;
        self.has_ended |= read == 0 && !into.is_empty();
        Ok(read)
    }
}

const NO_MARKER: &str = "the Arrow stream ends without its end-of-stream marker, so it was cut off, or its writer did \
                         not close it: write it again, or import the rows up to here with --on-error skip";
/// What an Arrow file begins with.
const MAGIC: &[u8; 6] = b"ARROW1";
const BUFFER_BYTES: usize = 1 << 20;
