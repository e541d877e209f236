//! Rows of Parquet files.
//!
//! A thread decodes batches of rows, one batch ahead of the reader; no batch has rows of two row groups.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader,
    ParquetRecordBatchReaderBuilder,
};
use parquet::errors::ParquetError;
use parquet::file::metadata::page_index::PageIndexBuilder;
use parquet::file::metadata::{
    ColumnChunkMetaData, OffsetIndexBuilder, PageIndexPolicy, ParquetMetaData, RowGroupMetaData,
};
use parquet::file::page_index::offset_index::{OffsetIndexMetaData, PageLocation};
use parquet::file::reader::{ChunkReader, Length};

use super::ahead::{AheadRows, Batch, Batches};
use super::arrays;
use super::blocks::Blocks;
use super::page_file::PageFile;
use super::page_headers::StatedPages;
use super::panics::guarded;
use crate::import::formats::OpenRows;
use crate::import::formats::column::{Column, is_wanted};
use crate::import::formats::input::{InStore, Input};
use crate::import::options::RowOptions;
use crate::import::sources::expansion::Expansion;
use crate::import::sources::sample_stream::StreamPlace;
use dlfs_base::Result;

/// Opens the Parquet file `input`.
///
/// # Errors
/// The file cannot be read, or is not a Parquet file.
pub(super) fn open(input: &Input, options: &RowOptions, footer: &Footer) -> Result<OpenRows> {
    match &input.object {
        Some(object) => {
            let blocks = footer.blocks(object, &input.expansion);
            let blocks = blocks.map_err(|error| input.named(error))?;
            let plan = blocks.clone();
            rows_of(blocks, input, options, move |groups| {
                let at_once = groups.iter().map(|of| of.iter().map(len).sum::<u64>()).max();
                let columns = groups.iter().map(Vec::len).max();
                plan.plan(groups.concat(), columns.unwrap_or(0), at_once.unwrap_or(0));
            })
        }
        None => {
            let file = PageFile::open(&input.path).map_err(|error| input.named(error))?;
            input.expansion.read(file.len());
            rows_of(file, input, options, |_| {})
        }
    }
}

/// The footer of an object, kept for its next opening if there is room.
#[derive(Default)]
pub(super) struct Footer(OnceLock<Bytes>);

impl Footer {
    /// Opens the object: requests its last bytes, unless the footer was kept.
    fn blocks(&self, of: &InStore, expansion: &Expansion) -> io::Result<Blocks> {
        let blocks = |end| Blocks::new(of.clone(), expansion.clone(), end);
        if let Some(end) = self.0.get() {
            expansion.read(end.len() as u64);
            return Ok(blocks(end.clone()));
        }
        let len = of.object.len_bytes;
        if len == 0 {
            return Ok(blocks(Bytes::new())); // no Parquet file: the decoder says so
        }
        let end = blocks(Bytes::new()).fetch(len.saturating_sub(FOOTER_BYTES)..len)?;
        self.keep(&end);
        Ok(blocks(end))
    }

    /// Keeps the footer, if `end` has all of it, and there is room.
    fn keep(&self, end: &Bytes) {
        // The last 8 bytes are the length of what is in front of them, and a mark.
        let Some(&[a, b, c, d, ..]) = end.last_chunk::<8>() else { return };
        let len = u32::from_le_bytes([a, b, c, d]) as usize + 8;
        let Some(start) = end.len().checked_sub(len) else { return };
        if KEPT_FOOTERS.load(Ordering::Relaxed) + len <= MOST_KEPT_FOOTERS
            && self.0.set(Bytes::copy_from_slice(&end[start..])).is_ok()
        {
            KEPT_FOOTERS.fetch_add(len, Ordering::Relaxed);
        }
    }
}

impl Drop for Footer {
    fn drop(&mut self) {
        let len = self.0.get().map_or(0, Bytes::len);
        KEPT_FOOTERS.fetch_sub(len, Ordering::Relaxed);
    }
}

/// Bytes of all footers that are kept.
static KEPT_FOOTERS: AtomicUsize = AtomicUsize::new(0);

/// Opens the rows of `from`. Before they are read, calls `plan` with the bytes of the columns that are read, for each
/// row group.
fn rows_of(
    from: impl ChunkReader + Clone + 'static,
    input: &Input,
    options: &RowOptions,
    plan: impl FnOnce(Vec<Vec<Range<u64>>>) + 'static,
) -> Result<OpenRows> {
    let named = input.clone();
    let bad = move |what: String| named.bad(format!("the Parquet file cannot be read: {what}"));
    let found = Some(Arc::clone(&input.pages));
    let from = StatedPages { from, expansion: input.expansion.clone(), is_indexed: false, found };
    let batch_bytes = if input.part_end.is_some() { PART_BATCH_BYTES } else { BATCH_BYTES };
    let (columns, decoder) =
        guarded(|| GroupDecoder::open(from, options, batch_bytes)).map_err(&bad)?;
    let groups = groups(decoder.metadata.metadata());
    let is_part = input.part_end.is_some();
    let most_rows = input.part_rows;
    let decode = move |from: StreamPlace| {
        guarded(|| batches(decoder, is_part, (from.record, most_rows), plan)).map_err(bad)
    };
    let mut rows = AheadRows::new(true, decode);
    rows.groups = groups;
    Ok((columns, Box::new(rows)))
}

/// A file whose row groups are decoded one after the other.
struct GroupDecoder<F> {
    from: StatedPages<F>,
    /// The footer, with an offset index if pages are looked up.
    metadata: ArrowReaderMetadata,
    /// The columns that are read.
    read: ProjectionMask,
    /// Rows of a batch.
    rows_at_once: usize,
}

/// Some rows of a row group.
struct GroupRows {
    /// The index of the row group.
    group: usize,
    /// Number of rows of the group before these.
    skipped: usize,
    /// Number of these rows.
    rows: usize,
    /// Set if these are all rows of the group.
    is_whole: bool,
}

/// The batches of the rows after the first `rows` rows, at most `most_rows` (`None`: all). `is_part`: few rows are
/// wanted, so only their pages are read if it is known where these are. Calls `plan` as [`rows_of`] says.
fn batches<F: ChunkReader + Clone + 'static>(
    mut decoder: GroupDecoder<F>,
    is_part: bool,
    (rows, most_rows): (u64, Option<u64>),
    plan: impl FnOnce(Vec<Vec<Range<u64>>>),
) -> Result<Batches, String> {
    let wanted = wanted(decoder.metadata.metadata(), rows, most_rows)?;
    if is_part && !wanted.iter().all(|of| of.is_whole) {
        decoder.find_pages(&wanted);
    }
    plan(wanted.iter().map(|of| decoder.ranges(of)).collect());
    let metadata = decoder.metadata.metadata();
    let stated = metadata.file_metadata().num_rows().max(0) as u64;
    let mut left = wanted.into_iter();
    let mut open = left.next().map(|rows| decoder.reader(&rows)).transpose()?;
    let mut found = rows;
    let mut is_over = most_rows.is_some();
    let each = std::iter::from_fn(move || {
        loop {
            if let Some(rows) = open.as_mut().and_then(Iterator::next) {
                found += rows.as_ref().map_or(0, |rows| rows.num_rows() as u64);
                let batch = rows.map(|rows| Batch { rows, at: None });
                return Some(batch.map_err(|error| error.to_string()));
            }
            match left.next().map(|rows| decoder.reader(&rows)) {
                Some(Ok(reader)) => open = Some(reader),
                Some(Err(what)) => return Some(Err(what)),
                None => break,
            }
        }
        open = None;
        let differs = !std::mem::replace(&mut is_over, true) && found != stated;
        differs.then(|| Err(format!("it states {stated} rows, and has {found}")))
    });
    Ok(Box::new(each))
}

/// The rows of each row group that are among `most_rows` rows after the first `rows` rows.
fn wanted(
    metadata: &ParquetMetaData,
    rows: u64,
    most_rows: Option<u64>,
) -> Result<Vec<GroupRows>, String> {
    let end = rows.saturating_add(most_rows.unwrap_or(u64::MAX));
    let mut wanted = Vec::new();
    let mut first = 0_u64;
    for (group, of) in metadata.row_groups().iter().enumerate() {
        let next = first.saturating_add(of.num_rows().max(0) as u64);
        if next > rows && first < end {
            let begin = first.max(rows);
            let count = |rows| usize::try_from(rows).map_err(|_| "it has too many rows".to_owned());
            let skipped = count(begin - first)?;
            let rows = count(end.min(next) - begin)?;
            let is_whole = begin == first && end >= next;
            wanted.push(GroupRows { group, skipped, rows, is_whole });
        }
        first = next;
    }
    Ok(wanted)
}

/// The first row and the first byte of each row group that has rows; empty if the groups' bytes do not ascend.
fn groups(metadata: &ParquetMetaData) -> Vec<(u64, u64)> {
    let mut groups = Vec::new();
    let mut first = 0_u64;
    for group in metadata.row_groups() {
        let rows = group.num_rows().max(0) as u64;
        let begin = group.columns().iter().map(bytes_of).map(|bytes| bytes.start).min();
        if rows > 0 {
            groups.push((first, begin.unwrap_or(0)));
        }
        first = first.saturating_add(rows);
    }
    let ascend = groups.first().is_some_and(|(_, begin)| *begin > 0)
        && groups.is_sorted_by(|(_, a), (_, b)| a < b);
    if ascend { groups } else { Vec::new() }
}

/// The bytes of a column in a row group, as the footer states them.
fn bytes_of(column: &ColumnChunkMetaData) -> Range<u64> {
    let start = column.dictionary_page_offset().unwrap_or(column.data_page_offset()).max(0) as u64;
    start..start.saturating_add(column.compressed_size().max(0) as u64)
}

/// The bytes of the pages that have the rows `of`, and of the dictionary before all pages. `all`: the bytes of the
/// column in the row group.
fn pages_of(of: &GroupRows, pages: &[PageLocation], all: Range<u64>) -> Vec<Range<u64>> {
    let row = |page: &PageLocation| page.first_row_index.max(0) as usize;
    let first = pages.partition_point(|page| row(page) <= of.skipped).saturating_sub(1);
    let end = pages.partition_point(|page| row(page) < of.skipped + of.rows);
    let begin = |page: usize| pages.get(page).map_or(all.end, |page| page.offset.max(0) as u64);
    vec![all.start..begin(0), begin(first)..begin(end)]
}

/// The offset index of a column of `group`, made from the pages that were `found`. `None`: it is not known which rows
/// each page has.
fn offsets(
    column: &ColumnChunkMetaData,
    group: &RowGroupMetaData,
    found: &BTreeMap<u64, u64>,
) -> Option<OffsetIndexMetaData> {
    let bytes = bytes_of(column);
    let pages = || found.range(bytes.clone());
    let rows = pages().try_fold(0_u64, |sum, (_, values)| sum.checked_add(*values))?;
    // A row of lists has any number of values.
    if column.column_descr().max_rep_level() > 0 || i64::try_from(rows) != Ok(group.num_rows()) {
        return None;
    }
    let ends = pages().skip(1).map(|(begin, _)| *begin).chain([bytes.end]);
    let mut index = OffsetIndexBuilder::new();
    for ((&begin, &values), end) in pages().zip(ends) {
        index.append_row_count(values as i64); // at most those of the group
        index.append_offset_and_size(begin as i64, i32::try_from(end - begin).ok()?);
    }
    Some(index.build())
}

/// The length of a range.
fn len(range: &Range<u64>) -> u64 {
    range.end - range.start // an empty one was left out
}

impl<F: ChunkReader + Clone + 'static> GroupDecoder<F> {
    /// Opens a file, and returns its columns that `options` select, too.
    fn open(
        from: StatedPages<F>,
        options: &RowOptions,
        batch_bytes: i64,
    ) -> Result<(Vec<Column>, GroupDecoder<F>), String> {
        let text = |error: ParquetError| error.to_string();
        let of_file =
            ArrowReaderMetadata::load(&from.from, ArrowReaderOptions::new()).map_err(text)?;
        // The decoder would read no more rows than the footer states.
        let groups = of_file.metadata().row_groups().iter();
        let groups = groups.map(|group| i128::from(group.num_rows())).sum::<i128>();
        let stated = of_file.metadata().file_metadata().num_rows();
        if i128::from(stated) != groups {
            return Err(format!("it states {stated} rows, and its row groups {groups}"));
        }
        let columns = arrays::columns(of_file.schema());
        let views = Arc::new(arrays::with_views(of_file.schema()));
        let views = ArrowReaderOptions::new().with_schema(views);
        // The decoder has no views for some types; then decode without views, which copies.
        let metadata = ArrowReaderMetadata::try_new(of_file.metadata().clone(), views);
        let metadata = metadata.unwrap_or(of_file);
        let rows_at_once = rows_at_once(metadata.metadata(), batch_bytes);
        // A requested column that is missing is reported later, by name.
        let read = (0..columns.len()).filter(|at| is_wanted(&columns[*at], options));
        let roots: Vec<usize> = read.collect();
        let read = if roots.len() < columns.len() {
            ProjectionMask::roots(metadata.parquet_schema(), roots.iter().copied())
        } else {
            ProjectionMask::all()
        };
        let columns = roots.into_iter().map(|at| columns[at].clone()).collect();
        Ok((columns, GroupDecoder { from, metadata, read, rows_at_once }))
    }

    /// Finds the offsets of the pages of `wanted`: earlier readers may have met all of them, or the file has an offset
    /// index of all columns. Otherwise the decoder finds the pages one after the other.
    fn find_pages(&mut self, wanted: &[GroupRows]) {
        let options = ArrowReaderOptions::new().with_schema(self.metadata.schema().clone());
        let metadata = match self.met_pages(wanted) {
            Some(metadata) => ArrowReaderMetadata::try_new(Arc::new(metadata), options),
            None => {
                // All columns have one, or none is used.
                let options = options.with_offset_index_policy(PageIndexPolicy::Required);
                ArrowReaderMetadata::load(&self.from.from, options)
            }
        };
        match metadata {
            Ok(metadata) => self.metadata = metadata,
            Err(error) => tracing::debug!(%error, "the offset index of a Parquet file is not read"),
        }
    }

    /// The metadata with an offset index of the pages that readers have met; `None`: some of `wanted` are not known.
    fn met_pages(&self, wanted: &[GroupRows]) -> Option<ParquetMetaData> {
        let found = self.from.found.as_ref()?.lock();
        let metadata = self.metadata.metadata();
        let mut index = PageIndexBuilder::default();
        let leaves = metadata.file_metadata().schema_descr().num_columns();
        index.allocate_offset_indexes(metadata.num_row_groups(), leaves);
        for of in wanted.iter().filter(|of| !of.is_whole) {
            let group = metadata.row_group(of.group);
            let columns = group.columns().iter().enumerate();
            for (leaf, column) in columns.filter(|(leaf, _)| self.read.leaf_included(*leaf)) {
                index.put_offset_index(offsets(column, group, &found)?, of.group, leaf);
            }
        }
        let index = Arc::new(index.build());
        Some(ParquetMetaData::clone(metadata).into_builder().set_page_index(Some(index)).build())
    }

    /// The bytes of the columns that are read, in these rows.
    fn ranges(&self, of: &GroupRows) -> Vec<Range<u64>> {
        let metadata = self.metadata.metadata();
        let columns = metadata.row_group(of.group).columns().iter().enumerate();
        let read = columns.filter(|(leaf, _)| self.read.leaf_included(*leaf));
        let ranges = read.flat_map(|(leaf, column)| {
            let all = bytes_of(column);
            let pages = metadata.page_index().filter(|_| !of.is_whole);
            match pages.and_then(|index| index.page_locations(of.group, leaf)) {
                Some(pages) => pages_of(of, pages, all),
                None => vec![all],
            }
        });
        ranges.filter(|range| !range.is_empty()).collect()
    }

    /// The decoder of these rows.
    fn reader(&self, of: &GroupRows) -> Result<ParquetRecordBatchReader, String> {
        let mut from = self.from.clone();
        let metadata = self.metadata.clone();
        from.is_indexed = metadata.metadata().page_index().is_some_and(|index| {
            let mut leaves = 0..metadata.metadata().row_group(of.group).num_columns();
            leaves.all(|leaf| {
                !self.read.leaf_included(leaf) || index.page_locations(of.group, leaf).is_some()
            })
        });
        // Only long row groups are read in parts, by pages that have as many rows as values.
        let group = metadata.metadata().row_group(of.group);
        let is_flat = || {
            let mut columns = group.columns().iter().enumerate();
            columns.all(|(leaf, column)| {
                !self.read.leaf_included(leaf) || column.column_descr().max_rep_level() == 0
            })
        };
        from.found =
            from.found.filter(|_| group.total_byte_size() >= LONG_GROUP_BYTES && is_flat());
        let mut builder = ParquetRecordBatchReaderBuilder::new_with_metadata(from, metadata)
            .with_projection(self.read.clone())
            .with_batch_size(self.rows_at_once)
            .with_row_groups(vec![of.group]);
        if !of.is_whole {
            builder = builder.with_offset(of.skipped).with_limit(of.rows);
        }
        builder.build().map_err(|error| error.to_string())
    }
}

/// The number of rows that have `batch_bytes` bytes on average.
fn rows_at_once(metadata: &ParquetMetaData, batch_bytes: i64) -> usize {
    let groups = metadata.row_groups();
    let sum = |of: fn(&RowGroupMetaData) -> i64| {
        groups.iter().map(of).fold(0_i64, |sum, each| sum.saturating_add(each.max(0)))
    };
    let bytes = sum(RowGroupMetaData::total_byte_size);
    let rows = sum(RowGroupMetaData::num_rows);
    let each = (bytes / rows.max(1)).max(1);
    (batch_bytes / each).clamp(1, MAX_ROWS) as usize
}

/// Approximate size of a batch.
const BATCH_BYTES: i64 = 8 << 20;
/// Approximate size of a batch of a part, which is decoded a batch ahead, too.
const PART_BATCH_BYTES: i64 = 1 << 20;
/// Maximum number of rows of a batch.
const MAX_ROWS: i64 = 1 << 16;
/// Row groups from this length on may be read in parts.
const LONG_GROUP_BYTES: i64 = 2 << 20;
/// The bytes requested from an object's end, which often have the whole footer.
const FOOTER_BYTES: u64 = 64 << 10;
/// Limit of the bytes of all footers that are kept.
const MOST_KEPT_FOOTERS: usize = 32 << 20;
