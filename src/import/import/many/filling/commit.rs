//! The commit of a filled image: it writes the headers of all chunks, and makes them one generation.

use crate::import::columns::columns_of;
use crate::import::commit::commit as commit_generation;
use crate::import::committed::free_space;
use crate::import::journal::Journal;
use crate::import::lease::Lease;
use crate::import::many::commit_once;
use crate::import::many::filling::state::{
    Filled, FilledChunk, ImageState, open_for_writing, read_state,
};
use crate::import::media::Media;
use crate::import::options::ImportOptions;
use crate::import::read_back::check_heads;
use crate::import::trim::trim;
use dlfs_base::buf::IoBuf;
use dlfs_base::units::{SampleId, Slot};
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::directory::{Directory, DirectoryBuilder};
use dlfs_format::format::builder::{ChunkBuilder, ChunkLocation};
use dlfs_format::format::columns::{ColumnTable, Value};
use dlfs_format::format::{CellRange, ChunkHeader, ChunkSpec, SampleMeta};
use dlfs_io::address::Address;
use dlfs_io::qpair::ConnectOptions;

/// Commits the image that `ranks` ranks fill with the shards whose hash is `source`, unless the image is complete. Safe
/// to repeat.
///
/// `samples` returns the directory of all samples, and the number of samples of each shard. Ids in the directory are in
/// the order of shards, and of samples in a shard. The chunks of that directory are not used.
///
/// # Errors
/// `Busy`: a rank still writes, or another process commits. `NotFound`: a rank has not begun, or shards are missing in
/// the image. As `read_state`; errors of `samples`, and of writing.
pub fn commit(
    image: &[Address],
    source: u64,
    ranks: u32,
    connect: &ConnectOptions,
    samples: impl FnOnce() -> Result<(Directory, Vec<u64>)>,
) -> Result<()> {
    let media = open_for_writing(image, connect)?;
    let leases = Lease::take_all(&media, ImportOptions::default().lease)?;
    let prepared = match read_state(&media, source)? {
        ImageState::Complete => return Ok(()),
        ImageState::Prepared(prepared) => prepared,
        ImageState::Unprepared => return Err(missing(image)),
    };
    let journal = &prepared.journal;
    let done = commit_once(journal, &media, &leases, || {
        let filled = Filled::read(&prepared)?;
        if !(0..ranks).all(|rank| filled.has_rank(rank)) {
            return Err(missing(image));
        }
        let (directory, counts) = samples()?;
        let chunks = (0..).zip(counts).map(|(shard, count)| filled.shard(shard, count));
        let chunks = chunks.collect::<Option<Vec<_>>>().ok_or_else(|| missing(image))?.concat();
        let made = write_headers(&media, &leases, journal, &chunks, &directory)?;
        let mut space = free_space(&media, &journal.layout, None);
        for (namespace, lane) in (0..).zip(&prepared.lanes) {
            space.reserve(CellRange { namespace, cell: 0, cells: lane.end_cell });
        }
        commit_generation(&media, &leases, made, &mut space)
    })?;
    trim(&media, &done, &leases[0]) // frees records, and attempts that do not count
}

/// Writes the headers of all chunks, and returns the directory of the image.
fn write_headers(
    media: &Media,
    leases: &[Lease],
    journal: &Journal,
    chunks: &[FilledChunk],
    directory: &Directory,
) -> Result<Directory> {
    let layout = journal.layout;
    let columns = columns_of(Some(directory));
    let spec = journal.spec(directory.fields().to_vec(), directory.field_types().clone(), columns);
    let mut builder = DirectoryBuilder::new(layout);
    let mut heads = Vec::new();
    let mut channel = media.channel();
    for (sequence, chunk) in (0..).zip(chunks) {
        leases.iter().try_for_each(Lease::check)?;
        let &FilledChunk { namespace, cell, .. } = chunk;
        let location = ChunkLocation { sequence, time_ns: journal.time_ns, namespace, cell };
        let header = header_of(&spec, directory, chunk, builder.next_slot(), location)?;
        let head = header.head();
        assert!(head.cell >= cell - chunk.header_cells, "a header is within its bound");
        let mut front = IoBuf::zeroed(head.data_start() as usize);
        header.encode_into(&mut front);
        channel.write(namespace, layout.offset_of(head.cell)?, front)?;
        heads.push(*head);
        builder.add_chunk(&header)?;
    }
    builder.set_classes(directory.classes().to_vec());
    builder.delete(&directory.deleted_ranges());
    let made = builder.finish(journal.generation, journal.time_ns)?;
    if !media.checks_writes() {
        check_heads(&mut channel, &heads, "start the job again: it goes on from what is there")?;
    }
    Ok(made)
}

/// The header of a chunk. `first` is the slot of its first sample, and as a number also its id.
fn header_of(
    spec: &ChunkSpec,
    directory: &Directory,
    chunk: &FilledChunk,
    first: Slot,
    location: ChunkLocation,
) -> Result<ChunkHeader> {
    let ids = first.0..first.0 + u64::from(chunk.count);
    let mut rows = ColumnTable::new(&spec.columns);
    let mut names = Vec::new();
    for id in ids.clone() {
        names.push(directory.name(SampleId(id))?.unwrap_or_default());
        rows.push(|column| {
            directory.column(&column.name).map_or(Value::None, |column| column.get(id))
        });
    }
    // A sample that an import would leave out is in the chunk, too, and counts as deleted.
    let sums = directory.lens_bytes(ids.clone()).zip(directory.checksums(ids.clone()));
    let samples =
        ids.zip(&names).zip(sums).enumerate().map(|(row, ((id, name), (len, crc32c)))| {
            let id = SampleId(id);
            let values = if rows.is_empty() { Default::default() } else { rows.row(row) };
            (SampleMeta { id, name, label: directory.label(id), values }, len, crc32c)
        });
    Ok(ChunkBuilder::described(spec, first, samples, chunk.pieces.clone(), location)?)
}

fn missing(image: &[Address]) -> Error {
    Error::new(ErrorKind::NotFound, "not all shards are in the image yet")
        .target(Address::list_to_string(image))
        .hint("start the job again: it goes on from what is there")
}
