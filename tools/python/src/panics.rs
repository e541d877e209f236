//! Panics of the library as exceptions of Python.
//!
//! PyO3 raises them as its `PanicException`, which `except Exception` does not catch. Its `__new__` is replaced here by
//! one that makes a `dlfs.Internal`: so this holds for every function and method of the module, also for new ones.

use std::cell::RefCell;
use std::panic;
use std::sync::Once;

use dlfs::{Error, ErrorKind};
use pyo3::exceptions::PyBaseException;
use pyo3::panic::PanicException;
use pyo3::prelude::*;

use crate::error::raise;

/// From now on, a call that panics raises `dlfs.Internal`, whose text says what panicked and where.
///
/// # Errors
/// Python's.
pub(crate) fn raise_internal(py: Python<'_>) -> PyResult<()> {
    static NOTED: Once = Once::new();
    NOTED.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |panicked| {
            let at = panicked.location().map(ToString::to_string);
            // Fails only in a thread that is ending, where no call will ask for the place.
            let _ = PLACE.try_with(|place| *place.borrow_mut() = at);
            before(panicked);
        }));
    });
    py.get_type::<PanicException>().setattr("__new__", wrap_pyfunction!(instead, py)?)
}

/// The exception in place of a `PanicException` with this text. Before Python 3.12, this is called a second time, with
/// that exception.
#[pyfunction]
fn instead<'py>(_class: &Bound<'py, PyAny>, text: Bound<'py, PyAny>) -> Bound<'py, PyAny> {
    if text.is_instance_of::<PyBaseException>() {
        return text;
    }
    let place = PLACE.take().map(|place| format!(" at {place}")).unwrap_or_default();
    let error = Error::new(ErrorKind::Internal, format!("the call panicked{place}: {text}"))
        .hint("this is a bug in dlfs: please report it with this message");
    raise(text.py(), &error).into_value(text.py()).into_bound(text.py()).into_any()
}

thread_local! {
    /// The place of this thread's last panic.
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}
