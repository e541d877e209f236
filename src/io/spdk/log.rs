//! Captures SPDK's log for error messages and `tracing`, instead of stderr.

use std::ffi::{CStr, c_char, c_int};
use std::sync::Mutex;

use spdk_sys as sys;

/// The first error that SPDK logged since the current attempt began; later ones are consequences.
static FIRST_ERROR: Mutex<String> = Mutex::new(String::new());

/// Redirects SPDK's log to this module.
pub(super) fn install() {
    // SAFETY: the function may be called from any thread at any time and lives as long as the program.
    unsafe { sys::spdk_log_open(Some(record)) };
}

/// Clears the recorded error before a new attempt.
pub(super) fn forget() {
    if let Ok(mut first) = FIRST_ERROR.lock() {
        first.clear();
    }
}

/// The recorded error as a suffix for a message: `: reason`, or nothing.
pub(super) fn reason() -> String {
    match FIRST_ERROR.lock() {
        Ok(first) if !first.is_empty() => format!(": {first}"),
        _ => String::new(),
    }
}

/// The platform's `va_list`, as bindgen declares it in the callback's type.
#[cfg(target_arch = "x86_64")]
type Arguments = *mut sys::__va_list_tag;

/// Formats a message of SPDK's log and keeps it.
#[cfg(target_arch = "x86_64")]
unsafe extern "C" fn record(
    level: c_int,
    _file: *const c_char,
    _line: c_int,
    _function: *const c_char,
    format: *const c_char,
    arguments: Arguments,
) {
    let mut text = [0 as c_char; 512];
    // SAFETY: SPDK passes a format and its arguments; at most the array's length is written, with NUL.
    unsafe { sys::vsnprintf(text.as_mut_ptr(), text.len() as _, format, arguments) };
    // SAFETY: NUL-terminated, see above; an array that the call left alone is all NUL.
    let text = unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy();
    keep(level, text.trim());
}

/// Keeps the format of a message of SPDK's log.
#[cfg(not(target_arch = "x86_64"))]
unsafe extern "C" fn record(
    level: c_int,
    _file: *const c_char,
    _line: c_int,
    _function: *const c_char,
    format: *const c_char,
    _arguments: sys::va_list,
) {
    // SAFETY: SPDK passes a NUL-terminated format. Its arguments cannot be passed on from here.
    let text = unsafe { CStr::from_ptr(format) }.to_string_lossy();
    keep(level, text.trim());
}

/// Logs a message, and records the first error.
fn keep(level: c_int, text: &str) {
    // The prefix names host, subsystem and address, which the reporter of the error adds anyway.
    let text =
        text.strip_prefix('[').and_then(|t| t.split_once("] ")).map_or(text, |(_, said)| said);
    if level == sys::spdk_log_level::SPDK_LOG_ERROR.0 {
        tracing::debug!("SPDK: {text}");
        // Logging may happen anywhere: losing a line is better than waiting for the lock.
        if let Ok(mut first) = FIRST_ERROR.try_lock()
            && first.is_empty()
        {
            first.push_str(text);
        }
    } else {
        tracing::trace!("SPDK: {text}");
    }
}
