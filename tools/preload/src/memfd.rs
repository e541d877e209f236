//! Descriptors that the library makes: sealed memfds with the content of a file, and duplicates that it keeps.

use std::ffi::{CStr, c_int, c_long};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::inside::say_once;
use crate::syscalls::{called, close, identity_of, most_descriptors, open, stat_of};

/// A descriptor of a memfd, or of a file opened in place, that is not yet given to the program. It is closed on drop.
pub(crate) struct Memory(pub(crate) c_int);

impl Memory {
    /// An empty memfd. Of `flags`, those of `open`, O_CLOEXEC alone matters.
    pub(crate) fn new(name: &CStr, flags: c_int) -> Result<Memory, c_int> {
        let close_on_exec = if flags & libc::O_CLOEXEC != 0 { libc::MFD_CLOEXEC } else { 0 };
        let make = |flags: u32| {
            let flags = flags | libc::MFD_ALLOW_SEALING | close_on_exec;
            // SAFETY: the name ends with NUL.
            called(unsafe { libc::syscall(libc::SYS_memfd_create, name.as_ptr(), flags) })
        };
        let no_exec = if NO_EXEC.load(Ordering::Relaxed) { libc::MFD_NOEXEC_SEAL } else { 0 };
        let made = match make(no_exec) {
            // A kernel before 6.3 does not know the flag.
            Err(libc::EINVAL) if NO_EXEC.swap(false, Ordering::Relaxed) => make(0),
            made => made,
        };
        made.map(|fd| Memory(fd as c_int)).inspect_err(|errno| {
            if matches!(*errno, libc::EPERM | libc::ENOSYS) {
                say_once(|| {
                    "memfd_create is refused here (seccomp?), and files are such memory".to_owned()
                });
            }
        })
    }

    /// Opens an existing file with the flags of the program's `open`, but never creates one.
    pub(crate) fn open(path: &CStr, flags: c_int) -> Result<Memory, c_int> {
        open(path, flags & !(libc::O_CREAT | libc::O_EXCL)).map(Memory)
    }

    /// Seals the file against any change.
    pub(crate) fn seal(&self) -> Result<(), c_int> {
        // Without F_SEAL_WRITE: with it, kernels before 6.7 refuse shared mappings, even read-only ones.
        let seals =
            libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_GROW | libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL;
        // SAFETY: sealing touches no memory.
        called(unsafe { libc::syscall(libc::SYS_fcntl, self.0, libc::F_ADD_SEALS, seals) })?;
        Ok(())
    }

    /// Gives the descriptor to the caller.
    pub(crate) fn into_fd(self) -> c_int {
        let fd = self.0;
        std::mem::forget(self);
        fd
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        close(self.0);
    }
}

/// A duplicate of a descriptor that the library keeps, above the low numbers that programs use. The program could close
/// it, and the number could be reused, so the identity of the file is stored, too.
pub(crate) struct Kept {
    pub(crate) fd: c_int,
    /// Device and inode number of the file.
    pub(crate) identity: (u64, u64),
}

impl Kept {
    /// Duplicates `fd` to a number of at least `least`, or of at least half the limit of descriptors if that is less.
    pub(crate) fn new(fd: c_int, least: usize) -> Option<Kept> {
        let least = (most_descriptors() / 2).min(least) as c_long;
        // SAFETY: the command touches no memory.
        let fd = unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, least) };
        let fd = called(fd).ok()? as c_int;
        Some(Kept { fd, identity: stat_of(fd).as_ref().map_or((0, 0), identity_of) })
    }

    /// The number, while it is still of the same file.
    pub(crate) fn descriptor(&self) -> Option<c_int> {
        let stat = stat_of(self.fd)?;
        (identity_of(&stat) == self.identity).then_some(self.fd)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.descriptor().into_iter().for_each(close);
    }
}

/// Cleared when the kernel turns out not to know MFD_NOEXEC_SEAL.
static NO_EXEC: AtomicBool = AtomicBool::new(true);
