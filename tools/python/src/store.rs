//! The store of a rank: its options, opening it together with the other ranks, and staging the rank's share.

use dlfs::dataset::{Dataset, Loader};
use dlfs::options::Store;
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::ConnectOptions;
use dlfs::store::{Staged, StoreOptions};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::{OrRaise as _, detached};
use crate::options::take;
use crate::peers::Join;

/// Parses the keywords; `None` without `store`.
pub(crate) fn store_options(given: &Bound<'_, PyDict>) -> PyResult<Option<StoreOptions>> {
    take::<Store>(given)?.options().or_raise(given.py())
}

/// Opens the store of the rank of `run`, and joins the other ranks; without `join` there are no others.
pub(crate) fn open_store(
    py: Python<'_>,
    dataset: &Dataset,
    options: StoreOptions,
    join: Option<&Join>,
    (run, connect): (&LoaderOptions, &ConnectOptions),
) -> PyResult<Dataset> {
    let Some(join) = join else {
        return detached(py, |watch| {
            dataset.with_store(options, run, None, (connect, None), watch)
        });
    };
    let meeting = join.meeting(py)?;
    join.meet(py, |object, watch| {
        dataset.with_store(options, run, Some(&meeting), (connect, object), watch)
    })
}

/// Stages the share for the position of `loader`, and calls `progress(done, samples)` meanwhile. An exception of
/// `progress` ends the call.
pub(crate) fn stage_store(
    py: Python<'_>,
    loader: &Loader,
    progress: Option<Py<PyAny>>,
) -> PyResult<()> {
    let mut raised = None;
    let staged = detached(py, |watch| {
        loader.stage(watch, |Staged { done, samples, .. }| {
            if let Some(progress) = progress.as_ref().filter(|_| raised.is_none()) {
                // `None`: the interpreter is exiting, which `watch` notices, too.
                let told = Python::try_attach(|py| progress.call1(py, (done, samples)).map(drop));
                raised = told.and_then(Result::err);
            }
            raised.is_none()
        })
    });
    raised.map_or(staged, Err)
}
