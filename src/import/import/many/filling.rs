//! An image that is filled with shards while others read them: in any order, by ranks that have a namespace each, or
//! share one.
//!
//! # What it is
//! A [`Filling`] is the right of one rank to write one namespace, for itself or in turns with other ranks. It takes the
//! records of consecutive samples of a shard as [`FilledChunk`]s, and leaves room in front of each for the chunk's
//! header, since names and labels of an import are known only when all shards are. A *record* behind the chunks lists
//! them, and the mark of the namespace names the last record: what it lists is durable. [`commit`] writes the headers,
//! and makes the chunks one generation.
//!
//! # What it is not
//! It reads no shard and knows no names: `dlfs-shards` does.
//!
//! # Invariants
//! - It is committed when each rank has begun: one that comes late finds it incomplete, and reads its share of shards.
//! - A shard counts once one attempt to write it is durable as a whole. Of several attempts one is committed, so no
//!   sample is there twice; the cells of the others become free.
//! - The commit is a function of records and shards: after a crash it is run again, and writes the same bytes.
//! - The journal keeps the identity of the shards. An image of others is refused, also after the commit.

use std::collections::{BTreeSet, HashMap};
use std::fs::OpenOptions;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::import::columns::columns_of;
use crate::import::commit::{self, once};
use crate::import::device::{Meaning, open_for_import, open_image, or_remove};
use crate::import::edit::trim;
use crate::import::journal::{Journal, Lane, Mark, State};
use crate::import::lease::Lease;
use crate::import::media::{Channel, Media};
use crate::import::options::{ImportOptions, Onto, PlacementOrder};
use crate::import::prepare::{self, ImportState};
use crate::import::read_back::check_heads;
use dlfs_base::buf::IoBuf;
use dlfs_base::units::{SampleId, Slot};
use dlfs_base::{Error, ErrorKind, Result, random};
use dlfs_format::directory::{Directory, DirectoryBuilder};
use dlfs_format::format::builder::{ChunkBuilder, ChunkLocation};
use dlfs_format::format::columns::{ColumnTable, Value};
use dlfs_format::format::geometry::CELL_BYTES;
use dlfs_format::format::{CellRange, ChunkHeader, ChunkSpec, ImageLayout, Pack, SampleMeta};
use dlfs_io::address::Address;
use dlfs_io::qpair::ConnectOptions;
use dlfs_io::qpair::file::FileCalls;

/// The right of a rank to fill one namespace of an image. Dropping it keeps what was written, for the next one.
pub struct Filling {
    place: Place,
    layout: ImageLayout,
    filled: Filled,
    attempts: AtomicU64,
    /// `None`: it has ended.
    hold: Mutex<Option<Hold>>,
}

/// A rank's hold of its namespace, and its chunks that wait for it.
struct Hold {
    /// The namespace, if the rank has it for itself. Otherwise it shares the namespace with other ranks.
    own: Option<Box<Writing>>,
    /// The chunks that wait for the rank's next turn, each with the bytes of its header.
    waiting: Vec<(FilledChunk, u64, IoBuf)>,
    /// Their memory.
    bytes: usize,
    /// The end of the last record, and the time that it took, with the wait for a turn.
    ended: Instant,
    took: Duration,
}

/// The image that a rank fills.
struct Place {
    image: Vec<Address>,
    source: u64,
    rank: u32,
    connect: ConnectOptions,
}

impl Place {
    /// Takes the namespace for writing, and returns the state of the image then. Another rank may have it for a moment.
    /// `None`: the image is complete.
    fn take(&self, limit: Duration) -> Result<Option<(Writing, Begun)>> {
        let until = Instant::now() + limit;
        loop {
            match self.try_take() {
                Err(error) if error.kind() == ErrorKind::Busy && Instant::now() < until => {}
                taken => return taken,
            }
            std::thread::sleep(BUSY_PAUSE);
        }
    }

    fn try_take(&self) -> Result<Option<(Writing, Begun)>> {
        let Place { image, source, rank, connect } = self;
        match look_at(image, *source, connect)? {
            Look::Complete => return Ok(None),
            Look::Begun(_) => {}
            Look::Nothing => prepare(image, *source, connect)?,
        }
        let namespace = (*rank as usize % image.len().max(1)) as u16;
        let own = open(&image[usize::from(namespace)..][..1], connect)?;
        let lease = Lease::take(&own, ImportOptions::default().lease)?;
        let Look::Begun(begun) = look_at(image, *source, connect)? else {
            return Err(Error::new(ErrorKind::Busy, "the image was committed just now"));
        };
        let own = own.placed(namespace, begun.journal.layout.num_namespaces)?;
        let lane = begun.lanes[usize::from(namespace)];
        let writing = Writing {
            channel: own.channel(),
            lease,
            journal: Journal { namespace, ..begun.journal },
            rank: *rank,
            lane,
            next_cell: lane.end_cell,
            chunks: Vec::new(),
        };
        Ok(Some((writing, begun)))
    }
}

impl Filling {
    /// Begins to fill the image at `image` with the shards of identity `source`, or goes on. Rank r writes namespace r
    /// modulo their number. `None`: the image is complete.
    ///
    /// # Errors
    /// `Refused`: the image holds other data, or other shards. `Busy`: another process fills this namespace. Errors of
    /// opening.
    pub fn begin(
        image: &[Address],
        source: u64,
        rank: u32,
        connect: &ConnectOptions,
    ) -> Result<Option<Filling>> {
        let place = Place { image: image.to_vec(), source, rank, connect: connect.clone() };
        let Some((mut writing, begun)) = place.take(BUSY_LIMIT)? else { return Ok(None) };
        let filled = Filled::read(&begun)?;
        if !filled.has_rank(rank) {
            writing.explained(Writing::record)?; // it is not committed before
        }
        let hold = Hold {
            own: Some(writing.into()),
            waiting: Vec::new(),
            bytes: 0,
            ended: Instant::now(),
            took: Duration::ZERO,
        };
        Ok(Some(Filling {
            place,
            layout: begun.journal.layout,
            filled,
            attempts: AtomicU64::new(random::number()?),
            hold: Some(hold).into(),
        }))
    }

    /// Gives the namespace back between writes: other ranks write it, too.
    pub fn in_turns(self) -> Filling {
        self.hold.lock().iter_mut().for_each(|hold| hold.own = None);
        self
    }

    /// Returns whether the image at `image` is complete.
    ///
    /// # Errors
    /// `Refused`: it holds other data, or other shards. Errors of opening.
    pub fn is_complete(image: &[Address], source: u64, connect: &ConnectOptions) -> Result<bool> {
        Ok(matches!(look_at(image, source, connect)?, Look::Complete))
    }

    /// The layout of the image.
    pub fn layout(&self) -> ImageLayout {
        self.layout
    }

    /// The shards that were durable at the beginning.
    pub fn filled(&self) -> &Filled {
        &self.filled
    }

    /// An empty chunk at the beginning of a shard, for another attempt to write it.
    pub fn begin_shard(&self, shard: u64) -> FilledChunk {
        let attempt = self.attempts.fetch_add(1, Ordering::Relaxed);
        FilledChunk { shard, attempt, ..FilledChunk::default() }
    }

    /// Writes a chunk with these records, one after the other and padded to a multiple of 4,096 bytes, behind room for
    /// its header.
    ///
    /// # Errors
    /// Errors of writing. What is durable stays. `Busy`: other ranks have a shared namespace for long.
    pub fn push(&self, chunk: FilledChunk, header_bytes: u64, data: IoBuf) -> Result<()> {
        let mut hold = self.hold.lock();
        let hold = hold.as_mut().ok_or_else(ended)?;
        if let Some(own) = &mut hold.own {
            return own.explained(|own| own.write(chunk, header_bytes, data));
        }
        hold.bytes += data.len().max(self.layout.chunk_size_bytes as usize);
        hold.waiting.push((chunk, header_bytes, data));
        if hold.bytes < MOST_BYTES { Ok(()) } else { hold.mark(&self.place) }
    }

    /// Says that a shard is complete: it becomes durable soon, unless a record was written just now. Records take at
    /// most a fifth of the time.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn end_shard(&self) -> Result<()> {
        let mut hold = self.hold.lock();
        let hold = hold.as_mut().ok_or_else(ended)?;
        if hold.ended.elapsed() < 4 * hold.took { Ok(()) } else { hold.mark(&self.place) }
    }

    /// Makes everything durable, and gives the namespace back.
    ///
    /// # Errors
    /// As [`push`](Self::push). A shared namespace that was not to be had may be tried again.
    pub fn end(&self) -> Result<()> {
        let mut hold = self.hold.lock();
        let Some(open) = &mut *hold else { return Ok(()) };
        let marked = open.mark(&self.place);
        if marked.is_ok() || open.own.is_some() {
            *hold = None;
        }
        marked
    }
}

fn ended() -> Error {
    Error::new(ErrorKind::Interrupted, "the image is filled no longer")
}

impl Drop for Filling {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::warn!("{}", error.report());
        }
    }
}

impl Hold {
    /// Makes all chunks so far durable. Waits for a turn if the namespace is shared; without one, the chunks stay for
    /// the next turn.
    fn mark(&mut self, place: &Place) -> Result<()> {
        let begun = Instant::now();
        match &mut self.own {
            Some(own) if own.chunks.is_empty() => return Ok(()),
            Some(own) => own.explained(Writing::record)?,
            None if self.waiting.is_empty() => return Ok(()),
            None => {
                let taken = place.take(TURN_LIMIT)?;
                let waiting = std::mem::take(&mut self.waiting);
                self.bytes = 0;
                // A complete image has other attempts of these shards.
                if let Some((mut writing, _)) = taken {
                    for (chunk, header_bytes, data) in waiting {
                        writing.explained(|writing| writing.write(chunk, header_bytes, data))?;
                    }
                    writing.explained(Writing::record)?;
                }
            }
        }
        self.ended = Instant::now();
        self.took = self.ended - begun;
        Ok(())
    }
}

/// A namespace that is being filled: chunks one behind the other, and records that make them durable.
struct Writing {
    channel: Channel,
    lease: Lease,
    /// The journal of the namespace.
    journal: Journal,
    rank: u32,
    /// The last record, and the cell behind it.
    lane: Lane,
    /// The next free cell.
    next_cell: u64,
    /// The chunks behind the last record.
    chunks: Vec<FilledChunk>,
}

impl Writing {
    fn write(&mut self, chunk: FilledChunk, header_bytes: u64, data: IoBuf) -> Result<()> {
        let layout = &self.journal.layout;
        let header_cells = layout.cells_of(header_bytes);
        let cells = layout.cells_of(data.len() as u64);
        let cell = self.next_cell + header_cells;
        self.lease.check()?;
        let namespace = self.journal.namespace;
        let offset = layout.offset_of(cell)?;
        self.channel.media.grow(namespace, offset + data.len() as u64)?;
        if !data.is_empty() {
            self.channel.write(namespace, offset, data)?;
        }
        self.next_cell = cell + cells;
        self.chunks.push(FilledChunk { cell, cells, header_cells, ..chunk });
        Ok(())
    }

    /// Writes a record, also without chunks: it says that the rank has begun.
    fn record(&mut self) -> Result<()> {
        self.lease.check()?;
        let here = (self.journal.layout.uuid.0, self.journal.namespace);
        let content = (self.rank, &self.chunks);
        self.lane = self.lane.append(&mut self.channel, here, self.next_cell, &content)?;
        self.next_cell = self.lane.end_cell;
        self.chunks.clear();
        Ok(())
    }

    /// Runs `work`, whose error then says which image it is and what to do.
    fn explained(&mut self, work: impl FnOnce(&mut Writing) -> Result<()>) -> Result<()> {
        let done = work(self);
        self.lease.explain(done).map_err(|error| {
            let hint =
                "begin again once there is room, and nobody else writes: what is there stays";
            let text = "the shards cannot be written into the image";
            let address = self.channel.media.address(self.journal.namespace);
            Error::new(error.kind(), text).source(error).target(address).hint(hint)
        })
    }
}

/// The longest wait for another process that has the image, and the pause between two attempts.
const BUSY_LIMIT: Duration = Duration::from_secs(10);
const BUSY_PAUSE: Duration = Duration::from_millis(20);
/// The most bytes that wait for a turn.
const MOST_BYTES: usize = 32 << 20;
/// The longest wait for a turn: as long as many ranks take for theirs on a slow disk.
const TURN_LIMIT: Duration = Duration::from_secs(60);

/// The state of an image.
enum Look {
    /// Nothing is prepared, or not all of it.
    Nothing,
    /// It is prepared.
    Begun(Begun),
    /// It is committed.
    Complete,
}

/// An image that is being filled: its journal of namespace 0, and the lane of each namespace.
struct Begun {
    media: Media,
    journal: Journal,
    lanes: Vec<Lane>,
}

/// Looks at an image that is to hold the shards of identity `source`.
///
/// # Errors
/// `Refused`: it holds other data, or these are not all of its namespaces, in their order. Errors of reading.
fn look(media: &Media, source: u64) -> Result<Look> {
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
fn prepare(image: &[Address], source: u64, connect: &ConnectOptions) -> Result<()> {
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

/// Opens the namespaces for reading, and looks at them. Nothing is there if one of them is no file yet, or is empty.
///
/// # Errors
/// As [`look`]; errors of opening.
fn look_at(image: &[Address], source: u64, connect: &ConnectOptions) -> Result<Look> {
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
fn open(image: &[Address], connect: &ConnectOptions) -> Result<Media> {
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
    attempt: u64,
    /// The first cell of the data, the cells of the data, and the free ones in front of it.
    cell: u64,
    cells: u64,
    header_cells: u64,
    #[serde(skip)]
    namespace: u16,
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
    fn read(begun: &Begun) -> Result<Filled> {
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
    fn has_rank(&self, rank: u32) -> bool {
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
    // A sample that an import leaves out counts as deleted; its bytes are there.
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{FilledChunk, Filling};
    use dlfs_base::buf::IoBuf;
    use dlfs_io::address::Address;
    use dlfs_io::qpair::ConnectOptions;

    #[test]
    fn chunks_that_get_no_turn_are_written_in_the_next_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shared.dlfs");
        let image: Vec<Address> = vec![path.to_str().unwrap().parse().unwrap()];
        let begin = || Filling::begin(&image, 7, 0, &ConnectOptions::default()).unwrap().unwrap();
        let filling = begin().in_turns();
        let chunk = FilledChunk { count: 1, ..filling.begin_shard(3) };
        filling.push(chunk, 4096, IoBuf::zeroed(4096)).unwrap();
        // The image is out of reach for a while.
        let away = folder.path().join("away");
        fs::rename(&path, &away).unwrap();
        fs::create_dir(&path).unwrap();
        filling.end().unwrap_err();
        fs::remove_dir(&path).unwrap();
        fs::rename(&away, &path).unwrap();
        assert!(!begin().filled().has(3));
        filling.end().unwrap();
        assert!(begin().filled().shard(3, 1).is_some());
    }
}
