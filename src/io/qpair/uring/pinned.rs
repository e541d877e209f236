//! Memory registered with a ring: the buffers of one pool, registered piece by piece.
//!
//! A piece is registered when a buffer in it is first used, so a pool that is never full is never pinned as a
//! whole, and opening an image does not pin it. Pinned memory counts against RLIMIT_MEMLOCK, 8 MiB for
//! ordinary users: once the kernel refuses a piece, all further pieces stay ordinary memory. A fork copies
//! pinned pages at once, not when they are written.
#![allow(unsafe_code)] // registers memory with the kernel

use io_uring::Submitter;

use dlfs_base::buf::Pool;

/// The registered pieces of a pool. Buffer index i of the ring is piece i.
pub(super) struct Pinned {
    /// Kept as long as the ring, so that its addresses refer to the pages that were registered.
    pool: Pool,
    piece_len: usize,
    registered: Vec<bool>,
    /// Set once the kernel has refused a piece.
    refused: bool,
}

impl Pinned {
    /// Prepares the ring for the pieces of `pool`; `None` if the kernel does not support it.
    pub(super) fn new(pool: &Pool, ring: &Submitter<'_>) -> Option<Pinned> {
        let len = pool.capacity_bytes();
        let piece_len = len.div_ceil(MAX_PIECES).next_power_of_two().max(MIN_PIECE_LEN);
        let piece_len = piece_len.max(pool.slot_len_bytes().next_power_of_two());
        let count = len.div_ceil(piece_len);
        ring.register_buffers_sparse(u32::try_from(count).ok()?).ok()?;
        let registered = vec![false; count];
        Some(Pinned { pool: pool.clone(), piece_len, registered, refused: false })
    }

    /// Returns the piece that contains `bytes`, and registers it if it is not registered yet. `None`: `bytes`
    /// are not in the pool, or cross pieces, or the kernel refuses the piece.
    pub(super) fn index_of(&mut self, bytes: &[u8], ring: &Submitter<'_>) -> Option<u16> {
        let offset = self.pool.offset_of(bytes)?;
        let piece = offset / self.piece_len;
        let start = piece * self.piece_len;
        if bytes.is_empty() || offset + bytes.len() > start + self.piece_len {
            return None;
        }
        if !self.registered[piece] {
            self.register(piece, ring)?;
        }
        u16::try_from(piece).ok()
    }

    fn register(&mut self, piece: usize, ring: &Submitter<'_>) -> Option<()> {
        if self.refused {
            return None;
        }
        let start = piece * self.piece_len;
        let memory = libc::iovec {
            iov_base: self.pool.address_of(start).as_ptr().cast(),
            iov_len: self.piece_len.min(self.pool.capacity_bytes() - start),
        };
        // SAFETY: the piece lies in the pool's mapping, and stays mapped as long as `self.pool`. The ring writes
        // only into buffers whose I/Os it holds, and these keep the pool, too.
        let result = unsafe { ring.register_buffers_update(piece as u32, &[memory], None) };
        self.refused = result.is_err();
        self.registered[piece] = result.is_ok();
        result.ok()
    }
}

/// The length of a huge page, so that a piece is pinned and mapped as a whole.
const MIN_PIECE_LEN: usize = 2 << 20;

/// The most buffers that a ring accepts.
const MAX_PIECES: usize = 1 << 14;
