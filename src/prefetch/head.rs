//! The position of a batch in a run.

use crate::order::budget::{Dealt, RowPlace};
use crate::units::Epoch;

/// The position of a batch in the run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Head {
    pub(crate) epoch: Epoch,
    /// True for the last batch of its epoch on this rank.
    pub(crate) ends_epoch: bool,
    /// The state of the run once all ranks have consumed the batch: epoch, and positions of that epoch.
    pub(crate) after: (Epoch, u64),
    /// The place from which it goes on, if batches are of rows of tokens.
    pub(crate) place: Option<RowPlace>,
    /// Samples that are left to the rank, or to all ranks of a node, in the epoch behind the batch, dropped ones
    /// included. Not counted for batches by a budget.
    pub(crate) left: u64,
}

impl Head {
    /// The head of a batch of `epoch` that ends after `consumed` positions.
    pub(super) fn new(epoch: Epoch, ends_epoch: bool, consumed: u64) -> Head {
        let after = if ends_epoch { (Epoch(epoch.0 + 1), 0) } else { (epoch, consumed) };
        Head { epoch, ends_epoch, after, place: None, left: 0 }
    }

    /// The head of a batch by a budget.
    pub(super) fn of_dealt(epoch: Epoch, dealt: &Dealt) -> Head {
        let Dealt { consumed, ends_epoch, place } = *dealt;
        Head { place, ..Head::new(epoch, ends_epoch, consumed) }
    }
}
