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
//!
//! Read this file first, then `image.rs`: the state of the image, its records, and the commit.

mod image;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::import::journal::{Journal, Lane};
use crate::import::lease::Lease;
use crate::import::media::Channel;
use crate::import::options::ImportOptions;
use dlfs_base::buf::IoBuf;
use dlfs_base::{Error, ErrorKind, Result, random};
use dlfs_format::format::ImageLayout;
use dlfs_io::address::Address;
use dlfs_io::qpair::ConnectOptions;

use image::{Begun, Look, look_at, open, prepare};
pub use image::{Filled, FilledChunk, commit};

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
