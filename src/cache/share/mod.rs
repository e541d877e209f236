//! Sharing the tiers of one node: the process that opens them first owns them, the others attach.
//!
//! The owner keeps the table of copies in memory that all map, and listens on a Unix socket. A process
//! that attaches gets the table and the paths of the tiers, and from then on reads copies from the
//! files itself: as fast as the owner, without a message. What it reads from its own origin and wants
//! kept it sends to the owner, whose copier assembles and writes all copies; so each page is kept once
//! and read from the origin once. A forked child of either attaches in the same way.
//!
//! The alternative was to read copies through the owner's target: each read would then cost the
//! owner a turn and copy each byte twice through a socket, and a stopped owner would block all
//! reads.
//!
//! The socket has an abstract name made of the user, and the device and inode of the first tier's
//! file. So there is nothing to remove after a kill, and no path that could be too long or not
//! writable. Both sides check that the other one belongs to the same user.
//!
//! When the owner is gone, so is the connection, and the attached process uses no copy any more: the
//! next owner may overwrite it. It reads on from the origin at once, and tries to open the tiers again,
//! as every other attached process does (`heir.rs`): the one that gets the lock on the files owns them,
//! the others attach to it. A forked child does not follow: it stays with the origin.
//!
//! Read `hello.rs` first, then `owner.rs` and `link.rs`.

mod frames;
mod hello;
mod link;
mod owner;

use std::os::unix::fs::MetadataExt;
use std::path::Path;

pub(super) use hello::{Hello, SharedTier, Welcome, connect};
pub(super) use link::Link;
pub(super) use owner::Owner;

use super::options::{TierKind, TierOptions};
use super::{Identity, folder};

/// The name of the socket on which the owner of these tiers listens; `None` if the first tier has
/// no file yet, or if some are in memory, since those are not shared.
pub(super) fn socket_name(options: &TierOptions, identity: Identity) -> Option<Vec<u8>> {
    let path = |tier: &super::TierSpec| match &tier.kind {
        TierKind::File(path) => Some(path.clone()),
        TierKind::Ram => None,
    };
    let paths: Option<Vec<_>> = options.tiers.iter().map(path).collect();
    let mut first = paths?.into_iter().next()?;
    if first.is_dir() {
        first.push(folder::file_name(identity));
    }
    name_of(&first)
}

/// Name of the socket for the tier at `path`; `None` if that is no regular file.
fn name_of(path: &Path) -> Option<Vec<u8>> {
    let found = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?;
    let user = rustix::process::geteuid().as_raw();
    Some(format!("dlfs-tier-{user}-{:x}-{:x}", found.dev(), found.ino()).into_bytes())
}

/// Warns if the owner has opened the tiers with other options: its options are in effect.
pub(super) fn warn_of_other_options(hello: &Hello, options: &TierOptions) {
    let owned: Vec<&str> = hello.tiers.iter().map(|tier| tier.name.as_str()).collect();
    let wanted: Vec<String> = options.tiers.iter().map(ToString::to_string).collect();
    let policy = format!("{:?}", options.policy);
    if owned != wanted || hello.policy != policy {
        tracing::warn!(
            owner = hello.pid,
            "the process that has the tiers opened them as {}, policy {}; that holds, not {}, policy {policy}",
            owned.join(" "),
            hello.policy,
            wanted.join(" "),
        );
    }
}

/// Whether the other end of a connection belongs to the same user.
fn is_same_user(stream: &std::os::unix::net::UnixStream) -> bool {
    let peer = rustix::net::sockopt::socket_peercred(stream);
    peer.is_ok_and(|peer| peer.uid == rustix::process::geteuid())
}
