//! Why there are no batches by a budget.

use super::MAX_WINDOW;
use dlfs_base::error::{Error, ErrorKind};
use dlfs_base::units::SampleId;

/// Why there are no batches by a budget.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BudgetError {
    /// A budget of 0.
    #[error("a batch has a budget of at least one token")]
    NoTokens,
    /// A window of no position, or of too many.
    #[error("samples are sorted by length in windows of 1 to {MAX_WINDOW} positions, not {window}")]
    Window {
        /// The requested value.
        window: u32,
    },
    /// Batches without samples.
    #[error("a batch has at least one sample")]
    NoSamples,
    /// A token of 0 bytes.
    #[error("a token has at least one byte")]
    NoBytes,
    /// A sample that no batch has room for.
    #[error("sample {sample} has {tokens} tokens, more than the {budget} of a batch")]
    TooLong {
        /// Its id.
        sample: SampleId,
        /// Its tokens.
        tokens: u32,
        /// The most of a batch.
        budget: u64,
    },
    /// No column of that name.
    #[error("there is no column {name:?} with lengths: {}", there_are(known))]
    NoColumn {
        /// The name.
        name: String,
        /// The columns of ints.
        known: Vec<String>,
    },
    /// A column of something else.
    #[error("column {name:?} holds no ints, so they are no lengths")]
    NoInts {
        /// The name.
        name: String,
    },
    /// A sample without a length.
    #[error("sample {sample} has no value in {column:?}, so it has no length")]
    NoLength {
        /// Its id.
        sample: SampleId,
        /// The column.
        column: String,
    },
    /// A length below 0.
    #[error("the length of sample {sample} is {value} by {column:?}: lengths are at least 0")]
    Negative {
        /// Its id.
        sample: SampleId,
        /// Its length.
        value: i64,
        /// The column.
        column: String,
    },
    /// A number of batches beside the budget.
    #[error("batches have either a number of samples or a budget of tokens, not both")]
    Both,
    /// An option of batches of equal size.
    #[error("batches by a budget of tokens go to ranks as wholes: {what}")]
    Shares {
        /// The option that does not go with a budget.
        what: &'static str,
    },
    /// A place within a batch.
    #[error(
        "the state has consumed {consumed} samples of its epoch, which is within a batch of this budget"
    )]
    Between {
        /// The samples that the state has consumed.
        consumed: u64,
    },
}

impl From<BudgetError> for Error {
    fn from(error: BudgetError) -> Error {
        let hint = match &error {
            BudgetError::TooLong { .. } => {
                "raise the budget, leave such samples out by a view (len <= N), or give them batches of their own: \
                 too_long=\"alone\", in the command --too-long alone"
            }
            BudgetError::NoLength { .. } | BudgetError::Negative { .. } => {
                "open a view of the samples that have lengths (dlfs select), or import the column again"
            }
            BudgetError::NoColumn { .. } | BudgetError::NoInts { .. } => {
                "name a column of ints, or leave the lengths out: bytes then count"
            }
            BudgetError::Between { .. } => {
                "lengths differ from those that the run began with: resume over the same data, or start anew"
            }
            _ => return Error::new(ErrorKind::InvalidArgument, error.to_string()),
        };
        Error::new(ErrorKind::InvalidArgument, error.to_string()).hint(hint)
    }
}

fn there_are(known: &[String]) -> String {
    match known {
        [] => "no column has ints".to_owned(),
        known => format!("those of ints are {}", known.join(", ")),
    }
}
