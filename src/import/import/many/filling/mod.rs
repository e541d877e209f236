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
//! Read `look.rs` first, then `writing.rs`, `turns.rs`, `record.rs` and `commit.rs`.

mod commit;
mod look;
mod record;
mod turns;
mod writing;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::import::journal::Journal;
use crate::import::lease::Lease;
use crate::import::mark::Lane;
use crate::import::media::Media;
use crate::import::options::ImportOptions;
use dlfs_base::buf::IoBuf;
use dlfs_base::{Error, ErrorKind, Result, random};
use dlfs_format::format::ImageLayout;
use dlfs_io::address::Address;
use dlfs_io::qpair::ConnectOptions;

pub use commit::commit;
pub use record::{Filled, FilledChunk};

use look::{Look, look_at, open, prepare};
use turns::Turns;
use writing::Writing;

/// The right of a rank to fill one namespace of an image. Dropping it keeps what was written, for the next one.
pub struct Filling {
    place: Place,
    layout: ImageLayout,
    filled: Filled,
    attempts: AtomicU64,
    hold: Mutex<Hold>,
}

/// A rank's hold of its namespace.
enum Hold {
    /// It has the namespace for itself.
    Own(Box<Writing>),
    /// It shares the namespace with other ranks.
    Shared(Turns),
    Ended,
}

/// The image that a rank fills.
struct Place {
    image: Vec<Address>,
    source: u64,
    rank: u32,
    connect: ConnectOptions,
}

/// A namespace that was taken for writing, and the state of the image then.
struct Taken {
    writing: Writing,
    media: Media,
    journal: Journal,
    lanes: Vec<Lane>,
}

impl Place {
    /// Takes the namespace for writing. Another rank may have it for a moment. `None`: the image is complete.
    fn take(&self, limit: Duration) -> Result<Option<Taken>> {
        let until = Instant::now() + limit;
        loop {
            match self.try_take() {
                Err(error) if error.kind() == ErrorKind::Busy && Instant::now() < until => {}
                taken => return taken,
            }
            std::thread::sleep(BUSY_PAUSE);
        }
    }

    fn try_take(&self) -> Result<Option<Taken>> {
        let Place { image, source, rank, connect } = self;
        match look_at(image, *source, connect)? {
            Some((_, Look::Complete)) => return Ok(None),
            Some((_, Look::Begun(..))) => {}
            Some((_, Look::Nothing)) | None => prepare(image, *source, connect)?,
        }
        let namespace = (*rank as usize % image.len().max(1)) as u16;
        let own = open(&image[usize::from(namespace)..][..1], connect)?;
        let lease = Lease::take(&own, ImportOptions::default().lease)?;
        let Some((media, Look::Begun(journal, lanes))) = look_at(image, *source, connect)? else {
            return Err(Error::new(ErrorKind::Busy, "the image was committed just now"));
        };
        let own = own.placed(namespace, journal.layout.num_namespaces)?;
        let lane = lanes[usize::from(namespace)];
        let writing = Writing::new(&own, lease, (Journal { namespace, ..journal }, *rank), lane);
        Ok(Some(Taken { writing, media, journal, lanes }))
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
        let Some(taken) = place.take(BUSY_LIMIT)? else { return Ok(None) };
        let Taken { mut writing, media, journal, lanes } = taken;
        let filled = Filled::read(media, &journal, &lanes)?;
        if !filled.has_rank(rank) {
            writing.explained(Writing::record)?; // it is not committed before
        }
        Ok(Some(Filling {
            place,
            layout: journal.layout,
            filled,
            attempts: AtomicU64::new(random::number()?),
            hold: Hold::Own(writing.into()).into(),
        }))
    }

    /// Gives the namespace back between writes: other ranks write it, too.
    pub fn in_turns(self) -> Filling {
        *self.hold.lock() = Hold::Shared(Turns::new());
        self
    }

    /// Returns whether the image at `image` is complete.
    ///
    /// # Errors
    /// `Refused`: it holds other data, or other shards. Errors of opening.
    pub fn is_complete(image: &[Address], source: u64, connect: &ConnectOptions) -> Result<bool> {
        Ok(matches!(look_at(image, source, connect)?, Some((_, Look::Complete))))
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
        match &mut *self.hold.lock() {
            Hold::Own(own) => own.explained(|own| own.write(chunk, header_bytes, data)),
            Hold::Shared(turns) => {
                let least_bytes = self.layout.chunk_size_bytes as usize;
                turns.write(&self.place, (chunk, header_bytes, data), least_bytes)
            }
            Hold::Ended => Err(ended()),
        }
    }

    /// Says that a shard is complete: it becomes durable soon.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn end_shard(&self) -> Result<()> {
        match &mut *self.hold.lock() {
            Hold::Own(own) => own.explained(Writing::end_shard),
            Hold::Shared(turns) => turns.end_shard(&self.place),
            Hold::Ended => Err(ended()),
        }
    }

    /// Makes everything durable, and gives the namespace back.
    ///
    /// # Errors
    /// As [`push`](Self::push). A shared namespace that was not to be had may be tried again.
    pub fn end(&self) -> Result<()> {
        let mut hold = self.hold.lock();
        if let Hold::Shared(turns) = &mut *hold {
            turns.mark(&self.place)?;
        }
        match std::mem::replace(&mut *hold, Hold::Ended) {
            Hold::Own(mut own) => own.explained(Writing::mark),
            Hold::Shared(_) | Hold::Ended => Ok(()),
        }
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

/// The longest wait for another process that has the image, and the pause between two attempts.
const BUSY_LIMIT: Duration = Duration::from_secs(10);
const BUSY_PAUSE: Duration = Duration::from_millis(20);
