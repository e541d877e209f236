//! Unix sockets by which the processes of a user find each other on one machine: the bound name is a lock.

use std::io::{Error as IoError, ErrorKind as IoKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::place;
use crate::cache::folder::Locked;
use dlfs_base::process::{NotInherited, mark_ours};

/// A socket on which the owner of something listens. The owner's children do not keep it open: it ends with the
/// owner.
#[derive(Debug)]
pub struct Listener {
    path: PathBuf,
    /// Device and inode of the socket's file.
    file: Option<(u64, u64)>,
    _own: NotInherited,
    socket: UnixListener,
}

impl Listener {
    /// Like [`Listener::on`], but waits a moment for a name whose last user has just been killed and has not
    /// released it yet. Warns if the name stays in use.
    pub(in crate::cache) fn soon_on(name: &str) -> Option<Listener> {
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
    /// `AddrInUse`: another process listens on the name. Errors of [`place::path_of`] and of the operating
    /// system.
    pub fn on(name: &str) -> std::io::Result<Listener> {
        let path = place::path_of(name)?;
        // Locked, since only one process at a time may replace a socket on which nobody listens.
        let folder = path.parent().unwrap_or(Path::new("."));
        let _lock = Locked::new(folder).map_err(IoError::other)?;
        let socket = unix_socket()?;
        let address = SocketAddrUnix::new(&path)?;
        let mut bound = rustix::net::bind(&socket, &address);
        if bound == Err(Errno::ADDRINUSE) && is_left_behind(&address)? {
            std::fs::remove_file(&path)?;
            bound = rustix::net::bind(&socket, &address);
        }
        bound?;
        rustix::net::listen(&socket, MAX_ATTACHED as i32)?;
        let file = file_at(&path);
        let own = NotInherited::close(socket.as_fd());
        Ok(Listener { path, file, _own: own, socket: socket.into() })
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

/// Returns whether the socket's file exists but nobody listens on it.
fn is_left_behind(address: &SocketAddrUnix) -> Result<bool, Errno> {
    Ok(rustix::net::connect(unix_socket()?, address) == Err(Errno::CONNREFUSED))
}

fn file_at(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// Connects to the process of this user that listens on the socket `name`; `None` if nobody does. The stream does not
/// block.
///
/// # Errors
/// `PermissionDenied`: the process belongs to another user. `WouldBlock`: it accepts nobody. Errors of the operating
/// system.
pub fn connect_to(name: &str) -> std::io::Result<Option<UnixStream>> {
    let streams = place::paths_of(name).into_iter().map(|path| connect_at_path(&path));
    streams.filter_map(Result::transpose).next().transpose()
}

/// As [`connect_to`], at this path.
pub(super) fn connect_at_path(path: &Path) -> std::io::Result<Option<UnixStream>> {
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
pub(super) fn is_same_user(stream: &std::os::unix::net::UnixStream) -> bool {
    let peer = rustix::net::sockopt::socket_peercred(stream);
    peer.is_ok_and(|peer| peer.uid == rustix::process::geteuid())
}

/// Limit of processes attached at once.
pub(super) const MAX_ATTACHED: usize = 1024;

/// Timeout for a killed process to release its name.
const NAME_WAIT: Duration = Duration::from_millis(200);
