//! Writes the tokens of a layout into arrays, with the segment, position, sample and loss mask of each token.
//!
//! The tokens of a segment are converted to the array's type by a loop without branches. A separate pass before it
//! checks their values, only if they could be too large for the array or the vocabulary.

use std::ops::Range;

use dlfs_base::buf::prefetch;
use dlfs_base::error::{Error, ErrorKind, Result, invalid};
use dlfs_base::units::SampleId;
use dlfs_format::format::field_type::Element;
use dlfs_order::order::budget::Pack;

use crate::columns::{Columns, Piece};
use crate::layout::{Layout, Segment, Span};

/// One document's bytes.
#[derive(Debug, Clone, Copy)]
pub struct Document<'a> {
    /// The tokens, little-endian.
    pub tokens: &'a [u8],
    /// Their type.
    pub token_type: TokenType,
    /// A byte for each token: 0 if it is not learned from. `None`: all are.
    pub loss: Option<&'a [u8]>,
    /// The sample's id.
    pub id: SampleId,
    /// The name of the sample's source in a mixture, for errors. `None`: there is no mixture.
    pub source: Option<&'a str>,
}

/// The type of a document's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenType {
    /// Unsigned, 8 bits.
    U8,
    /// Unsigned, 16 bits.
    U16,
    /// Unsigned, 32 bits.
    U32,
    /// Signed, 32 bits.
    I32,
}

/// The array of tokens.
#[derive(Debug)]
pub enum TokensMut<'a> {
    /// Unsigned, 16 bits.
    U16(&'a mut [u16]),
    /// Unsigned, 32 bits.
    U32(&'a mut [u32]),
    /// Signed, 32 bits.
    I32(&'a mut [i32]),
    /// Signed, 64 bits.
    I64(&'a mut [i64]),
}

/// The arrays of a batch, row-major, each of `[rows, chunks * columns of a chunk]` or longer. Those that are `None` are
/// not written.
#[derive(Debug)]
pub struct Arrays<'a> {
    /// The tokens.
    pub tokens: TokensMut<'a>,
    /// The number of the segment, from 1 in each row; 0 for padding.
    pub segment_ids: Option<&'a mut [i32]>,
    /// The number of the token within its segment, from 0; 0 for padding.
    pub position_ids: Option<&'a mut [i32]>,
    /// 1 if the token is learned from as a label, else 0. Padding is not, nor are tokens whose document says so, nor
    /// the first token of a segment if documents do not lie end to end: the token before it is unrelated.
    pub loss_mask: Option<&'a mut [u8]>,
    /// The starts of segments and paddings in the flattened inputs `[rows * seq_len]`, and their end. Only with whole
    /// rows.
    pub cu_seqlens: Option<&'a mut Vec<i32>>,
    /// The id of the token's sample; -1 for padding.
    pub sample_ids: Option<&'a mut [i64]>,
}

/// The tokens that rows have beside those of documents, and the range of all tokens.
#[derive(Debug, Clone, Copy)]
pub struct FillRules {
    /// The rule by which documents were packed.
    pub pack: Pack,
    /// The token behind the last one of each document. `None`: documents are not separated.
    pub separator: Option<u32>,
    /// The token of padding.
    pub pad: u32,
    /// The number of tokens that exist; all are below it. `None`: it is not known, and not checked.
    pub vocabulary: Option<u32>,
}

/// Writes the rows of `layout` into `arrays`. `documents` has the documents that its segments name.
///
/// # Errors
/// Errors of `documents`. `InvalidArgument`: an array is too short, or cannot hold a token; columns are of shorter
/// rows. `Corrupt`: a document has fewer tokens than its segment, a token outside of the vocabulary, or a loss byte too
/// many or too few; the error names the sample.
pub fn fill<'a>(
    layout: &Layout,
    columns: &Columns,
    rules: &FillRules,
    documents: impl Fn(usize) -> Result<Document<'a>>,
    arrays: &mut Arrays<'_>,
) -> Result<()> {
    rules.check()?;
    arrays.check(layout, columns, rules)?;
    let seq_len = columns.seq_len();
    let mut spans = layout.spans(seq_len + 1).map(|span| {
        let document = span.segment.map(|it| documents(it.document as usize)).transpose()?;
        Ok::<_, Error>((span, document))
    });
    let mut next = spans.next().transpose()?;
    while let Some((span, document)) = next {
        next = spans.next().transpose()?;
        if let Some((Span { segment: Some(segment), .. }, Some(document))) = &next {
            document.prefetch(segment);
        }
        for Piece { to, skip } in columns.pieces(span.column, span.len) {
            let row = span.row as usize * columns.width();
            let to = row + to.start..row + to.end;
            match (span.segment, &document) {
                (Some(segment), Some(document)) => {
                    document.put_tokens(segment, skip, to.clone(), rules, arrays)?;
                    arrays.put_places(&span, skip, to, document.id.0 as i64); // ids are below 2^40
                }
                _ => arrays.pad(to, rules.pad),
            }
        }
    }
    if let Some(starts) = &mut arrays.cu_seqlens {
        starts.clear();
        starts.push(0);
        let mut end = 0;
        for span in layout.spans(seq_len + 1).filter(|span| span.inputs(seq_len) > 0) {
            end += span.inputs(seq_len) as i32; // `check` has multiplied
            starts.push(end);
        }
    }
    Ok(())
}

impl FillRules {
    /// Checks that the vocabulary has the separator and the padding.
    ///
    /// # Errors
    /// `InvalidArgument`: it does not.
    pub fn check(&self) -> Result<()> {
        let Some(size) = self.vocabulary else { return Ok(()) };
        for (what, token) in self.rule_tokens() {
            if token >= size {
                let text =
                    format!("the {what} is token {token}, and the vocabulary has {size} tokens");
                return Err(Error::invalid(text, "tokens go from 0 to the vocabulary less one"));
            }
        }
        Ok(())
    }

    /// The tokens that come from these rules, each with its name.
    fn rule_tokens(&self) -> impl Iterator<Item = (&'static str, u32)> + use<> {
        let separator = self.separator.map(|token| ("separator", token));
        separator.into_iter().chain([("padding", self.pad)])
    }

    /// The largest token that documents of `kind` may have in `array`; `None` if no token of this type is larger.
    /// Negative tokens count as larger, unless a signed array takes them.
    fn limit(&self, kind: TokenType, array: &ArrayType) -> Option<u32> {
        let limit = self.vocabulary.map_or(array.max, |size| array.max.min(size - 1)); // `check`: size > pad
        match kind {
            TokenType::U8 => (limit < u8::MAX.into()).then_some(limit),
            TokenType::U16 => (limit < u16::MAX.into()).then_some(limit),
            TokenType::U32 => (limit < u32::MAX).then_some(limit),
            TokenType::I32 if array.is_signed && self.vocabulary.is_none() => None,
            TokenType::I32 => Some(limit.min(i32::MAX as u32)),
        }
    }
}

impl Document<'_> {
    /// Prefetches the first tokens of `segment` into the processor's cache: they were read long ago.
    fn prefetch(&self, segment: &Segment) {
        let at = segment.from as usize * self.token_type.len_bytes();
        prefetch(self.tokens.get(at..).unwrap_or_default());
    }

    /// Writes the tokens of `segment` after its first `skip`, and their part of the loss mask.
    fn put_tokens(
        &self,
        segment: Segment,
        skip: usize,
        to: Range<usize>,
        rules: &FillRules,
        arrays: &mut Arrays<'_>,
    ) -> Result<()> {
        let width = self.token_type.len_bytes();
        let has = self.tokens.len() / width;
        self.check(segment, has, rules)?;
        let from = segment.from as usize + skip;
        let end = has.min(from + to.len());
        let stored = to.start..to.start + end - from.min(end);
        let bytes = &self.tokens[from.min(end) * width..end * width];
        self.check_values(from, bytes, rules, &arrays.tokens)?;
        arrays.tokens.copy(stored.clone(), self.token_type, bytes);
        if let (true, Some(separator)) = (stored.end < to.end, rules.separator) {
            arrays.tokens.set(stored.end..to.end, separator);
        }
        let Some(mask) = &mut arrays.loss_mask else { return Ok(()) };
        mask[to.clone()].fill(1);
        if let Some(loss) = self.loss {
            for (to, loss) in mask[stored].iter_mut().zip(&loss[from.min(end)..end]) {
                *to = u8::from(*loss != 0);
            }
        }
        if skip == 0 && rules.pack != Pack::Concat {
            mask[to.start] = 0;
        }
        Ok(())
    }

    /// Checks that the document, which has `has` tokens, has those of `segment`, and as many loss bytes.
    fn check(&self, segment: Segment, has: usize, rules: &FillRules) -> Result<()> {
        let end = segment.from as usize + segment.len as usize;
        if end > has + usize::from(rules.separator.is_some()) {
            let text = format!("the document has {has} tokens, fewer than its length says");
            let hint = "lengths of rows are counted in tokens: correct the column of lengths";
            return Err(self.error(text).hint(hint));
        }
        if let Some(loss) = self.loss.filter(|loss| loss.len() != has) {
            let count = loss.len();
            let text = format!("the loss field has {count} bytes, and the document {has} tokens");
            return Err(self.error(text).hint("it has a byte for each token: 0 or 1"));
        }
        Ok(())
    }

    /// Checks the tokens in `bytes`, the first of which is number `from` of the document.
    fn check_values(
        &self,
        from: usize,
        bytes: &[u8],
        rules: &FillRules,
        array: &TokensMut<'_>,
    ) -> Result<()> {
        let kind = self.token_type;
        let array = array.array_type();
        let Some(limit) = rules.limit(kind, &array) else { return Ok(()) };
        if kind.largest(bytes) <= limit {
            return Ok(());
        }
        let mut each = bytes.chunks_exact(kind.len_bytes()).map(|token| kind.largest(token));
        let nth = each.position(|token| token > limit).unwrap_or(0);
        let value = kind.largest(&bytes[nth * kind.len_bytes()..][..kind.len_bytes()]);
        let at = from + nth;
        let shown = if kind == TokenType::I32 { i64::from(value as i32) } else { value.into() };
        let error = match rules.vocabulary {
            Some(size) if limit == size - 1 => {
                let text = format!(
                    "token {at} of the document is {shown}, and the vocabulary has {size} tokens"
                );
                self.error(text).hint("give the vocabulary of the tokenizer that wrote the tokens")
            }
            _ => {
                let text = format!(
                    "token {at} of the document is {shown}, which {} does not hold",
                    array.name
                );
                self.error(text).hint("take a wider type for the array, such as i64")
            }
        };
        Err(error)
    }

    fn error(&self, text: String) -> Error {
        let error = Error::new(ErrorKind::Corrupt, text).sample(self.id);
        match self.source {
            Some(source) => error.target(source),
            None => error,
        }
    }
}

impl TokenType {
    /// The type of tokens that are such elements; `None` if tokens are not.
    pub fn of(element: Element) -> Option<TokenType> {
        match element {
            Element::U8 => Some(TokenType::U8),
            Element::U16 => Some(TokenType::U16),
            Element::U32 => Some(TokenType::U32),
            Element::I32 => Some(TokenType::I32),
            _ => None,
        }
    }

    /// Bytes of a token.
    pub fn len_bytes(self) -> usize {
        match self {
            TokenType::U8 => 1,
            TokenType::U16 => 2,
            TokenType::U32 | TokenType::I32 => 4,
        }
    }

    /// The largest of `tokens`; negative ones are larger than others.
    fn largest(self, tokens: &[u8]) -> u32 {
        match self {
            TokenType::U8 => tokens.iter().fold(0, |most, &token| most.max(token)).into(),
            TokenType::U16 => {
                let each = tokens.as_chunks().0.iter();
                each.fold(0, |most: u16, token| most.max(u16::from_le_bytes(*token))).into()
            }
            TokenType::U32 | TokenType::I32 => {
                let each = tokens.as_chunks().0.iter();
                each.fold(0, |most: u32, token| most.max(u32::from_le_bytes(*token)))
            }
        }
    }

    /// Copies tokens to `to`, converted by `of_u32`, or by `of_i32` if they are signed.
    fn copy<T>(
        self,
        from: &[u8],
        to: &mut [T],
        of_u32: impl Fn(u32) -> T,
        of_i32: impl Fn(i32) -> T,
    ) {
        match self {
            TokenType::U8 => each(from, to, |[token]| of_u32(token.into())),
            TokenType::U16 => each(from, to, |token| of_u32(u16::from_le_bytes(token).into())),
            TokenType::U32 => each(from, to, |token| of_u32(u32::from_le_bytes(token))),
            TokenType::I32 => each(from, to, |token| of_i32(i32::from_le_bytes(token))),
        }
    }
}

impl TokensMut<'_> {
    /// Converts the tokens `from` of type `kind` to those of the array, into its elements `to`.
    fn copy(&mut self, to: Range<usize>, kind: TokenType, from: &[u8]) {
        // `check_values` has found that the array holds them.
        match self {
            TokensMut::U16(out) => kind.copy(from, &mut out[to], |it| it as u16, |it| it as u16),
            TokensMut::U32(out) => kind.copy(from, &mut out[to], |it| it, |it| it as u32),
            TokensMut::I32(out) => kind.copy(from, &mut out[to], |it| it as i32, |it| it),
            TokensMut::I64(out) => kind.copy(from, &mut out[to], i64::from, i64::from),
        }
    }

    /// Writes `token`, which the array holds.
    fn set(&mut self, to: Range<usize>, token: u32) {
        match self {
            TokensMut::U16(out) => out[to].fill(token as u16),
            TokensMut::U32(out) => out[to].fill(token),
            TokensMut::I32(out) => out[to].fill(token as i32),
            TokensMut::I64(out) => out[to].fill(token.into()),
        }
    }

    fn array_type(&self) -> ArrayType {
        let (len, max, is_signed, name) = match self {
            TokensMut::U16(out) => (out.len(), u16::MAX.into(), false, "an array of u16"),
            TokensMut::U32(out) => (out.len(), u32::MAX, false, "an array of u32"),
            TokensMut::I32(out) => (out.len(), i32::MAX as u32, true, "an array of i32"),
            TokensMut::I64(out) => (out.len(), u32::MAX, true, "an array of i64"),
        };
        ArrayType { len, max, is_signed, name }
    }
}

/// Properties of an array of tokens.
struct ArrayType {
    /// The number of elements.
    len: usize,
    /// The largest token that it holds.
    max: u32,
    /// Set if it holds negative tokens.
    is_signed: bool,
    /// Its name in errors.
    name: &'static str,
}

impl Arrays<'_> {
    /// Checks that the arrays have room for the rows, and that the array of tokens holds the tokens of `rules`.
    fn check(&self, layout: &Layout, columns: &Columns, rules: &FillRules) -> Result<()> {
        let array = self.tokens.array_type();
        for (what, token) in rules.rule_tokens() {
            if token > array.max {
                let name = array.name;
                let text = format!("the {what} is token {token}, which {name} does not hold");
                return Err(Error::invalid(text, "take a wider type, such as i64"));
            }
        }
        let rows = layout.num_rows as usize;
        let need = rows * columns.width();
        let lens = [
            ("tokens", Some(array.len)),
            ("segment ids", self.segment_ids.as_ref().map(|array| array.len())),
            ("position ids", self.position_ids.as_ref().map(|array| array.len())),
            ("the loss mask", self.loss_mask.as_ref().map(|array| array.len())),
            ("sample ids", self.sample_ids.as_ref().map(|array| array.len())),
        ];
        if columns.seq_len() < layout.seq_len {
            let seq_len = columns.seq_len();
            let text = format!("columns of {seq_len} inputs hold no rows of {}", layout.seq_len);
            return Err(invalid(text));
        }
        for (what, len) in lens {
            if let Some(len) = len.filter(|&len| len < need) {
                let width = columns.width();
                return Err(invalid(format!(
                    "{what} of {rows} rows of {width} columns need {need} elements, and the array has {len}"
                )));
            }
        }
        if self.cu_seqlens.is_none() {
            return Ok(());
        }
        if !columns.is_all() {
            return Err(Error::invalid(
                "the slices of a context-parallel rank have no cu_seqlens: they cut segments",
                "take segment ids, or the cu_seqlens of whole rows",
            ));
        }
        let inputs = u64::from(layout.num_rows) * u64::from(columns.seq_len());
        if inputs > i32::MAX as u64 {
            let text = format!("cu_seqlens are i32, and the rows have {inputs} inputs");
            return Err(Error::invalid(text, "take fewer rows a batch"));
        }
        Ok(())
    }

    /// Writes segment, position and sample ids for the columns of `span` after its first `skip`.
    fn put_places(&mut self, span: &Span, skip: usize, to: Range<usize>, id: i64) {
        if let Some(out) = &mut self.segment_ids {
            out[to.clone()].fill(span.number as i32); // at most the columns of a row
        }
        if let Some(out) = &mut self.position_ids {
            out[to.clone()].iter_mut().zip(skip as i32..).for_each(|(to, nth)| *to = nth);
        }
        if let Some(out) = &mut self.sample_ids {
            out[to].fill(id);
        }
    }

    /// Makes the elements `to` of all arrays padding, with the token `pad`.
    fn pad(&mut self, to: Range<usize>, pad: u32) {
        self.tokens.set(to.clone(), pad);
        for out in [&mut self.segment_ids, &mut self.position_ids].into_iter().flatten() {
            out[to.clone()].fill(0);
        }
        if let Some(out) = &mut self.loss_mask {
            out[to.clone()].fill(0);
        }
        if let Some(out) = &mut self.sample_ids {
            out[to].fill(-1);
        }
    }
}

/// Converts each little-endian element of `from` with `of`.
fn each<const N: usize, T>(from: &[u8], to: &mut [T], of: impl Fn([u8; N]) -> T) {
    for (to, from) in to.iter_mut().zip(from.as_chunks().0) {
        *to = of(*from);
    }
}

#[cfg(test)]
mod tests;
