use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;
use crate::layout::Segment;
use dlfs_base::error::Error;
use dlfs_base::permutation::{Key, Permutation};
use dlfs_order::order::Tail;
use dlfs_order::order::budget::Cost;

/// Numbers for the cases.
struct Random(Key, u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.1 += 1;
        ((u128::from(self.0.with(self.1).word()) * u128::from(end)) >> 64) as u64
    }
}

/// A part of a row: position, first token and number of tokens.
type Part = (u64, u64, u64);

/// A budget of rows, a seed, an epoch and the tokens of its documents.
#[derive(Debug)]
struct Case {
    budget: Arc<Budget>,
    seed: u64,
    epoch: u64,
    tokens: Vec<u32>,
}

impl Case {
    fn any(random: &mut Random) -> Case {
        let most = [9, 60, 511][random.below(3) as usize];
        let capacity = 2 + random.below(most);
        let longest = 1 + random.below(2 * capacity);
        let pack = [Pack::Concat, Pack::BestFit, Pack::None][random.below(3) as usize];
        let spec = RowSpec { pack, separated: random.below(2) == 0, cuts: true };
        let window = 1 + random.below(60) as u32;
        // Some are drawn in several steps also without windows.
        let most = if random.below(30) == 0 { 3 * STEP } else { 200 };
        let len = random.below(most);
        let tokens = (0..len).map(|_| random.below(longest) as u32).collect();
        let seed = random.below(u64::MAX);
        let epoch = random.below(1000);
        Case { budget: Arc::new(budget(capacity, window, spec)), seed, epoch, tokens }
    }

    fn begin(&self, rows: u32, shard: Shard) -> RowDeal<u64> {
        let len = self.tokens.len() as u64;
        RowDeal::new(&self.budget, rows, self.seed, Epoch(self.epoch), len, shard)
    }

    /// All rows in one batch at a time of one rank.
    fn rows(&self) -> Vec<Vec<Part>> {
        let mut deal = self.begin(1, shard(0, 1, 0));
        let mut rows = Vec::new();
        while let Some((_, mut batch)) = next(&mut deal, &self.tokens) {
            rows.append(&mut batch);
        }
        rows
    }

    fn counts(&self) -> Result<RowCounts> {
        let len = self.tokens.len() as u64;
        count_rows(&self.budget, self.seed, Epoch(self.epoch), len, |range, tokens| {
            tokens.extend(&self.tokens[range.start as usize..range.end as usize]);
            Ok(())
        })
    }
}

fn budget(capacity: u64, window: u32, rows: RowSpec) -> Budget {
    let budget = Budget { cost: Cost::Sum, window, rows: Some(rows), ..Budget::new(capacity) };
    budget.check().unwrap();
    budget
}

fn shard(rank: u64, world_size: u64, consumed: u64) -> Shard {
    let tail = Tail::Keep;
    Shard { rank: rank as u32, world_size: world_size as u32, consumed, tail, seats: 1 }
}

/// Draws positions as documents.
fn draw(tokens: &[u32]) -> impl FnMut(Range<u64>, &mut Vec<u64>, &mut Vec<u32>) -> Result<()> + '_ {
    move |range, documents, lengths| {
        documents.extend(range.clone());
        lengths.extend(&tokens[range.start as usize..range.end as usize]);
        Ok(())
    }
}

/// The next batch, as the parts of each row; checks that parts lie side by side, and that documents come once for
/// neighbouring parts.
fn next(deal: &mut RowDeal<u64>, tokens: &[u32]) -> Option<(Dealt, Vec<Vec<Part>>)> {
    let mut documents = vec![u64::MAX; 3];
    let old = Segment { row: 9, column: 9, document: 9, from: 9, len: 9 };
    let mut layout = Layout { num_rows: 9, segments: vec![old] };
    let dealt = deal.next(&mut draw(tokens), &mut documents, &mut layout).unwrap()?;
    let documents = &documents[3..];
    let mut rows = vec![Vec::new(); layout.num_rows as usize];
    let mut columns = vec![0; rows.len()];
    let mut document = 0;
    for segment in &layout.segments {
        let row = segment.row as usize;
        assert_eq!(segment.column, columns[row], "{segment:?}");
        assert!(rows[row + 1..].iter().all(Vec::is_empty), "rows come one after the other");
        assert!(segment.len > 0, "{segment:?}");
        assert!(segment.document == document || segment.document == document + 1, "{segment:?}");
        document = segment.document;
        columns[row] += segment.len;
        let position = documents[document as usize];
        rows[row].push((position, segment.from.into(), segment.len.into()));
    }
    assert_eq!(documents.len(), document as usize + 1);
    assert!(documents.windows(2).all(|two| two[0] != two[1]), "{documents:?}");
    Some((dealt, rows))
}

/// The rows of an epoch by their definition, token by token or by comparison of all rows.
fn model(case: &Case) -> Vec<Vec<Part>> {
    let spec = case.budget.rows.unwrap();
    let capacity = case.budget.tokens;
    let with_separator = |&n: &u32| u64::from(n) + u64::from(spec.separated && n > 0);
    let lengths: Vec<u64> = case.tokens.iter().map(with_separator).collect();
    let cut = |positions: Range<usize>| -> Vec<Part> {
        let pieces = positions.flat_map(|at| {
            let starts = (0..lengths[at]).step_by(capacity as usize);
            let len = lengths[at];
            starts.map(move |start| (at as u64, start, capacity.min(len - start)))
        });
        pieces.collect()
    };
    match spec.pack {
        Pack::None => cut(0..lengths.len()).into_iter().map(|piece| vec![piece]).collect(),
        Pack::Concat => {
            let tokens: Vec<(u64, u64)> = (0..)
                .zip(&lengths)
                .flat_map(|(at, &len)| (0..len).map(move |token| (at, token)))
                .collect();
            let starts = (0..).step_by(capacity as usize - 1);
            let rows = starts.map_while(|start| tokens.get(start..start + capacity as usize));
            rows.map(|row| {
                let of_one = row.chunk_by(|one, other| one.0 == other.0);
                of_one.map(|part| (part[0].0, part[0].1, part.len() as u64)).collect()
            })
            .collect()
        }
        Pack::BestFit => {
            let size = case.budget.window as usize;
            let mut all = Vec::new();
            for window in 0..lengths.len().div_ceil(size) {
                let mut pieces = cut(window * size..lengths.len().min((window + 1) * size));
                pieces.sort_by_key(|&(_, _, len)| std::cmp::Reverse(len));
                // Room, the time at which the row got it, and parts.
                let mut rows: Vec<(u64, usize, Vec<Part>)> = Vec::new();
                for (time, piece) in pieces.into_iter().enumerate() {
                    let fits = rows.iter_mut().filter(|row| row.0 >= piece.2);
                    match fits.min_by_key(|row| (row.0, usize::MAX - row.1)) {
                        Some(row) => {
                            row.0 -= piece.2;
                            row.1 = time;
                            row.2.push(piece);
                        }
                        None => rows.push((capacity - piece.2, time, vec![piece])),
                    }
                }
                let key = Key::derive(case.seed, &[0x726f_7773, case.epoch, window as u64]);
                let shuffle = Permutation::new(rows.len() as u64, key);
                let nth = |nth| rows[shuffle.forward(nth) as usize].2.clone();
                all.extend((0..shuffle.len()).map(nth));
            }
            all
        }
    }
}

#[test]
fn ranks_have_the_rows_of_the_definition_and_go_on_anywhere_with_other_ranks_and_rows() {
    let seed = 31;
    println!("seed {seed}");
    let mut random = Random(Key::new(seed), 0);
    let mut num_batches = 0;
    for number in 0..1000 {
        let case = Case::any(&mut random);
        let model = model(&case);
        let mut consumed = random.below(4) * random.below(20);
        loop {
            let most = [3, 64][random.below(2) as usize];
            let ranks = 1 + random.below(most);
            let rows = 1 + random.below(4);
            let rounds = 1 + random.below(3);
            let what = format!("case {number}: {ranks} ranks of {rows} rows from {consumed}");
            let left = model.get(consumed as usize..).unwrap_or_default();
            let size = (ranks * rows) as usize;
            for rank in 0..ranks {
                let mut deal = case.begin(rows as u32, shard(rank, ranks, consumed));
                for round in 0..rounds as usize {
                    let Some((dealt, batch)) = next(&mut deal, &case.tokens) else {
                        assert!(left.len() < (round + 1) * size, "{what}");
                        break;
                    };
                    let first = round * size + (rank * rows) as usize;
                    assert_eq!(batch, left[first..first + rows as usize], "{what}");
                    let end = (round + 1) * size;
                    assert_eq!(dealt.consumed, consumed + end as u64, "{what}");
                    assert_eq!(dealt.ends_epoch, left.len() < end + size, "{what}");
                    num_batches += 1;
                }
            }
            if left.len() < size {
                break;
            }
            consumed += size as u64 * (left.len() / size).min(rounds as usize) as u64;
        }
    }
    println!("{num_batches} batches");
    assert!(num_batches > 10_000);
}

#[test]
fn a_place_has_the_batches_of_its_ranks_in_turn() {
    let seed = 37;
    println!("seed {seed}");
    let mut random = Random(Key::new(seed), 0);
    for number in 0..500 {
        let case = Case::any(&mut random);
        let places = 1 + random.below(3);
        let seats = 1 + random.below(4);
        let own = shard(random.below(places), places, random.below(9)).of_seats(seats as u32);
        let mut of_place = case.begin(2, own);
        let of_rank = |rank| case.begin(2, shard(rank, places * seats, own.consumed));
        let mut of_ranks: Vec<RowDeal<u64>> = own.ranks().map(of_rank).collect();
        for turn in 0.. {
            let batch = next(&mut of_place, &case.tokens);
            let of_rank = &mut of_ranks[turn % seats as usize];
            assert_eq!(batch, next(of_rank, &case.tokens), "case {number}, turn {turn}");
            if batch.is_none() {
                break;
            }
        }
    }
}

#[test]
fn each_token_lies_once_but_for_the_overlap_and_the_dropped_end_of_concat_and_counts_agree() {
    let seed = 41;
    println!("seed {seed}");
    let mut random = Random(Key::new(seed), 0);
    for number in 0..1500 {
        let case = Case::any(&mut random);
        let spec = case.budget.rows.unwrap();
        let rows = case.rows();
        let mut seen: BTreeMap<(u64, u64), u32> = BTreeMap::new();
        let mut segments = vec![0; case.tokens.len()];
        let mut columns = 0;
        for &(position, from, len) in rows.iter().flatten() {
            (from..from + len).for_each(|token| *seen.entry((position, token)).or_default() += 1);
            segments[position as usize] += 1;
            columns += len;
        }
        let filled = case.tokens.iter().map(|&n| u64::from(n)).filter(|n| *n > 0);
        let all = (0..).zip(&case.tokens).filter(|(_, n)| **n > 0).flat_map(|(at, n)| {
            let n = u64::from(*n) + u64::from(spec.separated);
            (0..n).map(move |token| (at, token))
        });
        let num_rows = rows.len() as u64;
        let tokens = all.clone().count() as u64;
        let row_len = case.budget.tokens - 1;
        let mut dropped = 0;
        let mut padding = num_rows * case.budget.tokens - columns;
        if spec.pack == Pack::Concat {
            let end = if num_rows == 0 { 0 } else { num_rows * row_len + 1 };
            dropped = tokens - end;
            assert!(dropped <= row_len, "case {number}");
            assert_eq!(std::mem::take(&mut padding), 0, "case {number}");
            for (at, token) in (0..).zip(all) {
                let is_shared = at > 0 && at % row_len == 0 && at / row_len < num_rows;
                let times = if at >= end { None } else { Some(1 + u32::from(is_shared)) };
                assert_eq!(seen.get(&token).copied(), times, "case {number}, token {at}");
            }
        } else {
            let full = rows.iter().all(|row| !row.is_empty());
            assert!(full, "case {number}: a row has nothing");
            assert!(all.clone().all(|token| seen[&token] == 1), "case {number}");
            assert_eq!(seen.len() as u64, tokens, "case {number}");
        }
        let cuts = segments.iter().filter(|number| **number > 1).count() as u64;
        let documents = filled.count() as u64;
        let rows = num_rows;
        let counts = RowCounts { rows, documents, tokens, padding, cuts, dropped };
        assert_eq!(case.counts().unwrap(), counts, "case {number}: {:?}", case.budget);
    }
}

#[test]
fn an_error_of_drawing_is_passed_on_and_nothing_is_lost() {
    let seed = 43;
    println!("seed {seed}");
    let mut random = Random(Key::new(seed), 0);
    for number in 0..300 {
        let case = Case::any(&mut random);
        let mut fails = false;
        // Each second call appends something and fails.
        let mut flaky = |range: Range<u64>, documents: &mut Vec<u64>, tokens: &mut Vec<u32>| {
            fails = !fails;
            if fails {
                documents.push(range.start);
                tokens.push(1);
                return Err(Error::invalid("no lengths", "try again"));
            }
            draw(&case.tokens)(range, documents, tokens)
        };
        let mut deal = case.begin(2, shard(0, 2, 0));
        let mut other = case.begin(2, shard(0, 2, 0));
        let mut failures = 0;
        loop {
            let mut documents = vec![7];
            let mut layout = Layout::default();
            let dealt = loop {
                match deal.next(&mut flaky, &mut documents, &mut layout) {
                    Ok(dealt) => break dealt,
                    Err(error) => assert!(error.to_string().contains("no lengths"), "{error}"),
                }
                assert_eq!(documents, [7], "case {number}");
                failures += 1;
            };
            let mut expected = vec![7];
            let mut of_other = Layout::default();
            let from_other = other.next(&mut draw(&case.tokens), &mut expected, &mut of_other);
            assert_eq!(dealt, from_other.unwrap(), "case {number}");
            assert_eq!((documents, layout), (expected, of_other), "case {number}");
            if dealt.is_none() {
                break;
            }
        }
        assert_eq!(failures > 0, !case.tokens.is_empty(), "case {number}");
        let refused = |_: Range<u64>, _: &mut Vec<u32>| Err(Error::invalid("no lengths", "none"));
        let counted = count_rows(&case.budget, 1, Epoch(0), 5, refused);
        assert!(counted.unwrap_err().to_string().contains("no lengths"));
    }
}

#[test]
fn a_document_that_must_not_be_cut_and_is_longer_than_a_row_is_named() {
    for pack in [Pack::BestFit, Pack::None, Pack::Concat] {
        let spec = RowSpec { pack, separated: true, cuts: false };
        let budget = Arc::new(budget(10, 4, spec));
        let mut case = Case { budget, seed: 1, epoch: 0, tokens: vec![9; 12] };
        assert_eq!(case.counts().unwrap().documents, 12, "{pack}");
        case.tokens[6] = 10;
        let Err(error) = case.counts() else {
            assert_eq!(pack, Pack::Concat);
            continue;
        };
        let error = error.to_string();
        assert!(
            error.contains("position 6") && error.contains("has 10 tokens, more than 9"),
            "{error}"
        );
    }
}

#[test]
fn no_consumed_count_of_a_state_has_rows_past_the_end() {
    for pack in [Pack::BestFit, Pack::None, Pack::Concat] {
        let spec = RowSpec { pack, separated: false, cuts: true };
        let budget = Arc::new(budget(8, 4, spec));
        let case = Case { budget, seed: 1, epoch: 0, tokens: vec![5; 100] };
        for consumed in [1000, u64::MAX - 1, u64::MAX] {
            let mut deal = case.begin(3, shard(1, 2, consumed));
            assert_eq!(next(&mut deal, &case.tokens), None, "{pack} after {consumed}");
        }
    }
}

#[test]
fn best_fit_fills_rows_of_8192_tokens_nearly_completely() {
    let seed = 47;
    println!("seed {seed}");
    let mut random = Random(Key::new(seed), 0);
    let mut unit = || (random.below(1 << 32) as f64 + 0.5) / (1_u64 << 32) as f64;
    for (median, sigma) in [(400.0_f64, 1.2_f64), (1000.0, 1.0), (600.0, 1.5)] {
        // Box and Muller's normal numbers.
        let mut length = || {
            let normal = (-2.0 * unit().ln()).sqrt() * (std::f64::consts::TAU * unit()).cos();
            (median * (sigma * normal).exp()).round() as u32
        };
        let tokens: Vec<u32> = (0..16_384).map(|_| length()).collect();
        let spec = RowSpec { pack: Pack::BestFit, separated: true, cuts: true };
        let budget = Arc::new(budget(8193, 16_384, spec));
        let counts = Case { budget, seed, epoch: 0, tokens }.counts().unwrap();
        let share = counts.tokens as f64 / (counts.tokens + counts.padding) as f64;
        println!("median {median}, sigma {sigma}: {share:.5} of {} rows filled", counts.rows);
        assert!(share >= 0.99, "{share}");
    }
}
