//! Mixtures are what a program of their own computes from their description alone.

use dlfs::order::mixture::{Batching, Mixture, MixtureSpec, Part, Phase, Source, Weight};

#[test]
fn mixtures_are_what_the_golden_file_says() {
    let golden = include_str!("../golden/mixtures.txt");
    let mut cases = 0;
    for line in golden.lines().filter(|line| !line.starts_with('#')) {
        let [sources, size, batching, phases, seed, draws] = fields(line);
        let spec = MixtureSpec {
            sources: (0..).zip(sources.split(' ')).map(source).collect(),
            epoch_size: Some(size.parse().unwrap()),
            batching: match batching.split_once(':') {
                Some((_, batch)) => Batching::PerSource { batch: batch.parse().unwrap() },
                None if batching == "random" => Batching::Random,
                None => Batching::Stratified,
            },
            phases: phases.split_whitespace().map(phase).collect(),
            seed: seed.parse().unwrap(),
        };
        let mut mixture = Mixture::new(&spec).unwrap();
        let drawn = (0..3 * mixture.epoch_size()).map(|position| {
            let draw = mixture.draw(position);
            format!("{}:{}:{}", draw.source, draw.epoch, draw.position)
        });
        let drawn: Vec<String> = drawn.collect();
        assert_eq!(drawn.join(" "), draws, "{line}");
        cases += 1;
    }
    assert_eq!(cases, 8);
}

fn fields(line: &str) -> [&str; 6] {
    let fields: Vec<&str> = line.split('|').map(str::trim).collect();
    fields.try_into().expect("a line has six fields")
}

fn source((number, text): (usize, &str)) -> Source {
    let (samples, part) = text.split_once('*').unwrap();
    let name = format!("s{number}");
    let identity = number.to_string();
    let part = Part::Weight(weight(part));
    Source { name, identity, samples: samples.parse().unwrap(), part }
}

fn phase(text: &str) -> Phase {
    let (from, weights) = text.split_once('=').unwrap();
    Phase { from: from.parse().unwrap(), weights: weights.split(',').map(weight).collect() }
}

fn weight(text: &str) -> Weight {
    text.parse().unwrap()
}
