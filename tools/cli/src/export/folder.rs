//! Writes files below one folder, opened one component at a time so that no link and no race leads
//! out of it.

use std::ffi::CString;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, mkdirat, openat, unlinkat};
use rustix::io::Errno;

use dlfs::{Error, ErrorKind};

use super::{Sink, SinkError};
use crate::exit::{Failure, about_file};
use crate::text;

/// Writes files below a folder that was empty or absent.
///
/// Each component of a name is opened relative to the folder above it, never through a link; files
/// are created, never opened. So another process cannot redirect writes by replacing a folder with
/// a link.
pub(crate) struct FolderSink {
    path: PathBuf,
    root: OwnedFd,
    /// The open folders of the last name, outermost first: consecutive names often share them.
    open: Vec<(Vec<u8>, OwnedFd)>,
}

impl FolderSink {
    /// Opens the folder at `path`, creating it if it does not exist.
    ///
    /// # Errors
    /// `Refused`: it is not empty. Otherwise errors of the operating system.
    pub(crate) fn create(path: &Path) -> Result<FolderSink, Error> {
        std::fs::create_dir_all(path).map_err(|e| about_file("cannot make the folder", path, e))?;
        let mut entries =
            std::fs::read_dir(path).map_err(|e| about_file("cannot read the folder", path, e))?;
        if entries.next().is_some() {
            return Err(Error::new(ErrorKind::Refused, "the folder to export to is not empty")
                .path(path)
                .hint("name a new folder: export writes over nothing"));
        }
        let root = rustix::fs::open(path, DIRECTORY - OFlags::NOFOLLOW, Mode::empty())
            .map_err(|e| about_file("cannot open the folder", path, e.into()))?;
        Ok(FolderSink { path: path.to_path_buf(), root, open: Vec::new() })
    }

    /// The open folder of `parts`, created if it does not exist.
    fn folder(&mut self, parts: &[&[u8]]) -> Result<BorrowedFd<'_>, Errno> {
        let shared = self.open.iter().zip(parts).take_while(|((name, _), part)| name == *part);
        let mut depth = shared.count();
        self.open.truncate(depth);
        // A name may have 2,048 components, more than a process may have files open: beyond some
        // depth only the innermost folder stays open.
        while depth < parts.len() && depth < KEPT_OPEN {
            let next = enter(self.innermost(), parts[depth])?;
            self.open.push((parts[depth].to_vec(), next));
            depth += 1;
        }
        if depth < parts.len() {
            let mut folder = enter(self.innermost(), parts[depth])?;
            for part in &parts[depth + 1..] {
                folder = enter(folder.as_fd(), part)?;
            }
            // Stored under a name that no component has, so that the next name is walked from the
            // top again.
            self.open.push((b"/".to_vec(), folder));
        }
        Ok(self.innermost())
    }

    fn innermost(&self) -> BorrowedFd<'_> {
        self.open.last().map_or(self.root.as_fd(), |(_, folder)| folder.as_fd())
    }

    fn failed(&self, name: &[u8], error: Errno) -> SinkError {
        match error {
            Errno::EXIST => SinkError::Conflict("a file or folder of that name is already there"),
            Errno::NOTDIR => SinkError::Conflict("a file lies where one of its folders should be"),
            Errno::LOOP => SinkError::Conflict("a link lies where one of its folders should be"),
            Errno::NAMETOOLONG => SinkError::Conflict("too long for this file system"),
            Errno::INVAL | Errno::ILSEQ => SinkError::Conflict("not a name on this file system"),
            error => {
                let path = self.path.join(text::safe_name(name));
                SinkError::Failed(about_file("cannot write", path, error.into()).into())
            }
        }
    }
}

impl Sink for FolderSink {
    fn write(&mut self, name: &[u8], bytes: &[u8]) -> Result<(), SinkError> {
        debug_assert_eq!(super::check(name), Ok(()), "the caller checks names");
        let mut parts: Vec<&[u8]> = name.split(|&byte| byte == b'/').collect();
        let file_name = parts.pop().unwrap_or_default();
        let result = match self.folder(&parts) {
            Ok(folder) => write_file(folder, file_name, bytes),
            Err(error) => Err(error),
        };
        result.map_err(|error| self.failed(name, error))
    }

    fn finish(&mut self) -> Result<(), Failure> {
        Ok(())
    }
}

/// Opens the folder `part` of `parent`, creating it if it does not exist; never through a link.
fn enter(parent: BorrowedFd<'_>, part: &[u8]) -> Result<OwnedFd, Errno> {
    let part = c_string(part)?;
    match openat(parent, &*part, DIRECTORY, Mode::empty()) {
        Err(Errno::NOENT) => {}
        result => return result,
    }
    match mkdirat(parent, &*part, Mode::from_raw_mode(0o777)) {
        Ok(()) | Err(Errno::EXIST) => openat(parent, &*part, DIRECTORY, Mode::empty()),
        Err(error) => Err(error),
    }
}

fn write_file(folder: BorrowedFd<'_>, name: &[u8], bytes: &[u8]) -> Result<(), Errno> {
    let name = c_string(name)?;
    let fd = openat(folder, &*name, NEW_FILE, Mode::from_raw_mode(0o666))?;
    File::from(fd).write_all(bytes).map_err(|error| {
        // A truncated file would look like a sample. An error of the removal adds nothing.
        let _ = unlinkat(folder, &*name, AtFlags::empty());
        Errno::from_io_error(&error).unwrap_or(Errno::IO)
    })
}

fn c_string(part: &[u8]) -> Result<CString, Errno> {
    CString::new(part).map_err(|_| Errno::INVAL)
}

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const NEW_FILE: OFlags = OFlags::WRONLY
    .union(OFlags::CREATE)
    .union(OFlags::EXCL)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
/// The most folders that stay open.
const KEPT_OPEN: usize = 64;

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn sink() -> (tempfile::TempDir, PathBuf, FolderSink) {
        let outer = tempfile::tempdir().unwrap();
        let inner = outer.path().join("out");
        let sink = FolderSink::create(&inner).unwrap();
        (outer, inner, sink)
    }

    #[test]
    fn files_land_in_folders_that_are_made_on_the_way() {
        let (_outer, root, mut sink) = sink();
        for (name, bytes) in [("a/b/1", "one"), ("a/b/2", "two"), ("a/3", ""), ("4", "four")] {
            sink.write(name.as_bytes(), bytes.as_bytes()).unwrap();
            assert_eq!(std::fs::read_to_string(root.join(name)).unwrap(), bytes);
        }
    }

    #[test]
    fn a_name_of_4096_bytes_is_written_folder_by_folder() {
        let (_outer, root, mut sink) = sink();
        for depth in [63, 64, 65, 66, 2047] {
            let name = [b"d/".repeat(depth), b"f".to_vec()].concat();
            sink.write(&name, b"deep").unwrap();
            sink.write(&[&name[..], b"2"].concat(), b"beside").unwrap();
        }
        assert_eq!(std::fs::read(root.join("d/".repeat(66)).join("f2")).unwrap(), b"beside");
        // The path as a whole is too long for one call, so walk down the folders.
        let mut folder = rustix::fs::open(&root, DIRECTORY, Mode::empty()).unwrap();
        for _ in 0..2047 {
            folder = openat(&folder, "d", DIRECTORY, Mode::empty()).unwrap();
        }
        openat(&folder, "f", OFlags::RDONLY, Mode::empty()).unwrap();
        openat(&folder, "f2", OFlags::RDONLY, Mode::empty()).unwrap();
    }

    #[test]
    fn names_of_any_bytes_are_written_as_they_are() {
        let (_outer, root, mut sink) = sink();
        sink.write(b"a\nb/\xff\xfe", b"x").unwrap();
        let path = root.join(std::ffi::OsStr::from_bytes(b"a\nb/\xff\xfe"));
        assert_eq!(std::fs::read(path).unwrap(), b"x");
    }

    #[test]
    fn nothing_is_overwritten_and_files_and_folders_do_not_mix() {
        let (_outer, root, mut sink) = sink();
        sink.write(b"a", b"1").unwrap();
        assert!(matches!(sink.write(b"a", b"2"), Err(SinkError::Conflict(_))));
        assert!(matches!(sink.write(b"a/b", b"2"), Err(SinkError::Conflict(_))));
        sink.write(b"d/x", b"1").unwrap();
        assert!(matches!(sink.write(b"d", b"2"), Err(SinkError::Conflict(_))));
        assert_eq!(std::fs::read(root.join("a")).unwrap(), b"1");
    }

    #[test]
    fn links_planted_in_the_folder_lead_nowhere() {
        let (outer, root, mut sink) = sink();
        let secret = outer.path().join("secret");
        std::fs::create_dir(&secret).unwrap();
        symlink(&secret, root.join("link")).unwrap();
        symlink(secret.join("new"), root.join("file")).unwrap();
        symlink("../secret", root.join("relative")).unwrap();
        for name in ["link/x", "link", "file", "relative/x"] {
            let result = sink.write(name.as_bytes(), b"x");
            assert!(matches!(result, Err(SinkError::Conflict(_))), "{name}");
        }
        assert_eq!(std::fs::read_dir(&secret).unwrap().count(), 0);
    }

    #[test]
    fn a_process_that_swaps_folders_for_links_gains_nothing() {
        let (outer, root, mut sink) = sink();
        let secret = outer.path().join("secret");
        std::fs::create_dir(&secret).unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let (folder, aside) = (root.join("swap"), root.join("aside"));
                    // Each of these fails whenever the sink is in the same folder: that is the
                    // race.
                    let _ = std::fs::rename(&folder, &aside);
                    let _ = symlink(&secret, &folder);
                    let _ = std::fs::remove_file(&folder);
                    let _ = std::fs::rename(&aside, &folder);
                }
            });
            for index in 0..2_000 {
                let name = format!("swap/{index}");
                // A conflict is acceptable here; an escape is not.
                let _ = sink.write(name.as_bytes(), b"x");
                let _ = sink.write(format!("other/{index}").as_bytes(), b"x");
            }
            over.store(true, Ordering::Relaxed);
        });
        assert_eq!(std::fs::read_dir(&secret).unwrap().count(), 0, "a file escaped");
    }

    #[test]
    fn a_folder_with_something_in_it_is_refused() {
        let outer = tempfile::tempdir().unwrap();
        std::fs::write(outer.path().join("mine"), b"precious").unwrap();
        let error = FolderSink::create(outer.path()).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Refused);
        assert!(error.report().contains("new folder"));
    }
}
