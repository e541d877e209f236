//! Converts indices and ids from Python: any object that is an integer, however large.

use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyBool;

use crate::error::raise_index;

/// The position that `given` means among the `len` samples of `whole`; a negative one counts from
/// the end.
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

/// The exception that also ends loops over a sequence. `str` detects a pending Ctrl-C, which takes
/// precedence.
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
