//! The library's warnings, passed to Python's `logging` by the next call.
//!
//! A thread of the library must never wait for the interpreter, which may be waiting for that
//! thread. So it only stores the text here, and Python threads fetch it: at the start of each call,
//! at each tick of a waiting call, and when the interpreter exits.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once, TryLockError};

use dlfs::messages::{Message, subscribe};
use pyo3::prelude::*;
use pyo3::sync::OnceExt;
use tracing::Level;

/// From now on warnings go to the logger "dlfs", unless the program has another subscriber.
pub(crate) fn install(py: Python<'_>) -> PyResult<()> {
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
    let _ = subscribe(store); // `false`: a subscriber exists already
    Ok(())
}

/// Passes the stored records to `logging`.
///
/// # Errors
/// Any exception that a signal handler raises meanwhile.
pub(crate) fn hand_over(py: Python<'_>) -> PyResult<()> {
    if !SOME.load(Ordering::Acquire) {
        return Ok(());
    }
    SOME.store(false, Ordering::Release);
    let logger = py.import("logging")?.call_method1("getLogger", ("dlfs",))?;
    while let Some(record) = with_records(VecDeque::pop_front).flatten() {
        if record.pid == std::process::id() {
            logger.call_method1("log", (record.level, "%s", record.text))?;
        }
    }
    Ok(())
}

struct Record {
    /// The process that stored it: a forked child does not repeat its parent's.
    pid: u32,
    level: u8,
    text: String,
}

/// The newest records that nobody has fetched.
static RECORDS: Mutex<VecDeque<Record>> = Mutex::new(VecDeque::new());

/// True if there are any records.
static SOME: AtomicBool = AtomicBool::new(false);

/// `None` if the lock stays locked: a fork may have left it so. Then warnings are lost, but the
/// process does not hang.
fn with_records<T>(work: impl FnOnce(&mut VecDeque<Record>) -> T) -> Option<T> {
    for _ in 0..LOCK_TRIES {
        match RECORDS.try_lock() {
            Ok(mut records) => return Some(work(&mut records)),
            Err(TryLockError::Poisoned(records)) => return Some(work(&mut records.into_inner())),
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
        }
    }
    None
}

/// Stores a message.
fn store(message: Message) {
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
    let record = Record { pid: std::process::id(), level, text };
    with_records(|records| {
        if records.len() == MAX_RECORDS {
            records.pop_front();
        }
        records.push_back(record);
    });
    SOME.store(true, Ordering::Release);
}

/// The most records; older ones are dropped.
const MAX_RECORDS: usize = 256;

/// The number of attempts to take the lock, which is held for a few instructions.
const LOCK_TRIES: usize = 1000;
