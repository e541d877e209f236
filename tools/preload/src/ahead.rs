//! Readahead along an order: each file is a sealed memfd that waits for its `open`.

use std::ffi::{c_int, c_long};
use std::sync::Arc;

use dlfs::dataset::{Ahead, Files, OrderFile};
use dlfs::posix::{File, Node};
use dlfs::process::mark_ours;
use dlfs::units::Epoch;

use crate::files::{self, Memory};
use crate::known;
use crate::mounts::{Mount, Opened};
use crate::own::{self, called, most_descriptors};

/// The files of one sample.
pub(crate) type Held = Arc<[Waiting]>;

/// A memfd that waits. The program could close `fd` and reuse the number, so the file's identity is stored too.
pub(crate) struct Waiting {
    fd: c_int,
    /// Device and inode number.
    identity: (u64, u64),
    len: u64,
    /// Epoch of the file in the order.
    epoch: Epoch,
}

impl Mount {
    /// Opens a file that was read ahead: returns a new descriptor and the file's epoch in the order. The first
    /// call starts readahead.
    pub(crate) fn read_ahead(
        &'static self,
        opened: &'static Opened,
        file: File,
        flags: c_int,
    ) -> Option<(c_int, Epoch)> {
        let order = self.setting.order.as_ref()?;
        let ahead = opened.ahead.get_or_init(|| {
            let order = OrderFile::load(order);
            let begun = order.and_then(|order| {
                let most = (most_descriptors() / 4).min(MOST_HELD);
                Ahead::start(opened.files.dataset(), &order, most, move |batch, index| {
                    let id = batch.id(index);
                    let fields = opened.files.tree().directory().fields().len().max(1);
                    let files = (0..fields).map(|field| File { id, field: field as u16 });
                    files.map(|file| self.hold(&opened.files, opened, batch, index, file)).collect()
                })
            });
            begun
                .inspect_err(|error| {
                    let prefix = self.prefix().escape_ascii();
                    own::say(&format!("{prefix}: nothing is read ahead: {}", error.report()));
                })
                .ok()
        });
        let held = ahead.as_ref()?.take(file.id)?;
        let waiting = held.get(usize::from(file.field))?;
        let (fd, stat) = waiting.open(flags)?;
        known::note(fd, &stat, self, Node::File(file));
        self.counters.count_read(waiting.len);
        Some((fd, waiting.epoch))
    }

    fn hold(
        &self,
        files: &Files,
        opened: &Opened,
        batch: &dlfs::reader::Batch,
        index: usize,
        file: File,
    ) -> Option<Waiting> {
        let bytes = files.bytes(batch, index, file).ok()?;
        let memory = Memory::new(&self.name_of(opened, Node::File(file)), libc::O_CLOEXEC).ok()?;
        memory.fill(&bytes).ok()?;
        // Above the low numbers that programs use: 2048 and up, or from half of the limit.
        let least = (most_descriptors() / 2).min(MOST_HELD) as c_long;
        // SAFETY: the command touches no memory.
        let fd = called(unsafe {
            libc::syscall(libc::SYS_fcntl, memory.fd(), libc::F_DUPFD_CLOEXEC, least)
        });
        let fd = fd.ok()? as c_int;
        mark_ours(&fd);
        let identity = files::stat_of(fd).map_or((0, 0), |stat| (stat.st_dev, stat.st_ino));
        Some(Waiting { fd, identity, len: bytes.len() as u64, epoch: batch.epoch() })
    }
}

impl Waiting {
    /// A new descriptor for the program, with its own position.
    fn open(&self, flags: c_int) -> Option<(c_int, libc::stat)> {
        let fd = files::open_again(self.fd, libc::O_RDONLY | flags & libc::O_CLOEXEC).ok()?;
        let stat = files::stat_of(fd).filter(|stat| self.is(stat));
        if stat.is_none() {
            files::close(fd); // the program has closed ours and reused its number
        }
        Some((fd, stat?))
    }

    fn is(&self, stat: &libc::stat) -> bool {
        self.identity == (stat.st_dev, stat.st_ino)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if files::stat_of(self.fd).is_some_and(|stat| self.is(&stat)) {
            files::close(self.fd);
        }
    }
}

/// The most samples that wait; also at most a quarter of the limit of descriptors, but at least one batch. A
/// sample takes a descriptor for each of its files.
const MOST_HELD: usize = 2048;
