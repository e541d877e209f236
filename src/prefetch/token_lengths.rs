//! The lengths of samples in tokens.
//!
//! Lengths are looked up in the directory when needed, so a run keeps those of a few windows only.

use std::sync::Arc;

use crate::directory::Directory;
use crate::error::{Error, ErrorKind, Result};
use crate::order::Pick;
use crate::order::budget::{Budget, LengthsOf, Pack, RowSpec, TooLong};
use crate::units::{SampleId, Slot};

/// The number of tokens of each sample of a data set, as a budget counts them.
#[derive(Debug, Clone)]
pub struct TokenLengths {
    directory: Arc<Directory>,
    budget: Arc<Budget>,
    source: LengthSource,
    too_long: TooLong,
    /// Bytes of a sample before its tokens: the table of lengths of several fields.
    table_bytes: u32,
}

/// The place where lengths come from.
#[derive(Debug, Clone, Copy)]
enum LengthSource {
    /// The length in bytes; a token has this many.
    Bytes(u32),
    /// The typed column with this index.
    Column(usize),
    /// The labels.
    Label,
}

/// The lengths of all samples together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TokenTotal {
    samples: u64,
    pub(crate) tokens: u64,
}

impl TokenLengths {
    /// The lengths that `budget` counts. Constant time.
    ///
    /// # Errors
    /// `InvalidArgument`: there is no such integer column, or a number of the budget is out of range.
    pub fn new(
        directory: &Arc<Directory>,
        budget: &Arc<Budget>,
        too_long: TooLong,
    ) -> Result<TokenLengths> {
        budget.check()?;
        let source = match &budget.lengths {
            LengthsOf::Bytes(token_bytes) => LengthSource::Bytes(*token_bytes),
            LengthsOf::Column(name) => column_of(directory, name)?,
        };
        let directory = Arc::clone(directory);
        let budget = Arc::clone(budget);
        let num_fields = directory.fields().len();
        // At most 8 KiB of names, so a few thousand fields.
        let table_bytes = if num_fields > 1 { 4 * num_fields as u32 } else { 0 };
        Ok(TokenLengths { directory, budget, source, too_long, table_bytes })
    }

    /// The number of tokens of a sample: at least 1, except that a document of rows may have none.
    ///
    /// # Errors
    /// The sample has no length, or a negative one; it is longer than a batch, and long samples are refused; or it is a
    /// document that is longer than a row although rows take whole documents, that has no whole number of tokens, or
    /// that has 2^32 tokens or more with its separator.
    #[inline]
    pub fn of(&self, id: SampleId) -> Result<u32> {
        match self.source {
            LengthSource::Bytes(token_bytes) => {
                let len_bytes = self.directory.len_bytes(id).unwrap_or(0);
                self.of_bytes(|| id, len_bytes, token_bytes)
            }
            LengthSource::Column(at) => {
                let value = self.directory.columns()[at].int(id.0);
                self.checked(|| id, self.of_int(id, value)?)
            }
            LengthSource::Label => self.checked(|| id, self.of_int(id, self.directory.label(id))?),
        }
    }

    /// As [`TokenLengths::of`], for the sample of `pick`: its length in bytes is found without its id.
    #[inline]
    pub(super) fn in_chunk(&self, pick: &Pick) -> Result<u32> {
        let id = || self.directory.id_in_chunk(pick.chunk, pick.nth);
        let LengthSource::Bytes(token_bytes) = self.source else { return self.of(id()) };
        self.of_bytes(id, self.directory.len_in_chunk(pick.chunk, pick.nth), token_bytes)
    }

    /// The tokens of a sample of this length in bytes.
    #[inline]
    fn of_bytes(&self, id: impl Fn() -> SampleId, len_bytes: u32, token_bytes: u32) -> Result<u32> {
        if self.budget.rows.is_none() {
            return self.checked(id, Budget::tokens_of_bytes(len_bytes, token_bytes));
        }
        let tokens_bytes = len_bytes.saturating_sub(self.table_bytes);
        if !tokens_bytes.is_multiple_of(token_bytes) {
            return Err(no_whole_tokens(id(), tokens_bytes, token_bytes));
        }
        self.checked(id, tokens_bytes / token_bytes)
    }

    /// Checks that a batch or a row may take a sample of this length.
    #[inline]
    fn checked(&self, sample: impl Fn() -> SampleId, tokens: u32) -> Result<u32> {
        let is_too_long = match &self.budget.rows {
            None => self.too_long == TooLong::Raise && self.budget.exceeds(tokens),
            // Tokens of a document are counted with 32 bits, its separator included.
            Some(rows) => match tokens.checked_add(rows.separated.into()) {
                None => true,
                Some(tokens) => takes_whole(rows) && self.budget.exceeds(tokens),
            },
        };
        if is_too_long {
            return Err(self.too_long(sample(), tokens));
        }
        Ok(tokens)
    }

    #[cold]
    fn too_long(&self, sample: SampleId, tokens: u32) -> Error {
        let most = self.budget.least_tokens();
        let Some(rows) = &self.budget.rows else { return longer_than_batch(sample, tokens, most) };
        if !takes_whole(rows) {
            return too_many(sample, tokens.into());
        }
        let most = most.saturating_sub(rows.separated.into());
        let text = format!("document {sample} has {tokens} tokens, more than the {most} of a row");
        Error::new(ErrorKind::InvalidArgument, text).hint(
            "let long documents be cut (too_long=\"cut\", in the command --row-too-long cut), take longer rows, or \
             leave such documents out by a view (len <= N)",
        )
    }

    /// Checks the length of a sample in a column or label.
    fn of_int(&self, sample: SampleId, value: Option<i64>) -> Result<u32> {
        let column = match &self.budget.lengths {
            LengthsOf::Column(name) => name,
            LengthsOf::Bytes(_) => "", // unreachable: bytes are no ints
        };
        let text = match value {
            Some(value) if value > i64::from(u32::MAX) && self.budget.rows.is_some() => {
                return Err(too_many(sample, value));
            }
            Some(value) if value >= 0 => {
                let least = u32::from(self.budget.rows.is_none());
                return Ok(u32::try_from(value).unwrap_or(u32::MAX).max(least));
            }
            Some(value) => format!(
                "the length of sample {sample} is {value} by {column:?}: lengths are at least 0"
            ),
            None => format!("sample {sample} has no value in {column:?}, so it has no length"),
        };
        Err(Error::new(ErrorKind::InvalidArgument, text).hint(
            "open a view of the samples that have lengths (dlfs select), or import the column again",
        ))
    }

    /// Sums the lengths of all live samples, in a few nanoseconds each; in less if documents of rows are counted by
    /// bytes and none is deleted.
    ///
    /// # Errors
    /// As [`TokenLengths::of`]; the error is that of the first failing sample.
    pub(crate) fn measure(&self) -> Result<TokenTotal> {
        let mut all = TokenTotal { samples: 0, tokens: 0 };
        let mut add = |tokens: u32| {
            all.samples += 1;
            all.tokens = all.tokens.saturating_add(tokens.into());
        };
        let directory = &self.directory;
        if let LengthSource::Bytes(token_bytes) = self.source {
            // In the order in which lengths lie in memory. Ids are looked up only for errors and for deleted samples.
            let is_whole = directory.num_live() == directory.num_samples();
            let summed = self.budget.rows.filter(|_| is_whole);
            if let Some(sum) = summed.and_then(|rows| self.sum_of_whole(&rows, token_bytes)) {
                return Ok(sum);
            }
            for (slot, len_bytes) in (0..).zip(directory.lens_bytes(0..directory.num_samples())) {
                let id = || directory.id_at(Slot(slot)).unwrap_or_default();
                if is_whole || directory.is_live(id()) {
                    add(self.of_bytes(id, len_bytes, token_bytes)?);
                }
            }
            return Ok(all);
        }
        for rank in 0..directory.num_live() {
            add(self.of(directory.id_of_live(rank))?);
        }
        Ok(all)
    }

    /// The sum of the lengths of all documents, none of which is deleted, by arithmetic without branches, at the speed
    /// of memory. `None`: a document is refused; the caller finds out which.
    fn sum_of_whole(&self, rows: &RowSpec, token_bytes: u32) -> Option<TokenTotal> {
        let samples = self.directory.num_samples();
        // A multiple of an odd number is one whose product with the inverse, modulo 2^32, is at most 2^32 / number.
        let low = (1 << token_bytes.trailing_zeros()) - 1;
        let odd = token_bytes >> token_bytes.trailing_zeros();
        let inverse = (0..5).fold(odd, |inverse, _| {
            inverse.wrapping_mul(2_u32.wrapping_sub(odd.wrapping_mul(inverse)))
        });
        let most = if takes_whole(rows) { self.budget.least_tokens() } else { u32::MAX.into() };
        let most = most.saturating_sub(rows.separated.into());
        let most_bytes = most.saturating_mul(token_bytes.into());
        let mut bytes = 0_u64;
        for first in (0..samples).step_by(SUMMED_TOGETHER) {
            let lens =
                self.directory.lens_bytes(first..samples.min(first + SUMMED_TOGETHER as u64));
            let lens = lens.map(|len| len.saturating_sub(self.table_bytes));
            let (sum, longest, rest) = if odd == 1 {
                sums(lens, |len| len & low)
            } else {
                let has_rest = |len: u32| len.wrapping_mul(inverse) > u32::MAX / odd;
                sums(lens, |len| len & low | u32::from(has_rest(len)))
            };
            if rest > 0 || u64::from(longest) > most_bytes {
                return None;
            }
            bytes += sum;
        }
        Some(TokenTotal { samples, tokens: bytes / u64::from(token_bytes) })
    }
}

/// The sum of `lens`, the largest of them, and the bitwise OR of `rest` of each.
#[inline]
fn sums(lens: impl Iterator<Item = u32>, rest: impl Fn(u32) -> u32) -> (u64, u32, u32) {
    lens.fold((0, 0, 0), |(sum, longest, bits), len| {
        (sum + u64::from(len), len.max(longest), bits | rest(len))
    })
}

impl TokenTotal {
    /// The mean length of all samples, in tokens.
    pub(crate) fn mean_tokens(&self) -> u64 {
        self.tokens / self.samples.max(1)
    }
}

/// The approximate number of samples in a batch, if samples have `mean_tokens` on average. If the budget is of rows,
/// `rows` are the rows of a batch in each phase, and the largest batch counts.
pub(crate) fn samples_of_batch(budget: &Budget, rows: &[u32], mean_tokens: u64) -> usize {
    let (tokens, most) = match budget.rows {
        Some(_) => (budget.most_tokens(rows), u64::MAX),
        None => (budget.tokens, budget.max_samples.unwrap_or(budget.window).into()),
    };
    let samples = tokens / mean_tokens.max(1);
    usize::try_from(samples.clamp(1, most.max(1))).unwrap_or(usize::MAX)
}

/// The integer column, or the labels, with this name.
fn column_of(directory: &Directory, name: &str) -> Result<LengthSource> {
    let columns = directory.columns();
    let is_int = |at: usize| columns[at].kind() == crate::format::columns::ColumnType::Int;
    let text = match columns.iter().position(|column| column.name() == name) {
        Some(at) if is_int(at) => return Ok(LengthSource::Column(at)),
        Some(_) => format!("column {name:?} holds no ints, so they are no lengths"),
        None if name == "label" && directory.labels().is_some() => return Ok(LengthSource::Label),
        None => {
            let ints = (0..columns.len()).filter(|&at| is_int(at));
            let label = directory.labels().map(|_| "label");
            let known: Vec<&str> = ints.map(|at| columns[at].name()).chain(label).collect();
            let known = match &known[..] {
                [] => "no column has ints".to_owned(),
                known => format!("those of ints are {}", known.join(", ")),
            };
            format!("there is no column {name:?} with lengths: {known}")
        }
    };
    Err(Error::new(ErrorKind::InvalidArgument, text)
        .hint("name a column of ints, or leave the lengths out: bytes then count"))
}

/// Returns whether rows refuse documents that are longer than a row.
fn takes_whole(rows: &RowSpec) -> bool {
    rows.pack != Pack::Concat && !rows.cuts
}

#[cold]
fn too_many(sample: SampleId, tokens: i64) -> Error {
    let text =
        format!("document {sample} has {tokens} tokens, too many: 2^32 or more with a separator");
    Error::new(ErrorKind::InvalidArgument, text)
        .hint("correct the column of lengths, or leave such documents out by a view (len <= N)")
}

#[cold]
fn no_whole_tokens(sample: SampleId, bytes: u32, token_bytes: u32) -> Error {
    let text = format!(
        "document {sample} has {bytes} bytes, which are no whole number of tokens of {token_bytes} bytes"
    );
    Error::new(ErrorKind::InvalidArgument, text).hint(
        "name the field and the type that the documents have, or leave this one out by a view",
    )
}

#[cold]
fn longer_than_batch(sample: SampleId, tokens: u32, budget: u64) -> Error {
    let text = format!("sample {sample} has {tokens} tokens, more than the {budget} of a batch");
    Error::new(ErrorKind::InvalidArgument, text).hint(
        "raise the budget, leave such samples out by a view (len <= N), or give them batches of their own: \
         too_long=\"alone\", in the command --too-long alone",
    )
}

/// The number of samples whose lengths are summed before they are checked.
const SUMMED_TOGETHER: usize = 1 << 12;
