//! The order of a run over a data set or over a source of a mixture, in the current epoch.

use std::sync::Arc;

use crate::directory::Directory;
use crate::error::Result;
use crate::order::weighted::Weights;
use crate::order::{EpochOrder, OrderSpec};
use crate::units::Epoch;

/// The order of a data set or of a source. The next epoch reuses the memory of this one.
pub(super) struct RunOrder {
    directory: Arc<Directory>,
    spec: OrderSpec,
    /// The weights that a weighted order draws by.
    weights: Option<Arc<Weights>>,
    pub(super) current: Option<EpochOrder>,
    /// A source of a mixture also keeps the order of its previous epoch: around an epoch's end, batches may
    /// alternate between both.
    other: Option<EpochOrder>,
    /// Set for a source of a mixture.
    alternates: bool,
}

impl RunOrder {
    pub(super) fn new(
        directory: Arc<Directory>,
        spec: OrderSpec,
        weights: Option<Arc<Weights>>,
    ) -> RunOrder {
        RunOrder { directory, spec, weights, current: None, other: None, alternates: false }
    }

    /// The order of a source of a mixture.
    pub(super) fn of_source(directory: Arc<Directory>, spec: OrderSpec) -> RunOrder {
        RunOrder { alternates: true, ..RunOrder::new(directory, spec, None) }
    }

    /// Makes `epoch` the current one; returns its order and the directory.
    ///
    /// # Errors
    /// The epoch does not exist.
    pub(super) fn enter(&mut self, epoch: Epoch) -> Result<(&mut EpochOrder, &Directory)> {
        let RunOrder { directory, spec, weights, current, other, alternates } = self;
        let is_at = |order: &EpochOrder| order.epoch() == epoch;
        if *alternates && !current.as_ref().is_some_and(is_at) {
            std::mem::swap(current, other);
        }
        let order = match current {
            Some(order) => {
                if !is_at(order) {
                    order.begin_epoch(spec, epoch, &**directory)?;
                }
                order
            }
            none => none.insert(order_of(spec, epoch, directory, weights.as_ref())?),
        };
        Ok((order, directory))
    }
}

/// The order of `spec` in `epoch`; weighted orders draw by `weights`.
pub(super) fn order_of(
    spec: &OrderSpec,
    epoch: Epoch,
    directory: &Directory,
    weights: Option<&Arc<Weights>>,
) -> Result<EpochOrder> {
    Ok(match weights {
        Some(weights) => EpochOrder::weighted(spec, epoch, directory, weights)?,
        None => EpochOrder::new(spec, epoch, directory)?,
    })
}
