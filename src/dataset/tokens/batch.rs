//! A batch of rows of tokens: the documents that were read, and the rows that they make.

use std::sync::Arc;

use super::TokenOptions;
use super::fields::{Fields, shown};
use crate::error::{Error, ErrorKind, Result};
use crate::order::budget::Pack;
use crate::prefetch::TokenLengths;
use crate::reader::Batch;
use crate::tokens::{Arrays, Columns, Document, Layout, fill};

/// Rows that were requested together, every byte of their documents verified. The next batch reuses the memory.
#[derive(Debug, Default)]
pub struct TokenBatch {
    samples: Batch,
    layout: Layout,
    /// The options and sources of the loader that filled the batch; `None` before.
    loader: Option<(TokenOptions, Arc<[TokenSource]>)>,
}

/// A data set that documents come from.
#[derive(Debug)]
pub(super) struct TokenSource {
    pub(super) fields: Fields,
    /// The name of the data set in a mixture; `None`: the only one.
    pub(super) name: Option<String>,
    /// The column of lengths; `None`: the length of a document in bytes gives its tokens.
    pub(super) lengths: Option<TokenLengths>,
}

impl TokenBatch {
    /// An empty batch, to be filled by [`TokenLoader::next`](super::TokenLoader::next).
    pub fn new() -> TokenBatch {
        TokenBatch::default()
    }

    /// The documents, in the order in which the rows take them, by ascending numbers of the rows; neighbouring rows
    /// that share a document refer to one copy.
    pub fn samples(&self) -> &Batch {
        &self.samples
    }

    /// The tokens of documents that lie in each row.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The number of rows.
    pub fn num_rows(&self) -> usize {
        self.layout.num_rows as usize
    }

    /// The number of documents.
    pub fn documents(&self) -> usize {
        self.samples.len()
    }

    /// The most inputs of one segment or padding: the largest difference in cu_seqlens.
    pub fn max_seqlen(&self) -> u32 {
        self.layout.max_seqlen(self.layout.seq_len)
    }

    /// The columns of the batch's arrays; `columns` are those of rows at the epoch's start. Rows of another phase
    /// have another length. Where each document is a row, the rows of all ranks are only as wide as the longest
    /// document needs.
    ///
    /// # Errors
    /// `InvalidArgument`: the columns are of rows of another length, or context-parallel ranks cannot share these rows
    /// equally.
    pub fn columns(&self, columns: &Columns) -> Result<Columns> {
        let (options, _) = self.loader()?;
        if columns.seq_len() != options.seq_len {
            let text = format!(
                "columns of rows of {} tokens are asked for, and the loader's have {}",
                columns.seq_len(),
                options.seq_len
            );
            return Err(Error::invalid(text, "make them with the loader's seq_len"));
        }
        match options.pack {
            Pack::None => columns.of_narrow_rows(self.layout.seq_len),
            Pack::Concat | Pack::BestFit => columns.of_rows(self.layout.seq_len),
        }
    }

    /// Writes the rows into `arrays`, one row behind the other, each of [`TokenBatch::columns`]. Arrays may be longer.
    /// Allocates nothing but cu_seqlens.
    ///
    /// # Errors
    /// Errors of [`TokenBatch::columns`] and [`dlfs_tokens::fill`]. `Corrupt`: a document has another number of tokens
    /// than its length says.
    pub fn fill(&self, columns: &Columns, arrays: &mut Arrays<'_>) -> Result<()> {
        let (options, sources) = self.loader()?;
        let columns = self.columns(columns)?;
        let document = |nth| self.document(sources, nth);
        fill(&self.layout, &columns, &options.rules(), document, arrays)
    }

    /// The options and sources of the loader.
    ///
    /// # Errors
    /// `InvalidArgument`: no batch was read yet.
    fn loader(&self) -> Result<&(TokenOptions, Arc<[TokenSource]>)> {
        let unread = || Error::invalid("no batch was read yet", "call TokenLoader::next first");
        self.loader.as_ref().ok_or_else(unread)
    }

    /// Removes all rows; returns the documents and the layout, which the caller replaces by those of the next rows.
    pub(super) fn begin(
        &mut self,
        options: &TokenOptions,
        sources: &Arc<[TokenSource]>,
    ) -> (&mut Batch, &mut Layout) {
        if self.loader.as_ref().is_none_or(|(_, known)| !Arc::ptr_eq(known, sources)) {
            self.loader = Some((options.clone(), Arc::clone(sources)));
        }
        self.layout.num_rows = 0;
        self.layout.segments.clear();
        (&mut self.samples, &mut self.layout)
    }

    /// The tokens and loss bytes of document `nth` of the batch.
    fn document<'a>(&'a self, sources: &'a [TokenSource], nth: usize) -> Result<Document<'a>> {
        let source = self.samples.sources().map_or(0, |all| all[nth] as usize);
        let TokenSource { fields, name, lengths } = &sources[source];
        let id = self.samples.id(nth);
        let error = |text: String| {
            let error = Error::new(ErrorKind::Corrupt, text).sample(id);
            name.iter().fold(error, |error, name| error.target(name.clone()))
        };
        let bytes_of = |field: usize| {
            let bytes = self.samples.field(nth, field)?;
            bytes.ok_or_else(|| {
                let directory = self.samples.directory_of(nth);
                let name = directory.map_or_else(String::new, |it| shown(it, field));
                error(format!("the document does not have field {name}"))
            })
        };
        let tokens = bytes_of(fields.tokens)?;
        let width = fields.token_type.len_bytes();
        let has = tokens.len() / width;
        let says = match lengths {
            Some(lengths) => lengths.of(id)? as usize,
            None => {
                let record = self.samples.bytes(nth).len();
                (record - fields.table_bytes) / fields.token_bytes as usize
            }
        };
        if has != says || has * width != tokens.len() {
            let bytes = tokens.len();
            let text = format!(
                "the document has {bytes} bytes of tokens, {width} each, and its length says {says} tokens"
            );
            let hint =
                "its fields have different numbers of elements, or the column of lengths is wrong";
            return Err(error(text).hint(hint));
        }
        let loss = fields.loss.map(bytes_of).transpose()?;
        let source = name.as_deref();
        Ok(Document { tokens, token_type: fields.token_type, loss, id, source })
    }
}
