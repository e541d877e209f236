use std::ops::Range;
use std::sync::Arc;

use super::spec::{LABEL, MAX_WINDOW};
use super::*;
use crate::order::{Shard, Tail};
use dlfs_base::permutation::Permutation;
use dlfs_base::units::Epoch;

/// Numbers for the cases.
struct Random(Key, u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.1 += 1;
        ((u128::from(self.0.with(self.1).word()) * u128::from(end)) >> 64) as u64
    }
}

/// The batches of an epoch whose samples are their positions, computed one sample after the other.
fn model(budget: &Budget, seed: u64, epoch: u64, tokens: &[u32]) -> Vec<Vec<u64>> {
    let mut all = Vec::new();
    let size = budget.window as usize;
    for (window, lengths) in tokens.chunks(size).enumerate() {
        let key = Key::derive(seed, &[LABEL, epoch, window as u64]);
        let mut sorted: Vec<(u32, u64, usize)> = (0..lengths.len())
            .map(|at| (lengths[at].max(1), key.with(0).with(at as u64).word() >> 32, at))
            .collect();
        sorted.sort();
        let mut batches: Vec<Vec<u64>> = Vec::new();
        for (_, _, at) in sorted {
            let position = (window * size + at) as u64;
            let with: Option<Vec<u64>> = batches.last().map(|last| {
                let mut with = last.clone();
                with.push(position);
                with
            });
            let fits = |with: &Vec<u64>| {
                let most = budget.max_samples.unwrap_or(u32::MAX) as usize;
                with.len() <= most && cost(budget, tokens, with) <= budget.tokens
            };
            match with.filter(fits) {
                Some(with) => *batches.last_mut().unwrap() = with,
                None => batches.push(vec![position]),
            }
        }
        let shuffle = Permutation::new(batches.len() as u64, key.with(1));
        all.extend((0..shuffle.len()).map(|nth| batches[shuffle.forward(nth) as usize].clone()));
    }
    all
}

fn cost(budget: &Budget, tokens: &[u32], batch: &[u64]) -> u64 {
    let each = batch.iter().map(|&at| u64::from(tokens[at as usize].max(1)));
    match budget.cost {
        Cost::Padded => each.max().unwrap_or(0) * batch.len() as u64,
        Cost::Sum => each.sum(),
    }
}

/// Draws positions as samples.
fn draw(tokens: &[u32]) -> impl FnMut(Range<u64>, &mut Vec<u64>, &mut Vec<u32>) -> Result<()> + '_ {
    move |range, samples, lengths| {
        samples.extend(range.clone());
        lengths.extend(&tokens[range.start as usize..range.end as usize]);
        Ok(())
    }
}

fn shard(rank: u64, world_size: u64, consumed: u64, tail: Tail) -> Shard {
    Shard { rank: rank as u32, world_size: world_size as u32, consumed, tail, seats: 1 }
}

/// A budget, a seed, an epoch and the tokens of its samples.
fn case(random: &mut Random) -> (Arc<Budget>, u64, u64, Vec<u32>) {
    let longest = 1 + random.below(60);
    let budget = Budget {
        tokens: 1 + random.below(200),
        window: 1 + random.below(40) as u32,
        max_samples: (random.below(3) == 0).then(|| 1 + random.below(9) as u32),
        cost: if random.below(2) == 0 { Cost::Padded } else { Cost::Sum },
        lengths: LengthsOf::Bytes(1),
        rows: None,
        phases: Vec::new(),
    };
    let len = random.below(150);
    let tokens = (0..len).map(|_| random.below(longest) as u32).collect();
    (Arc::new(budget), random.below(u64::MAX), random.below(1000), tokens)
}

#[test]
fn ranks_have_the_batches_of_the_model_and_go_on_between_any_two_with_other_ranks() {
    let seed = 17;
    println!("seed {seed}");
    let mut random = Random(Key::new(seed), 0);
    for number in 0..3000 {
        let (budget, seed, epoch, tokens) = case(&mut random);
        let model = model(&budget, seed, epoch, &tokens);
        let len = tokens.len() as u64;
        let ends: Vec<u64> = std::iter::once(0)
            .chain(model.iter().scan(0, |end, batch| {
                *end += batch.len() as u64;
                Some(*end)
            }))
            .collect();
        let tail = [Tail::Keep, Tail::DropLast, Tail::Pad][random.below(3) as usize];
        let mut at = 0; // batches of the model
        loop {
            let ranks = 1 + random.below(5);
            let rounds = 1 + random.below(4);
            let left = &model[at..];
            let mut consumed = None;
            for rank in 0..ranks {
                let shard = shard(rank, ranks, ends[at], tail);
                let mut deal = Deal::new(&budget, seed, Epoch(epoch), len, shard);
                for round in 0..rounds {
                    let first = (round * ranks) as usize;
                    let nth = first + rank as usize;
                    let whole = first + ranks as usize;
                    let expected = match tail {
                        Tail::Keep => left.get(nth),
                        Tail::DropLast => left.get(nth).filter(|_| whole <= left.len()),
                        Tail::Pad if first >= left.len() => None,
                        Tail::Pad => {
                            left.get(nth).or_else(|| model.get((nth - left.len()) % model.len()))
                        }
                    };
                    let mut batch = Vec::new();
                    let dealt = deal.next(&mut draw(&tokens), &mut batch).unwrap();
                    let Some(expected) = expected else {
                        assert_eq!((dealt, batch.len()), (None, 0), "case {number}");
                        break;
                    };
                    let dealt = dealt.unwrap_or_else(|| panic!("case {number} ends at {nth}"));
                    assert_eq!(&batch, expected, "case {number}");
                    let end = ends[at + whole.min(left.len())];
                    assert_eq!(dealt.consumed, end, "case {number}");
                    let has_next = match tail {
                        Tail::Keep => nth + (ranks as usize) < left.len(),
                        Tail::DropLast => whole + ranks as usize <= left.len(),
                        Tail::Pad => whole < left.len(),
                    };
                    assert_eq!(dealt.ends_epoch, !has_next, "case {number}");
                    if round + 1 == rounds {
                        consumed = Some(end);
                    }
                }
            }
            match consumed.and_then(|end| ends.iter().position(|&other| other == end)) {
                Some(next) if next < model.len() => at = next,
                _ => break,
            }
        }
    }
}

#[test]
fn a_place_has_the_batches_of_its_ranks_in_turn() {
    let seed = 23;
    println!("seed {seed}");
    let mut random = Random(Key::new(seed), 0);
    for number in 0..2000 {
        let (budget, seed, epoch, tokens) = case(&mut random);
        let len = tokens.len() as u64;
        let tail = [Tail::Keep, Tail::DropLast, Tail::Pad][random.below(3) as usize];
        let places = 1 + random.below(3);
        let seats = 1 + random.below(4);
        let begin = |shard| Deal::new(&budget, seed, Epoch(epoch), len, shard);
        let place = random.below(places);
        let own = shard(place, places, 0, tail).of_seats(seats as u32);
        let mut of_place = begin(own);
        let rank = |rank| begin(shard(rank, places * seats, 0, tail));
        let mut of_ranks: Vec<Deal<u64>> = own.ranks().map(rank).collect();
        for turn in 0..tokens.len() + 9 {
            let mut batch = Vec::new();
            let mut expected = Vec::new();
            let of_rank = &mut of_ranks[turn % seats as usize];
            let dealt = of_place.next(&mut draw(&tokens), &mut batch).unwrap();
            assert_eq!(dealt, of_rank.next(&mut draw(&tokens), &mut expected).unwrap());
            assert_eq!(batch, expected, "case {number}, turn {turn}");
            if dealt.is_none() {
                break;
            }
        }
    }
}

#[test]
fn each_sample_comes_once_and_no_batch_passes_the_budget() {
    let seed = 5;
    println!("seed {seed}");
    let mut random = Random(Key::new(seed), 0);
    for number in 0..2000 {
        let (budget, seed, epoch, tokens) = case(&mut random);
        let len = tokens.len() as u64;
        let mut deal = Deal::new(&budget, seed, Epoch(epoch), len, shard(0, 1, 0, Tail::Keep));
        let mut seen = vec![false; tokens.len()];
        let mut batches = 0;
        let mut batch = Vec::new();
        while deal.next(&mut draw(&tokens), &mut batch).unwrap().is_some() {
            for &at in &batch {
                assert!(!std::mem::replace(&mut seen[at as usize], true), "case {number}");
            }
            let cost = cost(&budget, &tokens, &batch);
            assert!(cost <= budget.tokens || batch.len() == 1, "case {number}: {batch:?}");
            assert!(batch.len() <= budget.max_samples.unwrap_or(u32::MAX) as usize);
            batch.clear();
            batches += 1;
        }
        assert!(seen.iter().all(|&seen| seen), "case {number}");
        let lengths = |range: Range<u64>, out: &mut Vec<u32>| {
            out.extend(&tokens[range.start as usize..range.end as usize]);
            Ok(())
        };
        let counts = count_batches(&budget, seed, Epoch(epoch), len, lengths).unwrap();
        assert_eq!(counts.iter().sum::<u32>(), batches, "case {number}");
        assert_eq!(counts.len() as u64, budget.num_windows(len));
    }
}

#[test]
fn a_place_within_a_batch_is_refused() {
    let budget = Arc::new(Budget { window: 10, ..Budget::new(6) });
    let tokens = vec![3; 20];
    for consumed in 0..20 {
        let mut deal: Deal<u64> =
            Deal::new(&budget, 1, Epoch(0), 20, shard(0, 1, consumed, Tail::Keep));
        let next = deal.next(&mut draw(&tokens), &mut Vec::new());
        match consumed % 10 % 2 {
            0 => assert!(next.unwrap().is_some()),
            _ => {
                let error = next.unwrap_err().to_string();
                assert!(error.contains("is within a batch"), "{error}");
            }
        }
    }
}

#[test]
fn equal_lengths_are_shuffled_and_lengths_do_not_come_sorted() {
    let budget = Budget { window: 1000, ..Budget::new(400) };
    let mut cutter = Cutter::default();
    let mut cut = Cut::default();
    cutter.cut(&budget, Budget::key(3, 0, 0), &[4; 1000], &mut cut);
    assert_eq!(cut.ends, (1..=10).map(|nth| nth * 100).collect::<Vec<u32>>());
    let neighbours = cut.order.windows(2).filter(|two| two[1] == two[0] + 1).count();
    assert!(neighbours < 20, "{neighbours} neighbours stay together");
    let lengths: Vec<u32> = (1..=1000).map(|at| at % 100 + 1).collect();
    cutter.cut(&budget, Budget::key(3, 0, 0), &lengths, &mut cut);
    let longest = |number: usize| cut.batch(number).iter().map(|&at| lengths[at as usize]).max();
    let each: Vec<_> = (0..cut.ends.len()).map(longest).collect();
    let rising = each.windows(2).filter(|two| two[1] >= two[0]).count();
    assert!(rising > each.len() / 3 && rising < each.len() * 2 / 3, "{rising} of {}", each.len());
}

#[test]
fn numbers_out_of_range_and_differences_are_named() {
    let budget = Budget::new(8192);
    budget.check().unwrap();
    let why = |budget: Budget| budget.check().unwrap_err().to_string();
    assert!(why(Budget::new(0)).contains("at least one token"));
    assert!(why(Budget { window: 0, ..budget.clone() }).contains("not 0"));
    assert!(why(Budget { window: MAX_WINDOW + 1, ..budget.clone() }).contains("4194305"));
    assert!(why(Budget { max_samples: Some(0), ..budget.clone() }).contains("one sample"));
    let no_bytes = Budget { lengths: LengthsOf::Bytes(0), ..budget.clone() };
    assert!(why(no_bytes).contains("one byte"));
    let differs = |asked: Budget| budget.difference(&asked).map(|it| it.to_string());
    assert_eq!(differs(budget.clone()), None);
    assert!(differs(Budget::new(4096)).unwrap().contains("8192 tokens, and 4096"));
    assert!(differs(Budget { window: 5, ..budget.clone() }).unwrap().contains("8192 positions"));
    let few = Budget { max_samples: Some(5), ..budget.clone() };
    assert!(differs(few).unwrap().contains("any number of samples, and at most 5"));
    assert!(differs(Budget { cost: Cost::Sum, ..budget.clone() }).unwrap().contains("sum"));
    let of_column = Budget { lengths: LengthsOf::Column("n".into()), ..budget.clone() };
    assert!(differs(of_column.clone()).unwrap().contains("lengths"));
    let json = serde_json::to_string(&of_column).unwrap();
    assert_eq!(json, r#"{"tokens":8192,"window":8192,"cost":"padded","lengths":{"column":"n"}}"#);
    assert_eq!(serde_json::from_str::<Budget>(&json).unwrap(), of_column);
}

#[test]
fn rows_out_of_range_and_differences_of_rows_are_named() {
    let rows = RowSpec { pack: Pack::BestFit, separated: true, cuts: true };
    let budget = Budget { cost: Cost::Sum, rows: Some(rows), ..Budget::new(513) };
    budget.check().unwrap();
    let with_tokens = |tokens| Budget { tokens, ..budget.clone() };
    with_tokens(2).check().unwrap();
    with_tokens(1 << 24).check().unwrap();
    let why = |budget: Budget| budget.check().unwrap_err().to_string();
    assert!(why(with_tokens(0)).contains("not 0"));
    assert!(why(with_tokens(1)).contains("1 to 16777215 tokens, not 0"));
    assert!(why(with_tokens((1 << 24) + 1)).contains("not 16777216"));
    assert!(why(Budget { window: 0, ..budget.clone() }).contains("not 0"));
    assert!(why(Budget { max_samples: Some(5), ..budget.clone() }).contains("`max_samples`"));
    assert!(why(Budget { cost: Cost::Padded, ..budget.clone() }).contains("not `padded`"));
    let differs = |asked: Budget| budget.difference(&asked).unwrap();
    assert_eq!(budget.difference(&budget), None);
    assert!(differs(with_tokens(1025)).contains("rows have a length of 512, and 1024 was asked"));
    let of = |rows| differs(Budget { rows: Some(rows), ..budget.clone() });
    assert!(of(RowSpec { pack: Pack::None, ..rows }).contains("by `best_fit`, and `none` was"));
    assert!(of(RowSpec { separated: false, ..rows }).contains("end with one separator, and no"));
    assert!(of(RowSpec { cuts: false, ..rows }).contains("cut, and that they are refused was"));
    let samples = Budget { rows: None, ..budget.clone() };
    assert!(differs(samples.clone()).contains("rows of tokens, and samples were asked"));
    assert!(samples.difference(&budget).unwrap().contains("samples, and rows of tokens were"));
    assert!(differs(Budget { window: 5, ..budget.clone() }).contains("8192 positions"));
    let in_order = |pack, cuts, window| {
        let rows = RowSpec { pack, cuts, ..rows };
        Budget { window, rows: Some(rows), ..budget.clone() }
    };
    let concat = in_order(Pack::Concat, true, 8192);
    assert_eq!(concat.difference(&in_order(Pack::Concat, false, 5)), None);
    let each = in_order(Pack::None, true, 8192);
    assert!(each.difference(&in_order(Pack::None, true, 5)).unwrap().contains("8192 positions"));
    assert!(each.difference(&in_order(Pack::None, false, 8192)).is_some());
}

#[test]
fn phases_of_rows_ascend_and_begin_with_the_first_row_at_or_behind_their_tokens() {
    let rows = RowSpec { pack: Pack::Concat, separated: true, cuts: true };
    let phase = |&(from, seq_len): &(u64, u32)| RowPhase { from, seq_len };
    let with = |phases: &[(u64, u32)]| {
        let phases = phases.iter().map(phase).collect();
        Budget { cost: Cost::Sum, rows: Some(rows), phases, ..Budget::new(11) }
    };
    let budget = with(&[(25, 7), (26, 5), (38, 2), (u64::MAX, 9)]);
    budget.check().unwrap();
    // Rows of 10 until 30, none of 7, 2 of 5 until 40, and the rest of 2.
    assert_eq!(budget.concat_starts()[..4], [(0, 0), (3, 30), (3, 30), (5, 40)]);
    let begun: Vec<usize> = (0..8).map(|consumed| budget.begun(consumed, None).len()).collect();
    assert_eq!(begun, [0, 0, 0, 0, 2, 2, 3, 3]);
    assert_eq!((budget.most_tokens(&[2, 9, 1]), budget.least_tokens()), (72, 3));
    let why = |budget: Budget| budget.check().unwrap_err().to_string();
    assert!(why(with(&[(25, 7), (25, 8)])).contains("at 25 tokens, not after the one before"));
    assert!(why(with(&[(0, 7)])).contains("after at least one token"));
    assert!(why(with(&[(5, 0)])).contains("not 0") && why(with(&[(5, 1 << 24)])).contains("not"));
    assert!(why(Budget { rows: None, ..budget.clone() }).contains("only rows of tokens"));

    let windows = RowSpec { pack: Pack::BestFit, ..rows };
    let budget = Budget { rows: Some(windows), ..budget };
    let place = |tokens| RowPlace { position: 0, tokens, rows: 0, check: 0 };
    let begun = |tokens| budget.begun(9, Some(&place(tokens))).len();
    assert_eq!((begun(24), begun(25), begun(1000)), (0, 1, 3));
    assert_eq!((budget.begun(0, None).len(), budget.begun(9, None).len()), (0, 4));
}
