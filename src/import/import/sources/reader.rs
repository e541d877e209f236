//! Reads the payloads of an indexed source, and checks that they match the index.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use super::bad::BadReason;
use super::index::Payload;
use super::shard::{self, OpenShards};
use super::source_kind::SourceKind;
use super::{OpenContainers, Source, objects, stamp, tfrecord};
use dlfs_base::checksum::{crc32c, crc32c_append};
use dlfs_base::{Error, Result};
use dlfs_places::Pending;

/// Reads payloads for one thread.
#[derive(Debug)]
pub struct SourceReader<'a> {
    source: &'a Source,
    open: OpenShards,
    /// Outstanding requests of payloads that are objects, by row.
    asked: HashMap<u64, Pending>,
    /// The first failure of a store since [`take_failure`](Self::take_failure).
    failure: Option<Error>,
}

impl SourceReader<'_> {
    pub(super) fn new(source: &Source, open: OpenShards) -> SourceReader<'_> {
        SourceReader { source, open, asked: HashMap::new(), failure: None }
    }

    /// Prepares to read the payloads of `rows` soon: requests payloads that are objects of stores concurrently.
    pub(crate) fn ask_ahead(&mut self, rows: impl Iterator<Item = u64>) {
        let Source { index, containers: OpenContainers::Objects(roots), .. } = self.source else {
            return;
        };
        self.asked.clear(); // requests of an abandoned chunk
        for row in rows {
            for payload in index.payloads(row) {
                let root = &roots[payload.container as usize];
                let all = 0..payload.len_bytes.into();
                self.asked.insert(row, root.fetch(index.name(row), &payload, all));
            }
        }
    }

    /// The failure of a store, if it was the reason why payloads could not be read.
    pub(crate) fn take_failure(&mut self) -> Option<Error> {
        self.failure.take()
    }

    /// Reads a payload of `row` into `into`, which has the payload's length.
    ///
    /// # Errors
    /// The reason why the entry cannot be imported; `into` may be overwritten then.
    pub fn read(&mut self, row: u64, payload: &Payload, into: &mut [u8]) -> Result<(), BadReason> {
        let Source { kind, index, .. } = self.source;
        if *kind != SourceKind::TfRecord || index.value(row, payload.field).is_some() {
            return self.read_piece(row, payload, 0, into);
        }
        let mut stored = [0; tfrecord::CRC_BYTES];
        self.open.read_two(&index.containers, payload, into, &mut stored)?;
        tfrecord::check_crc(crc32c(into), stored)
    }

    /// Reads a payload of `row` in pieces into the space that `sink` provides, for samples too large to be held in
    /// memory.
    ///
    /// # Errors
    /// The reason why the entry cannot be imported, possibly after some pieces were filled; or the error of `sink`.
    pub(crate) fn read_in_pieces(
        &mut self,
        row: u64,
        payload: &Payload,
        sink: &mut dyn PieceSink,
    ) -> Result<(), PieceError> {
        let is_checked = self.source.kind == SourceKind::TfRecord;
        let mut at = 0;
        let mut crc = 0;
        let len = u64::from(payload.len_bytes);
        loop {
            let space = sink.space().map_err(PieceError::Sink)?;
            let piece_len = (len - at).min(space.len() as u64) as usize;
            let piece = &mut space[..piece_len];
            self.read_piece(row, payload, at, piece)?;
            if is_checked {
                crc = crc32c_append(crc, piece);
            }
            sink.filled(piece_len).map_err(PieceError::Sink)?;
            at += piece_len as u64;
            if at == len {
                break;
            }
        }
        if is_checked {
            let mut stored = [0; tfrecord::CRC_BYTES];
            self.open.read(&self.source.index.containers, payload, len, &mut stored)?;
            tfrecord::check_crc(crc, stored)?;
        }
        Ok(())
    }

    /// Fills `into` with bytes of a payload from offset `at` on.
    fn read_piece(
        &mut self,
        row: u64,
        payload: &Payload,
        at: u64,
        into: &mut [u8],
    ) -> Result<(), BadReason> {
        let Source { index, containers, .. } = self.source;
        if let Some(value) = index.value(row, payload.field) {
            into.copy_from_slice(&value[at as usize..][..into.len()]);
            return Ok(());
        }
        let container = payload.container as usize;
        match containers {
            OpenContainers::Folders(roots) => {
                let front = index.containers[container].len_bytes as usize;
                let name = index.name(row).get(front..).ok_or(BadReason::Changed)?;
                let file = File::from(roots[container].open_file(name)?);
                file.read_exact_at(into, at).map_err(shard::reason)?;
                // After the read, in order to detect a change during it.
                let stat = rustix::fs::fstat(&file)?;
                BadReason::Changed.unless(stamp(&stat) == payload.offset_or_stamp)
            }
            OpenContainers::Shards(_) => self.open.read(&index.containers, payload, at, into),
            OpenContainers::Objects(roots) => {
                let is_whole = into.len() as u64 == u64::from(payload.len_bytes);
                let asked = self.asked.remove(&row).filter(|_| is_whole);
                let bytes = at..at + into.len() as u64;
                let fetch = || roots[container].fetch(index.name(row), payload, bytes);
                asked.unwrap_or_else(fetch).read_into(into).map_err(|error| {
                    objects::reason(error).unwrap_or_else(|error| {
                        self.failure.get_or_insert(error);
                        BadReason::Unreadable(libc::EIO)
                    })
                })
            }
        }
    }
}

/// Receiver of bytes in pieces.
pub(crate) trait PieceSink {
    /// Space for the next bytes: at least one byte.
    ///
    /// # Errors
    /// There is no space.
    fn space(&mut self) -> Result<&mut [u8]>;

    /// Passes on the first `len` bytes of [`space`](Self::space), which the caller has filled.
    ///
    /// # Errors
    /// The bytes could not be passed on.
    fn filled(&mut self, len: usize) -> Result<()>;
}

/// The reason why reading a payload in pieces failed.
#[derive(Debug)]
pub(crate) enum PieceError {
    /// The entry cannot be imported.
    Bad(BadReason),
    /// The sink failed.
    Sink(Error),
}

impl From<BadReason> for PieceError {
    fn from(reason: BadReason) -> PieceError {
        PieceError::Bad(reason)
    }
}
