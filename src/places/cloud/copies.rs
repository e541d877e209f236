//! Temporary copies of files of web servers that do not state lengths or do not send ranges.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use parking_lot::Mutex;

use super::failure::Failure;
use super::range_buf::{Pool, RangeBuf};
use super::wanted::Wanted;
use super::watch::Note;
use super::web::Web;
use crate::{Object, Place};
use dlfs_base::error::Error;
use dlfs_base::nameless_file::nameless_file;

/// Copies of recently read files of a host.
#[derive(Debug, Default)]
pub(super) struct Copies {
    /// The files' addresses and copies, the oldest first.
    kept: Mutex<VecDeque<(Place, Arc<FileCopy>)>>,
    /// Held while a file is copied for a request of a range, so that requests for the same file share one copy. A copy
    /// that is made to find a file's length does not wait for it.
    pub(super) turn: tokio::sync::Mutex<()>,
}

/// A complete copy of a web server's file.
#[derive(Debug)]
pub(super) struct FileCopy {
    /// The copy, a file without a name.
    file: File,
    /// The description of the copied file; its length is that of the copy.
    pub(super) object: Object,
}

impl Copies {
    /// The copy of the file at `place`, if it has the wanted version.
    pub(super) fn of(&self, place: &Place, wanted: &Wanted) -> Option<Arc<FileCopy>> {
        let kept = self.kept.lock();
        let mut copies = kept.iter().filter(|(of, _)| of == place).map(|(_, copy)| copy);
        copies.find(|copy| copy.is_of(wanted)).cloned()
    }

    /// Keeps a copy; replaces an older one of the same file.
    pub(super) fn keep(&self, place: Place, copy: Arc<FileCopy>) {
        let mut kept = self.kept.lock();
        kept.retain(|(of, _)| *of != place);
        kept.push_back((place, copy));
        if kept.len() > MOST_KEPT {
            kept.pop_front();
        }
    }
}

impl FileCopy {
    /// Copies a file of a web server. `silence` limits the time to the response and between two pieces.
    pub(super) async fn from(
        web: &Web,
        key: &str,
        note: &Note,
        silence: Duration,
    ) -> Result<FileCopy, Failure> {
        let late = |_| Failure::late(format!("no more came for {silence:?}"));
        let failed = |error: &object_store::Error| Failure::of(error, note.read());
        let asked = tokio::time::timeout(silence, web.get(key, note)).await.map_err(late)?;
        let (info, body) = asked.map_err(|error| failed(&error))?;
        let folder = std::env::temp_dir();
        let full = |error: std::io::Error| {
            let hint = "the web server sends no ranges of this file, or no length: it is copied to TMPDIR first";
            Failure::Final(Error::from(error).path(&folder).hint(hint))
        };
        let mut file = nameless_file(&folder).map_err(full)?;
        let mut body = body.bytes_stream();
        let mut len_bytes = 0;
        while let Some(piece) = tokio::time::timeout(silence, body.next()).await.map_err(late)? {
            let piece = piece.map_err(|error| {
                failed(&object_store::Error::Generic { store: "web server", source: error.into() })
            })?;
            file.write_all(&piece).map_err(full)?;
            len_bytes += piece.len() as u64;
        }
        match info.len_bytes {
            Some(len) if len != len_bytes => {
                Err(Failure::bad_answer(format!("{len_bytes} of {len} bytes came")))
            }
            _ => {
                let key = key.to_owned();
                let etag = info.etag;
                Ok(FileCopy { file, object: Object { key, len_bytes, etag } })
            }
        }
    }

    /// Returns whether the copied file is of the wanted version.
    fn is_of(&self, wanted: &Wanted) -> bool {
        let Object { len_bytes, etag, .. } = &self.object;
        *len_bytes == wanted.len_bytes && wanted.version.is_of(*len_bytes, etag)
    }

    /// Reads a range of the copy.
    pub(super) fn read(&self, wanted: &Wanted, pool: &Arc<Pool>) -> Result<RangeBuf, Failure> {
        if !self.is_of(wanted) {
            return Err(Failure::changed());
        }
        let len = (wanted.range.end - wanted.range.start) as usize;
        let mut bytes = pool.take(len).map_err(Failure::Final)?;
        let read = self.file.read_exact_at(bytes.room(), wanted.range.start);
        read.map_err(|error| Failure::Final(Error::from(error)))?;
        bytes.advance(len);
        Ok(bytes)
    }
}

/// Maximum copies, to bound file descriptors and space in the temporary folder.
const MOST_KEPT: usize = 16;
