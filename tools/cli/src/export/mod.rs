//! Exports samples as files of a folder or entries of a tar archive.
//!
//! Names come from the image, and an image may be hostile. Nothing is written outside the folder that the
//! user named, nothing that exists is overwritten, and no link is followed. A name that is not a plain
//! relative path is refused, or escaped if the user asks for it; the caller learns which names these are.
//! Read `names.rs` first: it has the rule.
//!
//! File attributes are not exported: an image has names and bytes, but no times or owners.

mod folder;
mod names;
mod table;
mod tarball;

pub(crate) use folder::FolderSink;
pub(crate) use names::{check, escape};
pub(crate) use table::write_table;
pub(crate) use tarball::TarSink;

use std::borrow::Cow;

use dlfs::units::SampleId;

use crate::exit::Failure;

/// A destination of samples.
pub(crate) trait Sink {
    /// Writes one file of `bytes` under `name`, which has passed [`check`].
    ///
    /// # Errors
    /// After [`SinkError::Conflict`], which concerns only this name, nothing is left behind; after
    /// [`SinkError::Failed`] the export is over.
    fn write(&mut self, name: &[u8], bytes: &[u8]) -> Result<(), SinkError>;

    /// Writes several files, each as [`Sink::write`]; returns their results in order, up to and including the
    /// first [`SinkError::Failed`].
    fn write_all(&mut self, files: &[NewFile<'_>]) -> Vec<Result<(), SinkError>> {
        let mut results = Vec::with_capacity(files.len());
        for file in files {
            results.push(self.write(file.path(), &file.bytes));
            if matches!(results.last(), Some(Err(SinkError::Failed(_)))) {
                break;
            }
        }
        results
    }

    /// Ends the export; all data has then been passed to the operating system.
    fn finish(&mut self) -> Result<(), Failure>;
}

/// A file to write.
#[derive(Debug)]
pub(crate) struct NewFile<'a> {
    pub(crate) sample: SampleId,
    /// The file's name in the image.
    pub(crate) name: Vec<u8>,
    /// The escaped name to use instead, if [`check`] refuses the name.
    pub(crate) escaped: Option<Vec<u8>>,
    pub(crate) bytes: Cow<'a, [u8]>,
}

impl NewFile<'_> {
    /// The file's path below the destination.
    pub(crate) fn path(&self) -> &[u8] {
        self.escaped.as_ref().unwrap_or(&self.name)
    }
}

/// The reason why a file was not written.
#[derive(Debug)]
pub(crate) enum SinkError {
    /// Something is in the way of the file or of one of its folders, or the file system refuses the name.
    Conflict(&'static str),
    /// No further file can be written.
    Failed(Failure),
}
