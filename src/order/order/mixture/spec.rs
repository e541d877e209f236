//! The specification of a mixture, and the check of a state to resume from.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::weight::Weight;
use dlfs_base::error::{Error, Result, ensure, invalid};

/// A mixture: runs with equal specifications read equal sequences.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MixtureSpec {
    /// The mixed sources.
    pub sources: Vec<Source>,
    /// The number of samples in an epoch. `None`: that of `repeat` and `choose`, or that of all sources together.
    pub epoch_size: Option<u64>,
    /// The rule that deals positions to sources.
    pub batching: Batching,
    /// Later weights, in the order of their starts. The parts of the sources apply before the first phase.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<Phase>,
    /// The seed for dealing positions to sources; each source's order has its own seed.
    pub seed: u64,
}

/// A data set of a mixture.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// The name for messages.
    pub name: String,
    /// The image and its generation, or another string that identifies the data set.
    pub identity: String,
    /// The number of its samples.
    pub samples: u64,
    /// Its part of an epoch.
    pub part: Part,
}

/// The part of a source in an epoch: MosaicML's `proportion`, `repeat` and `choose`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Its weight relative to the other sources.
    Weight(Weight),
    /// This many times its samples, rounded down.
    Repeat(Weight),
    /// This many samples.
    Choose(u64),
}

/// The rule that deals positions to sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Batching {
    /// Every global batch has its share of each source.
    Stratified,
    /// The number of samples of a source in a batch is random.
    Random,
    /// Each global batch has samples of only one source. The sequence depends on the batch size.
    PerSource {
        /// The number of samples in a global batch; 0 in a request: that of the run.
        batch: u64,
    },
}

impl Batching {
    /// The number of positions that are dealt together.
    pub(super) fn unit(self) -> u64 {
        match self {
            Batching::PerSource { batch } => batch.max(1),
            Batching::Stratified | Batching::Random => 1,
        }
    }
}

/// Weights from a position of the run on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phase {
    /// The first position of the run with these weights.
    pub from: u64,
    /// One weight per source; 0 excludes the source.
    pub weights: Vec<Weight>,
}

impl Source {
    /// The number of samples in an epoch, if the part is a number of samples; `None` if it exceeds 64 bits.
    pub(super) fn chosen(&self) -> Option<u64> {
        match self.part {
            Part::Weight(_) => Some(0),
            Part::Repeat(times) => times.times(self.samples),
            Part::Choose(samples) => Some(samples),
        }
    }

    /// Its weight relative to the other sources, in the first phase.
    pub(super) fn weight(&self) -> Weight {
        match self.part {
            Part::Weight(weight) => weight,
            _ => Weight::whole(self.chosen().unwrap_or(0)),
        }
    }

    /// Returns whether the source has no samples in the first phase.
    fn is_nothing(&self) -> bool {
        match self.part {
            Part::Weight(weight) => weight.is_zero(),
            _ => self.chosen() == Some(0),
        }
    }

    /// The difference, in words, between this source (of a state) and `new`.
    fn differs(&self, new: &Source) -> Option<String> {
        let name = &new.name;
        if self.identity != new.identity {
            return Some(format!("source {name} is {}, and was {}", new.identity, self.identity));
        }
        if self.samples != new.samples {
            let [old, new] = [self.samples, new.samples];
            return Some(format!("source {name} has {new} samples, and had {old}"));
        }
        (self.part != new.part).then(|| format!("source {name} has another part"))
    }
}

impl MixtureSpec {
    /// Checks everything that does not depend on the length of an epoch.
    pub(super) fn check_sources(&self) -> Result<()> {
        ensure(!self.sources.is_empty(), || "a mixture has at least one source")?;
        for (i, source) in self.sources.iter().enumerate() {
            let name = &source.name;
            ensure(source.samples > 0, || format!("source {name} has no samples"))?;
            if let Some(same) = self.sources[..i].iter().find(|one| one.identity == source.identity)
            {
                let first = &same.name;
                return Err(invalid(format!(
                    "sources {first} and {name} are the same data set: give it once, with the sum of both parts"
                )));
            }
        }
        self.check_phases()?;
        for (i, source) in self.sources.iter().enumerate() {
            let later = self.phases.iter().any(|phase| !phase.weights[i].is_zero());
            ensure(later || !source.is_nothing(), || {
                format!("source {} has a part of 0 in every phase: leave it out", source.name)
            })?;
        }
        Ok(())
    }

    fn check_phases(&self) -> Result<()> {
        let sources = self.sources.len();
        let mut before = 0;
        for (phase, Phase { from, weights }) in (1..).zip(&self.phases) {
            let weights = weights.len();
            ensure(weights == sources, || {
                format!("phase {phase} has {weights} weights for {sources} sources")
            })?;
            ensure(*from > before, || {
                format!(
                    "phase {phase} begins at {from} of the run, not after the one before, at {before}"
                )
            })?;
            before = *from;
        }
        Ok(())
    }

    /// Checks that a run over this mixture can resume where a run over `old` has consumed `consumed` positions.
    /// Phases that begin later may differ; earlier ones may not.
    ///
    /// # Errors
    /// The difference; the error names the source.
    pub fn check_resumed(&self, old: &MixtureSpec, consumed: u64) -> Result<()> {
        match self.difference(old, consumed) {
            None => Ok(()),
            Some(what) => Err(invalid(format!("the state belongs to another mixture: {what}"))),
        }
    }

    /// The first difference from `old` that prevents a run from resuming, in words.
    fn difference(&self, old: &MixtureSpec, consumed: u64) -> Option<String> {
        let begun = |spec: &MixtureSpec| spec.phases.partition_point(|phase| phase.from < consumed);
        let had = old.sources.len();
        let has = self.sources.len();
        if had != has {
            return Some(format!("it has {had} sources, not {has}"));
        }
        let mut sources = old.sources.iter().zip(&self.sources);
        if let Some(what) = sources.find_map(|(old, new)| old.differs(new)) {
            return Some(what);
        }
        let what = if old.epoch_size != self.epoch_size {
            "the epoch's size"
        } else if old.batching != self.batching {
            "the batching"
        } else if old.seed != self.seed {
            "the seed"
        } else if old.phases[..begun(old)] != self.phases[..begun(self)] {
            return Some(format!(
                "a phase before sample {consumed} of the run differs; only later ones may change"
            ));
        } else {
            return None;
        };
        Some(format!("{what} differs"))
    }
}

/// A weight, `repeat:T` or `choose:N`.
impl FromStr for Part {
    type Err = Error;

    fn from_str(text: &str) -> Result<Part, Error> {
        if let Some(times) = text.strip_prefix("repeat:") {
            return times.parse().map(Part::Repeat);
        }
        if let Some(samples) = text.strip_prefix("choose:") {
            let wrong = || {
                let text = shortened(samples);
                format!("choose takes a number of samples, such as choose:1000, not {text:?}")
            };
            return samples.parse().map(Part::Choose).map_err(|_| invalid(wrong()));
        }
        text.parse().map(Part::Weight)
    }
}

/// `stratified`, `random`, `per-source` (a batch of 0: that of the run) or `per-source:N`.
impl FromStr for Batching {
    type Err = Error;

    fn from_str(text: &str) -> Result<Batching, Error> {
        let batch = match text {
            "stratified" => return Ok(Batching::Stratified),
            "random" => return Ok(Batching::Random),
            "per-source" => Some(0),
            _ => {
                let batch = text.strip_prefix("per-source:").and_then(|batch| batch.parse().ok());
                batch.filter(|&batch| batch > 0)
            }
        };
        batch.map(|batch| Batching::PerSource { batch }).ok_or_else(|| {
            let text = shortened(text);
            invalid(format!("it is stratified, random, per-source or per-source:N, not {text:?}"))
        })
    }
}

/// `SAMPLE:WEIGHT,WEIGHT...`.
impl FromStr for Phase {
    type Err = Error;

    fn from_str(text: &str) -> Result<Phase, Error> {
        let wrong = || {
            let text = shortened(text);
            invalid(format!(
                "a phase is SAMPLE:WEIGHT,WEIGHT..., such as 500000:0.2,0.8, not {text:?}"
            ))
        };
        let (from, weights) = text.split_once(':').ok_or_else(wrong)?;
        let from = from.parse().map_err(|_| wrong())?;
        let weights = weights.split(',').map(str::parse::<Weight>).collect::<Result<_, _>>()?;
        Ok(Phase { from, weights })
    }
}

/// The beginning of `text`, for an error message.
pub(super) fn shortened(text: &str) -> String {
    text.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_ways_to_batch_and_phases_are_read_and_nothing_else_is() {
        let weight = |text: &str| text.parse::<Weight>().unwrap();
        let part = |text: &str| text.parse::<Part>().unwrap();
        assert_eq!(part("0.3"), Part::Weight(weight("0.3")));
        assert_eq!(part("repeat:2.5"), Part::Repeat(weight("2.5")));
        assert_eq!(part("choose:7"), Part::Choose(7));
        for wrong in ["", "-1", "x", "repeat:", "choose:1.5", "choose:-1", "choose:"] {
            assert!(wrong.parse::<Part>().is_err(), "{wrong}");
        }
        let batching = |text: &str| text.parse::<Batching>().unwrap();
        assert_eq!(batching("random"), Batching::Random);
        assert_eq!(batching("per-source"), Batching::PerSource { batch: 0 });
        assert_eq!(batching("per-source:64"), Batching::PerSource { batch: 64 });
        for wrong in ["", "per-source:", "per-source:0", "per_source:-1", "chunk"] {
            assert!(wrong.parse::<Batching>().is_err(), "{wrong}");
        }
        let phase: Phase = "500:0.2,0".parse().unwrap();
        assert_eq!((phase.from, phase.weights), (500, vec![weight("0.2"), Weight::ZERO]));
        for wrong in ["", "500", "500:", ":1", "-1:1,2", "5:1,,2", "5:1;2"] {
            assert!(wrong.parse::<Phase>().is_err(), "{wrong}");
        }
    }
}
