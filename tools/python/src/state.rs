//! States of runs: as dicts that JSON can store, or as JSON text.

use dlfs::order::State;
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyString;

use crate::error::raise_invalid;

/// Parses the number of an epoch.
///
/// # Errors
/// `InvalidArgument`: there is no such epoch. `TypeError`: it is not an integer.
pub(crate) fn an_epoch(given: &Bound<'_, PyAny>) -> PyResult<u64> {
    given.extract().map_err(|error: PyErr| {
        if error.is_instance_of::<PyOverflowError>(given.py()) {
            raise_invalid(given.py(), format!("there is no epoch {given}"))
        } else {
            error
        }
    })
}

/// The state as a dict.
pub(crate) fn state_to_dict<'py>(py: Python<'py>, state: &State) -> PyResult<Bound<'py, PyAny>> {
    json(py)?.call_method1("loads", (state.to_json(),))
}

/// Parses a state: a dict, or JSON text.
pub(crate) fn state_of_dict(state: &Bound<'_, PyAny>) -> PyResult<State> {
    let text = state_text(state)?;
    State::from_json(&text).map_err(|error| raise_invalid(state.py(), error.report()))
}

/// A state as JSON text; `state` is such a text already, or an object that JSON can store.
pub(crate) fn state_text(state: &Bound<'_, PyAny>) -> PyResult<String> {
    match state.cast::<PyString>() {
        Ok(text) => Ok(text.to_string()),
        Err(_) => json(state.py())?.call_method1("dumps", (state,))?.extract(),
    }
}

/// Python's module `json`.
pub(crate) fn json(py: Python<'_>) -> PyResult<&Bound<'_, PyModule>> {
    static JSON: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    Ok(JSON.get_or_try_init(py, || py.import("json").map(Bound::unbind))?.bind(py))
}
