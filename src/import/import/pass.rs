//! One pass over a source: several threads build chunks in parallel, and one thread collects their headers.
//!
//! Threads take chunk layouts in order from a shared plan. Each thread reads, packs and writes its own chunk,
//! so reading the source overlaps writing the media, and threads do not wait for each other. The collecting
//! thread adds the headers to the directory in the order of slots, flushes periodically, and reports progress.
//!
//! After a bad row, the pass starts no further chunk, since the chunks would be different without the row. It still
//! reads all other rows, to report all bad ones.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, bounded};

use crate::import::chunks::{ChunkLayout, RowOrder, Rows, RowsAhead};
use crate::import::lease::Lease;
use crate::import::media::{Channel, Media};
use crate::import::options::{Progress, stopped};
use crate::import::read_back::sound_chunk;
use crate::import::retry::{Backoff, RETRY_FOR, is_transient};
use crate::import::sources::{BadEntry, BadReason, PieceError, PieceSink, Source, SourceReader};
use crate::import::write_behind::{BlockStream, FLUSH_EVERY_BYTES, PIECE_BYTES, WriteBehind};
use dlfs_base::threads::caught;
use dlfs_base::units::{SampleId, Slot};
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::directory::DirectoryBuilder;
use dlfs_format::format::{
    ChunkBuilder, ChunkHeader, ChunkSpec, Placement, RecordSums, SampleMeta, fields,
};

/// The inputs of a pass. Its threads share them.
pub(super) struct Pass<'a> {
    /// The rows of the source.
    pub(super) rows: &'a Rows<'a>,
    /// Layout, generation and part.
    pub(super) spec: &'a ChunkSpec,
    /// The map from slots to rows.
    pub(super) placement: &'a Placement,
    /// The time stamp of every chunk.
    pub(super) time_ns: u64,
    /// The chunks to write.
    pub(super) chunks: &'a [ChunkLayout],
    /// The source to read.
    pub(super) source: &'a Source,
    /// The namespaces to write to.
    pub(super) media: &'a Media,
    /// The right to write.
    pub(super) lease: &'a Lease,
    /// Number of threads; 0: chosen here. The queue pairs of the namespaces limit it.
    pub(super) threads: usize,
    /// Set if chunks may be on the media already.
    pub(super) may_exist: bool,
    /// Number of chunks at the front of `chunks` that are on the media and need no check.
    pub(super) skip_chunks: u64,
    /// Set to only read the source, and list bad rows.
    pub(super) only_check: bool,
}

/// The result of a pass.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Chunks that the pass found on the media or wrote.
    pub(super) chunks: u64,
    /// Chunks that were on the media before the pass.
    pub(super) found: u64,
    /// Rows that cannot be imported, sorted. If there are any, the chunks are useless.
    pub(super) bad: BadRows,
    /// Set if a connection was lost. Writes that were not flushed by then may be lost too.
    connection_lost: bool,
    /// Number of chunks at the front of [`Pass::chunks`] that were flushed before a connection was lost.
    durable_chunks: u64,
}

/// Rows that cannot be imported, by their numbers.
pub(super) type BadRows = Vec<(u64, BadEntry)>;

impl Pass<'_> {
    /// Builds every chunk of the plan that is not skipped, and adds it to `builder`, if given.
    ///
    /// # Errors
    /// The first failure of a thread. `Interrupted`: `progress` asked to stop.
    pub(super) fn run(
        &self,
        builder: Option<&mut DirectoryBuilder>,
        progress: &mut dyn Progress,
    ) -> Result<Outcome> {
        let shared = PassShared {
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
            let (send, events) = bounded(MAX_EVENTS);
            let mut threads = Vec::new();
            for _ in 0..self.num_threads() {
                let worker = Worker::new(&shared, send.clone());
                let thread = std::thread::Builder::new().name("dlfs-import".into());
                threads.push(thread.spawn_scoped(scope, move || worker.run())?);
            }
            drop(send);
            let mut collector = Collector {
                shared: &shared,
                builder,
                progress,
                channel: self.media.channel(),
                waiting: BTreeMap::new(),
                next: self.skip_chunks,
                unflushed_bytes: 0,
                outcome: Outcome::default(),
            };
            let mut result = Ok(());
            for event in events {
                let taken = collector.take(event);
                if taken.is_err() {
                    shared.stop.store(true, Ordering::Relaxed);
                }
                result = result.and(taken);
            }
            for thread in threads {
                let died = |_| Err(Error::new(ErrorKind::Internal, "a thread dlfs-import died"));
                result = result.and(thread.join().unwrap_or_else(died));
            }
            result?;
            collector.finish()
        })
    }

    /// Runs `finish`, which flushes the chunks of `outcome`. First verifies every chunk that a lost connection may
    /// have lost, and writes it again if need be; without digests, every chunk. Does both again if a connection is
    /// lost meanwhile. If a chunk that is written again has bad rows, returns them, without a success of `finish`.
    ///
    /// # Errors
    /// Errors of `finish`, and of [`run`](Self::run). `Disconnected`: chunks were lost in [`MAX_VERIFY_PASSES`] passes.
    pub(super) fn finish(
        &mut self,
        outcome: &Outcome,
        mut finish: impl FnMut() -> Result<()>,
    ) -> Result<BadRows> {
        let mut connection_lost = outcome.connection_lost;
        let mut failing_since = None;
        // Without digests, all written chunks are read back.
        let mut unread = !self.media.checks_writes();
        let mut verify_passes = 0;
        self.may_exist = true;
        loop {
            if connection_lost || unread {
                self.skip_chunks = if unread { 0 } else { outcome.durable_chunks };
                let again = self.run(None, &mut ())?;
                if !again.bad.is_empty() {
                    return Ok(again.bad);
                }
                verify_passes += 1;
                let is_whole = !again.connection_lost && (again.found == again.chunks || !unread);
                if !is_whole && verify_passes < MAX_VERIFY_PASSES {
                    continue;
                }
                if !is_whole {
                    let message = "what was read back differs from what was written";
                    let hint =
                        "repair the network or its target, then resume with dlfs import --resume";
                    return Err(Error::new(ErrorKind::Disconnected, message).hint(hint));
                }
            }
            let begun = Instant::now();
            let result = finish();
            let since = *failing_since.get_or_insert(begun);
            match result {
                Ok(()) => return Ok(BadRows::new()),
                Err(error) if is_transient(&error) && since.elapsed() < RETRY_FOR => {
                    std::thread::sleep(FINISH_RETRY_DELAY);
                    (connection_lost, unread) = (true, !self.media.checks_writes());
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The number of threads of the pass.
    fn num_threads(&self) -> usize {
        // More threads than processors, since some wait for the source's disk.
        let processors = || std::thread::available_parallelism().map_or(2, usize::from);
        let wanted = match self.threads {
            0 => (processors() * 2).clamp(2, 8),
            asked => asked,
        };
        wanted.min(self.media.max_threads())
    }
}

/// Stops the threads of a pass when the collector ends.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A message from a thread to the collector: a chunk that is on the media, or bad rows.
type Event = Result<DoneChunk, BadRows>;

/// A chunk that is on the media.
struct DoneChunk {
    chunk: ChunkLayout,
    header: Box<ChunkHeader>,
    /// Set if the chunk was on the media before; otherwise the pass wrote it.
    found: bool,
}

/// State that all threads share.
struct PassShared<'a> {
    pass: &'a Pass<'a>,
    /// The number of the next chunk to take.
    next: AtomicUsize,
    /// Set if no more chunks are to be taken: a thread failed, or the caller wants to stop.
    stop: AtomicBool,
    /// Set to only read, and list bad rows.
    only_check: AtomicBool,
    /// Set if a connection was lost.
    connection_lost: AtomicBool,
}

/// Puts headers in order, and counts them.
struct Collector<'a, 'b> {
    shared: &'a PassShared<'a>,
    /// The directory to which headers are added, if there is one.
    builder: Option<&'b mut DirectoryBuilder>,
    progress: &'b mut dyn Progress,
    /// The channel for flushes.
    channel: Channel,
    /// Headers that came before an earlier one, by the index of their chunk in the pass.
    waiting: BTreeMap<u64, ChunkHeader>,
    /// Index of the next chunk in order.
    next: u64,
    /// Bytes written since the last flush.
    unflushed_bytes: u64,
    outcome: Outcome,
}

impl Collector<'_, '_> {
    /// Handles a message.
    ///
    /// # Errors
    /// `Interrupted`: `progress` asked to stop. Errors of flushes, and of the directory.
    fn take(&mut self, event: Event) -> Result<()> {
        match event {
            Err(bad) => self.outcome.bad.extend(bad),
            Ok(done) => {
                self.take_chunk(done)?;
                self.flush_periodically()?;
            }
        }
        if self.progress.stop() && !self.shared.stop.load(Ordering::Relaxed) {
            return Err(stopped());
        }
        Ok(())
    }

    /// Counts a chunk, and adds the headers that are next in order to the directory.
    fn take_chunk(&mut self, DoneChunk { chunk, header, found }: DoneChunk) -> Result<()> {
        let bytes = header.samples().map(|sample| u64::from(sample.len_bytes)).sum();
        self.progress.advance(u64::from(chunk.num_slots), bytes);
        self.outcome.chunks += 1;
        self.outcome.found += u64::from(found);
        self.unflushed_bytes += if found { 0 } else { header.head().len_bytes() };
        // In an import by many, a part has only some of the generation's chunk numbers, in ascending order. So
        // the index of a chunk in the pass is found by the chunk's number.
        let before = |other: &ChunkLayout| other.sequence < chunk.sequence;
        let index = self.shared.pass.chunks.partition_point(before) as u64;
        self.waiting.insert(index, *header);
        while let Some(header) = self.waiting.remove(&self.next) {
            if let Some(builder) = &mut self.builder {
                builder.add_chunk(&header)?;
            }
            self.next += 1;
        }
        Ok(())
    }

    /// Flushes all namespaces if many bytes were written since the last flush. A lost connection is only noted: the
    /// chunks are checked at the end.
    fn flush_periodically(&mut self) -> Result<()> {
        if self.unflushed_bytes < FLUSH_EVERY_BYTES {
            return Ok(());
        }
        self.unflushed_bytes = 0;
        let connection_lost = &self.shared.connection_lost;
        match (0..self.channel.media.len()).try_for_each(|at| self.channel.flush(at)) {
            Ok(()) if connection_lost.load(Ordering::Relaxed) => {}
            Ok(()) => self.outcome.durable_chunks = self.next,
            Err(error) if is_transient(&error) => connection_lost.store(true, Ordering::Relaxed),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Returns the result of the pass.
    ///
    /// # Errors
    /// `Internal`: a chunk is missing.
    fn finish(mut self) -> Result<Outcome> {
        let pass = self.shared.pass;
        let planned = pass.chunks.len() as u64;
        let may_lack_chunks = !self.outcome.bad.is_empty() || pass.only_check;
        if !may_lack_chunks && self.next != planned {
            let text =
                format!("{planned} chunks were planned, and chunk {} was not written", self.next);
            return Err(Error::new(ErrorKind::Internal, text));
        }
        self.outcome.connection_lost = self.shared.connection_lost.load(Ordering::Relaxed);
        self.outcome.bad.sort_unstable_by_key(|&(row, _)| row);
        Ok(self.outcome)
    }
}

/// A chunk to build.
struct Task {
    chunk: ChunkLayout,
    /// Set if the chunk may be on the media already.
    may_exist: bool,
    /// The last retry delay; zero before the first failure.
    pause: Backoff,
}

/// The result of starting a chunk.
enum StartedChunk {
    /// The chunk is on the media already.
    Found(ChunkHeader),
    /// All writes of the chunk are submitted.
    Writing(ChunkHeader),
    /// A store could not be read after all retries, for a reason other than its objects.
    SourceFailed(Error),
    /// These rows cannot be imported. What was written of the chunk is useless.
    Bad(BadRows),
}

/// One thread of a pass: takes chunk layouts, reads their rows, and writes the chunks in the background.
struct Worker<'p, 'a> {
    shared: &'p PassShared<'a>,
    events: Sender<Event>,
    reader: SourceReader<'a>,
    /// The chunks in flight.
    writes: WriteBehind<(Task, ChunkHeader)>,
    /// The lengths of the fields of the last row; `None`: the row lacks the field.
    lens: Vec<Option<u64>>,
    /// The rows of the next slots.
    ahead: RowsAhead,
    /// Chunks to retry.
    again: VecDeque<Task>,
}

impl<'p, 'a> Worker<'p, 'a> {
    fn new(shared: &'p PassShared<'a>, events: Sender<Event>) -> Worker<'p, 'a> {
        let pass = shared.pass;
        let buf_len = ChunkBuilder::buf_len_bytes(&pass.spec.layout);
        Worker {
            shared,
            events,
            reader: pass.source.reader(),
            writes: WriteBehind::new(pass.media.channel(), buf_len),
            lens: Vec::new(),
            ahead: RowsAhead::default(),
            again: VecDeque::new(),
        }
    }

    /// Builds chunks until there are no more, or it is told to stop.
    fn run(mut self) -> Result<()> {
        let stop = &self.shared.stop;
        let made = caught(WHO, || self.make_all()).flatten();
        if made.is_err() {
            // Keeps the other threads from starting useless work.
            stop.store(true, Ordering::Relaxed);
        }
        // Dropping waits for writes in flight, so it may panic as well.
        made.and(caught(WHO, || drop(self)))
    }

    /// Starts tasks while there is room for their writes, and reports chunks whose writes have ended.
    fn make_all(&mut self) -> Result<()> {
        while !self.shared.stop.load(Ordering::Relaxed) {
            while let Some(((task, header), ended)) = self.writes.ended() {
                match ended {
                    Ok(()) => self.made(task.chunk, header, false),
                    Err(error) => self.try_again(task, error)?,
                }
            }
            if self.writes.is_full() {
                self.writes.wait();
                continue;
            }
            match self.next_task() {
                Some(task) => self.start(task)?,
                None if self.writes.is_idle() => return Ok(()),
                None => self.writes.wait(),
            }
        }
        Ok(())
    }

    /// The next chunk to build: first those to retry.
    fn next_task(&mut self) -> Option<Task> {
        if let Some(task) = self.again.pop_front() {
            return Some(task);
        }
        let next = self.shared.next.fetch_add(1, Ordering::Relaxed);
        let chunk = *self.shared.pass.chunks.get(next)?;
        Some(Task { chunk, may_exist: self.shared.pass.may_exist, pause: Backoff::default() })
    }

    /// Builds a chunk up to the submission of its writes; only reads its rows if `only_check` is set, as it is once a
    /// bad row was found.
    fn start(&mut self, task: Task) -> Result<()> {
        if self.shared.only_check.load(Ordering::Relaxed) {
            let bad = self.check(&task.chunk);
            self.tell(Err(bad));
            return Ok(());
        }
        match self.build(&task) {
            Ok(StartedChunk::Writing(header)) => self.writes.close((task, header)),
            Ok(StartedChunk::Found(header)) => self.made(task.chunk, header, true),
            Ok(StartedChunk::Bad(bad)) => {
                self.writes.give_up();
                self.shared.only_check.store(true, Ordering::Relaxed);
                self.tell(Err(bad));
            }
            Ok(StartedChunk::SourceFailed(error)) => {
                self.writes.give_up();
                return Err(error);
            }
            Err(error) => {
                self.writes.give_up();
                self.try_again(task, error)?;
            }
        }
        Ok(())
    }

    /// Queues a task again after a lost connection. The writes may have been executed or not, so the task reads
    /// the chunk on a new connection, and writes it if it is not complete.
    ///
    /// # Errors
    /// `error`, if no connection was lost, the time for retries is over, or the pass stops.
    fn try_again(&mut self, mut task: Task, error: Error) -> Result<()> {
        let budget = &self.shared.pass.media.retry_budget;
        if !is_transient(&error) || !budget.wait(&mut task.pause, &self.shared.stop) {
            return Err(error);
        }
        self.shared.connection_lost.store(true, Ordering::Relaxed);
        task.may_exist = true;
        self.again.push_back(task);
        Ok(())
    }

    /// Reports a chunk that is on the media.
    fn made(&self, chunk: ChunkLayout, header: ChunkHeader, found: bool) {
        self.shared.pass.media.retry_budget.progressed();
        self.tell(Ok(DoneChunk { chunk, header: header.into(), found }));
    }

    /// Sends a message to the collector.
    fn tell(&self, event: Event) {
        // The collector receives events until all threads have ended.
        let _ = self.events.send(event);
    }

    /// Reads the chunk's rows and submits its writes, unless the chunk is on the media already.
    ///
    /// # Errors
    /// The chunk could not be written, or read back. `Busy`: the lease is lost.
    fn build(&mut self, Task { chunk, may_exist, .. }: &Task) -> Result<StartedChunk> {
        self.shared.pass.lease.check()?;
        if *may_exist && let Some(header) = self.find(chunk)? {
            return Ok(StartedChunk::Found(header));
        }
        if chunk.oversize { self.build_oversize(chunk) } else { self.build_ordinary(chunk) }
    }

    /// Reads the rows of a chunk that will not be written, and returns their errors.
    fn check(&mut self, chunk: &ChunkLayout) -> BadRows {
        let Pass { rows, placement, .. } = self.shared.pass;
        let mut bad = Vec::new();
        let mut piece = vec![0; PIECE_BYTES];
        for slot in chunk.slots() {
            let row = rows.row_at(slot, placement);
            let read = read_in_pieces(rows, &mut self.reader, row, &mut Discard(&mut piece));
            if let Err(PieceError::Bad(reason)) = read {
                bad.push((row, rows.index.bad_row(row, reason)));
            }
        }
        bad
    }

    /// Builds a chunk of whole samples in memory, and submits its write.
    fn build_ordinary(&mut self, chunk: &ChunkLayout) -> Result<StartedChunk> {
        let Pass { rows, spec, placement, time_ns, .. } = *self.shared.pass;
        let mut builder =
            ChunkBuilder::new(spec.clone(), chunk.first_slot, self.writes.chunk_buf())?;
        let mut bad = Vec::new();
        self.reader.ask_ahead(chunk.slots().map(|slot| rows.row_at(slot, placement)));
        for slot in chunk.slots() {
            let row = self.ahead.row(slot, rows, placement);
            let len = rows.record_len(row, &mut self.lens)?;
            if let Err(reason) = self.read_record(row, builder.space(len)) {
                bad.push((row, rows.index.bad_row(row, reason)));
                // Keeps the row's space, so that the other rows are read at their usual offsets.
                builder.space(len).fill(0);
            }
            builder.add(&self.meta(slot, row), len)?;
            self.writes.has_read(len as usize);
        }
        let finished = builder.finish(chunk.location(time_ns));
        let failure = self.reader.take_failure();
        if failure.is_some() || !bad.is_empty() {
            self.writes.spare_bufs.push(finished.buf);
            return Ok(failure.map_or(StartedChunk::Bad(bad), StartedChunk::SourceFailed));
        }
        let offset = spec.layout.offset_of(chunk.cells.cell)?;
        self.writes.write_chunk(chunk.cells.namespace, offset, finished).map(StartedChunk::Writing)
    }

    /// Builds a chunk of a single oversize sample: first writes the data as it is read, then the header.
    fn build_oversize(&mut self, chunk: &ChunkLayout) -> Result<StartedChunk> {
        let Pass { rows, spec, placement, time_ns, .. } = *self.shared.pass;
        let slot = chunk.first_slot;
        let row = rows.row_at(slot, placement);
        let len = rows.record_len(row, &mut self.lens)?;
        let meta = self.meta(slot, row);
        let location = chunk.location(time_ns);
        let header =
            |sums: &RecordSums| ChunkBuilder::oversize(spec, slot, &meta, len, sums, location);
        let start = spec.layout.offset_of(chunk.cells.cell)?;
        let data_start = header(&RecordSums::unknown(len))?.head().data_start();
        let table = fields::table(&self.lens);
        let reader = &mut self.reader;
        let give = |stream: &mut BlockStream<'_, _>| {
            stream.push(&table).map_err(PieceError::Sink)?;
            read_in_pieces(rows, reader, row, stream)
        };
        let at = (chunk.cells.namespace, start);
        match self.writes.write_oversize(at, data_start, false, header, give)? {
            Ok((header, _)) => Ok(StartedChunk::Writing(header)),
            Err(PieceError::Sink(error)) => Err(error),
            Err(PieceError::Bad(reason)) => {
                let bad = || StartedChunk::Bad(vec![(row, rows.index.bad_row(row, reason))]);
                Ok(self.reader.take_failure().map_or_else(bad, StartedChunk::SourceFailed))
            }
        }
    }

    /// The header of the chunk, if the whole chunk is on the media as expected.
    fn find(&mut self, chunk: &ChunkLayout) -> Result<Option<ChunkHeader>> {
        let Pass { spec, time_ns, .. } = self.shared.pass;
        let location = chunk.location(*time_ns);
        let found = sound_chunk(&mut self.writes.channel, spec, &location, chunk.first_slot)?;
        Ok(found.map(|(header, _)| header).filter(|header| self.is_expected(header, chunk)))
    }

    /// Returns whether a header matches the source.
    fn is_expected(&mut self, header: &ChunkHeader, chunk: &ChunkLayout) -> bool {
        let Pass { rows, spec, placement, .. } = *self.shared.pass;
        u32::from(header.head().num_samples) == chunk.num_slots
            && header.fields().eq(spec.fields.iter().map(|name| &name[..]))
            && *header.field_types() == spec.field_types
            && header.columns().eq(&spec.columns)
            && header.samples().all(|sample| {
                let row = rows.row_at(sample.slot, placement);
                let meta = self.meta(sample.slot, row);
                let same = |column| sample.values.get(column) == meta.values.get(column);
                sample.id == meta.id
                    && sample.name == meta.name
                    && sample.label == meta.label
                    && spec.columns.iter().all(same)
                    && !sample.purged
                    && rows.record_len(row, &mut self.lens) == Ok(sample.len_bytes)
            })
    }

    /// Reads a row's record: the length table if there are several fields, then their payloads.
    fn read_record(&mut self, row: u64, into: &mut [u8]) -> Result<(), BadReason> {
        let rows = self.shared.pass.rows;
        if self.lens.len() < 2 {
            let mut payloads = rows.index.payloads(row);
            return payloads.try_for_each(|payload| self.reader.read(row, &payload, into));
        }
        let ranges = fields::put_table(&self.lens, into);
        for (field, range) in rows.source_fields.iter().zip(ranges) {
            let Some(field) = field else { continue };
            let payload = rows.index.payloads(row).find(|payload| payload.field == *field);
            if let Some(payload) = payload {
                self.reader.read(row, &payload, &mut into[range])?;
            }
        }
        Ok(())
    }

    /// The metadata of the sample at `slot`, which is `row` of the source.
    fn meta(&self, slot: Slot, row: u64) -> SampleMeta<'a> {
        let Pass { rows, placement, .. } = self.shared.pass;
        let id = match rows.order {
            RowOrder::Ids => SampleId(placement.part().first + row),
            RowOrder::Slots(_) => placement.id_at(slot),
        };
        rows.meta(row, id)
    }
}

/// Reads the payloads of a row, in field order, in pieces.
fn read_in_pieces(
    rows: &Rows<'_>,
    reader: &mut SourceReader<'_>,
    row: u64,
    sink: &mut dyn PieceSink,
) -> Result<(), PieceError> {
    for field in rows.source_fields.iter().flatten() {
        if let Some(payload) = rows.index.payloads(row).find(|payload| payload.field == *field) {
            reader.read_in_pieces(row, &payload, sink)?;
        }
    }
    Ok(())
}

/// A sink that discards the bytes. It is for reading only to detect errors.
pub(super) struct Discard<'a>(pub(super) &'a mut [u8]);

impl PieceSink for Discard<'_> {
    fn space(&mut self) -> Result<&mut [u8]> {
        Ok(self.0)
    }

    fn filled(&mut self, _: usize) -> Result<()> {
        Ok(())
    }
}

/// The name of a pass's threads in errors.
const WHO: &str = "the thread dlfs-import";

/// Maximum number of headers that wait for the collector, which takes none while it flushes. More would only
/// take memory, about 64 bytes a sample.
const MAX_EVENTS: usize = 32;

/// Number of verify passes after which it is an error that a pass still finds a loss.
const MAX_VERIFY_PASSES: u32 = 8;

/// Delay before a failed commit or flush is retried.
const FINISH_RETRY_DELAY: Duration = Duration::from_millis(20);
