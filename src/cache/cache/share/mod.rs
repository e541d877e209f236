//! Sharing of tiers on one node: the process that opens them first owns them, the others attach.
//!
//! The owner keeps the table of copies, and the copies of tiers in memory, in shared memory that all
//! processes map. It listens on a Unix socket. A process that attaches gets the table, the memory, and the
//! paths and addresses of the other tiers. From then on it reads copies itself, as fast as the owner and
//! without a message. It sends the owner the pages that it reads from its own origin, and the owner's copier
//! assembles and writes all copies. So each page is kept once and read from the origin once. A forked child
//! of the owner or of an attached process attaches in the same way.
//!
//! The alternative was to read copies through the owner's target. Each read would then cost the owner a turn
//! and copy each byte twice through a socket, and a stopped owner would block all reads.
//!
//! The socket lies in a folder of the user (`place.rs`). Its name consists of the device and inode of the
//! first tier in a file, or of the number of a block device. If no tier has either, the name is a hash of the
//! image, its generation and the node's name, if it has one; the process that has bound the name then owns
//! the tiers, since there is no file to lock. The socket of a killed owner is replaced. Both sides check that
//! the other side belongs to the same user.
//!
//! Under the policy *clairvoyant* each process sends the owner its plan, and the owner follows the merged
//! plans (`TierPlan::merge`). Under *first-touch*, each process whose node holds chunks for other nodes sends
//! the owner these chunks, and the owner keeps room for the chunks of all processes (`holdings.rs`).
//!
//! When the owner ends, its connections end, and the attached processes stop using copies, since the next
//! owner may overwrite them. They continue from the origin at once, and each of them tries to open the tiers
//! again (`heir.rs`). The process that gets the lock on the files, or the name, becomes the owner; the others
//! attach to it. Copies in files are reused, copies in memory are lost.
//!
//! Read `hello.rs` first, then `owner.rs` and `link.rs`.

mod frames;
mod hello;
mod link;
mod owner;
mod place;
mod socket;

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

pub(super) use hello::{Hello, Place, SharedTier, Welcome, connect};
pub(super) use link::{Link, Message};
pub(super) use owner::{Owner, Sharing};
pub use socket::{Listener, connect_to};

use super::options::{TierKind, TierOptions};
use super::{Identity, folder};

/// Name of the socket on which the owner of these tiers listens; `None` if the first tier in a file has no
/// file yet, or its path is neither a file nor a block device.
pub(super) fn socket_name(options: &TierOptions, identity: Identity) -> Option<String> {
    match first_path(options, identity) {
        Some(path) => name_of(&path),
        None => name_in_memory(options, identity),
    }
}

/// Returns whether the lock on the first tier in a file is free; then no process of dlfs owns these tiers.
/// Always false without such a tier: the socket's name is then the lock.
pub(super) fn is_free(options: &TierOptions, identity: Identity) -> bool {
    match first_path(options, identity) {
        Some(path) => folder::is_unused(&path),
        None => name_in_memory(options, identity).is_none(),
    }
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
    let place = match found.file_type() {
        kind if kind.is_file() => format!("{:x}-{:x}", found.dev(), found.ino()),
        kind if kind.is_block_device() => format!("{:x}", found.rdev()),
        _ => return None,
    };
    Some(format!("tier-{place}"))
}

/// Returns whether the owner has opened the tiers that `options` name. Warns if the owner's tiers or policy
/// differ: the owner's options are in effect.
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
