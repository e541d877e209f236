//! The columns of a row that an array has: all, or those of one context-parallel rank.

use std::ops::Range;

use dlfs_base::error::{Error, Result};

/// Columns of a row in one or two chunks. Each chunk has one column more than its inputs: the label of its last input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Columns {
    /// The number of inputs of a whole row.
    seq_len: u32,
    /// The context-parallel rank.
    cp_rank: u32,
    /// The number of context-parallel ranks.
    cp_size: u32,
    /// The number of inputs of a chunk.
    chunk: u32,
    /// The first column of each chunk; the second one counts only if there are two.
    starts: [u32; 2],
    /// 1, or 2 with zigzag.
    num_chunks: usize,
}

/// The columns that a chunk and a run of columns have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Their range among the columns of the array's row.
    pub(crate) to: Range<usize>,
    /// The number of columns of the run before them.
    pub(crate) skip: usize,
}

impl Columns {
    /// All `seq_len + 1` columns of a row of `seq_len` inputs.
    pub fn all(seq_len: u32) -> Columns {
        Columns { seq_len, cp_rank: 0, cp_size: 1, chunk: seq_len, starts: [0; 2], num_chunks: 1 }
    }

    /// The columns of rank `cp_rank` of `cp_size` context-parallel ranks. The inputs are cut into `cp_size` equal
    /// chunks, of which the rank has number `cp_rank`. With `zigzag` they are cut into twice as many, of which the rank
    /// has numbers `cp_rank` and `2 * cp_size - 1 - cp_rank`: this gives ranks equal work under a causal mask.
    ///
    /// # Errors
    /// `InvalidArgument`: there is no such rank, or the inputs cannot be cut into equal chunks.
    pub fn slice(seq_len: u32, cp_rank: u32, cp_size: u32, zigzag: bool) -> Result<Columns> {
        if cp_rank >= cp_size {
            let text = format!("there is no context-parallel rank {cp_rank}: cp_size is {cp_size}");
            return Err(Error::invalid(text, "ranks go from 0 to cp_size - 1"));
        }
        if cp_size == 1 {
            return Ok(Columns::all(seq_len));
        }
        let num_chunks = if zigzag { 2 } else { 1 };
        let parts = u64::from(cp_size) * num_chunks;
        if !u64::from(seq_len).is_multiple_of(parts) {
            let text = format!(
                "rows of {seq_len} tokens cannot be cut into {parts} equal parts for {cp_size} context-parallel ranks"
            );
            return Err(Error::invalid(text, "take a seq_len that is a multiple of the parts"));
        }
        let chunk = (u64::from(seq_len) / parts) as u32; // at most seq_len
        let starts = [cp_rank * chunk, (parts as u32 - 1 - cp_rank) * chunk];
        let num_chunks = num_chunks as usize;
        Ok(Columns { seq_len, cp_rank, cp_size, chunk, starts, num_chunks })
    }

    /// The columns of the same rank in rows of `seq_len` inputs.
    ///
    /// # Errors
    /// As [`Columns::slice`].
    pub fn of_rows(&self, seq_len: u32) -> Result<Columns> {
        Columns::slice(seq_len, self.cp_rank, self.cp_size, self.num_chunks == 2)
    }

    /// The columns of the same rank in rows that need `seq_len` inputs. The rows get as many more as ranks need to
    /// share the inputs equally.
    ///
    /// # Errors
    /// As [`Columns::slice`].
    pub fn of_narrow_rows(&self, seq_len: u32) -> Result<Columns> {
        let parts = self.cp_size * self.num_chunks as u32; // at most the inputs of a row
        self.of_rows(seq_len.next_multiple_of(parts))
    }

    /// The number of inputs of a whole row.
    pub fn seq_len(&self) -> u32 {
        self.seq_len
    }

    /// The number of chunks: 1 or 2.
    pub fn num_chunks(&self) -> usize {
        self.num_chunks
    }

    /// The number of columns of a chunk, with the last label.
    pub fn chunk_len(&self) -> usize {
        self.chunk as usize + 1
    }

    /// The number of columns of all chunks.
    pub fn width(&self) -> usize {
        self.num_chunks * self.chunk_len()
    }

    /// Returns whether these are all columns of a row.
    pub(crate) fn is_all(&self) -> bool {
        self.chunk == self.seq_len
    }

    /// The columns that each chunk has in common with `len` columns from `column` on.
    pub(crate) fn pieces(self, column: u32, len: u32) -> impl Iterator<Item = Piece> {
        self.starts.into_iter().take(self.num_chunks).enumerate().filter_map(move |(nth, start)| {
            let from = start.max(column);
            let end = (start + self.chunk + 1).min(column + len);
            let at = nth * self.chunk_len() + from.checked_sub(start)? as usize;
            let count = end.checked_sub(from).filter(|&count| count > 0)? as usize;
            Some(Piece { to: at..at + count, skip: (from - column) as usize })
        })
    }
}
