//! Converts a mixture whose weights and starts of phases count tokens into one that counts samples.
//!
//! A source of N samples with T tokens together and the weight w gets the weight w * N / T, so that its samples have
//! the share of w in the tokens of the mixture. These weights are whole numbers in the right proportions, rounded
//! down, but not to 0; the largest of a phase has 15 digits. A phase that begins at token t begins at the first
//! position before which the positions of the earlier phases have t tokens in expectation, each phase's length rounded
//! down. With batches of one source it is rounded down to whole batches.
//!
//! A mixture is converted once, before its run starts, and phase by phase: later phases do not change earlier ones. The
//! state of the run has the converted mixture, so a run resumes without the lengths.

use std::mem::replace;
use std::str::FromStr;

use super::segments::integers;
use super::spec::shortened;
use super::{MixtureSpec, Part, Source, Weight};
use dlfs_base::error::{Error, Result, invalid};

/// The unit of the weights and of the starts of phases of a mixture.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Count {
    /// Samples.
    #[default]
    Samples,
    /// Tokens, computed from the bytes of documents. The name of the field of tokens; `None`: the only one.
    Tokens(Option<String>),
    /// Tokens, from the column of ints with this name.
    Lengths(String),
}

/// `samples`, `tokens`, `tokens:FIELD`, `tokens:FIELD:TYPE` or `lengths:COLUMN`.
impl FromStr for Count {
    type Err = Error;

    fn from_str(text: &str) -> Result<Count> {
        match text.split_once(':') {
            None if text == "samples" => Ok(Count::Samples),
            None if text == "tokens" => Ok(Count::Tokens(None)),
            Some(("tokens", field)) if !field.is_empty() => Ok(Count::Tokens(Some(field.into()))),
            Some(("lengths", column)) if !column.is_empty() => Ok(Count::Lengths(column.into())),
            _ => {
                let text = shortened(text);
                Err(invalid(format!(
                    "it is samples, tokens, tokens:FIELD or lengths:COLUMN, not {text:?}"
                )))
            }
        }
    }
}

/// The samples of a source, and their tokens.
type Size = (u64, u64);

impl MixtureSpec {
    /// Converts weights and starts of phases that count tokens into ones that count samples. `tokens` has the tokens of
    /// each source. `repeat`, `choose` and the epoch's size count samples in any case, and stay.
    ///
    /// # Errors
    /// An invalid value; a source has no tokens; a phase begins beyond 2^64 samples.
    pub fn counted_in_tokens(mut self, tokens: &[u64]) -> Result<MixtureSpec> {
        self.check_sources()?;
        if let Some(at) = tokens.iter().position(|&tokens| tokens == 0) {
            return Err(invalid(format!("source {} has no tokens", self.sources[at].name)));
        }
        let samples = self.sources.iter().map(|source| source.samples);
        let sizes: Vec<Size> = samples.zip(tokens.iter().copied()).collect();
        let parts: Vec<Weight> = self.sources.iter().map(Source::weight).collect();
        let is_weighed = |source: &Source| matches!(source.part, Part::Weight(_));
        let mut weights = integers(&parts, 0)?;
        if self.sources.iter().all(is_weighed) {
            weights = of_samples(&weights, &sizes);
            for (source, &weight) in self.sources.iter_mut().zip(&weights) {
                source.part = Part::Weight(Weight::whole(weight));
            }
        } else {
            weights = of_samples(&weights, &vec![(1, 1); sizes.len()]); // with as many digits
        }
        let unit = self.batching.unit();
        let mut token = 0;
        let mut sample: u64 = 0;
        for (number, phase) in (1..).zip(&mut self.phases) {
            let more = samples_of(phase.from - token, &weights, &sizes);
            sample = more.and_then(|more| sample.checked_add(more)).ok_or_else(|| {
                let from = phase.from;
                invalid(format!("phase {number} begins at token {from}, beyond 2^64 samples"))
            })?;
            token = replace(&mut phase.from, sample - sample % unit);
            weights = of_samples(&integers(&phase.weights, number)?, &sizes);
            phase.weights = weights.iter().map(|&weight| Weight::whole(weight)).collect();
        }
        Ok(self)
    }
}

/// The weights of samples that give tokens the proportions of `weights`, of which one is above 0.
fn of_samples(weights: &[u64], sizes: &[Size]) -> Vec<u64> {
    let product =
        |(&weight, &(samples, _)): (&u64, &Size)| u128::from(weight) * u128::from(samples);
    let products: Vec<u128> = weights.iter().zip(sizes).map(product).collect();
    // The largest product then has at least 38 digits, and its quotient by 64 bits at least 18.
    let most = products.iter().max().copied().unwrap_or(1);
    let scale = 10_u128.pow((u128::MAX / most).ilog10());
    let exact: Vec<u128> = products
        .iter()
        .zip(sizes)
        .map(|(product, &(_, tokens))| product * scale / u128::from(tokens))
        .collect();
    let most = exact.iter().max().copied().unwrap_or(1);
    let unit = 10_u128.pow((most.ilog10() + 1).saturating_sub(DIGITS));
    // Rounding does not exclude a source.
    let rounded = exact.iter().zip(weights).map(|(exact, &weight)| {
        let least = u64::from(weight > 0);
        ((exact / unit) as u64).max(least) // at most 15 digits
    });
    rounded.collect()
}

/// The number of samples, in the proportions of `weights`, that have `tokens` tokens in expectation; `None` if it
/// exceeds 64 bits.
fn samples_of(tokens: u64, weights: &[u64], sizes: &[Size]) -> Option<u64> {
    let samples: u128 = weights.iter().map(|&weight| u128::from(weight)).sum();
    let of_source = |(&weight, &(samples, tokens)): (&u64, &Size)| {
        u128::from(weight) * u128::from(tokens) / u128::from(samples)
    };
    let with: u128 = weights.iter().zip(sizes).map(of_source).sum();
    u128::from(tokens).checked_mul(samples)?.checked_div(with)?.try_into().ok()
}

/// The digits of the largest weight of a phase. Frozen.
const DIGITS: u32 = 15;

#[cfg(test)]
mod tests {
    use super::super::{Batching, Phase};
    use super::*;

    fn spec(parts: &[(u64, &str)], phases: &[(u64, &[&str])]) -> MixtureSpec {
        let sources = (0..).zip(parts).map(|(number, (samples, part))| Source {
            name: format!("s{number}"),
            identity: format!("image {number}"),
            samples: *samples,
            part: part.parse().unwrap(),
        });
        let phases = phases.iter().map(|(from, weights)| Phase {
            from: *from,
            weights: weights.iter().map(|weight| weight.parse().unwrap()).collect(),
        });
        MixtureSpec {
            sources: sources.collect(),
            epoch_size: None,
            batching: Batching::Stratified,
            phases: phases.collect(),
            seed: 1,
        }
    }

    fn parts(spec: &MixtureSpec) -> Vec<String> {
        spec.sources.iter().map(|source| source.weight().to_string()).collect()
    }

    #[test]
    fn weights_of_samples_have_fifteen_digits_and_the_proportions_of_tokens() {
        // Documents of 10, 30 and 7 tokens.
        let given = spec(&[(50, "1"), (20, "1"), (9, "1")], &[]);
        let made = given.counted_in_tokens(&[500, 600, 63]).unwrap();
        assert_eq!(parts(&made), ["100000000000000", "33333333333333", "142857142857142"]);
        // The extremes of what weights and sizes can be.
        let far = [(1 << 40, "1e17"), (1, "0.1"), (1, "0")];
        let far = spec(&far, &[(u64::MAX, &["1", "1", "1"])]);
        let made = far.counted_in_tokens(&[1 << 40, u64::MAX, 1]).unwrap();
        assert_eq!(parts(&made), ["100000000000000", "1", "0"]);
        let few = spec(&[(1 << 40, "1"), (5, "1")], &[(u64::MAX, &["1", "1"])]);
        let error = few.counted_in_tokens(&[1, 1]).unwrap_err().to_string();
        assert!(error.contains("phase 1 begins at token 18446744073709551615"), "{error}");
    }

    #[test]
    fn a_phase_begins_where_the_phases_before_it_have_its_tokens() {
        // Documents of 10 and 40 tokens. Phase 0: of 5 documents one is long, 16 tokens each; phase 1: 10 tokens each.
        let phases: [(u64, &[&str]); 3] =
            [(1600, &["1", "0"]), (2109, &["0", "1"]), (9999, &["1", "1"])];
        let starts = |given: MixtureSpec| {
            let made = given.counted_in_tokens(&[1000, 2000]).unwrap();
            made.phases.iter().map(|phase| phase.from).collect::<Vec<u64>>()
        };
        let given = spec(&[(100, "0.5"), (50, "0.5")], &phases);
        assert_eq!(starts(given.clone()), [100, 150, 347]);
        // In batches of one source, and after numbers of samples: 25 tokens each.
        let batching = Batching::PerSource { batch: 16 };
        assert_eq!(starts(MixtureSpec { batching, ..given }), [96, 144, 336]);
        let given = spec(&[(100, "repeat:0.5"), (50, "choose:50")], &phases[..1]);
        let made = given.clone().counted_in_tokens(&[1000, 2000]).unwrap();
        assert_eq!((made.phases[0].from, &made.sources), (64, &given.sources));
    }
}
