//! Tests mixtures against brute force, and their guarantees.

use super::*;

/// Random numbers, repeatable by the seed.
struct Random {
    key: Key,
    drawn: u64,
}

impl Random {
    fn new(seed: u64) -> Random {
        Random { key: Key::new(seed), drawn: 0 }
    }

    fn next(&mut self) -> u64 {
        self.drawn += 1;
        self.key.with(self.drawn).word()
    }
}

fn weight(text: &str) -> Weight {
    text.parse().unwrap()
}

fn source(number: usize, samples: u64, part: Part) -> Source {
    Source { name: format!("s{number}"), identity: format!("image {number}"), samples, part }
}

fn weighted(weights: &[&str], epoch_size: u64) -> MixtureSpec {
    let part = |text: &&str| Part::Weight(weight(text));
    let sources = weights.iter().enumerate().map(|(i, text)| source(i, 100 + i as u64, part(text)));
    MixtureSpec {
        sources: sources.collect(),
        epoch_size: Some(epoch_size),
        batching: Batching::Stratified,
        phases: Vec::new(),
        seed: 7,
    }
}

/// A random mixture of up to 8 sources with short epochs, and often with phases.
fn random_spec(random: &mut Random) -> MixtureSpec {
    let below = |random: &mut Random, limit: u64| random.next() % limit;
    let number = 1 + below(random, 8) as usize;
    let decimal =
        |random: &mut Random| weight(&format!("{}.{}", random.next() % 4, 1 + random.next() % 99));
    let is_counted = below(random, 3) == 0;
    let mut sources = Vec::new();
    for i in 0..number {
        let part = if !is_counted {
            Part::Weight(decimal(random))
        } else if i % 2 == 0 {
            Part::Choose(1 + below(random, 60))
        } else {
            Part::Repeat(decimal(random))
        };
        sources.push(source(i, 1 + below(random, 50), part));
    }
    let batching = match below(random, 3) {
        0 => Batching::Stratified,
        1 => Batching::Random,
        _ if is_counted => Batching::Random,
        _ => Batching::PerSource { batch: 1 + below(random, 5) },
    };
    let unit = batching.unit();
    let mut phases = Vec::new();
    let mut from = 0;
    for _ in 0..below(random, 4) {
        from += unit * (1 + below(random, 150));
        phases.push(Phase { from, weights: (0..number).map(|_| decimal(random)).collect() });
    }
    let epoch_size = (!is_counted).then(|| unit * (1 + below(random, 120)));
    MixtureSpec { sources, epoch_size, batching, phases, seed: random.next() }
}

#[test]
fn every_draw_follows_the_one_before_it() {
    let seed = 0x6d69_7874;
    let mut random = Random::new(seed);
    for case in 0..300 {
        let mut spec = random_spec(&mut random);
        let is_random = spec.batching == Batching::Random;
        let Ok(mut mixture) = Mixture::new(&spec) else {
            // A small source that is repeated less than once may have no samples.
            continue;
        };
        let context = format!("case {case} of seed {seed}: {spec:?}");
        let len = 5 * mixture.epoch_size();
        let mut drawn = vec![Vec::new(); spec.sources.len()];
        for position in 0..len {
            if !is_random {
                let counts: Vec<u64> = drawn.iter().map(|draws| draws.len() as u64).collect();
                assert_eq!(mixture.drawn_before(position), counts, "{position}, {context}");
            }
            let Draw { source, epoch, position } = mixture.draw(position);
            drawn[source as usize].push(epoch.0 * spec.sources[source as usize].samples + position);
        }
        for draws in &drawn {
            assert!(draws.iter().copied().eq(0..draws.len() as u64), "{context}");
        }
        // Computes any position directly, after any earlier calls, and after the specification has gone through
        // JSON.
        spec = serde_json::from_str(&serde_json::to_string(&spec).unwrap()).unwrap();
        let mut other = Mixture::new(&spec).unwrap();
        for _ in 0..20 {
            let position = random.next() % len;
            assert_eq!(other.draw(position), mixture.draw(position), "{position}, {context}");
        }
    }
}

#[test]
fn an_epoch_has_its_counts_exactly() {
    let mut mixture = Mixture::new(&weighted(&["0.7", "0.2", "0.1"], 1_000)).unwrap();
    assert_eq!(mixture.counts(Epoch(0)), [700, 200, 100]);
    assert_eq!(mixture.counts(Epoch(9)), [700, 200, 100]);
    let mut seen = [0; 3];
    (3_000..4_000).for_each(|position| seen[mixture.draw(position).source as usize] += 1);
    assert_eq!(seen, [700, 200, 100]);
}

#[test]
fn every_batch_has_its_share_of_every_source() {
    let seed = 0x6261_7463;
    let mut random = Random::new(seed);
    let mut worst = 0f64;
    for case in 0..200 {
        let number = 2 + (random.next() % 15) as usize;
        let weights: Vec<String> =
            (0..number).map(|_| (1 + random.next() % 1_000).to_string()).collect();
        let weights: Vec<&str> = weights.iter().map(String::as_str).collect();
        let spec = MixtureSpec { seed: random.next(), ..weighted(&weights, 64 * 1_024) };
        let mut mixture = Mixture::new(&spec).unwrap();
        let counts = mixture.counts(Epoch(0));
        // Also for runs that resume within a batch.
        let later = (0..16).map(|_| random.next() % (63 * 1_024)).collect::<Vec<u64>>();
        for start in (0..64u64).map(|batch| batch * 1_024).chain(later) {
            let mut seen = vec![0u64; number];
            for position in start..start + 1_024 {
                seen[mixture.draw(position).source as usize] += 1;
            }
            for (seen, count) in seen.iter().zip(&counts) {
                let off = (*seen as f64 - *count as f64 / 64.0).abs();
                assert!(off <= 2.0, "{off} in case {case} of seed {seed}: {spec:?}");
                worst = worst.max(off);
            }
        }
    }
    println!("seed {seed}: a batch is {worst:.2} off its share at most");
}

#[test]
fn random_positions_in_sequence_are_those_drawn_singly() {
    let spec = MixtureSpec {
        batching: Batching::Random,
        phases: vec![Phase { from: 50_000, weights: vec![weight("1"), weight("4"), weight("0")] }],
        ..weighted(&["5", "2", "3"], 40_000)
    };
    let mut sequence = Mixture::new(&spec).unwrap();
    let singly = Mixture::new(&spec).unwrap();
    for position in (0..90_000).chain(39_000..41_000) {
        // Jumps end a sequence, also within a window.
        let at = if position % 20_011 == 0 { position / 2 } else { position };
        let drawn = sequence.draw(at);
        if position % 7 == 0 {
            assert_eq!(drawn, singly.clone().draw(at), "position {at}");
        }
    }
}

#[test]
fn positions_in_sequence_are_those_drawn_singly() {
    for seed in 0..200 {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let spec = random_spec(&mut random);
        let mut in_sequence = Mixture::new(&spec).unwrap();
        let first = random.next() % 300;
        for position in first..first + 400 {
            // Leaves the sequence from time to time.
            if random.next().is_multiple_of(150) {
                in_sequence.draw(random.next() % 700);
            }
            let alone = Mixture::new(&spec).unwrap().draw(position);
            assert_eq!(in_sequence.draw(position), alone, "position {position}");
        }
    }
}

#[test]
fn a_batch_of_one_source_is_of_one_source() {
    let batching = Batching::PerSource { batch: 16 };
    let spec = MixtureSpec { batching, ..weighted(&["3", "1"], 160) };
    let mut mixture = Mixture::new(&spec).unwrap();
    for batch in 0..50u64 {
        let sources: Vec<u32> = (0..16).map(|i| mixture.draw(batch * 16 + i).source).collect();
        assert!(sources.iter().all(|source| *source == sources[0]), "{sources:?}");
    }
    // 7.5 and 2.5 batches: equal remainders, the first one gains.
    assert_eq!(mixture.counts(Epoch(2)), [8 * 16, 2 * 16]);
    let odd = MixtureSpec { batching, ..weighted(&["3", "1"], 100) };
    assert!(Mixture::new(&odd).unwrap_err().to_string().contains("whole batches of 16, not 100"));
}

#[test]
fn parts_are_mosaicmls() {
    let sources = vec![
        source(0, 100, Part::Repeat(weight("2.5"))),
        source(1, 40, Part::Choose(10)),
        source(2, 7, Part::Repeat(weight("0.5"))),
    ];
    let spec = MixtureSpec { sources, epoch_size: None, ..weighted(&["1"], 1) };
    let mixture = Mixture::new(&spec).unwrap();
    assert_eq!((mixture.epoch_size(), mixture.counts(Epoch(4))), (263, vec![250, 10, 3]));
    let all = MixtureSpec { epoch_size: None, ..weighted(&["1", "1", "1"], 1) };
    assert_eq!(Mixture::new(&all).unwrap().epoch_size(), 100 + 101 + 102);
}

#[test]
fn weights_change_where_a_phase_begins() {
    let phases = vec![
        Phase { from: 150, weights: [weight("0"), weight("1")].into() },
        Phase { from: 330, weights: [weight("1"), weight("1")].into() },
    ];
    let spec = MixtureSpec { phases, ..weighted(&["1", "0"], 100) };
    let mut mixture = Mixture::new(&spec).unwrap();
    assert!((0..150).all(|position| mixture.draw(position).source == 0));
    assert!((150..330).all(|position| mixture.draw(position).source == 1));
    assert_eq!(mixture.drawn_before(330), [150, 180]);
    assert_eq!(mixture.drawn_before(400), [185, 215]);
    assert_eq!(mixture.counts(Epoch(7)), [50, 50]);
}

#[test]
fn a_state_refuses_another_mixture_and_names_the_source() {
    let spec = weighted(&["0.5", "0.5"], 100);
    let json = serde_json::to_string(&spec).unwrap();
    assert_eq!(serde_json::from_str::<MixtureSpec>(&json).unwrap(), spec);
    spec.check_resumed(&spec, 150).unwrap();
    let error = |change: &dyn Fn(&mut MixtureSpec)| {
        let mut other = spec.clone();
        change(&mut other);
        other.check_resumed(&spec, 150).map_err(|error| error.to_string())
    };
    let phase = |from| Phase { from, weights: [weight("1"), weight("2")].into() };
    assert_eq!(error(&|spec| spec.phases.push(phase(150))), Ok(()), "only what comes changes");
    for (change, what) in [
        (
            &(|spec: &mut MixtureSpec| spec.sources[1].identity.push('+'))
                as &dyn Fn(&mut MixtureSpec),
            "s1 is image 1+",
        ),
        (&|spec| spec.sources[0].samples += 1, "s0 has 101 samples, and had 100"),
        (&|spec| spec.sources[1].part = Part::Choose(1), "s1 has another part"),
        (&|spec| drop(spec.sources.pop()), "2 sources, not 1"),
        (&|spec| spec.epoch_size = None, "size"),
        (&|spec| spec.batching = Batching::Random, "batching"),
        (&|spec| spec.seed += 1, "seed"),
        (&|spec| spec.phases.push(phase(149)), "before sample 150"),
    ] {
        let message = error(change).unwrap_err();
        assert!(message.contains(what), "{message}");
    }
}

#[test]
fn what_makes_no_mixture_is_said_with_its_source() {
    let error = |change: &dyn Fn(&mut MixtureSpec)| {
        let mut spec = weighted(&["1", "2"], 10);
        change(&mut spec);
        Mixture::new(&spec).unwrap_err().to_string()
    };
    let phase = |from, weights: &[&str]| Phase {
        from,
        weights: weights.iter().map(|w| weight(w)).collect(),
    };
    for (change, what) in [
        (
            &(|spec: &mut MixtureSpec| spec.sources.clear()) as &dyn Fn(&mut MixtureSpec),
            "at least one source",
        ),
        (&|spec| spec.sources[1].samples = 0, "s1 has no samples"),
        (&|spec| spec.sources[1].identity = "image 0".into(), "s0 and s1 are the same data set"),
        (
            &|spec| spec.sources[0].part = Part::Weight(Weight::ZERO),
            "s0 has a part of 0 in every phase",
        ),
        (&|spec| spec.sources[0].part = Part::Choose(3), "source s1 has a weight and source s0"),
        (&|spec| spec.epoch_size = Some(0), "1 to 1099511627776 samples, not 0"),
        (&|spec| spec.phases.push(phase(5, &["1"])), "phase 1 has 1 weights for 2 sources"),
        (&|spec| spec.phases.push(phase(5, &["0", "0"])), "all weights of phase 1 are 0"),
        (&|spec| spec.phases.push(phase(0, &["1", "1"])), "phase 1 begins at 0"),
        (&|spec| spec.phases.push(phase(5, &["1e17", "1e-18"])), "weights of phase 1"),
    ] {
        let message = error(change);
        assert!(message.contains(what), "{message}");
    }
    let mut counted = weighted(&["1", "1"], 10);
    counted.sources.iter_mut().for_each(|source| source.part = Part::Choose(6));
    let message = Mixture::new(&counted).unwrap_err().to_string();
    assert!(
        message.contains("12 samples by repeat and choose: leave the epoch's size of 10 out"),
        "{message}"
    );
}
