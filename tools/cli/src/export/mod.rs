//! Writing samples out again, as files of a folder or entries of a tar.
//!
//! Names come from the image, and an image may be hostile: nothing written here leaves the folder
//! that the user named, nothing that exists is written over, and no link is followed. A name that
//! cannot be a plain relative path is refused, or written under an escaped name when the user asks
//! for that; either way the caller learns which. Read `names.rs` first: it is the rule.
//!
//! What it is not: a copy of file attributes. An image keeps names and bytes, no times or owners.

mod folder;
mod names;
mod tarball;

pub(crate) use folder::FolderSink;
pub(crate) use names::{check, escape};
pub(crate) use tarball::TarSink;

use crate::exit::Failure;

/// Where samples are written to.
pub(crate) trait Sink {
    /// Writes one file of `bytes` under `name`, which has passed [`check`].
    ///
    /// # Errors
    /// [`SinkError::Conflict`] concerns this name alone and left nothing behind; after
    /// [`SinkError::Failed`] the export is over.
    fn write(&mut self, name: &[u8], bytes: &[u8]) -> Result<(), SinkError>;

    /// Ends the export: after this all of it is with the operating system.
    fn finish(&mut self) -> Result<(), Failure>;
}

/// Why a file was not written.
#[derive(Debug)]
pub(crate) enum SinkError {
    /// Something else is where the file or one of its folders should be.
    Conflict(&'static str),
    /// Nothing more can be written.
    Failed(Failure),
}
