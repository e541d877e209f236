//! Purge: frees the space of deleted samples by rewriting their chunks without them.
//!
//! The new chunks go into free cells. Cells that a generation frees can be written two generations later. So a purge
//! commits several generations if not all new chunks fit into the free cells. Each step rewrites the chunks that fit,
//! and leaves a complete image. Meanwhile a file grows only a little. In the end, the space that no generation reads
//! any more is returned to the file system.

use std::sync::Arc;

use crate::import::chunk_stream::ChunkStream;
use crate::import::columns::columns_of;
use crate::import::commit;
use crate::import::device::{Meaning, open_image};
use crate::import::edit::{Edit, EditReport};
use crate::import::journal::Journal;
use crate::import::media::Media;
use crate::import::options::{EditOptions, Progress, Stage};
use crate::import::prepare::ImportState;
use crate::import::trim::{is_trim_left, trim_after_purge};
use dlfs_base::units::{Generation, Lba, SampleId, Slot};
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::directory::commit::Commit;
use dlfs_format::directory::{Directory, Rewrite};
use dlfs_format::format::error::equal;
use dlfs_format::format::names::crc32c;
use dlfs_format::format::{ChunkHead, ChunkHeader, Part, SampleEntry, SampleMeta, Space};
use dlfs_io::address::Address;
use dlfs_io::qpair::{ConnectOptions, Device};

/// Rewrites the chunks with deleted samples, without these samples. It commits one generation, or several if
/// the new chunks do not fit beside the old ones. If there are no such chunks, it writes nothing, unless an
/// earlier purge was killed before it had returned all space: then it returns the rest.
///
/// A file shrinks in place to about the size that an import of the remaining samples would give it. Space that
/// the new generation does not read is cut off its end or becomes a hole. So readers of earlier generations
/// have to open the image again.
///
/// # Errors
/// `Corrupt`: a sample to be kept is damaged; the error names it. `NoSpace`: there is no room for a single
/// chunk, record and snapshot. `Interrupted`: `progress` asked to stop. The generations that the purge has
/// committed stay; the rest is unchanged. Errors of [`delete`](super::delete).
pub fn purge(
    image: &[Address],
    options: &EditOptions,
    connect: &ConnectOptions,
    progress: &mut dyn Progress,
) -> Result<EditReport> {
    purge_with(&open_image(image, connect, Meaning::AllOfImage)?, options, progress)
}

/// Same as [`purge`] with the default options, for open namespaces.
///
/// # Errors
/// As [`purge`].
pub fn purge_on(devices: &[Arc<dyn Device>], progress: &mut dyn Progress) -> Result<EditReport> {
    purge_with(devices, &EditOptions::default(), progress)
}

/// Purges the image on open namespaces.
fn purge_with(
    devices: &[Arc<dyn Device>],
    options: &EditOptions,
    progress: &mut dyn Progress,
) -> Result<EditReport> {
    let mut edit = Edit::begin(devices, options)?;
    let result = Purge::new(&mut edit).run(progress);
    edit.lease.explain(result)
}

/// A purge in progress.
struct Purge<'a> {
    edit: &'a mut Edit,
    /// The time stamp of all generations of the purge.
    time_ns: u64,
    /// The first generation of the purge.
    since: Generation,
    /// The end of the usable cells of each namespace. Because of this limit, files that can grow stay short.
    ceilings: Vec<u64>,
    /// Number of times that the ceilings were raised.
    raises: u32,
    /// Set if the current generation freed chunks. The cells of these chunks cannot be written until the next
    /// generation is committed.
    has_freed: bool,
    /// Chunks written.
    chunks: u64,
    /// Bytes of the cells that the generations of the purge have freed.
    freed_bytes: u64,
}

impl<'a> Purge<'a> {
    /// A purge that begins with the current generation of `edit`.
    fn new(edit: &'a mut Edit) -> Purge<'a> {
        let layout = *edit.current.directory.layout();
        let space = edit.free_space();
        let ceiling = |(namespace, device): (u16, &Arc<dyn Device>)| {
            if device.capabilities().can_grow {
                space.end_cell(namespace)
            } else {
                layout.capacity_cells(device.namespace().len_bytes())
            }
        };
        let ceilings = (0..).zip(edit.media.devices.iter()).map(ceiling).collect();
        Purge {
            time_ns: edit.time_ns(),
            since: edit.next_generation(),
            ceilings,
            raises: 0,
            has_freed: !edit.current.directory.freed().is_empty(),
            chunks: 0,
            freed_bytes: 0,
            edit,
        }
    }

    /// Rewrites every chunk that has deleted samples, in as many generations as needed.
    fn run(mut self, progress: &mut dyn Progress) -> Result<EditReport> {
        let (todo, dead) = holed(&self.edit.current.directory)?;
        let slots: u64 = todo.iter().map(|slots| slots.end - slots.start).sum();
        progress.stage(Stage::Writing, slots, 0);
        let mut done = 0;
        while done < todo.len() {
            done += self.step(&todo[done..], progress)?;
        }
        progress.stage(Stage::Committing, 0, 0);
        if self.chunks > 0 || is_trim_left(self.edit)? {
            trim_after_purge(self.edit)?;
        }
        Ok(EditReport {
            samples: dead,
            chunks: self.chunks,
            freed_bytes: self.freed_bytes,
            ..EditReport::of(&self.edit.current.directory)
        })
    }

    /// Rewrites the first chunks of `todo`, as many as fit, and commits them as a generation. Returns their
    /// number.
    fn step(&mut self, todo: &[Slots], progress: &mut dyn Progress) -> Result<usize> {
        loop {
            let budget = &self.edit.media.retry_budget;
            let no_room = match budget.retry(|| self.try_step(todo, progress))? {
                Ok((done, chunks, commit)) => {
                    self.set_current(commit);
                    self.chunks += chunks;
                    self.has_freed = true;
                    return Ok(done);
                }
                Err(no_room) => no_room,
            };
            if self.raises < RAISES_BEFORE_WAITING && self.raise_ceilings() {
                self.raises += 1;
            } else if self.has_freed {
                // After another generation, the cells that the last step freed can be written.
                let budget = &self.edit.media.retry_budget;
                let commit = budget.retry(|| self.commit(&[]))?;
                self.set_current(commit);
                self.has_freed = false;
            } else if !self.raise_ceilings() {
                return Err(no_room);
            }
        }
    }

    /// Counts the freed bytes of a committed generation, which is the current one from now on.
    fn set_current(&mut self, commit: Commit) {
        let cell_bytes = commit.directory.layout().cell_bytes();
        let freed = commit.directory.freed().iter().map(|range| range.cells);
        self.freed_bytes += freed.sum::<u64>() * cell_bytes;
        self.edit.current = commit.into();
    }

    /// Tries a step. The inner error: not even the first chunk of `todo` fits.
    fn try_step(
        &self,
        todo: &[Slots],
        progress: &mut dyn Progress,
    ) -> Result<Result<(usize, u64, Commit), Error>> {
        let mut space = self.free_space();
        // Reserve room for the commit first: without a commit, the rewritten chunks are useless.
        let commit_cells = self.commit_cells();
        if space.allocate(0, commit_cells).is_none() {
            return Ok(Err(space.no_room(commit_cells).into()));
        }
        if !self.edit.media.can_grow() {
            // If possible, also reserve room for a commit that only makes freed cells usable.
            let _ = space.allocate(0, commit_cells); // a single generation needs none
        }
        let Edit { media, lease, current } = &*self.edit;
        let old = &*current.directory;
        let journal = Journal {
            layout: *old.layout(),
            namespace: 0,
            generation: self.edit.next_generation(),
            time_ns: self.time_ns,
            part: Part::default(),
            fingerprint: 0,
        };
        let media = media.clone();
        let state = ImportState { media, current: None, journal, resumed: false, done: false };
        let mut chunks = ChunkStream::of_part(&state, lease, columns_of(Some(old)), space);
        chunks.set_fields(old.fields(), old.field_types().clone());
        let mut rewriter = Rewriter { old, chunks };
        let done = match rewriter.rewrite_what_fits(todo, progress)? {
            (0, Some(no_room)) => return Ok(Err(no_room)),
            (done, _) => done,
        };
        let (heads, _) = rewriter.chunks.end_part("run the purge again")?;
        Ok(Ok((done, heads.len() as u64, self.commit(&heads)?)))
    }

    /// Commits a generation with these new chunks.
    fn commit(&self, heads: &[ChunkHead]) -> Result<Commit> {
        let old = &*self.edit.current.directory;
        let rewrite = Rewrite {
            chunks: heads,
            generation: self.edit.next_generation(),
            time_ns: self.time_ns,
            since: self.since,
        };
        let mut directory = old.rewritten(&rewrite)?;
        directory.set_freed(self.edit.current.freed(directory.cell_ranges()));
        let mut space = self.edit.free_space();
        heads.iter().for_each(|head| space.reserve(head.cell_range()));
        let Edit { media, lease, .. } = &*self.edit;
        commit::commit(media, std::slice::from_ref(lease), directory, &mut space)
    }

    /// The free cells below the ceilings.
    fn free_space(&self) -> Space {
        let mut space = self.edit.free_space();
        for (namespace, &cell) in (0..).zip(&self.ceilings) {
            space.limit(namespace, cell);
        }
        space
    }

    /// Number of cells that is probably enough for the next record and snapshot together.
    fn commit_cells(&self) -> u64 {
        let directory = &self.edit.current.directory;
        let snapshot = self.edit.current.superblocks[0].snapshot.len_bytes;
        let record = directory.record().encode(0, 0).len() as u64;
        // Names that become empty break the order by ids.
        let is_by_id = directory.memory_bytes().name_order == 0;
        let order = if is_by_id { 5 * directory.num_samples() } else { 0 };
        let more = order + 2 * PAGE_BYTES;
        directory.layout().cells_of(snapshot + record + more)
    }

    /// Lets files grow by an eighth of their size, four full chunks and a commit. Returns false if no file can grow
    /// further.
    fn raise_ceilings(&mut self) -> bool {
        let layout = *self.edit.current.directory.layout();
        let least = self.commit_cells() + 4 * layout.cells_of(layout.chunk_size_bytes.into());
        let capacities = self.edit.media.capacities();
        let mut any = false;
        for (ceiling, len_bytes) in self.ceilings.iter_mut().zip(capacities) {
            let raised = ceiling.saturating_add(*ceiling / 8 + least);
            let raised = raised.min(layout.capacity_cells(len_bytes));
            any |= raised > *ceiling;
            *ceiling = raised.max(*ceiling);
        }
        any
    }
}

/// Number of times that files grow before steps wait for cells that earlier steps freed. Then each step writes
/// the cells that the last step but one freed.
const RAISES_BEFORE_WAITING: u32 = 2;

/// Upper limit of the additional padding in a record, and in a snapshot.
const PAGE_BYTES: u64 = 4096;

/// The slots of a chunk.
type Slots = std::ops::Range<u64>;

/// The slots of every chunk whose deleted samples still have bytes on the media, and the number of these
/// samples.
fn holed(directory: &Directory) -> Result<(Vec<Slots>, u64)> {
    let mut holed = Vec::new();
    let mut dead = 0;
    let mut name = Vec::new();
    for chunk in 0..directory.num_chunks() {
        let info = directory.chunk(chunk);
        if directory.live_in_chunk(chunk) == info.num_slots {
            continue;
        }
        let slots = info.first_slot.0..info.first_slot.0 + u64::from(info.num_slots);
        let before = dead;
        for slot in slots.clone() {
            let id = directory.id_at(Slot(slot)).expect("a slot of a chunk has an id");
            // A purge drops a sample's name together with its bytes.
            dead += u64::from(!directory.is_live(id) && directory.name_into(id, &mut name)?);
        }
        holed.extend((dead > before).then_some(slots));
    }
    Ok((holed, dead))
}

/// Writes the new chunks of a generation.
struct Rewriter<'a> {
    old: &'a Directory,
    chunks: ChunkStream<'a>,
}

impl Rewriter<'_> {
    /// Rewrites chunks in order. Returns how many fit, and the reason why the next one does not.
    ///
    /// While there is room for three full-size chunks, neighbours are merged: one chunk may complete the open
    /// chunk, fill another, and begin a third. With less room, each chunk is rewritten separately, so that it
    /// is known whether it fits.
    fn rewrite_what_fits(
        &mut self,
        todo: &[Slots],
        progress: &mut dyn Progress,
    ) -> Result<(usize, Option<Error>)> {
        let layout = self.old.layout();
        let chunk_cells = layout.cells_of(layout.chunk_size_bytes.into());
        for (done, slots) in todo.iter().enumerate() {
            if progress.stop() {
                let message = "the purge was stopped; what it has done stays";
                return Err(Error::new(ErrorKind::Interrupted, message));
            }
            // The open chunk was begun with enough free space, so it can be finished.
            if self.chunks.next_slot() != Slot(slots.start) {
                self.chunks.finish_chunk()?;
            }
            let is_tight = !self.chunks.space.has_room(3 * chunk_cells);
            if is_tight {
                self.chunks.finish_chunk()?;
            }
            let whole = self.chunks.heads.len();
            let mut rewritten = self.rewrite(slots);
            if is_tight {
                rewritten = rewritten.and_then(|()| self.chunks.finish_chunk());
            }
            match rewritten {
                Err(no_room) if is_tight && self.chunks.is_full => {
                    self.chunks.heads.truncate(whole);
                    return Ok((done, Some(no_room)));
                }
                rewritten => rewritten?,
            }
            progress.advance(slots.end - slots.start, 0);
        }
        self.chunks.finish_chunk()?;
        Ok((todo.len(), None))
    }

    /// Copies the live samples of a chunk into new chunks. Slots of deleted samples become empty entries.
    fn rewrite(&mut self, slots: &Slots) -> Result<()> {
        let old = self.old;
        let id = old.id_at(Slot(slots.start)).expect("a slot of a chunk has an id");
        let chunk = old.chunk_of(id).expect("a slot of a chunk is in one");
        let info = old.chunk(chunk);
        if old.live_in_chunk(chunk) == 0 {
            return slots.clone().try_for_each(|slot| self.push_purged(Slot(slot)));
        }
        let channel = &mut self.chunks.writes.channel;
        let bytes = channel.read(info.namespace, info.offset_bytes, info.len_bytes as usize)?;
        let header = ChunkHeader::parse(&bytes)?;
        let cell = info.offset_bytes / old.layout().cell_bytes();
        header.head().check_location(old.layout(), info.namespace, cell)?;
        equal("first slot of a chunk", info.first_slot.0, header.head().first_slot.0)?;
        let found = u64::from(header.head().num_samples);
        equal("samples of a chunk", info.num_slots.into(), found)?;
        let fields = old.fields().iter().map(|name| &name[..]);
        equal("other names of the fields of a chunk", 0, header.fields().ne(fields).into())?;
        let differs = header.field_types() != old.field_types();
        equal("other types of the fields of a chunk", 0, differs.into())?;
        for sample in header.samples() {
            let id = old.id_at(sample.slot).map_or(u64::MAX, |id| id.0);
            equal("id of the sample at a slot", id, sample.id.0)?;
            let Some(extent) = old.extent(sample.id) else {
                self.push_purged(sample.slot)?;
                continue;
            };
            let start = sample.offset_bytes as usize;
            let record = bytes.get(start..start.saturating_add(sample.len_bytes as usize));
            let is_right = |record: &&[u8]| {
                crc32c(record) == extent.crc32c && extent.len_bytes == sample.len_bytes
            };
            let Some(record) = record.filter(is_right) else {
                let at = extent.offset_bytes;
                return Err(damaged(sample.id, at, &self.chunks.state.media, info.namespace));
            };
            let SampleEntry { id, name, label, values, .. } = sample;
            let meta = SampleMeta { id, name, label, values };
            self.go_to(sample.slot)?;
            self.chunks.push(&meta, sample.len_bytes, &mut |take| take(record))?;
        }
        Ok(())
    }

    /// Adds an empty entry for the deleted sample at `slot`.
    fn push_purged(&mut self, slot: Slot) -> Result<()> {
        self.go_to(slot)?;
        self.chunks.push_purged(self.old.id_at(slot).expect("a slot of a chunk has an id"))
    }

    /// Ensures that the chunk being filled continues with `slot` and has the part of `slot`: the samples of a chunk are
    /// of one part.
    fn go_to(&mut self, slot: Slot) -> Result<()> {
        let parts = self.old.parts().take_while(|part| part.first <= slot.0);
        let part = *parts.last().expect("parts begin with slot 0");
        if self.chunks.spec.part != part || self.chunks.next_slot() != slot {
            self.chunks.begin_at(part, slot)?;
        }
        Ok(())
    }
}

/// The error for a damaged sample at an offset of a namespace in bytes.
fn damaged(id: SampleId, offset: u64, media: &Media, namespace: u16) -> Error {
    let device = media.devices[usize::from(namespace)].namespace();
    Error::new(ErrorKind::Corrupt, "a sample that is to be kept is damaged")
        .sample(id)
        .target(device.address)
        .lba(Lba(offset / u64::from(device.block_len_bytes)))
}
