//! The streams of an import, one after the other: pipes, compressed files, or objects of stores.

use std::io::Read;

use super::FoundFile;
use super::objects::ObjectStreams;
use super::spool::{decompressed, open_stream};
use crate::Result;
use crate::places::{Client, Object};

/// Streams, in order.
pub(in crate::import) struct Inputs {
    files: std::vec::IntoIter<FoundFile>,
    objects: Option<ObjectStreams>,
}

impl Inputs {
    /// The streams `files` (`-`: standard input); if `objects` are given, `files` are their addresses.
    pub(in crate::import) fn new(
        files: Vec<FoundFile>,
        objects: Vec<(Client, Vec<Object>)>,
    ) -> Inputs {
        let objects = (!objects.is_empty()).then(|| ObjectStreams::new(objects));
        Inputs { files: files.into_iter(), objects }
    }

    /// The next stream, decompressed; `None` after the last.
    ///
    /// # Errors
    /// It does not open.
    pub(super) fn next(&mut self) -> Result<Option<(FoundFile, Box<dyn Read + Send>)>> {
        let Some(file) = self.files.next() else { return Ok(None) };
        let stream = match &mut self.objects {
            None => open_stream(&file.path)?,
            Some(objects) => {
                let opened = decompressed(objects.next(), &file.path);
                objects.check()?;
                opened?
            }
        };
        Ok(Some((file, stream)))
    }

    /// What ended a stream early, if it was not the stream itself: a store that was away.
    ///
    /// # Errors
    /// The failure.
    pub(super) fn check(&self) -> Result<()> {
        self.objects.as_ref().map_or(Ok(()), ObjectStreams::check)
    }
}
