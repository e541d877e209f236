//! The files that `dlfs demo` imported, to compare with what comes back.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use dlfs::directory::Directory;
use dlfs::reader::Batch;
use dlfs::units::SampleId;
use dlfs::{Error, ErrorKind};

use crate::exit::about_file;

/// The source of each sample, by id.
pub(crate) struct Source<'a> {
    root: PathBuf,
    directory: &'a Directory,
    /// The bytes themselves, where memory allows: then comparing costs the run next to nothing.
    loaded: Option<Vec<Vec<u8>>>,
}

impl<'a> Source<'a> {
    /// The source below `root` of the samples of `directory`; loaded into memory up to `limit_bytes`.
    ///
    /// `progress` hears of each sample and its bytes, and ends the loading by answering `false`.
    ///
    /// # Errors
    /// The operating system's, with the file.
    pub(crate) fn open(
        root: &Path,
        directory: &'a Directory,
        limit_bytes: u64,
        mut progress: impl FnMut(u64) -> bool,
    ) -> Result<Source<'a>, Error> {
        let mut source = Source { root: root.to_path_buf(), directory, loaded: None };
        let ids = || (0..directory.num_samples()).map(SampleId);
        let total: u64 = ids().filter_map(|id| directory.len_bytes(id)).map(u64::from).sum();
        if total <= limit_bytes {
            let mut loaded = Vec::new();
            for id in ids() {
                let bytes = source.read_file(id)?;
                if !progress(bytes.len() as u64) {
                    return Ok(source);
                }
                loaded.push(bytes);
            }
            source.loaded = Some(loaded);
        }
        Ok(source)
    }

    /// Whether comparing needs no file.
    pub(crate) fn is_loaded(&self) -> bool {
        self.loaded.is_some()
    }

    /// Compares each sample of the batch with its file, byte for byte.
    ///
    /// # Errors
    /// `Corrupt`: one differs. The operating system's, with the file.
    pub(crate) fn compare(&self, batch: &Batch) -> Result<(), Error> {
        for index in 0..batch.len() {
            let id = batch.id(index);
            let equal = match &self.loaded {
                Some(loaded) => loaded[id.0 as usize] == batch.bytes(index),
                None => self.read_file(id)? == batch.bytes(index),
            };
            if !equal {
                let text = "what was read differs from the source file";
                return Err(Error::new(ErrorKind::Corrupt, text).sample(id).path(self.path(id)?));
            }
        }
        Ok(())
    }

    fn read_file(&self, id: SampleId) -> Result<Vec<u8>, Error> {
        let path = self.path(id)?;
        fs::read(&path).map_err(|error| about_file("cannot read the source again", path, error))
    }

    fn path(&self, id: SampleId) -> Result<PathBuf, Error> {
        let name = self.directory.name(id)?.unwrap_or_default();
        Ok(self.root.join(OsStr::from_bytes(&name)))
    }
}
