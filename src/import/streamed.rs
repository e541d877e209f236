//! Imports a stream: it is read once, in its own order, and written as it arrives.
//!
//! An indexed import lays out every chunk before it begins; this one does so as it reads. It is resumed by
//! reading the stream again: a chunk that is on the media with the expected bytes is not written again.

use crate::directory::DirectoryBuilder;
use crate::directory::commit::freed_by_next;
use crate::format::Fit;
use crate::format::builder::{ChunkLocation, FinishedChunk};
use crate::format::columns::{ColumnSpec, RowValues};
use crate::format::{
    CellRange, ChunkBuilder, ChunkHeader, ChunkSpec, DraftLen, RecordSums, SampleMeta, Space,
    fields,
};
use crate::import::columns::{ColumnFile, RowColumns, columns_of};
use crate::import::commit;
use crate::import::field_types::{Typing, typed_fields};
use crate::import::lease::Lease;
use crate::import::media::Media;
use crate::import::media_use::MediaUse;
use crate::import::options::{
    BadEntries, ImportOptions, ImportReport, OnError, Progress, Stage, no_samples,
};
use crate::import::prepare::{self, ImportState, write_journals};
use crate::import::read_back::check_chunks;
use crate::import::retry::with_retry;
use crate::import::sources::file_counts::set_piped_bytes;
use crate::import::sources::stream::{StreamSample, StreamSource};
use crate::import::sources::{BadEntry, BadReason, FileCount, Found};
use crate::import::write_behind::{PIECE_BYTES, ReturnTo, WriteBehind};
use crate::units::{ALIGN_BYTES, SampleId, Slot};
use crate::{Error, ErrorKind, Result};

/// Imports the streams `found` onto `media`.
pub(super) fn run(
    found: Found,
    columns: Option<ColumnFile>,
    media: Media,
    lease: &Lease,
    options: &ImportOptions,
    progress: &mut dyn Progress,
) -> Result<ImportReport> {
    let state = prepare::prepare(media, options, NO_FINGERPRINT, 0)?;
    if state.done {
        return Err(Error::new(ErrorKind::NotFound, "there is no unfinished import to resume"));
    }
    let image = state.current.as_ref().map(|current| &*current.directory);
    let columns = columns.map(|columns| columns.for_image(image)).transpose()?;
    let image_fields = state.current.as_ref().map(|current| current.directory.fields().to_vec());
    let kind = found.kind;
    let paths = found.files.into_iter().map(|file| file.path).collect();
    let mut source = StreamSource::new(paths, kind, image_fields.clone())?;
    progress.stage(Stage::Writing, 0, 0);
    let layout = &state.journal.layout;
    for namespace in 0..state.media.len() {
        state.media.grow(namespace, layout.first_cell() * layout.cell_bytes())?;
    }
    with_retry(state.media.retry_budget(), || write_journals(&state.media, &state.journal))?;
    let mut writer = Writer::new(&state, columns.as_ref(), lease, options, progress)?;
    while let Some(mut sample) = source.next_sample()? {
        if !writer.only_names_matter && options.on_error == OnError::Stop {
            writer.only_names_matter = !source.bad().is_empty();
        }
        writer.take(&mut sample, source.fields())?;
        source.give_back(sample);
    }
    let bad = found.bad.iter().chain(source.bad()).chain(&writer.bad);
    let bad: Vec<BadEntry> = bad.cloned().collect();
    if options.on_error == OnError::Stop && !bad.is_empty() {
        return Err(BadEntries(bad).into_error());
    }
    if image_fields.is_some_and(|fields| fields != source.fields()) {
        let message = "samples of the stream have other fields than those of the image";
        return Err(Error::new(ErrorKind::InvalidArgument, message));
    }
    if writer.samples == 0 {
        return Err(no_samples(bad, kind));
    }
    let mut file_counts: Vec<FileCount> =
        found.file_counts.into_iter().chain(source.appended()).collect();
    set_piped_bytes(&mut file_counts, source.piped_bytes());
    writer.finish(kind, bad, file_counts)
}

/// Writes chunks.
struct Writer<'a> {
    state: &'a ImportState,
    lease: &'a Lease,
    columns: Vec<ColumnSpec>,
    options: &'a ImportOptions,
    /// The types of the fields, known with the first sample.
    typing: Option<Typing>,
    /// The values of the samples so far, if the import gives any.
    values: Option<RowColumns<'a>>,
    /// The name of the first sample, if there are values.
    example: Option<Vec<u8>>,
    progress: &'a mut dyn Progress,
    writes: WriteBehind<()>,
    space: Space,
    builder: DirectoryBuilder,
    open: Option<ChunkBuilder>,
    sequence: u64,
    found: u64,
    samples: u64,
    sample_bytes: u64,
    media: MediaUse,
    record: Vec<u8>,
    bad: Vec<BadEntry>,
    /// The import has failed already; the rest of the stream is read only to list bad entries.
    only_names_matter: bool,
    stop: bool,
}

impl<'a> Writer<'a> {
    fn new(
        state: &'a ImportState,
        columns: Option<&'a ColumnFile>,
        lease: &'a Lease,
        options: &'a ImportOptions,
        progress: &'a mut dyn Progress,
    ) -> Result<Writer<'a>> {
        let layout = state.journal.layout;
        let current = state.current.as_ref().map(|current| &*current.directory);
        let builder = match &state.current {
            Some(current) => DirectoryBuilder::after(&current.directory)?,
            None => DirectoryBuilder::new(layout),
        };
        Ok(Writer {
            state,
            lease,
            columns: match columns {
                Some(given) => given.join(current),
                None => columns_of(current),
            },
            options,
            typing: None,
            values: columns.map(ColumnFile::of_stream),
            example: None,
            progress,
            writes: WriteBehind::new(state.media.channel(), ChunkBuilder::buf_len_bytes(&layout)),
            space: prepare::free_space(&state.media, &layout, state.current.as_ref()),
            builder,
            open: None,
            sequence: 0,
            found: 0,
            samples: 0,
            sample_bytes: 0,
            media: MediaUse::default(),
            record: Vec::new(),
            bad: Vec::new(),
            only_names_matter: false,
            stop: options.on_error == OnError::Stop,
        })
    }

    fn take(&mut self, sample: &mut StreamSample, field_names: &[Vec<u8>]) -> Result<()> {
        if let Err(reason) = self.typing(field_names)?.of_sample(sample) {
            return self.reject(sample, reason);
        }
        if let Some(current) = &self.state.current
            && current.directory.lookup(&sample.name)?.is_some()
        {
            return self.reject(sample, BadReason::NameTaken);
        }
        let lens: Vec<Option<u64>> = sample
            .fields
            .iter()
            .map(|field| field.as_ref().map(|bytes| bytes.len() as u64))
            .collect();
        let Ok(len) = fields::record_len(&lens) else {
            let len = lens.iter().flatten().sum();
            return self.reject(sample, BadReason::TooLarge(len));
        };
        if self.only_names_matter {
            return Ok(());
        }
        let values = match &mut self.values {
            Some(values) => {
                self.example.get_or_insert_with(|| sample.name.clone());
                values.next(&sample.name)
            }
            None => RowValues::default(),
        };
        self.push(sample, values, field_names, &lens, len)?;
        self.writes.has_read(len as usize);
        self.samples += 1;
        self.sample_bytes += u64::from(len);
        self.progress.advance(1, u64::from(len));
        if self.progress.stop() {
            let message = "the import was stopped";
            return Err(Error::new(ErrorKind::Interrupted, message)
                .hint("resume with dlfs import --resume"));
        }
        Ok(())
    }

    fn typing(&mut self, field_names: &[Vec<u8>]) -> Result<&mut Typing> {
        let typing = match self.typing.take() {
            Some(typing) => typing,
            None => {
                let image = self.state.current.as_ref().map(|current| &*current.directory);
                Typing::new(&self.options.field_types, field_names, image)?
            }
        };
        Ok(self.typing.insert(typing))
    }

    fn reject(&mut self, sample: &StreamSample, reason: BadReason) -> Result<()> {
        self.bad.push(BadEntry::new(&sample.name, reason));
        self.only_names_matter |= self.stop;
        Ok(())
    }

    fn push(
        &mut self,
        sample: &StreamSample,
        values: RowValues<'_>,
        names: &[Vec<u8>],
        lens: &[Option<u64>],
        len: u32,
    ) -> Result<()> {
        loop {
            // Slots are ids here: samples lie on media in the order of the stream.
            let slot = self.open.as_ref().map_or(self.builder.next_slot(), ChunkBuilder::next_slot);
            let (id, name, label) = (SampleId(slot.0), &sample.name[..], sample.label);
            let meta = SampleMeta { id, name, label, values };
            if self.open.is_none() {
                let buf = self.writes.chunk_buf();
                self.open = Some(ChunkBuilder::new(self.spec(names), slot, buf)?);
            }
            let chunk = self.open.as_mut().expect("opened just above");
            match chunk.fit(&meta, len) {
                Fit::Here => {
                    put_record(sample, lens, chunk.space(len));
                    chunk.add(&meta, len)?;
                    return Ok(());
                }
                Fit::NextChunk => self.finish_chunk()?,
                Fit::Oversize if chunk.num_samples() > 0 => self.finish_chunk()?,
                Fit::Oversize => {
                    let mut record = std::mem::take(&mut self.record);
                    record.resize(len as usize, 0);
                    put_record(sample, lens, &mut record);
                    let pushed = self.push_oversize(names, slot, &meta, &record);
                    self.record = record;
                    return pushed;
                }
            }
        }
    }

    fn finish_chunk(&mut self) -> Result<()> {
        let Some(mut chunk) = self.open.take().filter(|chunk| chunk.num_samples() > 0) else {
            return Ok(());
        };
        let location = self.next_location(chunk.cells())?;
        let finished =
            chunk.finish(location.sequence, location.time_ns, location.namespace, location.cell);
        self.builder.add_chunk(&finished.header)?;
        self.media.add(&DraftLen::of(&finished.header), &self.state.journal.layout);
        let offset = self.begin_put(location, 0)?;
        if self.is_there(location, 0, finished.bytes())? {
            self.writes.give_back(finished.buf);
            return Ok(());
        }
        let FinishedChunk { mut buf, range, .. } = finished;
        let tail = buf.split_off(range.end);
        let body = buf.split_off(range.start);
        self.writes.write(location.namespace, offset, body, ReturnTo::Chunk(buf, tail))?;
        self.close()
    }

    fn push_oversize(
        &mut self,
        names: &[Vec<u8>],
        slot: Slot,
        meta: &SampleMeta<'_>,
        record: &[u8],
    ) -> Result<()> {
        self.open = None;
        let spec = self.spec(names);
        let len = record.len() as u32; // `record_len` allows no more
        let sums = RecordSums::of(record);
        let header = |location| ChunkBuilder::oversize(&spec, slot, meta, len, &sums, location);
        let draft = header(ChunkLocation { sequence: 0, time_ns: 0, namespace: 0, cell: 1 })?;
        let cells = self.state.journal.layout.cells_of(draft.head().len_bytes());
        let location = self.next_location(cells)?;
        let header: ChunkHeader = header(location)?;
        let mut front = vec![0; header.head().data_start() as usize];
        header.encode_into(&mut front);
        self.builder.add_chunk(&header)?;
        self.media.add(&DraftLen::of(&header), &self.state.journal.layout);
        let mut at = front.len() as u64;
        for piece in record.chunks(PIECE_BYTES) {
            self.put(location, at, piece)?;
            at += piece.len() as u64;
        }
        self.put(location, 0, &front)?;
        self.close()
    }

    /// Allocates cells for the next chunk, on a namespace that is long enough.
    fn next_location(&mut self, cells: u64) -> Result<ChunkLocation> {
        let layout = &self.state.journal.layout;
        let range = self.space.allocate(self.sequence, cells);
        let range: CellRange = range.ok_or_else(|| self.space.no_room(cells))?;
        self.state.media.grow(range.namespace, layout.offset_of(range.cell + range.cells)?)?;
        let sequence = self.sequence;
        self.sequence += 1;
        let time_ns = self.state.journal.time_ns;
        Ok(ChunkLocation { sequence, time_ns, namespace: range.namespace, cell: range.cell })
    }

    /// Ensures that `bytes`, at most a piece, lie `at` bytes into the chunk at `location`, zero-padded to the
    /// end of a block.
    fn put(&mut self, location: ChunkLocation, at: u64, bytes: &[u8]) -> Result<()> {
        let offset = self.begin_put(location, at)?;
        let mut piece = self.writes.piece();
        let whole = bytes.len().next_multiple_of(ALIGN_BYTES);
        piece[..bytes.len()].copy_from_slice(bytes);
        piece[bytes.len()..whole].fill(0);
        if self.is_there(location, at, &piece[..whole])? {
            return Ok(());
        }
        piece.truncate(whole);
        self.writes.write(location.namespace, offset, piece, ReturnTo::Piece)
    }

    /// The offset to write to, if the lease is still held.
    fn begin_put(&self, location: ChunkLocation, at: u64) -> Result<u64> {
        self.lease.check()?;
        Ok(self.state.journal.layout.offset_of(location.cell)? + at)
    }

    /// Whether a resumed import finds `bytes` already in place.
    fn is_there(&mut self, location: ChunkLocation, at: u64, bytes: &[u8]) -> Result<bool> {
        if !self.state.resumed {
            return Ok(false);
        }
        let offset = self.state.journal.layout.offset_of(location.cell)? + at;
        let found = self.writes.channel().read(location.namespace, offset, bytes.len())?;
        let same = found[..] == *bytes;
        self.found += u64::from(same && at == 0);
        Ok(same)
    }

    /// Completes a chunk. A lost connection ends the import: what may be lost with it cannot be read from
    /// the stream again. Resuming reads the stream again and compares.
    fn close(&mut self) -> Result<()> {
        self.writes.close(());
        self.take_ended()?;
        while self.writes.is_full() {
            self.writes.wait();
            self.take_ended()?;
        }
        Ok(())
    }

    fn take_ended(&mut self) -> Result<()> {
        while let Some(((), ended)) = self.writes.ended() {
            ended?;
        }
        Ok(())
    }

    /// Waits for all writes in flight.
    fn drain(&mut self) -> Result<()> {
        self.take_ended()?;
        while !self.writes.is_idle() {
            self.writes.wait();
            self.take_ended()?;
        }
        Ok(())
    }

    fn spec(&self, names: &[Vec<u8>]) -> ChunkSpec {
        let journal = &self.state.journal;
        ChunkSpec {
            layout: journal.layout,
            generation: journal.generation,
            part_first: journal.part.first,
            part_seed: journal.part.seed,
            part_window: journal.part.window,
            part_count: 0,
            fields: names.to_vec(),
            field_types: match &self.state.current {
                Some(current) => current.directory.field_types().clone(),
                None => self.typing.as_ref().map(Typing::types).unwrap_or_default(),
            },
            columns: self.columns.clone(),
        }
    }

    fn finish(
        mut self,
        kind: crate::import::sources::SourceKind,
        bad: Vec<BadEntry>,
        file_counts: Vec<FileCount>,
    ) -> Result<ImportReport> {
        self.finish_chunk()?;
        self.drain()?;
        if let Some(values) = &self.values {
            values.check(self.example.as_deref())?;
        }
        if let Some(current) = &self.state.current {
            let kept: Vec<CellRange> = self.builder.cell_ranges().collect();
            let freed = freed_by_next(&current.directory, &current.superblocks[0], kept);
            self.builder.set_freed(freed);
        }
        self.progress.stage(Stage::Committing, 0, 0);
        let journal = &self.state.journal;
        let directory = self.builder.finish(journal.generation, journal.time_ns)?;
        if !self.state.media.checks_writes() {
            // The stream cannot be read again, so damage is reported and not repaired.
            let kept = self.state.current.as_ref().map_or(0, |it| it.directory.num_chunks());
            check_chunks(self.writes.channel(), &directory, kept)?;
        }
        let commit = commit::prepare(&self.state.media, directory, &mut self.space)?;
        commit::write(&self.state.media, self.lease, &commit)?;
        Ok(ImportReport {
            uuid: commit.directory.uuid(),
            generation: commit.directory.generation(),
            kind,
            samples: self.samples,
            sample_bytes: self.sample_bytes,
            live_samples: commit.directory.num_live(),
            chunks: self.sequence,
            chunks_found: self.found,
            image_bytes: commit
                .superblocks
                .iter()
                .map(|superblock| superblock.used_len_bytes)
                .sum(),
            media: self.media.with_commit(&commit),
            pack: commit.directory.layout().pack,
            bad,
            file_counts,
            columns: self.values.as_ref().map(RowColumns::counts),
            field_types: typed_fields(&commit.directory),
        })
    }
}

/// Assembles the record of a sample: the length table if there are several fields, and the fields.
fn put_record(sample: &StreamSample, lens: &[Option<u64>], into: &mut [u8]) {
    let fields = sample.fields.iter().flatten();
    let mut at = 0;
    for bytes in [&fields::table(lens)].into_iter().chain(fields) {
        into[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    }
}

/// A stream has no fingerprint before it is read.
const NO_FINGERPRINT: u64 = 0;
