//! Batches by a token budget: the lengths of samples, and the batches of a rank as ids or picks.
//!
//! Lengths are looked up in the directory when needed, so a run keeps those of a few windows only.
//!
//! Rows of tokens instead of batches of samples: the deal of either, and the layouts of rows for the consumer.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::directory::Directory;
use crate::error::{Error, ErrorKind, Result};
use crate::order::budget::{Budget, Deal, Dealt, LengthsOf, Pack, RowPlace, RowSpec, TooLong};
use crate::order::{Pick, Shard};
use crate::process::Forked;
use crate::units::{Epoch, SampleId, Slot};
use dlfs_tokens::{Layout, RowDeal};

/// The tokens of each sample.
#[derive(Debug, Clone)]
pub struct TokenLengths {
    directory: Arc<Directory>,
    budget: Arc<Budget>,
    of: Of,
    too_long: TooLong,
    /// Bytes of a sample before its tokens: the table of lengths of several fields.
    table_bytes: u32,
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
        let num_fields = directory.fields().len();
        // At most 8 KiB of names, so a few thousand fields.
        let table_bytes = if num_fields > 1 { 4 * num_fields as u32 } else { 0 };
        Ok(TokenLengths { directory, budget, of, too_long, table_bytes })
    }

    /// The tokens of a sample: at least 1, but for the documents of rows.
    ///
    /// # Errors
    /// The sample has no length, or a negative one. It is longer than a batch, unless long samples get batches of
    /// their own. It is longer than a row that takes whole documents, or its bytes are no whole number of tokens.
    #[inline]
    pub fn of(&self, id: SampleId) -> Result<u32> {
        match self.of {
            Of::Bytes(token_bytes) => {
                let len_bytes = self.directory.len_bytes(id).unwrap_or(0);
                self.of_bytes(|| id, len_bytes, token_bytes)
            }
            Of::Column(at) => {
                let value = self.directory.columns()[at].int(id.0);
                self.checked(|| id, self.of_int(id, value)?)
            }
            Of::Label => self.checked(|| id, self.of_int(id, self.directory.label(id))?),
        }
    }

    /// As [`TokenLengths::of`], for the live sample `nth` of `chunk`: its length in bytes needs no id.
    #[inline]
    pub(super) fn in_chunk(&self, pick: &Pick) -> Result<u32> {
        let id = || self.directory.id_in_chunk(pick.chunk, pick.nth);
        let Of::Bytes(token_bytes) = self.of else { return self.of(id()) };
        self.of_bytes(id, self.directory.len_in_chunk(pick.chunk, pick.nth), token_bytes)
    }

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
        let Some(rows) = &self.budget.rows else { return too_long(sample, tokens, most) };
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

    /// Sums the lengths of all samples, in a few nanoseconds each; lengths in bytes of whole documents in less.
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
            // In the order in which lengths lie in memory; ids of slots are looked up for errors alone.
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

    /// The sum of the lengths of all documents, by arithmetic without branches: a billion of them take as long as their
    /// lengths take to come from memory. `None`: one is refused.
    fn sum_of_whole(&self, rows: &RowSpec, token_bytes: u32) -> Option<Measured> {
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
                let is_odd = |len: u32| len.wrapping_mul(inverse) > u32::MAX / odd;
                sums(lens, |len| len & low | u32::from(is_odd(len)))
            };
            if rest > 0 || u64::from(longest) > most_bytes {
                return None;
            }
            bytes += sum;
        }
        Some(Measured { samples, tokens: bytes / u64::from(token_bytes) })
    }
}

/// The sum of `lens`, the largest, and the bits that `rest` has of any.
#[inline]
fn sums(lens: impl Iterator<Item = u32>, rest: impl Fn(u32) -> u32) -> (u64, u32, u32) {
    lens.fold((0, 0, 0), |(sum, longest, bits), len| {
        (sum + u64::from(len), len.max(longest), bits | rest(len))
    })
}

impl Measured {
    /// The tokens of all samples.
    pub(crate) fn tokens(&self) -> u64 {
        self.tokens
    }

    /// The mean length of all samples, in tokens.
    pub(crate) fn mean_tokens(&self) -> u64 {
        self.tokens / self.samples.max(1)
    }
}

/// The approximate number of samples in a batch, if samples have `mean_tokens` on average. `rows`: those of a batch in
/// each phase, if the budget is of rows; the largest batch counts.
pub(crate) fn samples_of_batch(budget: &Budget, rows: &[u32], mean_tokens: u64) -> usize {
    let (tokens, most) = match budget.rows {
        Some(_) => (budget.most_tokens(rows), u64::MAX),
        None => (budget.tokens, budget.max_samples.unwrap_or(budget.window).into()),
    };
    let samples = tokens / mean_tokens.max(1);
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

/// Returns whether rows take no document that is longer than a row.
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
fn too_long(sample: SampleId, tokens: u32, budget: u64) -> Error {
    let text = format!("sample {sample} has {tokens} tokens, more than the {budget} of a batch");
    Error::new(ErrorKind::InvalidArgument, text).hint(
        "raise the budget, leave such samples out by a view (len <= N), or give them batches of their own: \
         too_long=\"alone\", in the command --too-long alone",
    )
}

/// The batches of a rank, in one epoch after the other.
pub(super) struct Dealing<T> {
    budget: Arc<Budget>,
    /// The rows of a batch in each phase, if the budget is of rows.
    rows: Vec<u32>,
    seed: u64,
    current: Option<(Epoch, Deals<T>)>,
}

impl<T: Copy> Dealing<T> {
    pub(super) fn new(budget: &Arc<Budget>, rows: &[u32], seed: u64) -> Dealing<T> {
        Dealing { budget: Arc::clone(budget), rows: rows.to_vec(), seed, current: None }
    }

    /// Appends the samples of the next batch in `epoch` for the rank of `shard` to `out`; rows begin at `place`, and
    /// their layout goes to `sink`. The epoch has `len` positions, whose samples and lengths `draw` gives. `None`: it
    /// has no more.
    ///
    /// # Errors
    /// Errors of `draw`; the consumed positions do not end with a batch, or the place is not theirs.
    pub(super) fn next(
        &mut self,
        sink: Option<&LayoutSink>,
        (epoch, shard, place): (Epoch, Shard, Option<RowPlace>),
        len: u64,
        draw: &mut impl FnMut(Range<u64>, &mut Vec<T>, &mut Vec<u32>) -> Result<()>,
        out: &mut Vec<T>,
    ) -> Result<Option<Dealt>> {
        let Dealing { budget, rows, seed, current } = self;
        let deals = match current {
            Some((at, deals)) if *at == epoch => deals,
            other => {
                let new = if budget.rows.is_none() {
                    Deals::Samples(Deal::new(budget, *seed, epoch, len, shard))
                } else {
                    let deal = RowDeal::new(budget, rows, (*seed, epoch), len, shard, place);
                    Deals::Rows { deal: Box::new(deal), layout: Layout::default() }
                };
                &mut other.insert((epoch, new)).1
            }
        };
        match deals {
            Deals::Samples(deal) => deal.next(draw, out),
            Deals::Rows { deal, layout } => {
                let mut draw = |range: Range<u64>, to: &mut Vec<T>, tokens: &mut Vec<u32>| {
                    if let Some(sink) = sink {
                        sink.layouts.drawn.fetch_add(range.end - range.start, Ordering::Relaxed);
                    }
                    draw(range, to, tokens)
                };
                let dealt = deal.next(&mut draw, out, layout)?;
                if let (Some(sink), Some(_)) = (sink, dealt) {
                    sink.push(layout);
                }
                Ok(dealt)
            }
        }
    }
}

/// The batches of a rank in an epoch.
enum Deals<T> {
    /// Samples by a budget.
    Samples(Deal<T>),
    /// The documents of rows.
    Rows { deal: Box<RowDeal<T>>, layout: Layout },
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

/// The layouts of a run's batches that its consumer has not taken, in the order of batches. A loader that moves begins
/// another run, and the one before may plan for a while longer.
///
/// A forked child has its own, since it may inherit a lock that a thread of its parent holds.
#[derive(Debug, Default)]
pub struct Layouts {
    queue: Forked<Mutex<Queue>>,
    /// The positions that were drawn so far, in all runs of a loader.
    drawn: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct Queue {
    /// The number of the current run, if several take one after the other.
    run: u64,
    planned: VecDeque<Layout>,
    free: Vec<Layout>,
}

impl Layouts {
    /// The layout of the batch that the loader delivered last. Call it once for each batch.
    pub fn take(&self) -> Option<Layout> {
        self.queue().lock().planned.pop_front()
    }

    /// Takes a layout back, to reuse its memory.
    pub fn recycle(&self, layout: Layout) {
        let mut queue = self.queue().lock();
        if queue.free.len() < MAX_FREE {
            queue.free.push(layout);
        }
    }

    fn queue(&self) -> &Mutex<Queue> {
        self.queue.get_or_init(Mutex::default)
    }

    /// Empty layouts for the next run of the same loader.
    pub(crate) fn renewed(&self) -> Arc<Layouts> {
        Arc::new(Layouts { queue: Forked::default(), drawn: Arc::clone(&self.drawn) })
    }

    /// The positions that were drawn so far. It tells a run that passes over the rows before its state, which may be
    /// many, from one that waits.
    pub(crate) fn drawn(&self) -> u64 {
        self.drawn.load(Ordering::Relaxed)
    }
}

/// The end of [`Layouts`] at which a run plans its batches.
#[derive(Debug)]
pub(super) struct LayoutSink {
    layouts: Arc<Layouts>,
    run: u64,
}

impl LayoutSink {
    /// Begins a run: layouts of earlier ones are dropped.
    pub(super) fn new(layouts: &Arc<Layouts>) -> LayoutSink {
        let mut queue = layouts.queue().lock();
        queue.run += 1;
        queue.planned.clear();
        LayoutSink { run: queue.run, layouts: Arc::clone(layouts) }
    }

    /// Swaps the planned `layout` for one whose memory is free.
    fn push(&self, layout: &mut Layout) {
        let mut queue = self.layouts.queue().lock();
        if queue.run == self.run {
            let free = queue.free.pop().unwrap_or_default();
            queue.planned.push_back(std::mem::replace(layout, free));
        }
    }
}

/// Samples whose lengths are summed before they are checked: few enough to stay in a processor's cache.
const SUMMED_TOGETHER: usize = 1 << 12;

/// The most layouts kept for reuse.
const MAX_FREE: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::budget::{Cost, Pack, RowSpec};

    #[test]
    fn positions_that_a_run_passes_over_count_and_layouts_of_earlier_runs_are_dropped() {
        let rows = Some(RowSpec { pack: Pack::Concat, separated: false, cuts: true });
        let budget = Arc::new(Budget { cost: Cost::Sum, rows, ..Budget::new(11) });
        let shard = Shard::new(0, 1, crate::order::Tail::Keep).unwrap().after(900);
        let layouts: Arc<Layouts> = Arc::default();
        let next = layouts.renewed();
        let sink = LayoutSink::new(&next);
        let at = (Epoch(0), shard, None);
        let mut deals = Dealing::new(&budget, &[1], 7);
        let mut draw = |range: Range<u64>, documents: &mut Vec<u64>, tokens: &mut Vec<u32>| {
            documents.extend(range.clone());
            tokens.extend(range.map(|_| 1));
            Ok(())
        };
        let mut documents = Vec::new();
        deals.next(Some(&sink), at, 10_000, &mut draw, &mut documents).unwrap().unwrap();
        assert_eq!(documents, (9_000..9_011).collect::<Vec<u64>>());
        assert!(layouts.drawn() >= 9_011, "{}", layouts.drawn());
        assert_eq!(next.take().unwrap().segments.len(), 11);
        deals.next(Some(&sink), at, 10_000, &mut draw, &mut documents).unwrap().unwrap();
        let later = LayoutSink::new(&next);
        assert!(next.take().is_none());
        deals.next(Some(&sink), at, 10_000, &mut draw, &mut documents).unwrap().unwrap();
        assert!(next.take().is_none(), "of the run before");
        let dealt = deals.next(Some(&later), at, 10_000, &mut draw, &mut documents);
        let dealt = dealt.unwrap().unwrap();
        assert!(next.take().is_some());

        // From a place on, nothing is passed over.
        let before = layouts.drawn();
        let at = (Epoch(0), shard.after(dealt.consumed), dealt.place);
        let mut deals = Dealing::new(&budget, &[1], 7);
        documents.clear();
        deals.next(Some(&later), at, 10_000, &mut draw, &mut documents).unwrap().unwrap();
        assert_eq!(documents, (9_040..9_051).collect::<Vec<u64>>());
        assert!(layouts.drawn() < before + 2000, "{} of {before}", layouts.drawn());
    }
}
