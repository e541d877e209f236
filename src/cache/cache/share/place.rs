//! Sockets by which the processes of a user find each other, in a folder that no other user can access.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The path of the socket `name` for this process to create. Creates the folder if it is missing.
///
/// # Errors
/// `PermissionDenied`: another user has taken the folder's name, or can access the folder. Errors of the
/// operating system.
pub(super) fn path_of(name: &str) -> io::Result<PathBuf> {
    Ok(folder(runtime().as_deref(), &std::env::temp_dir())?.join(name))
}

/// The paths at which another process of this user, with another environment, may have created the socket.
pub(super) fn paths_of(name: &str) -> Vec<PathBuf> {
    let logged_in = Path::new("/run/user").join(user().to_string());
    let mut folders: Vec<PathBuf> =
        runtime().into_iter().chain([logged_in]).map(|folder| folder.join("dlfs")).collect();
    folders.push(below(&std::env::temp_dir()));
    folders.dedup();
    folders.retain(|folder| is_private(folder));
    folders.into_iter().map(|folder| folder.join(name)).collect()
}

/// `dlfs` in the runtime folder that the system created for the user; without one, a folder below the
/// temporary folder.
fn folder(runtime: Option<&Path>, temporary: &Path) -> io::Result<PathBuf> {
    let path = match runtime.filter(|path| is_private(path)) {
        Some(runtime) => runtime.join("dlfs"),
        None => below(temporary),
    };
    match DirBuilder::new().mode(0o700).create(&path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ if is_private(&path) => Ok(path),
        _ => {
            let why = format!(
                "{} is no folder of this user alone: remove it, or set XDG_RUNTIME_DIR to a folder of yours with \
                 mode 0700",
                path.display()
            );
            Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
        }
    }
}

fn runtime() -> Option<PathBuf> {
    std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from)
}

fn below(temporary: &Path) -> PathBuf {
    temporary.join(format!("dlfs-{}", user()))
}

/// Returns whether the path is a folder that only this user can access.
fn is_private(path: &Path) -> bool {
    fs::symlink_metadata(path)
        .is_ok_and(|found| found.is_dir() && found.uid() == user() && found.mode() & 0o077 == 0)
}

fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn sockets_lie_where_nobody_else_can_make_one() {
        let temporary = tempfile::tempdir().unwrap();
        let runtime = tempfile::tempdir().unwrap();
        fs::set_permissions(runtime.path(), Permissions::from_mode(0o700)).unwrap();
        let own = below(temporary.path());
        let found = |runtime: Option<&Path>| folder(runtime, temporary.path());
        assert_eq!(found(Some(runtime.path())).unwrap(), runtime.path().join("dlfs"));
        assert_eq!(found(None).unwrap(), own);
        assert_eq!(fs::metadata(&own).unwrap().mode() & 0o777, 0o700);
        // A runtime folder that others can access is not used.
        fs::set_permissions(runtime.path(), Permissions::from_mode(0o755)).unwrap();
        assert_eq!(found(Some(runtime.path())).unwrap(), own);

        let refused = |what: &str| {
            let error = found(None).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{what}");
            assert!(error.to_string().contains("XDG_RUNTIME_DIR"), "{what}: {error}");
        };
        fs::set_permissions(&own, Permissions::from_mode(0o770)).unwrap();
        refused("open to a group");
        fs::remove_dir(&own).unwrap();
        fs::write(&own, "").unwrap();
        refused("a file");
        fs::remove_file(&own).unwrap();
        symlink(runtime.path(), &own).unwrap();
        refused("a link");
        fs::remove_file(&own).unwrap();
        fs::create_dir(&own).unwrap();
        fs::set_permissions(&own, Permissions::from_mode(0o700)).unwrap();
        if std::os::unix::fs::chown(&own, Some(65534), None).is_ok() {
            refused("another user's");
        }
        // Follows the error's hint.
        fs::set_permissions(runtime.path(), Permissions::from_mode(0o700)).unwrap();
        found(Some(runtime.path())).unwrap();
    }
}
