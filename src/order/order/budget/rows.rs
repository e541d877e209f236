//! Rows of tokens: the rule that documents fill them by, phases of their length, and places to go on from.

use std::fmt;

use serde::{Deserialize, Serialize};

use dlfs_base::error::{Error, invalid};

/// The way in which documents fill rows of tokens. The rows of an epoch depend only on {order, seed, epoch, lengths}.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowSpec {
    /// The rule by which documents are packed.
    pub pack: Pack,
    /// True if a separator follows each document: one more token.
    pub separated: bool,
    /// True if documents longer than a row are cut into pieces; otherwise they are an error. In `concat` all
    /// documents may be cut.
    pub cuts: bool,
}

/// The rules by which documents are packed into rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pack {
    /// All documents of an epoch end to end, cut into rows.
    #[default]
    Concat,
    /// The documents of each window, whole, by best-fit decreasing.
    BestFit,
    /// One document a row; those of a window in buckets of similar lengths.
    None,
}

/// A phase of each epoch: rows have another length from a number of tokens on.
///
/// Each row counts its length as tokens, whatever it holds. In `concat` the phase begins with the first row that has at
/// least `from` tokens of the epoch before it, otherwise with the first window whose first row does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowPhase {
    /// The tokens of the epoch before it.
    pub from: u64,
    /// The length of a row.
    pub seq_len: u32,
}

/// A place in an epoch from which rows can be dealt without a look at the documents before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowPlace {
    /// A position of the epoch. In `concat`, the document there has the first token of the next row; otherwise a window
    /// begins there, which has the next row.
    pub position: u64,
    /// The tokens before it: those of documents in `concat`, otherwise those that rows count.
    pub tokens: u64,
    /// The rows before it; 0 in `concat`, where tokens tell them.
    pub rows: u64,
    /// A word made of all numbers on which the place depends, so that a damaged one is refused. A
    /// [`State`](crate::order::State) sets it.
    #[serde(default)]
    pub check: u64,
}

/// The error for a place that is not that of row `consumed`.
pub fn wrong_place(place: &RowPlace, consumed: u64) -> Error {
    let position = place.position;
    invalid(format!(
        "the state's place, position {position} of its epoch, is not that of its {consumed} rows"
    ))
    .hint(
        "the state is damaged, or lengths differ from those that the run began with: if it is sure that they do not, \
         take `place` out of the state, and the rows are found by the lengths of all documents before them",
    )
}

impl fmt::Display for Pack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Pack::Concat => "concat",
            Pack::BestFit => "best_fit",
            Pack::None => "none",
        })
    }
}
