//! What the library warns of, told to a function of the caller's.

use std::ffi::{CString, c_char, c_int, c_void};
use std::fmt::{Debug, Write};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

use crate::error::{DLFS_E_BUSY, DLFS_OK, Failure, guard};

/// Something went wrong for good.
pub const DLFS_LOG_ERROR: c_int = 1;
/// Something went wrong and was mended, or costs more than it need.
pub const DLFS_LOG_WARNING: c_int = 2;
/// Worth knowing.
pub const DLFS_LOG_INFO: c_int = 3;

/// Sees one message of the library: its level, DLFS_LOG_..., and its text, which is good until it returns.
/// It is called by whichever thread has something to say, also by those of the library and by several
/// at a time. It must not call the library, and should not wait.
pub type OnLog = Option<unsafe extern "C" fn(user: *mut c_void, level: c_int, text: *const c_char)>;

/// Has `on_log` told what the library warns of from now on, no more than a few messages a second: a
/// connection that is made again, a sample that is left out, a window that is too small. NULL ends that.
/// Without it nothing is written anywhere. Any thread; one function for the process. A thread may be in
/// the function that was set before until it returns.
///
/// DLFS_E_BUSY: the program has another place for messages, as one in Rust may have.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlfs_log(on_log: OnLog, user: *mut c_void) -> c_int {
    guard(|| {
        if on_log.is_some() && !is_installed() {
            let text = "the process has another subscriber of messages";
            return Err(Failure::new(DLFS_E_BUSY, text));
        }
        let next = Box::into_raw(Box::new(Listener { on_log, user, before: null_mut() }));
        let link = |before| {
            // SAFETY: made above, and nobody else has it before it is stored.
            unsafe { (*next).before = before };
            Some(next)
        };
        let (set, seen) = (Ordering::AcqRel, Ordering::Acquire);
        let _ = LISTENER.fetch_update(set, seen, link); // `link` never refuses
        Ok(DLFS_OK)
    })
}

struct Listener {
    on_log: OnLog,
    user: *mut c_void,
    /// The one before, which stays: another thread may be about to call it.
    before: *mut Listener,
}

/// NULL or a box that stays for ever, as all before it. No lock: a fork may come at any time.
static LISTENER: AtomicPtr<Listener> = AtomicPtr::new(null_mut());

/// Whether messages of the library come here; sees to it with the first call.
fn is_installed() -> bool {
    static INSTALLED: AtomicBool = AtomicBool::new(false);
    if !INSTALLED.load(Ordering::Acquire) && tracing::subscriber::set_global_default(Tell).is_ok() {
        INSTALLED.store(true, Ordering::Release);
    }
    INSTALLED.load(Ordering::Acquire)
}

/// Takes events of the library; there are no spans in it.
struct Tell;

impl Subscriber for Tell {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= Level::INFO
    }

    fn event(&self, event: &Event<'_>) {
        // SAFETY: NULL or a box that stays for ever.
        let listener = unsafe { LISTENER.load(Ordering::Acquire).as_ref() };
        let Some(listener) = listener else { return };
        let Some(on_log) = listener.on_log else { return };
        let level = match *event.metadata().level() {
            Level::ERROR => DLFS_LOG_ERROR,
            Level::WARN => DLFS_LOG_WARNING,
            _ => DLFS_LOG_INFO,
        };
        let mut text = Text::default();
        event.record(&mut text);
        // SAFETY: the caller's function with the caller's argument, and a text that lives.
        unsafe { on_log(listener.user, level, text.whole().as_ptr()) };
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// The sentence of an event, and its fields behind it in brackets.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Text {
    fn whole(self) -> CString {
        let mut whole = self.message;
        if !self.fields.is_empty() {
            whole = format!("{whole} ({})", self.fields);
        }
        let bytes: Vec<u8> = whole.bytes().filter(|byte| *byte != 0).collect();
        CString::new(bytes).expect("zero bytes were taken out")
    }
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let written = if field.name() == "message" {
            write!(self.message, "{value:?}")
        } else {
            let comma = if self.fields.is_empty() { "" } else { ", " };
            write!(self.fields, "{comma}{}: {value:?}", field.name())
        };
        written.expect("a String takes everything");
    }
}
