//! An image that is filled with shards while others read them: in any order, by as many ranks as it has namespaces.
//!
//! # What it is
//! A [`Filling`] is the right of one rank to write one namespace. It takes the records of consecutive samples of a
//! shard as [`FilledChunk`]s, and leaves room in front of each for the chunk's header, since names and labels of an
//! import are known only when all shards are. A *record* behind the chunks lists them, and the mark of the namespace
//! names the last record: what it lists is durable. [`commit`] writes the headers, and makes the chunks one generation.
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
//! Read `look.rs` first, then `writing.rs`, `record.rs` and `commit.rs`.

mod commit;
mod look;
mod record;
mod writing;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::import::journal::Journal;
use crate::import::lease::Lease;
use crate::import::options::ImportOptions;
use dlfs_base::buf::IoBuf;
use dlfs_base::{Error, ErrorKind, Result, random};
use dlfs_format::format::ImageLayout;
use dlfs_io::address::Address;
use dlfs_io::qpair::ConnectOptions;

pub use commit::commit;
pub use record::{Filled, FilledChunk};

use look::{Look, look_at, open, prepare};
use writing::Writing;

/// The right of a rank to fill one namespace of an image. Dropping it keeps what was written, for the next one.
pub struct Filling {
    layout: ImageLayout,
    filled: Filled,
    attempts: AtomicU64,
    /// `None` once it has ended.
    writing: Mutex<Option<Writing>>,
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
        let namespace = (rank as usize % image.len().max(1)) as u16;
        let until = Instant::now() + BUSY_LIMIT;
        loop {
            // Another rank may have the image for the moment in which it prepares it.
            match Filling::try_begin(image, source, namespace, connect) {
                Err(error) if error.kind() == ErrorKind::Busy && Instant::now() < until => {}
                begun => return begun,
            }
            std::thread::sleep(BUSY_PAUSE);
        }
    }

    /// Returns whether the image at `image` is complete.
    ///
    /// # Errors
    /// `Refused`: it holds other data, or other shards. Errors of opening.
    pub fn is_complete(image: &[Address], source: u64, connect: &ConnectOptions) -> Result<bool> {
        Ok(matches!(look_at(image, source, connect)?, Some((_, Look::Complete))))
    }

    fn try_begin(
        image: &[Address],
        source: u64,
        namespace: u16,
        connect: &ConnectOptions,
    ) -> Result<Option<Filling>> {
        match look_at(image, source, connect)? {
            Some((_, Look::Complete)) => return Ok(None),
            Some((_, Look::Begun(..))) => {}
            Some((_, Look::Nothing)) | None => prepare(image, source, connect)?,
        }
        let own = open(&image[usize::from(namespace)..][..1], connect)?;
        let lease = Lease::take(&own, ImportOptions::default().lease)?;
        let Some((media, Look::Begun(journal, lanes))) = look_at(image, source, connect)? else {
            return Err(Error::new(ErrorKind::Busy, "the image was committed just now"));
        };
        let layout = journal.layout;
        let own = own.placed(namespace, layout.num_namespaces)?;
        let filled = Filled::read(media, &journal, &lanes)?;
        let lane = lanes[usize::from(namespace)];
        let mut writing = Writing::new(&own, lease, Journal { namespace, ..journal }, lane);
        writing.explained(Writing::begin)?;
        let attempts = AtomicU64::new(random::number()?);
        Ok(Some(Filling { layout, filled, attempts, writing: Some(writing).into() }))
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
    /// Errors of writing. What is durable stays.
    pub fn push(&self, chunk: FilledChunk, header_bytes: u64, data: IoBuf) -> Result<()> {
        self.write(|writing| writing.write(chunk, header_bytes, data))
    }

    /// Says that a shard is complete: it becomes durable soon.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn end_shard(&self) -> Result<()> {
        self.write(Writing::end_shard)
    }

    /// Makes everything durable, and gives the namespace back.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn end(&self) -> Result<()> {
        let writing = self.writing.lock().take();
        writing.map_or(Ok(()), |mut writing| writing.explained(Writing::mark))
    }

    fn write(&self, work: impl FnOnce(&mut Writing) -> Result<()>) -> Result<()> {
        let ended = || Error::new(ErrorKind::Interrupted, "the image is filled no longer");
        self.writing.lock().as_mut().ok_or_else(ended)?.explained(work)
    }
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
const BUSY_PAUSE: Duration = Duration::from_millis(100);
