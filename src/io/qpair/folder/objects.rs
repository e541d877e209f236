//! Reads the objects of a store for the threads of a queue pair. One I/O requests all its byte ranges at once.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::Path;

use super::listing::FolderFile;
use crate::qpair::IoError;
use dlfs_base::error::{Error, ErrorKind, Result};
use dlfs_base::process::Forked;
use dlfs_places::{Client, Pending, Place, PlaceOptions};

/// The store of a folder of objects.
pub(super) struct Store {
    place: Place,
    options: PlaceOptions,
    /// The prefix of all files' keys.
    prefix: String,
    /// A forked child has none of the client's threads, so it creates its own client.
    client: Forked<Client>,
}

impl Store {
    pub(super) fn new(client: Client, prefix: String, options: &PlaceOptions) -> Store {
        let place = client.place().clone();
        let options = options.clone();
        Store { place, options, prefix, client: Forked::new(client) }
    }

    /// Requests all bytes of `files` in the range `wanted`. Returns a pending read for each file in the range
    /// that is not empty, in order.
    pub(super) fn ask(
        &self,
        files: &[FolderFile],
        wanted: Range<u64>,
    ) -> Result<VecDeque<Pending>, IoError> {
        let client = self.client.get_or_try_init(|| Client::open(&self.place, &self.options));
        let client = client.map_err(|error| IoError::Disconnected(error.report()))?;
        let first =
            files.partition_point(|file| file.offset_bytes + file.len_bytes <= wanted.start);
        let inside = files[first..].iter().take_while(|file| file.offset_bytes < wanted.end);
        let ask = |file: &FolderFile| {
            let key = format!("{}{}", self.prefix, String::from_utf8_lossy(&file.name));
            let skip = wanted.start.saturating_sub(file.offset_bytes);
            let end = file.len_bytes.min(wanted.end - file.offset_bytes);
            client.fetch_stamped(&key, file.len_bytes, file.stamp.object_stamp(), skip..end)
        };
        Ok(inside.filter(|file| file.len_bytes > 0).map(ask).collect())
    }
}

/// The error of an I/O for the file shown as `name`.
pub(super) fn io_error(error: &Error, name: &Path) -> IoError {
    match error.kind() {
        ErrorKind::BadSource | ErrorKind::NotFound => IoError::Changed(name.display().to_string()),
        ErrorKind::Refused => IoError::Os(libc::EACCES),
        ErrorKind::TimedOut => IoError::Os(libc::ETIMEDOUT),
        ErrorKind::OutOfMemory => IoError::Os(libc::ENOMEM),
        _ => IoError::Disconnected(error.report()),
    }
}
