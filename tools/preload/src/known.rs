//! A cache of the nodes behind the newest descriptors: asking the kernel for the name of a memfd takes longer than
//! all else in an `fstat`, and programs ask for the attributes of each file twice or more.
//!
//! Nothing is removed: a descriptor that was closed and given out again is another inode, or was changed later.

use std::ffi::c_int;
use std::sync::Mutex;

use dlfs::posix::Node;

use crate::mounts::Mount;

#[derive(Clone, Copy)]
struct Known {
    fd: c_int,
    inode: Inode,
    mount: &'static Mount,
    node: Node,
}

/// The device, the inode number, and when it was changed last.
type Inode = (libc::dev_t, libc::ino_t, i64, i64);

/// By descriptor. The locks are only tried: a signal or a fork may have come while one was held.
static KNOWN: [Mutex<Option<Known>>; SLOTS] = [const { Mutex::new(None) }; SLOTS];

/// Notes what `fd` stands for, of which the kernel says `stat`.
pub(crate) fn note(fd: c_int, stat: &libc::stat, mount: &'static Mount, node: Node) {
    if let Some(Ok(mut slot)) = slot_of(fd).map(Mutex::try_lock) {
        *slot = Some(Known { fd, inode: inode_of(stat), mount, node });
    }
}

/// The mount and the node that `fd` stands for, if they were noted. `stat` is what the kernel says of it.
pub(crate) fn find(fd: c_int, stat: &libc::stat) -> Option<(&'static Mount, Node)> {
    let slot = slot_of(fd)?.try_lock().ok()?;
    let known = slot.filter(|known| known.fd == fd && known.inode == inode_of(stat))?;
    Some((known.mount, known.node))
}

fn slot_of(fd: c_int) -> Option<&'static Mutex<Option<Known>>> {
    usize::try_from(fd).ok().map(|fd| &KNOWN[fd % SLOTS])
}

fn inode_of(stat: &libc::stat) -> Inode {
    (stat.st_dev, stat.st_ino, stat.st_ctime, stat.st_ctime_nsec)
}

const SLOTS: usize = 256;
