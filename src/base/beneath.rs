//! Opens files beneath a folder without following symbolic links.
//!
//! `openat2` does this in one call. Old kernels lack it, some sandboxes forbid it, and a path may be longer
//! than it accepts: then the path is opened component by component.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// Opens `path` beneath the open folder `root`; an empty path means the folder itself. `mode` is the mode
/// of a new file, limited by the umask; empty if `flags` create none.
///
/// # Errors
/// Errors of the operating system. `LOOP`: a component is a symbolic link (`EXIST` if it is the last one, and `flags`
/// create a new file exclusively). `XDEV`: the path is absolute, or a component is `..`.
pub fn open_beneath(
    root: BorrowedFd<'_>,
    path: &[u8],
    flags: OFlags,
    mode: Mode,
) -> Result<OwnedFd, Errno> {
    // Opening by components would follow `..`, and take an absolute path for a relative one.
    if path.starts_with(b"/") || components(path).any(|name| name == b"..") {
        return Err(Errno::XDEV);
    }
    let flags = flags | OFlags::CLOEXEC;
    let path = if path.is_empty() { &b"."[..] } else { path };
    if path.len() <= MAX_KERNEL_PATH_BYTES {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        match fs::openat2(root, path, flags, mode, resolve) {
            Err(Errno::NOSYS | Errno::PERM) => {}
            opened => return opened,
        }
    }
    open_stepwise(root, path, flags | OFlags::NOFOLLOW, mode)
}

/// The components of a path, without empty ones and `.`.
pub fn components(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && *name != b".")
}

/// Opens `path`, which is not absolute and has no `..`, component by component. `flags` contain `NOFOLLOW`.
fn open_stepwise(
    root: BorrowedFd<'_>,
    path: &[u8],
    flags: OFlags,
    mode: Mode,
) -> Result<OwnedFd, Errno> {
    // The folder reached so far; `None`: `root`.
    let mut folder: Option<OwnedFd> = None;
    let mut names = components(path).peekable();
    while let Some(name) = names.next() {
        let at = folder.as_ref().map_or(root, |fd| fd.as_fd());
        if names.peek().is_some() {
            folder = Some(enter(at, name)?);
            continue;
        }
        return match fs::openat(at, name, flags, mode) {
            Ok(fd) => refuse_a_link(fd, flags),
            Err(Errno::NOTDIR) if is_link(at, name) => Err(Errno::LOOP),
            refused => refused,
        };
    }
    fs::openat(root, c".", flags, mode)
}

/// Opens the folder `name` in the folder `at`, to open entries in it.
fn enter(at: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    match fs::openat(at, name, flags, Mode::empty()) {
        Err(Errno::NOTDIR) if is_link(at, name) => Err(Errno::LOOP),
        other => other,
    }
}

/// Rejects symbolic links: `O_PATH | O_NOFOLLOW` opens the link itself. With `O_DIRECTORY` or without
/// `O_PATH`, opening a link has already failed.
fn refuse_a_link(fd: OwnedFd, flags: OFlags) -> Result<OwnedFd, Errno> {
    if !flags.contains(OFlags::PATH) || flags.contains(OFlags::DIRECTORY) {
        return Ok(fd);
    }
    match FileType::from_raw_mode(fs::fstat(&fd)?.st_mode) {
        FileType::Symlink => Err(Errno::LOOP),
        _ => Ok(fd),
    }
}

/// Returns whether `name` in the folder `at` is a symbolic link.
fn is_link(at: BorrowedFd<'_>, name: &[u8]) -> bool {
    fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
}

/// `PATH_MAX` without the terminating NUL.
pub const MAX_KERNEL_PATH_BYTES: usize = 4095;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn opening_name_by_name_agrees_with_the_kernels_own() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::fs::write(dir.path().join("a/b/file"), b"inside").unwrap();
        symlink("a", dir.path().join("link")).unwrap();
        symlink("/etc/passwd", dir.path().join("out")).unwrap();
        let root = std::fs::File::open(dir.path()).unwrap();
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let new = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let refusals = [
            ("link/b/file", flags, Errno::LOOP),
            ("link", flags, Errno::LOOP),
            ("link", flags | OFlags::PATH, Errno::LOOP),
            ("out", flags, Errno::LOOP),
            ("link/new", new, Errno::LOOP),
            ("out", new, Errno::EXIST),
            ("a/none", flags, Errno::NOENT),
            ("a/b/file/x", flags, Errno::NOTDIR),
        ];
        let none = Mode::empty();
        for (path, flags, refusal) in refusals {
            let mode = if flags.contains(OFlags::CREATE) { Mode::RUSR } else { none };
            let kernels = open_beneath(root.as_fd(), path.as_bytes(), flags, mode);
            assert_eq!(kernels.unwrap_err(), refusal, "{path}");
            let own = open_stepwise(root.as_fd(), path.as_bytes(), flags | OFlags::NOFOLLOW, mode);
            assert_eq!(own.unwrap_err(), refusal, "{path}, name by name");
        }
        for path in ["a/b/file", "./a//b/file", ""] {
            assert!(open_beneath(root.as_fd(), path.as_bytes(), flags, none).is_ok());
            let own = open_stepwise(root.as_fd(), path.as_bytes(), flags | OFlags::NOFOLLOW, none);
            assert!(own.is_ok(), "{path}");
        }
        for path in ["..", "a/../..", "a/../a/b/file", "/etc/passwd"] {
            let refused = open_beneath(root.as_fd(), path.as_bytes(), flags, none).unwrap_err();
            assert_eq!(refused, Errno::XDEV, "{path}");
        }
    }
}
