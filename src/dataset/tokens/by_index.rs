//! Rows by their number in the sequence of a run, for samplers that choose rows themselves.
//!
//! Also makes mixtures whose weights and phases count tokens, which need the lengths of all documents, too.

use std::sync::Arc;

use super::TokenOptions;
use super::fields::Fields;
use crate::dataset::mixture::source;
use crate::dataset::sampler::Over;
use crate::dataset::{Dataset, Mixture, Sampler};
use crate::error::{Error, ErrorKind, Result};
use crate::order::State;
use crate::order::budget::{LengthsOf, TooLong};
use crate::order::mixture::{Batching, Count, MixtureSpec, Part, Phase};
use crate::prefetch::{Layouts, LoaderOptions, TokenLengths};
use crate::reader::{Watch, interrupted};
use crate::tokens::{Layout, Segment};
use crate::units::SampleId;

/// Finds the documents of rows. Walks from row to row over the lengths of documents; a row that was passed is found
/// again from the last multiple of [`STEP`] before it.
pub(super) struct RowIndex {
    /// Gives one row after the other, epoch after epoch.
    sampler: Sampler,
    layouts: Arc<Layouts>,
    /// The documents of the row that it gave last.
    ids: Vec<SampleId>,
    /// The number of its next row.
    next: u64,
    /// The states in front of each [`STEP`]th row, as far as it came.
    states: Vec<State>,
}

impl RowIndex {
    /// The rows of a run with these options, over all its ranks.
    pub(super) fn new(over: Over, run: &LoaderOptions) -> Result<RowIndex> {
        let layouts: Arc<Layouts> = Arc::default();
        let of_rows = LoaderOptions {
            order: run.order.started(run.world_size),
            rows: vec![1],
            layouts: Some(Arc::clone(&layouts)),
            rank: 0,
            world_size: 1,
            node: None,
            resume: None,
            ..run.clone()
        };
        let sampler = Sampler::over(over, of_rows)?;
        let states = vec![sampler.state()];
        Ok(RowIndex { sampler, layouts, ids: Vec::new(), next: 0, states })
    }

    /// Lays out the rows with these numbers, in this order. Returns source and id of their documents; neighbours that
    /// share a document have it once.
    ///
    /// # Errors
    /// `NotFound`: the run has fewer rows. `Interrupted`: `watch` ended a long walk; the next one goes on there.
    pub(super) fn lay_out(
        &mut self,
        rows: &[u64],
        layout: &mut Layout,
        watch: &mut dyn Watch,
    ) -> Result<Vec<(u32, SampleId)>> {
        let mut sorted: Vec<(u64, u32)> = rows.iter().copied().zip(0..).collect();
        sorted.sort_unstable();
        let mut documents = Vec::new();
        for same in sorted.chunk_by(|one, other| one.0 == other.0) {
            let of_row = self.row(same[0].0, watch)?;
            let sources = self.sampler.sources();
            let source = |at: usize| sources.get(at).copied().unwrap_or(0);
            let mut own = (0..).zip(&self.ids).map(|(at, &id)| (source(at), id)).peekable();
            let is_shared = own.peek().is_some_and(|first| documents.last() == Some(first));
            let before = (documents.len() - usize::from(is_shared)) as u32;
            documents.extend(own.skip(is_shared.into()));
            for &(_, row) in same {
                let placed = |of: &Segment| Segment { row, document: before + of.document, ..*of };
                layout.segments.extend(of_row.segments.iter().map(placed));
            }
            self.layouts.recycle(of_row);
        }
        layout.segments.sort_by_key(|segment| segment.row);
        layout.num_rows = rows.len() as u32;
        Ok(documents)
    }

    /// The layout of row `number`, whose documents are then in `ids`.
    fn row(&mut self, number: u64, watch: &mut dyn Watch) -> Result<Layout> {
        let known = usize::try_from(number / STEP).unwrap_or(usize::MAX).min(self.states.len() - 1);
        let start = known as u64 * STEP;
        if !(start..=number).contains(&self.next) {
            self.sampler.go_to(self.states[known].clone())?;
            self.next = start;
        }
        loop {
            let found = self.sampler.next(&mut self.ids)?;
            let Some(layout) = found.and_then(|_| self.layouts.take()) else {
                let text = format!("there is no row {number}: the epochs have {} rows", self.next);
                return Err(Error::new(ErrorKind::NotFound, text)
                    .hint("read more epochs, or ask for fewer rows"));
            };
            self.next += 1;
            if self.next == self.states.len() as u64 * STEP {
                self.states.push(self.sampler.state());
                if !watch.goes_on() {
                    return Err(interrupted());
                }
            }
            if self.next > number {
                return Ok(layout);
            }
            self.layouts.recycle(layout);
        }
    }
}

impl std::fmt::Debug for RowIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RowIndex").field("next", &self.next).finish_non_exhaustive()
    }
}

impl Mixture {
    /// As [`Mixture::new`], but weights and starts of phases are in the unit `count`. Tokens are those of documents,
    /// without separators; `repeat`, `choose` and `epoch_size` stay numbers of samples. The mixture's definition counts
    /// samples: lengths are read here, in a few nanoseconds each, and not again.
    ///
    /// # Errors
    /// As [`Mixture::new`]. `NotFound` and `InvalidArgument`: a data set has no such field or column, or no tokens, or
    /// a document's bytes are no whole number of them. The message names the data set.
    pub fn counting(
        count: &Count,
        parts: Vec<(Dataset, Part)>,
        epoch_size: Option<u64>,
        batching: Batching,
        phases: Vec<Phase>,
    ) -> Result<Mixture> {
        if *count == Count::Samples {
            return Mixture::new(parts, epoch_size, batching, phases);
        }
        let sources = parts.iter().map(|(dataset, part)| source(dataset, *part)).collect();
        let spec = MixtureSpec { sources, epoch_size, batching, phases, seed: 0 };
        let tokens = parts.iter().zip(&spec.sources).map(|((dataset, _), source)| {
            tokens_of(dataset, count).map_err(|error| error.target(source.name.clone()))
        });
        let tokens = tokens.collect::<Result<Vec<u64>>>()?;
        let MixtureSpec { sources, phases, .. } = spec.counted_in_tokens(&tokens)?;
        let parts = parts.into_iter().zip(sources);
        let parts = parts.map(|((dataset, _), source)| (dataset, source.part)).collect();
        Mixture::new(parts, epoch_size, batching, phases)
    }
}

/// The tokens of all documents together, without separators.
fn tokens_of(dataset: &Dataset, count: &Count) -> Result<u64> {
    let directory = dataset.directory();
    let mut options = TokenOptions::new(1, 1); // of rows that take any document
    let lengths = match count {
        Count::Samples => return Ok(dataset.len()),
        Count::Lengths(column) => LengthsOf::Column(column.clone()),
        Count::Tokens(field) => {
            options.field.clone_from(field);
            LengthsOf::Bytes(Fields::find(directory, &options)?.token_bytes)
        }
    };
    let budget = Arc::new(options.budget(lengths));
    Ok(TokenLengths::new(directory, &budget, TooLong::Raise)?.measure()?.tokens())
}

/// Rows between two states: few enough to be passed in less time than a read takes.
const STEP: u64 = 1024;
