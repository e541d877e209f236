//! Weights by which a sequence draws samples, and budgets of tokens by which it cuts batches.

use std::collections::BTreeMap;
use std::sync::Arc;

use dlfs::directory::Directory;
use dlfs::order::budget::{Budget, BudgetError, Cost, DEFAULT_WINDOW, LengthsOf, TooLong};
use dlfs::order::weighted::{Draws, LabelWeights, Weights};
use dlfs::prefetch::LoaderOptions;

use crate::error::Failure;
use crate::options::{
    DLFS_COST_PADDED, DLFS_COST_SUM, DLFS_ORDER_WEIGHTED, DLFS_TOO_LONG_ALONE, DLFS_TOO_LONG_RAISE,
    SequenceOptions, flag, unknown,
};
use crate::structs::{array, utf8};

impl SequenceOptions {
    /// `options` with samples of `directory` drawn by the weights, if the order is weighted.
    ///
    /// # Safety
    /// `weights` and `weight_labels` are NULL or have `num_weights` entries.
    pub(crate) unsafe fn weighted(
        &self,
        options: LoaderOptions,
        directory: Option<&Directory>,
    ) -> Result<LoaderOptions, Failure> {
        let is_balanced = flag(self.balanced, "balanced")?;
        let is_once = flag(self.without_replacement, "without_replacement")?;
        if self.order != DLFS_ORDER_WEIGHTED {
            let has_weights = self.num_weights > 0 || !self.weights.is_null();
            for (what, is_given) in [
                ("weights", has_weights || !self.weight_labels.is_null()),
                ("balanced", is_balanced),
                ("without_replacement", is_once),
                ("epoch_size", self.epoch_size != 0),
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
        // SAFETY: by this function's own contract.
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
        let draws = Draws {
            replacement: !is_once,
            epoch_size: (self.epoch_size != 0).then_some(self.epoch_size),
        };
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
        Ok(options.weighted(Arc::new(weights.map_err(dlfs::Error::from)?)))
    }

    /// `options` with the budget of tokens, if there is one.
    ///
    /// # Safety
    /// `lengths` is NULL or ends with NUL.
    pub(crate) unsafe fn budgeted(&self, options: LoaderOptions) -> Result<LoaderOptions, Failure> {
        let cost = match self.batch_cost {
            DLFS_COST_PADDED => Cost::Padded,
            DLFS_COST_SUM => Cost::Sum,
            other => return Err(unknown("batch_cost", other)),
        };
        let too_long = match self.too_long {
            DLFS_TOO_LONG_RAISE => TooLong::Raise,
            DLFS_TOO_LONG_ALONE => TooLong::Alone,
            other => return Err(unknown("too_long", other)),
        };
        if self.batch_tokens == 0 {
            for (what, is_given) in [
                ("bucket_window", self.bucket_window != 0),
                ("max_batch", self.max_batch != 0),
                ("token_bytes", self.token_bytes != 0),
                ("lengths", !self.lengths.is_null()),
                ("batch_cost", cost != Cost::Padded),
                ("too_long", too_long != TooLong::Raise),
            ] {
                if is_given {
                    let text = format!("{what} is of batches by tokens: set batch_tokens, too");
                    return Err(Failure::invalid(text));
                }
            }
            return Ok(options);
        }
        if self.batch_size != 0 {
            return Err(dlfs::Error::from(BudgetError::Both).into());
        }
        let lengths = match (self.lengths.is_null(), self.token_bytes) {
            (true, bytes) => LengthsOf::Bytes(bytes.max(1)),
            // SAFETY: not NULL, so it ends with NUL by this function's own contract.
            (false, 0) => LengthsOf::Column(unsafe { utf8(self.lengths, "lengths")? }.to_owned()),
            (false, _) => {
                let text = "token_bytes counts bytes, and lengths names a column instead";
                return Err(Failure::invalid(text));
            }
        };
        let window = if self.bucket_window == 0 { DEFAULT_WINDOW } else { self.bucket_window };
        let max_samples = (self.max_batch != 0).then_some(self.max_batch);
        let budget =
            Budget { window, max_samples, cost, lengths, ..Budget::new(self.batch_tokens) };
        let options = LoaderOptions { too_long, batch_size: 1, ..options };
        Ok(options.by_budget(budget))
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
