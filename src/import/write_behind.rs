//! Writes behind the thread that makes chunks: some are under way while it reads on.
//!
//! A chunk is written in parts, in any order: none is to be believed before its import flushes, and
//! whoever finds one after a crash looks at its checksums. Memory is bounded: a few chunks, and for
//! samples that fit into no chunk a few pieces.

use std::collections::VecDeque;

use crate::buf::IoBuf;
use crate::import::media::{Channel, PendingWrite};
use crate::{Error, Result};

/// One thread's writes under way. `T` is what the caller knows of a chunk.
pub(super) struct WriteBehind<T> {
    channel: Channel,
    /// ChunkWrites of the chunk that is being made.
    open: ChunkWrites,
    /// Chunks whose parts are all begun, oldest first.
    chunks: VecDeque<(Option<T>, ChunkWrites)>,
    /// Length of a chunk's buffer, and how many chunks may be under way.
    buf_len: usize,
    max_chunks: usize,
    spare_bufs: Vec<IoBuf>,
    spare_pieces: Vec<IoBuf>,
    /// Bytes that the caller has read since the last turn.
    unpolled_bytes: usize,
}

/// Writes of one chunk.
#[derive(Default)]
struct ChunkWrites {
    under_way: Vec<(PendingWrite, BufferOrigin)>,
    /// The first failure.
    failed: Option<Error>,
}

/// Where the buffer of a part belongs.
pub(super) enum BufferOrigin {
    /// In the middle of a chunk's buffer, between these.
    Chunk(IoBuf, IoBuf),
    /// It is a piece.
    Piece,
    /// Nowhere.
    None,
}

impl<T> WriteBehind<T> {
    /// Writes on `channel`, of chunks with buffers of `buf_len` bytes.
    pub(super) fn new(channel: Channel, buf_len: usize) -> WriteBehind<T> {
        WriteBehind {
            channel,
            open: ChunkWrites::default(),
            chunks: VecDeque::new(),
            buf_len,
            max_chunks: (MAX_CHUNK_BYTES / buf_len).clamp(1, MAX_CHUNKS),
            spare_bufs: Vec::new(),
            spare_pieces: Vec::new(),
            unpolled_bytes: 0,
        }
    }

    /// The way to the namespaces, for calls that wait.
    pub(super) fn channel(&mut self) -> &mut Channel {
        &mut self.channel
    }

    /// A buffer for a chunk; what it holds does not matter.
    pub(super) fn chunk_buf(&mut self) -> IoBuf {
        self.spare_bufs.pop().unwrap_or_else(|| IoBuf::zeroed(self.buf_len))
    }

    /// Takes a chunk's buffer back that was not written.
    pub(super) fn give_back(&mut self, buf: IoBuf) {
        self.spare_bufs.push(buf);
    }

    /// A piece of [`PIECE_BYTES`], as soon as few enough are under way.
    pub(super) fn piece(&mut self) -> IoBuf {
        while self.pieces_in_flight() >= MAX_PIECES {
            self.wait_for_io();
        }
        self.spare_pieces.pop().unwrap_or_else(|| IoBuf::zeroed(PIECE_BYTES))
    }

    /// Begins to write a part of the chunk that is being made.
    ///
    /// # Errors
    /// It could not be begun, or an earlier part has failed already.
    pub(super) fn write(
        &mut self,
        namespace: u16,
        offset: u64,
        buf: IoBuf,
        home: BufferOrigin,
    ) -> Result<()> {
        if let Some(error) = self.open.failed.take() {
            return Err(error);
        }
        let under_way = self.channel.begin_write(namespace, offset, buf)?;
        self.open.under_way.push((under_way, home));
        self.poll();
        Ok(())
    }

    /// All parts of the chunk are begun: [`WriteBehind::ended`] tells when it has ended.
    pub(super) fn close(&mut self, what: T) {
        let parts = std::mem::take(&mut self.open);
        self.chunks.push_back((Some(what), parts));
    }

    /// The chunk that is being made is not to be: what was written of it is of no use.
    pub(super) fn give_up(&mut self) {
        let parts = std::mem::take(&mut self.open);
        self.chunks.push_back((None, parts));
    }

    /// Notes that the caller has read so many bytes, and moves writes on now and then: a target that
    /// asks for data does not wait for the end of a chunk.
    pub(super) fn has_read(&mut self, bytes: usize) {
        self.unpolled_bytes += bytes;
        if self.unpolled_bytes >= POLL_EVERY_BYTES {
            self.poll();
        }
    }

    /// Whether no further chunk may be begun before one has ended.
    pub(super) fn is_full(&self) -> bool {
        self.chunks.len() >= self.max_chunks
    }

    /// Whether nothing is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Moves what is under way on without waiting; whether anything has ended.
    pub(super) fn poll(&mut self) -> bool {
        self.unpolled_bytes = 0;
        let moved = self.channel.poll();
        if moved {
            self.reap();
        }
        moved
    }

    /// Waits until a chunk may have ended; not at all while one has that was not taken.
    pub(super) fn wait(&mut self) {
        if self.chunks.iter().all(|(_, parts)| !parts.under_way.is_empty()) {
            self.wait_for_io();
        }
    }

    /// Waits until a turn brings something; there must be something under way.
    ///
    /// What a call in between has brought, or has given up with its queue pairs, has ended already.
    fn wait_for_io(&mut self) {
        if !self.poll() && !self.reap() {
            self.channel.wait();
            self.poll();
            self.reap(); // also what has lasted too long
        }
    }

    /// A chunk that has ended, and how.
    pub(super) fn ended(&mut self) -> Option<(T, Result<()>)> {
        loop {
            let at = self.chunks.iter().position(|(_, parts)| parts.under_way.is_empty())?;
            let (what, parts) = self.chunks.remove(at).expect("found above");
            if let Some(what) = what {
                return Some((what, parts.failed.map_or(Ok(()), Err)));
            }
        }
    }

    fn pieces_in_flight(&self) -> usize {
        let all = self.chunks.iter().map(|(_, parts)| parts).chain([&self.open]);
        let is_piece =
            |(_, home): &&(PendingWrite, BufferOrigin)| matches!(home, BufferOrigin::Piece);
        all.map(|parts| parts.under_way.iter().filter(is_piece).count()).sum()
    }

    /// Takes what has ended; whether there was any.
    fn reap(&mut self) -> bool {
        let WriteBehind { channel, open, chunks, spare_bufs, spare_pieces, .. } = self;
        let mut any = false;
        for parts in chunks.iter_mut().map(|(_, parts)| parts).chain([open]) {
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
                    (Ok(body), BufferOrigin::Chunk(head, tail)) => {
                        spare_bufs.push(join(head, body, tail))
                    }
                    (Ok(piece), BufferOrigin::Piece) if piece.len() == PIECE_BYTES => {
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

/// Nothing of an import is written once it has ended, however it ends; each write has its time limit.
impl<T> Drop for WriteBehind<T> {
    fn drop(&mut self) {
        self.give_up();
        while self.chunks.iter().any(|(_, parts)| !parts.under_way.is_empty()) {
            self.wait_for_io();
        }
    }
}

fn join(mut head: IoBuf, body: IoBuf, tail: IoBuf) -> IoBuf {
    head.rejoin(body);
    head.rejoin(tail);
    head
}

/// Bytes of a sample that fits into no chunk which are in memory together.
pub(super) const PIECE_BYTES: usize = 1 << 20;

/// Pieces of such samples under way, of each thread.
const MAX_PIECES: usize = 8;

/// Chunks under way, of each thread: one that the target takes while another is on its way to it.
const MAX_CHUNKS: usize = 2;

/// Bytes of them, if chunks are large; one always may.
const MAX_CHUNK_BYTES: usize = 64 << 20;

/// Bytes to read between two turns: far fewer than a socket holds.
const POLL_EVERY_BYTES: usize = 128 << 10;
