//! The table of handles. A handle is a number that is given once; it is looked up, never dereferenced.
//!
//! A spin lock guards the table for a few instructions at a time. A fork takes it, too: the child then
//! finds a free lock and a consistent table, whatever other threads were doing.

use std::any::Any;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use lock_api::{GuardNoSend, Mutex, RawMutex};

use crate::error::{DLFS_E_HANDLE, DLFS_E_NO_MEMORY, Failure, guard};
use crate::structs::put;

/// The object behind a handle. A clone is another reference to it.
type Object = Arc<dyn Any + Send + Sync>;

/// An opaque type of C whose pointers are handles.
pub(crate) trait Handle {
    /// The object behind a handle.
    type Object: Any + Send + Sync;
    /// The object's name in errors.
    const NAME: &str;
}

/// Creates a handle for `object`.
///
/// # Errors
/// `DLFS_E_NO_MEMORY`: the system takes no more handlers of forks.
pub(crate) fn insert<H: Handle>(object: H::Object) -> Result<*mut H, Failure> {
    watch_forks()?;
    let number = TABLE.lock().insert(Arc::new(object));
    Ok(std::ptr::without_provenance_mut(number))
}

/// Runs the body of a function that stores the handle of a new object in `*to`. `*to` is NULL until `make`
/// has made the object.
///
/// # Safety
/// `to` is NULL or a place for a handle.
pub(crate) unsafe fn open<H: Handle>(
    to: *mut *mut H,
    what: &str,
    make: impl FnOnce() -> Result<H::Object, Failure>,
) -> c_int {
    // SAFETY: the caller's promise is the one that `put` requires.
    guard(|| unsafe {
        put(to, std::ptr::null_mut(), what)?;
        put(to, insert(make()?)?, what)
    })
}

/// The object of `handle`. The result keeps the object alive, even if another thread closes the handle.
pub(crate) fn get<H: Handle>(handle: *const H) -> Result<Arc<H::Object>, Failure> {
    let object = TABLE.lock().objects.get(&handle.addr()).cloned();
    object.and_then(|object| object.downcast().ok()).ok_or_else(|| wrong(handle))
}

/// Removes `handle` from the table, which makes it invalid.
pub(crate) fn remove<H: Handle>(handle: *const H) -> Result<Arc<H::Object>, Failure> {
    let object = get(handle)?;
    // If several threads close a handle at once, one succeeds. It drops the object without the lock: that may take
    // time.
    let removed = TABLE.lock().objects.remove(&handle.addr());
    removed.map(|_| object).ok_or_else(|| wrong(handle))
}

/// The error for a handle that is not in the table.
fn wrong<H: Handle>(handle: *const H) -> Failure {
    let name = H::NAME;
    let text = if handle.is_null() {
        format!("the handle of a {name} is NULL")
    } else {
        format!("{handle:p} is not the handle of an open {name}; was it closed before?")
    };
    Failure::new(DLFS_E_HANDLE, text)
}

/// Objects by their handles.
struct Table {
    /// The number of the next handle. No number is given twice.
    next: usize,
    objects: BTreeMap<usize, Object>,
}

impl Table {
    const fn new() -> Table {
        Table { next: FIRST, objects: BTreeMap::new() }
    }

    fn insert(&mut self, object: Object) -> usize {
        let number = self.next;
        self.next += STEP;
        self.objects.insert(number, object);
        number
    }
}

static TABLE: Mutex<Spin, Table> = Mutex::const_new(Spin::INIT, Table::new());

/// A lock that depends on no other and allocates nothing, so that handlers of forks can hold it.
struct Spin(AtomicBool);

// SAFETY: the thread that changes the flag to true has the lock, until the flag is false again.
unsafe impl RawMutex for Spin {
    #[allow(clippy::declare_interior_mutable_const)] // as the trait has it
    const INIT: Spin = Spin(AtomicBool::new(false));
    type GuardMarker = GuardNoSend;

    fn lock(&self) {
        while !self.try_lock() {
            std::thread::yield_now();
        }
    }

    fn try_lock(&self) -> bool {
        !self.0.swap(true, Ordering::Acquire)
    }

    unsafe fn unlock(&self) {
        self.0.store(false, Ordering::Release);
    }
}

/// The id of the process that is installing the fork handlers; 0: none is; [`INSTALLED`]: they are installed.
static WATCHED: AtomicU32 = AtomicU32::new(0);

/// Installs fork handlers once, so that no fork happens while a thread changes the table. Other threads
/// wait until they are there.
fn watch_forks() -> Result<(), Failure> {
    let this_process = std::process::id();
    loop {
        let seen = WATCHED.load(Ordering::Acquire);
        if seen == INSTALLED {
            return Ok(());
        }
        // A thread of another process began in the parent of this one, and does not continue here.
        let is_free = seen != this_process;
        if is_free
            && WATCHED
                .compare_exchange(seen, this_process, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
        {
            break;
        }
        std::thread::yield_now();
    }
    // SAFETY: the three functions live as long as the library, which unregisters them when it is
    // unloaded. They take and release a lock that depends on no other, and allocate nothing.
    let code =
        unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(after_fork)) };
    WATCHED.store(if code == 0 { INSTALLED } else { 0 }, Ordering::Release);
    if code == 0 {
        Ok(())
    } else {
        Err(Failure::new(DLFS_E_NO_MEMORY, "the system takes no more handlers of forks"))
    }
}

extern "C" fn before_fork() {
    std::mem::forget(TABLE.lock()); // until `after_fork`
}

extern "C" fn after_fork() {
    // The handlers run, so they are installed, also if the thread that installs them is not in this process.
    WATCHED.store(INSTALLED, Ordering::Release);
    // SAFETY: `before_fork` has locked it on this thread.
    unsafe { TABLE.force_unlock() };
}

/// Not the id of a process: those are positive as `pid_t`.
const INSTALLED: u32 = u32::MAX;

/// The first handle. Its lowest bits make handles unequal to NULL and to aligned pointers; its highest bits, to small
/// numbers.
const FIRST: usize = 0x0d1f_0001_0000_0007;

/// The distance of two handles, which keeps the lowest bits. The numbers last for more than 2^59 objects.
const STEP: usize = 16;

const _: () = assert!(size_of::<usize>() == 8, "a handle has 64 bits");

#[cfg(test)]
mod tests {
    use super::*;

    fn object() -> Object {
        Arc::new(())
    }

    #[test]
    fn a_handle_is_good_until_it_is_removed_and_never_again() {
        let mut table = Table::new();
        let first = table.insert(object());
        let second = table.insert(object());
        assert!(table.objects.contains_key(&first) && table.objects.contains_key(&second));
        assert!(table.objects.remove(&first).is_some());
        let third = table.insert(object());
        assert!(first != third && second != third && table.objects.len() == 2);
    }

    #[test]
    fn an_invented_handle_is_refused() {
        let good = Table::new().insert(object());
        for number in [0, 1, 7, good + 1, good + 16, good ^ 1 << 32, usize::MAX, good >> 4] {
            let handle = std::ptr::without_provenance::<Numbered>(number);
            assert_eq!(get(handle).unwrap_err().code, DLFS_E_HANDLE, "{number:x}");
        }
    }

    enum Numbered {}
    impl Handle for Numbered {
        type Object = ();
        const NAME: &str = "number";
    }
}
