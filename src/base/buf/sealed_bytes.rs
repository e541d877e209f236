//! Immutable bytes that other processes may map: a `memfd` sealed against writes.
#![allow(unsafe_code)] // reads mapped memory

use std::io::Error;
use std::ops::Deref;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags, Stat};
use rustix::mm::{MapFlags, ProtFlags};

use super::pages::Mapping;

/// Immutable bytes in memory that other processes of the same user can map instead of making their own copy.
///
/// The kernel keeps them unchanged: seals, which nobody can remove, forbid all processes to write the file or
/// change its length. The memory is freed when the last process drops it.
#[derive(Debug)]
pub struct SealedBytes {
    mapping: Mapping,
    len: usize,
    file: OwnedFd,
}

/// The location by which another process opens [`SealedBytes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SealedLocation {
    /// A process that has the bytes open.
    pub pid: u32,
    /// The file descriptor in that process.
    pub fd: u32,
    /// The device number of the file.
    pub dev: u64,
    /// The inode of the file. Another inode means that the process has closed the file, or has ended and
    /// another one has its identifier.
    pub ino: u64,
}

impl SealedBytes {
    /// A copy of `bytes`.
    ///
    /// # Errors
    /// Errors of the operating system: no memory, no descriptor, `EINVAL` if `bytes` is empty.
    pub fn of(bytes: &[u8]) -> std::io::Result<SealedBytes> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let mut file = std::fs::File::from(rustix::fs::memfd_create("dlfs_snapshot", flags)?);
        std::io::Write::write_all(&mut file, bytes)?;
        rustix::fs::fcntl_add_seals(&file, SEALS)?;
        SealedBytes::map(file.into(), bytes.len())
    }

    /// Maps the bytes at `location`, if they still exist.
    ///
    /// # Errors
    /// Errors of the operating system. `InvalidData`: the file is another one, is not sealed, or belongs to
    /// another user.
    pub fn open(location: &SealedLocation) -> std::io::Result<SealedBytes> {
        let path = format!("/proc/{}/fd/{}", location.pid, location.fd);
        // Checked before opening, because opening some devices has side effects.
        location.check(&rustix::fs::stat(&path)?)?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = rustix::fs::open(&path, flags, Mode::empty())?;
        let found = rustix::fs::fstat(&file)?;
        location.check(&found)?;
        if !rustix::fs::fcntl_get_seals(&file)?.contains(SEALS) {
            return Err(another("it is not sealed"));
        }
        let len = usize::try_from(found.st_size).map_err(|_| another("it is too long"))?;
        SealedBytes::map(file, len)
    }

    fn map(file: OwnedFd, len: usize) -> std::io::Result<SealedBytes> {
        // Private, since older kernels refuse a shared mapping of a sealed file; clean pages are shared
        // anyway.
        let mapping = Mapping::of_part(&file, 0, len, ProtFlags::READ, MapFlags::PRIVATE)?;
        Ok(SealedBytes { mapping, len, file })
    }

    /// The location by which another process can open the bytes while the calling process holds them.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn location(&self) -> std::io::Result<SealedLocation> {
        let Stat { st_dev, st_ino, .. } = rustix::fs::fstat(&self.file)?;
        let fd = self.file.as_raw_fd() as u32; // an open descriptor is not negative
        Ok(SealedLocation { pid: std::process::id(), fd, dev: st_dev, ino: st_ino })
    }
}

impl SealedLocation {
    fn check(&self, found: &Stat) -> std::io::Result<()> {
        if (found.st_dev, found.st_ino) != (self.dev, self.ino) {
            return Err(another("it is another file"));
        }
        if found.st_uid != rustix::process::geteuid().as_raw() {
            return Err(another("it belongs to another user"));
        }
        Ok(())
    }
}

impl Deref for SealedBytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: mapped until drop; the seals keep the file at this length and its bytes as they are.
        unsafe { std::slice::from_raw_parts(self.mapping.start().as_ptr(), self.len) }
    }
}

fn another(why: &str) -> Error {
    Error::new(std::io::ErrorKind::InvalidData, format!("not the shared snapshot: {why}"))
}

const SEALS: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::WRITE).union(SealFlags::SEAL);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_handle_maps_the_same_bytes_which_nobody_can_write() {
        let bytes = SealedBytes::of(&[7; 10_000]).unwrap();
        let again = SealedBytes::open(&bytes.location().unwrap()).unwrap();
        assert_eq!(again[..], [7; 10_000]);
        assert!(rustix::io::write(&bytes.file, &[1]).is_err());
        assert!(rustix::fs::ftruncate(&bytes.file, 1).is_err());
        drop(bytes);
        assert_eq!(again[..], [7; 10_000], "it stays while anybody has it");
    }

    #[test]
    fn what_is_not_sealed_or_another_file_or_gone_is_refused() {
        let bytes = SealedBytes::of(&[7; 10_000]).unwrap();
        let location = bytes.location().unwrap();
        let other = SealedLocation { ino: location.ino + 1, ..location };
        assert!(SealedBytes::open(&other).unwrap_err().to_string().contains("another file"));
        let unsealed = rustix::fs::memfd_create("dlfs", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&unsealed, 4096).unwrap();
        let found = rustix::fs::fstat(&unsealed).unwrap();
        let fd = unsealed.as_raw_fd() as u32;
        let at = SealedLocation { fd, dev: found.st_dev, ino: found.st_ino, ..location };
        assert!(SealedBytes::open(&at).unwrap_err().to_string().contains("not sealed"));
        assert!(SealedBytes::open(&SealedLocation { fd: u32::MAX, ..location }).is_err());
    }
}
