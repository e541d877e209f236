//! Python's own objects for what the library serializes, with the same keys as in the command's
//! JSON.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use serde::Serialize;
use serde_json::Value;

/// `counters`, a struct, as a dict.
pub(crate) fn dict<'py>(
    py: Python<'py>,
    counters: &impl Serialize,
) -> PyResult<Bound<'py, PyDict>> {
    let failed = |error: &dyn std::fmt::Display| PyRuntimeError::new_err(error.to_string());
    let value = serde_json::to_value(counters).map_err(|error| failed(&error))?;
    to_python(py, &value)?.cast_into().map_err(|error| failed(&error))
}

fn to_python<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::Null => py.None().into_bound(py),
        Value::Bool(is) => is.into_pyobject(py)?.to_owned().into_any(),
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(count), _) => count.into_pyobject(py)?.into_any(),
            (None, Some(count)) => count.into_pyobject(py)?.into_any(),
            (None, None) => number.as_f64().into_pyobject(py)?.into_any(),
        },
        Value::String(text) => text.into_pyobject(py)?.into_any(),
        Value::Array(values) => {
            let values: Vec<_> =
                values.iter().map(|value| to_python(py, value)).collect::<PyResult<_>>()?;
            PyList::new(py, values)?.into_any()
        }
        Value::Object(values) => {
            let dict = PyDict::new(py);
            for (key, value) in values {
                dict.set_item(key, to_python(py, value)?)?;
            }
            dict.into_any()
        }
    })
}
