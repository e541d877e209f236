//! Documents of tokens in files of Megatron-LM: `PREFIX.idx` is an index, beside `PREFIX.bin`, the tokens.
//!
//! | bytes | meaning, in the index; all numbers are little-endian                              |
//! |-------|-----------------------------------------------------------------------------------|
//! | 9     | `MMIDIDX` and two NULs                                                            |
//! | 8     | version: 1                                                                        |
//! | 1     | number of the tokens' type                                                        |
//! | 8     | N, the number of sequences                                                        |
//! | 8     | E, the number of documents and 1                                                  |
//! | 4 N   | number of tokens of each sequence                                                 |
//! | 8 N   | offset of each sequence in the tokens                                             |
//! | 8 E   | number of the first sequence of each document; then N                             |
//! | N, 0  | mode of each sequence, if these have several modalities; it is not read           |
//!
//! Sequences must lie one after the other, as Megatron's writer puts them. So the tables and the tokens are read front
//! to back beside each other, and memory does not grow with the index.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;

use super::column::{Cells, Column};
use super::input::Input;
use super::tokens::column;
use super::{OpenRows, RowError, RowFile, RowReader};
use crate::import::options::RowOptions;
use crate::import::sources::BadReason;
use crate::import::sources::index::MAX_SAMPLE_BYTES;
use crate::import::sources::sample_stream::StreamPlace;
use crate::import::sources::shard_index::MEGATRON_INDEX;
use dlfs_base::Result;
use dlfs_format::format::field_type::Element;

/// The documents that the index `index` lists; they are called `PREFIX/NUMBER`. The index is called `name`. `is_typed`
/// as in [`column`]. Records the file of tokens as an origin.
///
/// # Errors
/// `name` does not end with `.idx`. Errors of looking up the tokens.
pub(super) fn megatron_file(index: Input, name: &[u8], is_typed: bool) -> Result<RowFile> {
    let Some(stem) = name.strip_suffix(b".idx") else {
        let text = "an index of Megatron is called PREFIX.idx, beside PREFIX.bin";
        return Err(index.bad(text.to_owned()));
    };
    let base = stem.rsplit(|byte| *byte == b'/').next().unwrap_or(stem);
    let tokens = OsString::from_vec([base, b".bin"].concat());
    let found = index.beside(vec![vec![tokens]])?.pop();
    let (_, input) = found.expect("one name was given, and each has an input");
    input.record();
    let open = Arc::new(move |tokens: &Input, _: &RowOptions, _: Option<&[Column]>| {
        Documents::open(&index, tokens, is_typed)
    });
    Ok(RowFile { input, stem: stem.to_vec(), open })
}

/// The header of an index, which tells where its tables are.
#[derive(Debug, Clone, Copy)]
struct Tables {
    element: Element,
    /// N.
    sequences: u64,
    /// E.
    ends: u64,
}

impl Tables {
    /// Reads the header of `index`, and checks that the tables fill the file.
    fn read(index: &Input) -> Result<Tables> {
        let bad = |text: String| Err(index.bad(text));
        let len = index.len_bytes()?;
        if len < HEAD_BYTES {
            return bad(format!(
                "it has {len} bytes, and an index of Megatron {HEAD_BYTES} or more"
            ));
        }
        let mut head = [0; HEAD_BYTES as usize];
        index.read_at(0, &mut head)?;
        if !head.starts_with(MEGATRON_INDEX) {
            return bad(
                "byte 0: an index of Megatron begins with MMIDIDX, and this does not".into()
            );
        }
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| head[at + byte]));
        let [version, sequences, ends] = [9, 18, 26].map(number);
        if version != 1 {
            return bad(format!("byte 9: the version is {version}, and 1 was expected"));
        }
        let Some(element) = element_of(head[17]) else {
            return bad(format!("byte 17: the type is number {}, and 1 to 8 exist", head[17]));
        };
        let needed = u128::from(HEAD_BYTES) + 12 * u128::from(sequences) + 8 * u128::from(ends);
        if needed != len.into() && needed + u128::from(sequences) != len.into() {
            return bad(format!(
                "bytes 18 and 26: {sequences} sequences and {ends} bounds of documents take {needed} bytes, and the \
                 index has {len}"
            ));
        }
        Ok(Tables { element, sequences, ends })
    }

    /// Offset of the number of tokens of a sequence.
    fn len_at(&self, sequence: u64) -> u64 {
        HEAD_BYTES + 4 * sequence
    }

    /// Offset of the offset of a sequence.
    fn offset_at(&self, sequence: u64) -> u64 {
        self.len_at(self.sequences) + 8 * sequence
    }

    /// Offset of the number of the first sequence of a document.
    fn end_at(&self, document: u64) -> u64 {
        self.offset_at(self.sequences) + 8 * document
    }

    /// Checks that the last document and the last sequence end where all sequences and the tokens end.
    fn check_ends(&self, index: &Input, tokens: &Input, len_bytes: u64) -> Result<()> {
        let at = self.end_at(self.ends.saturating_sub(1));
        let last = if self.ends == 0 { 0 } else { number_at(index, at)? };
        if last != self.sequences {
            let all = self.sequences;
            let text = format!(
                "byte {at}: the documents end before sequence {last}, and {all} was expected"
            );
            return Err(index.bad(text));
        }
        let mut end = 0;
        if let Some(sequence) = self.sequences.checked_sub(1) {
            let mut len = [0; 4];
            index.read_at(self.len_at(sequence), &mut len)?;
            let each = i128::from(self.element.len_bytes());
            end = i128::from(number_at(index, self.offset_at(sequence))?)
                + each * i128::from(i32::from_le_bytes(len));
        }
        if end == len_bytes.into() {
            return Ok(());
        }
        let tokens = tokens.path.display();
        let text =
            format!("its sequences end at byte {end} of {tokens}, which has {len_bytes} bytes");
        Err(index.bad(text).hint("one of the two files was cut off, or is of another data set"))
    }
}

/// The documents of one index.
struct Documents {
    index: Input,
    tokens: Input,
    tables: Tables,
    /// Length of the file of tokens.
    len_bytes: u64,
    /// The position in both files; `None` before reading has begun, and if there are no documents.
    front: Option<Front>,
}

/// Readers of the tables and the tokens, each at the next document.
struct Front {
    lens: Box<dyn Read + Send>,
    offsets: Box<dyn Read + Send>,
    ends: Box<dyn Read + Send>,
    tokens: Box<dyn Read + Send>,
    /// Number of the next document.
    document: u64,
    /// Number of its first sequence.
    sequence: u64,
    /// Offset of its first token in the file of tokens.
    at: u64,
}

impl Documents {
    /// Opens the documents of `index`, after checking its ends. `is_typed` as in [`column`].
    fn open(index: &Input, tokens: &Input, is_typed: bool) -> Result<OpenRows> {
        let tables = Tables::read(index)?;
        let len_bytes = tokens.len_bytes()?;
        tables.check_ends(index, tokens, len_bytes)?;
        let column = column(tables.element, is_typed);
        let columns = vec![column.map_err(|error| error.path(&index.path))?];
        let index = index.clone();
        let tokens = tokens.clone();
        Ok((columns, Box::new(Documents { index, tokens, tables, len_bytes, front: None })))
    }

    /// The length of the next document in bytes; `None` after the last.
    fn next_len(&mut self) -> Result<Option<u64>, RowError> {
        let Documents { index, tables, len_bytes, front: Some(front), .. } = self else {
            return Ok(None);
        };
        if front.document + 1 >= tables.ends {
            return Ok(None);
        }
        let bad = |at: u64, what: String| {
            let text = format!("{}: byte {at}: {what}", index.path.display());
            Err(RowError::File(BadReason::Decoder(text)))
        };
        front.document += 1;
        let end = u64::from_le_bytes(take(&mut front.ends)?);
        let begun = front.sequence;
        if end < begun || end > tables.sequences {
            let most = tables.sequences;
            let what = format!(
                "the document ends before sequence {end}, and {begun} to {most} were expected"
            );
            return bad(tables.end_at(front.document), what);
        }
        let each = u64::from(tables.element.len_bytes());
        let mut to = front.at;
        for sequence in begun..end {
            let offset = u64::from_le_bytes(take(&mut front.offsets)?);
            if offset != to {
                let what = format!(
                    "sequence {sequence} begins at byte {offset} of the tokens, and {to} was expected"
                );
                return bad(tables.offset_at(sequence), what);
            }
            let tokens = i32::from_le_bytes(take(&mut front.lens)?);
            let left = (*len_bytes - to) / each;
            match u64::try_from(tokens).ok().filter(|tokens| *tokens <= left) {
                Some(tokens) => to += each * tokens,
                None => {
                    let what = format!(
                        "sequence {sequence} has {tokens} tokens, and 0 to {left} were expected"
                    );
                    return bad(tables.len_at(sequence), what);
                }
            }
        }
        let len = to - front.at;
        (front.sequence, front.at) = (end, to);
        Ok(Some(len))
    }
}

impl RowReader for Documents {
    fn begin(&mut self, from: StreamPlace) -> Result<()> {
        let Documents { index, tokens, tables, len_bytes, .. } = self;
        let document = from.left_out;
        if document >= tables.ends {
            return Ok(());
        }
        let sequence = number_at(index, tables.end_at(document))?;
        if sequence > tables.sequences || document == 0 && sequence > 0 {
            let at = tables.end_at(document);
            let text = format!(
                "byte {at}: document {document} begins with sequence {sequence}, behind its place"
            );
            return Err(index.bad(text));
        }
        let at = match document {
            0 => 0,
            _ if sequence == tables.sequences => *len_bytes,
            _ => number_at(index, tables.offset_at(sequence))?.min(*len_bytes),
        };
        // Tables hold far fewer bytes than tokens do, so request nothing ahead from a store.
        self.front = Some(Front {
            lens: index.read(tables.len_at(sequence), Some(0))?,
            offsets: index.read(tables.offset_at(sequence), Some(0))?,
            ends: index.read(tables.end_at(document + 1), Some(0))?,
            tokens: tokens.read_counted(at)?,
            document,
            sequence,
            at,
        });
        Ok(())
    }

    fn next_row(&mut self, cells: &mut Cells) -> Result<bool, RowError> {
        let Some(len) = self.next_len()? else { return Ok(false) };
        let Some(front) = &mut self.front else { return Ok(false) };
        let mut left = front.tokens.by_ref().take(len);
        let mut document = Vec::with_capacity(len.min(ROOM_BYTES) as usize);
        let read = if len > MAX_SAMPLE_BYTES {
            io::copy(&mut left, &mut io::sink())
        } else {
            left.read_to_end(&mut document).map(|read| read as u64)
        };
        if read.map_err(|error| RowError::File(error.into()))? != len {
            let reason = BadReason::Truncated("the tokens end within the document");
            return Err(RowError::File(reason));
        }
        BadReason::TooLarge(len).unless(len <= MAX_SAMPLE_BYTES)?;
        cells.clear();
        cells.push(Some(document.into()));
        Ok(true)
    }
}

/// The number in the 8 bytes at offset `at` of the index.
fn number_at(index: &Input, at: u64) -> Result<u64> {
    let mut bytes = [0; 8];
    index.read_at(at, &mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// The next number of a table.
fn take<const N: usize>(from: &mut dyn Read) -> Result<[u8; N], RowError> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes).map_err(|error| RowError::File(error.into()))?;
    Ok(bytes)
}

/// The type of tokens to which Megatron-LM gives a number, from 1 on.
fn element_of(number: u8) -> Option<Element> {
    use Element::{F32, F64, I8, I16, I32, I64, U8, U16};
    let at = usize::from(number).checked_sub(1)?;
    [U8, I8, I16, I32, I64, F64, F32, U16].get(at).copied()
}

/// Bytes before the first table.
const HEAD_BYTES: u64 = 34;
/// Memory taken for a document before it is read; a longer one takes more while it is read.
const ROOM_BYTES: u64 = 1 << 20;
