//! Conversions between Python's objects and the library's values.
//!
//! Indices and ids are any object that is an integer, however large. Names are any bytes on media, and `str` with
//! surrogate escapes in Python, like file names. Values that the library serializes have the same keys as in the
//! command's JSON. States of runs are dicts that JSON can store, or JSON text.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use dlfs::order::State;
use pyo3::exceptions::{PyOverflowError, PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyBytes, PyDict, PyString, PyTuple};
use serde::Serialize;

use crate::error::{raise_index, raise_invalid};

/// Returns whether `given` is a name, a str or bytes, and not an id or a sequence of names.
pub(crate) fn is_name(given: &Bound<'_, PyAny>) -> bool {
    given.is_instance_of::<PyString>() || given.is_instance_of::<PyBytes>()
}

/// The bytes of a `str`, `bytes` or path object.
pub(crate) fn to_bytes(name: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    if let Ok(bytes) = name.cast::<PyBytes>() {
        return Ok(bytes.as_bytes().to_vec());
    }
    Ok(name.extract::<OsString>()?.into_vec())
}

/// The `str` for a name.
pub(crate) fn to_str<'py>(py: Python<'py>, name: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    Ok(std::ffi::OsStr::from_bytes(name).into_pyobject(py)?.into_any())
}

/// A tuple of names.
pub(crate) fn tuple<'py>(py: Python<'py>, names: &[Vec<u8>]) -> PyResult<Bound<'py, PyTuple>> {
    let names: Vec<_> = names.iter().map(|name| to_str(py, name)).collect::<PyResult<_>>()?;
    PyTuple::new(py, names)
}

/// The position that the index `given` means in `whole`, which has `len` samples; a negative index counts from the end.
///
/// # Errors
/// `IndexOutOfRange`: there is none. `TypeError`: it is not an integer.
pub(crate) fn position(given: &Bound<'_, PyAny>, len: u64, whole: &str) -> PyResult<u64> {
    let number = integer(given)?
        .map(|number| if number < 0 { number.saturating_add_unsigned(len) } else { number });
    let position = number.and_then(|number| u64::try_from(number).ok());
    let position = position.filter(|&position| position < len);
    position.ok_or_else(|| absent(given, &format!("the {whole} has {len}")))
}

/// The id that `given` means.
///
/// # Errors
/// `IndexOutOfRange`: no sample can have it. `TypeError`: it is not an integer, or an element of a
/// mask.
pub(crate) fn id(given: &Bound<'_, PyAny>) -> PyResult<u64> {
    if given.is_instance_of::<PyBool>() {
        let text = "ids are integers, not bool: numpy.flatnonzero makes ids of a mask";
        return Err(PyTypeError::new_err(text));
    }
    let id = integer(given)?.and_then(|number| u64::try_from(number).ok());
    id.ok_or_else(|| absent(given, "ids go from 0 to 2^40"))
}

/// The exception for an index or id without a sample; it also ends loops over a sequence. If `str` detects a pending
/// Ctrl-C, its exception takes precedence.
fn absent(given: &Bound<'_, PyAny>, why: &str) -> PyErr {
    match given.str() {
        Ok(given) => raise_index(given.py(), format!("there is no sample {given}: {why}")),
        Err(error) => error,
    }
}

/// An integer; `None` if it does not fit 64 bits.
fn integer(given: &Bound<'_, PyAny>) -> PyResult<Option<i64>> {
    match given.extract() {
        Ok(number) => Ok(Some(number)),
        Err(error) if error.is_instance_of::<PyOverflowError>(given.py()) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A struct of counters as a dict.
pub(crate) fn dict<'py>(
    py: Python<'py>,
    counters: &impl Serialize,
) -> PyResult<Bound<'py, PyDict>> {
    let text = serde_json::to_string(counters);
    let text = text.map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
    Ok(json(py)?.call_method1("loads", (text,))?.cast_into()?)
}

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
