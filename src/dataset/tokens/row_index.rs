//! Rows of tokens by their numbers, counted through all epochs of a run and over all ranks.

use std::sync::Arc;

use crate::dataset::Sampler;
use crate::dataset::run_data::RunData;
use crate::error::{Error, ErrorKind, Result};
use crate::order::{OrderSpec, State};
use crate::prefetch::{Layouts, LoaderOptions};
use crate::reader::{Watch, interrupted};
use crate::tokens::{Layout, Segment};
use crate::units::SampleId;

/// Finds the documents of a row by the number of the row.
///
/// It walks from row to row over the lengths of documents, and keeps a state every [`STEP`] rows. A row behind it is
/// found again from the last such state before the row.
#[derive(Debug)]
pub(super) struct RowIndex {
    /// Draws one row after the other, epoch after epoch.
    sampler: Sampler,
    /// The layouts of the rows that the sampler has drawn.
    layouts: Arc<Layouts>,
    /// The documents of the row that the sampler drew last.
    ids: Vec<SampleId>,
    /// The number of the sampler's next row.
    next: u64,
    /// The sampler's state before each [`STEP`]th row so far.
    states: Vec<State>,
}

impl RowIndex {
    /// An index of the rows of a run with these options along `order`, over all its ranks.
    pub(super) fn new(data: RunData, run: &LoaderOptions, order: OrderSpec) -> Result<RowIndex> {
        let layouts: Arc<Layouts> = Arc::default();
        // A single rank draws all rows. The checks refuse a node with more ranks than the world, and a node's window is
        // of no use here: the index reads no documents.
        let row_options = LoaderOptions {
            order,
            rows: vec![1],
            layouts: Some(Arc::clone(&layouts)),
            rank: 0,
            world_size: 1,
            node: None,
            resume: None,
            ..run.clone()
        };
        let sampler = Sampler::of(data, row_options)?;
        let states = vec![sampler.state()];
        Ok(RowIndex { sampler, layouts, ids: Vec::new(), next: 0, states })
    }

    /// The order that the index walks along.
    pub(super) fn order(&self) -> OrderSpec {
        self.states[0].order
    }

    /// Lays out the rows with these numbers, in this order, into `layout`, which must have no segments. Returns source
    /// and id of their documents, by ascending number of the row. A document that a row shares with the next higher
    /// one of `rows` is there once.
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
            let row_layout = self.row(same[0].0, watch)?;
            let sources = self.sampler.sources();
            let source = |at: usize| sources.get(at).copied().unwrap_or(0);
            let mut row_documents =
                (0..).zip(&self.ids).map(|(at, &id)| (source(at), id)).peekable();
            let is_shared =
                row_documents.peek().is_some_and(|first| documents.last() == Some(first));
            let before = (documents.len() - usize::from(is_shared)) as u32;
            documents.extend(row_documents.skip(is_shared.into()));
            for &(_, row) in same {
                let placed = |segment: &Segment| Segment {
                    row,
                    document: before + segment.document,
                    ..*segment
                };
                layout.segments.extend(row_layout.segments.iter().map(placed));
            }
            self.layouts.recycle(row_layout);
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

/// Rows between two states: few enough to be passed in less time than a read takes.
const STEP: u64 = 1024;
