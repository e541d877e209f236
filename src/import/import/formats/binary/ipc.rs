//! Rows of Arrow files and streams. A file holds its rows as a stream, between magic bytes and a footer that lists the
//! batches.
//!
//! The specification allows a stream to end without its end-of-stream marker, but so does a stream that was cut
//! between two messages. All writers in use write the marker, so dlfs treats a stream without it as cut. A file ends at
//! its footer.
//!
//! | bytes      | meaning, in a message                                                                |
//! |------------|--------------------------------------------------------------------------------------|
//! | 4          | `ff ff ff ff`, which old writers leave out                                             |
//! | 4          | n, the length of the metadata; 0: the stream ends                                    |
//! | n          | the metadata: the body's length, and the offsets of the buffers in the body          |
//! | the length | the body; a compressed buffer begins with 8 bytes for its decompressed length        |
//!
//! The decoder allocates any length that a compressed buffer states, so each is compared with the allowed expansion
//! first.

use std::collections::HashMap;
use std::fmt::Display;
use std::io::{self, Cursor, Read};
use std::ops::Range;
use std::sync::Arc;

use arrow_array::ArrayRef;
use arrow_buffer::Buffer;
use arrow_ipc::convert::try_fb_to_schema;
use arrow_ipc::reader::{read_dictionary, read_record_batch};
use arrow_ipc::{Block, MessageHeader, root_as_footer, root_as_message};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use bytes::Bytes;

use super::ahead::{self, AheadRows, Batch, Batches, caught};
use super::blocks::{BlockReader, Blocks};
use super::stated::has_memory;
use crate::import::formats::column::{Column, is_wanted};
use crate::import::formats::input::Input;
use crate::import::formats::rows::OpenRows;
use crate::import::options::RowOptions;
use crate::import::sources::expansion::{Compressed, Expands, Expansion};
use crate::import::sources::sample_stream::StreamPlace;
use crate::import::sources::shard::read_some;
use dlfs_base::{Error, Result};

/// Opens the Arrow file `input`.
///
/// # Errors
/// The file cannot be read, or is not an Arrow file.
pub(super) fn open(input: &Input, options: &RowOptions) -> Result<OpenRows> {
    let mut from: Box<dyn Read + Send> = match &input.object {
        None => {
            let from = input.read(0, None)?;
            input.expansion.read(std::fs::metadata(&input.path).map_or(0, |found| found.len()));
            from
        }
        Some(object) => {
            let blocks = Blocks::new(object.clone(), input.expansion.clone(), Bytes::new());
            Box::new(BlockReader::new(blocks))
        }
    };
    let mut head = [0; HEAD_BYTES as usize];
    let read = read_some(&mut from, &mut head).map_err(|error| input.named(error))?;
    let (columns, mut rows) = if head.starts_with(MAGIC) {
        stream(from, input, Some(HEAD_BYTES..footer_at(input)?))?
    } else {
        let head = Cursor::new(head[..read].to_vec());
        stream(Box::new(head.chain(from)), input, Some(0..u64::MAX))?
    };
    // Only these columns are read, so that a defect in another one rejects no row.
    let is_read = |at: &usize| is_wanted(&columns[*at], options);
    let read: Vec<usize> = (0..columns.len()).filter(is_read).collect();
    let columns = read.iter().map(|at| columns[*at].clone()).collect();
    rows.read = Some(read);
    Ok((columns, Box::new(rows)))
}

/// Offset of a file's footer. Checks that the footer, and the blocks that it lists, fit in the file.
fn footer_at(input: &Input) -> Result<u64> {
    let end = input.len_bytes()?.saturating_sub(END_BYTES as u64);
    let mut last = [0; END_BYTES];
    if end >= HEAD_BYTES {
        input.read_at(end, &mut last)?;
    }
    if !last.ends_with(MAGIC) {
        return Err(bad(input, "it has no footer"));
    }
    let len = last.first_chunk().map_or(0, |len| u32::from_le_bytes(*len).into());
    let longer = || bad(input, "its footer is longer than it");
    let begin = end.checked_sub(len).filter(|begin| *begin >= HEAD_BYTES).ok_or_else(longer)?;
    let mut footer = Vec::new();
    let read = input.read(begin, Some(0))?.take(len).read_to_end(&mut footer);
    input.check()?;
    read.map_err(|error| input.named(error))?;
    let footer = root_as_footer(&footer).map_err(|error| bad(input, error))?;
    let mut blocks = footer.dictionaries().into_iter().chain(footer.recordBatches()).flatten();
    let is_within = |block: &Block| {
        let parts = [block.offset(), block.metaDataLength().into(), block.bodyLength()];
        let sum = |sum: u64, part: i64| sum.checked_add(u64::try_from(part).ok()?);
        parts.into_iter().try_fold(0, sum).is_some_and(|end| end <= begin)
    };
    let behind = || bad(input, "its footer lists a block that ends behind it");
    blocks.all(is_within).then_some(begin).ok_or_else(behind)
}

fn bad(input: &Input, what: impl Display) -> Error {
    input.bad(format!("the Arrow file cannot be read: {what}"))
}

/// The rows of the stream `from`. `of_file`: the stream has these bytes of `input`, up to its end-of-stream marker, and
/// its messages can be read from there again; otherwise only `from` has them.
///
/// # Errors
/// The stream cannot be read.
pub(super) fn stream(
    from: Box<dyn Read + Send>,
    input: &Input,
    of_file: Option<Range<u64>>,
) -> Result<(Vec<Column>, AheadRows)> {
    let Range { start: at, end } = of_file.clone().unwrap_or(0..u64::MAX);
    let mut messages = Messages {
        from: Box::new(from.take(end - at)),
        at,
        begin: at,
        end,
        expansion: input.expansion.clone(),
        schema: Arc::new(Schema::empty()),
        dictionaries: HashMap::new(),
    };
    let opened = caught(|| {
        let (metadata, _) = messages.next()?.ok_or("it has no schema")?;
        let message = root_as_message(&metadata).map_err(text)?;
        let schema = message.header_as_schema().ok_or("it does not begin with a schema")?;
        let is_ours = schema.endianness().equals_to_target_endianness();
        Ok(if is_ours { Some(try_fb_to_schema(schema).map_err(text)?) } else { None })
    });
    let Some(schema) = opened.map_err(|what| bad(input, what))? else {
        let text = "its numbers have the byte order of another machine, which dlfs does not read";
        return Err(input.bad(text).hint(
            "pyarrow swaps them: pyarrow.parquet.write_table(pyarrow.ipc.open_stream(OLD).read_all(), NEW)",
        ));
    };
    let columns = ahead::columns(&schema);
    let is_dictionary = |field: &&Field| matches!(field.data_type(), DataType::Dictionary(..));
    let has_dictionaries = schema.flattened_fields().iter().any(is_dictionary);
    messages.schema = Arc::new(schema);
    let input = input.clone();
    let has_places = of_file.is_some();
    let decode = move |place: StreamPlace| {
        if has_places {
            messages.begin = messages.at.max(place.offset);
            // A batch may refer to a dictionary anywhere before it.
            messages.at = if has_dictionaries { messages.at } else { messages.begin };
            // The reader of the schema does not request far ahead, so open another one.
            let mut from = input.read(messages.at, None)?;
            if input.object.is_some() {
                from = Box::new(Compressed(from, input.expansion.clone()));
            }
            messages.from = Box::new(from.take(end.saturating_sub(messages.at)));
        }
        let each = std::iter::from_fn(move || {
            let batch = messages.next_batch().transpose()?;
            Some(batch.map(|(at, rows)| Batch { rows, at: Some(at).filter(|_| has_places) }))
        });
        Ok(Box::new(each) as Batches)
    };
    Ok((columns, AheadRows::new(false, decode)))
}

/// The messages of a stream.
struct Messages {
    from: Box<dyn Read + Send>,
    /// Offset of the next message.
    at: u64,
    /// Offset of the first batch to decode; of messages before it, only dictionaries are.
    begin: u64,
    /// Offset at which a file's footer begins; `u64::MAX`: the marker alone ends the stream.
    end: u64,
    expansion: Expansion,
    schema: SchemaRef,
    dictionaries: HashMap<i64, ArrayRef>,
}

impl Messages {
    /// The next batch of rows, and its offset; `None` at the end.
    fn next_batch(&mut self) -> Result<Option<(u64, arrow_array::RecordBatch)>, String> {
        loop {
            let at = self.at;
            let Some((metadata, body)) = self.next()? else { return Ok(None) };
            let message = root_as_message(&metadata).map_err(text)?;
            let version = message.version();
            match message.header_type() {
                MessageHeader::NONE => {}
                MessageHeader::RecordBatch if at < self.begin => {}
                kind => {
                    if let Some(batch) = message.header_as_record_batch() {
                        let schema = Arc::clone(&self.schema);
                        let dictionaries = &self.dictionaries;
                        let rows =
                            read_record_batch(&body, batch, schema, dictionaries, None, &version);
                        return Ok(Some((at, rows.map_err(text)?)));
                    }
                    let wrong = || format!("a message of the type {kind:?} is between batches");
                    let batch = message.header_as_dictionary_batch().ok_or_else(wrong)?;
                    let dictionaries = &mut self.dictionaries;
                    read_dictionary(&body, batch, &self.schema, dictionaries, &version)
                        .map_err(text)?;
                }
            }
        }
    }

    /// The metadata and the body of the next message; `None` at the end.
    fn next(&mut self) -> Result<Option<(Vec<u8>, Buffer)>, String> {
        let mut word = self.up_to(4)?;
        if word.is_empty() {
            let is_file = self.end < u64::MAX;
            return is_file.then_some(None).ok_or_else(|| NO_MARKER.to_owned());
        }
        if word == MARK {
            word = self.up_to(4)?;
        }
        let len = word.first_chunk().map(|word| u32::from_le_bytes(*word)).ok_or(CUT)?;
        if len == 0 {
            return Ok(None);
        }
        let metadata = self.all(len.into())?;
        let message = root_as_message(&metadata).map_err(text)?;
        let body = self.all(u64::try_from(message.bodyLength()).map_err(text)?)?;
        let of_dictionary = message.header_as_dictionary_batch().and_then(|batch| batch.data());
        let batch = message.header_as_record_batch().or(of_dictionary);
        let packed = batch.filter(|batch| batch.compression().is_some());
        for buffer in packed.and_then(|batch| batch.buffers()).into_iter().flatten() {
            let begin = usize::try_from(buffer.offset()).unwrap_or(usize::MAX);
            // A negative length: the buffer is not compressed. The decoder reports a buffer outside of the body.
            let stated = body.get(begin..).and_then(|rest| rest.first_chunk());
            let stated = stated.filter(|_| buffer.length() >= 8);
            let len = stated.map_or(0, |len| u64::try_from(i64::from_le_bytes(*len)).unwrap_or(0));
            let made = self.expansion.make(Expands::Packed, len);
            made.and_then(|()| has_memory(len)).map_err(text)?;
        }
        Ok(Some((metadata, Buffer::from_vec(body))))
    }

    fn all(&mut self, len: u64) -> Result<Vec<u8>, String> {
        let bytes = self.up_to(len)?;
        if bytes.len() as u64 == len { Ok(bytes) } else { Err(CUT.to_owned()) }
    }

    /// The next `len` bytes, or fewer at the end. Memory grows with the bytes that arrive, not with a stated length.
    fn up_to(&mut self, len: u64) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        let reserved = bytes.try_reserve_exact(len.min(ROOM_BYTES) as usize);
        let read = reserved
            .map_err(io::Error::from)
            .and_then(|()| self.from.by_ref().take(len).read_to_end(&mut bytes));
        self.at += read.map_err(text)? as u64;
        Ok(bytes)
    }
}

fn text(error: impl Display) -> String {
    error.to_string()
}

const NO_MARKER: &str = "the Arrow stream ends without its end-of-stream marker, so it was cut off, or its writer did \
                         not close it: write it again, or import the rows up to here with --on-error skip";
const CUT: &str = "the Arrow stream ends within a message";
/// The magic bytes at the beginning and at the end of an Arrow file.
const MAGIC: &[u8; 6] = b"ARROW1";
/// Bytes before a file's first message: the magic bytes, and padding.
const HEAD_BYTES: u64 = 8;
/// Bytes behind a file's footer: its length, and the magic bytes.
const END_BYTES: usize = 10;
const MARK: [u8; 4] = [0xff; 4];
/// Memory taken for a body before it is read.
const ROOM_BYTES: u64 = 64 << 20;
