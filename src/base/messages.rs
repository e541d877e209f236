//! Passes the library's log messages to a function, for language bindings whose users have their own loggers.

use std::fmt::Debug;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

/// A log message at level `INFO` or above.
pub struct Message {
    /// The message's level.
    pub level: Level,
    /// The module that sent the message.
    pub target: &'static str,
    text: String,
    fields: Vec<(&'static str, String)>,
}

impl Message {
    /// The message followed by its fields in brackets; `name` translates the fields' names.
    pub fn whole(&self, name: impl Fn(&'static str) -> &'static str) -> String {
        let fields = self.fields.iter().map(|(field, value)| format!("{}: {value}", name(field)));
        match &*fields.collect::<Vec<_>>().join(", ") {
            "" => self.text.clone(),
            fields => format!("{} ({fields})", self.text),
        }
    }
}

/// Passes all later messages of this process at level `INFO` or above to `tell`, on the threads that send them. Returns
/// `false`, and passes none, if the process already has a subscriber.
pub fn subscribe(tell: impl Fn(Message) + Send + Sync + 'static) -> bool {
    tracing::subscriber::set_global_default(Messages(tell)).is_ok()
}

/// Subscribes to events, of which there are a few per second. The library has no spans.
struct Messages<F>(F);

impl<F: Fn(Message) + Send + Sync + 'static> Subscriber for Messages<F> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= Level::INFO
    }

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let mut message = Message {
            level: *metadata.level(),
            target: metadata.target(),
            text: String::new(),
            fields: Vec::new(),
        };
        event.record(&mut message);
        (self.0)(message);
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.text = format!("{value:?}"),
            name => self.fields.push((name, format!("{value:?}"))),
        }
    }
}
