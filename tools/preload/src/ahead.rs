//! Files that are read ahead along the order that the program reads in (`;order=`, `DLFS_ORDER`), each in a memfd.

use std::ffi::c_int;
use std::sync::Arc;

use dlfs::Error;
use dlfs::dataset::{Ahead, OrderFile};
use dlfs::posix::{File, Node};
use dlfs::process::mark_ours;
use dlfs::units::Epoch;

use crate::files::note_node;
use crate::memfd::{Kept, Memory};
use crate::mounts::{Mount, Opened};
use crate::syscalls::{self, most_descriptors, write_at};

/// Readahead of samples, each as the memfds of its files.
pub(crate) type FilesAhead = Ahead<Arc<[FileAhead]>>;

/// A file that was read ahead.
pub(crate) struct FileAhead {
    /// The memfd with the content.
    memory: Kept,
    /// Length of the file in bytes.
    len: u64,
    /// Epoch of the file in the order.
    epoch: Epoch,
}

impl Mount {
    /// A new descriptor of a file, if it was read ahead. Counts the file as opened and read. The first call starts
    /// readahead.
    pub(crate) fn read_ahead(
        &'static self,
        opened: &'static Opened,
        file: File,
        flags: c_int,
    ) -> Option<c_int> {
        let order = self.setting.order.as_ref()?;
        let ahead = opened.ahead.get_or_init(|| {
            let order = OrderFile::load(order);
            let begun = order.and_then(|order| {
                let fields = opened.files.tree().directory().fields().len().max(1);
                let most = (most_descriptors() / 4 / fields).min(MOST_SAMPLES);
                Ahead::start(opened.files.dataset(), &order, most, move |batch, index| {
                    let id = batch.id(index);
                    let files = (0..fields).map(|field| File { id, field: field as u16 });
                    files.map(|file| self.read_file(opened, batch, index, file)).collect()
                })
            });
            let say =
                |error: &Error| self.say(&format!("nothing is read ahead: {}", error.report()));
            begun.inspect_err(say).ok()
        });
        let sample = ahead.as_ref()?.take(file.id)?;
        let file_ahead = sample.get(usize::from(file.field))?;
        let (fd, stat) = file_ahead.open(flags)?;
        note_node(fd, &stat, self, Node::File(file));
        opened.files.opened(file, Some(file_ahead.epoch));
        opened.files.counters().read(file_ahead.len);
        Some(fd)
    }

    /// Copies a file of the sample `index` of a batch into a memfd; `None`: that fails.
    fn read_file(
        &self,
        opened: &Opened,
        batch: &dlfs::reader::Batch,
        index: usize,
        file: File,
    ) -> Option<FileAhead> {
        let bytes = opened.files.bytes(batch, index, file).ok()?;
        let memory = Memory::new(&self.name_of(opened, Node::File(file)), libc::O_CLOEXEC).ok()?;
        write_at(memory.0, &bytes, 0).and_then(|()| memory.seal()).ok()?;
        let memory = Kept::new(memory.0, LEAST_DESCRIPTOR)?;
        mark_ours(&memory.fd);
        Some(FileAhead { memory, len: bytes.len() as u64, epoch: batch.epoch() })
    }
}

impl FileAhead {
    /// A new descriptor for the program, with a separate position.
    fn open(&self, flags: c_int) -> Option<(c_int, libc::stat)> {
        let Kept { fd, identity } = self.memory;
        let fd = syscalls::open_again(fd, libc::O_RDONLY | flags & libc::O_CLOEXEC).ok()?;
        let stat = syscalls::stat_of(fd).filter(|stat| syscalls::identity_of(stat) == identity);
        if stat.is_none() {
            syscalls::close(fd); // the program has closed the library's descriptor, and its number was reused
        }
        Some((fd, stat?))
    }
}

/// Maximum samples that are read ahead, at least one batch. Each of their files takes a descriptor, and together these
/// are at most a quarter of the limit, unless one batch has more.
const MOST_SAMPLES: usize = 2048;
/// The memfds have numbers from this on, above those that programs use.
const LEAST_DESCRIPTOR: usize = 2048;
