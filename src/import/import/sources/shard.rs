//! Opens shard files, and reads them: sequentially with a small buffer, or at known offsets.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, IoSliceMut, Read};
use std::ops::{Deref, Range};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use super::bad::BadReason;
use super::index::{Container, Payload};
use super::stamp;
use dlfs_base::{Error, ErrorKind, Result};

/// Opens the shard at `path`, a regular file.
///
/// # Errors
/// The shard does not open, or is not a regular file.
pub(crate) fn open(path: &Path) -> Result<(Arc<File>, Container)> {
    opened(path)
        .map_err(|errno| Error::from(io::Error::from(errno)).path(path))?
        .ok_or_else(|| Error::new(ErrorKind::BadSource, "a shard must be a file").path(path))
}

/// As [`open`]; `None`: the shard is not a regular file.
fn opened(path: &Path) -> Result<Option<(Arc<File>, Container)>, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let fd = rustix::fs::open(path, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&fd)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Ok(None);
    }
    let len_bytes = stat.st_size as u64;
    let container = Container { path: path.to_path_buf(), stamp: stamp(&stat), len_bytes };
    Ok(Some((Arc::new(File::from(fd)), container)))
}

/// Sequential reader of a shard, or of a part of it.
pub(crate) type FrontToBack = BufReader<FileAt<Arc<File>>>;

/// Reads the byte range `bytes` of `file`. The range ends, at the latest, at the shard's length when it was opened:
/// bytes appended later are not part of it.
pub(crate) fn front_to_back(file: Arc<File>, bytes: Range<u64>) -> FrontToBack {
    let Range { start: offset, end } = bytes;
    BufReader::with_capacity(BUFFER_BYTES, FileAt { file, offset, end })
}

/// The input of an archive.
pub(crate) trait Input: Read + Sized {
    /// Skips `bytes` bytes; may end up past the end.
    fn skip(&mut self, bytes: u64) -> io::Result<()> {
        io::copy(&mut self.by_ref().take(bytes), &mut io::sink()).map(drop)
    }

    /// The offset at which the input ends, in the file or stream, if it is known.
    fn end(&self) -> Option<u64> {
        None
    }
}

impl Input for Box<dyn Read + Send + '_> {}

impl<R: Read> Input for io::Take<R> {}

impl Input for FrontToBack {
    fn skip(&mut self, bytes: u64) -> io::Result<()> {
        let buffered = bytes.min(self.buffer().len() as u64);
        self.consume(buffered as usize);
        // If more bytes are skipped than were buffered, the buffer is empty now.
        let file = self.get_mut();
        file.offset = file.offset.saturating_add(bytes - buffered);
        Ok(())
    }

    fn end(&self) -> Option<u64> {
        Some(self.get_ref().end)
    }
}

/// The open shards of one thread, limited in number.
#[derive(Debug, Default)]
pub(crate) struct OpenShards {
    /// Files without a path, which cannot be opened again, with their numbers.
    nameless: Vec<(u32, Arc<File>)>,
    /// At most [`MAX_OPEN`] files that were opened here, with their numbers.
    open: Vec<(u32, Arc<File>)>,
    /// Index in `open` of the file to replace next.
    next_out: usize,
}

impl OpenShards {
    /// No open shards but those in `nameless`, which have no path; others are opened on first use.
    pub(crate) fn new(nameless: &[Option<Arc<File>>]) -> OpenShards {
        let files = (0..).zip(nameless).filter_map(|(number, file)| Some((number, file.clone()?)));
        OpenShards { nameless: files.collect(), open: Vec::new(), next_out: 0 }
    }

    /// Fills `into` from byte `at` of a payload.
    ///
    /// # Errors
    /// `Changed`: the shard differs from its state when indexed. `Unreadable`: it cannot be opened or read.
    pub(crate) fn read(
        &mut self,
        containers: &[Container],
        payload: &Payload,
        at: u64,
        into: &mut [u8],
    ) -> Result<(), BadReason> {
        let file = self.file(containers, payload.container)?;
        file.read_exact_at(into, payload.offset_or_stamp + at).map_err(reason)
    }

    /// Fills `into` with a payload, and `behind` with the bytes after it, in one system call.
    ///
    /// # Errors
    /// As [`OpenShards::read`].
    pub(crate) fn read_two(
        &mut self,
        containers: &[Container],
        payload: &Payload,
        into: &mut [u8],
        behind: &mut [u8],
    ) -> Result<(), BadReason> {
        let file = self.file(containers, payload.container)?;
        let offset = payload.offset_or_stamp;
        let mut both = [IoSliceMut::new(into), IoSliceMut::new(behind)];
        let read = rustix::io::retry_on_intr(|| rustix::io::preadv(&file, &mut both, offset))?;
        // Linux reads at most 2 GiB at once, and a signal may end a read early: read the rest.
        let in_into = read.min(into.len());
        let in_behind = read.saturating_sub(into.len());
        let end = offset + into.len() as u64;
        file.read_exact_at(&mut into[in_into..], offset + in_into as u64).map_err(reason)?;
        file.read_exact_at(&mut behind[in_behind..], end + in_behind as u64).map_err(reason)
    }

    /// The shard with this number, opened if need be.
    ///
    /// # Errors
    /// As [`OpenShards::read`].
    fn file(&mut self, containers: &[Container], number: u32) -> Result<Arc<File>, BadReason> {
        let mut files = self.nameless.iter().chain(&self.open);
        if let Some((_, file)) = files.find(|(open, _)| *open == number) {
            return Ok(file.clone());
        }
        let container = &containers[number as usize];
        let found = opened(&container.path).map_err(|errno| match errno {
            Errno::NOENT | Errno::NOTDIR => BadReason::Changed,
            errno => errno.into(),
        })?;
        let (file, _) = found.filter(|(_, now)| now == container).ok_or(BadReason::Changed)?;
        if self.open.len() < MAX_OPEN {
            self.open.push((number, file.clone()));
        } else {
            self.open[self.next_out] = (number, file.clone());
            self.next_out = (self.next_out + 1) % MAX_OPEN;
        }
        Ok(file)
    }
}

/// The reason why indexed bytes cannot be read. A file that is shorter now has changed.
pub(super) fn reason(error: io::Error) -> BadReason {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => BadReason::Changed,
        _ => error.into(),
    }
}

/// Reads until `into` is full or the input ends; returns the number of bytes.
///
/// # Errors
/// Reading failed; bytes read before are lost.
pub(crate) fn read_some(from: &mut dyn Read, into: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < into.len() {
        match from.read(&mut into[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Sequential reader of a file with a separate offset: the offset of the open file does not change.
#[derive(Debug)]
pub(crate) struct FileAt<F> {
    /// The file.
    pub file: F,
    /// Offset of the next bytes.
    pub offset: u64,
    /// Offset at which reading ends.
    pub end: u64,
}

impl<F> FileAt<F> {
    /// The bytes of `file` from `offset` on.
    pub(crate) fn from(file: F, offset: u64) -> FileAt<F> {
        FileAt { file, offset, end: u64::MAX }
    }
}

impl<F: Deref<Target = File>> Read for FileAt<F> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let most = self.end.saturating_sub(self.offset).min(into.len() as u64) as usize;
        let read = self.file.read_at(&mut into[..most], self.offset)?;
        self.offset += read as u64;
        Ok(read)
    }
}

/// Small, since headers are read through the buffer, and payloads are skipped.
const BUFFER_BYTES: usize = 16 * 1024;
/// Low enough for several threads under the usual limit of 1,024 descriptors.
const MAX_OPEN: usize = 64;
