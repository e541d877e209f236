//! Rows of shards with a table of offsets, as MosaicML's MDS and LitData write them.
//!
//! | bytes       | meaning                                                                              |
//! |-------------|--------------------------------------------------------------------------------------|
//! | 4           | n, the number of items; this and all other numbers are little-endian                 |
//! | 4 (n + 1)   | offset in the file of each item, and of the end of the last item                     |
//! | some        | MDS: JSON that describes the columns again                                           |
//! | the rest    | the items: 4 bytes for the length of each column that needs it, then the columns     |
//!
//! LitData puts rows without arrays and pictures into an Arrow file instead. The Arrow file begins where the items
//! would begin, and all items in the table are empty. Behind the Arrow file are 4 bytes for its length, and `LDARW01`
//! with a NUL.
//!
//! An array in an item has a header, with an element type and a shape: see `leaf_form.rs`.

use std::io::{self, Read};
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use super::hashes::Stated;
use super::leaf_form::{ArrayHeader, LeafForm};
use crate::import::formats::column::{CellKind, Cells, Column, is_wanted};
use crate::import::formats::input::{Input, LOOKING_UP};
use crate::import::formats::{OpenRows, RowError, RowReader};
use crate::import::options::RowOptions;
use crate::import::sources::BadReason;
use crate::import::sources::compression::Compression;
use crate::import::sources::sample_stream::{FieldBytes, StreamPlace};
use crate::import::sources::shard::read_some;
use dlfs_base::threads::map_at_once;
use dlfs_base::{Error, Result};
use dlfs_format::format::field_type::FieldType;
use dlfs_format::format::npy;

/// The layout of the items of some shards.
#[derive(Debug, Clone)]
pub(super) struct ItemFormat {
    /// The columns of an item, in the order of their bytes.
    leaves: Vec<Leaf>,
    /// The same columns, with the kinds of their values.
    columns: Vec<Column>,
    /// Set if shards hold Arrow files in place of items.
    is_arrow: bool,
}

/// The layout of a column in an item.
#[derive(Debug, Clone)]
pub(super) struct Leaf {
    /// Name of the column.
    pub(super) name: String,
    /// Length of the bytes, or the way to find it.
    pub(super) len: LeafLen,
    /// Form of the bytes.
    pub(super) form: LeafForm,
}

/// The length of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeafLen {
    /// The item states the length.
    Stated,
    /// A fixed number of bytes.
    Fixed(u32),
    /// The column is the whole item.
    Item,
}

impl ItemFormat {
    /// The format of the shards `inputs`. `may_be_arrow`: looks into the first shard, which may hold an Arrow file. If
    /// `options` select a column of arrays, reads shards to find the types of arrays: all local shards, or the
    /// beginning of the first shard in a store.
    ///
    /// # Errors
    /// A shard does not open.
    pub(super) fn new(
        leaves: Vec<Leaf>,
        inputs: &[Input],
        may_be_arrow: bool,
        options: &RowOptions,
    ) -> Result<ItemFormat> {
        let is_arrow = match inputs.first().filter(|_| may_be_arrow) {
            Some(input) => {
                let is_arrow = Shard::open(input, Some(0))?.is_arrow();
                input.check()?;
                is_arrow
            }
            None => false,
        };
        let mut format = ItemFormat { leaves, columns: Vec::new(), is_arrow };
        let is_unknown = |leaf: &Leaf| {
            leaf.form.known() == CellKind::Nothing
                && is_wanted(&Column::new(&leaf.name, CellKind::Bytes), options)
        };
        let looked_at: &[Input] = match inputs.first() {
            _ if is_arrow || !format.leaves.iter().any(is_unknown) => &[],
            Some(first) if first.object.is_some() => &inputs[..1],
            _ => inputs,
        };
        let mut kinds: Vec<CellKind> = format.leaves.iter().map(|leaf| leaf.form.known()).collect();
        for found in map_at_once(LOOKING_UP, looked_at, |input| format.arrays(input))? {
            kinds.iter_mut().zip(found).for_each(|(all, found)| unite(all, found));
        }
        let columns = format.leaves.iter().zip(kinds);
        format.columns = columns.map(|(leaf, kind)| Column::new(&leaf.name, kind)).collect();
        Ok(format)
    }

    /// Finds the kind of the arrays in each column of a shard; `Nothing` for a column without arrays. The kind is
    /// bytes if arrays differ in more than the first dimension, or no type of a field has their shape. A bad item is
    /// reported when it is read as a row.
    fn arrays(&self, input: &Input) -> Result<Vec<CellKind>> {
        let mut kinds = vec![CellKind::Nothing; self.leaves.len()];
        let is_whole = input.object.is_none();
        let mut shard = Shard::open(input, (!is_whole).then_some(0))?;
        let end = shard.at + LOOKED_AT_BYTES;
        while (is_whole || shard.at < end)
            && let Ok(Some(item)) = shard.next_item()
        {
            let Ok(ranges) = self.ranges(&item) else { continue };
            for ((leaf, range), kind) in self.leaves.iter().zip(ranges).zip(&mut kinds) {
                let Ok(Some(header)) = leaf.form.header(&item[range]) else { continue };
                unite(kind, type_of(&header).map_or(CellKind::Bytes, CellKind::Elements));
            }
        }
        input.check()?;
        Ok(kinds)
    }

    /// The byte ranges of the columns in an item.
    fn ranges(&self, item: &[u8]) -> Result<Vec<Range<usize>>, BadReason> {
        let stated = self.leaves.iter().filter(|leaf| leaf.len == LeafLen::Stated).count();
        let lens = item.as_chunks::<4>().0.iter().take(stated);
        let mut lens = lens.map(|len| u32::from_le_bytes(*len) as usize);
        let mut at = 4 * stated;
        let mut ranges = Vec::with_capacity(self.leaves.len());
        for leaf in &self.leaves {
            let len = match leaf.len {
                LeafLen::Fixed(len) => len as usize,
                LeafLen::Stated => lens.next().unwrap_or(usize::MAX),
                LeafLen::Item => item.len(),
            };
            let end = at.checked_add(len).filter(|end| *end <= item.len());
            let end = end.ok_or(BadReason::Syntax("the item ends within its columns"))?;
            ranges.push(at..end);
            at = end;
        }
        let what = "the item has more bytes than its columns";
        BadReason::Syntax(what).unless(at == item.len()).map(|()| ranges)
    }

    /// Splits an item into cells. Arrays without a common type become `.npy` files.
    fn cells(&self, item: Vec<u8>, cells: &mut Cells) -> Result<(), BadReason> {
        let ranges = self.ranges(&item)?;
        let item = Arc::new(item);
        cells.clear();
        for ((leaf, column), mut range) in self.leaves.iter().zip(&self.columns).zip(ranges) {
            if let Some(header) = leaf.form.header(&item[range.clone()])? {
                range.start += header.len;
                check(&header, &column.kind, range.len(), &leaf.name)?;
                if let CellKind::Bytes = column.kind {
                    let mut file = npy::header(header.element, &header.shape);
                    file.extend_from_slice(&item[range]);
                    cells.push(Some(file.into()));
                    continue;
                }
            }
            cells.push(Some(FieldBytes::Shared(item.clone(), range)));
        }
        Ok(())
    }
}

/// The type of the arrays of a column, from one header; other arrays may differ in the first dimension.
fn type_of(header: &ArrayHeader) -> Option<FieldType> {
    let dims = header.shape.iter().map(|dim| u32::try_from(*dim).ok());
    let dims: Vec<u32> = dims.collect::<Option<_>>()?;
    let (is_free, dims) = match &dims[..] {
        [] => (false, Vec::new()),
        [_, dims @ ..] => (true, dims.to_vec()),
    };
    FieldType::new(header.element, is_free, dims).ok()
}

/// Combines the kinds of two arrays: if they differ, arrays become `.npy` files, which are bytes.
fn unite(all: &mut CellKind, found: CellKind) {
    if *all == CellKind::Nothing {
        *all = found;
    } else if found != CellKind::Nothing && found != *all {
        *all = CellKind::Bytes;
    }
}

/// Checks that an array's length fits its shape, and that it has the column's type.
fn check(header: &ArrayHeader, kind: &CellKind, len: usize, name: &str) -> Result<(), BadReason> {
    let each = u64::from(header.element.len_bytes());
    let needed = header.shape.iter().try_fold(each, |len, dim| len.checked_mul(*dim));
    let what = match kind {
        CellKind::Elements(kind)
            if header.element != kind.element() || !kind.fits(&header.shape) =>
        {
            let shape = &header.shape;
            let element = header.element.name();
            format!(
                "is {kind} at the beginning of the first shard, and {element}{shape:?} here: import a local copy of \
                 the shards, all of which are looked at, or take other columns with --fields"
            )
        }
        _ if needed != Some(len as u64) => {
            format!("has {len} bytes for a shape of {:?}", header.shape)
        }
        _ => return Ok(()),
    };
    Err(BadReason::field(name, what))
}

/// The table of offsets of a shard, set when the first reader of a part of the shard begins. `None`: the shard is
/// compressed, so its table has no offsets in the file.
pub(super) type Table = Arc<OnceLock<Option<Vec<u32>>>>;

/// The items of one shard.
pub(super) struct ItemRows {
    format: Arc<ItemFormat>,
    input: Input,
    /// The length, hashes and number of items that the index states.
    stated: Stated,
    table: Table,
    /// The open shard, once reading has begun.
    shard: Option<Shard>,
}

impl ItemRows {
    /// The items of the shard `input`, which is opened here only if it holds an Arrow file. `ahead_bytes`: bytes to
    /// request ahead from a store; `None`: the store's own window.
    ///
    /// # Errors
    /// The shard does not open, or its table of offsets is broken.
    pub(super) fn open(
        input: &Input,
        format: Arc<ItemFormat>,
        stated: Stated,
        table: &Table,
        ahead_bytes: Option<u64>,
    ) -> Result<OpenRows> {
        if format.is_arrow {
            let shard = Shard::open(input, ahead_bytes)?;
            stated.check_items(shard.items(), input)?;
            shard.into_arrow(input)
        } else {
            let input = input.clone();
            let table = table.clone();
            let columns = format.columns.clone();
            Ok((columns, Box::new(ItemRows { format, input, stated, table, shard: None })))
        }
    }

    /// The shard from item `first` on, for a reader of a part of it; `None`: it is compressed.
    fn part(&self, first: u64) -> Result<Option<Shard>> {
        let table = match self.table.get() {
            Some(table) => table,
            None => {
                let read = read_table(&self.input)?;
                self.table.get_or_init(|| read)
            }
        };
        let Some(table) = table else { return Ok(None) };
        self.stated.check_items(table.len().saturating_sub(1) as u64, &self.input)?;
        let first = usize::try_from(first).unwrap_or(usize::MAX).min(table.len() - 1);
        let end = self.input.part_end.unwrap_or(u64::MAX);
        let last = table.partition_point(|at| u64::from(*at) <= end);
        let ends: Vec<u32> = table[first..last.max(first + 1)].iter().rev().copied().collect();
        let at = u64::from(table[first]);
        Ok(Some(Shard { from: self.input.read_counted(at)?, at, ends }))
    }
}

impl RowReader for ItemRows {
    fn begin(&mut self, from: StreamPlace) -> Result<()> {
        let first = from.record;
        if self.input.part_end.is_some() {
            self.shard = self.part(first)?;
        } else {
            // Hashes are of the whole shard, so a reader of a part cannot check them.
            self.stated.check(&self.input)?;
        }
        if self.shard.is_none() {
            let mut shard = Shard::open(&self.input, (first > 0).then_some(0))?;
            self.stated.check_items(shard.items(), &self.input)?;
            if first > 0 {
                shard.leave_out(first, &self.input)?;
            }
            self.shard = Some(shard);
        }
        Ok(())
    }

    fn place(&self, _: u64) -> StreamPlace {
        let offset = self.shard.as_ref().map_or(0, |shard| shard.at);
        StreamPlace { offset, ..StreamPlace::default() }
    }

    fn next_row(&mut self, cells: &mut Cells) -> Result<bool, RowError> {
        let Some(shard) = &mut self.shard else { return Ok(false) };
        let item = shard.next_item().map_err(RowError::File)?;
        let Some(item) = item else { return Ok(false) };
        Ok(self.format.cells(item, cells).map(|()| true)?)
    }
}

/// A shard that is read front to back.
struct Shard {
    /// The bytes from the next item on, decompressed.
    from: Box<dyn Read + Send>,
    /// Offset of the next item.
    at: u64,
    /// The rest of the table of offsets, reversed: the last entry is the beginning of the next item.
    ends: Vec<u32>,
}

impl Shard {
    /// Opens the shard `input`. `ahead_bytes`: bytes to request ahead from a store; `None`: the store's own window.
    fn open(input: &Input, ahead_bytes: Option<u64>) -> Result<Shard> {
        let mut shard = Shard { from: input.read_plain(ahead_bytes)?, at: 0, ends: Vec::new() };
        let read = shard.read_table();
        input.check()?;
        read.map(|()| shard).map_err(|error| no_table(error, input))
    }

    /// Reads the table of offsets. Memory grows with the bytes read, not with the stated number of items.
    fn read_table(&mut self) -> io::Result<()> {
        let mut word = [0; 4];
        self.from.read_exact(&mut word)?;
        let len = table_bytes(word) - 4;
        let mut table = Vec::new();
        self.from.by_ref().take(len).read_to_end(&mut table)?;
        if table.len() as u64 != len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.at = 4 + len;
        self.ends = offsets(&table)?;
        let first = u64::from(self.ends[0]);
        self.ends.reverse();
        io::copy(&mut self.from.by_ref().take(first - self.at), &mut io::sink())?;
        self.at = first;
        Ok(())
    }

    /// The number of items, before the first one is read.
    fn items(&self) -> u64 {
        self.ends.len().saturating_sub(1) as u64
    }

    /// Returns whether an Arrow file follows the table, instead of items.
    fn is_arrow(&mut self) -> bool {
        let mut head = [0; ARROW_MAGIC.len()];
        let are_empty = self.ends.len() > 1 && self.ends.first() == self.ends.last();
        are_empty
            && read_some(&mut self.from, &mut head).is_ok_and(|read| read == head.len())
            && head == *ARROW_MAGIC
    }

    /// The rows of the Arrow file that follows the table.
    fn into_arrow(mut self, input: &Input) -> Result<OpenRows> {
        let is_arrow = self.is_arrow();
        input.check()?;
        if !is_arrow {
            return Err(input.bad("the first shard holds rows of Arrow, and this one does not"));
        }
        // An Arrow file holds its rows as a stream, and a footer after them.
        let (columns, rows) = super::ipc::stream(self.from, input, false)?;
        Ok((columns, Box::new(rows)))
    }

    /// Skips `items` items, or all that are left; `input` is the shard's input.
    fn leave_out(&mut self, items: u64, input: &Input) -> Result<()> {
        let left = self.ends.len().saturating_sub(usize::try_from(items).unwrap_or(usize::MAX));
        self.ends.truncate(left.max(1));
        self.at = self.ends.last().map_or(self.at, |begin| u64::from(*begin));
        self.from = input.read_plain_from(self.at)?;
        Ok(())
    }

    /// The next item; `None` after the last.
    fn next_item(&mut self) -> Result<Option<Vec<u8>>, BadReason> {
        self.ends.pop();
        let Some(end) = self.ends.last() else {
            // Read to the end: the compressor's checksum comes last.
            let behind = io::copy(&mut self.from, &mut io::sink());
            behind.map_err(|error| BadReason::Decoder(error.to_string()))?;
            return Ok(None);
        };
        let len = u64::from(*end) - self.at;
        let mut item = Vec::new();
        let read = self.from.by_ref().take(len).read_to_end(&mut item);
        let read = read.map_err(|error| BadReason::Decoder(error.to_string()))?;
        BadReason::Truncated("the shard ends within an item").unless(read as u64 == len)?;
        self.at += len;
        Ok(Some(item))
    }
}

/// Reads the table of offsets of the shard `input`, and little more; `None`: it is compressed.
fn read_table(input: &Input) -> Result<Option<Vec<u32>>> {
    let len = input.len_bytes()?;
    let mut head = vec![0; len.min(TABLE_BYTES) as usize];
    input.read_at(0, &mut head)?;
    if Compression::of(&head).is_some() {
        return Ok(None);
    }
    let no_table = |kind: io::ErrorKind| no_table(kind.into(), input);
    let word = head.first_chunk().ok_or_else(|| no_table(io::ErrorKind::UnexpectedEof))?;
    let table = table_bytes(*word);
    if table > len {
        return Err(no_table(io::ErrorKind::UnexpectedEof));
    }
    let read = head.len();
    head.resize(table as usize, 0);
    if read < head.len() {
        input.read_at(read as u64, &mut head[read..])?;
    }
    offsets(&head[4..]).map(Some).map_err(|error| no_table(error.kind()))
}

/// The length of a table of offsets that begins with this word, and of the word.
fn table_bytes(word: [u8; 4]) -> u64 {
    4 + 4 * (u64::from(u32::from_le_bytes(word)) + 1)
}

/// The offsets of a table, at least one; they do not fall, and the first is behind the table.
fn offsets(table: &[u8]) -> io::Result<Vec<u32>> {
    let offsets: Vec<u32> =
        table.as_chunks::<4>().0.iter().map(|at| u32::from_le_bytes(*at)).collect();
    let is_behind = offsets.first().is_some_and(|first| *first as usize >= 4 + table.len());
    let is_well = is_behind && offsets.is_sorted();
    is_well.then_some(offsets).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The error for a shard whose table of offsets cannot be read.
fn no_table(error: io::Error, input: &Input) -> Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => input.bad("the shard ends within its table of offsets"),
        io::ErrorKind::InvalidData => input.bad("the shard's table of offsets is broken"),
        _ => Error::from(error).path(&input.path),
    }
}

/// Bytes that are read at once to find the table of offsets: that of 16,382 items.
const TABLE_BYTES: u64 = 64 << 10;
/// Bytes of a shard in a store that are read to find the types of its arrays.
const LOOKED_AT_BYTES: u64 = 256 << 10;
/// The magic bytes at the beginning of an Arrow file, before its messages.
const ARROW_MAGIC: &[u8; 8] = b"ARROW1\0\0";
