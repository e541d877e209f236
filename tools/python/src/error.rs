//! Exceptions that a call of the library raises: for its errors, for signals while it waits, and for panics; and the
//! warnings that it passes to `logging` meanwhile.
//!
//! - An error becomes the class of `dlfs._errors` for its kind.
//! - A call that waits detached from the interpreter checks for signals, so that Ctrl-C ends it.
//! - A thread of the library must never wait for the interpreter, which may be waiting for that thread. So such a
//!   thread only stores a warning here. Python threads pass it to `logging`: before a call that may wait, at each tick
//!   of the wait, and when the interpreter exits.
//! - PyO3 raises panics as `PanicException`, which `except Exception` does not catch. Its `__new__` is replaced by one
//!   that makes a `dlfs.Internal`, so that this holds for every function and method of the module.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;
use std::{io, panic};

use dlfs::dataset::Watch;
use dlfs::error::renamed;
use dlfs::messages::{Message, subscribe};
use dlfs::places::Cancel;
use dlfs::{Error, ErrorKind};
use parking_lot::{Mutex, MutexGuard};
use pyo3::exceptions::{PyBaseException, PyRuntimeError};
use pyo3::panic::PanicException;
use pyo3::prelude::*;
use pyo3::sync::OnceExt;
use tracing::Level;

/// The keywords of Python for options of the command that messages and hints of the library name, unless these name
/// both. Options of the command alone keep their names.
const KEYWORDS: [(&str, &str); 36] = [
    ("dlfs import --resume", "resume=True"),
    ("--accept-older-generation", "accept_older_generation=True"),
    ("--append", "append=True"),
    ("--batching", "batching"),
    ("--catalog", "catalog"),
    ("--classes", "classes"),
    ("--columns", "columns"),
    ("--data-digest", "data_digest"),
    ("--end-of-document", "end_of_document"),
    ("--field-type", "fields with a type such as"),
    ("--fields", "fields"),
    ("--force", "overwrite=True"),
    ("--from", "from_"),
    ("--hdr-digest", "hdr_digest"),
    ("--hidden", "hidden=True"),
    ("--label", "label"),
    ("--links", "links"),
    ("--max-expansion", "max_expansion"),
    ("--name", "name"),
    ("--nested", "nested=True"),
    ("--node", "node"),
    ("--nr-io-queues", "nr_io_queues"),
    ("--on-error", "on_error"),
    ("--order", "order"),
    ("--peers", "peers"),
    ("--placement source", "shuffle=False"),
    ("--prefix", "prefix=True"),
    ("--resume", "resume=True"),
    ("--shards", "shards=True"),
    ("--spdk-huge-pages", "spdk_huge_pages"),
    ("--spdk-memory", "spdk_memory"),
    ("--text-field", "text_field"),
    ("--tier ram:SIZE", "tiers=\"ram:SIZE\""),
    ("--tls-compat", "tls_compat=True"),
    ("--tokenizer", "tokenizer"),
    ("--tokens", "tokens"),
];

/// The exception for `error`; its text has the causes and the hint.
pub(crate) fn raise(py: Python<'_>, error: &Error) -> PyErr {
    let sample = error.sample_id().map(|id| id.0);
    let text = error.report_with(&KEYWORDS);
    if !is_missing_file(error) {
        return make(py, &format!("{:?}", error.kind()), text, sample);
    }
    let raised = make(py, "FileNotFound", text, sample);
    // The text names the file, too, so a failure here is ignored.
    let _ = error.file().map(|file| raised.value(py).setattr("filename", file));
    raised
}

/// Errors of the library that become exceptions.
pub(crate) trait OrRaise<T> {
    /// The value, or the exception that [`raise`] makes of the error.
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T> OrRaise<T> for dlfs::Result<T> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| raise(py, &error))
    }
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

/// The exception for an index that does not exist: an IndexError, as Python's own sequences raise.
pub(crate) fn raise_index(py: Python<'_>, text: String) -> PyErr {
    make(py, "IndexOutOfRange", text, None)
}

/// The exception for an error of a lookup by name: a KeyError if there is no such name.
pub(crate) fn raise_lookup(py: Python<'_>, error: &Error) -> PyErr {
    match error.kind() {
        ErrorKind::NotFound => make(py, "NameNotFound", error.report_with(&KEYWORDS), None),
        _ => raise(py, error),
    }
}

/// The exception for a mistake of the caller.
pub(crate) fn raise_invalid(py: Python<'_>, text: String) -> PyErr {
    make(py, "InvalidArgument", text, None)
}

/// The exception for an array that a batch does not have: also an AttributeError.
pub(crate) fn raise_no_array(py: Python<'_>, text: String) -> PyErr {
    make(py, "NoArray", text, None)
}

/// An exception of the class of `dlfs._errors` called `class`; of `Error` if there is no such class, and a RuntimeError
/// if that cannot be made either.
fn make(py: Python<'_>, class: &str, text: String, sample: Option<u64>) -> PyErr {
    let made = || -> PyResult<PyErr> {
        let classes = py.import("dlfs._errors")?;
        let class = classes.getattr(class).or_else(|_| classes.getattr("Error"))?;
        let exception = class.call1((&text,))?;
        exception.setattr("sample_id", sample)?;
        Ok(PyErr::from_value(exception))
    };
    made().unwrap_or_else(|_| PyRuntimeError::new_err(text.clone()))
}

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

/// `__new__` of `PanicException`: makes a `dlfs.Internal` with this text instead. Before Python 3.12, PyO3 calls it a
/// second time with the exception that it made.
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

/// Ends a wait when a Python signal handler raises.
#[derive(Default, Clone)]
pub(crate) struct Signals {
    raised: Arc<Mutex<Option<PyErr>>>,
}

impl Signals {
    /// Takes the exception that a signal handler raised, if one did.
    pub(crate) fn take_raised(&mut self) -> Option<PyErr> {
        self.raised.lock().take()
    }

    /// Ends waiting for an object store in the same way.
    pub(crate) fn cancel(&self) -> Cancel {
        let signals = self.clone();
        Cancel::when(move || !signals.clone().goes_on())
    }
}

impl Watch for Signals {
    fn goes_on(&mut self) -> bool {
        if self.raised.lock().is_some() {
            return false;
        }
        // None: the interpreter is exiting, and nobody waits for the answer.
        let checked = Python::try_attach(|py| {
            py.check_signals()?;
            hand_over_warnings(py)
        });
        match checked {
            Some(Ok(())) => true,
            Some(Err(error)) => {
                *self.raised.lock() = Some(error);
                false
            }
            None => false,
        }
    }
}

/// Locks `mutex`, behind which threads take turns; a signal also ends the wait. Call it detached from the interpreter.
pub(crate) fn turn<'m, T>(
    mutex: &'m Mutex<T>,
    watch: &mut Signals,
) -> dlfs::Result<MutexGuard<'m, T>> {
    loop {
        if let Some(turn) = mutex.try_lock_for(TICK) {
            return Ok(turn);
        }
        if !watch.goes_on() {
            let text = "stopped while another thread took its batch";
            return Err(Error::new(ErrorKind::Interrupted, text));
        }
    }
}

/// The interval at which a thread that waits for its turn looks for signals.
const TICK: Duration = Duration::from_millis(50);

/// Runs `work` detached from the interpreter, so that other threads run, and raises its error.
pub(crate) fn detached<T: Send>(
    py: Python<'_>,
    work: impl FnOnce(&mut Signals) -> dlfs::Result<T> + Send,
) -> PyResult<T> {
    try_detached(py, work)?.or_raise(py)
}

/// Runs `work` like [`detached`], but returns the library's error. The outer error is the exception of a signal
/// handler.
pub(crate) fn try_detached<T: Send>(
    py: Python<'_>,
    work: impl FnOnce(&mut Signals) -> dlfs::Result<T> + Send,
) -> PyResult<Result<T, Error>> {
    // Checked before the work, so that its result is not lost. A loop such as list(ds) checks for Ctrl-C nowhere else.
    py.check_signals()?;
    hand_over_warnings(py)?;
    let mut signals = Signals::default();
    let result = py.detach(|| work(&mut signals));
    match (result, signals.take_raised()) {
        (Err(error), Some(raised)) if error.kind() == ErrorKind::Interrupted => Err(raised),
        (result, _) => Ok(result),
    }
}

/// From now on warnings go to the logger "dlfs", unless the program has another subscriber.
pub(crate) fn install_log(py: Python<'_>) -> PyResult<()> {
    static INSTALLED: Once = Once::new();
    let mut installed = Ok(());
    INSTALLED.call_once_py_attached(py, || installed = install_once(py));
    installed
}

fn install_once(py: Python<'_>) -> PyResult<()> {
    // The order matters: exit handlers run in reverse, so `logging` must register first.
    py.import("logging")?;
    let last = py.import("dlfs._dlfs")?.getattr("flush_log")?;
    py.import("atexit")?.call_method1("register", (last,))?;
    let _ = subscribe(store_record); // `false`: a subscriber exists already
    Ok(())
}

/// Passes the stored records to `logging`.
///
/// # Errors
/// Any exception that a signal handler raises meanwhile.
pub(crate) fn hand_over_warnings(py: Python<'_>) -> PyResult<()> {
    if !HAS_RECORDS.load(Ordering::Acquire) {
        return Ok(());
    }
    HAS_RECORDS.store(false, Ordering::Release);
    let logger = py.import("logging")?.call_method1("getLogger", ("dlfs",))?;
    while let Some(record) = with_records(VecDeque::pop_front).flatten() {
        if record.pid == std::process::id() {
            logger.call_method1("log", (record.level, "%s", record.text))?;
        }
    }
    Ok(())
}

/// A warning that a thread of the library has stored.
struct Record {
    /// The process that stored it: a forked child does not repeat its parent's.
    pid: u32,
    /// The level, as `logging` counts levels.
    level: u8,
    text: String,
}

/// The newest records that nobody has fetched.
static RECORDS: Mutex<VecDeque<Record>> = Mutex::new(VecDeque::new());

/// True if a record was stored since a thread last began to hand records over.
static HAS_RECORDS: AtomicBool = AtomicBool::new(false);

/// Runs `work` on the records. `None`: the lock stays locked, as a fork may have left it. Then warnings are lost, but
/// the process does not hang.
fn with_records<T>(work: impl FnOnce(&mut VecDeque<Record>) -> T) -> Option<T> {
    for _ in 0..LOCK_TRIES {
        match RECORDS.try_lock() {
            Some(mut records) => return Some(work(&mut records)),
            None => std::thread::yield_now(),
        }
    }
    None
}

/// Stores a message.
fn store_record(message: Message) {
    let level = match message.level {
        Level::ERROR => 40,
        Level::WARN => 30,
        _ => 20,
    };
    // In Python, the option of a loader that these messages are about is called `window`.
    let of_loader = message.target.starts_with("dlfs::prefetch");
    let text = message.whole(|name| match name {
        "window_bytes" if of_loader => "window",
        name => name,
    });
    let text = renamed(&text, &KEYWORDS);
    let record = Record { pid: std::process::id(), level, text };
    with_records(|records| {
        if records.len() == MAX_RECORDS {
            records.pop_front();
        }
        records.push_back(record);
    });
    HAS_RECORDS.store(true, Ordering::Release);
}

/// The most records; older ones are dropped.
const MAX_RECORDS: usize = 256;

/// The number of attempts to take the lock, which is held for a few instructions.
const LOCK_TRIES: usize = 1000;
