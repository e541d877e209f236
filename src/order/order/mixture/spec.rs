//! The description of a mixture, and the state of a run over it.

use serde::{Deserialize, Serialize};

use super::{MixtureError, Weight};

/// A mixture: runs with equal descriptions read equal sequences.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MixtureSpec {
    /// The mixed sources.
    pub sources: Vec<Source>,
    /// Samples of an epoch. `None`: what `repeat` and `choose` say, or as many as all sources have.
    pub epoch_size: Option<u64>,
    /// How positions are dealt to sources.
    pub batching: Batching,
    /// Later weights, in the order of their starts. The parts of the sources hold before the first of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<Phase>,
    /// The seed of what deals positions to sources; each source's order has its own.
    pub seed: u64,
}

/// A data set of a mixture.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// The name that messages use.
    pub name: String,
    /// The image and its generation, or whatever else tells data sets apart.
    pub identity: String,
    /// Its samples.
    pub samples: u64,
    /// Its part.
    pub part: Part,
}

/// The part of a source in an epoch: MosaicML's `proportion`, `repeat` and `choose`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Its weight beside the other sources.
    Weight(Weight),
    /// So many times its samples, rounded down.
    Repeat(Weight),
    /// So many samples.
    Choose(u64),
}

/// How positions are dealt to sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Batching {
    /// Every global batch has its share of each source.
    Stratified,
    /// As chance has it.
    Random,
    /// Each global batch is of one source. The number of its samples is part of the sequence.
    PerSource {
        /// Samples of a global batch.
        batch: u64,
    },
}

impl Batching {
    /// Positions that are dealt together.
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
    /// The first position of the run that has them.
    pub from: u64,
    /// One for each source; 0 leaves it out.
    pub weights: Vec<Weight>,
}

impl Source {
    /// Samples in an epoch, if its part is a number of them; `None` if that exceeds 64 bits.
    pub(super) fn chosen(&self) -> Option<u64> {
        match self.part {
            Part::Weight(_) => Some(0),
            Part::Repeat(times) => times.times(self.samples),
            Part::Choose(samples) => Some(samples),
        }
    }

    /// Its weight beside the other sources, in the first phase.
    pub(super) fn weight(&self) -> Weight {
        match self.part {
            Part::Weight(weight) => weight,
            _ => Weight::whole(self.chosen().unwrap_or(0)),
        }
    }

    fn is_nothing(&self) -> bool {
        match self.part {
            Part::Weight(weight) => weight.is_zero(),
            _ => self.chosen() == Some(0),
        }
    }
}

impl MixtureSpec {
    /// Checks all that can be said without the length of an epoch.
    pub(super) fn check_sources(&self) -> Result<(), MixtureError> {
        if self.sources.is_empty() {
            return Err(MixtureError::NoSources);
        }
        for (i, source) in self.sources.iter().enumerate() {
            let name = || source.name.clone();
            if source.samples == 0 {
                return Err(MixtureError::Empty { source_name: name() });
            }
            if let Some(same) = self.sources[..i].iter().find(|one| one.identity == source.identity)
            {
                return Err(MixtureError::Twice { first: same.name.clone(), second: name() });
            }
        }
        self.check_phases()?;
        for (i, source) in self.sources.iter().enumerate() {
            let later = self.phases.iter().any(|phase| !phase.weights[i].is_zero());
            if !later && source.is_nothing() {
                return Err(MixtureError::Unused { source_name: source.name.clone() });
            }
        }
        Ok(())
    }

    fn check_phases(&self) -> Result<(), MixtureError> {
        let sources = self.sources.len();
        let mut before = 0;
        for (phase, Phase { from, weights }) in (1..).zip(&self.phases) {
            if weights.len() != sources {
                let weights = weights.len();
                return Err(MixtureError::PhaseWeights { phase, weights, sources });
            }
            if *from <= before {
                return Err(MixtureError::PhaseOrder { phase, from: *from, before });
            }
            before = *from;
        }
        Ok(())
    }
}

/// The state of a run over a mixture: all that is needed to resume it exactly.
///
/// It holds neither world size nor batch size, and no position of any source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MixtureState {
    /// Version of this record; other versions are refused.
    pub version: u32,
    /// The mixture that is read.
    pub mixture: MixtureSpec,
    /// Positions of the run that all ranks together have consumed.
    pub consumed: u64,
}

impl MixtureState {
    /// The start of a run.
    pub fn start(mixture: MixtureSpec) -> MixtureState {
        MixtureState { version: VERSION, mixture, consumed: 0 }
    }

    /// Checks that a run over `mixture` can resume from this state. Phases that begin after what is consumed may
    /// differ; the past is fixed.
    ///
    /// # Errors
    /// `State`: what differs, and of which source.
    pub fn check(&self, mixture: &MixtureSpec) -> Result<(), MixtureError> {
        let refuse = |what: String| Err(MixtureError::State { what });
        if self.version != VERSION {
            return refuse(format!("its record has version {}, not {VERSION}", self.version));
        }
        let old = &self.mixture;
        let new = mixture;
        if old.sources.len() != new.sources.len() {
            return refuse(format!(
                "it has {} sources, not {}",
                old.sources.len(),
                new.sources.len()
            ));
        }
        for (old, new) in old.sources.iter().zip(&new.sources) {
            if let Some(what) = old.differs(new) {
                return refuse(format!("source {} {what}", new.name));
            }
        }
        for (what, differs) in [
            ("the epoch's size", old.epoch_size != new.epoch_size),
            ("the batching", old.batching != new.batching),
            ("the seed", old.seed != new.seed),
        ] {
            if differs {
                return refuse(format!("{what} differs"));
            }
        }
        let past =
            |spec: &MixtureSpec| spec.phases.partition_point(|phase| phase.from < self.consumed);
        let begun = &old.phases[..past(old)];
        let given = &new.phases[..past(new)];
        if begun == given {
            Ok(())
        } else {
            refuse(format!(
                "a phase before sample {} of the run differs; only later ones may change",
                self.consumed
            ))
        }
    }
}

impl Source {
    /// The difference between this source of a state and `new`, in words.
    fn differs(&self, new: &Source) -> Option<String> {
        if self.identity != new.identity {
            return Some(format!("is {}, and was {}", new.identity, self.identity));
        }
        if self.samples != new.samples {
            return Some(format!("has {} samples, and had {}", new.samples, self.samples));
        }
        (self.part != new.part).then(|| "has another part".to_owned())
    }
}

const VERSION: u32 = 1;
