//! The source files of `dlfs demo`, to compare with the samples.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use dlfs::directory::Directory;
use dlfs::reader::Batch;
use dlfs::units::SampleId;
use dlfs::{Error, ErrorKind};

use crate::exit::about_file;

/// The source file of each sample, by id.
pub(crate) struct Source<'a> {
    root: PathBuf,
    directory: &'a Directory,
}

impl<'a> Source<'a> {
    /// The source files of `directory`'s samples, below `root`.
    pub(crate) fn new(root: &Path, directory: &'a Directory) -> Source<'a> {
        Source { root: root.to_path_buf(), directory }
    }

    /// Compares each sample of the batch with its file, byte for byte.
    ///
    /// # Errors
    /// `Corrupt`: a sample differs from its file. Errors of the operating system, with the file.
    pub(crate) fn compare(&self, batch: &Batch) -> Result<(), Error> {
        for index in 0..batch.len() {
            let id = batch.id(index);
            let path = self.path(id)?;
            let file = fs::read(&path);
            let file =
                file.map_err(|error| about_file("cannot read the source again", &path, error))?;
            if file != batch.bytes(index) {
                let text = "what was read differs from the source file";
                return Err(Error::new(ErrorKind::Corrupt, text).sample(id).path(path));
            }
        }
        Ok(())
    }

    /// The file of each sample, by id.
    ///
    /// # Errors
    /// `Corrupt`: a name cannot be decoded.
    pub(crate) fn paths(&self) -> Result<Vec<PathBuf>, Error> {
        (0..self.directory.num_samples()).map(|id| self.path(SampleId(id))).collect()
    }

    /// Drops the files from the page cache; `false` if they are on an in-memory file system. Dirty pages
    /// stay: writing them out would wait for all other writers.
    ///
    /// # Errors
    /// Errors of the operating system, with the file.
    pub(crate) fn drop_pages(&self) -> Result<bool, Error> {
        for id in (0..self.directory.num_samples()).map(SampleId) {
            if !drop_pages_of(&self.path(id)?)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn path(&self, id: SampleId) -> Result<PathBuf, Error> {
        let name = self.directory.name(id)?.unwrap_or_default();
        Ok(self.root.join(OsStr::from_bytes(&name)))
    }
}

/// Drops a file from the page cache; `false` if it is on an in-memory file system.
///
/// # Errors
/// Errors of the operating system, with the file.
pub(crate) fn drop_pages_of(path: &Path) -> Result<bool, Error> {
    let failed = |error: rustix::io::Errno| {
        about_file("cannot drop the pages of", path, std::io::Error::from(error))
    };
    let file = File::open(path).map_err(|error| about_file("cannot open", path, error))?;
    if IN_MEMORY.contains(&rustix::fs::fstatfs(&file).map_err(failed)?.f_type) {
        return Ok(false);
    }
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).map_err(failed)?;
    Ok(true)
}

/// The magic numbers of tmpfs and ramfs in statfs(2).
const IN_MEMORY: [rustix::fs::FsWord; 2] = [0x0102_1994, 0x8584_58f6];
