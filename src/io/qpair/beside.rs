//! A device that appends files to a medium: one namespace whose lower offsets are the medium, and whose higher offsets
//! are files of a folder.
//!
//! A cache tier stores long samples this way, so that a program can open the copy of a sample as a file. The first
//! write creates a file at its full length; the file is sparse until all of it is written. Anyone may remove a file
//! without notice: each I/O checks whether its open file still has a name. Bytes behind the end of a file, up to the
//! next one, read as zeroes and are not written. A flush reaches the medium only: the files hold copies.
//!
//! Helper threads make the blocking system calls, as for a plain folder.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use super::folder::helpers::{Helpers, MAX_THREADS};
use super::readiness::Registry;
use super::{Completion, Device, Io, IoError, IoOp, Namespace, Notice, PairScope, QueuePair};
use dlfs_base::buf::SharedBuf;
use dlfs_base::error::Result;
use dlfs_base::process::mark_ours;
use dlfs_base::units::Lba;

/// A medium with appended files: see the module's page.
pub struct WithFiles {
    medium: Arc<dyn Device>,
    appended: Arc<Appended>,
}

/// An appended file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BesideFile {
    /// The name in the folder.
    pub name: String,
    /// The offset of the first byte in the namespace: a multiple of 4,096.
    pub offset_bytes: u64,
    /// The length in bytes.
    pub len_bytes: u64,
}

/// The appended files, which all queue pairs share.
struct Appended {
    /// The folder of the files.
    folder: PathBuf,
    /// By ascending offset.
    files: Vec<BesideFile>,
    /// True if files may be created and written, as the medium may.
    is_writable: bool,
    /// The length of a block of the namespace, in bytes.
    block_len: u64,
}

impl WithFiles {
    /// Appends `files` of `folder` to `medium`: at least one file, by ascending offset.
    pub fn new(medium: Arc<dyn Device>, folder: PathBuf, files: Vec<BesideFile>) -> WithFiles {
        let namespace = medium.namespace();
        let is_writable = !namespace.read_only;
        let block_len = namespace.block_len_bytes.into();
        let appended = Appended { folder, files, is_writable, block_len };
        WithFiles { medium, appended: Arc::new(appended) }
    }

    /// The namespace with the appended files, if `medium` is the namespace of the medium.
    fn extend(&self, medium: Namespace) -> Namespace {
        let end = self.appended.files.last().map_or(0, BesideFile::end_bytes);
        Namespace { num_blocks: medium.num_blocks.max(end / self.appended.block_len), ..medium }
    }
}

impl BesideFile {
    /// The offset in the namespace of the end of the file's last page.
    fn end_bytes(&self) -> u64 {
        self.offset_bytes + self.len_bytes.next_multiple_of(ALIGN)
    }
}

impl Device for WithFiles {
    fn below(&self) -> Option<&dyn Device> {
        Some(&*self.medium)
    }

    fn namespace(&self) -> Namespace {
        self.extend(self.medium.namespace())
    }

    fn queue_pair_in(&self, scope: &PairScope) -> Result<Box<dyn QueuePair>> {
        let medium = self.medium.queue_pair_in(scope)?;
        let first = self.appended.files.first().map_or(0, |file| file.offset_bytes);
        Ok(Box::new(BesidePair {
            namespace: self.extend(medium.namespace().clone()),
            medium,
            first_block: first / self.appended.block_len,
            appended: Arc::clone(&self.appended),
            helpers: None,
            registry: None,
            num_helped: 0,
            refused: VecDeque::new(),
            scratch: VecDeque::new(),
        }))
    }
}

/// A queue pair of the medium, with threads that run the I/Os on files.
struct BesidePair {
    medium: Box<dyn QueuePair>,
    /// The namespace with the appended files.
    namespace: Namespace,
    /// The first block that belongs to a file.
    first_block: u64,
    appended: Arc<Appended>,
    /// Started by the first I/O on a file.
    helpers: Option<Helpers>,
    /// The registry of the poller, for the helpers once they are started.
    registry: Option<Registry>,
    /// I/Os that the helpers have.
    num_helped: usize,
    /// Completions of I/Os on files that no helper runs.
    refused: VecDeque<Completion>,
    /// Empty between calls; kept for its memory.
    scratch: VecDeque<Io>,
}

impl BesidePair {
    /// Returns whether `io` is for a file.
    fn is_beside(&self, io: &Io) -> bool {
        io.op != IoOp::Flush && io.slba.0 >= self.first_block
    }

    /// Gives an I/O on a file to the helpers, or refuses it.
    fn run_beside(&mut self, io: Io) {
        let checked = self.namespace.check(&io);
        if self.helpers.is_none() {
            self.helpers = self.start_helpers().ok(); // without helpers, the I/O fails with EAGAIN
        }
        match (checked, &self.helpers) {
            (Ok(()), Some(helpers)) => {
                helpers.submit(std::iter::once(io));
                self.num_helped += 1;
            }
            (Ok(()), None) => self.refused.push_back(io.end(Err(IoError::Os(libc::EAGAIN)))),
            (Err(error), _) => self.refused.push_back(io.end(Err(error))),
        }
    }

    fn start_helpers(&self) -> Result<Helpers> {
        let open = OpenFiles { appended: Arc::clone(&self.appended), recent: Mutex::default() };
        let mut helpers = Helpers::start(Box::new(move |io| open.run(io)), MAX_THREADS)?;
        self.registry.iter().for_each(|registry| helpers.register(registry));
        Ok(helpers)
    }
}

impl QueuePair for BesidePair {
    /// A fence applies to the medium only: the files hold copies, which need none.
    fn below(&self) -> Option<&dyn QueuePair> {
        Some(&*self.medium)
    }

    fn below_mut(&mut self) -> Option<&mut dyn QueuePair> {
        Some(&mut *self.medium)
    }

    fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    fn submit(&mut self, pending: &mut VecDeque<Io>) -> usize {
        let before = pending.len();
        let depth = usize::from(self.namespace.queue_depth);
        while let Some(io) = pending.front() {
            if !self.is_beside(io) {
                let run = pending.iter().take_while(|io| !self.is_beside(io)).count();
                self.scratch.extend(pending.drain(..run));
                self.medium.submit(&mut self.scratch);
                if !self.scratch.is_empty() {
                    while let Some(io) = self.scratch.pop_back() {
                        pending.push_front(io);
                    }
                    break;
                }
            } else if self.num_helped + self.refused.len() < depth
                && let Some(io) = pending.pop_front()
            {
                self.run_beside(io);
            } else {
                break;
            }
        }
        before - pending.len()
    }

    fn poll(&mut self, now: Instant, max: usize, done: &mut Vec<Completion>) -> usize {
        let mut count = self.medium.poll(now, max, done);
        if let Some(helpers) = &mut self.helpers
            && self.num_helped > 0
        {
            let ended = helpers.poll(now, max - count, done);
            self.num_helped -= ended;
            count += ended;
        }
        let refused = (max - count).min(self.refused.len());
        done.extend(self.refused.drain(..refused));
        count + refused
    }

    fn outstanding(&self) -> usize {
        self.medium.outstanding() + self.num_helped + self.refused.len()
    }

    fn report_corrupt(&mut self, slba: Lba, len_bytes: usize) {
        if slba.0 < self.first_block {
            self.medium.report_corrupt(slba, len_bytes);
        }
    }

    fn borrow(&self, slba: Lba, len_bytes: usize) -> Option<SharedBuf> {
        (slba.0 < self.first_block).then(|| self.medium.borrow(slba, len_bytes))?
    }

    fn has_copies(&self, slba: Lba, len_bytes: usize) -> bool {
        slba.0 < self.first_block && self.medium.has_copies(slba, len_bytes)
    }

    fn register(&mut self, registry: &Registry) {
        self.medium.register(registry);
        self.helpers.iter_mut().for_each(|helpers| helpers.register(registry));
        self.registry = Some(registry.clone());
    }

    fn notice(&self) -> Notice {
        if !self.refused.is_empty() {
            return Notice::Poll;
        }
        match (self.num_helped, self.medium.outstanding()) {
            (0, _) => self.medium.notice(),
            (_, 0) => Notice::Look, // the helpers' completions are in memory
            _ => self.medium.notice().max(Notice::Look),
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        let of_helpers = self.helpers.as_ref().and_then(Helpers::next_thread_at);
        self.medium.next_timeout().into_iter().chain(of_helpers).min()
    }
}

/// The files that the threads of one queue pair have open.
struct OpenFiles {
    appended: Arc<Appended>,
    /// Open files, each with its index in `appended`; the most recently opened last.
    recent: Mutex<VecDeque<(usize, Arc<File>)>>,
}

impl OpenFiles {
    /// Runs `io`; blocks until the file system has finished.
    fn run(&self, io: &mut Io) -> std::result::Result<(), IoError> {
        let start = io.slba.0 * self.appended.block_len;
        let end = start + io.buf.len() as u64;
        let is_write = io.op == IoOp::Write;
        let files = &self.appended.files;
        let first = files.partition_point(|file| file.end_bytes() <= start);
        // The end of the bytes of the buffer that are done; a read fills those between files with zeroes.
        let mut done = 0;
        for (index, file) in (first..).zip(&files[first..]) {
            if file.offset_bytes >= end {
                break;
            }
            let from = file.offset_bytes.saturating_sub(start) as usize;
            let skip = start.saturating_sub(file.offset_bytes);
            let len = file.len_bytes.saturating_sub(skip).min(end - start - from as u64) as usize;
            let part = &mut io.buf[from..from + len];
            let opened = self.file(index, is_write);
            let moved = opened.and_then(|file| {
                if is_write {
                    file.write_all_at(part, skip)
                } else {
                    file.read_exact_at(part, skip)
                }
            });
            moved.map_err(|error| IoError::Os(error.raw_os_error().unwrap_or(libc::EIO)))?;
            if !is_write {
                io.buf[done..from].fill(0);
            }
            done = from + len;
        }
        if !is_write {
            io.buf[done..].fill(0);
        }
        Ok(())
    }

    /// The open file at this index. Opens it again if its name was removed. With `may_create`, if the medium is
    /// writable, creates a file that does not exist.
    fn file(&self, index: usize, may_create: bool) -> std::io::Result<Arc<File>> {
        let known = self.recent.lock().iter().find(|(known, _)| *known == index).cloned();
        if let Some((_, file)) = known
            && file.metadata()?.nlink() > 0
        {
            return Ok(file);
        }
        let Appended { folder, files, is_writable, .. } = &*self.appended;
        let listed = &files[index];
        let creates = may_create && *is_writable;
        let file = OpenOptions::new()
            .read(true)
            .write(*is_writable)
            .create(creates)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(folder.join(&listed.name))?;
        if creates && file.metadata()?.len() != listed.len_bytes {
            file.set_len(listed.len_bytes)?;
        }
        mark_ours(&file);
        let file = Arc::new(file);
        let mut recent = self.recent.lock();
        recent.retain(|(known, _)| *known != index);
        if recent.len() == MAX_OPEN {
            recent.pop_front();
        }
        recent.push_back((index, Arc::clone(&file)));
        Ok(file)
    }
}

/// Files begin at multiples of this number of bytes.
const ALIGN: u64 = dlfs_base::units::ALIGN_BYTES as u64;

/// The most files that a queue pair keeps open.
const MAX_OPEN: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qpair::blocking::Blocking;
    use crate::qpair::mem::MemNamespace;

    fn with_files(folder: &std::path::Path) -> WithFiles {
        let medium = Arc::new(MemNamespace::new(64 << 10, 4096).unwrap());
        let file = |name: &str, offset_bytes, len_bytes| BesideFile {
            name: name.to_owned(),
            offset_bytes,
            len_bytes,
        };
        let files = vec![file("a", 1 << 20, 5000), file("b", (1 << 20) + 8192, 4096)];
        WithFiles::new(medium, folder.to_owned(), files)
    }

    #[test]
    fn what_is_written_behind_the_medium_is_in_files_of_exactly_their_length() {
        let folder = tempfile::tempdir().unwrap();
        let device = with_files(folder.path());
        let mut io = Blocking::new(device.queue_pair().unwrap()).unwrap();
        assert!(io.read(1 << 20, 4096).is_err(), "a file that was never written");
        io.write_at(4096, &[1; 4096]).unwrap();
        let bytes: Vec<u8> = (0..12288_u32).map(|at| (at / 100) as u8 + 1).collect();
        io.write_at(1 << 20, &bytes).unwrap();
        let on_disk = |name: &str| std::fs::read(folder.path().join(name)).unwrap();
        assert!(on_disk("a") == bytes[..5000] && on_disk("b") == bytes[8192..]);
        let read = io.read(1 << 20, 12288).unwrap();
        assert!(read[..5000] == bytes[..5000] && read[8192..] == bytes[8192..]);
        assert!(read[5000..8192].iter().all(|&byte| byte == 0), "behind the end of the first");
        assert!(io.read(4096, 4096).unwrap().iter().all(|&byte| byte == 1));
        let end = device.namespace().len_bytes();
        assert_eq!(end, (1 << 20) + 12288);
        assert!(io.read(end, 4096).is_err() && io.read(512 << 10, 4096).is_err());
    }

    #[test]
    fn a_file_that_is_removed_is_not_there_and_is_made_anew() {
        let folder = tempfile::tempdir().unwrap();
        let device = with_files(folder.path());
        let mut io = Blocking::new(device.queue_pair().unwrap()).unwrap();
        io.write_at(1 << 20, &[7; 8192]).unwrap();
        let path = folder.path().join("a");
        let held = File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(io.read(1 << 20, 4096).is_err());
        io.write_at((1 << 20) + 4096, &[9; 4096]).unwrap();
        let read = io.read(1 << 20, 8192).unwrap();
        assert!(read[..4096].iter().all(|&byte| byte == 0) && read[4096] == 9);
        let mut old = [0; 5000];
        held.read_exact_at(&mut old, 0).unwrap();
        assert_eq!(old, [7; 5000], "who has it open keeps its bytes");
    }
}
