//! Mixtures that count tokens: weights are shares of tokens, phases begin where tokens are delivered, and mixtures that
//! cannot count them are refused by name.

use std::ops::Range;

use crate::support::random::Random;
use crate::tokens::{Corpus, Over, Stored, TYPED, doc, run};
use dlfs::Result;
use dlfs::dataset::{Mixture, TokenOptions};
use dlfs::order::mixture::{Batching, Count, Phase};
use dlfs::prefetch::LoaderOptions;

/// A mixture of two corpora by tokens, with phases.
fn counting(
    corpora: &[Corpus; 2],
    parts: [&str; 2],
    epoch_size: u64,
    phases: &[(u64, [&str; 2])],
    count: &str,
) -> Result<Mixture> {
    let parts = corpora.iter().zip(parts);
    let parts = parts.map(|(corpus, part)| (corpus.dataset.clone(), part.parse().unwrap()));
    let phases = phases.iter().map(|(from, weights)| Phase {
        from: *from,
        weights: weights.map(|weight| weight.parse().unwrap()).to_vec(),
    });
    let phases = phases.collect();
    let count = count.parse::<Count>().unwrap();
    Mixture::counting(&count, parts.collect(), Some(epoch_size), Batching::Stratified, phases)
}

/// Documents of log-normal lengths with this median.
fn log_normal(random: &mut Random, documents: usize, median: f64) -> Corpus {
    let mut uniform = || (random.below(1 << 32) as f64 + 0.5) / (1_u64 << 32) as f64;
    let lens = (0..documents).map(|_| {
        let normal = (-2.0 * uniform().ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos();
        (median * normal.exp()) as usize
    });
    Corpus::new(&TYPED, lens.map(|len| doc(&vec![7; len.min(20_000)])).collect())
}

#[test]
fn weights_of_a_mixture_are_shares_of_tokens_if_they_count_tokens() {
    let mut random = Random::new(0x746f_6b65);
    let corpora = [log_normal(&mut random, 900, 40.0), log_normal(&mut random, 400, 300.0)];
    let share = |count: &str| {
        let mixture = counting(&corpora, ["0.7", "0.3"], 400_000, &[], count).unwrap();
        let plan = mixture.token_loader(TokenOptions::new(64, 1), run(1)).unwrap().plan(0).unwrap();
        plan.sources[0].tokens as f64 / plan.counts.tokens as f64
    };
    let by_tokens = share("tokens");
    assert!((by_tokens - 0.7).abs() < 0.0007, "{by_tokens}");
    assert!((share("samples") - 0.7).abs() > 0.2, "documents of the second are longer");
    let spec = |count: &str, phases: &[(u64, [&str; 2])]| {
        let mixture = counting(&corpora, ["0.7", "0.3"], 5000, phases, count).unwrap();
        mixture.spec(&run(1))
    };
    assert_eq!(spec("tokens", &[]), spec("lengths:count", &[]));
    assert_eq!(spec("tokens", &[]), spec("tokens:tok", &[]));

    // The tokens that a run delivers before a phase begins.
    let phases = [(1_500_000, ["0.1", "0.9"]), (4_500_000, ["1", "0"])];
    let mixture = counting(&corpora, ["0.7", "0.3"], 40_000, &phases, "tokens").unwrap();
    let starts: Vec<u64> = mixture.spec(&run(1)).phases.iter().map(|phase| phase.from).collect();
    let positions = Over::Mixed(mixture).positions(&run(1)).remove(0);
    let tokens_in = |range: Range<u64>, only: u32| -> f64 {
        let drawn = positions[range.start as usize..range.end as usize].iter();
        let drawn = drawn.filter(|(source, _)| *source <= only);
        let lens = drawn.map(|(source, id)| {
            corpora[*source as usize].documents[*id as usize].tokens.len() as f64
        });
        lens.sum()
    };
    for (range, tokens, of_first) in
        [(0..starts[0], 1_500_000.0, 0.7), (starts[0]..starts[1], 3_000_000.0, 0.1)]
    {
        let delivered = tokens_in(range.clone(), 1);
        assert!((delivered / tokens - 1.0).abs() < 0.02, "{range:?}: {delivered} of {tokens}");
        let share = tokens_in(range.clone(), 0) / delivered;
        assert!((share - of_first).abs() < 0.01, "{range:?}: {share}");
    }
    assert!(positions[starts[1] as usize..].iter().all(|(source, _)| *source == 0));
}

#[test]
fn phases_by_tokens_that_a_run_has_not_reached_may_change_when_it_resumes() {
    let corpora = [[10; 20], [30; 20]]
        .map(|lens| Corpus::new(&TYPED, lens.iter().map(|&len| doc(&vec![7; len])).collect()));
    let mix = |phases: &[(u64, [&str; 2])]| {
        counting(&corpora, ["1", "1"], 200, phases, "tokens").unwrap()
    };
    let old = mix(&[(600, ["1", "0"]), (1000, ["0", "1"])]);
    let starts = |mixture: &Mixture| {
        mixture.spec(&run(1)).phases.iter().map(|phase| phase.from).collect::<Vec<u64>>()
    };
    // Three documents of 10 tokens for each one of 30, and then 40 documents of 10.
    assert_eq!(starts(&old), [40, 80]);
    let loader = old.loader(LoaderOptions { batch_size: 20, ..run(1) }).unwrap();
    (0..3).for_each(|_| drop(loader.next(&mut ()).unwrap().unwrap()));
    let state = loader.state();
    assert_eq!(state.consumed, 60);
    let resume = |phases: &[(u64, [&str; 2])]| {
        mix(phases).loader(LoaderOptions { resume: Some(state.clone()), ..run(1) }).map(drop)
    };
    resume(&[(600, ["1", "0"]), (900, ["3", "1"])]).unwrap();
    let error = resume(&[(615, ["1", "0"]), (1000, ["0", "1"])]).unwrap_err().report();
    assert!(error.contains("a phase before sample 60"), "{error}");
}

#[test]
fn a_mixture_that_cannot_count_tokens_is_refused_by_name() {
    let first = || Corpus::of(&[&[1, 2, 3], &[4, 5, 6]]);
    let plain = Stored { element: "u16", field: None, has_loss: false };
    let pair = [first(), Corpus::new(&plain, vec![doc(&[1, 2, 3])])];
    let name = |corpus: &Corpus| corpus._folder.path().display().to_string();
    let why = |pair: &[Corpus; 2], phases: &[(u64, [&str; 2])], count: &str| {
        counting(pair, ["1", "1"], 10, phases, count).map(drop).unwrap_err().to_string()
    };
    let text = why(&pair, &[], "tokens");
    assert!(
        text.contains("no field of the samples has tokens") && text.contains(&name(&pair[1])),
        "{text}"
    );
    counting(&pair, ["1", "1"], 10, &[], "lengths:count").unwrap();
    let text = why(&pair, &[], "lengths:words");
    assert!(text.contains("no column \"words\"") && text.contains(&name(&pair[0])), "{text}");
    let empty = [first(), Corpus::of(&[&[], &[]])];
    let text = why(&empty, &[], "tokens");
    assert!(text.contains("has no tokens") && text.contains(&name(&empty[1])), "{text}");

    let pair = [first(), Corpus::of(&[&[1, 2, 3]])];
    let phases = [(30, ["1", "0"]), (30, ["0", "1"])];
    let text = why(&pair, &phases, "tokens");
    assert!(text.contains("phase 2 begins at 30 of the run, not after the one before"), "{text}");
    let text = why(&pair, &[(30, ["1", "0"]), (32, ["0", "1"])], "tokens");
    assert!(text.contains("phase 2 begins at 10 "), "within one document: {text}");
    let text = why(&pair, &[(2, ["1", "0"])], "tokens");
    assert!(text.contains("phase 1 begins at 0 "), "{text}");
    for wrong in ["", "words", "tokens:", "lengths", "lengths:", "samples:x"] {
        assert!(wrong.parse::<Count>().is_err(), "{wrong}");
    }
}
