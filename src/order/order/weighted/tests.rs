use std::collections::BTreeSet;

use super::*;
use crate::order::{EpochOrder, Population, Positions, State};
use dlfs_base::units::{Epoch, Generation, SampleId};

/// A number of samples whose ids differ from their ranks.
struct Samples(u64);

impl Population for Samples {
    fn num_live(&self) -> u64 {
        self.0
    }

    fn num_chunks(&self) -> u32 {
        1
    }

    fn live_in_chunk(&self, _: u32) -> u32 {
        self.0 as u32
    }

    fn id_of_live(&self, rank: u64) -> SampleId {
        SampleId(2 * rank + 1)
    }

    fn id_in_chunk(&self, _: u32, nth: u32) -> SampleId {
        self.id_of_live(nth.into())
    }

    fn chunk_of(&self, id: SampleId) -> Option<u32> {
        (id.0 / 2 < self.0).then_some(0)
    }
}

fn order(weights: &Arc<Weights>, seed: u64, epoch: u64) -> EpochOrder {
    let samples = Samples(weights.num_samples());
    EpochOrder::weighted(&weights.order(seed), Epoch(epoch), &samples, weights).unwrap()
}

/// The ranks of an epoch.
fn drawn(weights: &Arc<Weights>, seed: u64, epoch: u64) -> Vec<usize> {
    let mut order = order(weights, seed, epoch);
    let mut ids = Vec::new();
    let positions = 0..order.len();
    order.ids(&Samples(weights.num_samples()), positions, &mut ids);
    ids.into_iter().map(|id| (id.0 / 2) as usize).collect()
}

fn with(epoch_size: u64) -> Draws {
    Draws { replacement: true, epoch_size: Some(epoch_size) }
}

fn once(epoch_size: Option<u64>) -> Draws {
    Draws { replacement: false, epoch_size }
}

fn of_samples(weights: &[f64], draws: Draws) -> Arc<Weights> {
    Arc::new(Weights::of_samples(weights.len() as u64, weights, draws).unwrap())
}

fn by_label(labels: &[i64], weights: &LabelWeights, draws: Draws) -> Arc<Weights> {
    let labels = labels.iter().map(|&label| Some(label));
    Arc::new(Weights::of_labels(labels.len() as u64, labels, weights, draws).unwrap())
}

/// The largest deviation of the counts of `drawn` from these probabilities, in standard deviations.
fn deviation(drawn: &[usize], probabilities: &[f64]) -> f64 {
    let mut counts = vec![0_u64; probabilities.len()];
    drawn.iter().for_each(|&rank| counts[rank] += 1);
    let total = drawn.len() as f64;
    let each = counts.iter().zip(probabilities).map(|(&count, p)| match p * (1.0 - p) {
        0.0 => (count as f64 - p * total).abs() * 1e9, // it is certain
        variance => (count as f64 - p * total).abs() / (variance * total).sqrt(),
    });
    each.fold(0.0, f64::max)
}

fn shares(weights: &[f64]) -> Vec<f64> {
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / sum).collect()
}

#[test]
fn samples_are_drawn_in_proportion_to_their_weights() {
    for (seed, weights) in [
        (1, vec![1.0]),
        (2, vec![1.0, 0.0, 3.0]),
        (3, vec![0.0, 0.0, 1e-300]),
        (4, vec![1e300, 1e300, 5e299, 0.0]),
        (5, (0..1000).map(|i| f64::from(i % 7)).collect()),
        (6, (1..100).map(|i| 1.0 / f64::from(i * i)).collect()),
        (7, vec![0.1; 10]),
    ] {
        let drawn = drawn(&of_samples(&weights, with(200_000)), seed, 0);
        // The largest of 1,000 deviates by 4.5 once in 150; the seeds are fixed.
        let deviation = deviation(&drawn, &shares(&weights));
        let first = weights[0];
        assert!(deviation < 5.0, "seed {seed}: {deviation} of weights from {first}");
    }
}

#[test]
fn a_sample_of_weight_zero_is_never_drawn_whatever_rounding_leaves() {
    for n in [2_usize, 3, 10, 49, 1000] {
        for step in [2, 3, 7] {
            let weight = |i: usize| if i.is_multiple_of(step) { 0.0 } else { 0.1 + i as f64 / 3.0 };
            let weights: Vec<f64> = (0..n).map(weight).collect();
            for draws in [with(20_000), once(None)] {
                let drawn = drawn(&of_samples(&weights, draws), n as u64, 3);
                assert!(drawn.iter().all(|&rank| weights[rank] > 0.0), "{n} samples, {step}");
            }
        }
    }
}

#[test]
fn balanced_labels_have_equal_shares_and_so_have_the_samples_of_each() {
    let labels: Vec<i64> = (0..1100).map(|i| if i < 1000 { -5 } else { i % 2 }).collect();
    let weights = by_label(&labels, &LabelWeights::Balanced, with(300_000));
    let share = |label: &i64| if *label == -5 { 1.0 / 3000.0 } else { 1.0 / 150.0 };
    let probabilities: Vec<f64> = labels.iter().map(share).collect();
    assert!(deviation(&drawn(&weights, 11, 2), &probabilities) < 5.0);
    assert!(weights.memory_bytes() < 1100 * 4 + 3 * 20, "4 bytes a sample, some a class");
}

#[test]
fn the_weight_of_a_label_is_that_of_each_of_its_samples() {
    let labels: Vec<i64> = (0..300).map(|i| i % 4 % 3).collect();
    let each = LabelWeights::Each([(0, 1.0), (1, 0.0), (2, 4.5)].into());
    let by_sample: Vec<f64> = labels.iter().map(|label| [1.0, 0.0, 4.5][*label as usize]).collect();
    let weights = by_label(&labels, &each, with(300_000));
    assert!(deviation(&drawn(&weights, 12, 0), &shares(&by_sample)) < 5.0);
    let weights = by_label(&labels, &each, once(None));
    let drawn = drawn(&weights, 12, 0);
    assert_eq!(drawn.len(), labels.iter().filter(|label| **label != 1).count());
    assert!(drawn.iter().all(|&rank| labels[rank] != 1));
}

#[test]
fn without_replacement_the_next_sample_is_drawn_by_the_weights_of_those_left() {
    let weights = [4.0, 1.0, 0.0, 2.0, 3.0];
    let order = of_samples(&weights, once(None));
    let epochs: Vec<Vec<usize>> = (0..60_000).map(|epoch| drawn(&order, 13, epoch)).collect();
    for drawn in &epochs {
        let set: BTreeSet<usize> = drawn.iter().copied().collect();
        assert_eq!((drawn.len(), set), (4, [0, 1, 3, 4].into()));
    }
    // By brute force: the probability of each sequence of the first two samples.
    let mut probabilities = vec![0.0; 25];
    for first in 0..5 {
        for second in (0..5).filter(|&second| second != first) {
            let sum = 10.0;
            let left = 10.0 - weights[first];
            probabilities[first * 5 + second] = weights[first] / sum * weights[second] / left;
        }
    }
    let pairs: Vec<usize> = epochs.iter().map(|drawn| drawn[0] * 5 + drawn[1]).collect();
    let deviation = deviation(&pairs, &probabilities);
    assert!(deviation < 5.0, "{deviation}");
}

#[test]
fn a_shorter_epoch_without_replacement_is_the_beginning_of_a_whole_one() {
    let weights: Vec<f64> = (0..500).map(|i| f64::from(i % 9)).collect();
    let whole = drawn(&of_samples(&weights, once(None)), 3, 1);
    for size in [1, 2, 100, 400] {
        let part = drawn(&of_samples(&weights, once(Some(size))), 3, 1);
        assert_eq!(part[..], whole[..size as usize], "{size} samples");
    }
}

#[test]
fn any_position_is_computed_directly_and_epochs_and_seeds_differ() {
    let weights: Vec<f64> = (0..200).map(|i| f64::from(i % 5)).collect();
    for draws in [with(1000), once(None)] {
        let weights = of_samples(&weights, draws);
        let whole = drawn(&weights, 5, 0);
        let mut order = order(&weights, 5, 1);
        let samples = Samples(200);
        order.begin_epoch(&weights.order(5), Epoch(0), &samples).unwrap();
        for at in [0, 159, 7, 80, 81, 3] {
            let mut ids = Vec::new();
            order.ids(&samples, Positions::new(at, 1, 1), &mut ids);
            assert_eq!((ids[0].0 / 2) as usize, whole[at as usize]);
        }
        assert_ne!(whole, drawn(&weights, 5, 1));
        assert_ne!(whole, drawn(&weights, 6, 0));
    }
}

#[test]
fn the_sequences_are_frozen() {
    let weights: Vec<f64> = (0..1000).map(|i| f64::from(i * 7 % 11)).collect();
    let labels: Vec<i64> = (0..1000).map(|i| i * i % 7).collect();
    let each = LabelWeights::Each((0..7).map(|i| (i * i % 7, i as f64 + 0.5)).collect());
    let hash = |weights: &Arc<Weights>| {
        let mut hasher = Xxh3::new();
        drawn(weights, 42, 3).into_iter().for_each(|rank| hasher.update(&rank.to_le_bytes()));
        (weights.kind().to_string(), hasher.digest())
    };
    let frozen = [
        hash(&of_samples(&weights, with(5000))),
        hash(&of_samples(&weights, once(None))),
        hash(&by_label(&labels, &each, with(5000))),
        hash(&by_label(&labels, &LabelWeights::Balanced, with(5000))),
        hash(&by_label(&labels, &LabelWeights::Balanced, once(Some(900)))),
    ];
    let told: Vec<String> =
        frozen.iter().map(|(kind, hash)| format!("{kind}: {hash:016x}")).collect();
    assert_eq!(told, FROZEN);
}

const FROZEN: [&str; 5] = [
    "weighted (weights b381c146a7273cfd4d02e18ec1d2feba, with replacement, epoch size 5000): c46920bff4127395",
    "weighted (weights b381c146a7273cfd4d02e18ec1d2feba, without replacement, epoch size 909): a0096f60087958d3",
    "weighted (weights cceb9fda26976c0697f5c936ecc4d4a2, with replacement, epoch size 5000): 6fb11c26ffb37722",
    "weighted (weights eae6419d1ed639828007132fb14d31f0, with replacement, epoch size 5000): ba0d96e98a4f9d92",
    "weighted (weights eae6419d1ed639828007132fb14d31f0, without replacement, epoch size 900): d80b01e17387832f",
];

#[test]
fn weights_that_cannot_be_drawn_by_are_refused_with_the_sample_or_label() {
    let refused =
        |weights: &[f64], draws| Weights::of_samples(3, weights, draws).unwrap_err().report();
    let any = Draws::default();
    for (weights, text) in [
        (&[1.0, -0.5, 1.0][..], "index 1 is -0.5"),
        (&[1.0, 1.0, f64::NAN], "index 2 is NaN"),
        (&[f64::INFINITY, 1.0, 1.0], "index 0 is inf"),
        (&[0.0, 0.0, -0.0], "no sample has a weight above 0"),
        (&[1.0, 1.0], "2 weights for 3 samples"),
        (&[1.0; 4], "4 weights for 3 samples"),
    ] {
        assert!(refused(weights, any).contains(text), "{text}: {}", refused(weights, any));
    }
    assert!(
        refused(&[1.0, 0.0, 1.0], once(Some(3))).contains("without replacement it has from 1 to 2")
    );
    assert!(refused(&[1.0; 3], with(0)).contains("epoch of 0 samples"));
    assert!(refused(&[1.0; 3], with(1 << 40)).contains("it has from 1 to"));
    let of_none = |len| Weights::of_samples(len, &[], any).unwrap_err().to_string();
    assert!(of_none(0).contains("no sample has a weight above 0"));
    assert_eq!(of_none(1 << 32), "4294967296 samples: weights are for at most 4294967295");

    let refused = |labels: &[Option<i64>], weights: &LabelWeights| {
        Weights::of_labels(3, labels.iter().copied(), weights, any).unwrap_err().report()
    };
    let each = |weights: &[(i64, f64)]| LabelWeights::Each(weights.iter().copied().collect());
    let labels = [Some(1), Some(-2), Some(1)];
    for (labels, weights, text) in [
        (
            &[Some(1), None, Some(2)][..],
            LabelWeights::Balanced,
            "the sample at index 1 has no label",
        ),
        (&[Some(1), Some(2)], LabelWeights::Balanced, "2 weights for 3 samples"),
        (&labels, each(&[(1, 1.0), (-2, 1.0), (9, 1.0)]), "no sample has label 9"),
        (
            &labels,
            each(&[(1, 1.0)]),
            "label -2, which the sample at index 1 has, is given no weight",
        ),
        (&labels, each(&[(1, 1.0), (-2, f64::NAN)]), "label -2 is NaN"),
        (&labels, each(&[(1, -1.0), (-2, 1.0)]), "label 1 is -1"),
        (&labels, each(&[(1, 0.0), (-2, 0.0)]), "no sample has a weight above 0"),
        (&labels, each(&[(1, f64::MAX), (-2, 1.0)]), "add up to more than any number"),
    ] {
        assert!(refused(labels, &weights).contains(text), "{text}: {}", refused(labels, &weights));
    }
}

#[test]
fn a_state_holds_the_hash_of_the_weights_and_refuses_others() {
    let weights = of_samples(&[1.0, 2.0, 3.0], with(50));
    let state = State { consumed: 20, ..State::start([1; 16], Generation(1), weights.order(7)) };
    let json = state.to_json();
    let order = r#""order":{"kind":"weighted","weights":""#;
    assert!(
        json.contains(order) && json.contains(r#""replacement":true,"epoch_size":50,"seed":7"#)
    );
    assert_eq!(State::from_json(&json).unwrap(), state);
    for bad in [json.replace(order, &format!("{order}+")), json.replace(":50,", ":0,")] {
        assert!(State::from_json(&bad).is_err(), "{bad}");
    }
    let check = |asked: OrderSpec| state.check(([1; 16], None), Generation(1), &asked, 5, 50);
    check(weights.order(7)).unwrap();
    let other = of_samples(&[1.0, 2.0, 3.5], with(50));
    let refused = check(other.order(7)).unwrap_err().to_string();
    assert!(refused.contains("the state draws by weights"), "{refused}");
    let longer = of_samples(&[1.0, 2.0, 3.0], with(51));
    assert!(
        check(longer.order(7)).unwrap_err().to_string().contains("epoch size 50), and weighted")
    );
    let global = OrderSpec { kind: OrderKind::Global, seed: 7 };
    assert!(check(global).unwrap_err().to_string().contains("and global was asked for"));
}

#[test]
fn an_order_takes_its_own_weights_only() {
    let weights = of_samples(&[1.0, 2.0], with(9));
    let other = of_samples(&[2.0, 1.0], with(9));
    let order = |samples, spec| EpochOrder::weighted(&spec, Epoch(0), &Samples(samples), &weights);
    assert!(order(2, weights.order(1)).is_ok());
    let refused = |samples, spec| order(samples, spec).unwrap_err().to_string();
    assert!(refused(3, weights.order(1)).contains("weigh 2 samples, and there are 3"));
    assert!(refused(2, other.order(1)).contains("weigh 2 samples, and there are 2"));
    let error = EpochOrder::new(&weights.order(1), Epoch(0), &Samples(2)).unwrap_err();
    assert!(error.to_string().contains("there are none here"), "{error}");
}

/// Prints the time per position and epoch: `cargo test --release --lib weighted -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn time_of_a_position() {
    let n = std::env::var("DLFS_WEIGHTED_SAMPLES").map_or(1 << 20, |text| text.parse().unwrap());
    let each: Vec<f64> = (0..n).map(|i: u64| (i % 1000) as f64 + 1.0).collect();
    let labels: Vec<i64> = (0..n as i64).map(|i| i * i % 1000).collect();
    let balanced = LabelWeights::Balanced;
    for (name, make) in [
        ("by sample", &(|| of_samples(&each, Draws::default())) as &dyn Fn() -> Arc<Weights>),
        ("by label", &|| by_label(&labels, &balanced, Draws::default())),
        ("without replacement", &|| of_samples(&each, once(None))),
    ] {
        let begin = std::time::Instant::now();
        let weights = make();
        let made = begin.elapsed();
        let begin = std::time::Instant::now();
        let mut order = order(&weights, 1, 0);
        let begun = begin.elapsed();
        let begin = std::time::Instant::now();
        let mut ids = Vec::with_capacity(n as usize);
        order.ids(&Samples(n), 0..n, &mut ids);
        let position = begin.elapsed().as_nanos() as f64 / n as f64;
        let memory = weights.memory_bytes() as f64 / n as f64;
        println!(
            "{n} samples, {name}: {position:.1} ns a position, {made:?} to make, {begun:?} to begin an epoch, \
             {memory:.1} bytes a sample"
        );
    }
}

#[test]
fn the_logarithm_is_that_of_the_library() {
    for i in 0..100_000 {
        let x = unit(Key::new(7).with(i).word() >> (i % 53));
        let own = ln(x);
        let other = x.ln();
        assert!((own - other).abs() <= 2e-15 * other.abs().max(1.0), "ln {x}: {own}, {other}");
    }
    assert_eq!(ln(1.0), 0.0);
}
