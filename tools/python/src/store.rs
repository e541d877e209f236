//! The share of a rank in its own storage, as Python says it.

use std::cell::Cell;

use dlfs::dataset::{Dataset, Loader, Watch};
use dlfs::options::Store;
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::ConnectOptions;
use dlfs::store::{Staged, StoreOptions};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::raise;
use crate::options::take;
use crate::peers::Join;
use crate::watch::{Signals, detached};

/// Parses the keywords; `None` without `store`.
pub(crate) fn options(given: &Bound<'_, PyDict>) -> PyResult<Option<StoreOptions>> {
    take::<Store>(given)?.options().map_err(|error| raise(given.py(), &error))
}

/// Opens the store of the rank of `run`, and joins the other ranks.
pub(crate) fn open(
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

/// Brings the share for the position of `loader`, and calls `progress(done, samples)` meanwhile.
pub(crate) fn stage(py: Python<'_>, loader: &Loader, progress: Option<Py<PyAny>>) -> PyResult<()> {
    let mut raised = None;
    let staged = detached(py, |watch| {
        let failed = Cell::new(false);
        let mut watch = Either { failed: &failed, watch };
        loader.stage(&mut watch, |Staged { done, samples, .. }| {
            let Some(progress) = progress.as_ref().filter(|_| !failed.get()) else { return };
            // `None`: the interpreter is exiting, which the watch says, too.
            if let Some(Err(error)) =
                Python::try_attach(|py| progress.call1(py, (done, samples)).map(drop))
            {
                raised = Some(error);
                failed.set(true);
            }
        })
    });
    raised.map_or(staged, Err)
}

/// Ends a wait for a signal, and when `progress` raised.
struct Either<'a> {
    failed: &'a Cell<bool>,
    watch: &'a mut Signals,
}

impl Watch for Either<'_> {
    fn goes_on(&mut self) -> bool {
        !self.failed.get() && self.watch.goes_on()
    }
}
