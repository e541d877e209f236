//! Reads a folder's bytes: opens files, reads them and compares them with the listing.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;

use super::listing::Stamp;
use super::{Folder, objects};
use crate::qpair::{Io, IoError, IoOp, Namespace};
use dlfs_base::process::mark_ours;
use dlfs_places::Pending;

/// An open file that its owner lends: [`FolderNamespace::lend`](super::FolderNamespace::lend).
pub trait LentFile: Send + Sync {
    /// Calls `work` with the file, unless the owner has closed it. The owner may have replaced the file, so
    /// `work` must check it.
    fn with(&self, work: &mut dyn FnMut(&File));
}

/// The files of a folder for one queue pair, used by all of its threads.
pub(super) struct Files {
    folder: Arc<Folder>,
    namespace: Namespace,
    /// Open files that were not read to their end, each with its index; the most recently used last.
    open: Mutex<VecDeque<(usize, Arc<File>)>>,
}

impl Files {
    pub(super) fn new(folder: Arc<Folder>, namespace: Namespace) -> Files {
        Files { folder, namespace, open: Mutex::default() }
    }

    /// Runs `io`; blocks until the file system has finished.
    pub(super) fn run(&self, io: &mut Io) -> Result<(), IoError> {
        self.namespace.check(io)?;
        if io.op != IoOp::Read {
            return Ok(());
        }
        let start = io.slba.0 * u64::from(self.namespace.block_len_bytes);
        let end = start + io.buf.len() as u64;
        let files = &self.folder.listing.files;
        let mut asked = match &self.folder.store {
            Some(store) => store.ask(files, start..end)?,
            None => VecDeque::new(),
        };
        let first = files.partition_point(|file| file.offset_bytes + file.len_bytes <= start);
        let mut done = 0;
        for (index, file) in (first..).zip(&files[first..]) {
            if file.offset_bytes >= end {
                break;
            }
            if file.len_bytes == 0 {
                continue;
            }
            let from = file.offset_bytes.saturating_sub(start) as usize;
            let skip = start.saturating_sub(file.offset_bytes);
            let len = (file.len_bytes - skip).min(end - start - from as u64) as usize;
            io.buf[done..from].fill(0);
            let into = &mut io.buf[from..from + len];
            match asked.pop_front() {
                Some(pending) => self.take(index, pending, into)?,
                None => self.read(index, skip, into)?,
            }
            done = from + len;
        }
        io.buf[done..].fill(0);
        Ok(())
    }

    /// Waits for the requested bytes of one object.
    fn take(&self, index: usize, pending: Pending, into: &mut [u8]) -> Result<(), IoError> {
        self.folder.counters.reads.fetch_add(1, Ordering::Relaxed);
        let name = || self.folder.path_of(index);
        pending.read_into(into).map_err(|error| objects::io_error(&error, &name()))?;
        self.folder.counters.bytes.fetch_add(into.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Reads bytes of one file, which must match the listing after the read.
    fn read(&self, index: usize, skip: u64, bytes: &mut [u8]) -> Result<(), IoError> {
        if let Some(lent) = self.folder.lent(index) {
            let mut result = Err(IoError::Os(libc::EBADF));
            lent.with(&mut |file| result = self.read_from(file, index, skip, bytes));
            if result.is_ok() {
                return Ok(());
            }
            self.folder.give_back(index); // its owner may have closed it
        }
        let file = self.file(index)?;
        self.read_from(&file, index, skip, bytes)?;
        let len = self.folder.listing.files[index].len_bytes;
        let whole = skip == 0 && bytes.len() as u64 == len;
        if !whole {
            let is_at_end = skip + (bytes.len() as u64) == len;
            self.keep(index, (!is_at_end).then_some(file));
        }
        Ok(())
    }

    fn read_from(
        &self,
        file: &File,
        index: usize,
        skip: u64,
        bytes: &mut [u8],
    ) -> Result<(), IoError> {
        let listed = &self.folder.listing.files[index];
        let result = file.read_exact_at(bytes, skip);
        self.folder.counters.reads.fetch_add(1, Ordering::Relaxed);
        let same = file.metadata().is_ok_and(|metadata| Stamp::of(&metadata) == listed.stamp);
        match result {
            Ok(()) if same => {}
            Err(error) if same => return Err(os_error(&error)),
            _ => return Err(changed(&self.folder.path_of(index))),
        }
        self.folder.counters.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn file(&self, index: usize) -> Result<Arc<File>, IoError> {
        if let Some((_, file)) = self.open.lock().iter().find(|(open, _)| *open == index) {
            return Ok(Arc::clone(file));
        }
        let path = self.folder.path_of(index);
        self.folder.counters.opens.fetch_add(1, Ordering::Relaxed);
        let file = open(&path).map_err(|error| match error.raw_os_error() {
            // The listed file is gone, or something else has taken its place.
            Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP | libc::ENXIO | libc::ENODEV) => {
                changed(&path)
            }
            _ => os_error(&error),
        })?;
        mark_ours(&file);
        Ok(Arc::new(file))
    }

    /// Keeps a file open as the most recently used, or closes it.
    fn keep(&self, index: usize, file: Option<Arc<File>>) {
        let mut open = self.open.lock();
        open.retain(|(other, _)| *other != index);
        let Some(file) = file else { return };
        if open.len() == MAX_OPEN {
            open.pop_front();
        }
        open.push_back((index, file));
    }
}

/// Opens a file. If a FIFO has replaced the file, this does not block, and the stamp differs.
pub(super) fn open(path: &Path) -> std::io::Result<File> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        // Another process has a lease on the file; a blocking open breaks the lease.
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => File::open(path),
        opened => opened,
    }
}

fn changed(path: &Path) -> IoError {
    IoError::Changed(path.display().to_string())
}

fn os_error(error: &std::io::Error) -> IoError {
    IoError::Os(error.raw_os_error().unwrap_or(libc::EIO))
}

/// The most files that a queue pair keeps open because it has not read them to their end.
const MAX_OPEN: usize = 16;
