//! Reading by weights: each global batch has what the arithmetic says, whatever the world size, the batch size and the
//! point of a resume; bytes are those of the samples; views are weighed as data sets are; what cannot be drawn by is
//! refused before the first batch. And the same of batches by a budget of tokens.

use std::fs;
use std::sync::Arc;

use crate::support::random::Random;
use dlfs::address::Address;
use dlfs::dataset::{Dataset, Options, Sampler};
use dlfs::import::{ColumnsFrom, ImportOptions, Onto, import};
use dlfs::order::budget::{Budget, Cost, Deal, LengthsOf, TooLong};
use dlfs::order::weighted::{Draws, LabelWeights, Weights};
use dlfs::order::{EpochOrder, MAX_EPOCHS, OrderKind, OrderSpec, Shard, Sharding, State, Tail};
use dlfs::prefetch::{Batching, LoaderOptions};
use dlfs::qpair::ConnectOptions;
use dlfs::units::{Epoch, SampleId};
use dlfs::view::View;

struct Set {
    _temp: tempfile::TempDir,
    samples: Vec<Vec<u8>>,
    dataset: Dataset,
}

/// 300 samples of three classes, of up to 3,000 bytes.
fn set(random: &mut Random) -> Set {
    let temp = tempfile::tempdir().unwrap();
    let mut samples = Vec::new();
    let mut table = "file,words,minus,gaps,real\n".to_owned();
    for (class, len) in [("a", 200), ("b", 80), ("c", 20)] {
        let folder = temp.path().join("files").join(class);
        fs::create_dir_all(&folder).unwrap();
        for number in 0..len {
            let mut bytes = vec![0; random.below(3000) as usize];
            random.fill(&mut bytes);
            fs::write(folder.join(format!("{number:03}")), &bytes).unwrap();
            let minus = if number == 7 { -3 } else { 1 };
            let gap = if number == 9 { "" } else { "1" };
            table += &format!("{class}/{number:03},{},{minus},{gap},0.5\n", bytes.len() / 7);
            samples.push(bytes);
        }
    }
    let address: Address = temp.path().join("train.dlfs").to_str().unwrap().parse().unwrap();
    let path = temp.path().join("table.csv");
    fs::write(&path, table).unwrap();
    let options = ImportOptions {
        chunk_size_bytes: 64 << 10,
        onto: Onto::Empty,
        columns: Some(ColumnsFrom { path, key: None, only: Vec::new() }),
        ..ImportOptions::default()
    };
    let connect = ConnectOptions::default();
    let files = temp.path().join("files");
    import(&[files], std::slice::from_ref(&address), &options, &connect, &mut ()).unwrap();
    let dataset = Dataset::open(&[address], &Options::default(), &mut ()).unwrap();
    Set { _temp: temp, samples, dataset }
}

fn options(weights: &Arc<Weights>, batch_size: usize, epochs: u64) -> LoaderOptions {
    let order = OrderSpec { kind: OrderKind::Global, seed: 7 };
    LoaderOptions {
        window_bytes: 4 << 20,
        ..LoaderOptions::new(order, batch_size, epochs).weighted(Arc::clone(weights))
    }
}

/// The ids of all epochs, by position.
fn model(dataset: &Dataset, weights: &Arc<Weights>, epochs: u64) -> Vec<u64> {
    let directory = &**dataset.directory();
    let mut all = Vec::new();
    for epoch in 0..epochs {
        let spec = weights.order(7);
        let mut order = EpochOrder::weighted(&spec, Epoch(epoch), directory, weights).unwrap();
        order.ids(directory, 0..order.len(), &mut all);
    }
    all.into_iter().map(|id| id.0).collect()
}

fn labels(dataset: &Dataset) -> Vec<Option<i64>> {
    let directory = dataset.directory();
    (0..dataset.len()).map(|rank| directory.label(directory.id_of_live(rank))).collect()
}

fn kinds(dataset: &Dataset, random: &mut Random) -> Vec<Arc<Weights>> {
    let len = dataset.len();
    let each: Vec<f64> = (0..len).map(|_| random.below(4) as f64).collect();
    let once = Draws { replacement: false, epoch_size: None };
    let long = Draws { replacement: true, epoch_size: Some(len * 2 + 5) };
    let by_label = |draws| {
        let weights = Weights::of_labels(len, labels(dataset), &LabelWeights::Balanced, draws);
        weights.unwrap()
    };
    vec![
        Arc::new(Weights::of_samples(len, &each, Draws::default()).unwrap()),
        Arc::new(Weights::of_samples(len, &each, once).unwrap()),
        Arc::new(by_label(long)),
        Arc::new(by_label(once)),
    ]
}

#[test]
fn ranks_read_what_the_arithmetic_says_and_go_on_anywhere_with_others() {
    let seed = 41;
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let set = set(&mut random);
    let whole = set.dataset.clone();
    let view = View::of_ids(whole.directory(), (0..300).filter(|id| id % 3 > 0).map(SampleId));
    let view = whole.viewed(&view.unwrap()).unwrap();
    for dataset in [whole, view] {
        for weights in kinds(&dataset, &mut random) {
            let epochs = 2;
            let model = model(&dataset, &weights, 2);
            let len = model.len() as u64 / epochs;
            for _ in 0..4 {
                let mut state: Option<State> = None;
                let mut consumed = 0; // positions of the run
                while consumed < model.len() as u64 {
                    let world_size = 1 + random.below(4);
                    let batch = 1 + random.below(90);
                    let steps = 1 + random.below(8);
                    let asked = |rank: u64| LoaderOptions {
                        rank: rank as u32,
                        world_size: world_size as u32,
                        resume: state.clone(),
                        batching: batch.is_multiple_of(2).then_some(Batching::Sample),
                        ..options(&weights, batch as usize, epochs)
                    };
                    let in_epoch = len - consumed % len;
                    let steps = steps.min(in_epoch.div_ceil(batch * world_size));
                    let mut last = None;
                    for rank in 0..world_size {
                        let loader = dataset.loader(asked(rank)).unwrap();
                        let mut sampler = Sampler::new(&dataset, asked(rank)).unwrap();
                        let mut ids = Vec::new();
                        for step in 0..steps {
                            let from = step * batch * world_size;
                            let own = (from..(from + batch * world_size).min(in_epoch))
                                .skip(rank as usize)
                                .step_by(world_size as usize);
                            let expected: Vec<u64> =
                                own.map(|at| model[(consumed + at) as usize]).collect();
                            if expected.is_empty() {
                                continue; // the last step has nothing for this rank
                            }
                            let batch = loader.next(&mut ()).unwrap().unwrap();
                            sampler.next(&mut ids).unwrap().unwrap();
                            let drawn: Vec<u64> = ids.iter().map(|id| id.0).collect();
                            assert_eq!(drawn, expected, "step {step} of rank {rank}");
                            for (at, &id) in expected.iter().enumerate() {
                                assert_eq!(batch.id(at).0, id);
                                assert_eq!(batch.bytes(at), &set.samples[id as usize][..]);
                            }
                            assert_eq!(batch.len(), expected.len());
                        }
                        assert_eq!(loader.state(), sampler.state());
                        if rank == 0 {
                            last = Some(loader.state());
                        }
                    }
                    consumed += (steps * batch * world_size).min(in_epoch);
                    let json = last.unwrap().to_json();
                    let next = State::from_json(&json).unwrap();
                    assert_eq!((next.epoch.0, next.consumed), (consumed / len, consumed % len));
                    state = Some(next);
                }
            }
        }
    }
}

#[test]
fn counts_of_batches_are_those_of_the_epoch_drawn() {
    let set = set(&mut Random::new(42));
    let draws = Draws { replacement: true, epoch_size: Some(1001) };
    let weights = Arc::new(Weights::of_samples(300, &[1.0; 300], draws).unwrap());
    for (tail, drop_short, batches) in
        [(Tail::Keep, false, [6, 5]), (Tail::Pad, false, [6, 6]), (Tail::DropLast, true, [5, 5])]
    {
        for rank in 0..2 {
            let asked = options(&weights, 100, 1);
            let world_size = 2;
            let asked = LoaderOptions { rank, world_size, tail, drop_short, ..asked };
            let loader = set.dataset.loader(asked).unwrap();
            assert_eq!(loader.batches_per_epoch(), batches[rank as usize]);
            let mut read = 0;
            while loader.next(&mut ()).unwrap().is_some() {
                read += 1;
            }
            assert_eq!(read, batches[rank as usize], "{tail:?}");
        }
    }
}

#[test]
fn what_cannot_be_drawn_by_is_refused_before_the_first_batch() {
    let set = set(&mut Random::new(43));
    let weights = |each: &[f64]| {
        let len = each.len() as u64;
        Arc::new(Weights::of_samples(len, each, Draws::default()).unwrap())
    };
    let refused = |options: LoaderOptions| set.dataset.loader(options).unwrap_err().report();
    let good = options(&weights(&[1.0; 300]), 8, 1);
    assert!(refused(options(&weights(&[1.0; 299]), 8, 1)).contains("299 weights for 300 samples"));
    let without = LoaderOptions { weights: None, ..good.clone() };
    assert!(refused(without).contains("draws by weights, and none are given"));
    let global = OrderSpec { kind: OrderKind::Global, seed: 7 };
    let unused = LoaderOptions { order: global, ..good.clone() };
    assert!(refused(unused).contains("the order is not weighted"));
    let chunks = LoaderOptions { batching: Some(Batching::Chunk), ..good.clone() };
    assert!(refused(chunks).contains("whole chunks"));
    let aligned = LoaderOptions { sharding: Sharding::Aligned, world_size: 2, ..good.clone() };
    assert!(refused(aligned).contains("whole chunks"));
    let state = set.dataset.loader(good.clone()).unwrap().state();
    let mut other = [1.0; 300];
    other[17] = 1.5;
    let other = LoaderOptions { resume: Some(state), ..options(&weights(&other), 8, 1) };
    assert!(refused(other.clone()).contains("the state draws by weights"));
    let loader = set.dataset.loader(LoaderOptions { resume: None, ..other }).unwrap();
    let error = loader.set_state(&set.dataset.loader(good).unwrap().state()).unwrap_err();
    assert!(error.report().contains("number for number"), "{}", error.report());
}

fn by_budget(kind: OrderKind, budget: &Budget, epochs: u64) -> LoaderOptions {
    let order = OrderSpec { kind, seed: 7 };
    LoaderOptions {
        window_bytes: 4 << 20,
        ..LoaderOptions::new(order, 1, epochs).by_budget(budget.clone())
    }
}

/// The batches of an epoch, by their ids: each sample's tokens as `tokens` says.
fn batches_of(
    dataset: &Dataset,
    options: &LoaderOptions,
    epoch: u64,
    tokens: &dyn Fn(u64) -> u32,
) -> Vec<Vec<u64>> {
    let directory = &**dataset.directory();
    let spec = options.order.started(1);
    let mut order = match &options.weights {
        Some(weights) => EpochOrder::weighted(&spec, Epoch(epoch), directory, weights).unwrap(),
        None => EpochOrder::new(&spec, Epoch(epoch), directory).unwrap(),
    };
    let budget = options.budget.as_ref().unwrap();
    let len = order.len();
    let shard = Shard::new(0, 1, Tail::Keep).unwrap();
    let mut deal = Deal::new(budget, spec.seed, Epoch(epoch), len, shard);
    let mut draw =
        |range: std::ops::Range<u64>, ids: &mut Vec<SampleId>, lengths: &mut Vec<u32>| {
            let start = ids.len();
            order.ids(directory, range, ids);
            lengths.extend(ids[start..].iter().map(|id| tokens(id.0)));
            Ok(())
        };
    let mut batches = Vec::new();
    let mut batch = Vec::new();
    while deal.next(&mut draw, &mut batch).unwrap().is_some() {
        batches.push(batch.drain(..).map(|id| id.0).collect());
    }
    batches
}

#[test]
fn batches_by_a_budget_are_those_of_the_order_and_go_on_anywhere_with_other_ranks() {
    let seed = 44;
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let set = set(&mut random);
    let whole = set.dataset.clone();
    let view = View::of_ids(whole.directory(), (0..300).filter(|id| id % 3 > 0).map(SampleId));
    let view = whole.viewed(&view.unwrap()).unwrap();
    let weights =
        Weights::of_labels(300, labels(&whole), &LabelWeights::Balanced, Draws::default());
    let weights = Arc::new(weights.unwrap());
    let bytes = Budget { window: 64, ..Budget::new(20_000) };
    let words = Budget {
        window: 90,
        max_samples: Some(11),
        cost: Cost::Sum,
        lengths: LengthsOf::Column("words".into()),
        ..Budget::new(3000)
    };
    let len_of = |id: u64| set.samples[id as usize].len() as u32;
    let grouped = OrderKind::Grouped { lanes: 2, group: 2 };
    let by_slot = OrderKind::Sequential { by: dlfs::order::SequentialBy::Slot };
    for (dataset, kind, budget) in [
        (&whole, OrderKind::Global, &bytes),
        (&whole, grouped, &bytes),
        (&whole, grouped, &words),
        (&whole, by_slot, &words),
        (&view, grouped, &bytes),
        (&view, OrderKind::Global, &words),
        (&whole, weights.kind(), &bytes),
    ] {
        let tokens = |id: u64| match budget.lengths {
            LengthsOf::Bytes(_) => len_of(id).max(1),
            LengthsOf::Column(_) => (len_of(id) / 7).max(1),
        };
        let mut asked = by_budget(kind, budget, 2);
        if kind == weights.kind() {
            asked = asked.weighted(Arc::clone(&weights));
        }
        for epoch in 0..2 {
            let model = batches_of(dataset, &asked, epoch, &tokens);
            let samples: u64 = model.iter().map(|batch| batch.len() as u64).sum();
            assert_eq!(samples, asked.order.kind.epoch_len(dataset.len()));
            let mut at = 0;
            let mut state: Option<State> = None;
            while at < model.len() {
                let world_size = 1 + random.below(3) as usize;
                let rounds = 1 + random.below(6) as usize;
                let left = &model[at..];
                let rounds = rounds.min(left.len().div_ceil(world_size));
                let mut last = None;
                for rank in 0..world_size {
                    let asked = LoaderOptions {
                        rank: rank as u32,
                        world_size: world_size as u32,
                        resume: state.clone(),
                        batching: random.below(3).eq(&0).then_some(Batching::Sample),
                        epochs: epoch..2,
                        ..asked.clone()
                    };
                    let loader = dataset.loader(asked.clone()).unwrap();
                    let mut sampler = Sampler::new(dataset, asked).unwrap();
                    let own = left.iter().skip(rank).step_by(world_size);
                    assert_eq!(loader.batches_left(), own.len() as u64);
                    assert_eq!(sampler.batches_left(), own.len() as u64);
                    let all = if state.is_none() { own.len() as u64 } else { 0 };
                    assert_eq!(if all > 0 { loader.batches_per_epoch() } else { 0 }, all);
                    for expected in own.take(rounds) {
                        let batch = loader.next(&mut ()).unwrap().unwrap();
                        let mut ids = Vec::new();
                        sampler.next(&mut ids).unwrap().unwrap();
                        assert_eq!(&ids.iter().map(|id| id.0).collect::<Vec<_>>(), expected);
                        assert_eq!(&batch.ids().map(|id| id.0).collect::<Vec<_>>(), expected);
                        for (place, &id) in expected.iter().enumerate() {
                            assert_eq!(batch.bytes(place), &set.samples[id as usize][..]);
                        }
                    }
                    assert_eq!(loader.state(), sampler.state());
                    if rank == 0 {
                        last = Some(loader.state());
                    }
                }
                at += (rounds * world_size).min(left.len());
                let next = State::from_json(&last.unwrap().to_json()).unwrap();
                let consumed: usize = model[..at].iter().map(Vec::len).sum();
                if at == model.len() {
                    assert_eq!((next.epoch.0, next.consumed), (epoch + 1, 0))
                } else {
                    assert_eq!((next.epoch.0, next.consumed), (epoch, consumed as u64))
                }
                state = Some(next);
            }
        }
    }
}

#[test]
fn budgets_that_cannot_be_kept_are_refused_before_the_first_batch() {
    let set = set(&mut Random::new(45));
    let longest = set.samples.iter().map(Vec::len).max().unwrap() as u64;
    let budget = Budget { window: 64, ..Budget::new(longest) };
    let refused = |options: LoaderOptions| set.dataset.loader(options).unwrap_err().report();
    let with = |budget: &Budget| by_budget(OrderKind::Global, budget, 1);
    set.dataset.loader(with(&budget)).unwrap();
    let short = Budget { tokens: longest - 1, ..budget.clone() };
    let text = refused(with(&short));
    let id = set.samples.iter().position(|sample| sample.len() as u64 == longest).unwrap();
    assert!(text.contains(&format!("sample {id} has {longest} tokens")), "{text}");
    assert!(text.contains("too_long"), "{text}");
    let alone = LoaderOptions { too_long: TooLong::Alone, ..with(&short) };
    let loader = set.dataset.loader(alone).unwrap();
    let mut alone = 0;
    while let Some(batch) = loader.next(&mut ()).unwrap() {
        alone += u32::from(batch.len() == 1 && batch.bytes(0).len() as u64 == longest);
    }
    assert_eq!(alone, 1, "the seed makes one sample the longest");
    assert!(refused(with(&Budget { tokens: 0, ..budget.clone() })).contains("one token"));
    assert!(refused(with(&Budget { window: 0, ..budget.clone() })).contains("not 0"));
    let column = |name: &str| {
        let lengths = LengthsOf::Column(name.into());
        refused(with(&Budget { lengths, ..budget.clone() }))
    };
    let text = column("nothing");
    assert!(text.contains("no column \"nothing\"") && text.contains("words, minus"), "{text}");
    assert!(column("minus").contains("of sample 7 is -3"), "{}", column("minus"));
    assert!(column("gaps").contains("sample 9 has no value in \"gaps\""), "{}", column("gaps"));
    assert!(column("real").contains("holds no ints"), "{}", column("real"));
    let shared = LoaderOptions { sharding: Sharding::Local, ..with(&budget) };
    assert!(set.dataset.loader(shared).is_err());
    let grouped = OrderKind::Grouped { lanes: 2, group: 2 };
    let aligned = LoaderOptions { sharding: Sharding::Aligned, ..by_budget(grouped, &budget, 1) };
    assert!(refused(aligned).contains("leave the shares out"));
    let local = by_budget(OrderKind::Local { world_size: 1 }, &budget, 1);
    assert!(refused(local).contains("samples of its own"));
    // A state of batches by number, of another budget, and one within a batch.
    let loader = set.dataset.loader(with(&budget)).unwrap();
    let good = loader.state();
    let plain = LoaderOptions { budget: None, batch_size: 8, ..with(&budget) };
    let of_plain = set.dataset.loader(plain.clone()).unwrap().state();
    let resume = |options: LoaderOptions, state: &State| {
        refused(LoaderOptions { resume: Some(state.clone()), ..options })
    };
    assert!(resume(with(&budget), &of_plain).contains("have a number of samples"));
    assert!(resume(plain, &good).contains("none was asked for"));
    let wider = Budget { window: 65, ..budget.clone() };
    assert!(resume(with(&wider), &good).contains("64 positions"));
    let first = loader.next(&mut ()).unwrap().unwrap().len() as u64;
    let len_of = |id: u64| set.samples[id as usize].len() as u32;
    let mut end = 0;
    let ends: Vec<u64> = batches_of(&set.dataset, &with(&budget), 0, &len_of)
        .iter()
        .map(|batch| {
            end += batch.len() as u64;
            end
        })
        .collect();
    let within = (1..64).find(|at| !ends.contains(at)).unwrap();
    let within = State { consumed: within, ..good };
    let text = resume(with(&budget), &within);
    assert!(text.contains("within a batch"), "{text}");
    assert!(loader.set_state(&within).unwrap_err().report().contains("within a batch"));
    assert_eq!(loader.state().consumed, first, "the run stays where it was");
}

#[test]
fn tails_of_rounds_are_kept_dropped_or_filled_up() {
    let set = set(&mut Random::new(46));
    let budget = Budget { window: 64, ..Budget::new(9000) };
    let count = |rank: u32, world_size: u32, tail: Tail| {
        let asked = by_budget(OrderKind::Global, &budget, 1);
        let asked = LoaderOptions { rank, world_size, tail, ..asked };
        let loader = set.dataset.loader(asked).unwrap();
        let expected = loader.batches_per_epoch();
        let mut batches = Vec::new();
        while let Some(batch) = loader.next(&mut ()).unwrap() {
            batches.push(batch.ids().map(|id| id.0).collect::<Vec<u64>>());
            assert_eq!(batch.ends_epoch(), batches.len() as u64 == expected);
        }
        assert_eq!(batches.len() as u64, expected);
        batches
    };
    let all = count(0, 1, Tail::Keep);
    let ranks = 4;
    let each = |tail| (0..ranks).map(|rank| count(rank, ranks, tail)).collect::<Vec<_>>();
    assert!(all.len() % 4 != 0, "the seed leaves a tail: {}", all.len());
    for (rank, batches) in each(Tail::Keep).iter().enumerate() {
        assert_eq!(batches, &all.iter().skip(rank).step_by(4).cloned().collect::<Vec<_>>());
    }
    for batches in each(Tail::DropLast) {
        assert_eq!(batches.len(), all.len() / 4);
    }
    let padded = each(Tail::Pad);
    assert!(padded.iter().all(|batches| batches.len() == all.len().div_ceil(4)));
    assert_eq!(padded[3].last(), all.get(3 - all.len() % 4), "the first batches come again");
}

#[test]
fn a_rank_without_a_batch_in_an_epoch_has_those_of_later_ones() {
    let set = set(&mut Random::new(47));
    let budget = Budget { window: 64, ..Budget::new(30_000) };
    let len_of = |id: u64| (set.samples[id as usize].len() as u32).max(1);
    let epochs_of = |asked: &LoaderOptions| -> Vec<Vec<Vec<u64>>> {
        (0..6).map(|epoch| batches_of(&set.dataset, asked, epoch, &len_of)).collect()
    };
    let order = |seed| OrderSpec { kind: OrderKind::Global, seed };
    let most_of = |epochs: &[Vec<Vec<u64>>]| epochs.iter().map(Vec::len).max().unwrap();
    let with =
        |seed| LoaderOptions { order: order(seed), ..by_budget(OrderKind::Global, &budget, 6) };
    let begins_short = |asked: &LoaderOptions| {
        let epochs = epochs_of(asked);
        epochs[0].len() < most_of(&epochs)
    };
    let asked = (0..100).map(with).find(begins_short).expect("a seed with a short first epoch");
    let epochs = epochs_of(&asked);
    let most = most_of(&epochs);
    let right: Vec<&Vec<u64>> = epochs.iter().filter_map(|batches| batches.get(most - 1)).collect();
    let rank = most as u32 - 1;
    let world_size = most as u32;
    let loader = set.dataset.loader(LoaderOptions { rank, world_size, ..asked }).unwrap();
    let mut read = Vec::new();
    while let Some(batch) = loader.next(&mut ()).unwrap() {
        read.push(batch.ids().map(|id| id.0).collect::<Vec<u64>>());
    }
    assert_eq!(read.iter().collect::<Vec<_>>(), right);
    // One that no epoch has a batch for does not look for ever.
    let endless = by_budget(OrderKind::Global, &budget, MAX_EPOCHS - 1);
    let loader = LoaderOptions { rank: 999, world_size: 1000, ..endless };
    assert!(set.dataset.loader(loader).unwrap().next(&mut ()).unwrap().is_none());
}
