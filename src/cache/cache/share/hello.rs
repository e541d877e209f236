//! First message of a connection: the tiers that the owner shares, with the table of copies.

use std::io::{ErrorKind as IoKind, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use serde::{Deserialize, Serialize};

use super::place;
use super::socket::connect_at_path;
use crate::cache::Identity;
use crate::cache::options::MAX_TIERS;
use dlfs_base::error::{Error, ErrorKind, Result};
use dlfs_order::tier::Policy;

/// The owner's first message: its identity, and the tiers that it shares.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(in crate::cache) struct Hello {
    /// Version of these messages, of the table and of the frames.
    pub protocol: u32,
    /// Version of the owner's dlfs.
    pub dlfs: String,
    pub pid: u32,
    pub uuid: [u8; 16],
    pub generation: u64,
    /// Fingerprint of the division into units.
    pub fingerprint: u64,
    pub policy: String,
    pub tiers: Vec<SharedTier>,
}

/// A tier as the owner has opened it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(in crate::cache) struct SharedTier {
    /// Its name as the owner's user wrote it.
    pub name: String,
    pub place: Place,
    pub data_offset: u64,
    pub capacity_pages: u64,
    /// Set if only written pages take room.
    pub is_sparse: bool,
    /// Set if long samples are files of their own beside it.
    pub has_own_files: bool,
}

/// The place where a shared tier keeps its copies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::cache) enum Place {
    /// In this file or block device.
    File(PathBuf),
    /// In the remote namespace at this address.
    Namespace(String),
    /// In shared memory of this length in bytes. The file descriptors of all tiers in memory come with the
    /// message, in the order of the tiers.
    Memory(u64),
}

/// The data and descriptors that a process receives when it attaches.
#[derive(Debug)]
pub(in crate::cache) struct Welcome {
    pub stream: UnixStream,
    pub hello: Hello,
    /// Descriptor of the table's memory.
    pub table: OwnedFd,
    /// Descriptors of the tiers in memory.
    pub memory: Vec<OwnedFd>,
}

impl Hello {
    /// The first message of this process.
    pub(in crate::cache) fn new(
        identity: Identity,
        fingerprint: u64,
        policy: Policy,
        tiers: Vec<SharedTier>,
    ) -> Hello {
        Hello {
            protocol: PROTOCOL,
            dlfs: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uuid: identity.uuid.0,
            generation: identity.generation.0,
            fingerprint,
            policy: format!("{policy:?}"),
            tiers,
        }
    }
}

/// Connects to the owner that listens on the socket `name`; `None` if nobody listens.
///
/// # Errors
/// `Refused`: the owner belongs to another user. `Unsupported`: the owner runs another version of dlfs.
/// `TimedOut`, `Disconnected`, `Internal`: there is no answer within a second, the owner has just ended, or the
/// answer is not an owner's. Errors of the operating system.
pub(in crate::cache) fn connect(name: &str) -> Result<Option<Welcome>> {
    let welcomes = place::paths_of(name).into_iter().map(|path| connect_at(&path));
    welcomes.filter_map(Result::transpose).next().transpose()
}

fn connect_at(path: &Path) -> Result<Option<Welcome>> {
    let stream = match connect_at_path(path) {
        Ok(Some(stream)) => stream,
        Ok(None) => return Ok(None),
        Err(error) if error.kind() == IoKind::PermissionDenied => {
            return Err(failed(ErrorKind::Refused, "it belongs to another user"));
        }
        Err(error) if error.kind() == IoKind::WouldBlock => {
            return Err(failed(ErrorKind::TimedOut, "it accepts nobody"));
        }
        Err(error) => return Err(error.into()),
    };
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(HELLO_WAIT))?;
    stream.set_write_timeout(Some(HELLO_WAIT))?;
    let (text, mut files) = receive(&stream)?;
    let hello = parse(&text)?;
    if files.is_empty() {
        return Err(failed(ErrorKind::Internal, "it sent no table"));
    }
    let table = files.remove(0);
    stream.set_read_timeout(None)?;
    Ok(Some(Welcome { stream, hello, table, memory: files }))
}

/// Sends the first message with its file descriptors, the table's first. The message fits into the buffer of
/// a new socket.
pub(super) fn send(stream: &UnixStream, hello: &Hello, files: &[BorrowedFd<'_>]) -> Result<()> {
    let text = serde_json::to_vec(hello).map_err(std::io::Error::other)?;
    let len = (text.len() as u32).to_le_bytes();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(failed(ErrorKind::Internal, "too many files"));
    }
    let parts = [IoSlice::new(&len), IoSlice::new(&text)];
    let sent = rustix::net::sendmsg(stream, &parts, &mut control, SendFlags::NOSIGNAL);
    match sent.map_err(std::io::Error::from)? {
        sent if sent == len.len() + text.len() => Ok(()),
        _ => Err(failed(ErrorKind::Internal, "the first message did not fit")),
    }
}

fn receive(mut stream: &UnixStream) -> Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut head = [0; 4];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut head)];
    let found = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(stream, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
    });
    let count = found.map_err(|errno| match errno {
        Errno::AGAIN => failed(ErrorKind::TimedOut, "it does not answer"),
        errno => std::io::Error::from(errno).into(),
    })?;
    let mut files = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(found) = message {
            files.extend(found);
        }
    }
    if count.bytes != head.len() {
        return Err(failed(ErrorKind::Disconnected, "it has just ended"));
    }
    let len = u32::from_le_bytes(head) as usize;
    if len > MAX_HELLO_BYTES {
        return Err(failed(ErrorKind::Internal, "its first message is too long"));
    }
    let mut text = vec![0; len];
    stream.read_exact(&mut text)?;
    Ok((text, files))
}

/// Parses the version first: other versions may differ in all other fields.
fn parse(text: &[u8]) -> Result<Hello> {
    let unknown = |error: serde_json::Error| {
        failed(ErrorKind::Internal, "its first message is unknown").source(error)
    };
    let value: serde_json::Value = serde_json::from_slice(text).map_err(unknown)?;
    if value["protocol"] != PROTOCOL {
        let why = format!(
            "process {} runs dlfs {} with another protocol",
            value["pid"],
            value["dlfs"].as_str().unwrap_or("of an unknown version")
        );
        return Err(failed(ErrorKind::Unsupported, &why)
            .hint("run one version of dlfs on a node, or give each job a tier of its own"));
    }
    serde_json::from_value(value).map_err(unknown)
}

fn failed(kind: ErrorKind, why: &str) -> Error {
    Error::new(kind, format!("cannot share the tiers of the process that has them: {why}"))
}

/// Version of the first message, the table of copies and the frames.
pub(in crate::cache) const PROTOCOL: u32 = 7;

/// Limit of descriptors in the first message: the table, and each tier's memory.
const MAX_FILES: usize = 1 + MAX_TIERS;

const MAX_HELLO_BYTES: usize = 64 << 10;

/// Timeout of the owner's answer.
const HELLO_WAIT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    fn hello() -> Hello {
        Hello {
            protocol: PROTOCOL,
            dlfs: "1.2.3".to_owned(),
            pid: 7,
            uuid: [9; 16],
            generation: 3,
            fingerprint: u64::MAX,
            policy: "FirstTouch".to_owned(),
            tiers: vec![SharedTier {
                name: "file:/a:1M".to_owned(),
                place: Place::File("/a/tier".into()),
                data_offset: 8192,
                capacity_pages: 100,
                is_sparse: true,
                has_own_files: true,
            }],
        }
    }

    #[test]
    fn the_first_message_arrives_with_its_files() {
        let (here, there) = UnixStream::pair().unwrap();
        let files: Vec<_> = (0..MAX_FILES).map(|_| tempfile::tempfile().unwrap()).collect();
        let borrowed: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        send(&here, &hello(), &borrowed).unwrap();
        let (text, found) = receive(&there).unwrap();
        assert_eq!(parse(&text).unwrap(), hello());
        let inode = |file: std::os::fd::BorrowedFd<'_>| rustix::fs::fstat(file).unwrap().st_ino;
        let sent: Vec<u64> = borrowed.into_iter().map(inode).collect();
        let found: Vec<u64> = found.iter().map(|file| inode(file.as_fd())).collect();
        assert_eq!(sent, found, "in their order");
    }

    #[test]
    fn another_version_and_other_bytes_are_refused_by_name() {
        let other = Hello { protocol: PROTOCOL + 1, ..hello() };
        let error = parse(&serde_json::to_vec(&other).unwrap()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("process 7 runs dlfs 1.2.3"), "{error}");
        for text in ["", "[]", "{\"protocol\": 4}", "\u{0}"] {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
    }
}
