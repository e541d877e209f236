//! Rows of Parquet files.
//!
//! A thread decodes batches of rows, one batch ahead of the reader.

use std::sync::Arc;

use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder,
};
use parquet::errors::ParquetError;
use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};
use parquet::file::reader::{ChunkReader, Length};

use super::ahead::{AheadRows, Batch, Batches};
use super::arrow_cells;
use super::blocks::Blocks;
use super::guard::caught;
use super::pages::PageFile;
use super::stated_pages::StatedPages;
use crate::import::formats::column::{Column, is_wanted};
use crate::import::formats::input::Input;
use crate::import::formats::rows::RowReader;
use crate::import::options::RowOptions;
use crate::import::sources::sample_stream::StreamPlace;
use dlfs_base::{Error, ErrorKind, Result};

/// Opens the Parquet file `input`.
///
/// # Errors
/// The file cannot be read, or is not a Parquet file.
pub(super) fn open(input: &Input, options: &RowOptions) -> Result<Box<dyn RowReader>> {
    match &input.object {
        Some(object) => {
            let blocks = Blocks::new(object.clone(), input.expansion.clone());
            // A part is short: little is requested behind it.
            let is_part = input.part_end.is_some();
            let columns = |columns| blocks.set_places(if is_part { usize::MAX } else { columns });
            rows_of(blocks.clone(), input, options, columns)
        }
        None => {
            let file = PageFile::open(&input.path).map_err(|error| input.named(error))?;
            input.expansion.read(file.len());
            rows_of(file, input, options, |_| {})
        }
    }
}

/// Opens the rows of `from`; calls `of_columns` with the number of columns that are read.
fn rows_of(
    from: impl ChunkReader + 'static,
    input: &Input,
    options: &RowOptions,
    of_columns: impl FnOnce(usize),
) -> Result<Box<dyn RowReader>> {
    let path = input.path.clone();
    let bad = move |what: String| {
        let text = format!("the Parquet file cannot be read: {what}");
        Error::new(ErrorKind::BadSource, text).path(&path)
    };
    let from = StatedPages(from, input.expansion.clone());
    let batch_bytes = if input.part_end.is_some() { PART_BATCH_BYTES } else { BATCH_BYTES };
    let (columns, decoder) = caught(|| decoder(from, options, batch_bytes)).map_err(&bad)?;
    of_columns(columns.len());
    let decode = move |from: StreamPlace| caught(|| batches(decoder, from.left_out)).map_err(bad);
    Ok(Box::new(AheadRows::new(columns, decode)))
}

/// The batches after the first `rows` rows. Does not read row groups that are skipped as a whole.
fn batches<F: ChunkReader + 'static>(
    decoder: ParquetRecordBatchReaderBuilder<F>,
    rows: u64,
) -> Result<Batches, String> {
    let mut decoder = decoder;
    if rows > 0 {
        let mut before = rows;
        let mut first = 0;
        for group in decoder.metadata().row_groups() {
            let Some(left) = before.checked_sub(group.num_rows().max(0) as u64) else { break };
            (before, first) = (left, first + 1);
        }
        let groups = (first..decoder.metadata().num_row_groups()).collect();
        let before = usize::try_from(before).map_err(|_| "it has too many rows".to_owned())?;
        decoder = decoder.with_row_groups(groups).with_offset(before);
    }
    let stated = decoder.metadata().file_metadata().num_rows().max(0) as u64;
    let reader = decoder.build().map_err(|error| error.to_string())?;
    let mut found = rows;
    let mut each = reader.map(|rows| rows.map_err(|error| error.to_string()));
    let mut is_over = false;
    let each = std::iter::from_fn(move || {
        if let Some(rows) = each.next() {
            found += rows.as_ref().map_or(0, |rows| rows.num_rows() as u64);
            return Some(rows.map(|rows| Batch { rows, at: None }));
        }
        let differs = !std::mem::replace(&mut is_over, true) && found != stated;
        differs.then(|| Err(format!("it states {stated} rows, and has {found}")))
    });
    Ok(Batches { each: Box::new(each), unwanted: 0 })
}

fn decoder<F: ChunkReader + 'static>(
    from: F,
    options: &RowOptions,
    batch_bytes: i64,
) -> Result<(Vec<Column>, ParquetRecordBatchReaderBuilder<F>), String> {
    let text = |error: ParquetError| error.to_string();
    let of_file = ArrowReaderMetadata::load(&from, ArrowReaderOptions::new()).map_err(text)?;
    check_rows(of_file.metadata())?;
    let columns = arrow_cells::columns(of_file.schema());
    let views = Arc::new(arrow_cells::with_views(of_file.schema()));
    let views = ArrowReaderOptions::new().with_schema(views);
    // The decoder has no views for some types; then decode without views, which copies.
    let metadata = ArrowReaderMetadata::try_new(of_file.metadata().clone(), views);
    let metadata = metadata.unwrap_or(of_file);
    let mut builder = ParquetRecordBatchReaderBuilder::new_with_metadata(from, metadata);
    let rows_at_once = rows_at_once(builder.metadata(), batch_bytes);
    // A requested column that is missing is reported later, by name.
    let read = (0..columns.len()).filter(|at| is_wanted(&columns[*at], options));
    let read: Vec<usize> = read.collect();
    if read.len() < columns.len() {
        let mask = ProjectionMask::roots(builder.parquet_schema(), read.iter().copied());
        builder = builder.with_projection(mask);
    }
    let columns = read.into_iter().map(|at| columns[at].clone()).collect();
    Ok((columns, builder.with_batch_size(rows_at_once)))
}

/// Checks that the row groups have as many rows as the footer states, since the decoder would read no more than that.
fn check_rows(metadata: &ParquetMetaData) -> Result<(), String> {
    let groups = metadata.row_groups().iter().map(|group| i128::from(group.num_rows()));
    let stated = metadata.file_metadata().num_rows();
    let groups = groups.sum::<i128>();
    if i128::from(stated) == groups {
        Ok(())
    } else {
        Err(format!("it states {stated} rows, and its row groups {groups}"))
    }
}

/// The number of rows that have so many bytes on average.
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

const BATCH_BYTES: i64 = 8 << 20;
/// Decoding goes a batch further than what is wanted.
const PART_BATCH_BYTES: i64 = 1 << 20;
const MAX_ROWS: i64 = 1 << 16;
