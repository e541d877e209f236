//! An image that is filled with shards while others read them: in any order, by ranks that have a namespace each, or
//! share one.
//!
//! # What it is
//! A [`Filling`] is the right of one rank to write one namespace, for itself or in turns with other ranks. It takes the
//! records of consecutive samples of a shard as [`FilledChunk`]s. It leaves room for a header in front of each, since
//! the names and labels of the image are known only when all shards are. A *record* behind the chunks lists them, and
//! the mark of the namespace names the last record: the chunks of that record and of those before it are durable.
//! [`commit`] writes the headers, and makes the chunks one generation.
//!
//! # What it is not
//! It reads no shard and knows no names: `dlfs-shards` does.
//!
//! # Invariants
//! - The commit fails until each rank has written a record. So a rank that starts late finds the image incomplete, and
//!   reads its share of the shards.
//! - A shard counts once one attempt to write it is completely durable. Of several attempts one is committed, so no
//!   sample is in the image twice; the cells of the others become free.
//! - The commit is a function of records and shards: after a crash it is run again, and writes the same bytes.
//! - The journal keeps the hash of the shards. An image of other shards is refused, also after the commit.
//!
//! Read on in `state.rs`, how an image is prepared and recognised, then `commit.rs`.

mod commit;
mod state;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

pub use commit::commit;
pub use state::{Filled, FilledChunk};

use crate::import::journal::Journal;
use crate::import::lease::Lease;
use crate::import::many::filling::state::{
    ImageState, PreparedImage, open_for_writing, prepare_namespaces, state_at,
};
use crate::import::marks::Lane;
use crate::import::media::Channel;
use crate::import::options::ImportOptions;
use dlfs_base::buf::IoBuf;
use dlfs_base::{Error, ErrorKind, Result, random};
use dlfs_format::format::ImageLayout;
use dlfs_io::address::Address;
use dlfs_io::qpair::ConnectOptions;

/// The right of a rank to fill one namespace of an image. Dropping a `Filling` makes its chunks durable; the next one
/// finds them.
pub struct Filling {
    target: FillTarget,
    layout: ImageLayout,
    /// The chunks that were durable at the beginning.
    filled: Filled,
    /// The number of the next attempt to write a shard. It begins at random, so no two processes share a number.
    attempts: AtomicU64,
    /// The chunks that are not durable yet; `None` after the end. The lock is held while chunks are written, so one
    /// thread writes at a time.
    open: Mutex<Option<OpenFill>>,
}

/// The writes of a [`Filling`] that has not ended.
struct OpenFill {
    /// The namespace, if the rank has it for itself. `None`: it shares the namespace with other ranks, in turns.
    exclusive: Option<Box<Writing>>,
    /// The chunks that wait for the rank's next turn.
    waiting: Vec<WaitingChunk>,
    /// Memory of the waiting chunks, each of which counts as a full chunk at least.
    waiting_bytes: usize,
    /// The time when the last record was complete; at first, when the filling began.
    recorded_at: Instant,
    /// The time that the last record took, with the wait for a turn.
    record_took: Duration,
}

/// A chunk that waits for a turn.
struct WaitingChunk {
    chunk: FilledChunk,
    /// Maximum length of the chunk's header.
    header_bytes: u64,
    /// The records of the samples.
    data: IoBuf,
}

impl Filling {
    /// Begins or continues to fill the image at `image` with the shards whose hash is `source`. Rank r writes namespace
    /// r modulo the number of namespaces. `None`: the image is complete.
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
        let target = FillTarget { image: image.to_vec(), source, rank, connect: connect.clone() };
        let Some((mut writing, prepared)) = target.take(BUSY_LIMIT)? else { return Ok(None) };
        let filled = Filled::read(&prepared)?;
        if !filled.has_rank(rank) {
            writing.explained(Writing::record)?; // the commit needs a record of each rank
        }
        let open = OpenFill {
            exclusive: Some(writing.into()),
            waiting: Vec::new(),
            waiting_bytes: 0,
            recorded_at: Instant::now(),
            record_took: Duration::ZERO,
        };
        Ok(Some(Filling {
            target,
            layout: prepared.journal.layout,
            filled,
            attempts: AtomicU64::new(random::number()?),
            open: Some(open).into(),
        }))
    }

    /// Gives the namespace back between writes, for other ranks that write it, too.
    pub fn in_turns(self) -> Filling {
        self.open.lock().iter_mut().for_each(|open| open.exclusive = None);
        self
    }

    /// Returns whether the image at `image` is complete.
    ///
    /// # Errors
    /// `Refused`: the image holds other data, or other shards. Errors of opening.
    pub fn is_complete(image: &[Address], source: u64, connect: &ConnectOptions) -> Result<bool> {
        Ok(matches!(state_at(image, source, connect)?, ImageState::Complete))
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

    /// Writes `data`, the records of the samples of `chunk` padded to a multiple of 4,096 bytes, and leaves
    /// `header_bytes` in front for the header. If ranks share the namespace, the chunk may wait in memory for a turn.
    ///
    /// # Errors
    /// Errors of writing; durable chunks stay. `Busy`: other ranks have had a shared namespace for too long.
    /// `Interrupted`: the filling has ended.
    pub fn push(&self, chunk: FilledChunk, header_bytes: u64, data: IoBuf) -> Result<()> {
        let mut open = self.open.lock();
        let open = open.as_mut().ok_or_else(ended)?;
        if let Some(writing) = &mut open.exclusive {
            return writing.explained(|writing| writing.write(chunk, header_bytes, data));
        }
        open.waiting_bytes += data.len().max(self.layout.chunk_size_bytes as usize);
        open.waiting.push(WaitingChunk { chunk, header_bytes, data });
        if open.waiting_bytes < MAX_WAITING_BYTES { Ok(()) } else { open.record(&self.target) }
    }

    /// Ends a shard: all chunks so far become durable now, unless that would make records take more than a fifth of
    /// the time. Then they become durable with a later record.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn end_shard(&self) -> Result<()> {
        let mut open = self.open.lock();
        let open = open.as_mut().ok_or_else(ended)?;
        let is_soon = open.recorded_at.elapsed() < 4 * open.record_took;
        if is_soon { Ok(()) } else { open.record(&self.target) }
    }

    /// Makes all chunks durable, and gives the namespace back. Without effect after the end.
    ///
    /// # Errors
    /// As [`push`](Self::push). If the namespace is shared, the filling stays open after an error, and `end` may be
    /// called again.
    pub fn end(&self) -> Result<()> {
        let mut guard = self.open.lock();
        let Some(open) = &mut *guard else { return Ok(()) };
        let recorded = open.record(&self.target);
        if recorded.is_ok() || open.exclusive.is_some() {
            *guard = None;
        }
        recorded
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

/// The image that a rank fills.
struct FillTarget {
    /// The namespaces of the image, in the image's order.
    image: Vec<Address>,
    /// Hash of the shards.
    source: u64,
    rank: u32,
    connect: ConnectOptions,
}

impl FillTarget {
    /// Takes the namespace for writing, after preparing the image if it is new. Returns the image as it is then, too.
    /// Tries again for up to `limit` while another process has the namespace. `None`: the image is complete.
    ///
    /// # Errors
    /// `Busy`: another process has the namespace. As [`state_at`].
    fn take(&self, limit: Duration) -> Result<Option<(Writing, PreparedImage)>> {
        let until = Instant::now() + limit;
        loop {
            match self.try_take() {
                Err(error) if error.kind() == ErrorKind::Busy && Instant::now() < until => {}
                taken => return taken,
            }
            std::thread::sleep(BUSY_PAUSE);
        }
    }

    /// As [`take`](Self::take), once.
    fn try_take(&self) -> Result<Option<(Writing, PreparedImage)>> {
        let FillTarget { image, source, rank, connect } = self;
        match state_at(image, *source, connect)? {
            ImageState::Complete => return Ok(None),
            ImageState::Prepared(_) => {}
            ImageState::Unprepared => prepare_namespaces(image, *source, connect)?,
        }
        let namespace = (*rank as usize % image.len().max(1)) as u16;
        let media = open_for_writing(&image[usize::from(namespace)..][..1], connect)?;
        let lease = Lease::take(&media, ImportOptions::default().lease)?;
        let ImageState::Prepared(prepared) = state_at(image, *source, connect)? else {
            return Err(Error::new(ErrorKind::Busy, "the image was committed just now"));
        };
        let media = media.placed(namespace, prepared.journal.layout.num_namespaces)?;
        let lane = prepared.lanes[usize::from(namespace)];
        let writing = Writing {
            channel: media.channel(),
            lease,
            journal: Journal { namespace, ..prepared.journal },
            rank: *rank,
            lane,
            next_cell: lane.end_cell,
            chunks: Vec::new(),
        };
        Ok(Some((writing, prepared)))
    }
}

impl OpenFill {
    /// Makes all chunks so far durable. If the namespace is shared, waits for a turn; without a turn, the chunks stay
    /// for the next turn. If a write of the turn fails, the chunks that waited are lost.
    fn record(&mut self, target: &FillTarget) -> Result<()> {
        let started = Instant::now();
        match &mut self.exclusive {
            Some(writing) if writing.chunks.is_empty() => return Ok(()),
            Some(writing) => writing.explained(Writing::record)?,
            None if self.waiting.is_empty() => return Ok(()),
            None => {
                let taken = target.take(TURN_LIMIT)?;
                let waiting = std::mem::take(&mut self.waiting);
                self.waiting_bytes = 0;
                // If the image is complete, it has other attempts of these shards, and the chunks are dropped.
                if let Some((mut writing, _)) = taken {
                    for WaitingChunk { chunk, header_bytes, data } in waiting {
                        writing.explained(|writing| writing.write(chunk, header_bytes, data))?;
                    }
                    writing.explained(Writing::record)?;
                }
            }
        }
        self.recorded_at = Instant::now();
        self.record_took = self.recorded_at - started;
        Ok(())
    }
}

/// A namespace while a rank writes it: chunks one behind the other, and records that make them durable.
struct Writing {
    channel: Channel,
    lease: Lease,
    /// The journal of the namespace.
    journal: Journal,
    /// The rank that writes.
    rank: u32,
    /// The lane that ends with the last record.
    lane: Lane,
    /// The next free cell.
    next_cell: u64,
    /// The chunks behind the last record, which are not durable yet.
    chunks: Vec<FilledChunk>,
}

impl Writing {
    /// Writes `data` behind room for a header of up to `header_bytes`, both in whole cells.
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

    /// Writes a record of the chunks behind the last one. A record without chunks tells that the rank has begun.
    fn record(&mut self) -> Result<()> {
        self.lease.check()?;
        let plan_and_namespace = (self.journal.layout.uuid.0, self.journal.namespace);
        let content = (self.rank, &self.chunks);
        self.lane =
            self.lane.append(&mut self.channel, plan_and_namespace, self.next_cell, &content)?;
        self.next_cell = self.lane.end_cell;
        self.chunks.clear();
        Ok(())
    }

    /// Runs `work`. Adds the address of the namespace and a hint to its error.
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

/// The longest wait at the beginning for another process that has the namespace.
const BUSY_LIMIT: Duration = Duration::from_secs(10);
/// The pause between two attempts to take a namespace.
const BUSY_PAUSE: Duration = Duration::from_millis(20);
/// The maximum number of bytes that wait for a turn.
const MAX_WAITING_BYTES: usize = 32 << 20;
/// The longest wait for a turn: many ranks may write before, on a slow disk.
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
