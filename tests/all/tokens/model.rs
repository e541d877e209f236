//! The rows of an epoch by their definition: laid out token by token, and fitted by a look at all rows for each piece.

use std::ops::Range;

use super::Doc;
use crate::support::random::Random;
use dlfs::dataset::TokenOptions;
use dlfs::order::budget::Pack;
use dlfs::permutation::{Key, Permutation};
use dlfs::tokens::Columns;

/// One column of a row.
#[derive(Debug, Clone, PartialEq)]
pub struct Cell {
    pub token: i64,
    pub segment: i64,
    pub position: i64,
    pub loss: i64,
    pub sample: i64,
}

/// A source, an id and its document.
pub type Place<'a> = (u32, u64, &'a Doc);

/// A document, its first token in a row, and the end.
pub type Item = (usize, usize, usize);

/// The rows of an epoch.
#[derive(Default)]
pub struct Rows {
    /// Ranges of tokens of positions.
    pub segments: Vec<Vec<Item>>,
    /// The inputs of each row, or of its bucket.
    pub lens: Vec<usize>,
    /// The first row of each phase behind the epoch's start.
    pub starts: Vec<usize>,
}

impl Rows {
    /// The rows of documents of these tokens.
    pub fn new(rows: &TokenOptions, (seed, epoch): (u64, u64), tokens: &[usize]) -> Rows {
        let with_separator =
            |&len: &usize| if len > 0 { len + usize::from(rows.separator.is_some()) } else { 0 };
        let tokens: Vec<usize> = tokens.iter().map(with_separator).collect();
        let mut all = Rows::default();
        let mut counted = 0;
        if rows.pack == Pack::Concat {
            let line: Vec<(usize, usize)> = (0..tokens.len())
                .flat_map(|at| (0..tokens[at]).map(move |nth| (at, nth)))
                .collect();
            loop {
                let len = all.begin(rows, counted);
                let Some(row) = line.get(counted..counted + len + 1) else { return all };
                let of_one = row.chunk_by(|left, right| left.0 == right.0);
                let items = of_one.map(|run| (run[0].0, run[0].1, run[0].1 + run.len()));
                all.segments.push(items.collect());
                all.lens.push(len);
                counted += len;
            }
        }
        let size = rows.window as usize;
        for window in 0..tokens.len().div_ceil(size) {
            let len = all.begin(rows, counted);
            let cut = |at: usize| {
                let end = tokens[at];
                (0..end).step_by(len + 1).map(move |from| (at, from, end.min(from + len + 1)))
            };
            let positions = window * size..tokens.len().min((window + 1) * size);
            let items: Vec<Item> = positions.flat_map(cut).collect();
            let key = Key::derive(seed, &[0x726f_7773, epoch, window as u64]);
            let in_order = |len: usize| {
                let shuffle = Permutation::new(len as u64, key);
                (0..len as u64).map(move |nth| shuffle.forward(nth) as usize)
            };
            if rows.pack == Pack::BestFit {
                let packed = best_fit(items, len + 1);
                counted += len * packed.len();
                all.lens.extend(packed.iter().map(|_| len));
                all.segments.extend(in_order(packed.len()).map(|nth| packed[nth].clone()));
                continue;
            }
            counted += len * items.len();
            let bucket = |item: &Item| bucket(item.2 - item.1 - 1, len);
            let mut bounds: Vec<usize> = items.iter().map(bucket).collect();
            bounds.sort_unstable();
            bounds.dedup();
            for bound in in_order(bounds.len()).map(|nth| bounds[nth]) {
                for item in items.iter().filter(|item| bucket(item) == bound) {
                    all.segments.push(vec![*item]);
                    all.lens.push(bound);
                }
            }
        }
        all
    }

    /// The length of the next row, before which rows have counted so many tokens; begins the phases that it begins.
    fn begin(&mut self, rows: &TokenOptions, counted: usize) -> usize {
        let begun = rows.phases.partition_point(|phase| phase.from <= counted as u64);
        self.starts.resize(begun.max(self.starts.len()), self.segments.len());
        let last = self.starts.len().checked_sub(1).map(|last| rows.phases[last].seq_len);
        last.unwrap_or(rows.seq_len) as usize
    }

    /// The rows of the first whole global batch from row `from` on, and those of a rank.
    pub fn batch_from(
        &self,
        from: usize,
        ranks: usize,
        sizes: &[u32],
    ) -> Option<(Range<usize>, usize)> {
        let mut from = from;
        loop {
            let phase = self.starts.iter().filter(|start| **start <= from).count();
            let of_rank = sizes[phase] as usize;
            let end = from + ranks * of_rank;
            match self.starts.iter().find(|start| (from + 1..end).contains(*start)) {
                Some(start) => from = *start,
                None if end <= self.segments.len() => return Some((from..end, of_rank)),
                None => return None,
            }
        }
    }
}

/// The inputs that a row of so many gets.
fn bucket(inputs: usize, seq_len: usize) -> usize {
    let mut power = 1;
    while power < inputs {
        if power > 1 && power / 2 * 3 >= inputs {
            return (power / 2 * 3).min(seq_len);
        }
        power *= 2;
    }
    power.min(seq_len)
}

/// Rows of items, in the order in which they are opened.
fn best_fit(mut items: Vec<Item>, capacity: usize) -> Vec<Vec<Item>> {
    items.sort_by_key(|(_, from, end)| std::cmp::Reverse(end - from));
    // Each open row with its room, and the time since when it has this room.
    let mut open: Vec<(usize, usize, Vec<Item>)> = Vec::new();
    for (time, item) in items.into_iter().enumerate() {
        let len = item.2 - item.1;
        let fits = open.iter_mut().filter(|(room, ..)| *room >= len);
        match fits.min_by_key(|(room, since, _)| (*room, std::cmp::Reverse(*since))) {
            Some(row) => {
                *row = (row.0 - len, time, std::mem::take(&mut row.2));
                row.2.push(item);
            }
            None => open.push((capacity - len, time, vec![item])),
        }
    }
    open.into_iter().map(|row| row.2).collect()
}

/// The columns of a row that have tokens.
pub fn cells(rows: &TokenOptions, segments: &[Item], documents: &[Place<'_>]) -> Vec<Cell> {
    let mut cells = Vec::new();
    for (number, &(at, from, end)) in segments.iter().enumerate() {
        let (_, id, Doc { tokens, loss }) = documents[at];
        for nth in from..end {
            let is_start = nth == from && rows.pack != Pack::Concat;
            let is_learned = rows.loss_field.is_none() || loss.get(nth).is_none_or(|&it| it > 0);
            cells.push(Cell {
                token: tokens.get(nth).copied().or(rows.separator.map(i64::from)).unwrap(),
                segment: number as i64 + 1,
                position: (nth - from) as i64,
                loss: i64::from(is_learned && !is_start),
                sample: id as i64,
            });
        }
    }
    cells
}

/// A context-parallel rank, their number, and the parts that each has.
pub struct ContextParallel {
    rank: usize,
    ranks: usize,
    is_zigzag: bool,
    is_narrow: bool,
}

impl ContextParallel {
    /// One that can share rows of all phases.
    pub fn any(random: &mut Random, rows: &TokenOptions) -> ContextParallel {
        let ranks = [1, 1, 2, 3, 4][random.below(5) as usize];
        let is_zigzag = random.one_in(2) && ranks > 1;
        let parts = if is_zigzag { 2 * ranks } else { ranks };
        let lens = rows.phases.iter().map(|phase| phase.seq_len);
        let is_shared = |len: u32| (len as usize).is_multiple_of(parts);
        let is_narrow = rows.pack == Pack::None;
        if !lens.chain([rows.seq_len]).all(is_shared) {
            return ContextParallel { rank: 0, ranks: 1, is_zigzag: false, is_narrow };
        }
        let rank = random.below(ranks as u64) as usize;
        ContextParallel { rank, ranks, is_zigzag, is_narrow }
    }

    pub fn columns(&self, seq_len: usize) -> Columns {
        Columns::slice(seq_len as u32, self.rank as u32, self.ranks as u32, self.is_zigzag).unwrap()
    }

    /// Its columns of rows that need `len` inputs.
    pub fn chunks(&self, len: usize) -> Vec<Range<usize>> {
        let parts = if self.is_zigzag { 2 * self.ranks } else { self.ranks };
        let len = if self.is_narrow { len.div_ceil(parts) } else { len / parts };
        let mut taken = vec![self.rank];
        taken.extend(self.is_zigzag.then_some(parts - 1 - self.rank));
        taken.iter().map(|part| part * len..(part + 1) * len + 1).collect()
    }
}
