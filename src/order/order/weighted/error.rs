//! Why weights cannot be drawn by.

use dlfs_base::error::{Error, ErrorKind};

/// Why weights cannot be drawn by.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// A sample's weight is negative or not finite.
    #[error("the weight of sample {sample} is {weight}: weights are finite numbers, at least 0")]
    Number {
        /// The sample's number, in the order of ids.
        sample: u64,
        /// Its weight.
        weight: f64,
    },
    /// Not one weight, or label, for each sample.
    #[error("there are {given} weights for {samples} samples")]
    Len {
        /// The number of weights given.
        given: u64,
        /// Samples of the data set or view.
        samples: u64,
    },
    /// All weights are 0, or there is no sample.
    #[error("no sample has a weight above 0, so none can be drawn")]
    Zero,
    /// A sample without a label.
    #[error("sample {sample} has no label, so it has no weight")]
    NoLabel {
        /// The sample's number, in the order of ids.
        sample: u64,
    },
    /// A label with a weight that no sample has.
    #[error("no sample has label {label}, for which a weight is given")]
    LabelAbsent {
        /// The label.
        label: i64,
    },
    /// A label of samples without a weight.
    #[error("label {label}, which sample {sample} has, is given no weight")]
    LabelWeight {
        /// The label.
        label: i64,
        /// The first sample that has it, in the order of ids.
        sample: u64,
    },
    /// A label's weight is negative or not finite.
    #[error("the weight of label {label} is {weight}: weights are finite numbers, at least 0")]
    LabelNumber {
        /// The label.
        label: i64,
        /// Its weight.
        weight: f64,
    },
    /// An epoch of no sample, or of more than there are.
    #[error("an epoch of {epoch_size} samples: {}", of_epochs(*most, *replacement))]
    EpochSize {
        /// The requested value.
        epoch_size: u64,
        /// The most.
        most: u64,
        /// True if samples may be drawn several times.
        replacement: bool,
    },
    /// More samples than tables have numbers for.
    #[error("{samples} samples: weights are for at most 4294967295")]
    TooMany {
        /// Samples of the data set or view.
        samples: u64,
    },
}

impl From<WeightsError> for Error {
    fn from(error: WeightsError) -> Error {
        let hint = match error {
            WeightsError::Len { .. } => {
                "give one for each sample of the data set or view that is open, in the order of ids"
            }
            WeightsError::NoLabel { .. } => {
                "give weights by sample, or open a view of the samples with labels (dlfs select)"
            }
            WeightsError::LabelWeight { .. } => "0 leaves the samples of a label out",
            WeightsError::EpochSize { replacement: false, .. } => {
                "draw with replacement, or take shorter epochs"
            }
            _ => return Error::new(ErrorKind::InvalidArgument, error.to_string()),
        };
        Error::new(ErrorKind::InvalidArgument, error.to_string()).hint(hint)
    }
}

fn of_epochs(most: u64, replacement: bool) -> String {
    if replacement {
        format!("it has from 1 to {most}")
    } else {
        format!("without replacement it has from 1 to {most}, those of a weight above 0")
    }
}
