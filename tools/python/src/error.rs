//! Errors of the library as exceptions of `dlfs._errors`, one class a kind.

use dlfs::{Error, ErrorKind};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// The exception that `error` is; its text has causes and what to do.
pub(crate) fn raise(py: Python<'_>, error: &Error) -> PyErr {
    make(py, class(error.kind()), error.report(), error.sample_id().map(|id| id.0))
}

/// As [`raise`], for an index: what Python's own sequences raise.
pub(crate) fn raise_index(py: Python<'_>, text: String) -> PyErr {
    make(py, "IndexOutOfRange", text, None)
}

/// As [`raise`], where the error came of looking for a name.
pub(crate) fn raise_lookup(py: Python<'_>, error: &Error) -> PyErr {
    match error.kind() {
        ErrorKind::NotFound => make(py, "NameNotFound", error.report(), None),
        _ => raise(py, error),
    }
}

/// A mistake of the caller.
pub(crate) fn raise_invalid(py: Python<'_>, text: String) -> PyErr {
    make(py, class(ErrorKind::InvalidArgument), text, None)
}

fn make(py: Python<'_>, class: &str, text: String, sample: Option<u64>) -> PyErr {
    let made = || -> PyResult<PyErr> {
        let class = py.import("dlfs._errors")?.getattr(class)?;
        let exception = class.call1((&text,))?;
        exception.setattr("sample_id", sample)?;
        Ok(PyErr::from_value(exception))
    };
    made().unwrap_or_else(|_| PyRuntimeError::new_err(text.clone()))
}

fn class(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::NotFound => "NotFound",
        ErrorKind::InvalidArgument => "InvalidArgument",
        ErrorKind::Corrupt => "Corrupt",
        ErrorKind::Unsupported => "Unsupported",
        ErrorKind::Disconnected => "Disconnected",
        ErrorKind::TimedOut => "TimedOut",
        ErrorKind::Refused => "Refused",
        ErrorKind::Busy => "Busy",
        ErrorKind::Stale => "Stale",
        ErrorKind::NoSpace => "NoSpace",
        ErrorKind::OutOfMemory => "OutOfMemory",
        _ => "Error",
    }
}
