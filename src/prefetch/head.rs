//! The position of a batch in a run.

use crate::units::Epoch;

/// The position of a batch in the run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Head {
    pub(crate) epoch: Epoch,
    /// True for the last batch of its epoch on this rank.
    pub(crate) ends_epoch: bool,
    /// The state of the run once all ranks have consumed it: epoch, and positions of that epoch.
    pub(crate) after: (Epoch, u64),
}
