//! Sharing of tiers on one node: the process that opens them first owns them, the others attach.
//!
//! The owner keeps the table of copies, and the copies of tiers in memory, in shared memory that all
//! processes map. It listens on a Unix socket. A process that attaches gets the table, the memory, and the
//! paths and addresses of the other tiers. From then on it reads copies itself, as fast as the owner and
//! without a message. It sends the owner the pages that it reads from its own origin, and the owner's copier
//! assembles and writes all copies. So each page is kept once, and normally read from the origin once. A forked child
//! of the owner or of an attached process attaches in the same way.
//!
//! The alternative was to read copies through the owner's target. Each read would then need the owner's CPU
//! and copy each byte twice through a socket, and a stopped owner would block all reads.
//!
//! The socket lies in a folder of the user (`socket.rs`). Its name consists of the device and inode of the
//! first tier in a file, or of the number of a block device. If no tier has either, the name is a hash of the
//! image, its generation and the node's name, if it has one; the process that has bound the name then owns
//! the tiers, since there is no file to lock. The socket of a killed owner is replaced. Both sides check that
//! the other side belongs to the same user.
//!
//! Under the policy *clairvoyant* each process sends the owner its plan, and the owner follows the merged
//! plans (`TierPlan::merge`). Under *first-touch*, each process whose node holds chunks for other nodes sends
//! the owner these chunks, and the owner keeps room for the chunks of all processes (`Holdings`).
//!
//! When the owner ends, its connections end, and the attached processes stop using copies, since the next
//! owner may overwrite them. They continue from the origin at once, and each of them tries to open the tiers
//! again (`opening.rs`). The process that gets the lock on the files, or the name, becomes the owner; the others
//! attach to it. Copies in files are reused, copies in memory are lost.
//!
//! This file has the names of sockets, and the first message of a connection: [`Hello`] says which tiers the owner
//! shares; the table of copies comes with it. Read `owner.rs` next, then `link.rs`.

mod link;
mod owner;
mod socket;

use std::io::{ErrorKind as IoKind, Read};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::options::{TierKind, TierOptions};
use super::{Identity, folder};
use dlfs_base::error::{Error, ErrorKind, Result};
use dlfs_base::process::{receive_files, send_files};

pub(super) use link::{Link, Message};
pub(super) use owner::{Sharing, TierOwner};
pub use socket::{Listener, connect_to, is_same_user};

/// Name of the socket on which the owner of these tiers listens; `None` if the first tier in a file has no
/// file yet, or its path is neither a file nor a block device.
pub(super) fn socket_name(options: &TierOptions, identity: Identity) -> Option<String> {
    match first_path(options, identity) {
        Some(path) => name_of(&path),
        None => name_in_memory(options, identity),
    }
}

/// Returns whether the lock on the first tier in a file is free: no process of dlfs owns these tiers then. Always
/// false without such a tier: the socket's name is then the lock.
pub(super) fn is_free(options: &TierOptions, identity: Identity) -> bool {
    first_path(options, identity).is_some_and(|path| folder::is_unused(&path))
}

/// Name of the socket that also serves as the lock on the tiers; `None` if any of them is in a file.
pub(super) fn name_in_memory(options: &TierOptions, identity: Identity) -> Option<String> {
    if first_path(options, identity).is_some() {
        return None;
    }
    let Identity { uuid, generation } = identity;
    let tiers = format!("{uuid}-g{generation}-{}", options.node.as_deref().unwrap_or_default());
    // Hashed, since a socket's path is limited to 107 bytes.
    Some(format!("ram-{:016x}", xxh3_64(tiers.as_bytes())))
}

/// Claims the remote namespace at `address` for this process, among the processes of this user on this
/// machine. The bound name is the lock; nobody connects to the socket.
///
/// # Errors
/// As [`Listener::on`].
pub(super) fn claim_namespace(address: &str) -> std::io::Result<Listener> {
    Listener::on(&format!("ns-{:016x}", xxh3_64(address.as_bytes())))
}

/// The file or device of the first tier that has one.
fn first_path(options: &TierOptions, identity: Identity) -> Option<PathBuf> {
    let path = options.tiers.iter().find_map(|tier| match &tier.kind {
        TierKind::File(path) => Some(path),
        TierKind::Ram | TierKind::Namespace(_) => None,
    })?;
    Some(if path.is_dir() { path.join(folder::file_name(identity)) } else { path.clone() })
}

/// Name of the socket for the tier at `path`; `None` if the path is neither a file nor a block device.
fn name_of(path: &Path) -> Option<String> {
    let found = std::fs::metadata(path).ok()?;
    match found.file_type() {
        kind if kind.is_file() => Some(format!("tier-{:x}-{:x}", found.dev(), found.ino())),
        kind if kind.is_block_device() => Some(format!("tier-{:x}", found.rdev())),
        _ => None,
    }
}

/// Returns whether the owner has opened the tiers that `options` name, in the same order. Warns if the owner's tiers
/// or policy differ: the owner's options are in effect.
pub(super) fn has_same_tiers(hello: &Hello, options: &TierOptions) -> bool {
    let owned: Vec<&str> = hello.tiers.iter().map(|tier| tier.name.as_str()).collect();
    let wanted: Vec<String> = options.tiers.iter().map(ToString::to_string).collect();
    let policy = format!("{:?}", options.policy);
    if owned != wanted || hello.policy != policy {
        tracing::warn!(
            owner = hello.pid,
            "the owner of the tiers opened them as {}, policy {}; these options hold, and not {}, \
             policy {policy}",
            owned.join(" "),
            hello.policy,
            wanted.join(" "),
        );
    }
    owned == wanted
}

/// The owner's first message: its identity, and the tiers that it shares.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(in crate::cache) struct Hello {
    /// Version of these messages, of the table and of the frames.
    pub protocol: u32,
    /// Version of the owner's dlfs.
    pub dlfs: String,
    pub pid: u32,
    /// The image whose copies the tiers keep, and its generation.
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
    /// Its specification in normal form, as in `Media::name`.
    pub name: String,
    pub place: TierPlace,
    /// Offset of the first copy, in bytes.
    pub data_offset: u64,
    /// Number of pages for copies.
    pub capacity_pages: u64,
    /// Set if only written pages take room.
    pub is_sparse: bool,
    /// Set if long samples are files of their own beside it.
    pub has_own_files: bool,
}

/// The place where a shared tier keeps its copies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::cache) enum TierPlace {
    /// In this file or block device.
    File(PathBuf),
    /// In the remote namespace at this address.
    Namespace(String),
    /// In shared memory of this length in bytes. The file descriptors of all tiers in memory come with the
    /// message, in the order of the tiers.
    Memory(u64),
}

/// Connects to the owner that listens on the socket `name`; `None` if nobody listens. Also returns the owner's first
/// message, and its file descriptors: that of the table's memory, and those of the tiers in memory.
///
/// # Errors
/// `Refused`: the owner belongs to another user. `Unsupported`: the owner runs another version of dlfs.
/// `TimedOut`, `Disconnected`, `Internal`: there is no answer within a second, the owner has just ended, or the
/// answer is not an owner's. Errors of the operating system.
pub(in crate::cache) fn connect(name: &str) -> Result<Option<(UnixStream, Hello, Vec<OwnedFd>)>> {
    let stream = match connect_to(name) {
        Ok(Some(stream)) => stream,
        Ok(None) => return Ok(None),
        Err(error) if error.kind() == IoKind::PermissionDenied => {
            return Err(failed(ErrorKind::Refused, "it belongs to another user"));
        }
        Err(error) if error.kind() == IoKind::WouldBlock => {
            return Err(failed(ErrorKind::TimedOut, "it accepts no connection"));
        }
        Err(error) => return Err(error.into()),
    };
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(HELLO_WAIT))?;
    stream.set_write_timeout(Some(OWNER_SILENCE))?;
    let (text, files) = receive(&stream)?;
    let hello = parse(&text)?;
    stream.set_read_timeout(None)?;
    Ok(Some((stream, hello, files)))
}

/// Sends the first message with its file descriptors, the table's first. The message fits into the buffer of
/// a new socket.
fn send(stream: &UnixStream, hello: &Hello, files: &[BorrowedFd<'_>]) -> Result<()> {
    let text = serde_json::to_vec(hello).map_err(std::io::Error::other)?;
    let bytes = [&(text.len() as u32).to_le_bytes()[..], &text[..]].concat();
    match send_files(stream, &bytes, files)? {
        sent if sent == bytes.len() => Ok(()),
        _ => Err(failed(ErrorKind::Internal, "the first message did not fit")),
    }
}

/// Receives the text of the first message, and its file descriptors.
fn receive(mut stream: &UnixStream) -> Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut head = [0; 4];
    let mut files = Vec::new();
    let count = receive_files(stream, &mut head, &mut files);
    let count = count.map_err(|error| match error.kind() {
        IoKind::WouldBlock => failed(ErrorKind::TimedOut, "it does not answer"),
        _ => error.into(),
    })?;
    if count != head.len() {
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

/// The error of a process that cannot attach.
pub(super) fn failed(kind: ErrorKind, why: &str) -> Error {
    Error::new(kind, format!("cannot share the tiers of the process that has them: {why}"))
}

/// Version of the first message, the table of copies and the frames.
pub(in crate::cache) const PROTOCOL: u32 = 9;

/// Limit of the first message's length.
const MAX_HELLO_BYTES: usize = 64 << 10;

/// Timeout of the owner's answer.
const HELLO_WAIT: Duration = Duration::from_secs(1);

/// Time for which an owner may take no message before it counts as gone: longer than it needs to merge large plans, and
/// short enough that the messages to an owner that is stopped stay few.
const OWNER_SILENCE: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;

    use dlfs_order::plan::MAX_TIERS;

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
                place: TierPlace::File("/a/tier".into()),
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
        let files: Vec<_> = (0..1 + MAX_TIERS).map(|_| tempfile::tempfile().unwrap()).collect();
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
    fn an_owner_may_take_longer_to_take_messages_than_to_answer() {
        let name = format!("test-{}-busy", std::process::id());
        let listener = Listener::on(&name).unwrap();
        let attaching = std::thread::spawn(move || connect(&name).unwrap().unwrap().0);
        let stream = loop {
            match listener.accept().unwrap() {
                Some(stream) => break stream,
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        send(&stream, &hello(), &[]).unwrap();
        let mut attached = attaching.join().unwrap();
        // More than the socket holds, so that the sender waits for the owner.
        let sent = std::thread::spawn(move || attached.write_all(&vec![7; 4 << 20]));
        std::thread::sleep(HELLO_WAIT * 2);
        stream.set_nonblocking(false).unwrap();
        (&stream).read_exact(&mut vec![0; 4 << 20]).unwrap();
        sent.join().unwrap().unwrap();
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
