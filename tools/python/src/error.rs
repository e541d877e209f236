//! Errors of the library as exceptions of `dlfs._errors`, one class per kind.

use std::io;

use dlfs::{Error, ErrorKind};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// The exception for `error`; its text has the causes and the hint.
pub(crate) fn raise(py: Python<'_>, error: &Error) -> PyErr {
    let sample = error.sample_id().map(|id| id.0);
    if !is_missing_file(error) {
        return make(py, class(error.kind()), error.report(), sample);
    }
    let raised = make(py, "FileNotFound", error.report(), sample);
    // The text names the file, too, so a failure here is ignored.
    let _ = error.file().map(|file| raised.value(py).setattr("filename", file));
    raised
}

/// Returns whether the operating system found no file. A file without an image and an image without
/// a sample are not this case.
fn is_missing_file(error: &Error) -> bool {
    let causes = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    error.kind() == ErrorKind::NotFound
        && error.file().is_some()
        && causes
            .filter_map(|cause| cause.downcast_ref::<io::Error>())
            .any(|cause| cause.kind() == io::ErrorKind::NotFound)
}

/// As [`raise`], for an index: the exception that Python's own sequences raise.
pub(crate) fn raise_index(py: Python<'_>, text: String) -> PyErr {
    make(py, "IndexOutOfRange", text, None)
}

/// As [`raise`], for an error of a lookup by name.
pub(crate) fn raise_lookup(py: Python<'_>, error: &Error) -> PyErr {
    match error.kind() {
        ErrorKind::NotFound => make(py, "NameNotFound", error.report(), None),
        _ => raise(py, error),
    }
}

/// The exception for a mistake of the caller.
pub(crate) fn raise_invalid(py: Python<'_>, text: String) -> PyErr {
    make(py, class(ErrorKind::InvalidArgument), text, None)
}

/// As [`raise_invalid`], for an attribute that a batch does not have.
pub(crate) fn raise_no_array(py: Python<'_>, text: String) -> PyErr {
    make(py, "NoArray", text, None)
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

/// The name of the class of errors of `kind`.
pub(crate) fn class(kind: ErrorKind) -> &'static str {
    CLASSES.iter().find(|(known, _)| *known == kind).map_or("Error", |(_, name)| name)
}

/// The kind of errors whose class has the name `class`.
pub(crate) fn kind_of(class: &str) -> ErrorKind {
    CLASSES.iter().find(|(_, name)| *name == class).map_or(ErrorKind::Io, |(kind, _)| *kind)
}

const CLASSES: [(ErrorKind, &str); 13] = [
    (ErrorKind::NotFound, "NotFound"),
    (ErrorKind::InvalidArgument, "InvalidArgument"),
    (ErrorKind::Corrupt, "Corrupt"),
    (ErrorKind::Unsupported, "Unsupported"),
    (ErrorKind::Disconnected, "Disconnected"),
    (ErrorKind::TimedOut, "TimedOut"),
    (ErrorKind::Refused, "Refused"),
    (ErrorKind::Busy, "Busy"),
    (ErrorKind::Stale, "Stale"),
    (ErrorKind::NoSpace, "NoSpace"),
    (ErrorKind::OutOfMemory, "OutOfMemory"),
    (ErrorKind::DeviceLost, "DeviceLost"),
    (ErrorKind::Internal, "Internal"),
];
