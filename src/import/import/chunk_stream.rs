//! Writes chunks while their samples arrive, in the order of slots. Used by imports of streams, by purges, and by
//! [`Writer`](super::Writer), for programs that write samples themselves.
//!
//! An indexed import plans the place of every chunk before it begins; here a chunk gets its place when it is
//! full. A resumed import skips chunks that are on the media with the expected bytes. An import that resumes at a point
//! of its checkpoint takes over the chunks before that point.

use std::collections::HashSet;

use xxhash_rust::xxh3::xxh3_128;

use crate::import::commit;
use crate::import::committed::free_space;
use crate::import::lease::Lease;
use crate::import::media::Media;
use crate::import::options::{MediaUse, Progress, stopped};
use crate::import::prepare::ImportState;
use crate::import::read_back::{check_heads, sound_chunk};
use crate::import::write_behind::{FLUSH_EVERY_BYTES, WriteBehind};
use dlfs_base::units::{SampleId, Slot};
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::directory::DirectoryBuilder;
use dlfs_format::directory::commit::Commit;
use dlfs_format::format::builder::ChunkLocation;
use dlfs_format::format::chunk::SampleEntry;
use dlfs_format::format::columns::ColumnSpec;
use dlfs_format::format::{
    CellRange, ChunkBuilder, ChunkHead, ChunkHeader, ChunkSpec, DraftLen, FieldTypes, Fit,
    OriginsBuilder, Part, RecordSums, SampleMeta, Space,
};

/// Chunks that are written as they fill.
pub(super) struct ChunkStream<'a> {
    /// The image, and the journal.
    pub(super) state: &'a ImportState,
    lease: &'a Lease,
    /// The part, fields and columns of the next chunk.
    pub(super) spec: ChunkSpec,
    /// The chunks whose writes are in flight, by first slot.
    pub(super) writes: WriteBehind<Slot>,
    /// The free cells.
    pub(super) space: Space,
    /// The directory of the generation that is committed at the end. `None`: a separate commit adds the chunks.
    builder: Option<Box<DirectoryBuilder>>,
    /// The heads of the chunks, if a separate commit adds them, or if they are read back.
    pub(super) heads: Vec<ChunkHead>,
    /// The slot after the last complete chunk.
    closed_slot: Slot,
    /// The chunk that is being filled; `None`: the next sample begins one.
    open: Option<ChunkBuilder>,
    /// Set if there was no room for the last chunk that asked for cells.
    pub(super) is_full: bool,
    /// Number of the next chunk in the generation.
    pub(super) sequence: u64,
    /// Chunks that a resumed import has found on the media.
    pub(super) found: u64,
    /// Bytes written, by purpose.
    pub(super) media: MediaUse,
    /// Bytes written since the last flush.
    unflushed_bytes: u64,
    /// Set if a file may have been made longer than needed.
    is_longer: bool,
}

/// Supplies a sample: calls its argument with the sample's bytes, piece by piece in order. [`ChunkStream::push`] calls
/// it once. Returns the errors of its argument, and of reading the sample.
type GiveSample<'r> = dyn FnMut(&mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> + 'r;

/// Result of a stream of chunks.
pub(super) struct Streamed {
    /// The committed generation.
    pub(super) commit: Commit,
    /// Number of chunks, found ones included.
    pub(super) chunks: u64,
    /// Chunks that a resumed import found on the media.
    pub(super) found: u64,
    /// Bytes written, by purpose.
    pub(super) media: MediaUse,
}

impl<'a> ChunkStream<'a> {
    /// Continues after the samples of the current generation, with the journal's part. `columns`: the typed
    /// columns of all chunks.
    ///
    /// # Errors
    /// The names of the current generation are not loaded.
    pub(super) fn new(
        state: &'a ImportState,
        lease: &'a Lease,
        columns: Vec<ColumnSpec>,
    ) -> Result<ChunkStream<'a>> {
        let builder = state.builder()?;
        let layout = state.journal.layout;
        let space = free_space(&state.media, &layout, state.current.as_ref());
        Ok(ChunkStream {
            closed_slot: builder.next_slot(),
            builder: Some(builder.into()),
            ..ChunkStream::of_part(state, lease, columns, space)
        })
    }

    /// Begins a part in `space`, with slot 0.
    pub(super) fn of_part(
        state: &'a ImportState,
        lease: &'a Lease,
        columns: Vec<ColumnSpec>,
        space: Space,
    ) -> ChunkStream<'a> {
        let buf_len = ChunkBuilder::buf_len_bytes(&state.journal.layout);
        ChunkStream {
            state,
            lease,
            spec: state.journal.spec(Vec::new(), FieldTypes::default(), columns),
            writes: WriteBehind::new(state.media.channel(), buf_len),
            space,
            builder: None,
            heads: Vec::new(),
            closed_slot: Slot(0),
            open: None,
            is_full: false,
            sequence: 0,
            found: 0,
            media: MediaUse::default(),
            unflushed_bytes: 0,
            is_longer: false,
        }
    }

    /// Sets names and types of the fields of all samples.
    pub(super) fn set_fields(&mut self, fields: &[Vec<u8>], types: FieldTypes) {
        self.spec.fields = fields.to_vec();
        self.spec.field_types = types;
    }

    /// Continues with `slot`, of `part`, in a new chunk.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub(super) fn begin_at(&mut self, part: Part, slot: Slot) -> Result<()> {
        self.finish_chunk()?;
        self.spec.part = part;
        self.closed_slot = slot;
        Ok(())
    }

    /// The slot of the next sample.
    pub(super) fn next_slot(&self) -> Slot {
        self.open.as_ref().map_or(self.closed_slot, ChunkBuilder::next_slot)
    }

    /// The slot after the longest prefix of chunks whose writes have completed.
    ///
    /// # Errors
    /// A write has failed.
    pub(super) fn written_slot(&mut self) -> Result<Slot> {
        self.take_ended()?;
        Ok(self.writes.oldest().copied().unwrap_or(self.closed_slot))
    }

    /// Adds the sample of the next slot, of `len` bytes, which `give` supplies.
    ///
    /// # Errors
    /// Errors of writing, and of `give`: what was written of the sample is useless then. `NoSpace`: a chunk does not
    /// fit. `Busy`: the lease is lost. A name or value that no image can have.
    pub(super) fn push(
        &mut self,
        meta: &SampleMeta<'_>,
        len: u32,
        give: &mut GiveSample<'_>,
    ) -> Result<()> {
        loop {
            let chunk = self.open()?;
            match chunk.fit(meta, len) {
                Fit::Here => {
                    let space = chunk.space(len);
                    let mut at = 0;
                    give(&mut |bytes| {
                        space[at..at + bytes.len()].copy_from_slice(bytes);
                        at += bytes.len();
                        Ok(())
                    })?;
                    chunk.add(meta, len)?;
                    self.writes.has_read(len as usize);
                    return Ok(());
                }
                Fit::NextChunk => self.finish_chunk()?,
                Fit::Oversize if chunk.num_samples() > 0 => self.finish_chunk()?,
                Fit::Oversize => return self.push_oversize(meta, len, give),
            }
        }
    }

    /// Adds the empty entry of a purged sample at the next slot.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub(super) fn push_purged(&mut self, id: SampleId) -> Result<()> {
        while self.open()?.push_purged(id) != Fit::Here {
            self.finish_chunk()?;
        }
        Ok(())
    }

    /// The chunk that is being filled.
    fn open(&mut self) -> Result<&mut ChunkBuilder> {
        if self.open.is_none() {
            let buf = self.writes.chunk_buf();
            self.open = Some(ChunkBuilder::new(self.spec.clone(), self.closed_slot, buf)?);
        }
        Ok(self.open.as_mut().expect("opened just above"))
    }

    /// Completes the chunk that is being filled, if it has samples: writes it, unless a resumed import finds it on the
    /// media.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub(super) fn finish_chunk(&mut self) -> Result<()> {
        let Some(mut chunk) = self.open.take().filter(|chunk| chunk.num_samples() > 0) else {
            return Ok(());
        };
        let location = self.next_location(chunk.cells())?;
        let finished = chunk.finish(location);
        self.collect(&finished.header)?;
        let offset = self.begin_put(location)?;
        let namespace = location.namespace;
        if self.state.resumed && self.writes.is_there(namespace, offset, finished.bytes())? {
            self.found += 1;
            self.writes.spare_bufs.push(finished.buf);
            return Ok(());
        }
        let header = self.writes.write_chunk(namespace, offset, finished)?;
        self.close(header.head())
    }

    /// Writes a sample that has its own chunk: first its bytes as they arrive, then the header.
    fn push_oversize(
        &mut self,
        meta: &SampleMeta<'_>,
        len: u32,
        give: &mut GiveSample<'_>,
    ) -> Result<()> {
        self.open = None;
        let slot = self.closed_slot;
        let spec = self.spec.clone();
        let header = |sums: &RecordSums, location| {
            ChunkBuilder::oversize(&spec, slot, meta, len, sums, location)
        };
        let nowhere = ChunkLocation { sequence: 0, time_ns: 0, namespace: 0, cell: 1 };
        let draft = header(&RecordSums::unknown(len), nowhere)?;
        let location = self.next_location(spec.layout.cells_of(draft.head().len_bytes()))?;
        let at = (location.namespace, self.begin_put(location)?);
        let lease = self.lease;
        let written = self.writes.write_oversize(
            at,
            draft.head().data_start(),
            self.state.resumed,
            |sums| header(sums, location),
            |stream| {
                give(&mut |bytes| {
                    lease.check()?;
                    stream.push(bytes)
                })
            },
        );
        // If the sample is bad, the next chunk takes the number of this one, but not its cells: writes to them
        // may be in flight. They stay unused until the next generation.
        let (header, is_there) = written.flatten().inspect_err(|_| self.sequence -= 1)?;
        self.found += u64::from(is_there);
        self.collect(&header)?;
        self.close(header.head())
    }

    /// Counts a chunk, and adds it to the directory to commit and to the heads, as far as these are needed.
    pub(super) fn collect(&mut self, header: &ChunkHeader) -> Result<()> {
        if let Some(builder) = &mut self.builder {
            builder.add_chunk(header)?;
        }
        if self.builder.is_none() || !self.state.media.checks_writes() {
            self.heads.push(*header.head());
        }
        self.closed_slot = header.head().end_slot();
        self.media.add(&DraftLen::of(header), &self.state.journal.layout);
        Ok(())
    }

    /// Allocates cells for the next chunk, on a namespace that is long enough.
    fn next_location(&mut self, cells: u64) -> Result<ChunkLocation> {
        let layout = &self.state.journal.layout;
        let range = self.space.allocate(self.sequence, cells);
        self.is_full = range.is_none();
        let range: CellRange = range.ok_or_else(|| self.space.no_room(cells))?;
        self.grow(range.namespace, layout.offset_of(range.cell + range.cells)?)?;
        let location = self.location(range);
        self.sequence += 1;
        Ok(location)
    }

    /// The location of the next chunk, in these cells.
    fn location(&self, CellRange { namespace, cell, .. }: CellRange) -> ChunkLocation {
        let time_ns = self.state.journal.time_ns;
        ChunkLocation { sequence: self.sequence, time_ns, namespace, cell }
    }

    /// Makes a namespace at least `len_bytes` long. A file grows by more than that, because each growth has to
    /// wait for the writes in flight. The commit truncates it.
    fn grow(&mut self, namespace: u16, len_bytes: u64) -> Result<()> {
        let media = &self.state.media;
        let device = &media.devices[usize::from(namespace)];
        // The commit of a part is separate, and would not truncate the file.
        let is_cut = self.builder.is_some();
        if is_cut && device.namespace().len_bytes() < len_bytes && device.capabilities().can_grow {
            // A failure is fine: the file need not be that long.
            self.is_longer |= media.grow(namespace, len_bytes + GROW_BYTES).is_ok();
        }
        media.grow(namespace, len_bytes)
    }

    /// The offset at which to write a chunk. Fails if the lease is lost.
    fn begin_put(&self, location: ChunkLocation) -> Result<u64> {
        self.lease.check()?;
        Ok(self.state.journal.layout.offset_of(location.cell)?)
    }

    /// Registers a chunk whose write was started, and waits while too many writes are in flight. A lost connection ends
    /// the import, since the samples of lost chunks cannot be read from the stream again. A resumed import opens the
    /// stream anew, and compares what it reads with the media.
    fn close(&mut self, head: &ChunkHead) -> Result<()> {
        self.writes.close(head.first_slot);
        self.unflushed_bytes += head.len_bytes();
        if self.unflushed_bytes >= FLUSH_EVERY_BYTES {
            self.unflushed_bytes = 0;
            self.writes.flush()?;
        }
        self.wait_while(WriteBehind::is_full)
    }

    /// Forgets chunks whose writes have ended.
    ///
    /// # Errors
    /// The first failure of a write or flush.
    fn take_ended(&mut self) -> Result<()> {
        // Check flushes first: the errors of writes that were in flight during a failed flush only say that
        // they were cancelled.
        self.writes.check_flushes()?;
        while let Some((_, ended)) = self.writes.ended() {
            ended?;
        }
        Ok(())
    }

    /// Waits for writes in flight as long as `is_busy`.
    fn wait_while(&mut self, is_busy: impl Fn(&WriteBehind<Slot>) -> bool) -> Result<()> {
        self.take_ended()?;
        while is_busy(&self.writes) {
            self.writes.wait();
            self.take_ended()?;
        }
        Ok(())
    }

    /// Writes the open chunk, and commits the generation. `classes`: the names of the classes, into which labels are
    /// indexes; if they are empty, those of the current generation stay. `origins`: the objects that are imported.
    ///
    /// # Errors
    /// Errors of writing. A reader then opens the previous generation.
    pub(super) fn commit(
        mut self,
        classes: &[Vec<u8>],
        origins: &OriginsBuilder,
    ) -> Result<Streamed> {
        self.finish_chunk()?;
        self.wait_while(|writes| !writes.is_idle())?;
        let Some(mut builder) = self.builder else {
            return Err(Error::new(ErrorKind::Internal, "a part is committed with the others"));
        };
        if let Some(current) = &self.state.current {
            builder.set_freed(current.freed(builder.cell_ranges()));
        }
        let journal = &self.state.journal;
        if !classes.is_empty() {
            builder.set_classes(classes.to_vec());
        }
        let mut group = Vec::new();
        origins.encode(journal.generation, &mut group);
        builder.add_origins(&group);
        let directory = builder.finish(journal.generation, journal.time_ns)?;
        if !self.state.media.checks_writes() {
            // The samples cannot be read again, so damage is reported, not repaired.
            check_heads(&mut self.writes.channel, &self.heads, "resume with dlfs import --resume")?;
        }
        let leases = std::slice::from_ref(self.lease);
        let commit = commit::commit(&self.state.media, leases, directory, &mut self.space)?;
        if self.is_longer || self.state.resumed {
            cut(&self.state.media, &self.space, &commit)?;
        }
        let media = self.media.with_commit(&commit);
        Ok(Streamed { commit, chunks: self.sequence, found: self.found, media })
    }

    /// Writes the open chunk of a part. Returns the heads of its chunks, and the remaining space. The caller
    /// must flush.
    ///
    /// # Errors
    /// Errors of writing. `Disconnected`: a chunk does not read back as it was written; `hint` says what to do.
    pub(super) fn end_part(mut self, hint: &'static str) -> Result<(Vec<ChunkHead>, Space)> {
        self.finish_chunk()?;
        self.wait_while(|writes| !writes.is_idle())?;
        if !self.state.media.checks_writes() {
            check_heads(&mut self.writes.channel, &self.heads, hint)?;
        }
        Ok((self.heads, self.space))
    }
}

/// Truncates files that this import, or the one that it resumes, made longer than needed.
fn cut(media: &Media, space: &Space, commit: &Commit) -> Result<()> {
    let layout = commit.directory.layout();
    for superblock in &commit.superblocks {
        let device = &media.devices[usize::from(superblock.namespace)];
        // The previous generation may reach further than this one.
        let end = layout.offset_of(space.end_cell(superblock.namespace))?;
        let end = end.max(superblock.used_len_bytes);
        if device.namespace().len_bytes() <= end + GROW_BYTES {
            // A file that is too long does no harm.
            let _ = device.trim(&[], end);
        }
    }
    Ok(())
}

/// Growth step of a file. It allocates no disk space.
const GROW_BYTES: u64 = 512 << 20;

/// The state taken over from the chunks on the media, up to the point.
#[derive(Debug, Default)]
pub(super) struct Restored {
    /// Fingerprints of the names of the samples.
    pub(super) names: HashSet<u128>,
    /// Names of the fields.
    pub(super) fields: Vec<Vec<u8>>,
    /// Types of the fields.
    pub(super) field_types: FieldTypes,
    /// Names of the classes that the samples use. They come from the point.
    pub(super) classes: Vec<Vec<u8>>,
    /// Bytes of the samples.
    pub(super) sample_bytes: u64,
}

impl ChunkStream<'_> {
    /// Takes over the first `samples` samples of the part, which an interrupted import has written. To be called
    /// before anything else is written. Passes their names to `seen`, in order. `None`: some samples are missing
    /// or differ; then this stream is useless.
    ///
    /// The chunks must be where an import from the beginning would have put them, with the same heads, and every
    /// sample must match its checksum. The caller has checked that the objects are unchanged. So the chunks are
    /// the same as an import would write again.
    ///
    /// # Errors
    /// Errors of reading and writing.
    pub(super) fn restore(
        &mut self,
        samples: u64,
        seen: &mut dyn FnMut(&[u8]),
        progress: &mut dyn Progress,
    ) -> Result<Option<Restored>> {
        let end = self.next_slot().0.saturating_add(samples);
        let mut restored = Restored::default();
        let mut is_first = true;
        while self.next_slot().0 < end {
            if progress.stop() {
                return Err(stopped());
            }
            // An import from the beginning would put the next chunk here.
            let Some(place) = self.space.clone().allocate(self.sequence, 1) else {
                return Ok(None);
            };
            let location = self.location(place);
            let slot = self.next_slot();
            let found = sound_chunk(&mut self.writes.channel, &self.spec, &location, slot)?;
            let Some((header, bytes)) = found else { return Ok(None) };
            if header.samples().any(|sample| sample.purged || sample.id.0 != sample.slot.0) {
                return Ok(None);
            }
            let found = ChunkSpec {
                fields: header.fields().map(<[u8]>::to_vec).collect(),
                field_types: header.field_types().clone(),
                columns: header.columns().cloned().collect(),
                ..self.spec.clone()
            };
            // All chunks of an import have the same fields and columns.
            if !std::mem::take(&mut is_first) && self.spec != found {
                return Ok(None);
            }
            self.spec = found;
            for sample in header.samples().take_while(|sample| sample.slot.0 < end) {
                restored.names.insert(xxh3_128(sample.name));
                seen(sample.name);
                restored.sample_bytes += u64::from(sample.len_bytes);
            }
            if header.head().end_slot().0 <= end {
                let range = header.head().cell_range();
                let location = self.next_location(range.cells)?;
                if (location.namespace, location.cell) != (range.namespace, range.cell) {
                    return Ok(None);
                }
                self.collect(&header)?;
                self.found += 1;
                continue;
            }
            // The point is inside this chunk. The chunk is built again, from its samples before the point and
            // new ones.
            for sample in header.samples().take_while(|sample| sample.slot.0 < end) {
                let start = sample.offset_bytes as usize;
                let Some(record) = bytes.get(start..start + sample.len_bytes as usize) else {
                    return Ok(None);
                };
                let SampleEntry { id, name, label, values, .. } = sample;
                let meta = SampleMeta { id, name, label, values };
                self.push(&meta, sample.len_bytes, &mut |take| take(record))?;
            }
        }
        restored.fields = self.spec.fields.clone();
        restored.field_types = self.spec.field_types.clone();
        Ok(Some(restored))
    }
}
