//! Documents of tokens, in files without an index: raw ones, or `.npy` files of one dimension.
//!
//! A token ends each document, and is not part of it. A document without tokens is left out, so files in which that
//! token begins each document are read as well. The last document may lack the token. The header that llm.c puts in
//! front of a raw file is left out.

use std::io::{self, Read};

use super::column::{CellKind, Cells, Column, is_float};
use super::input::Input;
use super::{OpenRows, RowError, RowReader};
use crate::import::options::RowOptions;
use crate::import::sources::BadReason;
use crate::import::sources::compression::{self, Compression};
use crate::import::sources::index::MAX_SAMPLE_BYTES;
use crate::import::sources::sample_stream::StreamPlace;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::format::field_type::{Element, FieldType};
use dlfs_format::format::npy::{NpyError, NpyHeader};

/// The field of the tokens.
pub(crate) const FIELD: &str = "tok";

/// The column of tokens of the type `element`. `is_typed`: options or image define the type of the field.
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
    /// The tokens behind `block`.
    from: Box<dyn Read + Send>,
    /// The tokens that were read last.
    block: Vec<u8>,
    /// Bytes of `block` that documents have taken.
    taken: usize,
    /// Offset of the next token to take.
    at: u64,
}

impl TokenFile {
    /// Opens the file `input`; `is_typed` as in [`column`].
    ///
    /// # Errors
    /// The file cannot be read, the type of its tokens is not known, or it does not consist of whole tokens.
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
            let found = &rest[..end.unwrap_or(rest.len())];
            len += found.len() as u64;
            if len <= MAX_SAMPLE_BYTES {
                document.extend_from_slice(found);
            } else {
                document = Vec::new();
            }
            let taken = found.len() + end.map_or(0, |_| self.token_bytes);
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

/// The type of the tokens of an `.npy` file of `len_bytes` bytes that begins with `head`, and the offset of the first
/// token. `None`: it is no `.npy` file.
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

/// The program that compressed a file, which begins with `head`. The two bytes at which gzip is recognised may be a
/// token, so the third is checked, too.
fn packed(head: &[u8]) -> Option<&'static str> {
    if matches!(head, [0x1f, 0x8b, method, ..] if *method != 8) {
        return None;
    }
    Compression::of(head).map(Compression::name).or_else(|| compression::foreign(head))
}

/// Length of the header of a raw file that llm.c and its successors wrote; 0: there is none. The header is a mark, a
/// version and the number of tokens, each of 4 bytes, and zeroes.
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
        tokens.as_chunks::<N>().0.iter().position(|other| other == token)
    }
    let found = match token_bytes {
        1 => of::<1>(tokens, token),
        2 => of::<2>(tokens, token),
        4 => of::<4>(tokens, token),
        _ => of::<8>(tokens, token),
    };
    found.map(|at| at * token_bytes)
}

/// Bytes read at once: whole tokens of any type.
const BLOCK_BYTES: u64 = 1 << 20;
/// Length of the header of llm.c.
const COUNTED_BYTES: usize = 1024;
/// The longest header of an `.npy` file that is read.
const MAX_HEAD_BYTES: u64 = (64 << 10) + 12;
