//! Opens files beneath a folder. Only with [`Links::Follow`] may a link lead out of the folder.
//!
//! With [`Links::Inside`], links are resolved here, and the resolved path is opened without following links. So the
//! opened file lies in the folder even if another process renames files meanwhile, as with `openat2` and
//! `RESOLVE_BENEATH`.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{self, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::bad::BadReason;
use dlfs_base::beneath::{MAX_KERNEL_PATH_BYTES, components, open_beneath};
use dlfs_base::folders::Links;
use dlfs_base::{Error, Result};

/// An open folder; all access below it goes through this type.
#[derive(Debug)]
pub(crate) struct Root {
    fd: OwnedFd,
    /// The folder's path, as it was given.
    pub(crate) path: PathBuf,
    /// The folder's path without links.
    canonical: PathBuf,
    /// The rule for links beneath the folder.
    links: Links,
}

impl Root {
    /// Opens the folder at `path`. Links beneath it are followed as `links` says; links in `path` itself always.
    ///
    /// # Errors
    /// `NotFound`, `Refused` or `Io` naming the path.
    pub(crate) fn open(path: &Path, links: Links) -> Result<Root> {
        let name = |error: std::io::Error| Error::from(error).path(path);
        let canonical = path.canonicalize().map_err(name)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = fs::open(&canonical, flags, Mode::empty()).map_err(|error| name(error.into()))?;
        Ok(Root { fd, path: path.to_path_buf(), canonical, links })
    }

    /// Opens the file at `relative` for reading.
    pub(crate) fn open_file(&self, relative: &[u8]) -> Result<OwnedFd, BadReason> {
        // A FIFO that replaced the file must not block the import; files ignore O_NONBLOCK.
        self.open_beneath(relative, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)
    }

    /// Opens the folder at `relative` (empty: the root itself) for listing.
    pub(crate) fn open_folder(&self, relative: &[u8]) -> Result<OwnedFd, BadReason> {
        self.open_beneath(relative, OFlags::RDONLY | OFlags::DIRECTORY)
    }

    /// The status of `relative` after following its links.
    pub(crate) fn stat(&self, relative: &[u8]) -> Result<Stat, BadReason> {
        let fd = self.open_beneath(relative, OFlags::PATH)?;
        fs::fstat(fd).map_err(BadReason::from)
    }

    /// The status of the regular file that `relative` leads to.
    ///
    /// # Errors
    /// `Special`: it is not a regular file. Otherwise as [`stat`](Self::stat).
    pub(crate) fn stat_file(&self, relative: &[u8]) -> Result<Stat, BadReason> {
        let stat = self.stat(relative)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok(stat),
            other => Err(BadReason::Special(kind_name(other))),
        }
    }

    /// Returns whether links are followed, and a link in `relative` leads out of the folder.
    pub(crate) fn leaves(&self, relative: &[u8]) -> bool {
        self.links == Links::Follow && self.resolve(relative) == Err(BadReason::LeavesSource)
    }

    /// The path beneath the root that `relative` leads to after following every link.
    ///
    /// # Errors
    /// `Dangling`, `Cyclic`, `LeavesSource`: a link leads to nothing, in a circle, or out of the folder. `Changed`: a
    /// link replaced a folder meanwhile. `Unreadable`: any other error.
    pub(crate) fn resolve(&self, relative: &[u8]) -> Result<Vec<u8>, BadReason> {
        let mut real: Vec<u8> = Vec::new();
        let mut left: VecDeque<Vec<u8>> = components(relative).map(<[u8]>::to_vec).collect();
        let mut links = 0;
        while let Some(name) = left.pop_front() {
            if name == b".." {
                pop(&mut real)?;
                continue;
            }
            let Some(target) = self.link_at(&real, &name)? else {
                push(&mut real, &name);
                continue;
            };
            links += 1;
            BadReason::Cyclic.unless(links <= MAX_LINKS)?;
            let target = if target.starts_with(b"/") {
                real.clear();
                self.beneath(&target)?
            } else {
                target
            };
            for name in components(&target).collect::<Vec<_>>().into_iter().rev() {
                left.push_front(name.to_vec());
            }
        }
        Ok(real)
    }

    /// Opens `relative` as the rule for links says.
    fn open_beneath(&self, relative: &[u8], flags: OFlags) -> Result<OwnedFd, BadReason> {
        // Following links, the kernel would open these paths outside the folder.
        BadReason::LeavesSource.unless(
            !relative.starts_with(b"/") && components(relative).all(|name| name != b".."),
        )?;
        match self.open_strict(relative, flags) {
            Err(Errno::LOOP) => match self.links {
                Links::Refuse => Err(BadReason::Special("link, which is not followed")),
                Links::Follow => self.open_following(relative, flags),
                Links::Inside => {
                    let real = self.resolve(relative)?;
                    self.open_strict(&real, flags).map_err(|errno| match errno {
                        Errno::LOOP => BadReason::Changed,
                        Errno::NOENT => BadReason::Dangling,
                        errno => BadReason::from(errno),
                    })
                }
            },
            opened => opened.map_err(BadReason::from),
        }
    }

    /// Opens `relative` and follows links anywhere; opens a path too long for one system call in parts.
    fn open_following(&self, relative: &[u8], flags: OFlags) -> Result<OwnedFd, BadReason> {
        let failed = |errno| match errno {
            Errno::NOENT => BadReason::Dangling,
            Errno::LOOP => BadReason::Cyclic,
            errno => BadReason::from(errno),
        };
        let mut left = relative;
        let mut folder = None::<OwnedFd>;
        loop {
            let at = folder.as_ref().map_or(self.fd.as_fd(), AsFd::as_fd);
            if left.len() <= MAX_KERNEL_PATH_BYTES {
                let flags = flags | OFlags::CLOEXEC;
                return fs::openat(at, left, flags, Mode::empty()).map_err(failed);
            }
            let cut = left[..MAX_KERNEL_PATH_BYTES].iter().rposition(|&byte| byte == b'/');
            let cut = cut.ok_or(BadReason::Unreadable(libc::ENAMETOOLONG))?;
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let next = fs::openat(at, &left[..cut], flags, Mode::empty()).map_err(failed)?;
            (left, folder) = (&left[cut + 1..], Some(next));
        }
    }

    /// Opens without following any link.
    fn open_strict(&self, relative: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        open_beneath(self.fd.as_fd(), relative, flags, Mode::empty())
    }

    /// The target of the link `name` in the folder `real`; `None` if it is not a link.
    fn link_at(&self, real: &[u8], name: &[u8]) -> Result<Option<Vec<u8>>, BadReason> {
        let folder = match self.open_strict(real, OFlags::PATH | OFlags::DIRECTORY) {
            Ok(fd) => fd,
            Err(Errno::NOENT | Errno::NOTDIR) => return Err(BadReason::Dangling),
            Err(Errno::LOOP) => return Err(BadReason::Changed),
            Err(errno) => return Err(BadReason::from(errno)),
        };
        match fs::readlinkat(folder, name, Vec::new()) {
            Ok(target) => Ok(Some(target.into_bytes())),
            Err(Errno::INVAL) => Ok(None),
            Err(Errno::NOENT) => Err(BadReason::Dangling),
            Err(errno) => Err(BadReason::from(errno)),
        }
    }

    /// Resolves the absolute path `target`, and converts it to a path beneath the root.
    fn beneath(&self, target: &[u8]) -> Result<Vec<u8>, BadReason> {
        let target = Path::new(std::ffi::OsStr::from_bytes(target));
        let real = target.canonicalize().map_err(|error| match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR) => BadReason::Dangling,
            Some(libc::ELOOP) => BadReason::Cyclic,
            other => BadReason::Unreadable(other.unwrap_or(libc::EIO)),
        })?;
        let inside = real.strip_prefix(&self.canonical).map_err(|_| BadReason::LeavesSource)?;
        Ok(inside.as_os_str().as_bytes().to_vec())
    }
}

/// Appends a name to a path.
pub(super) fn push(path: &mut Vec<u8>, name: &[u8]) {
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
}

/// Removes the last component of a path.
///
/// # Errors
/// `LeavesSource`: the path is empty.
fn pop(path: &mut Vec<u8>) -> Result<(), BadReason> {
    BadReason::LeavesSource.unless(!path.is_empty())?;
    let end = path.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
    path.truncate(end);
    Ok(())
}

/// Names the type of an entry that is not a regular file.
pub(crate) fn kind_name(kind: FileType) -> &'static str {
    match kind {
        FileType::Directory => "folder",
        FileType::Fifo => "FIFO",
        FileType::Socket => "socket",
        FileType::CharacterDevice => "character device",
        FileType::BlockDevice => "block device",
        _ => "thing that is no file",
    }
}

/// Linux's limit of links followed in one path.
const MAX_LINKS: u32 = 40;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn tree() -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::write(root.join("a/b/file"), b"inside").unwrap();
        std::fs::write(dir.path().join("secret"), b"outside").unwrap();
        let root = Root::open(&root, Links::Inside).unwrap();
        (dir, root)
    }

    fn content(root: &Root, relative: &[u8]) -> Result<String, BadReason> {
        let file = std::fs::File::from(root.open_file(relative)?);
        Ok(std::io::read_to_string(file).unwrap())
    }

    #[test]
    fn links_that_stay_inside_are_followed_relative_and_absolute() {
        let (_dir, root) = tree();
        let at = |name: &str| root.path.join(name);
        symlink("a/b/file", at("rel")).unwrap();
        symlink(at("a/b/file"), at("abs")).unwrap();
        symlink("../../a", at("a/b/up")).unwrap();
        for name in ["a/b/file", "rel", "abs", "a/b/up/b/file"] {
            assert_eq!(content(&root, name.as_bytes()).as_deref(), Ok("inside"), "{name}");
        }
        assert_eq!(root.resolve(b"a/b/up/b").unwrap(), b"a/b");
    }

    #[test]
    fn links_that_leave_dangle_or_loop_are_distinguished() {
        let (_dir, root) = tree();
        let at = |name: &str| root.path.join(name);
        for (name, target, reason) in [
            ("out", "../secret", BadReason::LeavesSource),
            ("out_abs", "/etc/passwd", BadReason::LeavesSource),
            ("out_and_in", "../root/a/b/file", BadReason::LeavesSource),
            ("nothing", "a/none", BadReason::Dangling),
            ("nothing_abs", "/nonexistent/none", BadReason::Dangling),
            ("self", "self", BadReason::Cyclic),
            ("a/ping", "pong", BadReason::Cyclic),
            ("a/pong", "ping", BadReason::Cyclic),
        ] {
            symlink(target, at(name)).unwrap();
            if name != "a/ping" {
                assert_eq!(content(&root, name.as_bytes()), Err(reason.clone()), "{name}");
                assert_eq!(root.resolve(name.as_bytes()), Err(reason), "{name}");
            }
        }
    }
}
