//! Reads the lines of a JSON Lines file.

use std::io::{self, BufRead, BufReader, Cursor, Read};

use super::input::Input;
use crate::import::sources::compression::read_some;
use crate::import::sources::content::BYTE_ORDER_MARK;
use dlfs_base::Result;

pub(super) type Lines = BufReader<Box<dyn Read + Send>>;

/// The lines of `input`, decompressed and without a byte order mark, and the offset of the first line.
pub(super) fn lines(input: &Input, window_bytes: Option<u64>) -> Result<(Lines, u64)> {
    let mut from = input.read_plain(window_bytes)?;
    let mut head = [0; BYTE_ORDER_MARK.len()];
    let read = read_some(&mut from, &mut head);
    input.check()?;
    let head = &head[..read.map_err(|error| input.named(error))?];
    let (head, at) =
        if head == BYTE_ORDER_MARK { (Vec::new(), head.len() as u64) } else { (head.to_vec(), 0) };
    let from: Box<dyn Read + Send> = Box::new(Cursor::new(head).chain(from));
    Ok((BufReader::with_capacity(BUFFER_BYTES, from), at))
}

/// Reads the next line; `false` at the end.
///
/// # Errors
/// Errors of reading. The line has 1 GiB or more, or does not fit in memory.
pub(super) fn read_line(from: &mut Lines, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    loop {
        line.try_reserve(STEP_BYTES)?;
        let read = from.by_ref().take(STEP_BYTES as u64).read_until(b'\n', line)?;
        if read < STEP_BYTES || line.ends_with(b"\n") {
            return Ok(!line.is_empty());
        }
        if line.len() >= MAX_LINE_BYTES {
            return Err(io::Error::other("a line has 1 GiB or more"));
        }
    }
}

const MAX_LINE_BYTES: usize = 1 << 30;
/// Bytes by which the memory of a line grows.
const STEP_BYTES: usize = 1 << 20;
const BUFFER_BYTES: usize = 1 << 20;
