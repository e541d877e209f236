//! The events of a loader's two threads, for [`LoaderOptions::trace`](super::LoaderOptions).

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::process::Forked;
use crate::report::{Cause, Event, Events, Timeline, What, trace_to_json};

/// The newest events of a run. Threads take an uncontended lock once a turn. A forked child has its own events,
/// since it may inherit a lock that a thread of its parent holds.
#[derive(Debug, Default)]
pub struct Trace(Forked<Run>);

#[derive(Debug, Default)]
struct Run {
    /// The start of the run: the first call for a batch.
    began: OnceLock<Instant>,
    consumer: Mutex<Events>,
    poller: Mutex<Events>,
}

impl Trace {
    /// A trace without events.
    pub fn new() -> Trace {
        Trace::default()
    }

    /// The events so far in Chrome's trace format, which <https://ui.perfetto.dev> shows, with rates from `timeline`.
    pub fn to_json(&self, timeline: Option<&Timeline>) -> String {
        let run = self.run();
        let consumer = run.consumer.lock().clone();
        let poller = run.poller.lock().clone();
        trace_to_json(&consumer, &poller, timeline)
    }

    fn run(&self) -> &Run {
        self.0.get_or_init(Run::default)
    }

    /// The start of the run; `now` if this is the first call.
    pub(crate) fn began(&self, now: Instant) -> Instant {
        *self.run().began.get_or_init(|| now)
    }

    /// Records a call of the consumer.
    pub(crate) fn consumer(&self, event: Event) {
        self.run().consumer.lock().push(event);
    }

    fn poller(&self, begin: Instant, end: Instant, what: What) {
        let began = self.began(begin);
        let len = end.saturating_duration_since(begin);
        let begin = begin.saturating_duration_since(began);
        let mut events = self.run().poller.lock();
        if let Some(last) = events.last_mut()
            && goes_on(last.what, what)
        {
            last.len = begin + len - last.begin;
            return;
        }
        events.push(Event { begin, len, what });
    }
}

/// Returns whether the poller's activity has not changed.
fn goes_on(last: What, what: What) -> bool {
    match (last, what) {
        (What::Work, What::Work) => true,
        (What::Sleep { cause: last }, What::Sleep { cause }) => last == cause,
        _ => false,
    }
}

/// The poller's turns. A turn ends when the next one begins.
pub(super) struct TurnTrace {
    trace: Arc<Trace>,
    last: Option<(Instant, What)>,
    in_flight: usize,
}

impl TurnTrace {
    pub(super) fn new(trace: Arc<Trace>) -> TurnTrace {
        TurnTrace { trace, last: None, in_flight: 0 }
    }

    /// Records that a turn begins at `now`, and so the end of the last one.
    pub(super) fn begin(&mut self, now: Instant) {
        if let Some((begin, what)) = self.last.take() {
            self.trace.poller(begin, now, what);
        }
    }

    /// Records a turn's result: the turn began at `begin` and started `begun` fetches; `in_flight` are outstanding.
    pub(super) fn end(
        &mut self,
        begin: Instant,
        (begun, in_flight): (usize, usize),
        moved: bool,
        cause: Cause,
    ) {
        let what = match (begun, moved) {
            (0, false) => What::Sleep { cause },
            (0, true) => What::Work,
            (begun, _) => What::Burst { begun: begun as u64 },
        };
        if self.in_flight != in_flight {
            self.in_flight = in_flight;
            let fetches = in_flight as u64;
            self.trace.poller(begin, begin + Duration::ZERO, What::InFlight { fetches });
        }
        self.last = Some((begin, what));
    }
}
