//! Panics of decoders of other crates, which some damaged files cause: [`guarded`] turns a panic into an error of the
//! file.
//!
//! A panic hook suppresses the message and backtrace of such a panic. All other panics go to the previous hook.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook, take_hook};
use std::sync::Once;

use dlfs_base::threads::panic_message;

/// Runs `decode`. A panic of the decoder becomes an error with the location and message of the panic.
pub(super) fn guarded<T>(decode: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    set_hook_once();
    let was_set = DECODES.replace(true);
    let decoded = catch_unwind(AssertUnwindSafe(decode));
    DECODES.set(was_set);
    decoded.unwrap_or_else(|_| Err(format!("its decoder failed {}", PANIC.take())))
}

thread_local! {
    /// Set while this thread runs a decoder.
    static DECODES: Cell<bool> = const { Cell::new(false) };
    /// Description of the decoder's last panic.
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Sets the panic hook, at the first call.
fn set_hook_once() {
    static SET: Once = Once::new();
    SET.call_once(|| {
        let others = take_hook();
        set_hook(Box::new(
            move |panic| if DECODES.get() { PANIC.set(described(panic)) } else { others(panic) },
        ));
    });
}

/// The panic's location, with a path from the crate's name on, and its message, on one line.
fn described(panic: &PanicHookInfo<'_>) -> String {
    let place = panic.location().map_or_else(String::new, |at| {
        let krate = at.file().rfind("/src/").and_then(|src| at.file()[..src].rfind('/'));
        let file = &at.file()[krate.map_or(0, |slash| slash + 1)..];
        format!("at {file}:{}", at.line())
    });
    let message = panic_message(panic.payload()).replace('\n', " ");
    format!("{place}: {message}")
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn panics_of_decoders_are_told_on_one_line_and_all_others_are_printed() {
        const AGAIN: &str = "DLFS_TEST_GUARD";
        if std::env::var_os(AGAIN).is_some() {
            let told = guarded::<()>(|| panic!("hidden\none")).unwrap_err();
            assert!(told.starts_with("its decoder failed at "), "{told}");
            assert!(told.contains("panics.rs:") && told.ends_with(": hidden one"), "{told}");
            std::thread::spawn(|| panic!("of a thread")).join().unwrap_err();
            catch_unwind(|| panic!("behind it")).unwrap_err();
            return;
        }
        let mut again = Command::new(std::env::current_exe().unwrap());
        let name = std::thread::current().name().unwrap().to_owned();
        let ran = again.args(["--exact", &name, "--nocapture"]).env(AGAIN, "1").output().unwrap();
        let printed = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{printed}");
        assert!(printed.contains("of a thread") && printed.contains("behind it"), "{printed}");
        assert!(!printed.contains("hidden"), "{printed}");
    }
}
