//! Write-behind: the thread that builds chunks continues reading while they are written.
//!
//! A chunk takes one write, or several in any order if it is oversize. Writes count only after the import's next flush;
//! after a crash, checksums show which chunks are complete. Memory is bounded: a few chunks, and a few pieces of
//! oversize samples.

use std::collections::VecDeque;

use crate::import::media::{Channel, PendingWrite};
use crate::import::sources::PieceSink;
use dlfs_base::buf::IoBuf;
use dlfs_base::units::ALIGN_BYTES;
use dlfs_base::{Error, Result};
use dlfs_format::format::builder::FinishedChunk;
use dlfs_format::format::{ChunkHeader, FormatError, RecordSums};

/// One thread's writes in flight. `T` is the caller's data about a chunk.
pub(super) struct WriteBehind<T> {
    /// The channel to the namespaces.
    pub(super) channel: Channel,
    /// Writes of the chunk that is being built.
    open: ChunkWrites,
    /// Chunks whose writes have all been submitted, oldest first. `None`: the chunk was abandoned.
    chunks: VecDeque<(Option<T>, ChunkWrites)>,
    /// Length of a chunk's buffer in bytes.
    buf_len: usize,
    /// Maximum number of chunks in flight.
    max_chunks: usize,
    /// Free buffers for chunks. A caller that does not write a chunk returns the buffer here.
    pub(super) spare_bufs: Vec<IoBuf>,
    /// Free buffers for pieces.
    spare_pieces: Vec<IoBuf>,
    /// Flushes, which belong to no chunk.
    flushes: ChunkWrites,
    /// Bytes that the caller has read since the last poll.
    unpolled_bytes: usize,
}

/// Writes of a chunk.
#[derive(Default)]
struct ChunkWrites {
    /// The writes in flight.
    under_way: Vec<(PendingWrite, ReturnTo)>,
    /// The first failure.
    failed: Option<Error>,
}

/// The destination of a write's buffer after completion.
pub(super) enum ReturnTo {
    /// The written buffer is the middle of a chunk's buffer. The first value here is the beginning of the chunk's
    /// buffer, the second its end.
    Chunk(IoBuf, IoBuf),
    /// A buffer for a piece.
    Piece,
    /// The buffer is dropped.
    None,
}

impl<T> WriteBehind<T> {
    /// Writes on `channel`. A chunk's buffer has `buf_len` bytes.
    pub(super) fn new(channel: Channel, buf_len: usize) -> WriteBehind<T> {
        WriteBehind {
            channel,
            open: ChunkWrites::default(),
            chunks: VecDeque::new(),
            buf_len,
            max_chunks: (MAX_CHUNK_BYTES / buf_len).clamp(1, MAX_CHUNKS),
            spare_bufs: Vec::new(),
            spare_pieces: Vec::new(),
            flushes: ChunkWrites::default(),
            unpolled_bytes: 0,
        }
    }

    /// A buffer for a chunk, with undefined contents.
    pub(super) fn chunk_buf(&mut self) -> IoBuf {
        self.spare_bufs.pop().unwrap_or_else(|| IoBuf::zeroed(self.buf_len))
    }

    /// A buffer of [`PIECE_BYTES`]. Blocks while too many pieces are in flight.
    pub(super) fn piece(&mut self) -> IoBuf {
        while self.pieces_in_flight() >= MAX_PIECES {
            self.wait_for_io();
        }
        self.spare_pieces.pop().unwrap_or_else(|| IoBuf::zeroed(PIECE_BYTES))
    }

    /// Submits a write of the chunk that is being built.
    ///
    /// # Errors
    /// The write could not be submitted, or an earlier write or flush has failed.
    pub(super) fn write(
        &mut self,
        namespace: u16,
        offset: u64,
        buf: IoBuf,
        home: ReturnTo,
    ) -> Result<()> {
        self.check_flushes()?;
        if let Some(error) = self.open.failed.take() {
            return Err(error);
        }
        let under_way = self.channel.begin_write(namespace, offset, buf)?;
        self.open.under_way.push((under_way, home));
        self.poll();
        Ok(())
    }

    /// Submits the write of a whole chunk, and returns its header.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub(super) fn write_chunk(
        &mut self,
        namespace: u16,
        offset: u64,
        FinishedChunk { header, mut buf, range }: FinishedChunk,
    ) -> Result<ChunkHeader> {
        let tail = buf.split_off(range.end);
        let body = buf.split_off(range.start);
        self.write(namespace, offset, body, ReturnTo::Chunk(buf, tail))?;
        Ok(header)
    }

    /// Writes a chunk of one oversize sample at an offset of a namespace. First writes the record, which `give` pushes,
    /// `data_start` bytes behind that offset. Then writes the header, which `header` makes of the record's checksums.
    /// With `may_exist`, leaves out blocks that are on the media already. Returns the header, and whether the header
    /// was there. The inner error is that of `give`; what was written of the chunk is useless then.
    ///
    /// # Errors
    /// As [`write`](Self::write); errors of `header`.
    pub(super) fn write_oversize<E>(
        &mut self,
        (namespace, offset): (u16, u64),
        data_start: u64,
        may_exist: bool,
        header: impl FnOnce(&RecordSums) -> Result<ChunkHeader, FormatError>,
        give: impl FnOnce(&mut BlockStream<'_, T>) -> Result<(), E>,
    ) -> Result<Result<(ChunkHeader, bool), E>> {
        let mut stream = BlockStream {
            writes: self,
            namespace,
            offset: offset + data_start,
            piece: None,
            filled: 0,
            sums: RecordSums::default(),
            may_exist,
        };
        if let Err(error) = give(&mut stream) {
            return Ok(Err(error));
        }
        let header = header(&stream.finish()?)?;
        let mut front = IoBuf::zeroed(data_start as usize);
        header.encode_into(&mut front);
        let is_there = may_exist && self.is_there(namespace, offset, &front)?;
        if !is_there {
            self.write(namespace, offset, front, ReturnTo::None)?;
        }
        Ok(Ok((header, is_there)))
    }

    /// Returns whether `bytes` are on the media already.
    ///
    /// # Errors
    /// Errors of reading.
    pub(super) fn is_there(&mut self, namespace: u16, offset: u64, bytes: &[u8]) -> Result<bool> {
        Ok(self.channel.read(namespace, offset, bytes.len())?[..] == *bytes)
    }

    /// Starts to flush all namespaces, without waiting for the result. Does nothing if a flush is in flight.
    ///
    /// # Errors
    /// A flush could not be submitted.
    pub(super) fn flush(&mut self) -> Result<()> {
        if self.flushes.under_way.is_empty() {
            for namespace in 0..self.channel.media.len() {
                let under_way = self.channel.begin_flush(namespace)?;
                self.flushes.under_way.push((under_way, ReturnTo::None));
            }
        }
        Ok(())
    }

    /// Returns the error of a failed flush.
    ///
    /// # Errors
    /// The flush failed: earlier writes may be lost.
    pub(super) fn check_flushes(&mut self) -> Result<()> {
        self.flushes.failed.take().map_or(Ok(()), Err)
    }

    /// Ends a chunk, all of whose writes are submitted. [`WriteBehind::ended`] will return its result.
    pub(super) fn close(&mut self, what: T) {
        self.chunks.push_back((Some(what), std::mem::take(&mut self.open)));
    }

    /// Abandons the chunk that is being built. Its written bytes are useless.
    pub(super) fn give_up(&mut self) {
        self.chunks.push_back((None, std::mem::take(&mut self.open)));
    }

    /// Counts bytes that the caller has read, and polls from time to time. Otherwise a target that waits for
    /// data (R2T) would have to wait until the chunk is complete.
    pub(super) fn has_read(&mut self, bytes: usize) {
        self.unpolled_bytes += bytes;
        if self.unpolled_bytes >= POLL_EVERY_BYTES {
            self.poll();
        }
    }

    /// Returns whether a chunk must complete before another one may be started.
    pub(super) fn is_full(&self) -> bool {
        self.chunks.len() >= self.max_chunks
    }

    /// Returns whether nothing is in flight, and [`WriteBehind::ended`] has removed all completed chunks.
    pub(super) fn is_idle(&self) -> bool {
        self.chunks.is_empty() && self.flushes.under_way.is_empty()
    }

    /// The oldest chunk that was not taken by [`WriteBehind::ended`].
    pub(super) fn oldest(&self) -> Option<&T> {
        self.chunks.iter().find_map(|(what, _)| what.as_ref())
    }

    /// Polls without blocking. Returns whether a write or flush has completed.
    pub(super) fn poll(&mut self) -> bool {
        self.unpolled_bytes = 0;
        let moved = self.channel.poll();
        if moved {
            self.reap();
        }
        moved
    }

    /// Blocks until a chunk may have completed. Returns at once if one has completed but was not taken.
    pub(super) fn wait(&mut self) {
        if self.chunks.iter().all(|(_, parts)| !parts.under_way.is_empty()) {
            self.wait_for_io();
        }
    }

    /// Blocks until a poll makes progress. A write or flush must be in flight.
    ///
    /// A blocking call of the channel may have completed or abandoned writes already.
    fn wait_for_io(&mut self) {
        if !self.poll() && !self.reap() {
            self.channel.wait();
            self.poll();
            self.reap(); // also writes that timed out
        }
    }

    /// Takes a completed chunk, with its result.
    pub(super) fn ended(&mut self) -> Option<(T, Result<()>)> {
        loop {
            let at = self.chunks.iter().position(|(_, parts)| parts.under_way.is_empty())?;
            let (what, parts) = self.chunks.remove(at).expect("found above");
            if let Some(what) = what {
                return Some((what, parts.failed.map_or(Ok(()), Err)));
            }
        }
    }

    /// Number of pieces of all chunks whose writes are in flight.
    fn pieces_in_flight(&self) -> usize {
        let all = self.chunks.iter().map(|(_, parts)| parts).chain([&self.open]);
        let is_piece = |(_, home): &&(PendingWrite, ReturnTo)| matches!(home, ReturnTo::Piece);
        all.map(|parts| parts.under_way.iter().filter(is_piece).count()).sum()
    }

    /// Takes completed writes and flushes. Returns whether there were any.
    fn reap(&mut self) -> bool {
        let mut any = false;
        let WriteBehind { channel, open, chunks, flushes, spare_bufs, spare_pieces, .. } = self;
        for parts in chunks.iter_mut().map(|(_, parts)| parts).chain([open, flushes]) {
            for (write, home) in std::mem::take(&mut parts.under_way) {
                let result = match channel.take(write) {
                    Ok(result) => result,
                    Err(write) => {
                        parts.under_way.push((write, home));
                        continue;
                    }
                };
                any = true;
                match (result, home) {
                    (Ok(body), ReturnTo::Chunk(mut head, tail)) => {
                        head.rejoin(body);
                        head.rejoin(tail);
                        spare_bufs.push(head);
                    }
                    (Ok(piece), ReturnTo::Piece) if piece.len() == PIECE_BYTES => {
                        spare_pieces.push(piece);
                    }
                    (Ok(_), _) => {}
                    // The failed write may still own its buffer.
                    (Err(error), _) => parts.failed = parts.failed.take().or(Some(error)),
                }
            }
        }
        any
    }
}

/// Waits for the writes in flight, so that an import writes nothing after its end, even after a failure. Each
/// write has a timeout.
impl<T> Drop for WriteBehind<T> {
    fn drop(&mut self) {
        self.give_up();
        while self.chunks.iter().any(|(_, parts)| !parts.under_way.is_empty()) {
            self.wait_for_io();
        }
    }
}

/// Writes consecutive blocks from bytes that arrive in pieces of any length.
pub(super) struct BlockStream<'a, T> {
    writes: &'a mut WriteBehind<T>,
    namespace: u16,
    /// Offset of the next piece on the namespace.
    offset: u64,
    /// The piece that is being filled.
    piece: Option<IoBuf>,
    /// Bytes of that piece that are filled.
    filled: usize,
    /// Checksums of the bytes so far.
    sums: RecordSums,
    /// Set if blocks may be on the media already. Those are not written again.
    may_exist: bool,
}

impl<T> PieceSink for BlockStream<'_, T> {
    fn space(&mut self) -> Result<&mut [u8]> {
        let piece = match &mut self.piece {
            Some(piece) => piece,
            none => none.insert(self.writes.piece()),
        };
        Ok(&mut piece[self.filled..])
    }

    fn filled(&mut self, len: usize) -> Result<()> {
        let piece = self.piece.as_ref().expect("space was asked for");
        self.sums.push(&piece[self.filled..self.filled + len]);
        self.filled += len;
        if self.filled == PIECE_BYTES { self.write() } else { Ok(()) }
    }
}

impl<T> BlockStream<'_, T> {
    /// Appends bytes.
    ///
    /// # Errors
    /// Errors of writing, and of reading back.
    pub(super) fn push(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let space = self.space()?;
            let len = bytes.len().min(space.len());
            space[..len].copy_from_slice(&bytes[..len]);
            self.filled(len)?;
            bytes = &bytes[len..];
        }
        Ok(())
    }

    /// Writes the remaining bytes, padded with zeroes. Returns the checksums of all bytes.
    fn finish(mut self) -> Result<RecordSums> {
        let whole = self.filled.next_multiple_of(ALIGN_BYTES);
        if let Some(piece) = self.piece.as_mut().filter(|_| whole > 0) {
            piece[self.filled..whole].fill(0);
            piece.truncate(whole);
            self.write()?;
        }
        Ok(self.sums)
    }

    /// Writes the piece that is being filled, unless its bytes are on the media already.
    fn write(&mut self) -> Result<()> {
        let piece = self.piece.take().expect("filled before it is written");
        let len = piece.len() as u64;
        if !self.may_exist || !self.writes.is_there(self.namespace, self.offset, &piece)? {
            self.writes.write(self.namespace, self.offset, piece, ReturnTo::Piece)?;
        }
        self.offset += len;
        self.filled = 0;
        Ok(())
    }
}

/// Length of a piece. An oversize sample is read and written piece by piece.
pub(super) const PIECE_BYTES: usize = 1 << 20;

/// Maximum number of pieces in flight per thread.
const MAX_PIECES: usize = 8;

/// Maximum number of chunks in flight per thread: the target stores one while the next is transferred.
const MAX_CHUNKS: usize = 2;

/// Maximum total size of these chunks. One chunk is always allowed.
const MAX_CHUNK_BYTES: usize = 64 << 20;

/// Bytes between two flushes. Flushes keep the medium busy while the source is read, and leave little to flush
/// at the end.
pub(super) const FLUSH_EVERY_BYTES: u64 = 64 << 20;

/// Bytes to read between two polls: far fewer than a socket buffer holds.
const POLL_EVERY_BYTES: usize = 128 << 10;
