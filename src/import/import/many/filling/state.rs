//! The state of an image that ranks fill: whether it is prepared or complete, and the chunks that are durable, as the
//! records on the namespaces list them. A new image is prepared here, too.

use std::collections::{BTreeSet, HashMap};
use std::fs::OpenOptions;

use serde::{Deserialize, Serialize};

use crate::import::device::{Meaning, open_for_import, open_image, or_remove};
use crate::import::journal::Journal;
use crate::import::lease::Lease;
use crate::import::marks::{Lane, Mark, MarkState};
use crate::import::media::Media;
use crate::import::options::{ImportOptions, Onto, PlacementOrder};
use crate::import::prepare::{self, ImportState};
use dlfs_base::buf::IoBuf;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::format::Pack;
use dlfs_format::format::geometry::CELL_BYTES;
use dlfs_io::address::Address;
use dlfs_io::qpair::ConnectOptions;
use dlfs_io::qpair::file::FileCalls;

/// The state of an image that is to hold some shards.
pub(super) enum ImageState {
    /// No namespace is prepared, or not all of them.
    Unprepared,
    /// All namespaces are prepared: ranks may write chunks.
    Prepared(PreparedImage),
    /// The image is committed.
    Complete,
}

/// An image that ranks may fill.
pub(super) struct PreparedImage {
    pub(super) media: Media,
    /// The journal of namespace 0.
    pub(super) journal: Journal,
    /// The lane of each namespace.
    pub(super) lanes: Vec<Lane>,
}

/// Reads the state of the image on `media`, which is to hold the shards whose hash is `source`.
///
/// # Errors
/// `Refused`: the image holds other data, or `media` are not the namespaces that it was prepared with, in their order.
/// Errors of reading.
pub(super) fn read_state(media: &Media, source: u64) -> Result<ImageState> {
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
            Some(journal) if journal.layout.uuid == newest.layout.uuid => Ok(ImageState::Complete),
            _ => refused("the image belongs to other shards, or has changed since it was filled"),
        };
    }
    let Some(journal) = ours else {
        return match journal {
            None => Ok(ImageState::Unprepared),
            Some(_) => refused("an import of other shards or other data has begun in this image"),
        };
    };
    if (journal.layout.num_namespaces, journal.namespace) != (media.len(), 0) {
        return refused("the image was begun with other namespaces, or in another order");
    }
    let mut lanes = Vec::new();
    for namespace in 0..media.len() {
        let found = Journal::read(&mut channel, namespace)?;
        match Mark::read(&mut channel, namespace)? {
            Some(Mark { plan, namespace: marked, state: MarkState::Written(lane) })
                if found == Some(Journal { namespace, ..journal })
                    && (plan, marked) == (journal.layout.uuid.0, namespace) =>
            {
                lanes.push(lane);
            }
            _ => return Ok(ImageState::Unprepared),
        }
    }
    Ok(ImageState::Prepared(PreparedImage { media: media.clone(), journal, lanes }))
}

/// Prepares the namespaces of a new image, unless another process has done so.
///
/// # Errors
/// As [`read_state`]; `Refused`: a namespace holds other data. `Busy`: another process has a namespace. Errors of
/// opening and writing.
pub(super) fn prepare_namespaces(
    image: &[Address],
    source: u64,
    connect: &ConnectOptions,
) -> Result<()> {
    for address in image {
        // `open_for_writing` would remove a file that it created if it fails, when another rank may use the file.
        if let Address::Path(path) = address
            && !path.exists()
        {
            let new = OpenOptions::new().write(true).create(true).truncate(false).open(path);
            new.map_err(|error| Error::from(error).path(path))?;
        }
    }
    let media = open_for_writing(image, connect)?;
    let options = ImportOptions {
        onto: Onto::Resume,
        placement: PlacementOrder::Source,
        pack: Pack::Tight,
        ..ImportOptions::default()
    };
    let lease = Lease::take(&media, options.lease)?;
    if !matches!(read_state(&media, source)?, ImageState::Unprepared) {
        return Ok(());
    }
    // No process writes chunks before all namespaces have marks.
    let state = prepare::prepare(media, &options, source)?;
    state.begin()?;
    let ImportState { media, journal, .. } = state;
    let lane = Lane { last_record: 0, end_cell: journal.layout.first_cell() };
    let mut channel = media.channel();
    for namespace in 0..media.len() {
        lease.check()?;
        Mark { plan: journal.layout.uuid.0, namespace, state: MarkState::Written(lane) }
            .write(&mut channel)?;
    }
    Ok(())
}

/// Opens the namespaces for reading, and reads the state of their image. It is unprepared if one of them is a path
/// without a file, or an empty file.
///
/// # Errors
/// As [`read_state`]; errors of opening.
pub(super) fn state_at(
    image: &[Address],
    source: u64,
    connect: &ConnectOptions,
) -> Result<ImageState> {
    let is_there = |address: &Address| match address {
        Address::Path(path) => {
            std::fs::metadata(path).is_ok_and(|it| !it.is_file() || it.len() > 0)
        }
        _ => true,
    };
    if !image.iter().all(is_there) {
        return Ok(ImageState::Unprepared);
    }
    let connect = ConnectOptions { writable: false, ..connect.clone() };
    read_state(&Media::for_reading(open_image(image, &connect, Meaning::Nothing)?)?, source)
}

/// Opens the namespaces for writing.
///
/// # Errors
/// `Busy`: another process writes one of them. Errors of opening.
pub(super) fn open_for_writing(image: &[Address], connect: &ConnectOptions) -> Result<Media> {
    or_remove(|created| {
        Media::new(open_for_import(image, Onto::Resume, connect, FileCalls::Pread, created)?)
    })
}

/// The location of consecutive samples of a shard.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FilledChunk {
    /// The number of the shard.
    pub shard: u64,
    /// The number of the first sample in the shard.
    pub first: u64,
    /// The number of samples.
    pub count: u32,
    /// Checksums of the pieces of all large samples, sample by sample.
    pub pieces: Vec<u32>,
    /// The number of the attempt to write the shard.
    pub(super) attempt: u64,
    /// The first cell of the data.
    pub(super) cell: u64,
    /// The number of cells of the data.
    pub(super) cells: u64,
    /// The number of free cells in front of the data, for the chunk's header.
    pub(super) header_cells: u64,
    /// The index of the namespace, set when the record is read.
    #[serde(skip)]
    pub(super) namespace: u16,
}

/// The chunks that are durable, by shard.
pub struct Filled {
    media: Media,
    /// The chunks of each shard, of all attempts, in no order.
    chunks: HashMap<u64, Vec<FilledChunk>>,
    /// The ranks that have written a record.
    ranks: BTreeSet<u32>,
}

impl Filled {
    /// Reads the records of all namespaces.
    ///
    /// # Errors
    /// `Corrupt`: a record is damaged. Errors of reading.
    pub(super) fn read(prepared: &PreparedImage) -> Result<Filled> {
        let PreparedImage { media, journal, lanes } = prepared;
        let media = media.clone();
        let mut channel = media.channel();
        let mut chunks = HashMap::<u64, Vec<FilledChunk>>::new();
        let mut ranks = BTreeSet::new();
        for (namespace, &lane) in (0..).zip(lanes) {
            let plan_and_namespace = (journal.layout.uuid.0, namespace);
            let records = lane.records(&mut channel, plan_and_namespace, &damaged)?;
            for (record, lane) in records {
                let previous = record.previous;
                let (rank, found): (u32, Vec<FilledChunk>) = record.content;
                let is_in_lane = |chunk: &FilledChunk| {
                    let start = chunk.cell.checked_sub(chunk.header_cells);
                    let end = chunk.cell.checked_add(chunk.cells);
                    start.is_some_and(|start| start >= previous.end_cell)
                        && end.is_some_and(|end| end <= lane.last_record)
                };
                let is_behind_journal = previous.end_cell >= journal.layout.first_cell();
                if !is_behind_journal || !found.iter().all(is_in_lane) {
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

    /// Returns whether a rank has written a record.
    pub(super) fn has_rank(&self, rank: u32) -> bool {
        self.ranks.contains(&rank)
    }

    /// Returns whether any chunk of a shard is durable.
    pub fn has(&self, shard: u64) -> bool {
        self.chunks.contains_key(&shard)
    }

    /// The chunks of a shard of `samples` samples, in the shard's order. `None`: no attempt to write it is complete.
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

    /// Reads the data of a chunk: the records of its samples, one after the other. Their checksums are not verified.
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
