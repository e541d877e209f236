//! Exports samples as files of a folder or entries of a tar archive.
//!
//! Names come from the image, and an image may be hostile. Nothing is written outside the folder
//! that the user named, nothing that exists is overwritten, and no link is followed. A name that
//! cannot be a plain relative path is refused, or written under an escaped name if the user asks
//! for that; the caller learns which. Read `names.rs` first: it has the rule.
//!
//! It does not copy file attributes: an image has names and bytes, but no times or owners.

mod folder;
mod names;
mod tarball;

pub(crate) use folder::FolderSink;
pub(crate) use names::{check, escape};
pub(crate) use tarball::TarSink;

use crate::exit::Failure;

/// Where samples are written.
pub(crate) trait Sink {
    /// Writes one file of `bytes` under `name`, which has passed [`check`].
    ///
    /// # Errors
    /// After [`SinkError::Conflict`], which concerns only this name, nothing was left behind; after
    /// [`SinkError::Failed`] the export is over.
    fn write(&mut self, name: &[u8], bytes: &[u8]) -> Result<(), SinkError>;

    /// Ends the export: all data has been passed to the operating system.
    fn finish(&mut self) -> Result<(), Failure>;
}

/// Why a file was not written.
#[derive(Debug)]
pub(crate) enum SinkError {
    /// Something else exists where the file or one of its folders should be.
    Conflict(&'static str),
    /// Nothing more can be written.
    Failed(Failure),
}
