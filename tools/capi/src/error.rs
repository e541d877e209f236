//! Error numbers, the text of the last error in each thread, and the guard that catches panics.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use dlfs::{Error, ErrorKind};

/// Success.
pub const DLFS_OK: c_int = 0;
/// The end: the last batch was returned before. Not an error.
pub const DLFS_END: c_int = 1;
/// An invalid argument, or arguments that contradict each other; also a state of another data set.
pub const DLFS_E_INVALID: c_int = -1;
/// The sample, file, image or target does not exist.
pub const DLFS_E_NOT_FOUND: c_int = -2;
/// Bytes on media or on the wire are damaged, even after reading them again.
pub const DLFS_E_CORRUPT: c_int = -3;
/// A newer format, or a feature that this build does not know.
pub const DLFS_E_UNSUPPORTED: c_int = -4;
/// The connection was lost and could not be restored in time.
pub const DLFS_E_DISCONNECTED: c_int = -5;
/// The deadline of the call has passed.
pub const DLFS_E_TIMED_OUT: c_int = -6;
/// The target or the operating system refused.
pub const DLFS_E_REFUSED: c_int = -7;
/// Another process or thread is using it.
pub const DLFS_E_BUSY: c_int = -8;
/// The image has a newer generation: mount it again.
pub const DLFS_E_STALE: c_int = -9;
/// The medium is full.
pub const DLFS_E_NO_SPACE: c_int = -10;
/// Out of memory.
pub const DLFS_E_NO_MEMORY: c_int = -11;
/// The call was ended by its `should_stop`, or because its handle was closed.
pub const DLFS_E_INTERRUPTED: c_int = -12;
/// An operating system error of no other kind.
pub const DLFS_E_IO: c_int = -13;
/// The handle is NULL, closed, or invalid.
pub const DLFS_E_HANDLE: c_int = -14;
/// This version does not know a struct of this `size`.
pub const DLFS_E_SIZE: c_int = -15;
/// The caller's buffer is too small; nothing was done.
pub const DLFS_E_TOO_SMALL: c_int = -16;
/// A bug in the library.
pub const DLFS_E_INTERNAL: c_int = -17;

/// The failure of a call: the error's number and text.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: c_int,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn new(code: c_int, text: impl Into<String>) -> Failure {
        Failure { code, text: text.into() }
    }

    pub(crate) fn invalid(text: impl Into<String>) -> Failure {
        Failure::new(DLFS_E_INVALID, text)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::new(code_of(&error), error.report_with(&FIELDS))
    }
}

/// The fields of C's structs for options of the command that messages and hints of the library name, unless these name
/// both. Options of the command alone keep their names.
pub(crate) const FIELDS: [(&str, &str); 19] = [
    ("--accept-older-generation", "accept_older_generation"),
    ("--append", "DLFS_WRITE_APPEND"),
    ("--batching sample", "DLFS_BATCHING_SAMPLE"),
    ("--data-digest", "data_digest"),
    ("--force", "DLFS_WRITE_OVERWRITE"),
    ("--from", "from"),
    ("--hdr-digest", "hdr_digest"),
    ("--hidden", "hidden"),
    ("--links inside", "DLFS_LINKS_INSIDE"),
    ("--node", "node"),
    ("--nr-io-queues", "nr_io_queues"),
    ("--on-error skip", "skip_bad"),
    ("--order grouped", "DLFS_ORDER_GROUPED"),
    ("--peers", "peers"),
    ("--placement source", "DLFS_WRITE_IN_ORDER"),
    ("--prefix", "prefix"),
    ("--shards", "index"),
    ("--tier ram:SIZE", "\"ram:SIZE\" to tiers"),
    ("--tls-compat", "tls_compat"),
];

/// The error number of an error of the library; `DLFS_E_IO` for kinds without a number.
pub(crate) fn code_of(error: &Error) -> c_int {
    let found = CODES.iter().find(|(.., kinds)| kinds.contains(&error.kind()));
    found.map_or(DLFS_E_IO, |(code, ..)| *code)
}

/// The codes, their texts, and the kinds of the library's errors.
const CODES: [(c_int, &CStr, &[ErrorKind]); 19] = [
    (DLFS_OK, c"success", &[]),
    (DLFS_END, c"no more", &[]),
    (DLFS_E_INVALID, c"invalid argument", &[ErrorKind::InvalidArgument, ErrorKind::BadSource]),
    (DLFS_E_NOT_FOUND, c"not found", &[ErrorKind::NotFound]),
    (DLFS_E_CORRUPT, c"damaged bytes", &[ErrorKind::Corrupt]),
    (DLFS_E_UNSUPPORTED, c"not supported", &[ErrorKind::Unsupported]),
    (DLFS_E_DISCONNECTED, c"connection lost", &[ErrorKind::Disconnected]),
    (DLFS_E_TIMED_OUT, c"timed out", &[ErrorKind::TimedOut]),
    (DLFS_E_REFUSED, c"refused", &[ErrorKind::Refused]),
    (DLFS_E_BUSY, c"busy", &[ErrorKind::Busy]),
    (DLFS_E_STALE, c"the image has moved on", &[ErrorKind::Stale]),
    (DLFS_E_NO_SPACE, c"no space left", &[ErrorKind::NoSpace]),
    (DLFS_E_NO_MEMORY, c"out of memory", &[ErrorKind::OutOfMemory]),
    (DLFS_E_INTERRUPTED, c"interrupted", &[ErrorKind::Interrupted]),
    (DLFS_E_IO, c"input/output error", &[]),
    (DLFS_E_HANDLE, c"not an open handle", &[]),
    (DLFS_E_SIZE, c"unknown size of a struct", &[]),
    (DLFS_E_TOO_SMALL, c"memory too small", &[]),
    (DLFS_E_INTERNAL, c"internal error", &[ErrorKind::Internal]),
];

thread_local! {
    /// The text of the last error of this thread; empty: no call has failed.
    static LAST: RefCell<CString> = RefCell::default();
}

/// Runs the body of a function of the library; returns `DLFS_OK`, or an error's number, and stores its text.
pub(crate) fn guard(body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    guard_long(|| body().map(|()| DLFS_OK.into())) as c_int
}

/// As [`guard`], for functions that return a length or another number.
pub(crate) fn guard_long(body: impl FnOnce() -> Result<i64, Failure>) -> i64 {
    // Unwind safe: partly changed state is behind locks that do not poison, and is only ever
    // replaced as a whole.
    let result =
        catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| Err(of_panic(&*panic)));
    result.unwrap_or_else(|failure| {
        remember(&failure.text);
        i64::from(failure.code)
    })
}

fn of_panic(panic: &(dyn Any + Send)) -> Failure {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
    Failure::new(DLFS_E_INTERNAL, format!("a bug in dlfs: {text}"))
}

/// Stores `text` as the text of the last error of this thread, without zero bytes.
pub(crate) fn remember(text: &str) {
    let bytes: Vec<u8> = text.bytes().filter(|byte| *byte != 0).collect();
    let text = CString::new(bytes).expect("zero bytes were taken out");
    // A thread that is ending may have lost its storage; then nobody can ask for the text either.
    let _ = LAST.try_with(|last| last.replace(text));
}

/// The text of the last error in the calling thread: what failed, where, why, and what to do.
///
/// Never NULL; empty if no call has failed, and in a thread that runs its destructors. Valid until
/// the next failing call of this thread, and only in this thread.
#[unsafe(no_mangle)]
extern "C" fn dlfs_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// The general meaning of the number `code`. Never NULL; valid for ever. Any thread.
#[unsafe(no_mangle)]
extern "C" fn dlfs_strerror(code: c_int) -> *const c_char {
    let known = CODES.iter().find(|(known, ..)| *known == code);
    let text = known.map_or(c"unknown error", |(_, text, _)| text);
    text.as_ptr()
}

/// The version of the library, such as "0.1.0". Never NULL; valid for ever. Any thread.
#[unsafe(no_mangle)]
extern "C" fn dlfs_version() -> *const c_char {
    VERSION.as_ptr()
}

const VERSION: &CStr =
    match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => panic!("a version has no zero byte"),
    };

#[cfg(test)]
mod tests {
    use super::*;

    fn last() -> String {
        // SAFETY: never NULL, and this thread has not failed since.
        unsafe { CStr::from_ptr(dlfs_last_error()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_panic_becomes_an_error_with_its_text_and_the_next_call_works() {
        assert_eq!(last(), "");
        assert_eq!(guard(|| panic!("at {}", 7)), DLFS_E_INTERNAL);
        assert!(last().contains("at 7"));
        assert_eq!(guard_long(|| Ok(DLFS_END.into())), i64::from(DLFS_END));
        assert!(last().contains("at 7"), "a call that succeeds keeps the text");
        assert_eq!(guard_long(|| Err(Failure::invalid("a\0b"))), i64::from(DLFS_E_INVALID));
        assert_eq!(last(), "ab");
        std::thread::spawn(|| assert_eq!(last(), "")).join().unwrap();
    }

    #[test]
    fn errors_name_options_by_the_fields_and_constants_of_the_header() {
        let header = include_str!("../dlfs.h");
        for (_, name) in FIELDS {
            let word = name.rsplit(' ').next().unwrap();
            assert!(header.contains(word), "the header has no {word}");
        }
        let error = Error::new(ErrorKind::Refused, "there is an image");
        let failure = Failure::from(error.hint("overwrite it with --force"));
        assert_eq!(
            failure.text,
            "there is an image\n  try: overwrite it with DLFS_WRITE_OVERWRITE"
        );
    }

    #[test]
    fn every_number_has_a_text_of_its_own() {
        // SAFETY: static texts.
        let text = |code| unsafe { CStr::from_ptr(dlfs_strerror(code)) }.to_str().unwrap();
        let texts: std::collections::BTreeSet<_> = (DLFS_E_INTERNAL..=DLFS_END).map(text).collect();
        assert_eq!(texts.len(), 19);
        assert!(!texts.contains("unknown error"));
        assert_eq!(text(i32::MIN), "unknown error");
    }
}
