//! One pass over a source: several threads make chunks side by side, one gathers their headers.
//!
//! Threads take plans in order from one chunker, and each reads, packs and writes its chunk on its
//! own, so that reading the source and writing the media overlap and no thread waits for another. The
//! gathering thread puts the headers into the directory in the order of slots, flushes now and then,
//! and reports.
//!
//! When a row turns out bad, the pass goes on reading, for the names of all bad rows, but writes
//! nothing more: its chunks would not be those of the import.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam::channel::unbounded;
use parking_lot::Mutex;

use crate::directory::DirectoryBuilder;
use crate::format::ChunkHeader;
use crate::import::chunker::{ChunkLayout, Chunker};
use crate::import::chunks::Job;
use crate::import::lease::Lease;
use crate::import::media::Media;
use crate::import::options::Progress;
use crate::import::retry::is_transient;
use crate::import::sources::{BadEntry, Source};
use crate::import::worker::{Event, Shared, Worker};
use crate::{Error, ErrorKind, Result};

/// What a pass works on.
pub(super) struct Pass<'a> {
    /// Source, layout and placement.
    pub(super) job: Job<'a>,
    /// The source to read.
    pub(super) source: &'a Source,
    /// Where to write.
    pub(super) media: &'a Media,
    /// The right to write.
    pub(super) lease: &'a Lease,
    /// Threads that read and write.
    pub(super) threads: usize,
    /// Whether chunks may be in place already.
    pub(super) look: bool,
    /// Chunks below this number are in place and done with.
    pub(super) skip_chunks: u64,
}

/// What a pass did.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Chunks on the media.
    pub(super) chunks: u64,
    /// Those of them that were found there.
    pub(super) found: u64,
    /// Rows that cannot be imported, sorted; the chunks are of no use when there are any.
    pub(super) bad: Vec<(u64, BadEntry)>,
    /// Whether a connection was lost: what was written and not flushed then may be lost too.
    pub(super) connection_lost: bool,
    /// Chunks below this number were flushed before that.
    pub(super) durable_chunks: u64,
}

impl<'a> Pass<'a> {
    /// Makes every chunk that `chunker` plans and adds it to `builder`, if it is to be added.
    ///
    /// # Errors
    /// The first failure of a thread; `Interrupted` when `progress` says so.
    pub(super) fn run(
        &self,
        chunker: Chunker<'a>,
        builder: Option<&mut DirectoryBuilder>,
        progress: &mut dyn Progress,
    ) -> Result<Outcome> {
        let shared = Shared {
            job: self.job,
            source: self.source,
            media: self.media,
            lease: self.lease,
            look: self.look,
            skip_chunks: self.skip_chunks,
            chunker: Mutex::new(chunker),
            stop: AtomicBool::new(false),
            only_check: AtomicBool::new(false),
            connection_lost: AtomicBool::new(false),
        };
        std::thread::scope(|scope| {
            // However this ends, by a thread that cannot be made or a caller that panics: no thread
            // goes on with the rest of the import.
            let _stop = StopAtEnd(&shared.stop);
            let (send, events) = unbounded();
            for _ in 0..self.threads.max(1) {
                let worker = Worker::new(&shared, send.clone());
                std::thread::Builder::new()
                    .name("dlfs-import".into())
                    .spawn_scoped(scope, move || worker.run())
                    .map_err(Error::from)?;
            }
            drop(send);
            let mut gatherer = Collector::new(self, builder, progress);
            let (mut failure, mut at_work) = (None, self.threads.max(1));
            for event in events {
                at_work -= usize::from(matches!(event, Event::Ended));
                if let Err(error) = gatherer.take(event, &shared) {
                    shared.stop.store(true, Ordering::Relaxed);
                    failure.get_or_insert(error);
                }
            }
            match failure {
                Some(error) => Err(error),
                None if at_work > 0 => {
                    let text = format!("{at_work} threads dlfs-import ended without a word");
                    Err(Error::new(ErrorKind::Internal, text))
                }
                None => gatherer.finish(&shared),
            }
        })
    }
}

/// Tells the threads of a pass to end when its gatherer has.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Puts headers in order and keeps the books.
struct Collector<'a, 'b> {
    pass: &'a Pass<'a>,
    builder: Option<&'b mut DirectoryBuilder>,
    progress: &'b mut dyn Progress,
    channel: super::media::Channel,
    waiting: BTreeMap<u64, ChunkHeader>,
    next: u64,
    unflushed_bytes: u64,
    outcome: Outcome,
}

impl<'a, 'b> Collector<'a, 'b> {
    fn new(
        pass: &'a Pass<'a>,
        builder: Option<&'b mut DirectoryBuilder>,
        progress: &'b mut dyn Progress,
    ) -> Collector<'a, 'b> {
        Collector {
            pass,
            builder,
            progress,
            channel: pass.media.channel(),
            waiting: BTreeMap::new(),
            next: pass.skip_chunks,
            unflushed_bytes: 0,
            outcome: Outcome::default(),
        }
    }

    fn take(&mut self, event: Event, shared: &Shared<'_>) -> Result<()> {
        match event {
            Event::Failed(error) => return Err(error),
            Event::Ended => {}
            Event::Bad(bad) => self.outcome.bad.extend(bad),
            Event::Made { chunk, header, found } => {
                self.take_chunk(&chunk, header, found)?;
                self.flush_periodically(shared)?;
            }
        }
        if self.progress.stop() && !shared.stop.load(Ordering::Relaxed) {
            let message = "the import was stopped";
            return Err(
                Error::new(ErrorKind::Interrupted, message).hint("go on with dlfs import --resume")
            );
        }
        Ok(())
    }

    fn take_chunk(&mut self, chunk: &ChunkLayout, header: ChunkHeader, found: bool) -> Result<()> {
        let bytes = header.samples().map(|sample| u64::from(sample.len_bytes)).sum();
        self.progress.advance(u64::from(chunk.num_slots), bytes);
        self.outcome.chunks += 1;
        self.outcome.found += u64::from(found);
        self.unflushed_bytes += if found { 0 } else { header.head().len_bytes() };
        self.waiting.insert(chunk.sequence, header);
        while let Some(header) = self.waiting.remove(&self.next) {
            if let Some(builder) = &mut self.builder {
                builder.add_chunk(&header)?;
            }
            self.next += 1;
        }
        Ok(())
    }

    /// So that the medium has work while the source is read, and little is left at the end.
    fn flush_periodically(&mut self, shared: &Shared<'_>) -> Result<()> {
        if self.unflushed_bytes < FLUSH_EVERY_BYTES {
            return Ok(());
        }
        self.unflushed_bytes = 0;
        match (0..self.pass.media.len()).try_for_each(|at| self.channel.flush(at)) {
            Ok(()) if shared.connection_lost.load(Ordering::Relaxed) => Ok(()),
            Ok(()) => {
                self.outcome.durable_chunks = self.next;
                Ok(())
            }
            Err(error) if is_transient(&error) => {
                shared.connection_lost.store(true, Ordering::Relaxed);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn finish(mut self, shared: &Shared<'_>) -> Result<Outcome> {
        let planned = shared.chunker.lock().planned();
        if self.outcome.bad.is_empty() && self.next != planned {
            let text =
                format!("{planned} chunks were planned, and chunk {} was not made", self.next);
            return Err(Error::new(ErrorKind::Internal, text));
        }
        self.outcome.connection_lost = shared.connection_lost.load(Ordering::Relaxed);
        self.outcome.bad.sort_unstable_by_key(|&(row, _)| row);
        Ok(self.outcome)
    }
}

/// Bytes between two flushes.
const FLUSH_EVERY_BYTES: u64 = 64 << 20;
