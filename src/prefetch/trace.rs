//! The newest events of a loader's threads, for [`LoaderOptions::trace`](super::LoaderOptions).

use std::sync::OnceLock;
use std::time::Instant;

use parking_lot::Mutex;

use crate::process::Forked;
use crate::report::{Event, EventKind, Events, Timeline, trace_to_json};

/// The newest events of a run. Threads take an uncontended lock once a turn. A forked child has its own events,
/// since it may inherit a lock that a thread of its parent holds.
#[derive(Debug, Default)]
pub struct Trace(Forked<Run>);

/// The events of one process.
#[derive(Debug, Default)]
struct Run {
    /// The start of the run: that of the first event of either thread.
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

    /// Records an activity of the poller. Continues the last event if the activity has not changed.
    pub(super) fn poller(&self, begin: Instant, end: Instant, kind: EventKind) {
        let began = self.began(begin);
        let len = end.saturating_duration_since(begin);
        let begin = begin.saturating_duration_since(began);
        let mut events = self.run().poller.lock();
        if let Some(last) = events.last_mut()
            && goes_on(last.kind, kind)
        {
            last.len = begin + len - last.begin;
            return;
        }
        events.push(Event { begin, len, kind });
    }
}

/// Returns whether the poller's activity has not changed.
fn goes_on(last: EventKind, kind: EventKind) -> bool {
    match (last, kind) {
        (EventKind::Work, EventKind::Work) => true,
        (EventKind::Sleep { cause: last }, EventKind::Sleep { cause }) => last == cause,
        _ => false,
    }
}
