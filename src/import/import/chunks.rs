//! Builds a chunk from the source and writes it, or finds it on the media.

use crate::import::media::{Channel, pieces};
use crate::import::plan::{ChunkLayout, RowOrder, Rows, RowsAhead};
use crate::import::sources::{BadEntry, BadReason, PieceError, PieceSink, SourceReader};
use crate::import::write_behind::{BlockStream, PIECE_BYTES, ReturnTo, WriteBehind};
use dlfs_base::buf::IoBuf;
use dlfs_base::units::{SampleId, Slot};
use dlfs_base::{Error, Result};
use dlfs_format::format::builder::ChunkLocation;
use dlfs_format::format::checksum::crc32c;
use dlfs_format::format::chunk::{ChunkId, ChunkKind};
use dlfs_format::format::{
    ChunkBuilder, ChunkHead, ChunkHeader, ChunkSpec, Placement, RecordSums, SampleEntry,
    SampleMeta, fields,
};

/// The parameters that all chunks of an import share.
#[derive(Debug, Clone, Copy)]
pub(super) struct Job<'a> {
    /// The source.
    pub(super) rows: &'a Rows<'a>,
    /// Layout, generation and part.
    pub(super) spec: &'a ChunkSpec,
    /// The map from slots to rows.
    pub(super) placement: &'a Placement,
    /// The time stamp of every chunk.
    pub(super) time_ns: u64,
}

/// Builds and writes chunks for one thread. `T` is the thread's data about a chunk in flight.
pub(super) struct ChunkWriter<'a, T> {
    job: Job<'a>,
    reader: SourceReader<'a>,
    writes: WriteBehind<T>,
    lens: Vec<Option<u64>>,
    ahead: RowsAhead,
}

/// The result of starting a chunk.
#[derive(Debug)]
pub(super) enum Started {
    /// The chunk is on the media already.
    Found(ChunkHeader),
    /// All writes of the chunk are submitted: call [`WriteBehind::close`] for it.
    Writing(ChunkHeader),
    /// A store could not be read after all retries, for a reason other than its objects.
    SourceFailed(Error),
    /// These rows cannot be imported. What was written of the chunk is useless.
    Bad(Vec<(u64, BadEntry)>),
}

impl<'a, T> ChunkWriter<'a, T> {
    /// A writer for one thread.
    pub(super) fn new(
        job: Job<'a>,
        reader: SourceReader<'a>,
        channel: Channel,
    ) -> ChunkWriter<'a, T> {
        let writes = WriteBehind::new(channel, ChunkBuilder::buf_len_bytes(&job.spec.layout));
        ChunkWriter { job, reader, writes, lens: Vec::new(), ahead: RowsAhead::default() }
    }

    /// The writes in flight.
    pub(super) fn writes(&mut self) -> &mut WriteBehind<T> {
        &mut self.writes
    }

    /// Reads the chunk's rows and submits its writes. With `look`, it first checks whether the chunk is on the
    /// media already.
    ///
    /// # Errors
    /// The chunk could not be written, or read back: call [`WriteBehind::give_up`].
    pub(super) fn start(&mut self, chunk: &ChunkLayout, look: bool) -> Result<Started> {
        if look && let Some(header) = self.find(chunk)? {
            return Ok(Started::Found(header));
        }
        if chunk.oversize { self.start_oversize(chunk) } else { self.start_ordinary(chunk) }
    }

    /// Reads the rows of a chunk that will not be written, and returns their errors.
    pub(super) fn check(&mut self, chunk: &ChunkLayout) -> Vec<(u64, BadEntry)> {
        let mut bad = Vec::new();
        let mut piece = vec![0; PIECE_BYTES];
        for slot in slots(chunk) {
            let row = self.row_at(slot);
            let mut nowhere = Discard(&mut piece);
            let read = read_in_pieces(self.job.rows, &mut self.reader, row, &mut nowhere);
            if let Err(PieceError::Bad(reason)) = read {
                bad.push((row, self.bad_entry(row, reason)));
            }
        }
        bad
    }

    fn start_ordinary(&mut self, chunk: &ChunkLayout) -> Result<Started> {
        let buf = self.writes.chunk_buf();
        let mut builder = ChunkBuilder::new(self.job.spec.clone(), chunk.first_slot, buf)?;
        let mut bad = Vec::new();
        let rows = self.job.rows;
        let placement = self.job.placement;
        self.reader.ask_ahead(slots(chunk).map(|slot| rows.row_at(slot, placement)));
        for slot in slots(chunk) {
            let row = self.ahead.row(slot, rows, placement);
            let len = self.job.rows.record_len(row, &mut self.lens)?;
            if let Err(reason) = self.read_record(row, builder.space(len)) {
                bad.push((row, self.bad_entry(row, reason)));
                // Keeps the row's space, so that the other rows are read at their usual offsets.
                builder.space(len).fill(0);
            }
            builder.add(&self.meta(slot, row), len)?;
            self.writes.has_read(len as usize);
        }
        let finished = builder.finish(chunk.location(self.job.time_ns));
        if let Some(failure) = self.reader.take_failure() {
            self.writes.give_back(finished.buf);
            return Ok(Started::SourceFailed(failure));
        }
        if !bad.is_empty() {
            self.writes.give_back(finished.buf);
            return Ok(Started::Bad(bad));
        }
        let offset = self.job.spec.layout.offset_of(chunk.cells.cell)?;
        self.writes.write_chunk(chunk.cells.namespace, offset, finished).map(Started::Writing)
    }

    /// Builds a chunk of a single oversize sample: first writes the data as it is read, then the header.
    fn start_oversize(&mut self, chunk: &ChunkLayout) -> Result<Started> {
        let job = self.job;
        let slot = chunk.first_slot;
        let row = self.row_at(slot);
        let len = job.rows.record_len(row, &mut self.lens)?;
        let meta = self.meta(slot, row);
        let location = chunk.location(job.time_ns);
        let unknown = RecordSums::unknown(len);
        let draft = ChunkBuilder::oversize(job.spec, slot, &meta, len, &unknown, location)?;
        let start = job.spec.layout.offset_of(chunk.cells.cell)?;
        let data_at = start + draft.head().data_start();
        let mut stream = BlockStream::new(&mut self.writes, chunk.cells.namespace, data_at);
        if self.lens.len() > 1 {
            stream.push(&fields::table(&self.lens))?;
        }
        match read_in_pieces(job.rows, &mut self.reader, row, &mut stream) {
            Ok(()) => {}
            Err(PieceError::Sink(error)) => return Err(error),
            Err(PieceError::Bad(reason)) => {
                return match self.reader.take_failure() {
                    Some(failure) => Ok(Started::SourceFailed(failure)),
                    None => Ok(Started::Bad(vec![(row, self.bad_entry(row, reason))])),
                };
            }
        }
        let sums = stream.finish()?;
        let header = ChunkBuilder::oversize(job.spec, slot, &meta, len, &sums, location)?;
        let mut block = IoBuf::zeroed(header.head().data_start() as usize);
        header.encode_into(&mut block);
        self.writes.write(chunk.cells.namespace, start, block, ReturnTo::None)?;
        Ok(Started::Writing(header))
    }

    /// The header of the chunk, if the whole chunk is on the media as expected.
    fn find(&mut self, chunk: &ChunkLayout) -> Result<Option<ChunkHeader>> {
        let layout = &self.job.spec.layout;
        let namespace = chunk.cells.namespace;
        let start = layout.offset_of(chunk.cells.cell)?;
        let cells_len = chunk.cells.cells * layout.cell_bytes();
        let whole = cells_len.min(layout.chunk_size_bytes.into()) as usize;
        let len = self.writes.channel().media().namespace(namespace).len_bytes();
        if start + whole as u64 > len {
            return Ok(None);
        }
        let bytes = self.writes.channel().read(namespace, start, whole)?;
        let Ok(header) = ChunkHeader::parse(&bytes) else { return Ok(None) };
        if !self.is_expected(&header, chunk) {
            return Ok(None);
        }
        let sound = if chunk.oversize {
            oversize_is_sound(self.writes.channel(), &header, namespace, start)?
        } else {
            ordinary_is_sound(&header, &bytes)
        };
        Ok(sound.then_some(header))
    }

    /// Returns whether a header matches the source and the layout.
    fn is_expected(&mut self, header: &ChunkHeader, chunk: &ChunkLayout) -> bool {
        let head = header.head();
        let job = self.job;
        let columns = &job.spec.columns;
        is_head_of(head, job.spec, &chunk.location(job.time_ns), chunk.first_slot)
            && u32::from(head.num_samples) == chunk.num_slots
            && header.fields().eq(job.spec.fields.iter().map(|name| &name[..]))
            && *header.field_types() == job.spec.field_types
            && header.columns().eq(columns)
            && header.samples().all(|sample| {
                let row = self.row_at(sample.slot);
                let meta = self.meta(sample.slot, row);
                sample.id == meta.id
                    && sample.name == meta.name
                    && sample.label == meta.label
                    && columns.iter().all(|own| sample.values.get(own) == meta.values.get(own))
                    && !sample.purged
                    && self.job.rows.record_len(row, &mut self.lens) == Ok(sample.len_bytes)
            })
    }

    /// Reads a row's record: the length table if there are several fields, then their payloads.
    fn read_record(&mut self, row: u64, into: &mut [u8]) -> Result<(), BadReason> {
        let ranges = match self.lens.len() {
            0 | 1 => return self.read_payloads(row, into),
            _ => fields::put_table(&self.lens, into),
        };
        for (field, range) in self.job.rows.source_fields.iter().zip(ranges) {
            let Some(field) = field else { continue };
            let payload = self.job.rows.index.payloads(row).find(|payload| payload.field == *field);
            if let Some(payload) = payload {
                self.reader.read(row, &payload, &mut into[range])?;
            }
        }
        Ok(())
    }

    fn read_payloads(&mut self, row: u64, into: &mut [u8]) -> Result<(), BadReason> {
        for payload in self.job.rows.index.payloads(row) {
            self.reader.read(row, &payload, into)?;
        }
        Ok(())
    }

    fn meta(&self, slot: Slot, row: u64) -> SampleMeta<'a> {
        SampleMeta {
            id: match self.job.rows.order {
                RowOrder::Ids => SampleId(self.job.placement.part().first + row),
                RowOrder::Slots(_) => self.job.placement.id_at(slot),
            },
            name: self.job.rows.index.name(row),
            label: self.job.rows.label(row),
            values: self.job.rows.values(row),
        }
    }

    fn row_at(&self, slot: Slot) -> u64 {
        self.job.rows.row_at(slot, self.job.placement)
    }

    fn bad_entry(&self, row: u64, reason: BadReason) -> BadEntry {
        self.job.rows.index.bad_row(row, reason)
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

/// Returns whether `head` belongs to the chunk of `spec` at `location` that begins with `first_slot`.
pub(super) fn is_head_of(
    head: &ChunkHead,
    spec: &ChunkSpec,
    location: &ChunkLocation,
    first_slot: Slot,
) -> bool {
    let ChunkLocation { sequence, time_ns, namespace, cell } = *location;
    head.layout == spec.layout
        && head.kind == ChunkKind::Samples
        && head.id == ChunkId { generation: spec.generation, sequence }
        && head.time_ns == time_ns
        && head.first_slot == first_slot
        && head.part == spec.part.uncounted()
        && head.check_location(&spec.layout, namespace, cell).is_ok()
}

/// Returns whether the sample of the chunk at offset `start` matches its checksums, and all padding is zero.
pub(super) fn oversize_is_sound(
    channel: &mut Channel,
    header: &ChunkHeader,
    namespace: u16,
    start: u64,
) -> Result<bool> {
    let Some(sample) = header.samples().next() else { return Ok(false) };
    let mut sums = RecordSums::default();
    let len = u64::from(sample.len_bytes);
    let end = header.head().len_bytes() - sample.offset_bytes;
    for (at, piece) in pieces(end, PIECE_BYTES as u64) {
        let bytes = channel.read(namespace, start + sample.offset_bytes + at, piece)?;
        let payload = (len.saturating_sub(at)).min(piece as u64) as usize;
        sums.push(&bytes[..payload]);
        if bytes[payload..].iter().any(|&byte| byte != 0) {
            return Ok(false);
        }
    }
    Ok(is_right(&sample, &sums))
}

/// Returns whether every sample of a chunk matches its checksum and all padding is zero.
pub(super) fn ordinary_is_sound(header: &ChunkHeader, bytes: &[u8]) -> bool {
    let mut at = header.head().header_len as usize;
    let is_zero = |range: std::ops::Range<usize>| {
        bytes.get(range).is_some_and(|gap| gap.iter().all(|&byte| byte == 0))
    };
    for sample in header.samples() {
        let start = sample.offset_bytes as usize;
        let end = start + sample.len_bytes as usize;
        let sound = bytes.get(start..end).is_some_and(|record| match sample.pieces {
            [] => crc32c(record) == sample.crc32c,
            _ => is_right(&sample, &RecordSums::of(record)),
        });
        if !sound || !is_zero(at..start) {
            return false;
        }
        at = end;
    }
    is_zero(at..header.head().len_bytes() as usize)
}

/// Returns whether a header has these checksums for the sample. Earlier releases wrote no checksums for pieces.
fn is_right(sample: &SampleEntry<'_>, sums: &RecordSums) -> bool {
    let pieces = sample.pieces;
    sums.crc32c() == sample.crc32c
        && (pieces.is_empty() || sums.pieces().eq(pieces.iter().copied()))
}

fn slots(chunk: &ChunkLayout) -> impl Iterator<Item = Slot> + use<> {
    let first = chunk.first_slot.0;
    (first..first + u64::from(chunk.num_slots)).map(Slot)
}
