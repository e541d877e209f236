//! The events of a run in Chrome's trace format, for <https://ui.perfetto.dev> and `chrome://tracing`.

use std::collections::VecDeque;
use std::time::Duration;

use serde_json::{Value, json};

use super::stalls::{Cause, Stalls};
use super::timeline::Timeline;

/// An event of the trace: a span of time, or (with `len` 0) a count.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Event {
    /// Start, counted from the start of the run.
    pub(crate) begin: Duration,
    /// Duration.
    pub(crate) len: Duration,
    /// The kind of event.
    pub(crate) kind: EventKind,
}

/// The kind of an event.
#[derive(Debug, Clone, Copy)]
pub(crate) enum EventKind {
    /// A call of the consumer for a batch; its waits lie within.
    Next {
        /// The epoch of the batch.
        epoch: u64,
        /// Samples of the batch.
        samples: u64,
        /// Bytes of the samples.
        bytes: u64,
        /// The waits within the call.
        stalls: Stalls,
    },
    /// A pass of the poller that started reads: a burst.
    Burst {
        /// Fetches started, of one or more commands each.
        begun: u64,
    },
    /// A pass of the poller that verified or planned.
    Work,
    /// The poller waited for completions.
    Sleep {
        /// The cause of the wait.
        cause: Cause,
    },
    /// Fetches outstanding after a pass.
    InFlight {
        /// Number of fetches.
        fetches: u64,
    },
}

/// The newest events of a thread.
#[derive(Debug, Clone, Default)]
pub(crate) struct Events {
    /// The newest events, oldest first.
    kept: VecDeque<Event>,
    /// The number of older events, which were dropped.
    dropped: u64,
}

impl Events {
    /// The most events that are kept; older events are dropped.
    pub(crate) const MAX: usize = 1 << 16;

    /// Adds an event; events come in the order of their start.
    pub(crate) fn push(&mut self, event: Event) {
        if self.kept.len() == Events::MAX {
            self.kept.pop_front();
            self.dropped += 1;
        }
        self.kept.push_back(event);
    }

    /// The event that was added last.
    pub(crate) fn last_mut(&mut self) -> Option<&mut Event> {
        self.kept.back_mut()
    }

    /// The events, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Event> {
        self.kept.iter()
    }
}

/// The events of a run as a JSON object. Times are microseconds from the start of the run.
pub(crate) fn to_json(consumer: &Events, poller: &Events, timeline: Option<&Timeline>) -> String {
    let mut lines = Lines(Vec::new());
    lines.name("process_name", CONSUMER, "dlfs loader");
    lines.name("thread_name", CONSUMER, "consumer: calls for batches");
    lines.name("thread_name", POLLER, "poller: reads ahead");
    consumer.iter().for_each(|event| lines.event(CONSUMER, event));
    poller.iter().for_each(|event| lines.event(POLLER, event));
    if let Some(timeline) = timeline {
        lines.counters(timeline);
    }
    let other = json!({
        "producer": format!("dlfs {}", env!("CARGO_PKG_VERSION")),
        "dropped_events": (consumer.dropped + poller.dropped).to_string(),
        "kept": format!("the newest {} events of each thread", Events::MAX),
    });
    let events = lines.0.join(",\n");
    format!("{{\"displayTimeUnit\":\"ms\",\"otherData\":{other},\"traceEvents\":[\n{events}\n]}}\n")
}

/// Events as JSON, one per line.
struct Lines(Vec<String>);

impl Lines {
    /// Names the process or a thread: `kind` is `process_name` or `thread_name`.
    fn name(&mut self, kind: &str, thread: u32, name: &str) {
        self.push(
            json!({"ph": "M", "name": kind, "pid": 1, "tid": thread, "args": {"name": name}}),
        );
    }

    fn event(&mut self, thread: u32, event: &Event) {
        let Event { begin, len, kind } = *event;
        match kind {
            EventKind::Next { epoch, samples, bytes, stalls } => {
                let args = json!({"epoch": epoch, "samples": samples, "bytes": bytes});
                self.slice(thread, "next batch", (begin, len), args);
                // Only the sum of each cause is known, so a cause's waits are drawn as one span, cause after cause.
                let mut begin = begin;
                for (cause, waited) in stalls.each().filter(|(_, waited)| !waited.is_zero()) {
                    self.slice(
                        thread,
                        &format!("wait: {}", cause.name()),
                        (begin, waited),
                        json!({}),
                    );
                    begin += waited;
                }
            }
            EventKind::Burst { begun } => {
                self.slice(thread, "burst", (begin, len), json!({"fetches": begun}));
            }
            EventKind::Work => self.slice(thread, "verify and plan", (begin, len), json!({})),
            EventKind::Sleep { cause } => {
                self.slice(thread, "sleep", (begin, len), json!({"cause": cause.name()}));
            }
            EventKind::InFlight { fetches } => {
                self.counter(thread, "fetches in flight", begin, json!({"fetches": fetches}));
            }
        }
    }

    /// Adds the rates of each bucket of the timeline.
    fn counters(&mut self, timeline: &Timeline) {
        for (begin, len, counts) in timeline.buckets() {
            let seconds = len.as_secs_f64().max(1e-9);
            let rate = (counts.samples as f64 / seconds).round();
            self.counter(CONSUMER, "samples/s", begin, json!({"samples": rate}));
            let rates = counts.places.each().map(|(place, bytes)| {
                (place.name().to_owned(), json!((bytes as f64 / seconds / 1e3).round() / 1e3))
            });
            self.counter(CONSUMER, "MB/s read, by place", begin, Value::Object(rates.collect()));
        }
    }

    /// Adds a span of time.
    fn slice(&mut self, thread: u32, name: &str, (begin, len): (Duration, Duration), args: Value) {
        self.push(json!({
            "ph": "X", "cat": "dlfs", "name": name, "pid": 1, "tid": thread, "ts": micros(begin),
            "dur": micros(len), "args": args,
        }));
    }

    /// Adds a value of a counter.
    fn counter(&mut self, thread: u32, name: &str, at: Duration, args: Value) {
        self.push(json!({
            "ph": "C", "cat": "dlfs", "name": name, "pid": 1, "tid": thread, "ts": micros(at), "args": args,
        }));
    }

    fn push(&mut self, event: Value) {
        self.0.push(event.to_string());
    }
}

/// Microseconds with three decimals, the resolution of the clock.
fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

/// The number of the consumer's thread in the trace.
const CONSUMER: u32 = 1;
/// The number of the poller's thread in the trace.
const POLLER: u32 = 2;

#[cfg(test)]
mod tests {
    use super::super::timeline::Delivered;
    use super::*;

    fn burst(at_us: u64) -> Event {
        let begin = Duration::from_micros(at_us);
        let len = Duration::from_micros(1);
        Event { begin, len, kind: EventKind::Burst { begun: at_us } }
    }

    #[test]
    fn the_newest_events_are_kept_in_order_and_the_others_counted() {
        let mut events = Events::default();
        assert!(events.last_mut().is_none());
        for at in 0..Events::MAX as u64 + 100 {
            events.push(burst(at));
            assert_eq!(events.last_mut().map(|event| event.begin), Some(burst(at).begin));
        }
        assert_eq!(events.dropped, 100);
        let begins: Vec<u128> = events.iter().map(|event| event.begin.as_micros()).collect();
        let expected: Vec<u128> = (100..100 + Events::MAX as u128).collect();
        assert_eq!(begins, expected);
    }

    #[test]
    fn the_text_is_json_also_without_an_event_and_says_what_was_dropped() {
        let empty = to_json(&Events::default(), &Events::default(), None);
        let parsed: serde_json::Value = serde_json::from_str(&empty).unwrap();
        assert_eq!(parsed["otherData"]["dropped_events"], "0");
        assert_eq!(parsed["traceEvents"].as_array().map(Vec::len), Some(3), "names alone");
        let mut poller = Events::default();
        (0..Events::MAX as u64 + 5).for_each(|at| poller.push(burst(at)));
        let mut timeline = Timeline::new();
        let mut stalls = Stalls::default();
        stalls.add(Cause::Network, Duration::from_micros(3));
        let asked = Duration::from_micros(2);
        let at = Duration::from_micros(9);
        timeline.batch(&Delivered { asked, at, epoch: 0, samples: 1, bytes: 1, stalls });
        let text = to_json(&Events::default(), &poller, Some(&timeline));
        let parsed: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(parsed["otherData"]["dropped_events"], "5");
        assert!(text.len() < 20 << 20, "{} bytes", text.len());
    }
}
