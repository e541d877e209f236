//! A cache of the nodes behind the newest descriptors.
//!
//! Asking the kernel for the name of a memfd takes longer than the rest of an `fstat`, and programs often ask for a
//! file's attributes more than once. An entry need not be removed when its descriptor is closed: a file that reuses the
//! number has another inode or a later change time, so the entry does not match it.

use std::ffi::c_int;
use std::sync::Mutex;

use dlfs::posix::Node;

use crate::mounts::Mount;

/// The node behind a descriptor.
#[derive(Clone, Copy)]
struct Known {
    fd: c_int,
    inode: Inode,
    mount: &'static Mount,
    node: Node,
}

/// Device, inode number, and time of the last change.
type Inode = (libc::dev_t, libc::ino_t, i64, i64);

/// Slots by descriptor. Locks are only tried: a signal or a fork may have interrupted their holder.
static KNOWN: [Mutex<Option<Known>>; SLOTS] = [const { Mutex::new(None) }; SLOTS];

/// Notes the node behind `fd`; `stat` is the kernel's for `fd`.
pub(crate) fn note_node(fd: c_int, stat: &libc::stat, mount: &'static Mount, node: Node) {
    if let Some(Ok(mut slot)) = slot_of(fd).map(Mutex::try_lock) {
        *slot = Some(Known { fd, inode: inode_of(stat), mount, node });
    }
}

/// The mount and the node behind `fd`, if they were noted. `stat` is the kernel's for `fd`.
pub(crate) fn find_node(fd: c_int, stat: &libc::stat) -> Option<(&'static Mount, Node)> {
    let slot = slot_of(fd)?.try_lock().ok()?;
    let known = slot.filter(|known| known.fd == fd && known.inode == inode_of(stat))?;
    Some((known.mount, known.node))
}

/// The slot of a descriptor.
fn slot_of(fd: c_int) -> Option<&'static Mutex<Option<Known>>> {
    usize::try_from(fd).ok().map(|fd| &KNOWN[fd % SLOTS])
}

/// The identity of a file's content.
fn inode_of(stat: &libc::stat) -> Inode {
    (stat.st_dev, stat.st_ino, stat.st_ctime, stat.st_ctime_nsec)
}

/// Number of slots; descriptors whose numbers differ by this share a slot.
const SLOTS: usize = 256;
