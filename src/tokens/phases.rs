//! The phases of an epoch, each with rows of another length. They map a row to the tokens that all rows before it
//! count, and in `concat` a token to its row.

use dlfs_order::order::budget::{Budget, RowPlace};

/// The phases of an epoch.
#[derive(Debug, Clone)]
pub(crate) struct Phases {
    /// For each phase, the tokens from which it begins, and the length of rows.
    all: Vec<(u64, u32)>,
    /// For each phase that has begun, its first row, and the tokens that the rows before count. In `concat` all phases
    /// have begun: their first rows follow from the budget.
    begun: Vec<(u64, u64)>,
}

impl Phases {
    /// The phases of documents that lie end to end.
    pub(crate) fn of_line(budget: &Budget) -> Phases {
        Phases { begun: budget.concat_starts(), ..Phases::not_begun(budget) }
    }

    /// The phases of windows that are packed from `place` on, or from the epoch's start.
    pub(crate) fn of_windows(budget: &Budget, place: Option<&RowPlace>) -> Phases {
        let mut phases = Phases::not_begun(budget);
        let (row, tokens) = place.map_or((0, 0), |place| (place.rows, place.tokens));
        phases.begin(row, tokens);
        phases
    }

    /// The phases of a budget, of which none has begun.
    fn not_begun(budget: &Budget) -> Phases {
        let first = u32::try_from(budget.tokens - 1).expect("a checked capacity");
        let later = budget.phases.iter().map(|phase| (phase.from, phase.seq_len));
        Phases { all: std::iter::once((0, first)).chain(later).collect(), begun: Vec::new() }
    }

    /// Begins the phases whose tokens have been reached at the start of a window: `row` is the window's first row, and
    /// the rows before it count `tokens`.
    pub(crate) fn begin(&mut self, row: u64, tokens: u64) {
        let next = self.all[self.begun.len()..].iter();
        let count = next.take_while(|(from, _)| *from <= tokens).count();
        self.begun.extend(std::iter::repeat_n((row, tokens), count));
    }

    /// The phase of a row that is known.
    pub(crate) fn at(&self, row: u64) -> usize {
        self.begun.partition_point(|(first, _)| *first <= row).saturating_sub(1)
    }

    /// The length of rows in a phase.
    pub(crate) fn len(&self, phase: usize) -> u32 {
        self.all[phase].1
    }

    /// The phase that has begun last.
    pub(crate) fn last(&self) -> usize {
        self.begun.len() - 1
    }

    /// The first row of the next phase behind `row`, if one has begun.
    pub(crate) fn next_start(&self, row: u64) -> Option<u64> {
        let next = self.begun.partition_point(|(first, _)| *first <= row);
        self.begun.get(next).map(|(first, _)| *first)
    }

    /// The tokens that the rows before `row` count.
    pub(crate) fn tokens_before(&self, row: u64) -> u64 {
        let phase = self.at(row);
        let (first, tokens) = self.begun[phase];
        let len = u64::from(self.len(phase));
        tokens.saturating_add(row.saturating_sub(first).saturating_mul(len))
    }

    /// The last row of a line that begins with token `at` or one before it.
    pub(crate) fn row_at(&self, at: u64) -> u64 {
        let phase = self.begun.partition_point(|(_, tokens)| *tokens <= at) - 1;
        let (first, tokens) = self.begun[phase];
        first + (at - tokens) / u64::from(self.len(phase))
    }

    /// The number of rows in each phase of an epoch of `rows`.
    pub(crate) fn rows_of_each(&self, rows: u64) -> Vec<u64> {
        let start = |phase| self.begun.get(phase).map_or(rows, |(first, _)| rows.min(*first));
        (0..self.all.len()).map(|phase| start(phase + 1) - start(phase)).collect()
    }
}
