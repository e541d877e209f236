//! Documents of tokens.
//!
//! # Files without an index
//! They are raw, or `.npy` files of one dimension. A token ends each document.
//!
//! Documents come without that token. A document without tokens is left out, so files in which the token begins each
//! document are read as well. The last document may lack the token. The header of llm.c is left out of a raw file.
//!
//! # Files of Megatron-LM
//! `PREFIX.idx` is an index, beside `PREFIX.bin`, the tokens.
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

use super::RowFile;
use super::column::{CellKind, Cells, Column, is_float};
use super::input::Input;
use super::rows::{OpenRows, RowError, RowReader};
use crate::import::options::RowOptions;
use crate::import::sources::BadReason;
use crate::import::sources::compression::{self, Compression};
use crate::import::sources::index::MAX_SAMPLE_BYTES;
use crate::import::sources::sample_stream::StreamPlace;
use crate::import::sources::shard_index::MEGATRON_INDEX;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::format::field_type::{Element, FieldType};
use dlfs_format::format::npy::{NpyError, NpyHeader};

/// The field of the tokens.
pub(crate) const FIELD: &str = "tok";

/// The column of tokens of this type. `is_typed`: options or image define the type of the field.
///
/// # Errors
/// `BadSource`: rows of tokens are not made of this type.
pub(super) fn column(element: Element, is_typed: bool) -> Result<Column> {
    use Element::{Bool, I32, U8, U16, U32};
    let is_integer = !is_float(element) && element != Bool;
    let is_taken = matches!(element, U8 | U16 | U32 | I32) || is_integer && is_typed;
    if !is_taken {
        let text = format!("tokens are u8, u16, u32 or i32, and these are {}", element.name());
        let error = Error::new(ErrorKind::BadSource, text);
        let hint =
            "--field-type tok:u32[*] converts them, and refuses those that u32 does not hold";
        return Err(if is_integer { error.hint(hint) } else { error });
    }
    let kind = FieldType::new(element, true, Vec::new());
    let kind = kind.map_err(|what| Error::new(ErrorKind::BadSource, what))?;
    Ok(Column::new(FIELD, CellKind::Elements(kind)))
}

/// The documents of a file of tokens.
pub(super) struct TokenFile {
    input: Input,
    /// Bytes of a token.
    token_bytes: usize,
    /// The token that ends each document, little-endian.
    end: [u8; 8],
    /// Offset of the first token.
    begin: u64,
    /// Length of the file.
    len_bytes: u64,
    from: Box<dyn Read + Send>,
    /// Tokens read; those before `taken` were taken.
    block: Vec<u8>,
    taken: usize,
    /// Offset of the next token to take.
    at: u64,
}

impl TokenFile {
    /// Opens the file `input`; `is_typed` as in [`column`].
    ///
    /// # Errors
    /// The file cannot be read, its type is not known, or it does not consist of such tokens.
    pub(super) fn open(input: &Input, options: &RowOptions, is_typed: bool) -> Result<OpenRows> {
        let named = |error: Error| error.path(&input.path);
        let invalid = |text: String| named(Error::new(ErrorKind::InvalidArgument, text));
        let Some(end) = options.end_of_document else {
            let text = "a file of tokens does not say where documents end".to_owned();
            return Err(invalid(text).hint("--end-of-document TOKEN gives the token behind each"));
        };
        let len_bytes = input.len_bytes()?;
        let mut head = vec![0; len_bytes.min(MAX_HEAD_BYTES) as usize];
        input.read_at(0, &mut head)?;
        if let Some(program) = packed(&head) {
            let text = format!("it is compressed with {program}, and tokens are read as they are");
            return Err(input.bad(text).hint("decompress it first"));
        }
        let (element, begin) = match npy(input, &head, len_bytes)? {
            Some((element, _)) if options.tokens.is_some_and(|given| given != element) => {
                let text =
                    format!("its tokens are {}, and --tokens says otherwise", element.name());
                return Err(input.bad(text));
            }
            Some(found) => found,
            None => match options.tokens {
                Some(element) => (element, counted_header(&head, len_bytes, element)),
                None => {
                    let text = "a raw file does not say the type of its tokens".to_owned();
                    return Err(invalid(text).hint("--tokens TYPE gives it, such as u16"));
                }
            },
        };
        let each = u64::from(element.len_bytes());
        let name = element.name();
        if !(len_bytes - begin).is_multiple_of(each) {
            let text = format!("it has {len_bytes} bytes, and each {name} takes {each}");
            return Err(input.bad(text));
        }
        let bits = 8 * element.len_bytes() - u32::from(name.starts_with('i'));
        if u128::from(end) >> bits != 0 {
            return Err(invalid(format!(
                "the end of documents is {end}, which {name} does not hold"
            )));
        }
        let columns = vec![column(element, is_typed).map_err(named)?];
        let rows = TokenFile {
            input: input.clone(),
            token_bytes: element.len_bytes() as usize,
            end: u64::from(end).to_le_bytes(),
            begin,
            len_bytes,
            from: Box::new(io::empty()),
            block: Vec::new(),
            taken: 0,
            at: begin,
        };
        Ok((columns, Box::new(rows)))
    }

    /// Reads the next block, once all tokens are taken; `false` at the end of the file.
    fn read_block(&mut self) -> Result<bool, RowError> {
        let len = (self.len_bytes - self.at).min(BLOCK_BYTES) as usize;
        self.block.resize(len, 0);
        self.taken = 0;
        self.from.read_exact(&mut self.block).map_err(|error| RowError::File(error.into()))?;
        Ok(len > 0)
    }

    /// The tokens of the next document, at least one; `None` after the last.
    fn next_document(&mut self) -> Result<Option<Vec<u8>>, RowError> {
        let mut document = Vec::new();
        let mut len = 0;
        loop {
            let is_over = self.taken == self.block.len() && !self.read_block()?;
            let rest = &self.block[self.taken..];
            let end = position(rest, &self.end, self.token_bytes);
            let part = &rest[..end.unwrap_or(rest.len())];
            len += part.len() as u64;
            if len <= MAX_SAMPLE_BYTES {
                document.extend_from_slice(part);
            } else {
                document = Vec::new();
            }
            let taken = part.len() + end.map_or(0, |_| self.token_bytes);
            self.taken += taken;
            self.at += taken as u64;
            let is_whole = is_over || end.is_some();
            BadReason::TooLarge(len).unless(!is_whole || len <= MAX_SAMPLE_BYTES)?;
            if is_over || is_whole && len > 0 {
                return Ok((len > 0).then_some(document));
            }
        }
    }
}

impl RowReader for TokenFile {
    fn begin(&mut self, from: StreamPlace) -> Result<()> {
        self.at = from.offset.clamp(self.begin, self.len_bytes);
        self.from = self.input.read_counted(self.at)?;
        Ok(())
    }

    fn place(&self, _: u64) -> StreamPlace {
        StreamPlace { offset: self.at, ..StreamPlace::default() }
    }

    fn next_row(&mut self, cells: &mut Cells) -> Result<bool, RowError> {
        let Some(document) = self.next_document()? else { return Ok(false) };
        cells.clear();
        cells.push(Some(document.into()));
        Ok(true)
    }
}

/// The type of the tokens of an `.npy` file of `len_bytes` that begins with `head`, and the offset of the first one;
/// `None`: it is another file.
fn npy(input: &Input, head: &[u8], len_bytes: u64) -> Result<Option<(Element, u64)>> {
    if !head.starts_with(b"\x93NUMPY") {
        return Ok(None);
    }
    let header = NpyHeader::parse(head).map_err(|error| match error {
        NpyError::Needs(len) => {
            input.bad(format!("its header takes {len} bytes, and it has {len_bytes}"))
        }
        NpyError::Wrong(what) => input.bad(format!("it {what}")),
    })?;
    let element = header.element().map_err(|what| input.bad(format!("it {what}")))?;
    let shown = header.shown();
    let [tokens] = header.shape[..] else {
        return Err(input.bad(format!("it is {shown}, and tokens have one dimension")));
    };
    let each = u128::from(element.len_bytes());
    let needed = u128::from(header.len_bytes) + each * u128::from(tokens);
    if needed != len_bytes.into() {
        let text = format!("it is {shown}, which takes {needed} bytes, and it has {len_bytes}");
        return Err(input.bad(text));
    }
    Ok(Some((element, header.len_bytes)))
}

/// The program that compressed a file, which begins with `head`. Marks of two bytes alone may be tokens.
fn packed(head: &[u8]) -> Option<&'static str> {
    if matches!(head, [0x1f, 0x8b, method, ..] if *method != 8) {
        return None;
    }
    Compression::of(head).map(Compression::name).or_else(|| compression::foreign(head))
}

/// Length of the header of a raw file that llm.c and its successors wrote; 0: there is none. It has a mark, a version
/// and the number of tokens, each of 4 bytes, and zeroes.
fn counted_header(head: &[u8], len_bytes: u64, element: Element) -> u64 {
    let Some((front, _)) = head.split_first_chunk::<COUNTED_BYTES>() else { return 0 };
    let tokens = u32::from_le_bytes([front[8], front[9], front[10], front[11]]);
    let len = COUNTED_BYTES as u64 + u64::from(element.len_bytes()) * u64::from(tokens);
    let is_one = tokens > 0 && len == len_bytes && front[12..].iter().all(|byte| *byte == 0);
    if is_one { COUNTED_BYTES as u64 } else { 0 }
}

/// Offset of the first of `tokens` that is `token`.
fn position(tokens: &[u8], token: &[u8; 8], token_bytes: usize) -> Option<usize> {
    fn of<const N: usize>(tokens: &[u8], token: &[u8; 8]) -> Option<usize> {
        let token: &[u8; N] = token.first_chunk()?;
        tokens.as_chunks::<N>().0.iter().position(|own| own == token)
    }
    let found = match token_bytes {
        1 => of::<1>(tokens, token),
        2 => of::<2>(tokens, token),
        4 => of::<4>(tokens, token),
        _ => of::<8>(tokens, token),
    };
    found.map(|at| at * token_bytes)
}

/// The tokens of the index `index`, whose documents are called `PREFIX/NUMBER`; the index is called `name`. `is_typed`:
/// options or image define the type of the field. Records the tokens as an origin.
///
/// # Errors
/// The index has another name than an index. Errors of looking up the tokens.
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

/// The places of the tables in an index.
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
        let [version, sequences, ends] = [9, 18, 26].map(|at| number(&head[at..at + 8]));
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

    fn len_at(&self, sequence: u64) -> u64 {
        HEAD_BYTES + 4 * sequence
    }

    fn offset_at(&self, sequence: u64) -> u64 {
        self.len_at(self.sequences) + 8 * sequence
    }

    fn end_at(&self, end: u64) -> u64 {
        self.offset_at(self.sequences) + 8 * end
    }

    /// Checks that the last document and the last sequence end where all sequences and the tokens end.
    fn check_ends(&self, index: &Input, tokens: &Input, len_bytes: u64) -> Result<()> {
        let at = self.end_at(self.ends.saturating_sub(1));
        let last = if self.ends == 0 { 0 } else { word(index, at)? };
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
            end = i128::from(word(index, self.offset_at(sequence))?)
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
    /// Length of the tokens.
    len_bytes: u64,
    /// The place in the files, once reading has begun.
    front: Option<Front>,
}

/// Readers of the tables and the tokens, each at the next document.
struct Front {
    lens: Box<dyn Read + Send>,
    offsets: Box<dyn Read + Send>,
    ends: Box<dyn Read + Send>,
    tokens: Box<dyn Read + Send>,
    /// Number of the document.
    document: u64,
    /// Number of its first sequence.
    sequence: u64,
    /// Offset of its first token.
    at: u64,
}

impl Documents {
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
        let sequence = word(index, tables.end_at(document))?;
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
            _ => word(index, tables.offset_at(sequence))?.min(*len_bytes),
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

/// The number of 8 bytes at a place in the index.
fn word(index: &Input, at: u64) -> Result<u64> {
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

/// The type with a number of Megatron's.
fn element_of(number: u8) -> Option<Element> {
    use Element::{F32, F64, I8, I16, I32, I64, U8, U16};
    let at = usize::from(number).checked_sub(1)?;
    [U8, I8, I16, I32, I64, F64, F32, U16].get(at).copied()
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Bytes read at once: whole tokens of any type.
const BLOCK_BYTES: u64 = 1 << 20;
/// Length of the header of llm.c.
const COUNTED_BYTES: usize = 1024;
/// The longest header of an `.npy` file that is read.
const MAX_HEAD_BYTES: u64 = (64 << 10) + 12;
/// Memory taken for a document before it is read; a longer one takes more while it is read.
const ROOM_BYTES: u64 = 1 << 20;
/// Bytes before the first table.
const HEAD_BYTES: u64 = 34;
