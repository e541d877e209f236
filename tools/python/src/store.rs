//! The share of a rank in its own storage, as Python says it.

use dlfs::cache::TierSpec;
use dlfs::dataset::Dataset;
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::ConnectOptions;
use dlfs::store::{StoreOptions, StoreStats};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::raise;
use crate::options::{about, given_or};
use crate::peers::Join;
use crate::watch::detached;

/// The keywords that say how a rank keeps its share.
pub(crate) const KEYWORDS: [&str; 3] = ["store", "blocking_exchange", "restart_shares"];

/// What the keywords say; `None` without `store`.
pub(crate) fn options(given: &Bound<'_, PyDict>) -> PyResult<Option<StoreOptions>> {
    let Some(store) = given.get_item("store")?.filter(|store| !store.is_none()) else {
        return Ok(None);
    };
    let text: String = about("store", &store, store.extract())?;
    let spec: TierSpec = text.parse().map_err(|error| raise(given.py(), &error))?;
    let blocking = given_or(given, "blocking_exchange", false)?;
    Ok(Some(StoreOptions { blocking, ..StoreOptions::new(spec) }))
}

/// Brings the share of the rank of `run` into its store, and joins the other ranks.
pub(crate) fn fill(
    py: Python<'_>,
    dataset: &Dataset,
    options: StoreOptions,
    join: Option<&Join>,
    (run, connect): (&LoaderOptions, &ConnectOptions),
) -> PyResult<Dataset> {
    let Some(join) = join else {
        return detached(py, |watch| {
            dataset.with_store(options, run, None, (connect, None), watch, |_| ())
        });
    };
    let meeting = join.meeting(py)?;
    join.meet(py, |object, watch| {
        dataset.with_store(options, run, Some(&meeting), (connect, object), watch, |_| ())
    })
}

/// The counters as a dict.
pub(crate) fn to_dict<'py>(py: Python<'py>, stats: &StoreStats) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("held_bytes", stats.held_bytes)?;
    dict.set_item("peak_bytes", stats.peak_bytes)?;
    dict.set_item("found", stats.found)?;
    dict.set_item("staged", stats.staged)?;
    dict.set_item("received", stats.received)?;
    dict.set_item("received_bytes", stats.received_bytes)?;
    dict.set_item("from_origin", stats.from_origin)?;
    dict.set_item("deleted", stats.deleted)?;
    dict.set_item("mismatched", stats.mismatched)?;
    dict.set_item("steps", stats.steps)?;
    dict.set_item("waits", stats.waits)?;
    Ok(dict)
}
