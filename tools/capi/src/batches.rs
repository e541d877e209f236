//! Weights by which a sequence draws samples.

use std::collections::BTreeMap;
use std::sync::Arc;

use dlfs::directory::Directory;
use dlfs::order::weighted::{Draws, LabelWeights, Weights};
use dlfs::prefetch::LoaderOptions;

use crate::error::Failure;
use crate::options::{DLFS_ORDER_WEIGHTED, SequenceOptions, flag};
use crate::structs::array;

impl SequenceOptions {
    /// `options` with samples of `directory` drawn by the weights, if the order is weighted.
    ///
    /// # Safety
    /// `weights` and `weight_labels` are NULL or have `num_weights` entries.
    pub(crate) unsafe fn weighted(
        &self,
        options: LoaderOptions,
        draws: Draws,
        directory: Option<&Directory>,
    ) -> Result<LoaderOptions, Failure> {
        let is_balanced = flag(self.balanced, "balanced")?;
        if self.order != DLFS_ORDER_WEIGHTED {
            let has_weights = self.num_weights > 0 || !self.weights.is_null();
            for (what, is_given) in [
                ("weights", has_weights || !self.weight_labels.is_null()),
                ("balanced", is_balanced),
                ("without_replacement", !draws.replacement),
                ("epoch_size", draws.epoch_size.is_some()),
            ] {
                if is_given {
                    return Err(Failure::invalid(format!("{what} is for DLFS_ORDER_WEIGHTED")));
                }
            }
            return Ok(options);
        }
        let Some(directory) = directory else {
            let text = "weights are of the samples of one data set, not of a mixture";
            return Err(Failure::invalid(text));
        };
        // SAFETY: the caller promises `num_weights` entries in both arrays, unless they are NULL.
        let (numbers, labels) = unsafe {
            let labels = if self.weight_labels.is_null() {
                None
            } else {
                Some(array(self.weight_labels, self.num_weights, "weight_labels")?)
            };
            (array(self.weights, self.num_weights, "weights")?, labels)
        };
        let len = directory.num_live();
        let is_given = !numbers.is_empty();
        let by_label = match (labels, is_balanced) {
            (None, false) => None,
            (None, true) if !is_given => Some(LabelWeights::Balanced),
            (Some(labels), false) => Some(LabelWeights::Each(each(labels, numbers)?)),
            (_, true) => {
                let text = "balanced gives each label the same share: leave the weights out";
                return Err(Failure::invalid(text));
            }
        };
        let weights = match by_label {
            None if !is_given => {
                let text = "a weighted order draws by weights: set weights, or balanced";
                return Err(Failure::invalid(text));
            }
            None => Weights::of_samples(len, numbers, draws),
            Some(by_label) => {
                let labels = (0..len).map(|rank| directory.label(directory.id_of_live(rank)));
                Weights::of_labels(len, labels, &by_label, draws)
            }
        };
        Ok(options.weighted(Arc::new(weights?)))
    }
}

/// The weight of each label.
fn each(labels: &[i64], weights: &[f64]) -> Result<BTreeMap<i64, f64>, Failure> {
    let mut each = BTreeMap::new();
    for (&label, &weight) in labels.iter().zip(weights) {
        if each.insert(label, weight).is_some() {
            return Err(Failure::invalid(format!("label {label} has two weights")));
        }
    }
    Ok(each)
}
