//! The names by id, front-coded in blocks of 16; and the ids in the order of names, if that order differs.
//!
//! Each block begins with a whole name. Every other name is stored as the length of the prefix that it shares with the
//! previous name, and the rest. A second column has the offset of each block as a u64, and the end of the last block.
//!
//! `names_writer.rs` encodes the columns; `listing.rs` lists folders.

use std::cmp::Ordering;

use zerocopy::little_endian::U64;

use crate::directory::Bytes;
use crate::directory::tree::{id_width, read_id};
use crate::format::FormatError;
use crate::format::cursor::Cursor;
use crate::format::error::{at_most, equal};
use crate::format::geometry::MAX_NAME_BYTES;
use crate::format::names::{common, compare};

/// All names of a directory. Decoding is defensive: it checks every length from the snapshot against the
/// bytes that exist.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    /// Offset of each block in `text` as a u64, and the end of the last block.
    pub(crate) blocks: Bytes,
    /// The front-coded names.
    pub(crate) text: Bytes,
    /// Ids in the order of names; `None` if names ascend with ids.
    pub(crate) order: Option<Bytes>,
    pub(crate) num_samples: u64,
}

impl Names {
    /// The names from columns on media. `order` has the ids in the order of names, and the bytes of an id.
    ///
    /// # Errors
    /// A length is wrong.
    pub(crate) fn from_bytes(
        blocks: Bytes,
        text: Bytes,
        order: Option<(Bytes, u64)>,
        num_samples: u64,
    ) -> Result<Names, FormatError> {
        let expected = num_samples.div_ceil(BLOCK).saturating_add(1).saturating_mul(8);
        equal("length of the name blocks", expected, blocks.len() as u64)?;
        let offsets = blocks.items::<U64>();
        let pairs = offsets.iter().zip(&offsets[1..]);
        let falls: u64 = pairs.map(|(a, b)| u64::from(a.get() > b.get())).sum();
        equal("name blocks out of order", 0, falls)?;
        let end = offsets.last().map_or(0, |end| end.get());
        equal("end of the names", text.len() as u64, end)?;
        if let Some((order, width)) = &order {
            let expected = id_width(num_samples) as u64;
            equal("bytes of an id in the order of names", expected, *width)?;
            let len = num_samples.saturating_mul(expected);
            equal("length of the order of names", len, order.len() as u64)?;
        }
        Ok(Names { blocks, text, order: order.map(|(order, _)| order), num_samples })
    }

    /// Replaces `name` by the name of `id`, which must be below the number of samples.
    ///
    /// # Errors
    /// The name's block is damaged.
    pub(crate) fn get(&self, id: u64, name: &mut Vec<u8>) -> Result<(), FormatError> {
        let mut block = self.block(id)?;
        (0..=id % BLOCK).try_for_each(|_| block.next_into(name))
    }

    /// A cursor over the names from `id` on. Each step decodes only the bytes that differ from the previous name.
    ///
    /// # Errors
    /// The block of `id` is damaged.
    pub(crate) fn cursor(&self, id: u64) -> Result<NameCursor<'_>, FormatError> {
        let mut cursor = NameCursor { names: self, next_id: id, block: None, name: Vec::new() };
        if !id.is_multiple_of(BLOCK) {
            let mut block = self.block(id)?;
            (0..id % BLOCK).try_for_each(|_| block.next_into(&mut cursor.name))?;
            cursor.block = Some(block);
        }
        Ok(cursor)
    }

    /// Returns whether the name of `id` is `name`. Copies nothing; a damaged block matches no name.
    pub(crate) fn is(&self, id: u64, name: &[u8]) -> bool {
        self.matches(id, name).unwrap_or(false)
    }

    fn matches(&self, id: u64, name: &[u8]) -> Result<bool, FormatError> {
        let mut block = self.block(id)?;
        // Length of the common prefix of `name` and the block's current name, and length of the current name.
        let mut same = 0;
        let mut len = 0;
        for _ in 0..=id % BLOCK {
            let (shared, rest) = block.next()?;
            at_most("shared bytes of a name", shared as u64, len as u64)?;
            // A name that shares more than `same` bytes with its predecessor differs from `name` at the same byte as
            // the predecessor: `same` stays.
            if shared <= same {
                same = shared + common(&name[shared..], rest);
            }
            len = shared + rest.len();
        }
        Ok(same == name.len() && len == same)
    }

    /// The block of `id`, from its first name on.
    fn block(&self, id: u64) -> Result<NameBlock<'_>, FormatError> {
        let offsets = self.blocks.items::<U64>();
        let index = (id / BLOCK) as usize;
        let start = offsets[index].get() as usize;
        let end = offsets[index + 1].get() as usize;
        let rest = Cursor::new("names", &self.text[start..end]);
        Ok(NameBlock { rest, first: true })
    }

    /// The id at `rank` in the order of names.
    pub(crate) fn at_rank(&self, rank: u64) -> u64 {
        let Some(order) = &self.order else { return rank };
        let id = read_id(order, rank as usize, id_width(self.num_samples));
        // The order on media may contain an invalid id: it is read as the last id.
        id.min(self.num_samples - 1)
    }

    /// The first rank at or after `from` whose name is greater than or equal to `name`.
    pub(crate) fn lower_bound(&self, from: u64, name: &[u8]) -> Result<u64, FormatError> {
        self.search(from, name, 0, Ordering::is_ge)
    }

    /// The first rank at or after `from` whose name is greater than `name`. Takes time logarithmic in the distance from
    /// `from`.
    pub(crate) fn upper_bound_near(&self, from: u64, name: &[u8]) -> Result<u64, FormatError> {
        self.search(from, name, 1, Ordering::is_gt)
    }

    /// The first rank at or after `from` whose name, compared with `name`, satisfies `is_there`. `step` 0 selects a
    /// binary search, 1 an exponential search from `from`.
    fn search(
        &self,
        from: u64,
        name: &[u8],
        mut step: u64,
        is_there: fn(Ordering) -> bool,
    ) -> Result<u64, FormatError> {
        let mut low = from;
        let mut high = self.num_samples;
        let mut found = Vec::new();
        while low < high {
            // Exponential search: doubles the step until it passes the rank, then continues as a binary search.
            let middle = match step {
                0 => low.midpoint(high),
                _ => low.saturating_add(step - 1).min(high - 1),
            };
            found.clear();
            self.get(self.at_rank(middle), &mut found)?;
            if is_there(compare(&found, name)) {
                (high, step) = (middle, 0);
            } else {
                (low, step) = (middle + 1, step * 2);
            }
        }
        Ok(low)
    }

    /// Memory of the names and of their order, in bytes.
    pub(crate) fn memory_bytes(&self) -> (u64, u64) {
        let order = self.order.as_ref().map_or(0, |order| order.len());
        ((self.blocks.len() + self.text.len()) as u64, order as u64)
    }
}

/// A decoder of one block, name by name.
struct NameBlock<'a> {
    rest: Cursor<'a>,
    /// True before the block's first name, which is whole.
    first: bool,
}

impl<'a> NameBlock<'a> {
    /// The length of the prefix that the next name shares with the previous one, and the rest of the next name.
    #[inline]
    fn next(&mut self) -> Result<(usize, &'a [u8]), FormatError> {
        let shared = if self.first { 0 } else { self.rest.number()? };
        self.first = false;
        let shared = at_most("shared bytes of a name", shared, MAX_NAME_BYTES as u64)?;
        Ok((shared as usize, self.rest.string()?))
    }

    /// Replaces `name`, the previous name of the block, by the next one.
    #[inline]
    fn next_into(&mut self, name: &mut Vec<u8>) -> Result<(), FormatError> {
        let (shared, rest) = self.next()?;
        at_most("shared bytes of a name", shared as u64, name.len() as u64)?;
        at_most("length of a name", (shared + rest.len()) as u64, MAX_NAME_BYTES as u64)?;
        name.truncate(shared);
        name.extend_from_slice(rest);
        Ok(())
    }
}

/// Iterates over names by id: see [`Names::cursor`].
pub(crate) struct NameCursor<'a> {
    names: &'a Names,
    /// The id that the next [`advance`](Self::advance) moves to.
    pub(super) next_id: u64,
    /// The block of `next_id`, or, if that begins a block, of the id before; `None` if no id has come before.
    block: Option<NameBlock<'a>>,
    /// The name that the last `advance` moved to.
    name: Vec<u8>,
}

impl NameCursor<'_> {
    /// Advances to the next name; returns false at the end.
    ///
    /// # Errors
    /// The name's block is damaged.
    pub(crate) fn advance(&mut self) -> Result<bool, FormatError> {
        if self.next_id >= self.names.num_samples {
            return Ok(false);
        }
        let block = match &mut self.block {
            Some(block) if !self.next_id.is_multiple_of(BLOCK) => block,
            block => block.insert(self.names.block(self.next_id)?),
        };
        block.next_into(&mut self.name)?;
        self.next_id += 1;
        Ok(true)
    }

    /// The current id. Call [`advance`](Self::advance) first.
    pub(crate) fn id(&self) -> u64 {
        self.next_id - 1
    }

    /// The current name.
    pub(crate) fn name(&self) -> &[u8] {
        &self.name
    }
}

/// Names per block.
pub(crate) const BLOCK: u64 = 16;
