//! Rows of Arrow files: those with an index at their end, and streams, as Hugging Face keeps them.

use std::fs::File;
use std::io::{BufReader, Read, Seek};

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

fn stream(from: impl Read + Send + 'static, input: &Input) -> Result<Box<dyn RowReader>> {
    let reader = opened(|| StreamReader::try_new(from, None), input)?;
    let columns = arrow_cells::columns(&reader.schema());
    let batches = reader.map(|batch| batch.map_err(|error| error.to_string()));
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

/// What an Arrow file begins with.
const MAGIC: &[u8; 6] = b"ARROW1";
const BUFFER_BYTES: usize = 1 << 20;
