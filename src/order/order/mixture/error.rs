//! Errors of a mixture's definition.

use dlfs_base::error::{Error, ErrorKind};

/// Why a description makes no mixture, or a state belongs to another one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MixtureError {
    /// A weight is no decimal number.
    #[error("{text:?} is no weight: weights are decimal numbers of at most 18 digits, such as 0.7")]
    Weight {
        /// The given text.
        text: String,
    },
    /// A part, a way to batch or a phase that cannot be read.
    #[error("{what}")]
    Text {
        /// The expected form, and the given text.
        what: String,
    },
    /// No sources.
    #[error("a mixture has at least one source")]
    NoSources,
    /// A source without samples.
    #[error("source {source_name} has no samples")]
    Empty {
        /// Its name.
        source_name: String,
    },
    /// A data set twice.
    #[error(
        "sources {first} and {second} are the same data set: give it once, with the sum of both parts"
    )]
    Twice {
        /// Its name.
        first: String,
        /// Its other name.
        second: String,
    },
    /// A source that is never read.
    #[error("source {source_name} has a part of 0 in every phase: leave it out")]
    Unused {
        /// Its name.
        source_name: String,
    },
    /// Weights beside numbers of samples.
    #[error(
        "source {first} has a weight and source {second} a number of samples: give weights to all, or \
         repeat or choose to all"
    )]
    MixedParts {
        /// A source with a weight.
        first: String,
        /// A source with `repeat` or `choose`.
        second: String,
    },
    /// A size of the epoch beside numbers of samples.
    #[error(
        "the epoch has {chosen} samples by repeat and choose: leave the epoch's size of {asked} out"
    )]
    EpochSize {
        /// The given size.
        asked: u64,
        /// The sum of what sources have.
        chosen: u64,
    },
    /// An epoch without positions, or with too many.
    #[error("an epoch of a mixture has 1 to {MAX_EPOCH} samples, not {size}")]
    EpochLength {
        /// The size.
        size: u64,
    },
    /// Weights that differ too much.
    #[error("the weights of phase {phase} differ by more than 18 digits: write fewer")]
    WeightsApart {
        /// The phase, counted from 0.
        phase: usize,
    },
    /// A phase in which nothing is read.
    #[error("all weights of phase {phase} are 0")]
    NoWeight {
        /// The phase, counted from 0.
        phase: usize,
    },
    /// A phase with weights for another number of sources.
    #[error("phase {phase} has {weights} weights for {sources} sources")]
    PhaseWeights {
        /// The phase, counted from 1: the first one has the parts of the sources.
        phase: usize,
        /// Its weights.
        weights: usize,
        /// The sources of the mixture.
        sources: usize,
    },
    /// Phases that do not follow each other.
    #[error(
        "phase {phase} begins at sample {from} of the run, not after the one before, at {before}"
    )]
    PhaseOrder {
        /// The phase, counted from 1.
        phase: usize,
        /// The sample at which it begins.
        from: u64,
        /// The sample at which the one before begins.
        before: u64,
    },
    /// Whole batches of one source need whole batches.
    #[error("batches of one source need {what} of whole batches of {batch}, not {len} samples")]
    NoWholeBatches {
        /// An epoch, or a phase's start.
        what: &'static str,
        /// Its length.
        len: u64,
        /// Samples of a global batch.
        batch: u64,
    },
    /// A state of another mixture.
    #[error("the state belongs to another mixture: {what}")]
    State {
        /// The difference.
        what: String,
    },
}

impl From<MixtureError> for Error {
    fn from(error: MixtureError) -> Error {
        Error::new(ErrorKind::InvalidArgument, error.to_string())
    }
}

/// The longest epoch: positions of a run of 2^24 epochs fit 64 bits.
pub(super) const MAX_EPOCH: u64 = 1 << 40;
