//! Python's own objects for what the library serializes, with the same keys as in the command's
//! JSON.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde::Serialize;

use crate::loader::json;

/// `counters`, a struct, as a dict.
pub(crate) fn dict<'py>(
    py: Python<'py>,
    counters: &impl Serialize,
) -> PyResult<Bound<'py, PyDict>> {
    let text = serde_json::to_string(counters);
    let text = text.map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
    Ok(json(py)?.call_method1("loads", (text,))?.cast_into()?)
}
