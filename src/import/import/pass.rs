//! One pass over a source: several threads build chunks in parallel, and one thread collects their headers.
//!
//! Threads take chunk layouts in order from a shared plan. Each thread reads, packs and writes its own chunk,
//! so reading the source overlaps writing the media, and threads do not wait for each other. The collecting
//! thread adds the headers to the directory in the order of slots, flushes periodically, and reports progress.
//!
//! After a bad row the pass reads on, to report all bad rows, but writes nothing more: without the bad rows,
//! the chunks would be different.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crossbeam_channel::bounded;

use crate::import::options::{Progress, stopped};
use crate::import::plan::ChunkLayout;
use crate::import::retry::is_transient;
use crate::import::sources::BadEntry;
use crate::import::worker::{Event, Pass, Shared, Worker};
use crate::import::write_behind::FLUSH_EVERY_BYTES;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::directory::DirectoryBuilder;
use dlfs_format::format::ChunkHeader;

/// The result of a pass.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Chunks on the media.
    pub(super) chunks: u64,
    /// Chunks that were on the media before the pass.
    pub(super) found: u64,
    /// Rows that cannot be imported, sorted. If there are any, the chunks are useless.
    pub(super) bad: Vec<(u64, BadEntry)>,
    /// Set if a connection was lost. Writes that were not flushed by then may be lost too.
    pub(super) connection_lost: bool,
    /// Chunks below this number were flushed before a connection was lost.
    pub(super) durable_chunks: u64,
}

impl<'a> Pass<'a> {
    /// Builds every chunk of the plan, and adds it to `builder`, if given.
    ///
    /// # Errors
    /// The first failure of a thread. `Interrupted`: `progress` asked to stop.
    pub(super) fn run(
        &self,
        builder: Option<&mut DirectoryBuilder>,
        progress: &mut dyn Progress,
    ) -> Result<Outcome> {
        let shared = Shared {
            pass: self,
            next: AtomicUsize::new(self.skip_chunks as usize),
            stop: AtomicBool::new(false),
            only_check: AtomicBool::new(self.only_check),
            connection_lost: AtomicBool::new(false),
        };
        std::thread::scope(|scope| {
            // Stops all threads whenever this function ends, even if a thread cannot be started or the caller
            // panics.
            let _stop = StopAtEnd(&shared.stop);
            let (send, events) = bounded(MOST_EVENTS);
            for _ in 0..self.threads.max(1) {
                let worker = Worker::new(&shared, send.clone());
                std::thread::Builder::new()
                    .name("dlfs-import".into())
                    .spawn_scoped(scope, move || worker.run())?;
            }
            drop(send);
            let mut gatherer = Collector::new(self, builder, progress);
            let mut failure = None;
            let mut at_work = self.threads.max(1);
            for event in events {
                at_work -= usize::from(matches!(event, Event::Ended(_)));
                if let Err(error) = gatherer.take(event, &shared) {
                    shared.stop.store(true, Ordering::Relaxed);
                    failure.get_or_insert(error);
                }
            }
            match failure {
                Some(error) => Err(error),
                None if at_work > 0 => {
                    let text = format!("{at_work} threads dlfs-import ended without a message");
                    Err(Error::new(ErrorKind::Internal, text))
                }
                None => gatherer.finish(&shared),
            }
        })
    }
}

/// Stops the threads of a pass when the collector ends.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Puts headers in order, and counts them.
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
            Event::Ended(result) => result?,
            Event::Bad(bad) => self.outcome.bad.extend(bad),
            Event::Made { chunk, header, found } => {
                self.take_chunk(&chunk, *header, found)?;
                self.flush_periodically(shared)?;
            }
        }
        if self.progress.stop() && !shared.stop.load(Ordering::Relaxed) {
            return Err(stopped());
        }
        Ok(())
    }

    fn take_chunk(&mut self, chunk: &ChunkLayout, header: ChunkHeader, found: bool) -> Result<()> {
        let bytes = header.samples().map(|sample| u64::from(sample.len_bytes)).sum();
        self.progress.advance(u64::from(chunk.num_slots), bytes);
        self.outcome.chunks += 1;
        self.outcome.found += u64::from(found);
        self.unflushed_bytes += if found { 0 } else { header.head().len_bytes() };
        // In an import by many, a part has only some of the generation's chunk numbers, in ascending order. So
        // a chunk's place in the pass is found by its number.
        let before = |other: &ChunkLayout| other.sequence < chunk.sequence;
        let place = self.pass.chunks.partition_point(before) as u64;
        self.waiting.insert(place, header);
        while let Some(header) = self.waiting.remove(&self.next) {
            if let Some(builder) = &mut self.builder {
                builder.add_chunk(&header)?;
            }
            self.next += 1;
        }
        Ok(())
    }

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
        let planned = self.pass.chunks.len() as u64;
        let is_complete = !self.outcome.bad.is_empty() || self.pass.only_check;
        if !is_complete && self.next != planned {
            let text =
                format!("{planned} chunks were planned, and chunk {} was not written", self.next);
            return Err(Error::new(ErrorKind::Internal, text));
        }
        self.outcome.connection_lost = shared.connection_lost.load(Ordering::Relaxed);
        self.outcome.bad.sort_unstable_by_key(|&(row, _)| row);
        Ok(self.outcome)
    }
}

/// Maximum number of headers that wait for the collector, which takes none while it flushes. More would only
/// take memory, about 64 bytes a sample.
const MOST_EVENTS: usize = 32;
