//! Replaces a file atomically: a crash leaves the old file or the new one.
//!
//! A *draft* beside the file is written, made durable and renamed. [`check_replaceable`] tells early whether that can
//! work.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind as IoErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result, invalid};

/// The permissions of a file that did not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewMode {
    /// Only for its owner, because it shows which samples somebody reads, or names samples of a data set
    /// that needs keys.
    Private = 0o600,
    /// As the process's umask permits, because others may use the file.
    ByUmask = 0o666,
}

/// Replaces the content of the file at `path` by `bytes`, atomically and durably: writes a new file beside
/// it, calls fsync and renames it.
///
/// Follows a symbolic link and replaces the file that it names. Keeps the permissions of an existing file;
/// a new file has `mode`.
///
/// # Errors
/// On an error the old file is unchanged, unless only the fsync of the folder failed: then the new file is
/// there, but may be lost in a crash. `InvalidArgument`: `path` is not a regular file but, for example, a
/// device node. Otherwise those of the file system.
pub fn replace_file(path: &Path, mode: NewMode, bytes: &[u8]) -> Result<()> {
    replace_file_with(path, mode, |file| file.write_all(bytes))
}

/// [`replace_file`] with content that `write` produces, which may exceed the memory.
///
/// # Errors
/// The errors of [`replace_file`] and of `write`.
pub fn replace_file_with(
    path: &Path,
    mode: NewMode,
    write: impl FnOnce(&mut File) -> std::io::Result<()>,
) -> Result<()> {
    let target = resolve(path)?;
    let old = permissions_of(path, &target)?;
    let (mut file, draft) =
        create_draft(&target, mode).map_err(|error| cannot_write(path, error))?;
    let written = write(&mut file)
        .and_then(|()| old.map_or(Ok(()), |permissions| file.set_permissions(permissions)))
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&draft, &target))
        .and_then(|()| sync_folder_of(&target));
    written.map_err(|error| {
        let _ = fs::remove_file(&draft); // the error to report is that of the write
        cannot_write(path, error)
    })
}

/// Checks that [`replace_file`] can replace `path`: creates a file beside it and removes that file.
///
/// # Errors
/// The errors of [`replace_file`].
pub fn check_replaceable(path: &Path) -> Result<()> {
    let target = resolve(path)?;
    permissions_of(path, &target)?;
    let made =
        create_draft(&target, NewMode::Private).and_then(|(_, draft)| fs::remove_file(draft));
    made.map_err(|error| cannot_write(path, error))
}

/// The permissions of the file at `target`, to which `path` resolves; `None` if the file does not exist.
fn permissions_of(path: &Path, target: &Path) -> Result<Option<fs::Permissions>> {
    match fs::metadata(target) {
        Ok(metadata) if metadata.is_file() => Ok(Some(metadata.permissions())),
        Ok(_) => Err(invalid("this would be replaced by a file, and it is something else")
            .path(path)
            .hint("name a regular file, or one that is not there yet")),
        Err(error) if error.kind() == IoErrorKind::NotFound => Ok(None),
        Err(error) => Err(cannot_write(path, error)),
    }
}

/// Follows symbolic links, even to a file that does not exist yet.
fn resolve(path: &Path) -> Result<PathBuf> {
    let mut target = path.to_owned();
    for _ in 0..MAX_LINKS {
        match fs::read_link(&target) {
            // Joining an absolute path replaces the whole path.
            Ok(to) => target = target.parent().unwrap_or(Path::new("")).join(to),
            Err(_) => return Ok(target), // not a link; any other error recurs when the file is created
        }
    }
    Err(cannot_write(path, std::io::Error::from_raw_os_error(libc::ELOOP)))
}

/// Creates a new file beside `path`.
fn create_draft(path: &Path, mode: NewMode) -> std::io::Result<(File, PathBuf)> {
    for attempt in 0..MAX_DRAFTS {
        let number = std::process::id().wrapping_add(attempt << 24);
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{number:08x}"));
        match OpenOptions::new().write(true).create_new(true).mode(mode as u32).open(&name) {
            Ok(file) => return Ok((file, name.into())),
            // Another thread is writing a draft, or an earlier process with this identifier has left one.
            Err(error) if error.kind() == IoErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    let text = "all names for a draft beside it are taken: remove files of its name with eight more digits";
    Err(std::io::Error::new(IoErrorKind::AlreadyExists, text))
}

/// Makes the directory entry of the file durable.
fn sync_folder_of(path: &Path) -> std::io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

fn cannot_write(path: &Path, error: std::io::Error) -> Error {
    Error::of_file("cannot write the file", path, error)
}

/// Number of names that a process tries for a draft.
const MAX_DRAFTS: u32 = 256;

/// Linux's limit on nested symbolic links.
const MAX_LINKS: usize = 40;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::super::error::ErrorKind;
    use super::*;

    #[test]
    fn a_file_is_replaced_with_its_permissions_and_links_stay_links() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("file"), "old").unwrap();
        fs::set_permissions(at("file"), fs::Permissions::from_mode(0o640)).unwrap();
        symlink("file", at("link")).unwrap();
        symlink(at("made"), at("dangling")).unwrap();
        replace_file(&at("link"), NewMode::Private, b"new").unwrap();
        replace_file(&at("dangling"), NewMode::Private, b"fresh").unwrap();
        assert!(at("link").is_symlink() && at("dangling").is_symlink());
        assert_eq!(fs::read(at("file")).unwrap(), b"new");
        assert_eq!(fs::read(at("made")).unwrap(), b"fresh");
        let mode = |name: &str| fs::metadata(at(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("file"), mode("made")), (0o640, 0o600));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 4, "no draft is left");
    }

    #[test]
    fn drafts_that_were_left_over_are_passed_over_until_no_name_is_free() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let draft = |attempt: u32| {
            let number = std::process::id().wrapping_add(attempt << 24);
            folder.path().join(format!("file.{number:08x}"))
        };
        (0..255).for_each(|attempt| fs::write(draft(attempt), "left").unwrap());
        replace_file(&path, NewMode::Private, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        fs::write(draft(255), "left").unwrap();
        for error in [replace_file(&path, NewMode::Private, b"newer"), check_replaceable(&path)] {
            let report = error.unwrap_err().report();
            assert!(report.contains("all names for a draft"), "{report}");
        }
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }

    #[test]
    fn only_a_regular_file_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let null = folder.path().join("null");
        let loops = folder.path().join("loop");
        symlink("/dev/null", &null).unwrap();
        symlink("loop", &loops).unwrap();
        for path in [Path::new("/dev/null"), &null, folder.path()] {
            let error = replace_file(path, NewMode::Private, b"state").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{}", error.report());
        }
        assert!(
            replace_file(&loops, NewMode::Private, b"state")
                .unwrap_err()
                .report()
                .contains("symbolic links")
        );
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }
}
