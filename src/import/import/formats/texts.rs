//! Texts of rows as documents of tokens: threads encode the texts of the next rows, and rows keep their order.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use tokenizers::{ModelWrapper, Tokenizer};

use super::column::{CellKind, Cells, Column, no_column};
use super::input::Input;
use super::tokens::FIELD;
use super::{OpenRows, RowError, RowFile, RowReader};
use crate::import::columns::{Number, put_number};
use crate::import::options::RowOptions;
use crate::import::sources::BadReason;
use crate::import::sources::sample_stream::{FieldBytes, StreamPlace};
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::format::FieldType;
use dlfs_format::format::field_type::Element;

/// A tokenizer that encodes texts.
pub struct Encoder {
    tokenizer: Tokenizer,
    /// Number of tokens, which are less than this.
    vocabulary: u32,
    /// Number of threads that encode.
    threads: usize,
}

impl Encoder {
    /// The tokenizer with these `bytes`, of the file `path`. `threads`: the threads that encode; 0: one a processor.
    ///
    /// # Errors
    /// `InvalidArgument`: it is no tokenizer, or its tokens are random.
    pub(crate) fn new(
        path: &Path,
        bytes: &[u8],
        vocabulary: u32,
        threads: usize,
    ) -> Result<Encoder> {
        let wrong = |text: String| Error::new(ErrorKind::InvalidArgument, text).path(path);
        let mut tokenizer = Tokenizer::from_bytes(bytes)
            .map_err(|error| wrong(format!("the tokenizer cannot be read: {error}")))?;
        if let ModelWrapper::BPE(bpe) = tokenizer.get_model()
            && bpe.dropout.is_some_and(|dropout| dropout > 0.0)
        {
            let text = "the tokenizer has a dropout, so the tokens of a text are random";
            return Err(wrong(text.to_owned()).hint("set its dropout to null"));
        }
        // A document is the whole text, and nothing else.
        let of_all = tokenizer.with_truncation(None);
        of_all.map_err(|error| wrong(error.to_string()))?.with_padding(None);
        let processors = || std::thread::available_parallelism().map_or(1, usize::from);
        let threads = if threads == 0 { processors() } else { threads };
        Ok(Encoder { tokenizer, vocabulary, threads })
    }

    /// The rows of `file`, whose texts become tokens of type `kind`.
    pub(super) fn encoding(self: &Arc<Encoder>, file: RowFile, kind: &FieldType) -> RowFile {
        let RowFile { input, stem, open } = file;
        let encoder = self.clone();
        let kind = kind.clone();
        let open = move |input: &Input, options: &RowOptions, known: Option<&[Column]>| {
            let Some(text) = options.text.as_deref() else {
                return open(input, options, known); // only other columns are read
            };
            let name = |name: &String| if name == FIELD { text.to_owned() } else { name.clone() };
            let fields = options.fields.iter().map(name).collect();
            let of_texts = RowOptions { fields, ..options.clone() };
            let column = |column: &Column| match &*column.name {
                FIELD => Column::new(text, CellKind::Bytes),
                _ => column.clone(),
            };
            let known: Option<Vec<Column>> = known.map(|all| all.iter().map(column).collect());
            let rows = open(input, &of_texts, known.as_deref())?;
            let texts = Texts::over(rows, text, kind.clone(), encoder.clone());
            texts.map_err(|error| error.path(&input.path))
        };
        RowFile { input, stem, open: Arc::new(open) }
    }

    /// The tokens of a text, little-endian. The error describes the text.
    fn encode(&self, text: &[u8], element: Element) -> Result<FieldBytes, String> {
        let text = std::str::from_utf8(text)
            .map_err(|error| format!("is not UTF-8 from byte {} on", error.valid_up_to()))?;
        let mut blanks = text.split(|c: char| !c.is_whitespace());
        if text.len() > MOST_BLANKS && blanks.any(|run| run.chars().count() > MOST_BLANKS) {
            return Err(format!("has more than {MOST_BLANKS} blanks in a row"));
        }
        let encoding = self.tokenizer.encode_fast(text, false);
        let encoding = encoding.map_err(|error| format!("cannot be encoded: {error}"))?;
        let ids = encoding.get_ids();
        let mut tokens = Vec::with_capacity(ids.len() * element.len_bytes() as usize);
        for &id in ids {
            if id >= self.vocabulary || !put_number(element, Number::Int(id.into()), &mut tokens) {
                let vocabulary = self.vocabulary;
                let name = element.name();
                return Err(format!(
                    "gives token {id}, and tokens are of type {name}, below {vocabulary}"
                ));
            }
        }
        Ok(tokens.into())
    }
}

/// A text to encode, and the channel for its tokens.
type EncodeJob = (FieldBytes, Sender<Result<FieldBytes, String>>);

/// The tokens of a text, once a thread has encoded it. The error describes the text.
type Encoded = Receiver<Result<FieldBytes, String>>;

/// Rows with tokens in place of a text.
struct Texts {
    /// The rows with texts.
    rows: Box<dyn RowReader>,
    /// For each column, its index among those of `rows`.
    places: Vec<usize>,
    /// The index of the tokens among the columns.
    tokens: usize,
    /// The name of the column of texts.
    text: String,
    element: Element,
    encoder: Arc<Encoder>,
    /// Texts for the threads that encode; `None` before reading has begun.
    jobs: Option<Sender<EncodeJob>>,
    /// Rows that were read ahead, each with the place behind it.
    ahead: VecDeque<(Result<AheadRow, RowError>, StreamPlace)>,
    /// Bytes of the texts of these rows.
    ahead_bytes: usize,
    /// Set once `rows` has no more.
    has_ended: bool,
    /// Number of rows read.
    read: u64,
    /// The place behind the last row returned.
    next: StreamPlace,
    /// The values of the last row of `rows`.
    cells: Cells,
}

/// A row that was read ahead.
struct AheadRow {
    /// The values of the other columns.
    cells: Cells,
    tokens: Encoded,
    /// Length of the text.
    text_bytes: usize,
}

impl Texts {
    /// The rows of `rows`, with tokens of type `kind` in place of the column `text`.
    ///
    /// # Errors
    /// `InvalidArgument`: there is no such column, or it has no texts.
    fn over(
        (columns, rows): OpenRows,
        text: &str,
        kind: FieldType,
        encoder: Arc<Encoder>,
    ) -> Result<OpenRows> {
        let wrong = |what: String| {
            Error::invalid(what, "--text-field names the column of texts for the tokenizer")
        };
        let Some(at) = columns.iter().position(|column| column.name == text) else {
            return Err(wrong(no_column(text, &columns)));
        };
        if !matches!(columns[at].kind, CellKind::Bytes | CellKind::Nothing) {
            return Err(wrong(format!("column {text} has {}, not texts", columns[at].shown())));
        }
        if columns.iter().any(|column| column.files_of.is_some()) {
            let text = "rows with texts for a tokenizer name no files";
            let hint = "leave out --files, or the key file_name of --fields";
            return Err(Error::invalid(text, hint));
        }
        // Another column with the name of the tokens is left out.
        let is_taken = |other: &usize| *other == at || columns[*other].name != FIELD;
        let places: Vec<usize> = (0..columns.len()).filter(is_taken).collect();
        let element = kind.element();
        let mut columns: Vec<Column> = places.iter().map(|place| columns[*place].clone()).collect();
        let tokens = places.iter().take_while(|place| **place != at).count();
        columns[tokens] = Column::new(FIELD, CellKind::Elements(kind));
        let rows = Texts {
            rows,
            places,
            tokens,
            text: text.to_owned(),
            element,
            encoder,
            jobs: None,
            ahead: VecDeque::new(),
            ahead_bytes: 0,
            has_ended: false,
            read: 0,
            next: StreamPlace::default(),
            cells: Cells::new(),
        };
        Ok((columns, Box::new(rows)))
    }

    /// Starts the threads that encode. They end when the sender is dropped.
    fn start(&self) -> Result<Sender<EncodeJob>> {
        let (send, jobs) = unbounded::<EncodeJob>(); // bounded by the rows read ahead
        for _ in 0..self.encoder.threads {
            let jobs = jobs.clone();
            let encoder = self.encoder.clone();
            let element = self.element;
            std::thread::Builder::new().name("dlfs-encode".to_owned()).spawn(move || {
                for (text, tokens) in jobs {
                    let _ = tokens.send(encoder.encode(&text, element)); // nobody waits after an error
                }
            })?;
        }
        Ok(send)
    }

    /// Reads rows, and hands their texts to the threads, until enough are under way.
    fn read_ahead(&mut self) {
        while !self.has_ended && self.ahead.len() < AHEAD_ROWS && self.ahead_bytes < AHEAD_BYTES {
            let read = self.rows.next_row(&mut self.cells);
            self.has_ended = matches!(read, Ok(false) | Err(RowError::File(_)));
            if let Ok(false) = read {
                return;
            }
            self.read += 1;
            let place = self.rows.place(self.read);
            let row = read.and_then(|_| self.hand_over());
            self.ahead_bytes += row.as_ref().map_or(0, |row| row.text_bytes);
            self.ahead.push_back((row, place));
        }
    }

    /// Hands the text of the row just read to the threads.
    fn hand_over(&mut self) -> Result<AheadRow, RowError> {
        let mut cells: Cells =
            self.places.iter().map(|at| self.cells.get_mut(*at).and_then(Option::take)).collect();
        let Some(text) = cells[self.tokens].take() else {
            return Err(self.wrong("is not in this row".to_owned()));
        };
        let text_bytes = text.len();
        let (send, tokens) = bounded(1);
        if let Some(jobs) = &self.jobs {
            let _ = jobs.send((text, send)); // without threads the result is missing
        }
        Ok(AheadRow { cells, tokens, text_bytes })
    }

    /// The error for the text of a row.
    fn wrong(&self, what: String) -> RowError {
        BadReason::field(&self.text, what).into()
    }
}

impl RowReader for Texts {
    fn begin(&mut self, from: StreamPlace) -> Result<()> {
        self.rows.begin(from)?;
        self.read = from.record;
        self.next = self.rows.place(self.read);
        self.jobs = Some(self.start()?);
        Ok(())
    }

    fn place(&self, _: u64) -> StreamPlace {
        self.next
    }

    fn next_row(&mut self, cells: &mut Cells) -> Result<bool, RowError> {
        self.read_ahead();
        let Some((row, place)) = self.ahead.pop_front() else { return Ok(false) };
        self.next = place;
        let AheadRow { cells: others, tokens, text_bytes } = row?;
        self.ahead_bytes -= text_bytes;
        let tokens = tokens.recv().unwrap_or_else(|_| Err("crashes the tokenizer".to_owned()));
        let tokens = tokens.map_err(|what| self.wrong(what))?;
        *cells = others;
        cells[self.tokens] = Some(tokens);
        Ok(true)
    }
}

/// Maximum number of rows that are read ahead.
const AHEAD_ROWS: usize = 4096;
/// Maximum number of bytes of texts that are read ahead. Encoding takes some 200 bytes of memory for each byte of text.
const AHEAD_BYTES: usize = 8 << 20;
/// The regular expressions of tokenizers keep a state for each blank of a run, and end the search without an error
/// above 1,000,000 states.
const MOST_BLANKS: usize = 500_000;
