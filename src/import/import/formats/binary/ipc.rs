//! Rows of Arrow files: the file format, with a footer that lists the batches, and the stream format, which Hugging
//! Face uses.
//!
//! The specification allows a stream to end without its end-of-stream marker, but so does a stream that was cut
//! between two messages. All writers in use write the marker, so dlfs treats a stream without it as cut.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};

use arrow_ipc::Block;
use arrow_ipc::reader::{FileReader, StreamReader};
use arrow_schema::{ArrowError, DataType, Field};

use super::ahead::{AheadRows, Batch, Batches};
use super::arrays;
use super::blocks::{BlockReader, Blocks};
use super::panics::guarded;
use super::stated_buffers::StatedBuffers;
use crate::import::formats::OpenRows;
use crate::import::formats::column::{Column, is_wanted};
use crate::import::formats::input::{BUFFER_BYTES, Input};
use crate::import::options::RowOptions;
use crate::import::sources::expansion::CountedBytes;
use crate::import::sources::sample_stream::StreamPlace;
use crate::import::sources::shard::read_some;
use dlfs_base::Result;

/// Opens the Arrow file `input`.
///
/// # Errors
/// The file cannot be read, or is not an Arrow file.
pub(super) fn open(input: &Input, options: &RowOptions) -> Result<OpenRows> {
    let rows = match &input.object {
        None => {
            let from = File::open(&input.path).map_err(|error| input.named(error))?;
            input.expansion.read(from.metadata().map_or(0, |found| found.len()));
            file_or_stream(BufReader::with_capacity(BUFFER_BYTES, from), input, || {})
        }
        Some(object) => {
            let blocks = Blocks::of_all(object.clone(), input.expansion.clone());
            file_or_stream(BlockReader::new(blocks.clone()), input, move || blocks.read_ahead())
        }
    };
    // Only these columns are read, so that a defect in another one rejects no row.
    let (columns, mut rows) = rows?;
    let is_read = |at: &usize| is_wanted(&columns[*at], options);
    let read: Vec<usize> = (0..columns.len()).filter(is_read).collect();
    let columns = read.iter().map(|at| columns[*at].clone()).collect();
    rows.read = Some(read);
    Ok((columns, Box::new(rows)))
}

/// Detects the format and opens the input. `begin` is called before rows of the file format are read.
fn file_or_stream(
    mut from: impl Read + Seek + Send + 'static,
    input: &Input,
    begin: impl FnOnce() + 'static,
) -> Result<(Vec<Column>, AheadRows)> {
    let mut head = [0; MAGIC.len()];
    read_some(&mut from, &mut head).map_err(|error| input.named(error))?;
    if head == *MAGIC {
        file(from, input, begin)
    } else {
        from.rewind().map_err(|error| input.named(error))?;
        stream(from, input, true)
    }
}

/// The rows of a file with a footer.
fn file(
    mut from: impl Read + Seek + Send + 'static,
    input: &Input,
    begin: impl FnOnce() + 'static,
) -> Result<(Vec<Column>, AheadRows)> {
    opened(|| Ok(check_footer(&mut from)?), input)?;
    let from = StatedBuffers::new(from, &input.expansion);
    let mut reader = opened(|| FileReader::try_new(from, None), input)?;
    let columns = arrays::columns(&reader.schema());
    let input = input.clone();
    let decode = move |from: StreamPlace| {
        begin();
        if from.offset > 0 {
            let index = usize::try_from(from.offset).unwrap_or(usize::MAX);
            opened(|| reader.set_index(index), &input)?;
        }
        let each = (from.offset..).zip(reader).map(|(at, rows)| {
            let batch = rows.map(|rows| Batch { rows, at: Some(at) });
            batch.map_err(|error| error.to_string())
        });
        Ok(Box::new(each) as Batches)
    };
    Ok((columns, AheadRows::new(false, decode)))
}

/// The rows of a stream, up to its end-of-stream marker. `is_file`: the stream is all of `input`, not a part of it.
///
/// # Errors
/// The stream cannot be read.
pub(super) fn stream(
    from: impl Read + Send + 'static,
    input: &Input,
    is_file: bool,
) -> Result<(Vec<Column>, AheadRows)> {
    let head = Some(Vec::new());
    let from = Box::new(StatedBuffers::new(from, &input.expansion));
    let from = Counted { from, at: 0, has_ended: false, head };
    let mut reader = opened(|| StreamReader::try_new(from, None), input)?;
    let head = reader.get_mut().head.take().unwrap_or_default();
    if !has_our_byte_order(&head) {
        let text = "its numbers have the byte order of another machine, which dlfs does not read";
        return Err(input.bad(text).hint(
            "pyarrow swaps them: pyarrow.parquet.write_table(pyarrow.ipc.open_stream(OLD).read_all(), NEW)",
        ));
    }
    let columns = arrays::columns(&reader.schema());
    let input = input.clone();
    let decode = move |from: StreamPlace| {
        if is_file {
            // The reader of the schema does not request far ahead, so open another one.
            let bytes = reader.get_mut();
            bytes.at = bytes.at.max(from.offset);
            let mut from = input.read(bytes.at, None)?;
            if input.object.is_some() {
                from = Box::new(CountedBytes(from, input.expansion.clone()));
            }
            bytes.from = Box::new(StatedBuffers::new(from, &input.expansion));
        }
        // A batch may refer to a dictionary anywhere before it, so reading cannot begin in the middle.
        let is_dictionary = |field: &&Field| matches!(field.data_type(), DataType::Dictionary(..));
        let has_entries = is_file && !reader.schema().flattened_fields().iter().any(is_dictionary);
        let each = StreamBatches { reader, has_entries, is_over: false };
        Ok(Box::new(each) as Batches)
    };
    Ok((columns, AheadRows::new(false, decode)))
}

/// Checks that the footer, and the blocks that it lists, fit in the file: the decoder allocates their stated lengths
/// before it reads them.
fn check_footer(from: &mut (impl Read + Seek)) -> io::Result<()> {
    let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let room = from.seek(SeekFrom::End(-10))?; // its length, and the magic bytes
    let mut len = [0; 4];
    from.read_exact(&mut len)?;
    let len = u64::try_from(i32::from_le_bytes(len)).ok().filter(|len| *len <= room);
    let begin = room - len.ok_or_else(|| bad("its footer is longer than it"))?;
    from.seek(SeekFrom::Start(begin))?;
    let mut footer = Vec::new();
    from.take(room - begin).read_to_end(&mut footer)?;
    // The decoder reports a malformed footer.
    let Ok(footer) = arrow_ipc::root_as_footer(&footer) else { return Ok(()) };
    let mut blocks = footer.dictionaries().into_iter().chain(footer.recordBatches()).flatten();
    let is_within = |block: &Block| {
        let parts = [block.offset(), block.metaDataLength().into(), block.bodyLength()];
        let sum = |sum: u64, part: i64| sum.checked_add(u64::try_from(part).ok()?);
        parts.into_iter().try_fold(0, sum).is_some_and(|end| end <= begin)
    };
    let behind = || bad("its footer lists a block that ends behind it");
    blocks.all(is_within).then_some(()).ok_or_else(behind)
}

/// Runs `open`, a step of opening `input`.
fn opened<R>(open: impl FnOnce() -> Result<R, ArrowError>, input: &Input) -> Result<R> {
    guarded(|| open().map_err(|error| error.to_string()))
        .map_err(|what| input.bad(format!("the Arrow file cannot be read: {what}")))
}

/// The batches of a stream up to its end-of-stream marker.
struct StreamBatches {
    reader: StreamReader<Counted>,
    /// Set if reading can begin at any batch.
    has_entries: bool,
    /// Set after the last batch.
    is_over: bool,
}

impl Iterator for StreamBatches {
    type Item = Result<Batch, String>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        // The reader stops right after each message, so this is where the next one begins.
        let at = Some(self.reader.get_ref().at).filter(|_| self.has_entries);
        if let Some(rows) = self.reader.next() {
            return Some(rows.map(|rows| Batch { rows, at }).map_err(|error| error.to_string()));
        }
        self.is_over = true;
        // The reader stops after the marker; it reaches the end of the file only if there is no marker.
        self.reader.get_ref().has_ended.then(|| Err(NO_MARKER.to_owned()))
    }
}

/// Returns whether the numbers of a stream that begins with `head` have this machine's byte order, which Arrow's
/// reader does not check.
fn has_our_byte_order(head: &[u8]) -> bool {
    let message = head.strip_prefix(&[0xff; 4]).unwrap_or(head).get(4..).unwrap_or_default();
    let message = arrow_ipc::root_as_message(message).ok();
    let schema = message.and_then(|message| message.header_as_schema());
    schema.is_some_and(|schema| schema.endianness().equals_to_target_endianness())
}

/// Reader that counts bytes, and records an attempt to read after the last byte.
struct Counted {
    from: Box<dyn Read + Send>,
    /// Offset of the next byte.
    at: u64,
    has_ended: bool,
    /// The bytes read so far, from which the byte order is found. `None`: the schema is read, and they are not kept.
    head: Option<Vec<u8>>,
}

impl Read for Counted {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let read = self.from.read(into)?;
        self.at += read as u64;
        self.has_ended |= read == 0 && !into.is_empty();
        if let Some(head) = &mut self.head {
            head.extend_from_slice(&into[..read]);
        }
        Ok(read)
    }
}

const NO_MARKER: &str = "the Arrow stream ends without its end-of-stream marker, so it was cut off, or its writer did \
                         not close it: write it again, or import the rows up to here with --on-error skip";
/// The magic bytes at the beginning of an Arrow file.
const MAGIC: &[u8; 6] = b"ARROW1";
