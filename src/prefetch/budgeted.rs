//! Batches by a token budget: the lengths of samples, and the batches of a rank as ids or picks.
//!
//! Lengths are looked up in the directory when needed, so a run keeps those of a few windows only.

use std::sync::Arc;

use crate::directory::Directory;
use crate::error::{Error, ErrorKind, Result};
use crate::order::budget::{Budget, Deal, Dealt, LengthsOf, TooLong};
use crate::order::{EpochOrder, Pick, Shard};
use crate::units::SampleId;

/// The tokens of each sample.
#[derive(Debug, Clone)]
pub struct TokenLengths {
    directory: Arc<Directory>,
    budget: Arc<Budget>,
    of: Of,
    too_long: TooLong,
}

#[derive(Debug, Clone, Copy)]
enum Of {
    Bytes(u32),
    /// The index of a typed column.
    Column(usize),
    Label,
}

/// The lengths of all samples together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Measured {
    samples: u64,
    tokens: u64,
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
        let of = match &budget.lengths {
            LengthsOf::Bytes(token_bytes) => Of::Bytes(*token_bytes),
            LengthsOf::Column(name) => column_of(directory, name)?,
        };
        let directory = Arc::clone(directory);
        let budget = Arc::clone(budget);
        Ok(TokenLengths { directory, budget, of, too_long })
    }

    /// The budget that these lengths are counted against.
    pub(super) fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// The tokens of a sample; at least 1.
    ///
    /// # Errors
    /// The sample has no length, or a negative one. It is longer than a batch, unless long samples get batches of
    /// their own.
    #[inline]
    pub fn of(&self, id: SampleId) -> Result<u32> {
        let tokens = match self.of {
            Of::Bytes(token_bytes) => {
                let len_bytes = self.directory.len_bytes(id).unwrap_or(0);
                Budget::tokens_of_bytes(len_bytes, token_bytes)
            }
            Of::Column(at) => self.of_int(id, self.directory.columns()[at].int(id.0))?,
            Of::Label => self.of_int(id, self.directory.label(id))?,
        };
        self.checked(id, tokens)
    }

    #[inline]
    fn checked(&self, sample: SampleId, tokens: u32) -> Result<u32> {
        if self.too_long == TooLong::Raise && self.budget.exceeds(tokens) {
            return Err(too_long(sample, tokens, self.budget.tokens));
        }
        Ok(tokens)
    }

    fn of_int(&self, sample: SampleId, value: Option<i64>) -> Result<u32> {
        let column = match &self.budget.lengths {
            LengthsOf::Column(name) => name,
            LengthsOf::Bytes(_) => "", // unreachable: bytes are no ints
        };
        let text = match value {
            Some(value) if value >= 0 => {
                return Ok(u32::try_from(value).unwrap_or(u32::MAX).max(1));
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

    /// Sums the lengths of all samples, in a few nanoseconds each.
    ///
    /// # Errors
    /// As [`TokenLengths::of`]; the error is that of the first failing sample.
    pub(crate) fn measure(&self) -> Result<Measured> {
        let mut all = Measured { samples: 0, tokens: 0 };
        let mut add = |tokens: u32| {
            all.samples += 1;
            all.tokens = all.tokens.saturating_add(tokens.into());
        };
        let directory = &self.directory;
        if let Of::Bytes(token_bytes) = self.of {
            // In the order in which lengths lie in memory.
            for chunk in 0..directory.num_chunks() {
                for (id, extent) in directory.samples_in_chunk(chunk) {
                    let tokens = Budget::tokens_of_bytes(extent.len_bytes, token_bytes);
                    add(self.checked(id, tokens)?);
                }
            }
            return Ok(all);
        }
        for rank in 0..directory.num_live() {
            add(self.of(directory.id_of_live(rank))?);
        }
        Ok(all)
    }
}

impl Measured {
    /// The mean length of all samples, in tokens.
    pub(crate) fn mean_tokens(&self) -> u64 {
        self.tokens / self.samples.max(1)
    }
}

/// The approximate number of samples in a batch, if samples have `mean_tokens` on average.
pub(crate) fn samples_of_batch(budget: &Budget, mean_tokens: u64) -> usize {
    let most = budget.max_samples.map_or(u64::from(budget.window), u64::from);
    let samples = budget.tokens / mean_tokens.max(1);
    usize::try_from(samples.clamp(1, most.max(1))).unwrap_or(usize::MAX)
}

fn column_of(directory: &Directory, name: &str) -> Result<Of> {
    let columns = directory.columns();
    let is_int = |at: usize| columns[at].kind() == crate::format::columns::ColumnType::Int;
    let text = match columns.iter().position(|column| column.name() == name) {
        Some(at) if is_int(at) => return Ok(Of::Column(at)),
        Some(_) => format!("column {name:?} holds no ints, so they are no lengths"),
        None if name == "label" && directory.labels().is_some() => return Ok(Of::Label),
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

#[cold]
fn too_long(sample: SampleId, tokens: u32, budget: u64) -> Error {
    let text = format!("sample {sample} has {tokens} tokens, more than the {budget} of a batch");
    Error::new(ErrorKind::InvalidArgument, text).hint(
        "raise the budget, leave such samples out by a view (len <= N), or give them batches of their own: \
         too_long=\"alone\", in the command --too-long alone",
    )
}

/// The batches of a rank in an epoch.
#[derive(Debug, Clone)]
pub(super) enum Dealing {
    Ids(Deal<SampleId>),
    /// Batches of an order that visits whole chunks.
    Picks(Deal<Pick>),
}

impl Dealing {
    /// The batches of `order` for the rank of `shard`, after the consumed ones.
    pub(super) fn new(
        budget: &Arc<Budget>,
        seed: u64,
        order: &EpochOrder,
        shard: Shard,
    ) -> Dealing {
        let epoch = order.epoch();
        let len = order.len();
        if order.is_chunked() {
            Dealing::Picks(Deal::new(budget, seed, epoch, len, shard))
        } else {
            Dealing::Ids(Deal::new(budget, seed, epoch, len, shard))
        }
    }

    /// Appends the samples of the next batch to `ids`, or to `picks` if the order visits whole chunks.
    ///
    /// # Errors
    /// Errors of [`TokenLengths::of`]; the consumed positions do not end with a batch.
    pub(super) fn next(
        &mut self,
        order: &mut EpochOrder,
        lengths: &TokenLengths,
        ids: &mut Vec<SampleId>,
        picks: &mut Vec<Pick>,
    ) -> Result<Option<Dealt>> {
        let directory = &*lengths.directory;
        match self {
            Dealing::Ids(deal) => deal.next(
                &mut |range, ids, tokens| {
                    let start = ids.len();
                    order.ids(directory, range, ids);
                    each(&ids[start..], tokens, |&id| lengths.of(id))
                },
                ids,
            ),
            Dealing::Picks(deal) => deal.next(
                &mut |range, picks, tokens| {
                    let start = picks.len();
                    order.picks(range, picks);
                    let id = |pick: &Pick| directory.id_in_chunk(pick.chunk, pick.nth);
                    each(&picks[start..], tokens, |pick| lengths.of(id(pick)))
                },
                picks,
            ),
        }
    }
}

pub(super) fn each<T>(
    samples: &[T],
    tokens: &mut Vec<u32>,
    of: impl Fn(&T) -> Result<u32>,
) -> Result<()> {
    for sample in samples {
        tokens.push(of(sample)?);
    }
    Ok(())
}
