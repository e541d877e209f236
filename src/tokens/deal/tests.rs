use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;
use crate::layout::Segment;
use dlfs_base::error::Error;
use dlfs_base::permutation::{Key, Permutation};
use dlfs_order::order::Tail;
use dlfs_order::order::budget::{Cost, Pack, RowPhase, RowSpec};

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
        let most = if random.below(30) == 0 { 3000 } else { 200 };
        let len = random.below(most);
        let tokens = (0..len).map(|_| random.below(longest) as u32).collect();
        let seed = random.below(u64::MAX);
        let epoch = random.below(1000);
        let mut from = 0;
        let phases = [0, 0, 1, 4][random.below(4) as usize];
        let phases = (0..phases).map(|_| {
            // Some are near, and some have no row at all.
            let far = [capacity, 20 * capacity][random.below(2) as usize];
            from += 1 + random.below(far);
            RowPhase { from, seq_len: 1 + random.below(2 * capacity) as u32 }
        });
        let phases = phases.collect();
        let budget = Budget { phases, ..budget(capacity, window, spec) };
        budget.check().unwrap();
        Case { budget: Arc::new(budget), seed, epoch, tokens }
    }

    fn begin(&self, rows: &[u32], shard: Shard, place: Option<RowPlace>) -> RowDeal<u64> {
        let len = self.tokens.len() as u64;
        RowDeal::new(&self.budget, rows, (self.seed, Epoch(self.epoch)), len, shard, place)
    }

    /// All rows in one batch at a time of one rank, and the length of each.
    fn rows(&self) -> (Vec<Vec<Part>>, Vec<u64>) {
        let mut deal = self.begin(&[1], shard(0, 1, 0), None);
        let mut rows = Vec::new();
        let mut lens = Vec::new();
        while let Some((_, mut batch, len)) = next(&mut deal, &self.tokens) {
            rows.append(&mut batch);
            lens.push(len.into());
        }
        (rows, lens)
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

/// The next batch, as the parts of each row, and its length of rows; checks that parts lie side by side, and that
/// documents come once for neighbouring parts.
fn next(deal: &mut RowDeal<u64>, tokens: &[u32]) -> Option<(Dealt, Vec<Vec<Part>>, u32)> {
    let mut documents = vec![u64::MAX; 3];
    let old = Segment { row: 9, column: 9, document: 9, from: 9, len: 9 };
    let mut layout = Layout { num_rows: 9, seq_len: 9, segments: vec![old] };
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
    Some((dealt, rows, layout.seq_len))
}

/// The rows of an epoch by their definition.
struct Model {
    rows: Vec<Vec<Part>>,
    /// The length of each row, and of its bucket.
    lens: Vec<u64>,
    /// The first row of each phase that has begun.
    starts: Vec<u64>,
}

/// The least bucket that has room for a row of `inputs`.
fn bound(inputs: u64, len: u64) -> u64 {
    let bounds = (0..25).flat_map(|log| [1 << log, 3 << log]).filter(|bound| *bound >= inputs);
    bounds.min().unwrap().max(1).min(len)
}

/// Lays out token by token, and compares all rows for each piece.
fn model(case: &Case) -> Model {
    let Budget { tokens: capacity, phases, .. } = &*case.budget;
    let spec = case.budget.rows.unwrap();
    let with_separator = |&n: &u32| u64::from(n) + u64::from(spec.separated && n > 0);
    let lengths: Vec<u64> = case.tokens.iter().map(with_separator).collect();
    let mut model = Model { rows: Vec::new(), lens: Vec::new(), starts: vec![0] };
    let mut count = 0;
    let mut len = capacity - 1;
    // The phases that the next row, which `count` tokens are before, begins.
    let begin = |model: &mut Model, count: u64, len: &mut u64| {
        while let Some(phase) = phases.get(model.starts.len() - 1)
            && phase.from <= count
        {
            model.starts.push(model.rows.len() as u64);
            *len = phase.seq_len.into();
        }
    };
    if spec.pack == Pack::Concat {
        let tokens: Vec<(u64, u64)> = (0..)
            .zip(&lengths)
            .flat_map(|(at, &len)| (0..len).map(move |token| (at, token)))
            .collect();
        loop {
            begin(&mut model, count, &mut len);
            let Some(row) = tokens.get(count as usize..(count + len + 1) as usize) else { break };
            let of_one = row.chunk_by(|one, other| one.0 == other.0);
            let parts = of_one.map(|part| (part[0].0, part[0].1, part.len() as u64));
            model.rows.push(parts.collect());
            model.lens.push(len);
            count += len;
        }
        return model;
    }
    let size = case.budget.window as usize;
    for window in 0..lengths.len().div_ceil(size) {
        begin(&mut model, count, &mut len);
        let pieces = (window * size..lengths.len().min((window + 1) * size)).flat_map(|at| {
            let starts = (0..lengths[at]).step_by(len as usize + 1);
            let all = lengths[at];
            starts.map(move |start| (at as u64, start, (len + 1).min(all - start)))
        });
        let pieces: Vec<Part> = pieces.collect();
        let key = Key::derive(case.seed, &[0x726f_7773, case.epoch, window as u64]);
        let rows = match spec.pack {
            Pack::BestFit => shuffled(fitted(pieces, len + 1), key),
            _ => {
                let mut buckets: BTreeMap<u64, Vec<Vec<Part>>> = BTreeMap::new();
                for piece in pieces {
                    buckets.entry(bound(piece.2 - 1, len)).or_default().push(vec![piece]);
                }
                shuffled(buckets.into_values().collect(), key).concat()
            }
        };
        count += len * rows.len() as u64;
        let is_best_fit = spec.pack == Pack::BestFit;
        let wide = |row: &Vec<Part>| if is_best_fit { len } else { bound(row[0].2 - 1, len) };
        model.lens.extend(rows.iter().map(wide));
        model.rows.extend(rows);
    }
    model
}

/// Rows by best fit, in the order in which they were opened.
fn fitted(mut pieces: Vec<Part>, capacity: u64) -> Vec<Vec<Part>> {
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
    rows.into_iter().map(|row| row.2).collect()
}

fn shuffled<R: Clone>(of: Vec<R>, key: Key) -> Vec<R> {
    let shuffle = Permutation::new(of.len() as u64, key);
    (0..shuffle.len()).map(|nth| of[shuffle.forward(nth) as usize].clone()).collect()
}

impl Model {
    /// The first whole global batch from row `from` on: its first row, its end, and the rows of each rank.
    fn batch_from(&self, from: u64, ranks: u64, rows: &[u32]) -> Option<(u64, u64, u64)> {
        if from >= self.rows.len() as u64 {
            return None;
        }
        let phase = self.starts.iter().filter(|start| **start <= from).count() - 1;
        let rows_of_rank = u64::from(rows.get(phase).copied().unwrap_or(*rows.last().unwrap()));
        let end = from + ranks * rows_of_rank;
        match self.starts.iter().find(|start| **start > from && **start < end) {
            Some(&start) => self.batch_from(start, ranks, rows),
            None => (end <= self.rows.len() as u64).then_some((from, end, rows_of_rank)),
        }
    }
}

#[test]
fn ranks_have_the_rows_of_the_definition_and_go_on_anywhere_with_other_ranks_and_rows() {
    let seed = 31;
    println!("seed {seed}");
    let mut random = Random(Key::new(seed), 0);
    let mut num_batches = 0;
    let mut num_places = 0;
    for number in 0..2000 {
        let case = Case::any(&mut random);
        let model = model(&case);
        let mut consumed = random.below(4) * random.below(20);
        let mut place = None;
        loop {
            let most = [3, 64][random.below(2) as usize];
            let ranks = 1 + random.below(most);
            let rows: Vec<u32> =
                (0..1 + random.below(5)).map(|_| 1 + random.below(4) as u32).collect();
            let rounds = 1 + random.below(3);
            // A place is where the run before has ended; without one, the run walks.
            let begun_at = place.take().filter(|_| random.below(4) > 0);
            num_places += u64::from(begun_at.is_some());
            let what = format!("case {number}: {ranks} ranks of {rows:?} rows from {consumed}");
            let mut ends = Vec::new();
            for rank in 0..ranks {
                let mut deal = case.begin(&rows, shard(rank, ranks, consumed), begun_at);
                let mut from = consumed;
                let mut end = None;
                for _ in 0..rounds {
                    let expected = model.batch_from(from, ranks, &rows);
                    let found = next(&mut deal, &case.tokens);
                    let Some((first, batch_end, of_rank)) = expected else {
                        assert_eq!(found, None, "{what}");
                        break;
                    };
                    let (dealt, batch, seq_len) = found.expect(&what);
                    let own = (first + rank * of_rank) as usize;
                    assert_eq!(batch, model.rows[own..own + of_rank as usize], "{what}");
                    let lens = &model.lens[first as usize..batch_end as usize];
                    assert_eq!(Some(u64::from(seq_len)), lens.iter().max().copied(), "{what}");
                    let next = model.batch_from(batch_end, ranks, &rows);
                    from = next.map_or(batch_end, |next| next.0);
                    assert_eq!(
                        (dealt.consumed, dealt.ends_epoch),
                        (from, next.is_none()),
                        "{what}"
                    );
                    assert_eq!(dealt.place.is_some(), next.is_some(), "{what}");
                    end = Some(dealt);
                    num_batches += 1;
                }
                ends.push(end);
            }
            assert!(ends.iter().all(|end| *end == ends[0]), "{what}: {ends:?}");
            let Some(Dealt { consumed: end, ends_epoch: false, place: found }) = ends[0] else {
                break;
            };
            consumed = end;
            place = found;
        }
    }
    println!("{num_batches} batches, {num_places} from places");
    assert!(num_batches > 10_000 && num_places > 1000);
}

#[test]
fn a_place_of_other_rows_is_refused() {
    let seed = 53;
    println!("seed {seed}");
    let mut random = Random(Key::new(seed), 0);
    let mut num_refused = 0;
    for number in 0..500 {
        let case = Case::any(&mut random);
        let mut deal = case.begin(&[1], shard(0, 1, 0), None);
        let mut skipped = random.below(20);
        let (consumed, place) = loop {
            match next(&mut deal, &case.tokens) {
                Some((Dealt { consumed, place: Some(place), .. }, ..)) if skipped == 0 => {
                    break (consumed, place);
                }
                Some(_) => skipped = skipped.saturating_sub(1),
                None => break (0, RowPlace { position: 0, tokens: 0, rows: 0, check: 0 }),
            }
        };
        if consumed == 0 {
            continue;
        }
        let refused = |consumed: u64, place: RowPlace| {
            let mut deal = case.begin(&[1], shard(0, 1, consumed), Some(place));
            let mut layout = Layout::default();
            let dealt = deal.next(&mut draw(&case.tokens), &mut Vec::new(), &mut layout);
            dealt.err().is_some_and(|error| error.to_string().contains("is not that of its"))
        };
        assert!(!refused(consumed, place), "case {number}: {place:?}");
        let RowPlace { position, rows, tokens, .. } = place;
        let len = case.tokens.len() as u64;
        let is_line = case.budget.rows.unwrap().pack == Pack::Concat;
        let after = if is_line { u64::MAX } else { consumed + 1 };
        for place in [
            RowPlace { position: len, ..place },
            RowPlace { position: u64::MAX, ..place },
            RowPlace { rows: after, ..place },
            RowPlace { tokens: u64::MAX, ..place },
        ] {
            if is_line || place.tokens == tokens {
                assert!(refused(consumed, place), "case {number}: {place:?}");
            }
        }
        if !is_line && case.budget.window > 1 {
            assert!(refused(consumed, RowPlace { position: position + 1, ..place }));
        }
        let behind = if is_line { 20_000 } else { rows + 100_000 };
        assert!(refused(consumed + behind, place), "case {number}: {place:?}");
        num_refused += 1;
    }
    assert!(num_refused > 300, "{num_refused}");
}

#[test]
fn a_shard_of_several_ranks_has_their_batches_in_turn() {
    let seed = 37;
    println!("seed {seed}");
    let mut random = Random(Key::new(seed), 0);
    for number in 0..500 {
        let case = Case::any(&mut random);
        let places = 1 + random.below(3);
        let seats = 1 + random.below(4);
        let own = shard(random.below(places), places, random.below(9)).of_seats(seats as u32);
        let mut of_place = case.begin(&[2, 1], own, None);
        let of_rank = |rank| case.begin(&[2, 1], shard(rank, places * seats, own.consumed), None);
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
        let (rows, lens) = case.rows();
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
        let all_columns = lens.iter().map(|len| len + 1).sum::<u64>();
        let mut dropped = 0;
        let mut padding = all_columns - columns;
        if spec.pack == Pack::Concat {
            let end = if num_rows == 0 { 0 } else { lens.iter().sum::<u64>() + 1 };
            dropped = tokens - end;
            assert!(dropped < case.budget.most_tokens(&[1]), "case {number}");
            assert_eq!(std::mem::take(&mut padding), 0, "case {number}");
            let starts = lens.iter().scan(0, |at, len| Some(std::mem::replace(at, *at + len)));
            let shared: Vec<u64> = starts.skip(1).collect();
            for (at, token) in (0..).zip(all) {
                let is_shared = shared.binary_search(&at).is_ok();
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
        let columns = all_columns;
        let starts = model(&case).starts;
        let start = |phase| starts.get(phase).copied().unwrap_or(rows);
        let phases = 0..case.budget.phases.len() + 1;
        let phases = phases.map(|phase| start(phase + 1) - start(phase)).collect();
        let counts = RowCounts { rows, documents, tokens, columns, padding, cuts, dropped, phases };
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
        let mut deal = case.begin(&[2], shard(0, 2, 0), None);
        let mut other = case.begin(&[2], shard(0, 2, 0), None);
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
            let mut deal = case.begin(&[3], shard(1, 2, consumed), None);
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
