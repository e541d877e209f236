//! Unix sockets by which the processes of a user find each other on one machine. A bound name is also a lock. The
//! sockets lie in a folder that no other user can access.

use std::fs::{self, DirBuilder};
use std::io::{self, Error as IoError, ErrorKind as IoKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::cache::folder::FolderLock;
use dlfs_base::process::{NotInherited, mark_ours};

/// A listening socket. Forked children do not keep it open: it ends with the process that bound it.
#[derive(Debug)]
pub struct Listener {
    path: PathBuf,
    /// Device and inode of the socket's file; `None`: unknown.
    file: Option<(u64, u64)>,
    _own: NotInherited,
    socket: UnixListener,
}

impl Listener {
    /// As [`Listener::on`], but waits up to [`NAME_WAIT`] for a name whose last process has just been killed and has
    /// not released it yet. Warns, and returns `None`, if the socket cannot be used.
    pub(in crate::cache) fn on_within_grace(name: &str) -> Option<Listener> {
        let until = Instant::now() + NAME_WAIT;
        loop {
            match Listener::on(name) {
                Ok(listener) => return Some(listener),
                Err(error) if error.kind() == IoKind::AddrInUse && Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(error) => {
                    tracing::warn!(
                        socket = name,
                        "the socket of these tiers cannot be used for now, so other processes do not share \
                         them: {error}; ss -xlp names the process that has it"
                    );
                    return None;
                }
            }
        }
    }

    /// Listens on the socket `name`.
    ///
    /// # Errors
    /// `AddrInUse`: another process listens on the name. `PermissionDenied`: another user has taken the name of the
    /// folder of sockets, or can access this folder. Errors of the operating system.
    pub fn on(name: &str) -> std::io::Result<Listener> {
        let path = folder(runtime().as_deref(), &std::env::temp_dir())?.join(name);
        // Locked, since only one process at a time may replace a socket on which nobody listens.
        let folder = path.parent().unwrap_or(Path::new("."));
        let _lock = FolderLock::new(folder).map_err(IoError::other)?;
        let socket = unix_socket()?;
        let address = SocketAddrUnix::new(&path)?;
        let mut bound = rustix::net::bind(&socket, &address);
        // Refused: the socket's file exists, but nobody listens on it.
        if bound == Err(Errno::ADDRINUSE)
            && rustix::net::connect(unix_socket()?, &address) == Err(Errno::CONNREFUSED)
        {
            std::fs::remove_file(&path)?;
            bound = rustix::net::bind(&socket, &address);
        }
        bound?;
        rustix::net::listen(&socket, MAX_ATTACHED as i32)?;
        let file = file_at(&path);
        let own = NotInherited::close(socket.as_fd());
        Ok(Listener { path, file, _own: own, socket: socket.into() })
    }

    /// Accepts the next process that connects; `None`: nobody does. The stream does not block.
    ///
    /// # Errors
    /// Errors of the operating system: for example, no file descriptor is left. The socket then stays ready.
    pub fn accept(&self) -> io::Result<Option<UnixStream>> {
        loop {
            match self.socket.accept() {
                Err(error) if error.kind() == IoKind::Interrupted => {}
                Err(error) if error.kind() == IoKind::WouldBlock => return Ok(None),
                accepted => {
                    let (stream, _) = accepted?;
                    mark_ours(&stream);
                    return stream.set_nonblocking(true).map(|()| Some(stream));
                }
            }
        }
    }

    /// The socket, which does not block.
    pub fn socket(&self) -> &UnixListener {
        &self.socket
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // While this socket listens, nobody replaces its file, but somebody may have removed it.
        if self.file.is_some() && self.file == file_at(&self.path) {
            let _ = std::fs::remove_file(&self.path); // on failure, the next owner replaces it
        }
    }
}

/// Device and inode of the file at `path`.
fn file_at(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// Connects to the process of this user that listens on the socket `name`, at the first path where one does; `None` if
/// nobody does. The stream does not block.
///
/// # Errors
/// `PermissionDenied`: the process belongs to another user. `WouldBlock`: it accepts no connection. Errors of the
/// operating system. After an error, later paths are not tried.
pub fn connect_to(name: &str) -> std::io::Result<Option<UnixStream>> {
    let streams = paths_to_try(name).into_iter().map(|path| connect_at_path(&path));
    streams.filter_map(Result::transpose).next().transpose()
}

/// As [`connect_to`], at this path.
fn connect_at_path(path: &Path) -> std::io::Result<Option<UnixStream>> {
    let socket = unix_socket()?;
    match rustix::net::connect(&socket, &SocketAddrUnix::new(path)?) {
        Ok(()) => {}
        Err(Errno::CONNREFUSED | Errno::NOENT) => return Ok(None),
        // `AGAIN`: the listener's backlog of connections is full.
        Err(errno) => return Err(errno.into()),
    }
    let stream = UnixStream::from(socket);
    if !is_same_user(&stream) {
        return Err(IoError::from(IoKind::PermissionDenied));
    }
    Ok(Some(stream))
}

/// Creates a non-blocking Unix socket.
fn unix_socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    mark_ours(&socket);
    Ok(socket)
}

/// Returns whether the other end of a connection belongs to the same user.
pub fn is_same_user(stream: &UnixStream) -> bool {
    let peer = rustix::net::sockopt::socket_peercred(stream);
    peer.is_ok_and(|peer| peer.uid == rustix::process::geteuid())
}

/// The paths at which another process of this user, with another environment, may have created the socket.
fn paths_to_try(name: &str) -> Vec<PathBuf> {
    let logged_in = Path::new("/run/user").join(user().to_string());
    let mut folders: Vec<PathBuf> =
        runtime().into_iter().chain([logged_in]).map(|folder| folder.join("dlfs")).collect();
    folders.push(below(&std::env::temp_dir()));
    folders.dedup();
    folders.retain(|folder| is_private(folder));
    folders.into_iter().map(|folder| folder.join(name)).collect()
}

/// The folder for the sockets that this process creates: `dlfs` in the folder `runtime` if only this user can access
/// that, otherwise a folder below `temporary`. Creates it if it is missing.
///
/// # Errors
/// `PermissionDenied`: another user has taken the folder's name, or can access the folder. Errors of the operating
/// system.
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

/// The folder that the system created for the user's sockets; `None` if `XDG_RUNTIME_DIR` is not set.
fn runtime() -> Option<PathBuf> {
    std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from)
}

/// The folder for the user's sockets below the temporary folder.
fn below(temporary: &Path) -> PathBuf {
    temporary.join(format!("dlfs-{}", user()))
}

/// Returns whether the path is a folder that only this user can access.
fn is_private(path: &Path) -> bool {
    fs::symlink_metadata(path)
        .is_ok_and(|found| found.is_dir() && found.uid() == user() && found.mode() & 0o077 == 0)
}

/// The user of this process.
fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Limit of processes attached at once.
pub(super) const MAX_ATTACHED: usize = 1024;

/// Timeout for a killed process to release its name.
const NAME_WAIT: Duration = Duration::from_millis(200);

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
