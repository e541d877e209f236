//! Descriptors that a forked child must not keep.
//!
//! A fork copies all descriptors, and what they stand for ends with the last copy: a lock (`flock`), a
//! listening socket, a connection. A child that outlives its parent would keep them, though nobody in it
//! uses them. Linux closes no descriptor at a fork, so a handler of `pthread_atfork` replaces them: their
//! numbers stay taken, because whatever owns them in the child may still close them.
#![allow(unsafe_code)] // registers handlers of forks

use std::cell::RefCell;
use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use rustix::fs::{Mode, OFlags};

/// Keeps a descriptor from forked children until it is dropped. Drop it before the descriptor.
#[derive(Debug)]
pub struct NotInherited {
    id: u64,
}

impl NotInherited {
    /// In a child, the number refers to `/dev/null`.
    pub fn close(fd: BorrowedFd<'_>) -> NotInherited {
        NotInherited::register(fd, InChild::Null)
    }

    /// In a child, the number refers to the same file, opened anew for reading: without the lock.
    pub fn reopen(fd: BorrowedFd<'_>) -> NotInherited {
        NotInherited::register(fd, InChild::Reopened)
    }

    fn register(fd: BorrowedFd<'_>, in_child: InChild) -> NotInherited {
        static HANDLERS: Once = Once::new();
        // SAFETY: the handlers are `extern "C"`, do not unwind, and live as long as the program. Without memory
        // for them, children keep the descriptors.
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
        // In a child, the list has been cleared.
        entries().retain(|entry| entry.id != self.id);
    }
}

struct Entry {
    id: u64,
    fd: RawFd,
    in_child: InChild,
}

#[derive(Clone, Copy)]
enum InChild {
    Null,
    Reopened,
}

fn entries() -> MutexGuard<'static, Vec<Entry>> {
    ENTRIES.lock().unwrap_or_else(PoisonError::into_inner)
}

static ENTRIES: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

thread_local! {
    /// The lock on the list while the thread forks, so that a child finds it whole.
    static HELD: RefCell<Option<MutexGuard<'static, Vec<Entry>>>> = const { RefCell::new(None) };
}

unsafe extern "C" fn before() {
    let entries = entries();
    // Fails while the thread ends: then there is no lock for the handlers behind the fork, either.
    let _ = HELD.try_with(|held| *held.borrow_mut() = Some(entries));
}

unsafe extern "C" fn after_in_parent() {
    let _ = HELD.try_with(|held| held.borrow_mut().take()); // fails as above
}

/// Allocates nothing and waits for nothing: other threads may have held any lock.
unsafe extern "C" fn after_in_child() {
    let held = HELD.try_with(|held| held.borrow_mut().take());
    let Ok(Some(mut entries)) = held else { return };
    let null = open(c"/dev/null", OFlags::RDWR);
    for entry in &*entries {
        let mut path = [0; 32];
        let reopened = match entry.in_child {
            InChild::Null => None,
            InChild::Reopened => reopen(entry.fd, &mut path),
        };
        if let Some(new) = reopened.as_ref().or(null.as_ref()) {
            // SAFETY: the number belongs to what was registered, of which this process has a copy that none of
            // its threads uses: it has only this one. `new` is open. As a system call, since
            // `libdlfs_preload.so` stands in for the C library's function, to protect just these numbers.
            unsafe {
                libc::syscall(libc::SYS_dup3, new.as_raw_fd(), entry.fd, libc::O_CLOEXEC);
            }
        }
    }
    // Their owners may close them here and others get the numbers: a child of this child keeps them.
    entries.clear();
}

/// Opens the file of `fd` anew for reading.
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

    /// A child that says through `says` whether `work` is true, and lives until it is killed.
    fn child(says: &UnixStream, work: impl FnOnce() -> bool) -> Pid {
        // SAFETY: the child calls only `work`, `write`, `pause` and `_exit`.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let answer = [u8::from(work())];
            let _ = (&mut &*says).write_all(&answer); // the parent then waits in vain, and fails
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
