//! File descriptors that are kept from forked children.
//!
//! A fork duplicates all descriptors. A lock (`flock`), a listening socket or a connection ends only when
//! its last duplicate is closed, so a child that outlives its parent would keep it. Linux closes no
//! descriptor at a fork. A handler of `pthread_atfork` therefore replaces registered descriptors in the
//! child. Their numbers stay in use, because their owners in the child may still close them.

#![allow(unsafe_code)] // registers handlers of forks, and replaces descriptors in the child

use std::cell::RefCell;
use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use rustix::fs::{Mode, OFlags};

/// Keeps a descriptor from forked children until dropped. Drop it before the descriptor.
#[derive(Debug)]
pub struct NotInherited {
    id: u64,
}

impl NotInherited {
    /// In a child, the descriptor refers to `/dev/null`.
    pub fn close(fd: BorrowedFd<'_>) -> NotInherited {
        NotInherited::register(fd, InChild::Null)
    }

    /// In a child, the descriptor refers to the same file, reopened for reading and without the lock, or to
    /// `/dev/null` if it cannot be reopened.
    pub fn reopen(fd: BorrowedFd<'_>) -> NotInherited {
        NotInherited::register(fd, InChild::Reopened)
    }

    fn register(fd: BorrowedFd<'_>, in_child: InChild) -> NotInherited {
        static HANDLERS: Once = Once::new();
        // SAFETY: the handlers are `extern "C"`, do not unwind, and live as long as the program. If
        // registering them fails for lack of memory, children keep the descriptors.
        HANDLERS.call_once(|| unsafe {
            libc::pthread_atfork(Some(before), Some(after_in_parent), Some(after_in_child));
        });
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        entries().push(Entry { id, fd: fd.as_raw_fd(), in_child });
        NotInherited { id }
    }
}

impl Drop for NotInherited {
    fn drop(&mut self) {
        // In a child, the list is empty already.
        entries().retain(|entry| entry.id != self.id);
    }
}

/// A registered descriptor.
struct Entry {
    /// The number of its [`NotInherited`].
    id: u64,
    fd: RawFd,
    in_child: InChild,
}

/// The file to which a descriptor refers in a child.
#[derive(Clone, Copy)]
enum InChild {
    /// `/dev/null`.
    Null,
    /// The same file, reopened for reading; `/dev/null` if that fails.
    Reopened,
}

fn entries() -> MutexGuard<'static, Vec<Entry>> {
    ENTRIES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The registered descriptors of this process.
static ENTRIES: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

thread_local! {
    /// The locked list while this thread forks, so that the child finds it consistent.
    static LOCKED_FOR_FORK: RefCell<Option<MutexGuard<'static, Vec<Entry>>>> = const { RefCell::new(None) };
}

/// Locks the list until the fork is over.
unsafe extern "C" fn before() {
    let entries = entries();
    // Fails if the thread is ending. The other handlers then find no lock, and do nothing.
    let _ = LOCKED_FOR_FORK.try_with(|held| *held.borrow_mut() = Some(entries));
}

unsafe extern "C" fn after_in_parent() {
    let _ = LOCKED_FOR_FORK.try_with(|held| held.borrow_mut().take()); // fails as above
}

/// Neither allocates nor waits for a lock, since a thread missing in the child may hold any lock.
unsafe extern "C" fn after_in_child() {
    let held = LOCKED_FOR_FORK.try_with(|held| held.borrow_mut().take());
    let Ok(Some(mut entries)) = held else { return };
    let null = open(c"/dev/null", OFlags::RDWR);
    for entry in &*entries {
        let mut path = [0; 32];
        let reopened = match entry.in_child {
            InChild::Null => None,
            InChild::Reopened => reopen(entry.fd, &mut path),
        };
        if let Some(new) = reopened.as_ref().or(null.as_ref()) {
            // SAFETY: `entry.fd` is this process's duplicate of a registered descriptor. No other thread
            // uses it, since a forked child has only one thread. `new` is open. This is a direct system
            // call, because `libdlfs_preload.so` replaces the C library's function to protect these very
            // numbers.
            unsafe {
                libc::syscall(libc::SYS_dup3, new.as_raw_fd(), entry.fd, libc::O_CLOEXEC);
            }
        }
    }
    // The owners may close their descriptors in this child, and other files may get the numbers. So nothing
    // is replaced when this child forks.
    entries.clear();
}

/// Reopens the file of `fd` for reading.
fn reopen(fd: RawFd, path: &mut [u8; 32]) -> Option<OwnedFd> {
    use std::io::Write;
    write!(&mut path[..], "/proc/self/fd/{fd}").ok()?;
    open(CStr::from_bytes_until_nul(path).ok()?, OFlags::RDONLY)
}

fn open(path: &CStr, flags: OFlags) -> Option<OwnedFd> {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).ok()
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use rustix::fs::{FlockOperation, flock};
    use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

    use super::*;

    /// Forks a child that sends the result of `work` to `says` and lives until it is killed.
    fn child(says: &UnixStream, work: impl FnOnce() -> bool) -> Pid {
        // SAFETY: the child calls only `work`, `write`, `pause` and `_exit`.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let answer = [u8::from(work())];
            let _ = (&mut &*says).write_all(&answer); // if this fails, the parent times out and fails
            loop {
                // SAFETY: waits for a signal.
                unsafe { libc::pause() };
            }
        }
        Pid::from_raw(pid).expect("fork works and gives a child")
    }

    #[test]
    fn a_child_keeps_neither_lock_nor_connection_and_reads_the_file_of_the_lock() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().write_all_at(b"words", 0).unwrap();
        let locked = File::options().read(true).write(true).open(file.path()).unwrap();
        flock(&locked, FlockOperation::NonBlockingLockExclusive).unwrap();
        let (connection, mut other_end) = UnixStream::pair().unwrap();
        let guards =
            (NotInherited::reopen(locked.as_fd()), NotInherited::close(connection.as_fd()));
        let (says, mut heard) = UnixStream::pair().unwrap();
        let child = child(&says, || {
            let mut found = [0; 5];
            locked.read_exact_at(&mut found, 0).is_ok()
                && found == *b"words"
                && locked.write_at(b"x", 0).is_err()
        });
        heard.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut answer = [0];
        heard.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [1], "the child reads the file and does not write it");
        drop((guards, locked, connection));
        let again = File::open(file.path()).unwrap();
        flock(&again, FlockOperation::NonBlockingLockExclusive).expect("nobody has the lock");
        other_end.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert_eq!(other_end.read(&mut answer).unwrap(), 0, "nobody has the other end");
        kill_process(child, Signal::KILL).unwrap();
        waitpid(Some(child), WaitOptions::empty()).unwrap();
    }
}
