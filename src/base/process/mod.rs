//! Process identity and memory, and values that a forked child must not use.
//!
//! A fork copies memory, but no other threads. In the child, a lock that another thread held stays locked
//! for ever. Connections belong to the parent: dropping them in the child would end what the parent still
//! uses. [`Forked`] holds such a value and gives access only to the process that created it; a child leaks
//! the inherited value and creates its own. The creating code may look at the inherited value with
//! [`Forked::inherited`], but must not wait for its locks. [`NotInherited`] keeps locks and connections out
//! of the child. Threads that may wait for long while the process forks use [`Mutex`] and [`Condvar`]. [`send_files`]
//! gives file descriptors to another process.
//!
//! parking_lot keeps waiting threads in a table of the process, which points into their stacks. A forked
//! child inherits the table without the threads. Once its own threads reuse these stacks, a walk of the
//! table may never end. The standard library's types wait in the kernel, so a child inherits no waiters.
//! These wrappers ignore poisoning.

mod at_fork;
mod files;

pub use at_fork::{NotInherited, is_ours, mark_ours, process_id};
pub use files::{receive_files, send_files};
pub use std::sync::MutexGuard;

use std::convert::Infallible;
use std::path::Path;
use std::sync::{self, OnceLock, PoisonError};
use std::time::Instant;

/// A value that belongs to the process that created it; a child process may create its own.
///
/// A child leaks an inherited value instead of dropping it.
#[derive(Debug)]
pub struct Forked<T> {
    /// The process that created the value; 0: none, see [`Forked::empty`].
    pid: u32,
    /// `Some` until the value is moved out or leaked; `None` for [`Forked::empty`].
    value: Option<T>,
    child: OnceLock<Box<Forked<T>>>,
}

impl<T> Forked<T> {
    /// Wraps a value of the calling process.
    pub fn new(value: T) -> Forked<T> {
        Forked { pid: process_id(), value: Some(value), child: OnceLock::new() }
    }

    /// A value that is not created yet: each process, including the first, creates its own. For statics.
    pub const fn empty() -> Forked<T> {
        Forked { pid: 0, value: None, child: OnceLock::new() }
    }

    /// The value of the nearest ancestor that has one, for a child that has not created its own.
    ///
    /// A thread that does not exist in the child may hold the value's locks for ever: never wait for them,
    /// at most use `try_lock`. The connections and threads that the value describes are the ancestor's.
    pub fn inherited(&self) -> Option<&T> {
        let pid = process_id();
        let mut last = self;
        while last.pid != pid {
            match last.child.get() {
                Some(child) => last = child,
                None => return last.value.as_ref(),
            }
        }
        None
    }

    /// The value of the calling process; `None` in a child that has not created one.
    pub fn get(&self) -> Option<&T> {
        let pid = process_id();
        let mut here = self;
        while here.pid != pid {
            here = here.child.get()?;
        }
        here.value.as_ref()
    }

    /// [`Forked::get`] with mutable access.
    pub fn get_mut(&mut self) -> Option<&mut T> {
        let pid = process_id();
        let mut here = self;
        while here.pid != pid {
            here = here.child.get_mut()?;
        }
        here.value.as_mut()
    }

    /// Returns whether the calling process has a value.
    pub fn is_ours(&self) -> bool {
        self.get().is_some()
    }

    /// The value of the calling process; created with `make` if there is none.
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        match self.get_or_try_init(|| Ok::<T, Infallible>(make())) {
            Ok(value) => value,
            Err(never) => match never {},
        }
    }

    /// [`Forked::get_or_init`] for a `make` that may fail.
    ///
    /// # Errors
    /// The errors of `make`.
    pub fn get_or_try_init<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<&T, E> {
        let mut last = self;
        while last.pid != process_id() {
            let Some(child) = last.child.get() else { break };
            last = child;
        }
        if last.pid != process_id() {
            // Created before it is stored, so that the cell is locked only briefly. If another thread
            // stores its value first, that value is used.
            let _ = last.child.set(Box::new(Forked::new(make()?)));
            last = last.child.get().expect("set above or by another thread");
        }
        Ok(last.value.as_ref().expect("a value is there until it is given away"))
    }

    /// Returns the value if the calling process created it; leaks an inherited one.
    pub fn into_inner(mut self) -> Option<T> {
        match self.child.take() {
            Some(child) => child.into_inner(),
            None if self.pid == process_id() => self.value.take(),
            None => None,
        }
    }
}

impl<T> Drop for Forked<T> {
    fn drop(&mut self) {
        if self.pid != process_id() {
            std::mem::forget(self.value.take());
        }
    }
}

impl<T> Default for Forked<T> {
    fn default() -> Forked<T> {
        Forked::empty()
    }
}

/// Bytes of memory that this process may use: the machine's, or the lowest limit of its control groups if that
/// is lower.
pub fn memory_bytes() -> u64 {
    let machine = rustix::system::sysinfo();
    let machine = machine.totalram.saturating_mul(u64::from(machine.mem_unit));
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    limit_of(&groups, Path::new("/sys/fs/cgroup")).map_or(machine, |limit| machine.min(limit))
}

/// The lowest limit of the groups listed in `/proc/PID/cgroup` (`cgroups(7)`) and of their parents.
fn limit_of(groups: &str, root: &Path) -> Option<u64> {
    let limits = groups.lines().flat_map(|line| {
        let mut words = line.splitn(3, ':').skip(1);
        let controllers = words.next().unwrap_or("");
        let group = words.next().unwrap_or("");
        let (top, name) = if controllers.split(',').any(|name| name == "memory") {
            (root.join("memory"), "memory.limit_in_bytes")
        } else {
            (root.to_path_buf(), "memory.max")
        };
        let folder = top.join(group.trim_start_matches('/'));
        let around = folder.ancestors().take_while(|folder| folder.starts_with(&top));
        let limit = |folder: &Path| -> Option<u64> {
            std::fs::read_to_string(folder.join(name)).ok()?.trim().parse().ok()
        };
        around.filter_map(limit).min()
    });
    limits.min()
}

/// A mutex that a forked child inherits without waiters.
#[derive(Debug, Default)]
pub struct Mutex<T>(sync::Mutex<T>);

/// A condition variable that a forked child inherits without waiters.
#[derive(Debug, Default)]
pub struct Condvar(sync::Condvar);

impl<T> Mutex<T> {
    /// A mutex that holds `value`.
    pub fn new(value: T) -> Mutex<T> {
        Mutex(sync::Mutex::new(value))
    }

    /// Waits for the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Condvar {
    /// Wakes one waiting thread.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all waiting threads.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }

    /// Waits for a notification; spurious wakeups are possible.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a notification until a deadline; returns whether the deadline has passed.
    pub fn wait_until<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        until: Instant,
    ) -> (MutexGuard<'a, T>, bool) {
        let limit = until.saturating_duration_since(Instant::now());
        let waited = self.0.wait_timeout(guard, limit).unwrap_or_else(PoisonError::into_inner);
        (waited.0, waited.1.timed_out())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fs;
    use std::rc::Rc;
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    /// Counts its drops.
    struct Counted(Rc<Cell<u32>>);

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }

    /// A value as a forked child sees it: its creator has another process identifier.
    fn inherited<T>(value: T) -> Forked<T> {
        Forked { pid: process_id().wrapping_add(1), value: Some(value), child: OnceLock::new() }
    }

    #[test]
    fn the_process_that_made_a_value_sees_changes_drops_and_gives_it_away() {
        let drops = Rc::new(Cell::new(0));
        let mut forked = Forked::new((7, Counted(Rc::clone(&drops))));
        assert!(forked.is_ours());
        forked.get_mut().expect("ours").0 = 8;
        assert_eq!(forked.get().map(|value| value.0), Some(8));
        assert_eq!(forked.get_or_init(|| unreachable!("there is one")).0, 8);
        assert_eq!(forked.into_inner().map(|value| value.0), Some(8));
        assert_eq!(drops.get(), 1);
        drop(Forked::new(Counted(Rc::clone(&drops))));
        assert_eq!(drops.get(), 2);
    }

    #[test]
    fn what_is_inherited_is_never_shown_or_dropped_and_a_child_makes_its_own() {
        let drops = Rc::new(Cell::new(0));
        let counted = || Counted(Rc::clone(&drops));
        let mut forked = inherited((1, counted()));
        assert!(!forked.is_ours() && forked.get().is_none() && forked.get_mut().is_none());
        assert_eq!(
            forked.get_or_try_init(|| Err("no threads")).map(|value| value.0),
            Err("no threads")
        );
        assert!(!forked.is_ours(), "nothing was made");
        assert_eq!(forked.get_or_init(|| (2, counted())).0, 2);
        forked.get_mut().expect("ours now").0 = 3;
        assert_eq!(forked.get_or_init(|| unreachable!("there is one")).0, 3);
        assert_eq!(forked.into_inner().map(|value| value.0), Some(3));
        assert_eq!(drops.get(), 1, "the inherited one is leaked");
        let forked = inherited(counted());
        forked.get_or_init(counted);
        drop(forked);
        assert_eq!(drops.get(), 2);
        assert!(inherited(counted()).into_inner().is_none());
        assert_eq!(drops.get(), 2);
    }

    #[test]
    fn an_inherited_value_can_be_looked_at_until_the_process_has_its_own() {
        assert_eq!(Forked::new(1).inherited(), None);
        let forked = inherited(1);
        assert_eq!(forked.inherited(), Some(&1));
        assert_eq!(forked.get_or_init(|| 2), &2);
        assert_eq!(forked.inherited(), None);
    }

    #[test]
    fn an_empty_value_is_filled_once_the_process_creates_it() {
        static EMPTY: Forked<u32> = Forked::empty();
        assert_eq!((EMPTY.get(), EMPTY.inherited(), EMPTY.is_ours()), (None, None, false));
        assert_eq!(EMPTY.get_or_init(|| 3), &3);
        assert_eq!(EMPTY.get(), Some(&3));
        let drops = Rc::new(Cell::new(0));
        let forked = Forked::empty();
        forked.get_or_init(|| Counted(Rc::clone(&drops)));
        drop(forked);
        assert_eq!(drops.get(), 1);
        assert!(Forked::<u32>::empty().into_inner().is_none());
    }

    #[test]
    fn the_least_limit_of_a_control_group_and_of_those_around_it_counts() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let limit = |groups: &str| limit_of(groups, dir.path());
        assert_eq!(limit("0::/a/b\n"), None);
        write("a/memory.max", "300000000\n");
        write("a/b/memory.max", "max\n");
        assert_eq!(limit("0::/a/b\n"), Some(300_000_000));
        write("a/b/memory.max", "200000000\n");
        assert_eq!(limit("0::/a/b\n"), Some(200_000_000));
        // In a container, the process sees its own group as the root.
        write("memory/memory.limit_in_bytes", "100000000\n");
        assert_eq!(limit("5:cpu,memory:/far/away\n0::/a\n"), Some(100_000_000));
        assert_eq!(limit("nonsense\n1:memory\n0::/a\n"), Some(100_000_000));
        assert!(memory_bytes() > 0);
    }

    #[test]
    fn a_waiter_sees_what_was_changed_before_it_was_told() {
        let shared = Arc::new((Mutex::new(0), Condvar::default()));
        let other = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            *other.0.lock() = 7;
            other.1.notify_all();
        });
        let (value, changed) = &*shared;
        let mut guard = value.lock();
        while *guard == 0 {
            guard = changed.wait(guard);
        }
        assert_eq!(*guard, 7);
        let (mut guard, is_late) =
            changed.wait_until(guard, Instant::now() + Duration::from_millis(1));
        assert!(is_late);
        *guard += 1;
        drop(guard);
        thread.join().unwrap();
        assert_eq!(*value.lock(), 8);
    }
}
