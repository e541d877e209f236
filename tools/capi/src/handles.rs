//! The table of handles. A handle is an index and a generation; it is looked up, never
//! dereferenced.
//!
//! A spin lock guards the table for a few instructions at a time. A fork takes it, too: the child then
//! finds a free lock and a consistent table, whatever other threads were doing.

use std::any::Any;
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::error::{DLFS_E_HANDLE, DLFS_E_NO_MEMORY, Failure, guard};
use crate::structs::put;

/// The object behind a handle. A clone is another reference to it.
type Object = Arc<dyn Any + Send + Sync>;

/// An object that has handles, and their name in errors.
pub(crate) trait Kind: Any + Send + Sync {
    const NAME: &str;
}

/// Creates a handle for `object`.
pub(crate) fn insert<T: Kind>(object: T) -> Result<*mut c_void, Failure> {
    watch_forks()?;
    TABLE.with(|table| table.insert(Arc::new(object)))
}

/// Runs the body of a function that stores the handle of a new object in `*to`. `*to` is NULL until `make`
/// has made the object.
///
/// # Safety
/// `to` is NULL or a place for a handle.
pub(crate) unsafe fn open<H, T: Kind>(
    to: *mut *mut H,
    what: &str,
    make: impl FnOnce() -> Result<T, Failure>,
) -> c_int {
    // SAFETY: the caller's promise is the one that `put` requires.
    guard(|| unsafe {
        put(to, std::ptr::null_mut(), what)?;
        put(to, insert(make()?)?.cast(), what)
    })
}

/// The object of `handle`. The result keeps the object alive, even if another thread closes the handle.
pub(crate) fn get<T: Kind>(handle: *const c_void) -> Result<Arc<T>, Failure> {
    let object = TABLE.with(|table| table.get(handle).cloned());
    object.and_then(|object| object.downcast().ok()).ok_or_else(|| wrong::<T>(handle))
}

/// Removes `handle` from the table, which makes it invalid.
pub(crate) fn remove<T: Kind>(handle: *const c_void) -> Result<Arc<T>, Failure> {
    // Dropped by the caller, without the lock: dropping may take time.
    let object = TABLE.with(|table| {
        let fits = table.get(handle).is_some_and(|object| object.is::<T>());
        if fits { table.remove(handle) } else { None }
    });
    object.and_then(|object| object.downcast().ok()).ok_or_else(|| wrong::<T>(handle))
}

fn wrong<T: Kind>(handle: *const c_void) -> Failure {
    let name = T::NAME;
    let text = if handle.is_null() {
        format!("the handle of a {name} is NULL")
    } else {
        format!("{handle:p} is not the handle of an open {name}; was it closed before?")
    };
    Failure::new(DLFS_E_HANDLE, text)
}

#[derive(Default)]
struct Table {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

struct Slot {
    /// The generation of the current handle, or of the next one.
    generation: u32,
    object: Option<Object>,
}

impl Table {
    const fn new() -> Table {
        Table { slots: Vec::new(), free: Vec::new() }
    }

    fn insert(&mut self, object: Object) -> Result<*mut c_void, Failure> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.slots.len() < MAX_HANDLES => {
                self.slots.push(Slot { generation: FIRST_GENERATION, object: None });
                (self.slots.len() - 1) as u32
            }
            None => return Err(Failure::new(DLFS_E_NO_MEMORY, "too many open handles")),
        };
        let place = &mut self.slots[slot as usize];
        place.object = Some(object);
        let number = u64::from(place.generation) << 32 | u64::from(slot) << 4 | TAG;
        Ok(std::ptr::without_provenance_mut(number as usize))
    }

    fn get(&self, handle: *const c_void) -> Option<&Object> {
        let (slot, generation) = parse(handle)?;
        let place = self.slots.get(slot).filter(|place| place.generation == generation)?;
        place.object.as_ref()
    }

    fn remove(&mut self, handle: *const c_void) -> Option<Object> {
        self.get(handle)?;
        let (slot, _) = parse(handle)?;
        let place = &mut self.slots[slot];
        let object = place.object.take();
        // An entry without further generations is never reused.
        if let Some(next) = place.generation.checked_add(1) {
            place.generation = next;
            self.free.push(slot as u32);
        }
        object
    }
}

fn parse(handle: *const c_void) -> Option<(usize, u32)> {
    let number = handle.addr() as u64;
    (number & 15 == TAG).then_some(((number as u32 >> 4) as usize, (number >> 32) as u32))
}

/// The table behind its lock.
struct Locked {
    taken: AtomicBool,
    table: UnsafeCell<Table>,
}

static TABLE: Locked =
    Locked { taken: AtomicBool::new(false), table: UnsafeCell::new(Table::new()) };

// SAFETY: only `with` accesses the table, and it holds the lock; objects are `Send` and `Sync`.
unsafe impl Sync for Locked {}

impl Locked {
    fn with<R>(&self, work: impl FnOnce(&mut Table) -> R) -> R {
        self.lock();
        // Unlocked also if an allocation panics: the table is then unchanged.
        struct Unlock<'a>(&'a Locked);
        impl Drop for Unlock<'_> {
            fn drop(&mut self) {
                self.0.unlock();
            }
        }
        let _unlock = Unlock(self);
        // SAFETY: the lock was taken above and is released when this function returns, so this is
        // the only reference to the table.
        work(unsafe { &mut *self.table.get() })
    }

    fn lock(&self) {
        while self.taken.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
    }

    fn unlock(&self) {
        self.taken.store(false, Ordering::Release);
    }
}

/// The id of the process that is installing the fork handlers; 0 before, and [`INSTALLED`] afterwards.
static WATCHED: AtomicU32 = AtomicU32::new(0);

/// Installs fork handlers once, so that no fork happens while a thread changes the table. Other threads
/// wait until they are there.
fn watch_forks() -> Result<(), Failure> {
    let own = std::process::id();
    loop {
        let seen = WATCHED.load(Ordering::Acquire);
        if seen == INSTALLED {
            return Ok(());
        }
        // A thread of another process began in the parent of this one, and does not continue here.
        let is_free = seen != own;
        if is_free
            && WATCHED.compare_exchange(seen, own, Ordering::AcqRel, Ordering::Acquire).is_ok()
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
    TABLE.lock();
}

extern "C" fn after_fork() {
    // The handlers run, so they are installed, also if the thread that installs them is not in this process.
    WATCHED.store(INSTALLED, Ordering::Release);
    TABLE.unlock();
}

/// Not the id of a process: those are positive as `pid_t`.
const INSTALLED: u32 = u32::MAX;

/// The lowest bits of a handle, which is thus never NULL, nor aligned as real pointers are.
const TAG: u64 = 7;

/// Not 0, so that small numbers are not valid handles.
const FIRST_GENERATION: u32 = 0x0d1f_0001;

/// The most handles at a time: 28 bits lie between the tag and the generation.
const MAX_HANDLES: usize = 1 << 28;

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
        let first = table.insert(object()).unwrap();
        let second = table.insert(object()).unwrap();
        assert!(table.get(first).is_some() && table.get(second).is_some());
        assert!(table.remove(first).is_some());
        assert!(table.get(first).is_none() && table.remove(first).is_none());
        let third = table.insert(object()).unwrap();
        assert_ne!(first, third, "the place is the same, the generation is not");
        assert!(table.get(first).is_none() && table.get(third).is_some());
        assert_eq!(table.slots.len(), 2);
    }

    #[test]
    fn an_invented_handle_is_refused() {
        let mut table = Table::new();
        let good = table.insert(object()).unwrap().addr();
        for number in [0, 1, 7, good + 1, good + 16, good ^ 1 << 32, usize::MAX, good >> 4] {
            assert!(table.get(std::ptr::without_provenance(number)).is_none(), "{number:x}");
        }
    }

    #[test]
    fn a_slot_whose_generations_are_used_up_is_not_reused() {
        let mut table = Table::new();
        let first = table.insert(object()).unwrap();
        table.slots[0].generation = u32::MAX;
        let last = std::ptr::without_provenance(first.addr() | 0xffff_ffff << 32);
        assert!(table.remove(last).is_some());
        table.insert(object()).unwrap();
        assert_eq!(table.slots.len(), 2);
    }
}
