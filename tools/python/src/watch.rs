//! Checks for signals while a call waits without the interpreter, so that Ctrl-C ends it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlfs::dataset::Watch;
use dlfs::places::Cancel;
use dlfs::{Error, ErrorKind};
use pyo3::prelude::*;

use crate::error::raise;
use crate::log;

/// Ends a wait when a Python signal handler raises.
#[derive(Default, Clone)]
pub(crate) struct Signals {
    raised: Arc<Mutex<Option<PyErr>>>,
}

impl Signals {
    /// Takes the exception that a signal handler raised, if one did.
    pub(crate) fn take_raised(&mut self) -> Option<PyErr> {
        self.raised().take()
    }

    /// Locks the exception. It is whole at any time, so a poisoned lock does no harm.
    fn raised(&self) -> MutexGuard<'_, Option<PyErr>> {
        self.raised.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends waiting for an object store in the same way.
    pub(crate) fn cancel(&self) -> Cancel {
        let signals = self.clone();
        Cancel::when(move || !signals.clone().goes_on())
    }
}

impl Watch for Signals {
    fn goes_on(&mut self) -> bool {
        if self.raised().is_some() {
            return false;
        }
        // None: the interpreter is exiting, and nobody waits for the answer.
        let checked = Python::try_attach(|py| {
            py.check_signals()?;
            log::hand_over(py)
        });
        match checked {
            Some(Ok(())) => true,
            Some(Err(error)) => {
                *self.raised() = Some(error);
                false
            }
            None => false,
        }
    }
}

/// Waits for the turn of this thread; a signal ends that, too. Call it detached from the interpreter.
pub(crate) fn turn<'m, T>(
    mutex: &'m parking_lot::Mutex<T>,
    watch: &mut Signals,
) -> dlfs::Result<parking_lot::MutexGuard<'m, T>> {
    loop {
        if let Some(turn) = mutex.try_lock_for(LOOK) {
            return Ok(turn);
        }
        if !watch.goes_on() {
            let text = "stopped while another thread took its batch";
            return Err(Error::new(ErrorKind::Interrupted, text));
        }
    }
}

/// The interval at which a thread that waits for its turn asks whether to go on.
const LOOK: Duration = Duration::from_millis(50);

/// Runs `work` detached from the interpreter, so that other threads run, and raises its error.
pub(crate) fn detached<T: Send>(
    py: Python<'_>,
    work: impl FnOnce(&mut Signals) -> dlfs::Result<T> + Send,
) -> PyResult<T> {
    try_detached(py, work)?.map_err(|error| raise(py, &error))
}

/// As [`detached`], but returns the library's own error.
pub(crate) fn try_detached<T: Send>(
    py: Python<'_>,
    work: impl FnOnce(&mut Signals) -> dlfs::Result<T> + Send,
) -> PyResult<Result<T, Error>> {
    // Checked before the work, so that its result is not lost. A loop such as list(ds) checks for Ctrl-C nowhere else.
    py.check_signals()?;
    log::hand_over(py)?;
    let mut signals = Signals::default();
    let result = py.detach(|| work(&mut signals));
    match (result, signals.take_raised()) {
        (Err(error), Some(raised)) if error.kind() == ErrorKind::Interrupted => Err(raised),
        (result, _) => Ok(result),
    }
}
