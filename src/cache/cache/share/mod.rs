//! Sharing the tiers of one node: the process that opens them first owns them, the others attach.
//!
//! The owner keeps the table of copies, and the copies of tiers in memory, in shared memory that all processes
//! map. It listens on a Unix socket. A process that attaches gets the table, the memory and the paths of
//! the tiers in files, and from then on reads copies itself: as fast as the owner, without a message. It
//! sends the pages that it reads from its own origin to the owner, whose copier assembles and writes all
//! copies; so each page is kept once and read from the origin once. A forked child of either attaches in the
//! same way.
//!
//! The alternative was to read copies through the owner's target: each read would then cost the
//! owner a turn and copy each byte twice through a socket, and a stopped owner would block all
//! reads.
//!
//! The socket lies in a folder of the user (`place.rs`). Its name is made of the device and inode of the first tier
//! in a file; where none is, of the image and its generation, and of the node's name if it has one.
//! What a killed owner leaves is replaced. Both sides check that the other one belongs to the same user. Without a
//! file to lock, whoever has the name owns the tiers.
//!
//! Under the policy *clairvoyant* each process sends the owner what it plans to keep, and the owner keeps by all
//! plans together (`TierPlan::merge`). Under *first-touch*, each process whose node holds chunks for other nodes tells
//! the owner which, and the owner keeps room for the chunks of all of them (`holdings.rs`).
//!
//! When the owner is gone, so is the connection, and the attached process uses no copy any more: the
//! next owner may overwrite it. It continues from the origin at once, and tries to open the tiers again,
//! as every other attached process does (`heir.rs`): the one that gets the lock on the files, or the name,
//! owns them, the others attach to it. Copies in files are reused, those in memory are lost.
//!
//! Read `hello.rs` first, then `owner.rs` and `link.rs`.

mod frames;
mod hello;
mod link;
mod owner;
mod place;

use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use xxhash_rust::xxh3::xxh3_64;

pub(super) use hello::{Hello, Place, SharedTier, Welcome, connect};
pub(super) use link::{Link, Message};
pub(super) use owner::{Listener, Owner, Sharing};

use super::options::{TierKind, TierOptions};
use super::{Identity, folder};
use dlfs_base::process::mark_ours;

/// Name of the socket on which the owner of these tiers listens; `None` if they are not shared, or if the
/// first tier in a file has none yet.
pub(super) fn socket_name(options: &TierOptions, identity: Identity) -> Option<String> {
    match first_path(options, identity) {
        Some(path) => name_of(&path),
        None => name_in_memory(options, identity),
    }
}

/// Returns whether no process holds the lock on the first tier in a file; then no process of dlfs owns these tiers.
pub(super) fn is_free(options: &TierOptions, identity: Identity) -> bool {
    match first_path(options, identity) {
        Some(path) => folder::is_unused(&path),
        None => name_in_memory(options, identity).is_none(),
    }
}

/// Name of the socket that is also the lock on the tiers, where none of them is in a file.
pub(super) fn name_in_memory(options: &TierOptions, identity: Identity) -> Option<String> {
    if first_path(options, identity).is_some() {
        return None;
    }
    let Identity { uuid, generation } = identity;
    let tiers = format!("{uuid}-g{generation}-{}", options.node.as_deref().unwrap_or_default());
    // A path of a socket has 107 bytes at most.
    Some(format!("ram-{:016x}", xxh3_64(tiers.as_bytes())))
}

/// Takes the remote namespace at `address` for this process, among those of this user on this machine. Nobody connects
/// to the socket.
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

/// Name of the socket for the tier at `path`; `None` if that is neither a file nor a block device.
fn name_of(path: &Path) -> Option<String> {
    let found = std::fs::metadata(path).ok()?;
    let place = match found.file_type() {
        kind if kind.is_file() => format!("{:x}-{:x}", found.dev(), found.ino()),
        kind if kind.is_block_device() => format!("{:x}", found.rdev()),
        _ => return None,
    };
    Some(format!("tier-{place}"))
}

/// Returns whether the owner has opened the tiers that `options` name. Warns if it has opened others, or with another
/// policy: its options are in effect.
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

/// A socket for a path, which never blocks.
fn unix_socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    mark_ours(&socket);
    Ok(socket)
}

/// Returns whether the other end of a connection belongs to the same user.
fn is_same_user(stream: &std::os::unix::net::UnixStream) -> bool {
    let peer = rustix::net::sockopt::socket_peercred(stream);
    peer.is_ok_and(|peer| peer.uid == rustix::process::geteuid())
}
