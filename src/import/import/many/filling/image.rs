//! The state of an image that is filled, its preparation, the records of filled chunks, and the commit.

use std::collections::{BTreeSet, HashMap};
use std::fs::OpenOptions;

use serde::{Deserialize, Serialize};

use crate::import::columns::columns_of;
use crate::import::commit::{self, once};
use crate::import::device::{Meaning, open_for_import, open_image, or_remove};
use crate::import::edit::trim;
use crate::import::journal::{Journal, Lane, Mark, State};
use crate::import::lease::Lease;
use crate::import::media::Media;
use crate::import::options::{ImportOptions, Onto, PlacementOrder};
use crate::import::prepare::{self, ImportState};
use crate::import::read_back::check_chunks;
use dlfs_base::buf::IoBuf;
use dlfs_base::units::{SampleId, Slot};
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::directory::{Directory, DirectoryBuilder};
use dlfs_format::format::builder::{ChunkBuilder, ChunkLocation};
use dlfs_format::format::columns::{ColumnTable, Value};
use dlfs_format::format::geometry::CELL_BYTES;
use dlfs_format::format::{CellRange, ChunkHeader, ChunkSpec, Pack, SampleMeta};
use dlfs_io::address::Address;
use dlfs_io::qpair::ConnectOptions;
use dlfs_io::qpair::file::FileCalls;

/// The state of an image.
pub(super) enum Look {
    /// Nothing is prepared, or not all of it.
    Nothing,
    /// It is prepared.
    Begun(Begun),
    /// It is committed.
    Complete,
}

/// An image that is being filled: its journal of namespace 0, and the lane of each namespace.
pub(super) struct Begun {
    media: Media,
    pub(super) journal: Journal,
    pub(super) lanes: Vec<Lane>,
}

/// Looks at an image that is to hold the shards of identity `source`.
///
/// # Errors
/// `Refused`: it holds other data, or these are not all of its namespaces, in their order. Errors of reading.
pub(super) fn look(media: &Media, source: u64) -> Result<Look> {
    let mut channel = media.channel();
    let address = media.address(0);
    let refused = |text: &'static str| {
        let error = Error::new(ErrorKind::Refused, text).target(address.clone());
        Err(error.hint("name another image, or remove this one: its samples are not read again"))
    };
    let journal = Journal::read(&mut channel, 0)?;
    let ours = journal.filter(|journal| journal.fingerprint == source);
    if let Some(newest) = channel.superblocks(0)?.newest() {
        return match ours {
            Some(journal) if journal.layout.uuid == newest.layout.uuid => Ok(Look::Complete),
            _ => refused("the image belongs to other shards, or has changed since it was filled"),
        };
    }
    let Some(journal) = ours else {
        return match journal {
            None => Ok(Look::Nothing),
            Some(_) => refused("an import of other shards or other data has begun in this image"),
        };
    };
    if (journal.layout.num_namespaces, journal.namespace) != (media.len(), 0) {
        return refused("the image was begun with other namespaces, or in another order");
    }
    let mut lanes = Vec::new();
    for namespace in 0..media.len() {
        let own = Journal::read(&mut channel, namespace)?;
        match Mark::read(&mut channel, namespace)? {
            Some(Mark { plan, namespace: marked, state: State::Written(lane) })
                if own == Some(Journal { namespace, ..journal })
                    && (plan, marked) == (journal.layout.uuid.0, namespace) =>
            {
                lanes.push(lane);
            }
            _ => return Ok(Look::Nothing),
        }
    }
    Ok(Look::Begun(Begun { media: media.clone(), journal, lanes }))
}

/// Prepares the namespaces of a new image, unless another process has done so.
///
/// # Errors
/// As [`look`]; `Refused`: there is other data. `Busy`: another process has a namespace.
pub(super) fn prepare(image: &[Address], source: u64, connect: &ConnectOptions) -> Result<()> {
    for address in image {
        // Not left to opening, which removes what it has created when it fails: another rank may have it by then.
        if let Address::Path(path) = address
            && !path.exists()
        {
            let new = OpenOptions::new().write(true).create(true).truncate(false).open(path);
            new.map_err(|error| Error::from(error).path(path))?;
        }
    }
    let media = open(image, connect)?;
    let options = ImportOptions {
        onto: Onto::Resume,
        placement: PlacementOrder::Source,
        pack: Pack::Tight,
        ..ImportOptions::default()
    };
    let lease = Lease::take(&media, options.lease)?;
    if !matches!(look(&media, source)?, Look::Nothing) {
        return Ok(());
    }
    // No process writes chunks before all marks are there.
    let state = prepare::prepare(media, &options, source)?;
    state.begin()?;
    let ImportState { media, journal, .. } = state;
    let lane = Lane { last_record: 0, end_cell: journal.layout.first_cell() };
    let mut channel = media.channel();
    for namespace in 0..media.len() {
        lease.check()?;
        Mark { plan: journal.layout.uuid.0, namespace, state: State::Written(lane) }
            .write(&mut channel)?;
    }
    Ok(())
}

/// Opens the namespaces for reading, and looks at them. There is nothing if one of them is no file yet, or an empty one.
///
/// # Errors
/// As [`look`]; errors of opening.
pub(super) fn look_at(image: &[Address], source: u64, connect: &ConnectOptions) -> Result<Look> {
    let is_there = |address: &Address| match address {
        Address::Path(path) => {
            std::fs::metadata(path).is_ok_and(|it| !it.is_file() || it.len() > 0)
        }
        _ => true,
    };
    if !image.iter().all(is_there) {
        return Ok(Look::Nothing);
    }
    let connect = ConnectOptions { writable: false, ..connect.clone() };
    look(&Media::for_reading(open_image(image, &connect, Meaning::Nothing)?)?, source)
}

/// Opens the namespaces for writing.
///
/// # Errors
/// `Busy`: another process writes one of them. Errors of opening.
pub(super) fn open(image: &[Address], connect: &ConnectOptions) -> Result<Media> {
    or_remove(|created| {
        Media::new(open_for_import(image, Onto::Resume, connect, FileCalls::Pread, created)?)
    })
}

/// Consecutive samples of a shard, on a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FilledChunk {
    /// The number of the shard.
    pub shard: u64,
    /// The number of the first sample in the shard.
    pub first: u64,
    /// The number of samples.
    pub count: u32,
    /// The checksums of the pieces of all large records.
    pub pieces: Vec<u32>,
    /// The attempt to write the shard.
    pub(super) attempt: u64,
    /// The first cell of the data, the cells of the data, and the free ones in front of it.
    pub(super) cell: u64,
    pub(super) cells: u64,
    pub(super) header_cells: u64,
    #[serde(skip)]
    pub(super) namespace: u16,
}

/// The chunks that are durable, by shard.
pub struct Filled {
    media: Media,
    chunks: HashMap<u64, Vec<FilledChunk>>,
    /// The ranks that have begun.
    ranks: BTreeSet<u32>,
}

impl Filled {
    /// Reads the records of all namespaces.
    ///
    /// # Errors
    /// `Corrupt`: one is damaged. Errors of reading.
    pub(super) fn read(begun: &Begun) -> Result<Filled> {
        let Begun { media, journal, lanes } = begun;
        let media = media.clone();
        let mut channel = media.channel();
        let mut chunks = HashMap::<u64, Vec<FilledChunk>>::new();
        let mut ranks = BTreeSet::new();
        for (namespace, &lane) in (0..).zip(lanes) {
            let here = (journal.layout.uuid.0, namespace);
            let records = lane.records::<(u32, Vec<FilledChunk>)>(&mut channel, here, &damaged)?;
            for ((rank, found), lane, previous) in records {
                let lies_here = |chunk: &FilledChunk| {
                    let start = chunk.cell.checked_sub(chunk.header_cells);
                    let end = chunk.cell.checked_add(chunk.cells);
                    start.is_some_and(|start| start >= previous.end_cell)
                        && end.is_some_and(|end| end <= lane.last_record)
                };
                let is_it = previous.end_cell >= journal.layout.first_cell();
                if !is_it || !found.iter().all(lies_here) {
                    return Err(damaged(lane.last_record));
                }
                ranks.insert(rank);
                for chunk in found {
                    chunks.entry(chunk.shard).or_default().push(FilledChunk { namespace, ..chunk });
                }
            }
        }
        Ok(Filled { media, chunks, ranks })
    }

    /// Returns whether a rank has begun to fill the image.
    pub(super) fn has_rank(&self, rank: u32) -> bool {
        self.ranks.contains(&rank)
    }

    /// Returns whether there is any chunk of a shard.
    pub fn has(&self, shard: u64) -> bool {
        self.chunks.contains_key(&shard)
    }

    /// The chunks of a shard of `samples` samples, in their order; `None`: it is not durable as a whole.
    pub fn shard(&self, shard: u64, samples: u64) -> Option<Vec<FilledChunk>> {
        if samples == 0 {
            return Some(Vec::new());
        }
        let mut chunks = self.chunks.get(&shard)?.clone();
        chunks.sort_by_key(|chunk| (chunk.attempt, chunk.first));
        let follows = |next, chunk: &FilledChunk| {
            (chunk.first == next).then(|| next + u64::from(chunk.count))
        };
        let is_whole =
            |attempt: &&[FilledChunk]| attempt.iter().try_fold(0, follows) == Some(samples);
        let whole = chunks.chunk_by(|a, b| a.attempt == b.attempt).find(is_whole);
        whole.map(<[FilledChunk]>::to_vec)
    }

    /// The records of a chunk, one after the other. They are not verified.
    ///
    /// # Errors
    /// Errors of reading.
    pub fn chunk(&self, chunk: &FilledChunk) -> Result<IoBuf> {
        if chunk.cells == 0 {
            return Ok(IoBuf::empty());
        }
        let mut channel = self.media.channel();
        channel.read(chunk.namespace, chunk.cell * CELL_BYTES, (chunk.cells * CELL_BYTES) as usize)
    }
}

fn damaged(cell: u64) -> Error {
    let text = format!("the record of filled chunks in cell {cell} is damaged");
    let error = Error::new(ErrorKind::Corrupt, text);
    error.hint("remove the image, which is not complete, and begin anew")
}

/// Commits the image that `ranks` fill, unless it is complete. Safe to repeat. `samples` gives the directory of all
/// samples, whose ids ascend with shards and samples in a shard, and the number of samples of each shard.
///
/// # Errors
/// `Busy`: a rank still writes, or another commits. `NotFound`: a rank has not begun, or shards are missing in the
/// image. Errors of `samples`, and of writing.
pub fn commit(
    image: &[Address],
    source: u64,
    ranks: u32,
    connect: &ConnectOptions,
    samples: impl FnOnce() -> Result<(Directory, Vec<u64>)>,
) -> Result<()> {
    let media = open(image, connect)?;
    let leases = Lease::take_all(&media, ImportOptions::default().lease)?;
    let begun = match look(&media, source)? {
        Look::Complete => return Ok(()),
        Look::Begun(begun) => begun,
        Look::Nothing => return Err(missing(image)),
    };
    let journal = &begun.journal;
    let done = once(journal, &media, &leases, || {
        let filled = Filled::read(&begun)?;
        if !(0..ranks).all(|rank| filled.has_rank(rank)) {
            return Err(missing(image));
        }
        let (directory, counts) = samples()?;
        let chunks = (0..).zip(counts).map(|(shard, count)| filled.shard(shard, count));
        let chunks = chunks.collect::<Option<Vec<_>>>().ok_or_else(|| missing(image))?.concat();
        let made = write_headers(&media, &leases, journal, &chunks, &directory)?;
        let mut space = prepare::free_space(&media, &journal.layout, None);
        for (namespace, lane) in (0..).zip(&begun.lanes) {
            space.reserve(CellRange { namespace, cell: 0, cells: lane.end_cell });
        }
        commit::commit(&media, &leases, made, &mut space)
    })?;
    trim(&media, &done, &leases[0]) // records, and attempts that do not count
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
        builder.add_chunk(&header)?;
    }
    builder.set_classes(directory.classes().to_vec());
    builder.delete(&directory.deleted_ranges());
    let made = builder.finish(journal.generation, journal.time_ns)?;
    if !media.checks_writes() {
        check_chunks(&mut channel, &made, 0)?;
    }
    Ok(made)
}

/// The header of a chunk, whose first sample has this slot and id.
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
    let lens = directory.lens_bytes(ids.clone());
    let samples = ids.zip(&names).zip(lens).enumerate().map(|(row, ((id, name), len))| {
        let id = SampleId(id);
        let values = if rows.is_empty() { Default::default() } else { rows.row(row) };
        // A sample that an import leaves out counts as deleted, and nobody reads it.
        let crc32c = directory.extent(id).map_or(0, |extent| extent.crc32c);
        (SampleMeta { id, name, label: directory.label(id), values }, len, crc32c)
    });
    Ok(ChunkBuilder::described(spec, first, samples, chunk.pieces.clone(), location)?)
}

fn missing(image: &[Address]) -> Error {
    Error::new(ErrorKind::NotFound, "not all shards are in the image yet")
        .target(Address::list_to_string(image))
        .hint("start the job again: it goes on from what is there")
}
