//! Process identity: the identifier, cached so that most calls avoid the kernel, and file descriptors that are kept
//! from forked children, or marked as this library's.
//!
//! A fork duplicates all descriptors. A lock (`flock`), a listening socket or a connection ends only when
//! its last duplicate is closed, so a child that outlives its parent would keep it. Linux closes no
//! descriptor at a fork. A handler of `pthread_atfork` therefore replaces registered descriptors in the
//! child. Their numbers stay in use, because their owners in the child may still close them.
//!
//! A program that closes "all other" descriptors (`close_range`, `closefrom`) would also close the
//! library's. The next file that it opens would then reuse their numbers. `libdlfs_preload.so` keeps marked
//! descriptors open. The mark is the signal for asynchronous I/O, which this library never enables. The
//! kernel stores it with the open file, so it survives `dup` and needs no list.
#![allow(unsafe_code)] // registers handlers of forks, keeps a page for ever, calls `fcntl` with an unusual command

use std::cell::RefCell;
use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use rustix::fs::{Mode, OFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

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
    /// The locked list while this thread forks, so that the child finds it consistent.
    static HELD: RefCell<Option<MutexGuard<'static, Vec<Entry>>>> = const { RefCell::new(None) };
}

unsafe extern "C" fn before() {
    let entries = entries();
    // Fails if the thread is ending. The other handlers then find no lock, and do nothing.
    let _ = HELD.try_with(|held| *held.borrow_mut() = Some(entries));
}

unsafe extern "C" fn after_in_parent() {
    let _ = HELD.try_with(|held| held.borrow_mut().take()); // fails as above
}

/// Neither allocates nor waits for a lock, since a thread missing in the child may hold any lock.
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

/// The identifier of the calling process, for telling a forked child from its parent.
///
/// Costs two loads instead of the system call in [`std::process::id`]: the identifier is cached in a page
/// that the kernel zeroes in each child (`MADV_WIPEONFORK`, from Linux 4.14 on). Takes no lock, so a fork at
/// any moment is safe.
pub fn process_id() -> u32 {
    let mut page = PAGE.load(Ordering::Acquire);
    if page.is_null() {
        page = make_page();
    }
    if std::ptr::eq(page, &raw const NO_PAGE) {
        return std::process::id();
    }
    // SAFETY: not null and not `NO_PAGE`, so it is the start of the page that `make_page` mapped,
    // which is never unmapped; an `AtomicU32` is valid with any bytes.
    let known = unsafe { &*page };
    match known.load(Ordering::Relaxed) {
        0 => {
            let id = std::process::id();
            known.store(id, Ordering::Relaxed); // other threads store the same value
            id
        }
        id => id,
    }
}

/// Maps the page, or records that the kernel does not support such pages. If several threads map at once,
/// the first one's result is used.
fn make_page() -> *mut AtomicU32 {
    let no_page = (&raw const NO_PAGE).cast_mut();
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE;
    // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
    let mapped = unsafe { mmap_anonymous(null_mut(), PAGE_LEN, protection, flags) };
    let page = match mapped {
        // SAFETY: the range was just mapped and holds nothing yet.
        Ok(start) if unsafe { madvise(start, PAGE_LEN, Advice::LinuxWipeOnFork) }.is_ok() => {
            start.cast::<AtomicU32>()
        }
        _ => no_page, // an older kernel: each call makes the system call
    };
    match PAGE.compare_exchange(null_mut(), page, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => page,
        Err(first) => {
            if page != no_page {
                // SAFETY: mapped above with this length, and nobody else has seen it.
                let unmapped = unsafe { munmap(page.cast(), PAGE_LEN) };
                debug_assert!(unmapped.is_ok(), "unmapping what was mapped");
            }
            first
        }
    }
}

/// Marks an open file as belonging to this library. Costs one system call.
pub fn mark_ours(fd: &impl AsRawFd) {
    // SAFETY: the command touches no memory. Where the kernel refuses it, the descriptor stays unmarked.
    unsafe { libc::fcntl(fd.as_raw_fd(), SET_SIGNAL, MARK) };
}

/// Returns whether the descriptor is open and marked. Leaves `errno` undefined.
pub fn is_ours(fd: RawFd) -> bool {
    // SAFETY: as above; a number that is not open is refused.
    unsafe { libc::syscall(libc::SYS_fcntl, fd, GET_SIGNAL) == libc::c_long::from(MARK) }
}

/// The page with the cached identifier; null until the first call.
static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(null_mut());

/// [`PAGE`] points to this marker if the kernel does not support such pages; its value is unused.
static NO_PAGE: AtomicU32 = AtomicU32::new(0);
const PAGE_LEN: usize = 4096;

/// `F_SETSIG` and `F_GETSIG`. The crate libc lacks them for some C libraries.
const SET_SIGNAL: i32 = 10;
const GET_SIGNAL: i32 = 11;

/// A real-time signal that C libraries and programs do not use for I/O.
const MARK: i32 = 61;

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

    #[test]
    fn every_thread_sees_the_identifier_that_the_kernel_gives() {
        let threads = (0..8).map(|_| std::thread::spawn(process_id));
        let ids: Vec<u32> = threads.map(|thread| thread.join().unwrap()).collect();
        assert_eq!(ids, [std::process::id(); 8]);
    }

    #[test]
    fn a_mark_belongs_to_the_open_file_and_not_to_its_number() {
        let file = tempfile::tempfile().unwrap();
        assert!(!is_ours(file.as_raw_fd()));
        mark_ours(&file);
        let copy = file.try_clone().unwrap();
        assert!(is_ours(file.as_raw_fd()) && is_ours(copy.as_raw_fd()));
        let again = std::fs::File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
        assert!(!is_ours(again.as_raw_fd()));
        assert!(!is_ours(-1));
    }

    #[test]
    fn whatever_the_library_opens_can_be_marked() {
        use rustix::event::{EventfdFlags, epoll, eventfd};
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
        mark_ours(&epoll);
        mark_ours(&event);
        mark_ours(&one);
        assert!(is_ours(epoll.as_raw_fd()) && is_ours(event.as_raw_fd()));
        assert!(is_ours(one.as_raw_fd()) && !is_ours(other.as_raw_fd()));
    }
}
