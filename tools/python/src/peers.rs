//! The other ranks of a job: the options that name them, and the meeting with them, also through an object of Python.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use dlfs::dataset::{Dataset, Watch};
use dlfs::options::Peers;
use dlfs::peers::rendezvous::Rendezvous;
use dlfs::peers::{JoinOptions, Means, Meeting, Record};
use dlfs::qpair::ConnectOptions;
use dlfs::{Error, ErrorKind};
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::error::{self, OrRaise as _, Signals, raise};
use crate::options::{about, given_or, of_peers, take};

/// The names of the options for joining peers.
pub(crate) fn keywords() -> Vec<String> {
    [of_peers(), vec!["rank".to_owned(), "world_size".to_owned()]].concat()
}

/// The result of dlfs._peers for `peers`: a text or an object, and rank and world size if the object knows them.
type Resolved = (Option<OsString>, Option<Py<PyAny>>, Option<(u32, u32)>);

/// The options to join the peers, and the object of Python through which the ranks meet, if there is one.
pub(crate) struct Join {
    pub(crate) options: JoinOptions,
    object: Option<Py<PyAny>>,
}

impl Join {
    /// Goes on serving peers until all ranks have left, or for `timeout`, on this thread, which is detached from
    /// the interpreter meanwhile. Failures are only warnings: this rank has read what it wanted.
    ///
    /// # Errors
    /// The exception that a signal handler raised, also while it interrupted code of the object.
    pub(crate) fn leave(
        &self,
        py: Python<'_>,
        dataset: &Dataset,
        meeting: &Meeting,
        timeout: Duration,
        connect: &ConnectOptions,
    ) -> PyResult<()> {
        let (left, by_object, by_signal) = self.with_object(py, |object, watch| {
            dataset.leave_peers(meeting, timeout, connect, object, watch)
        });
        // KeyboardInterrupt and SystemExit are no errors of the object.
        let interrupt = by_object.filter(|raised| !raised.is_instance_of::<PyException>(py));
        if let Some(raised) = interrupt.or(by_signal) {
            return Err(raised);
        }
        if let Err(error) = left {
            tracing::warn!("not all ranks have closed their data set: {}", error.report());
        }
        error::hand_over_warnings(py)
    }

    /// Parses the keywords; `None` without `peers`.
    pub(crate) fn of(given: &Bound<'_, PyDict>) -> PyResult<Option<Join>> {
        let py = given.py();
        let Some(peers) = given.get_item("peers")?.filter(|peers| !peers.is_none()) else {
            return Ok(None);
        };
        // The Python half knows the stores of torch.distributed and the communicators of mpi4py.
        let resolved = py.import("dlfs._peers")?.call_method1("resolve", (&peers,));
        let (text, object, place): Resolved = about("peers", &peers, resolved)?.extract()?;
        let means = match text {
            None => Means::Object,
            Some(text) => Means::of(&text.to_string_lossy()).or_raise(py)?,
        };
        let world_size = given_or(given, "world_size", 1)?;
        let place =
            if world_size > 1 { Some((given_or(given, "rank", 0)?, world_size)) } else { place };
        let rest = given.copy()?;
        rest.del_item("peers")?;
        let peers: Peers = take(&rest)?;
        let options = peers.join(means, place).or_raise(py)?;
        Ok(Some(Join { options, object }))
    }

    /// This rank's place, and where the ranks meet.
    pub(crate) fn meeting(&self, py: Python<'_>) -> PyResult<Meeting> {
        self.options.meeting_here().or_raise(py)
    }

    /// Runs `join` with the object where the ranks meet, if there is one, on this thread, which is detached from the
    /// interpreter while it waits.
    pub(crate) fn meet(
        &self,
        py: Python<'_>,
        join: impl FnOnce(Option<&mut dyn Rendezvous>, &mut dyn Watch) -> dlfs::Result<Dataset> + Send,
    ) -> PyResult<Dataset> {
        py.check_signals()?;
        let (joined, by_object, by_signal) = self.with_object(py, join);
        let raised = by_object.or(by_signal);
        joined.map_err(|error| raised.unwrap_or_else(|| raise(py, &error)))
    }

    /// Runs `work` as `meet` does. Also returns the exceptions that the object and that a signal handler raised.
    fn with_object<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(Option<&mut dyn Rendezvous>, &mut dyn Watch) -> T + Send,
    ) -> (T, Option<PyErr>, Option<PyErr>) {
        let object = self.object.as_ref().map(|object| object.clone_ref(py));
        let mut object = object.map(|object| Object { object, round: String::new(), raised: None });
        let mut signals = Signals::default();
        let done = py.detach(|| {
            let met: Option<&mut dyn Rendezvous> = match &mut object {
                Some(object) => Some(object),
                None => None,
            };
            work(met, &mut signals)
        });
        (done, object.and_then(|object| object.raised), signals.take_raised())
    }
}

/// An object of Python with the methods set(round, rank, record), get(round, world_size, seconds) and
/// describe().
struct Object {
    object: Py<PyAny>,
    round: String,
    /// The exception that it raised.
    raised: Option<PyErr>,
}

impl Object {
    fn call<T>(&mut self, call: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>) -> dlfs::Result<T> {
        // `None`: the interpreter is exiting, and nobody waits for the answer.
        let called = Python::try_attach(|py| call(self.object.bind(py)));
        match called {
            Some(Ok(value)) => Ok(value),
            Some(Err(raised)) => {
                let text = format!("{} failed: {raised}", self.describe());
                self.raised = Some(raised);
                Err(Error::new(ErrorKind::Interrupted, text))
            }
            None => Err(Error::new(ErrorKind::Interrupted, "the interpreter is exiting")),
        }
    }
}

impl Rendezvous for Object {
    fn set(&mut self, rank: u32, record: &[u8]) -> dlfs::Result<()> {
        let round = Record::from_bytes(record).map(|record| record.round).unwrap_or_default();
        self.round.clone_from(&round);
        self.call(|object| {
            let record = PyBytes::new(object.py(), record);
            object.call_method1("set", (round, rank, record)).map(drop)
        })
    }

    fn get(&mut self, world_size: u32, deadline: Instant) -> dlfs::Result<Vec<Option<Vec<u8>>>> {
        let left = deadline.saturating_duration_since(Instant::now()).as_secs_f64();
        let round = self.round.clone();
        self.call(|object| object.call_method1("get", (round, world_size, left))?.extract())
    }

    fn describe(&self) -> String {
        let text =
            Python::try_attach(|py| self.object.bind(py).call_method0("describe")?.extract());
        text.and_then(Result::ok).unwrap_or_else(|| "an object of Python".to_owned())
    }
}
