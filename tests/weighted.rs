//! Reading by weights: each global batch has what the arithmetic says, whatever the world size, the batch size and the
//! point of a resume; bytes are those of the samples; views are weighed as data sets are; what cannot be drawn by is
//! refused before the first batch.

mod support;

use std::fs;
use std::sync::Arc;

use dlfs::dataset::{Dataset, Options, Sampler};
use dlfs::import::{ImportOptions, Onto, import};
use dlfs::nvme::Address;
use dlfs::order::weighted::{Draws, LabelWeights, Weights};
use dlfs::order::{EpochOrder, OrderKind, OrderSpec, Positions, Sharding, State, Tail};
use dlfs::prefetch::{Batching, LoaderOptions};
use dlfs::qpair::ConnectOptions;
use dlfs::units::{Epoch, SampleId};
use dlfs::view::View;
use support::random::Random;

struct Set {
    _temp: tempfile::TempDir,
    samples: Vec<Vec<u8>>,
    dataset: Dataset,
}

/// 300 samples of three classes, of up to 3,000 bytes.
fn set(random: &mut Random) -> Set {
    let temp = tempfile::tempdir().unwrap();
    let mut samples = Vec::new();
    for (class, len) in [("a", 200), ("b", 80), ("c", 20)] {
        let folder = temp.path().join("files").join(class);
        fs::create_dir_all(&folder).unwrap();
        for number in 0..len {
            let mut bytes = vec![0; random.below(3000) as usize];
            random.fill(&mut bytes);
            fs::write(folder.join(format!("{number:03}")), &bytes).unwrap();
            samples.push(bytes);
        }
    }
    let address: Address = temp.path().join("train.dlfs").to_str().unwrap().parse().unwrap();
    let options =
        ImportOptions { chunk_size_bytes: 64 << 10, onto: Onto::Empty, ..ImportOptions::default() };
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
        order.ids(directory, Positions::from(0..order.len()), &mut all);
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
            let (epochs, model) = (2, model(&dataset, &weights, 2));
            let len = model.len() as u64 / epochs;
            for _ in 0..4 {
                let mut state: Option<State> = None;
                let mut consumed = 0; // positions of the run
                while consumed < model.len() as u64 {
                    let (world_size, batch) = (1 + random.below(4), 1 + random.below(90));
                    let steps = 1 + random.below(8);
                    let asked = |rank: u64| LoaderOptions {
                        rank: rank as u32,
                        world_size: world_size as u32,
                        resume: state.clone(),
                        batching: (batch % 2 == 0).then_some(Batching::Sample),
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
            let (asked, world_size) = (options(&weights, 100, 1), 2);
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
