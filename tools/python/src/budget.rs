//! Batches by a budget of tokens, as Python asks for them.

use dlfs::order::budget::{Budget, BudgetError, Cost, DEFAULT_WINDOW, LengthsOf, TooLong};
use dlfs::prefetch::LoaderOptions;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::{raise, raise_invalid};
use crate::options::{about, at_least_one, given_or};

/// The options of batches by tokens.
pub(crate) const KEYWORDS: [&str; 7] = [
    "batch_tokens",
    "bucket_window",
    "max_batch",
    "token_bytes",
    "lengths",
    "batch_cost",
    "too_long",
];

/// `options` with the budget that is given, if one is.
///
/// # Errors
/// `InvalidArgument`: numbers out of range; neither a number of samples nor a budget, or both; options of a budget
/// without one.
pub(crate) fn apply(given: &Bound<'_, PyDict>, options: LoaderOptions) -> PyResult<LoaderOptions> {
    let py = given.py();
    let budget = read(given)?;
    let Some(tokens) = number::<u64>(given, "batch_tokens")? else {
        let plain = Budget::new(1);
        let (budget, too_long) = budget;
        for (option, is_given) in [
            ("bucket_window", budget.window != plain.window),
            ("max_batch", budget.max_samples.is_some()),
            ("token_bytes", !matches!(budget.lengths, LengthsOf::Bytes(1) | LengthsOf::Column(_))),
            ("lengths", matches!(budget.lengths, LengthsOf::Column(_))),
            ("batch_cost", budget.cost != plain.cost),
            ("too_long", too_long != TooLong::Raise),
        ] {
            if is_given {
                let text = format!("{option} is of batches by tokens: give batch_tokens, too");
                return Err(raise_invalid(py, text));
            }
        }
        if given.get_item("batch_size")?.is_some_and(|size| size.is_none()) {
            let text =
                "a batch has a number of samples or of tokens: give batch_size or batch_tokens";
            return Err(raise_invalid(py, text.into()));
        }
        return Ok(options);
    };
    if given.get_item("batch_size")?.is_some_and(|size| !size.is_none()) {
        return Err(raise(py, &BudgetError::Both.into()));
    }
    let (budget, too_long) = budget;
    let budget = Budget { tokens, ..budget };
    budget.check().map_err(|error| raise(py, &error.into()))?;
    Ok(LoaderOptions { too_long, ..options.by_budget(budget) })
}

/// All options but the number of tokens.
fn read(given: &Bound<'_, PyDict>) -> PyResult<(Budget, TooLong)> {
    let py = given.py();
    let token_bytes = number::<u32>(given, "token_bytes")?.unwrap_or(1);
    let column = given_or(given, "lengths", None::<String>)?;
    if column.is_some() && token_bytes != 1 {
        let text = "token_bytes counts bytes, and lengths names a column instead: give one of both";
        return Err(raise_invalid(py, text.into()));
    }
    let cost = match &*given_or(given, "batch_cost", "padded".to_owned())? {
        "padded" => Cost::Padded,
        "sum" => Cost::Sum,
        other => {
            let text = format!("batch_cost is \"padded\" or \"sum\", not {other:?}");
            return Err(raise_invalid(py, text));
        }
    };
    let too_long = match &*given_or(given, "too_long", "raise".to_owned())? {
        "raise" => TooLong::Raise,
        "alone" => TooLong::Alone,
        other => {
            let text = format!("too_long is \"raise\" or \"alone\", not {other:?}");
            return Err(raise_invalid(py, text));
        }
    };
    let budget = Budget {
        tokens: 1,
        window: number(given, "bucket_window")?.unwrap_or(DEFAULT_WINDOW),
        max_samples: number(given, "max_batch")?,
        cost,
        lengths: column.map_or(LengthsOf::Bytes(token_bytes), LengthsOf::Column),
    };
    Ok((budget, too_long))
}

/// A number of at least 1; `None` if it is absent or None.
fn number<T: TryFrom<i64>>(given: &Bound<'_, PyDict>, key: &str) -> PyResult<Option<T>> {
    match given.get_item(key)? {
        Some(value) if !value.is_none() => about(key, &value, at_least_one(key, &value)).map(Some),
        _ => Ok(None),
    }
}
